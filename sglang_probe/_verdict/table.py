"""Arms of a CSV file. Called by reading.py.

A file without headings is one column of figures, a process a row. With headings, columns are known by their names: ``process`` (rows
that share it are the iterations of one process), ``order``, ``block``; the figures are in the one other column of numbers, or in the one
that is named.
Lines that begin with # are comments.
Invariant: every refusal names the file and the line.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .._types import InputError
from . import units
from .arm import Arm, check

_PROCESS = ("process", "proc", "pid", "run", "repeat", "process_set")
_ORDER = ("order", "place")
_BLOCK = ("block", "blocks", "pair")
_BYTES = 256 << 20
_EXPERIMENT = '{"format":"sglang_probe experiment"'


@dataclass(frozen=True)
class Row:
    """One line."""

    line: int
    cells: tuple[str, ...]


def arms_of(
    path: Path, labels: Sequence[str], unit: str | None, column: str | None, arm_column: str | None, wanted: Sequence[str] | None
) -> list[Arm]:
    """One arm, or with ``arm_column`` the two that it tells apart, under these labels. Raises InputError."""
    head, rows = _rows(path, labels[0])
    names = [name.strip() for name in head]
    places = {name.lower(): place for place, name in enumerate(names)}
    told = None if arm_column is None else _place(places, names, arm_column, "arm_column", path)
    value = _value_column(path, names, rows, column, told)
    unit = units.known(unit or "") or (units.unit_of_name(names[value]) if names else "")
    if told is None:
        return [_arm(path, labels[0], rows, value, unit, places, str(path))]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(_cell(row, told), []).append(row)
    chosen = _chosen(groups, wanted, names[told], path)
    return [
        _arm(path, name or label, groups[name], value, unit, places, f"{path}: {names[told]} {name}")
        for label, name in zip(labels, chosen, strict=True)
    ]


def _chosen(groups: dict[str, list[Row]], wanted: Sequence[str] | None, name: str, path: Path) -> list[str]:
    there = ", ".join(sorted(groups))
    if wanted is None:
        if len(groups) != 2:
            raise InputError("arm_column", name, f"{path} has {len(groups)} arms in it ({there}): name two")
        return list(groups)
    if len(wanted) != 2 or wanted[0] == wanted[1]:
        raise InputError("arms", ",".join(wanted), f"give two different names of {there}")
    for one in wanted:
        if one not in groups:
            raise InputError("arms", one, f"column {name} of {path} has {there}")
    return list(wanted)


def _rows(path: Path, label: str) -> tuple[list[str], list[Row]]:
    """Headings ([] where there are none), and the lines below."""
    try:
        if path.stat().st_size > _BYTES:
            raise InputError(label, str(path), "over 256 MiB: that is not a file of figures of fresh processes")
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(label, str(path), "this is no text: give a CSV file or a Measurement file") from None
    except OSError as error:
        raise InputError(label, str(path), f"cannot be read ({error.strerror}); numbers are given as 89.2,94.1") from None
    lines = [
        (number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines:
        raise InputError(label, str(path), "it has no figures")
    first = lines[0][1]
    if first.lstrip().startswith(("{", "[")):
        ours = "an experiment of `ab` or `noise` has an answer of its own: probe.AbResult.read(path), or NoiseResult's"
        remedy = ours if first.startswith(_EXPERIMENT) else "this is JSON: give its figures, as 89.2,94.1, or a CSV file"
        raise InputError(label, str(path), remedy)
    mark = max(",;\t", key=first.count)
    try:
        rows = [
            Row(number, tuple(cell.strip() for cell in next(csv.reader(io.StringIO(line), delimiter=mark, strict=True))))
            for number, line in lines
        ]
    except csv.Error as error:
        raise InputError(label, str(path), f"this is no CSV file ({error})") from None
    head = [] if all(units.split(cell) is not None for cell in rows[0].cells) else list(rows.pop(0).cells)
    width = len(head) or len(rows[0].cells)
    for row in rows:
        if len(row.cells) != width:
            raise InputError(label, f"{path}, line {row.line}", f"{len(row.cells)} cells where there are {width} columns")
    if not rows:
        raise InputError(label, str(path), "it has headings, and no figures below")
    if len({name.lower() for name in head}) < len(head):
        raise InputError(label, str(path), f"two columns of one name in {', '.join(head)}")
    return head, rows


def _place(places: dict[str, int], names: list[str], name: str, option: str, path: Path) -> int:
    if name.lower() not in places:
        raise InputError(option, name, f"{path} has {'the columns ' + ', '.join(names) if names else 'no headings'}")
    return places[name.lower()]


def _value_column(path: Path, names: list[str], rows: list[Row], column: str | None, told: int | None) -> int:
    if column is not None:
        return _place({name.lower(): i for i, name in enumerate(names)}, names, column, "column", path)
    if not names:
        if len(rows[0].cells) > 1:
            raise InputError(
                "column", None, f"{path} has {len(rows[0].cells)} columns and no headings: give it headings, and name one"
            )
        return 0
    known = {*_PROCESS, *_ORDER, *_BLOCK}
    numeric = [
        i
        for i, name in enumerate(names)
        if i != told and name.lower() not in known and any(units.split(row.cells[i]) is not None for row in rows)
    ]
    if len(numeric) != 1:
        which = ", ".join(names[i] for i in numeric) or "none"
        raise InputError("column", None, f"say which column of {path} has the figures: {which} could")
    return numeric[0]


def _cell(row: Row, place: int) -> str:
    return row.cells[place]


def _arm(path: Path, label: str, rows: list[Row], value: int, unit: str, places: dict[str, int], origin: str) -> Arm:
    process, order, block = (
        next((places[name] for name in known if name in places), None) for known in (_PROCESS, _ORDER, _BLOCK)
    )
    groups: dict[str, list[Row]] = {}
    for number, row in enumerate(rows):
        groups.setdefault(_cell(row, process) if process is not None else str(number), []).append(row)
    found: set[str] = set()
    processes = []
    for group in groups.values():
        iterations = []
        for row in group:
            split = units.split(_cell(row, value))
            name = f"{path}, line {row.line}"
            if split is None:
                raise InputError(name, _cell(row, value), "this is no number: leave the line out, and say so")
            check([split[0]], name, one=True)
            iterations.append(split[0])
            found |= {split[1]} - {""}
        processes.append(tuple(iterations))
    if len(found) > 1:
        raise InputError(label, str(path), f"figures in {', '.join(sorted(found))}: one arm has one unit")
    if found and unit and found != {unit}:
        raise InputError("unit", unit, f"the figures of {path} say {next(iter(found))}")
    when = () if order is None else tuple(_whole(group[0], order, path) for group in groups.values())
    blocks = () if block is None else tuple(_whole(group[0], block, path) for group in groups.values())
    return Arm(
        label,
        tuple(processes),
        next(iter(found), unit),
        origin,
        when,
        blocks,
        str(path) if when else "",
        str(path) if blocks else "",
    )


def _whole(row: Row, place: int, path: Path) -> int:
    try:
        return int(_cell(row, place))
    except ValueError:
        raise InputError(f"{path}, line {row.line}", _cell(row, place), "order and block are whole numbers") from None
