"""Local: the Provider of fresh processes on this machine, a LocalGroup for each process set. See provider.py.

Invariant: two starts share no process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from .._run import machine
from .._run.local_group import LocalGroup
from .._run.toggles import seconds
from .._types import InputError

_RANKS_AUTO_MAX = 8
_HOST_RANKS = 2


class Local:
    """Each start is a new LocalGroup of the same arguments."""

    fresh = True

    def __init__(
        self,
        world_size: int | None,
        device: str,
        *,
        ordinals: Sequence[int] | None = None,
        facts: Mapping[str, int | bool] | None = None,
        timeout_s: float = 30.0,
        nccl: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        if world_size is not None and (isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1):
            raise InputError("world_size", world_size, "give a whole number, 1 or more")
        if ordinals is not None and (isinstance(ordinals, (str, bytes)) or not isinstance(ordinals, Sequence)):
            raise InputError("ordinals", ordinals, "give a list of numbers of GPUs, one a rank, from 0")
        size = world_size or (len(ordinals) if ordinals is not None else _ranks(device))
        if size < 2:
            nobody_chose = world_size is None and ordinals is None
            alone = "; here is one GPU: device='host' takes CPU ranks, ordinals=[0, 0] shares it" if nobody_chose else ""
            raise InputError("world_size", size, f"give 2 or more: there is nothing to reduce between fewer{alone}")
        choice = machine.choose(device, size, ordinals)
        self.device, self.why, self.world_size = choice.device, choice.why, size
        self.group = machine.default_group(choice, size).with_facts("given", "", **(facts or {}))
        self.how = "local processes"
        self._timeout_s = seconds("timeout_s", timeout_s)
        self.ordinals = choice.ordinals
        self._nccl, self._env = nccl, env

    def start(self) -> LocalGroup:
        return LocalGroup(
            self.world_size,
            device=self.device,
            group=self.group,
            timeout_s=self._timeout_s,
            nccl=self._nccl,
            ordinals=self.ordinals or None,
            env=self._env,
        )


def _ranks(device: str) -> int:
    """As many ranks as there are GPUs, `_RANKS_AUTO_MAX` at most; two, which are CPU ranks, where there is one or none. One GPU that
    was asked for is one rank, which is refused with what to do."""
    if device == "host":
        return _HOST_RANKS
    from .. import gpu

    count = len(gpu.devices()) if gpu.available() else 0
    if count == 1 and device == "gpu":
        return 1
    return min(count, _RANKS_AUTO_MAX) if count > 1 else _HOST_RANKS
