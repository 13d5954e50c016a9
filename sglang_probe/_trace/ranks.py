"""Ranks against one another: does each go the way that the others go? Called by check.py.

Held against one another are each rank's usual step and, where all saw as many steps, every step. Recordings do not begin at one instant,
so one step more or less is no difference. Invariant: the rank that differs is named; of two that differ, the one that is not as expected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .calls import Way
from .events import joined
from .expected import Expected
from .steps import SeenStep


@dataclass(frozen=True)
class RankDifference:
    """A rank that goes another way than the others."""

    label: str
    others: tuple[str, ...]
    where: str
    saw: str
    others_saw: str

    def __str__(self) -> str:
        told = f"{len(self.others)} others" if len(self.others) > 3 else joined(self.others)
        they = "that one" if len(self.others) == 1 else "they"
        return f"{self.label} went another way than {told}: {self.where}: {self.saw}, where {they} saw {self.others_saw}"


Ways = tuple[Way, ...]


def compare_ranks(ranks: Sequence[tuple[str, Sequence[SeenStep]]], expected: Expected | None) -> tuple[RankDifference, ...]:
    """``ranks``: label and steps of each."""
    ranks = [(label, steps) for label, steps in ranks if steps]
    if len(ranks) < 2:
        return ()
    number = _Numbering()
    keys = [(label, [number.of_step(step) for step in steps]) for label, steps in ranks]
    usual = {label: number.ways(Counter(own).most_common(1)[0][0]) for label, own in keys}
    found = _against(usual, "", expected)
    if found or len({len(own) for _, own in keys}) > 1:
        return found
    for n, row in enumerate(zip(*(own for _, own in keys), strict=True)):
        if len(set(row)) > 1:
            at_once = {label: number.ways(key) for (label, _), key in zip(keys, row, strict=True)}
            return _against(at_once, f"step {n}, ", expected)
    return ()


class _Numbering:
    """One number for each way, whatever track it is of: a track's own numbers mean nothing to another."""

    def __init__(self) -> None:
        self._ways: dict[Way, int] = {}
        self._tables: dict[Ways, NDArray[np.int32]] = {}

    def of_step(self, step: SeenStep) -> bytes:
        ways = step.calls.ways
        table = self._tables.get(ways)
        if table is None:
            table = self._tables[ways] = np.array([self._ways.setdefault(way, len(self._ways)) for way in ways], np.int32)
        return table[step.calls.way[step.at]].tobytes()

    def ways(self, key: bytes) -> Ways:
        all_ways = list(self._ways)
        return tuple(all_ways[n] for n in np.frombuffer(key, np.int32).tolist())


def _against(seen: dict[str, Ways], where: str, expected: Expected | None) -> tuple[RankDifference, ...]:
    """The ranks that are not as most are."""
    kinds: dict[Ways, list[str]] = {}
    for label, ways in seen.items():
        kinds.setdefault(ways, []).append(label)
    if len(kinds) < 2:
        return ()
    most = max(len(labels) for labels in kinds.values())
    norm = max(kinds, key=lambda ways: (len(kinds[ways]) == most and _as_expected(ways, expected), len(kinds[ways])))
    found = []
    for ways, labels in kinds.items():
        if ways == norm:
            continue
        at = next((i for i, (a, b) in enumerate(zip(ways, norm, strict=False)) if a != b), min(len(ways), len(norm)))
        place = expected.slots[at].where if expected is not None and at < len(expected.slots) else f"call {at} of the step"
        saw, other = (str(one[at]) if at < len(one) else "no call" for one in (ways, norm))
        found += [RankDifference(label, tuple(kinds[norm]), where + place, saw, other) for label in labels]
    return tuple(found)


def _as_expected(ways: Ways, expected: Expected | None) -> bool:
    if expected is None or len(ways) != len(expected.slots):
        return False
    return all(slot.want.fits(way) for slot, way in zip(expected.slots, ways, strict=True))
