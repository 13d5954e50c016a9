"""NumPy arrays of a recording, as an .npz file. Called by recording.py.

The file has no pickled objects: numpy.load(FILE) reads it. ``records``, ``kinds`` and ``graphs`` are structured arrays with the fields
of the ring file (sglang_probe/_record/dtype.py), and with ``pid`` and ``rank``; records have ``wall_ns`` too. Where the ring has a
process's own number of a name, they have the place in one array of names for all processes: ``names_group``, ``names_entry``,
``names_kernel``, ``names_site``, ``names_graph``. ``paths``, ``dtypes``, ``phases``, ``ops`` and ``flags`` name the rest; 255 is not
known. ``workers``: one row a process.
Invariant: place 0 of every array of names is "", which is none.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._record.dtype import GRAPH, KIND, RECORD
from . import words
from .worker import Worker

if TYPE_CHECKING:
    from .recording import Recording

_NAMED = ("group", "entry", "kernel", "site", "graph")
WORKER = np.dtype(
    [
        *(("pid", "u4"), ("rank", "i4"), ("world_size", "u4"), ("alive", "?"), ("recording", "?")),
        *(("mono_ns", "u8"), ("wall_ns", "u8"), ("records", "u8"), ("overwritten", "u8"), ("alarms", "u8"), ("release", "U64")),
    ]
)


def npz(recording: Recording, last: int | None = None) -> Iterable[bytes]:
    held = io.BytesIO()
    np.savez_compressed(held, **arrays(recording, last))  # type: ignore[arg-type] # names of arrays, and no options
    yield held.getvalue()


def arrays(recording: Recording, last: int | None = None) -> dict[str, NDArray[Any]]:
    """By name in the file."""
    names = {kind: _Names() for kind in _NAMED}
    records, kinds, graphs = [], [], []
    for worker in recording.workers:
        places = {kind: names[kind].places(worker, kind) for kind in _NAMED}
        recent = worker.recent if last is None else worker.recent[-last:] if last else worker.recent[:0]
        part = _widened(recent, RECORD, worker, places, ("group", "entry", "kernel", "site"), (("wall_ns", "i8"),))
        part["wall_ns"] = recent["time_ns"].astype(np.int64) + recording.clock_ns(worker)
        records.append(part)
        kinds.append(_widened(worker.tables.kinds, KIND, worker, places, ("group", "entry", "kernel")))
        part = _widened(worker.tables.graphs, GRAPH, worker, places, (), (("number", "u4"), ("name", "u4")))
        part["number"] = np.arange(1, len(part) + 1)
        part["name"] = places["graph"].of(worker.tables.graphs["label"])
        graphs.append(part)
    return {
        "records": np.concatenate(records),
        "kinds": np.concatenate(kinds),
        "graphs": np.concatenate(graphs),
        "workers": np.array([_worker(worker) for worker in recording.workers], WORKER),
        **{f"names_{kind}": np.array(names[kind].texts) for kind in _NAMED},
        **{name: np.array(getattr(words, name.upper())) for name in ("paths", "dtypes", "phases", "ops", "flags")},
    }


class _Names:
    """One array of names for all processes."""

    def __init__(self) -> None:
        self.texts = [""]
        self._place = {"": 0}

    def places(self, worker: Worker, kind: str) -> Places:
        """Where a process's own names stand here."""
        own = dict(sorted(worker.tables.names[kind].items()))
        for text in own.values():
            if text not in self._place:
                self._place[text] = len(self.texts)
                self.texts.append(text)
        return Places(np.array([*own], np.uint64), np.array([self._place[text] for text in own.values()], np.uint32))


@dataclass(frozen=True, eq=False)
class Places:
    """A process's own numbers of names, ascending, and their places."""

    own: NDArray[np.uint64]
    place: NDArray[np.uint32]

    def of(self, numbers: NDArray[Any]) -> NDArray[np.uint32]:
        """0 for a number without a name."""
        at = np.minimum(np.searchsorted(self.own, numbers.astype(np.uint64)), len(self.own) - 1)
        return np.where(self.own[at] == numbers, self.place[at], 0).astype(np.uint32)


def _widened(
    rows: NDArray[np.void],
    dtype: np.dtype[np.void],
    worker: Worker,
    places: dict[str, Places],
    named: tuple[str, ...],
    more: tuple[tuple[str, str], ...] = (),
) -> NDArray[np.void]:
    own = [(name, np.dtype("u4") if name in named else dtype[name]) for name in dtype.names or ()]
    part = np.zeros(len(rows), np.dtype([("pid", "u4"), ("rank", "i4"), *more, *own]))
    part["pid"], part["rank"] = worker.pid, worker.rank
    for name, _ in own:
        part[name] = places[name].of(rows[name]) if name in named else rows[name]
    return part


def _worker(worker: Worker) -> tuple[Any, ...]:
    header = worker.header
    return (
        *(worker.pid, worker.rank, worker.world_size, worker.is_alive, worker.state == "recording"),
        *(header["mono_ns"], header["wall_ns"], worker.records, worker.overwritten, worker.alarms, worker.release),
    )
