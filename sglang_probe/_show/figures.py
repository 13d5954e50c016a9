"""Pictures: releases across, bytes up, colour = path. Called by the notebook, and by History.picture.

matplotlib is loaded where it is used (the extra ``notebook`` brings it).
Invariant: a picture says whose words it draws: routing of SGLang's code as modelled, no measurement.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .._releases import COMMITS, RELEASES
from .._report.theme import Theme, themed
from .._types import Group, InputError, Path
from . import paths
from .paths import CAPTION, STYLES
from .sizes import human_bytes

if TYPE_CHECKING:
    from .._bands import Band
    from .._proof.history import History, Row
    from .._proof.looks import Look

__all__ = ["CAPTION", "STYLES", "band_columns", "bands_figure", "history_drawn", "history_figure"]


def bands_figure(
    group: Group,
    *,
    context: str = "capture",
    dtype: str = "bf16",
    hidden: int = 0,
    sglang: Sequence[str] | None = None,
    title: str = "",
    dark: bool = False,
) -> Any:
    """A matplotlib Figure: releases across, bytes up (logarithmic), colour = path. Releases that route alike share one column.

    ``sglang`` chooses releases, oldest first; by default all. White lines are boundaries between kernels of one path. Raises InputError
    where there is none, ProbeUnavailable without matplotlib.
    """
    columns = band_columns(group, context=context, dtype=dtype, hidden=hidden, sglang=sglang)
    told = title or f"Path by size: {group.world_size} ranks, {context}, {dtype}"
    return themed(partial(_draw_bands, columns, told), dark)


def _draw_bands(columns: Sequence[tuple[str, tuple[Band, ...]]], title: str, theme: Theme) -> Any:
    labels = [label for label, _ in columns]
    figure = _figure(max(5.0, 1.3 + 0.95 * len(columns)), 5.4, _alt(title, labels), theme)
    axes = figure.add_subplot()
    seen: set[Path] = set()
    for x, (_, found) in enumerate(columns):
        seen |= paths.paint(axes, paths.spans_of_bands(found), x, theme, across=False)
    _label_axes(axes, labels, theme)
    paths.legend(figure, seen, theme)
    axes.set_title(title.replace("$", r"\$"), loc="left", fontsize=11)
    return figure


def _figure(width_in: float, height_in: float, alt: str, theme: Theme) -> Any:
    from .drawn import new_drawn

    return new_drawn(width_in, height_in, alt, theme, paths.palette())


def _alt(title: str, labels: Sequence[str]) -> str:
    columns = ", ".join(label.replace("\n", " ") for label in labels)
    return f"{title}. A column a release, from smaller to larger sizes: {columns}. {CAPTION}"


def band_columns(
    group: Group, *, context: str, dtype: str = "bf16", hidden: int = 0, sglang: Iterable[str] | None = None
) -> list[tuple[str, tuple[Band, ...]]]:
    """(label, bands) for each run of releases that route alike, oldest first."""
    from .._bands import bands

    names = list(sglang) if sglang is not None else [name for name in RELEASES if name not in COMMITS]
    if not names:
        raise InputError("sglang", names, "give at least one release")
    runs: list[tuple[list[str], tuple[Band, ...]]] = []
    for name in names:
        found = bands(group, context=context, dtype=dtype, hidden=hidden, sglang=name).bands
        if runs and [_look(b) for b in runs[-1][1]] == [_look(b) for b in found]:
            runs[-1][0].append(name)
        else:
            runs.append(([name], found))
    return [(run[0] if len(run) == 1 else f"{run[0]}\nto {run[-1]}", found) for run, found in runs]


def _look(band: Band) -> tuple[object, ...]:
    d = band.decision
    return band.first_bytes, band.last_bytes, d.path, d.kernel, d.backend, d.reduces


def _label_axes(axes: Any, labels: Sequence[str], theme: Theme) -> None:
    axes.set_yscale("log", base=2)
    axes.set_ylim(paths.LOWEST, paths.HIGHEST)
    ticks = [1 << power for power in range(10, 31, 2)]
    axes.set_yticks(ticks, [human_bytes(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylabel("bytes of one all-reduce")
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right", fontsize=8, rotation_mode="anchor")
    axes.set_xlabel("SGLang release (releases that route alike share a column)")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(which="both", colors=theme.ink)  # also of ticks that are made later, outside of the settings


# ---------------------------------------------------------------------------------------------------------------------- history

_LOOKS = ("verify", "prefill")


def history_figure(history: History, what: str | None = None, *, dark: bool = False) -> Any:
    """A matplotlib Figure: the verify step above, a prefill chunk below (or one of them), the path of every size from release to release.

    A dashed line stands at the size that the launch asks for, with its calls. Releases that do the same in both share one column. Raises
    InputError for another ``what``, ProbeUnavailable without matplotlib.
    """
    if what not in (None, *_LOOKS):
        raise InputError("what", what, "give 'verify', 'prefill', or nothing for both")
    return themed(partial(history_drawn, history, what), dark)


def history_drawn(history: History, what: str | None, theme: Theme) -> Any:
    """The figure; `settings` of the theme are the caller's."""
    looks = _LOOKS if what is None else (what,)
    labels, columns = _history_columns(history, looks)
    alt = _alt(f"Path by size over releases: {history.subject}", labels)
    figure = _figure(max(6.0, 2.2 + 0.98 * len(labels)), 3.9 * len(looks) + 0.9, alt, theme)
    panels = figure.subplots(len(looks), 1, sharex=True, squeeze=False)[:, 0]
    seen: set[Path] = set()
    for axes, name in zip(panels, looks, strict=True):
        for x, (row, sizes) in enumerate(columns[name]):
            mark = (row.verify if name == "verify" else row.prefill) if history.level == "launch" else None
            seen |= _draw_column(axes, x, sizes, mark, theme)
        _label_axes(axes, labels if axes is panels[-1] else [""] * len(labels), theme)
        if axes is not panels[-1]:
            axes.set_xlabel("")
        _history_title(axes, history, name, [sizes.context for _, sizes in columns[name]])
    paths.legend(figure, seen, theme)
    return figure


def _history_columns(history: History, looks: Sequence[str]) -> tuple[list[str], dict[str, list[tuple[Row, Look]]]]:
    """Runs of releases that route every size alike and whose step does the same, in all looks at once."""
    starts: dict[str, dict[str, Look]] = {name: {row.release: sizes for _, row, sizes in history.columns(name)} for name in looks}
    labels: list[list[str]] = []
    columns: dict[str, list[tuple[Row, Look]]] = {name: [] for name in looks}
    now: dict[str, Look] = {}
    for row in history.every:
        fresh = any(row.release in starts[name] for name in looks) or any(change.what in looks for change in row.change)
        now |= {name: starts[name][row.release] for name in looks if row.release in starts[name]}
        if fresh or not labels:
            labels.append([row.release])
            for name in looks:
                columns[name].append((row, now[name]))
        else:
            labels[-1].append(row.release)
    return [run[0] if len(run) == 1 else f"{run[0]}\nto {run[-1]}" for run in labels], columns


def _draw_column(axes: Any, x: int, sizes: Look, mark: Look | None, theme: Theme) -> set[Path]:
    """The path of every size, and the size that is asked for."""
    at = mark.nbytes if mark and paths.LOWEST < mark.nbytes < paths.HIGHEST else 0
    seen = paths.paint(axes, paths.spans_of_routes(sizes.routes), x, theme, across=False, marked=at)
    if at and mark:
        axes.hlines(at, x - 0.46, x + 0.46, colors="white", linewidth=2.6)
        axes.hlines(at, x - 0.46, x + 0.46, colors="black", linestyles=(0, (3, 2)), linewidth=1.2)
        box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "black", "linewidth": 0.6}
        axes.text(x, at, _calls(mark), ha="center", va="center", fontsize=6.5, linespacing=1.15, color="black", bbox=box)
    return seen


def _calls(mark: Look) -> str:
    left = mark.all_reduces - mark.fused
    return f"{left} calls" + (f"\n{mark.fused} fused" if mark.fused else "")


def _history_title(axes: Any, history: History, what: str, contexts: Sequence[str]) -> None:
    """What asks, in which context; a context that changes on the way stands at the head of each column."""
    name = history.names[what == "prefill"]
    title = f"Path by size, as a {name} asks" if history.level == "launch" else f"Path by size, {name}"
    if len(set(contexts)) == 1:
        axes.set_title(f"{title} ({contexts[0]})" if history.level == "launch" else title, loc="left", fontsize=11)
    else:
        axes.set_title(title, loc="left", fontsize=11, pad=26)
        for x, context in enumerate(contexts):
            axes.text(x, paths.HIGHEST * 1.2, context.replace("_", "\n"), ha="center", va="bottom", fontsize=7, linespacing=1.15)
    if history.level == "launch":
        row = history.every[-1]
        look = row.verify if what == "verify" else row.prefill
        axes.text(len(contexts) - 0.48, look.nbytes, f" {name}\n {human_bytes(look.nbytes)}", fontsize=7, va="center")
