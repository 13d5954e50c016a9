"""An answer that is a page (a step, bands, a history, a proof, ...) as a Sheet: its blocks in their own order, and its picture.

Called by sheets.py for results, and by the command line with the page that it prints.
Invariant: every block of the page stands in the report, in the page's order; nothing is worded anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .._show.page import Block, Line, Page, Table
from .._types import InputError
from .nouns import Picture, Sheet
from .text import plain

KINDS = {
    "step": "Every all-reduce of one step",
    "route": "Where one all-reduce goes",
    "bands": "Where an all-reduce of each size goes",
    "dispatch": "What the rules say",
    "reach": "Can it be reached?",
    "diff": "What changes between two revisions",
    "history": "One launch over releases",
    "bisect": "Which commits change a route",
    "conform": "The tables against SGLang's own code",
    "check": "What a profiler trace shows",
}
"""Commands whose answer is a page, and what their report is called."""


def paged_sheet(kind: str, page: Page, data: Any, result: Any = None) -> Sheet:
    """The Sheet of a page, which begins with a Line.

    `data`: the answer as JSON has it; `result`: what a picture is drawn of, where there is one of such a result.
    """
    head = next((i for i, block in enumerate(page) if not isinstance(block, Line)), len(page))
    lines = [block for block in page[:head] if isinstance(block, Line)]
    told = next((line for line in lines if line.tone == "answer"), lines[0])
    rest = tuple(line for line in lines if line is not told)
    return Sheet(
        kind=kind,
        word="",
        sentence=told.text,
        reason="",
        tables=tuple(block for block in page if isinstance(block, Table)),
        findings=tuple(line.text for line in rest if line.tone == "warn"),
        lead=tuple(line for line in rest if line.tone != "warn"),
        body=tuple(page[head:]),
        picture=picture_of(result),
        data=plain(data),
    )


def page_of(result: Any) -> tuple[str, Sequence[Block]] | None:
    """Kind and page of a result that is one of these; None of any other."""
    from .._bands import Bands
    from .._proof.history import History
    from .._show.bands import bands_page
    from .._show.history import history_page
    from .._show.step import step_page
    from .._step.step import Step

    pages: tuple[tuple[type, str, Callable[[Any], Page]], ...] = (
        (Step, "step", step_page),
        (Bands, "bands", bands_page),
        (History, "history", history_page),
    )
    return next(((kind, page(result)) for one, kind, page in pages if isinstance(result, one)), None)


def picture_of(result: Any) -> Picture | None:
    """What can be drawn of it."""
    from .._bands import Bands
    from .._proof.history import History
    from .._show import strips
    from .._show.figures import history_drawn
    from .._step.step import Step

    if isinstance(result, History):
        return Picture(
            f"{result.subject}. The path of every size, from release to release.", draw=partial(history_drawn, result, None)
        )
    if not isinstance(result, Step | Bands):
        return None
    try:
        title, found = strips.strips_of(result)
    except InputError:  # nothing to draw, or a checkout that is not there any more
        return None
    return Picture(strips.alt_of(title, found), draw=partial(strips.strips_figure, title, found))
