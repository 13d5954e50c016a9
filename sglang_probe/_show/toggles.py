"""Toggles around one question: controls above, under them the question as code and its answer. Used by sglang_probe.notebook.

CONTROLS is the one table of what can be toggled: a widget names some of its rows, each with the value that it starts with.
Invariant: the answer shown is what the code above it gives, because both are made of the same arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._facts import SIZE_MAX
from .._releases import RELEASES
from .._route import CONTEXTS, PATHS, RULES
from .._server.hardware import GPUS, LINKS
from .._types import FrozenMap, InputError, ProbeUnavailable
from ..models import presets
from .page import Line, to_html

OWN = "(its own)"
"""The choice that gives None: the server, the release or the GPU says. A list of ipywidgets shows None as no choice at all."""
ANY = "any"


@dataclass(frozen=True)
class Control:
    """One toggle. With choices it is a list, with a largest number a field, with neither a switch."""

    label: str
    tip: str = ""
    choices: Sequence[object] = ()
    """Values, or pairs of a text and a value."""
    most: int = 0


CONTROLS: Mapping[str, Control] = FrozenMap(
    {
        "sglang": Control("SGLang", "the release, or one of two commits", tuple(reversed(RELEASES))),
        "model": Control("model", "a preset in place of the model of the launch line", (OWN, *(model.name for model in presets()))),
        "gpu": Control("GPU", "", tuple(GPUS)),
        "link": Control("link", "how the GPUs of a node are linked", (OWN, *LINKS)),
        "world_size": Control("ranks", "GPUs of the tensor-parallel group", (1, 2, 3, 4, 6, 8, 16)),
        "batch": Control("requests", "requests of the step; a captured batch is padded", most=1 << 20),
        "draft_tokens": Control("draft tokens", "tokens of one request in a verify step; 1: no speculation", (OWN, *range(1, 17))),
        "nbytes": Control("bytes", "of the tensor", most=SIZE_MAX),
        "context": Control("context", "what surrounds the call", tuple(CONTEXTS)),
        "phase": Control("context", "what surrounds the step; its own: what this server does with this batch", (OWN, *CONTEXTS)),
        "piecewise": Control("piecewise flag", "set in the context, whether this server ever sets it or not"),
        "custom": Control("custom", "off: --disable-custom-all-reduce"),
        "torch_symm_mem": Control("torch symm mem", "--enable-torch-symm-mem"),
        "symm_mem": Control("NCCL symm mem", "--enable-symm-mem"),
        "mscclpp": Control("mscclpp", "--enable-mscclpp"),
        "quick": Control("quick (ROCm)", "ROCM_QUICK_REDUCE_QUANTIZATION=FP"),
        "pcie_ipc": Control("PCIe IPC", "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1"),
        "pynccl": Control("pynccl", "a group that is built with it or without: no flag of SGLang's turns it off"),
        "flashinfer": Control(
            "FlashInfer fusion",
            "--enable-flashinfer-allreduce-fusion, or the flag that forbids it",
            (OWN, ("on", True), ("off", False)),
        ),
        "own_custom": Control("custom", "the group is built with it"),
        "own_torch_symm_mem": Control("torch symm mem", "--enable-torch-symm-mem"),
        "own_mscclpp": Control("mscclpp", "--enable-mscclpp"),
        "own_pynccl": Control("pynccl", "the group is built with it"),
        "has_mscclpp": Control("mscclpp imports"),
        "multicast": Control("multicast", "the group's symmetric memory has a multicast address"),
        "target": Control("rule or path", "", tuple(dict.fromkeys([*RULES[1:], *map(str, PATHS)]))),
    }
)  # fmt: skip


@dataclass(frozen=True)
class Said:
    """An argument that code does not write as its repr."""

    value: object
    text: str


@dataclass(frozen=True)
class Question:
    """A call of a public function."""

    name: str
    function: Callable[..., Any]
    args: Sequence[object] = ()
    named: Mapping[str, object] = field(default_factory=lambda: FrozenMap({}))

    @property
    def code(self) -> str:
        named = (f"{name}={_text(value)}" for name, value in self.named.items())
        return f"{self.name}({', '.join([*map(_text, self.args), *named])})"

    def answer(self) -> Any:
        return self.function(*map(_value, self.args), **{name: _value(value) for name, value in self.named.items()})


def _text(value: object) -> str:
    return value.text if isinstance(value, Said) else repr(value)


def _value(value: object) -> object:
    return value.value if isinstance(value, Said) else value


_ARROW = "M5 7l4 4 4-4"
_STYLE = (
    "<style>.sglang-probe { --jp-widgets-dropdown-arrow: url(\"data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' "
    f"viewBox='0 0 18 18'%3E%3Cpath d='{_ARROW}' fill='none' stroke='%23888' stroke-width='2'/%3E%3C/svg%3E\"); }}</style>"
)
"""A list's arrow that shows in dark themes too: that of ipywidgets is black in all."""
Ask = Callable[[dict[str, Any]], Question]
Rows = Mapping[str, Mapping[str, Any]]


def shown_html(ask: Ask, values: dict[str, Any]) -> str:
    """The question and its answer, or the text of what cannot be asked."""
    code = ""
    try:
        question = ask(values)
        code = f'<div style="margin-bottom:.6em">{to_html([Line(question.code, "command")])}</div>'
        return f"{code}{question.answer()._repr_html_()}"
    except InputError as error:
        return code + to_html([Line(str(error), "warn")])


def toggles(rows: Rows, ask: Ask, controls: Mapping[str, Control] = CONTROLS) -> Any:
    """An ipywidgets box. ``rows`` has the controls that it shows, by the title of their row, each with the value that it starts with."""
    try:
        import ipywidgets as widgets
    except ImportError:
        raise ProbeUnavailable("no ipywidgets here: pip install 'sglang_probe[notebook]'") from None
    made = {title: {name: _control(controls[name], value) for name, value in row.items()} for title, row in rows.items()}
    every = {name: control for row in made.values() for name, control in row.items()}
    shown = widgets.HTML(layout={"margin": "8px 0 0 0"})

    def update(_change: object = None) -> None:
        values = {name: None if control.value == OWN else control.value for name, control in every.items()}
        shown.value = shown_html(ask, values)

    for control in every.values():
        control.observe(update, names="value")
    update()
    wrapped = {"flex_flow": "row wrap", "align_items": "center", "grid_gap": "2px 14px", "flex": "1 1 0"}
    lines = []
    for title, row in made.items():
        head = widgets.Label(title, layout={"width": "120px"}, style={"font_weight": "bold"})
        lines.append(widgets.HBox([head, widgets.Box(list(row.values()), layout=wrapped)], layout={"max_width": "1100px"}))
    lines[0].children += (widgets.HTML(_STYLE, layout={"display": "none"}),)
    box = widgets.VBox([*lines, shown])
    box.add_class("sglang-probe")
    return box


def _control(control: Control, value: Any) -> Any:
    import ipywidgets as widgets

    same: dict[str, Any] = {"description": control.label, "tooltip": control.tip or None}
    narrow = {"style": {"description_width": "initial"}, "layout": {"width": "auto"}}
    if control.most:
        return widgets.BoundedIntText(
            value, min=1, max=control.most, style=narrow["style"], layout={"width": f"{len(control.label) + 12}ch"}, **same
        )
    if not control.choices:
        return widgets.Checkbox(value, indent=False, layout=narrow["layout"], **same)
    choices = [choice if isinstance(choice, tuple) else (str(choice), choice) for choice in control.choices]
    value = OWN if value is None else value
    if value not in [choice for _, choice in choices]:
        choices.insert(0, (str(value), value))
    return widgets.Dropdown(options=choices, value=value, **narrow, **same)
