"""reach for a group, a launch line, a log or a URL: over all shapes, dtypes and contexts of a worker started so.

Called by ``reach``. Invariant: the walk covers every class of every group; the reason is what every one of the classes has in common.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._decision import Stop
from .._facts import DTYPE_BYTES
from .._releases import Release
from .._route import PATHS, RULES, route
from .._types import Call, Group
from .reach import Kind, Reach, RuleReach, Witness, rules_of
from .worker import COLUMN, Classes, Worker, call_of, classes_of, context_name

_CONDITIONS = tuple(name for name, _, _ in _core.CONDITIONS)
_TEXTS = {name: text for name, _, text in _core.CONDITIONS}
_COMMUNICATOR = {name: communicator for name, communicator, _ in _core.CONDITIONS}
_ASK = 16
"""Flag of a row that only asks: it is no way to be chosen."""
_CHOOSING = (0, 1, 8)
"""Blocks of a ruleset in which a rule is chosen: all_reduce, "auto", and the in-place op."""
_CONTEXT_OF = {"piecewise": "piecewise", "compiling": "compiling"}


def reach_worker(target: str, kind: Kind, worker: Worker, level: str, describe: str) -> Reach:
    """Walks all classes of all groups of a worker. ``describe``: how the witness names the group, ``probe.Group.make(...)``, say."""
    release = worker.release
    every = [classes for group in worker.groups.values() for classes in classes_of(worker, group)]
    column = COLUMN["rule" if kind == "rule" else "path"]
    code = RULES.index(target) if kind == "rule" else [str(path) for path in PATHS].index(target)
    hits = [(classes, classes.rows[classes.rows[:, column] == code]) for classes in every]
    hits = [(classes, rows) for classes, rows in hits if len(rows)]
    by_rule: dict[str, list[tuple[Classes, NDArray[np.uint64]]]] = {}
    for classes, rows in hits:
        for rule in np.unique(rows[:, COLUMN["rule"]]):
            by_rule.setdefault(RULES[int(rule)], []).append((classes, rows[rows[:, COLUMN["rule"]] == rule]))
    rules = [_found(rule, found, worker, describe) for rule, found in by_rule.items()]
    if kind == "path":
        others = [rule for rule in _leading_to(code, release) if rule not in by_rule]
        rules += [RuleReach(rule, False, 0, _reason(rule, worker, every)) for rule in others]
    witnesses = [rule.witness for rule in rules if rule.witness]
    reason = ""
    if not hits:
        reason = (
            _reason(target, worker, every) if kind == "rule" else "; ".join(f"{r.rule}: {r.reason}" for r in rules if r.reason)
        )
    return Reach(
        target=target,
        kind=kind,
        sglang=release.name,
        ruleset=release.ruleset,
        level="group" if level == "group" else "launch",
        reachable=bool(hits),
        walked=_walked(every),
        classes=sum(len(classes.rows) for classes in every),
        reason=reason or ("" if hits else f"no rule of {release.name} ({release.ruleset}) leads to {target}"),
        rules=tuple(rules) if kind == "path" else (),
        witness=witnesses[0] if witnesses else None,
        assumed=worker.assumed,
    )


def _walked(every: list[Classes]) -> int:
    """Combinations of context, dtype and layout, of all groups and shapes."""
    width = 1 << 8
    total = 0
    for classes in every:
        context, dtype, layout = (classes.rows[:, COLUMN[name]] for name in ("context", "dtype", "layout"))
        total += len(set(((context * width + dtype) * width + layout).tolist()))
    return total


def _leading_to(path: int, release: Release) -> tuple[str, ...]:
    from .reach import leading_to

    return leading_to(str(PATHS[path]), release)


def _found(rule: str, found: list[tuple[Classes, NDArray[np.uint64]]], worker: Worker, describe: str) -> RuleReach:
    raises = [str(path) for path in PATHS].index("raises")
    best: tuple[tuple[int, ...], Classes, NDArray[np.uint64]] | None = None
    for classes, rows in found:
        for row in rows:
            key = (int(row[COLUMN["path"]] == raises), *(int(row[COLUMN[name]]) for name in ("layout", "residue", "dtype")))
            key += (abs(int(row[COLUMN["sample"]]).bit_length() - 16),)  # a size as models have it, not one byte
            if best is None or key < best[0]:
                best = (key, classes, row)
    assert best is not None
    _, classes, row = best
    call = _whole_rows(call_of(classes, row), int(row[COLUMN["last"]]))
    context = context_name(int(row[COLUMN["context"]]))
    decision = route(call, classes.group, context=context, sglang=worker.release)
    witness = Witness(_witness_text(call, describe, classes.group, context, worker.release.name), decision)
    return RuleReach(rule, True, sum(len(rows) for _, rows in found), witness=witness)


def _whole_rows(call: Call, last: int) -> Call:
    """The call as [tokens, hidden], where its class has such a size: as a person would make it."""
    width = call.hidden * DTYPE_BYTES[call.dtype]
    if not width or call.dims != 2:
        return call
    tokens = -(-call.nbytes // width)
    residue = [call.nbytes % n == 0 for n in (16, 4)]
    for more in range(16):
        nbytes = (tokens + more) * width
        if nbytes <= last and [nbytes % n == 0 for n in (16, 4)] == residue:
            return replace(call, nbytes=nbytes, tokens=tokens + more)
    return call


def _witness_text(call: Call, describe: str, group: Group, context: str, sglang: str) -> str:
    fields = [f"nbytes={call.nbytes}"]
    if call.dtype != "bf16":
        fields.append(f"dtype={call.dtype!r}")
    if call.hidden:
        fields.append(f"hidden={call.hidden}")
    if call.dims != 2:
        fields.append(f"dims={call.dims}")
    for name, usual in (("contiguous", True), ("weak_contiguous", True), ("aligned", True), ("registered", False)):
        if getattr(call, name) != usual:
            fields.append(f"{name}={not usual}")
    where = describe.format(group=group.name)
    return f"probe.route(probe.Call({', '.join(fields)}), {where}, context={context!r}, sglang={sglang!r})"


def _reason(rule: str, worker: Worker, every: list[Classes]) -> str:
    """What every class lacks, or has against it, for the rule to fire; with the settings or gates behind it."""
    release = worker.release
    if rule not in rules_of(release):
        return f"{release.name} ({release.ruleset}) has no rule {rule}"
    if release.derived is not None:
        return "no class of calls takes it"
    missing, against = ~0, ~0
    common: dict[str, None] = {}
    for classes in every:
        for word in np.unique(classes.rows[:, COLUMN["word"]]):
            lacks, opposed = _lacks(rule, release, int(word))
            missing &= lacks
            against &= opposed
            common |= dict.fromkeys(_names(lacks | opposed))
    lacking = _names(missing if missing != ~0 else 0)
    opposing = _names(against if against != ~0 else 0)
    if not lacking and not opposing:
        return f"a better rule takes every class, or one of these stops it: {', '.join(common)}"
    texts = [_needs(name, worker, every) for name in _first_of_each(lacking)]
    texts += [f"yields, because {_TEXTS[name]}" for name in opposing]
    return "; ".join(texts)


def _first_of_each(names: tuple[str, ...]) -> list[str]:
    """A communicator that is absent lacks three conditions: the first one says it all."""
    seen: set[str] = set()
    first = []
    for name in names:
        communicator = _COMMUNICATOR[name]
        if not communicator or communicator not in seen:
            first.append(name)
        seen.add(communicator)
    return first


def _needs(name: str, worker: Worker, every: list[Classes]) -> str:
    communicator = _COMMUNICATOR[name]
    if name in _CONTEXT_OF:
        reasons = [why for context, why in worker.never.items() if name in context or context in ("compile", "piecewise_replay")]
        why = next(
            (why for why in reasons if name != "compiling" or "traced" in why), reasons[0] if reasons else "no context sets it"
        )
        return f"needs {name}=True: {why}"
    if not communicator:
        return f"needs {name}: {_TEXTS[name]}"
    stops = _common_stops(communicator, worker, every)
    return f"needs {communicator}: {'; '.join(stops) if stops else _TEXTS[name]}"


def _common_stops(communicator: str, worker: Worker, every: list[Classes]) -> list[str]:
    """Reasons of one gate that hold in every group, for an ordinary call."""
    found: list[Mapping[str, Stop]] = []
    for group in worker.groups.values():
        call = Call(nbytes=14336 if not worker.hidden else worker.hidden * 2, hidden=worker.hidden)
        decision = route(call, group, context=worker.contexts[0], sglang=worker.release)
        found.append({stop.name: stop for stop in decision.gates[communicator].stops if stop.when == "setup"})
    shared = set.intersection(*(set(stops) for stops in found)) if found else set()
    return [str(stop) for name, stop in found[0].items() if name in shared]


@lru_cache(maxsize=512)
def _rows(rule: str, ruleset: int) -> tuple[tuple[int, int], ...]:
    """What each row of a rule needs and forbids, where SGLang chooses (carrying out asks nothing more)."""
    code, blocks = RULES.index(rule), _core.rulesets()[ruleset][3]
    traced = 1 << _CONDITIONS.index("compiling")  # the only way into "auto"
    return tuple(
        (row[5] | (traced if name == 1 else 0), row[6])
        for name in _CHOOSING
        for row in blocks.get(name, [])
        if row[0] == code and not row[3] & _ASK
    )


def _lacks(rule: str, release: Release, word: int) -> tuple[int, int]:
    """What the nearest row of a rule misses in a word, and what stands against it; (0, 0) where only better rules come first."""
    options = [(need & ~word, forbid & word) for need, forbid in _rows(rule, release.ruleset_index)]
    return min(options, key=lambda option: bin(option[0]).count("1") + bin(option[1]).count("1"))


def _names(word: int) -> tuple[str, ...]:
    return tuple(name for i, name in enumerate(_CONDITIONS) if word >> i & 1)
