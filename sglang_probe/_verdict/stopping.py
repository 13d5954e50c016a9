"""When to look at an experiment that grows block by block, and what each look may spend. Called by `ab`.

A test that is asked again after every run says FASTER of nothing far more often than 1 time in 20. Here the error is split among a few
looks that are fixed before the first run: half of it for the last look, the rest in equal parts. Whatever the looks have to do with each
other, the chance that any of them is wrong is at most the sum (Bonferroni), for FASTER and SLOWER, for SAME at the edge of the margin, and
for the intervals of all looks at once (repeated confidence intervals: Jennison and Turnbull, Group sequential methods, 2000). Alpha
spending by a joint distribution (Lan and DeMets, Discrete sequential boundaries for clinical trials, 1983) would save about a tenth of the
runs, and hold only where the noise of late blocks is like that of early ones, which nobody promises of a machine.
Invariant: the looks of a plan are fixed when it is made; the parts that they spend add up to 1 - confidence.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .._types import InputError
from .arm import Arm
from .judge import Error, judge
from .nouns import Better, Verdict
from .ranks import pairs, strata
from .verdict import checked_fraction, direction


@dataclass(frozen=True)
class Plan:
    """Looks at an experiment of at most ``max_blocks`` blocks, each of ``size`` processes of each arm in an order drawn at random.

    The first look is after as many blocks as can decide anything, the last after all of them, the others between in equal ratios.
    """

    max_blocks: int
    looks: int = 5
    """At most: few blocks have no room for many."""
    confidence: float = 0.95
    margin: float = 0.02
    size: int = 1
    schedule: tuple[int, ...] = field(init=False)
    """After how many blocks to look."""

    def __post_init__(self) -> None:
        for name in ("max_blocks", "looks", "size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(name, value, "give a whole number, 1 or more")
        checked_fraction("confidence", self.confidence, 0.5)
        checked_fraction("margin", self.margin, 0.0)
        object.__setattr__(self, "schedule", self._schedule())

    def _schedule(self) -> tuple[int, ...]:
        looks = self.looks
        while looks > 1:
            first = self.least(self._part(0, looks))
            if first < self.max_blocks:
                ratio = (self.max_blocks / first) ** (1 / (looks - 1))
                found = [round(first * ratio**i) for i in range(looks - 1)] + [self.max_blocks]
                if all(one < other for one, other in zip(found, found[1:], strict=False)):
                    return tuple(found)
            looks -= 1
        return (self.max_blocks,)

    def _part(self, look: int, looks: int) -> float:
        alpha = 1 - self.confidence
        if looks == 1:
            return alpha
        return alpha / 2 if look == looks - 1 else alpha / 2 / (looks - 1)

    def least(self, alpha: float | None = None) -> int:
        """Blocks below which no figures whatever could decide."""
        tail = (1 - self.confidence if alpha is None else alpha) / 2
        blocks = 1
        while not (pairs(blocks) if self.size == 1 else strata(((self.size, self.size),) * blocks)).rank(tail):
            blocks += 1
        return blocks

    def due(self, blocks: int) -> bool:
        """Whether this is a look."""
        return blocks in self.schedule

    def alpha(self, look: int) -> float:
        """What this look spends, counted from 0."""
        return self._part(look, len(self.schedule))

    def look(self, a: Arm, b: Arm, *, better: str | None = None, last: bool = False) -> Verdict:
        """The verdict after as many whole blocks as both arms have. Its interval holds for all looks at once, with the plan's confidence.

        ``last``: the budget ends here, before its time, for a reason that the figures had no part in: this look may spend what all later
        ones would have.

        Raises InputError where this many blocks are no look, and ``last`` is not said.
        """
        blocks = len(set(a.blocks) & set(b.blocks))
        if not blocks:
            raise InputError("blocks", 0, "no block has both arms: a plan is for arms that were interleaved in blocks")
        before = sum(1 for one in self.schedule if one < blocks)
        if last:
            alpha = sum(self.alpha(look) for look in range(before, len(self.schedule))) if before < len(self.schedule) else 0.0
        elif self.due(blocks):
            alpha = self.alpha(before)
        else:
            raise InputError("blocks", blocks, f"the looks are after {', '.join(map(str, self.schedule))} blocks")
        if not alpha:
            raise InputError("blocks", blocks, f"the last look was after {self.max_blocks}: nothing is left to spend")
        if a.unit != b.unit:
            raise InputError("unit", b.unit, f"{a.label} is in {a.unit or 'no unit'}: give both in one")
        way: Better = direction(better, a.unit)
        return judge(a, b, way, self.margin, Error(self.confidence, alpha, len(self.schedule)))
