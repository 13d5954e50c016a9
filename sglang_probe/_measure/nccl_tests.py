"""Reads what nccl-tests' all_reduce_perf prints, as a table with its origin. Called by people and by what costs a step.

Its times are means that nccl-tests made on the host's clock, over its iterations and over ranks (its option -a; the output does not say
which): no samples, and neither our device time nor our host time, so this is a noun of its own and never becomes a Cell.
Invariant: a row counts only where each of its numbers agrees with the others; what does not parse is refused with its line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._facts import DTYPE_BYTES
from .._show.page import Block, Line, Table, items, to_html, to_text
from .._show.sizes import human_bytes
from .._types import FrozenMap, InputError
from .format import MeasurementError

_DTYPES: Mapping[str, str] = FrozenMap(
    {
        "bfloat16": "bf16",
        "half": "fp16",
        "float": "fp32",
        "double": "fp64",
        "f8e4m3": "fp8",
        "f8e5m2": "fp8",
        "int8": "int8",
        "int32": "int32",
        "int64": "int64",
    }
)
"""Where our name of a type is known; others are refused, for their size could not be checked."""
_OPTIONS = re.compile(
    r"# nThread (?P<threads>\d+) nGpus (?P<gpus>\d+) minBytes (?P<first>\d+) maxBytes (?P<last>\d+) step: \d+\((?:factor|bytes)\) "
    r"(?:warmup iters: (?P<warmup>\d+) )?iters: (?P<iters>\d+) (?:agg iters: (?P<aggregated>\d+) )?validation: (?P<validation>\d+)"
    r"(?: graph: (?P<graph>\d+))?(?: .*)?"
)
_RANK = re.compile(r"#\s+Rank\s+(\d+) (?:Group\s+\d+ )?Pid\s+\d+ on\s+(\S+) device\s+\d+ \[[0-9a-fA-Fx:.]+\] (.+)")
_STARTING = re.compile(r"# Collective test starting: (\S+)")
_TESTS_VERSION = re.compile(r"# nccl-tests version (\S+)(?: nccl-headers=\d+ nccl-library=(\d+))?")
_NCCL_VERSION = re.compile(r"NCCL version (\d\S*)")
_LOG = re.compile(r"\bNCCL (INFO|WARN|TRACE)\b|\] graph/|\] misc/")
_BAD_SUM = re.compile(r"# Out of bounds values\s*: (\d+) (\S+)")
_LEFT = ("size", "count", "type", "redop", "root")
_HALF = (("time", "algbw", "busbw", "#wrong"), ("cputime", "algbw", "busbw", "#wrong"))
_EXTRA = ("i_min", "i_max", "i_p99", "i_cv%")


@dataclass(frozen=True)
class NcclRow:
    """One size. Microseconds; "wrong" is None where results were not checked (-c 0)."""

    nbytes: int
    out_of_place_us: float
    in_place_us: float
    out_of_place_wrong: int | None
    in_place_wrong: int | None


@dataclass(frozen=True, repr=False)
class NcclTests:
    """A run of all_reduce_perf. `read_nccl_tests` makes it."""

    rows: tuple[NcclRow, ...]
    dtype: str
    ranks: int
    """0 where the output does not list them."""
    gpus: tuple[str, ...]
    """Their names, by rank."""
    captured: bool
    """Captured into a CUDA graph and replayed (-G), back to back."""
    cpu_time: bool
    """-C: the host's time for launching alone."""
    nccl: str = ""
    tests: str = ""
    """Version of nccl-tests, from the one on that prints it."""
    nodes: int = 0
    """How many hosts its ranks were on; 0 where it does not list them. Their names are not kept."""
    options: Mapping[str, int] = field(default_factory=lambda: FrozenMap({}))
    notes: tuple[str, ...] = ()
    path: str = ""
    origin: Literal["nccl-tests"] = "nccl-tests"

    @property
    def nbytes(self) -> NDArray[np.int64]:
        return np.array([row.nbytes for row in self.rows], np.int64)

    @property
    def out_of_place_us(self) -> NDArray[np.float64]:
        return np.array([row.out_of_place_us for row in self.rows])

    @property
    def in_place_us(self) -> NDArray[np.float64]:
        return np.array([row.in_place_us for row in self.rows])

    @property
    def wrong(self) -> int | None:
        """Elements that were wrong, all rows together; None where nothing was checked."""
        counts = [n for row in self.rows for n in (row.out_of_place_wrong, row.in_place_wrong) if n is not None]
        return sum(counts) if counts else None

    def _answer(self) -> str:
        names = ", ".join(dict.fromkeys(self.gpus))
        on = f"{self.ranks} ranks" + (f" on {names}" if names else "") if self.ranks else "ranks not told"
        what = (
            "launch time on the host" if self.cpu_time else "captured, back to back" if self.captured else "eager, back to back"
        )
        verdict = "not checked" if self.wrong is None else f"{self.wrong} WRONG" if self.wrong else "correct"
        return f"nccl-tests: {len(self.rows)} sizes, {self.dtype}, {what}, {on}, {verdict}{f', NCCL {self.nccl}' if self.nccl else ''}"

    def page(self) -> list[Block]:
        """What people see."""
        blocks: list[Block] = [Line(self._answer(), "answer"), *([Line(self.path, "dim")] if self.path else [])]
        blocks += items("Notes", self.notes, "warn")
        rows = tuple((human_bytes(r.nbytes), f"{r.out_of_place_us:g}", f"{r.in_place_us:g}") for r in self.rows)
        columns = ("size", "out of place us", "in place us")
        blocks.append(Table("", columns, rows, frozenset(columns)))
        blocks.append(
            Line("means that nccl-tests made on the host's clock, over iterations and ranks: no samples, no spread", "dim")
        )
        return blocks

    def __str__(self) -> str:
        return to_text(self.page())

    def __repr__(self) -> str:
        return f"<NcclTests: {self._answer()}>"

    def _repr_html_(self) -> str:
        return to_html(self.page())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "origin": self.origin,
            "path": self.path,
            "dtype": self.dtype,
            "ranks": self.ranks,
            "gpus": list(self.gpus),
            "nodes": self.nodes,
            "captured": self.captured,
            "cpu_time": self.cpu_time,
            "nccl": self.nccl,
            "tests": self.tests,
            "options": dict(self.options),
            "notes": list(self.notes),
            "rows": [vars(row).copy() for row in self.rows],
        }


def read_nccl_tests(path: str | os.PathLike[str]) -> NcclTests:
    """What all_reduce_perf printed, kept in a file. NCCL's log between its lines is skipped and told.

    Raises InputError where there is no such file, MeasurementError with the line for whatever does not parse or does not add up.
    """
    name = os.fspath(path)
    try:
        with open(name, encoding="utf-8", errors="backslashreplace", newline="") as file:
            text = file.read()
    except FileNotFoundError:
        raise InputError("path", name, "there is no such file") from None
    except OSError as error:
        raise MeasurementError(name, None, f"cannot be read: {error.strerror}") from error
    return parse_nccl_tests(text, name)


def parse_nccl_tests(text: str, name: str = "text") -> NcclTests:
    """The same of a text."""
    reading = _Reading(name)
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        try:
            reading.take(line.rstrip())
        except _Unreadable as error:
            raise MeasurementError(name, number, f"{error}: {line.strip()[:120]!r}") from None
    return reading.table()


class _Unreadable(Exception):
    """Why a line cannot be read."""


class _Reading:
    """What was read up to a line."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[NcclRow] = []
        self.columns: list[str] = []
        self.dtype = self.nccl = self.tests = ""
        self.gpus: list[str] = []
        self.hosts: set[str] = set()
        self.options: dict[str, int] = {}
        self.logged = 0
        self.warnings: list[str] = []
        self.bad_sum: tuple[int, str] | None = None

    def take(self, line: str) -> None:
        """One line. Raises _Unreadable."""
        if _LOG.search(line):
            self.logged += 1
            self.warnings += [line.strip()] if "NCCL WARN" in line else []
        elif version := _NCCL_VERSION.search(line):
            self.nccl = version[1]
        elif line.startswith("#"):
            self._comment(line)
        elif line.strip():
            self._row(line.split())

    def _comment(self, line: str) -> None:
        words = line[1:].split()
        if found := _STARTING.match(line):
            if not re.match(r"(?:.*/)?all_reduce_perf(?:_mpi)?$", found[1]):
                raise _Unreadable("this is another test, and only all_reduce_perf is read")
        elif found := _TESTS_VERSION.match(line):
            self.tests = found[1]
            self.nccl = self.nccl or (_version(int(found[2])) if found[2] else "")
        elif line.startswith("# nThread"):
            if not (options := _OPTIONS.fullmatch(line)):
                raise _Unreadable("these are not options that all_reduce_perf prints")
            self.options = {key: int(value) for key, value in options.groupdict().items() if value is not None}
        elif found := _RANK.match(line):
            if int(found[1]) != len(self.gpus):
                raise _Unreadable(f"rank {len(self.gpus)} should stand here")
            self.hosts.add(found[2])
            self.gpus.append(found[3].strip())
        elif words[:3] == ["size", "count", "type"]:
            self._header(words)
        elif found := _BAD_SUM.match(line):
            self.bad_sum = int(found[1]), found[2]
        elif line.startswith("# error:"):
            raise _Unreadable("the test ended in an error")

    def _header(self, words: list[str]) -> None:
        """Columns as named: a table of another layout is refused, not guessed at."""
        halves = [word for word in words if word not in (*_EXTRA, "timestamp")]
        if not any(halves == [*_LEFT[:cut], *half, *half] for cut in (4, 5) for half in _HALF):
            raise _Unreadable("columns of another test, or of a version of nccl-tests that is not known")
        if self.columns and words != self.columns:
            raise _Unreadable("a second table with other columns")
        self.columns = words

    def _row(self, words: list[str]) -> None:
        if not self.columns:
            raise _Unreadable("not the output of all_reduce_perf: there is no line of columns before this")
        columns = self.columns
        if columns[-1] == "timestamp":  # a date and a time, which may hold a blank
            columns, words = columns[:-1], words[: len(columns) - 1]
        if len(words) != len(columns):
            raise _Unreadable(f"{len(columns)} columns, and {len(words)} values in them")
        left = dict(zip(columns, words, strict=False))
        nbytes, count, dtype = _whole(left["size"]), _whole(left["count"]), _DTYPES.get(left["type"], "")
        if left["redop"] != "sum":
            raise _Unreadable(f"the operation is {left['redop']}, and SGLang's all-reduce is a sum")
        if not dtype or nbytes != count * DTYPE_BYTES[dtype] or nbytes == 0:
            raise _Unreadable(f"{count} elements of {left['type']} are not {nbytes} bytes, or the type is not known")
        if self.dtype and dtype != self.dtype:
            raise _Unreadable(f"a row of {dtype} in a table of {self.dtype}: one type a file")
        if self.rows and nbytes <= self.rows[-1].nbytes:
            raise _Unreadable("sizes that do not grow: several runs, or lines of one that are mixed up; one run a file")
        middle = next(i for i, column in enumerate(columns) if column in ("time", "cputime"))
        width = (len(columns) - middle) // 2
        times = [
            _half(columns[start : start + width], words[start : start + width], nbytes) for start in (middle, middle + width)
        ]
        (out_us, out_wrong), (in_us, in_wrong) = times
        self.rows.append(NcclRow(nbytes, out_us, in_us, out_wrong, in_wrong))
        self.dtype = dtype

    def table(self) -> NcclTests:
        if not self.rows:
            raise MeasurementError(self.name, None, "not the output of all_reduce_perf, or it ended before its first size")
        notes = [f"{self.logged} lines of NCCL's log were skipped"] if self.logged else []
        notes += [f"NCCL warned: {text}" for text in dict.fromkeys(self.warnings)]
        if self.bad_sum is None:
            notes.append("it has no closing lines: the test was interrupted, or its output cut; sizes may be missing")
        elif self.bad_sum[0] or self.bad_sum[1] != "OK":
            notes.append(f"nccl-tests says that results are wrong: {self.bad_sum[0]} out of bounds")
        return NcclTests(
            rows=tuple(self.rows),
            dtype=self.dtype,
            ranks=len(self.gpus),
            gpus=tuple(self.gpus),
            captured=self.options.get("graph", 0) > 0,
            cpu_time="cputime" in self.columns,
            nccl=self.nccl,
            tests=self.tests,
            nodes=len(self.hosts),
            options=FrozenMap(self.options),
            notes=tuple(notes),
            path=self.name,
        )


def _half(columns: list[str], words: list[str], nbytes: int) -> tuple[float, int | None]:
    """Time and wrong elements of one half of a row; size, time and bandwidth must say the same."""
    half = dict(zip(columns, words, strict=True))
    us = _number(next(half[name] for name in ("time", "cputime") if name in half))
    if us <= 0:
        raise _Unreadable(f"a time of {us} us")
    if "time" in half:
        _check_bandwidth(nbytes, us, _number(half["algbw"]))
    return float(us), None if half["#wrong"] == "N/A" else _whole(half["#wrong"])


def _check_bandwidth(nbytes: int, us: Decimal, bandwidth: Decimal) -> None:
    """Both were rounded when they were printed; within that, bytes / time is the bandwidth."""
    near, slack = _half_unit(us), _half_unit(bandwidth)
    low, high = bandwidth - slack, bandwidth + slack
    most = Decimal(nbytes) / 1000 / (us - near) if us > near else Decimal("Infinity")
    least = Decimal(nbytes) / 1000 / (us + near)
    if most < low or least > high:
        raise _Unreadable(
            f"{nbytes} bytes in {us} us are not {bandwidth} GB/s: a value stands in another's column, or is damaged"
        )


def _half_unit(value: Decimal) -> Decimal:
    """Half of the last digit that is printed, and a little for how the machine rounds a tie."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    return Decimal("0.51").scaleb(exponent)


def _number(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise _Unreadable(f"{text!r} is not a number") from None
    if not value.is_finite() or value < 0:
        raise _Unreadable(f"{text!r} is not a number that can be measured")
    return value


def _whole(text: str) -> int:
    """A count: large ones of wrong elements are printed as 1e+06."""
    value = _number(text)
    if value != value.to_integral_value() or value > 1 << 62:
        raise _Unreadable(f"{text!r} is not a whole number")
    return int(value)


def _version(code: int) -> str:
    """22809 is 2.28.9; before 2.9 it was 2804."""
    return (
        f"{code // 10000}.{code // 100 % 100}.{code % 100}"
        if code >= 10000
        else f"{code // 1000}.{code // 100 % 10}.{code % 100}"
    )
