"""How long calls took, by way: measured in this trace, on its own clock. Called by check.py.

A kernel's time holds the waiting for the last rank, and a profiler makes each a little longer.
Invariant: every number is of this trace's kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .calls import Calls
from .kernels import Kind


@dataclass(frozen=True)
class WayTime:
    """One way, in one phase, over all ranks that were read."""

    way: str
    kind: str
    phase: str
    calls: int
    sum_us: float
    median_us: float
    least_us: float
    most_us: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dict(vars(self))


def times_of(tracks: Sequence[Calls]) -> tuple[WayTime, ...]:
    """All-reduces first, the longest in sum first."""
    durations: dict[tuple[str, str, str], list[np.ndarray[Any, np.dtype[np.int64]]]] = {}
    for calls in tracks:
        replayed = calls.replayed
        for number, way in enumerate(calls.ways):
            for phase, chosen in (("replayed", replayed), ("eager", ~replayed)):
                found = calls.kernels["dur"][(calls.way == number) & chosen]
                if len(found):
                    durations.setdefault((str(way), str(way.kind), phase), []).append(found)
    rows = []
    for (way_name, kind, phase), parts in durations.items():
        us = np.concatenate(parts) / 1000
        rows.append(
            WayTime(
                way_name, kind, phase, len(us), float(us.sum()), float(np.median(us)), float(us.min()), float(us.max())
            )
        )  # fmt: skip
    called = (str(Kind.ALL_REDUCE), str(Kind.FUSED), str(Kind.UNKNOWN))
    return tuple(sorted(rows, key=lambda row: (row.kind not in called, -row.sum_us)))
