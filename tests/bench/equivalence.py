"""Figures of fresh processes: where their mean lies, whether two kinds are the same within 5 %, and in which order to run them.

Used by the benches beside it. Invariant: the process set is what is replicated; figures of one block are a pair.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

MARGIN = math.log(1.05)


def interval(values: list[float], level: float = 0.95) -> tuple[float, float, float]:
    """Geometric mean of figures, one a process set, and where it lies with this confidence. NaN where a figure is not positive, which a
    time of little less than the compute kernel's can be; NaN ends where there is one figure."""
    if not all(value > 0 for value in values):
        return math.nan, math.nan, math.nan
    logs = np.log(values)
    if len(logs) < 2:
        return values[0], math.nan, math.nan
    if np.ptp(logs) == 0:
        return values[0], values[0], values[0]
    low, high = stats.ttest_1samp(logs, 0.0).confidence_interval(level)
    return math.exp(logs.mean()), math.exp(low), math.exp(high)


def orders(units: list[str], blocks: int, seed: int) -> list[list[str]]:
    """Of each block the order of its units: drawn anew after as many blocks as there are units, and turned by one from block to block until
    then, so that each is as often first, second and last."""
    drawn, found = random.Random(seed), []
    for block in range(blocks):
        turn = block % len(units)
        if turn == 0:
            base = drawn.sample(units, len(units))
        found.append(base[turn:] + base[:turn])
    return found


@dataclass(frozen=True)
class Equal:
    """What two one-sided tests say of one size."""

    ratio: float
    low: float
    high: float
    p: float
    blocks: int
    verdict: str


def equal(ratios: list[float], alpha: float) -> Equal:
    """Is the ratio within 5 % of one? ``low`` to ``high`` is the interval that belongs to the tests."""
    if len(ratios) < 2:
        return Equal(ratios[0] if ratios else math.nan, math.nan, math.nan, math.nan, len(ratios), "too few")
    logs = np.log(ratios)
    if np.ptp(logs) == 0:  # a test without spread has no answer
        same = abs(logs[0]) < MARGIN
        return Equal(ratios[0], ratios[0], ratios[0], 0.0 if same else 1.0, len(ratios), "no spread")
    p = max(
        stats.ttest_1samp(logs, -MARGIN, alternative="greater").pvalue, stats.ttest_1samp(logs, MARGIN, alternative="less").pvalue
    )
    low, high = stats.ttest_1samp(logs, 0.0).confidence_interval(1 - 2 * alpha)
    if p < alpha:
        verdict = "same within 5 %"
    elif low > MARGIN or high < -MARGIN:
        verdict = "DIFFERS by over 5 %"
    else:
        verdict = f"not shown{_more(logs, alpha)}"
    middle, low, high = (float(np.exp(one)) for one in (logs.mean(), low, high))
    return Equal(middle, low, high, float(p), len(ratios), verdict)


def _more(logs: Any, alpha: float) -> str:
    """About how many blocks would show it with a chance of 80 %, if it is as it looks."""
    left = MARGIN - abs(float(logs.mean()))
    if left <= 0:
        return ""
    needed = math.ceil(((stats.norm.ppf(1 - alpha) + stats.norm.ppf(0.9)) * float(logs.std(ddof=1)) / left) ** 2) + 1
    return f"; about {max(needed, len(logs) + 1)} blocks would"
