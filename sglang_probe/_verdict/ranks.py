"""Rank tests and the intervals that belong to them: exact, on logarithms. Called by verdict.py, runs.py and the calibration bench.

Three designs, each a set of differences between the arms whose number at or below 0 has a null distribution that no noise changes:

two samples    b_j - a_i, all pairs: Mann and Whitney, On a test of whether one of two random variables is stochastically larger, 1947
pairs          (d_i + d_j) / 2, i <= j, of the blocks' differences: Wilcoxon, Individual comparisons by ranking methods, 1945
strata         b_j - a_i within each block: van Elteren, On the combination of independent two sample tests of Wilcoxon, 1960

The estimate is the median of the differences, the interval reaches from the k-th smallest to the k-th largest (Hodges and Lehmann,
Estimates of location based on rank tests, 1963), and the test rejects exactly where that leaves 0 out. A tie counts against a
difference, so that the closed interval covers at least as often as it says also where figures are rounded (Noether, Wald confidence
intervals for a single order statistic and discrete distributions, 1967; Hollander and Wolfe, Nonparametric statistical methods).

Why no means: one run of five that was disturbed moves a mean and its spread at will, and Welch's t then is wrong by more than it says.
Invariant: word, p and interval come from the same count; where two of them could disagree there is one rule, not two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from . import special

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_EXACT, _STEPS = 100_000, 100
"""Differences, and processes of the smaller arm, up to which null distributions are computed; beyond, they are normal to four digits."""
_SMALL = 250_000
"""Differences that are all made and sorted; of more, single ones are looked for."""
_LEAST_PAIRS = 5
"""Below, arms that lie wholly apart show nothing."""
TIE = 1e-12
"""Logarithms nearer than this are equal: what a change of unit adds is less."""


@dataclass(frozen=True)
class Design:
    """How many differences there are, and how their count is distributed where the arms are alike."""

    name: str
    total: int
    mean: float
    variance: float
    cumulative: Floats | None
    """P(count <= 0), P(count <= 1), ...; None: normal."""
    full_only: bool
    """So few processes that nothing less than full separation counts."""

    def tail(self, count: float) -> float:
        """P(count or fewer)."""
        if count < 0:
            return 0.0
        if self.cumulative is not None:
            return float(self.cumulative[min(int(count), len(self.cumulative) - 1)])
        return float(special.ndtr((count + 0.5 - self.mean) / math.sqrt(self.variance)))

    def rank(self, tail: float) -> int:
        """The largest k of which P(count <= k - 1) is at most ``tail``: which difference is an end of the interval; 0 where none is."""
        if self.cumulative is not None:
            k = int(np.searchsorted(self.cumulative, tail * (1 + 1e-12), side="right"))
        else:
            k = max(0, math.floor(self.mean + special.ndtri(tail) * math.sqrt(self.variance) + 0.5))
        return min(k, 1) if self.full_only else k

    def p(self, below: int, above: int) -> float:
        """Two-sided; ``below`` and ``above``: differences at or below 0, at or above 0."""
        return min(1.0, 2 * self.tail(min(below, above)))


LEAST = 4
"""Processes an arm below which only full separation counts, and SAME cannot be shown."""


def two_samples(a: int, b: int) -> Design:
    """All of one arm against all of the other."""
    cumulative = _mann_whitney(*sorted((a, b))) if a * b <= _EXACT and min(a, b) <= _STEPS else None
    return Design("Mann-Whitney", a * b, a * b / 2, a * b * (a + b + 1) / 12, cumulative, min(a, b) < LEAST)


def pairs(blocks: int) -> Design:
    """Blocks of one process of each arm."""
    total = blocks * (blocks + 1) // 2
    variance = blocks * (blocks + 1) * (2 * blocks + 1) / 24
    return Design("signed rank", total, total / 2, variance, _signed(blocks) if total <= _EXACT else None, blocks < LEAST)


def strata(sizes: tuple[tuple[int, int], ...]) -> Design:
    """Blocks of several processes: (of a, of b) in each."""
    total = sum(a * b for a, b in sizes)
    variance = sum(a * b * (a + b + 1) / 12 for a, b in sizes)
    exact = total <= _EXACT and max(map(min, sizes)) <= _STEPS
    cumulative = _strata(sizes) if exact else None
    few = min(sum(a for a, _ in sizes), sum(b for _, b in sizes)) < LEAST
    return Design("Mann-Whitney within blocks", total, total / 2, variance, cumulative, few)


@lru_cache(maxsize=256)
def _mann_whitney(a: int, b: int) -> Floats:
    """The Gaussian binomial: product of (1 - q^(b + i)) / (1 - q^i), normed. Each factor's left half alone is computed, where little is
    subtracted, and mirrored."""
    counts = np.ones(1)
    for i in range(1, a + 1):
        degree = b * i
        half = degree // 2 + 1
        left = np.zeros(half)
        left[: len(counts)] = counts[:half]
        for start in range(min(i, half)):  # divided by 1 - q^i: sums along steps of i
            left[start::i] = np.cumsum(left[start::i])
        if b + i < half:
            left[b + i :] -= left[: -(b + i)].copy()
        counts = np.concatenate([left, left[: degree + 1 - half][::-1]])
        counts /= counts.max()
    return _cumulative(counts)


@lru_cache(maxsize=256)
def _signed(n: int) -> Floats:
    """Each rank from 1 to n is in the sum or not."""
    chances = np.zeros(n * (n + 1) // 2 + 1)
    chances[0] = 1.0
    for rank in range(1, n + 1):
        chances[rank:] += chances[:-rank].copy()
        chances /= 2
    return _cumulative(chances)


@lru_cache(maxsize=64)
def _strata(sizes: tuple[tuple[int, int], ...]) -> Floats:
    chances = np.ones(1)
    for a, b in sizes:
        chances = np.convolve(chances, np.diff(_mann_whitney(*sorted((a, b))), prepend=0.0))
    return _cumulative(chances)


def _cumulative(chances: Floats) -> Floats:
    """Both halves from the left one: what is far in the right tail keeps no digits otherwise."""
    chances = np.maximum((chances + chances[::-1]) / 2, 0.0)
    found = np.cumsum(chances)
    found /= found[-1]
    found.setflags(write=False)
    return found


# ------------------------------------------------------------------------------------------------------------------ differences


@dataclass(frozen=True)
class Interval:
    """Of a difference of logarithms. Arrays where many were asked at once."""

    middle: Floats
    low: Floats
    high: Floats


class Differences:
    """The differences of one design, of one experiment or of many at once: a and b are logarithms, [..., processes]."""

    def __init__(
        self, design: Design, make: Callable[[], Floats], count: Callable[[float], int] | None, ends: tuple[float, float]
    ):
        self.design = design
        self._count, self._ends = count, ends
        self._sorted: Floats | None = None
        if count is None:
            found = make()
            found[np.abs(found) < TIE] = 0.0
            found.sort(axis=-1)
            self._sorted = found

    def interval(self, tail: float) -> Interval:
        """From the k-th smallest to the k-th largest, each end missed with a chance of at most ``tail``; infinite where there is no k."""
        total, k = self.design.total, self.design.rank(tail)
        middle = (self._at((total - 1) // 2) + self._at(total // 2)) / 2
        if not k:
            nothing = np.full_like(middle, np.inf)
            return Interval(middle, -nothing, nothing)
        return Interval(middle, self._at(k - 1), self._at(total - k))

    def _at(self, place: int) -> Floats:
        """The difference at this place, from 0."""
        if self._sorted is not None:
            return np.asarray(self._sorted[..., place])
        assert self._count is not None
        low, high = self._ends
        for _ in range(80):
            middle = (low + high) / 2
            if not low < middle < high:
                break
            if self._count(middle) > place:
                high = middle
            else:
                low = middle
        return np.asarray(0.0 if abs(high) < TIE else high)

    def counts(self) -> tuple[int, int]:
        """Of one experiment: differences at or below 0, and at or above 0."""
        if self._sorted is not None:
            return int((self._sorted <= 0).sum()), int((self._sorted >= 0).sum())
        assert self._count is not None
        return self._count(TIE), self.design.total - self._count(-TIE)


def of_two_samples(a: Floats, b: Floats) -> Differences:
    """[..., processes of a], [..., processes of b]."""
    design = two_samples(a.shape[-1], b.shape[-1])

    def make() -> Floats:
        return (b[..., :, None] - a[..., None, :]).reshape(*a.shape[:-1], design.total)

    if a.ndim > 1 or design.total <= _SMALL:
        return Differences(design, make, None, (0.0, 0.0))
    ordered, other = np.sort(a), np.sort(b)

    def count(limit: float) -> int:  # b - a <= limit
        return int((len(ordered) - np.searchsorted(ordered, other - limit, side="left")).sum())

    return Differences(design, make, count, (float(other[0] - ordered[-1]) - 1, float(other[-1] - ordered[0]) + 1))


def all_apart(a: Floats, b: Floats, tail: float) -> tuple[float, float, float] | None:
    """Of so few pairs that no order of their differences decides: the least and the largest difference of any two runs, and the p of arms
    that lie wholly apart, by Mann and Whitney. None where that would not decide either.

    What blocks have in common makes arms lie apart less often than this says. What tells the first of a block from the second makes it more
    often, where one arm is first in all of them: of five blocks that are drawn 1 in 16 times, of four 1 in 8, which is too often.
    """
    design = two_samples(len(a), len(b))
    if len(a) < _LEAST_PAIRS or not design.rank(tail):
        return None
    low, high = float(b.min() - a.max()), float(b.max() - a.min())
    return 0.0 if abs(low) < TIE else low, 0.0 if abs(high) < TIE else high, 2 * design.tail(0)


def of_pairs(differences: Floats) -> Differences:
    """[..., blocks]: b - a of each."""
    n = differences.shape[-1]
    design = pairs(n)

    def make() -> Floats:
        i, j = np.triu_indices(n)
        return np.asarray((differences[..., i] + differences[..., j]) / 2)

    if differences.ndim > 1 or design.total <= _SMALL:
        return Differences(design, make, None, (0.0, 0.0))
    ordered = np.sort(differences)

    def count(limit: float) -> int:  # each pair once, each with itself
        both = int(np.searchsorted(ordered, 2 * limit - ordered, side="right").sum())
        return (both + int(np.searchsorted(ordered, limit, side="right"))) // 2

    return Differences(design, make, count, (float(ordered[0]) - 1, float(ordered[-1]) + 1))


def of_strata(a: Floats, b: Floats, blocks_a: Ints, blocks_b: Ints) -> Differences:
    """[..., processes], with the number of each process's block; blocks that lack an arm have no difference."""
    numbers = np.intersect1d(blocks_a, blocks_b)
    places = [(np.flatnonzero(blocks_a == number), np.flatnonzero(blocks_b == number)) for number in numbers]
    design = strata(tuple(sorted((len(i), len(j)) for i, j in places)))

    def make() -> Floats:
        parts = [(b[..., j, None] - a[..., None, i]).reshape(*a.shape[:-1], -1) for i, j in places]
        return np.concatenate(parts, axis=-1)

    return Differences(design, make, None, (0.0, 0.0))
