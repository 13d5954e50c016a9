"""What the processes of one arm look like together: outliers, several modes, rounding. Called by judge.py.

Invariant: what is found here is told and drawn; no figure is ever left out of a test for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import special

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_OUTLIER_ALPHA = 0.01
_MOST = 100
"""Outliers that are looked for one by one."""
_LEAST_OUTLIER, _LEAST_MODES = 4, 4
# How many spreads two modes must be apart: what one mode (normal, uniform, Laplace, t with 3 degrees) looks like in at most 1 % of arms of
# so many processes. Held to that by tests/bench/bench_verdict.py; between two of them interpolated.
_APART_RUNS = (4, 5, 6, 7, 8, 10, 12, 16, 20, 30, 50, 100)
_APART = (40.0, 20.0, 14.5, 12.0, 10.5, 8.5, 7.5, 6.8, 6.5, 6.5, 5.8, 5.2)
_SHARE = 0.05
"""The smaller mode has at least this share of the processes, and two of them."""


@dataclass(frozen=True)
class Modes:
    """Two groups of processes with nothing between them."""

    low: Floats
    high: Floats
    """Logarithms, in order."""

    @property
    def apart(self) -> float:
        """Difference of their medians."""
        return float(np.median(self.high) - np.median(self.low))


def outliers(logs: Floats) -> Ints:
    """Places of the processes that do not belong to the rest: the generalised extreme Studentised deviate test on logarithms.

    (Rosner, Percentage points for a generalized ESD many-outlier procedure, 1983.) It finds several that would hide one another, up to a
    fifth of the arm, and none in 99 % of arms of log-normal noise. Fewer than 4 processes have none.
    """
    n = len(logs)
    if n < _LEAST_OUTLIER or np.ptp(logs) == 0:
        return np.empty(0, np.int64)
    most = max(1, min(_MOST, n // 5))
    left = np.arange(n)
    found, taken = 0, []
    for i in range(1, most + 1):
        rest = logs[left]
        deviation = rest.std(ddof=1)
        if deviation <= 1e-9:  # nothing but rounding is left
            break
        worst = int(np.argmax(np.abs(rest - rest.mean())))
        score = abs(rest[worst] - rest.mean()) / deviation
        taken.append(int(left[worst]))
        left = np.delete(left, worst)
        free = n - i - 1
        if free < 1:
            break
        t = float(special.stdtrit(free, 1 - _OUTLIER_ALPHA / (2 * (n - i + 1))))
        if score > (n - i) * t / math.sqrt((free + t * t) * (n - i + 1)):
            found = i
    return np.array(sorted(taken[:found]), np.int64)


def modes(logs: Floats, margin: float) -> Modes | None:
    """Two modes, where there are any that matter: further apart than the margin, and than one mode would ever look.

    The split that leaves the least spread within (Fisher, On grouping for maximum homogeneity, 1958), measured as Ashman measures it: the
    distance of the groups' means by their pooled spread (Ashman, Bird and Zepf, Detecting bimodality in astronomical datasets, 1994).
    """
    n = len(logs)
    least = max(2, math.ceil(_SHARE * n))
    if n < max(_LEAST_MODES, 2 * least):
        return None
    ordered = np.sort(logs - np.median(logs))
    sizes = np.arange(least, n - least + 1)
    sums, squares = np.cumsum(ordered), np.cumsum(ordered * ordered)
    low, high = sums[sizes - 1] / sizes, (sums[-1] - sums[sizes - 1]) / (n - sizes)
    within = squares[-1] - sizes * low**2 - (n - sizes) * high**2
    best = int(np.argmin(within))
    size = int(sizes[best])
    spread = math.sqrt(max(float(within[best]), 0.0) / (n - 2))
    distance = float(high[best] - low[best])
    gap = float(ordered[size] - ordered[size - 1])
    needed = float(np.interp(n, _APART_RUNS, _APART))
    if distance <= needed * spread or gap <= max(spread, 1e-9) or distance <= math.log1p(margin):
        return None
    ordered = np.sort(logs)
    return Modes(ordered[:size], ordered[size:])


def new_mode(mine: Modes | None, other: Floats) -> Modes | None:
    """Modes of which the other arm, however it is measured, has only one."""
    if mine is None or not len(other):
        return None
    cut = (float(mine.low[-1]) + float(mine.high[0])) / 2
    return mine if (other < cut).all() or (other > cut).all() else None


def alike_shares(a: tuple[Modes | None, Floats], b: tuple[Modes | None, Floats], limit: float, alpha: float) -> bool:
    """Whether arms that have two modes have them as often, so that their means are within ``limit`` as far as that goes; one-sided tests.

    The middle of all differences stays where it is while runs go from one mode to the other. (Agresti and Caffo, Simple and effective
    confidence intervals for proportions and differences of proportions, 2000.)
    """
    for mine, _ in (a, b):
        if mine is None:
            continue
        cut = (float(mine.low[-1]) + float(mine.high[0])) / 2
        shares = [(float((logs > cut).sum()) + 1, len(logs) + 2) for _, logs in (a, b)]
        (p, of_p), (q, of_q) = ((count / n, n) for count, n in shares)
        error = math.sqrt(p * (1 - p) / of_p + q * (1 - q) / of_q)
        if (abs(p - q) - float(special.ndtri(alpha)) * error) * mine.apart >= limit:
            return False
    return True


def resolution(values: tuple[float, ...]) -> float:
    """The step that figures were rounded to, by their digits: 1.0 of (82.0, 89.0), 0.1 of (7.4, 8.0); 0 where they have more than six."""
    step = math.inf
    for value in values:
        digits = f"{value:.12g}"
        mantissa, _, power = digits.partition("e")
        decimals = len(mantissa.partition(".")[2]) - int(power or 0)
        if decimals <= 0:
            whole = f"{value:.0f}"
            decimals = len(whole.rstrip("0")) - len(whole)
        step = min(step, 10.0**-decimals)
    return step if 0 < step < math.inf and step >= 1e-6 * max(values) else 0.0
