"""Looks, every few seconds, at what the wrapped calls have counted, and tells what is new. Called by session.py.

    alarms()  ->  a path that was not expected, once for each group, entry, path and expected path
    tables    ->  promises.py: flags without effect, a fused operator that reduced nothing, graphs

Invariant: it only reads; a look that fails is the end of no thread and of no worker.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._facts import DTYPES
from .._record.ring import Ring, Tables
from .._route import decide
from .._types import Call
from .expected import switches
from .facts import server_argument
from .forking import Lock
from .promises import broken_promises, never_replayed, reduced_nothing, unfused, unregistered

if TYPE_CHECKING:
    from .expected import Expected
    from .groups import Groups
    from .telling import Finding, Findings

EVERY_S = 5.0
Look = Callable[[], NDArray[np.void]]
_PATHS = tuple(name for name, _ in _core.PATHS)
_PHASES = tuple(name for name, _ in _core.PHASES)
_DTYPES = tuple(DTYPES)
_ALARM = 1 << [name for name, _ in _core.RING_FLAGS].index("alarm")
_UNKNOWN = 255
_FUSION_FLAGS = ("enable_flashinfer_allreduce_fusion", "flashinfer_allreduce_fusion_backend")


class Watch:
    """One thread that sleeps, and what it says."""

    def __init__(self, recorder: _core.Recorder, expected: Expected, groups: Groups, findings: Findings) -> None:
        self._recorder, self._expected, self._groups, self._findings = recorder, expected, groups, findings
        self._pid, self._lock = os.getpid(), Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sglang_probe", daemon=True)
        self._seen = -1

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            with suppress(Exception):  # counted by nobody: the next look is in a moment
                self.look()

    def look(self, last: bool = False) -> None:
        """What is new since the last time is told. ``last``: nothing comes after it. A process forked from this one has nothing to tell."""
        if os.getpid() != self._pid:
            return
        with self._lock, Ring(self._recorder.path) as ring:
            moved = int(ring.header["head"]) + int(ring.header["graphs_used"])
            if not (self._recorder.pending or last or moved != self._seen):
                return
            self._seen = moved
            tables = ring.tables()
            records = cache(lambda: ring.records().records)  # megabytes: read only where they have something to say
            for alarm in self._recorder.alarms():
                self._differs(alarm, tables, records)
            for finding in self._noticed(tables, records):
                self._findings.tell(finding.kind, finding.about, finding.text)

    def _differs(self, alarm: tuple[str, str, int, int, int, int], tables: Tables, look: Look) -> None:
        group, entry, path, expected, calls, _ = alarm
        if entry == "fused" and path == _UNKNOWN:
            return  # reduced_nothing says more
        ran, should = _path(path), _path(expected)
        records = look()
        alike = records["flags"] & _ALARM != 0
        alike &= (records["path"] == path) & (records["expected"] == expected)
        alike &= _named(tables, "group", group, records) & _named(tables, "entry", entry, records)
        found = np.flatnonzero(alike)
        example = f", for instance {_text(records[found[-1]])}" if len(found) else ""
        text = f"{group or 'a group'}: {entry} ran {ran}, and {should} was expected: {calls:,} calls so far{example}"
        self._findings.tell("difference", f"{group} {entry} {ran} {should}", text)

    def _noticed(self, tables: Tables, look: Look) -> list[Finding]:
        found: list[Finding] = [*reduced_nothing(tables), *never_replayed(tables, look)]
        for group in self._expected.groups():
            warnings = self._groups.warnings.get(str(group.unique_name), ())
            found += broken_promises(tables, group, warnings, partial(self._stopped, tables, look, group))
        found += unfused(tables, any(server_argument(flag) for flag in _FUSION_FLAGS))
        found += unregistered(tables)
        return found

    def _stopped(self, tables: Tables, look: Look, group: Any, path: str) -> str:
        """Why the model says that the last of the group's calls was not for this path."""
        records = look()
        records = records[_named(tables, "group", str(group.unique_name), records)]
        release = self._expected.release
        if release is None or not len(records) or int(records[-1]["dtype"]) >= len(_DTYPES):
            return ""
        last = records[-1]
        call = Call(int(last["nbytes"]), _DTYPES[int(last["dtype"])])
        with suppress(Exception):
            context = int(last["context"])
            switched = switches(group, context, self._expected.watched)
            answer = decide(release, self._expected.facts(group), call, context & 0xFFFF, switches=switched)
            gate = answer.gates.get(path)
            if gate is not None and gate.stops:
                return f"of {_text(last)} it says: {'; '.join(stop.text for stop in gate.stops)}"
        return ""


def _named(tables: Tables, kind: str, text: str, records: NDArray[np.void]) -> NDArray[np.bool_]:
    """Which records carry this name."""
    return np.isin(records[kind], [number for number, name in tables.names[kind].items() if name == text])


def _path(index: int) -> str:
    return _PATHS[index] if index < len(_PATHS) else "nothing"


def _text(record: Any) -> str:
    dtype = _DTYPES[int(record["dtype"])] if int(record["dtype"]) < len(_DTYPES) else "of unknown type"
    return f"{int(record['nbytes']):,} bytes {dtype}, {_PHASES[int(record['phase'])]}"
