"""Driver: who makes the calls that are timed. Our own C (native.py), or SGLang's GroupCoordinator (engine.py).

A driver prepares one call in each rank and gives back a Prepared; sample.py holds the stream, sets marks, waits and divides, alike for all.
Invariant: everything here is collective unless it says otherwise: all ranks do it with the same arguments in the same order, and what
cannot run here is refused on all of them alike (ProbeUnavailable with the reason), before any of them waits for another.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .._run.switches import Settings
from .._types import InputError

if TYPE_CHECKING:
    from .._run.coordinator import Coordinator


@dataclass(frozen=True)
class Wanted:
    """One call as a driver is to prepare it; plain data that travels to the ranks."""

    target: str
    """A name of targets.TARGETS."""
    path: str
    kernel: str
    """What the dispatch says of this call with these settings (decided in the parent): what must run, or the cell is refused."""
    settings: Settings
    """What brings it about: release, facts, switches. Its context bits are those of an eager call; a capture adds its own."""
    captured: bool
    """Which of `call` and `enqueue`, or `capture`, will be asked for: the dispatch may differ between them."""
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


class Captured(Protocol):
    """Calls that were recorded into one CUDA graph."""

    result: Any
    """The tensor that the last of them gave back; the input, where they are in place."""

    def replay(self) -> float:
        """Launches it once on the current stream; microseconds of the host until that returned. Not collective by itself."""


class Prepared(Protocol):
    """One call that can be made again and again: its input is there, what its first call builds is built.

    On GPUs everything goes to torch's current stream, which sample.py has set to a stream of its own: hold, marks and spins are on it.
    """

    path: str
    kernel: str
    backend: str
    release: str
    """What really runs, as a Cell says it; "" where there is nothing to tell."""
    tensor: Any
    """The input. sample.py fills it before a checked call; timed calls read zeros, which stay zeros when they are reduced in place."""

    def surroundings(self) -> AbstractContextManager[None]:
        """What a server sets around its eager calls. Entered once around all that are timed, so that no time holds it; a call outside of
        it enters it by itself."""

    def call(self, compute_us: float) -> Any:
        """One eager call after a compute kernel of this length (0: none); the tensor that came back. For checks: not timed."""

    def enqueue(self, calls: int, compute_us: float) -> float:
        """``calls`` times ([compute kernel] call), without a wait; the host's microseconds inside a call, compute kernels not counted.

        Not collective by itself: nothing waits for a peer. No allocation may reach the driver (a held stream would wait for ever), so
        what comes out is dropped at once and its memory is taken again.
        """

    def capture(self, calls: int, compute_us: float) -> Captured:
        """One graph of ``calls`` times ([compute kernel] call), ready to be replayed."""


class Driver(Protocol):
    """A module that has these functions is a driver."""

    def release(self) -> str:
        """In the parent, without heavy imports: the one release that it runs here, "" for any. Raises ProbeUnavailable: not here."""

    def prepare(self, coordinator: Coordinator, wanted: Wanted) -> Prepared:
        """In each rank. The first call may build groups; what is kept for later ones stays in ``vars(coordinator)``, as torch_paths does.

        Raises ProbeUnavailable where it does not run here, or where another path or kernel than the wanted one would be taken.
        """


MODULES = ("native", "engine")
"""Each is a module here, and a name that Cell.driver has."""


def driver_of(name: str) -> Driver:
    if name not in MODULES:
        raise InputError("driver", name, f"give one of {', '.join(MODULES)}")
    module: Any = importlib.import_module(f".{name}", __package__)
    driver: Driver = module
    return driver
