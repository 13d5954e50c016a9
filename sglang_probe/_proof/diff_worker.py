"""diff of a worker, size by size: a launch line or a group on two revisions. Called by diff, the matrix, bisect and history.

Invariant: both sides are walked in the same classes (contexts, dtypes, layouts, shapes), and every size belongs to one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._facts import pack_facts
from .._releases import Release
from .._route import PATHS, RULES
from .._step.types import Step
from .._types import Group, Server
from .changes import EXCEPTIONS, OPS, Diff, Outcome, SizeChange
from .worker import COLUMN, RESIDUE_TEXT, Worker, classes_of, context_name, shapes_of

_ROUTE = ("path", "rule", "op", "exception", "kernel", "backend", "returns_new", "cloned", "reduces")
_SEEN = ("path", "op", "exception", "kernel", "backend", "returns_new", "cloned", "reduces")
"""What counts as a change: a rule that was only renamed does not."""
_RAISES = [str(path) for path in PATHS].index("raises")


def _outcome_of(row: NDArray[np.uint64]) -> Outcome:
    value = {name: int(row[COLUMN[name]]) for name in _ROUTE}
    path = str(PATHS[value["path"]])
    result = EXCEPTIONS[value["exception"]]
    if not result:
        lost = not value["reduces"] and path != "none"
        result = "not reduced" if lost else "clone" if value["cloned"] else "new tensor" if value["returns_new"] else "input"
    kernel, backend = _core.KERNELS[value["kernel"]][0], _core.BACKENDS[value["backend"]]
    return Outcome(path, RULES[value["rule"]], OPS[value["op"]], result, kernel, backend)


def _seen(row: NDArray[np.uint64]) -> tuple[int, ...]:
    """What a caller can tell; of a call that raises, only what it raises."""
    names = _SEEN if int(row[COLUMN["path"]]) != _RAISES else ("path", "exception")
    return tuple(int(row[COLUMN[name]]) for name in names)


def _sweep(
    before: NDArray[np.uint64], after: NDArray[np.uint64]
) -> Iterator[tuple[int, int, NDArray[np.uint64], NDArray[np.uint64]]]:
    """Ranges of one dtype, layout and residue over which both sides are constant and differ."""
    i = k = 0
    while i < len(before) and k < len(after):
        first = max(int(before[i][0]), int(after[k][0]))
        last = min(int(before[i][1]), int(after[k][1]))
        if first <= last and _seen(before[i]) != _seen(after[k]):
            yield first, last, before[i], after[k]
        if int(before[i][1]) <= int(after[k][1]):
            i += 1
        else:
            k += 1


def _tables(
    worker: Worker, group: Group, contexts: tuple[str, ...], shapes: list[tuple[int, int]]
) -> dict[tuple[int, ...], NDArray[np.uint64]]:
    """Rows of each (shape, context, dtype, layout, residue), sorted by size."""
    columns = [COLUMN[name] for name in ("context", "dtype", "layout", "residue")]
    tables: dict[tuple[int, ...], NDArray[np.uint64]] = {}
    for number, classes in enumerate(classes_of(worker, group, contexts=contexts, shapes=shapes)):
        keys = classes.rows[:, columns]
        order = np.lexsort((classes.rows[:, 0], *keys.T[::-1]))
        rows = classes.rows[order]
        keys = keys[order]
        first = np.ones(len(keys), dtype=bool)
        first[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        starts: list[int] = np.flatnonzero(first).tolist()
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            tables[(number, *map(int, keys[start]))] = rows[start:end]
    return tables


_Where = tuple[str, str, int, int, Outcome, Outcome]


def diff_workers(old: Worker, new: Worker, servers: tuple[Server, Server] | None) -> Diff:
    """Size by size: all groups, and the contexts that either server sets."""
    contexts = tuple(name for name in old.contexts if name in new.contexts)
    notes = [f"context {name}: only {old.release.name} sets it" for name in old.contexts if name not in new.contexts]
    notes += [f"context {name}: only {new.release.name} sets it" for name in new.contexts if name not in old.contexts]
    found: dict[_Where, list[str]] = {}
    walked = changed = 0
    steps = _steps(servers, (old.release, new.release))
    for name, sides in _pairs(old, new, _used(steps)).items():
        shapes = list(dict.fromkeys(shape for worker, group in sides for shape in shapes_of(worker, group)))
        before, after = (_tables(worker, group, contexts, shapes) for worker, group in sides)
        for key in before.keys() & after.keys():
            walked += len(before[key])
            for first, last, was, now in _sweep(before[key], after[key]):
                changed += 1
                where: _Where = (name, context_name(key[1]), first, last, _outcome_of(was), _outcome_of(now))
                found.setdefault(where, []).append(f"{_core.DTYPES[key[2]][0]}, {_core.LAYOUTS[key[3]]}, {RESIDUE_TEXT[key[4]]}")
    changes = [SizeChange(*where, tuple(sorted(set(tensors)))) for where, tensors in found.items()]
    sizes = sorted(changes, key=_order)
    if servers and any(server.model is None for server in servers):
        notes.append("the verify step: the model is not known")
    return Diff(
        old.release.name,
        new.release.name,
        "launch" if servers else "group",
        walked,
        changed,
        sizes=tuple(sizes),
        step=_step_changes(*steps) if steps else (),
        notes=tuple(notes),
        assumed=tuple(dict.fromkeys((*old.assumed, *new.assumed))),
    )


def _order(change: SizeChange) -> tuple[Any, ...]:
    plain = any("contiguous, multiples of 16" in tensor for tensor in change.tensors)
    return not plain, change.group, change.context, change.first_bytes


def _steps(servers: tuple[Server, Server] | None, releases: tuple[Release, Release]) -> tuple[Step, Step] | None:
    """The verify step of one request on both sides, where the model is known."""
    from .._step.step import step_of

    if servers is None or any(server.model is None for server in servers):
        return None
    return step_of(servers[0], sglang=releases[0]), step_of(servers[1], sglang=releases[1])


def _used(steps: tuple[Step, Step] | None) -> set[str] | None:
    """Groups over which the model's calls go on either side; None where that is not known, and every group counts."""
    if steps is None or any(step.not_modelled for step in steps):
        return None
    return (
        {"tp"}
        | {item.call.group for step in steps for item in step.calls}
        | {part.group for step in steps for part in step.cycle}
    )


def _pairs(old: Worker, new: Worker, used: set[str] | None) -> dict[str, tuple[tuple[Worker, Group], tuple[Worker, Group]]]:
    """Groups that both sides have, by name; those that are one object on both sides once."""
    left, right = old.every or old.groups, new.every or new.groups
    names = [name for name in left if name in right and (used is None or name in used)]
    distinct: dict[tuple[tuple[int, ...], ...], str] = {}
    for name in names:
        distinct.setdefault((pack_facts(left[name]), pack_facts(right[name])), name)
    return {name: ((old, left[name]), (new, right[name])) for name in distinct.values()}


def _step_changes(was: Step, now: Step) -> tuple[str, ...]:
    """How the verify step of one request changes: calls, fused calls, paths."""
    told = []
    for name, before, after in (
        ("context", was.context, now.context),
        ("tokens", was.tokens, now.tokens),
        ("all-reduces", was.all_reduces, now.all_reduces),
        ("fused", was.fused, now.fused),
        ("paths", _paths(was.paths), _paths(now.paths)),
    ):
        if before != after:
            told.append(f"{name}: {before} -> {after}")
    return tuple(told)


def _paths(paths: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {path}" for path, count in paths.items()) or "none"
