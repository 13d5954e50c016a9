"""Summary: what was measured in one way, put together over fresh processes. What tables and costs are made of.

In each cell (one set of processes): the median of each rank's samples, then the largest over ranks, since a call is done when the last rank
has it. That gives one number a process set, and these are what is kept. A bench's table shows their median and range; costs take their mean
with a t interval, which is the mean's own.
Invariant: samples of different processes are never thrown together; what was wrong in one process set gives no number from any.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .cell import SAMPLES, Cell, Samples
from .cell import _median as median
from .measurement import Measurement


class Spread(NamedTuple):
    """A figure in microseconds, and the least and the largest over process sets; NaN where nothing was timed."""

    median: float
    low: float
    high: float
    processes: int


@dataclass(frozen=True, eq=False)
class Summary:
    """One call, measured in one way by so many process sets. The ``_us`` fields have one number a process set, in order."""

    path: str
    kernel: str
    backend: str
    release: str
    phase: str
    pattern: str
    compute_us: float
    driver: str
    device: str
    dtype: str
    nbytes: int
    world_size: int
    processes: tuple[int, ...]
    """Numbers of the process sets that have a cell."""
    device_us: Samples
    host_us: Samples
    elapsed_us: Samples
    wait_us: Samples
    transfer_us: Samples
    """Of the process sets in which such samples were taken: there may be fewer than ``processes``, or none."""
    split_error_us: float
    """The largest of the cells'."""
    samples: int
    """Of the rank and cell that have the fewest, among those that have any."""
    checked: int
    wrong: int
    """Results, over all process sets and ranks."""

    @property
    def n_processes(self) -> int:
        return len(self.processes)

    @property
    def correct(self) -> bool | None:
        """None where no process set checked it."""
        return self.wrong == 0 if self.checked else None

    def spread(self, name: str) -> Spread:
        """Of one of the ``_us`` fields, by name."""
        values: Samples = getattr(self, name)
        if not len(values):
            return Spread(float("nan"), float("nan"), float("nan"), 0)
        return Spread(median(values), float(values.min()), float(values.max()), len(values))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: what was measured, and of each time the figure, its range and the process sets' numbers."""
        plain = {name: getattr(self, name) for name in (*_KEY, "split_error_us", "samples", "checked", "wrong")}
        plain["processes"], plain["correct"] = list(self.processes), self.correct
        for name in SAMPLES:
            figure = self.spread(name)
            plain[name] = (
                {"median": figure.median, "low": figure.low, "high": figure.high, "by_process": getattr(self, name).tolist()}
                if figure.processes
                else None
            )
        return plain


_KEY = (
    *("path", "kernel", "backend", "release", "phase", "pattern", "compute_us", "driver", "device", "dtype", "nbytes"),
    "world_size",
)


def summaries(measurement: Measurement | Iterable[Cell]) -> list[Summary]:
    """One for each thing that was measured, in the order in which the file has them first."""
    cells = measurement.cells if isinstance(measurement, Measurement) else measurement
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(tuple(getattr(cell, name) for name in _KEY), []).append(cell)
    return [_summary(key, sorted(group, key=lambda cell: cell.process)) for key, group in groups.items()]


def _summary(key: tuple[Any, ...], cells: list[Cell]) -> Summary:
    right = [] if any(cell.wrong for cell in cells) else cells
    times: dict[str, Any] = {
        name: np.array([us for cell in right if (us := over_ranks(getattr(cell, name))) is not None]) for name in SAMPLES
    }
    counts = [len(rank) for cell in right for name in SAMPLES for rank in getattr(cell, name) if len(rank)]
    return Summary(
        **dict(zip(_KEY, key, strict=True)),
        processes=tuple(cell.process for cell in cells),
        **times,
        split_error_us=max((cell.split_error_us for cell in right), default=0.0),
        samples=min(counts, default=0),
        checked=sum(cell.checked for cell in cells),
        wrong=sum(cell.wrong for cell in cells),
    )


def over_ranks(samples: tuple[Samples, ...]) -> float | None:
    """The largest over ranks of the rank's median; None where a rank has none, or where nothing was timed."""
    if not samples or not all(len(rank) for rank in samples):
        return None
    return max(median(rank) for rank in samples)
