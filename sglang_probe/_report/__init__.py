"""Reports of what was measured and of what was routed: terminal, notebook, Markdown, picture, one HTML file that holds all.

The path of one report: result -> sheets.py (verdicts.py, experiments.py, explained.py; paged.py for what is a page) -> Sheet (nouns.py)
-> hypertext.py, bug_report.py, console.py, picture.py (arms.py, bars.py; svg.py for a page) -> file.py. Called by the results' own
methods and by the commands.
Invariant: nothing is decided here, and nothing of a result is dropped from the file's data; only a picture is thinned, and says so.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._show.page import Page
    from .console import Printed

__all__ = [
    "check_name",
    "document",
    "figure",
    "html",
    "markdown",
    "page",
    "read",
    "read_report",
    "terminal",
    "write",
    "write_page",
]


def html(result: Any) -> str:
    """HTML for a notebook, the content of ``_repr_html_``: sentence, reason, what must be known, the picture; the figures on request.

    Reads on light and dark grounds. Without matplotlib it says how to get the picture.
    """
    from .hypertext import fragment
    from .sheets import sheet_of

    return fragment(sheet_of(result))


def page(result: Any, *, command: str = "") -> str:
    """One whole HTML page: everything in it, nothing loaded, no script run. `command`: the line that made the result."""
    from .hypertext import document as whole
    from .sheets import data_of, sheet_of

    sheet = sheet_of(result, command)
    return whole(sheet, data_of(sheet))


def check_name(path: str | os.PathLike[str], field: str = "path") -> None:
    """Refuses, before an experiment is run for it, what `write` would refuse. Raises InputError that names `field`."""
    from . import file

    file.check(os.fspath(path), field)


def write(result: Any, path: str | os.PathLike[str], *, command: str = "") -> str:
    """`page` as a file, whole or not at all; its name comes back. A report of that name is replaced.

    Raises InputError where the name does not end in .html, or is that of something else than a report; ReportError where it cannot be
    written.
    """
    from . import file

    return file.write(page(result, command=command), path)


def write_page(kind: str, page: Page, data: Any, path: str | os.PathLike[str], *, command: str = "", result: Any = None) -> str:
    """`write` of the page that a command prints, which may say more than its result: what was assumed for it."""
    from . import file
    from .hypertext import document as whole
    from .paged import paged_sheet
    from .sheets import data_of, finished

    sheet = finished(paged_sheet(kind, page, data, result), command)
    return file.write(whole(sheet, data_of(sheet)), path)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `write` wrote: ``["result"]`` is the result's ``to_dict()`` with every sample; beside it kind, versions, machine, commands.

    Numbers that JSON does not have stand as "inf", "-inf" and "nan"; what looked like a secret was withheld when it was written,
    and of the files that figures are from the names were kept.
    Raises ReportError with the reason where the file was cut or changed, or is no report; InputError where there is none.
    """
    from .file import read as read_file

    return read_file(path)


def document(result: Any, *, command: str = "") -> dict[str, Any]:
    """What `read` gives back of a report of this result."""
    from .sheets import data_of, sheet_of

    return data_of(sheet_of(result, command))


def markdown(result: Any, *, command: str = "") -> str:
    """For a bug report: sentence, reason, tables, machine, command, versions. No HTML; a label is never markup, mention or link."""
    from .bug_report import text_of
    from .sheets import sheet_of

    return text_of(sheet_of(result, command))


def figure(result: Any, *, dark: bool = False) -> Any:
    """The picture as a matplotlib Figure: samples of both arms and the effect; of an explanation, what was seen beside what it can be.

    Raises ProbeUnavailable without matplotlib, InputError where there is nothing to draw.
    """
    from .picture import figure_of
    from .sheets import sheet_of

    return figure_of(sheet_of(result), dark)


def terminal(result: Any, *, why: bool = False) -> Printed:
    """For ``rich.print``; ``str`` of it is plain text. `why`: with all figures."""
    from .console import Printed
    from .sheets import known

    return Printed(tuple(known(result).page(why)))


read_report = read
"""Its public name, where "read" alone would not say what."""
