"""NCCL alone, in one process or in one process a GPU: calls by ctypes on libnccl, captured by the driver's graphs, timed, checked.

What each process of bench_one_process.py runs, and one side of bench_nccl_tests.py. No code of sglang_probe runs here, so that nothing but
the number of processes differs between its kinds.
Invariant: sums are checked before anything is timed, and a wrong one ends the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

KIB, MIB = 1 << 10, 1 << 20
SIZES = (1 * KIB, 16 * KIB, 256 * KIB, 1 * MIB)
PATTERNS = ("back_to_back", "interleaved")
_WAIT_S = 30.0
_BF16, _SUM, _BYTES = 9, 0, 2
_THREAD_LOCAL = 1


@dataclass(frozen=True)
class Spec:
    """What a set of processes measures; travels to them."""

    nccl: str
    world_size: int = 2
    sizes: tuple[int, ...] = SIZES
    phases: tuple[str, ...] = ("captured",)
    places: tuple[str, ...] = ("in",)
    patterns: tuple[str, ...] = PATTERNS
    compute_us: float = 5.0
    calls: int = 50
    """In a row: of one graph, or launched one by one."""
    launches: int = 10
    """Of that graph in a row, so that ranks which begin apart are no part of the time."""
    repeats: int = 9
    shift: bool = False
    """As nccl-tests does: each call has the next piece of a buffer that holds the largest size, so that caches are not warmed alike."""
    warm: bool = True
    """A launch before the first that is timed; nccl-tests has none."""
    device: str = "gpu"
    seed: int = 0


class Library:
    """Functions of a C library that give 0, or what is wrong."""

    def __init__(self, path: str, text: str) -> None:
        self._library, self._text = ctypes.CDLL(path), text

    def __call__(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            said = ""
            if self._text:
                tell = getattr(self._library, self._text)
                tell.restype = ctypes.c_char_p
                said = (tell(status) or b"").decode()
            raise RuntimeError(f"{name} failed: {status} {said}")


class UniqueId(ctypes.Structure):
    """ncclUniqueId."""

    _fields_ = (("internal", ctypes.c_ubyte * 128),)


@dataclass(frozen=True)
class Graph:
    """Captured calls of this process's ranks."""

    launch: Callable[[], None]
    free: Callable[[], None]


class Gpus:
    """The ranks of this process, one a GPU: their communicators, streams and tensors."""

    def __init__(self, mine: list[int], spec: Spec, unique_id: Callable[[bytes], bytes]) -> None:
        self.torch: Any = __import__("torch")
        self.mine, self.spec = mine, spec
        self._nccl, self._cuda = Library(spec.nccl, "ncclGetErrorString"), Library("libcuda.so.1", "")
        made = UniqueId()
        if 0 in mine:
            self._nccl("ncclGetUniqueId", ctypes.byref(made))
        ctypes.memmove(ctypes.byref(made), unique_id(bytes(made.internal)), 128)
        self._comms = [ctypes.c_void_p() for _ in mine]
        self._nccl("ncclGroupStart")
        for comm, rank in zip(self._comms, mine, strict=True):
            self.torch.cuda.set_device(rank)
            self._nccl("ncclCommInitRank", ctypes.byref(comm), ctypes.c_int(spec.world_size), made, ctypes.c_int(rank))
        self._nccl("ncclGroupEnd")
        self.streams = [self.torch.cuda.Stream(device=rank) for rank in mine]
        most = max(spec.sizes) // _BYTES
        self._in = [self._tensor(rank, most) for rank in mine]
        self._out = [self._tensor(rank, most) for rank in mine] if "out" in spec.places else self._in
        self._cycles_a_us = self._speed()
        self._sleep(1.0)
        self.wait()

    def _tensor(self, rank: int, count: int) -> Any:
        generator = self.torch.Generator(f"cuda:{rank}").manual_seed(rank)
        return self.torch.rand(count, generator=generator, device=f"cuda:{rank}", dtype=self.torch.bfloat16)

    def _speed(self) -> float:
        """Cycles of torch's sleeping kernel in a microsecond: the second time, when clocks have risen and it is loaded."""
        with self.torch.cuda.device(self.mine[0]), self.torch.cuda.stream(self.streams[0]):
            for _ in range(2):
                events = [self.torch.cuda.Event(enable_timing=True) for _ in range(2)]
                events[0].record()
                self.torch.cuda._sleep(20_000_000)
                events[1].record()
                events[1].synchronize()
        return 20_000_000 / (float(events[0].elapsed_time(events[1])) * 1e3)

    def _sleep(self, us: float) -> None:
        for stream in self.streams:
            with self.torch.cuda.stream(stream):
                self.torch.cuda._sleep(int(us * self._cycles_a_us))

    def call(self, place: str, nbytes: int, number: int) -> None:
        """One all-reduce on every rank of this process."""
        pieces = max(self.spec.sizes) // nbytes if self.spec.shift else 1
        offset = nbytes * (number % pieces)
        if len(self.mine) > 1:
            self._nccl("ncclGroupStart")
        for rank, (comm, stream) in enumerate(zip(self._comms, self.streams, strict=True)):
            source, target = (ctypes.c_void_p(one.data_ptr() + offset) for one in (self._in[rank], self._output(place, rank)))
            count, kind, sum_ = ctypes.c_size_t(nbytes // _BYTES), ctypes.c_int(_BF16), ctypes.c_int(_SUM)
            self._nccl("ncclAllReduce", source, target, count, kind, sum_, comm, ctypes.c_void_p(stream.cuda_stream))
        if len(self.mine) > 1:
            self._nccl("ncclGroupEnd")

    def _output(self, place: str, rank: int) -> Any:
        return self._in[rank] if place == "in" else self._out[rank]

    def row(self, place: str, nbytes: int, calls: int, compute_us: float) -> None:
        """Calls one after the other, each behind a compute kernel where it has a length; without bytes, the kernels alone."""
        for number in range(calls):
            if compute_us:
                self._sleep(compute_us)
            if nbytes:
                self.call(place, nbytes, number)

    def captured(self, body: Callable[[], None]) -> Graph:
        """The body on every rank of this process. All its devices are captured at once, as nccl-tests does."""
        graphs = [ctypes.c_void_p() for _ in self.mine]
        executable = [ctypes.c_void_p() for _ in self.mine]
        streams = [ctypes.c_void_p(stream.cuda_stream) for stream in self.streams]
        for stream in streams:
            self._cuda("cuStreamBeginCapture_v2", stream, ctypes.c_int(_THREAD_LOCAL))
        body()
        for stream, graph in zip(streams, graphs, strict=True):
            self._cuda("cuStreamEndCapture", stream, ctypes.byref(graph))
        for rank, graph, made in zip(
            self.mine, graphs, executable, strict=True
        ):  # nothing is captured any more, so all is allowed
            self.torch.cuda.set_device(rank)
            self._cuda("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, ctypes.c_ulonglong(0))

        def launch() -> None:
            for stream, made in zip(streams, executable, strict=True):
                self._cuda("cuGraphLaunch", made, stream)

        def free() -> None:
            for graph, made in zip(graphs, executable, strict=True):
                self._cuda("cuGraphExecDestroy", made)
                self._cuda("cuGraphDestroy", graph)

        return Graph(launch, free)

    def wait(self) -> None:
        """Until every stream of this process is done; as nccl-tests waits, by asking."""
        limit = time.monotonic() + _WAIT_S
        for stream in self.streams:
            while not stream.query():
                if time.monotonic() > limit:
                    raise TimeoutError(f"a stream is not done after {_WAIT_S:g} s: another rank did not call, or is gone")

    def check(self, place: str, nbytes: int, captured: bool) -> None:
        """The sum of ranks' 1, 2, ...; the tensors are random again afterwards."""
        size = self.spec.world_size
        for rank, tensor in zip(self.mine, self._in, strict=True):
            tensor.fill_(rank + 1)
        for tensor in self._out if place == "out" else ():
            tensor.fill_(float("nan"))
        for rank in self.mine:
            self.torch.cuda.synchronize(rank)
        if captured:
            graph = self.captured(lambda: self.call(place, nbytes, 0))
            graph.launch()
            self.wait()
            graph.free()
        else:
            self.call(place, nbytes, 0)
            self.wait()
        wanted = size * (size + 1) / 2
        for i, rank in enumerate(self.mine):
            result = self._output(place, i)[: nbytes // _BYTES]
            wrong = int((result != wanted).sum())
            if wrong:
                raise RuntimeError(f"rank {rank}, {nbytes} bytes, {place} place: {wrong} of {result.numel()} elements are wrong")
        for rank, tensor in zip(self.mine, self._in, strict=True):
            tensor.copy_(self._tensor(rank, tensor.numel()))
            self.torch.cuda.synchronize(rank)

    def timed(self, launch: Callable[[], None], launches: int) -> tuple[list[float], float]:
        """Microseconds on each rank's device between two events, and on the host's clock until all is done."""
        marks = [[self.torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in self.mine]
        if self.spec.warm:
            launch()  # the ranks meet in it: what follows begins on all of them at once
        for (first, _), stream in zip(marks, self.streams, strict=True):
            first.record(stream)
        start = time.perf_counter_ns()
        for _ in range(launches):
            launch()
        for (_, last), stream in zip(marks, self.streams, strict=True):
            last.record(stream)
        self.wait()
        wall = (time.perf_counter_ns() - start) / 1e3
        return [float(first.elapsed_time(last)) * 1e3 for first, last in marks], wall

    def close(self) -> None:
        for comm in self._comms:
            self._nccl("ncclCommDestroy", comm)


class Nothing:
    """No device: a call takes one microsecond, and a compute kernel as long as it says, by definition. So that starting, talking and
    reckoning can be tried where there is no GPU."""

    def __init__(self, mine: list[int], spec: Spec, unique_id: Callable[[bytes], bytes]) -> None:
        self.mine, self.spec, self.us = mine, spec, 0.0
        if unique_id(b"id") != b"id":
            raise RuntimeError("the ranks do not have the same id")

    def row(self, place: str, nbytes: int, calls: int, compute_us: float) -> None:
        self.us += calls * (compute_us + bool(nbytes))

    def captured(self, body: Callable[[], None]) -> Graph:
        return Graph(body, lambda: None)

    def wait(self) -> None:
        pass

    def check(self, place: str, nbytes: int, captured: bool) -> None:
        pass

    def timed(self, launch: Callable[[], None], launches: int) -> tuple[list[float], float]:
        self.us = 0.0
        for _ in range(launches):
            launch()
        return [self.us for _ in self.mine], self.us

    def close(self) -> None:
        pass


def measured(gpus: Any, spec: Spec, barrier: Callable[[], None]) -> list[dict[str, Any]]:
    """One row for each combination, in an order of its own; times in us a call, without the compute kernels between calls."""
    keys = [(ph, pl, pa, n) for ph in spec.phases for pl in spec.places for pa in spec.patterns for n in spec.sizes]
    random.Random(spec.seed).shuffle(keys)
    rows = []
    for phase, place, pattern, nbytes in keys:
        captured, us = phase == "captured", spec.compute_us if pattern == "interleaved" else 0.0
        launches = spec.launches if captured else 1
        for graph in (False, True)[: 1 + captured]:  # NCCL connects on the first call, which is better not captured
            gpus.check(place, nbytes, graph)
        work = _works(gpus, place, nbytes, spec.calls, us, captured)
        alone = _works(gpus, place, 0, spec.calls, us, captured) if us else None
        row: dict[str, Any] = {
            "phase": phase,
            "place": place,
            "pattern": pattern,
            "nbytes": nbytes,
            "device_us": [],
            "wall_us": [],
        }
        for _ in range(spec.repeats):
            device, wall = _sample(gpus, work, launches, barrier, spec.warm)
            if alone is not None:
                less, less_wall = _sample(gpus, alone, launches, barrier, spec.warm)
                device, wall = [a - b for a, b in zip(device, less, strict=True)], wall - less_wall
            row["device_us"].append([one / launches / spec.calls for one in device])
            row["wall_us"].append([wall / launches / spec.calls] * len(gpus.mine))
        rows.append(row)
    return rows


def _works(gpus: Any, place: str, nbytes: int, calls: int, us: float, captured: bool) -> Callable[[], Graph]:
    """What makes the thing to be launched: a graph, captured anew each time as nccl-tests does; or the calls themselves."""

    def body() -> None:
        gpus.row(place, nbytes, calls, us)

    return (lambda: gpus.captured(body)) if captured else (lambda: Graph(body, lambda: None))


def _sample(
    gpus: Any, make: Callable[[], Graph], launches: int, barrier: Callable[[], None], warm: bool
) -> tuple[list[float], float]:
    graph = make()
    if warm:
        graph.launch()
        gpus.wait()
    barrier()
    took: tuple[list[float], float] = gpus.timed(graph.launch, launches)
    barrier()
    graph.free()
    return took


def child(mine: list[int], spec: Spec, barrier: Any, talk: Any) -> None:
    """The main function of each process: (True, rows), or (False, what went wrong)."""
    try:
        kind = Gpus if spec.device == "gpu" else Nothing

        def unique_id(made: bytes) -> bytes:
            if 0 in mine:
                talk.send(made)
            given: bytes = talk.recv()
            return given

        gpus = kind(mine, spec, unique_id)
        rows = measured(gpus, spec, (lambda: barrier.wait(_WAIT_S)) if spec.world_size > len(mine) else (lambda: None))
        talk.send((True, rows))
        gpus.close()
    except Exception as error:  # told to the parent, whatever it is
        with contextlib.suppress(OSError):
            talk.send((False, f"ranks {mine}: {type(error).__name__}: {error}"))
