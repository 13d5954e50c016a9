"""Recording stand-ins for what SGLang's dispatch talks to: a tensor, and communicators in each state. Used by dispatch.py.

A stand-in writes what was asked of it into a shared trace and computes nothing.
Invariant: an attribute that a stand-in lacks is a LiftError, a gap of ours; it can never pass for an exception of SGLang's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._source.lift import LiftError


class Tensor:
    """The tensor of the call: only what the dispatch may ask of one before a communicator has it."""

    def __init__(self, trace: list[str], kind: str) -> None:
        self.kind, self._trace = kind, trace
        self.dtype, self.is_cpu = "bf16", False
        self.symmetric_memory = False  # the tag that tensors of the old eras may carry
        self.copy: Tensor | None = None

    def clone(self) -> Tensor | None:
        self._trace.append("clone")
        return self.copy

    def numel(self) -> int:
        return 1024

    def element_size(self) -> int:
        return 2

    def __getattr__(self, name: str) -> Any:
        raise LiftError(f"the dispatch asks the tensor for {name!r}, which the stand-in does not know")


class Strict:
    """A stand-in: an attribute that it lacks is a gap of ours, not SGLang's AttributeError."""

    def __getattr__(self, name: str) -> Any:
        raise LiftError(f"the dispatch uses {name!r} of {type(self).__name__}, which the stand-in does not know")


class Communicator(Strict):
    """Custom, quick, MSCCL++, torch symmetric memory or PCIe-IPC in one state. A disabled one's predicate says no, as SGLang's do."""

    max_size = 1 << 23

    def __init__(self, trace: list[str], out: Tensor, name: str, state: str, in_place: bool = False) -> None:
        self.disabled = state == "disabled"
        accepts = state == "accepts"

        def asked(_input: Tensor) -> bool:
            return accepts

        def run(tensor: Tensor, **_: object) -> Tensor:
            trace.append(name)
            return tensor if in_place else out

        def run_or_none(tensor: Tensor, **_: object) -> Tensor | None:
            if not accepts:
                trace.append("custom_none")  # v1 asks its predicate again and returns None
                return None
            return run(tensor)

        def symmetric(_tensor: Tensor, **named: Any) -> Tensor:
            target = named.get("out")
            trace.append(name if target is None else "torch_symm_mem_out")
            return out if target is None else target

        def deterministic(_tensor: Tensor, registered: bool) -> Tensor:
            trace.append("amd")
            return out

        def register(_tensor: Tensor) -> None:
            pass

        self.should_custom_ar = self.should_quick_allreduce = self.should_mscclpp_allreduce = asked
        self.should_symm_mem_allreduce = self.should_torch_symm_mem_allreduce = self.should_pcie_ipc_ar = asked
        self.custom_all_reduce, self.deterministic_all_reduce, self.register_buffer = run_or_none, deterministic, register
        self.quick_all_reduce = self.pcie_ipc_all_reduce = run
        self.all_reduce: Callable[..., Tensor] = symmetric if name == "torch_symm_mem" else run


class Pynccl(Strict):
    """pynccl, enabled or not; `change_state` enables it for the body of a `with`, as SGLang's does."""

    def __init__(self, trace: list[str], out: Tensor, enabled: bool) -> None:
        self._trace, self._out, self.disabled, self._before = trace, out, not enabled, not enabled

    def change_state(self, enable: bool | None = None, stream: object = None) -> Pynccl:
        self._before, self._next = self.disabled, not enable if enable is not None else False
        return self

    def __enter__(self) -> None:
        self.disabled = self._next

    def __exit__(self, *_: object) -> None:
        self.disabled = self._before

    def all_reduce(self, _tensor: Tensor, **_: object) -> None:
        self._trace.append("pynccl_off" if self.disabled else "pynccl")

    def outplace_all_reduce(self, _tensor: Tensor, **_: object) -> Tensor | None:
        self._trace.append("pynccl_off" if self.disabled else "pynccl_out")
        return None if self.disabled else self._out


class Device(Strict):
    """The communicator of an HPU, XPU or NPU group."""

    def __init__(self, trace: list[str], name: str, out: Tensor) -> None:
        def all_reduce(tensor: Tensor) -> Tensor:
            trace.append(name)
            return tensor

        self.disabled, self.all_reduce = False, all_reduce
