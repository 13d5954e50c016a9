"""The figures of a verdict as blocks of a page: what --why shows. Called by nouns.py.

Invariant: every process of both arms is counted in a table here, outliers too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .._show.page import Block, Line, Table
from .runs import MOST, needed
from .within import process_of
from .words import figure, percent

if TYPE_CHECKING:
    from .arm import Arm
    from .nouns import Verdict

_DIFFERENCES = (0.01, 0.02, 0.05, 0.10, 0.20)
_NAMED = 40
"""Runs of an arm that are listed."""


def figure_blocks(verdict: Verdict) -> list[Block]:
    """Both arms, each run, what each difference would take, the method."""
    columns = ("arm", "runs", "median", "CV", "least", "most", "iterations", "from")
    rows = tuple(_row(one) for one in (verdict.a, verdict.b))
    unit = f" ({verdict.a.unit})" if verdict.a.unit else ""
    blocks: list[Block] = [Table(f"Both arms{unit}, one median a run", columns, rows, frozenset(columns[1:7]), "median")]
    listed = [one for one in (verdict.a, verdict.b) if len(one) <= _NAMED]
    blocks += [Line(f"{one.label}: {', '.join(figure(value) for value in values_of(one))}", "dim") for one in listed]
    blocks += _power(verdict)
    return [*blocks, Line(f"Method: {verdict.method}. p = {verdict.p:.3g}.", "dim")]


def values_of(arm: Arm) -> list[float]:
    """One figure a process, as the test has it."""
    return [math.exp(process_of(iterations).log) for iterations in arm.processes]


def _row(arm: Arm) -> tuple[str, ...]:
    values = np.array(values_of(arm))
    spread = f"{percent(float(values.std(ddof=1) / values.mean()))} %" if len(values) > 1 else "-"
    counts = sorted({len(process) for process in arm.processes})
    iterations = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    ends = (figure(float(np.median(values))), spread, figure(float(values.min())), figure(float(values.max())))
    return (arm.label, f"{len(values):,}", *ends, iterations, arm.origin)


def _power(verdict: Verdict) -> list[Block]:
    """Runs an arm for differences of stated sizes, at the spread that was seen."""
    spread = verdict.spread
    if not spread:
        return []
    paired = verdict.method.startswith("signed rank")
    alpha = 1 - verdict.confidence
    rows = []
    for effect in (0.0, *_DIFFERENCES):
        count = needed(math.log1p(effect), spread, alpha=alpha, margin=verdict.margin if effect == 0 else None, paired=paired)
        name = f"none, to show SAME within {100 * verdict.margin:.4g} %" if effect == 0 else f"{100 * effect:.4g} %"
        rows.append((name, f"{count:,}" if count < MOST else f"over {MOST:,}"))
    title = f"Runs an arm that decide with a chance of 80 %, at this spread between runs ({percent(math.expm1(spread))} %)"
    return [Table(title, ("difference", "runs"), tuple(rows), frozenset({"runs"}))]
