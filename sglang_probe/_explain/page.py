"""What people see of an Explanation: the answer, the reason, what was seen, what all-reduce can explain at most, the experiment.

Called by types.py and the command. Invariant: a number stands beside its origin; an illustration stands apart, and says so.
"""

from __future__ import annotations

from collections.abc import Iterable

from .._costs.costs import NOT_MEASURED
from .._show.page import Block, Items, Line, Table, items
from .._show.sizes import human_bytes
from .answer import not_told_apart
from .types import Bound, Explanation, Number, Range, Seen, Waiting

_WAITING = "Waiting for the last rank is in none of these figures, and no change of path causes it"
_HOW = "`sglang-probe bench` on that machine measures it; --costs FILE reads what it wrote"
_RIGHT = frozenset({"calls", "ms a step", "bytes", "value"})


def explanation_page(e: Explanation, verbose: bool = False) -> list[Block]:
    """``verbose``: every call, number and assumption."""
    page: list[Block] = [Line(text, "warn") for text in e.warnings]
    page += [Line(e.sentence, "answer"), Line(f"because {e.reason}")]
    page.append(Line(f"SGLang {e.sglang_before} -> {e.sglang_after}; {e.launch}", "dim"))
    page += _seen(e.seen)
    page += _bounds(e)
    page.append(waiting_block(e.waiting))
    page += items("Found besides", e.findings)
    page += _experiments(e)
    page += items("What is missing", [*e.missing, *([_HOW] if any(NOT_MEASURED in text for text in e.missing) else [])], "dim")
    if not verbose:
        return page
    page += _routes(e)
    page += _rules(e)
    page += _numbers(e.numbers)
    page += items("Costs are", e.sources)
    page += items("Notes", [note for note in e.notes if note not in e.warnings])
    page += items("Assumed", e.assumed, "dim")
    return page


# ------------------------------------------------------------------------------------------------------------------------------- seen


def _experiments(e: Explanation) -> list[Block]:
    """Each under what it tells, as a comment of the shell, so that both can be pasted."""
    lines: list[Block] = []
    for one in e.experiments:
        lines += [Line(f"# would tell {one.why}"), Line(one.line, "command")]
    return lines


def _seen(seen: Iterable[Seen]) -> list[Block]:
    rows = tuple((s.what, _arm(s, "before"), _arm(s, "after"), _change(s), str(s.verdict.word)) for s in seen)
    told = [not_told_apart(s) if not s.settled else s.verdict.sentence for s in seen]
    return [
        Table("Seen", ("what", "before", "after", "after less before", "told apart?"), rows, strong="told apart?"),
        *items("", told),
    ]


def _arm(s: Seen, side: str) -> str:
    """``89 tok/s (1 run)``; ``19.2 ms (5 runs, 18.9 to 19.8)``."""
    arm = s.before if side == "before" else s.after
    values = sorted(_middle(process) for process in arm.processes)
    runs = f"{len(arm):,} run{'s' * (len(arm) != 1)}"
    spread = f", {values[0]:.4g} to {values[-1]:.4g}" if len(values) > 1 else ""
    return f"{_middle(values):.4g} {arm.unit} ({runs}{spread})"


def _middle(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def _change(s: Seen) -> str:
    unit = "ms a token" if s.per_token else "ms a step"
    times = f", {s.calls} calls" if s.calls > 1 else ""
    return f"{_range(s.change_ms)} {unit}{times}"


# ----------------------------------------------------------------------------------------------------------------------------- bounds


def _bounds(e: Explanation) -> list[Block]:
    columns = ("what", "calls", "from", "to", "ms a step", "origin")
    own = tuple(_row(bound) for bound in e.bounds if not bound.illustration)
    shown = tuple(_row(bound) for bound in e.bounds if bound.illustration)
    page: list[Block] = [
        Table("What all-reduce can explain at most (ms a step, after less before)", columns, own, _RIGHT, "ms a step")
    ]
    if shown:
        page.append(
            Table("The same on another machine, as an illustration: no part of the answer", columns, shown, _RIGHT, "ms a step")
        )
    return page


def _row(bound: Bound) -> tuple[str, ...]:
    count = str(bound.calls) if bound.calls else "-"
    if bound.ms is None:
        return bound.what, count, bound.before or "-", bound.after or "-", NOT_MEASURED, bound.why.partition(": the nearest")[0]
    if not bound.calls:
        return bound.what, count, "-", "no call changes", "0", "counted"
    total = bound.kind in ("ceiling", "captured")
    text = _range(bound.ms, sign=not total)
    origin = f"{', '.join(bound.origins)}: {bound.machine}" + (f" ({bound.assumed})" if bound.assumed else "")
    return bound.what, count, bound.before or "-", bound.after or "-", text, origin


def _range(ms: Range, sign: bool = True) -> str:
    """``+1.2 (+0.9 to +1.5)``."""
    texts = [_digits(value, sign) for value in (ms.value, ms.low, ms.high) if value is not None]
    return f"{texts[0]} ({texts[1]} to {texts[2]})" if len(texts) == 3 and texts[1] != texts[2] else texts[0]


def _digits(value: float, sign: bool) -> str:
    return f"{value:+.3g}" if sign and value else f"{value:.3g}"


def waiting_block(waiting: Iterable[Waiting]) -> Items:
    """What is known of it, apart from all bounds."""
    told = [
        f"{one.where}: {_range(one.wait_us, False)} us a call waiting, {_range(one.transfer_us, False)} us moving the data ({one.origin})"
        for one in waiting
    ]
    more = [] if told else ["not measured here: `sglang-probe bench --split CALLS` measures it"]
    return Items(_WAITING, (*told, *more), "dim")


# --------------------------------------------------------------------------------------------------------------------------- figures


def _routes(e: Explanation) -> list[Block]:
    columns = ("call site", "group", "calls", "bytes", "before", "after")
    rows = tuple(
        (
            r.site,
            r.group,
            str(r.count),
            human_bytes(r.after_bytes or r.before_bytes),
            r.before,
            r.after if r.changes else "the same",
        )
        for r in e.routes
    )
    return [Table("Routes of this step", columns, rows, _RIGHT)] if rows else []


def _rules(e: Explanation) -> list[Block]:
    from .._show.proof import reach_page

    told = [line.text for rule in e.proof.rules for line in reach_page(rule)[:2] if isinstance(line, Line)]
    return items("Rules that only one of the two has", told)


def _numbers(numbers: Iterable[Number]) -> list[Block]:
    told = []
    for n in numbers:
        if n.range is None:
            told.append(f"{n.what}: {n.note or NOT_MEASURED}")
            continue
        value = " ".join(filter(None, [_number(n.range), n.unit]))
        origin = "; ".join(filter(None, [f"{n.origin}: {n.source}" if n.source else n.origin, n.note]))
        told.append(f"{n.what}: {value} ({origin})")
    return items("Every number, with its origin", told)


def _number(found: Range) -> str:
    if float(found.value).is_integer() and found.low is None:
        return f"{found.value:,.0f}"
    return _range(found, sign=False)
