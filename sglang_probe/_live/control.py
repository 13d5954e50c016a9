"""Starting and stopping what running workers record, by the control word of their files. Called by the command `record`; Python:
record_start, ...

Invariant: settings are written before the word that starts, and all files are open before the first is written, so that ranks begin
close together.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .._record.ring import Refusal, Ring
from .._show.page import Block, Line, Table, items, to_html, to_text
from .._types import InputError
from .find import Sources, find, nothing_text
from .words import many, seconds_text
from .worker import Reader, Worker
from .worlds import worlds_of


@dataclass(frozen=True, eq=False, repr=False)
class Recorders:
    """Processes that record, or could, and how they are set."""

    workers: tuple[Worker, ...]
    refused: tuple[Refusal, ...] = ()
    done: str = ""
    """What was changed."""

    @property
    def answer(self) -> str:
        alive = [worker for worker in self.workers if worker.is_alive]
        if not alive and not self.done:
            return nothing_text(self.refused)
        recording = sum(worker.state == "recording" for worker in alive)
        told = f"{recording} of {many(len(alive), 'worker')} {'records' if recording == 1 else 'record'}"
        return f"{self.done}; {told}" if self.done else told

    def page(self, verbose: bool = False) -> list[Block]:
        """What people see."""
        blocks: list[Block] = [Line(self.answer, "answer")]
        columns = ("rank", "pid", "state", "calls", "call sites", "device times", "host times", "last call", "file")
        rows = tuple(
            (
                str(worker.rank) if worker.rank >= 0 else "?",
                str(worker.pid),
                worker.state,
                f"{worker.calls:,}",
                _every(int(worker.header["site_every"])),
                _every(int(worker.header["timer_every"])),
                "every call" if worker.header["host_time"] else "none",
                "-" if worker.idle_s is None else f"{seconds_text(worker.idle_s)} ago",
                worker.path,
            )
            for world in worlds_of(self.workers)
            for worker in world.workers
        )
        if rows:
            blocks.append(Table("Workers", columns, rows, frozenset({"rank", "pid", "calls", "last call"}), "state"))
        blocks += items("Not read", (f"{one.path}: {one.reason}" for one in self.refused), "dim")
        return blocks

    def __str__(self) -> str:
        return to_text(self.page())

    def __repr__(self) -> str:
        return f"<Recorders: {self.answer}>"

    def _repr_html_(self) -> str:
        return to_html(self.page())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "answer": self.answer,
            "workers": [
                {
                    "pid": worker.pid,
                    "rank": worker.rank,
                    "state": worker.state,
                    "calls": worker.calls,
                    "site_every": worker.header["site_every"],
                    "timer_every": worker.header["timer_every"],
                    "host_time": bool(worker.header["host_time"]),
                    "path": worker.path,
                }
                for worker in self.workers
            ],
            "refused": [{"path": os.fspath(one.path), "reason": one.reason} for one in self.refused],
        }


def _every(n: int) -> str:
    return "none" if not n else "every call" if n == 1 else f"every {n:,}th"


def record_status(sources: Sources = None, *, dead: bool = False) -> Recorders:
    """Workers with the hook, and what they record. `dead`: those that have ended too. Raises InputError for named ones."""
    found = find(sources, dead=dead)
    try:
        return Recorders(_look(found.rings), tuple(found.refused))
    finally:
        found.close()


def record_start(
    sources: Sources = None,
    *,
    site_every: int | None = None,
    timer_every: int | None = None,
    host_time: bool | None = None,
) -> Recorders:
    """Workers record from their next call on; those that do already take the settings.

    Parameters
    ----------
    sources
        Numbers of processes, or ring files; None: all workers of this user.
    site_every
        The call site of every n-th call; 0: of none; None: as it is. Walking frames costs as much as all the rest.
    timer_every
        The device time of every n-th eager call; 0: none; None: as it is.
    host_time
        The host's time of every call; None: as it is.

    Raises InputError where there is none, or a named one is gone.
    """
    settings = {"site_every": site_every, "timer_every": timer_every, "host_time": None if host_time is None else int(host_time)}
    for name in ("site_every", "timer_every"):
        _check(name, settings[name])
    return _tell(sources, {name: value for name, value in settings.items() if value is not None}, True)


def record_stop(sources: Sources = None) -> Recorders:
    """Workers' next calls are not recorded; what is on record stays. Raises InputError where there is none, or a named one is gone."""
    return _tell(sources, {}, False)


def record_clean() -> tuple[int, int, int]:
    """Removes files of processes that have ended: (files, their bytes, files that were left).

    Left are those that were written to in the last minutes by a process that said no goodbye: it may live in another container.
    """
    found, files, nbytes, left = find(None), 0, 0, 0
    try:
        for ring in found.rings:
            worker = Reader(ring).look(keep=1)
            if worker.state == "killed" and worker.idle_s is not None and worker.idle_s < _FRESH_S:
                left += 1
            elif not worker.is_alive:
                size = ring.path.stat().st_size
                ring.path.unlink(missing_ok=True)
                files, nbytes = files + 1, nbytes + size
    finally:
        found.close()
    return files, nbytes, left


_FRESH_S = 300.0


def _check(name: str, value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 32):
        raise InputError(name, value, "give n: every n-th call; 0: none")


def _tell(sources: Sources, settings: dict[str, int], start: bool) -> Recorders:
    found = find(sources, dead=False)
    try:
        alive = [ring for ring in found.rings if ring.alive]
        gone = [ring for ring in found.rings if not ring.alive]
        if not alive:
            value = gone[0].pid if gone else None
            raise InputError("pid", value, f"process {value} is gone" if gone else nothing_text(found.refused))
        for ring in alive:
            for name, number in settings.items():
                ring.set(name, number)
        changed = sum(ring.recording != start for ring in alive)
        for ring in alive:
            (ring.start if start else ring.stop)()
        told = f"{'started' if start else 'stopped'} {changed} of {many(len(alive), 'worker')}"
        same = f" ({len(alive) - changed} did{'' if start else ' not'} record before)" if changed < len(alive) else ""
        return Recorders(_look(found.rings), tuple(found.refused), told + same)
    finally:
        found.close()


def _look(rings: Iterable[Ring]) -> tuple[Worker, ...]:
    return tuple(Reader(ring).look(keep=1) for ring in rings)
