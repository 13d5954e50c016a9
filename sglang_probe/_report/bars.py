"""The picture of an explanation: the difference seen with its interval against what each change of path explains at most, waiting apart.

Called by picture.py.
Invariant: a bar's origin stands beside it, and what has no number stands below as words, never as a bar of length zero.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from .nouns import Bar, Picture
from .text import digits
from .theme import Theme, label, new_figure

_KINDS = {
    "seen": "the difference seen",
    "bound": "what a change of path explains at most",
    "ceiling": "all all-reduces of a step, whatever way they take",
    "elsewhere": "the same on another machine, an illustration",
    "waiting": "waiting for the last rank, which no path change causes",
}
_SPARE, _GAP = 1.12, 8.0
"""A browser's letters may be wider than ours; pixels between a bar and its words."""
_HATCHES = {"seen": "", "bound": "", "ceiling": "\\\\\\", "elsewhere": "xx", "waiting": "///"}


def bars_figure(picture: Picture, theme: Theme) -> Any:
    """A matplotlib Figure; `settings` are the caller's."""
    bars = picture.bars
    figure = new_figure(8.4, 1.7 + 0.62 * max(len(bars), 1) + 0.18 * len(picture.missing))
    axes = figure.subplots()
    colours = {"seen": theme.ink, "bound": theme.a, "ceiling": theme.margin, "elsewhere": theme.a, "waiting": theme.waiting}
    places = _places(bars)
    notes = [_draw_bar(axes, y, bar, colours[bar.kind], theme) for y, bar in zip(places, bars, strict=True)]
    axes.set_yticks(places, ["\n".join(textwrap.wrap(label(bar.label, 112), 38)) for bar in bars])
    axes.set_ylim(max(places, default=0) + 0.6, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.axvline(0, color=theme.ink, linewidth=1.0)
    axes.margins(x=0.03)
    low, high = axes.get_xlim()
    axes.set_xlim(min(low, 0.0), high)
    axes.set_xlabel(f"{label(picture.unit, 40)} (right: longer); whiskers are intervals")
    axes.grid(axis="x", color=theme.faint, alpha=0.3, linewidth=0.6)
    axes.set_axisbelow(True)
    _legend(figure, bars, picture.missing, colours)
    _make_room(figure, axes, notes)
    return figure


def _make_room(figure: Any, axes: Any, notes: Sequence[Any]) -> None:
    """The axis goes on to the right until each bar's words stand within the picture."""
    for note in notes:
        note.set_in_layout(False)  # else the axes would be made narrow for them first
    figure.draw_without_rendering()
    width, (low, high) = axes.get_window_extent().width, axes.get_xlim()
    for note in notes:
        words = _SPARE * note.get_window_extent().width + _GAP
        high = max(high, low + (note.xy[0] - low) * width / max(width - words, 0.2 * width))
    axes.set_xlim(low, high)


def _places(bars: Sequence[Bar]) -> list[float]:
    """A line a bar; a gap where another kind begins."""
    places: list[float] = []
    for i, bar in enumerate(bars):
        places.append((places[-1] + (1.0 if bar.kind == bars[i - 1].kind else 1.35)) if places else 0.0)
    return places


def _draw_bar(axes: Any, y: float, bar: Bar, colour: str, theme: Theme) -> Any:
    """The bar, its interval, and beside them the words that come back."""
    hatch = _HATCHES[bar.kind]
    fill: dict[str, Any] = {"facecolor": "none", "edgecolor": colour} if hatch else {"color": colour}
    axes.barh(y, bar.value, height=0.5, hatch=hatch, linewidth=1.0, alpha=0.9, zorder=2, **fill)
    ends = [bar.value, 0.0]
    if bar.low is not None and bar.high is not None and math.isfinite(bar.low) and math.isfinite(bar.high):
        ends += [bar.low, bar.high]
        if bar.low < bar.high:
            # On the bar's lower edge, where it stands out from the bar's own colour.
            axes.plot([bar.low, bar.high], [y + 0.33] * 2, color=theme.ink, linewidth=1.4, marker="|", markersize=7, zorder=3)
    text = "\n".join([f"{digits(bar.value, count=3)}{_interval(bar)}", *textwrap.wrap(label(bar.origin, 132), 40)])
    look = {"ha": "left", "va": "center", "fontsize": 8, "color": theme.ink, "zorder": 4, "linespacing": 1.2}
    return axes.annotate(text, (max(ends), y), xytext=(5, 0), textcoords="offset points", **look)


def _interval(bar: Bar) -> str:
    """``(1.8 to 2.5)``, or what there is of it; nothing of a figure that is exact."""
    if bar.low is None and bar.high is None:
        return " (no interval)"
    if bar.low == bar.high:
        return ""
    low, high = ("no end" if end is None else digits(end, count=3) for end in (bar.low, bar.high))
    return f" ({low} to {high})"


def _legend(figure: Any, bars: Sequence[Bar], missing: Sequence[str], colours: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = []
    for kind, text in _KINDS.items():
        if any(bar.kind == kind for bar in bars):
            hatch = _HATCHES[kind]
            fill: dict[str, Any] = {"facecolor": "none", "edgecolor": colours[kind]} if hatch else {"color": colours[kind]}
            handles.append(Patch(hatch=hatch, label=text, **fill))
    title = "\n".join(label(text, 110) for text in missing) or None
    if handles or title:
        legend = figure.legend(handles=handles, loc="outside lower left", ncols=2, frameon=False, title=title)
        legend._legend_box.align = "left"
