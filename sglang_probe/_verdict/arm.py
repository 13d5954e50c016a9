"""Arm: what was measured under one condition, one tuple of iterations for each fresh process. Made by `arm` and by experiments.

Invariant: an Arm that exists has at least one process, each with at least one iteration, and every figure is finite and above 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._shown import Shown
from .._types import InputError

if TYPE_CHECKING:
    from .._measure.measurement import Provenance

UTC = "UTC"
"""The clock of an order in microseconds since 1970."""
_LEAST, _MOST = 1e-100, 1e100
"""Beyond them a ratio may be more than a float can hold; no unit has such figures."""


@dataclass(frozen=True, repr=False)
class Arm(Shown):
    """One of the two sides of a verdict. The process is what is replicated: its iterations make one observation."""

    label: str
    """What people call it: "a", "before", "NCCL 2.28.9"."""
    processes: tuple[tuple[float, ...], ...]
    """Of each fresh process its iterations, in the order measured, in `unit`. A figure of which no more is known is one process."""
    unit: str = ""
    """"us", "ms", "s", "tok/s", "GB/s", ...; "" where nobody said."""
    origin: str = "given"
    """Where the figures come from: "given", or a file and what of it."""
    order: tuple[int, ...] = ()
    """When each process ran, among those of both arms: later is larger; () where that is not known."""
    blocks: tuple[int, ...] = ()
    """Number of the block that each process was run in, where the order within a block was drawn at random; () where there are none."""
    clock: str = ""
    """`order` of two arms can be compared where this is the same."""
    experiment: str = ""
    """`blocks` of two arms are the same blocks where this is the same."""
    provenance: Provenance | None = None
    """On what it was measured, where a Measurement says it."""
    work: str = ""
    """What was done in that time, where a Measurement says it: arms of other work are no two ways to do one thing."""

    def __post_init__(self) -> None:
        processes = tuple(tuple(map(float, process)) for process in self.processes)
        object.__setattr__(self, "processes", processes)
        if not processes:
            raise InputError(
                self.label or "arm", "no figures", "an arm needs at least one run; four of each arm can show something"
            )
        for number, process in enumerate(processes):
            if not process:
                raise InputError(f"{self.label}[{number}]", "no figures", "this process has no iterations: leave it out")
            check(process, f"{self.label}[{number}]", one=len(process) == 1)
        for name in ("order", "blocks"):
            given = tuple(map(int, getattr(self, name)))
            object.__setattr__(self, name, given)
            if given and len(given) != len(processes):
                raise InputError(
                    f"{self.label}.{name}", f"{len(given)} numbers", f"give one for each of {len(processes)} processes"
                )

    def __len__(self) -> int:
        return len(self.processes)

    def __repr__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"<Arm {self.label}: {len(self)} process{'es' * (len(self) != 1)}{unit}, {self.origin}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain: dict[str, Any] = {"label": self.label, "unit": self.unit, "origin": self.origin}
        plain["processes"] = [list(process) for process in self.processes]
        return plain | {
            "order": list(self.order),
            "blocks": list(self.blocks),
            "clock": self.clock,
            "experiment": self.experiment,
            "work": self.work,
            "provenance": None if self.provenance is None else self.provenance.to_dict(),
        }


def arm(source: Any, *, label: str, unit: str | None = None, cell: Any = None, column: str | None = None) -> Arm:
    """An arm of what people have.

    Parameters
    ----------
    source
        Numbers (each a process of its own), lists of numbers (each a process), an array of one or two dimensions (rows are processes), a
        text such as ``"89.2, 94.1 tok/s"``, the path of a CSV file or of a Measurement, a Measurement, or an Arm, which comes back.
    label
        What it is called from now on; an Arm keeps its own.
    unit
        Of the figures, where they bring none.
    cell
        Of a Measurement, words that only one of what it measured has: ``"custom captured 16KiB"``.
    column
        Of a Measurement a field of times, by default the first of device_us, elapsed_us and host_us that there is; of a CSV file a column.

    Raises InputError, which names the file, the line and what is wrong.
    """
    if isinstance(source, Arm):
        return source
    from .reading import read

    return read(source, label, unit, cell, column)


def check(values: Iterable[float], name: str, one: bool = False) -> None:
    """Raises InputError at the first figure that no ratio can be made of."""
    for place, value in enumerate(values):
        if not (value > 0 and math.isfinite(value)):
            what = "is not a number" if math.isnan(value) else "is not finite" if math.isinf(value) else "is not above 0"
            remedy = f"{what}: figures are compared by ratio; leave out what was not measured, and say so"
            raise InputError(name if one else f"{name}[{place}]", value, remedy)
        if not _LEAST <= value <= _MOST:
            raise InputError(
                name if one else f"{name}[{place}]", value, "no measured figure is so small or so large: give another unit"
            )
