"""What people see of costs: a step's sums in one line, beside its calls, and what they rest on; the ends of a band.

Called by the pages of steps and bands.

Invariant: a number stands beside its origin word and its interval, or the words that there is none; what has no number is named.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .._costs.costs import NOT_MEASURED
from .._costs.estimate import Estimate
from .._costs.table import ORIGINS, Figure
from .._step.costs import StepCosts, Total
from .._step.types import Step, StepCall
from .page import Block, Line, Table, items
from .sizes import human_bytes

_HOW = "`sglang-probe bench` on that machine measures it; --costs FILE reads what it wrote"


def us_text(estimate: Estimate) -> str:
    """``6.53 (6.40 to 6.66)``."""
    if estimate.low_us is None or estimate.high_us is None:
        return _digits(estimate.us)
    return f"{_digits(estimate.us)} ({_digits(estimate.low_us)} to {_digits(estimate.high_us)})"


def _digits(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def total_text(total: Total) -> str:
    """``0.802 ms (0.790 to 0.815; shipped)``; ``at least 0.4 ms (no interval; published; 61 of 123 calls not measured)``."""
    if not total.calls:
        return NOT_MEASURED
    unit, scale = ("us", 1) if total.us < 100 else ("ms", 1000)
    interval = "no interval"
    if total.low_us is not None and total.high_us is not None:
        interval = f"{_digits(total.low_us / scale)} to {_digits(total.high_us / scale)}"
    missing = [f"{total.missing} of {total.of} calls {NOT_MEASURED}"] if total.missing else []
    told = f"{_digits(total.us / scale)} {unit} ({'; '.join([interval, *total.origins, *missing])})"
    return f"at least {told}" if missing else told


def cost_line(step: Step) -> list[Block]:
    """The sums in one line."""
    costs = step.costs
    if costs is None or not costs.device.of:
        return []
    if not any(total.calls for total in costs.totals.values()):
        return [Line(f"cost {NOT_MEASURED}: {_HOW}", "answer")]
    launching = "launching the graph " if costs.host.calls and _is_captured(step) else ""
    told = [f"device {total_text(costs.device)}", f"host {launching}{total_text(costs.host)}"]
    if costs.elapsed.calls and not (costs.device.calls and costs.host.calls):
        told.append(f"from the first call to the end {total_text(costs.elapsed)}")
    if step.not_modelled:
        told.append(f"about {step.not_modelled} calls that are not modelled are in none of these")
    return [Line(f"cost of these {costs.device.of} calls: {'; '.join(told)}", "answer"), *_warnings([step])]


def _warnings(steps: Sequence[Step]) -> list[Block]:
    """Right below the numbers that they are about."""
    texts = _unique(text for step in steps if step.costs for text in step.costs.warnings)
    return [Line(f"OTHER ENVIRONMENT: {text}", "warn") for text in texts]


def _is_captured(step: Step) -> bool:
    return any(figure.series.phase == "captured" for item in step.calls if item.cost and (figure := item.cost.host))


def compared_costs(steps: Sequence[Step]) -> list[Block]:
    """The sums of several steps; those that are the same in one context are one row."""
    costed = [step for step in steps if step.costs is not None and step.costs.device.of]
    rows: dict[tuple[str, ...], list[Step]] = {}
    all_costs = [step.costs or StepCosts() for step in costed]
    alone = any(costs.elapsed.calls and not (costs.device.calls and costs.host.calls) for costs in all_costs)
    for step, costs in zip(costed, all_costs, strict=True):
        totals = (costs.device, costs.host, *((costs.elapsed,) * alone))
        rows.setdefault((step.context, ", ".join(step.paths), *map(total_text, totals)), []).append(step)
    told = tuple((_where(context, held, costed), *rest) for (context, *rest), held in rows.items())
    columns = ("where", "path", "device", "host", *(("first call to end",) * alone))
    return [Table("Cost of these calls", columns, told), *_warnings(costed)] if told else []


def _where(context: str, held: Sequence[Step], steps: Sequence[Step]) -> str:
    whole = len(held) == sum(step.context == context for step in steps)
    return context if whole else f"{context}, {', '.join(step.sglang for step in held)}"


def call_cells(item: StepCall) -> tuple[str, str]:
    """Microseconds a call: device and host."""
    cost = item.cost
    device, host = (cost.device, cost.host) if cost else (None, None)
    return (us_text(device.estimate) if device else "-"), (us_text(host.estimate) if host else "-")


def instead_table(step: Step) -> list[Block]:
    """The same calls by other paths, beside the ones that are taken."""
    costs = step.costs
    if costs is None or not costs.instead:
        return []
    own = " + ".join(step.paths)
    rows = [(f"{own} (taken)", costs.totals), *costs.instead.items()]
    cells = tuple(
        (name, *(total_text(totals[quantity]) for quantity in ("device_us", "host_us", "elapsed_us"))) for name, totals in rows
    )
    return [Table("The same calls by another path", ("path", "device", "host", "first call to end"), cells, strong="path")]


def cost_basis(steps: Sequence[Step], verbose: bool = False) -> list[Block]:
    """What the costs rest on, and why others are not there."""
    known = [step.costs for step in steps if step.costs is not None and step.costs.device.of]
    sources = _unique(text for costs in known for text in costs.sources)
    notes = _unique(text for costs in known for text in costs.notes)
    missing = _unique(text for costs in known for text in costs.not_measured)
    fused = " The fused calls are in none of them." if any(step.fused for step in steps) else ""
    words = _unique(text.partition(":")[0] for text in sources)
    page = items("Costs are", [*sources, *(f"{word} means: {ORIGINS[word]}" for word in words if verbose and word in ORIGINS)])
    page += items("Costs rest on", [*notes, *([fused.strip()] if fused and sources else [])], "dim")
    page += items("No cost", [*missing, *([_HOW] if missing else [])], "dim")
    return page


def end_text(end: tuple[int, Figure] | None) -> str:
    """``128 KiB: 6.53 (6.40 to 6.66)``."""
    return "-" if end is None else f"{human_bytes(end[0])}: {us_text(end[1].estimate)}"


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
