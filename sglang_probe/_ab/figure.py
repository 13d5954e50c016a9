"""Figure: what a run of a command is judged by: the wall clock, or numbers that it printed. Used by commands.py.

Invariant: a figure is a finite number above 0; what cannot be read is told with the reason, never guessed.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from .._types import InputError

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+(?:,\d{3})*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?(?![\d])")
_WORDS = re.compile(r"(?<![\w.])[-+]?(?:nan|inf|infinity)(?!\w)", re.IGNORECASE)
_VALUES_MAX = 1_000_000
_REMEDY = (
    "give wall (the wall clock), last (the last number that it prints), json:KEY (as json:output_throughput or json:runs.0.us), "
    "or a regular expression with one group, as 'throughput: ([0-9.]+)'"
)


class NoFigure(Exception):
    """Why a run gave no figure."""


@dataclass(frozen=True)
class Figure:
    """How it is read: ``figure_of("wall")`` and its like make one."""

    kind: Literal["wall", "last", "json", "regex"]
    text: str = ""
    """The key, or the expression."""
    every: bool = False
    """All matches of the expression are iterations of the process, in order; else the last one is its figure."""

    @property
    def unit(self) -> str:
        """Where it is known without being told."""
        return "s" if self.kind == "wall" else ""

    def __str__(self) -> str:
        return {
            "wall": "wall clock",
            "last": "the last number that it prints",
            "json": f"{self.text} of the JSON that it prints",
            "regex": f"{'all that match' if self.every else 'what matches'} {self.text!r}",
        }[self.kind]

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {"kind": self.kind, "text": self.text, "every": self.every}

    def read(self, out: str, wall_s: float) -> tuple[float, ...]:
        """The iterations of one process; usually one. Raises NoFigure."""
        if self.kind == "wall":
            return (wall_s,)
        found = {"last": self._last, "json": self._json, "regex": self._regex}[self.kind](out)
        values = tuple(found if self.every or self.kind == "json" else found[-1:])
        for value in values:
            if not math.isfinite(value) or value <= 0:
                raise NoFigure(f"its figure is {value:g}, and a ratio needs numbers above 0")
        return values

    def _last(self, out: str) -> list[float]:
        places = [*_NUMBER.finditer(out), *_WORDS.finditer(out)]
        if not places:
            raise NoFigure("it printed no number" if out.strip() else "it printed nothing")
        return [_number(max(places, key=lambda one: one.start())[0])]

    def _regex(self, out: str) -> list[float]:
        found = []
        for match in re.compile(self.text, re.MULTILINE).finditer(out):
            text = next((group for group in match.groups() if group is not None), match[0])
            found.append(_number(text))
            if len(found) > _VALUES_MAX:
                raise NoFigure(f"over {_VALUES_MAX:,} matches of {self.text!r}")
        if not found:
            raise NoFigure(f"nothing that it printed matches {self.text!r}{_tail(out)}")
        return found

    def _json(self, out: str) -> list[float]:
        """Of the whole output where that is JSON, else of the last line that is an object or a list."""
        for text in (out, *reversed(out.splitlines())):
            if text.lstrip()[:1] not in ("{", "["):
                continue
            try:
                plain = json.loads(text)
            except (ValueError, RecursionError):
                continue
            return self._values(plain)
        raise NoFigure(f"it printed no JSON{_tail(out)}")

    def _values(self, plain: Any) -> list[float]:
        at = plain
        for part in self.text.split("."):
            if isinstance(at, dict) and part in at:
                at = at[part]
            elif isinstance(at, list) and part.lstrip("-").isdigit() and -len(at) <= int(part) < len(at):
                at = at[int(part)]
            else:
                there = (
                    ", ".join(map(str, at)) if isinstance(at, dict) else f"{len(at)} items" if isinstance(at, list) else repr(at)
                )
                raise NoFigure(f"its JSON has no {self.text}: at {part!r} there is {there[:200]}")
        values = at if isinstance(at, list) else [at]
        if not values or any(isinstance(one, bool) or not isinstance(one, int | float) for one in values):
            raise NoFigure(f"{self.text} of its JSON is no number, nor a list of them: {str(at)[:200]}")
        return [float(one) for one in values]


def figure_of(given: object, every: bool = False) -> Figure:
    """``wall``, ``last``, ``json:KEY`` or a regular expression, checked."""
    if isinstance(given, Figure):
        return given
    if not isinstance(given, str) or not given:
        raise InputError("figure", given, _REMEDY)
    if given in ("wall", "last"):
        kind: Literal["wall", "last"] = "wall" if given == "wall" else "last"
        found = Figure(kind)
    elif given.startswith("json:"):
        if not given[5:]:
            raise InputError("figure", given, _REMEDY)
        found = Figure("json", given[5:])
    else:
        try:
            groups = re.compile(given).groups
        except re.error as error:
            raise InputError("figure", given, f"it is no regular expression ({error}): {_REMEDY}") from None
        if not groups and not re.search(r"[\\\[(.*+?]", given):  # one that can match itself alone
            raise InputError("figure", given, f"this text matches no number: {_REMEDY}")
        return Figure("regex", given, every)
    if every:
        raise InputError("every", every, "goes with a regular expression, whose matches are iterations of one process")
    return found


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        raise NoFigure(f"what matches is no number: {text[:80]!r}") from None


def _tail(out: str) -> str:
    lines = [line for line in out.splitlines() if line.strip()]
    return f"; its last line is {lines[-1].strip()[:120]!r}" if lines else "; it printed nothing"
