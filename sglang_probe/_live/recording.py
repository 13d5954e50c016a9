"""Recording: all that workers have on record, read once; what `sglang-probe dump` shows and writes. Made by read_recording().

Invariant: what is exported is what was read: nothing is dropped without being told in `notes`, and files are written whole or not at all.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._record.dtype import RECORD
from .._record.ring import Refusal
from .._show.page import Block, Line, Table, to_html, to_text
from .._types import InputError
from . import words
from .agree import Agreement
from .files import packed, write_whole
from .find import Sources
from .find import example as shipped
from .findings import Finding
from .top import Top, Watch
from .worker import Worker

_ALL = 1 << 24
"""Records: more than a ring holds."""
_SHOWN = 20
FORMATS = ("json", "npz", "perfetto", "prometheus", "measurement")
BINARY = ("npz",)


@dataclass(frozen=True, eq=False, repr=False)
class Recording:
    """Workers with all records that are still in their rings."""

    top: Top

    @property
    def workers(self) -> tuple[Worker, ...]:
        return self.top.workers

    @property
    def agreement(self) -> Agreement:
        return self.top.agreement

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.top.findings

    @property
    def refused(self) -> tuple[Refusal, ...]:
        return self.top.refused

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not here."""
        told = []
        for worker in self.workers:
            if worker.overwritten:
                told.append(f"{worker.who}: {words.many(worker.overwritten, 'older record')} were overwritten; counts have them")
            if worker.torn:
                told.append(f"{worker.who}: {words.many(worker.torn, 'record')} were being written, or never finished")
        return (*told, *(f"{one.path} was not read: {one.reason}" for one in self.refused))

    @cached_property
    def records(self) -> NDArray[np.void]:
        """All records, by time: RECORD's fields, with ``pid``, ``rank`` and ``wall_ns`` (nanoseconds since 1970). Names are by process:
        `named`."""
        dtype = np.dtype(
            [("pid", "u4"), ("rank", "i4"), ("wall_ns", "i8"), *((name, RECORD[name]) for name in RECORD.names or ())]
        )
        joined = np.zeros(sum(len(worker.recent) for worker in self.workers), dtype)
        at = 0
        for worker in self.workers:
            part = joined[at : at + len(worker.recent)]
            part["pid"], part["rank"] = worker.pid, worker.rank
            part["wall_ns"] = worker.recent["time_ns"].astype(np.int64) + self.clock_ns(worker)
            for name in RECORD.names or ():
                part[name] = worker.recent[name]
            at += len(part)
        return joined[np.argsort(joined["wall_ns"], kind="stable")]

    def clock_ns(self, worker: Worker) -> int:
        """What is added to a worker's times. Of processes of one start of the machine it is the same: their clock is the same."""
        return self._clocks[worker.path]

    @cached_property
    def _clocks(self) -> dict[str, int]:
        clocks: dict[str, int] = {}
        for worker in self.workers:
            near = [clock for clock in clocks.values() if abs(clock - worker.clock_ns) < _SAME_CLOCK_NS]
            clocks[worker.path] = near[0] if near else worker.clock_ns
        return clocks

    def named(self, worker: Worker, last: int | None = None) -> Iterator[dict[str, Any]]:
        """A worker's records as plain data with their names, in order; `last`: so many of the newest."""
        names, clock = worker.tables.names, self.clock_ns(worker)
        groups, entries, kernels, sites = (names[kind] for kind in ("group", "entry", "kernel", "site"))
        chosen = worker.recent if last is None else worker.recent[-last:] if last else worker.recent[:0]
        for values in chosen.tolist():
            row = dict(zip(_FIELDS, values, strict=True))
            yield {
                "pid": worker.pid,
                "rank": worker.rank,
                "seq": row["seq"],
                "time": words.utc(row["time_ns"] + clock),
                "time_ns": row["time_ns"],
                "thread": row["thread"],
                "group": groups.get(row["group"], ""),
                "call": row["call"],
                "entry": entries.get(row["entry"], ""),
                "path": words.name_of(words.PATHS, row["path"]),
                "kernel": kernels.get(row["kernel"], ""),
                "expected": words.name_of(words.PATHS, row["expected"]),
                "bytes": row["nbytes"],
                "rows": row["rows"],
                "dtype": words.name_of(words.DTYPES, row["dtype"]),
                "phase": words.name_of(words.PHASES, row["phase"]),
                "context": list(words.context_names(row["context"])),
                "op": words.name_of(words.OPS, row["op"]),
                "graph": row["graph"],
                "site": sites.get(row["site"], ""),
                "host_us": row["host_ns"] / 1e3 or None,
                "device_us": row["device_ns"] / 1e3 or None,
                "flags": list(words.flag_names(row["flags"])),
            }

    # ------------------------------------------------------------------------------------------------------------------- shown

    @property
    def answer(self) -> str:
        """One line."""
        count = sum(len(worker.recent) for worker in self.workers)
        return f"{words.many(count, 'record')} of {words.many(len(self.workers), 'process', 'processes')}; {self.top.answer}"

    def page(self, verbose: bool = False) -> list[Block]:
        """What people see. `verbose`: every call site and size, all graphs, and more of the newest records."""
        blocks = self.top.page(verbose)
        if not self.workers:
            return blocks
        return [Line(self.answer, "answer"), *blocks[1:], *self._newest(_SHOWN * 10 if verbose else _SHOWN)]

    def _newest(self, count: int) -> list[Block]:
        rows = [row for worker in self.workers for row in self.named(worker, count)]
        rows = sorted(rows, key=lambda row: (row["time"], row["pid"], row["seq"]))[-count:]
        columns = ("rank", "time", "group", "call", "phase", "path", "expected", "bytes", "dtype", "host us", "device us", "site")
        cells = tuple(
            (
                str(row["rank"]) if row["rank"] >= 0 else f"pid {row['pid']}",
                row["time"][11:23],
                row["group"],
                f"{row['call']:,}",
                row["phase"],
                (row["path"] or "not seen") + (f" ({row['kernel']})" if row["kernel"] else ""),
                row["expected"] if row["expected"] != row["path"] else "the same",
                f"{row['bytes']:,}" if row["bytes"] else "-",
                row["dtype"],
                f"{row['host_us']:.1f}" if row["host_us"] else "-",
                f"{row['device_us']:.1f}" if row["device_us"] else "-",
                row["site"],
            )
            for row in rows
        )
        right = frozenset(("call", "bytes", "host us", "device us"))
        return [Table("The newest records (UTC)", columns, cells, right, "path")] if cells else []

    def __str__(self) -> str:
        return to_text(self.page())

    def __repr__(self) -> str:
        return f"<Recording: {self.answer}>"

    def _repr_html_(self) -> str:
        return to_html(self.page())

    def picture(self, *, dark: bool = False) -> Any:
        """A matplotlib Figure: every call over time (s), by size (bytes) and path, a panel a rank; below, how often each graph was
        replayed.

        Raises InputError where nothing is on record, ProbeUnavailable without matplotlib.
        """
        from .._show.recorded import recording_figure

        return recording_figure(self, dark=dark)

    def to_dict(self, last: int | None = None) -> dict[str, Any]:
        """Plain data for JSON: what `Top` has, and every record with its names; `last`: so many of each process."""
        return self._head() | {"records": [row for worker in self.workers for row in self.named(worker, last)]}

    def _head(self) -> dict[str, Any]:
        return self.top.to_dict() | {"answer": self.answer, "notes": list(self.notes)}

    # ----------------------------------------------------------------------------------------------------------------- written

    def export(self, format: str, *, last: int | None = None) -> Iterable[bytes]:
        """The bytes of one format: json, npz, perfetto, prometheus, measurement; `last`: so many of the newest records of each process."""
        if format not in FORMATS:
            raise InputError("format", format, f"give one of {', '.join(FORMATS)}")
        if last is not None and (isinstance(last, bool) or not isinstance(last, int) or last < 0):
            raise InputError("last", last, "give a number of records")
        if not self.workers:
            raise InputError("sources", None, self.top.answer)
        return _EXPORTS[format](self, last)

    def write(self, path: str | os.PathLike[str], format: str, *, last: int | None = None, replace: bool = False) -> str:
        """That as a file, whole or not at all; its name comes back. A name that ends in ``.gz`` is packed. Raises InputError,
        ProbeError."""
        return write_whole(path, packed(self.export(format, last=last), os.fspath(path)), replace=replace)


_SAME_CLOCK_NS = 2_000_000_000
"""Two starts of machines do not lie so near to one another."""


def _json(recording: Recording, last: int | None) -> Iterable[bytes]:
    """What `to_dict` has, a record a line, without holding all of it."""
    yield json.dumps(recording._head(), indent=2).removesuffix("\n}").encode() + b',\n  "records": ['
    rows = (row for worker in recording.workers for row in recording.named(worker, last))
    for i, batch in enumerate(iter(lambda: list(itertools.islice(rows, _BATCH)), [])):
        text = ",\n    ".join(json.dumps(row) for row in batch)
        yield f"{',' if i else ''}\n    {text}".encode()
    yield b"\n  ]\n}\n"


_BATCH = 2000
_FIELDS = RECORD.names or ()


def _npz(recording: Recording, last: int | None) -> Iterable[bytes]:
    from .arrays import npz

    return npz(recording, last)


def _perfetto(recording: Recording, last: int | None) -> Iterable[bytes]:
    from .perfetto import trace

    return trace(recording, last)


def _prometheus(recording: Recording, last: int | None) -> Iterable[bytes]:
    from .prometheus import text

    return [text(recording.top)]


def _measurement(recording: Recording, last: int | None) -> Iterable[bytes]:
    from .measured import measurement_bytes

    return measurement_bytes(recording, last)


_EXPORTS: dict[str, Callable[[Recording, int | None], Iterable[bytes]]] = {
    "json": _json,
    "npz": _npz,
    "perfetto": _perfetto,
    "prometheus": _prometheus,
    "measurement": _measurement,
}


def read_recording(sources: Sources = None, *, dead: bool = False, example: bool = False) -> Recording:
    """All records that are still in the rings of these workers.

    Parameters
    ----------
    sources
        Numbers of processes, ring files (also packed by gzip) or folders of them; None: all workers of this user, or, where none lives,
        those of the last server.
    dead
        All processes that have ended too.
    example
        Instead: the recording that comes with the package.

    Raises InputError where a source that was named cannot be read.
    """
    if example and sources is not None:
        raise InputError("sources", sources, "the example has its own: give one of them")
    with contextlib.closing(Watch(shipped() if example else sources, dead=dead, keep=_ALL)) as watch:
        return Recording(watch.look())
