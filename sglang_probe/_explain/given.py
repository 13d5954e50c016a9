"""What was given as seen: ``19ms``, ``89tok/s``, several of them, numbers, CSV or Measurement files -> arms. Called by explain.py.

Invariant: a figure without a unit is refused, never guessed; each kind of figure stands in one arm, one process a figure.
"""

from __future__ import annotations

import gzip
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Literal, TypeAlias

from .._measure.format import MAGIC
from .._measure.measurement import Measurement
from .._types import FrozenMap, InputError
from .._verdict.arm import Arm
from .._verdict.units import known

Kind = Literal["step", "rate", "call"]
Source: TypeAlias = "str | os.PathLike[str] | float | Arm | Measurement | Sequence[Any] | None"

MS: Mapping[str, float] = FrozenMap({"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3})
"""Milliseconds of one."""
RATE = "tok/s"
_UNITS = "us, ms or s for the time of a step, tok/s for a rate"
_FIGURE = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\d\s.,;][^\s,;]*)?\s*")
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Given:
    """One side of one kind of figure."""

    kind: Kind
    arm: Arm
    half: float = 0.0
    """Half of the last digit that was given, in the arm's unit: 0.5 of ``19ms``; 0 where figures are measured."""

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the most that it says, roundings with them."""
        middles = [middle_of(process) for process in self.arm.processes]
        return max(0.0, min(middles) - self.half), max(middles) + self.half

    @property
    def middle(self) -> float:
        """The median over processes of each one's median."""
        return middle_of([middle_of(process) for process in self.arm.processes])


def read_given(
    source: Source, field: str, *, unit: str | None = None, cell: Any = None, column: str | None = None
) -> dict[Kind, Given]:
    """All that one side says, by kind. ``field`` is what errors name, and what the arm's label is made of.

    Raises InputError for what is no figure, has no unit, or mixes what cannot be one arm.
    """
    if source is None:
        return {}
    if unit is not None and known(unit) not in (*MS, RATE):
        raise InputError("unit", unit, f"give {_UNITS}")
    found: dict[Kind, list[Given]] = {}
    for part in _parts(source, field):
        one = _read(part, field, unit, cell, column)
        found.setdefault(one.kind, []).append(one)
    return {kind: _joined(parts, field) for kind, parts in found.items()}


def same_unit(before: Given, after: Given) -> tuple[Given, Given]:
    """Both in one unit: milliseconds where they differ."""
    if before.arm.unit == after.arm.unit or before.kind == "rate":
        return before, after
    return _in_ms(before), _in_ms(after)


def _in_ms(given: Given) -> Given:
    factor = MS[given.arm.unit]
    processes = tuple(tuple(factor * value for value in process) for process in given.arm.processes)
    return replace(given, arm=replace(given.arm, processes=processes, unit="ms"), half=given.half * factor)


def middle_of(values: Sequence[float]) -> float:
    """Their median."""
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


# ------------------------------------------------------------------------------------------------------------------------- parts


def _parts(source: Any, field: str) -> list[Any]:
    """Texts one by one; what is numbers, a file or an arm stays whole."""
    if isinstance(source, str):
        pieces = [piece.strip() for piece in re.split(r"[,;]|\s+(?=[+-]?[.\d])", source.strip()) if piece.strip()]
        found = [_FIGURE.fullmatch(piece) for piece in pieces]
        if not found or not all(found) or os.path.exists(source):
            return [source]
        last = found[-1][2] if found[-1] else None
        bare = last and not any(one[2] for one in found[:-1] if one)  # "89.2, 94.1 tok/s": the unit stands once, behind the last
        return [f"{piece}{last}" for piece in pieces[:-1]] + pieces[-1:] if bare else pieces
    if (
        isinstance(source, Sequence)
        and not isinstance(source, bytes)
        and any(isinstance(part, str | os.PathLike) for part in source)
    ):
        if not all(isinstance(part, str | os.PathLike) for part in source):
            raise InputError(field, source, "give texts with units, or numbers with unit=, not both in one list")
        return [piece for part in source for piece in _parts(part, field)]
    return [source]


def _read(part: Any, field: str, unit: str | None, cell: Any, column: str | None) -> Given:
    if isinstance(part, str) and (matched := _FIGURE.fullmatch(part)) and not os.path.exists(part):
        return _figure(matched[1], matched[2] or unit, part, field)
    from .._verdict.arm import arm

    if isinstance(part, bool) or part is None:
        raise InputError(field, part, f"give a figure with its unit, such as 19ms or 89tok/s ({_UNITS}), or a file")
    if isinstance(part, int | float):
        return _figure(_text(part, field), unit, part, field)
    call = is_measurement(part)
    if isinstance(part, Arm):
        made = part if unit is None else replace(part, unit=unit)
    else:
        keywords = {"unit": unit, "cell": cell, "column": column}
        made = arm(part, label=_label(field), **{name: value for name, value in keywords.items() if value is not None})
    made = replace(made, label=_label(field), unit=known(made.unit))
    return Given(_kind(made.unit, part, field, call), made)


def _text(number: float, field: str) -> str:
    if not math.isfinite(number):
        raise InputError(field, number, "give a figure above 0")
    return repr(number).removesuffix(".0")


def _figure(digits: str, unit: str | None, given: object, field: str) -> Given:
    if unit is None:
        raise InputError(field, given, f"give its unit: {_UNITS}, as in 19ms or 89tok/s")
    unit = known(unit)
    kind = _kind(unit, given, field, False)
    value = Decimal(digits.replace("_", ""))
    if not value > 0:
        raise InputError(field, given, "give a figure above 0")
    exponent = value.as_tuple().exponent
    half = float(Decimal(5).scaleb(int(exponent) - 1))
    return Given(kind, Arm(_label(field), ((float(value),),), unit, "given"), half)


def _label(field: str) -> str:
    return "before" if field.endswith("before") else "after"


def _kind(unit: str, given: object, field: str, call: bool) -> Kind:
    if unit == RATE:
        return "rate"
    if unit in MS:
        return "call" if call else "step"
    shown = given if isinstance(given, str | int | float) else unit
    if not unit:
        raise InputError("unit", None, f"{field} has no unit: give {_UNITS}")
    raise InputError(field, shown, f"its unit {unit!r} is none that explain knows: {_UNITS}")


def is_measurement(part: object) -> bool:
    """Its figures are of one call, not of a step."""
    if isinstance(part, Measurement):
        return True
    if not isinstance(part, str | os.PathLike):
        return False
    try:
        with open(part, "rb") as file:
            head = file.read(len(MAGIC))
        if head.startswith(_GZIP):
            with gzip.open(part) as packed:
                head = packed.read(len(MAGIC))
    except (OSError, EOFError):
        return False  # whoever reads it says so
    return head == MAGIC


def opened(source: Any) -> Any:
    """The Measurement of a path that is one, packed or not; all else as it is. Raises MeasurementError for a damaged one."""
    if isinstance(source, str | os.PathLike) and os.path.isfile(source) and is_measurement(source):
        return Measurement.read(source)
    return source


# ------------------------------------------------------------------------------------------------------------------------ one arm


def _joined(parts: Iterable[Given], field: str) -> Given:
    """Several figures of one kind are several runs of one arm."""
    first, *rest = parts
    if not rest:
        return first
    if any(one.arm.order or one.arm.blocks or len(one.arm) > 1 for one in (first, *rest)):
        raise InputError(field, f"{1 + len(rest)} sources of one kind", "give one file, or several single figures")
    if any(one.arm.unit != first.arm.unit for one in rest):
        first, *rest = (_in_ms(one) for one in (first, *rest))
    processes = tuple(process for one in (first, *rest) for process in one.arm.processes)
    origins = dict.fromkeys(one.arm.origin for one in (first, *rest))
    joined = replace(first.arm, processes=processes, origin=", ".join(origins))
    return replace(first, arm=joined, half=max(one.half for one in (first, *rest)))
