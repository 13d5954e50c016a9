"""Whether tok/s, the time of a verify step and the draft's width can be of one speculative stream. Called by case.py.

One cycle of a stream takes the verify step and the rest (the draft, sampling), and gives the accepted length of tokens, the bonus token
with them, for each request of the batch:

    tok/s = batch x accepted / (step + rest),    1 <= accepted <= width,    rest >= 0

So tok/s x step / batch is the least that the accepted length can have been. Two sides are of one stream when one accepted length and one
rest fit both; where none does, the accepted length moved, or the rest did, and only who measured them can say.
Invariant: nothing is called impossible that a rounding of the figures as given would make possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from .._types import InputError
from .._verdict.words import figure
from .given import MS, Given

_STEPS, _EPSILON = 32, 1e-9
_RULE = "tok/s = accepted length / (verify step + the rest of the cycle)"
_ASK = "SGLang's log has it as `accept len`"


@dataclass(frozen=True)
class Side:
    """One side of one stream, as ends: the least and the most."""

    rate: tuple[float, float]
    """Tokens a millisecond of one request."""
    step: tuple[float, float]
    """Milliseconds."""
    accepted: float | None
    least: float
    """Accepted tokens a step, were there nothing beside the verify step."""
    text: str

    def rest(self, accepted: float) -> tuple[float, float]:
        """Milliseconds of the cycle beside the step."""
        return accepted / self.rate[1] - self.step[1], accepted / self.rate[0] - self.step[0]


@dataclass(frozen=True)
class Stream:
    """What follows for one stream."""

    problem: str = ""
    """What cannot hold; "" where all can."""
    reason: str = ""
    remedy: str = ""
    findings: tuple[str, ...] = ()
    least: tuple[float, ...] = ()
    """Tokens a step that were accepted at least, before and after."""


def read_accepted(accepted: Any, width: int) -> tuple[float | None, float | None]:
    """One accepted length for both sides, or one of each. Raises InputError."""
    if accepted is None:
        return None, None
    both: Sequence[Any] = accepted if isinstance(accepted, list | tuple) else (accepted, accepted)
    if len(both) != 2:
        raise InputError("accepted", accepted, "give one mean accepted length, or two: before and after")
    for one in both:
        if isinstance(one, bool) or not isinstance(one, int | float) or not one >= 1:
            raise InputError(
                "accepted", one, "give the mean accepted length of a verify step, the bonus token with it: 1 or more"
            )
        if one > width == 1:
            raise InputError(
                "accepted", one, "without speculation a step gives one token: leave accepted out, or give the launch that drafts"
            )
        if one > width:
            raise InputError("accepted", one, f"a step of {width} draft tokens accepts at most {width}: see --draft-tokens")
    return float(both[0]), float(both[1])


def check_stream(
    rates: tuple[Given, Given], steps: tuple[Given, Given], width: int, batch: int, accepted: tuple[float | None, float | None]
) -> Stream:
    """Both sides of one stream. ``width``: the most tokens that a step can give a request; 1 without speculation."""
    before, after = (_side(rate, step, batch, length) for rate, step, length in zip(rates, steps, accepted, strict=True))
    found = _alone("before", before, width) or _alone("after", after, width) or _together(before, after, width)
    return replace(found, least=(before.least, after.least))


def _together(before: Side, after: Side, width: int) -> Stream:
    least = f"{before.least:.2f} tokens a step before and {after.least:.2f} after, of {width}, at least"
    if before.accepted is not None and after.accepted is not None:
        return _with_accepted(before, after, before.accepted, after.accepted, width)
    if not _one_fits(before, after, width):
        return _moved(before, after, width, least)
    return Stream(findings=(f"tok/s and the step's time say that {least}, were accepted",) if width > 1 else ())


def _side(rate: Given, step: Given, batch: int, accepted: float | None) -> Side:
    ms = MS[step.arm.unit]
    low, high = _ends(rate, 1e-3 / batch)
    text = f"{figure(rate.middle)} {rate.arm.unit} with a step of {figure(step.middle)} {step.arm.unit}"
    least = rate.middle / 1e3 / batch * step.middle * ms
    return Side((low, high), _ends(step, ms), accepted, least, text)


def _ends(given: Given, factor: float) -> tuple[float, float]:
    """With what arithmetic itself rounds."""
    low, high = given.ends
    return low * factor * (1 - _EPSILON), high * factor * (1 + _EPSILON)


def _alone(name: str, side: Side, width: int) -> Stream | None:
    """What already one side cannot be."""
    if side.rate[0] * side.step[0] > width:
        tokens = f"of {width} draft tokens" if width > 1 else "of one token (no speculation)"
        remedy = "give the width of the step (--draft-tokens), or figures of one stream"
        return Stream(
            f"{side.text} ({name}) cannot be of one stream {tokens}", f"they need {side.least:.2f} tokens a step", remedy
        )
    if side.accepted is not None and side.rest(side.accepted)[1] < 0:
        problem = f"{side.text} ({name}) cannot be of one stream with an accepted length of {side.accepted:g}"
        return Stream(problem, f"they need {side.least:.2f} tokens a step or more", f"give that of the same run: {_ASK}")
    return None


def _gaps(before: Side, after: Side, accepted: float) -> tuple[float, float]:
    """How much longer the rest of the cycle is after than before, in milliseconds: the least and the most. A rest is never negative."""
    was, now = ([max(0.0, end) for end in side.rest(accepted)] for side in (before, after))
    return now[0] - was[1], now[1] - was[0]


def _lengths(before: Side, after: Side, width: int) -> tuple[float, float]:
    """Accepted lengths that both sides allow."""
    low = max(1.0, *(side.rate[0] * side.step[0] for side in (before, after)))
    return min(low, float(width)), float(width)


def _one_fits(before: Side, after: Side, width: int) -> bool:
    """Is there one accepted length, and one rest of the cycle, for both? The gap is continuous in the length: its hull tells."""
    low, high = _lengths(before, after, width)
    ends = [_gaps(before, after, low + (high - low) * i / _STEPS) for i in range(_STEPS + 1)]
    return min(end for end, _ in ends) <= 0 <= max(end for _, end in ends)


def _moved(before: Side, after: Side, width: int, least: str) -> Stream:
    gap = _least_gap(before, after, width)
    length, rest = ("rose", "fell") if gap < 0 else ("fell", "grew")
    beside = f"the rest of the cycle {rest} by {abs(gap):.2g} ms or more"
    tokens = f"{width} draft tokens" if width > 1 else "one token a step"
    unless = f"the accepted length {length}" if width > 1 else beside
    problem = f"{before.text} before, and {after.text} after, cannot be of one stream of {tokens} unless {unless}"
    reason = f"{_RULE}: {least}, follow from them, or {beside}" if width > 1 else f"{_RULE}, and one token is accepted"
    remedy = f"give --accepted BEFORE,AFTER ({_ASK})" if width > 1 else "give figures of one stream, or the step's time alone"
    return Stream(problem, reason, remedy)


def _least_gap(before: Side, after: Side, width: int) -> float:
    """By how much the rest moved at least, were the accepted length the same."""
    return min((sum(_gaps(before, after, length)) / 2 for length in _lengths(before, after, width)), key=abs)


def _with_accepted(before: Side, after: Side, was: float, now: float, width: int) -> Stream:
    rests = [max(0.0, sum(side.rest(length)) / 2) for side, length in ((before, was), (after, now))]
    told = f"beside the verify step a cycle took {rests[0]:.3g} ms before and {rests[1]:.3g} ms after"
    up = _least_gap(before, after, width) < 0
    if _one_fits(before, after, width) or (now > was if up else now < was):
        return Stream(findings=(told,))
    problem = (
        f"{before.text} before, and {after.text} after, cannot be of one stream unless the accepted length "
        f"{'rose' if up else 'fell'}, and {was:g} and {now:g} are given"
    )
    return Stream(problem, f"{_RULE}: {told}", "give figures of one stream, or the step's time alone")
