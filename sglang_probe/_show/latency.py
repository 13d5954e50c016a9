"""The picture of latency against size: a line a path and kernel, both clocks, eager and captured, with intervals over process sets.

Called by Measurement.picture and in notebooks. matplotlib is loaded where it is used (the extra ``notebook`` brings it).
Invariant: every number is a process set's or made of process sets, never of pooled samples; what cannot be drawn is told.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from .._report.theme import Theme, themed
from .._types import InputError
from . import sized
from .sized import CLOCKS, PHASES, Clock, Look
from .sizes import human_bytes

if TYPE_CHECKING:
    from .._measure.measurement import Measurement
    from .._measure.summary import Summary

Interval = Literal["range", "t"]
_INTERVALS = {
    "range": "marks: the median over process sets; whiskers: the least and the most of them",
    "t": "marks: the mean over process sets; whiskers: its 95 % t interval, none of a single set",
}
_BYTES = "bytes of one all-reduce, on each rank"
_AXES = {
    "device_us": "device, us a call",
    "host_us": "host, us a call",
    "elapsed_us": "elapsed on the host's clock, us a call",
}


@dataclass(frozen=True)
class Point:
    """One size of a line, in microseconds a call."""

    nbytes: int
    us: float
    low_us: float | None
    high_us: float | None


def latency_figure(
    measurement: Measurement,
    *,
    targets: str | Iterable[str] | None = None,
    pattern: Literal["back_to_back", "interleaved"] = "back_to_back",
    driver: Literal["native", "engine"] | None = None,
    clocks: Sequence[Clock] = ("device_us", "host_us"),
    interval: Interval = "range",
    dark: bool = False,
) -> Any:
    """A matplotlib Figure: microseconds over bytes, both logarithmic; a column a clock, a row for eager and one for captured calls.

    ``targets``: paths or kernels, by default all that were measured. ``driver``: by default native where it was measured.
    ``interval``: ``"range"``, medians with least and most over process sets, as the table has them; ``"t"``, means with their 95 % t
    interval. Raises InputError where nothing fits, ProbeUnavailable without matplotlib.
    """
    if interval not in _INTERVALS:
        raise InputError("interval", interval, "give 'range' or 't'")
    clocks = tuple(dict.fromkeys(clocks))
    if not clocks or not {*clocks} <= CLOCKS.keys():
        raise InputError("clocks", clocks, f"give some of {', '.join(CLOCKS)}")
    found = _fitting(measurement, targets, pattern, driver)
    return themed(partial(_draw, measurement, found, clocks, interval), dark)


def points_of(found: Iterable[Summary], clock: str, interval: Interval) -> list[Point]:
    """One a size, in order; without those that have no time."""
    points = []
    for one in sorted(found, key=lambda one: one.nbytes):
        if interval == "range":
            spread = one.spread(clock)
            if spread.processes:
                points.append(Point(one.nbytes, spread.median, spread.low, spread.high))
        else:
            from .._costs.estimate import over_processes

            estimate = over_processes(getattr(one, clock))
            if estimate is not None:
                points.append(Point(one.nbytes, estimate.us, estimate.low_us, estimate.high_us))
    return points


def _fitting(measurement: Measurement, targets: Any, pattern: str, driver: str | None) -> list[Summary]:
    found = sized.chosen(measurement.summary(), targets)
    drivers = dict.fromkeys(one.driver for one in found)
    driver = driver or ("native" if "native" in drivers else next(iter(drivers), "native"))
    fitting = [one for one in found if one.pattern == pattern and one.driver == driver]
    if not fitting:
        there = dict.fromkeys(f"{one.driver} {one.pattern}" for one in found)
        raise InputError("pattern", f"{pattern}, driver {driver}", f"there is only: {', '.join(there) or 'nothing at all'}")
    return fitting


def _draw(measurement: Measurement, found: list[Summary], clocks: Sequence[Clock], interval: Interval, theme: Theme) -> Any:
    from .drawn import new_drawn

    phases = [phase for phase in PHASES if any(one.phase == phase for one in found)]
    names = sized.distinct_names(found)
    title = f"Latency against size: {sized.WORDS[found[0].pattern]}, {sized.WORDS[found[0].driver]}"
    figure = new_drawn(0.9 + 3.8 * len(clocks), 1.9 + 2.45 * len(phases) + 0.1 * len(names), title, theme)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    panels = figure.subplots(len(phases), len(clocks), sharex=True, sharey="row", squeeze=False)
    looks: dict[tuple[object, ...], Look] = {}
    for key in names:
        looks[key] = sized.look_of(str(key[0]), str(key[1]), looks.values())
    handles: dict[tuple[object, ...], Any] = {}
    left_out: list[str] = []
    for i, (row, phase) in enumerate(zip(panels, phases, strict=True)):
        lines = {
            (clock, key): points_of((one for one in found if one.phase == phase and sized.line_key(one) == key), clock, interval)
            for clock in clocks
            for key in names
        }
        drawn = {at: [point for point in points if 0 < point.us < math.inf] for at, points in lines.items()}
        left_out += _not_drawn(lines, drawn, phase, names)
        limits = _limits(drawn.values())
        for axes, clock in zip(row, clocks, strict=True):
            axes.set_title(f"{phase}, {CLOCKS[clock]}{_of_launch(phase, clock)}", loc="left")
            for key in names:
                handle = _draw_line(axes, drawn[clock, key], looks[key], limits, theme)
                handles.setdefault(key, handle).set_label(names[key])
            sized.us_axis(axes, limits, _AXES[clock])
            sized.size_axis(axes, (one.nbytes for one in found), _BYTES if i + 1 == len(phases) else "")
            sized.calm(axes, theme)
    beside = sorted({one.compute_us for one in found if one.compute_us})
    if beside:
        left_out.append(
            f"a compute kernel of {' or '.join(f'{us:g}' for us in beside)} us before each call; its own time is subtracted"
        )
    told = [*sized.origin_of(measurement, found), f"{sized.once(found, 'dtype', 'ranks')}; {_INTERVALS[interval]}", *left_out]
    sized.caption(figure, list(handles.values()), told, ncols=2 if len(names) <= 4 else 3)
    figure.alt = f"{title}. {'; '.join(told)}. Lines: {', '.join(names.values())}"
    return figure


def _of_launch(phase: str, clock: str) -> str:
    return " (launching the graph)" if (phase, clock) == ("captured", "host_us") else ""


def _draw_line(axes: Any, points: Sequence[Point], look: Look, limits: tuple[float, float], theme: Theme) -> Any:
    colour = getattr(theme, look.colour)
    ends = [(p.nbytes, p.low_us, p.high_us) for p in points if p.low_us is not None and p.high_us is not None]
    sized.draw_whiskers(axes, ends, colour, limits)
    return sized.draw_line(axes, [(point.nbytes, point.us) for point in points], look, colour, theme)


def _limits(lines: Iterable[Sequence[Point]]) -> tuple[float, float]:
    points = [point for line in lines for point in line]
    ends = [end for point in points for end in (point.low_us, point.high_us) if end is not None]
    return sized.us_limits((point.us for point in points), ends)


def _not_drawn(lines: dict[Any, list[Point]], drawn: dict[Any, list[Point]], phase: str, names: dict[Any, str]) -> list[str]:
    """Times that a logarithmic axis does not have: an interleaved call may hide all of its time behind the compute kernel."""
    told = []
    for (clock, key), points in lines.items():
        gone = [human_bytes(point.nbytes) for point in points if point not in drawn[clock, key]]
        if gone:
            told.append(f"not drawn, not above 0 us: {names[key]}, {phase}, {CLOCKS[clock]}, {', '.join(gone)}")
    return told
