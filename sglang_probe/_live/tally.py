"""Tally: sizes and call sites of the records that were read, counted as they come. Made by worker.py.

Invariant: each record is counted once, and what is asked of it costs as much as there are different sizes, not records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import words
from .counts import Key, grouped

_SEEN = ("group", "path", "kernel", "expected", "phase", "dtype", "site", "nbytes")
_SUMS = ("calls", "host_ns", "hosted")


@dataclass(frozen=True)
class Size:
    """Calls of one size among the records that were read; ``site`` is "" where it was not sampled."""

    group: str
    path: str
    kernel: str
    expected: str
    phase: str
    dtype: str
    site: str
    nbytes: int
    calls: int
    host_ns: int
    """Sum over the ``hosted`` calls whose time on the host was taken."""
    hosted: int

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True)
class Share:
    """Calls that share some of what a Size has."""

    key: Key
    """Those, as texts, in the order in which they were asked for."""
    calls: int
    host_ns: int
    hosted: int
    sizes: tuple[tuple[int, int], ...]
    """(bytes, calls) of the most frequent sizes, the most frequent first."""
    different: int
    """Sizes in all."""


class Tally:
    """Counts records by size and call site as they come: each record is looked at once."""

    def __init__(self) -> None:
        self._columns = [np.zeros(0, np.uint64) for _ in (*_SEEN, *_SUMS)]

    def add(self, records: NDArray[np.void]) -> None:
        if not len(records):
            return
        host = records["host_ns"].astype(np.uint64)
        new = [*(records[name].astype(np.uint64) for name in _SEEN), np.ones_like(host), host, (host > 0).astype(np.uint64)]
        joined = [np.concatenate(pair) for pair in zip(self._columns, new, strict=True)]
        columns, sums = joined[: len(_SEEN)], joined[len(_SEEN) :]
        order, starts = grouped(columns)
        self._columns = [*(column[order[starts]] for column in columns), *(np.add.reduceat(one[order], starts) for one in sums)]

    def sizes(self, names: Mapping[str, Mapping[int, str]]) -> tuple[Size, ...]:
        """Most calls first."""
        found = [
            Size(
                names["group"].get(group, ""),
                words.name_of(words.PATHS, path),
                names["kernel"].get(kernel, ""),
                words.name_of(words.PATHS, expected),
                words.name_of(words.PHASES, phase),
                words.name_of(words.DTYPES, dtype),
                names["site"].get(site, ""),
                nbytes,
                *sums,
            )
            for group, path, kernel, expected, phase, dtype, site, nbytes, *sums in zip(
                *(column.tolist() for column in self._columns), strict=True
            )
        ]
        return tuple(sorted(found, key=lambda size: -size.calls))

    def shares(self, names: Mapping[str, Mapping[int, str]], by: Sequence[str], most: int) -> list[Share]:
        """One for each different value of these fields of `Size`, with so many of its most frequent sizes."""
        columns = dict(zip((*_SEEN, *_SUMS), self._columns, strict=True))
        if not len(columns["calls"]):
            return []
        order, starts = grouped([*(columns[name] for name in by), columns["nbytes"]])
        one = {name: columns[name][order[starts]] for name in (*by, "nbytes")}
        one |= {name: np.add.reduceat(columns[name][order], starts) for name in _SUMS}
        rank = np.lexsort([one["nbytes"], -one["calls"].astype(np.int64), *(one[name] for name in reversed(by))])
        one = {name: column[rank] for name, column in one.items()}
        _, firsts = grouped([one[name] for name in by])
        ends = [*firsts[1:].tolist(), len(rank)]
        found = []
        for first, end in zip(firsts.tolist(), ends, strict=True):
            calls, host_ns, hosted = (int(one[name][first:end].sum()) for name in _SUMS)
            key = tuple(_text(name, int(one[name][first]), names) for name in by)
            top = slice(first, min(first + most, end))
            sizes = tuple(zip(one["nbytes"][top].tolist(), one["calls"][top].tolist(), strict=True))
            found.append(Share(key, calls, host_ns, hosted, sizes, end - first))
        return found


def _text(name: str, value: int, names: Mapping[str, Mapping[int, str]]) -> str:
    if name in _INDEXED:
        return words.name_of(_INDEXED[name], value)
    return names[name].get(value, "")


_INDEXED = {"path": words.PATHS, "expected": words.PATHS, "phase": words.PHASES, "dtype": words.DTYPES}
