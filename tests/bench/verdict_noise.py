"""Noise whose truth is known: figures of two arms that are alike; and the limits that rates are held to. Used by the benches beside it.

Invariant: what is drawn depends on the generator alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int, int], tuple[Floats, Floats]]


@dataclass(frozen=True)
class Noise:
    """One kind: logarithms of the figures of two arms that are alike, [experiments, runs] each."""

    name: str
    draw: Draw
    paired: bool = False
    """Run i of both arms is block i."""


def _normal(draw: np.random.Generator, trials: int, runs: int) -> tuple[Floats, Floats]:
    """Figures of a normal distribution, CV 5 %."""
    return tuple(np.log(1 + 0.05 * draw.standard_normal((trials, runs))) for _ in "ab")  # type: ignore[return-value]


def _log_normal(draw: np.random.Generator, trials: int, runs: int) -> tuple[Floats, Floats]:
    """CV about 10 %."""
    return tuple(0.1 * draw.standard_normal((trials, runs)) for _ in "ab")  # type: ignore[return-value]


def _two_modes(draw: np.random.Generator, trials: int, runs: int) -> tuple[Floats, Floats]:
    """Three in ten runs are 15 % slower, besides 2 % of noise."""
    one, other = (0.02 * draw.standard_normal((trials, runs)) + 0.14 * (draw.random((trials, runs)) < 0.3) for _ in "ab")
    return one, other


def _drifting(draw: np.random.Generator, trials: int, runs: int) -> tuple[Floats, Floats]:
    """Blocks of one run of each arm in random order, on a machine that gets 20 % slower, and wanders; the second of a block 3 % slower."""
    blocks = np.linspace(0, 0.2, runs) + np.cumsum(0.02 * draw.standard_normal((trials, runs)), axis=1)
    second = draw.random((trials, runs)) < 0.5
    one = blocks + 0.03 * second + 0.03 * draw.standard_normal((trials, runs))
    other = blocks + 0.03 * ~second + 0.03 * draw.standard_normal((trials, runs))
    return one, other


def _within(draw: np.random.Generator, trials: int, runs: int) -> tuple[Floats, Floats]:
    """Processes differ by 3 %; each has 40 iterations, each 0.9 of the one before it: the median of a process is its figure."""
    return iterations(draw, trials, runs, 40)[1]


def iterations(
    draw: np.random.Generator, trials: int, runs: int, count: int
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """All iterations, and medians of processes."""
    arms = []
    for _ in "ab":
        steps = 0.03 * draw.standard_normal((trials, runs, count))
        steps[..., 0] /= math.sqrt(1 - 0.9**2)
        for i in range(1, count):
            steps[..., i] += 0.9 * steps[..., i - 1]
        arms.append(steps + 0.03 * draw.standard_normal((trials, runs, 1)))
    return (arms[0], arms[1]), (np.median(arms[0], axis=-1), np.median(arms[1], axis=-1))


KINDS = (
    Noise("normal", _normal),
    Noise("log-normal", _log_normal),
    Noise("two modes", _two_modes),
    Noise("drifting, interleaved", _drifting, paired=True),
    Noise("correlated inside processes", _within),
)


# Of each kind so much of its noise that SAME within 2 % is to be had at all.
QUIET = {"normal": 0.2, "log-normal": 0.1, "two modes": 0.1, "drifting, interleaved": 0.25, "correlated inside processes": 0.15}


def _disturbed(draw: np.random.Generator, trials: int, runs: int) -> tuple[Floats, Floats]:
    """CV 2.7 %, and one run in twelve 30 % slower."""
    one, other = (0.027 * draw.standard_normal((trials, runs)) - 0.35 * (draw.random((trials, runs)) < 1 / 12) for _ in "ab")
    return one, other


POWERS = (
    Noise("normal, CV 2.7 %", lambda *n: tuple(0.54 * one for one in _normal(*n))),  # type: ignore[arg-type, return-value]
    Noise("CV 2.7 %, 1 in 12 disturbed", _disturbed),
    Noise("drifting, interleaved", _drifting, paired=True),
)


@dataclass(frozen=True)
class Check:
    """A rate that has a limit."""

    what: str
    rate: float
    limit: float
    at_most: bool = True

    @property
    def holds(self) -> bool:
        return self.rate <= self.limit if self.at_most else self.rate >= self.limit


def percent(rate: float) -> str:
    return f"{100 * rate:.2f} %"
