"""One good call and one bad call of everything that the hook has in `_core`. Called by core_calls.py, whose tables these join.

Invariant: one small ring in a folder of its own, removed at exit; every call can be made again and again.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from sglang_probe import _core

Thunk = Callable[[], object]

_FOLDER = Path(tempfile.mkdtemp(prefix="sglang_probe_calls_"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
_SIZES = {"slots": 64, "graphs": 4, "kinds": 64}

TENSOR = np.ones((3, 8), np.float32)
ALGO = object()


class Communicator:
    """What SGLang's have of what the hook looks at."""

    unique_name = "tp:0"
    disabled = False

    def reduce(self, tensor: Any) -> object:
        return (ALGO, tensor)

    def fail(self, tensor: Any) -> None:
        raise ValueError("the original's own")


RECORDER = _core.Recorder(_FOLDER / "calls.ring", **_SIZES)
RECORDER.start()
COMMUNICATOR = Communicator()
_FLAGS = {"_in_piecewise_cuda_graph": True}
INNER = _core.Wrapper(Communicator.reduce, RECORDER, path=1, unless="disabled", kernels=(((ALGO, ...), "one_shot"),))
OUTER = _core.Wrapper(lambda self, tensor: INNER(self, tensor), RECORDER, "all_reduce", 8, "out_of_place")
FUSED = _core.Wrapper(lambda tensor, which: tensor, RECORDER, "fused", 5, "fused", 0, group=lambda which: "tp:0", which=1)
FAILING = _core.Wrapper(Communicator.fail, RECORDER, "failing")
BEGIN, END, REPLAY = (_core.GraphWrapper(lambda graph: None, RECORDER, event) for event in ("begin", "end", "replay"))
FD = os.open(RECORDER.path, os.O_RDWR)
NO_RING = os.open(os.devnull, os.O_RDONLY)


# No *args: CPython 3.12 and 3.13 crash by themselves where there is no memory for the tuple.
def _expect(a: object, b: object, c: int, d: int, e: int, f: int, g: int, h: int, i: bool, j: object) -> object:
    return 8, "two_shot"


def _timer(token: object, seq: int = 0) -> object:
    return RECORDER


def _made() -> None:
    recorder = _core.Recorder(str(_FOLDER / "made.ring"), release="0.5.9", **_SIZES)
    recorder.close(remove=True)


def _called() -> None:
    """Recorded with everything that can be asked for: sources, an expected path that is another one, a site, times."""
    RECORDER.set_sources(((4, _FLAGS, "_in_piecewise_cuda_graph", 0), (1 << 16, None, "disabled", 4), (1 << 17, bool, "", 0)))
    RECORDER.forget()
    RECORDER.set_expect(_expect)
    RECORDER.site_every, RECORDER.host_time, RECORDER.timer_every, RECORDER.timer = 1, True, 1, _timer
    try:
        OUTER(COMMUNICATOR, TENSOR)
        OUTER(COMMUNICATOR, tensor=TENSOR)
        FUSED(TENSOR, False)
    finally:
        RECORDER.site_every, RECORDER.host_time, RECORDER.timer_every, RECORDER.timer = 0, False, 0, None
        RECORDER.set_expect(None)
        RECORDER.set_sources(())


def _captured() -> None:
    graph = object()
    BEGIN(graph)
    END(graph)
    REPLAY(graph)


def _alarms() -> None:
    RECORDER.alarms()
    RECORDER.put("tp:0", "by hand", 1, 64, expected=8)
    RECORDER.alarms()


def _graph() -> int:
    RECORDER.graph_begin("decode 8")
    RECORDER.graph_end()
    return 1


def _get(name: str) -> Thunk:
    return lambda: getattr(RECORDER, name)


def _set(name: str, value: object) -> Thunk:
    return lambda: setattr(RECORDER, name, value)


def _same(name: str) -> Thunk:
    return lambda: setattr(RECORDER, name, getattr(RECORDER, name))


_graph()
GOOD: dict[str, Thunk] = {
    "Recorder": _made,
    "Recorder.start": lambda: RECORDER.start(),
    "Recorder.stop": lambda: (RECORDER.stop(), RECORDER.start()),
    "Recorder.set_rank": lambda: RECORDER.set_rank(1, 8),
    "Recorder.set_sources": lambda: RECORDER.set_sources(
        ((1, _FLAGS, "x", 0), (2, None, "ca_comm.disabled", 1), (4, len, "", 0))
    ),
    "Recorder.set_expect": lambda: (RECORDER.set_expect(_expect), RECORDER.set_expect(None)),
    "Recorder.forget": lambda: RECORDER.forget(),
    "Recorder.set_skipped": lambda: RECORDER.set_skipped(("sglang/srt/distributed/", "torch/")),
    "Recorder.intern": lambda: RECORDER.intern("site", "model.py:1 forward"),
    "Recorder.alarms": _alarms,
    "Recorder.graph_begin": lambda: RECORDER.graph_begin(label="decode 8"),
    "Recorder.graph_end": _graph,
    "Recorder.graph_replayed": lambda: RECORDER.graph_replayed(1, times=2),
    "Recorder.registered": lambda: RECORDER.registered(0),
    "Recorder.timed": lambda: RECORDER.timed(RECORDER.put("tp:0", "by hand", 1, 64), 1000),
    "Recorder.put": lambda: RECORDER.put("tp:0", "by hand", 1, 64, 0, 1, 4, 1, "one_shot", 1, 1, "model.py:1 forward", 20, 2),
    "Recorder.counts": lambda: RECORDER.counts(),
    "Recorder.close": _made,
    **{f"Recorder.{name}": _get(name) for name in ("path", "recording", "pending")},
    **{f"Recorder.{name}": _same(name) for name in ("context", "label", "site_every", "timer_every", "host_time", "timer")},
    "Wrapper": lambda: _core.Wrapper(_expect, RECORDER, "made", 1, "fused", 0, "tensor", "tp:0", 1, "disabled", ((None, "dry"),)),
    "Wrapper.__call__": _called,
    "GraphWrapper": lambda: _core.GraphWrapper(_expect, RECORDER, "replay"),
    "GraphWrapper.__call__": _captured,
    "ring_look": lambda: _core.ring_look(FD),
    "ring_control": lambda: _core.ring_control(FD, "host_time", 0),
    "ring_records": lambda: _core.ring_records(FD, 1),
    "ring_tables": lambda: _core.ring_tables(FD),
}

BAD: dict[str, Thunk] = {
    "Recorder": lambda: _core.Recorder(_FOLDER / "bad.ring", slots=63),
    "Recorder.start": lambda: RECORDER.start(1),  # type: ignore[call-arg] # bad on purpose
    "Recorder.stop": lambda: RECORDER.stop(1),  # type: ignore[call-arg] # bad on purpose
    "Recorder.set_rank": lambda: RECORDER.set_rank("first", 8),  # type: ignore[arg-type] # bad on purpose
    "Recorder.set_sources": lambda: RECORDER.set_sources(((1, _FLAGS, "x", 0), (1, _FLAGS, "a.b", 0))),
    "Recorder.set_expect": lambda: RECORDER.set_expect(8),
    "Recorder.forget": lambda: RECORDER.forget(1),  # type: ignore[call-arg] # bad on purpose
    "Recorder.set_skipped": lambda: RECORDER.set_skipped((1,)),  # type: ignore[arg-type] # bad on purpose
    "Recorder.intern": lambda: RECORDER.intern("colour", "red"),
    "Recorder.alarms": lambda: RECORDER.alarms(1),  # type: ignore[call-arg] # bad on purpose
    "Recorder.graph_begin": lambda: RECORDER.graph_begin("x" * 481),
    "Recorder.graph_end": lambda: RECORDER.graph_end("x"),  # type: ignore[arg-type] # bad on purpose
    "Recorder.graph_replayed": lambda: RECORDER.graph_replayed(5),
    "Recorder.registered": lambda: RECORDER.registered(-1),
    "Recorder.timed": lambda: RECORDER.timed("x", 1),  # type: ignore[arg-type] # bad on purpose
    "Recorder.put": lambda: RECORDER.put("tp:0", "by hand", 99, 64),
    "Recorder.counts": lambda: RECORDER.counts(1),  # type: ignore[call-arg] # bad on purpose
    "Recorder.close": lambda: RECORDER.close(now=True),  # type: ignore[call-arg] # bad on purpose
    **{f"Recorder.{name}": _set(name, 1) for name in ("path", "recording", "pending", "label", "timer")},
    **{f"Recorder.{name}": _set(name, -1) for name in ("context", "site_every", "timer_every", "host_time")},
    "Wrapper": lambda: _core.Wrapper(_expect, RECORDER, "made", kernels=(("result", "one_shot"), "no pair")),  # type: ignore[arg-type]
    "Wrapper.__call__": lambda: FAILING(COMMUNICATOR, TENSOR),
    "GraphWrapper": lambda: _core.GraphWrapper(_expect, RECORDER, "middle"),
    "GraphWrapper.__call__": lambda: REPLAY(),
    "ring_look": lambda: _core.ring_look(NO_RING),
    "ring_control": lambda: _core.ring_control(FD, "colour", 1),
    "ring_records": lambda: _core.ring_records(NO_RING, 1),
    "ring_tables": lambda: _core.ring_tables(NO_RING),
}
