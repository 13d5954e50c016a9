"""Summary: what was measured in one way, put together over fresh processes. What tables and costs are made of.

In each cell (one set of processes): the median of each rank's samples, then the largest over ranks, since a call is done when the last rank
has it. That gives one number a process set, and these are what is kept. A bench's table shows their median and range; costs take their mean
with a t interval, which is the mean's own. What each rank has is there beside it (`by_rank`), and the cells themselves.
Invariant: samples of different processes are never thrown together; what was wrong in one process set gives no number from any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .._show.page import Block, to_html
from .._show.sizes import human_bytes
from .cell import SAMPLES, Cell, Samples
from .cell import _median as median
from .measurement import Measurement


class Spread(NamedTuple):
    """A figure in microseconds, and the least and the largest over process sets; NaN where nothing was timed."""

    median: float
    low: float
    high: float
    processes: int


@dataclass(frozen=True, eq=False, repr=False)
class Summary:
    """One call, measured in one way by so many process sets; ``Measurement.summary()`` gives them. What it was is told by `Cell`'s fields.

    The ``_us`` arrays are float64 and have one number a process set, in order, in microseconds a call: of each rank the median of its
    samples, of the ranks the largest. A process set in which a rank has no samples is not among them; of what was WRONG there are none.
    """

    path: str
    kernel: str
    backend: str
    release: str
    phase: str
    pattern: str
    compute_us: float
    """Microseconds; 0 back to back."""
    driver: str
    device: str
    dtype: str
    nbytes: int
    """Bytes of the tensor on each rank."""
    world_size: int
    processes: tuple[int, ...]
    """Numbers of the process sets that have a cell, from 0."""
    device_us: Samples
    host_us: Samples
    elapsed_us: Samples
    wait_us: Samples
    transfer_us: Samples
    """Of the process sets in which such samples were taken: there may be fewer than ``processes``, or none. Waits and transfers are of
    other calls than the three times above, and each is the largest over ranks by itself: they do not add up to any of them."""
    split_error_us: float
    """The largest of the cells': waits and transfers may be this far off, either way."""
    samples: int
    """Of the rank and cell that have the fewest, among those that have any."""
    checked: int
    wrong: int
    """Results, over all process sets and ranks."""
    cells: tuple[Cell, ...]
    """Those that this is made of, by process set: every sample."""

    @property
    def n_processes(self) -> int:
        return len(self.processes)

    @property
    def correct(self) -> bool | None:
        """None where no process set checked it."""
        return self.wrong == 0 if self.checked else None

    @property
    def checked_in(self) -> tuple[int, ...]:
        """The process sets that compared results; of a bench the first alone."""
        return tuple(cell.process for cell in self.cells if cell.checked)

    @property
    def algbw_gb_s(self) -> float:
        """Bytes of the tensor by device time, 1e9 bytes a second; NaN where no device time above 0 was taken."""
        us = self.spread("device_us").median
        return self.nbytes / us / 1e3 if us > 0 else float("nan")

    @property
    def busbw_gb_s(self) -> float:
        """That by 2 (n - 1) / n of n ranks: what every link carries at least, whatever n; as nccl-tests has it."""
        return self.algbw_gb_s * 2 * (self.world_size - 1) / self.world_size

    def by_rank(self, name: str) -> Samples:
        """[process set, rank]: medians of one of the ``_us`` fields, by name. The largest of each row is what that field has."""
        rows = [[median(rank) for rank in getattr(cell, name)] for cell in _timed(self.cells, name)]
        return np.array(rows, np.float64).reshape(len(rows), self.world_size)

    def spread(self, name: str) -> Spread:
        """Of one of the ``_us`` fields, by name."""
        values: Samples = getattr(self, name)
        if not len(values):
            return Spread(float("nan"), float("nan"), float("nan"), 0)
        return Spread(median(values), float(values.min()), float(values.max()), len(values))

    def __repr__(self) -> str:
        kernel = f" ({self.kernel})" if self.kernel else ""
        beside = f" {self.compute_us:g} us" if self.compute_us else ""
        on = f"{self.world_size} {'GPU' if self.device == 'gpu' else 'CPU'} rank{'s' * (self.world_size > 1)}"
        us = f"{self.spread('device_us').median:.3g} us device" if len(self.device_us) else "no device time"
        verdict = f"WRONG: {self.wrong} of {self.checked}" if self.wrong else "correct" if self.checked else "not checked"
        what = f"{self.path}{kernel}, {self.phase}, {self.pattern}{beside}, {self.driver}, {human_bytes(self.nbytes)} of {self.dtype}"
        sets = f"{self.n_processes} process set{'s' * (self.n_processes > 1)}"
        return f"<Summary: {what}, {on}: {us}, {sets}, {verdict}>"

    def page(self) -> list[Block]:
        """What people see: the row of a bench's table, each rank's figures, and the words that these are read by."""
        from .._bench.page import summary_blocks

        return summary_blocks([self], Measurement(self.cells, None), verbose=True)

    def _repr_html_(self) -> str:
        return to_html(self.page())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: what was measured; of each time the figure, its range, the process sets' numbers, and each rank's median
        over process sets. The samples are in the file."""
        plain = {name: getattr(self, name) for name in (*_KEY, "split_error_us", "samples", "checked", "wrong")}
        plain["processes"], plain["correct"], plain["checked_in"] = list(self.processes), self.correct, list(self.checked_in)
        for name in ("algbw_gb_s", "busbw_gb_s"):
            plain[name] = None if math.isnan(value := getattr(self, name)) else value
        for name in SAMPLES:
            figure = self.spread(name)
            by_rank = [median(rank) for rank in self.by_rank(name).T]
            values = getattr(self, name).tolist()
            plain[name] = figure._asdict() | {"by_rank": by_rank, "by_process": values} if figure.processes else None
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
    right = _right(cells)
    times: dict[str, Any] = {
        name: np.array([over_ranks(getattr(cell, name)) for cell in _timed(cells, name)], np.float64) for name in SAMPLES
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
        cells=tuple(cells),
    )


def _right(cells: Sequence[Cell]) -> Sequence[Cell]:
    return () if any(cell.wrong for cell in cells) else cells


def _timed(cells: Sequence[Cell], name: str) -> list[Cell]:
    """Those that have a number of this name."""
    return [cell for cell in _right(cells) if over_ranks(getattr(cell, name)) is not None]


def over_ranks(samples: tuple[Samples, ...]) -> float | None:
    """The largest over ranks of the rank's median; None where a rank has none, or where nothing was timed."""
    if not samples or not all(len(rank) for rank in samples):
        return None
    return max(median(rank) for rank in samples)
