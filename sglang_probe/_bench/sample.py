"""What a rank does for a bench: `look` checks calls and tells how long they take, `measure` takes their samples. Sent by runner.py.

A sample is a batch of K calls, divided by K. On the device: the stream is held while they are enqueued, marked before and after, and
released when all ranks have enqueued theirs, so the device never waits for a host; a call before the first mark lets the ranks meet there,
however unlike their releases are. By the host's clock: a second batch, not held, from the first call to the end of the wait. What compute
kernels take alone, in batches of their own beside each, is subtracted from both.
Invariant: all ranks do the same in the same order; what cannot run is refused alike on all of them, and is told, not raised.
"""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._run.arrays import arrays_of
from .._types import InputError, ProbeUnavailable
from .checking import Reference
from .driver import Captured, Prepared, driver_of
from .native import stream_of
from .plan import Task
from .waiting import Stamped, stamp_calls

if TYPE_CHECKING:
    from .._run.coordinator import Coordinator

TURNS = (1, 2)
"""Seeds of the checked calls of a cell: other inputs each time."""
_GUESS_CALLS = 3

Samples = NDArray[np.float64]


def _none() -> Samples:
    return np.empty(0)


@dataclass(frozen=True)
class Look:
    """One rank's answer on one task before it is timed."""

    refused: str = ""
    """Why it does not run here; nothing below then."""
    us: float = 0.0
    """About what a call takes: for choosing how many samples there is time for."""
    checked: int = 0
    wrong: int = 0
    said: str = ""
    """What is wrong with the first wrong result."""
    backend: str = ""


@dataclass(frozen=True, eq=False)
class Taken:
    """One rank's samples of one task, in microseconds a call."""

    refused: str = ""
    backend: str = ""
    device_us: Samples = field(default_factory=_none)
    host_us: Samples = field(default_factory=_none)
    elapsed_us: Samples = field(default_factory=_none)
    stamped: Stamped | None = None
    """Of the calls that are to be cut into waiting and moving data."""


def look(coordinator: Coordinator, tasks: Sequence[Task]) -> list[Look]:
    """Every task checked on this rank, in order."""
    with _quiet(coordinator):
        return [_told(Look, partial(_look, coordinator, task)) for task in tasks]


def measure(coordinator: Coordinator, tasks: Sequence[tuple[Task, int]]) -> list[Taken]:
    """(task, how many samples) for each; in order."""
    with _quiet(coordinator):
        return [_told(Taken, partial(_measure, coordinator, *one)) for one in tasks]


def _told(kind: Any, do: Callable[[], Any]) -> Any:
    """What it gives; or, where this call cannot be made here, the reason in its place."""
    try:
        return do()
    except (ProbeUnavailable, InputError, MemoryError, NotImplementedError) as error:
        return kind(refused=str(error) or type(error).__name__)
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's
            raise
        return kind(refused=f"out of memory: {str(error).splitlines()[0]}")


@contextlib.contextmanager
def _quiet(coordinator: Coordinator) -> Iterator[None]:
    """Settings as they were afterwards; no garbage collection inside of a time; on GPUs a stream that nobody else uses."""
    before, collecting = coordinator.settings, gc.isenabled()
    if "bench_frozen" not in vars(coordinator):  # each capture collects all garbage: what is there by now is not looked at again
        vars(coordinator)["bench_frozen"] = True
        gc.collect()
        gc.freeze()
    gc.disable()
    try:
        with _stream(coordinator):
            yield
            coordinator.wait(stream_of(coordinator))
    finally:
        coordinator.apply(before)
        if collecting:
            gc.enable()


def _stream(coordinator: Coordinator) -> Any:
    if coordinator.device != "gpu":
        return contextlib.nullcontext()
    torch: Any = __import__("torch")
    if "bench_stream" not in vars(coordinator):
        vars(coordinator)["bench_stream"] = torch.cuda.Stream()
    return torch.cuda.stream(vars(coordinator)["bench_stream"])


# --------------------------------------------------------------------------------------------------------------------------- checked


def _look(c: Coordinator, task: Task) -> Look:
    """Checked in its own pattern, twice; then about how long a call takes."""
    prepared = driver_of(task.driver).prepare(c, task.wanted)
    reference = _reference(c, task)
    said = []
    captured = prepared.capture(1, task.compute_us) if task.phase == "captured" else None
    for seed in TURNS:
        said.append(_checked(c, prepared, captured, reference, task, seed))
    reference.zero(prepared.tensor)
    wrong = [text for text in said if text]
    us = 0.0 if wrong else _guess(c, prepared, captured, task)
    return Look("", us, len(said), len(wrong), wrong[0] if wrong else "", prepared.backend)


def _reference(c: Coordinator, task: Task) -> Reference:
    return Reference(arrays_of(c.device), task.wanted.dtype, math.prod(task.wanted.shape), c.rank, c.world_size)


def _checked(c: Coordinator, prepared: Prepared, captured: Captured | None, reference: Reference, task: Task, seed: int) -> str:
    """One call with inputs of its own, into memory that holds no sum. Empty where it is right."""
    if captured is None:
        scrap = arrays_of(c.device).empty(task.wanted.shape, task.wanted.dtype)  # what an allocator gives out next
        reference.poison(scrap)
        del scrap
    elif captured.result is not prepared.tensor:
        reference.poison(captured.result)
    reference.fill(prepared.tensor, seed)
    if captured is None:
        result = prepared.call(task.compute_us)
    else:
        captured.replay()
        result = captured.result
    c.wait(stream_of(c))
    return reference.wrong(result, seed)


def _guess(c: Coordinator, prepared: Prepared, captured: Captured | None, task: Task) -> float:
    work = (lambda: prepared.enqueue(1, task.compute_us)) if captured is None else captured.replay
    _free(c, work)
    return min(_free(c, work)[1] for _ in range(_GUESS_CALLS))


# ----------------------------------------------------------------------------------------------------------------------------- timed


def _measure(c: Coordinator, task: Task, samples: int) -> Taken:
    prepared = driver_of(task.driver).prepare(c, task.wanted)
    _reference(c, task).zero(prepared.tensor)
    captured = task.phase == "captured"
    with contextlib.nullcontext() if captured else prepared.surroundings():
        work, alone, meet = _works(c, prepared, task)
        for warm in (meet, work, alone):  # memory that is allocated once, clocks, what is loaded lazily
            if warm is not None:
                _free(c, warm)
        times = np.array([_sample(c, work, alone, meet) for _ in range(samples)]).reshape(samples, 3) / task.calls
    # an eager driver tells the host's time by call; a replay's is of all calls in the graph
    host = times[:, 1] if captured else times[:, 1] * task.calls
    # where the host is the slower, launching the compute kernels is hidden behind none of its calls, and was subtracted all the same
    elapsed = times[:, 2] if captured else np.maximum(times[:, 2], host)
    stamped = stamp_calls(c, prepared.tensor, calls=task.split, captured=captured) if task.split else None
    return Taken("", prepared.backend, times[:, 0], host, elapsed, stamped)


_Work = Callable[[], float]


def _works(c: Coordinator, prepared: Prepared, task: Task) -> tuple[_Work, _Work | None, _Work]:
    """(K calls, K compute kernels alone, one call), each giving what the driver says of the host's time."""
    calls, us = task.calls, task.compute_us
    if task.phase == "captured":
        graph, one = prepared.capture(calls, us), prepared.capture(1, 0.0)
        return graph.replay, _spins_captured(c, calls, us) if us else None, one.replay
    return lambda: prepared.enqueue(calls, us), (lambda: _spins(c, calls, us)) if us else None, lambda: prepared.enqueue(1, 0.0)


def _sample(c: Coordinator, work: _Work, alone: _Work | None, meet: _Work) -> tuple[float, float, float]:
    """(device, host as the driver says it, elapsed) of one batch."""
    device = _held(c, work, meet)
    host, elapsed = _free(c, work)
    if alone is not None:
        device -= _held(c, alone)
        spun, spent = _free(c, alone)
        elapsed -= spent
        host -= spun
    return device, host, elapsed


def _held(c: Coordinator, work: _Work, meet: _Work | None = None) -> float:
    """Microseconds between two marks on the device around a batch that was all there when it began."""
    stream = stream_of(c)
    c.barrier()
    c.hold(stream)
    try:
        if meet is not None:
            meet()
        c.mark(0, stream)
        work()
        c.mark(1, stream)
        c.barrier()
    finally:
        c.release()
    return c.elapsed()


def _free(c: Coordinator, work: _Work) -> tuple[float, float]:
    """(what the work says, microseconds of the host's clock until all of it is done)."""
    stream = stream_of(c)
    c.barrier()
    start = time.perf_counter_ns()
    said = work()
    _poll(c)
    spent = (time.perf_counter_ns() - start) / 1e3
    c.wait(stream)
    return said, spent


def _poll(c: Coordinator) -> None:
    """Until the stream is done, without a pause: the Coordinator's wait sleeps between its looks, and that would count as the calls'."""
    if c.device != "gpu":
        return
    torch: Any = __import__("torch")
    stream, limit = torch.cuda.current_stream(), time.monotonic() + c.timeout_s
    while not stream.query() and time.monotonic() < limit:  # past the limit, the wait says whose fault it is
        pass


def _spins(c: Coordinator, calls: int, us: float) -> float:
    """No part of what an eager driver tells."""
    stream = stream_of(c)
    for _ in range(calls):
        c.spin(us, stream)
    return 0.0


def _spins_captured(c: Coordinator, calls: int, us: float) -> _Work:
    """A graph of compute kernels alone; one serves every cell that needs as many."""
    kept = vars(c).setdefault("bench_spins", {})
    if (calls, us) not in kept:
        with c.graph() as graph:
            _spins(c, calls, us)
        kept[calls, us] = graph

    def replay() -> float:
        """On CPU ranks a replay is what it replays; on GPUs it launches it, and that is what a graph of calls costs the host too."""
        start = time.perf_counter_ns()
        kept[calls, us].replay()
        return (time.perf_counter_ns() - start) / 1e3 if c.device == "host" else 0.0

    return replay
