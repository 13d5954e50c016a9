"""A time with its uncertainty: over processes, and between two measured sizes. Called by the tables; everything here is arithmetic.

What an interval is: the t interval at 95 % of the mean over processes (the process is what is replicated, not the sample), cut at 0. One
process has none.

Between two measured sizes: a straight line in log(bytes), log(time). Its interval is the wider of the two neighbours' in relation to their
times, below and above, and on either side half of the distance between that line and the straight line through the same two points in
bytes and time: for curves that run between the two it covers the middle. A step between two sizes (another protocol, another number of
blocks) is not covered by that, which is why the two sizes are always told.
Invariant: at a measured size it is exactly what was measured; outside of the measured sizes there is nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """Microseconds a call."""

    us: float
    low_us: float | None = None
    """95 %; None where there is no interval: one process, or a source that gives no spread."""
    high_us: float | None = None
    processes: int = 1
    """How many fresh processes stand behind it; 0 where the source does not tell."""


@dataclass(frozen=True)
class Point:
    """One measured size."""

    nbytes: int
    estimate: Estimate


@dataclass(frozen=True)
class Between:
    """What a table says of one size: at a measured one `sizes` is empty, else the two neighbours."""

    estimate: Estimate
    sizes: tuple[int, ...] = ()


def over_processes(values: Iterable[float]) -> Estimate | None:
    """From one number a process; processes that did not measure it (NaN) do not count. None where nothing is left, or one is infinite."""
    known = np.array([value for value in values if not math.isnan(value)], np.float64)
    if not known.size or not np.isfinite(known).all():
        return None
    mean = float(known.mean())
    if known.size == 1 or (known == known[0]).all():
        # Equal numbers have no spread that could be seen; their mean, summed, need not be that number to the last bit.
        mean = float(known[0])
    if known.size == 1:
        return Estimate(mean)
    half = _quantile(known.size - 1) * float(known.std(ddof=1)) / math.sqrt(known.size)
    return Estimate(mean, max(0.0, mean - half), mean + half, int(known.size))


def _quantile(degrees: int) -> float:
    # The function behind scipy.stats.t.ppf; scipy.stats takes half a second to import.
    from scipy.special import stdtrit  # type: ignore[import-untyped, unused-ignore] # it ships no types

    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))


def at_size(points: Sequence[Point], nbytes: int) -> Between | None:
    """From points in order of their sizes; None outside of them."""
    i = bisect_left(points, nbytes, key=lambda point: point.nbytes)
    if i < len(points) and points[i].nbytes == nbytes:
        return Between(points[i].estimate)
    if i == 0 or i == len(points):
        return None
    return Between(_between(points[i - 1], points[i], nbytes), (points[i - 1].nbytes, points[i].nbytes))


def _between(left: Point, right: Point, nbytes: int) -> Estimate:
    a, b = left.estimate, right.estimate
    linear = a.us + (b.us - a.us) * (nbytes - left.nbytes) / (right.nbytes - left.nbytes)
    us = linear
    if a.us > 0 and b.us > 0:
        share = math.log(nbytes / left.nbytes) / math.log(right.nbytes / left.nbytes)
        # Rounding must not carry it past a neighbour: monotone points give monotone answers.
        us = min(max(a.us * (b.us / a.us) ** share, min(a.us, b.us)), max(a.us, b.us))
    bound = abs(us - linear) / 2
    processes = min(a.processes, b.processes)
    if a.low_us is None or a.high_us is None or b.low_us is None or b.high_us is None:
        return Estimate(us, processes=processes)
    below = max(_share(a.us - a.low_us, a.us), _share(b.us - b.low_us, b.us))
    above = max(_share(a.high_us - a.us, a.us), _share(b.high_us - b.us, b.us))
    return Estimate(us, max(0.0, us * (1 - below) - bound), us * (1 + above) + bound, processes)


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
