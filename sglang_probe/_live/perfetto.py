"""A recording as a trace that Perfetto and chrome://tracing open: the Chrome trace event format, JSON. Called by recording.py.

One process of the trace is one worker, one of its tracks one thread: calls that ran at once, as long as the host or (on a track of
their own) the device was seen to take, else as an instant. Captured calls stand on their graph's own track at the time of the capture;
replays have no time of their own, so that their number stands at the end, as a counter.
Invariant: times are microseconds of one clock for all workers of one start of the machine; what was not timed has no length; and what
has a length lies within or behind the others of its track, since Perfetto drops what overlaps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from . import words
from .worker import Worker

if TYPE_CHECKING:
    from .recording import Recording

_GRAPHS = 1 << 31
"""Tracks of graphs begin here: the kernel's numbers of threads are smaller."""
_DEVICE = (1 << 31) - 1
_ON_DEVICE = "on the device (sampled; drawn from the host's call on, or from the end of the one before)"
_BATCH = 2000


def trace(recording: Recording, last: int | None = None) -> Iterable[bytes]:
    """Bytes of the file, in parts."""
    origin = min((_first_ns(recording, worker) for worker in recording.workers), default=0)
    other = {
        "made_by": "sglang_probe dump",
        "origin": words.utc(origin),
        "clock": "CLOCK_MONOTONIC, microseconds since origin",
        "notes": list(recording.notes),
    }
    yield f'{{"displayTimeUnit":"ns","otherData":{json.dumps(other)},"traceEvents":[\n'.encode()
    lines: list[str] = []
    between = ""
    for event in events(recording, last, origin):
        lines.append(between + json.dumps(event, separators=(",", ":")))
        between = ",\n"
        if len(lines) >= _BATCH:
            yield "".join(lines).encode()
            lines = []
    yield ("".join(lines) + "\n]}\n").encode()


def events(recording: Recording, last: int | None = None, origin: int = 0) -> Iterator[dict[str, Any]]:
    """Every event; `origin`: nanoseconds since 1970 that are time 0."""
    for order, worker in enumerate(recording.workers):
        clock = recording.clock_ns(worker) - origin
        yield from _tracks(worker, order)
        yield from _graphs(worker, clock)
        free = 0.0
        for row in recording.named(worker, last):
            for event in _call(worker, row, clock):
                if event["tid"] == _DEVICE:  # a stream's calls run one after another, however early the host made them
                    event["ts"] = max(event["ts"], free)
                    free = round(event["ts"] + event["dur"], 3)
                yield event


def _first_ns(recording: Recording, worker: Worker) -> int:
    times = worker.recent["time_ns"]
    began = [int(value) for value in worker.tables.graphs["began_ns"] if value]
    first = [*([int(times.min())] if len(times) else []), *began[:1]]
    return (min(first) if first else int(worker.header["mono_ns"])) + recording.clock_ns(worker)


def _us(ns: int) -> float:
    return round(ns / 1e3, 3)


def _tracks(worker: Worker, order: int) -> Iterator[dict[str, Any]]:
    def name(kind: str, tid: int, **args: Any) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": worker.pid, "tid": tid, "args": args}

    release = f", SGLang {worker.release}" if worker.release else ""
    yield name("process_name", 0, name=f"{worker.who}{release}{'' if worker.is_alive else f' ({worker.state})'}")
    yield name("process_sort_index", 0, sort_index=worker.rank if worker.rank >= 0 else 1000 + order)
    at_once = worker.recent[worker.recent["phase"] != words.CAPTURED]
    for thread in np.unique(at_once["thread"]).tolist():
        yield name("thread_name", thread, name=f"thread {thread}")
    if at_once["device_ns"].any():
        yield name("thread_name", _DEVICE, name=_ON_DEVICE)
        yield name("thread_sort_index", _DEVICE, sort_index=_DEVICE)
    if (worker.recent["phase"] == words.CAPTURED).any():
        yield name("thread_name", _GRAPHS, name="captured into no known graph")
    for graph in worker.graphs:
        yield name(
            "thread_name",
            _GRAPHS + graph.number,
            name=f"graph {graph.number}{f' {graph.label}' if graph.label else ''}, as captured",
        )


def _graphs(worker: Worker, clock: int) -> Iterator[dict[str, Any]]:
    end = int(worker.recent["time_ns"].max()) if len(worker.recent) else 0
    for graph in worker.graphs:
        at = {"pid": worker.pid, "tid": _GRAPHS + graph.number, "cat": "graph"}
        args = {"captured": graph.captured, "bytes": graph.nbytes, "replays": graph.replays, "registered": graph.registered}
        title = f"capture of {graph.label or f'graph {graph.number}'}"
        if graph.began_ns and graph.ended_ns >= graph.began_ns:
            length = _us(graph.ended_ns - graph.began_ns)
            yield at | {"ph": "X", "name": title, "ts": _us(graph.began_ns + clock), "dur": length, "args": args}
        elif graph.began_ns:
            yield at | {"ph": "i", "s": "t", "name": f"{title} began", "ts": _us(graph.began_ns + clock), "args": args}
        replays = {"ph": "C", "name": f"replays of {graph.label or f'graph {graph.number}'}", "args": {"replays": graph.replays}}
        yield {**at, **replays, "ts": _us(max(end, graph.ended_ns) + clock)}


def _call(worker: Worker, row: dict[str, Any], clock: int) -> Iterator[dict[str, Any]]:
    captured = row["phase"] == "captured"
    path = row["path"] or "a path that was not seen"
    args = {
        name: value
        for name, value in row.items()
        if value not in ("", None, [], 0) and name not in ("pid", "rank", "time", "thread", "time_ns")
    }
    event: dict[str, Any] = {
        "name": f"{path}{f' ({kernel})' if (kernel := row['kernel']) else ''}",
        "cat": row["phase"],
        "pid": worker.pid,
        "tid": _GRAPHS + row["graph"] if captured else row["thread"],
        "ts": _us(row["time_ns"] + clock),
        "args": args,
    }
    if "alarm" in row["flags"]:
        event["cname"] = "terrible"
    if row["host_us"] and not captured:
        yield event | {"ph": "X", "dur": row["host_us"]}
    else:
        yield event | {"ph": "i", "s": "t"}
    if row["device_us"] and not captured:
        yield event | {"ph": "X", "tid": _DEVICE, "dur": row["device_us"]}
