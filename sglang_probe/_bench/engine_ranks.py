"""What the engine's ranks need of one another before SGLang can: to be refused alike, and torch's process group. Used by engine_state.py.

Invariant: where a step fails on one rank, every rank is told why and raises the same. A step that is itself collective, and that one rank
leaves in its middle, ends for the others by torch's own limit, or by that of the order that they carry out.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .._releases import resolve
from .._run.arrays import need_torch
from .._run.switches import GATES, Settings
from .._run.torch_paths import TorchGroup
from .._types import Group, Path, ProbeUnavailable

if TYPE_CHECKING:
    from .._run.coordinator import Coordinator

_TEXT = 2048
"""Longest reason that ranks tell one another, in bytes."""
_TOLD_BY = "0.5.9"
"""A release by whose rules any group takes a plain path for that; which one does not matter to the answer."""


def tell(coordinator: Coordinator, text: str) -> list[str]:
    """What every rank says, by rank: an all-reduce of ours, by NCCL or else by custom, which ranks that share a GPU have. Collective."""
    said = np.zeros((coordinator.world_size, _TEXT), np.float32)  # a type of both
    mine = text.encode()[:_TEXT]
    said[coordinator.rank, : len(mine)] = np.frombuffer(mine, np.uint8)
    before, on_gpu = coordinator.settings, coordinator.device == "gpu"
    no_nccl = on_gpu and coordinator.paths[Path.PYNCCL_IN_PLACE].startswith("not here")
    off, on = (0, 0) if no_nccl else (GATES["custom"], GATES["pynccl"] if on_gpu else 0)
    group = Group.make(world_size=coordinator.world_size, arch=90, full_nvlink=True)
    try:
        coordinator.apply(Settings(resolve(_TOLD_BY), group, off=off, on=on))
        if on_gpu:
            told = coordinator.all_reduce(need_torch().from_numpy(said).cuda()).tensor.cpu().numpy()
        else:
            told = coordinator.all_reduce(said).tensor
    finally:
        coordinator.apply(before)
    return [bytes(row[row != 0].astype(np.uint8)).decode(errors="replace") for row in told]


def agree(coordinator: Coordinator, what: str, step: Callable[[], Any]) -> Any:
    """What the step gives; ProbeUnavailable on every rank where it failed on any. Collective."""
    result, why = None, ""
    try:
        result = step()
    except ProbeUnavailable as error:
        why = str(error)
    except Exception as error:  # SGLang's, and of what it imports: of any kind
        why = f"{what}: {type(error).__name__}: {' '.join(str(error).split()) or 'no text'}"
    for rank, said in enumerate(tell(coordinator, why)):
        if said:
            raise ProbeUnavailable(said if rank == coordinator.rank else f"{said} (rank {rank})")
    return result


def torch_group(coordinator: Coordinator, backend: str) -> TorchGroup:
    """torch's default process group over these ranks: the one of torch's own paths, or one that meets in a memfd of rank 0."""
    paths = vars(coordinator).get("torch_paths", {})
    if Path.TORCH_DISTRIBUTED in paths:
        group: TorchGroup = paths[Path.TORCH_DISTRIBUTED].group
        return group
    if need_torch().distributed.is_initialized():
        return TorchGroup(coordinator.rank, coordinator.world_size, -1, backend)
    mine = os.memfd_create("sglang_probe store") if coordinator.rank == 0 else -1
    where = tell(coordinator, f"/proc/{os.getpid()}/fd/{mine}")[0]

    def join() -> TorchGroup:
        store = mine if coordinator.rank == 0 else os.open(where, os.O_RDWR | os.O_CLOEXEC)
        return TorchGroup(coordinator.rank, coordinator.world_size, store, backend)

    group = agree(coordinator, f"rank 0's store {where} does not open", join)
    atexit.register(group.leave)
    return group
