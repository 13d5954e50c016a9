"""What a change of path can explain at most: calls x the difference of two ways, with its interval. Called by explain.py.

The time of a call is what it adds from the first call to the end, where both ways were measured so; else its time on the device where it is
captured, and the longer of the host's and the device's where it is eager: eager calls are bound by the host. Calls of one size rest on
one figure whose error they share, so the ends of a difference are those of its figures, added the far way round: errors are not taken to
cancel. A figure without an interval (one process, or a source that gives no spread) stands for a factor of two either way, and is told so:
that is how far the same captured call has been from itself on one machine, back to back and between two kernels.
Invariant: a figure of another machine is an illustration; a sum that lacks one of its calls is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from .._costs.costs import NOT_MEASURED, CallCost, Costs, Wanted, wanted_of
from .._costs.environment import differences
from .._costs.estimate import _quantile as quantile
from .._costs.files import shipped_tables
from .._costs.machine import Machine, Target, mismatch, short_name, target_of
from .._costs.table import Figure, Quantity, Table
from .._server.hardware import GPUS
from .._show.sizes import human_bytes
from .._types import Path
from .sides import Pair, Way
from .types import Bound, Kind, Number, Range

FACTOR = 2.0
_LEAST = 4
"""Processes below which a spread says little."""
ASSUMED = f"no interval: a factor of {FACTOR:g} is assumed"
FUSED = "fused, or not made"
QUANTITIES = ("first call to end", "device; where eager, the longer of host and device")
_ORDER: tuple[Quantity, ...] = ("elapsed_us", "device_us", "host_us")
_OURS = ("measured", "measured elsewhere", "shipped")


@dataclass(frozen=True)
class _Time:
    """Microseconds of one call by one way, and the figures that they are from."""

    us: float
    low: float
    high: float
    assumed: bool = False
    figures: tuple[tuple[str, Figure], ...] = ()
    """Each with the words for what it is of."""


_NOTHING = _Time(0.0, 0.0, 0.0)
_Call = Callable[[Wanted], CallCost]


class Pricer:
    """Prices pairs of calls by tables; remembers which figures it used, and what is missing."""

    def __init__(self, costs: Costs, pattern: str | None) -> None:
        tables = costs.tables if pattern is None else tuple(_of_pattern(table, pattern) for table in costs.tables)
        self._call: _Call = lru_cache(maxsize=None)(Costs(tables).call)
        others = [table for table in (*costs.tables, *(_shipped() if costs.tables else ())) if table.origin in _OURS]
        self._shown = [table if pattern is None else _of_pattern(table, pattern) for table in others if table.machine.gpus]
        self.figures: dict[tuple[object, ...], tuple[str, Figure]] = {}
        self.shown: dict[tuple[object, ...], tuple[str, Figure]] = {}
        """Those of illustrations."""
        self.missing: dict[str, None] = {}

    # ---------------------------------------------------------------------------------------------------------------- differences

    def difference(self, kind: Kind, what: str, pairs: Sequence[Pair]) -> Bound:
        """After less before, over all pairs that change."""
        total, changed = _Sum(), [pair for pair in pairs if pair.changes]
        self._add(total, changed, self._call, None)
        return self._kept(total.bound(kind, what, *(_texts(changed, side) for side in ("before", "after"))), total)

    def illustrations(self, bound: Bound, pairs: Sequence[Pair]) -> list[Bound]:
        """The same calls on other machines that were measured by this code; one a machine."""
        found: dict[str, Bound] = {}
        changed = [pair for pair in pairs if pair.changes]
        for table in self._shown:
            target = _target(table.machine)
            if target is None or not changed or any(not mismatch(table.machine, target_of(way.group)) for way in _ways(changed)):
                continue
            total = _Sum()
            self._add(total, changed, Costs((table,)).call, target)
            one = replace(total.bound(bound.kind, bound.what, bound.before, bound.after), illustration=True)
            if one.ms is not None and one.machine not in found:
                found[one.machine] = one
                self.shown |= {_identity(figure): (text, figure) for text, figure in total.figures}
        return list(found.values())

    def ceiling(self, what: str, ways: Sequence[tuple[int, Way]], kind: Kind = "ceiling") -> Bound:
        """All all-reduces of a step, whatever way they take: no change of path can explain more."""
        total = _Sum()
        for count, way in ways:
            if way.decision.path not in (Path.NONE, Path.RAISES):
                elapsed, own = self._times(way, self._call, None)
                total.add(count, _NOTHING, elapsed or own, self._why(way, self._call, None))
        return self._kept(total.bound(kind, what, "", " + ".join(dict.fromkeys(str(way) for _, way in ways))), total)

    def _add(self, total: _Sum, pairs: Sequence[Pair], call: _Call, target: Target | None) -> None:
        for pair in pairs:
            if pair.before is None or pair.after is None:
                total.add(pair.count, None, None, f"{NOT_MEASURED}: what a fused kernel costs, or a call that is not made")
                continue
            ways = (pair.before, pair.after)
            before, after = (self._times(way, call, target) for way in ways)
            which = next((i for i in range(2) if before[i] and after[i]), None)
            if which is not None:
                total.add(pair.count, before[which], after[which], "")
                total.quantities[QUANTITIES[which]] = None
                continue
            lacking = [way for way, times in zip(ways, (before, after), strict=True) if not any(times)]
            total.add(pair.count, None, None, self._why((lacking or [pair.after])[0], call, target))

    def _kept(self, bound: Bound, total: _Sum) -> Bound:
        for text, figure in total.figures:
            self.figures.setdefault(_identity(figure), (text, figure))
        if bound.why:
            self.missing[bound.why] = None
        return bound

    # ------------------------------------------------------------------------------------------------------------------- one call

    def _times(self, way: Way, call: _Call, target: Target | None) -> tuple[_Time | None, _Time | None]:
        """From the first call to the end; and by its own phase."""
        wanted = _wanted(way, target)
        if wanted is None:
            nothing = _NOTHING if way.decision.path is Path.NONE else None
            return nothing, nothing
        cost = call(wanted)
        elapsed, device, host = (
            None if figure is None else _of_figure(figure, f"{way}, {human_bytes(wanted.nbytes)}: {text}")
            for figure, text in ((cost.elapsed, "first call to end"), (cost.device, "device"), (cost.host, "host"))
        )
        if way.phase == "captured":
            return elapsed, device
        return elapsed, None if host is None or device is None else _longer(host, device)

    def _why(self, way: Way, call: _Call, target: Target | None) -> str:
        wanted = _wanted(way, target)
        if wanted is None:
            return f"{NOT_MEASURED}: {way}, and no call is made"
        missing = call(wanted).missing
        wished: tuple[Quantity, ...] = ("device_us",) if way.phase == "captured" else ("device_us", "host_us")
        why = next((missing[name] for name in wished if name in missing), NOT_MEASURED)
        return why.replace(NOT_MEASURED, f"{NOT_MEASURED} on {wanted.target}", 1)

    def spread(self, way: Way) -> tuple[float, str] | None:
        """How much fresh processes of such a call differ, by standard deviation over mean, and whose: of this machine, else of another."""
        found = [self._own_spread(way, self._call, None)]
        for table in self._shown:
            target = _target(table.machine)
            found += [] if target is None else [self._own_spread(way, Costs((table,)).call, target)]
        return next((one for one in found if one is not None), None)

    def _own_spread(self, way: Way, call: _Call, target: Target | None) -> tuple[float, str] | None:
        """Of the nearest size that was measured."""
        wanted = _wanted(way, target)
        if wanted is None:
            return None
        for name in _ORDER:
            figure = call(wanted).figures.get(name)
            if figure is not None and figure.between:
                figure = call(replace(wanted, nbytes=figure.between[0])).figures.get(name)
            if figure is None:
                continue
            e = figure.estimate
            if e.low_us is None or e.high_us is None or e.processes < _LEAST or not e.us > 0:
                continue
            deviation = (e.high_us - e.us) / quantile(e.processes - 1) * math.sqrt(e.processes)
            return deviation / e.us, f"{way} on {figure.machine} ({figure.origin})"
        return None

    # --------------------------------------------------------------------------------------------------------------- what was used

    def numbers(self) -> list[Number]:
        """Each figure that was used, with its origin; those of illustrations last."""
        found = []
        shown = [(f"{text} (illustration)", figure) for text, figure in self.shown.values()]
        for text, figure in (*self.figures.values(), *shown):
            e, stamp = figure.estimate, f" ({figure.table.stamp})" if figure.table.stamp else ""
            between = f"between {human_bytes(figure.between[0])} and {human_bytes(figure.between[1])}" if figure.between else ""
            behind = f"{e.processes} processes" if e.low_us is not None and e.processes else ""
            note = ", ".join(filter(None, [figure.series.how, behind, between, "" if e.low_us is not None else ASSUMED]))
            source = f"{figure.machine}, {figure.table.source}{stamp}"
            found.append(Number(text, Range(e.us, e.low_us, e.high_us), "us a call", figure.origin, source, note))
        return found

    def notes(self) -> tuple[str, ...]:
        """What must be known with these figures."""
        return tuple(dict.fromkeys(note for _, figure in self.figures.values() for note in figure.notes))

    def warnings(self, env: Mapping[str, str]) -> tuple[str, ...]:
        """NCCL's variables that were others where the figures were taken."""
        return tuple(dict.fromkeys(text for _, figure in self.figures.values() for text in differences(figure, env)))


# ------------------------------------------------------------------------------------------------------------------------------- sums


class _Sum:
    """Differences of calls, added."""

    def __init__(self) -> None:
        self.us = self.low = self.high = 0.0
        self.calls = self.without = 0
        self.assumed = False
        self.why = ""
        self.figures: list[tuple[str, Figure]] = []
        self.quantities: dict[str, None] = {}

    def add(self, count: int, before: _Time | None, after: _Time | None, why: str) -> None:
        self.calls += count
        if before is None or after is None:
            self.without += count
            self.why = self.why or why
            return
        self.figures += [*before.figures, *after.figures]
        if before.figures and [f for _, f in before.figures] == [f for _, f in after.figures]:
            return  # one figure for both ways: the tables cannot tell them apart
        self.us += count * (after.us - before.us)
        self.low += count * (after.low - before.high)
        self.high += count * (after.high - before.low)
        self.assumed |= before.assumed or after.assumed

    def bound(self, kind: Kind, what: str, before: str, after: str) -> Bound:
        found = None if self.without else Range(self.us / 1e3, self.low / 1e3, self.high / 1e3)
        some = f"{self.without} of {self.calls} calls: " if self.without < self.calls else ""
        figures = [figure for _, figure in self.figures] if found else []
        return Bound(
            kind=kind,
            what=what,
            calls=self.calls,
            before=before,
            after=after,
            ms=found,
            quantity=" and ".join(self.quantities),
            origins=tuple(dict.fromkeys(figure.origin for figure in figures)),
            machine=", ".join(dict.fromkeys(str(figure.machine) for figure in figures)),
            why=f"{some}{self.why}" if found is None else "",
            assumed=ASSUMED if found and self.assumed else "",
        )


def _of_figure(figure: Figure, text: str) -> _Time:
    low, high = figure.estimate.low_us, figure.estimate.high_us
    if low is None or high is None:
        return _Time(figure.us, figure.us / FACTOR, figure.us * FACTOR, True, ((text, figure),))
    return _Time(figure.us, low, high, False, ((text, figure),))


def _longer(host: _Time, device: _Time) -> _Time:
    longer = host if host.us >= device.us else device
    ends = max(host.low, device.low), max(host.high, device.high)
    return _Time(longer.us, *ends, host.assumed or device.assumed, (*host.figures, *device.figures))


def _wanted(way: Way, target: Target | None) -> Wanted | None:
    call = way.item.call
    return wanted_of(way.decision, target or target_of(way.group), way.phase, call.dtype, call.nbytes)


def _ways(pairs: Iterable[Pair]) -> list[Way]:
    return [way for pair in pairs for way in (pair.before, pair.after) if way is not None]


def _texts(pairs: Sequence[Pair], side: str) -> str:
    ways = [getattr(pair, side) for pair in pairs]
    return " + ".join(dict.fromkeys(FUSED if way is None else str(way) for way in ways))


def _of_pattern(table: Table, pattern: str) -> Table:
    return replace(table, _series=lambda: tuple(one for one in table.series if one.pattern == pattern))


def _shipped() -> tuple[Table, ...]:
    return tuple(table for table in shipped_tables() if table.origin == "shipped")


def _target(machine: Machine) -> Target | None:
    """All GPUs of a table as one group; None where it does not tell enough."""
    short = short_name(machine.gpus[0])
    if not short or len(set(machine.gpus)) != 1 or machine.link not in ("nvlink", "pcie"):
        return None
    gpu = GPUS[short]
    return Target(gpu.device, gpu.arch, short, machine.link, len(machine.gpus), machine.nodes, machine.gpus[0])


def _identity(figure: Figure) -> tuple[object, ...]:
    return (figure.table.source, str(figure.series), figure.series.dtype, figure.between, figure.estimate)
