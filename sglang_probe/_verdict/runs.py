"""How many runs would settle it: the rank test itself, simulated on normal noise with a fixed seed. Called by judge.py and by `explain`.

The ends of the interval move with the effect and stretch with the spread, so one set of simulated intervals of each size answers for every
effect and spread. Beyond the largest size they shrink with the square root of the number, as intervals do.
Invariant: a number asked for is one at which the very test that asked decides in 80 % of experiments; bench_verdict.py holds it to that.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._types import InputError
from . import special
from .ranks import LEAST, of_pairs, of_two_samples

Floats = NDArray[np.float64]

POWER = 0.8
_TRIALS = 1000
_SIZES = (4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 20, 24)
"""Processes an arm that are simulated; numbers between two of them are taken for the smaller."""
MOST = 1_000_000
_LEAST_SPREAD = 1e-12
"""Where figures have none: the ends of intervals may be infinite."""
_SURE = 0.85
"""Confidence of the bound on the spread: a spread of few runs is often too small (Browne, On the use of a pilot sample, 1995)."""
_NOISE = 1.5
"""Standard errors below which an effect may as well be nothing."""


class Ends(NamedTuple):
    """Ends of simulated intervals about 0, of spread 1."""

    low: Floats
    high: Floats
    same_low: Floats
    same_high: Floats


@lru_cache(maxsize=128)
def _ends(size: int, alpha: float, paired: bool) -> Ends:
    draw = np.random.default_rng(size).standard_normal
    found = (
        of_pairs(draw((_TRIALS, size)) * math.sqrt(2)) if paired else of_two_samples(draw((_TRIALS, size)), draw((_TRIALS, size)))
    )
    one, other = found.interval(alpha / 2), found.interval(alpha)
    return Ends(one.low, one.high, other.low, other.high)


def chance(
    runs: int, effect: float, spread: float, *, alpha: float = 0.05, margin: float | None = 0.02, paired: bool = False
) -> float:
    """That so many runs an arm decide: FASTER or SLOWER, and SAME where ``margin`` is given.

    ``effect``: a difference of logarithms; ``spread``: standard deviation of the logarithms of one arm's processes (of a difference
    within a pair, by the root of 2); ``alpha``: what is left of the confidence.
    """
    size = max((one for one in _SIZES if one <= runs), default=_SIZES[0])
    found = _ends(size, alpha, paired)
    shrink = math.sqrt(size / runs) if runs > _SIZES[-1] else 1.0
    low, high, same_low, same_high = (effect + max(spread, _LEAST_SPREAD) * shrink * end for end in found)
    decided = (low > 0) | (high < 0)
    if margin is not None:
        limit = math.log1p(margin)
        decided |= (same_low > -limit) & (same_high < limit)
    return float(decided.mean())


def runs_for(
    effect: float,
    spread: float,
    *,
    confidence: float = 0.95,
    margin: float | None = None,
    power: float = POWER,
    paired: bool = False,
) -> int:
    """Runs an arm at which a verdict decides with this power.

    Parameters
    ----------
    effect
        The difference, relative: 0.085 for 89 against 82. 0 with a margin: runs that show SAME.
    spread
        Of fresh processes of one arm: standard deviation by mean (0.087 is a CV of 8.7 %).
    margin
        Where it is given, SAME within it counts as decided, too.
    paired
        In blocks of one process of each arm; ``spread`` is then that of a block's difference by the root of 2.

    Raises InputError where no number would do.
    """
    for name, value in (("effect", effect), ("spread", spread)):
        if not math.isfinite(value) or (value <= -1 if name == "effect" else value < 0):
            raise InputError(name, value, "give a fraction, such as 0.05 for 5 %")
    if effect == 0 and margin is None:
        raise InputError("effect", effect, "no number of runs shows a difference of nothing: give a margin, for SAME")
    alpha, log = 1 - confidence, math.log1p(effect)
    return needed(log, spread, alpha=alpha, margin=margin, power=power, paired=paired)


def needed(
    effect: float, spread: float, *, alpha: float, margin: float | None, power: float = POWER, paired: bool = False
) -> int:
    """`runs_for` on logarithms; at most a million."""

    sure = power + math.sqrt(power * (1 - power) / _TRIALS)  # what is simulated has an error of its own

    def enough(runs: int) -> bool:
        return chance(runs, effect, spread, alpha=alpha, margin=margin, paired=paired) >= sure

    if enough(LEAST):
        return LEAST
    low, high = LEAST, 8
    while high < MOST and not enough(high):
        low, high = high, min(MOST, high * 2)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def bound(spread: float, free: float) -> float:
    """A spread that the true one is at most, in 85 % of experiments: from an estimate with so many degrees of freedom."""
    return spread * math.sqrt(free / float(special.chdtri(free, _SURE))) if free > 0 else spread


class Asked(NamedTuple):
    """Runs an arm, in all."""

    either_way: int
    """That settle it where the difference is as large as it looks, and where there is none."""
    as_seen: int
    """Where the difference is as large as it looks."""


def asked(effect: float, spread: float, free: float, error: float, *, alpha: float, margin: float, paired: bool) -> Asked:
    """From what was seen: an effect and its standard error, a spread with so many degrees of freedom; on logarithms.

    An effect under one and a half standard errors may as well be nothing: then it takes what would show SAME, too.
    """
    sure = bound(spread, free)
    as_seen = needed(effect, sure, alpha=alpha, margin=margin, paired=paired)
    if abs(effect) >= _NOISE * error:
        return Asked(as_seen, as_seen)
    nothing = needed(0.0, sure, alpha=alpha, margin=margin, paired=paired)
    return Asked(max(as_seen, nothing), as_seen)


def needed_by_share(share: float, *, alpha: float, paired: bool = False) -> int:
    """Runs an arm that tell by ranks what is no shift, such as a mode of one arm.

    ``share``: of all pairs of runs, those that have the larger in b; of blocks, of all pairs of their differences, those whose mean is
    above 0.

    Noether, Sample size determination for some common nonparametric tests, 1987.
    """
    z = float(special.ndtri(1 - alpha / 2) + special.ndtri(POWER))
    off = abs(share - 0.5)
    return MOST if off < 1e-3 else max(LEAST, math.ceil(z * z / ((3 if paired else 6) * off * off)))
