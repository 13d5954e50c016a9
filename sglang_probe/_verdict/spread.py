"""How far the processes of each arm spread, and what to do where the arms spread unlike. Called by judge.py.

A rank test is exact where the arms are alike. Where one arm spreads wider, and has the fewer processes, its count varies by more than the
test believes: 8 runs against 30 of a third of their spread, with nothing between them, were FASTER or SLOWER in 14 % of experiments. So
where the spreads differ, the interval reaches as far as Welch's does, too (The generalization of "Student's" problem when several
different population variances are involved, 1947), which knows of two spreads.
Invariant: this widens an interval, and never narrows one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import special
from .shape import outliers

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_ALPHA, _ALPHA_EQUAL, _EQUAL = 0.5, 0.01, 1.25
"""Of the F test that lets Welch's interval in; and where the larger arm has at most so many times the processes of the other: there a rank
test is hardly wrong, and arms that a few disturbed runs made unlike would pay for it."""
_NOTHING = 1e-9
"""Standard deviations of logarithms below this are rounding."""


@dataclass(frozen=True)
class Unlike:
    """Both arms' means by Welch, where their spreads differ. Logarithms."""

    a: float
    b: float
    """Standard deviations."""
    effect: float
    error: float
    free: float

    def reach(self, low: float, high: float, tail: float) -> tuple[float, float]:
        """An interval, widened to where Welch's ends."""
        far = float(special.stdtrit(self.free, 1 - tail)) * self.error
        return min(low, self.effect - far), max(high, self.effect + far)

    @property
    def p(self) -> float:
        """Two-sided."""
        return 2 * float(special.stdtr(self.free, -abs(self.effect) / self.error))


@dataclass(frozen=True)
class Spread:
    """Between processes of one arm: standard deviation of logarithms; of pairs that of their differences by the root of 2."""

    value: float = 0.0
    free: float = 0.0
    """Degrees of freedom; 0 where no arm has two processes."""
    error: float = math.inf
    """Standard error of the effect."""
    unlike: Unlike | None = None
    tamed: bool = False
    """Outliers were drawn in."""


def drawn_in(logs: Floats, out: Ints) -> Floats:
    """Outliers drawn in to the next figure."""
    kept = np.delete(logs, out)
    return np.clip(logs, kept.min(), kept.max()) if len(out) and len(kept) else logs


def of_blocks(differences: Floats) -> Spread:
    """Of pairs: b - a of each block."""
    n = len(differences)
    if n < 2:
        return Spread()
    out = outliers(differences)
    deviation = float(drawn_in(differences, out).std(ddof=1))
    return Spread(deviation / math.sqrt(2), n - 1, deviation / math.sqrt(n), tamed=len(out) > 0)


def of_arms(a: Floats, b: Floats, blocks_a: Sequence[int], blocks_b: Sequence[int]) -> Spread:
    """Of two samples, within blocks where there are any (else every number is alike); outliers are drawn in already."""
    in_a, in_b = np.asarray(blocks_a), np.asarray(blocks_b)
    sizes, steps = [], []
    for number in np.intersect1d(in_a, in_b):
        one, other = np.sort(a[in_a == number]), np.sort(b[in_b == number])
        sizes.append((len(one), len(other)))
        steps.append(float(other.mean() - one.mean()))
    (square_a, free_a), (square_b, free_b) = _within(a, in_a), _within(b, in_b)
    free = free_a + free_b
    if not free:
        return Spread()
    i, j = np.array(sizes, np.float64).T
    share = i * j / (i + j)
    share /= share.sum()
    part_a, part_b = float((share**2 / i).sum()), float((share**2 / j).sum())
    pooled = (square_a + square_b) / free
    if min(free_a, free_b) and _differ(square_a / free_a, free_a, square_b / free_b, free_b):
        of_a, of_b = square_a / free_a, square_b / free_b
        parts = part_a * of_a, part_b * of_b
        error = math.sqrt(sum(parts))
        welch = sum(parts) ** 2 / (parts[0] ** 2 / free_a + parts[1] ** 2 / free_b)
        unlike = Unlike(math.sqrt(of_a), math.sqrt(of_b), float(share @ steps), error, welch)
        both = (of_a + of_b) ** 2 / (of_a**2 / free_a + of_b**2 / free_b)
        return Spread(math.sqrt((of_a + of_b) / 2), both, error, unlike)
    return Spread(math.sqrt(pooled), free, math.sqrt(pooled * (part_a + part_b)))


def _within(logs: Floats, numbers: Ints) -> tuple[float, int]:
    """Squares about each block's mean, and their degrees of freedom."""
    squares, free = 0.0, 0
    for number in np.unique(numbers):
        cell = np.sort(logs[numbers == number])  # sums do not depend on the order then, digit for digit
        squares += float(((cell - cell.mean()) ** 2).sum())
        free += len(cell) - 1
    return squares, free


def _differ(a: float, free_a: int, b: float, free_b: int) -> bool:
    """By an F test on variances, two-sided."""
    if max(a, b) <= _NOTHING**2:
        return False
    below = float(special.fdtr(free_a, free_b, a / b)) if b > 0 else 1.0
    alpha = _ALPHA_EQUAL if max(free_a, free_b) <= _EQUAL * min(free_a, free_b) else _ALPHA
    return min(below, 1 - below) < alpha / 2
