"""Table: costs of one machine from one source, as series over sizes; Figure: one cost with all that it rests on. Made by the readers.

Invariant: a figure never travels without its origin word, and a series holds no size whose result was wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, get_args

from .._types import FrozenMap
from .estimate import Estimate, Point
from .machine import Machine

Origin = Literal["measured", "measured elsewhere", "shipped", "nccl-tests", "published"]
ORIGINS: Mapping[str, str] = FrozenMap(
    {
        "measured": "on this machine, by this code",
        "measured elsewhere": "by this code, on the machine that is named, which is not this one or cannot be told to be",
        "shipped": "on a named machine, by this code; it comes with the package",
        "nccl-tests": "printed by all_reduce_perf; its machine is what it says of it",
        "published": "by others, from a cited source",
    }
)
assert tuple(ORIGINS) == get_args(Origin)
Quantity = Literal["device_us", "host_us", "elapsed_us"]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)


@dataclass(frozen=True)
class Series:
    """One thing measured in one way, over sizes."""

    path: str
    kernel: str
    phase: str
    pattern: str
    compute_us: float
    driver: str
    dtype: str
    world_size: int
    release: str = ""
    """SGLang's, whose dispatch and kernels these are; "" where it plays no part."""
    points: Mapping[Quantity, tuple[Point, ...]] = field(default_factory=lambda: FrozenMap({}))
    """By quantity, in order of their sizes."""
    wrong: frozenset[int] = frozenset()
    """Sizes whose results were wrong: they are in none of the points."""

    def __str__(self) -> str:
        return ", ".join(filter(None, [f"{self.path}{f' ({self.kernel})' if self.kernel else ''}", self.phase, self.how]))

    @property
    def how(self) -> str:
        """``interleaved with 2 us, native``."""
        beside = f"interleaved with {self.compute_us:g} us" if self.pattern == "interleaved" else self.pattern.replace("_", " ")
        return f"{beside}, {self.driver}"


@dataclass(frozen=True)
class Table:
    """What one file holds. Its series are read when they are first asked for: most tables are of another machine."""

    origin: Origin
    machine: Machine
    name: str
    """Short: the file, or the repository that is cited."""
    source: str
    """The file, or the whole citation."""
    stamp: str = ""
    """Release of the code, date, NCCL, environment: what else is to be told beside its figures."""
    notes: tuple[str, ...] = ()
    lacks: str = ""
    """What its file does not tell, so that it is of no use, and what to do about that; "" where it tells enough."""
    env: Mapping[str, str] | None = None
    """The environment of its ranks; None where it is not told."""
    _series: Callable[[], tuple[Series, ...]] = field(default=tuple, repr=False, compare=False)

    @cached_property
    def series(self) -> tuple[Series, ...]:
        return self._series()

    def __str__(self) -> str:
        return f"{self.origin}: {self.machine}, {self.name}"

    def of(self, world_size: int) -> str:
        """The same, of a group's own GPUs."""
        machine = self.machine if self.machine.device == "host" else self.machine.part(world_size)
        return str(replace(self, machine=machine))


@dataclass(frozen=True)
class Figure:
    """One cost: microseconds a call."""

    estimate: Estimate
    table: Table
    series: Series
    between: tuple[int, ...] = ()
    """The two measured sizes that it lies between; empty where its own size was measured."""
    notes: tuple[str, ...] = ()

    @property
    def us(self) -> float:
        return self.estimate.us

    @property
    def origin(self) -> Origin:
        return self.table.origin

    @property
    def machine(self) -> Machine:
        """The ranks' own part of the table's."""
        machine = self.table.machine
        return machine.part(self.series.world_size) if machine.device == "gpu" else machine

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        e, s = self.estimate, self.series
        return {
            "us": e.us,
            "low_us": e.low_us,
            "high_us": e.high_us,
            "processes": e.processes,
            "origin": self.origin,
            "machine": str(self.machine),
            "source": self.table.source,
            "stamp": self.table.stamp,
            "between_bytes": list(self.between),
            "phase": s.phase,
            "pattern": s.pattern,
            "compute_us": s.compute_us,
            "driver": s.driver,
            "kernel": s.kernel,
            "sglang": s.release,
            "notes": list(self.notes),
        }
