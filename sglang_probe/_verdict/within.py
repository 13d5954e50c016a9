"""Inside one process: what one number it gives, whether it had settled, how alike its iterations are. Called by judge.py.

A process gives the median of its iterations, after those of a warm-up at its start. It counts once, however many there are: fresh processes
of the same code differ by several times what iterations of one process do, so many iterations make its own number surer and nothing else.
Invariant: a process's number depends on that process alone, so that exchangeable processes stay exchangeable.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .arm import Arm
from .nouns import Finding

Floats = NDArray[np.float64]

_LEAST = 8
"""Iterations below which no warm-up is looked for."""
_FAR = 4.0
"""Deviations of the second half that a warm-up iteration is away from its median."""
_MATTERS = 0.005
"""Relative: nearer than this is no warm-up, however quiet the rest is."""
_SURE = 4.0
"""Standard errors that a process must have moved by."""
_SIGMA = 1.4826
"""Median absolute deviation of normal noise, to its standard deviation."""
_ALIKE = 16
"""Iterations from which their correlation is told."""


@dataclass(frozen=True)
class Process:
    """What one process says."""

    log: float
    """Logarithm of its figure."""
    warm: int
    """Iterations at its start that were left out."""
    moving: float
    """How far its last third lies from its first, as a difference of logarithms, where that is more than its noise; else 0."""
    effective: float
    """How many independent iterations its iterations are worth; NaN where there are too few to tell."""


def process_of(iterations: tuple[float, ...]) -> Process:
    """One number, and what must be known with it."""
    if len(iterations) == 1:
        return Process(math.log(iterations[0]), 0, 0.0, math.nan)
    figures = np.asarray(iterations, np.float64)
    if len(figures) < _LEAST:
        return Process(math.log(float(np.median(figures))), 0, 0.0, math.nan)
    logs = np.log(figures)
    warm = _warm(logs)
    rest = logs[warm:]
    effective = effective_size(rest) if len(rest) >= _ALIKE else math.nan
    return Process(math.log(float(np.median(figures[warm:]))), warm, _moving(rest), effective)


def _warm(logs: Floats) -> int:
    """How many at the start are all on one side of, and far from, what the second half shows."""
    half = logs[len(logs) // 2 :]
    middle = np.median(half)
    far = max(_FAR * _SIGMA * float(np.median(np.abs(half - middle))), _MATTERS)
    off = logs[: len(logs) // 2] - middle
    side = off * np.sign(off[0]) > far
    return int(np.argmin(side)) if not side.all() else len(side)


def _moving(logs: Floats) -> float:
    """How far the last third lies from the first, where noise about a straight line, as alike as neighbours are, does not make that."""
    n = len(logs)
    if n < _ALIKE:
        return 0.0
    third, places = n // 3, np.arange(n) - (n - 1) / 2
    moved = float(np.median(logs[-third:]) - np.median(logs[:third]))
    rest = logs - places * float(places @ logs / (places @ places))
    rest -= np.median(rest)
    spread = _SIGMA * float(np.median(np.abs(rest)))
    error = spread * math.sqrt(math.pi / max(effective_size(rest) / 3, 1.0))
    return moved if abs(moved) > max(_SURE * error, _MATTERS) else 0.0


def effective_size(values: Floats) -> float:
    """n / (1 + 2 sum of correlations), summed while pairs of neighbouring lags are positive. ``values``: [n], in the order measured.

    (Geyer, Practical Markov chain Monte Carlo, 1992.)
    """
    n = len(values)
    centred = values - values.mean()
    power = float(centred @ centred)
    if power == 0:
        return float(n)
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size)
    correlation = np.fft.irfft(spectrum * np.conj(spectrum), size)[:n] / power
    pairs = correlation[: n // 2 * 2].reshape(-1, 2).sum(axis=1)
    ends = np.flatnonzero(pairs <= 0)
    total = 2 * float(pairs[: ends[0] if len(ends) else len(pairs)].sum()) - 1
    return n / max(total, 1.0)


def findings_within(arm: Arm, processes: list[Process], margin: float) -> list[Finding]:
    """Of one arm: warm-up, processes that were still moving, iterations that resemble their neighbours."""
    found = []
    if warm := [one.warm for one in processes if one.warm]:
        most = f"up to {max(warm)}" if max(warm) > 1 else "1"
        text = f"{len(warm)} of {_runs(arm)} warmed up: {most} of the first iterations lie apart from the rest, and count no more"
        found.append(Finding("warm_up", arm.label, text))
    if moving := still_moving(processes, margin):
        largest = max(moving, key=abs)
        way = "higher" if largest > 0 else "lower"
        far = f"up to {100 * abs(math.expm1(largest)):.1f} % {way} than the first"
        text = f"not settled: in {len(moving)} of {_runs(arm)} the last iterations are {far}"
        found.append(Finding("warm_up", arm.label, text))
    shares = [(one.effective, len(given) - one.warm) for one, given in zip(processes, arm.processes, strict=True)]
    told = [(size, n) for size, n in shares if not math.isnan(size)]
    if told:
        size, n = sorted(told, key=lambda pair: pair[0] / pair[1])[len(told) // 2]
        if size < n / 2:
            text = f"iterations resemble their neighbours: the {n:,} of a run are worth about {max(1, round(size)):,}; a run counts once"
            found.append(Finding("autocorrelation", arm.label, text))
    return found


def still_moving(processes: list[Process], margin: float) -> list[float]:
    """Of the processes that moved by more than the margin, how far."""
    return [one.moving for one in processes if abs(one.moving) > math.log1p(margin)]


def _runs(arm: Arm) -> str:
    return f"{len(arm)} run{'s' * (len(arm) != 1)}"
