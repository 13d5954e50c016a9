"""Calls -> steps: by ranges that mark them, replays of graphs, the gather of logits that ends a forward, or a period. Called by check.py.

The first way for which the trace has evidence is taken; where it is known how many calls a step should make, the first that finds one.
Invariant: by what steps were found is told, and calls that are in no step are counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .calls import Calls
from .events import Mark
from .kernels import Kind
from .marks import FAMILIES, Family, stage_of

Indices = NDArray[np.int64]
REPLAYS, GATHERS, PERIOD, COUNT = (
    "replays of graphs",
    "the all-gather that ends a forward",
    "their period",
    "the expected number of calls",
)
_LONGEST_PERIOD_SEARCH = 1 << 18
_DEEPEST = 8
"""Ranges within ranges, and ranges of several threads."""


@dataclass(frozen=True, eq=False)
class SeenStep:
    """One step: which calls, in order."""

    calls: Calls
    at: Indices
    """Its all-reduces, fused or not, as numbers of calls."""
    others: Indices
    """Its other collectives."""
    name: str = ""
    edge: bool = False
    """At an end of the recording, where it may be cut."""

    def __len__(self) -> int:
        return len(self.at)

    @cached_property
    def signature(self) -> bytes:
        """Equal where the same ways are gone in the same order, in the same phase."""
        return self.calls.way[self.at].tobytes() + self.phase.encode()

    @cached_property
    def phase(self) -> str:
        """``replayed``, ``eager``, or ``mixed``."""
        share = self.calls.replayed[self.at].mean() if len(self.at) else 0.0
        return "replayed" if share == 1 else "eager" if share == 0 else "mixed"

    @property
    def stage(self) -> str:
        return stage_of(self.name)[0]

    @property
    def batch(self) -> int:
        return stage_of(self.name)[1]

    @property
    def start(self) -> int:
        return int(self.calls.kernels["start"][self.at[0]]) if len(self.at) else 0


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of a track."""

    found_by: str
    steps: tuple[SeenStep, ...]
    outside: int = 0
    """All-reduces that are in no step."""


def find_steps(calls: Calls, *, mark: re.Pattern[str] | None = None, count: int | None = None, gathers: int = 0) -> Steps:
    """``count``: calls that a step should make, where that is known, and ``gathers`` behind them."""
    first: Steps | None = None
    for found in _candidates(calls, mark):
        if count and gathers:
            found = replace(found, steps=tuple(_without_gathers(step, count, gathers) for step in found.steps))
        first = first or found
        if count is None or mark is not None or any(len(step) == count for step in found.steps):
            return found
    if first is not None:
        return first
    everything = np.flatnonzero(calls.called)
    if count and len(everything) and len(everything) % count == 0:
        # Nothing tells steps apart; the number alone is weak evidence, and is told as such.
        parts = np.split(everything, len(everything) // count)
        return Steps(COUNT, tuple(SeenStep(calls, part, np.zeros(0, np.int64)) for part in parts))
    steps = (SeenStep(calls, everything, np.flatnonzero(~calls.called), "the whole trace"),) if len(everything) else ()
    return Steps("nothing: the whole trace is taken as one", steps)


def _without_gathers(step: SeenStep, count: int, gathers: int) -> SeenStep:
    """RCCL's kernel does not say its collective: where there are just so many more at the end, they are the gathers of logits."""
    last = step.calls.way[step.at[-gathers:]].tolist()
    if len(step) != count + gathers or any(step.calls.ways[way].kind is not Kind.UNKNOWN for way in last):
        return step
    return replace(step, at=step.at[:-gathers], others=np.concatenate([step.others, step.at[-gathers:]]))


def _candidates(calls: Calls, mark: re.Pattern[str] | None) -> Iterator[Steps]:
    """Each way for which there is evidence, the best first."""
    families = FAMILIES if mark is None else (Family(f"ranges like {mark.pattern!r}", mark),)
    for family in families:
        marks = [one for one in calls.track.marks if family.pattern is not None and family.pattern.search(one.name)]
        found = _by_marks(calls, family.name, marks)
        if found is not None:
            yield found
    if mark is not None:
        return
    everything = np.arange(len(calls.kernels))
    replayed = calls.replayed & (calls.kernels["correlation"] > 0)
    if (replayed & calls.called).any():
        eager = _by_gathers(calls, everything[~replayed])
        steps = [*_by_replays(calls, everything[replayed]), *(eager or _one(calls, everything[~replayed]))]
        yield Steps(REPLAYS, tuple(sorted(steps, key=lambda step: step.start)))
    found_steps = _by_gathers(calls, everything)
    if found_steps:
        yield Steps(GATHERS, tuple(found_steps))
    found_steps = _by_period(calls)
    if found_steps:
        yield Steps(PERIOD, tuple(found_steps))


def _one(calls: Calls, at: Indices) -> list[SeenStep]:
    called = at[calls.called[at]]
    return [SeenStep(calls, called, at[~calls.called[at]], "outside of graphs", edge=True)] if len(called) else []


def _by_marks(calls: Calls, name: str, marks: list[Mark]) -> Steps | None:
    """By when the host launched a call; by when it ran where that is not told, or where the ranges are the GPU's own."""
    hosts = [mark for mark in marks if not mark.on_gpu]
    marks = sorted(hosts or marks, key=lambda mark: mark.start)
    if not marks or not len(calls.kernels):
        return None
    times = np.where((calls.kernels["launch"] >= 0) & bool(hosts), calls.kernels["launch"], calls.kernels["start"])
    starts, ends = (np.array([getattr(mark, side) for mark in marks], np.int64) for side in ("start", "end"))
    of = np.searchsorted(starts, times, side="right") - 1
    inside = (of >= 0) & (times <= ends[np.maximum(of, 0)])
    for back in range(1, _DEEPEST):  # behind a range that lies within another, the outer one goes on
        outer = np.maximum(of - back, 0)
        found = ~inside & (of >= back) & (times <= ends[outer])
        of, inside = np.where(found, outer, of), inside | found
    if not (inside & calls.called).any():
        return None
    numbers = np.flatnonzero(inside)
    steps = [
        SeenStep(calls, at[calls.called[at]], at[~calls.called[at]], marks[number].name)
        for number, at in _grouped(of[numbers], numbers)
    ]
    return Steps(name, tuple(step for step in steps if len(step)), int((calls.called & ~inside).sum()))


def _grouped(keys: NDArray[np.int64], values: Indices) -> Iterator[tuple[int, Indices]]:
    """Values by key, in the order of keys."""
    order = np.argsort(keys, kind="stable")
    keys, values = keys[order], values[order]
    bounds = np.flatnonzero(np.diff(keys)) + 1
    for part, first in zip(np.split(values, bounds), [0, *bounds.tolist()], strict=True):
        if len(part):
            yield int(keys[first]), part


def _by_replays(calls: Calls, at: Indices) -> list[SeenStep]:
    groups = _grouped(calls.kernels["correlation"][at], at)
    steps = [SeenStep(calls, part[calls.called[part]], part[~calls.called[part]], "replay") for _, part in groups]
    return [step for step in steps if len(step)]


def _by_gathers(calls: Calls, at: Indices) -> list[SeenStep]:
    """A forward ends with the gather of its logits: what stands between two gathers is one."""
    gathers = calls.gathers[at]
    if not gathers.any():
        return []
    groups = _grouped(np.cumsum(gathers) - gathers, at)
    parts = [(part[calls.called[part]], part[~calls.called[part]]) for _, part in groups]
    parts = [part for part in parts if len(part[0])]
    return [SeenStep(calls, *part, edge=i in (0, len(parts) - 1)) for i, part in enumerate(parts)]


def _by_period(calls: Calls) -> list[SeenStep]:
    """The shortest pattern of ways that fills the trace at least three times; one way alone has none."""
    at = np.flatnonzero(calls.called)
    ways = calls.way[at][:_LONGEST_PERIOD_SEARCH]
    length = _period(ways.tolist())
    if length < 2 or len(ways) < 3 * length or len(np.unique(ways[:length])) < 2:
        return []
    count = len(at) // length
    parts = [at[i * length : (i + 1) * length] for i in range(count)]
    rest = at[count * length :]
    return [SeenStep(calls, part, np.zeros(0, np.int64)) for part in parts] + (
        [SeenStep(calls, rest, np.zeros(0, np.int64), edge=True)] if len(rest) else []
    )


def _period(sequence: list[int]) -> int:
    """The length of the shortest pattern whose repetition is the sequence (its last one may be cut)."""
    border = [0] * (len(sequence) + 1)
    k = 0
    for i in range(1, len(sequence)):
        while k and sequence[i] != sequence[k]:
            k = border[k]
        k += sequence[i] == sequence[k]
        border[i + 1] = k
    return len(sequence) - border[-1]
