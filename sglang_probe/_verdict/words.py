"""What a verdict says: the sentence and the reason. Called by judge.py.

Invariant: the sentence has the word, the effect and its interval, and nothing that the figures do not hold.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .arm import UTC
from .nouns import Word
from .ranks import LEAST
from .runs import MOST

if TYPE_CHECKING:
    from .judge import Evidence, Side
    from .runs import Asked

Floats = NDArray[np.float64]


def percent(value: float, digits: int = 1) -> str:
    """0.11 as ``11.0``, without the sign that follows."""
    return f"{100 * value:,.{digits}f}"


def figure(value: float) -> str:
    """Five digits that count: as it was given, nearly always."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.5g}"


def _digits(e: Evidence) -> int:
    """So many that small ends are no zeros, and the ends of a narrow interval differ."""
    ends = [math.expm1(end) for end in (e.effect, e.low, e.high) if math.isfinite(end)]
    largest = max(map(abs, ends))
    wide = max(ends) - min(ends) or largest
    return 1 if largest >= 0.01 and wide >= 0.001 else 2 if largest >= 0.001 and wide >= 1e-4 else 3


def _by(e: Evidence) -> str:
    """``11.0 % higher than a``."""
    effect = math.expm1(e.effect)
    if e.effect == 0:
        return f"equal to {e.a.arm.label}"
    return f"{percent(abs(effect), _digits(e))} % {'higher' if effect > 0 else 'lower'} than {e.a.arm.label}"


def _level(value: float) -> str:
    short = f"{100 * value:.4g}"
    return f"{100 * value:.10g} %" if short == "100" else f"{short} %"


def _interval(e: Evidence, low: float, high: float, level: float) -> str:
    """``95 % interval 7.9 to 13.8 %``; of what is lower, how much lower."""
    looks = f" over {e.error.looks} looks" if e.error.looks > 1 else ""
    said = f"{_level(level)} interval{looks}"
    if not (math.isfinite(low) and math.isfinite(high)):
        return f"no {said} from so few runs"
    digits = _digits(e)
    ends = (math.expm1(low), math.expm1(high))
    if low > 0 or high < 0:
        smaller, larger = sorted(map(abs, ends))
        return f"{said} {percent(smaller, digits)} to {percent(larger, digits)} %"
    return f"{said} {_signed(ends[0], digits)} to {_signed(ends[1], digits)} %"


def _signed(value: float, digits: int) -> str:
    text = percent(value, digits)
    return f"+{text}" if value > 0 else "0" if value == 0 else text


def _and(e: Evidence, *parts: str) -> str:
    return ", ".join(filter(None, (e.a.arm.unit, *parts)))


def runs(count: int) -> str:
    return f"{count:,} run{'s' * (count != 1)}"


def about(count: int) -> str:
    """Of runs asked for: two digits, rounded up. More are not known of a spread that few runs show."""
    step = 10 ** max(0, len(str(count)) - 2)
    return f"{-(-count // step) * step:,}"


# ------------------------------------------------------------------------------------------------------------------------ the sentence


def sentence(e: Evidence, many: Asked | None) -> str:
    """One line: the word, the effect, its interval."""
    b = e.b.arm.label
    if e.word is Word.SAME:
        told = _interval(e, e.same_low, e.same_high, 2 * e.error.confidence - 1)
        effect = "no difference" if e.effect == 0 else f"{percent(abs(math.expm1(e.effect)), _digits(e))} % {_way(e)}"
        return f"SAME: {b} is within {_level(e.margin)} of {e.a.arm.label} ({_and(e, effect, told)})"
    told = _interval(e, e.low, e.high, e.error.confidence)
    if e.word is not Word.UNDECIDED:
        new = f"{_new(e)}; over all runs " if _new(e) else ""
        return f"{e.word}: {new}{b} is {_by(e)} ({_and(e, told)})"
    if e.why == "one":
        which = "one run an arm" if max(len(e.a.logs), len(e.b.logs)) == 1 else f"one run of {_lone(e)}"
        return f"UNDECIDED: {which} shows nothing ({b} is {_by(e)}{f', {e.a.arm.unit}' * bool(e.a.arm.unit)}); {_more(e, many)}"
    if e.why in ("drift", "moving"):
        return f"UNDECIDED: not settled ({b} is {_by(e)}; {_and(e, told)})"
    if new := _new(e):
        return f"UNDECIDED: {new}; {_more(e, many)}" if many else f"UNDECIDED: {new}"
    return f"UNDECIDED: {b} is {_by(e)} ({_and(e, told)})" + (f"; {_more(e, many)}" if many else "")


def _way(e: Evidence) -> str:
    return "higher" if e.effect > 0 else "lower"


def _lone(e: Evidence) -> str:
    return e.a.arm.label if len(e.a.logs) == 1 else e.b.arm.label


def _more(e: Evidence, many: Asked | None) -> str:
    if many is None:
        return f"run at least {LEAST} fresh processes of each"
    what = "interleaved runs an arm" if e.one_after_other else "runs an arm in all"
    if many.as_seen == many.either_way:
        return f"about {about(many.either_way)} {what} would settle it"
    nothing = f"about {about(many.either_way)}" if many.either_way < MOST else "over a million"
    seen = f"about {about(many.as_seen)} {what} would settle it if the difference is as large as it looks"
    return f"{seen}, {nothing} if there is none"


def _new(e: Evidence) -> str:
    """``b has a new slow mode in 2 of 5 runs (about 15.0 us, 49 % above its other 3)``, or ""."""
    return "; ".join(mode_text(side, e) for side in (e.a, e.b) if side.new)


def mode_text(side: Side, e: Evidence) -> str:
    odd, rest = _odd(side, e.b if side is e.a else e.a)
    above = bool(odd[0] > rest[-1])
    kind = "fast" if above == (e.better == "higher") else "slow"
    unit = f" {side.arm.unit}" if side.arm.unit else ""
    away = percent(abs(math.expm1(float(np.median(odd) - np.median(rest)))))
    where = (
        f"about {figure(math.exp(float(np.median(odd))))}{unit}, {away} % {'above' if above else 'below'} its other {len(rest)}"
    )
    which = f"{'new ' if side.new else ''}{kind} mode in {len(odd)} of {runs(len(odd) + len(rest))}"
    return f"{side.arm.label} has a {which} ({where})"


def _odd(side: Side, other: Side) -> tuple[Floats, Floats]:
    """The mode to talk of, and the other one: that which the other arm does not have, else the smaller."""
    assert side.modes is not None
    low, high = side.modes.low, side.modes.high
    if side.new:
        middle = float(np.median(other.logs))
        near_low = abs(middle - float(np.median(low))) < abs(middle - float(np.median(high)))
        return (high, low) if near_low else (low, high)
    return (high, low) if len(high) <= len(low) else (low, high)


# -------------------------------------------------------------------------------------------------------------------------- the reason


def reason(e: Evidence) -> str:
    """Why this word; of UNDECIDED, what would change it."""
    if e.word is Word.SAME:
        real = f"; there is a difference ({_p(e)}), and it is smaller than what counts" if e.differs else ""
        inside = f"two one-sided tests at {_level(e.error.alpha)} each put it inside {_level(e.margin)} either way"
        return f"{inside}, {_counts(e)}{real}{_order(e)}"
    if e.word is not Word.UNDECIDED:
        new = "what only some runs of one arm do is no single number; " if _new(e) else ""
        return f"{new}{_separation(e)}{_p(e)}, where {_allowed(e)} was allowed; {_counts(e)}{_order(e)}"
    return _undecided(e)


def _order(e: Evidence) -> str:
    """What the word does not know, or has allowed for."""
    if e.one_after_other:
        return f"; {in_turn(e)}, and the interval allows for a drift, not for a jump about then"
    return "" if e.interleaved or e.drift is not None else "; their order in time is not known, and a drift would look the same"


def in_turn(e: Evidence) -> str:
    """``a was measured before b``, or mostly before; where clocks tell, how long before."""
    assert e.drift is not None
    one, other = (e.a.arm, e.b.arm) if e.drift.apart > 0 else (e.b.arm, e.a.arm)
    between = min(other.order) - max(one.order)
    pause = between / 1e6 if one.clock == UTC else 0.0
    long = next((f"{pause / size:,.0f} {name} " for name, size in _PAUSES if pause >= 2 * size), "")
    return f"{one.label} was measured {'mostly ' if between < 0 else long}before {other.label}"


_LEAST_P = 1e-300
"""Below, a float ends."""
_PAUSES = (("days", 86400.0), ("h", 3600.0), ("min", 60.0))


_WHY = {
    "one": "fresh processes of the same code differ, and one run does not show by how much: however many iterations it has, it is one run",
    "alike": "runs resemble the next one, so they are not so many observations: iterations of one process belong into one list; "
    "what drifts must be interleaved",
    "moving": "iterations were still moving when they ended, by more than the arms differ: warm up longer, and measure again",
    "shares": "some runs lie in another mode, and so few do not show that both arms have it as often: the middle of the runs cannot tell",
    "mode": "a mode that only one arm has is a difference, whatever the middle of the runs says",
}


def _undecided(e: Evidence) -> str:
    if e.why == "drift":
        assert e.drift is not None
        order, remedy = (
            (in_turn(e), "interleave them") if e.drift.separate else ("there are no blocks", "interleave them in blocks")
        )
        if e.drift.shows:
            moved = percent(abs(math.expm1(e.drift.whole)))
            drift = f"within the arms figures moved by about {moved} % from first to last (p = {e.drift.p:.2g})"
            return f"{drift}, and {order}: {remedy}"
        return f"{order}, and a drift that is too small to show in such runs could make this difference, or hide one: {remedy}"
    if e.why == "coarse":
        return "the figures are rounded to more than the margin: give more digits"
    if e.why in _WHY:
        return _WHY[e.why]
    if _new(e):
        return (
            f"what only some runs of one arm do is a finding, not a mean: {_p(e)}, where {_allowed(e)} was allowed; {_counts(e)}"
        )
    if not math.isfinite(e.low):
        least = 2 * e.design.tail(0)
        return f"{_counts(e)}: even fully apart they have p = {least:.2g}, and {_allowed(e)} is what counts"
    if e.p <= e.error.alpha:
        return f"{_counts(e)}: fewer than {LEAST} of an arm decide only where they are fully apart, and these are not"
    if -e.limit < e.same_low and e.same_high < e.limit:
        return f"{_counts(e)}: fewer than {LEAST} of an arm never show SAME"
    beyond = f"more than the {_level(e.margin)} that count as the same"
    return f"the interval holds 0, and {beyond}: {_p(e)}, {_counts(e)}"


def _allowed(e: Evidence) -> str:
    return f"{e.error.alpha:.3g}" + (f" in this of {e.error.looks} looks" if e.error.looks > 1 else "")


def _p(e: Evidence) -> str:
    return f"p = {e.p:.2g}" if e.p >= _LEAST_P else f"p < {_LEAST_P:g}"


def _counts(e: Evidence) -> str:
    if e.pairs:
        return f"{e.pairs} interleaved pairs of runs"
    inside = " in blocks" if e.interleaved else ""
    return f"{runs(len(e.b.logs))} of {e.b.arm.label} against {len(e.a.logs):,} of {e.a.arm.label}{inside}"


def _separation(e: Evidence) -> str:
    if not e.separated or (e.interleaved and not e.across):
        return ""
    side = "above" if e.effect > 0 else "below"
    return f"every run of {e.b.arm.label} is {side} every run of {e.a.arm.label}: "


def method(e: Evidence) -> str:
    """What was computed, for who wants to repeat it."""
    how = "exact" if e.design.cumulative is not None else "normal approximation"
    looks = f", {_allowed(e)} spent" if e.error.looks > 1 else ""
    test = f"{e.design.name} test, {how}, on logarithms of one median a process"
    wider = ", widened to where Welch's ends, as the arms may spread unlike" if e.spread.unlike else ""
    wider += ", widened to what a drift and a random walk may have made of it, by the order of the runs" if e.timed else ""
    if e.across:
        test += "; so few pairs decide only where all runs of one arm lie beyond all of the other (Mann-Whitney)"
    return f"{test}; Hodges-Lehmann estimate and the interval of that test{wider}{looks}; SAME by two one-sided tests"
