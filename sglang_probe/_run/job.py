"""What each rank does for LocalGroup.all_reduce: calls that are checked, then calls that are timed. Sent to the ranks by local_group.py.

Invariant: a checked call reads inputs that no call before it had, and its output's memory held no sum before; a timed one is never checked
in between, and runs only after the parent found every rank's results right.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._decision import Decision
from . import inputs
from .arrays import Arrays, arrays_of
from .ask import IN_CAPTURE, STREAM, Ask
from .inputs import KINDS, Kind, Verdict
from .rows import Row

if TYPE_CHECKING:
    from .coordinator import Coordinator


def _prepare(coordinator: Coordinator, tensor: Any, ask: Ask) -> None:
    """What torch's paths build on their first call cannot be built while a stream captures."""
    if coordinator.device != "gpu":
        return
    from .torch_paths import prepare

    nbytes, columns, dims, bits, dtype, layout, registered = coordinator.plan(tensor)
    key = nbytes, columns, dims, bits | ask.context, dtype, layout, registered
    prepare(coordinator, coordinator._decide(coordinator.settings, key).path, ask.nbytes, ask.dtype)


@contextlib.contextmanager
def _surrounded(coordinator: Coordinator, bits: int) -> Iterator[None]:
    """The context of a call, but for the capturing stream; as it was afterwards."""
    before = coordinator.settings
    try:
        coordinator.apply(replace(before, bits=before.bits | bits & ~(IN_CAPTURE | STREAM)))
        with coordinator.graph_capture() if bits & IN_CAPTURE else contextlib.nullcontext():
            yield
    finally:
        coordinator.apply(before)


# --------------------------------------------------------------------------------------------------------------------------- checked


def check(coordinator: Coordinator, ask: Ask) -> tuple[Row, Decision]:
    """Calls whose every result is compared; the row has no times yet."""
    arrays = arrays_of(coordinator.device)
    work = _Work(coordinator, ask, arrays)
    if ask.captured:
        work.captured()
    else:
        work.eager()
    return work.row(), work.decision


class _Work:
    """One rank's checked calls: an input tensor that is filled anew for each, and what was found so far."""

    def __init__(self, coordinator: Coordinator, ask: Ask, arrays: Arrays) -> None:
        self._c, self._ask, self._arrays = coordinator, ask, arrays
        self._tensor = arrays.empty(ask.shape, ask.dtype)
        self._worst = Verdict(True, 0.0, 0.0)
        self._kept = True
        self._checked = 0
        self._digest = hashlib.blake2b(digest_size=16)
        self._reduced: Any = None

    def eager(self) -> None:
        with _surrounded(self._c, self._ask.context):
            for number in range(self._ask.first, self._ask.first + self._ask.times):
                mine = self._fill(number)
                self._poison()
                reduced = self._c.all_reduce(self._tensor)
                self._c.wait()
                self._note(reduced)
                self._compare(reduced.tensor, mine, number)

    def captured(self) -> None:
        """One capture, replayed: with other inputs each time, and an output that holds poison before."""
        self._arrays.fill(self._tensor, inputs.poison(self._ask.dtype, self._ask.count))
        _prepare(self._c, self._tensor, self._ask)
        with _surrounded(self._c, self._ask.context), self._c.graph() as graph:
            reduced = self._c.all_reduce(self._tensor)
        self._note(reduced)
        for number in range(self._ask.first, self._ask.first + self._ask.times):
            if self._is_new(reduced.tensor):
                self._arrays.fill(reduced.tensor, inputs.poison(self._ask.dtype, self._ask.count))
            mine = self._fill(number)
            graph.replay()
            self._c.wait()
            self._compare(reduced.tensor, mine, number)

    def _kind(self, number: int) -> Kind:
        return self._ask.kinds[number % len(self._ask.kinds)]

    def _fill(self, number: int) -> NDArray[Any]:
        ask = self._ask
        mine = inputs.make(ask.dtype, self._kind(number), ask.seed + number, self._c.rank, ask.count)
        self._arrays.fill(self._tensor, mine)
        return mine

    def _poison(self) -> None:
        """Memory that an allocator gives out next for an output of this size holds what no sum is."""
        scrap = self._arrays.empty(self._ask.shape, self._ask.dtype)
        self._arrays.fill(scrap, inputs.poison(self._ask.dtype, self._ask.count))

    def _is_new(self, result: Any) -> bool:
        return self._arrays.address(result) != self._arrays.address(self._tensor)

    def _note(self, reduced: Any) -> None:
        """The first call speaks for all: a later one that went elsewhere is an error of ours, or of a toggle in between."""
        if self._reduced is None:
            self._reduced = reduced
        elif (reduced.path, reduced.rule, reduced.kernel) != (self._reduced.path, self._reduced.rule, self._reduced.kernel):
            self._worst = Verdict(False, float("inf"), 0.0, said=f"one call took {self._reduced!r}, the next {reduced!r}")

    def _compare(self, result: Any, mine: NDArray[Any], number: int) -> None:
        ask, new = self._ask, self._is_new(result)
        stored = self._arrays.read(result)
        self._digest.update(np.ascontiguousarray(stored).view(np.uint8).data)
        self._checked += 1
        if self._reduced.reduces:
            verdict = inputs.check(stored, ask.dtype, self._kind(number), ask.seed + number, self._c.world_size)
        elif new:  # a dry run: SGLang gives zeros (before v0.5.1 whatever was there, for which zeros stand)
            verdict = inputs.check_same(stored, np.zeros_like(stored), ask.dtype)
        else:  # a lost result, or a group of one: the input as it was
            verdict = inputs.check_same(stored, mine, ask.dtype)
        self._worst = inputs.worse(self._worst, verdict)
        if new:
            self._kept &= inputs.same_bits(self._arrays.read(self._tensor), mine)

    @property
    def decision(self) -> Decision:
        decision: Decision = self._reduced.decision
        return decision

    def row(self) -> Row:
        r = self._reduced
        returned: Literal["input", "new"] = "new" if self._is_new(r.tensor) else "input"
        numbers = range(self._ask.first, self._ask.first + self._ask.times)
        kinds = tuple(kind for kind in KINDS if kind in {self._kind(number) for number in numbers})
        return Row(
            self._c.rank, r.path, r.rule, r.kernel, returned, self._worst, self._kept, self._checked, self._digest.digest(), kinds
        )


# ----------------------------------------------------------------------------------------------------------------------------- timed


_Times = tuple[NDArray[np.float64], NDArray[np.float64]]


def measure(coordinator: Coordinator, ask: Ask) -> _Times:
    """(host, device) microseconds of each timed call: apart, because asking a device for its time costs the host some."""
    arrays = arrays_of(coordinator.device)
    tensor = arrays.empty(ask.shape, ask.dtype)
    arrays.fill(tensor, np.zeros(ask.count, inputs.element(ask.dtype).storage))  # zeros stay zeros when they are reduced in place
    timing = coordinator.timing
    try:
        return (_replays if ask.captured else _calls)(coordinator, ask, tensor, arrays)
    finally:
        coordinator.timing = timing


def _calls(c: Coordinator, ask: Ask, tensor: Any, arrays: Arrays) -> _Times:
    host, device = np.empty(ask.times), np.empty(ask.times)
    with _surrounded(c, ask.context):
        c.timing = False
        for i in range(ask.times):
            start = time.perf_counter_ns()
            kept = c.all_reduce(tensor)
            host[i] = time.perf_counter_ns() - start
            del kept
        c.wait()
        c.timing = True
        for i in range(ask.times):
            device[i] = _device_us(c, tensor, arrays)
        c.wait()
    return host / 1e3, device


def _device_us(c: Coordinator, tensor: Any, arrays: Arrays) -> float:
    """Between the device's own marks, which the Coordinator sets; torch's paths, which it does not see into, between torch's."""
    c.timing = True
    between: list[float | None] = []
    around = arrays.timed(lambda: between.append(c.all_reduce(tensor).device_us))
    c.timing = False
    return around if between[0] is None else between[0]


def _replays(c: Coordinator, ask: Ask, tensor: Any, arrays: Arrays) -> _Times:
    host, device = np.empty(ask.times), np.empty(ask.times)
    c.timing = False
    with _surrounded(c, ask.context), c.graph() as graph:
        kept = c.all_reduce(tensor)
    for i in range(ask.times):
        start = time.perf_counter_ns()
        graph.replay()
        host[i] = time.perf_counter_ns() - start
    c.wait()
    for i in range(ask.times):
        device[i] = arrays.timed(graph.replay)
    c.wait()
    del kept
    return host / 1e3, device
