"""Joining: from the variables of torchrun, mpirun or srun to a Coordinator of this process's rank. Coordinator.join() and bench come here.

On one machine rank 0 makes the board (and torch's store), and hands them to the others over the socket at which they meet. On several there
are GPU ranks alone, which meet over NCCL's own bootstrap: what is shared memory on one machine is not there, and says so.
Invariant: what all ranks must have alike (device, sizes, version) is compared before anything is built; who is absent is named in time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from .. import __version__, _core
from .._releases import Release
from .._types import Group, InputError, ProbeError, ProbeUnavailable
from .ask import whole
from .coordinator import Coordinator
from .launchers import Launched, find
from .machine import Choice, Device, default_group
from .meeting import Met, Peer, meet
from .toggles import seconds

_ARENA_BYTES = 64 << 20
_LONE_ARENA_BYTES = 1 << 20
_EXAMPLES = "torchrun --nproc-per-node 2 SCRIPT, mpirun -n 2 python SCRIPT or srun -n 2 python SCRIPT"


@dataclass(frozen=True)
class Together:
    """All ranks are there, and know what they run on; no Coordinator is made yet."""

    launched: Launched
    device: Device
    why: str
    ordinal: int
    """Of this rank's GPU."""
    machines: int
    board: int
    """A descriptor: the board of all ranks, or where they are apart this rank's own."""
    store: int = -1
    exchange: Any = None
    """Where they are apart: the capsule over which they meet."""
    peers: tuple[Peer, ...] = ()

    def group(self) -> Group:
        """The facts of this group that nobody gave."""
        choice = Choice(self.device, self.why, (self.ordinal,) if self.device == "gpu" else ())
        return default_group(choice, self.launched.world_size).with_facts("found", self.launched.launcher, nodes=self.machines)

    def tell_apart(self) -> None:
        """The connections end: from here on it is the board that tells of a rank's end."""
        for peer in self.peers:
            peer.channel.close()

    def close(self) -> None:
        """Its descriptors, once: whoever makes a Coordinator of it leaves that to the Coordinator."""
        for fd in (self.board, self.store):
            if fd >= 0:
                os.close(fd)


def launched(environ: Mapping[str, str] = os.environ) -> Launched:
    """Raises ProbeUnavailable where no launcher started this process."""
    found = find(environ)
    if found is None:
        raise ProbeUnavailable(
            f"no launcher started this process (none of RANK, OMPI_COMM_WORLD_RANK, PMI_RANK and SLURM_PROCID with a step is set): "
            f"run it by {_EXAMPLES}, or take LocalGroup(2), which starts its ranks itself"
        )
    return found


def together(
    found: Launched, device: str = "auto", *, timeout_s: float = 60.0, max_bytes: int = 16 << 20, nccl: str | None = None
) -> Together:
    """Collective. Raises InputError, ProbeUnavailable, TimeoutError naming absent ranks, ProbeError for ranks that do not fit."""
    if device not in ("auto", "host", "gpu"):
        raise InputError("device", device, "give auto, host or gpu")
    whole("max_bytes", max_bytes)
    seconds("timeout_s", timeout_s)
    mine = _Wish.of(found, device, max_bytes)
    if found.apart:
        return _over_nccl(found, mine, nccl, timeout_s)

    def decide(wishes: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], tuple[int, ...]]:
        chosen, why = _agree([_Wish(**wish) for wish in wishes])
        fds = [_core.board_create(found.world_size, _ARENA_BYTES + (8 * max_bytes if chosen == "host" else 0))]
        if chosen == "gpu":
            fds.append(os.memfd_create("sglang_probe store"))
        return {"device": chosen, "why": why}, tuple(fds)

    met = Met(*decide([vars(mine)]), ()) if found.world_size == 1 else meet(found, vars(mine), decide, timeout_s)
    chosen: Device = "gpu" if met.decision["device"] == "gpu" else "host"
    store = met.fds[1] if len(met.fds) > 1 else -1
    return Together(found, chosen, str(met.decision["why"]), max(mine.ordinal, 0), 1, met.fds[0], store, peers=met.peers)


@dataclass(frozen=True)
class _Wish:
    """What one rank asks for and has, as plain data."""

    device: str
    max_bytes: int
    version: str
    ordinal: int
    """-1: no GPU for it."""
    gpu: str
    """Its name for ever."""
    why: str
    """Why it has no GPU."""
    machine: str

    @staticmethod
    def of(found: Launched, device: str, max_bytes: int) -> _Wish:
        ordinal, gpu, why = (-1, "", "CPU ranks were asked for") if device == "host" else _my_gpu(found)
        return _Wish(device, max_bytes, __version__, ordinal, gpu, why, _machine())


def _my_gpu(found: Launched) -> tuple[int, str, str]:
    """(ordinal, its UUID, "") of this rank's, or (-1, "", why there is none)."""
    from .. import gpu

    available = gpu.available()
    if not available:
        return -1, "", str(available)
    if importlib.util.find_spec("torch") is None:
        return -1, "", "tensors on GPUs are torch's, and torch is not installed here"
    devices = gpu.devices()
    local = found.local_rank
    if local >= len(devices):
        if len(devices) != 1:
            return -1, "", f"it sees {len(devices)} GPUs, and is rank {local} of this machine, from 0"
        local = 0  # its launcher gave each rank one
    return local, devices[local].uuid, ""


def _machine() -> str:
    """The same for all processes of one running kernel."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return socket.gethostname()


def _agree(wishes: Sequence[_Wish]) -> tuple[Device, str]:
    """(device, why). Raises ProbeError where ranks ask for different things, ProbeUnavailable where GPUs are asked for in vain."""
    first = wishes[0]
    for rank, wish in enumerate(wishes):
        for name in ("device", "max_bytes", "version"):
            if getattr(wish, name) != getattr(first, name):
                raise ProbeError(
                    f"rank 0 has {name}={getattr(first, name)!r} and rank {rank} {name}={getattr(wish, name)!r}: give every rank the same"
                )
    if first.device == "host":
        return "host", first.why
    reason = next((f"rank {rank}: {wish.why}" for rank, wish in enumerate(wishes) if wish.ordinal < 0), "")
    owner: dict[str, int] = {}
    for rank, wish in enumerate(wishes):
        other = owner.setdefault(wish.gpu, rank)
        if not reason and other != rank:
            reason = f"ranks {other} and {rank} are both on {wish.gpu}"
    if not reason:
        return "gpu", f"each of the {len(wishes)} ranks has a GPU"
    if first.device == "gpu":
        raise ProbeUnavailable(f"no group of {len(wishes)} GPU ranks: {reason}; device='host' takes CPU ranks")
    return "host", f"no GPU ranks: {reason}"


# ------------------------------------------------------------------------------------------------------------------- several machines


def _over_nccl(found: Launched, mine: _Wish, nccl: str | None, timeout_s: float) -> Together:
    if mine.device == "host" or mine.ordinal < 0:
        raise ProbeUnavailable(
            f"{found}: ranks on several machines are GPU ranks (CPU ranks meet in shared memory), and this one has no GPU: {mine.why}"
        )
    from .. import _gpu, gpu

    path = nccl if nccl is not None else gpu.find_nccl()
    with _root_at(found.need_address()):
        exchange = _gpu.exchange(found.rank, found.world_size, mine.ordinal, path, timeout_s)
    wishes = [
        _Wish(**json.loads(text)) for text in _gpu.exchange_all_gather(exchange, json.dumps(vars(mine)).encode(), timeout_s)
    ]
    _, why = _agree([replace(wish, device="gpu") for wish in wishes])
    machines = max(len({wish.machine for wish in wishes}), 2)  # forced apart on one, they count as if on two
    return Together(found, "gpu", why, mine.ordinal, machines, _core.board_create(1, _LONE_ARENA_BYTES), exchange=exchange)


@contextlib.contextmanager
def _root_at(address: str) -> Iterator[None]:
    """NCCL reads where its root is from the environment; only this one communicator is to be built there."""
    if os.environ.get("NCCL_COMM_ID"):  # the user's own stays
        yield
        return
    os.environ["NCCL_COMM_ID"] = address
    try:
        yield
    finally:
        del os.environ["NCCL_COMM_ID"]


class _FarStore:
    """torch's store for ranks on several machines: rank 0 serves it at a port of its own, which it tells over the exchange."""

    def __init__(self, at: Together) -> None:
        self._exchange, self._rank, self._size = at.exchange, at.launched.rank, at.launched.world_size
        self._host = at.launched.need_address().rpartition(":")[0].strip("[]")

    def __call__(self, distributed: Any, timeout_s: float) -> Any:
        from datetime import timedelta

        from .. import _gpu

        options = {"world_size": self._size, "timeout": timedelta(seconds=timeout_s), "wait_for_workers": False}
        mine = distributed.TCPStore(self._host, 0, is_master=True, **options) if self._rank == 0 else None
        port = int(_gpu.exchange_all_gather(self._exchange, str(mine.port if mine else 0).encode(), timeout_s)[0])
        return mine or distributed.TCPStore(self._host, port, is_master=False, **options)


# ------------------------------------------------------------------------------------------------------------------------- Coordinator


class Joined(Coordinator):
    """A Coordinator of a rank that a launcher started; ``launched`` says which rank of what."""

    def __init__(
        self,
        at: Together,
        group: Group | None = None,
        *,
        sglang: str | Release | None = None,
        timeout_s: float = 30.0,
        max_bytes: int = 16 << 20,
        nccl: str | None = None,
    ) -> None:
        self._at, self._end = at, weakref.finalize(self, at.close)
        if at.device == "gpu":
            from .arrays import need_torch

            need_torch().cuda.set_device(at.ordinal)
        super().__init__(
            group if group is not None else at.group(),
            board=at.board,
            rank=at.launched.rank,
            world_size=at.launched.world_size,
            device=at.device,
            sglang=sglang,
            ordinal=at.ordinal,
            timeout_s=timeout_s,
            max_bytes=max_bytes,
            nccl=nccl,
            **({} if at.exchange is None else {"exchange": at.exchange}),
        )
        if at.device == "gpu":
            from .torch_paths import register

            register(self, at.store if at.exchange is None else _FarStore(at))

    @property
    def launched(self) -> Launched:
        """The launcher, and this rank's place in it."""
        return self._at.launched

    @property
    def why(self) -> str:
        """Why these ranks are on this device."""
        return self._at.why

    def close(self) -> None:
        if self.device == "gpu":
            from .torch_paths import leave

            leave(self)
        super().close()
        self._at = replace(self._at, exchange=None)
        self._end()


def join(
    group: Group | None = None,
    *,
    device: Literal["auto", "host", "gpu"] = "auto",
    sglang: str | Release | None = None,
    timeout_s: float = 30.0,
    start_timeout_s: float = 60.0,
    max_bytes: int = 16 << 20,
    nccl: str | None = None,
) -> Joined:
    """See Coordinator.join."""
    at = together(launched(), device, timeout_s=start_timeout_s, max_bytes=max_bytes, nccl=nccl)
    joined = Joined(at, group, sglang=sglang, timeout_s=start_timeout_s, max_bytes=max_bytes, nccl=nccl)
    joined.timeout_s = timeout_s
    at.tell_apart()
    return joined
