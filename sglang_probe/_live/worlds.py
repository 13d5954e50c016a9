"""Which processes are ranks of one server, and which ranks make up a group. Called by top and by the agreement.

A ring says its own rank and the world's size, and not whose it is. Processes of one release, world size and parent are one server; one
whose parent is not known any more (it died) joins the server that started nearest to it and lacks its rank. Invariant: two processes
with the same rank are never of one server.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .words import many, ranks_text
from .worker import Worker

_TOGETHER_NS = 600_000_000_000
"""Ranks of one server make their files within ten minutes of one another."""
_MOST_RANKS = 4096
"""More than this no server has: what says so is damaged."""
RANKS_NOTE = re.compile(r"ranks of (\S+): ([0-9]+(?:, ?[0-9]+)*)\Z")
"""A note of the hook that says who is in a group."""


@dataclass(frozen=True, eq=False)
class World:
    """Ranks of one server, by rank."""

    workers: tuple[Worker, ...]

    @property
    def release(self) -> str:
        return self.workers[0].release

    @property
    def world_size(self) -> int:
        return self.workers[0].world_size

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(worker.rank for worker in self.workers)

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks without a file here: on another machine, or without the hook."""
        if self.world_size > _MOST_RANKS:
            return ()
        return tuple(sorted(set(range(self.world_size)) - set(self.ranks)))

    @property
    def is_alive(self) -> bool:
        return any(worker.is_alive for worker in self.workers)

    def __str__(self) -> str:
        of = f" of {self.world_size}" if self.missing else ""
        what = f"SGLang {self.release}" if self.release else "SGLang of a release that is not known"
        return f"{many(len(self.workers), 'rank')}{of}, {what}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "sglang": self.release,
            "world_size": self.world_size,
            "ranks": list(self.ranks),
            "missing": list(self.missing),
            "pids": [worker.pid for worker in self.workers],
        }


@dataclass(frozen=True)
class Members:
    """Who is in one group."""

    group: str
    workers: tuple[Worker, ...]
    assumed: bool
    """The hook did not say: all that have a group of this name."""

    @property
    def ranks(self) -> str:
        return ranks_text(worker.rank for worker in self.workers)


def worlds_of(workers: Iterable[Worker]) -> tuple[World, ...]:
    """Those with somebody alive first, then the newest first."""
    made: list[list[Worker]] = []
    known = sorted(workers, key=_began)
    for worker in [*(one for one in known if one.parent), *(one for one in known if not one.parent)]:
        place = min((group for group in made if _fits(worker, group)), key=lambda group: _apart(worker, group), default=None)
        if place is None:
            made.append([worker])
        else:
            place.append(worker)
    worlds = [World(tuple(sorted(group, key=lambda one: (one.rank, one.pid)))) for group in made]
    return tuple(sorted(worlds, key=lambda world: (not world.is_alive, -max(map(_began, world.workers)))))


def _began(worker: Worker) -> int:
    return int(worker.header["wall_ns"])


def _apart(worker: Worker, group: Sequence[Worker]) -> int:
    return min(abs(_began(worker) - _began(other)) for other in group)


def _fits(worker: Worker, group: Sequence[Worker]) -> bool:
    first = group[0]
    if (worker.release, worker.world_size) != (first.release, first.world_size) or worker.rank < 0:
        return False
    if worker.rank in {other.rank for other in group}:
        return False
    parents = {other.parent for other in group if other.parent}
    if worker.parent and parents:
        return worker.parent in parents
    return _apart(worker, group) < _TOGETHER_NS


def members_of(world: World) -> tuple[Members, ...]:
    """Each group that more than one of these ranks has, in the order of the names."""
    having: dict[str, list[Worker]] = {}
    told: dict[str, set[tuple[int, ...]]] = {}
    for worker in world.workers:
        for number, name in worker.tables.names["group"].items():
            if number:
                having.setdefault(name, []).append(worker)
        for note in worker.notes:
            if found := RANKS_NOTE.match(note):
                told.setdefault(found[1], set()).add(tuple(map(int, found[2].split(","))))
    made = []
    for group, workers in sorted(having.items()):
        left = list(workers)
        for ranks in sorted(told.get(group, ())):
            made.append(Members(group, tuple(one for one in left if one.rank in ranks), False))
            left = [one for one in left if one.rank not in ranks]
        made.append(Members(group, tuple(left), True))
    return tuple(one for one in made if len(one.workers) > 1)
