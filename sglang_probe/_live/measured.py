"""A recording's times as a Measurement, which `verdict` and `step --costs` read. Called by recording.py.

Only eager calls have times: on the host where that was asked for, on the device where they were sampled. They were taken in a server at
work, with its compute between the calls, so that a cell is "interleaved" with the median time between two calls. Device times include
waiting for the last rank.
Invariant: a cell has times of every rank of its group, or it is not written; what it is stands in its note
and in the plan.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._measure.cell import Cell
from .._measure.measurement import Measurement, Provenance
from .._record.dtype import UNKNOWN
from .._types import FrozenMap, InputError
from . import words
from .worker import Worker
from .worlds import Members, World, members_of

if TYPE_CHECKING:
    from .recording import Recording

_LEFT_OUT = words.BIT["dry"] | words.BIT["nothing"] | words.BIT["raised"] | words.BIT["no_tensor"] | words.BIT["many"]
_KEY = ("path", "kernel", "dtype", "nbytes")
NOTE = "recorded in a server at work; device times include waiting for the last rank; no result was checked"
DERIVED = "; the kernel is the one that the release's rules pick for such a call: nobody saw it"
_REMEDY = "record them: sglang-probe record start --host-time --timer-every 100"


def measurement_of(recording: Recording, last: int | None = None) -> Measurement:
    """Raises InputError where no call of a whole group was timed."""
    provenance = _provenance(recording.workers)
    device: Literal["gpu", "host"] = "gpu" if provenance.gpus or _on_device(recording.workers) else "host"
    cells: list[Cell] = []
    reasons: list[str] = []
    for world in recording.top.worlds:
        for members in members_of(world) or _alone(world):
            found, why = _cells(recording, members, world, device, last)
            cells += found
            reasons += why
    if not cells:
        raise InputError("format", "measurement", f"{'; '.join(reasons) or 'no eager call was timed'}: {_REMEDY}")
    plan = {
        "what": "times of eager all-reduces, recorded in a server at work",
        "pids": [worker.pid for worker in recording.workers],
        "ranks": [worker.rank for worker in recording.workers],
        "left_out": reasons,
    }
    return Measurement(tuple(_numbered(cells)), provenance, FrozenMap(_frozen(plan)), notes=tuple(reasons))


def measurement_bytes(recording: Recording, last: int | None = None) -> Iterable[bytes]:
    """A finished measurement file."""
    found = measurement_of(recording, last)
    with tempfile.TemporaryDirectory(prefix="sglang_probe-") as folder:
        name = found.write(os.path.join(folder, "recorded.jsonl"))
        with open(name, "rb") as file:
            return [file.read()]


def _frozen(plan: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in plan.items()}


def _alone(world: World) -> tuple[Members, ...]:
    """Groups of a single process here."""
    names = sorted({name for worker in world.workers for number, name in worker.tables.names["group"].items() if number})
    return tuple(Members(name, world.workers, True) for name in names)


def _numbered(cells: list[Cell]) -> Iterable[Cell]:
    """Two servers that made the same calls are two sets of processes."""
    seen: dict[tuple[Any, ...], int] = {}
    for cell in cells:
        number = seen.get(cell.key, 0)
        seen[cell.key] = number + 1
        yield replace(cell, process=number) if number else cell


# ---------------------------------------------------------------------------------------------------------------------------- cells


def _cells(
    recording: Recording, members: Members, world: World, device: Literal["gpu", "host"], last: int | None
) -> tuple[list[Cell], list[str]]:
    by_rank = [_timed(worker, members.group, last) for worker in members.workers]
    size = len(members.workers)
    if not any(len(rows) for rows in by_rank):
        return [], []
    if members.assumed and world.missing:
        return [], [
            f"{members.group}: of {words.ranks_text(world.missing)} there is no file, and a figure needs every rank of its group"
        ]
    gap = _gap_us(members)
    keys: dict[tuple[Any, ...], list[NDArray[np.void]]] = {}
    for i, (worker, rows) in enumerate(zip(members.workers, by_rank, strict=True)):
        for key, chosen in _by_key(worker, rows):
            keys.setdefault(key, [rows[:0]] * size)[i] = chosen
    cells, reasons = [], []
    for (path, kernel, dtype, nbytes), parts in keys.items():
        host, on_device = _samples(parts, "host_ns"), _samples(parts, "device_ns")
        if not (all(map(len, host)) or all(map(len, on_device))):
            reasons.append(f"{members.group}: {path} of {nbytes:,} bytes was not timed on every rank")
            continue
        first = min(int(part["time_ns"][0]) for part in parts if len(part))
        at = {"at": words.utc(first + recording.clock_ns(members.workers[0]))}
        derived = any(bool((part["flags"] & words.BIT["derived"]).any()) for part in parts)
        cell = Cell(
            path=path, kernel=kernel, backend="", release=world.release or "unknown", phase="eager", pattern="interleaved",
            compute_us=gap, driver="engine", device=device, dtype=dtype, nbytes=nbytes, world_size=size,
            device_us=tuple(on_device), host_us=tuple(host), checked=0, wrong=0, before=FrozenMap(at), note=NOTE + DERIVED * derived,
        )  # fmt: skip
        cells.append(cell)
    return cells, reasons


def _timed(worker: Worker, group: str, last: int | None) -> NDArray[np.void]:
    """Eager calls that ran, with a time; in order."""
    numbers = [number for number, name in worker.tables.names["group"].items() if number and name == group]
    rows = worker.recent if last is None else worker.recent[-last:] if last else worker.recent[:0]
    rows = rows[np.isin(rows["group"], numbers) & (rows["phase"] == words.EAGER) & (rows["flags"] & _LEFT_OUT == 0)]
    known = (rows["path"] != UNKNOWN) & (rows["dtype"] != UNKNOWN) & (rows["nbytes"] > 0) & (rows["nbytes"] < 1 << 62)
    timed: NDArray[np.void] = rows[known & ((rows["host_ns"] > 0) | (rows["device_ns"] > 0))]
    return timed


def _by_key(worker: Worker, rows: NDArray[np.void]) -> Iterable[tuple[tuple[Any, ...], NDArray[np.void]]]:
    kernels = worker.tables.names["kernel"]
    kinds = np.unique(rows[list(_KEY)]) if len(rows) else ()
    for kind in kinds:
        chosen = rows[np.logical_and.reduce([rows[name] == kind[name] for name in _KEY])]
        path, dtype = words.PATHS[int(kind["path"])], words.DTYPES[int(kind["dtype"])]
        yield (path, kernels.get(int(kind["kernel"]), ""), dtype, int(kind["nbytes"])), chosen


def _samples(by_rank: Iterable[NDArray[np.void]], name: str) -> list[NDArray[np.float64]]:
    return [rows[name][rows[name] > 0].astype(np.float64) / 1e3 for rows in by_rank]


def _gap_us(members: Members) -> float:
    """One for the group, so that sizes are points of one curve: the median from the end of an eager call on the host to the next call."""
    gaps = [np.zeros(0, np.int64)]
    for worker in members.workers:
        numbers = [number for number, name in worker.tables.names["group"].items() if number and name == members.group]
        rows = worker.recent[np.isin(worker.recent["group"], numbers) & (worker.recent["phase"] == words.EAGER)]
        for thread in np.unique(rows["thread"]):
            own = rows[rows["thread"] == thread]
            gaps.append(np.diff(own["time_ns"].astype(np.int64)) - own["host_ns"][:-1].astype(np.int64))
    joined = np.concatenate(gaps)
    joined = joined[joined > 0]
    return max(round(float(np.median(joined)) / 1e3, 1), 0.1) if len(joined) else 1.0


# ---------------------------------------------------------------------------------------------------------------------- provenance


def _on_device(workers: Iterable[Worker]) -> bool:
    return any(bool(worker.tables.kinds["timed"].any()) for worker in workers)


def _provenance(workers: Iterable[Worker]) -> Provenance:
    """This machine's, of recordings that were made here since it started; else what a ring says of itself, which is little."""
    from .. import __version__
    from .._measure.provenance import stamp

    known = list(workers)
    started = words.utc(min(int(worker.header["wall_ns"]) for worker in known))
    here = all(worker.here for worker in known)
    missing = {
        "host": "the ring files were written on another machine, or before this one's last start; they do not say which it was"
    }
    made = stamp() if here else Provenance(version=__version__, missing=missing)
    return replace(made, started=started)
