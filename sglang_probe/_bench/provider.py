"""Provider: where the ranks of a bench come from: fresh local processes (local.py), or those that a launcher started (launched.py).

Used by runner.py, in one process: the one that drives and writes. Invariant: a function runs on all ranks or the set is closed; what it
returned comes back by rank, and every wait for it ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .._run.machine import Device
from .._types import Group


class RankSet(Protocol):
    """One set of processes, each with a Coordinator. A LocalGroup is one."""

    @property
    def closed(self) -> str:
        """Why nothing more is possible; empty while it is usable."""

    def run(self, function: Callable[..., Any], /, *args: Any, timeout_s: float | None = None) -> list[Any]:
        """``function(coordinator, *args)`` on every rank; what it returned, by rank.

        Raises what ranks raised (of their type). After an error that leaves ranks apart (a dead rank, a hung one) ``closed`` says so.
        """

    def close(self) -> None:
        """Lets the ranks go; twice is once."""


class Provider(Protocol):
    """What a bench runs on. All but `why` goes into the plan, and is the same whenever a file is to be continued."""

    @property
    def device(self) -> Device:
        """``gpu`` or ``host``."""

    @property
    def why(self) -> str:
        """Why it is that one, for people."""

    @property
    def world_size(self) -> int: ...

    @property
    def group(self) -> Group:
        """The facts that gates read."""

    @property
    def fresh(self) -> bool:
        """Whether every `start` gives new processes. False: one set a launch, and the same command again gives the next."""

    @property
    def how(self) -> str:
        """For people: ``local processes``, ``torchrun``."""

    @property
    def ordinals(self) -> tuple[int, ...]:
        """The GPU of each rank, of those that are visible; empty for CPU ranks, and where only the ranks know."""

    def start(self) -> RankSet: ...
