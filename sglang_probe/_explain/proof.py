"""What was walked: which states of the rules change, which sizes of this launch, and whether a rule that only one release has can fire.

Called by explain.py. Invariant: a count is of a whole walk; what a walk cannot see (a gate whose code nobody knows) is named.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

from .. import _core
from .._proof.ask import reach
from .._proof.changes import Diff
from .._proof.diff import diff, diff_states
from .._proof.reach import Reach, rules_of
from .._proof.space import conjunction_text
from .._proof.worker import Worker, worker_of_server
from .._releases import Release
from .._route import context_bits
from .._step.types import Step
from .._types import FrozenMap, Server
from .sides import Reader, Sides
from .types import Proof

_FLAGS = ("piecewise", "compiling")
"""Conditions that a server's graphs set, or never do."""


def prove(reader: Reader, sides: Sides) -> Proof:
    """The rules alone, then the launch, then each rule that only one of the two has."""
    old, new = reader.releases
    servers = reader.servers
    device = _core.DEVICES[servers[1].groups["tp"].value("device")]
    of_device = {} if device == "cuda" else {"device": device}
    whole = diff_states(old, new, of_device)
    fixed, by, part = _settled(reader, sides, of_device, whole.changed)
    return Proof(
        states=whole.walked,
        changed=whole.changed,
        fixed=FrozenMap(fixed),
        fixed_by=by,
        states_fixed=part.walked if part is not None else whole.walked,
        changed_fixed=part.changed if part is not None else whole.changed,
        diff=diff(old, new, server=servers),
        rules=tuple(_rules(reader)),
    )


def _settled(reader: Reader, sides: Sides, of_device: Mapping[str, Any], changed: int) -> tuple[dict[str, Any], str, Diff | None]:
    """The fewest conditions that leave no changed state, and whose they are: these servers never set them, else this step does not."""
    old, new = reader.releases
    workers = _workers(old, new, reader.servers)
    tried = (
        ("", [name for name in _FLAGS if not any(_sets(name, worker.contexts) for worker in workers)]),
        (", as in this step", [name for name in _FLAGS if not any(_sets(name, (step.context,)) for step in sides.steps)]),
    )
    for by, never in tried if changed else ():
        for size in range(1, len(never) + 1):
            for names in combinations(never, size):
                fixed = dict.fromkeys(names, False)
                part = diff_states(old, new, {**of_device, **fixed})
                if not part.changed:
                    return fixed, by, part
    return {}, "", None


def _workers(old: Release, new: Release, servers: tuple[Server, Server]) -> tuple[Worker, Worker]:
    return worker_of_server(servers[0], old), worker_of_server(servers[1], new)


def _sets(flag: str, contexts: Iterable[str]) -> bool:
    return any(context_bits(context) & context_bits(flag) for context in contexts)


def _rules(reader: Reader) -> Iterator[Reach]:
    """Rules that only the new release has, then those that only the old one has: each in the release that has it."""
    old, new = reader.releases
    sides = ((new, old, reader.servers[1]), (old, new, reader.servers[0]))
    asked = reader.asked
    for having, other, server in sides:
        for rule in rules_of(having):
            if rule in rules_of(other):
                continue
            if asked.launch is not None:
                machine = {name: value for name, value in asked.machine.items() if value is not None}
                model = os.fspath(asked.model) if isinstance(asked.model, os.PathLike) else asked.model
                yield reach(rule, sglang=having, kind="rule", launch=asked.launch, model=model, **machine)
            else:
                yield reach(rule, sglang=having, kind="rule", server=server)


def never_sets(reader: Reader) -> Mapping[str, str]:
    """Contexts that neither server ever sets, with the reason of the newer one."""
    was, now = _workers(*reader.releases, reader.servers)
    return {name: why for name, why in now.never.items() if name in was.never}


def blind_spots(reader: Reader, sides: Sides) -> tuple[str, ...]:
    """Gates of these calls whose code nobody knows in one of the releases: what the walk says of them is the nearest release's."""
    found: dict[str, None] = {}
    for release, step in zip(reader.releases, sides.steps, strict=True):
        for name in release.unknown_gates:
            states = [item.decision.gates.get(name) for item in step.calls]
            idle = states and all(
                gate is not None and gate.state == "absent" and any(s.name in ("not_owned", "device") for s in gate.setup_stops)
                for gate in states
            )
            if not idle:
                found[f"{name} in {release.name}"] = None
    return tuple(found)


def reasons_of(proof: Proof, step: Step) -> list[str]:
    """Why nothing changes here, with what was counted: the two that say most first.

    Where no condition leaves the rules unchanged, or routes of other steps change, it is the walk over this server that proves it.
    """
    rules = [f"rule {r.target}, which only {r.sglang} has, cannot fire: {r.reason}" for r in proof.rules if not r.reachable]
    if proof.fixed:
        fixed = conjunction_text({name: (value,) for name, value in proof.fixed.items()})
        states = f"{proof.changed_fixed:,} of {proof.states_fixed:,} states of the rules change with {fixed}"
        states += f"{proof.fixed_by} ({proof.changed:,} of {proof.states:,} in all)"
    else:
        none = ", and this server comes to none of them" if proof.changed and not proof.diff.sizes else ""
        states = f"{proof.changed:,} of {proof.states:,} states of the rules change{none}"
    walked = f"{proof.classes:,} size classes of this server, over every size, dtype, layout and context that it sets"
    if proof.diff.sizes:
        contexts = ", ".join(dict.fromkeys(size.context for size in proof.diff.sizes))
        where = f"routes of this server do change, but for no call of this step: in {contexts}"
        classes = f"{where}; of {walked}, {proof.diff.changed:,} change"
    else:
        classes = f"0 of {walked}, change"
    if proof.fixed and not proof.diff.sizes:
        return [*rules[:1], states, *rules[1:], classes]
    alone = ["a group of one rank makes no all-reduce"] if step.world_size == 1 else []
    return [*alone, classes, states, *rules]
