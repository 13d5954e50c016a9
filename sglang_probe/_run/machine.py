"""What a group runs on: GPUs where there are enough of them, else CPU ranks; and the facts of either, each with its origin.

Called by LocalGroup. Invariant: what was not asked of this machine is assumed, and says so; no GPU is touched that is not asked for.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .._types import Group, InputError, ProbeUnavailable

Device = Literal["host", "gpu"]


@dataclass(frozen=True)
class Choice:
    """The device of a group, and why it is that one."""

    device: Device
    why: str
    ordinals: tuple[int, ...] = ()


def choose(device: str, world_size: int, ordinals: Sequence[int] | None) -> Choice:
    """Raises InputError for a bad wish, ProbeUnavailable where GPUs are asked for and are not there."""
    if device not in ("auto", "host", "gpu"):
        raise InputError("device", device, "give auto, host or gpu")
    if ordinals is not None and device == "host":
        raise InputError("ordinals", ordinals, "CPU ranks have no GPUs; leave it out, or give device='gpu'")
    if device == "host":
        return Choice("host", "CPU ranks were asked for")
    reason, count = _gpus()
    wanted = tuple(range(world_size)) if ordinals is None else _checked(ordinals, world_size)
    if not reason and max(wanted) >= count:
        reason = f"{world_size} ranks want GPUs {', '.join(map(str, wanted))}, and there are {count} (0 to {count - 1})"
    if not reason and importlib.util.find_spec("torch") is None:
        reason = "tensors on GPUs are torch's, and torch is not installed here"
    if not reason:
        return Choice("gpu", f"{count} GPUs are there", wanted)
    if device == "gpu" or ordinals is not None:
        raise ProbeUnavailable(f"no group of {world_size} GPU ranks: {reason}; device='host' takes CPU ranks")
    return Choice("host", f"no GPU ranks: {reason}")


def _checked(ordinals: Sequence[int], world_size: int) -> tuple[int, ...]:
    if len(ordinals) != world_size or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in ordinals):
        raise InputError("ordinals", ordinals, f"give {world_size} numbers of GPUs, one a rank, from 0")
    return tuple(ordinals)


def _gpus() -> tuple[str, int]:
    """("" or why there is none, how many)."""
    from .. import gpu

    available = gpu.available()
    return ("", len(gpu.devices())) if available else (str(available), 0)


def default_group(choice: Choice, world_size: int) -> Group:
    """The facts of a group on this device that nobody gave."""
    group = Group.make(world_size=world_size)
    if choice.device == "host":
        return group.with_facts("assumed", "CPU ranks stand for GPUs of one kind", device=0, arch=90, full_nvlink=True)
    from .. import gpu
    from .._server.hardware import find_gpus

    devices = gpu.devices()
    arch = devices[choice.ordinals[0]].arch
    group = group.with_facts("found", f"GPU {choice.ordinals[0]}", device=0, arch=arch)
    try:
        linked = find_gpus().link == "nvlink"
    except ProbeUnavailable as error:
        return group.with_facts("assumed", str(error), full_nvlink=True)
    return group.with_facts("found", "nvidia-ml-py", full_nvlink=linked)
