"""Kernels of a track -> calls, each with the way that it went. Called by check.py.

A call may be two kernels: the second is taken into the first. NCCL's kernel does not say who called it; where torch.distributed recorded
its own calls in a trace, an eager kernel that it did not record is pynccl's.
Invariant: a way names every path that the trace leaves possible.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._types import Path
from .events import GRAPH, RECORDED, Track
from .kernels import Kernel, Kind
from .table import NCCL_PATHS

_TORCH = frozenset({Path.TORCH_DISTRIBUTED})


@dataclass(frozen=True)
class Way:
    """How a call went, as far as its kernels say."""

    kind: Kind
    label: str
    paths: frozenset[Path]
    backends: tuple[str, ...] = ()
    kernel: str = ""
    source: str = ""
    """Where the kernel's name was read."""

    @property
    def called(self) -> bool:
        return self.kind in (Kind.ALL_REDUCE, Kind.FUSED, Kind.UNKNOWN)

    @property
    def short(self) -> str:
        """``fused``, ``custom``, ``ncclDevKernel_AllReduce``: the path where it is one, else what people see in the trace."""
        if self.kind is Kind.FUSED:
            return "fused"
        return str(next(iter(self.paths))) if len(self.paths) == 1 else self.label

    def __str__(self) -> str:
        """``custom (V2, one_shot_push)``, ``ncclDevKernel_AllReduce (pynccl or torch_distributed)``."""
        told = ", ".join(filter(None, ["/".join(b for b in self.backends if b != self.short), self.kernel]))
        if self.kind is Kind.FUSED or len(self.paths) != 1:
            told = ", ".join(filter(None, [_callers(self.paths), told]))
            name = f"fused: {self.label}" if self.kind is Kind.FUSED else self.label
            return f"{name} ({told})" if told else name
        return f"{self.short} ({told})" if told else self.short


def _callers(paths: frozenset[Path]) -> str:
    names = sorted({str(path).replace("_in_place", "").replace("_out_of_place", "") for path in paths})
    return " or ".join(names)


@dataclass(frozen=True, eq=False)
class Calls:
    """The calls of one track, in order; other collectives stand among them."""

    track: Track
    kernels: NDArray[np.void]
    way: NDArray[np.int32]
    """Of each call, its number in ``ways``."""
    ways: tuple[Way, ...]

    @property
    def called(self) -> NDArray[np.bool_]:
        """Which of them are all-reduces, fused or not."""
        return self._by_way([way.called for way in self.ways], bool)

    @property
    def gathers(self) -> NDArray[np.bool_]:
        return self._by_way([way.kind is Kind.ALL_GATHER for way in self.ways], bool)

    @property
    def replayed(self) -> NDArray[np.bool_]:
        """Which of them a graph launched."""
        return (self.kernels["flags"] & GRAPH) > 0

    def _by_way(self, values: list[bool], dtype: type) -> NDArray[np.bool_]:
        return np.array(values, dtype)[self.way] if len(self.ways) else np.zeros(0, dtype)


def calls_of(track: Track) -> Calls:
    """The calls of a track."""
    kernels = track.kernels
    parts = np.array([name.row.kind is Kind.PART for name in track.names], bool)
    fused = np.zeros(len(kernels), bool)
    if len(kernels) and parts.any():
        kernels, fused = _without_parts(track, kernels, parts[kernels["name"]])
    recorded = (kernels["flags"] & RECORDED) > 0
    tells = bool(recorded.any())  # torch records its own calls in this trace
    graph = (kernels["flags"] & GRAPH) > 0
    # What tells ways apart beside the name: 1 fused by a second kernel, 2 torch's own, 4 eager and not torch's own.
    variant = fused * 1 + recorded * 2 + (tells & ~graph & ~recorded) * 4
    keys, inverse = np.unique(kernels["name"].astype(np.int64) * 8 + variant, return_inverse=True)
    ways: list[Way] = []
    numbers: dict[Way, int] = {}
    of_key = []
    for key in keys.tolist():
        way = _way(track.names[key >> 3].row, key & 7)
        if way not in numbers:
            numbers[way] = len(ways)
            ways.append(way)
        of_key.append(numbers[way])
    way_of = np.array(of_key, np.int32)[inverse] if len(keys) else np.zeros(0, np.int32)
    return Calls(track, kernels, way_of, tuple(ways))


def _way(row: Kernel, variant: int) -> Way:
    kind, paths = row.kind, row.paths
    if variant & 1:
        kind, paths = Kind.FUSED, frozenset()
    elif paths == NCCL_PATHS and variant & 2:
        paths = _TORCH
    elif paths == NCCL_PATHS and variant & 4:
        paths = paths - _TORCH
    return Way(kind, row.label, paths, row.backends, row.kernel, row.source)


def _without_parts(
    track: Track, kernels: NDArray[np.void], part: NDArray[np.bool_]
) -> tuple[NDArray[np.void], NDArray[np.bool_]]:
    """Each part taken into the call before it; one that has none is left out, since its own call is not in the trace."""
    kernels = kernels.copy()
    fused = np.zeros(len(kernels), bool)
    calls = np.flatnonzero(~part & np.array([name.row.called for name in track.names])[kernels["name"]])
    for i in np.flatnonzero(part).tolist():
        before = int(np.searchsorted(calls, i)) - 1
        if before < 0:
            continue
        call = int(calls[before])
        kernels["dur"][call] = kernels["start"][i] + kernels["dur"][i] - kernels["start"][call]
        fused[call] |= track.row(i).fuses
    return kernels[~part], fused[~part]
