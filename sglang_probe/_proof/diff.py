"""diff: every state, or every call of a worker, whose route changes between two revisions. Called by people, the matrix and bisect.

Invariant: exactly the changed states, as conjunctions of which none is needless; "no state changes" is the outcome of a whole walk.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .. import _core
from .._releases import Release, resolve
from .._route import PATHS, RULES
from .._types import FrozenMap, Group, InputError, Model, Server
from .ask import worker_of
from .changes import EXCEPTIONS, OPS, Diff, Outcome, SizeChange, StateChange
from .diff_worker import diff_workers
from .space import AXES, VALUES, call_text, conjunction, conjunction_text, keywords, region_of

_NEW, _CLONE, _LOST = 2, 4, 8


def diff(
    a: str | Release,
    b: str | Release,
    *,
    group: Group | None = None,
    launch: str | None = None,
    server: tuple[Server, Server] | None = None,
    gpu: str | None = None,
    link: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
    model: str | Model | None = None,
    **fixed: object,
) -> Diff:
    """Every state whose route changes from ``a`` to ``b``, grouped; or, for a ``group`` or a ``launch`` line, every size.

    Both may be anything that names a revision, checkouts included. With a launch line each side has its own release's defaults, so that
    changed defaults and gates show as well as changed rules. Raises InputError as ``reach`` does.
    """
    old, new = resolve(a), resolve(b)
    machine = {"gpu": gpu, "link": link, "nodes": nodes, "gpus": gpus, "env": env, "model": model}
    if group is None and launch is None and server is None:
        stray = next((name for name, value in machine.items() if value is not None), None)
        if stray:
            raise InputError(stray, machine[stray], "the machine matters for a launch line; give one, or conditions")
        return diff_states(old, new, fixed)
    if fixed:
        name = next(iter(fixed))
        raise InputError(name, fixed[name], "conditions follow from the launch line or group; leave one of them out")
    asked: dict[str, Any] = {"group": group, "launch": launch}
    if server is not None:
        sides = [worker_of({"server": side}, "server", r, {})[0] for side, r in zip(server, (old, new), strict=True)]
    else:
        sides = [worker_of(asked, "group" if group is not None else "launch", r, machine)[0] for r in (old, new)]
    servers = (sides[0].server, sides[1].server)
    return diff_workers(sides[0], sides[1], (servers[0], servers[1]) if servers[0] and servers[1] else None)


def nearest_name(release: Release) -> str:
    """The known release whose gates and defaults stand in for a checkout's."""
    name: str = _core.releases()[release.index][0]
    return name


# --------------------------------------------------------------------------------------------------------------- conditions


def _outcome(codes: tuple[int, ...]) -> Outcome:
    path, rule, op, flags, exception = codes
    result = EXCEPTIONS[exception] or (
        "lost" if flags & _LOST else "clone" if flags & _CLONE else "new tensor" if flags & _NEW else "input"
    )
    return Outcome(str(PATHS[path]), RULES[rule], OPS[op], result)


def diff_states(old: Release, new: Release, fixed: Mapping[str, object]) -> Diff:
    """At the level of conditions: rules alone."""
    wider = max((old, new), key=lambda release: _core.region_count(region_of(release, fixed).code))
    region = region_of(wider, fixed)
    states, changed, cubes = _core.changes(old.ruleset_index, new.ruleset_index, region.code, old.derived, new.derived)
    grouped: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[bytes, int, int]]] = {}
    for allowed, one_rank, _, together, before, after in cubes:
        grouped.setdefault((before, after), []).append((allowed, one_rank, together))
    changes = []
    for (was, now), parts in grouped.items():
        when = tuple({"world_size": (1,)} if one else conjunction(allowed, region) for allowed, one, _ in parts)
        allowed = parts[0][0]
        example = keywords({name: VALUES[name][_lowest(allowed[i])] for i, name in enumerate(AXES) if _lowest(allowed[i])})
        count = sum({one: together for _, one, together in parts}.values())
        changes.append(StateChange(_outcome(was), _outcome(now), count, when, call_text(new.name, example)))
    changes.sort(key=lambda change: -change.states)
    common = _common([part[0] for parts in grouped.values() for part in parts if not part[1]], region)
    return Diff(
        old.name, new.name, "conditions", states, changed, tuple(changes), FrozenMap(common), fixed=FrozenMap(region.fixed)
    )


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1 if mask else 0


def _common(cubes: list[bytes], region: Any) -> dict[str, tuple[Any, ...]]:
    """Conditions that all cubes share, where the region would leave more."""
    if not cubes:
        return {}
    joined = bytes(np.bitwise_or.reduce(np.frombuffer(b"".join(cubes), dtype=np.uint8).reshape(len(cubes), -1), axis=0))
    return conjunction(joined, region)


__all__ = ["Diff", "Outcome", "SizeChange", "StateChange", "conjunction_text", "diff", "diff_states", "diff_workers"]
