"""Reads measurement files, finished ones and those still being written. Called by Measurement.read and by the writer, which resumes.

Invariant: what comes back was written: a line counts only where its checksum, its number and each of its fields hold.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import zlib
from dataclasses import dataclass, field
from typing import Any

from .._types import FrozenMap, InputError
from .cell import Cell
from .format import FORMAT, KINDS, MAGIC, PARTIAL, VERSION, DamagedLine, MeasurementError, OtherVersion, decode, freeze
from .measurement import Measurement, Provenance, rescued_texts

_GZIP = b"\x1f\x8b"
_RESCUE = "Measurement.read(path, rescue=True) skips what is damaged and reads the rest"
_MEMBERS = {
    "header": ["format", "version", "kind", "line", "plan", "provenance", "crc32"],
    "cell": ["version", "kind", "line", "cell", "crc32"],
    "end": ["version", "kind", "line", "cells", "sha256", "crc32"],
}


@dataclass
class Contents:
    """What was found in a file's bytes, and how far they are whole."""

    cells: list[Cell] = field(default_factory=list)
    provenance: Provenance | None = None
    plan: FrozenMap[str, Any] = field(default_factory=lambda: FrozenMap({}))
    notes: list[str] = field(default_factory=list)
    skipped: int = 0
    """Damaged lines."""
    last: int = 0
    """Number of the last line that holds."""
    whole_bytes: int = 0
    """Up to the last line feed."""
    ended: bool = False
    """The end line is there, and what it says of the file holds."""


def read(path: str | os.PathLike[str], *, rescue: bool = False) -> Measurement:
    """A file, or a .partial one. See Measurement.read."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        unfinished = os.path.exists(name + PARTIAL)
        hint = f"there is {name}{PARTIAL}, which is unfinished: read that" if unfinished else "there is no such file"
        raise InputError("path", name, hint) from None
    except OSError as error:
        raise MeasurementError(name, None, f"cannot be read: {error.strerror}") from error
    data, unfinished = unpacked(data, name), name.endswith(PARTIAL)
    found = parse(data, name, unfinished=unfinished, rescue=rescue)
    if unfinished and found.ended and not found.skipped:
        found.notes.append("it is finished; only its renaming is missing")
    partial = not found.ended or found.skipped > 0
    if rescued := rescued_texts(found.plan):
        found.notes += rescued
        partial = True
    return Measurement(tuple(found.cells), found.provenance, found.plan, partial, tuple(found.notes), name)


def unpacked(data: bytes, name: str) -> bytes:
    """What a file holds that may have been packed whole, by gzip. Raises MeasurementError where it was, and is damaged."""
    try:
        return gzip.decompress(data) if data.startswith(_GZIP) else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise MeasurementError(name, None, f"damaged: it begins as gzip, and {error}") from None


def parse(data: bytes, name: str, *, unfinished: bool = False, rescue: bool = False) -> Contents:
    """The contents of a file's bytes. `unfinished`: its last line may be cut, and its end line missing. Raises MeasurementError."""
    *lines, rest = data.split(b"\n")
    _recognise(data, lines, name, unfinished, rescue)
    found = Contents(whole_bytes=len(data) - len(rest))
    before = hashlib.sha256()
    for number, raw in enumerate(lines, 1):
        try:
            _take(found, raw, number, before, rescue)
        except OtherVersion as error:
            raise MeasurementError(name, number, _other_version(int(error.args[0]))) from None
        except DamagedLine as error:
            if not rescue:
                raise MeasurementError(name, number, f"damaged: {error}; {_RESCUE}") from None
            found.skipped += 1
            found.notes.append(f"line {number} is damaged and was skipped: {error}")
        before.update(raw)
        before.update(b"\n")
    _close(found, rest, len(lines) + 1, name, unfinished, rescue)
    return found


def _recognise(data: bytes, lines: list[bytes], name: str, unfinished: bool, rescue: bool) -> None:
    """Refuses what is no measurement file, or has nothing in it."""
    if not data:
        raise MeasurementError(name, None, "empty: nothing was written to it")
    if not data.startswith(MAGIC[: len(data)]):
        ours = any(_holds(raw) for raw in lines)
        if not ours:
            nccl_tests = re.search(rb"^#.*\balgbw\b.*\bbusbw\b", data[:65536], re.MULTILINE)
            known = "; it looks like the output of nccl-tests, which `step --costs FILE` reads" if nccl_tests else ""
            raise MeasurementError(name, 1, f"not a measurement file: it does not begin as one ({FORMAT!r}){known}")
    if not lines and (unfinished or rescue):
        raise MeasurementError(name, 1, "cut inside of its first line: nothing had been measured")


def _holds(raw: bytes) -> bool:
    try:
        return decode(raw).get("kind") in KINDS
    except OtherVersion:
        return True
    except DamagedLine:
        return False


def _other_version(version: int) -> str:
    newer = "install a newer sglang_probe" if version > VERSION else "this sglang_probe no longer reads it"
    return f"it is of version {version} of the format, and this sglang_probe reads version {VERSION}: {newer}"


def _take(found: Contents, raw: bytes, number: int, before: Any, rescue: bool) -> None:
    """One line into what was found. Raises DamagedLine."""
    members = decode(raw)
    kind = members.get("kind")
    if kind not in KINDS or list(members) != _MEMBERS[kind]:
        raise DamagedLine(f"its checksum holds, and yet it is no line of version {VERSION}: {', '.join(members)}")
    line = members["line"]
    if isinstance(line, bool) or not isinstance(line, int):
        raise DamagedLine(f"its number is {line!r}")
    # A lost line feed makes one line of two, and a rescue goes on behind it.
    if line <= found.last or (line != number and not rescue):
        raise DamagedLine(f"it says that it is line {line}: lines are lost, repeated or out of order")
    if found.ended:
        raise DamagedLine("it stands behind the end")
    if (kind == "header") != (line == 1):
        raise DamagedLine(f"a {kind} cannot be line {line}")
    try:
        _fill(found, kind, members, before, rescue)
    except InputError as error:
        raise DamagedLine(f"its checksum holds, and yet {error}") from None
    if line > found.last + 1 and found.skipped == 0:
        found.skipped += 1
        found.notes.append(f"before line {number}, lines are lost")
    found.last = line


def _fill(found: Contents, kind: str, members: dict[str, Any], before: Any, rescue: bool) -> None:
    if kind == "cell":
        found.cells.append(Cell.from_dict(members["cell"]))
    elif kind == "header":
        if members["format"] != FORMAT or not isinstance(members["plan"], dict):
            raise DamagedLine("it is no header of ours")
        plan, provenance = freeze(members["plan"], "plan"), Provenance.from_dict(members["provenance"])
        found.plan, found.provenance = plan, provenance
    else:
        _check_end(found, members, before)


def _check_end(found: Contents, members: dict[str, Any], before: Any) -> None:
    """What the end line says of all before it."""
    if members["cells"] != len(found.cells):
        raise DamagedLine(f"it ends a file of {members['cells']} cells, and here are {len(found.cells)}")
    if members["sha256"] != before.hexdigest():
        raise DamagedLine("the SHA-256 of all lines before it is another than it says")
    found.ended = True


def _close(found: Contents, rest: bytes, number: int, name: str, unfinished: bool, rescue: bool) -> None:
    """The last line, where no line feed ends it; and the end, where there is none."""
    if rest:
        cut = f"the last line ({number}) is cut after {len(rest):,} bytes"
        if not unfinished and not rescue:
            raise MeasurementError(name, number, f"damaged: {cut}; {_RESCUE}")
        # Behind an end there is nothing that a writer could have been writing.
        if found.ended and not rescue:
            raise MeasurementError(name, number, f"damaged: {len(rest):,} bytes stand behind the end; {_RESCUE}")
        found.skipped += found.ended
        found.notes.append(f"{cut} and was dropped: it was being written, or its writer was interrupted")
    if found.provenance is None:
        if not rescue or not found.last:
            raise MeasurementError(name, 1, "nothing in it can be read" if rescue else f"damaged: it has no header; {_RESCUE}")
        found.notes.append("the header is damaged: on what these cells were measured is not known")
    if not found.ended and not unfinished:
        if not rescue:
            raise MeasurementError(name, None, f"cut, or never finished: it has no end line; {_RESCUE}")
        found.notes.append("it has no end line that holds: cells may be missing")
    elif not found.ended:
        found.notes.append("unfinished: no end line yet")
