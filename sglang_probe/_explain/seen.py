"""A difference that was seen: two arms -> whether they can be told apart, and milliseconds a step. Called by explain.py.

tok/s of one stream become the time of a step by tokens a step: 1 in plain decoding, the accepted length in speculative; where that is
missing they are milliseconds a token, of which a step has at least one.
Invariant: a change in milliseconds has the verdict's own interval, turned into time.
"""

from __future__ import annotations

import math
import os
from typing import Any

from .._costs.files import measured_tables
from .._costs.machine import Target, mismatch
from .._measure.measurement import Measurement
from .._show.sizes import human_bytes
from .._types import InputError
from .given import MS, Given, is_measurement, middle_of, same_unit
from .types import Range, Seen, Waiting

VERIFY, DECODE, CALL, SPECULATIVE, PLAIN = ORDER = (
    "verify step", "decode step", "one call", "speculative decoding", "plain decoding",
)  # fmt: skip
"""What can be seen; the answer is about the first that is established."""


def seen_of(
    what: str,
    before: Given,
    after: Given,
    *,
    batch: int = 1,
    tokens: tuple[float | None, float | None] = (1.0, 1.0),
    calls: int = 1,
    margin: float,
    confidence: float,
) -> Seen:
    """``tokens``: what a step gives each request, before and after; None where nobody said. ``calls``: of a step, where one was seen."""
    from .._verdict.verdict import verdict

    before, after = same_unit(before, after)
    better = "higher" if before.kind == "rate" else "lower"
    found = verdict(before.arm, after.arm, better=better, margin=margin, confidence=confidence)
    per_token = before.kind == "rate" and None in tokens
    if before.kind == "rate":
        lengths = (1.0, 1.0) if per_token else (tokens[0] or 1.0, tokens[1] or 1.0)
        was, now = (1e3 * batch * length / one.middle for one, length in zip((before, after), lengths, strict=True))
        ends = (lengths[1] / lengths[0] / (1 + end) if end > -1 else math.inf for end in (found.high, found.low))
        change = _change(was, now, *ends)
    else:
        scale = MS[before.arm.unit] * (calls if before.kind == "call" else 1)
        was, now = before.middle * scale, after.middle * scale
        change = _change(was, now, 1 + found.low, 1 + found.high)
    return Seen(what, before.arm, after.arm, found, was, now, change, per_token, calls if before.kind == "call" else 1)


def _change(was: float, now: float, low: float, high: float) -> Range:
    """From the ratio's interval; an end that so few runs do not give is None."""
    ends = (was * (low - 1) if low > 0 else None, was * (high - 1) if math.isfinite(high) else None)
    value = now - was
    # Medians of the arms, and the verdict's estimate of their ratio, are two estimates: the interval holds both.
    return Range(value, None if ends[0] is None else min(ends[0], value), None if ends[1] is None else max(ends[1], value))


def waiting_of(source: Any, field: str, cell: Any) -> Waiting | None:
    """How long the calls of a Measurement that was given waited for the last rank; None where they were not split."""
    from .._verdict.arm import arm

    found = []
    for column in ("wait_us", "transfer_us"):
        try:
            made = arm(source, label=field, **({} if cell is None else {"cell": cell}), column=column)
        except InputError:
            return None
        values = [middle_of(process) for process in made.processes]
        found.append(Range(middle_of(values), min(values), max(values)))
    return Waiting(f"{field} the change", found[0], found[1], made.origin)


def waits_of_costs(costs: Any, target: Target, ways: set[tuple[str, str]], nbytes: set[int]) -> list[Waiting]:
    """The same of Measurements of this very machine that costs are taken from: calls of these paths and phases, and of these sizes."""
    sources = costs if isinstance(costs, list | tuple) else [costs]
    found = []
    for source in sources:
        if isinstance(source, str | os.PathLike) and is_measurement(source):
            source = Measurement.read(source)
        if not isinstance(source, Measurement) or mismatch(measured_tables(source)[0].machine, target):
            continue
        for one in source.summary():
            if (one.path, one.phase) in ways and one.nbytes in nbytes and len(one.wait_us) and len(one.transfer_us):
                ends = [Range(*one.spread(name)[:3]) for name in ("wait_us", "transfer_us")]
                where = f"{one.path}, {one.phase}, {human_bytes(one.nbytes)}"
                found.append(Waiting(where, ends[0], ends[1], os.fspath(source.path) or "a Measurement in memory"))
    return found
