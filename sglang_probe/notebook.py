"""For notebooks: toggles around one Decision, and the picture of bands over releases. Imported by notebooks only.

ipywidgets and matplotlib are loaded where they are used (the extra ``notebook`` brings them).
Invariant: a picture says whose words it draws: routing of SGLang's code as modelled, no measurement.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ._facts import SIZE_MAX
from ._releases import COMMITS, RELEASES, newest, resolve
from ._route import CONTEXTS, route
from ._server.hardware import GPUS, gpu_by_name
from ._show.render import decision_html
from ._show.sizes import human_bytes
from ._types import Call, Group, InputError, Path, ProbeUnavailable

if TYPE_CHECKING:
    from ._bands import Band

# Colours of Okabe and Ito, told apart with every kind of colour vision; fallbacks are greys and vermilion, and hatches help in print.
STYLES: Mapping[Path, tuple[str, str]] = MappingProxyType(
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


# -------------------------------------------------------------------------------------------------------------------------- picture


@dataclass(frozen=True)
class Picture:
    """A matplotlib Figure, which notebooks show."""

    figure: Any

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png")
        return buffer.getvalue()

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
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ProbeUnavailable("no matplotlib here: pip install 'sglang_probe[notebook]'") from None
    figure = Figure(figsize=(max(5.0, 1.3 + 0.95 * len(columns)), 5.4), dpi=90, layout="constrained", facecolor="white")
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


def band_columns(
    group: Group, *, context: str, dtype: str = "bf16", hidden: int = 0, sglang: Iterable[str] | None = None
) -> list[tuple[str, tuple[Band, ...]]]:
    """(label, bands) for each run of releases that route alike, oldest first."""
    from ._bands import bands

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
        axes.text(x, middle, text, ha="center", va="center", fontsize=7, color=ink, linespacing=0.95)


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


# -------------------------------------------------------------------------------------------------------------------------- toggles

_FLAGS = MappingProxyType(
    {
        "own_custom": "custom all-reduce",
        "own_torch_symm_mem": "--enable-torch-symm-mem",
        "own_mscclpp": "--enable-mscclpp",
        "has_mscclpp": "mscclpp imports",
        "symm_mem": "--enable-symm-mem",
        "multicast": "multicast",
    }
)


def machine(gpu: str = "h200", link: str | None = None, world_size: int = 8, **facts: int | bool) -> Group:
    """A group on GPUs of one node, by the GPU's name; what the name does not say is assumed, as everywhere."""
    from . import _core

    known = gpu_by_name(gpu)
    link = link or known.link
    linked = link in ("nvlink", "xgmi")
    group = Group.make(world_size=world_size, device=_core.DEVICES.index(known.device), arch=known.arch, full_nvlink=linked)
    group = group.with_facts(
        "assumed", f"{gpu}, {link}", multicast=known.multicast and link == "nvlink", p2p=linked or known.peer
    )
    return group.with_facts("given", "", **facts)


def which_path(
    *, sglang: str | None = None, gpu: str = "h200", context: str = "capture", world_size: int = 8, nbytes: int = 43008
) -> Any:
    """Toggles (release, context, GPU, link, world size, bytes, flags) around one Decision with its reasons: an ipywidgets box."""
    try:
        import ipywidgets as widgets
    except ImportError:
        raise ProbeUnavailable("no ipywidgets here: pip install 'sglang_probe[notebook]'") from None
    start = sglang or newest()
    resolve(start)
    style = {"description_width": "initial"}
    controls: dict[str, Any] = {
        "sglang": widgets.Dropdown(options=tuple(reversed(RELEASES)), value=start, description="SGLang", style=style),
        "context": widgets.Dropdown(options=tuple(CONTEXTS), value=context, description="context", style=style),
        "gpu": widgets.Dropdown(options=tuple(GPUS), value=gpu, description="GPU", style=style),
        "link": widgets.ToggleButtons(options=("nvlink", "pcie", "xgmi"), value=gpu_by_name(gpu).link, description="link"),
        "world_size": widgets.Dropdown(options=(1, 2, 3, 4, 6, 8, 16), value=world_size, description="ranks", style=style),
        "nbytes": widgets.BoundedIntText(value=nbytes, min=1, max=2**31, step=16, description="bytes", style=style),
    }
    flags = {
        name: widgets.ToggleButton(description=text, value=name in ("own_custom", "multicast")) for name, text in _FLAGS.items()
    }
    shown = widgets.HTML()

    def update(_change: object = None) -> None:
        values = {name: control.value for name, control in controls.items()}
        facts = {name: int(flag.value) for name, flag in flags.items()}
        shown.value = _decide(values, facts)

    for control in (*controls.values(), *flags.values()):
        control.observe(update, names="value")
    update()
    rows = [
        widgets.HBox(list(controls.values())[:3]),
        widgets.HBox(list(controls.values())[3:]),
        widgets.HBox(list(flags.values())),
    ]
    return widgets.VBox([*rows, shown])


def _decide(values: Mapping[str, Any], facts: Mapping[str, int]) -> str:
    """The Decision for the toggles as HTML, or the message of what cannot be."""
    from html import escape

    try:
        group = machine(values["gpu"], values["link"], values["world_size"], **(facts if values["world_size"] > 1 else {}))
        decision = route(Call(min(values["nbytes"], SIZE_MAX)), group, context=values["context"], sglang=values["sglang"])
    except InputError as error:
        return f"<b>{escape(str(error))}</b>"
    return decision_html(decision)
