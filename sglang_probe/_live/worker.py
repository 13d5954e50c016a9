"""Worker: one process as its ring file shows it at one moment; Reader: looks at it again and again, each record once. Called by top and
dump.

Invariant: a look reads what is new and what counts, never the whole ring again; what it shows of a process that was killed is what that
left.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._record.dtype import RECORD
from .._record.header import OfHeader
from .._record.ring import Ring, Tables
from .._shown import Shown
from .._types import FrozenMap
from .counts import Graph, Kind, graphs_of, kinds_of
from .tally import Size, Tally
from .words import utc

State = Literal["recording", "stopped", "ended", "killed"]
RECENT = 16384
"""Records of each process that are kept to be compared with the other ranks'."""
_BOOT_NS = 2_000_000_000
"""Two files whose clocks stand so near to one another were written since the same start of the same machine."""


@dataclass(frozen=True, eq=False, repr=False)
class Worker(Shown, OfHeader):
    """One process, at one moment."""

    path: str
    header: Mapping[str, int | str]
    """All that the file's header has."""
    state: State
    """recording; stopped: it lives and does not record; ended: it said goodbye; killed: it is gone and did not."""
    parent: int
    """The process that started it, 0 where it is gone."""
    looked_ns: int
    """CLOCK_MONOTONIC of this look."""
    here: bool
    """It was written on this machine since its start, and not packed since: its times can be compared with now."""
    tables: Tables
    recent: NDArray[np.void]
    """The newest records, of dtype RECORD, in order."""
    overwritten: int
    """Records that were gone before anybody here read them."""
    torn: int
    tally: Tally = field(default_factory=Tally)
    moved_ns: int = 0
    """When it was last seen to do something: its last record, or a replay between two looks; CLOCK_MONOTONIC, 0 unknown."""
    still_s: float = 0.0
    """For how long it has been watched without a replay or a record."""

    @property
    def is_alive(self) -> bool:
        return self.state in ("recording", "stopped")

    @property
    def records(self) -> int:
        """Since the file was made."""
        return max(int(self.header["head"]) - int(self.header["passed"]), 0)

    @property
    def alarms(self) -> int:
        return int(self.header["alarms"])

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        return kinds_of(self.tables)

    @cached_property
    def graphs(self) -> tuple[Graph, ...]:
        return graphs_of(self.tables)

    @cached_property
    def sizes(self) -> tuple[Size, ...]:
        return self.tally.sizes(self.tables.names)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the hook had to say."""
        return tuple(text for number, text in sorted(self.tables.names["note"].items()) if number)

    @property
    def calls(self) -> int:
        return int(self.tables.kinds["calls"].sum())

    @property
    def executed(self) -> int:
        return sum(kind.executed for kind in self.kinds)

    @property
    def replays(self) -> int:
        return int(self.tables.graphs["replays"].sum())

    @property
    def idle_s(self) -> float | None:
        """Seconds since it last did something; None where that is not known."""
        return (self.looked_ns - self.moved_ns) / 1e9 if self.moved_ns and self.here else None

    @property
    def who(self) -> str:
        """``rank 3 (process 4242)``."""
        return f"rank {self.rank} (process {self.pid})" if self.rank >= 0 else f"process {self.pid}"

    def __repr__(self) -> str:
        return f"<Worker: {self.who}, {self.state}, {self.calls:,} calls>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "path": self.path,
            "pid": self.pid,
            "rank": self.rank,
            "world_size": self.world_size,
            "sglang": self.release,
            "state": self.state,
            "since": utc(int(self.header["wall_ns"])),
            "idle_s": None if self.idle_s is None else round(self.idle_s, 3),
            "calls": self.calls,
            "executed": self.executed,
            "replays": self.replays,
            "alarms": self.alarms,
            "site_every": self.header["site_every"],
            "timer_every": self.header["timer_every"],
            "host_time": bool(self.header["host_time"]),
            "records": self.records,
            "overwritten": self.overwritten,
            "torn": self.torn,
            "failures": self.header["failures"],
            "kinds": [kind.to_dict() for kind in self.kinds],
            "graphs": [graph.to_dict() for graph in self.graphs],
            "sizes": [size.to_dict() for size in self.sizes],
            "notes": list(self.notes),
        }


class Reader:
    """Looks at one ring. It owns the Ring, and closes it."""

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self._since = 0
        self._tally = Tally()
        self._recent = np.zeros(0, RECORD)
        self._overwritten = self._torn = 0
        self._moved_ns = self._first_ns = 0
        self._replays = -1

    def look(self, keep: int = RECENT) -> Worker:
        """What is there now, with at most `keep` of the newest records. Raises InputError where the file was damaged meanwhile."""
        header = dict(self.ring.refresh())
        alive = self.ring.alive  # before the records: what a dying process still wrote is read
        found = self.ring.records(self._since)
        tables = self.ring.tables()
        now, clock = time.monotonic_ns(), int(header["wall_ns"]) - int(header["mono_ns"])
        self._since = found.next
        self._overwritten += found.overwritten
        self._torn += found.torn
        self._tally.add(found.records)
        joined = np.concatenate([self._recent, found.records]) if len(found.records) else self._recent
        self._recent = joined[-keep:] if keep else joined[:0]
        self._notice(found.records, tables, now)
        return Worker(
            path=os.fspath(self.ring.path),
            header=FrozenMap({name: _plausible(name, value) for name, value in header.items()}),
            state=_state(header, alive),
            parent=parent_of(self.ring.pid) if alive else 0,
            looked_ns=now,
            here=alive or (self.ring.path.suffix != ".gz" and abs(time.time_ns() - now - clock) < _BOOT_NS),
            tables=tables,
            recent=self._recent,
            overwritten=self._overwritten,
            torn=self._torn,
            tally=copy.copy(self._tally),
            moved_ns=self._moved_ns,
            still_s=(now - max(self._first_ns, self._moved_ns)) / 1e9,
        )

    def _notice(self, records: NDArray[np.void], tables: Tables, now: int) -> None:
        if len(records):
            self._moved_ns = max(self._moved_ns, int(records["time_ns"].max()))
        self._first_ns = self._first_ns or now
        replays = int(tables.graphs["replays"].sum())
        if 0 <= self._replays < replays:
            self._moved_ns = now
        self._replays = replays

    def close(self) -> None:
        self.ring.close()


def _plausible(name: str, value: int | str) -> int | str:
    """A count of a damaged file may be anything, but not less than nothing."""
    return max(value, 0) if isinstance(value, int) and name != "rank" else value


def _state(header: Mapping[str, int | str], alive: bool) -> State:
    if alive:
        return "recording" if int(header["control"]) & 1 else "stopped"
    return "ended" if header["closed"] else "killed"


def parent_of(pid: int) -> int:
    """0 where the process is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return 0
