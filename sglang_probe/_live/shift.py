"""Lane: one rank's calls of one group, by number; and by how much one rank's numbers are shifted against another's. Called by compare.py.

A hook counts a group's calls from the moment when it began to record, and `record start` reaches ranks one after the other. The shift is
one under which nearly all that both have on record is the same; among several such (calls repeat) that under which ranks made the same
call at the same time, of which all processes of a machine have one clock.
Invariant: ranks that recorded from their first call on are never shifted, and a shift never makes a difference vanish that most calls
do not have.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._record.dtype import UNKNOWN
from . import words
from .worker import Worker

_WINDOW = 2048
"""Calls that a shift is looked for in: the newest that both have."""
_FURTHEST = 256
"""Calls by which ranks may begin apart."""
_LEAST, _SHARE = 16, 0.75
"""Calls that both must have before a shift is believed, and of the shorter one's how many."""
_SURE = 512
"""Calls of each by which a shift is found for good."""
_TOGETHER_NS = 1_000_000
"""Ranks that are as close as this are not moved for the clock's sake; nor unless that brings them closer so many times."""
_BETTER = 4
_DIFFERENT, _NEARLY = 0.1, 0.02
"""Share of calls that may differ under a shift, and how much more of them than under the best one."""


@dataclass(frozen=True)
class Lane:
    """By call, ascending: what must be the same on every rank; -1 where it was not seen."""

    calls: NDArray[np.int64]
    fields: tuple[NDArray[np.int64], ...]
    times: NDArray[np.int64]
    records: NDArray[np.void]
    whole: bool
    """The process has recorded since its hook was installed, before its group's first call."""
    recording: tuple[object, ...] = ()
    """Which group's of which file, and which of its recordings."""

    FIELDS: ClassVar[tuple[str, ...]] = ("nbytes", "dtype", "path", "phase")

    @property
    def last(self) -> int:
        return int(self.calls[-1]) if len(self.calls) else 0

    def moved(self, shift: int) -> Lane:
        return replace(self, calls=self.calls + shift) if shift else self

    def row(self, call: int) -> NDArray[np.void] | np.void | None:
        place = int(np.searchsorted(self.calls, call))
        return self.records[place] if place < len(self.calls) and self.calls[place] == call else None


def lane_of(worker: Worker, group: str) -> Lane:
    """The newest recording of a group."""
    numbers = [number for number, name in worker.tables.names["group"].items() if name == group and number]
    records = worker.recent[np.isin(worker.recent["group"], numbers)]
    records = records[records["call"] > 0]
    starts = np.flatnonzero(records["call"] == 1)
    if len(starts):
        records = records[starts[-1] :]
    records = records[np.unique(records["call"], return_index=True)[1]]
    unseen = records["flags"] & words.BIT["no_tensor"] != 0
    columns = []
    for name in Lane.FIELDS:
        values = records[name].astype(np.int64)
        if name == "nbytes":
            values = np.where(unseen, -1, values)
        elif name != "phase":
            values = np.where(values == UNKNOWN, -1, values)
        columns.append(values)
    recording = (worker.path, worker.header["started"], worker.header["control"], group)
    whole = int(worker.header["control"]) <= 2 and not worker.header["closed"]  # the first recording, or none since
    return Lane(records["call"].astype(np.int64), tuple(columns), records["time_ns"].astype(np.int64), records, whole, recording)


Known: TypeAlias = dict[tuple[object, ...], int]
"""Shifts that were found: one is good for as long as both go on with the same recording."""


def shift_of(ours: Lane, other: Lane, known: Known) -> int:
    """What is added to the other's numbers. 0 where both count from their group's first call."""
    if (ours.whole and other.whole) or not len(ours.calls) or not len(other.calls):
        return 0
    key = (*ours.recording, *other.recording)
    if key not in known:
        a, b = _Dense.of(ours), _Dense.of(other)
        shift = _search(a, b)
        if min(a.size, b.size) < _SURE:
            return shift  # there will be more to go by
        known[key] = shift
    return known[key]


def _search(a: _Dense, b: _Dense) -> int:
    here = _under(a, b, 0)
    if here.count < _LEAST or (not here.different and here.apart_ns <= _TOGETHER_NS):
        return 0
    least = max(_LEAST, _SHARE * min(a.size, b.size))
    every = [_under(a, b, shift) for shift in range(-_FURTHEST, _FURTHEST + 1)]
    good = [one for one in every if one.count >= least and one.share <= _DIFFERENT]
    fewest = min((one.share for one in good), default=0.0)
    best = min((one for one in good if one.share <= fewest + _NEARLY), key=lambda one: one.apart_ns, default=here)
    better = best.share < here.share if here.different else best.apart_ns * _BETTER < here.apart_ns and not best.different
    return best.shift if better else 0


@dataclass(frozen=True)
class _Under:
    """Two ranks under one shift."""

    shift: int
    count: int
    """Calls that both have."""
    different: int = 0
    apart_ns: float = float("inf")
    """Between the two beginnings of a call: the root of the mean square."""

    @property
    def share(self) -> float:
        return self.different / self.count


@dataclass(frozen=True, eq=False)
class _Dense:
    """The newest calls of a lane, by number from ``first`` on: what is missing is no call."""

    first: int
    there: NDArray[np.bool_]
    fields: tuple[NDArray[np.int64], ...]
    times: NDArray[np.float64]

    @classmethod
    def of(cls, lane: Lane) -> _Dense:
        last = lane.last
        kept = lane.calls > last - _WINDOW
        at = lane.calls[kept] - (last - _WINDOW + 1)

        def spread(values: NDArray[np.int64], dtype: type[np.generic]) -> NDArray[Any]:
            dense = np.zeros(_WINDOW, dtype)
            dense[at] = values[kept]
            return dense

        return cls(
            last - _WINDOW + 1,
            spread(np.ones_like(lane.calls), np.bool_),
            tuple(spread(values, np.int64) for values in lane.fields),
            spread(lane.times, np.float64),
        )

    @property
    def size(self) -> int:
        return int(self.there.sum())


def _under(a: _Dense, b: _Dense, shift: int) -> _Under:
    begin = max(a.first, b.first + shift)
    length = min(a.first, b.first + shift) + _WINDOW - begin
    if length <= 0:
        return _Under(shift, 0)
    x, y = slice(begin - a.first, begin - a.first + length), slice(begin - shift - b.first, begin - shift - b.first + length)
    both = a.there[x] & b.there[y]
    count = int(both.sum())
    if not count:
        return _Under(shift, 0)
    differs = np.zeros(length, bool)
    for left, right in zip(a.fields, b.fields, strict=True):
        differs |= (left[x] >= 0) & (right[y] >= 0) & (left[x] != right[y])
    apart = (a.times[x] - b.times[y])[both]
    return _Under(shift, count, int((differs & both).sum()), float(np.sqrt((apart**2).mean())))
