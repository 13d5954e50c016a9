"""Slots against calls: does each call go the way that it should, and where is the first that does not? Called by check.py.

Steps of one signature are compared once. Invariant: calls are held against slots in order, one by one; where their numbers differ, the
first place at which they part is told, and nothing behind it is claimed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from .calls import Way
from .expected import Expected, Slot
from .steps import SeenStep


@dataclass(frozen=True)
class Difference:
    """Where a step goes another way than expected, first."""

    position: int
    """Which call of the step, from 0."""
    where: str
    layer: int | None
    expected: str
    saw: str

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, saw {self.saw}"


@dataclass(frozen=True)
class Compared:
    """One kind of step of one track: how it goes, how often it was seen, and whether that is as expected."""

    ways: tuple[Way, ...]
    """Of its calls, in order."""
    phase: str
    count: int
    first: Difference | None = None
    differing: int = 0
    """Calls that go another way, or are missing, or are too many."""
    other_kernel: str = ""
    """Calls of the right path and code by another kernel than expected, and how many: its threshold is in bytes."""

    def sites(self, expected: Expected) -> tuple[tuple[str, str, str, int], ...]:
        """(call site, what was expected, what was seen, calls), where the step has as many calls as expected."""
        if len(self.ways) != len(expected.slots):
            return ()
        rows = Counter((slot.site, str(slot.want), str(way)) for slot, way in zip(expected.slots, self.ways, strict=True))
        return tuple((*row, count) for row, count in rows.items())

    @property
    def full_counts(self) -> dict[str, int]:
        """The same, with code and kernel."""
        return dict(Counter(str(way) for way in self.ways).most_common())

    @property
    def counts(self) -> dict[str, int]:
        """As people call the ways -> calls of a step; fused first."""
        counts = Counter(way.short for way in self.ways)
        return dict(sorted(counts.items(), key=lambda item: (item[0] != "fused", -item[1])))


def compare_steps(steps: Sequence[SeenStep], expected: Expected | None) -> tuple[Compared, ...]:
    """Each kind of step once, the most frequent first."""
    kinds: dict[bytes, list[SeenStep]] = {}
    for step in steps:
        kinds.setdefault(step.signature, []).append(step)
    found = []
    for same in sorted(kinds.values(), key=len, reverse=True):
        one = same[0]
        ways = tuple(one.calls.ways[number] for number in one.calls.way[one.at].tolist())
        found.append(_compare(ways, one.phase, len(same), expected))
    return tuple(found)


def _compare(ways: tuple[Way, ...], phase: str, count: int, expected: Expected | None) -> Compared:
    if expected is None:
        return Compared(ways, phase, count)
    if not expected.exact:
        return _compare_paths(ways, phase, count, expected)
    pairs = list(zip(expected.slots, ways, strict=False))
    wrong = [i for i, (slot, way) in enumerate(pairs) if not slot.want.fits(way)]
    missing = abs(len(expected.slots) - len(ways))
    first = wrong[0] if wrong else len(pairs)
    difference = _difference(first, expected.slots, ways) if wrong or missing else None
    right = [(slot, way) for slot, way in pairs if slot.want.fits(way)]
    kernel = Counter(f"{way.kernel} in the place of {slot.want.kernel}" for slot, way in right if slot.want.other_kernel(way))
    return Compared(ways, phase, count, difference, len(wrong) + missing, _most(kernel))


def _most(counts: Counter[str]) -> str:
    return "; ".join(f"{text} ({number} calls a step)" for text, number in counts.most_common(3))


def _difference(at: int, slots: Sequence[Slot], ways: Sequence[Way]) -> Difference:
    if at < len(slots):
        slot = slots[at]
        return Difference(at, slot.where, slot.layer, str(slot.want), str(ways[at]) if at < len(ways) else "no call")
    return Difference(at, "behind the last layer", None, "no call", str(ways[at]))


def _compare_paths(ways: tuple[Way, ...], phase: str, count: int, expected: Expected) -> Compared:
    """Where counts cannot be held against the trace: each call must be one that is expected somewhere."""
    wants = {slot.want for slot in expected.slots}
    wrong = [i for i, way in enumerate(ways) if wants and not any(want.fits(way) for want in wants)]
    if not wrong:
        return Compared(ways, phase, count)
    told = " or ".join(sorted({want.short for want in wants}))
    first = Difference(wrong[0], f"call {wrong[0]} of the step", None, told, str(ways[wrong[0]]))
    return Compared(ways, phase, count, first, len(wrong))
