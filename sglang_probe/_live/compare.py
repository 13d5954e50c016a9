"""Compares ranks, call by call and graph by graph, from outside, so that it works while they hang. Called by top.py.

Ranks are compared by their number of the call. Where ranks began to record at different moments the numbers of one are shifted against
the others'; shift.py finds by how much.
Invariant: a difference that is told was recorded by both; what was overwritten, or not seen, differs from nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .._record.dtype import UNKNOWN
from .._show.sizes import human_bytes
from .._types import FrozenMap
from . import words
from .agree import STALLED_S, Agreement, Behind, GroupAgreement, Seen
from .shift import Known, Lane, lane_of, shift_of
from .worker import Worker
from .worlds import Members, World, members_of


def agreement_of(worlds: Sequence[World], known: Known) -> Agreement:
    """Of what was recorded by now. `known`: shifts that were found, kept from look to look."""
    groups = tuple(_compare(members, known) for world in worlds for members in members_of(world))
    return Agreement(groups, tuple(text for world in worlds for text in _graphs(world)))


# ------------------------------------------------------------------------------------------------------------------------ one group


def _compare(members: Members, known: Known) -> GroupAgreement:
    lanes = [lane_of(worker, members.group) for worker in members.workers]
    ranks = tuple(worker.rank for worker in members.workers)
    longest = max(range(len(lanes)), key=lambda i: len(lanes[i].calls))
    shifts = {i: shift_of(lanes[longest], lane, known) for i, lane in enumerate(lanes) if i != longest}
    moved = [lane.moved(shifts.get(i, 0)) for i, lane in enumerate(lanes)]
    compared, first, last, call = _first_difference(moved)
    told = {ranks[i]: shift for i, shift in shifts.items() if shift}
    return GroupAgreement(
        members.group,
        ranks,
        compared,
        first,
        last,
        call,
        _parts(moved, members, call) if call else (),
        _behind(moved, members),
        FrozenMap(told),
        members.assumed,
        tuple(_shifted(rank, shift) for rank, shift in told.items()),
    )


def _shifted(rank: int, shift: int) -> str:
    how = "fewer" if shift > 0 else "more"
    return f"{words.ranks_text([rank])} counts {abs(shift):,} {how} than the others: it began to record at another call, or left some out"


def _first_difference(lanes: Sequence[Lane]) -> tuple[int, int, int, int]:
    """(calls compared, first, last, the first that differs or 0)."""
    every = np.unique(np.concatenate([lane.calls for lane in lanes]))
    if not len(every):
        return 0, 0, 0, 0
    count = np.zeros(len(every), np.int64)
    differs = np.zeros(len(every), bool)
    known: list[NDArray[np.int64]] = [np.full(len(every), -1, np.int64) for _ in range(len(Lane.FIELDS))]
    for lane in lanes:
        place = np.searchsorted(every, lane.calls)
        count[place] += 1
        for so_far, values in zip(known, lane.fields, strict=True):
            before = so_far[place]
            differs[place] |= (before >= 0) & (values >= 0) & (before != values)
            so_far[place] = np.where(before >= 0, before, values)
    both = every[count > 1]
    if not len(both):
        return 0, 0, 0, 0
    wrong = np.flatnonzero(differs)
    return len(both), int(both[0]), int(both[-1]), int(every[wrong[0]]) if len(wrong) else 0


def _parts(lanes: Sequence[Lane], members: Members, call: int) -> tuple[Seen, ...]:
    parts: dict[str, list[int]] = {}
    for lane, worker in zip(lanes, members.workers, strict=True):
        row = lane.row(call)
        if row is not None:
            parts.setdefault(call_text(row), []).append(worker.rank)
    return tuple(Seen(tuple(ranks), text) for text, ranks in sorted(parts.items(), key=lambda part: (-len(part[1]), part[1])))


def call_text(row: NDArray[np.void] | np.void) -> str:
    """``custom 42 KiB of bf16, captured``."""
    path = words.name_of(words.PATHS, int(row["path"])) or "a path that was not seen"
    unknown = int(row["flags"]) & words.BIT["no_tensor"]
    size = "a size that was not seen" if unknown else human_bytes(int(row["nbytes"]))
    dtype = f" of {words.name_of(words.DTYPES, int(row['dtype']))}" if int(row["dtype"]) != UNKNOWN else ""
    return f"{path} {size}{dtype}, {words.name_of(words.PHASES, int(row['phase']))}"


def _behind(lanes: Sequence[Lane], members: Members) -> tuple[Behind, ...]:
    most = max((lane.last for lane in lanes), default=0)
    alive = any(worker.is_alive for worker in members.workers)
    newest = max((int(lane.times[-1]) for lane in lanes if len(lane.times)), default=0)
    found = []
    for lane, worker in zip(lanes, members.workers, strict=True):
        if 0 < lane.last < most:
            now = worker.looked_ns if alive else newest
            idle = (now - int(lane.times[-1])) / 1e9 if worker.here or not alive else None
            gone = _GONE.get(worker.state, "") if alive else ""
            found.append(Behind(worker.rank, most - lane.last, _last(worker, members.group), idle, gone))
    return tuple(found)


_GONE = {"killed": "was killed", "ended": "has ended"}


def _last(worker: Worker, group: str) -> str:
    """What a rank did last, in whatever group."""
    if not len(worker.recent):
        return "nothing that is on record"
    row = worker.recent[-1]
    name = worker.tables.names["group"].get(int(row["group"]), "")
    site = worker.tables.names["site"].get(int(row["site"]), "")
    return f"{call_text(row)}{f' in {name}' if name != group else ''}{f' at {site}' if site else ''}"


# --------------------------------------------------------------------------------------------------------------------------- graphs


def _graphs(world: World) -> list[str]:
    """Graphs that were captured differently; where one rank replays less and stands still, that too."""
    told = []
    done = {worker.rank: [graph for graph in worker.graphs if not graph.capturing] for worker in world.workers if worker.graphs}
    if len(done) < 2:
        return []
    for number in sorted({graph.number for graphs in done.values() for graph in graphs}):
        parts: dict[tuple[str, int, int], list[int]] = {}
        for rank, graphs in done.items():
            for graph in graphs:
                if graph.number == number:
                    parts.setdefault((graph.label, graph.captured, graph.nbytes), []).append(rank)
        if len(parts) > 1:
            texts = "; ".join(
                f"{words.ranks_text(ranks)} {words.many(captured, 'call')} of {human_bytes(nbytes)} together"
                for (_, captured, nbytes), ranks in sorted(parts.items(), key=lambda part: -len(part[1]))
            )
            told.append(f"graph {number}: {texts}")
            break  # what follows is numbered differently
    replays = {worker.rank: worker.replays for worker in world.workers if worker.rank in done}
    most = max(replays.values())
    for worker in world.workers:
        less = most - replays.get(worker.rank, most)
        if less and not told and world.is_alive and (not worker.is_alive or worker.still_s >= STALLED_S):
            since = (
                f"its process {_GONE[worker.state]}"
                if not worker.is_alive
                else f"it has not moved for {words.seconds_text(worker.still_s)}"
            )
            told.append(f"{words.ranks_text([worker.rank])} has replayed {words.many(less, 'graph')} fewer, and {since}")
    return told
