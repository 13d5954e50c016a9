"""Trace and Track: what of a profiler's file is kept, whoever wrote it. Made by chrome.py and nsys.py, read by calls.py and steps.py.

A track is one GPU of one process: a rank. Of its kernels only those of collectives are kept, as columns, 60 bytes each; of the rest their
number. Invariant: kernels are in the order in which they began; a time is in nanoseconds of the trace's own clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .kernels import Kernel, Kind, find_kernel

GRAPH, RECORDED = 1, 2
"""Flags of a kernel: launched by a graph; named by torch.distributed as its collective."""
KERNEL = np.dtype(
    [("start", "i8"), ("dur", "i8"), ("name", "i4"), ("correlation", "i8"), ("launch", "i8"), ("nbytes", "i8"), ("flags", "u1")]
)
"""launch: when the host launched it, -1 where that is not told. nbytes: of its tensor, 0 where that is not told."""

COLLECTIVES = {"allreduce": Kind.ALL_REDUCE, "_allgather_base": Kind.ALL_GATHER, "allgather": Kind.ALL_GATHER,
               "_reduce_scatter_base": Kind.REDUCE_SCATTER, "reduce_scatter": Kind.REDUCE_SCATTER}  # fmt: skip
"""What torch.distributed calls a collective in a trace: beside a kernel that does not say which it is."""


_LONGEST_NAME, _MOST_NAMES = 1 << 14, 1 << 14
"""Of a kernel, in characters, and of collectives: a file that holds more must not fill the memory."""
MOST_MARKS = 1 << 18


@dataclass(frozen=True)
class Mark:
    """A named range that somebody put into the trace."""

    name: str
    start: int
    end: int
    on_gpu: bool = False
    """From the first kernel that was launched in it to the end of the last one."""


@dataclass(frozen=True)
class Name:
    """A kernel's name, as it stands in the trace, and its row of the table."""

    text: str
    row: Kernel


@dataclass(frozen=True, eq=False)
class Track:
    """The collectives of one GPU of one process."""

    label: str
    """``rank 3``; ``GPU 3`` where the rank is not told."""
    rank: int | None
    told_by: str
    """What says its rank."""
    file: str
    kernels: NDArray[np.void]
    names: tuple[Name, ...]
    marks: tuple[Mark, ...] = ()
    all_kernels: int = 0
    """With those that are no collective."""
    graph_launches: int = 0
    stage: str = ""
    """What its file says that it holds: DECODE, EXTEND."""

    def row(self, i: int) -> Kernel:
        return self.names[int(self.kernels["name"][i])].row


@dataclass(frozen=True)
class Trace:
    """One file."""

    path: str
    written_by: str
    tracks: tuple[Track, ...]
    events: int
    all_kernels: int
    whole_graphs: int = 0
    """Graphs that are recorded as one piece, without their kernels."""
    damage: str = ""
    """Where it breaks, if it was used all the same."""
    notes: tuple[str, ...] = ()


@dataclass
class Columns:
    """The kernels of one track while they are read."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    durs: array[int] = field(default_factory=lambda: array("q"))
    names: array[int] = field(default_factory=lambda: array("l"))
    correlations: array[int] = field(default_factory=lambda: array("q"))
    nbytes: array[int] = field(default_factory=lambda: array("q"))
    flags: array[int] = field(default_factory=lambda: array("B"))
    all_kernels: int = 0

    def add(self, start: int, dur: int, name: int, correlation: int, nbytes: int, flags: int) -> None:
        self.starts.append(start)
        self.durs.append(dur)
        self.names.append(name)
        self.correlations.append(correlation)
        self.nbytes.append(nbytes)
        self.flags.append(flags)

    def kernels(self, launches: Launches) -> NDArray[np.void]:
        """In order of their start, each with its launch and whether a graph launched it."""
        found = np.zeros(len(self.starts), KERNEL)
        columns = (self.starts, self.durs, self.names, self.correlations, self.nbytes, self.flags)
        for column, values in zip(("start", "dur", "name", "correlation", "nbytes", "flags"), columns, strict=True):
            found[column] = np.asarray(values)
        found = found[np.argsort(found["start"], kind="stable")]
        found["launch"] = launches.times(found["correlation"])
        known = found["correlation"] > 0
        graphs = known & np.isin(found["correlation"], launches.graphs_sorted())
        # A plain launch starts one kernel; what shares its number with another was launched by a graph.
        ids, inverse, counts = np.unique(found["correlation"], return_inverse=True, return_counts=True)
        shared = known & (counts[inverse] > 1)
        found["flags"] |= np.where(graphs | shared, GRAPH, 0).astype("u1")
        return found


@dataclass
class Launches:
    """When a process launched what, by correlation number."""

    numbers: array[int] = field(default_factory=lambda: array("q"))
    starts: array[int] = field(default_factory=lambda: array("q"))
    graphs: array[int] = field(default_factory=lambda: array("q"))

    def add(self, number: int, start: int, graph: bool) -> None:
        self.numbers.append(number)
        self.starts.append(start)
        if graph:
            self.graphs.append(number)

    def graphs_sorted(self) -> NDArray[np.int64]:
        return np.unique(np.asarray(self.graphs, dtype=np.int64))

    def times(self, correlations: NDArray[np.int64]) -> NDArray[np.int64]:
        if not len(self.numbers):
            return np.full(len(correlations), -1, np.int64)
        numbers, starts = np.asarray(self.numbers, dtype=np.int64), np.asarray(self.starts, dtype=np.int64)
        order = np.argsort(numbers, kind="stable")
        numbers, starts = numbers[order], starts[order]
        at = np.minimum(np.searchsorted(numbers, correlations), len(numbers) - 1)
        return np.where((numbers[at] == correlations) & (correlations > 0), starts[at], -1)


class Names:
    """The names of a file's collectives, each once. One that does not say its collective has a name for each that torch says it is."""

    def __init__(self) -> None:
        self.all: list[Name] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, text: str, collective: str = "") -> int:
        """The number of a kernel's name; -1 where it is no collective, or where there are too many to be a trace's."""
        key = (text[:_LONGEST_NAME], collective[:_LONGEST_NAME])
        found = self._numbers.get(key)
        if found is not None:
            return found
        row = find_kernel(key[0])
        if row is None or len(self.all) >= _MOST_NAMES:
            return -1
        if row.kind is Kind.UNKNOWN and collective:
            row = replace(row, kind=COLLECTIVES.get(collective, Kind.OTHER))
        self._numbers[key] = len(self.all)
        self.all.append(Name(key[0], row))
        return len(self.all) - 1


def joined(texts: Iterable[str]) -> str:
    """``a, b and c``."""
    found = list(texts)
    return " and ".join(filter(None, [", ".join(found[:-1]), *found[-1:]]))
