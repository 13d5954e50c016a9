"""The picture of two arms: a dot a process, iterations faint, modes, medians; beside it the effect, its interval, the margin and zero.

Called by picture.py.
Invariant: both axes have a unit and say which way is better; each arm's origin stands in the legend; what was not drawn is told there.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from .nouns import Effect, Picture, Samples
from .text import counted, digits, named, percent
from .theme import MARKS, Theme, label, new_figure
from .thin import jitter, kept

_PROCESSES, _ITERATIONS = 240, 900
"""Dots of an arm at most: more would be one blot, and a page of many megabytes."""
_LOGARITHMIC = 20.0
"""From this ratio of the largest sample to the least on, a linear axis shows an outlier and nothing else."""
_LEFT, _RIGHT, _MODES = 0.08, 0.92, 0.8
"""Of an arm's strip: where its processes lie; those of an arm with modes leave room for words on the right."""


def arms_figure(picture: Picture, theme: Theme) -> Any:
    """A matplotlib Figure; `settings` are the caller's."""
    effect = picture.effect
    figure = new_figure(8.4, 5.2)
    left, right = figure.subplots(1, 2, width_ratios=(2.7, 1.0)) if effect else (figure.subplots(), None)
    handles: list[Any] = []
    notes: list[str] = []
    for place, arm in enumerate(picture.arms):
        handles.append(_draw_arm(left, place, arm, theme, notes))
    handles += _lines(picture.arms, theme)
    _label_samples(left, picture, theme)
    if effect is not None:
        handles += _draw_effect(right, effect, [label(arm.label, 18) for arm in picture.arms], theme)
    legend = figure.legend(handles=handles, loc="outside lower left", ncols=2, frameon=False, title="\n".join(notes) or None)
    legend._legend_box.align = "left"
    return figure


# -------------------------------------------------------------------------------------------------------------------------- samples


def _draw_arm(axes: Any, place: int, arm: Samples, theme: Theme, notes: list[str]) -> Any:
    """Dots, median, modes of one arm in its strip; what stands for it in the legend."""
    from matplotlib.lines import Line2D

    colour, count = theme.arm(place), len(arm.processes)
    right = _MODES if arm.modes else _RIGHT
    step = (right - _LEFT) / max(count, 1)
    _draw_iterations(axes, place, arm, step, colour, notes)
    points = [*enumerate(arm.figures)]
    drawn = {*kept([value for _, value in points], _PROCESSES)}
    if len(drawn) < len(points):
        notes.append(f"{label(arm.label, 30)}: {len(drawn)} of {len(points):,} processes drawn, spread over all by size")
    shown = [point for i, point in enumerate(points) if i in drawn or point[0] in arm.outliers]
    xs, ys = [_x(place, k, step) for k, _ in shown], [value for _, value in shown]
    size = 46 if count <= 40 else 20
    edge = theme.ground if theme.ground != "none" else colour
    axes.scatter(xs, ys, s=size, marker=MARKS[place], color=colour, edgecolors=edge, linewidths=0.5, zorder=3)
    far = [point for point in shown if point[0] in arm.outliers]
    if far:
        at = [_x(place, k, step) for k, _ in far], [value for _, value in far]
        axes.scatter(*at, s=size * 3.6, marker="o", facecolors="none", edgecolors=theme.ink, linewidths=1.1, zorder=4)
    for mode in arm.modes:
        axes.hlines(mode.center, place + 0.03, place + right, colors=colour, linestyles=(0, (2, 2)), linewidth=1.3, zorder=2)
        text = f"{mode.processes} of {count}"
        axes.text(place + right + 0.015, mode.center, text, ha="left", va="center", fontsize=8, color=theme.ink, zorder=5)
    axes.hlines(arm.center, place + 0.03, place + right, colors=theme.ink, linewidth=1.8, zorder=2.5)
    name = f"{named('ab'[place], label(arm.label, 36))}, {counted(count, 'process', 'processes')}"
    origin = label(arm.origin, 56) or "origin not told"
    told = f"{name}{', ' if len(name) + len(origin) < 54 else chr(10)}{origin}"
    return Line2D([], [], linestyle="", marker=MARKS[place], color=colour, label=told)


def _draw_iterations(axes: Any, place: int, arm: Samples, step: float, colour: str, notes: list[str]) -> None:
    several = [(k, i, value) for k, values in enumerate(arm.processes) if len(values) > 1 for i, value in enumerate(values)]
    if not several:
        return
    drawn = kept([value for _, _, value in several], _ITERATIONS)
    if len(drawn) < len(several):
        notes.append(f"{label(arm.label, 30)}: {len(drawn)} of {len(several):,} iterations drawn, spread over all by size")
    offsets = jitter(len(drawn))
    points: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    for at, offset in zip(drawn, offsets, strict=True):
        k, i, value = several[at]
        points[bool(arm.warm) and i < arm.warm[k]].append((_x(place, k, step) + offset * step * 0.7, value))
    for warm, look in ((False, {"s": 7, "linewidths": 0, "alpha": 0.32}), (True, {"s": 14, "linewidths": 0.9, "marker": "x"})):
        if points[warm]:
            axes.scatter(*zip(*points[warm], strict=True), color=colour, zorder=1, **look)


def _x(place: int, k: int, step: float) -> float:
    """A process's place in the arm's strip: left to right in its order."""
    return place + _LEFT + step * (k + 0.5)


def _lines(arms: Sequence[Samples], theme: Theme) -> list[Any]:
    """What lines and rings are, in the legend."""
    from matplotlib.lines import Line2D

    found = [Line2D([], [], color=theme.ink, linewidth=1.8, label="median of the processes")]
    if any(len(values) > 1 for arm in arms for values in arm.processes):
        told = "iterations inside a process"
        found.append(Line2D([], [], linestyle="", marker="o", markersize=3, color=theme.faint, label=told))
    if any(any(arm.warm) for arm in arms):
        told = "iterations of a warm-up, which count no more"
        found.append(Line2D([], [], linestyle="", marker="x", markersize=4, color=theme.faint, label=told))
    if any(arm.modes for arm in arms):
        found.append(Line2D([], [], color=theme.faint, linestyle=(0, (2, 2)), label="modes, with their processes"))
    if any(arm.outliers for arm in arms):
        ring: dict[str, Any] = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgecolor": theme.ink}
        found.append(Line2D([], [], linestyle="", label="far from the others; kept", **ring))
    return found


def _label_samples(axes: Any, picture: Picture, theme: Theme) -> None:
    arms, effect = picture.arms, picture.effect
    units = {arm.unit for arm in arms}
    unit = label(next(iter(units)), 24) if len(units) == 1 else " and ".join(sorted(label(one, 12) or "no unit" for one in units))
    better = f" ({effect.better} is better)" if effect else ""
    every = [value for arm in arms for values in arm.processes for value in values]
    if max(every) / min(every) > _LOGARITHMIC:
        axes.set_yscale("log")
        better += ", logarithmic"
    else:
        axes.margins(y=0.12)
    axes.set_ylabel(f"{unit or 'value, unit not given'}{better}")
    axes.set_xlim(0, len(arms))
    ticks = [_tick(place, arm) for place, arm in enumerate(arms)]
    axes.set_xticks([place + 0.5 for place in range(len(arms))], ticks)
    axes.tick_params(axis="x", length=0)
    order = "given" if all(arm.origin == "given" for arm in arms) else "measured"
    axes.set_xlabel(f"a dot a process, left to right in the order {order}")
    axes.grid(axis="y", color=theme.faint, alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    for place in range(1, len(arms)):
        axes.axvline(place, color=theme.faint, linewidth=0.6, alpha=0.6)


def _tick(place: int, arm: Samples) -> str:
    name = "\n".join(textwrap.wrap(named("ab"[place], label(arm.label, 58)), 34, break_long_words=True) or [""])
    return f"{name}\nmedian {label(digits(arm.center, arm.unit), 30)}"


# --------------------------------------------------------------------------------------------------------------------------- effect


def _draw_effect(axes: Any, effect: Effect, names: Sequence[str], theme: Theme) -> list[Any]:
    """The effect in per cent with its interval on the margin's band and the zero line; what they are in the legend."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    margin = 100 * effect.margin
    below = margin / (1 + effect.margin)  # the same ratio the other way
    bottom, top = _limits(effect)
    axes.axhspan(-below, margin, color=theme.margin, alpha=0.22, linewidth=0, zorder=0)
    axes.axhline(0, color=theme.ink, linewidth=1.0, linestyle=(0, (5, 2)), zorder=1)
    value = None if effect.value is None or not math.isfinite(effect.value) else 100 * effect.value
    inside = 0.02 * (top - bottom)  # an arrow's head stands within the frame
    ends = [_end(effect.low, bottom + inside), _end(effect.high, top - inside)]
    known = effect.low is not None and effect.high is not None
    if known:
        axes.vlines(0.5, *ends, colors=theme.ink, linewidth=2.4, zorder=2)
        for limit, end, mark in ((effect.low, ends[0], "v"), (effect.high, ends[1], "^")):
            beyond = limit is not None and not math.isfinite(limit)
            axes.scatter([0.5], [end], marker=mark if beyond else "_", s=60, color=theme.ink, zorder=3)
    if value is not None:
        axes.scatter([0.5], [value], s=64, marker="o", color=theme.ink, zorder=4)
    axes.set_ylim(bottom, top)
    axes.set_xlim(0, 1)
    axes.set_xticks([0.5], [f"{effect.word}\n{percent(effect.value)}\n{_interval(effect)}"])
    axes.tick_params(axis="x", length=0)
    axes.set_ylabel(f"b / a - 1, % ({effect.better} is better)")
    axes.set_xlabel(" ")
    sure = f"{percent(effect.level, sign=False).removesuffix(' %').rstrip('0').rstrip('.')} % interval"
    return [
        Line2D(
            [], [], color=theme.ink, linewidth=2.4, marker="o", label=f"effect and its {sure}" if known else "effect; no interval"
        ),
        Patch(color=theme.margin, alpha=0.3, linewidth=0, label=f"margin: within {margin:g} % counts as the same"),
        Line2D([], [], color=theme.ink, linewidth=1.0, linestyle=(0, (5, 2)), label="no difference"),
    ]


def _interval(effect: Effect) -> str:
    if effect.low is None or effect.high is None or not (math.isfinite(effect.low) or math.isfinite(effect.high)):
        return "no ends: too few runs"
    low, high = (percent(end) if math.isfinite(end) else "no end" for end in (effect.low, effect.high))
    return f"{low} to {high}"


def _limits(effect: Effect) -> tuple[float, float]:
    """What the axis shows: the interval, the margin and zero, and some room."""
    given = [effect.value, effect.low, effect.high, 1.6 * effect.margin, -1.6 * effect.margin, 0.0]
    finite = [100 * value for value in given if value is not None and math.isfinite(value)]
    room = 0.08 * (max(finite) - min(finite)) or 1.0
    return min(finite) - room, max(finite) + room


def _end(limit: float | None, edge: float) -> float:
    return 100 * limit if limit is not None and math.isfinite(limit) else edge
