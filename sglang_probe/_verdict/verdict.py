"""`verdict`: two arms, one word. The public entry; the command line, `ab` and `explain` call it.

Invariant: bad input is named and refused before anything is compared; the same arms always get the same verdict.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from .._types import InputError
from .arm import arm
from .judge import Error, judge
from .measured import findings_of, opened, unlike
from .nouns import Better, Finding, Verdict, Word
from .units import better_of, in_one_unit, known

__all__ = ["Better", "Finding", "Verdict", "Word", "verdict"]


def verdict(
    a: Any,
    b: Any,
    *,
    better: str | None = None,
    margin: float = 0.02,
    confidence: float = 0.95,
    unit: str | None = None,
    cell: Any = None,
    column: str | None = None,
) -> Verdict:
    """Is b faster than a? FASTER, SLOWER, SAME or UNDECIDED, with the effect, its interval and the reason.

    Parameters
    ----------
    a, b
        Figures of one run each: numbers (each is a fresh process), lists of numbers (each list is one process, with its iterations), a
        CSV file, a Measurement or its file, or an `Arm`.
    better
        "higher" or "lower". Units tell it: s, ms, us and ns are better lower, tok/s, req/s, GB/s and other rates higher.
    margin
        What counts as the same: 0.02 is a ratio within 2 % either way.
    confidence
        Of the word and of the interval: 0.95.
    unit
        Of figures that bring none; others are turned into it, where they can be.
    cell
        Of a Measurement, which of what it measured: ``"custom captured 16KiB"``; a pair for two different ones.
    column
        Of a Measurement, which times (``"device_us"``); of a CSV file, the column that holds the figures.

    Notes
    -----
    The process is what is replicated: the median of its iterations is one observation. FASTER and SLOWER come from an exact rank test, SAME
    from two one-sided tests (Schuirmann, A comparison of the two one-sided tests procedure, 1987), and the interval is that of the
    test which gave the word; see ``ranks.py`` for sources. Where the arms spread unlike, it is widened to where Welch's ends
    (``spread.py``). SAME is of the middle of the runs, and, where runs lie in two modes, of how many lie in each. Where both arms were run
    in blocks whose order was drawn at random, they are compared within blocks, so that what drifts cancels out; where it is known when each
    run was made, and there are no blocks, the interval is widened to what a drift or a random walk may have made of it (``walk.py``). A
    verdict that is asked for again after every new run is wrong more often than it says: `ab` accounts for its looks.

    Raises InputError, which names what is wrong, for figures that are not above 0, for units that differ, and where ``better`` must be
    said.
    """
    if unit is not None and not isinstance(unit, str):
        raise InputError("unit", unit, "give a unit, as tok/s, ms or us")
    cell_a, cell_b = cell if isinstance(cell, tuple | list) and len(cell) == 2 else (cell, cell)
    a, b = opened(a, "a"), opened(b, "b")
    one = arm(a, label="a", unit=None, cell=cell_a, column=column)
    other = arm(b, label="b", unit=None, cell=cell_b, column=column)
    if one.label == other.label:
        one, other = replace(one, label=f"{one.label} (a)"), replace(other, label=f"{other.label} (b)")
    one, other, turned = in_one_unit(one, other, unit)
    notes = (*unlike(one, other), *findings_of(a, b), *((Finding("units", "", turned),) if turned else ()))
    alpha = 1 - checked_fraction("confidence", confidence, 0.5)
    limit = checked_fraction("margin", margin, 0.0)
    return judge(one, other, direction(better, one.unit), limit, Error(1 - alpha, alpha), notes)


def checked_fraction(name: str, value: float, least: float) -> float:
    """A fraction above ``least`` and below 1. Raises InputError."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float | np.floating)
        or not math.isfinite(value)
        or not least < value < 1
    ):
        raise InputError(name, value, f"give a fraction above {least:g} and below 1, such as {0.95 if least else 0.02}")
    return float(value)


def direction(better: str | None, unit: str) -> Better:
    """Whether more is better. Raises InputError where nothing tells."""
    if better is None:
        better = better_of(known(unit))
        if not better:
            what = (
                f"nothing tells whether more {unit} is better"
                if unit
                else "figures without a unit do not tell whether more is better"
            )
            raise InputError("better", None, f"{what}: give better='higher' or better='lower', or a unit such as unit='tok/s'")
    if better == "higher":
        return "higher"
    if better == "lower":
        return "lower"
    raise InputError("better", better, "give 'higher' or 'lower'")
