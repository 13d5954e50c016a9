"""A Sheet as Markdown for a bug report: sentence, reason, tables, machine, command, versions. Called by __init__.py.

Invariant: no HTML; a caller's text is never markup, never notifies anybody and never links to an issue, whatever stands in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from .._show.page import Table
from .nouns import Sheet
from .text import shown

_SIGNS = re.compile(r"[\\`*\[\]<>|~$&]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_BEGINNING = re.compile(r"^(\s*)([#+=-]|\d+[.)])")
"""What makes a heading, a list or a rule of a line."""
_CALLS = re.compile(r"(?<!\w)@(?=\w)|(?<!\w)#(?=\d)|(?<=\b[Gg][Hh])-(?=\d)")
_BREAKS = "\u2060"
"""A word joiner: nobody sees it, and ``@name`` is no mention any more."""


def text_of(sheet: Sheet) -> str:
    """The whole of it."""
    parts = [f"**{escaped(sheet.sentence)}**"]
    parts += [line(sheet.reason)] if sheet.reason else []
    parts += ["\n".join(f"- {line(text)}" for text in sheet.findings)] if sheet.findings else []
    parts += [table_text(table) for table in sheet.tables]
    unknown = [("not known", ", ".join(what for what, _ in sheet.unknown))] if sheet.unknown else []
    facts = [*sheet.machine, *unknown, *sheet.versions]
    parts += [table_text(Table("", ("what", "which"), tuple(facts)))] if facts else []
    for name, command in sheet.commands:
        parts.append(f"{line(name)}:\n\n{fenced(command)}" if name else fenced(command))
    return "\n\n".join(parts)


def escaped(text: str) -> str:
    """A text that reads as it is, inside a line."""
    text = _SIGNS.sub(r"\\\g<0>", shown(text))
    return _CALLS.sub(lambda found: found[0] + _BREAKS, text)


def line(text: str) -> str:
    """The same as a line of its own."""
    return _BEGINNING.sub(lambda found: found[1] + found[2][:-1] + "\\" + found[2][-1], escaped(text))


def fenced(text: str) -> str:
    """A command as a block of code, behind a fence that is longer than any in it."""
    text = shown(text)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text}\n{fence}"


def table_text(table: Table) -> str:
    """A table of GitHub's Markdown, its title above."""
    head = _row(table.columns)
    rule = "| " + " | ".join("--:" if name in table.right else ":--" for name in table.columns) + " |"
    lines = [head, rule, *(_row(row) for row in table.rows)]
    return (f"{line(table.title)}:\n\n" if table.title else "") + "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escaped(cell) or " " for cell in cells) + " |"
