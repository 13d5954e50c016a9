"""A whole route by SGLang's own code: its group built, its communicators asked, its dispatch run, on stand-ins for torch.

`build` runs SGLang's own `GroupCoordinator.__init__` for a set of facts (lifted_group.py), `around` its own `graph_capture`, `ask` its
own `all_reduce` with one tensor. Called by test_reach_worker.py and bench_proof.py. Invariant: nothing of ours decides anything here;
what Python cannot know (kernels that refuse a tensor in C++) is marked as unseen, never guessed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from conformance.lifted_group import Built, LiftedGroup, Unseen

from sglang_probe._conform import torch_stand_ins as fake
from sglang_probe._conform.custom_stand_ins import Bytes
from sglang_probe._conform.dispatch import _read
from sglang_probe._conform.gate import BYTES, DEVICES
from sglang_probe._source.lift import LiftError
from sglang_probe._types import Call

COMPILED = ("bf16", "fp16", "fp32")
"""Types that V2's kernels are compiled for: what they do with others is C++."""
_CA, _QR, _SYMM = "ca_comm", "qr_comm", ("torch_symm_mem_comm", "symm_mem_comm")


class Seen(NamedTuple):
    """What SGLang did with one tensor; None where its Python cannot say."""

    path: str
    rule: str | None
    op: str | None
    error: str
    cloned: bool
    reduces: bool
    new: bool | None
    kernel: str | None


class CallTensor(Bytes):
    """The tensor of a call, as dispatch and every communicator may ask it. `aligned` is its address."""

    def __init__(self, call: Call, device: int) -> None:
        super().__init__(call.nbytes, call.dtype, call.contiguous, call.weak_contiguous or call.contiguous)
        self._count = call.nbytes // BYTES[call.dtype]
        width = call.hidden or self._count
        rows = self._count // width
        self.shape = (self._count,) if call.dims == 1 else (1,) * (call.dims - 2) + (rows, width)
        self.ndim, self.itemsize = len(self.shape), BYTES[call.dtype]
        self.is_cpu, self.symmetric_memory = device == DEVICES["cpu"], call.registered
        self._address = 256 if call.aligned else 260
        self.copies: list[CallTensor] = []
        self._call, self._where = call, device

    def numel(self) -> int:
        return self._count

    def element_size(self) -> int:
        return self.itemsize

    def data_ptr(self) -> int:
        return self._address

    def clone(self) -> CallTensor:
        self.copies.append(CallTensor(self._call, self._where))
        return self.copies[-1]


class LiftedRoute(LiftedGroup):
    """One revision's group construction, communicators and dispatch, lifted, and what they did with a tensor."""

    def observe(self, group: Any) -> None:
        """Lets every communicator of a group note that it runs."""
        trace = self._trace
        for name, event in ((_CA, "custom"), (_QR, "quick"), ("pymscclpp_comm", "mscclpp"), ("pcie_ipc_comm", "pcie_ipc")):
            method = {_CA: "custom_all_reduce", _QR: "quick_all_reduce", "pcie_ipc_comm": "pcie_ipc_all_reduce"}.get(
                name, "all_reduce"
            )
            _note(trace, vars(group).get(name), method, lambda _c, _n, event=event: event)
        _note(trace, vars(group).get(_CA), "deterministic_all_reduce", lambda _c, _n: "amd")
        for name in _SYMM:
            symm = vars(group).get(name)
            _note(trace, symm, "all_reduce", lambda _c, n: "torch_symm_mem" if n.get("out") is None else "torch_symm_mem_out")
        pynccl = vars(group).get("pynccl_comm")
        _note(trace, pynccl, "all_reduce", lambda c, _n: "pynccl_off" if c.disabled else "pynccl")
        _note(trace, pynccl, "outplace_all_reduce", lambda c, _n: "pynccl_off" if c.disabled else "pynccl_out", inside=True)

    @contextlib.contextmanager
    def around(self, built: Built, context: tuple[str, ...]) -> Iterator[None]:
        """Everything that a context is: SGLang's own graph_capture() of the group, the stream, the piecewise flag, Dynamo."""
        self.facts, self.group = built.facts, built.group
        self.reset_facts()
        built.restore()
        world, self._context = self.lab.world, frozenset(context)
        world.piecewise = self._piecewise = "piecewise" in context
        self._compiling = False
        if self._mscclpp is not None:
            self._mscclpp._context = self._context
        inside = "in_graph_capture" in context and self.fact("captured") and self.fact("world_size") > 1
        custom = vars(built.group).get(_CA)
        try:
            with built.group.graph_capture() if inside else contextlib.nullcontext():
                world.stream = "stream_capturing" in context
                if world.piecewise and self.lab._piecewise_off and custom is not None:
                    custom.disabled = True
                self._now = [(c, c.disabled) for c, _ in built.disabled]
                try:
                    yield
                finally:
                    world.stream = False
        finally:
            world.piecewise = self._piecewise = self._compiling = False
            built.restore()

    def ask(self, built: Built, call: Call) -> Seen | None:
        """One call inside of `around`. None: only C++ knows."""
        trace, log = self._trace, self.lab.world.log
        trace.clear()
        log.clear()
        tensor = CallTensor(call, self.fact("device"))
        self._new = fake.Tensor((1,), fake.DTYPE["bf16"])  # type: ignore[assignment] # FlashInfer's result
        self._compiling = "compiling" in self._context
        error, result = "", None
        try:
            result = built.group.all_reduce(tensor)
        except LiftError:
            raise
        except NameError as found:
            raise LiftError(f"lifted code needs a name: {found}") from found
        except Exception as found:
            error = type(found).__name__
        if error:
            for communicator, disabled in self._now:  # SGLang's own change_state does not restore it on the way out
                communicator.disabled = disabled
        kind = None if error else "input" if result is tensor else "copy" if result in tensor.copies else "new"
        events = [*trace, *(["clone"] if tensor.copies else [])]
        return self._seen(built, call, events, kind, error)

    def _seen(self, built: Built, call: Call, events: list[str], kind: str | None, error: str) -> Seen | None:
        if error and "out auto" in events and not any(e.startswith("resolved") for e in events):
            return Seen("raises", None, "out_of_place", error, False, False, None, None)  # raised while "auto" was choosing
        custom = vars(built.group).get(_CA)
        if type(custom).__name__ == "CustomAllReduceV2" and call.dtype not in COMPILED and not custom.disabled:
            return None  # already its predicate may compile the kernel
        outcome = _read(events, kind, error, built.group.world_size)
        rule: str | None = outcome.rule
        if error:
            if "custom_none" in events:
                rule = None
            asked = not any(e.startswith(("out", "in_place")) for e in events) and outcome.rule == ""
            return Seen(
                "raises", None if asked else rule, None if asked else outcome.op, error, outcome.cloned, False, None, None
            )
        reduces = outcome.path != "none" and not outcome.lost
        new: bool | None = outcome.new
        kernel = None
        if outcome.path == "custom" and outcome.rule != "amd_deterministic":
            log = self.lab.world.log
            reduces = bool(log)
            if call.dtype not in COMPILED:
                return None  # the kernels refuse some of these
            if type(custom).__name__ == "CustomAllReduceV2":
                if not call.contiguous or not call.aligned:
                    return None
                algo, graph, multicast = log[-1]
                kernel = "two_shot_multicast" if multicast else algo
                # where the kernels write, as their C++ has it, of what Python hands them
                new = not (algo == "two_shot_pull" and graph if self.lab.rewritten else not (algo == "one_shot_pull" and graph))
        return Seen(outcome.path, rule, outcome.op, "", outcome.cloned, reduces, new, kernel)


def _note(trace: list[str], communicator: Any, method: str, event: Callable[[Any, Any], str], inside: bool = False) -> None:
    """Notes each run of one method, once. What runs inside of another noted run is part of it."""
    run = getattr(type(communicator), method, None)
    if communicator is None or run is None or method in vars(communicator):
        return

    def noted(*args: Any, **named: Any) -> Any:
        at = len(trace)
        trace.append(event(communicator, named))
        out = run(communicator, *args, **named)
        del trace[at + 1 :]
        if out is None and trace[at] == "custom":
            trace[at] = "custom_none"  # v1 asks its predicate again
        return out

    setattr(communicator, method, noted)


__all__ = ["Built", "LiftedRoute", "Seen", "Unseen"]
