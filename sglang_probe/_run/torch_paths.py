"""The paths that are torch's own, on GPU ranks: torch.distributed, and torch symmetric memory without multicast. Registered by worker.py.

torch's process group is made when the first of them runs; its ranks meet in a memfd that they share, so no port is opened and no file is
left (ranks on several machines: at a store that rank 0 serves). Invariant: TORCH_SYMM_MEM_DISABLE_MULTICAST and every NCCL variable stay
as the user set them; multimem is never run, and a release that takes it here is told so.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .._decision import Gate
from .._facts import DTYPE_BYTES, DTYPES
from .._types import Path, ProbeError
from .arrays import need_torch

if TYPE_CHECKING:
    from .coordinator import Coordinator

_NCCL_DTYPES = ("bf16", "fp16", "fp32", "fp64", "int8", "int32", "int64")
_LEAVING_S = 10.0
"""How long torch may take to end its group. NCCL waits for the last captured graph to be dropped, and for its peers."""
_PLAIN = 7
"""Layout bits of a Coordinator's plan: contiguous, dense and aligned."""
_SYMM_DTYPE, _SYMM_ELEMENT = "bf16", 2
Store = int | Callable[[Any, float], Any]
"""Where torch's ranks meet: a memfd, or what makes a store of torch.distributed, collectively, within so many seconds."""


class TorchGroup:
    """torch's default process group over this group's ranks: made once, collectively, or the one that the user made."""

    def __init__(self, rank: int, world_size: int, store: Store, backend: str = "nccl") -> None:
        self._rank, self._size, self._store, self._backend = rank, world_size, store, backend
        self._distributed: Any = None
        self._made = False

    def make(self, timeout_s: float) -> Any:
        """torch.distributed with its group there. All ranks come here in the same call."""
        if self._distributed is not None:
            return self._distributed
        torch = need_torch()
        distributed = torch.distributed
        if not distributed.is_initialized():
            self._made = True
            options: dict[str, Any] = {}
            if self._backend == "nccl":  # the communicator is built now, and not in the middle of a capture
                options["device_id"] = torch.device("cuda", torch.cuda.current_device())
            distributed.init_process_group(
                self._backend,
                store=self._meeting(distributed, timeout_s),
                rank=self._rank,
                world_size=self._size,
                timeout=timedelta(seconds=timeout_s),
                **options,
            )
        if distributed.get_world_size() != self._size or distributed.get_rank() != self._rank:
            mine = f"rank {distributed.get_rank()} of {distributed.get_world_size()}"
            raise ProbeError(
                f"torch's default process group is {mine}, made by somebody else; this is {self._rank} of {self._size}"
            )
        self._distributed = distributed
        return distributed

    def _meeting(self, distributed: Any, timeout_s: float) -> Any:
        if callable(self._store):
            return self._store(distributed, timeout_s)
        return distributed.FileStore(f"/proc/self/fd/{self._store}", self._size)

    def leave(self) -> None:
        """Ends the group that was made here, and no other. Never takes longer than its limit: then its communicators are aborted."""
        distributed, self._distributed = self._distributed, None
        if not self._made or distributed is None:
            return
        gc.collect()  # graphs that are held by nothing but each other hold NCCL back for ever
        abort = getattr(distributed.distributed_c10d, "_abort_process_group", None)  # not in every torch
        if not self._in_time(distributed.destroy_process_group) and abort is not None:
            self._in_time(abort)

    def _in_time(self, call: Callable[[], object]) -> bool:
        """Whether it returned, or failed, within the limit: nobody is left to be told how."""

        def run(device: int | None) -> None:
            with contextlib.suppress(Exception):
                if device is not None:
                    need_torch().cuda.set_device(device)  # each thread has its own
                call()

        device = need_torch().cuda.current_device() if self._backend == "nccl" else None
        thread = threading.Thread(target=run, args=(device,), daemon=True)
        thread.start()
        thread.join(_LEAVING_S)
        return not thread.is_alive()

    def missing(self) -> str:
        """Why torch cannot make one here, or ""."""
        distributed = need_torch().distributed
        if not distributed.is_available():
            return "this torch was built without torch.distributed"
        if self._backend == "nccl" and not distributed.is_nccl_available():
            return "this torch was built without NCCL"
        return ""


class _TorchPath:
    """What both have in common: torch's tensors, and a wait with a limit."""

    def __init__(self, group: TorchGroup) -> None:
        self.group = group

    def prepare(self, nbytes: int, dtype: str, timeout_s: float) -> None:
        """Everything that may not happen while a stream captures; collective."""
        self.group.make(timeout_s)

    def finish(self, timeout_s: float) -> None:
        """Until the current stream is done; raises TimeoutError at the limit."""
        torch = need_torch()
        event = torch.cuda.Event()
        event.record()
        limit = time.monotonic() + timeout_s
        while not event.query():
            if time.monotonic() > limit:
                raise TimeoutError(f"torch's all-reduce is not done after {timeout_s:g} s: a rank did not call it, or is gone")
            time.sleep(0.0001)

    def _tensor(self, array: Any) -> Any:
        torch = need_torch()
        return array if isinstance(array, torch.Tensor) else torch.from_dlpack(array)


class TorchDistributed(_TorchPath):
    """``torch.distributed.all_reduce``, in place, on the current stream."""

    def supports(self, nbytes: int, dtype: str) -> str:
        missing = self.group.missing()
        return missing or ("" if dtype in _NCCL_DTYPES else f"NCCL sums no {dtype}")

    def enqueue(self, tensor: Any, out: Any, timeout_s: float) -> None:
        distributed = self.group.make(timeout_s)
        target = self._tensor(out)
        if out is not tensor:
            target.copy_(self._tensor(tensor))
        distributed.all_reduce(target)


class TorchSymmMem(_TorchPath):
    """``torch.distributed._symmetric_memory`` as SGLang uses it: copied into its buffer, reduced there by two shots, copied out."""

    def __init__(self, group: TorchGroup, coordinator: Coordinator) -> None:
        super().__init__(group)
        self._coordinator = coordinator
        self._buffer: Any = None
        self._name = ""

    def supports(self, nbytes: int, dtype: str) -> str:
        missing = self.group.missing()
        if missing:
            return missing
        if dtype != _SYMM_DTYPE:
            return f"SGLang's communicator takes bf16 alone, not {dtype}"
        gate = self._gate(nbytes, dtype)
        if gate.kernel == "multimem":
            return "this release takes multimem here (NVLink multicast), which is not run; set another world size, arch or path"
        try:
            self._make(max(nbytes, gate.limit_bytes), self._coordinator.timeout_s)
        except (ImportError, AttributeError, RuntimeError) as error:
            return f"torch's symmetric memory does not work here: {str(error).splitlines()[0] if str(error) else error!r}"
        return ""

    def prepare(self, nbytes: int, dtype: str, timeout_s: float) -> None:
        super().prepare(nbytes, dtype, timeout_s)
        self.supports(nbytes, dtype)

    def _gate(self, nbytes: int, dtype: str) -> Gate:
        """What SGLang's communicator answers for a plain tensor of this size."""
        c, columns = self._coordinator, nbytes // DTYPE_BYTES[dtype]
        plain = nbytes, columns, 2, c.settings.bits, DTYPES[dtype], _PLAIN, 0
        return c._decide(c.settings, plain).gates["torch_symm_mem"]

    def _make(self, nbytes: int, timeout_s: float) -> None:
        """The symmetric buffer, on every rank at once; of the communicator's own largest size."""
        if self._buffer is not None and self._buffer.numel() * _SYMM_ELEMENT >= nbytes:
            return
        torch = need_torch()
        distributed = self.group.make(timeout_s)
        symmetric: Any = importlib.import_module("torch.distributed._symmetric_memory")
        self._name = distributed.group.WORLD.group_name
        buffer = symmetric.empty(nbytes // _SYMM_ELEMENT, dtype=torch.bfloat16, device=torch.cuda.current_device())
        symmetric.rendezvous(buffer, self._name)
        self._buffer = buffer

    def enqueue(self, tensor: Any, out: Any, timeout_s: float) -> None:
        torch = need_torch()
        source, target = self._tensor(tensor).view(-1), self._tensor(out).view(-1)
        part = self._buffer[: source.numel()]
        part.copy_(source)
        torch.ops.symm_mem.two_shot_all_reduce_(part, "sum", self._name)
        target.copy_(part)


def register(coordinator: Coordinator, store: Store) -> None:
    """Both paths, on this rank; nothing of torch's is made yet."""
    group = TorchGroup(coordinator.rank, coordinator.world_size, store)
    paths: dict[Path, TorchDistributed | TorchSymmMem] = {
        Path.TORCH_DISTRIBUTED: TorchDistributed(group),
        Path.TORCH_SYMM_MEM: TorchSymmMem(group, coordinator),
    }
    vars(coordinator)["torch_paths"] = paths
    for path, implementation in paths.items():
        coordinator.register(path, implementation)


def prepare(coordinator: Coordinator, path: Path, nbytes: int, dtype: str) -> None:
    """Before a capture that takes one of them: what torch builds on the first call. Collective; nothing for any other path."""
    implementation = vars(coordinator).get("torch_paths", {}).get(path)
    if implementation is not None:
        implementation.prepare(nbytes, dtype, coordinator.timeout_s)


def leave(coordinator: Coordinator) -> None:
    """In order, before the Coordinator is closed."""
    for implementation in vars(coordinator).get("torch_paths", {}).values():
        implementation.group.leave()
