"""A Verdict as a Sheet. Called by sheets.py; experiments.py builds on it.

Invariant: the figures are the verdict's own, and outliers and modes stand where it found them; nothing is decided here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from .._show.page import Table
from .machine import machine_rows, version_rows
from .nouns import Effect, Mode, Picture, Samples, Sheet
from .text import counted, digits, named, percent

if TYPE_CHECKING:
    from .._measure.measurement import Provenance
    from .._verdict.arm import Arm
    from .._verdict.nouns import Verdict


def verdict_sheet(verdict: Verdict) -> Sheet:
    """What a report says of a verdict."""
    return Sheet(
        kind="verdict",
        word=str(verdict.word),
        sentence=verdict.sentence,
        reason=verdict.reason,
        tables=verdict_tables(verdict),
        findings=tuple(one.line for one in verdict.findings),
        machine=_machines(verdict, machine_rows),
        versions=_machines(verdict, version_rows),
        picture=verdict_picture(verdict),
    )


def _machines(
    verdict: Verdict, rows_of: Callable[[Provenance | None], tuple[tuple[str, str], ...]]
) -> tuple[tuple[str, str], ...]:
    """Of both arms: once, where they are the same; what only one arm has, or has otherwise, with its name."""
    a, b = dict(rows_of(verdict.a.provenance)), dict(rows_of(verdict.b.provenance))
    rows = []
    for what in dict.fromkeys((*a, *b)):
        if a.get(what) == b.get(what):
            rows.append((what, a[what]))
        else:
            named_rows = (("a", verdict.a, a), ("b", verdict.b, b))
            rows += [(f"{what}, {named(key, arm.label)}", told[what]) for key, arm, told in named_rows if what in told]
    return tuple(rows)


# --------------------------------------------------------------------------------------------------------------------------- tables


def verdict_tables(verdict: Verdict) -> tuple[Table, Table]:
    """A row an arm; one row of what b is against a."""
    columns: tuple[str, ...] = ("arm", "processes", "iterations", "median", "least", "most", "origin")
    rows = tuple(_arm_row(key, one) for key, one in (("a", verdict.a), ("b", verdict.b)))
    arms = Table("", columns, rows, frozenset(columns[1:6]), "median")
    columns = ("verdict", "b / a - 1", f"interval ({100 * verdict.level:.4g} %)", "margin", "p", "spread between runs")
    spread = None if verdict.spread is None else math.expm1(verdict.spread)
    effect = (str(verdict.word), percent(verdict.effect), interval_text(verdict), percent(verdict.margin, False))
    return arms, Table(
        "",
        (*columns, "runs an arm to settle it"),
        ((*effect, f"{verdict.p:.3g}", percent(spread, False), _runs_text(verdict)),),
        frozenset(columns[1:]),
        "verdict",
    )


def _runs_text(verdict: Verdict) -> str:
    """``38 in all; 12 if it is as large as it looks``; ``-`` where it is settled, or more runs would not settle it."""
    if verdict.runs_needed is None:
        return "-"
    seen = verdict.runs_as_seen
    as_seen = f"; {seen:,} if it is as large as it looks" if seen is not None and seen < verdict.runs_needed else ""
    return f"{verdict.runs_needed:,} in all{as_seen}"


def _arm_row(key: str, one: Arm) -> tuple[str, ...]:
    told = figures_of(one)
    counts = sorted({len(process) for process in one.processes})
    iterations = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    figures = (digits(value, one.unit) for value in (statistics.median(told), min(told), max(told)))
    return (named(key, one.label), f"{len(told):,}", iterations, *figures, one.origin)


def interval_text(verdict: Verdict) -> str:
    """``-1.2 % to +3.4 %``; an end that so few runs do not give is told so."""
    if verdict.low <= -1 and math.isinf(verdict.high):
        return "none from so few runs"
    low = percent(verdict.low) if verdict.low > -1 else "no lower end"
    high = percent(verdict.high) if math.isfinite(verdict.high) else "no upper end"
    return f"{low} to {high}"


def figures_of(one: Arm) -> list[float]:
    """What each process counts with, as the verdict has it."""
    from .._verdict.figures import values_of

    return values_of(one)


# -------------------------------------------------------------------------------------------------------------------------- picture


def verdict_picture(verdict: Verdict) -> Picture:
    """Both arms and the effect."""
    effect = Effect(
        value=verdict.effect,
        low=verdict.low if verdict.low > -1 else -math.inf,
        high=verdict.high,
        margin=verdict.margin,
        level=verdict.level,
        better=verdict.better,
        word=str(verdict.word),
    )
    arms = tuple(_samples(verdict, one) for one in (verdict.a, verdict.b))
    return Picture(_alt(verdict, arms), arms, effect)


def _samples(verdict: Verdict, one: Arm) -> Samples:
    """The arm; outliers and modes where the verdict tells of some, found as it found them."""
    from .._verdict import shape
    from .._verdict.within import process_of

    figures = figures_of(one)
    logs = np.log(figures)
    kinds = {finding.kind for finding in verdict.findings if finding.arm in (one.label, "")}
    outliers = tuple(map(int, shape.outliers(logs))) if "outlier" in kinds else ()
    found = shape.modes(logs, verdict.margin) if "modes" in kinds else None
    modes = tuple(Mode(math.exp(float(np.median(part))), len(part)) for part in (found.low, found.high)) if found else ()
    warm = tuple(process_of(process).warm for process in one.processes)
    return Samples(
        label=one.label,
        processes=one.processes,
        figures=tuple(figures),
        unit=one.unit,
        origin=one.origin,
        center=statistics.median(figures),
        warm=warm if any(warm) else (),
        modes=modes,
        outliers=outliers,
    )


def _alt(verdict: Verdict, arms: Sequence[Samples]) -> str:
    told = "; ".join(
        f"{named(key, arm.label)}, {counted(len(arm.processes), 'process', 'processes')}, median {digits(arm.center, arm.unit)}"
        for key, arm in zip("ab", arms, strict=True)
    )
    interval = interval_text(verdict)
    ends = f"no interval{interval.removeprefix('none')}" if interval.startswith("none") else f"interval {interval}"
    effect = f"b against a: {percent(verdict.effect)}, {ends}, margin {percent(verdict.margin, False)}"
    return f"Samples of both arms, and the effect. {told}. {effect}."
