"""The driver of SGLang itself: GroupCoordinator.all_reduce, unchanged, where SGLang can be imported. See driver.py for what it must do.

What is timed is the call that a server makes, with all of its Python. What it runs is seen in a call that is not timed (engine_watch.py).
Invariant: SGLang is never wrapped, patched or copied here, and is no dependency: it is imported when a rank is first asked for it.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from .._releases import nearest, resolve
from .._route import context_bits
from .._run.arrays import need_torch
from .._run.inputs import element
from .._run.switches import GATES
from .._types import InputError, Path, ProbeUnavailable
from .driver import Wanted
from .engine_ranks import agree
from .engine_state import Built, Engine, engine_of, installed_version
from .engine_watch import Seen, watch
from .native import stream_of, tensor_of

if TYPE_CHECKING:
    from .._run.coordinator import Coordinator

_BACKENDS = {Path.PYNCCL_IN_PLACE: "nccl", Path.PYNCCL_OUT_OF_PLACE: "nccl", Path.TORCH_DISTRIBUTED: "torch"}
"""Whose code runs, where it is not called as its path is; of custom all-reduce it is seen."""
_ON_CPU = (Path.TORCH_DISTRIBUTED, Path.CPU_SHM)
_TORCH_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64", "fp8": "float8_e4m3fn"}
_BITS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


def release() -> str:
    """The release that is installed beside us. Raises ProbeUnavailable where there is none, no torch, or one that is not known here."""
    found = installed_version()
    if importlib.util.find_spec("torch") is None:
        raise ProbeUnavailable(f"sglang {found} is installed, and torch is not: SGLang runs on torch")
    try:
        return resolve(found).name
    except InputError:
        raise ProbeUnavailable(
            f"sglang {found} is installed, whose dispatch is not in our tables: the nearest release that is, is {nearest(found)}"
        ) from None


def prepare(coordinator: Coordinator, wanted: Wanted) -> Prepared:
    """SGLang's group for this call, its input, and one call that was watched; refused where it is not what is wanted."""
    why = _refused(coordinator, wanted)
    if why:
        raise ProbeUnavailable(why)
    engine = engine_of(coordinator)
    if wanted.settings.release.name != engine.version:
        raise ProbeUnavailable(f"sglang {engine.version} is installed, and this is asked of {wanted.settings.release.name}")
    prepared = Prepared(coordinator, engine, wanted)
    if not wanted.captured:
        prepared.look()
    return prepared


def _refused(coordinator: Coordinator, wanted: Wanted) -> str:
    """What is known without SGLang, alike on all ranks."""
    settings = wanted.settings
    if settings.kernel:
        return f"SGLang chooses its kernels itself: it cannot be told to run {settings.kernel}"
    if settings.bits & ~context_bits("piecewise"):
        return "only eager calls, with and without the piecewise flag, and captured ones are made through SGLang"
    if settings.group.value("symm_mem"):
        return "a server with --enable-symm-mem is not set up here: its tensors come from a pool of NCCL's"
    if wanted.kernel in ("multimem", "two_shot_multicast"):
        return f"{wanted.kernel} goes through NVLink multicast, which is not run"
    if coordinator.device == "gpu":
        return ""
    if wanted.path not in _ON_CPU:
        return f"SGLang reduces CPU tensors by torch.distributed or its own shared memory: {wanted.path} needs GPUs"
    return "SGLang captures CUDA graphs on GPUs alone" if wanted.captured else ""


def built_for(wanted: Wanted) -> Built:
    """The communicators of a server in which this call takes this path."""
    settings = wanted.settings
    group = settings.group
    off = {name for name, bit in GATES.items() if settings.off & bit}
    # graph_capture() enables pynccl whenever there is one: torch.distributed is captured only by a group that has none
    never = wanted.captured and "pynccl" in off and wanted.path == Path.TORCH_DISTRIBUTED
    return Built(
        pynccl=bool(group.value("own_pynccl")) and not never,
        custom=bool(group.value("own_custom")) and "custom" not in off,
        mscclpp=bool(group.value("own_mscclpp")) and "mscclpp" not in off,
        torch_symm_mem=bool(group.value("own_torch_symm_mem")) and "torch_symm_mem" not in off,
        v2=group.value("custom_v2"),
    )


class Prepared:
    """One call of SGLang's group."""

    def __init__(self, coordinator: Coordinator, engine: Engine, wanted: Wanted) -> None:
        self._c, self._engine, self._wanted = coordinator, engine, wanted
        self._on_gpu, self._inside = coordinator.device == "gpu", False
        self._group = engine.group(built_for(wanted) if self._on_gpu else Built())
        self.tensor = tensor_of(coordinator, wanted.shape, wanted.dtype)
        self._tensor = self.tensor if self._on_gpu else _as_torch(self.tensor, wanted.dtype)
        self._tensor.zero_()
        self.path, self.kernel, self.release = wanted.path, wanted.kernel, engine.version
        self.backend = _BACKENDS.get(Path(wanted.path), wanted.path) if self._on_gpu else engine.backend

    def look(self) -> None:
        """The call as it will be timed, watched once; ProbeUnavailable on all ranks where any goes another way. Collective."""
        with self.surroundings():
            seen = watch(lambda: self._group.all_reduce(self._tensor))
        self._c.wait(stream_of(self._c))
        self._accept(seen)

    def _accept(self, seen: Seen) -> None:
        agree(self._c, "what SGLang ran", lambda: self._compare(seen))
        self.backend = seen.backend or self.backend

    def _compare(self, seen: Seen) -> None:
        """v1 chooses between its kernels in CUDA: there the table's word stands, and nothing that was seen."""
        wanted = self._wanted
        if seen.path != wanted.path or (seen.kernel and seen.kernel != wanted.kernel):
            named = f"{wanted.path} ({wanted.kernel})" if wanted.kernel else wanted.path
            raise ProbeUnavailable(f"SGLang took {seen} here, and not {named}")

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        if self._inside:
            yield
            return
        with self._engine.surroundings(self._group, self._wanted.settings, self._wanted.captured):
            self._inside = True
            try:
                yield
            finally:
                self._inside = False

    def call(self, compute_us: float) -> Any:
        if compute_us:
            self._c.spin(compute_us, stream_of(self._c))
        with self.surroundings():
            result = self._group.all_reduce(self._tensor)
        return self._given(result)

    def _given(self, result: Any) -> Any:
        """As sample.py reads results: torch's on GPUs, NumPy's on CPU ranks; the input itself where it came back."""
        if result is self._tensor:
            return self.tensor
        return result if self._on_gpu else _as_numpy(result, self._wanted.dtype)

    def enqueue(self, calls: int, compute_us: float) -> float:
        reduce, tensor, clock = self._group.all_reduce, self._tensor, time.perf_counter_ns
        with self.surroundings():
            if not compute_us:
                start = clock()
                for _ in range(calls):
                    reduce(tensor)
                return (clock() - start) / 1e3 / calls
            inside, stream = 0, stream_of(self._c)
            for _ in range(calls):
                self._c.spin(compute_us, stream)
                start = clock()
                reduce(tensor)
                inside += clock() - start
            return inside / 1e3 / calls

    def capture(self, calls: int, compute_us: float) -> Captured:
        """As a server's runner: SGLang's graph_capture(), a warm-up in it, then the stream really captures; the last call is watched."""
        torch = need_torch()
        reduce, tensor = self._group.all_reduce, self._tensor
        graph, seen = torch.cuda.CUDAGraph(), Seen()
        with self.surroundings(), self._group.graph_capture() as context:
            reduce(tensor.clone())
            context.stream.synchronize()
            with torch.cuda.graph(graph, stream=context.stream):
                for left in reversed(range(calls)):
                    if compute_us:
                        self._c.spin(compute_us, context.stream.cuda_stream)
                    seen.result = None  # its memory is the next one's
                    seen = _watched(reduce, tensor, last=not left)
        torch.cuda.current_stream().wait_stream(context.stream)
        self._accept(seen)
        return Captured(graph, self._given(seen.result))


def _watched(reduce: Callable[[Any], Any], tensor: Any, last: bool) -> Seen:
    return watch(lambda: reduce(tensor)) if last else Seen(reduce(tensor))


class Captured:
    """Calls in a CUDA graph of torch's."""

    def __init__(self, graph: Any, result: Any) -> None:
        self._graph, self.result = graph, result

    def replay(self) -> float:
        start = time.perf_counter_ns()
        self._graph.replay()
        return (time.perf_counter_ns() - start) / 1e3


def _as_torch(array: Any, dtype: str) -> Any:
    """A tensor on NumPy's memory."""
    torch = need_torch()
    bits = torch.from_numpy(array.view(_BITS[array.dtype.itemsize]))
    return bits.view(getattr(torch, _TORCH_NAMES.get(dtype, dtype)))


def _as_numpy(tensor: Any, dtype: str) -> Any:
    torch = need_torch()
    bits = tensor.contiguous().view(getattr(torch, f"int{8 * tensor.element_size()}"))
    return bits.numpy().view(element(dtype).storage)
