"""Whose costs: the machine of a table, and the machine that a group runs on, as far as its facts tell. Called by the tables and by Costs.

Invariant: a table of another GPU, link, number of nodes or kind of device is refused with the reason; what cannot be compared is told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .. import _core
from .._server.hardware import GPUS, gpu_by_name
from .._types import Group, InputError

Link = Literal["nvlink", "pcie", "xgmi", "mixed", ""]
LINK_TEXTS = {
    "nvlink": "over NVLink",
    "pcie": "over PCIe",
    "xgmi": "over XGMI",
    "mixed": "linked in several ways",
    "": "links not told",
}


def this_host() -> str:
    """This host as Provenance.host has it; "" where nothing tells it from others."""
    from .._measure.provenance import host_identity  # asks the driver: only where a file is compared with this machine

    return host_identity()


def short_name(name: str) -> str:
    """The short name of a GPU: "rtx-pro-6000"; "" where it is not a known one."""
    try:
        return gpu_by_name(name).name
    except InputError:
        return ""


@dataclass(frozen=True)
class Machine:
    """What a table was measured on: all GPUs that its ranks could take, in order."""

    gpus: tuple[str, ...]
    """The driver's name of each; empty where none is told."""
    links: tuple[tuple[Link, ...], ...] = ()
    """From each to each; empty where that is not told."""
    device: Literal["gpu", "host"] = "gpu"
    cpu: str = ""
    nodes: int = 1

    def part(self, world_size: int) -> Machine:
        """The GPUs of a group of so many ranks: the first ones."""
        return replace(self, gpus=self.gpus[:world_size], links=tuple(row[:world_size] for row in self.links[:world_size]))

    @property
    def link(self) -> Link:
        """What links every pair."""
        found = {link for i, row in enumerate(self.links) for j, link in enumerate(row) if i != j}
        return found.pop() if len(found) == 1 else "mixed" if found else ""

    def __str__(self) -> str:
        if self.device == "host":
            return f"CPU ranks on {self.cpu or 'a CPU not told'}"
        names = dict.fromkeys(self.gpus)
        told = ", ".join(f"{self.gpus.count(name)}x {name}" for name in names) or "GPUs not told"
        return f"{told} {LINK_TEXTS[self.link]}"


@dataclass(frozen=True)
class Target:
    """What a cost is asked for: the machine of a group, as its facts say."""

    device: str
    """cuda, hip, cpu, ...: as `_core.DEVICES`; "host": our CPU ranks."""
    arch: int
    gpu: str
    """Short name; "" where the facts name no GPU that is known."""
    link: Link
    world_size: int
    nodes: int
    named: str = ""
    """Where the architecture comes from: a GPU's name, or other words."""

    def __str__(self) -> str:
        if self.device == "host":
            return f"{self.world_size} CPU ranks"
        kind = self.gpu or (f"SM{self.arch} GPU" if self.device == "cuda" else f"{self.device} device")
        over = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.world_size}x {kind} {LINK_TEXTS[self.link]}{over}"


def target_of(group: Group) -> Target:
    """The machine of a group. The name of its GPU is where its architecture comes from, where that is a name."""
    fact = group.facts.get("arch")
    device = _core.DEVICES[group.value("device")]
    linked = bool(group.value("full_nvlink"))
    return Target(
        device=device,
        arch=group.value("arch"),
        gpu=short_name(fact.source) if fact is not None else "",
        link=("xgmi" if device == "hip" else "nvlink") if linked else "pcie",
        world_size=group.world_size,
        nodes=group.value("nodes"),
        named="" if fact is None else fact.source,
    )


def mismatch(machine: Machine, target: Target) -> str:
    """Why costs of this machine say nothing of that one; "" where they do."""
    if machine.device == "host":
        return "" if target.device == "host" else f"it is of {machine}: CPU ranks are no GPUs"
    if target.device == "host":
        return "it is of GPUs, and CPU ranks are none"
    if not machine.gpus:
        return "it does not tell its GPUs"
    part = machine.part(target.world_size)
    kinds = dict.fromkeys(part.gpus)
    short = short_name(part.gpus[0])
    if target.gpu:
        same = short == target.gpu
    elif not short:
        same = _is_named(machine, target)
    else:
        same = short in GPUS and GPUS[short].device == target.device and GPUS[short].arch == target.arch
    fits = len(part.gpus) == target.world_size and len(kinds) == 1 and part.link == target.link and part.nodes == target.nodes
    return "" if same and fits and target.device == "cuda" else f"it is of {part}"


def _is_named(machine: Machine, target: Target) -> bool:
    """The driver's own name of a GPU that is not in our list."""
    return machine.gpus[0].lower() == target.named.lower()


def doubt(machine: Machine, target: Target) -> str:
    """What a person must know where they match: the group names no GPU."""
    if machine.device == "host" or target.gpu or _is_named(machine, target):
        return ""
    return f"no GPU is named: taken for {machine.gpus[0]}, which has the same architecture"
