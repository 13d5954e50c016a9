"""Costs: tables in the order in which they are asked, and what a call costs by the first that fits. Called by step, bands and people.

What must be the same: the kind of device, GPU, link, nodes, world size, path, kernel, phase (captured or eager), dtype. What may differ is
told with the figure: the pattern (interleaved comes first, as a step is), the driver (SGLang's own coordinator first), the release.
Invariant: no figure is made up: where nothing fits there is none, and the reason names what came nearest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from .._decision import Decision
from .._facts import check_dtype
from .._measure.measurement import Measurement
from .._measure.nccl_tests import NcclTests
from .._route import context_bits
from .._show.sizes import human_bytes
from .._types import FrozenMap, InputError, Path
from .estimate import at_size
from .files import measured_tables, read_tables, shipped_tables
from .machine import Target, doubt, mismatch
from .nccl import DRIVER, table_of
from .table import QUANTITIES, Figure, Quantity, Series, Table

NOT_MEASURED = "not measured"
CostFile: TypeAlias = "str | os.PathLike[str] | Measurement | NcclTests"
CostFiles: TypeAlias = "Costs | CostFile | Sequence[CostFile] | None"
"""What `load_costs` takes."""
_REMEDY = "give a file, a Measurement, a list of these, 'shipped' or 'none'"
_CAPTURING = context_bits("stream_capturing")
_NO_CALL = (Path.NONE, Path.RAISES)


@dataclass(frozen=True)
class Wanted:
    """One call whose cost is asked for."""

    target: Target
    path: str
    kernel: str
    phase: str
    dtype: str
    nbytes: int
    release: str = ""


@dataclass(frozen=True)
class CallCost:
    """What one call costs, by quantity; what is not there has its reason in `missing`."""

    figures: Mapping[Quantity, Figure] = field(default_factory=lambda: FrozenMap({}))
    missing: Mapping[Quantity, str] = field(default_factory=lambda: FrozenMap({}))

    @property
    def device(self) -> Figure | None:
        return self.figures.get("device_us")

    @property
    def host(self) -> Figure | None:
        return self.figures.get("host_us")

    @property
    def elapsed(self) -> Figure | None:
        return self.figures.get("elapsed_us")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            **{name: self.figures[name].to_dict() if name in self.figures else None for name in QUANTITIES},
            "not_measured": dict(self.missing),
        }


@dataclass(frozen=True)
class Costs:
    """Tables, the first that fits a call wins. `load_costs` makes it."""

    tables: tuple[Table, ...] = ()

    def call(self, wanted: Wanted) -> CallCost:
        """Every quantity by its own first fit."""
        figures: dict[Quantity, Figure] = {}
        missing: dict[Quantity, str] = {}
        for quantity in QUANTITIES:
            found = self.figure(wanted, quantity)
            if isinstance(found, Figure):
                figures[quantity] = found
            else:
                missing[quantity] = found
        return CallCost(FrozenMap(figures), FrozenMap(missing))

    def sizes(self, wanted: Wanted, quantity: Quantity = "device_us") -> tuple[int, ...]:
        """All measured sizes that `call` would use for such a call, whatever its own size; smallest first."""
        found = {
            point.nbytes
            for table in self.tables
            if not mismatch(table.machine, wanted.target)
            for series in _fitting(table, wanted)
            for point in series.points.get(quantity, ())
        }
        return tuple(sorted(found))

    def figure(self, wanted: Wanted, quantity: Quantity) -> Figure | str:
        """A figure, or why there is none: the reason of the table that came nearest."""
        nearest, why = -1, f"{NOT_MEASURED}: no table of costs is used"
        for table in self.tables:
            found = _in_table(table, wanted, quantity)
            if isinstance(found, Figure):
                return found
            if found[0] > nearest:
                nearest, why = found
        if nearest == 0:
            there = ", ".join(dict.fromkeys(str(table.machine) for table in self.tables))
            lacks = "".join(f"; {table.name}: {table.lacks}" for table in self.tables if table.lacks)
            why = f"{NOT_MEASURED}: no table is of {wanted.target}; there are {there}{lacks}"
        return why


def load_costs(costs: CostFiles = None) -> Costs:
    """What ``costs=`` and ``--costs`` take: None or "shipped": the tables that come with the package; "none": none at all; a file, or
    what was read of one (a Measurement, a NcclTests); several of these and "shipped", in the order in which they are asked; a Costs as
    it is.

    Raises InputError for what is none of these, MeasurementError for a file that cannot be used.
    """
    if isinstance(costs, Costs):
        return costs
    names: object = [costs] if costs is None or isinstance(costs, str | os.PathLike | Measurement | NcclTests) else costs
    if not isinstance(names, Iterable) or isinstance(names, bytes):
        raise InputError("costs", costs, _REMEDY)
    chosen = list(names)
    if len(chosen) > 1 and any(isinstance(name, str) and name == "none" for name in chosen):
        raise InputError("costs", "none", "give it alone: it stands for no costs at all")
    return Costs(tuple(table for name in chosen for table in _tables(name)))


def _tables(name: object) -> tuple[Table, ...]:
    if name is None or name == "shipped":
        return shipped_tables()
    if name == "none":
        return ()
    if isinstance(name, Measurement):
        return measured_tables(name)
    if isinstance(name, NcclTests):
        return (table_of(name),)
    if not isinstance(name, str | os.PathLike) or not os.fspath(name):
        raise InputError("costs", name, _REMEDY)
    return read_tables(name)


def wanted_of(decision: Decision, target: Target, phase: str, dtype: str, nbytes: int) -> Wanted | None:
    """The call behind a decision; None where no call is made: one rank, or SGLang raises."""
    if decision.path in _NO_CALL:
        return None
    return Wanted(target, str(decision.path), decision.kernel, phase, check_dtype(dtype), nbytes, decision.sglang)


def phase_of(context: str | Iterable[str]) -> str:
    """Captured where the stream captures; else the host launches it."""
    return "captured" if context_bits(context) & _CAPTURING else "eager"


# --------------------------------------------------------------------------------------------------------------------- one table

_Miss = tuple[int, str]
"""How far a table fits, and why not further: the furthest one's reason is told."""


def _in_table(table: Table, wanted: Wanted, quantity: Quantity) -> Figure | _Miss:
    if reason := mismatch(table.machine, wanted.target):
        return 0, f"{NOT_MEASURED}: {reason}"
    level, rest = 1, list(table.series)
    for text, is_same in _steps(wanted):
        kept = [series for series in rest if is_same(series)]
        if not kept:
            looked_at = str(table) if level == 1 else table.of(wanted.target.world_size)
            return level, f"{NOT_MEASURED}: {text} ({looked_at})"
        level, rest = level + 1, kept
    timed = [series for series in rest if quantity in series.points]
    if not timed:
        return level, _untimed(table, wanted, quantity, rest)
    for series in sorted(timed, key=lambda one: _preference(one, wanted)):
        between = at_size(series.points[quantity], wanted.nbytes)
        if between is not None and not _has_wrong(series, wanted.nbytes, between.sizes):
            return Figure(between.estimate, table, series, between.sizes, _told(table, series, wanted))
    return level + 1, _outside(table, wanted, quantity, timed)


def _steps(wanted: Wanted) -> Iterator[tuple[str, Any]]:
    """What a series must share, in order, and what is said where none does."""
    w = wanted
    kernel = f"{w.path}{f' with kernel {w.kernel}' if w.kernel else ''}"
    yield f"the nearest table has no group of {w.target.world_size} ranks", lambda s: s.world_size == w.target.world_size
    yield f"the nearest table has no {w.path}", lambda s: s.path == w.path
    yield f"the nearest table has no {kernel}", lambda s: s.kernel == w.kernel
    yield f"the nearest table has no {w.phase} {kernel}", lambda s: s.phase == w.phase
    yield f"the nearest table has no {w.phase} {kernel} of {w.dtype}", lambda s: s.dtype == w.dtype


def _fitting(table: Table, wanted: Wanted) -> list[Series]:
    rest = list(table.series)
    for _, is_same in _steps(wanted):
        rest = [series for series in rest if is_same(series)]
    return rest


def _has_wrong(series: Series, nbytes: int, sizes: tuple[int, ...]) -> bool:
    """A size that was WRONG, or a line drawn over one."""
    return nbytes in series.wrong or bool(sizes) and any(sizes[0] < size < sizes[1] for size in series.wrong)


def _preference(series: Series, wanted: Wanted) -> tuple[bool, bool, bool, bool, float]:
    """Smallest first: a step's pattern, a kernel of the very release, SGLang's own driver, the release, the longest kernel in between."""
    other = series.release != wanted.release
    return series.pattern != "interleaved", bool(series.kernel) and other, series.driver != "engine", other, -series.compute_us


def _told(table: Table, series: Series, wanted: Wanted) -> tuple[str, ...]:
    """What differs from the call that was asked about, and what is known of the table."""
    notes = [doubt(table.machine, wanted.target)]
    if series.kernel and series.release and series.release != wanted.release:
        notes.append(f"{series.kernel} as of SGLang {series.release}")
    return tuple(filter(None, (*notes, *table.notes)))


def _untimed(table: Table, wanted: Wanted, quantity: Quantity, rest: list[Series]) -> str:
    there = table.of(wanted.target.world_size)
    if all(series.wrong and not series.points for series in rest):
        return f"{NOT_MEASURED}: results of {wanted.path} are WRONG there, and none is used ({there})"
    if any(wanted.nbytes in series.wrong for series in rest):
        return _wrong(there)
    only = {name for series in rest for name in series.points}
    if all(series.driver == DRIVER for series in rest):
        gives = " and ".join(_QUANTITY_TEXTS[name] for name in QUANTITIES if name in only)
        return f"{NOT_MEASURED}: nccl-tests gives the {gives}, not {_QUANTITY_TEXTS[quantity]} ({there})"
    return f"{NOT_MEASURED}: the nearest table has no {_QUANTITY_TEXTS[quantity]} ({there})"


def _wrong(there: str) -> str:
    return f"{NOT_MEASURED}: results of this size, or of one beside it, are WRONG there, and none is used ({there})"


def _outside(table: Table, wanted: Wanted, quantity: Quantity, timed: list[Series]) -> str:
    covered = any(at_size(series.points[quantity], wanted.nbytes) for series in timed)
    there = table.of(wanted.target.world_size)
    if covered or any(wanted.nbytes in series.wrong for series in timed):
        return _wrong(there)
    sizes = [point.nbytes for series in timed for point in series.points[quantity]]
    span = (
        f"{human_bytes(min(sizes))} to {human_bytes(max(sizes))}" if min(sizes) < max(sizes) else f"{human_bytes(sizes[0])} alone"
    )
    return f"{NOT_MEASURED}: {human_bytes(wanted.nbytes)} is outside of what was measured, {span} ({there})"


_QUANTITY_TEXTS: Mapping[Quantity, str] = FrozenMap(
    {"device_us": "time on the device", "host_us": "time of the host", "elapsed_us": "time from the first call to the end"}
)


def at_bytes(wanted: Wanted, nbytes: int) -> Wanted:
    """The same call of another size."""
    return replace(wanted, nbytes=nbytes)
