"""What a failed assertion says: the answer, code that reproduces it, SGLang's file and line. Called by asserting.py and ask.py.

Invariant: code is shown only after the same question was asked here and gave the answer that stands beside it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from .._decision import Decision
from .._facts import DEFAULTS, DTYPE_BYTES
from .._releases import Release, resolve
from .._route import RULE_TEXTS, dispatch, route
from .._types import Call, Group, InputError, Server
from .diff import Diff, SizeChange, StateChange, nearest_name
from .space import conjunction_text

if TYPE_CHECKING:
    from .asserting import _Seen
    from .reach import Reach

_HEAD = "to reproduce, after import sglang_probe as probe:"
_MACHINE = ("gpu", "link", "nodes", "gpus", "env", "model")


def sglang_text(sglang: str | Release) -> str:
    """How a person would name this revision again."""
    if isinstance(sglang, str):
        return sglang
    if sglang.kind == "installed":
        return "installed"
    return sglang.root if sglang.kind == "checkout" and sglang.root else sglang.name


# --------------------------------------------------------------------------------------------------------- what a question is about


@dataclass(frozen=True)
class Subject:
    """The groups that are asked, the server that they belong to, if any, and the code that makes them."""

    groups: Mapping[str, Group]
    server: Server | None
    sglang: str
    """As the test named it."""
    source: str
    """``probe.read_launch(...)``; empty where a Group or a Server was given."""
    asked: Mapping[str, Any]
    """The same as keywords of ``step``."""

    def group(self, name: str) -> Group:
        if name not in self.groups:
            raise InputError("group", name, f"give one of {', '.join(self.groups)}")
        return self.groups[name]

    def code(self, name: str) -> str:
        """The group as code."""
        if self.source:
            return f'{self.source}.groups["{name}"]'
        group = self.groups[name]
        told = {name: f for name, f in group.facts.items() if f.origin == "given" or f.value != DEFAULTS[name]}
        facts = [f"{name}={fact.value}" for name, fact in told.items()]
        return f"probe.Group.make({', '.join([*([repr(group.name)] if group.name != 'tp' else []), *facts])})"


def read_subject(kind: str, where: Any, release: Release, sglang: str, machine: Mapping[str, Any]) -> Subject:
    """From a group, launch line, log, URL or server; ``machine`` matters where something is read."""
    if kind in ("group", "server"):
        stray = next((name for name, value in machine.items() if value is not None), None)
        if stray:
            raise InputError(stray, machine[stray], f"a {kind} has its machine already; leave it out")
        if kind == "group":
            return Subject({where.name: where}, None, sglang, "", {})
        return Subject(where.groups, where, sglang, "", {})
    from ..launch import read_launch, read_log, read_url

    if kind == "launch" and not isinstance(where, str):
        raise InputError("launch", where, "give a Group, a Server, or a launch line")
    settings = {name: value for name, value in machine.items() if value is not None}
    readers: dict[str, Callable[..., Server]] = {"launch": read_launch, "log": read_log, "url": read_url}
    server = readers[kind](where, sglang=nearest_name(release), **settings)
    code = f"probe.read_{kind}({', '.join([repr(where), f'sglang={sglang!r}', *_keywords(settings)])})"
    return Subject(server.groups, server, sglang, code, {kind: where, **settings})


def _keywords(settings: Mapping[str, Any]) -> list[str]:
    return [f"{name}={value!r}" for name, value in settings.items()]


def _call_code(call: Call) -> str:
    """As short as ``route`` takes it: bytes alone where all else is usual."""
    given = [
        f"{field.name}={getattr(call, field.name)!r}"
        for field in fields(Call)
        if field.name not in ("site", "count", "tokens") and getattr(call, field.name) != field.default
    ]
    return str(call.nbytes) if len(given) == 1 else f"probe.Call({', '.join(given)})"


def _route_code(call: Call, group: str, context: str | Iterable[str], sglang: str) -> str:
    """``sglang`` is code: a literal, or a name."""
    name = context if isinstance(context, str) else "+".join(context)
    return f"probe.route({_call_code(call)}, {group}, context={name!r}, sglang={sglang})"


def _source_lines(*decisions: Decision | None) -> list[str]:
    """SGLang's file and line behind each rule, where the source is at hand."""
    found = {d.source: d for d in decisions if d is not None and d.source}
    return [f"SGLang {d.sglang}, rule {d.rule}: {source}" for source, d in found.items()]


def _code(*lines: str) -> list[str]:
    return [_HEAD, *(f"  {line}" for line in lines)]


def _assumed(names: Iterable[str]) -> list[str]:
    every = list(names)
    more = f", and {len(every) - 3} more" if len(every) > 3 else ""
    return [f"assumed: {'; '.join(every[:3])}{more}"] if every else []


# ------------------------------------------------------------------------------------------------------------------------ the texts


def reached_text(reach: Reach) -> str:
    """Of assert_unreachable."""
    lines = [str(reach).splitlines()[0]]
    if reach.witness:
        lines += _code(f"print({reach.witness.code})")
        lines += [f"  -> {reach.witness.decision}", *_source_lines(reach.witness.decision)]
    return "\n".join([*lines, *_assumed(reach.assumed)])


def misrouted_text(
    call: Call,
    subject: Subject,
    context: str | Iterable[str],
    wanted: Mapping[str, str],
    found: Mapping[str, str],
    decision: Decision,
) -> str:
    """Of assert_route."""
    name, value = next((name, value) for name, value in wanted.items() if found[name] != value)
    group = subject.groups[call.group] if call.group in subject.groups else next(iter(subject.groups.values()))
    where = context if isinstance(context, str) else "+".join(context)
    what = f"{call.nbytes:,} bytes of {call.dtype}, {where}, {group.name} of {group.world_size} ranks"
    got = f"raises {decision.error}" if decision.error else found[name] or "none that is known"
    lines = [f"not {name} {value} but {got}: {what}, SGLang {decision.sglang} ({decision.ruleset})"]
    blocked = decision.blocked_by.get(wanted.get("rule", "")) or decision.blocked_by.get(wanted.get("path", ""))
    if blocked:
        lines.append(f"what stops {blocked.rule}: {blocked}")
    lines.append(f"because of rule {decision.rule}: {RULE_TEXTS.get(decision.rule, '')}")
    lines += _code(f"print({_route_code(call, subject.code(group.name), context, repr(subject.sglang))})")
    assumed = [f"{name}={fact.value}" for name, fact in decision.facts.items() if fact.origin == "assumed"]
    return "\n".join([*lines, f"  -> {decision}", *_source_lines(decision), *_assumed(assumed)])


@dataclass(frozen=True)
class Change:
    """How one call site changes over the batch."""

    site: str
    differing: int
    sites: int
    """Sites that change, of how many."""
    runs: tuple[tuple[int, int, str], ...]
    """From, to, route in words."""
    values: tuple[int, int]
    """The neighbours between which it changes first."""
    pair: tuple[_Seen | None, ...]
    release: Release
    context: str | None


def changed_text(name: str, values: list[int], change: Change, subject: Subject) -> str:
    """Of assert_constant_over."""
    release, (first, then) = change.release, change.values
    span = f"{values[0]} to {values[-1]}"
    head = f"routing changes between {name} {first} and {then}: {change.site}, SGLang {release.name} ({release.ruleset})"
    lines = [head, f"over {name} {span}, {change.differing} of {change.sites} call sites change"]
    lines += [f"  {low} to {high}: {words}" if low != high else f"  {low}: {words}" for low, high, words in change.runs[:5]]
    if len(change.runs) > 5:
        lines.append(f"  ... {len(change.runs) - 5} more")
    decisions = [one.decision for one in change.pair if one]
    seen = [(one, _context_of(one, subject, release)) for one in change.pair if one]
    if len(seen) == 2 and all(context for _, context in seen):
        shown = []
        for value, (one, context) in zip(change.values, seen, strict=True):
            code = _route_code(one.call, "group", context or "", repr(subject.sglang))
            shown.append(f"print({code})  # {name} {value}: {one.words}")
        lines += _code(f"group = {subject.code(seen[0][0].call.group)}", *shown)
    elif subject.asked:
        lines += _code(*(_step_code(name, value, change, subject) for value in change.values))
    return "\n".join([*lines, *_source_lines(*decisions)])


def _context_of(one: _Seen, subject: Subject, release: Release) -> str | None:
    """The context in which a route by itself gives what the step gave: a call may run outside of the step's graph. None where none does."""
    if one.decision is None:
        return None
    for context in (one.context, "piecewise_replay"):
        alone = route(one.call, subject.group(one.call.group), context=context, sglang=release)
        if _tell(alone) == _tell(one.decision):
            return context
    return None


def _step_code(name: str, value: int, change: Change, subject: Subject) -> str:
    """Fusion is the step's: a route alone does not show it. Without draft tokens and padding, a request is a row."""
    rows = {"draft_tokens": 1, "context": "eager"} if name == "tokens" else {"context": change.context} if change.context else {}
    settings = _keywords({**subject.asked, "batch": value, **rows, "sglang": subject.sglang})
    return f"print(probe.step({', '.join(settings)}))  # {name} {value}"


def rerouted_text(diff: Diff, revisions: tuple[str | Release, str | Release], question: Mapping[str, Any]) -> str:
    """Of assert_same_routing."""
    unit = "states" if diff.level == "conditions" else "classes of calls"
    names = tuple(sglang_text(one) for one in revisions)
    lines = [f"routes change from {diff.a} to {diff.b}: {diff.changed:,} of {diff.walked:,} {unit}"]
    common = {name: values for name, values in diff.common.items() if len(values) == 1}
    if common:
        lines.append(f"all with {conjunction_text(common)}")
    lines += [f"step: {text}" for text in diff.step]
    lines += [f"no counterpart: {note}" for note in diff.notes]
    if diff.changes:
        lines += _state_lines(diff, names, revisions)
    elif diff.sizes:
        lines += _size_lines(diff, names, revisions, question)
    elif diff.step and "launch" in question:
        settings = ", ".join([repr(question["launch"]), "sglang=sglang", *_keywords(_machine(question))])
        lines += _code(f"for sglang in {names!r}: print(probe.step({settings}))")
    return "\n".join(lines)


def _machine(question: Mapping[str, Any]) -> dict[str, Any]:
    return {name: question[name] for name in _MACHINE if question.get(name) is not None}


def _state_lines(diff: Diff, names: tuple[str, ...], revisions: tuple[str | Release, ...]) -> list[str]:
    def ordinary(change: StateChange) -> tuple[bool, int]:
        return "raises" in (change.before.path, change.after.path), change.example.count("=")

    change = min(diff.changes, key=ordinary)
    lines = [f"  {one.states:,} states: {one.before} -> {one.after}" for one in diff.changes[:4]]
    if len(diff.changes) > 4:
        lines.append(f"  ... and {len(diff.changes) - 4} more kinds of change")
    call = ast.parse(change.example, mode="eval").body
    assert isinstance(call, ast.Call)
    conditions = {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg}
    decisions = [dispatch(revision, **conditions) for revision in revisions]
    lines += _code(f"for sglang in {names!r}: print(probe.dispatch({', '.join(['sglang', *_keywords(conditions)])}))")
    return [*lines, *(f"  -> {decision}" for decision in decisions), *_source_lines(*decisions)]


def _size_lines(
    diff: Diff, names: tuple[str, ...], revisions: tuple[str | Release, ...], question: Mapping[str, Any]
) -> list[str]:
    def ordinary(change: SizeChange) -> tuple[bool, bool, str, int]:
        plain = any(tensor.startswith("bf16, contiguous, multiples of 16") for tensor in change.tensors)
        return "raises" in (change.before.path, change.after.path), not plain, change.group, change.first_bytes

    changes = sorted(diff.sizes, key=ordinary)
    lines = [
        f"  {c.group}, {c.context}, {c.first_bytes:,} to {c.last_bytes:,} bytes: {c.before} -> {c.after}" for c in changes[:3]
    ]
    if len(changes) > 3:
        lines.append(f"  ... and {len(changes) - 3} more ranges")
    if question.get("server") is not None:
        return lines
    kind = "launch" if question.get("launch") is not None else "group"
    subjects = [
        read_subject(kind, question[kind], resolve(one), name, _machine(question))
        for one, name in zip(revisions, names, strict=True)
    ]
    for change in changes[:3]:
        for call in _calls_of(change, subjects[0].server):
            both = [
                route(call, subject.groups[change.group], context=change.context, sglang=one)
                for subject, one in zip(subjects, revisions, strict=True)
            ]
            if [str(d.path) for d in both] == [change.before.path, change.after.path] and _tell(both[0]) != _tell(both[1]):
                group = subjects[0].code(change.group).replace(f"sglang={names[0]!r}", "sglang=sglang")
                lines += _code(f"for sglang in {names!r}:", f"    print({_route_code(call, group, change.context, 'sglang')})")
                return [*lines, *(f"  -> {d}" for d in both), *_source_lines(*both)]
    return lines


def _tell(decision: Decision) -> tuple[object, ...]:
    d = decision
    return d.path, d.op, d.error, d.kernel, d.backend, d.returns, d.cloned, d.reduces


def _calls_of(change: SizeChange, server: Server | None) -> Iterable[Call]:
    """Calls inside of a range of sizes, a model's own first; layouts other than contiguous are left to the words."""
    hidden = server.model.hidden if server and server.model else 0
    for tensor in change.tensors:
        dtype, layout, *_ = tensor.split(", ")
        if layout != "contiguous" or ", misaligned" in tensor or "symmetric" in tensor:
            continue
        step = 16 if "multiples of 16" in tensor else 4 if "multiples of 4" in tensor else DTYPE_BYTES[dtype]
        width = hidden * DTYPE_BYTES[dtype]
        if width and step == 16:
            rows = -(-change.first_bytes // width)
            if rows * width <= change.last_bytes:
                yield Call(nbytes=rows * width, dtype=dtype, group=change.group, tokens=rows, hidden=hidden)
        first = -(-change.first_bytes // step) * step
        first += step if step < 16 and first % (4 * step) == 0 else 0
        if first <= change.last_bytes:
            yield Call(nbytes=first, dtype=dtype, group=change.group)
