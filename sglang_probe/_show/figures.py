"""Pictures: releases across, bytes up, colour = path. Called by the notebook, and by History.picture.

matplotlib is loaded where it is used (the extra ``notebook`` brings it).
Invariant: a picture says whose words it draws: routing of SGLang's code as modelled, no measurement.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._releases import COMMITS, RELEASES
from .._types import FrozenMap, Group, InputError, Path, ProbeUnavailable
from .sizes import human_bytes

if TYPE_CHECKING:
    from .._bands import Band
    from .._proof.history import History, Row
    from .._proof.looks import Look, Route

# Colours of Okabe and Ito, told apart with every kind of colour vision; fallbacks are greys and vermilion, and hatches help in print.
STYLES: Mapping[Path, tuple[str, str]] = FrozenMap(
    {
        Path.CUSTOM: ("#0072B2", ""),
        Path.QUICK: ("#E69F00", ""),
        Path.MSCCLPP: ("#CC79A7", ""),
        Path.TORCH_SYMM_MEM: ("#009E73", ""),
        Path.FLASHINFER: ("#56B4E9", ""),
        Path.PCIE_IPC: ("#F0E442", ""),
        Path.CPU_SHM: ("#332288", ""),
        Path.PYNCCL_IN_PLACE: ("#BBBBBB", ""),
        Path.PYNCCL_OUT_OF_PLACE: ("#777777", "//"),
        Path.TORCH_DISTRIBUTED: ("#D55E00", ".."),
        Path.RAISES: ("#000000", "xx"),
        Path.NONE: ("#FFFFFF", ""),
    }
)
CAPTION = "routing of SGLang's code as modelled, no measurement"
_LOWEST, _HIGHEST = 1 << 10, 1 << 30
_DARK = frozenset({Path.CUSTOM, Path.CPU_SHM, Path.RAISES, Path.PYNCCL_OUT_OF_PLACE, Path.TORCH_SYMM_MEM})


@dataclass(frozen=True)
class Picture:
    """A matplotlib Figure, which notebooks show."""

    figure: Any

    def _repr_png_(self) -> bytes:
        """A PNG with a palette: few colours are drawn, and notebooks that hold it stay small."""
        from PIL import Image  # matplotlib depends on it

        drawn, small = io.BytesIO(), io.BytesIO()
        self.figure.savefig(drawn, format="png")
        image = Image.open(drawn).convert("RGB")
        image.quantize(128, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
        return small.getvalue()

    def save(self, path: str) -> None:
        """Write it, in the format that the name ends in."""
        self.figure.savefig(path)


def bands_figure(
    group: Group,
    *,
    context: str = "capture",
    dtype: str = "bf16",
    hidden: int = 0,
    sglang: Sequence[str] | None = None,
    title: str = "",
) -> Picture:
    """A picture: releases across, bytes up (logarithmic), colour = path. Releases that route alike share one column.

    ``sglang`` chooses releases, oldest first; by default all. White lines are boundaries between kernels of one path.
    """
    columns = band_columns(group, context=context, dtype=dtype, hidden=hidden, sglang=sglang)
    figure = _figure(max(5.0, 1.3 + 0.95 * len(columns)), 5.4)
    axes = figure.add_subplot()
    for x, (_, found) in enumerate(columns):
        for i, band in enumerate(found):
            _draw_band(axes, x, band)
            if i + 1 < len(found) and found[i + 1].path is not band.path and band.last_bytes < _HIGHEST:
                _draw_limit(axes, x, band)
    _label_axes(axes, [label for label, _ in columns])
    seen = [path for path in STYLES if any(band.path is path for _, found in columns for band in found)]
    _legend(figure, seen)
    subject = f"{group.world_size} ranks, {context}, {dtype}"
    axes.set_title(title or f"Path by size: {subject}", loc="left", fontsize=11)
    return Picture(figure)


def _figure(width_in: float, height_in: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ProbeUnavailable("no matplotlib here: pip install 'sglang_probe[notebook]'") from None
    return Figure(figsize=(width_in, height_in), dpi=90, layout="constrained", facecolor="white")


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


def _draw_band(axes: Any, x: int, band: Band) -> None:
    low, high = max(band.first_bytes - 1, _LOWEST), min(band.last_bytes, _HIGHEST)
    if low >= high:
        return
    colour, hatch = STYLES[band.path]
    hatch = hatch if band.decision.reduces or band.path in (Path.RAISES, Path.NONE) else "xx"
    axes.bar(x, high - low, bottom=low, width=0.92, color=colour, hatch=hatch, edgecolor="white", linewidth=1.0)
    name = band.decision.kernel or (band.decision.backend if band.path is Path.CUSTOM else "")
    if name and high / low >= 2:
        ink = "white" if band.path in _DARK else "black"
        middle = (low * high) ** 0.5
        text = name.replace("_shot", "-shot").replace("_", "\n")
        axes.text(x, middle, text, ha="center", va="center", fontsize=7, color=ink, linespacing=1.15)


def _draw_limit(axes: Any, x: int, band: Band) -> None:
    """The last size of a path, exact, under its edge: two limits that differ in one tensor look the same otherwise."""
    last = band.last_bytes // 16 * 16
    ink = "white" if band.path in _DARK else "black"
    axes.text(x, last / 1.1, human_bytes(last), ha="center", va="top", fontsize=6.5, color=ink, fontweight="bold")


def _label_axes(axes: Any, labels: Sequence[str]) -> None:
    axes.set_yscale("log", base=2)
    axes.set_ylim(_LOWEST, _HIGHEST)
    ticks = [1 << power for power in range(10, 31, 2)]
    axes.set_yticks(ticks, [human_bytes(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylabel("bytes of one all-reduce")
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right", fontsize=8, rotation_mode="anchor")
    axes.set_xlabel("SGLang release (releases that route alike share a column)")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _legend(figure: Any, seen: Sequence[Path]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=STYLES[p][0], hatch=STYLES[p][1], edgecolor="#888888", label=str(p)) for p in seen]
    legend = figure.legend(handles=handles, loc="outside lower left", ncols=4, frameon=False, fontsize=8, title=CAPTION)
    legend.get_title().set_fontsize(8)
    legend._legend_box.align = "left"


# ---------------------------------------------------------------------------------------------------------------------- history

_LOOKS = ("verify", "prefill")


def history_figure(history: History, what: str | None = None) -> Picture:
    """The verify step above, a prefill chunk below (or one of them): the path of every size in its context, from release to release.

    A dashed line stands at the size that the launch asks for, with its calls. Releases that do the same in both share one column.
    """
    if what not in (None, *_LOOKS):
        raise InputError("what", what, "give 'verify', 'prefill', or nothing for both")
    looks = _LOOKS if what is None else (what,)
    labels, columns = _history_columns(history, looks)
    figure = _figure(max(6.0, 2.2 + 0.98 * len(labels)), 3.9 * len(looks) + 0.9)
    panels = figure.subplots(len(looks), 1, sharex=True, squeeze=False)[:, 0]
    seen: set[Path] = set()
    for axes, name in zip(panels, looks, strict=True):
        for x, (row, sizes) in enumerate(columns[name]):
            mark = (row.verify if name == "verify" else row.prefill) if history.level == "launch" else None
            seen |= _draw_column(axes, x, sizes, mark)
        _label_axes(axes, labels if axes is panels[-1] else [""] * len(labels))
        if axes is not panels[-1]:
            axes.set_xlabel("")
        _history_title(axes, history, name, [sizes.context for _, sizes in columns[name]])
    _legend(figure, [path for path in STYLES if path in seen])
    return Picture(figure)


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


def _draw_column(axes: Any, x: int, sizes: Look, mark: Look | None) -> set[Path]:
    """The path of every size, and the size that is asked for."""
    at = mark.nbytes if mark and _LOWEST < mark.nbytes < _HIGHEST else 0
    seen: set[Path] = set()
    for i, route in enumerate(sizes.routes):
        low, high = max(route.first_bytes - 1, _LOWEST), min(route.last_bytes, _HIGHEST)
        if low >= high:
            continue
        path = Path(route.outcome.path)
        colour, hatch = STYLES[path]
        hatch = "xx" if route.outcome.result in ("lost", "not reduced") else hatch
        axes.bar(x, high - low, bottom=low, width=0.92, color=colour, hatch=hatch, edgecolor="white", linewidth=1.0)
        _name_route(axes, x, route, low, high, at)
        seen.add(path)
        after = sizes.routes[i + 1 : i + 2]
        if after and after[0].outcome.path != route.outcome.path and route.last_bytes < _HIGHEST:
            ink = "white" if path in _DARK else "black"
            last = route.last_bytes // 16 * 16
            axes.text(x, last / 1.1, human_bytes(last), ha="center", va="top", fontsize=6.5, color=ink, fontweight="bold")
    if at and mark:
        axes.hlines(at, x - 0.46, x + 0.46, colors="white", linewidth=2.6)
        axes.hlines(at, x - 0.46, x + 0.46, colors="black", linestyles=(0, (3, 2)), linewidth=1.2)
        box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": "black", "linewidth": 0.6}
        axes.text(x, at, _calls(mark), ha="center", va="center", fontsize=6.5, linespacing=1.15, bbox=box)
    return seen


def _calls(mark: Look) -> str:
    left = mark.all_reduces - mark.fused
    return f"{left} calls" + (f"\n{mark.fused} fused" if mark.fused else "")


def _name_route(axes: Any, x: int, route: Route, low: int, high: int, at: int) -> None:
    """The kernel, in the larger part of the band that the marked size leaves."""
    path, outcome = Path(route.outcome.path), route.outcome
    name = outcome.kernel or (outcome.backend if path is Path.CUSTOM else "")
    if low < at < high:
        low, high = (low, int(at / 2.4)) if at / low > high / at else (int(at * 2.4), high)
    if name and low < high and high / low >= 2:
        ink = "white" if path in _DARK else "black"
        text = name.replace("_shot", "-shot").replace("_", "\n")
        axes.text(x, (low * high) ** 0.5, text, ha="center", va="center", fontsize=7, color=ink, linespacing=1.15)


def _history_title(axes: Any, history: History, what: str, contexts: Sequence[str]) -> None:
    """What asks, in which context; a context that changes on the way stands at the head of each column."""
    name = history.names[what == "prefill"]
    title = f"Path by size, as a {name} asks" if history.level == "launch" else f"Path by size, {name}"
    if len(set(contexts)) == 1:
        axes.set_title(f"{title} ({contexts[0]})" if history.level == "launch" else title, loc="left", fontsize=11)
    else:
        axes.set_title(title, loc="left", fontsize=11, pad=26)
        for x, context in enumerate(contexts):
            axes.text(x, _HIGHEST * 1.2, context.replace("_", "\n"), ha="center", va="bottom", fontsize=7, linespacing=1.15)
    if history.level == "launch":
        row = history.every[-1]
        look = row.verify if what == "verify" else row.prefill
        axes.text(len(contexts) - 0.48, look.nbytes, f" {name}\n {human_bytes(look.nbytes)}", fontsize=7, va="center")
