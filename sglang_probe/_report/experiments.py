"""An AbResult or a NoiseResult as a Sheet: its verdict's, with what was run and on what. Called by sheets.py.

Invariant: what differed between the arms, and what failed, stands above the figures.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .._show.page import Table
from .machine import machine_rows, version_rows
from .nouns import Sheet
from .text import named
from .verdicts import verdict_picture, verdict_tables

if TYPE_CHECKING:
    from .._ab.noise import NoiseResult
    from .._ab.result import AbResult


def ab_sheet(result: AbResult) -> Sheet:
    """What a report says of an experiment."""
    verdict = result.verdict
    told = [f"{one.text}{f': {one.remedy}' if one.remedy else ''}" for one in result.differences]
    told += [one.line for one in (verdict.findings if verdict else ()) if one.line not in told]
    told += [f"run {run.number + 1} ({run.arm}) failed: {run.failed}" for run in result.failed]
    return Sheet(
        kind="ab",
        word=str(result.word),
        sentence=result.sentence,
        reason=result.reason,
        tables=verdict_tables(verdict) if verdict else (),
        findings=tuple(told),
        machine=machine_rows(result.provenance),
        unknown=tuple(result.provenance.missing.items()) if result.provenance else (),
        commands=_commands(result),
        versions=version_rows(result.provenance),
        picture=verdict_picture(verdict) if verdict else None,
    )


def _commands(result: AbResult) -> tuple[tuple[str, str], ...]:
    """What each arm ran."""
    if result.texts[0] == result.texts[1]:
        return (("both arms", result.texts[0]),)
    return tuple((named(key, label), text) for key, label, text in zip("ab", result.labels, result.texts, strict=True))


def noise_sheet(result: NoiseResult) -> Sheet:
    """What a report says of what a machine can resolve; its picture is that of the two equal arms."""
    sheet = ab_sheet(result.experiment)
    own = tuple(block for block in result.page() if isinstance(block, Table))
    return replace(
        sheet, kind="noise", word="NOISE", sentence=result.sentence, reason=result.reason, tables=(*own, *sheet.tables[:1])
    )
