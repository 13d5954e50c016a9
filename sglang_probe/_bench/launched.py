"""Launched: the Provider of ranks that torchrun, mpirun or srun started. Each runs the same command; rank 0 drives, the others follow.

Called by bench.py. Invariant: all ranks come to the same end: what rank 0's work came to, or what it raised; no rank waits for one that is
gone, on one machine at all, on several for longer than a limit.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from .._run.crew import End, LaunchedRanks, Member
from .._run.failures import closed_text
from .._run.far import FarRanks, serve
from .._run.joining import Together, together
from .._run.launchers import Launched, find
from .._run.machine import Device
from .._run.messages import dump, load
from .._run.toggles import seconds
from .._types import InputError, ProbeError
from .provider import RankSet

_START_S = 60.0
_SEEN_S = 0.5
"""torchrun looks at its ranks ten times a second and blames the first that it finds ended: that shall be the one that broke."""
T = TypeVar("T")


class Followed(ProbeError):
    """On ranks 1 and on: rank 0's work failed, and rank 0 says why."""


def is_launched() -> bool:
    """Whether a launcher started this process as one rank of several."""
    found = find()
    return found is not None and found.world_size > 1


def follows() -> bool:
    """Whether this process is one that rank 0 speaks for: it shows and writes nothing."""
    found = find()
    return found is not None and found.world_size > 1 and found.rank > 0


def under_launcher(
    world_size: int | None = None,
    device: str = "auto",
    *,
    ordinals: Sequence[int] | None = None,
    facts: Mapping[str, int | bool] | None = None,
    timeout_s: float = 30.0,
    nccl: str | os.PathLike[str] | None = None,
) -> Launch | None:
    """Collective: the ranks of this launch, met. None where no launcher started this process, or it started one alone."""
    found = find()
    if found is None or found.world_size == 1:
        return None
    if world_size is not None and world_size != found.world_size:
        raise InputError("world_size", world_size, f"{found.launcher} started {found.world_size} ranks: leave it out")
    if ordinals is not None:
        raise InputError("ordinals", ordinals, f"under {found.launcher} each rank takes the GPU of its local rank: leave it out")
    seconds("timeout_s", timeout_s)
    path = None if nccl is None else os.fspath(nccl)
    at = together(found, device, timeout_s=_START_S, nccl=path)
    return Launch(at, facts or {}, timeout_s, path)


class Launch:
    """One launch: one set of processes, started once. A Provider, in rank 0."""

    fresh = False
    ordinals: tuple[int, ...] = ()

    def __init__(self, at: Together, facts: Mapping[str, int | bool], timeout_s: float, nccl: str | None) -> None:
        self._at, self._timeout_s, self._nccl = at, timeout_s, nccl
        self._member = Member(at)
        self._ranks: LaunchedRanks | FarRanks | None = None
        self.device: Device = at.device
        self.why, self.world_size = at.why, at.launched.world_size
        self.group = at.group().with_facts("given", "", **facts)
        self.how = at.launched.launcher + (f" on {at.machines} machines" if at.machines > 1 else "")

    @property
    def launched(self) -> Launched:
        return self._at.launched

    def led(self, work: Callable[[], T]) -> T:
        """In rank 0: ``work()``. In the others: what rank 0 says, and then its result, which is plain data; Followed where it failed."""
        try:
            with _ended_by_signals():
                return self._lead(work) if self._at.launched.rank == 0 else cast(T, self._follow())
        finally:
            self._member.end()
            self._at.tell_apart()
            if self._ranks is not None and self._ranks.broken:
                atexit.register(time.sleep, _SEEN_S)

    def _lead(self, work: Callable[[], T]) -> T:
        try:
            done = work()
            end = End(dump(done))
        except BaseException as error:
            self._tell(End(error=closed_text(error)))
            raise
        self._tell(end)
        return done

    def _tell(self, end: End) -> None:
        if self._ranks is not None:
            self._ranks.close()
        (self._ranks or self._crew()).tell(end)

    def _follow(self) -> Any:
        at, member = self._at, self._member
        end = member.serve() if at.exchange is None else serve(at, member)
        if end.error:
            raise Followed(f"rank {at.launched.rank}: rank 0 ended with {end.error}")
        return load(end.value)

    def start(self) -> RankSet:
        """The ranks of this launch; there is no second set of them."""
        if self._ranks is not None:
            raise ProbeError(
                f"the ranks that {self.launched.launcher} started are used up ({self._ranks.closed or 'they are in use'})"
            )
        self._ranks = self._crew()
        self._ranks.join({"group": self.group, "nccl": self._nccl}, _START_S, self._timeout_s)
        return cast(RankSet, self._ranks)

    def _crew(self) -> LaunchedRanks | FarRanks:
        return LaunchedRanks(self._at, self._member) if self._at.exchange is None else FarRanks(self._at, self._member)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Within: SIGTERM, by which launchers end their ranks, and SIGHUP end this one as an interrupt does, so that it says what is kept."""
    there = threading.current_thread() is threading.main_thread()
    ours = [number for number in (signal.SIGTERM, signal.SIGHUP) if there and signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
