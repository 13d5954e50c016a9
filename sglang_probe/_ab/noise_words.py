"""What `noise` says: the answer first, how many runs which effect takes. Called by noise.py and page.py.

Invariant: the first words are what can be told here; where nothing can, how many runs would tell what.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from .._verdict.verdict import Word
from .._verdict.words import about

if TYPE_CHECKING:
    from .noise import NoiseResult

_FEW = 10
"""Runs below which their spread says little."""


def told(result: NoiseResult) -> NoiseResult:
    """The answer first."""
    sentence = f"NOISE: {_answer(result)}; fresh processes of this differ by {_percent(result.cv)} (CV)"
    first, *others = (f"{_percent(effect)} {'over a million' if n is None else about(n)}" for effect, n in result.needed.items())
    reason = f"runs of each arm that it takes to tell {', '.join((first, *others))}"
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
    if not result.spread:
        return f"all {result.runs} runs of each arm gave one figure: what differs in its last digit is told from nothing"
    if math.isfinite(result.smallest):
        return f"{result.runs} runs of each arm tell {effect_text(result.smallest)} and more from nothing (4 times in 5)"
    few = f"{result.runs} runs of each arm are too few to tell anything"
    for runs, effect in result.effects.items():
        if runs > result.runs and math.isfinite(effect):
            return f"{few}: {runs} would tell {effect_text(effect)} and more (4 times in 5)"
    return f"{few}, and so are {max(result.effects)}"


def effect_text(effect: float) -> str:
    """``2.4 %``; of what is more than twice as much, ``a factor of 3.5``."""
    return _percent(effect) if effect < 1 else f"a factor of {1 + effect:.2g}"


def _percent(value: float) -> str:
    return f"{100 * value:.2g} %" if value < 0.1 else f"{100 * value:.3g} %"
