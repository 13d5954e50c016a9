"""Findings: what is odd in what workers recorded, each with the ranks that have it. Called by top.py and recording.py.

Invariant: a finding says what was counted and not why; the same finding of several ranks is told once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .counts import Graph
from .words import many, ranks_text
from .worker import Worker
from .worlds import RANKS_NOTE, World

_LABELS = 4
"""Graphs that are named."""


@dataclass(frozen=True)
class Finding:
    """Something odd."""

    kind: str
    """alarm; note: what the hook found out in the worker, as a flag that no call keeps; nothing, raised, unregistered, never_replayed,
    unseen, lost; dry: as it should be."""
    text: str
    """Without the ranks."""
    ranks: tuple[int, ...]
    sglang: str = ""
    """Of these workers."""

    def __str__(self) -> str:
        return f"{ranks_text(self.ranks)}: {self.text}" if any(rank >= 0 for rank in self.ranks) else self.text

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"kind": self.kind, "text": self.text, "ranks": list(self.ranks), "sglang": self.sglang}


def findings_of(worlds: Iterable[World]) -> tuple[Finding, ...]:
    """The worst first: in the order of `Finding.kind`'s list."""
    found: list[Finding] = []
    for world in worlds:
        ranks: dict[tuple[str, str], list[int]] = {}
        for worker in world.workers:
            for kind, text in _of(worker):
                ranks.setdefault((kind, text), []).append(worker.rank)
        found += [Finding(kind, text, tuple(of), world.release) for (kind, text), of in ranks.items()]
    return tuple(sorted(found, key=lambda one: _ORDER.index(one.kind)))


_ORDER = ("alarm", "note", "nothing", "raised", "unregistered", "never_replayed", "unseen", "lost", "dry")


def _of(worker: Worker) -> Iterator[tuple[str, str]]:
    yield from _alarms(worker)
    yield from _flags(worker)
    yield from _unregistered(worker.graphs)
    yield from _never_replayed(worker.graphs)
    yield from _lost(worker)
    yield from (("note", note) for note in worker.notes if not RANKS_NOTE.match(note))


def _alarms(worker: Worker) -> Iterator[tuple[str, str]]:
    alarms: dict[tuple[str, str, str, str], list[int]] = {}
    for kind in worker.kinds:
        if kind.is_alarm:
            counted = alarms.setdefault((kind.group, kind.entry, kind.expected, kind.path), [0, 0])
            counted[0] += kind.calls
            counted[1] += kind.executed
    for (group, entry, expected, path), (calls, executed) in alarms.items():
        ran = f", executed {executed:,} times" if executed != calls else ""
        yield "alarm", f"{group}: {expected} was expected and {path} ran in {many(calls, 'call')} ({entry}{ran})"


def _flags(worker: Worker) -> Iterator[tuple[str, str]]:
    counted: dict[tuple[str, str, str], int] = {}
    unseen: dict[tuple[str, str], int] = {}
    for kind in worker.kinds:
        for flag in ("nothing", "raised", "dry"):
            if flag in kind.flags:
                counted[flag, kind.group, kind.op] = counted.get((flag, kind.group, kind.op), 0) + kind.calls
        if not kind.path and not kind.is_idle:
            unseen[kind.group, kind.entry] = unseen.get((kind.group, kind.entry), 0) + kind.calls
    for (flag, group, op), calls in counted.items():
        if flag == "nothing":
            what = "the fused op was chosen" if op == "fused" else f"a call {f'({op}) ' if op else ''}was made"
            yield flag, f"{group}: {what} {many(calls, 'time')} and gave nothing back: it reduced none"
        elif flag == "raised":
            yield flag, f"{group}: {many(calls, 'call')} ended in an exception"
        else:
            yield flag, f"{group}: {many(calls, 'call')} of the warm-up were dry: nothing was launched, as v1 does"
    for (group, entry), calls in unseen.items():
        yield "unseen", f"{group}: in {many(calls, 'call')} of {entry} no path was seen"


def _unregistered(graphs: Sequence[Graph]) -> Iterator[tuple[str, str]]:
    batches: dict[int, list[Graph]] = {}
    for graph in graphs:
        batches.setdefault(graph.batch, []).append(graph)
    for of in batches.values():
        calls = sum(graph.custom for graph in of)
        told = {graph.registered for graph in of if graph.registered is not None}
        if calls and told == {0}:
            yield "unregistered", f"{_named(of)} captured {many(calls, 'call')} of custom all-reduce and registered 0 addresses"


def _never_replayed(graphs: Sequence[Graph]) -> Iterator[tuple[str, str]]:
    idle = [graph for graph in graphs if graph.captured and not graph.replays and not graph.capturing]
    if not idle:
        return
    calls = sum(graph.captured for graph in idle)
    which = "no graph" if len(idle) == len(graphs) else f"{many(len(idle), 'graph')} of {len(graphs)} never"
    verb = "has been replayed yet" if len(idle) == len(graphs) else "replayed"
    yield "never_replayed", f"{which} {verb}: {_named(idle)} captured {many(calls, 'call')} and never ran"


def _named(graphs: Sequence[Graph]) -> str:
    names = list(dict.fromkeys(graph.label or f"graph {graph.number}" for graph in graphs))
    more = f" and {len(names) - _LABELS} more" if len(names) > _LABELS else ""
    return ", ".join(names[:_LABELS]) + more


_LOSSES = (
    ("failures", "the hook failed {} and stood aside"),
    ("deep", "{} were inside of so many others that they were not recorded"),
    ("kinds_lost", "{} found no room in the table of kinds: counts are too small"),
    ("names_lost", "{} found no room: groups, kernels or call sites are missing"),
    ("graphs_lost", "{} found no room: their calls are counted as captured only"),
    ("replays_lost", "{} were of graphs that are not known"),
)
_LOST_WORDS = {
    "failures": "time",
    "deep": "call",
    "kinds_lost": "call",
    "names_lost": "name",
    "graphs_lost": "graph",
    "replays_lost": "replay",
}


def _lost(worker: Worker) -> Iterator[tuple[str, str]]:
    for name, text in _LOSSES:
        count = int(worker.header[name])
        if count:
            yield "lost", text.format(many(count, _LOST_WORDS[name]))
