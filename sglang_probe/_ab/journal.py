r"""The file of an experiment: every run as it came, on the disk before the next begins. Written by experiment.py, read by AbResult.read.

Invariant: as of a measurement file (_measure/writer.py, whose lines, checksums and .partial name these are): whatever happens, every run
whose `add` came back is there; nothing that exists under the final name is touched; the same command goes on with what is there.

The format, version 1: UTF-8, one JSON object a line, each line ended by one LF and by its own CRC-32, as _measure/format.py describes
it for measurement files (the same lines of Python check it). It is another format than theirs because a run may be of any program, whose
figure need be no time of an all-reduce; a run of our own bench has its whole cell in it. Lines, in this order:

1. ``{"format":"sglang_probe experiment","version":1,"kind":"experiment","line":1,"plan":{...},"provenance":{...},"crc32":"..."}``:
   ``plan`` says what was asked (arms, seed, rule, budget), ``provenance`` on what (the fields of `Provenance`).
2. ``{"version":1,"kind":"run","line":n,"run":{...},"crc32":"..."}`` for each run, in time: the fields of `Run`. ``seen`` is a number
   where it is what the run of that number had.
   ``{"version":1,"kind":"look","line":n,"look":{...},"crc32":"..."}`` for each look at the verdict that could have ended it: ``blocks``
   that were whole by then, ``last`` (the budget of time ended, and all error was spent), ``word``, ``effect``, ``low``, ``high`` (null
   where there is no such end).
3. ``{"version":1,"kind":"whole","line":n,"runs":..,"stopped_by":"...","sha256":"...","crc32":"..."}``: the last line of a finished one;
   ``sha256`` is of all bytes before it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._measure.format import PARTIAL, VERSION, DamagedLine, MeasurementError, OtherVersion, decode, differences, freeze, thaw
from .._measure.measurement import Provenance
from .._measure.writer import Writer, _sync_folder
from .._types import FrozenMap, InputError
from .runs import Run

FORMAT = "sglang_probe experiment"
_START = f'{{"format":"{FORMAT}","version":'.encode()
_MEMBERS = {
    "experiment": ["format", "version", "kind", "line", "plan", "provenance", "crc32"],
    "run": ["version", "kind", "line", "run", "crc32"],
    "look": ["version", "kind", "line", "look", "crc32"],
    "whole": ["version", "kind", "line", "runs", "stopped_by", "sha256", "crc32"],
}
_SHOWN = 6


@dataclass
class Found:
    """What a file holds, and how far it is whole."""

    plan: Mapping[str, Any] = field(default_factory=lambda: FrozenMap({}))
    provenance: Provenance | None = None
    runs: list[Run] = field(default_factory=list)
    looks: list[Mapping[str, Any]] = field(default_factory=list)
    stopped_by: str = ""
    """Of a finished one."""
    notes: list[str] = field(default_factory=list)
    lines: int = 0
    whole_bytes: int = 0

    @property
    def ended(self) -> bool:
        return bool(self.stopped_by)


class Journal(Writer):
    """One experiment's file being written; ``runs`` and ``looks`` are what is in it, also of an earlier command."""

    def __init__(self, path: str | os.PathLike[str], *, plan: Mapping[str, Any], provenance: Provenance) -> None:
        self.found = Found()
        super().__init__(path, plan=plan, provenance=provenance)

    def __enter__(self) -> Journal:
        return self

    @property
    def runs(self) -> list[Run]:
        return self.found.runs

    @property
    def looks(self) -> list[Mapping[str, Any]]:
        return self.found.looks

    def add(self, run: Run) -> None:
        """One more run; it is on the disk when this returns."""
        plain = run.to_dict()
        same = next((one.number for one in reversed(self.runs) if one.arm == run.arm and one.seen == run.seen), None)
        if same is not None:
            plain["seen"] = same
        self._write({"kind": "run", "line": self._lines + 1, "run": plain})
        self.runs.append(run)

    def add_look(self, look: Mapping[str, Any]) -> None:
        """A look that could have ended the experiment; it counts for the error of the rule."""
        self._write({"kind": "look", "line": self._lines + 1, "look": dict(look)})
        self.looks.append(FrozenMap(look))

    def end(self, stopped_by: str) -> str:
        """Nothing will follow: the file gets its name, which comes back."""
        if not self._ended:
            line = {"kind": "whole", "line": self._lines + 1, "runs": len(self.runs), "stopped_by": stopped_by}
            self._write({**line, "sha256": self._sha.hexdigest()})
            self._ended, self.found.stopped_by = True, stopped_by
        return self.finish()

    def _begin(self, provenance: Provenance) -> None:
        size = os.fstat(self._fd).st_size
        data = b""
        while len(data) < size and (more := os.pread(self._fd, size - len(data), len(data))):
            data += more
        if b"\n" not in data:
            if data and not data.startswith(_START[: len(data)]):
                raise MeasurementError(self.partial_path, 1, "not an experiment's file, and therefore not overwritten")
            self._cut(0)
            header = {"kind": "experiment", "line": 1, "plan": thaw(self._plan), "provenance": provenance.to_dict()}
            self._write(header, format=FORMAT)
            _sync_folder(self.partial_path)
            self.found.plan, self.found.provenance = self._plan, provenance
            return
        found = parse(data, self.partial_path, unfinished=True)
        self._check_continued(found, provenance)
        self._cut(found.whole_bytes)
        self._sha.update(data[: found.whole_bytes])
        self._size, self._lines, self._ended = found.whole_bytes, found.lines, found.ended
        self.found, self.notes = found, tuple(found.notes)

    def _check_continued(self, found: Found, provenance: Provenance) -> None:
        assert found.provenance is not None
        told = [f"plan.{text}" for text in differences(thaw(self._plan), thaw(found.plan))]
        told += differences(provenance.identity, found.provenance.identity)
        if told:
            more = f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
            remedy = f"{self.partial_path} is of another experiment, and is not continued ({'; '.join(told[:_SHOWN])}{more}): "
            raise InputError("out", self.path, f"{remedy}give another name, or move it away")

    def _kept(self) -> str:
        count = len(self.runs)
        return f"{count} run{'s' * (count != 1)} before it {'are' if count != 1 else 'is'} safe"


def read(path: str | os.PathLike[str]) -> Found:
    """A finished file, or a ``.partial`` one at any moment. Raises InputError where there is none, MeasurementError for what is damaged."""
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
    return parse(data, name, unfinished=name.endswith(PARTIAL))


def parse(data: bytes, name: str, *, unfinished: bool = False) -> Found:
    """The lines of a file. ``unfinished``: its last one may be cut, and its end missing."""
    if not data.startswith(_START):
        raise MeasurementError(name, 1, f"not an experiment's file: it does not begin as one ({FORMAT!r})")
    *lines, rest = data.split(b"\n")
    found = Found(whole_bytes=len(data) - len(rest))
    before = hashlib.sha256()
    for number, raw in enumerate(lines, 1):
        try:
            _take(found, raw, number, before)
        except OtherVersion as error:
            raise MeasurementError(
                name, number, f"it is of version {error.args[0]}, and this sglang_probe reads {VERSION}"
            ) from None
        except (DamagedLine, InputError) as error:
            raise MeasurementError(name, number, f"damaged: {error}") from None
        before.update(raw + b"\n")
    if rest:
        cut = f"the last line ({len(lines) + 1}) is cut after {len(rest):,} bytes"
        if not unfinished or found.ended:
            raise MeasurementError(name, len(lines) + 1, f"damaged: {cut}")
        found.notes.append(f"{cut} and was dropped: it was being written, or its writer was interrupted")
    if not found.ended and not unfinished:
        raise MeasurementError(name, None, "cut, or never finished: it has no last line")
    return found


def _take(found: Found, raw: bytes, number: int, before: Any) -> None:
    members = decode(raw)
    kind = members.get("kind")
    if kind not in _MEMBERS or list(members) != _MEMBERS[kind]:
        raise DamagedLine(f"its checksum holds, and yet it is no line of version {VERSION}: {', '.join(members)}")
    if members["line"] != number or (kind == "experiment") != (number == 1):
        raise DamagedLine(f"it says that it is line {members['line']}, a {kind}: lines are lost, repeated or out of order")
    if found.ended:
        raise DamagedLine("it stands behind the end")
    if kind == "experiment":
        found.plan, found.provenance = freeze(members["plan"], "plan"), Provenance.from_dict(members["provenance"])
    elif kind == "run":
        plain = dict(members["run"])
        if isinstance(plain.get("seen"), int):
            same = next((one for one in found.runs if one.number == plain["seen"]), None)
            if same is None:
                raise DamagedLine(f"it refers to run {plain['seen']}, which is not there")
            plain["seen"] = same.seen.to_dict()
        found.runs.append(Run.from_dict(plain))
    elif kind == "look":
        found.looks.append(freeze(members["look"], "look"))
    else:
        if members["runs"] != len(found.runs) or members["sha256"] != before.hexdigest():
            raise DamagedLine("what it says of all before it does not hold")
        found.stopped_by = str(members["stopped_by"])
    found.lines = number
