"""For notebooks: toggles around one step, one Decision and one proof, and the pictures of _show/. Imported by notebooks only.

ipywidgets and matplotlib are loaded where they are used (the extra ``notebook`` brings them).
Invariant: what a toggle shows is what the public function answers; nothing is decided here.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

from . import _core
from ._proof.ask import reach
from ._proof.space import CONDITIONS, VALUES
from ._releases import newest, resolve
from ._route import dispatch, route
from ._server.hardware import check_link, gpu_by_name
from ._show.against import against
from ._show.against_result import Against
from ._show.figures import CAPTION, STYLES, band_columns, bands_figure, history_figure
from ._show.latency import latency_figure
from ._show.toggles import ANY, CONTROLS, Control, Question, Rows, Said, toggles
from ._show.toggles_step import which_step
from ._types import Call, Group

__all__ = [
    "Against",
    "CAPTION",
    "STYLES",
    "against",
    "band_columns",
    "bands_figure",
    "can_be_reached",
    "history_figure",
    "latency_figure",
    "machine",
    "which_path",
    "which_step",
]


def machine(gpu: str = "h200", link: str | None = None, world_size: int = 8, **facts: int | bool) -> Group:
    """A group on GPUs of one node, by the GPU's name; what the name does not say is assumed, as everywhere.

    Raises InputError for a GPU, a link or a fact that is none.
    """
    known = gpu_by_name(gpu)
    link = check_link(link) if link else known.link
    linked = link in ("nvlink", "xgmi")
    group = Group.make(world_size=world_size, device=_core.DEVICES.index(known.device), arch=known.arch, full_nvlink=linked)
    group = group.with_facts(
        "assumed", f"{gpu}, {link}", multicast=known.multicast and link == "nvlink", p2p=linked or known.peer
    )
    return group.with_facts("given", "", **facts)


_FACTS = {
    "own_custom": True,
    "own_torch_symm_mem": False,
    "own_mscclpp": False,
    "has_mscclpp": False,
    "own_pynccl": True,
    "symm_mem": False,
    "multicast": True,
}


def which_path(
    *, sglang: str | None = None, gpu: str = "h200", context: str = "capture", world_size: int = 8, nbytes: int = 43008
) -> Any:
    """Toggles (release, context, GPU, link, ranks, bytes, communicators) around one Decision with its reasons: an ipywidgets box.

    Raises InputError for a release that is none, ProbeUnavailable without ipywidgets.
    """
    start = sglang or newest()
    resolve(start)
    rows: Rows = {
        "call": {"sglang": start, "context": context, "nbytes": nbytes},
        "group": {"gpu": gpu, "link": None, "world_size": world_size},
        "communicators": _FACTS,
    }
    return toggles(rows, _call_asked)


def _call_asked(values: dict[str, Any]) -> Question:
    shape = values["gpu"], values["link"], values["world_size"]
    facts = {name: values[name] for name in _FACTS} if values["world_size"] > 1 else {}
    told = ", ".join([*map(repr, shape), *(f"{name}={value}" for name, value in facts.items())])
    group = Said(machine(*shape, **facts), f"machine({told})")
    call = Said(Call(values["nbytes"]), f"probe.Call({values['nbytes']})")
    return Question("probe.route", route, (call, group), {"context": values["context"], "sglang": values["sglang"]})


def can_be_reached(target: str = "piecewise_pynccl", *, sglang: str | None = None, **fixed: object) -> Any:
    """Toggles (rule or path, release, every condition: any, or one value) around one proof with its reason: an ipywidgets box.

    Raises InputError for what ``probe.reach`` cannot be asked, ProbeUnavailable without ipywidgets.
    """
    start = sglang or newest()
    reach(target, sglang=start, **fixed)  # type: ignore[arg-type] # conditions; what cannot be asked is refused here
    names = [name for name in signature(dispatch).parameters if name in CONDITIONS and name in VALUES]
    controls = {name: Control(name, choices=((ANY, ANY), *((str(value), value) for value in VALUES[name]))) for name in names}
    rows: Rows = {"question": {"target": target, "sglang": start}, "conditions": {name: fixed.get(name, ANY) for name in names}}
    return toggles(rows, _proof_asked, {**CONTROLS, **controls})


def _proof_asked(values: dict[str, Any]) -> Question:
    fixed = {name: value for name, value in values.items() if name != "target" and value != ANY}
    return Question("probe.reach", reach, (values["target"],), fixed)
