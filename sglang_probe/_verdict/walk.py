"""What b is against a where it is known when each run was made, whatever time did meanwhile. Called by judge.py.

Runs follow one another on a machine that moves: a level, a slope, a random walk, noise of each run, and a step where an arm begins or ends
(Box and Tiao, Intervention analysis with applications to economic and environmental problems, 1975; Harvey, Forecasting, structural time
series models and the Kalman filter, 1989). How much of it is a walk nobody knows, and few runs hardly show it: the step's interval is made
for every share of it that these runs allow for, and the whole reaches from the lowest end to the highest. Where nothing walks that is about
Student's, beside a line; where all does, it sets the step between the arms against those between neighbours. So one arm right after the
other takes two to four times the runs that interleaved arms take, and after a pause as long as all runs some 25 times and more: that is
the price of not interleaving them. A jump of the machine that lies near the change of arms is taken for the step, and no figures of such
runs could tell; `beside` keeps what they do hold of one.
Invariant: this widens an interval, and never narrows one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import special
from .ranks import TIE

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_WALKS = (0.0, *np.geomspace(1e-3, 1e3, 19))
"""Variance of a walk's steps, in that of a run's noise."""
_ALLOWED = 0.5
"""How much less likely than the likeliest, as a difference of logarithms, a walk may be: about two of three intervals hold the true one.
Held by bench_verdict.py, over lines and walks."""
_NOTHING = 1e-30


@dataclass(frozen=True)
class Step:
    """For each walk that the runs allow for; logarithms, b - a."""

    effects: Floats
    errors: Floats
    """Standard errors."""
    free: int
    """Degrees of freedom; below 1 nothing is known."""

    def reach(self, low: float, high: float, tail: float) -> tuple[float, float]:
        """An interval, widened to what time may have made of it."""
        if self.free < 1:
            return -math.inf, math.inf
        far = float(special.stdtrit(self.free, 1 - tail)) * self.errors
        ends = float((self.effects - far).min()), float((self.effects + far).max())
        least, most = (0.0 if abs(end) < TIE else end for end in ends)
        return min(low, least), max(high, most)

    def p(self, effect: float) -> float:
        """Two-sided, of a difference with the sign of ``effect``: a walk that makes it one of the other sign leaves none."""
        if self.free < 1:
            return 1.0
        scores = math.copysign(1.0, effect) * self.effects / np.maximum(self.errors, _NOTHING)
        return min(1.0, 2 * float(special.stdtr(self.free, -float(scores.min()))))


def step_of(a: Floats, b: Floats, order_a: Sequence[int], order_b: Sequence[int]) -> Step:
    """Of logarithms and the time of each, whose order counts, and how long it was from one arm to the other."""
    times = np.concatenate([np.asarray(order_a, np.float64), np.asarray(order_b, np.float64)])
    inside = np.argsort(times, kind="stable")
    of_b = (inside >= len(a)).astype(np.float64)
    figures, times = np.concatenate([a, b])[inside], times[inside]
    n, free = len(figures), len(figures) - 3
    if free < 1:
        return Step(np.zeros(1), np.zeros(1), 0)
    steps, line = np.diff(of_b), np.ones(n - 1)
    between = _between(times, steps)
    line[steps != 0] *= between
    found, slope, step = (_sines(one) for one in (np.diff(figures), line, steps))
    noise = 4 * np.sin(np.arange(1, n) * math.pi / (2 * n)) ** 2
    rows = []
    for walk in _WALKS:
        share = walk / (1 + walk)
        variance = noise * (1 - share) + share
        weight = 1 / variance
        of_slope = float((weight * slope * slope).sum())
        rest = step - float((weight * slope * step).sum()) / of_slope * slope
        of_step = float((weight * rest * rest).sum())
        effect = float((weight * rest * found).sum()) / of_step
        left = found - float((weight * slope * found).sum()) / of_slope * slope - effect * rest
        square = max(float((weight * left * left).sum()), _NOTHING)
        likelihood = -(free * math.log(square) + float(np.log(variance).sum()) + math.log(of_slope * of_step)) / 2
        # a walk over a longer pause lies in the same place as the step itself, and adds to its error
        rows.append((effect, math.sqrt(square / free * (1 / of_step + share * (between - 1))), likelihood))
    effects, errors, likelihoods = np.array(rows).T
    allowed = likelihoods >= likelihoods.max() - _ALLOWED
    return Step(effects[allowed], errors[allowed], free)


def beside(logs: Floats, out: Ints, other: Floats, order: Sequence[int], order_other: Sequence[int]) -> Ints:
    """Outliers without those next to the change of arms that lie where the other arm does: a machine that jumped a little before or after
    it looks like that, and without them like a step of the arm."""
    after = min(order) > max(order_other)
    if not len(out) or not (after or max(order) < min(order_other)):
        return out
    own, away = np.abs(logs - np.median(logs)), np.abs(logs - np.median(other))
    kept = []
    for place in np.argsort(order, kind="stable")[:: 1 if after else -1]:
        if place not in out or 2 * away[place] > own[place]:
            break
        kept.append(place)
    return np.setdiff1d(out, kept)


def _between(times: Floats, steps: Floats) -> float:
    """How many runs would have had room between one arm and the other, where these are two wholes; but no more than there are.

    A pause of a week is taken for one as long as all of the runs: machines come back, and a walk that never does would let nothing count.
    """
    at = np.flatnonzero(steps)
    if len(at) != 1:
        return 1.0
    gaps = np.diff(times)
    usual = float(np.median(np.delete(gaps, at)))
    return min(max(float(gaps[at[0]]) / usual, 1.0), float(len(times))) if usual > 0 else 1.0


def _sines(values: Floats) -> Floats:
    """Their discrete sine transform, in which neighbouring differences of independent noise, and of a walk, are independent."""
    n = len(values) + 1
    both = np.concatenate([[0.0], values, [0.0], -values[::-1]])
    return np.asarray(-np.fft.rfft(both).imag[1:n] / math.sqrt(2 * n))
