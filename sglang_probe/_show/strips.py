"""The picture of a launch: for each kind of forward a strip of all sizes, colour = path, with the sizes that it asks for marked on it.

Called by Step.picture, Bands.picture and the reports of both. matplotlib is loaded where it is used.
Invariant: what is drawn is what `bands` says of that group, context and dtype, and the marks are the calls of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from .._report.theme import Theme, themed
from .._types import Call, InputError, Path
from . import paths
from .sizes import human_bytes

if TYPE_CHECKING:
    from .._bands import Bands
    from .._step.step import Step

_PITCH = 1.5
"""From strip to strip; a strip is 0.92 wide."""
_MOST = 8
"""Strips of one picture."""


@dataclass(frozen=True)
class Mark:
    """Calls of one size."""

    nbytes: int
    calls: int
    fused: int = 0
    path: str = ""
    """Where it is not that of the strip at this size: what a layer decides by itself."""

    def __str__(self) -> str:
        calls = f"{self.calls} call{'s' * (self.calls > 1)} of " if self.calls else ""
        fused = f" ({self.fused}{' more' * bool(self.calls)} fused)" if self.fused else ""
        return f"{calls}{human_bytes(self.nbytes)}{fused}{f': {self.path}' * bool(self.path)}"


@dataclass(frozen=True)
class Strip:
    """All sizes of one group in one context, and what is asked of it."""

    label: str
    spans: tuple[paths.Span, ...]
    marks: tuple[Mark, ...] = ()


def strips_figure(title: str, strips: Sequence[Strip], theme: Theme) -> Any:
    """A Drawn; `settings` of the theme are the caller's."""
    from .drawn import new_drawn

    figure = new_drawn(8.4, 1.5 + 1.0 * len(strips), alt_of(title, strips), theme, paths.palette())
    axes = figure.subplots()
    seen: set[Path] = set()
    for i, strip in enumerate(strips):
        marked = strip.marks[0].nbytes if strip.marks else 0
        seen |= paths.paint(axes, strip.spans, -_PITCH * i, theme, across=True, marked=marked)
        for mark in strip.marks:
            _draw_mark(axes, mark, -_PITCH * i, theme)
    axes.set_ylim(-_PITCH * (len(strips) - 1) - 0.62, 0.9)
    axes.set_yticks([-_PITCH * i for i in range(len(strips))], [strip.label.replace("$", r"\$") for strip in strips])
    axes.tick_params(axis="y", length=0)
    _size_axis(axes, [mark.nbytes for strip in strips for mark in strip.marks])
    for side in ("left", "top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(which="both", colors=theme.ink)
    axes.set_title(title.replace("$", r"\$"), loc="left", fontsize=10.5, pad=4)
    marked = any(strip.marks for strip in strips)
    paths.legend(figure, seen, theme, [_mark_handle(theme)] if marked else [])
    return figure


def alt_of(title: str, strips: Sequence[Strip]) -> str:
    """What one hears in place of the picture."""
    told = []
    for strip in strips:
        parts = [
            f"{span.path} {'for larger ones' if last else f'up to {human_bytes(max(span.last_bytes // 16 * 16, 1))}'}"
            for span, last in zip(strip.spans, [False] * (len(strip.spans) - 1) + [True], strict=True)
        ]
        asked = f"; asked for: {'; '.join(map(str, strip.marks))}" if strip.marks else ""
        told.append(f"{strip.label.replace(chr(10), ', ')}: {', '.join(parts)}{asked}")
    return f"{title}. {'. '.join(told)}. {paths.CAPTION}"


def _draw_mark(axes: Any, mark: Mark, at: float, theme: Theme) -> None:
    """A line through the strip at that size, and above it what is asked for."""
    x = min(max(mark.nbytes, paths.LOWEST), paths.HIGHEST)
    axes.vlines(x, at - 0.5, at + 0.58, colors="white", linewidth=3.2, zorder=4)
    axes.vlines(x, at - 0.5, at + 0.58, colors="black", linewidth=1.5, zorder=5)
    middle = (paths.LOWEST * paths.HIGHEST) ** 0.5
    axes.scatter([x], [at + 0.58], marker="v", s=34, color=theme.ink, zorder=6)
    side, shift = ("left", 6) if x < middle else ("right", -6)
    look = {"ha": side, "va": "center", "fontsize": 8.5, "color": theme.ink, "fontweight": "bold"}
    axes.annotate(str(mark).replace("$", r"\$"), (x, at + 0.66), xytext=(shift, 0), textcoords="offset points", **look)


def _mark_handle(theme: Theme) -> Any:
    from matplotlib.lines import Line2D

    look: dict[str, Any] = {"linestyle": "", "marker": "v", "markersize": 6, "color": theme.ink}
    return Line2D([], [], label="calls of this launch, and their size", **look)


def _size_axis(axes: Any, marks: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlim(paths.LOWEST, paths.HIGHEST)
    ticks = [1 << power for power in range(10, 31, 2)]
    axes.set_xticks(ticks, [human_bytes(tick) for tick in ticks])
    axes.minorticks_off()
    beyond = ", those outside of the axis at its end" if any(not paths.LOWEST <= one <= paths.HIGHEST for one in marks) else ""
    axes.set_xlabel(f"bytes of one all-reduce{beyond}")


# ---------------------------------------------------------------------------------------------------------------- what is drawn


def bands_strips(found: Bands) -> tuple[str, list[Strip]]:
    """Title and strip of a group by itself."""
    title = f"Where an all-reduce of each size goes: {found.world_size} ranks, {found.dtype}, SGLang {found.sglang}"
    return title, [Strip(found.context, tuple(paths.spans_of_bands(found.bands)))]


def step_strips(step: Step) -> tuple[str, list[Strip]]:
    """Title and strips of a step: its own contexts and groups, then a chunk of prefill. Raises InputError where its release is gone."""
    kind = "verify step" if step.draft_tokens > 1 else "decode step"
    several = len({s.sglang for s in (step, *step.alternatives)}) > 1
    strips = []
    for one in (step, *step.alternatives)[:_MOST]:
        strips += _own_strips(one, f"SGLang {one.sglang}" if several else kind)
    if not step.alternatives:
        strips += _prefill_strips(step)
    release = "" if several else f", SGLang {step.sglang}"
    return f"Where an all-reduce of each size goes: {step.model} on {step.world_size} GPUs{release}", strips[:_MOST]


def _own_strips(step: Step, label: str) -> list[Strip]:
    """One a group that is asked; of a step that asks none, the tensor-parallel group's."""
    calls = [(item.call, str(item.decision.path), 0) for item in step.calls]
    calls += [(call, "", 1) for call in step.fused_calls]
    groups = dict.fromkeys(call.group for call, _, _ in calls) or {"tp": None}
    return [
        _strip(
            step,
            name,
            f"{label}\n{step.context}{f', {name}' if len(groups) > 1 else ''}",
            [one for one in calls if one[0].group == name],
        )
        for name in groups
        if step.server is not None and name in step.server.groups
    ]


def _strip(step: Step, group: str, label: str, calls: Sequence[tuple[Call, str, int]]) -> Strip:
    dtype, hidden = next(((call.dtype, call.hidden) for call, _, _ in calls), ("bf16", 0))
    found = _spans(step, group, step.context, dtype, hidden)
    counts: dict[tuple[int, str], list[int]] = {}
    for call, path, fused in calls:
        other = path if path and path != _path_at(found, call.nbytes) else ""
        counts.setdefault((call.nbytes, other), [0, 0])[fused] += call.count
    marks = tuple(Mark(nbytes, kept, fused, path) for (nbytes, path), (kept, fused) in sorted(counts.items()))
    return Strip(label, found, marks)


def _prefill_strips(step: Step) -> list[Strip]:
    """A chunk of prefill of the same server: sizes that no step of decoding has."""
    from .._proof.looks import prefill_look
    from .._releases import resolve
    from .._step.calls import dtype_of

    server = step.server
    if server is None or server.model is None or "tp" not in server.groups:
        return []
    look = prefill_look(server, resolve(step.sglang), None)
    own = [route for route in look.routes if route.group == "tp"]
    if not own and not look.fused:
        return []
    found = _spans(step, "tp", look.context, dtype_of(server.model, server), server.model.hidden)
    taken = dict.fromkeys(route.outcome.path for route in own)
    at = _path_at(found, look.nbytes)
    other = " and ".join(taken) if taken and list(taken) != [at] else ""
    mark = Mark(look.nbytes, sum(route.count for route in own), look.fused, other)
    return [Strip(f"prefill chunk\n{look.context}", found, (mark,))]


def _spans(step: Step, group: str, context: str, dtype: str, hidden: int) -> tuple[paths.Span, ...]:
    from .._bands import bands

    assert step.server is not None
    found = bands(step.server.groups[group], context=context, dtype=dtype, hidden=hidden, sglang=step.sglang, costs="none")
    return tuple(paths.spans_of_bands(found.bands))


def _path_at(spans: Sequence[paths.Span], nbytes: int) -> str:
    return next((str(span.path) for span in spans if span.first_bytes <= nbytes <= span.last_bytes), "")


# -------------------------------------------------------------------------------------------------------------------- for people


def picture(found: Step | Bands, dark: bool = False) -> Any:
    """A matplotlib Figure that a notebook shows. Raises InputError where nothing is drawn, ProbeUnavailable without matplotlib."""
    return themed(partial(strips_figure, *strips_of(found)), dark)


def strips_of(found: Step | Bands) -> tuple[str, list[Strip]]:
    """Title and strips. Raises InputError where there is nothing to draw."""
    from .._bands import Bands

    title, strips = bands_strips(found) if isinstance(found, Bands) else step_strips(found)
    if not strips:
        raise InputError(
            "result", repr(found), "it makes no all-reduce over a group that is known here: there is nothing to draw"
        )
    return title, strips
