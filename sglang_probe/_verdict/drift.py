"""Whether it shows that the machine moved while the arms were measured: for people; what a drift may do to an answer is walk.py's.

Within each arm, over time: Mann, Nonparametric tests against trend, 1945, on both arms together (their scores add up), and the slope (Sen,
Estimates of the regression coefficient based on Kendall's tau, 1968). Called by judge.py and told.py.
Invariant: this can take a word away, and never gives one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from . import special
from .arm import Arm

Floats = NDArray[np.float64]

_ALPHA = 0.05
_GIVEN_ALPHA, _GIVEN_LEAST = 0.01, 5
"""Where it is not known that the order is that of time."""
_EXACT = 30
"""Processes of an arm up to which the score's distribution is computed."""
_MOST = 400
"""Processes of an arm that are looked at; of more, evenly chosen ones."""
_ALIKE, _ALIKE_LEAST = 4.0, 20
"""Standard errors of a correlation of neighbours that independent runs do not reach; runs from which it is looked for."""


@dataclass(frozen=True)
class Drift:
    """What time did, of two arms whose order is known. Slopes are differences of logarithms from one run to the next in time."""

    p: float
    """Of no trend within the arms."""
    slope: float
    runs: int
    """Of both arms."""
    apart: float
    """How many runs the middle of b lies behind the middle of a; negative: before."""

    @property
    def shows(self) -> bool:
        return self.p < _ALPHA

    @property
    def whole(self) -> float:
        """From the first run to the last, as a difference of logarithms."""
        return self.slope * (self.runs - 1)

    @property
    def separate(self) -> bool:
        """The arms were measured one after the other, more or less."""
        return abs(self.apart) > self.runs / 4


def drift_of(a: Floats, b: Floats, order_a: Sequence[int], order_b: Sequence[int]) -> Drift:
    """Of logarithms and the time of each: order alone counts."""
    both = np.concatenate([np.asarray(order_a, np.float64), np.asarray(order_b, np.float64)])
    places = np.empty(len(both))
    places[np.argsort(both, kind="stable")] = np.arange(len(both))
    times = (places[: len(a)], places[len(a) :])
    score, sizes, slopes = 0.0, [], []
    for logs, when in zip((a, b), times, strict=True):
        chosen = np.argsort(when)[np.unique(np.linspace(0, len(logs) - 1, min(len(logs), _MOST)).astype(np.int64))]
        x, y = when[chosen], logs[chosen]
        i, j = np.triu_indices(len(chosen), 1)
        score += float(np.sign(y[j] - y[i]).sum())
        slopes.append((y[j] - y[i]) / (x[j] - x[i]))
        sizes.append(len(chosen))
    found = np.concatenate(slopes)
    apart = float(times[1].mean() - times[0].mean())
    if not len(found):
        return Drift(1.0, 0.0, len(places), apart)
    return Drift(_of_score(tuple(sizes), abs(score)), float(np.median(found)), len(places), apart)


def one_order(a: Arm, b: Arm) -> bool:
    """Whether it is known which run of either arm was made before which of the other.

    Not where most times of one arm are the other's, too: each arm was counted by itself then.
    """
    if not (a.order and b.order and a.clock == b.clock):
        return False
    one, other = set(a.order), set(b.order)
    return 2 * len(one & other) <= min(len(one), len(other))


def as_given(a: Arm, b: Arm, logs_a: Floats, logs_b: Floats) -> Drift | None:
    """What time did, if figures whose order nobody told are in the order that they were measured in, one arm after the other.

    None where that does not show, and where a list is sorted, which says nothing of time.
    """
    if a.order or b.order or a.blocks or b.blocks or min(len(logs_a), len(logs_b)) < _GIVEN_LEAST:
        return None
    for logs in (logs_a, logs_b):
        steps = np.diff(logs)
        if (steps >= 0).all() or (steps <= 0).all():
            return None
    found = drift_of(logs_a, logs_b, range(len(logs_a)), range(len(logs_a), len(logs_a) + len(logs_b)))
    return found if found.p < _GIVEN_ALPHA else None


def _of_score(sizes: tuple[int, ...], score: float) -> float:
    """The p of a score."""
    pairs = sum(n * (n - 1) // 2 for n in sizes)
    if max(sizes) <= _EXACT:
        falling = math.floor((pairs - score) / 2)  # the score of m pairs runs from -m to m in steps of 2
        return min(1.0, 2 * float(np.cumsum(_scores(sizes))[falling]))
    spread = math.sqrt(sum(n * (n - 1) * (2 * n + 5) for n in sizes) / 18)
    return min(1.0, 2 * float(special.ndtr(-max(score - 1, 0.0) / spread)))


@lru_cache(maxsize=64)
def _scores(sizes: tuple[int, ...]) -> Floats:
    """P(0 falling pairs), P(1), ... in random orders of so many."""
    chances = np.ones(1)
    for n in sizes:
        for i in range(2, n + 1):
            chances = np.convolve(chances, np.full(i, 1 / i))
    return chances


def neighbours(arm: Arm, logs: Floats) -> float:
    """Correlation of runs with the next one, in the order given, where independent runs would never have so much; else 0.

    A sorted list says nothing of time, and has 0.
    """
    n = len(logs)
    if n < _ALIKE_LEAST or np.ptp(logs) == 0:
        return 0.0
    values = logs[np.argsort(arm.order, kind="stable")] if arm.order else logs
    steps = np.diff(values)
    if not arm.order and ((steps >= 0).all() or (steps <= 0).all()):
        return 0.0
    ranks = np.unique(values, return_inverse=True)[1]  # equal ones alike
    found = float(np.corrcoef(ranks[:-1], ranks[1:])[0, 1])
    return found if found * math.sqrt(n) > _ALIKE else 0.0
