"""What people see of a Decision and of a conform Report: the answer first, the reason second, evidence on request.

Called by the results themselves (``str``, ``_repr_html_``) and by the command line. Bands and steps are in
_render_*.py; how a page becomes
text, HTML or a terminal's is _page.py's.

Invariant: every word on a page comes from the result or from the core's lists; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from .. import _core
from .._decision import Blocked, Decision
from .._facts import TEXTS
from .._report.text import counted
from .._route import RULE_TEXTS
from .._step.changes import Change, earlier_by_one_change
from .._types import Call, Group
from .page import Block, Line, Page, Table, items, to_html, to_text
from .sizes import both_bytes, human_bytes

if TYPE_CHECKING:
    from .._bands import Bands
    from .._conform.conform import Report
    from .._step.step import Step

PATH_TEXTS = dict(_core.PATHS)
_CONDITION_TEXTS = {name: (communicator, text) for name, communicator, text in _core.CONDITIONS}
_ERROR_TEXTS = dict(_core.EXCEPTIONS)
_ADJECTIVES = {"absent", "disabled", "enabled", "not known"}
_ELSEWHERE = {"device", "release"}
"""Stops that no flag of this server lifts: told in one line, not one each."""
NOT_CONFORMED_TITLE = "Not conformed (compared with no code of SGLang's)"
CHANGES_TITLE = "One change away from an earlier path (routed again; no claim about speed)"


# --------------------------------------------------------------------------------------------------------------------- a Decision


def answer(decision: Decision) -> str:
    """The path in words: ``torch_distributed: torch.distributed.all_reduce, in place``."""
    if decision.error:
        return f"raises {decision.error}: {_ERROR_TEXTS.get(decision.error, '')}"
    detail = [PATH_TEXTS[decision.path]]
    if decision.backend and decision.backend not in (decision.path, "torch", "nccl"):
        detail.append(f"backend {decision.backend}")
    if decision.kernel:
        detail.append(f"kernel {decision.kernel}")
    return f"{decision.path}: {', '.join(detail)}"


def consequences(decision: Decision) -> list[Block]:
    """What the caller's tensor becomes, loudly where the sum is lost."""
    lines: list[Block] = []
    if not decision.reduces and not decision.error and decision.path != "none":
        dry = decision.kernel == "dry"
        text = (
            "no reduction happens here: graph warm-up only pretends"
            if dry
            else "SGLang loses the result here: nothing is reduced"
        )
        lines.append(Line(text, "warn"))
    if decision.error:
        lines.append(Line("the server fails where this call is made", "warn"))
    return lines


def why(decision: Decision) -> str:
    """The rule in one line."""
    result = {"input": "; returns the input", "new": "; returns a new tensor", None: ""}[decision.returns]
    clone = ", after the input is cloned" if decision.cloned else ""
    rule = (
        f"rule {decision.rule}: {RULE_TEXTS[decision.rule]}"
        if decision.rule
        else "no rule of its own: SGLang fails while choosing"
    )
    return f"{rule}{result}{clone}"


def decision_page(
    decision: Decision,
    call: Call | None = None,
    group: Group | None = None,
    context: str | Iterable[str] | None = None,
    verbose: bool = False,
) -> Page:
    """The answer, why, what stops each rule that SGLang asks earlier, and what one change would bring."""
    page: list[Block] = [Line(answer(decision), "answer")]
    page += consequences(decision)
    page.append(Line(f"because of {why(decision)}"))
    page.append(Line(_subject(decision, call, group, context), "dim"))
    page += blockers([("", decision)], verbose)
    if call is not None and group is not None and context is not None:
        page += items(CHANGES_TITLE, map(str, changes(decision, call, group, context)))
    page += evidence(decision, verbose)
    return page


def _subject(decision: Decision, call: Call | None, group: Group | None, context: str | Iterable[str] | None) -> str:
    parts = []
    if call is not None:
        shape = f"[{call.tokens}, {call.hidden}] " if call.tokens and call.hidden else ""
        parts.append(f"{shape}{call.dtype}, {both_bytes(call.nbytes)}")
    if context is not None:
        parts.append(context if isinstance(context, str) else "+".join(context))
    if group is not None:
        parts.append(f"{counted(group.world_size, 'rank')} on {counted(group.value('nodes'), 'node')}")
    return ", ".join([*parts, f"SGLang {decision.sglang} ({decision.ruleset})"])


def changes(decision: Decision, call: Call, group: Group, context: str | Iterable[str]) -> Sequence[Change]:
    """Single changes that bring an earlier path; none for a revision whose table was derived from its code."""
    from .._releases import RELEASES

    if decision.sglang not in RELEASES:
        return ()
    return earlier_by_one_change(decision, call, group, context=context, sglang=decision.sglang)


Labels = Sequence[str]
Where = Callable[[Labels], str]


def blockers(cases: Sequence[tuple[str, Decision]], verbose: bool = False, where: Where = lambda _labels: "") -> list[Block]:
    """All that stops each better rule; what was fixed when the server started apart from what is asked for every tensor.

    Each case is a Decision under a label; ``where`` turns the labels that share a reason into words, "" for all of them.
    """
    found: dict[str, dict[tuple[str, str], list[str]]] = {}
    elsewhere: set[str] = set()
    for label, decision in cases:
        for rule, blocked in decision.blocked_by.items():
            if not verbose and _is_elsewhere(rule, blocked, decision):
                elsewhere.add(rule)
                continue
            for reason in _reasons(blocked, decision):
                found.setdefault(rule, {}).setdefault(reason, []).append(label)
    merged: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for rule, reasons in found.items():
        lines = tuple((when, where(labels), text) for (when, text), labels in reasons.items())
        merged.setdefault(lines, []).append(rule)
    rows = [(", ".join(rules) if i == 0 else "", *line) for lines, rules in merged.items() for i, line in enumerate(lines)]
    columns: tuple[str, ...] = ("rule", "decided at", "where", "reason")
    if not any(row[2] for row in rows):
        columns, rows = ("rule", "decided at", "reason"), [(*row[:2], row[3]) for row in rows]
    page: list[Block] = [Table("What stops each rule that SGLang asks earlier", columns, tuple(rows))] if rows else []
    if elsewhere:
        page.append(Line(f"not for this device or release: {', '.join(sorted(elsewhere))}", "dim"))
    return page


def _is_elsewhere(rule: str, blocked: Blocked, decision: Decision) -> bool:
    if rule == "amd_deterministic":
        quick = decision.gates.get("quick")
        return quick is not None and any(stop.name == "device" for stop in quick.stops)
    return any(stop.name in _ELSEWHERE for stop in blocked.stops)


def _reasons(blocked: Blocked, decision: Decision) -> list[tuple[str, str]]:
    """(when, reason): the gate's own reasons where it gave some, else the conditions that the rule lacks."""
    when = {"setup": "start", "call": "each call"}
    reasons = [(when[stop.when], stop.text) for stop in blocked.stops]
    explained = bool(reasons)
    for name in blocked.missing:
        communicator, text = _CONDITION_TEXTS[name]
        if not communicator:
            # Conditions without a gate have no reasons of their own; "flashinfer" has them under the gate's name.
            if not (explained and name == "flashinfer"):
                reasons.append(("each call", f"needs: {text}"))
        elif not explained:
            state = decision.gates[communicator].state if communicator in decision.gates else "not known"
            reasons.append(("given", f"{communicator} is {state}" if state in _ADJECTIVES else f"{communicator} {state}"))
    reasons += [("each call", f"yields: {_condition(name)}") for name in blocked.against]
    return list(dict.fromkeys(reasons))


def _condition(name: str) -> str:
    """A condition that holds, in words."""
    communicator, text = _CONDITION_TEXTS[name]
    verbs = {"_present": "exists", "_enabled": "is enabled", "_accepts": "accepts this tensor"}
    return f"{communicator} {verbs[name.removeprefix(communicator)]}" if communicator else text


def evidence(decision: Decision, verbose: bool) -> list[Block]:
    """What the answer rests on; with ``verbose`` all of it."""
    page: list[Block] = []
    if decision.next_best is not None:
        page.append(Line(f"without that rule it would be {decision.next_best}"))
    shown = {n: f for n, f in decision.facts.items() if verbose or f.origin == "assumed"}
    title = "Rests on these facts (changing one alone changes the path)" if verbose else "Assumed, and the path rests on it"
    texts = (f"{n}={f.value}: {TEXTS[n]} ({f.origin}{', ' + f.source if f.source else ''})" for n, f in shown.items())
    page += items(title, texts, "dim")
    page += items(NOT_CONFORMED_TITLE, decision.not_conformed, "dim")
    if verbose:
        page += gates_table(decision)
        if decision.source:
            page.append(Line(f"SGLang's line behind the rule: {decision.source}", "dim"))
    return page


def gates_table(decision: Decision) -> list[Block]:
    """What every communicator answers."""
    rows = tuple(
        (
            name,
            gate.state,
            gate.kernel or gate.backend,
            human_bytes(gate.limit_bytes) if gate.limit_bytes else "",
            _stops(gate.stops),
        )
        for name, gate in decision.gates.items()
    )
    return [Table("Every gate", ("gate", "answers", "kernel", "limit", "reasons"), rows, frozenset({"limit"}))] if rows else []


def _stops(stops: Iterable[object]) -> str:
    return "; ".join(map(str, stops))


# ---------------------------------------------------------------------------------------------------------------- conform's report

_SHOWN = 12


def conform_page(report: Report, verbose: bool = False) -> Page:
    """How much was compared and what differed; then each part; then what could not be compared."""
    verdict = f"{len(report.differences)} differences" if report.compared else "nothing could be compared"
    against = f" with {report.ruleset}" if report.ruleset else ""
    page: list[Block] = [
        Line(f"{report.sglang}: {report.compared:,} answers of SGLang's own code compared{against}, {verdict}", "answer"),
    ]
    told = [r for r in report.results if r.compared or r.differences]
    rows = [(r.name, f"{r.compared:,}", str(len(r.differences))) for r in told]
    rows += [(f"{p.sglang} ({p.ruleset})", f"{p.compared:,}", str(len(p.differences))) for p in report.parts]
    if rows:
        page.append(Table("", ("what", "compared", "differ"), tuple(rows), frozenset({"compared", "differ"})))
    nothing = [r.name for r in report.results if r not in told]
    page += [Line(f"nothing to compare in this release: {', '.join(nothing)}", "dim")] if nothing else []
    shown = report.differences if verbose else report.differences[:_SHOWN]
    more = len(report.differences) - len(shown)
    page += items("Differences", [*shown, *([f"and {more} more: -v shows all"] if more else [])], "warn")
    page += items("Notes", report.notes)
    page += items("Not conformed (not Python in the package, or computed there)", report.not_conformed, "dim")
    return page


# ------------------------------------------------------------------------------------------------------------- text and notebooks


def decision_text(decision: Decision) -> str:
    return to_text(decision_page(decision, verbose=True))


def decision_html(decision: Decision) -> str:
    return to_html(decision_page(decision))


def bands_text(bands: Bands) -> str:
    from .bands import bands_page

    return to_text(bands_page(bands))


def bands_html(bands: Bands) -> str:
    from .bands import bands_page

    return to_html(bands_page(bands))


def step_text(step: Step) -> str:
    from .step import step_page

    return to_text(step_page(step))


def step_html(step: Step) -> str:
    from .step import step_page

    return to_html(step_page(step))
