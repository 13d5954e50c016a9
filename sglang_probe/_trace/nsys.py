"""An SQLite export of Nsight Systems -> Trace. Called by files.py.

Read as NVIDIA documents it, by the names of tables and columns that the file itself has: they differ between versions (a graph's node is
NULL or 0 where there is none; a kernel's names are numbers of StringIds). nsys records a graph's kernels only with
--cuda-graph-trace=node: else one row a launch, in CUPTI_ACTIVITY_KIND_GRAPH_TRACE, which is counted and told.
Invariant: the file is opened read-only and never changed.
"""

from __future__ import annotations

import re
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from .._types import InputError
from .events import GRAPH, MOST_MARKS, Columns, Launches, Mark, Names, Trace, Track
from .marks import is_mark

MAGIC = b"SQLite format 3\0"
_KERNELS, _RUNTIME, _GRAPHS = (f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "RUNTIME", "GRAPH_TRACE"))
_STRINGS, _RANGES, _PROCESSES, _EXPORT = "StringIds", "NVTX_EVENTS", "PROCESSES", "META_DATA_EXPORT"
_OF_NSYS = (_KERNELS, _RUNTIME, _GRAPHS, _RANGES, _EXPORT, "ANALYSIS_DETAILS", "TARGET_INFO_SESSION_START_TIME")
_NAME_COLUMNS = ("demangledName", "mangledName", "shortName")
_LAUNCH = re.compile("LaunchKernel|GraphLaunch|LaunchCooperativeKernel")
_SCHEDULER_RANK = re.compile(r"TP(\d{1,6})")
_LARGEST = 1 << 60
_BATCH = 1 << 14


@dataclass
class _Process:
    launches: Launches = field(default_factory=Launches)
    marks: list[Mark] = field(default_factory=list)
    devices: dict[int, Columns] = field(default_factory=dict)


class _Export:
    """One open file."""

    def __init__(self, db: sqlite3.Connection, path: FilePath, tell: Callable[[], object]) -> None:
        self.db, self.path, self._tell = db, path, tell
        self.columns = self._columns()
        self.names = Names()
        self.processes: dict[int, _Process] = {}
        self.strange = 0
        self.all_kernels = 0

    def _columns(self) -> dict[str, frozenset[str]]:
        """The tables that are really there (a view is none), each with its columns."""
        tables = [row[0] for row in self.db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        wanted = {*_OF_NSYS, _STRINGS, _PROCESSES}
        return {
            name: frozenset(row[1] for row in self.db.execute(f'PRAGMA table_info("{name}")'))
            for name in tables
            if name in wanted
        }

    def has(self, table: str, *columns: str) -> bool:
        return table in self.columns and self.columns[table] >= set(columns)

    def rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        cursor = self.db.execute(query)
        while batch := cursor.fetchmany(_BATCH):
            self._tell()
            yield from batch

    def process(self, identifier: object) -> _Process:
        """Of a kernel's globalPid or a call's globalTid: the process is in the same bits."""
        pid = (_int(identifier) >> 24) & 0xFFFFFF if identifier is not None else 0
        return self.processes.setdefault(pid, _Process())

    def column(self, table: str, name: str) -> str:
        return f'"{name}"' if name in self.columns[table] else "NULL"


class _Strange(ValueError):
    """A value that is no whole number where one belongs."""


def _int(value: object) -> int:
    if type(value) is not int or abs(value) > _LARGEST:
        raise _Strange
    return value


def read_nsys(path: FilePath, *, mark: re.Pattern[str] | None = None, tell: Callable[[], object] | None = None) -> Trace:
    """All of an export; InputError for a file that is cut off, damaged or of another program."""
    _check_whole(path)
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            db.execute("PRAGMA trusted_schema = OFF")
            db.execute("PRAGMA cell_size_check = ON")
            db.text_factory = lambda raw: raw.decode("utf-8", "replace")
            return _read(_Export(db, path, tell or (lambda: None)), mark)
    except sqlite3.Error as error:
        raise InputError("trace", str(path), f"the SQLite file is damaged or not readable ({error}); export it again") from None


def _check_whole(path: FilePath) -> None:
    """An SQLite file says in its head how long it is."""
    with path.open("rb") as file:
        head = file.read(100)
    size = path.stat().st_size
    if len(head) < 100:
        raise InputError("trace", str(path), f"the SQLite file is cut off after {size:,} bytes; export or copy it again")
    page, pages, changes, valid = _head(head)
    if changes == valid and pages * page > size:
        told = f"the SQLite file is cut off: it holds {size:,} of {pages * page:,} bytes; export or copy it again"
        raise InputError("trace", str(path), told)


def _head(head: bytes) -> tuple[int, int, int, int]:
    """Page size, number of pages, and the two counters that say whether that number holds."""
    page = struct.unpack_from(">H", head, 16)[0]
    changes, pages = struct.unpack_from(">II", head, 24)
    return 1 << 16 if page == 1 else page, pages, changes, struct.unpack_from(">I", head, 92)[0]


def _read(export: _Export, mark: re.Pattern[str] | None) -> Trace:
    if not any(name in export.columns for name in _OF_NSYS):
        remedy = "an SQLite file, but no export of Nsight Systems: give `nsys export --type sqlite REPORT.nsys-rep`"
        raise InputError("trace", str(export.path), remedy)
    strings = _strings(export)
    if export.has(_KERNELS):
        _kernels(export, strings)
    if export.has(_RUNTIME, "start", "correlationId", "nameId"):
        _launches(export, strings)
    _ranges(export, mark)
    whole = next(export.rows(f"SELECT count(*) FROM {_GRAPHS}"))[0] if export.has(_GRAPHS) else 0
    notes = (f"{export.strange:,} rows are not as nsys writes them, and were left out",) if export.strange else ()
    return Trace(
        str(export.path), _version(export), tuple(_tracks(export)), export.all_kernels, export.all_kernels, whole, notes=notes
    )


def _strings(export: _Export) -> dict[int, str]:
    """Names that are looked up: of kernels' own columns, and of calls that launch."""
    if not export.has(_STRINGS, "id", "value"):
        return {}
    wanted = []
    for column in (c for c in _NAME_COLUMNS if export.has(_KERNELS, c)):
        wanted.append(f"SELECT {column} FROM {_KERNELS}")
    if export.has(_RUNTIME, "nameId"):
        wanted.append(f"SELECT nameId FROM {_RUNTIME}")
    if not wanted:
        return {}
    query = f"SELECT id, value FROM {_STRINGS} WHERE id IN ({' UNION '.join(wanted)})"
    return {row[0]: row[1] for row in export.rows(query) if type(row[0]) is int and type(row[1]) is str}


def _kernels(export: _Export, strings: dict[int, str]) -> None:
    needed = ("start", "end")
    name = next((c for c in _NAME_COLUMNS if export.has(_KERNELS, c)), None)
    if not export.has(_KERNELS, *needed) or name is None:
        told = f"its table {_KERNELS} lacks a kernel's start, end or name: this version of nsys is not known"
        raise InputError("trace", str(export.path), told)
    # One that has no better name than its short one says less; the mangled one says all.
    second = "mangledName" if name == "demangledName" and export.has(_KERNELS, "mangledName") else name
    known: dict[int, int] = {}
    for number, text in strings.items():
        found = export.names.number(text)
        if found >= 0:
            known[number] = found
    columns = ", ".join(export.column(_KERNELS, c) for c in ("deviceId", "globalPid", "correlationId", "graphNodeId"))
    for start, end, first, other, device, pid, correlation, node in export.rows(
        f'SELECT "start", "end", "{name}", "{second}", {columns} FROM {_KERNELS}'
    ):
        try:
            process = export.process(pid)
            kept = process.devices.get(device)
            if kept is None:
                kept = process.devices.setdefault(_int(device or 0), Columns())
            kept.all_kernels += 1
            export.all_kernels += 1
            number = known.get(first, known.get(other, -1))
            if number >= 0:
                begin = _int(start)
                # Whichever is told: a node is NULL or 0 where there is no graph.
                kept.add(begin, max(0, _int(end) - begin), number, _int(correlation or 0), 0, GRAPH if node else 0)
        except (_Strange, TypeError):
            export.strange += 1


def _launches(export: _Export, strings: dict[int, str]) -> None:
    names = {number: "GraphLaunch" in text for number, text in strings.items() if _LAUNCH.search(text)}
    if not names:
        return
    listed = ", ".join(str(number) for number in names)
    tid = export.column(_RUNTIME, "globalTid")
    for start, correlation, name, thread in export.rows(
        f'SELECT "start", correlationId, nameId, {tid} FROM {_RUNTIME} WHERE nameId IN ({listed})'
    ):
        try:
            number = _int(correlation or 0)
            if number > 0:
                export.process(thread).launches.add(number, _int(start), names[name])
        except (_Strange, KeyError):
            export.strange += 1


def _ranges(export: _Export, mark: re.Pattern[str] | None) -> None:
    if not export.has(_RANGES, "start", "end") or not ({"text", "textId"} & export.columns[_RANGES]):
        return
    columns = ", ".join(export.column(_RANGES, c) for c in ("text", "textId", "globalTid"))
    strings = {}
    if export.has(_STRINGS, "id", "value") and "textId" in export.columns[_RANGES]:
        query = f"SELECT id, value FROM {_STRINGS} WHERE id IN (SELECT textId FROM {_RANGES})"
        strings = {row[0]: row[1] for row in export.rows(query) if type(row[1]) is str and is_mark(row[1], mark)}
    kept = 0
    for start, end, text, text_id, thread in export.rows(
        f'SELECT "start", "end", {columns} FROM {_RANGES} WHERE "end" IS NOT NULL'
    ):
        name = text if text is not None else strings.get(text_id)
        if type(name) is not str or not is_mark(name, mark) or kept >= MOST_MARKS:
            continue
        try:
            export.process(thread).marks.append(Mark(name, _int(start), _int(end)))
            kept += 1
        except _Strange:
            export.strange += 1


def _tracks(export: _Export) -> Iterator[Track]:
    ranks = _ranks(export)
    several = sum(bool(process.devices) for process in export.processes.values()) > 1
    for pid, process in sorted(export.processes.items()):
        for device, columns in sorted(process.devices.items()):
            rank = ranks.get(pid) if len(process.devices) == 1 else None
            label = f"rank {rank}" if rank is not None else f"GPU {device}" + (f" of process {pid}" if several else "")
            yield Track(
                label, rank, "the name of its process" if rank is not None else "", str(export.path),
                columns.kernels(process.launches), tuple(export.names.all), tuple(process.marks), columns.all_kernels,
                len(process.launches.graphs_sorted()),
            )  # fmt: skip


def _ranks(export: _Export) -> dict[int, int]:
    """SGLang names its processes: ``sglang::scheduler_TP3``."""
    found: dict[int, int] = {}
    if not export.has(_PROCESSES, "globalPid", "name"):
        return found
    for pid, name in export.rows(f"SELECT globalPid, name FROM {_PROCESSES}"):
        told = _SCHEDULER_RANK.search(name) if type(name) is str else None
        if told and type(pid) is int:
            found[(pid >> 24) & 0xFFFFFF] = int(told[1])
    return found


def _version(export: _Export) -> str:
    if export.has(_EXPORT, "name", "value"):
        for name, value in export.rows(f"SELECT name, value FROM {_EXPORT}"):
            if name == "EXPORT_SCHEMA_VERSION" and type(value) is str:
                return f"Nsight Systems (schema {value[:20]})"
    return "Nsight Systems"
