"""Arms of what people have: numbers, texts, arrays, CSV files; Measurements go on to measured.py. Called by arm.py and by the command line.

Invariant: whatever is not a figure is refused with its place; nothing is dropped, filled in or averaged on the way.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._types import InputError
from . import table, units
from .arm import Arm, check

_REMEDY = "give numbers, lists of numbers (one list a process), or the path of a CSV or Measurement file"


def read(source: Any, label: str, unit: str | None, cell: Any, column: str | None) -> Arm:
    """See `arm`."""
    from .._measure.measurement import Measurement

    if isinstance(source, Measurement):
        from .measured import of_measurement

        return of_measurement(source, label, cell, column, source.path)
    if isinstance(source, bytes | bytearray):
        raise InputError(label, reprlib.repr(source), _REMEDY)
    if isinstance(source, str) and not source.strip():
        raise InputError(label, source, "no figures: " + _REMEDY)
    if isinstance(source, str) and looks_like_numbers(source):
        _refuse(label, cell, column, "numbers")
        return _of_text(source, label, unit)
    if isinstance(source, str | os.PathLike):
        return of_file(source, label, unit, cell, column)
    _refuse(label, cell, column, "numbers")
    return Arm(label, _processes(source, label), units.known(unit or ""))


def _refuse(label: str, cell: Any, column: str | None, what: str, column_too: bool = True) -> None:
    if cell is not None:
        raise InputError("cell", cell, f"goes with a Measurement, and {label} is {what}")
    if column is not None and column_too:
        raise InputError("column", column, f"goes with a Measurement or a CSV file, and {label} is {what}")


# --------------------------------------------------------------------------------------------------------------------------- numbers


def looks_like_numbers(text: str) -> bool:
    """``89.2, 94.1 tok/s`` and not a path."""
    return units.split(re.split(r"[,;\s]", text.strip(), maxsplit=1)[0]) is not None and not os.path.exists(text)


def _of_text(text: str, label: str, unit: str | None) -> Arm:
    """Numbers with commas or spaces between, each with its unit, the last one's for all, or without."""
    if re.search(r"[,;]\s*[,;]", text):
        raise InputError(label, text, "a figure is missing between two commas: leave it out, or give it")
    parts = [part for part in re.split(r"\s*[,;]\s*|\s+(?=[-+.0-9])", text.strip()) if part]
    values, found = [], []
    for place, part in enumerate(parts):
        split = units.split(part)
        if split is None:
            raise InputError(f"{label}[{place}]", part, "this is no number")
        values.append(split[0])
        found.append(split[1])
    told = {one for one in found if one}
    if len(told) > 1:
        raise InputError(label, text, f"figures in {', '.join(sorted(told))}: one arm has one unit")
    if told and any(not one for one in found[:-1]) and not all(not one for one in found[:-1]):
        raise InputError(label, text, "some figures have a unit and some have none: give it once, behind the last")
    check(values, label)
    return Arm(label, tuple((value,) for value in values), next(iter(told), units.known(unit or "")))


def _processes(source: Any, label: str) -> tuple[tuple[float, ...], ...]:
    """One tuple a process."""
    if isinstance(source, set | frozenset | dict):
        raise InputError(label, reprlib.repr(source), f"a {type(source).__name__} has no order: {_REMEDY}")
    if isinstance(source, np.ma.MaskedArray):
        source = np.ma.filled(source.astype(np.float64), np.nan)
    if _is_number(source):
        source = [source]
    elif hasattr(source, "__array__"):  # of a table, rows: going through it would give the names of its columns
        source = np.asarray(source)
    try:
        rows = list(source)
    except TypeError:
        raise InputError(label, reprlib.repr(source), _REMEDY) from None
    if not rows:
        raise InputError(label, "no figures", "an arm needs at least one run; four of each arm can show something")
    nested = [not _is_number(row) and not isinstance(row, str | bytes) for row in rows]
    for place, row in enumerate(rows):
        if nested[place] and not hasattr(row, "__iter__"):
            raise InputError(f"{label}[{place}]", reprlib.repr(row), "this is no number")
    if any(nested) and not all(nested):
        place = nested.index(False) if nested[0] else nested.index(True)
        raise InputError(
            f"{label}[{place}]", reprlib.repr(rows[place]), "numbers beside lists: give one list a process, or numbers only"
        )
    if not any(nested):
        values = [_number(row, f"{label}[{place}]") for place, row in enumerate(rows)]
        check(values, label)
        return tuple((value,) for value in values)
    return tuple(_iterations(row, f"{label}[{place}]") for place, row in enumerate(rows))


def _iterations(row: Any, name: str) -> tuple[float, ...]:
    try:
        values = [_number(value, f"{name}[{place}]") for place, value in enumerate(row)]
    except TypeError:
        raise InputError(name, reprlib.repr(row), _REMEDY) from None
    if not values:
        raise InputError(name, "no figures", "this process has no iterations: leave it out, and say so")
    check(values, name)
    return tuple(values)


def _is_number(value: Any) -> bool:
    if getattr(value, "ndim", None) == 0:
        return True
    return (
        isinstance(value, int | float | np.integer | np.floating) or hasattr(value, "__float__") and not hasattr(value, "__len__")
    )


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool | np.bool_ | str | bytes) or not _is_number(value):
        hint = ": it is a text; turn texts into numbers first" if isinstance(value, str) else ""
        raise InputError(name, reprlib.repr(value) if not isinstance(value, str) else value, f"this is no number{hint}")
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(name, reprlib.repr(value), "this is no number that a float can hold") from None


# ----------------------------------------------------------------------------------------------------------------------------- files


def of_file(source: str | os.PathLike[str], label: str, unit: str | None, cell: Any, column: str | None) -> Arm:
    """A Measurement file by its first bytes, else CSV."""
    from .measured import is_measurement, of_measurement

    path = Path(os.fspath(source))
    if is_measurement(path, label):
        from .._measure.measurement import Measurement

        return of_measurement(Measurement.read(path), label, cell, column, str(path))
    _refuse(label, cell, None, "a CSV file")
    (arm,) = table.arms_of(path, [label], unit, column, None, None)
    return arm


def arms(
    source: str | os.PathLike[str],
    *,
    arm_column: str,
    arms: Sequence[str] | None = None,
    unit: str | None = None,
    column: str | None = None,
) -> tuple[Arm, Arm]:
    """Both arms of one CSV file that has a column which tells them apart.

    ``arms``: the two names in that column, a first; by default those that there are, in the order of the file, where there are two. Columns
    called ``process`` (rows of one process are its iterations), ``order`` and ``block`` are read for what they say.

    Raises InputError.
    """
    found = table.arms_of(Path(os.fspath(source)), ["a", "b"], unit, column, arm_column, arms)
    return found[0], found[1]
