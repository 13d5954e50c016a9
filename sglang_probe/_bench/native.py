"""The driver of our own C: Coordinator.enqueue, the path alone with the output that SGLang allocates. See driver.py for what it must do.

Invariant: a call that is timed is routed as all_reduce routes it, and to the path that was wanted; else it is refused.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from .._facts import DTYPES
from .._route import PATHS, context_bits
from .._run.arrays import arrays_of
from .._run.switches import KERNELS
from .._types import Path, ProbeUnavailable
from .driver import Wanted

if TYPE_CHECKING:
    from .._run.coordinator import Coordinator
    from .._run.switches import Capture

_KEPT = "bench_tensors"


def release() -> str:
    return ""


def prepare(coordinator: Coordinator, wanted: Wanted) -> Prepared:
    """Switches set, input there; refused where the dispatch or the device does not give what is wanted."""
    coordinator.apply(wanted.settings)
    prepared = Prepared(coordinator, wanted)
    why = prepared.refused()
    if why:
        raise ProbeUnavailable(why)
    return prepared


class Prepared:
    """One call of the Coordinator."""

    def __init__(self, coordinator: Coordinator, wanted: Wanted) -> None:
        self._c, self._wanted = coordinator, wanted
        self.tensor = tensor_of(coordinator, wanted.shape, wanted.dtype)
        nbytes, columns, dims, bits, dtype, layout, registered = coordinator.plan(self.tensor)
        bits |= context_bits("capture") if wanted.captured else 0
        decision = coordinator._decide(coordinator.settings, (nbytes, columns, dims, bits, dtype, layout, registered))
        self.path, self.kernel, self.backend = str(decision.path), decision.kernel, decision.backend
        self.release = decision.sglang
        self._index = PATHS.index(decision.path)

    def refused(self) -> str:
        """Why not, or nothing. Asked before any rank waits for another."""
        wanted = self._wanted
        if (self.path, self.kernel) != (wanted.path, wanted.kernel):
            return f"on this rank {_named(self.path, self.kernel)} is taken, and not {_named(wanted.path, wanted.kernel)}"
        in_python = self._c.runs()[self._index][1]
        if not in_python:
            return self._c.supports(self._index, KERNELS[self.kernel], DTYPES[wanted.dtype], wanted.nbytes)
        implementation = vars(self._c).get("torch_paths", {}).get(Path(self.path))
        why = implementation.supports(wanted.nbytes, wanted.dtype) if implementation is not None else ""
        if not why and implementation is not None:  # its first call builds what cannot be built in a capture or behind a hold
            implementation.prepare(wanted.nbytes, wanted.dtype, self._c.timeout_s)
        return str(why)

    def surroundings(self) -> Any:
        return nullcontext()

    def call(self, compute_us: float) -> Any:
        if compute_us:
            self._c.spin(compute_us, stream_of(self._c))
        return self._c.all_reduce(self.tensor).tensor

    def enqueue(self, calls: int, compute_us: float) -> float:
        return self._c.enqueue(self.tensor, calls, compute_us)

    def capture(self, calls: int, compute_us: float) -> Captured:
        """A single call is all_reduce's own, whose result is there to be checked; several are enqueue's."""
        result = self.tensor
        with self._c.graph_capture():
            if self.path.startswith(("pynccl", "torch_distributed")):  # as a server warms up: NCCL may connect at a first call
                self.enqueue(1, 0.0)
            with self._c.graph() as graph:
                if calls == 1:
                    result = self.call(compute_us)
                else:
                    self.enqueue(calls, compute_us)
        return Captured(graph, result)


class Captured:
    def __init__(self, graph: Capture, result: Any) -> None:
        self._graph, self.result = graph, result

    def replay(self) -> float:
        start = time.perf_counter_ns()
        self._graph.replay()
        return (time.perf_counter_ns() - start) / 1e3


def tensor_of(coordinator: Coordinator, shape: tuple[int, ...], dtype: str) -> Any:
    """One input for each shape and dtype as long as the rank lives: an address that was shared with peers stays what it was."""
    kept = vars(coordinator).setdefault(_KEPT, {})
    if (shape, dtype) not in kept:
        kept[shape, dtype] = arrays_of(coordinator.device).empty(shape, dtype)
    return kept[shape, dtype]


def stream_of(coordinator: Coordinator) -> int:
    """The stream that calls go to now, as a number; inside a capture the one that is captured."""
    if coordinator.device != "gpu":
        return 0
    torch: Any = __import__("torch")
    return int(torch.cuda.current_stream().cuda_stream)


def _named(path: str, kernel: str) -> str:
    return f"{path} ({kernel})" if kernel else path
