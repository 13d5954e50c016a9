"""For notebooks: toggles around one Decision and around one proof, and the pictures of _show/. Imported by notebooks only.

ipywidgets and matplotlib are loaded where they are used (the extra ``notebook`` brings them).
Invariant: what a toggle shows is what the public function answers; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._facts import SIZE_MAX
from ._releases import RELEASES, newest, resolve
from ._route import CONTEXTS, PATHS, RULES, route
from ._server.hardware import GPUS, gpu_by_name
from ._show.against import against
from ._show.against_result import Against
from ._show.figures import CAPTION, STYLES, Picture, band_columns, bands_figure, history_figure
from ._show.latency import latency_figure
from ._show.render import decision_html
from ._types import Call, FrozenMap, Group, InputError, ProbeUnavailable

__all__ = [
    "Against",
    "CAPTION",
    "STYLES",
    "Picture",
    "against",
    "band_columns",
    "bands_figure",
    "can_be_reached",
    "history_figure",
    "latency_figure",
    "machine",
    "which_path",
]

# -------------------------------------------------------------------------------------------------------------------------- toggles

_FLAGS = FrozenMap(
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


# ---------------------------------------------------------------------------------------------------------------------------- proof

_ANY = "any"


def can_be_reached(target: str = "piecewise_pynccl", *, sglang: str | None = None, **fixed: object) -> Any:
    """Toggles (rule or path, release, every condition: any, or one value) around one proof with its reason: an ipywidgets box."""
    try:
        import ipywidgets as widgets
    except ImportError:
        raise ProbeUnavailable("no ipywidgets here: pip install 'sglang_probe[notebook]'") from None
    from ._proof.ask import reach
    from ._proof.space import CONDITIONS, VALUES

    start = sglang or newest()
    reach(target, sglang=start, **fixed)  # type: ignore[arg-type] # conditions; what cannot be asked is refused here
    style = {"description_width": "initial"}
    names = list(dict.fromkeys([*RULES[1:], *map(str, PATHS)]))
    controls: dict[str, Any] = {
        "target": widgets.Dropdown(options=names, value=target, description="rule or path", style=style),
        "sglang": widgets.Dropdown(options=tuple(reversed(RELEASES)), value=start, description="SGLang", style=style),
    }
    for name in CONDITIONS:
        if name in VALUES:
            options = [(_ANY, _ANY), *((str(value), value) for value in VALUES[name])]
            value = fixed.get(name, _ANY)
            controls[name] = widgets.Dropdown(options=options, value=value, description=name, style=style)
    shown = widgets.HTML()

    def update(_change: object = None) -> None:
        values = {name: control.value for name, control in controls.items()}
        shown.value = _prove(values.pop("target"), values.pop("sglang"), values)

    for control in controls.values():
        control.observe(update, names="value")
    update()
    boxes = list(controls.values())
    return widgets.VBox([*(widgets.HBox(boxes[i : i + 4]) for i in range(0, len(boxes), 4)), shown])


def _prove(target: str, sglang: str, values: Mapping[str, Any]) -> str:
    """The proof for the toggles as HTML, or the message of what cannot be asked."""
    from html import escape

    from ._proof.ask import reach

    fixed = {name: value for name, value in values.items() if value != _ANY}
    try:
        return reach(target, sglang=sglang, **fixed)._repr_html_()
    except InputError as error:
        return f"<b>{escape(str(error))}</b>"
