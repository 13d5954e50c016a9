"""A page: what a result shows, as blocks, apart from how: plain text, a terminal (rich) or HTML. Written by render, printed by the CLI.

Invariant: the three ways show the same words in the same order; a terminal may wrap and dim them, never drop one. What could steer
a terminal (a log's escape sequences) is shown as text.
"""

from __future__ import annotations

import html
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

Tone = Literal["answer", "plain", "dim", "warn", "command"]
"""A command is what a reader pastes: it is never broken over lines by us."""


@dataclass(frozen=True)
class Line:
    """One statement."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True)
class Items:
    """A titled list."""

    title: str
    items: tuple[str, ...]
    tone: Tone = "plain"


@dataclass(frozen=True)
class Table:
    """Rows under headings; ``right`` names the columns that hold numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[str] = field(default_factory=frozenset)
    strong: str = ""
    """The column that holds the answer."""


Block = Line | Items | Table
Page = Sequence[Block]


def items(title: str, texts: Iterable[str], tone: Tone = "plain") -> list[Block]:
    """A list, or nothing where there is nothing to say."""
    found = tuple(texts)
    return [Items(title, found, tone)] if found else []


_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text with every control character (escape sequences, line breaks, changes of direction) spelt out: ``\\x1b[31m``."""
    return _STEERING.sub(lambda found: repr(found[0])[1:-1], text)


def _shown(page: Page) -> list[Block]:
    """The page as it may be printed."""
    blocks: list[Block] = []
    for block in page:
        if isinstance(block, Line):
            blocks.append(replace(block, text=printable(block.text)))
        elif isinstance(block, Items):
            blocks.append(replace(block, title=printable(block.title), items=tuple(map(printable, block.items))))
        else:
            rows = tuple(tuple(map(printable, row)) for row in block.rows)
            blocks.append(replace(block, title=printable(block.title), rows=rows))
    return blocks


# ------------------------------------------------------------------------------------------------------------------- plain text


def to_text(page: Page, width: int | None = None) -> str:
    """Plain text. Without a width nothing is wrapped, so that a pipe's lines are whole."""
    parts: list[str] = []
    page = _shown(page)
    for i, block in enumerate(page):
        if i and not (isinstance(block, Line) and isinstance(page[i - 1], Line)):
            parts.append("")
        parts += _text_lines(block, width)
    return "\n".join(parts)


def _text_lines(block: Block, width: int | None) -> list[str]:
    if isinstance(block, Line):
        mark = "! " if block.tone == "warn" else ""
        if block.tone == "command":
            return [block.text]
        return _wrapped(mark + block.text, width, "  " if mark else "")
    if isinstance(block, Items):
        return ([block.title] if block.title else []) + [
            *(line for item in block.items for line in _wrapped("  - " + item, width, "    "))
        ]
    return ([block.title] if block.title else []) + _text_table(block)


def _wrapped(text: str, width: int | None, indent: str) -> list[str]:
    if width is None:
        return [text]
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False) or [""]


def _text_table(table: Table) -> list[str]:
    widths = [max(len(row[i]) for row in (table.columns, *table.rows)) for i in range(len(table.columns))]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if name in table.right else cell.ljust(width)
            for cell, width, name in zip(row, widths, table.columns, strict=True)
        ]
        return ("  " + "  ".join(cells)).rstrip()

    return [line(table.columns), *(line(row) for row in table.rows)]


# ------------------------------------------------------------------------------------------------------------------------- HTML

_CSS = {"answer": "font-weight:bold;font-size:1.1em", "plain": "", "dim": "opacity:.7", "warn": "font-weight:bold"} | {
    "command": "font-family:monospace;white-space:pre-wrap"
}
# Grey with some transparency shows on a dark and on a light page; text keeps the page's own colour.
_RULE = "border-bottom:1px solid rgba(128,128,128,.45)"
_CELL = "padding:.15em .9em .15em 0;vertical-align:top;background:transparent"


def to_html(page: Page) -> str:
    """HTML for a notebook: no colour of text or page is fixed, so it reads in dark and light themes."""
    return '<div style="line-height:1.45">' + "".join(_html_block(block) for block in _shown(page)) + "</div>"


def _html_block(block: Block) -> str:
    if isinstance(block, Line):
        mark = "&#9888; " if block.tone == "warn" else ""
        return f'<div style="{_CSS[block.tone]}">{mark}{html.escape(block.text)}</div>'
    if isinstance(block, Items):
        body = "".join(f"<li>{html.escape(item)}</li>" for item in block.items)
        title = f'<div style="font-weight:bold;margin-top:.6em">{html.escape(block.title)}</div>'
        return f'<div style="{_CSS["dim"] if block.tone == "dim" else ""}">{title}<ul style="margin:.1em 0 .1em 1.2em">{body}</ul></div>'
    title = f'<div style="font-weight:bold;margin-top:.6em">{html.escape(block.title)}</div>' if block.title else ""
    head = "".join(_html_cell("th", block, name, name) for name in block.columns)
    rows = "".join(
        "<tr>" + "".join(_html_cell("td", block, name, cell) for name, cell in zip(block.columns, row, strict=True)) + "</tr>"
        for row in block.rows
    )
    return f'{title}<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _html_cell(tag: str, table: Table, column: str, text: str) -> str:
    align = "right" if column in table.right else "left"
    weight = ";font-weight:bold" if tag == "td" and column == table.strong else ""
    rule = ";" + _RULE if tag == "th" else ""
    return f'<{tag} style="text-align:{align};{_CELL}{rule}{weight}">{html.escape(text)}</{tag}>'


# --------------------------------------------------------------------------------------------------------------------- terminal

_STYLES = {"answer": "bold", "plain": "", "dim": "dim", "warn": "bold yellow", "command": ""}


def print_page(page: Page, stream: TextIO | None = None) -> None:
    """To a terminal by rich, wrapped to its width; to a pipe or a file as plain text."""
    out = sys.stdout if stream is None else stream
    if not out.isatty() or os.environ.get("TERM") == "dumb":
        out.write(to_text(page) + "\n")
        return
    from rich.console import Console

    print_rich(page, Console(file=out, highlight=False))


def print_rich(page: Page, console: Console) -> None:
    """To a console of rich."""
    page = _shown(page)
    for i, block in enumerate(page):
        if i and not (isinstance(block, Line) and isinstance(page[i - 1], Line)):
            console.print()
        for part in _rich_parts(block, console.width):
            console.print(part, soft_wrap=isinstance(block, Line) and block.tone == "command")


def _rich_parts(block: Block, width: int) -> list[RenderableType]:
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    if isinstance(block, Line):
        return [_alarmed(Text(("! " if block.tone == "warn" else "") + block.text, style=_STYLES[block.tone]))]
    if isinstance(block, Items):
        grid = RichTable.grid(padding=(0, 1, 0, 0))
        style = "dim" if block.tone == "dim" else ""
        for item in block.items:
            grid.add_row(
                Text("  -", style=style), _alarmed(Text(item, style=style, overflow="fold"))
            )  # an address is one long word
        return [*([Text(block.title, style="bold yellow" if block.tone == "warn" else "bold")] if block.title else []), grid]
    table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    widths = _column_widths(block, width - _INDENT - _GAP * (len(block.columns) - 1))
    for name, column in zip(block.columns, widths, strict=True):
        table.add_column(
            Text("\n".join(_folded(name, column))),
            justify="right" if name in block.right else "left",
            style="bold" if name == block.strong else "",
            width=column,
            no_wrap=True,
        )
    for row in block.rows:
        table.add_row(*(_alarmed(Text("\n".join(_folded(cell, column)))) for cell, column in zip(row, widths, strict=True)))
    return [*([Text(block.title, style="bold")] if block.title else []), Padding(table, (0, 0, 0, _INDENT))]


def _alarmed(text: Text) -> Text:
    """In red what nobody may overlook."""
    text.highlight_words(_ALARMS, "bold red")
    return text


_ALARMS = ("WRONG", "SICK")
_INDENT, _GAP = 2, 2
_WORD = re.compile(r"\S+")
_PART = re.compile(r"[^\s_]+_*|_+")
_SOME = re.compile(r"\S{1,4}")
_TWO = re.compile(r"\S{1,2}")
_ANY = re.compile(r"\S")


def _column_widths(table: Table, room: int) -> list[int]:
    """Widths that fit: columns give way down to their longest word (numbers last), then to the
    longest part of a name (``two_shot_``), then headings and words are cut, and a number only where nothing else is left."""
    columns = [[name, *(row[i] for row in table.rows)] for i, name in enumerate(table.columns)]
    widths = [max(1, *(len(cell) for cell in column)) for column in columns]
    for heading, cell, numbers in (
        (_WORD, _WORD, False),
        (_WORD, _WORD, True),
        (_PART, _PART, True),
        (_SOME, _PART, True),
        (_TWO, _PART, True),
        (_SOME, _SOME, False),
        (_ANY, _ANY, True),
    ):
        patterns = (heading, *[cell] * len(table.rows))
        least = [
            max((len(word) for text, pattern in zip(column, patterns, strict=True) for word in pattern.findall(text)), default=1)
            for column in columns
        ]
        loose = [i for i, name in enumerate(table.columns) if numbers or name not in table.right]
        while sum(widths) > room:
            i = max((i for i in loose if widths[i] > least[i]), key=lambda i: widths[i], default=None)
            if i is None:
                break
            widths[i] -= 1
    return widths


def _folded(cell: str, width: int) -> list[str]:
    """A cell in lines of at most so many characters, broken between words, else behind an underscore, else anywhere."""
    if len(cell) <= width:
        return [cell]
    lines = [""]
    for piece in re.findall(r"\s*(?:[^\s_]+_*|_+)", cell):
        part = piece.strip()
        if len(lines[-1]) + len(piece) <= width and lines[-1]:
            lines[-1] += piece
            continue
        pieces = [part[i : i + width] for i in range(0, len(part), width)]
        lines = (lines if lines[-1] else lines[:-1]) + pieces
    return lines
