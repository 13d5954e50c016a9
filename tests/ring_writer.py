"""Writes ring files from what ring_format.h says, with NumPy alone: an oracle that shares no code with what is held against it.

Invariant: nothing here is imported from the package; field lists, offsets and numbers are written down a second time on purpose.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

MAGIC = 0x01474E4952425053
HEADER = [
    *(("magic", "u8"), ("version", "u4"), ("row_bytes", "u4"), ("file_bytes", "u8"), ("names_at", "u8"), ("names_bytes", "u8")),
    *(("graphs_at", "u8"), ("graphs", "u8"), ("kinds_at", "u8"), ("kinds", "u8"), ("slots_at", "u8"), ("slots", "u8")),
    *(("started", "u8"), ("mono_ns", "u8"), ("wall_ns", "u8"), ("pid", "u4"), ("uid", "u4"), ("release", "S64")),
]
CONTROL = [
    *(("control", "u4"), ("site_every", "u4"), ("timer_every", "u4"), ("host_time", "u4"), ("closed", "u4"), ("rank", "i4")),
    *(("world_size", "u4"), ("batch", "u4")),
]
COUNTS = [
    (name, "u8")
    for name in (
        *("head", "passed", "deep", "failures", "asked", "alarms", "names_used", "names_lost", "graphs_used", "graphs_lost"),
        *("kinds_used", "kinds_lost", "replays_lost"),
    )
]
RECORD = [
    *(
        ("seq", "u8"),
        ("time_ns", "u8"),
        ("nbytes", "u8"),
        ("host_ns", "u4"),
        ("device_ns", "u4"),
        ("rows", "u4"),
        ("thread", "u4"),
    ),
    *(("context", "u4"), ("call", "u4"), ("site", "u2"), ("graph", "u2"), ("group", "u2"), ("flags", "u2"), ("entry", "u1")),
    *(("path", "u1"), ("kernel", "u1"), ("expected", "u1"), ("dtype", "u1"), ("phase", "u1"), ("op", "u1"), ("layout", "u1")),
]
GRAPH = [
    *(("state", "u4"), ("label", "u4"), ("captured", "u8"), ("nbytes", "u8"), ("replays", "u8"), ("registered", "u8")),
    *(("began_ns", "u8"), ("ended_ns", "u8"), ("batch", "u8")),
]
KIND = [
    *(("state", "u4"), ("group", "u2"), ("graph", "u2"), ("entry", "u1"), ("path", "u1"), ("kernel", "u1"), ("expected", "u1")),
    *(("dtype", "u1"), ("phase", "u1"), ("op", "u1"), ("flags", "u1"), ("calls", "u8"), ("nbytes", "u8"), ("host_ns", "u8")),
    *(("device_ns", "u8"), ("timed", "u8"), ("first_ns", "u8")),
]
NAMES = ("group", "entry", "kernel", "site", "graph", "note")
PATHS = (
    *("none", "custom", "quick", "mscclpp", "torch_symm_mem", "flashinfer", "pynccl_in_place", "pynccl_out_of_place"),
    *("torch_distributed", "cpu_shm", "raises", "pcie_ipc"),
)
DTYPES = ("bf16", "fp16", "fp32", "fp64", "fp8", "int8", "int32", "int64")
PHASES = ("eager", "captured", "warmup", "piecewise", "compile")
OPS = ("", "in_place", "out_of_place", "fused")
FLAGS = ("alarm", "dry", "nothing", "raised", "many", "direct", "through", "no_tensor", "by_hand", "derived")
_KEY = ("group", "graph", "entry", "path", "kernel", "expected", "dtype", "phase", "op", "flags")


def started(pid: int) -> int:
    """When a process started, in clock ticks since the machine did."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


class RingWriter:
    """One process's ring; ``write()`` makes the file of what was put by then. By default the process is this one, and records."""

    def __init__(
        self, folder: Path, *, rank: int = 0, world_size: int = 2, slots: int = 64, names_bytes: int = 16384, **header: Any
    ) -> None:
        self.pid = int(header.pop("pid", os.getpid()))
        self.started = int(header.pop("started", 0) or started(self.pid))
        self.path = folder / f"{self.pid}.{self.started + header.pop('other', 0)}.ring"
        now, wall = time.monotonic_ns(), time.time_ns()
        self.now = int(header.pop("now", now))
        self.header: dict[str, Any] = {"mono_ns": now, "wall_ns": wall, "release": b"0.5.9", "uid": os.geteuid(), **header}
        self.control = {"control": 1, "rank": rank, "world_size": world_size, "batch": 1}
        self.counts = dict.fromkeys((name for name, _ in COUNTS), 0)
        self.shape = {"names_bytes": names_bytes, "graphs": 64, "kinds": 256, "slots": slots}
        self.slots = np.zeros(slots, RECORD)
        self.graphs = np.zeros(64, GRAPH)
        self.kinds = np.zeros(256, KIND)
        self.names = bytearray()
        self.ids: dict[tuple[str, str], int] = {}
        self.calls: dict[str, int] = {}

    def name(self, kind: str, text: str) -> int:
        """Its number: counted from 1 in each kind; "" is 0."""
        if not text or (kind, text) in self.ids:
            return self.ids.get((kind, text), 0)
        number = 1 + sum(one == kind for one, _ in self.ids)
        self.ids[kind, text] = number
        data = text.encode()
        head = np.array([NAMES.index(kind), len(data)], "<u2").tobytes() + np.array([number], "<u4").tobytes()
        self.names += (head + data).ljust((8 + len(data) + 7) // 8 * 8, b"\0")
        self.counts["names_used"] = len(self.names)
        return number

    def put(self, count: int = 1, **call: Any) -> int:
        """So many records of one call; fields of a record by name, names and paths as texts. The last one's seq."""
        for _ in range(count):
            self._put(dict(call))
        return self.counts["head"]

    def _put(self, call: dict[str, Any]) -> None:
        group = call.pop("group", "tp:0")
        self.calls[group] = call.pop("call", self.calls.get(group, 0) + 1)
        path, expected = call.pop("path", "custom"), call.pop("expected", None)
        flags = sum(1 << FLAGS.index(flag) for flag in call.pop("flags", ()))
        values: dict[str, Any] = {
            "group": self.name("group", group),
            "call": self.calls[group],
            "path": PATHS.index(path) if path else 255,
            "expected": 255 if expected == "" else PATHS.index(expected or path) if expected or path else 255,
            "entry": self.name("entry", call.pop("entry", "out_place")),
            "kernel": self.name("kernel", call.pop("kernel", "")),
            "site": self.name("site", call.pop("site", "")),
            "dtype": DTYPES.index(dtype) if (dtype := call.pop("dtype", "bf16")) else 255,
            "phase": PHASES.index(call.pop("phase", "eager")),
            "op": OPS.index(call.pop("op", "out_of_place")),
            "nbytes": 43008,
            "thread": 77,
            "time_ns": self.now,
            **call,
        }
        if values["path"] != values["expected"] and 255 not in (values["path"], values["expected"]):
            flags |= 1 << FLAGS.index("alarm")
            self.counts["alarms"] += 1
        values["flags"] = flags
        self.now = values["time_ns"] + 50_000
        seq = self.counts["head"] + 1
        self.counts["head"] = seq
        place = (seq - 1) % len(self.slots)
        row = self.slots[place : place + 1]
        row[:] = np.zeros(1, RECORD)
        row["seq"] = seq
        for name, value in values.items():
            row[name] = value
        self._count(self.slots[place])

    def _count(self, row: Any) -> None:
        key = tuple(int(row[name]) & (255 if name == "flags" else 0xFFFF) for name in _KEY)
        used = self.counts["kinds_used"]
        place = next((i for i in range(used) if tuple(int(self.kinds[i][name]) for name in _KEY) == key), used)
        kind = self.kinds[place]
        if place == used:
            self.counts["kinds_used"] += 1
            kind["state"], kind["first_ns"] = 2, row["time_ns"]
            for name, value in zip(_KEY, key, strict=True):
                kind[name] = value
        kind["calls"] += 1
        kind["nbytes"] += row["nbytes"]
        kind["host_ns"] += row["host_ns"]
        kind["device_ns"] += row["device_ns"]
        kind["timed"] += bool(row["device_ns"])
        if row["phase"] == PHASES.index("captured") and row["graph"]:
            graph = self.graphs[int(row["graph"]) - 1]
            graph["captured"] += 1
            graph["nbytes"] += row["nbytes"]

    def graph(self, label: str = "", *, replays: int = 0, registered: int | None = None, batch: int = 1, state: int = 2) -> int:
        """A graph that was captured; its number."""
        number = self.counts["graphs_used"] = self.counts["graphs_used"] + 1
        row = self.graphs[number - 1]
        row["state"], row["label"], row["replays"], row["batch"] = state, self.name("graph", label), replays, batch
        row["registered"] = 0 if registered is None else registered + 1
        row["began_ns"], row["ended_ns"] = self.now, self.now + 1_000_000 if state == 2 else 0
        return number

    def tear(self, seq: int) -> None:
        """As a writer leaves a slot that is killed inside of it."""
        self.slots[(seq - 1) % len(self.slots)]["seq"] = ~np.uint64(seq)

    def tobytes(self) -> bytes:
        header = np.zeros(1, HEADER)
        names_at = 4096
        graphs_at = names_at + self.shape["names_bytes"]
        kinds_at = graphs_at + 64 * self.shape["graphs"]
        slots_at = kinds_at + 64 * self.shape["kinds"]
        values: dict[str, Any] = {
            "magic": MAGIC,
            "version": 1,
            "row_bytes": 64,
            "file_bytes": slots_at + 64 * self.shape["slots"],
        }
        values |= {"names_at": names_at, "graphs_at": graphs_at, "kinds_at": kinds_at, "slots_at": slots_at}
        values |= {"started": self.started, "pid": self.pid} | self.shape | self.header
        for name, value in values.items():
            header[name] = value
        page = bytearray(4096)
        page[: header.nbytes] = header.tobytes()
        for at, fields, told in ((1024, CONTROL, self.control), (2048, COUNTS, self.counts)):
            row = np.zeros(1, fields)
            for name, value in told.items():
                row[name] = value
            page[at : at + row.nbytes] = row.tobytes()
        names = bytes(self.names).ljust(self.shape["names_bytes"], b"\0")
        return bytes(page) + names + self.graphs.tobytes() + self.kinds.tobytes() + self.slots.tobytes()

    def write(self) -> Path:
        """The file, of this user alone; over the one that was written before, in place, as a writer's mapping would be."""
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.pwrite(fd, self.tobytes(), 0)
        except BaseException:
            os.close(fd)
            raise
        _hold(fd)
        return self.path


_HELD: deque[int] = deque()


def _hold(fd: int) -> None:
    """As a writer has its file open and locked while it lives; of many, the last ones."""
    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    _HELD.append(fd)
    if len(_HELD) > 200:
        os.close(_HELD.popleft())


def gone() -> tuple[int, int]:
    """Number and start of a process that has ended."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    start = started(pid)
    os.waitpid(pid, 0)
    return pid, start
