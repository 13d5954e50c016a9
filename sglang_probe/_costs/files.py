"""Cost files: any file that costs can be read from -> its tables, and the tables that come with the package. Called by costs.py.

A file is told by what it holds, not by its name: a Measurement (also while it is being written, also gzip'd whole), what nccl-tests'
all_reduce_perf printed, or published figures. Invariant: a file that is none of them, damaged, or of a newer version is refused by name.
"""

from __future__ import annotations

import gzip
import os
import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from .._measure.format import MAGIC, PARTIAL, MeasurementError
from .._measure.measurement import Measurement
from .._measure.nccl_tests import parse_nccl_tests
from .._measure.reader import parse, unpacked
from .._types import InputError
from . import published
from .measured import tables_of
from .nccl import table_of
from .table import Table

_SHIPPED = Path(__file__).parent / "data"
_HEAD = 65536
_CHECKSUM = b'"crc32":"'
"""A Measurement whose first bytes are damaged is still told as one."""


def read_tables(path: str | os.PathLike[str]) -> tuple[Table, ...]:
    """The whole file, now. Raises InputError where there is none, MeasurementError with the reason where it cannot be used."""
    name = os.fspath(path)
    data = _bytes(name)
    if data.startswith(MAGIC) or not data or _CHECKSUM in data[:_HEAD]:
        return measured_tables(_measurement(data, name))
    if published.MAGIC in data[:_HEAD]:
        return (published.parse(data, name),)
    if b"busbw" in data[:_HEAD]:
        text = data.decode("utf-8", "backslashreplace")
        return (table_of(parse_nccl_tests(text, name)),)
    raise MeasurementError(
        name, None, "no file of costs: neither a measurement, nor what all_reduce_perf printed, nor published figures"
    )


def measured_tables(measurement: Measurement) -> tuple[Table, ...]:
    """What was measured, as it was read (also rescued) or came from a bench."""
    name = measurement.path or "a Measurement in memory"
    notes = (*(["PARTIAL: not all of it is there"] if measurement.partial else []), *measurement.notes)
    tables = tables_of(name, measurement.provenance, lambda: measurement, notes, plan=measurement.plan)
    return tuple(table for table in tables if table.series) or tables[:1]


@lru_cache(maxsize=1)
def shipped_tables() -> tuple[Table, ...]:
    """What lies in data/: measured by this code first, then published; the newest first, by the numbers in their names.

    Of a Measurement only the header is read until its figures are asked for.
    """
    files = sorted((path for path in _SHIPPED.iterdir() if path.is_file()), key=_newest, reverse=True)
    tables = [table for path in files for table in _lazily(path)]
    return tuple(sorted(tables, key=lambda table: table.origin == "published"))


def shipped_measurement(name: str) -> Measurement:
    """A Measurement of data/, whole. Raises InputError for a name that is none of them."""
    there = {path.name.split(".")[0]: path for path in sorted(_SHIPPED.glob("*.jsonl.gz"))}
    if name not in there:
        raise InputError("name", name, f"what is shipped is {', '.join(there)}")
    path = there[name]
    return replace(_measurement(_bytes(str(path)), path.name), _shipped=True)


def _newest(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _lazily(path: Path) -> tuple[Table, ...]:
    if path.suffix == ".json":
        return (published.parse(path.read_bytes(), path.name),)
    opened = gzip.open(path) if path.suffix == ".gz" else path.open("rb")
    with opened as file:
        header = parse(file.readline(), path.name, unfinished=True)
    tables = tables_of(
        path.name, header.provenance, lambda: _measurement(_bytes(str(path)), path.name), plan=header.plan, shipped=True
    )
    of = header.plan.get("device", "gpu")  # a bench has one kind of ranks, and the table of the other would stand here empty
    return tuple(table for table in tables if table.machine.device == of)


def _measurement(data: bytes, name: str) -> Measurement:
    """As Measurement.read, from bytes."""
    unfinished = name.endswith(PARTIAL)
    found = parse(data, name, unfinished=unfinished)
    return Measurement(tuple(found.cells), found.provenance, found.plan, not found.ended, tuple(found.notes), name)


def _bytes(name: str) -> bytes:
    try:
        with open(name, "rb") as file:
            return unpacked(file.read(), name)
    except FileNotFoundError:
        unfinished = os.path.exists(name + PARTIAL)
        hint = f"there is {name}{PARTIAL}, which is unfinished: give that" if unfinished else "there is no such file"
        raise InputError("costs", name, hint) from None
    except OSError as error:
        raise MeasurementError(name, None, f"cannot be read: {error.strerror}") from error
