"""A trace of PyTorch's profiler (Chrome's JSON) -> Trace. Called by files.py.

Read as libkineto writes it: a kernel is a complete event of category ``kernel``; its ``correlation`` is that of the runtime call that
launched it, so all kernels of a replayed graph share one; a ``user_annotation`` is a named range of the host; collectives of
torch.distributed carry ``Collective name`` and sizes. A merged file has the rank in front of each pid.
Invariant: an event that is not as it should be is counted, and told; it is never half used.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from .events import GRAPH, MOST_MARKS, RECORDED, Columns, Launches, Mark, Names, Trace, Track
from .marks import is_mark
from .stream import Broken, Events, Source

_MERGED = re.compile(r"(\[[^\]]*\]) (.*)", re.S)
_MERGED_RANK = re.compile(r"\[TP0*(\d+)")
_KERNEL, _LAUNCHES = ("kernel", "Kernel"), ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime")
_MOST_DEVICES, _MOST_PROCESSES = 1 << 8, 1 << 12
_LARGEST = 1 << 60
_DTYPE_BYTES = {
    "float": 4,
    "half": 2,
    "bfloat16": 2,
    "int": 4,
    "long": 8,
    "double": 8,
    "char": 1,
    "byte": 1,
    "bool": 1,
    "short": 2,
}


class _Strange(ValueError):
    """An event that is not as the profiler writes it."""


@dataclass
class _Process:
    """One process: in a file of one rank the only one."""

    name: str
    launches: Launches = field(default_factory=Launches)
    marks: list[Mark] = field(default_factory=list)
    devices: dict[str, Columns] = field(default_factory=dict)


class _Reader:
    """Takes events one by one."""

    def __init__(self, mark: re.Pattern[str] | None) -> None:
        self.names = Names()
        self.processes: dict[str, _Process] = {}
        self.strange = 0
        self.marks_left = 0
        self._mark = mark

    def take(self, event: Any) -> None:
        """Keeps what is wanted of an event."""
        if type(event) is not dict:
            self.strange += 1
            return
        category = event.get("cat")
        try:
            if category in _KERNEL:
                self._kernel(event)
            elif category in _LAUNCHES:
                self._launch(event)
            elif category in ("user_annotation", "gpu_user_annotation"):
                self._range(event, category == "gpu_user_annotation")
        except (_Strange, TypeError):  # TypeError: a category that cannot be compared, a name that is a list
            self.strange += 1

    def _kernel(self, event: dict[str, Any]) -> None:
        name, args, pid = event.get("name"), event.get("args") or {}, event.get("pid")
        if type(name) is not str or type(args) is not dict or type(pid) not in (int, str):
            raise _Strange
        collective = args.get("Collective name") or ""
        number = self.names.number(_text(name), collective if type(collective) is str else "")
        columns = self._columns(pid)
        if number >= 0:
            graph = _whole(args.get("graph node id")) or _whole(args.get("graph id"))
            flags = (GRAPH if graph else 0) | (RECORDED if collective else 0)
            times = _ns(event.get("ts")), max(0, _ns(event.get("dur", 0)))
            columns.add(*times, number, _whole(args.get("correlation")), _nbytes(args), flags)
        columns.all_kernels += 1

    def _columns(self, pid: object) -> Columns:
        """Of the GPU that a kernel's pid is."""
        process, device = self._process(pid)
        found = process.devices.get(device)
        if found is None:
            if len(process.devices) >= _MOST_DEVICES:
                raise _Strange
            found = process.devices[device] = Columns()
        return found

    def _launch(self, event: dict[str, Any]) -> None:
        name = event.get("name")
        if type(name) is not str or "Launch" not in name:
            return
        args = event.get("args")
        number = _whole(args.get("correlation")) if type(args) is dict else 0
        if number > 0:
            self._process(event.get("pid"))[0].launches.add(number, _ns(event.get("ts")), "GraphLaunch" in name)

    def _range(self, event: dict[str, Any], on_gpu: bool) -> None:
        name = event.get("name")
        if type(name) is not str or not is_mark(name, self._mark):
            return
        if self.marks_left >= MOST_MARKS:
            return
        start = _ns(event.get("ts"))
        process, _ = self._process(event.get("pid"))
        process.marks.append(Mark(_text(name), start, start + max(0, _ns(event.get("dur", 0))), on_gpu))
        self.marks_left += 1

    def _process(self, pid: object) -> tuple[_Process, str]:
        """The process of a pid, and the rest of it: of a kernel's, its GPU."""
        text = str(pid)
        merged = _MERGED.fullmatch(text)
        name, rest = (merged[1], merged[2]) if merged else ("", text)
        found = self.processes.get(name)
        if found is None:
            if len(self.processes) >= _MOST_PROCESSES:
                raise _Strange
            found = self.processes[name] = _Process(name)
        return found, rest


def _text(name: str) -> str:
    """The file was read as Latin-1; a name in another alphabet is turned back into what it was."""
    if name.isascii():
        return name
    try:
        return name.encode("latin-1").decode("utf-8", "replace")
    except UnicodeEncodeError:
        return name


def _ns(value: object) -> int:
    """Microseconds of a trace, which may be a number or a text, as nanoseconds."""
    try:
        number = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or abs(number) > _LARGEST / 1000:
        raise _Strange
    return value * 1000 if isinstance(value, int) else round(number * 1000)


def _whole(value: object) -> int:
    """A number that only serves to tell things apart; 0 where it is none."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST else 0


def _nbytes(args: dict[str, Any]) -> int:
    """Bytes of the tensor, where torch.distributed says them."""
    elements, dtype = _whole(args.get("In msg nelems")), args.get("dtype")
    return max(0, elements) * _DTYPE_BYTES.get(dtype.lower(), 0) if type(dtype) is str and elements < 1 << 50 else 0


def read_chrome(
    path: FilePath, source: Source, *, mark: re.Pattern[str] | None = None, tell: Callable[[], object] | None = None
) -> Trace:
    """All of a file. Where it breaks, ``damage`` says so, and the rest holds what was whole before."""
    reader, damage = _Reader(mark), ""
    events = Events(source, tell)
    try:
        for event in events:
            reader.take(event)
    except Broken as broken:
        damage = broken.reason
    tracks = tuple(
        track
        for process in reader.processes.values()
        for track in _tracks(process, reader, path, events.beside.get("distributedInfo"))
    )
    return Trace(
        str(path), "PyTorch's profiler", tracks, events.events, sum(track.all_kernels for track in tracks), damage=damage,
        notes=tuple(_notes(reader, events)),
    )  # fmt: skip


def _tracks(process: _Process, reader: _Reader, path: FilePath, info: object) -> list[Track]:
    rank, told_by = _rank(process, info)
    devices = {device: columns for device, columns in process.devices.items() if columns.all_kernels}
    tracks = []
    for device, columns in devices.items():
        own = rank if len(devices) == 1 else None
        label = f"rank {own}" if own is not None else f"{process.name} GPU {device}".strip()
        tracks.append(
            Track(
                label, own, told_by if own is not None else "", str(path), columns.kernels(process.launches), tuple(reader.names.all),
                tuple(process.marks), columns.all_kernels, len(process.launches.graphs_sorted()),
            )
        )  # fmt: skip
    return tracks


def _rank(process: _Process, info: object) -> tuple[int | None, str]:
    if (found := _MERGED_RANK.match(process.name)) and len(found[1]) < 9:
        return int(found[1]), "the merged file's names of processes"
    rank = info.get("rank") if isinstance(info, dict) and not process.name else None
    if isinstance(rank, (int, str)) and str(rank).isascii() and str(rank).isdigit() and len(str(rank)) < 9:
        return int(rank), "the trace's distributedInfo"
    return None, ""


def _notes(reader: _Reader, events: Events) -> list[str]:
    notes = []
    if reader.strange:
        notes.append(f"{reader.strange:,} events are not as the profiler writes them, and were left out")
    if events.open_ended:
        notes.append("the file is a list of events without its closing bracket: nothing says whether it is whole")
    if reader.marks_left >= MOST_MARKS:
        notes.append(f"only the first {MOST_MARKS:,} named ranges were kept")
    return notes
