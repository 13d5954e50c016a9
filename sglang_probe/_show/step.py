"""What people see of a Step: calls, bytes, path and count first; then why; then what one change would bring; then what it rests on.

Called by render (notebooks) and by the command line. Invariant: what a log contradicts and what is not modelled stand above the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from .._decision import Decision
from .._report.text import WITHHELD, counted, is_secret
from .._route import RULE_TEXTS
from .._server.command import UNKNOWN
from .._step.step import Step, StepCall
from .._types import Server
from .costs import call_cells, compared_costs, cost_basis, cost_line, instead_table
from .page import Block, Line, Page, Table, items
from .render import CHANGES_TITLE, NOT_CONFORMED_TITLE, answer, blockers, changes, consequences, evidence, why
from .sizes import both_bytes, human_bytes

_LOUD = ("not modelled", "unknown architecture")
"""Notes that stand above the answer begin so; and those of flags that SGLang does not know."""


def step_page(step: Step, verbose: bool = False) -> Page:
    """One page; a step with alternatives (the example) is told as a comparison."""
    server = step.server
    contradictions = server.contradictions if server else ()
    page: list[Block] = [Line(f"the log says otherwise: {text}", "warn") for text in contradictions]
    page += [Line(note, "warn") for note in _all_notes(step) if _is_loud(note)]
    page += _comparison(step) if step.alternatives else _single(step)
    page += _reasons(step, verbose)
    if verbose or not step.alternatives:
        page += _calls(step)
        page += instead_table(step)
        page += _fused(step)
        page += _cycle(step)
    page += cost_basis(_all(step), verbose)
    notes = [n for n in _all_notes(step) if n not in contradictions and not _is_loud(n)]
    page += items("Notes", notes)
    page += items("Assumed", _all_assumed(step), "dim")
    page += items(NOT_CONFORMED_TITLE, _not_conformed(step), "dim")
    if verbose and server:
        page += settings_table(server)
    return page


def _is_loud(note: str) -> bool:
    return note.startswith(_LOUD) or UNKNOWN in note


def _all(step: Step) -> tuple[Step, ...]:
    return (step, *step.alternatives)


def _all_notes(step: Step) -> list[str]:
    """Notes of every alternative; one that only some of them have says whose it is."""
    return _merged(step, [s.notes for s in _all(step)])


def _all_assumed(step: Step) -> list[str]:
    return _merged(step, [s.assumed for s in _all(step)])


def _merged(step: Step, texts: list[tuple[str, ...]]) -> list[str]:
    steps = _all(step)
    merged = []
    for text in dict.fromkeys(t for ts in texts for t in ts):
        holders = [s for s, ts in zip(steps, texts, strict=True) if text in ts]
        names = dict.fromkeys(s.sglang for s in holders)
        contexts = dict.fromkeys(s.context for s in holders)
        if len(holders) == len(steps):
            merged.append(text)
        elif len(names) < len({s.sglang for s in steps}):
            merged.append(f"{', '.join(names)}: {text}")
        elif len(contexts) < len({s.context for s in steps}):
            merged.append(f"{', '.join(contexts)}: {text}")
        else:
            merged.append(text)
    return merged


def _paths(step: Step) -> str:
    """``123 x torch_distributed``."""
    return ", ".join(f"{count} x {path}" for path, count in step.paths.items()) or "none"


def _shape(step: Step) -> str:
    kind = f"verify step of {step.draft_tokens} draft tokens" if step.draft_tokens > 1 else "decode step"
    padded = f" padded to {step.padded_batch}" if step.padded_batch != step.batch else ""
    return f"{step.model} on {_gpus(step)}, {kind}, batch {step.batch}{padded}"


def _gpus(step: Step) -> str:
    """All GPUs of one replica: the tensor-parallel group, times the pipeline's stages."""
    found = step.server.args.get("pp_size") if step.server else None
    stages = found.value if found is not None and isinstance(found.value, int) else 1
    if stages <= 1:
        return counted(step.world_size, "GPU")
    return f"{step.world_size * stages} GPUs ({stages} pipeline stages of {step.world_size})"


def _single(step: Step) -> list[Block]:
    fused = f"; {step.fused} more are fused away" if step.fused else ""
    told = f"{_paths(step)}, {both_bytes(step.nbytes)} each{fused}" if step.calls else f"no all-reduce to route{fused}"
    return [
        Line(told, "answer"),
        *cost_line(step),
        Line(
            f"{_shape(step)}, {step.context}, SGLang {step.sglang} ({step.ruleset}); read from {step.source}{_guessed(step)}",
            "dim",
        ),
        *(block for item in _distinct(step) for block in consequences(item.decision)),
    ]


def _guessed(step: Step) -> str:
    """What another machine or release has otherwise, where nobody said which."""
    gpu = next(
        (text[len("GPU: ") :].split(";")[0] for text in step.assumed if text.startswith("GPU: ") and " assumed;" in text), ""
    )
    release = any(text.startswith("no release is named") for text in step.assumed)
    return "".join(f"; {text}" for text in (gpu, "the newest release assumed" if release else "") if text)


def _comparison(step: Step) -> list[Block]:
    steps = sorted(_all(step), key=lambda s: s.context != step.context)
    rows = tuple((s.sglang, s.ruleset, s.context, str(s.all_reduces), str(s.fused), _paths(s)) for s in steps)
    columns = ("SGLang", "era", "context", "all-reduces", "fused", "path")
    return [
        Line(_verdict(step), "answer"),
        Line(f"{step.all_reduces} all-reduces of {both_bytes(step.nbytes)}: {_shape(step)}", "dim"),
        Table("", columns, rows, frozenset({"all-reduces", "fused"}), "path"),
        *compared_costs(steps),
    ]


def _verdict(step: Step) -> str:
    """What differs between the alternatives, computed from them: the context, the revision, or nothing."""
    groups: dict[str, list[Step]] = {}
    for s in _all(step):
        groups.setdefault(s.context, []).append(s)
    told = [f"{context}: {_told(steps)}" for context, steps in groups.items()]
    several = len({s.sglang for s in _all(step)}) > 1
    same = all(s.paths == steps[0].paths for steps in groups.values() for s in steps)
    return "; ".join(told) + (" (the same at each commit)" if several and same else "")


def _told(steps: Sequence[Step]) -> str:
    """One path list where the revisions agree, else each revision's."""
    if all(s.paths == steps[0].paths for s in steps):
        return ", ".join(steps[0].paths) or "none"
    return ", ".join(f"{' and '.join(s.paths) or 'none'} at {s.sglang}" for s in steps)


def _distinct(step: Step) -> Iterator[StepCall]:
    """One call for each different reason."""
    seen = set()
    for item in step.calls:
        d = item.decision
        key = d.path, d.rule, d.kernel, item.call.group, tuple(d.blocked_by.values())
        if key not in seen:
            seen.add(key)
            yield item


@dataclass(frozen=True)
class _Case:
    """One reason in one step: the label that tells it from the others, and what is needed to route it again."""

    label: str
    step: Step
    item: StepCall


def _cases(step: Step) -> list[_Case]:
    cases = []
    for s in _all(step):
        distinct = list(_distinct(s))
        for item in distinct:
            site = f"{item.call.group} {item.call.site}" if len(distinct) > 1 else ""
            cases.append(_Case(_SPLIT.join((s.sglang, s.context, site)), s, item))
    return cases


_SPLIT = "\t"


def _where(every: Sequence[str], labels: Sequence[str]) -> str:
    """Which of all cases these are, by the fewest words: "" for all, else one revision, context or call site, else each of them."""
    chosen = set(labels)
    if chosen == set(every):
        return ""
    parts = [label.split(_SPLIT) for label in every]
    varying = [i for i in range(3) if len({part[i] for part in parts}) > 1]
    for i in varying:
        for value in dict.fromkeys(part[i] for part in parts):
            if chosen == {label for label in every if label.split(_SPLIT)[i] == value}:
                return value
    return "; ".join(" ".join(label.split(_SPLIT)[i] for i in varying) for label in every if label in chosen)


def _reasons(step: Step, verbose: bool) -> list[Block]:
    """Why, what stops every better rule, and what one change would bring; what all cases share is told once."""
    cases = _cases(step)
    if not cases:
        return []
    where = partial(_where, [case.label for case in cases])
    told: dict[tuple[str, ...], list[str]] = {}
    for case in cases:
        told.setdefault(_why_row(case.item.decision), []).append(case.label)
    if len(told) == 1:
        decision = cases[0].item.decision
        page: list[Block] = [Line(answer(decision)), Line(f"because of {why(decision)}")]
    else:
        rows = tuple((where(labels), *row) for row, labels in told.items())
        page = [Table("Why", ("where", "path", "kernel", "returns", "because of rule"), rows)]
    page += _news(step)
    page += blockers([(case.label, case.item.decision) for case in cases], verbose, where)
    page += _changes(cases, where)
    for case in cases if verbose else ():
        page += [
            Line(f"{where([case.label]) or 'all calls'}: {case.item.decision}", "answer"),
            *evidence(case.item.decision, True),
        ]
    return page


def _why_row(d: Decision) -> tuple[str, ...]:
    path = f"raises {d.error}" if d.error else str(d.path)
    rule = f"{d.rule}: {RULE_TEXTS[d.rule]}" if d.rule else "none: SGLang fails while choosing"
    return path, d.kernel or d.backend, {"input": "the input", "new": "a new tensor", None: ""}[d.returns], rule


def _news(step: Step) -> list[Block]:
    """Rules that one revision has and another one, shown beside it, does not: what became of them here."""
    known: dict[str, set[str]] = {}
    fired: dict[str, set[str]] = {}
    for case in _cases(step):
        d = case.item.decision
        known.setdefault(d.sglang, set()).update((*d.blocked_by, d.rule))
        fired.setdefault(d.sglang, set()).add(d.rule)
    lines: list[Block] = []
    for revision, rules in known.items():
        others = [name for name in known if name != revision]
        for rule in RULE_TEXTS:
            if others and rule in rules and all(rule not in known[other] for other in others):
                became = "fires here" if rule in fired[revision] else "does not fire in any case shown"
                lines.append(Line(f"only {revision} asks for {rule}: it {became}"))
    return lines


def _changes(cases: Sequence[_Case], where: Callable[[Sequence[str]], str]) -> list[Block]:
    found: dict[str, list[str]] = {}
    for case in cases:
        group = case.step.server.groups.get(case.item.call.group) if case.step.server else None
        if group is not None:
            for change in changes(case.item.decision, case.item.call, group, case.step.context):
                found.setdefault(str(change), []).append(case.label)
    texts = (f"{text} [{where(labels)}]" if where(labels) else text for text, labels in found.items())
    return items(CHANGES_TITLE, texts)


def _calls(step: Step) -> list[Block]:
    costed = any(item.cost is not None and item.cost.figures for item in step.calls)
    rows = tuple(
        (
            *(c.site, c.group, str(c.count), str(c.tokens), human_bytes(c.nbytes), str(d.path), d.kernel or d.backend, d.rule),
            *(call_cells(item) if costed else ()),
        )
        for c, d, item in ((item.call, item.decision, item) for item in step.calls)
    )
    columns = ("call site", "group", "count", "tokens", "each", "path", "kernel", "rule", *(("device us", "host us") * costed))
    right = frozenset({"count", "tokens", "each", "device us", "host us"})
    return [Table("Calls", columns, rows, right, "path")] if rows else []


def _fused(step: Step) -> list[Block]:
    fusion = step.server.fusion if step.server else None
    lines: list[Block] = []
    if step.fused:
        sites = ", ".join(f"{c.count} x {c.site}" for c in step.fused_calls)
        lines.append(Line(f"fused with residual and norm, so that no dispatch runs: {sites}"))
    if fusion is not None and fusion.reason:
        backend = f" ({fusion.backend})" if fusion.backend else ""
        lines.append(Line(f"fusion is {'on' if fusion.enabled else 'off'}{backend}: {fusion.reason}", "dim"))
    return lines


def _cycle(step: Step) -> list[Block]:
    rows: list[tuple[str, ...]] = [
        (
            part.name,
            part.collective,
            str(part.count),
            str(part.tokens),
            human_bytes(part.nbytes) if part.nbytes else "unknown",
            "" if part.decision is None else str(part.decision.path),
            part.note,
        )
        for part in step.cycle
    ]
    columns: tuple[str, ...] = ("beside the step", "collective", "count", "tokens", "each", "path", "note")
    while rows and not any(row[-1] for row in rows):  # nothing to note, and then nothing that is routed
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    title = "What else this speculative cycle communicates" if step.draft_tokens > 1 else "What else this step communicates"
    return [Table(title, columns, tuple(rows), frozenset({"count", "tokens", "each"}), "path")] if rows else []


def _not_conformed(step: Step) -> list[str]:
    return list(dict.fromkeys(text for s in _all(step) for item in s.calls for text in item.decision.not_conformed))


def settings_table(server: Server) -> list[Block]:
    """Server arguments that somebody or some rule set; defaults are left out."""
    rows = tuple(
        (name, WITHHELD if is_secret(name, setting.value) else str(setting.value), setting.origin, setting.reason)
        for name, setting in server.args.items()
        if setting.origin != "default"
    )
    return [Table("Server arguments that are not defaults", ("argument", "value", "origin", "reason"), rows)] if rows else []
