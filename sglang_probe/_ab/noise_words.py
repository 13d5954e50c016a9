"""What `noise` says: the answer first, how many runs which effect takes. Called by noise.py and page.py.

Invariant: the first words are what can be told here; where nothing can, how many runs would tell what.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from .._verdict.ranks import all_apart
from .._verdict.verdict import Word
from .._verdict.words import about

if TYPE_CHECKING:
    from .noise import NoiseResult

_FEW = 10
"""Runs below which their spread says little."""
_NOTHING = 1e-9
"""A CV below this is rounding."""


def told(result: NoiseResult) -> NoiseResult:
    """The answer first."""
    sentence = f"NOISE: {_answer(result)}; fresh processes of this differ by {_percent(result.cv)} (CV)"
    wanted = ", ".join(
        f"{_percent(effect)}: {'over a million' if n is None else about(n)}" for effect, n in result.needed.items()
    )
    reason = f"runs of each arm that it takes to tell {wanted}"
    if result.runs < _FEW:
        reason = f"{result.runs} runs of each arm hardly show the spread itself: all of this is a rough guess; {reason}"
    word = result.experiment.word
    if word in (Word.FASTER, Word.SLOWER):
        reason = f"these equal arms came out {word}, which {result.told_apart_most:.0%} of equal arms do by chance; {reason}"
    if result.experiment.refused:
        reason = f"{result.experiment.sentence}; {reason}"
    return replace(result, sentence=sentence, reason=reason)


def _answer(result: NoiseResult) -> str:
    """What so many runs tell; where they tell nothing, how many would tell what."""
    runs, nothing = f"{result.runs} runs of each arm", np.zeros(result.runs)
    apart = all_apart(nothing, nothing, (1 - result.confidence) / 2) is not None
    tells = math.isfinite(result.smallest)
    few = f"{runs} tell only arms that lie fully apart" if apart else f"{runs} are too few to tell anything"
    if not result.spread:
        one = result.cv < _NOTHING
        gave = f"all {runs} gave one figure" if one else f"of {runs} those of a block gave one figure"
        return f"{gave}: what differs in its last digit is told from nothing" if tells or (apart and one) else f"{gave}; {few}"
    if tells:
        return f"{runs} tell {effect_text(result.smallest)} and more from nothing (4 times in 5)"
    for more, effect in result.effects.items():
        if more > result.runs and math.isfinite(effect):
            return f"{few}: {more} would tell {effect_text(effect)} and more (4 times in 5)"
    return f"{few}, and not even {max(result.effects)} tell a factor of 11"


def effect_text(effect: float) -> str:
    """``2.4 %``; of what is more than twice as much, ``a factor of 3.5``."""
    return _percent(effect) if effect < 1 else f"a factor of {1 + effect:.2g}"


def _percent(value: float) -> str:
    return f"{100 * value:.2g} %" if value < 0.1 else f"{100 * value:.3g} %"
