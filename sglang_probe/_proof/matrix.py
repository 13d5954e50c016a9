"""matrix: many launch lines, and which of them change their routes between two revisions. Public; a check for a pull request.

A line is a launch line; blank lines and what follows a # at a line's start or after a space are left out, a \\ at the end goes on.
Where machines differ, it stands before the line: ``gpu=h200 link=nvlink :: python -m sglang.launch_server ...``.
Invariant: every line is read, for both revisions, before anything is compared; a bad one is refused with its number.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._releases import RELEASES, Release, resolve
from .._types import InputError, Model, Server
from .diff import Diff, diff

_MACHINE = ("gpu", "link", "nodes", "gpus", "model")
_PREFIX = " :: "
_COMMENT = re.compile(r"(^|\s)#.*$")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Entry:
    """One launch line, and what changes for it."""

    number: int
    """Of its line, from 1."""
    launch: str
    machine: Mapping[str, Any]
    diff: Diff

    def __bool__(self) -> bool:
        return bool(self.diff)


@dataclass(frozen=True)
class Matrix:
    """What changes for many launches; false when nothing does."""

    a: str
    b: str
    entries: tuple[Entry, ...]
    unknown: tuple[str, ...] = ()
    """Gates whose code nobody knows: about them no entry says anything."""

    @property
    def changed(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry)

    def __bool__(self) -> bool:
        return bool(self.changed)

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __str__(self) -> str:
        from .._show.history import matrix_text

        return matrix_text(self)

    def __repr__(self) -> str:
        return f"<Matrix: {len(self.changed)} of {len(self.entries)} launches change, {self.a} to {self.b}>"

    def _repr_html_(self) -> str:
        from .._show.history import matrix_html

        return matrix_html(self)

    def to_dict(self) -> dict[str, Any]:
        return {
            "a": self.a,
            "b": self.b,
            "launches": len(self.entries),
            "changed": len(self.changed),
            "unknown_gates": list(self.unknown),
            "entries": [
                {
                    "line": entry.number,
                    "launch": entry.launch,
                    "machine": dict(entry.machine),
                    "changes": bool(entry),
                    "diff": entry.diff.to_dict(),
                }
                for entry in self.entries
            ],
        }


def matrix(
    a: str | Release,
    b: str | Release,
    lines: str | os.PathLike[str] | Iterable[str],
    *,
    gpu: str | None = None,
    link: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
    model: str | Model | None = None,
    progress: Progress | None = None,
) -> Matrix:
    """``diff`` for many launch lines: from a file, or given one by one. The machine is the same for all lines that do not say theirs.

    True where any launch changes, so that ``sys.exit(bool(matrix(...)))`` fails a check. Raises InputError with the line's number for
    a line that no server starts from, and where there is no line at all.
    """
    report = progress or (lambda _text: None)
    old, new = resolve(a), resolve(b)
    shared = {"gpu": gpu, "link": link, "nodes": nodes, "gpus": gpus, "model": model}
    asked = [(n, launch, {**shared, **own}) for n, launch, own in parse_lines(_read(lines))]
    if not asked:
        raise InputError("lines", str(lines)[:80], "no launch line is there; give one a line")
    for number, launch, machine in asked:  # read before anything is compared
        for release in (old, new):
            _server(number, launch, release, machine, env)
    entries = []
    for i, (number, launch, machine) in enumerate(asked):
        report(f"launch {i + 1} of {len(asked)}")
        found = diff(old, new, launch=launch, env=env, **machine)
        given = {name: value for name, value in machine.items() if value is not None}
        entries.append(Entry(number, launch, given, found))
    unknown = tuple(dict.fromkeys((*old.unknown_gates, *new.unknown_gates)))
    return Matrix(old.name, new.name, tuple(entries), unknown)


def _read(lines: str | os.PathLike[str] | Iterable[str]) -> list[str]:
    if isinstance(lines, (str, os.PathLike)):
        try:
            return Path(lines).expanduser().read_text().splitlines()
        except UnicodeDecodeError:
            raise InputError("lines", str(lines), "not a text file; give a file with one launch line a line") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError("lines", str(lines)[:80], f"cannot be read ({reason}); give a file of launch lines") from None
    return list(lines)


def parse_lines(lines: Iterable[str]) -> list[tuple[int, str, dict[str, Any]]]:
    """(number, launch line, machine) of each line that is one."""
    found = []
    start, parts = 0, list[str]()
    for number, line in enumerate([*lines, ""], 1):
        text = _COMMENT.sub("", line).strip()
        if not parts:
            start = number
        if text.endswith("\\"):
            parts.append(text[:-1].rstrip())
            continue
        whole = " ".join([*parts, text]).strip()
        parts = []
        if whole:
            machine, launch = _prefix(start, whole)
            found.append((start, launch, machine))
    return found


def _prefix(number: int, text: str) -> tuple[dict[str, Any], str]:
    """The machine before ``::``, and the launch line."""
    before, mark, launch = text.partition(_PREFIX)
    if not mark:
        return {}, text
    machine: dict[str, Any] = {}
    for word in shlex.split(before):
        key, equals, value = word.partition("=")
        if not equals or key not in _MACHINE:
            raise _bad(number, word, f"before :: give {', '.join(f'{name}=...' for name in _MACHINE)}")
        if key in ("nodes", "gpus"):
            if not value.isdecimal():
                raise _bad(number, word, "give a whole number")
            machine[key] = int(value)
        else:
            machine[key] = value
    return machine, launch.strip()


def _bad(number: int, value: object, remedy: str) -> InputError:
    return InputError(f"line {number}", value, remedy)


def _server(number: int, launch: str, release: Release, machine: Mapping[str, Any], env: Mapping[str, str] | None) -> Server:
    from ..launch import read_launch

    try:
        return read_launch(launch, sglang=RELEASES[release.index], env=env, **machine)
    except InputError as error:
        raise _bad(number, launch[:120], f"{error.field}={error.value!r}: {error.remedy}") from None


__all__ = ["Entry", "Matrix", "matrix", "parse_lines"]
