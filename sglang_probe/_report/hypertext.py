"""A Sheet as HTML: a fragment for a notebook, and one whole page that holds everything. Called by __init__.py.

The page is one file: picture, data and style are in it, nothing is loaded, and no script runs; its policy says so to the browser too.
Invariant: markup is made by elements.py alone, so that every word of a result is text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from .._show.page import Block, Items, Line, Table
from .._types import ProbeUnavailable
from .elements import Element, add, data_block, el, markup, style_sheet
from .nouns import Sheet
from .paged import KINDS
from .picture import svg_of
from .style import CSS

DATA = "sglang-probe-data"
"""The identity of the element that holds the data."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_TITLE = {
    "verdict": "A verdict on two arms",
    "ab": "An experiment of two arms",
    "noise": "What this machine can resolve",
    "explanation": "Whether a change explains a difference",
}
_TITLE |= KINDS
_ON = {"explanation": "What was asked about"}
_NOT_TOLD = "Not known: these figures were given without the machine that they were measured on."
_CAPTION = 100
"""Characters of a table's title that stand in one line, however narrow the table is."""
_TITLED = "text-align:left;font-weight:bold;padding:.6em 0 .2em"
_NUMBER = ";white-space:nowrap"
_CELL = "padding:.15em .9em .15em 0;vertical-align:top;background:transparent"
# Grey with some transparency shows on a dark and on a light page; text keeps the page's own colour.
_HEAD = _CELL + ";border-bottom:1px solid rgba(128,128,128,.45)"


def fragment(sheet: Sheet) -> str:
    """What a notebook shows of a result: the sentence, the reason, what must be known, the picture; the figures on request."""
    box = el(
        "div",
        el("div", sheet.sentence, style="font-weight:bold;font-size:1.1em"),
        el("div", sheet.reason) if sheet.reason else None,
        _list(sheet.findings),
        _picture(sheet),
        _details(sheet, "figures", *map(table_element, sheet.tables), *(_machine(sheet) if sheet.machine else [])),
        style="line-height:1.45",
    )
    return markup(box)


def document(sheet: Sheet, data: Mapping[str, Any]) -> str:
    """A whole page, and `data` in it as JSON."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        Element("meta", {"http-equiv": "Content-Security-Policy", "content": POLICY}),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="referrer", content="no-referrer"),
        el("meta", name="generator", content=f"sglang_probe {data['sglang_probe']}"),
        el("title", f"{sheet.word or sheet.sentence}: {_TITLE[sheet.kind]}"),
        style_sheet(CSS),
    )
    word, rest = _headline(sheet)
    main = el(
        "main",
        el("h1", el("span", word, class_="word"), " ", rest) if sheet.word else el("h1", sheet.sentence),
        el("p", sheet.reason) if sheet.reason else None,
        *(_lead(line) for line in sheet.lead),
        *_section("What must be known with it", _list(sheet.findings)),
        el("figure", _picture(sheet), _caption(sheet)) if sheet.picture else None,
        *(_sections(sheet.body) or _section("Figures", *map(_scrolled, sheet.tables), _details(sheet, "all figures"))),
        *_section("Commands", *(_command(name, text) for name, text in sheet.commands)),
        *(_section(_ON.get(sheet.kind, "Machine"), *_machine(sheet)) if sheet.kind not in KINDS else []),
        *_section("Computed with", _facts("", sheet.versions)),
    )
    said = f"{'The answer' if sheet.kind in KINDS else 'Every sample'} is in this file, as JSON, in the element with the id "
    footer = el("footer", el("p", said, el("code", DATA), ". Nothing was loaded from anywhere to show it, and no script runs."))
    body = el("body", main, footer, data_block(DATA, data))
    return "<!DOCTYPE html>\n" + markup(el("html", head, body, lang="en")) + "\n"


def _headline(sheet: Sheet) -> tuple[str, str]:
    """The word, as the sentence has it (``CANNOT (the other way)``), and the rest of the sentence."""
    head, _, rest = sheet.sentence.partition(": ")
    if rest and re.sub(r"\W+", "_", head).upper().startswith(sheet.word.partition("_")[0]):
        return head, rest
    return sheet.word.replace("_", " "), sheet.sentence


def _section(title: str, *children: Element | None) -> list[Element]:
    """A heading and what stands under it, or nothing."""
    found = [child for child in children if child is not None]
    return [el("section", el("h2", title), *found)] if found else []


def _caption(sheet: Sheet) -> Element | None:
    """The picture in words; on request where the page says the same in tables."""
    if sheet.picture is None:
        return None
    told = el("details", el("summary", "the picture in words"), sheet.picture.alt) if sheet.kind in KINDS else sheet.picture.alt
    return el("figcaption", told)


def _lead(line: Line) -> Element:
    """What stands above the picture."""
    return el("p", line.text, class_={"answer": "strong", "dim": "small"}.get(line.tone))


def _sections(body: Sequence[Block]) -> list[Element]:
    """The blocks of a page: what has a title begins a section, lines belong to what is above them."""
    sections: list[Element] = []
    for block in body:
        title = "" if isinstance(block, Line) else block.title
        if title or not sections:
            sections.append(el("section", el("h2", title) if title else None))
        if isinstance(block, Items):
            add(sections[-1], el("div", _list(block.items), class_="small" if block.tone == "dim" else None))
        elif isinstance(block, Table):
            add(sections[-1], _scrolled(replace(block, title="")))
        else:
            add(sections[-1], el("pre", block.text) if block.tone == "command" else _lead(block))
    return sections


def _list(texts: Sequence[str]) -> Element | None:
    return el("ul", *(el("li", text) for text in texts), style="margin:.3em 0 .3em 1.2em;padding:0") if texts else None


def _machine(sheet: Sheet) -> list[Element]:
    """What it was measured on, and what is not known of that."""
    if not sheet.machine:
        return [el("p", _NOT_TOLD)]
    unknown = [_facts("Not known of it", sheet.unknown)] if sheet.unknown else []
    return [_facts("", sheet.machine), *unknown]


def _command(name: str, text: str) -> Element:
    return el("div", el("div", name, class_="small") if name else None, el("pre", el("code", text)))


def _details(sheet: Sheet, summary: str, *above: Element) -> Element | None:
    """What is long, on request."""
    found = [*above, *map(_block, sheet.details)]
    return el("details", el("summary", summary, style="cursor:pointer"), *found) if found else None


def _block(block: Block) -> Element:
    """A part of the result's own page."""
    if isinstance(block, Line):
        return el("p", block.text, style="margin:.4em 0")
    if isinstance(block, Items):
        return el(
            "div", el("div", block.title, style="font-weight:bold;margin-top:.6em") if block.title else None, _list(block.items)
        )
    return _scrolled(block)


def _scrolled(table: Table) -> Element:
    return el("div", table_element(table), style="overflow-x:auto")


def table_element(table: Table) -> Element:
    """A table with a caption, headings of columns, and the first column as headings of rows."""
    sides = ["right" if name in table.right else "left" for name in table.columns]
    head = el(
        "tr",
        *(el("th", name, scope="col", style=f"text-align:{s};{_HEAD}") for name, s in zip(table.columns, sides, strict=True)),
    )
    rows = []
    for row in table.rows:
        cells = []
        for i, (text, side) in enumerate(zip(row, sides, strict=True)):
            weight = "bold" if table.columns[i] == table.strong else "normal"
            style = f"text-align:{side};font-weight:{weight};{_CELL}{_NUMBER if side == 'right' else ''}"
            cells.append(el("td", text, style=style) if i else el("th", text, scope="row", style=style))
        rows.append(el("tr", *cells))
    whole = ";white-space:nowrap" if len(table.title) < _CAPTION else ""
    caption = el("caption", table.title, style=f"{_TITLED}{whole}") if table.title else None
    return el("table", caption, el("thead", head), el("tbody", *rows), style="border-collapse:collapse")


def _facts(title: str, rows: Sequence[tuple[str, str]]) -> Element:
    return table_element(Table(title, ("what", "which"), tuple(rows)))


def _picture(sheet: Sheet) -> Element | None:
    """The picture, or how to get one."""
    if sheet.picture is None:
        return None
    identity = "sp" + hashlib.sha256(json.dumps(sheet.data, default=str, sort_keys=True).encode()).hexdigest()[:8]
    try:
        return svg_of(sheet.picture, identity)
    except ProbeUnavailable as error:
        return el("p", f"The picture is not here: {error}", style="opacity:.8")
