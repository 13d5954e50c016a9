"""What is found beside the word, as sentences. Called by judge.py.

Invariant: a finding tells what is there, and what of it the word took into account; it never changes the word.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .drift import as_given, neighbours
from .nouns import Finding
from .ranks import LEAST
from .within import findings_within
from .words import figure, in_turn, mode_text, percent, runs

if TYPE_CHECKING:
    from .judge import Evidence, Side

_SHOWN = 4
"""Outliers that are named one by one."""
_FLAT = 30
"""Plain numbers of an arm from which it is asked whether they are really one process each."""


def findings(e: Evidence) -> list[Finding]:
    """All that must be known with the word, the weightiest first."""
    sides = (e.a, e.b)
    found = [_modes(side, e) for side in sides if side.modes is not None]
    found += _time(e)
    for side in sides:
        if alike := neighbours(side.arm, side.logs):
            text = f"{runs(len(side.logs))} resemble the next one (rank correlation {alike:.2f}): not independent"
            found.append(Finding("autocorrelation", side.arm.label, text))
    for side in sides:
        found += _outliers(side)
        found += findings_within(side.arm, side.processes, e.margin)
    found += _counts(e)
    if step := e.coarse:
        size = percent(step, 2 if step < 0.1 else 0)
        text = f"many figures are equal, and look rounded to {size} % of their size; ties count against a difference"
        found.append(Finding("ties", "", text))
    return found


def _modes(side: Side, e: Evidence) -> Finding:
    other = e.b if side is e.a else e.a
    none = f"; {other.arm.label} has none in {len(other.logs)}" if side.new else ""
    return Finding("modes", side.arm.label, mode_text(side, e) + none)


def _outliers(side: Side) -> list[Finding]:
    if not len(side.out):
        return []
    middle = float(np.median(side.logs))
    unit = f" {side.arm.unit}" if side.arm.unit else ""
    order = side.out[np.argsort(-np.abs(side.logs[side.out] - middle), kind="stable")][:_SHOWN]
    named = [
        f"run {place + 1}: {figure(side.figures[place])}{unit}, "
        f"{percent(abs(math.expm1(side.logs[place] - middle)))} % {'above' if side.logs[place] > middle else 'below'} its median"
        for place in order
    ]
    more = f"; and {len(side.out) - len(named)} more" if len(side.out) > len(named) else ""
    return [Finding("outlier", side.arm.label, f"{'; '.join(named)}{more}. Kept")]


def _time(e: Evidence) -> list[Finding]:
    """Drift, and an order that could not show one."""
    drift = e.drift
    found: list[Finding] = []
    if drift is None:
        given = as_given(e.a.arm, e.b.arm, e.a.logs, e.b.logs)
        if given is not None:
            moved, way = percent(abs(math.expm1(given.whole))), "up" if given.slope > 0 else "down"
            text = f"if the figures are in the order that they were measured in, a first, they went {way} by about {moved} % from first"
            found.append(Finding("drift", "", f"{text} to last within the arms (p = {given.p:.2g}): interleave them"))
        return found
    if drift.shows:
        moved = percent(abs(math.expm1(drift.whole)))
        way = "up" if drift.slope > 0 else "down"
        made = percent(abs(math.expm1(drift.slope * drift.apart)))
        taken = "the blocks take it out" if e.interleaved else f"in this order that makes about {made} % of a difference"
        text = f"figures went {way} by about {moved} % from first to last (p = {drift.p:.2g}); {taken}"
        found.append(Finding("drift", "", text))
    if e.one_after_other:
        text = f"{in_turn(e)}: what happened to the machine in between looks like a difference; interleave them"
        found.append(Finding("drift", "", text))
    return found


def _counts(e: Evidence) -> list[Finding]:
    """What must be known of how many there are."""
    found = []
    if e.least < LEAST:
        counts = f"{len(e.a.logs)} against {len(e.b.logs)}"
        found.append(
            Finding("few_runs", "", f"{counts}: under {LEAST} of an arm decide only where they are fully apart, and never SAME")
        )
    for side in (e.a, e.b):
        flat = all(len(process) == 1 for process in side.arm.processes)
        if flat and len(side.arm) >= _FLAT and side.arm.origin == "given":
            text = f"{len(side.arm):,} numbers were taken for as many fresh processes; iterations of one process belong into one list"
            found.append(Finding("few_runs", side.arm.label, text))
        if len(side.arm) == 1 and len(side.arm.processes[0]) > 1:
            text = f"{len(side.arm.processes[0]):,} iterations of one process are one run"
            found.append(Finding("few_runs", side.arm.label, text))
    if len(set(e.a.arm.processes)) > 1 and e.a.arm.processes == e.b.arm.processes:
        found.append(Finding("twice", "", "both arms hold the very same figures: was one thing given twice?"))
    if e.spread.unlike and (found_unlike := _unlike(e)):
        found.append(found_unlike)
    if e.left_out:
        text = f"{runs(e.left_out)} whose block lacks the other arm are kept and shown, and are not in the test"
        found.append(Finding("blocks", "", text))
    return found


def _unlike(e: Evidence) -> Finding | None:
    """Where one arm's runs spread at least twice as wide as the other's."""
    assert e.spread.unlike is not None
    a, b = e.spread.unlike.a, e.spread.unlike.b
    wide, narrow = (e.a.arm.label, e.b.arm.label) if a > b else (e.b.arm.label, e.a.arm.label)
    if max(a, b) < 2 * min(a, b):
        return None
    times = f"{max(a, b) / min(a, b):.2g} times as wide as" if min(a, b) > 1e-9 else "and not"
    return Finding("spread", wide, f"runs of {wide} spread {times} those of {narrow}: the interval allows for it")
