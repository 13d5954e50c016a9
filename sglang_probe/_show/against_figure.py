"""The picture of two ways of a call: above, both over size in microseconds; below, their ratio with intervals and each process set's.

Called by Against.picture. matplotlib is loaded where it is used.
Invariant: ratio 1 is always within the axis, and each ratio stands with its interval or is told to have none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .._measure.summary import Spread
from .._report.theme import Theme, themed
from . import sized
from .sized import CLOCKS, DASHED, Look

if TYPE_CHECKING:
    from .against_result import Against, Row

_TITLES = {
    "buffers": "NCCL in place against out of place",
    "patterns": "Back to back against interleaved with compute",
    "drivers": "Our C against SGLang's own Python",
}
_FILLED = {"eager": False, "captured": True}
_DODGE = {"eager": 1 / 1.06, "captured": 1.06}
"""Whiskers of both phases at one size, beside each other."""


def draw(found: Against, dark: bool) -> Any:
    """A matplotlib Figure that no pyplot knows."""
    return themed(partial(_draw, found), dark)


def _draw(found: Against, theme: Theme) -> Any:
    from .drawn import new_drawn

    lines = found.lines
    columns = list(dict.fromkeys((target, clock) for target, clock, _ in lines))
    title = _TITLES[found.what]
    wide = max(8.5, 0.7 + 2.75 * len(columns))
    figure = new_drawn(wide, 6.6, f"{title}. {'; '.join((*found.told, found.conditions, *found.sentences))}", theme)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    panels = figure.subplots(2, len(columns), sharex=True, squeeze=False, height_ratios=(1.35, 1))
    limits = _us_limits(found.rows)
    # A device's ratios may differ by 1 % where a host's differ by 100 %: each clock has an axis of its own.
    ratios = {clock: _ratio_limits(row for row in found.rows if row.clock == clock) for _, clock in columns}
    handles: dict[tuple[str, str], Any] = {}
    for i, (target, clock) in enumerate(columns):
        upper, lower = panels[:, i]
        for phase in dict.fromkeys(phase for _, _, phase in lines):
            rows = lines.get((target, clock, phase), [])
            for place, name in enumerate(found.names):
                handle = _draw_way(upper, rows, place, phase, limits, theme)
                handles.setdefault((name, phase), handle).set_label(f"{name}, {phase}")
            handle = _draw_ratio(lower, rows, phase, ratios[clock], theme)
            handles.setdefault(("ratio", phase), handle).set_label(f"ratio, {phase}")
        upper.set_title(f"{target}, {CLOCKS[clock]}", loc="left")
        sized.us_axis(upper, limits, "us a call")
        _ratio_axis(lower, ratios[clock], f"{found.names[1]} /\n{found.names[0]}", theme)
        sizes = [row.nbytes for row in found.rows]
        sized.size_axis(upper, sizes, "")
        sized.size_axis(lower, sizes, "bytes on each rank" if len(columns) > 2 else "bytes of one all-reduce, on each rank")
        for axes, own in ((upper, i == 0), (lower, i == 0 or len(ratios) > 1)):
            sized.calm(axes, theme)
            if not own:
                axes.set_ylabel("")
                axes.tick_params(labelleft=False)
    marks = "above: medians, least and most over process sets; below: mean ratio within a process set and its 95 % t interval"
    points = "small dots: each process set" if _some(found.rows) else "no interval: a single process set"
    told = [*found.told, found.conditions, f"{marks}, each size by itself; {points}"]
    sized.caption(
        figure, [handles[key] for key in sorted(handles, key=_place(found.names))], told, ncols=3, width=int(13.5 * wide)
    )
    return figure


def _place(names: tuple[str, str]) -> Any:
    order = (*names, "ratio")
    return lambda key: (order.index(key[0]), key[1] != "eager")


def _some(rows: Iterable[Row]) -> bool:
    return any(row.ratio is not None and row.ratio.low is not None for row in rows)


def _draw_way(axes: Any, rows: Sequence[Row], place: int, phase: str, limits: tuple[float, float], theme: Theme) -> Any:
    from .._report.theme import MARKS

    colour = theme.arm(place)
    known = [(row.nbytes, spread) for row in rows if _drawable(spread := (row.a, row.b)[place])]
    shift = _DODGE[phase] * (1 / 1.02, 1.02)[place]
    sized.draw_whiskers(axes, [(x * shift, spread.low, spread.high) for x, spread in known], colour, limits)
    look = Look("", MARKS[place], "-" if _FILLED[phase] else DASHED, _FILLED[phase])
    return sized.draw_line(axes, [(x * shift, spread.median) for x, spread in known], look, colour, theme)


def _draw_ratio(axes: Any, rows: Sequence[Row], phase: str, limits: tuple[float, float], theme: Theme) -> Any:
    known = [(row.nbytes * _DODGE[phase], row.ratio) for row in rows if row.ratio is not None]
    ends = [(x, ratio.low, ratio.high) for x, ratio in known if ratio.low is not None and ratio.high is not None]
    sized.draw_whiskers(axes, ends, theme.ink, limits)
    dots = [(x, value) for x, ratio in known if len(ratio.by_process) > 1 for value in ratio.by_process]
    if dots:
        axes.scatter(*zip(*dots, strict=True), s=5, color=theme.margin, linewidths=0, zorder=2.5)
    look = Look("", "o", "-" if _FILLED[phase] else DASHED, _FILLED[phase])
    return sized.draw_line(axes, [(x, ratio.times) for x, ratio in known], look, theme.ink, theme, size=4.2)


def _drawable(spread: Spread) -> bool:
    return spread.processes > 0 and 0 < spread.median < math.inf


def _us_limits(rows: Iterable[Row]) -> tuple[float, float]:
    spreads = [spread for row in rows for spread in (row.a, row.b) if _drawable(spread)]
    return sized.us_limits((one.median for one in spreads), (end for one in spreads for end in (one.low, one.high)))


# ---------------------------------------------------------------------------------------------------------------------- ratio


def _ratio_limits(rows: Iterable[Row]) -> tuple[float, float]:
    """1, every mean ratio and every process set's; of intervals as much as does not flatten these."""
    known = [row.ratio for row in rows if row.ratio is not None]
    drawn = [1.0, *(value for ratio in known for value in (ratio.times, *ratio.by_process))]
    low, high = min(drawn), max(drawn)
    room = max(high / low, 1.02) ** 0.5
    ends = [end for ratio in known for end in (ratio.low, ratio.high) if end is not None]
    near = [end for end in ends if low / room <= end <= high * room]
    low, high = min([low, *near]), max([high, *near])
    margin = (high / low) ** 0.06 * 1.002
    return low / margin, high * margin


_NICE = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def _ratio_axis(axes: Any, limits: tuple[float, float], label: str, theme: Theme) -> None:
    """Logarithmic: half as long lies as far from 1 as twice as long."""
    low, high = limits
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    step = next(step for step in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, math.inf) if (high - low) / step <= 6)
    first = math.ceil(low / step) if step < math.inf else 0
    even = [(first + i) * step for i in range(7) if (first + i) * step <= high] if step < math.inf and high / low < 4 else None
    ticks = even or [tick for tick in _NICE if low <= tick <= high]
    axes.set_yticks(ticks, [f"{tick:g}" if tick in _NICE else f"{tick:.3g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    axes.axhline(1, color=theme.ink, linewidth=0.9, linestyle=(0, (5, 2)), zorder=1)
    axes.set_ylabel(label)
