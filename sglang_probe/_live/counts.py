"""What a ring's tables count, put together: Kind (calls that are alike) and Graph. Made by worker.py.

"Executed" is what ran on the device: eager calls once, captured ones as often as their graph was replayed, none of those that were dry,
gave nothing back or raised.
Invariant: what one graph's calls add up to is never told of another's; a captured call of no known graph
is counted as captured and never as executed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._record.ring import Tables
from . import words

_SAME = ("group", "entry", "path", "kernel", "expected", "dtype", "phase", "op", "flags")
"""What calls of one Kind share."""
_READING = ("", "one_shot", "two_shot", "one_shot_pull", "two_shot_pull")
"""Kernels that need the addresses of all ranks; "" where the hook cannot see which one v1 picks."""
_TOLD = sum(words.BIT[name] for name in ("dry", "nothing", "raised", "many", "no_tensor"))
"""Flags that tell kinds apart here; the others follow from paths, or say how a call came."""
_IDLE = words.BIT["dry"] | words.BIT["nothing"] | words.BIT["raised"]
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Kind:
    """Calls of one process that are alike, since its file was made; of captured ones all graphs together."""

    group: str
    entry: str
    path: str
    """"" where none was seen."""
    kernel: str
    expected: str
    """"" where the router was not asked, or does not know."""
    dtype: str
    phase: str
    op: str
    flags: tuple[str, ...]
    calls: int
    """Captured ones once."""
    nbytes: int
    """Of ``calls``, all together."""
    executed: int
    executed_bytes: int
    host_ns: int
    """Sum over the calls where it was taken."""
    device_ns: int
    """Sum over ``timed`` calls."""
    timed: int
    first_ns: int
    """CLOCK_MONOTONIC of the first one."""

    @property
    def key(self) -> Key:
        return tuple(getattr(self, name) for name in _SAME)

    @property
    def is_alarm(self) -> bool:
        """Both are known, and they are not the same."""
        return bool(self.path and self.expected and self.path != self.expected)

    @property
    def is_idle(self) -> bool:
        """Nothing was launched."""
        return "dry" in self.flags or "nothing" in self.flags or "raised" in self.flags

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return plain | {"flags": list(self.flags), "alarm": self.is_alarm}


def kinds_of(tables: Tables) -> tuple[Kind, ...]:
    """Most executed first."""
    rows = tables.kinds
    if not len(rows):
        return ()
    executed = rows["calls"] * times_run(rows, tables.graphs)
    nbytes = rows["nbytes"] * times_run(rows, tables.graphs)
    order, starts = grouped([rows[name] & _TOLD if name == "flags" else rows[name] for name in _SAME])
    sums = {name: np.add.reduceat(rows[name][order], starts) for name in ("calls", "nbytes", "host_ns", "device_ns", "timed")}
    sums |= {"executed": np.add.reduceat(executed[order], starts), "executed_bytes": np.add.reduceat(nbytes[order], starts)}
    first = np.minimum.reduceat(rows["first_ns"][order], starts)
    names = tables.names
    found = []
    for i, row in enumerate(rows[order[starts]]):
        found.append(
            Kind(
                group=names["group"].get(int(row["group"]), ""),
                entry=names["entry"].get(int(row["entry"]), ""),
                path=words.name_of(words.PATHS, int(row["path"])),
                kernel=names["kernel"].get(int(row["kernel"]), ""),
                expected=words.name_of(words.PATHS, int(row["expected"])),
                dtype=words.name_of(words.DTYPES, int(row["dtype"])),
                phase=words.name_of(words.PHASES, int(row["phase"])),
                op=words.name_of(words.OPS, int(row["op"])),
                flags=words.flag_names(int(row["flags"]) & _TOLD),
                first_ns=int(first[i]),
                **{name: int(values[i]) for name, values in sums.items()},
            )
        )
    return tuple(sorted(found, key=lambda kind: (-kind.executed, -kind.calls, kind.key)))


def times_run(rows: NDArray[np.void], graphs: NDArray[np.void]) -> NDArray[np.uint64]:
    """How often each call of these kinds ran."""
    replays = np.concatenate([np.zeros(1, np.uint64), graphs["replays"].astype(np.uint64)])
    graph = np.where(rows["graph"] < len(replays), rows["graph"], 0)
    times = np.where(rows["phase"] == words.CAPTURED, replays[graph], np.uint64(1))
    idle = (rows["flags"] & _IDLE != 0) | (rows["path"] == words.NO_PATH)
    return np.where(idle, np.uint64(0), times).astype(np.uint64)


def grouped(columns: list[NDArray[Any]]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """An order in which equal rows stand together, and where each run of them starts."""
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), bool)
    new[0] = True
    for column in columns:
        ordered = column[order]
        new[1:] |= ordered[1:] != ordered[:-1]
    return order, np.flatnonzero(new)


# --------------------------------------------------------------------------------------------------------------------------- graphs


@dataclass(frozen=True)
class Graph:
    """One CUDA graph of one process."""

    number: int
    label: str
    captured: int
    nbytes: int
    replays: int
    registered: int | None
    """Addresses, of all graphs of its ``batch`` together; None where nobody said."""
    batch: int
    custom: int
    """Those of its calls that went to a kernel of custom all-reduce which reads the peers' inputs where they lie."""
    capturing: bool
    began_ns: int
    ended_ns: int
    """CLOCK_MONOTONIC; 0: not yet."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def graphs_of(tables: Tables) -> tuple[Graph, ...]:
    """In the order of their capture."""
    kinds = tables.kinds
    custom = np.zeros(len(tables.graphs) + 1, np.uint64)
    reading = [number for number, name in tables.names["kernel"].items() if name in _READING]
    ours = kinds[(kinds["path"] == words.CUSTOM) & np.isin(kinds["kernel"], reading) & (kinds["flags"] & words.BIT["dry"] == 0)]
    ours = ours[(ours["phase"] == words.CAPTURED) & (ours["graph"] < len(custom))]
    np.add.at(custom, ours["graph"], ours["calls"])
    return tuple(
        Graph(
            number=i,
            label=tables.names["graph"].get(int(row["label"]), ""),
            captured=int(row["captured"]),
            nbytes=int(row["nbytes"]),
            replays=int(row["replays"]),
            registered=int(row["registered"]) - 1 if row["registered"] else None,
            batch=int(row["batch"]),
            custom=int(custom[i]),
            capturing=int(row["state"]) == 1,
            began_ns=int(row["began_ns"]),
            ended_ns=int(row["ended_ns"]),
        )
        for i, row in enumerate(tables.graphs, 1)
        if row["state"]
    )
