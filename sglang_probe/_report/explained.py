"""An Explanation as a Sheet: what was seen beside what a change of path can explain at most, and waiting apart. Called by sheets.py.

Invariant: a bar stands with its origin; what is not measured stands as these words, and a figure of another machine is marked so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._show.page import Table
from .nouns import Bar, Picture, Sheet
from .text import counted, digits

if TYPE_CHECKING:
    from .._explain.types import Bound, Explanation, Range, Seen, Waiting

_CEILINGS = ("ceiling", "captured")
"""Bounds that are the whole of a step's all-reduces, and no difference of two ways."""
_UNIT = "ms a step, after less before"


def explanation_sheet(explanation: Explanation) -> Sheet:
    """What a report says of an explanation."""
    asked = (
        ("asked about", explanation.launch),
        ("SGLang before", explanation.sglang_before),
        ("SGLang after", explanation.sglang_after),
        ("all-reduces a step", f"{explanation.calls:,}"),
    )
    machines = dict.fromkeys(one.machine for one in explanation.bounds if one.machine and not one.illustration)
    missing = (f"missing: {text}" for text in explanation.missing)
    return Sheet(
        kind="explanation",
        word=str(explanation.word),
        sentence=explanation.sentence,
        reason=explanation.reason,
        tables=tuple(block for block in explanation.page() if isinstance(block, Table)),
        findings=(*explanation.warnings, *explanation.findings, *_waited(explanation), *missing),
        machine=(*asked, *(("costs are of", machine) for machine in machines)),
        commands=tuple((f"to find out: {one.why}", one.line) for one in explanation.experiments),
        picture=_picture(explanation),
    )


def _waited(explanation: Explanation) -> tuple[str, ...]:
    """Waiting, apart: what its own page says of it."""
    from .._explain.page import waiting_block

    block = waiting_block(explanation.waiting)
    return tuple(f"{block.title}: {text}" for text in block.items)


def _picture(explanation: Explanation) -> Picture | None:
    """Bars of what has a figure in milliseconds a step; what has none is told."""
    missing = [f"not measured: {one.what}" for one in explanation.bounds if one.ms is None]
    bars = []
    for seen in explanation.seen:
        if seen.per_token:
            change = digits(seen.change_ms.value, "ms a token")
            missing.append(f"{seen.what}: {change}, which is a step's only with the accepted length")
        else:
            bars.append(_seen_bar(seen))
    bars += [_bound_bar(one, one.ms) for one in explanation.bounds if one.ms is not None]
    bars += [_waiting_bar(one, explanation.calls) for one in explanation.waiting]
    if not bars:
        return None
    told = "; ".join(f"{bar.label}: {digits(bar.value, 'ms', 3)} ({bar.origin})" for bar in bars)
    alt = f"What was seen beside what can explain it. Milliseconds a step: {told}."
    return Picture(alt, bars=tuple(bars), unit=_UNIT, missing=tuple(missing))


def _seen_bar(one: Seen) -> Bar:
    text = f"{one.what}: {digits(one.before_ms, count=3)} to {digits(one.after_ms, 'ms', 3)} ({one.verdict.word})"
    files = [arm.origin for arm in (one.before, one.after) if arm.origin != "given"]
    origin = ": ".join(filter(None, ("given", ", ".join(dict.fromkeys(files)))))
    return Bar(text, one.change_ms.value, one.change_ms.low, one.change_ms.high, origin, "seen")


def _bound_bar(one: Bound, ms: Range) -> Bar:
    origin = "; ".join(filter(None, (", ".join(one.origins), one.machine, one.assumed))) or "counted"
    text = f"{one.what}, {counted(one.calls, 'call') if one.calls else 'no call changes'}"
    kind = "elsewhere" if one.illustration else "ceiling" if one.kind in _CEILINGS else "bound"
    return Bar(text, ms.value, ms.low, ms.high, origin, kind)


def _waiting_bar(one: Waiting, calls: int) -> Bar:
    """Of a step, as the bounds are: each call's, so often."""
    wait = one.wait_us
    low, high = (None if end is None else calls * end / 1e3 for end in (wait.low, wait.high))
    return Bar(f"{one.where}: waiting, {counted(calls, 'call')}", calls * wait.value / 1e3, low, high, one.origin, "waiting")
