"""What people see of reach and diff: the answer in one line, then the reason, then the evidence. Called by those results.

Invariant: the first line stands by itself: it says the answer and how much was walked; what a page leaves out, it counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .changes import pair, sizes_blocks
from .page import Block, Items, Line, Page, items, to_html, to_text

if TYPE_CHECKING:
    from .._proof.diff import Diff, StateChange
    from .._proof.reach import Reach, RuleReach


def reach_text(reach: Reach) -> str:
    return to_text(reach_page(reach))


def reach_html(reach: Reach) -> str:
    return to_html(reach_page(reach))


def diff_text(diff: Diff) -> str:
    return to_text(diff_page(diff))


def diff_html(diff: Diff) -> str:
    return to_html(diff_page(diff))


# ------------------------------------------------------------------------------------------------------------------------- reach


def reach_page(reach: Reach, verbose: bool = False) -> Page:
    """``verbose``: a range of releases, one by one."""
    verdict = "reachable" if reach.reachable else "unreachable"
    page: list[Block] = [Line(f"{verdict}: {reach.kind} {reach.target} in {_where(reach)}; {_walked(reach)} walked", "answer")]
    by_rule = reach.kind == "path" and reach.rules
    if by_rule and not reach.reachable and len(reach.rules) > 1:
        page.append(Line(f"because none of the {len(reach.rules)} rules that lead there fires"))
    elif reach.reason and (not reach.parts or len({part.reason for part in reach.parts}) == 1):
        page.append(Line(_because(reach.rules[0].reason if by_rule else reach.reason)))
    if reach.witness:
        page.append(Line(f"for instance {reach.witness.code}"))
        page.append(Line(f"  -> {reach.witness.decision}", "dim"))
    if by_rule:
        page += items("Rules that lead there", (_rule(rule, reach) for rule in reach.rules))
    if reach.parts:
        page += items("By release", [_part(part) for part in reach.parts] if verbose else _parts(reach))
    page += items("Assumed", reach.assumed, "dim")
    return page


def _where(reach: Reach) -> str:
    fixed = ", ".join(f"{name}={'|'.join(map(str, values))}" for name, values in reach.fixed.items())
    era = f" ({reach.ruleset})" if reach.ruleset else ""
    return f"SGLang {reach.sglang}{era}" + (f" with {fixed}" if fixed else "")


def _walked(reach: Reach) -> str:
    if reach.level == "releases":
        return f"{len(reach.parts)} releases, {reach.walked:,} states" + (
            f", {reach.classes:,} size classes" if reach.classes else ""
        )
    if not reach.classes:
        return f"{reach.walked:,} states"
    return f"{reach.walked:,} combinations of context, dtype and layout, {reach.classes:,} size classes over all sizes"


def _because(reason: str) -> str:
    return f"because it {reason}" if reason.startswith(("needs ", "yields")) else f"because {reason}"


def _rule(rule: RuleReach, reach: Reach) -> str:
    if not rule.reachable:
        return f"{rule.rule}: never; {rule.reason}"
    unit = "size classes" if reach.classes else "states"
    told = f"{rule.rule}: in {rule.states:,} {unit}"
    if rule.witness is None or rule.witness is reach.witness:
        return told
    return f"{told}, for instance {rule.witness.code}"


def _answer(part: Reach) -> str:
    if part.reachable:
        return "reachable"
    return f"unreachable: {part.reason}".replace(f"{part.sglang} ({part.ruleset})", "it")


def _part(part: Reach) -> str:
    return f"{part.sglang} ({part.ruleset}): {part.witness.code if part.witness else _answer(part)}"


def _parts(reach: Reach) -> list[str]:
    """Runs of releases with one answer."""
    runs: list[tuple[str, str, str]] = []
    for part in reach.parts:
        answer = _answer(part)
        if runs and runs[-1][2] == answer:
            runs[-1] = (runs[-1][0], part.sglang, answer)
        else:
            runs.append((part.sglang, part.sglang, answer))
    return [f"{first if first == last else f'{first} to {last}'}: {answer}" for first, last, answer in runs]


# -------------------------------------------------------------------------------------------------------------------------- diff

_GROUPS = 6
"""Groups of states that a page shows unless all are asked for."""
_GATES = ("absent", "disabled", "declines")


def diff_page(diff: Diff, verbose: bool = False) -> Page:
    """``verbose``: all groups and ranges, not only the first."""
    if not diff:
        page: list[Block] = [Line(_unchanged(diff), "answer"), Line(_between(diff), "dim")]
    elif diff.level == "conditions":
        page = _states_page(diff, verbose)
    else:
        page = [*sizes_blocks(diff, verbose)]
        page.insert(1, Line(_between(diff) + "; both ends of a range are included", "dim"))
    return [*page, *items("Not compared", diff.notes, "dim"), *items("Assumed", diff.assumed, "dim")]


def _unchanged(diff: Diff) -> str:
    if diff.level == "conditions":
        return f"no state changes: {diff.walked:,} states walked"
    return f"no route changes: {diff.walked:,} size classes, over every size, dtype, layout and context, walked"


def _between(diff: Diff) -> str:
    subject = {"conditions": "the rules alone", "group": "one group", "launch": "one launch line"}[diff.level]
    return f"SGLang {diff.a} -> {diff.b}; {subject}" + (f" with {_words(diff.fixed)}" if diff.fixed else "")


def _states_page(diff: Diff, verbose: bool) -> list[Block]:
    sure = {name: values for name, values in diff.common.items() if len(values) == 1}
    also = {name: values for name, values in diff.common.items() if len(values) > 1}
    head = f"{diff.changed:,} of {diff.walked:,} states change" + (f", all with {_words(sure)}" if sure else "")
    page: list[Block] = [Line(f"{head}: {_afterwards(diff.changes)}", "answer")]
    page.append(Line(_between(diff), "dim"))
    if also:
        page.append(Line(f"in each of them {_words(also)}"))
    shown = diff.changes if verbose else diff.changes[:_GROUPS]
    for change in shown:
        title = f"{change.states:,} {'state' if change.states == 1 else 'states'}: " + " -> ".join(pair(change))
        when = [_words({k: v for k, v in one.items() if diff.common.get(k) != v}) for one in change.when]
        told = [f"{'or' if i else 'when'} {text}" for i, text in enumerate(when) if text]
        page.append(Items(title, (*told, f"for instance {change.example}")))
    left = diff.changes[len(shown) :]
    if left:
        page.append(Line(f"and {len(left)} more groups of {sum(c.states for c in left):,} states: -v shows them", "dim"))
    return page


def _afterwards(changes: Iterable[StateChange]) -> str:
    """``648 go to pynccl_out_of_place, 648 raise``."""
    counts: dict[str, int] = {}
    for change in changes:
        same = change.before.path == change.after.path
        key = "raise" if change.after.path == "raises" and not same else f"go to {change.after.path}"
        if same:
            key = "raise something else" if change.after.path == "raises" else f"stay on {change.after.path} with another result"
        counts[key] = counts.get(key, 0) + change.states
    order = sorted(counts, key=lambda key: (-counts[key], key == "raise"))
    return ", ".join(f"{counts[key]:,} {key}" for key in order)


def _words(conditions: Mapping[str, Sequence[Any]]) -> str:
    """A conjunction: conditions with equal values stand together."""
    together: dict[tuple[str, ...], list[str]] = {}
    for name, values in conditions.items():
        together.setdefault(tuple(map(str, values)), []).append(name)
    told = []
    for values, names in together.items():
        if values == _GATES:
            told.append(f"none of {', '.join(names)} accepts" if len(names) > 1 else f"{names[0]} does not accept")
        else:
            told.append(", ".join(f"{name}={'|'.join(values)}" for name in names))
    return ", ".join(told)
