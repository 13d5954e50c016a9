"""The picture of a recording: every call over time, by size and path, a panel a rank; below, how often each graph was replayed.

Called by Recording.picture. matplotlib is loaded where it is used (the extra ``notebook`` brings it).
Invariant: what is drawn is on record; what is left out for space is counted in the legend, and no call that raised an alarm is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .._report.theme import LEAST_CONTRAST, Theme, contrast, themed
from .._types import InputError, Path
from .paths import STYLES, palette
from .sized import caption
from .sizes import human_bytes

if TYPE_CHECKING:
    from .._live.recording import Recording
    from .._live.worker import Worker

_MARKS = {
    Path.CUSTOM: "o",
    Path.TORCH_DISTRIBUTED: "X",
    Path.PYNCCL_IN_PLACE: "s",
    Path.PYNCCL_OUT_OF_PLACE: "D",
    Path.FLASHINFER: "^",
    Path.TORCH_SYMM_MEM: "P",
    Path.MSCCLPP: "v",
    Path.QUICK: "<",
    Path.PCIE_IPC: ">",
    Path.CPU_SHM: "p",
    Path.RAISES: "*",
    Path.NONE: "h",
}
_UNSEEN = "d"
_RANKS, _POINTS, _GRAPHS = 4, 600, 16
"""Panels; marks of one path, phase and size in a panel; bars of graphs."""


class _Point(NamedTuple):
    second: float
    nbytes: int
    alarm: bool


def recording_figure(recording: Recording, *, dark: bool = False) -> Any:
    """A matplotlib Figure: seconds since the first record across, bytes of a call up, mark and colour by path; graphs and their replays.

    Raises InputError where nothing is on record, ProbeUnavailable without matplotlib.
    """
    workers = [worker for worker in recording.workers if len(worker.recent)]
    if not workers:
        raise InputError("recording", repr(recording), "it holds no record: there is nothing to draw")
    return themed(partial(_draw, recording, workers), dark)


def _draw(recording: Recording, workers: Sequence[Worker], theme: Theme) -> Any:
    from .drawn import new_drawn

    shown = workers[:_RANKS]
    graphs = [graph for graph in shown[0].graphs if graph.captured][:_GRAPHS]
    heights = [2.1] * len(shown) + ([0.55 + 0.24 * len(graphs)] if graphs else [])
    title = "What ran, call by call"
    figure = new_drawn(8.4, 1.4 + sum(heights), "", theme, palette())
    panels = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
    first = min(int(recording.clock_ns(worker) + worker.recent["time_ns"][0]) for worker in shown)
    handles: dict[str, Any] = {}
    told = [recording.answer]
    for axes, worker in zip(panels, shown, strict=False):
        calls = _calls(recording, worker, first)
        told += _draw_rank(axes, worker, calls, handles, theme)
        axes.sharex(panels[0])
        axes.set_title(f"{worker.who}, SGLang {worker.release}, {worker.state}", loc="left", fontsize=9)
    panels[len(shown) - 1].set_xlabel("seconds since the first record, on the host's clock")
    if graphs:
        _draw_graphs(panels[-1], graphs, shown[0], theme)
    if len(workers) > len(shown):
        told.append(f"not drawn: {len(workers) - len(shown)} more ranks")
    told += recording.notes
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    caption(figure, list(handles.values()), told, ncols=3)
    figure.alt = f"{title}. {'; '.join(told)}. {_alt(shown[0])}"
    return figure


def _calls(recording: Recording, worker: Worker, first: int) -> dict[tuple[str, str], list[_Point]]:
    """By path and phase, in time."""
    found: dict[tuple[str, str], list[_Point]] = {}
    clock = recording.clock_ns(worker) - first
    for row in recording.named(worker):
        point = _Point((row["time_ns"] + clock) / 1e9, max(row["bytes"], 1), "alarm" in row["flags"])
        found.setdefault((row["path"], row["phase"]), []).append(point)
    return found


def _draw_rank(
    axes: Any, worker: Worker, calls: dict[tuple[str, str], list[_Point]], handles: dict[str, Any], theme: Theme
) -> list[str]:
    """The calls of one rank; what was left out of it."""
    left = 0
    for (name, phase), points in calls.items():
        kept = [*_kept(points)]
        left += len(points) - len(kept)
        path = next((one for one in Path if one == name), None)
        colour = STYLES[path][0] if path else theme.ink
        mark = _MARKS[path] if path else _UNSEEN
        hollow = phase != "eager"
        size = {"eager": 24, "captured": 44}.get(phase, 11)
        look = {"marker": mark, "s": size, "linewidths": 1.1 if hollow else 0.4, "zorder": 3}
        edge = colour if hollow and contrast(colour, theme.ground) >= LEAST_CONTRAST else theme.faint
        handle = axes.scatter(
            [point.second for point in kept],
            [point.nbytes for point in kept],
            facecolors="none" if hollow else colour,
            edgecolors=edge,
            **look,
        )
        label = f"{name or 'path not seen'}, {phase}"
        handles.setdefault(label, handle).set_label(label)
        alarms = [point for point in kept if point.alarm]
        if alarms:
            ring = {"s": 110, "facecolors": "none", "edgecolors": theme.ink, "linewidths": 1.3, "zorder": 4}
            handle = axes.scatter([point.second for point in alarms], [point.nbytes for point in alarms], **ring)
            handles.setdefault("alarm", handle).set_label("ALARM: another path than expected")
    _size_axis(axes, [point.nbytes for points in calls.values() for point in points], theme)
    return [f"{worker.who}: {left:,} calls are not drawn, spread over those of their path and size"] if left else []


def _kept(points: Sequence[_Point]) -> Iterator[_Point]:
    """So many of each size, spread over time, and every alarm."""
    by_size: dict[int, list[_Point]] = {}
    for point in points:
        by_size.setdefault(point.nbytes, []).append(point)
    for same in by_size.values():
        step = -(-len(same) // _POINTS)
        yield from (point for i, point in enumerate(same) if i % step == 0 or point.alarm)


def _size_axis(axes: Any, sizes: Sequence[int], theme: Theme) -> None:
    axes.set_yscale("log", base=2)
    low, high = min(sizes), max(sizes)
    axes.set_ylim(low / 3, high * 3)
    powers = [power for power in range(0, 41, 4) if low / 3 <= 1 << power <= high * 3]
    axes.set_yticks([1 << power for power in powers], [human_bytes(1 << power) for power in powers])
    axes.set_yticks([], minor=True)
    axes.set_ylabel("bytes of a call")
    axes.grid(color=theme.faint, alpha=0.28, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=theme.ink)


def _draw_graphs(axes: Any, graphs: Sequence[Any], worker: Worker, theme: Theme) -> None:
    """A bar a graph, as long as what its replays executed."""
    executed = [graph.captured * graph.replays for graph in graphs]
    places = range(len(graphs))
    axes.barh(places, executed, height=0.6, color=theme.faint, edgecolor=theme.ink, linewidth=0.5)
    axes.set_yticks(places, [graph.label or f"graph {graph.number}" for graph in graphs])
    axes.set_ylim(len(graphs) - 0.4, -0.6)
    axes.set_xlim(0, max([*executed, 1]) * 1.45)
    for y, graph, count in zip(places, graphs, executed, strict=True):
        text = (
            f"{graph.captured:,} calls x {graph.replays:,} replays = {count:,}"
            if graph.replays
            else f"{graph.captured:,} calls, NEVER REPLAYED"
        )
        axes.annotate(text, (count, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8, color=theme.ink)
    axes.tick_params(which="both", colors=theme.ink)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("calls that replays executed")
    more = len(worker.graphs) - len(graphs)
    axes.set_title(f"{worker.who}, by CUDA graph{f', and {more:,} more' if more else ''}", loc="left", fontsize=9)


def _alt(worker: Worker) -> str:
    paths: Counter[str] = Counter()
    for kind in worker.kinds:
        paths[f"{kind.path or 'path not seen'}, {kind.phase}"] += kind.calls
    return f"{worker.who}: " + ", ".join(f"{count:,} x {name}" for name, count in paths.items())
