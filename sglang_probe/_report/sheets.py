"""Which result becomes which Sheet, and what of it a file holds. Called by __init__.py.

Invariant: a result that nobody here knows is refused by name.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from typing import Any, Protocol

from .._show.page import Block, Items, Line
from .._types import InputError
from .nouns import Sheet
from .paged import page_of, paged_sheet
from .text import plain, shown

_COUNTED_WITH = ("numpy", "scipy")


class Result(Protocol):
    """What every result has, and all that is asked of one here beside what its own sheet needs."""

    @property
    def sentence(self) -> str: ...

    @property
    def reason(self) -> str: ...

    def page(self, verbose: bool = False) -> list[Block]: ...

    def to_dict(self) -> dict[str, Any]: ...


def known(result: Any) -> Result:
    """The same, where it is a result that reports are made of. Raises InputError."""
    from .._ab.noise import NoiseResult
    from .._ab.result import AbResult
    from .._explain.types import Explanation
    from .._verdict.nouns import Verdict

    if not isinstance(result, Verdict | AbResult | NoiseResult | Explanation):
        remedy = "give a Verdict, an AbResult, a NoiseResult, an Explanation, a Step, Bands or a History"
        raise InputError("result", type(result).__name__, remedy)
    return result


def sheet_of(result: Any, command: str = "") -> Sheet:
    """The Sheet of any result. `command`: the line that made it."""
    from .._ab.noise import NoiseResult
    from .._ab.result import AbResult
    from .._verdict.nouns import Verdict
    from .experiments import ab_sheet, noise_sheet
    from .explained import explanation_sheet
    from .verdicts import verdict_sheet

    paged = page_of(result)
    if paged is not None:
        return finished(paged_sheet(*paged, result.to_dict(), result), command)
    one = known(result)
    if isinstance(result, Verdict):
        sheet = verdict_sheet(result)
    elif isinstance(result, AbResult):
        sheet = ab_sheet(result)
    elif isinstance(result, NoiseResult):
        sheet = noise_sheet(result)
    else:
        sheet = explanation_sheet(result)
    sheet = replace(sheet, details=tuple(_others(one.page(True), sheet)), data=plain(one.to_dict()))
    return finished(sheet, command)


def finished(sheet: Sheet, command: str) -> Sheet:
    """With the command that made it, and what it was computed with."""
    commands = (("this report", command), *sheet.commands) if command else sheet.commands
    return replace(sheet, commands=commands, versions=(*_versions(), *sheet.versions))


def _others(page: list[Block], sheet: Sheet) -> Iterator[Block]:
    """The blocks of a result's page that do not stand above them already."""
    said = {sheet.sentence, sheet.reason, f"because {sheet.reason}", *sheet.findings}
    for block in page:
        if isinstance(block, Line) and block.text in said:
            continue
        if isinstance(block, Items) and said.issuperset(block.items):
            continue
        if block not in sheet.tables:
            yield block


def _versions() -> tuple[tuple[str, str], ...]:
    """What the figures were computed with."""
    from .. import __version__

    counted = ((name, metadata.version(name)) for name in _COUNTED_WITH)
    return (("sglang_probe", __version__), ("Python", platform.python_version()), *counted)


def data_of(sheet: Sheet) -> dict[str, Any]:
    """All that a file holds, as JSON has it."""
    from .. import __version__
    from .file import FORMAT, VERSION

    return {
        "format": FORMAT,
        "version": VERSION,
        "sglang_probe": __version__,
        "kind": sheet.kind,
        "versions": plain(dict(sheet.versions)),
        "machine": [[shown(what), shown(which)] for what, which in sheet.machine],
        "unknown": [[shown(what), shown(why)] for what, why in sheet.unknown],
        "commands": [[shown(what), shown(text)] for what, text in sheet.commands],
        "result": dict(sheet.data),
    }
