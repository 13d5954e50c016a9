"""assert_route, assert_same_routing, assert_constant_over: routing as assertions of a test suite. Called by people and the pytest plug-in.

Invariant: an assertion passes only on a whole walk of what it names; what cannot be asked raises InputError, never passes. The texts of
failures are in failing.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .. import _core
from .._decision import Decision
from .._facts import DTYPE_BYTES, check_dtype
from .._releases import Release, resolve
from .._route import PATHS, RULES, route
from .._types import Call, Group, InputError, Model, Path, Server
from .diff import Diff, diff
from .failing import Change, Subject, changed_text, misrouted_text, read_subject, rerouted_text, sglang_text

_KERNELS = tuple(row[0] for row in _core.KERNELS if row[0])
_NAMES: Mapping[str, tuple[str, ...]] = {"path": tuple(map(str, PATHS)), "rule": RULES[1:], "kernel": _KERNELS}
_SOURCES = ("group", "launch", "log", "url", "server")


class Misrouted(AssertionError):
    """A call goes elsewhere than a test says; ``decision`` holds where."""

    def __init__(self, text: str, decision: Decision) -> None:
        super().__init__(text)
        self.decision = decision


class Rerouted(AssertionError):
    """Routes differ between two revisions that a test says are the same; ``diff`` holds how."""

    def __init__(self, text: str, diff: Diff) -> None:
        super().__init__(text)
        self.diff = diff


class NotConstant(AssertionError):
    """Routing changes with the batch, or with the tokens; ``first`` and ``then`` are the neighbours between which it does."""

    def __init__(self, text: str, first: int, then: int) -> None:
        super().__init__(text)
        self.first, self.then = first, then


def assert_route(
    call: Call | int,
    where: Group | Server | str,
    *,
    path: str | Path | None = None,
    context: str | Iterable[str] = "eager",
    sglang: str | Release,
    rule: str | None = None,
    kernel: str | None = None,
    gpu: str | None = None,
    link: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
    model: str | Model | None = None,
) -> Decision:
    """This call takes this path (and rule, and kernel), or Misrouted says which it takes and why.

    ``call`` is a Call or a number of bytes; ``where`` a Group, a Server, or a launch line (then ``gpu``, ``link``, ... are its machine,
    and a number of bytes stands for [tokens, hidden] of its model, in its dtype). Returns the Decision.
    """
    __tracebackhide__ = True
    wanted = {name: str(value) for name, value in (("path", path), ("rule", rule), ("kernel", kernel)) if value is not None}
    if not wanted:
        raise InputError("path", None, "say what to expect: a path, a rule or a kernel")
    for name, value in wanted.items():
        if value not in _NAMES[name]:
            raise InputError(name, value, f"give one of {', '.join(_NAMES[name])}")
    machine = {"gpu": gpu, "link": link, "nodes": nodes, "gpus": gpus, "env": env, "model": model}
    kind = "group" if isinstance(where, Group) else "server" if isinstance(where, Server) else "launch"
    release = resolve(sglang)
    subject = read_subject(kind, where, release, sglang_text(sglang), machine)
    asked = _call_of(call, subject)
    decision = route(asked, subject.group(asked.group), context=context, sglang=release)
    found = {"path": str(decision.path), "rule": decision.rule, "kernel": decision.kernel}
    if any(found[name] != value for name, value in wanted.items()):
        raise Misrouted(misrouted_text(asked, subject, context, wanted, found, decision), decision)
    return decision


def _call_of(call: Call | int, subject: Subject) -> Call:
    """A number of bytes as the model has it, where there is one and the size is whole rows of it."""
    if isinstance(call, Call):
        return call
    server = subject.server
    if server is None or server.model is None:
        return Call(nbytes=call)
    from .._step.calls import dtype_of

    dtype = dtype_of(server.model, server)
    width = server.model.hidden * DTYPE_BYTES[dtype]
    if not isinstance(call, int) or call % width:
        return Call(nbytes=call, dtype=dtype)
    return Call(nbytes=call, dtype=dtype, tokens=call // width, hidden=server.model.hidden)


def assert_same_routing(a: str | Release, b: str | Release, **question: Any) -> Diff:
    """Nothing routes differently in ``b`` than in ``a``, or Rerouted shows what does. ``question`` is that of ``diff``.

    Fixed conditions, a ``group``, or a ``launch`` line. A launch that sets a context, or makes a group, in one of the two only has not
    the same routing: those calls have no counterpart. Returns the Diff, which is empty.
    """
    __tracebackhide__ = True
    found = diff(a, b, **question)
    if found or found.notes:
        raise Rerouted(rerouted_text(found, (a, b), question), found)
    return found


def assert_constant_over(
    *,
    sglang: str | Release,
    batch: Iterable[int] | None = None,
    tokens: Iterable[int] | None = None,
    group: Group | None = None,
    launch: str | None = None,
    log: str | None = None,
    url: str | None = None,
    server: Server | None = None,
    context: str | None = None,
    dtype: str = "bf16",
    hidden: int = 0,
    gpu: str | None = None,
    link: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
    model: str | Model | None = None,
) -> dict[str, str]:
    """Routing does not change with the batch: every call site keeps its path, kernel, in-place-ness, and whether it is fused.

    ``batch=range(1, 65)`` counts requests of a verify (or decode) step, padded and captured as the server does it unless ``context`` says
    otherwise. ``tokens=...`` counts rows, ``context`` is then "eager" by default; it also suits a ``group`` with ``hidden``. Every value is
    routed, none is inferred from its neighbours. Returns call site -> route in words, or raises NotConstant with the two neighbours.
    """
    __tracebackhide__ = True
    asked = {"group": group, "launch": launch, "log": log, "url": url, "server": server}
    machine = {"gpu": gpu, "link": link, "nodes": nodes, "gpus": gpus, "env": env, "model": model}
    name, values = _values(batch, tokens)
    given = [key for key in _SOURCES if asked[key] is not None]
    if len(given) != 1:
        field = given[1] if given else "launch"
        raise InputError(field, asked[field], f"give exactly one of {', '.join(_SOURCES)}")
    release = resolve(sglang)
    subject = read_subject(given[0], asked[given[0]], release, sglang_text(sglang), machine)
    walk: _GroupWalk | _ServerWalk
    if subject.server is None:
        walk = _GroupWalk(subject, release, context or "eager", check_dtype(dtype), hidden, name)
    else:
        walk = _ServerWalk(subject, release, context, name)
    runs: list[_Run] = []
    for value in values:
        sites = walk.sites(value)
        if runs and _same(runs[-1].sites[1], sites):
            runs[-1] = _Run(runs[-1].first, value, (runs[-1].sites[0], sites))
        else:
            runs.append(_Run(value, value, (sites, sites)))
    if len(runs) > 1:
        raise NotConstant(changed_text(name, values, _change(walk, runs), subject), runs[0].last, runs[1].first)
    return {site: _words(seen) for site, seen in runs[0].sites[0].items()}


def _values(batch: Iterable[int] | None, tokens: Iterable[int] | None) -> tuple[str, list[int]]:
    given = {name: value for name, value in (("batch", batch), ("tokens", tokens)) if value is not None}
    if len(given) != 1:
        raise InputError("batch", batch, "give either batch (requests) or tokens (rows), for instance batch=range(1, 65)")
    name, value = next(iter(given.items()))
    if isinstance(value, (int, str)):
        raise InputError(name, value, "give several numbers, for instance range(1, 65)")
    values = list(value)
    for one in values:
        if isinstance(one, bool) or not isinstance(one, int) or one < 1:
            raise InputError(name, one, "give whole numbers, 1 or more")
    values = sorted(set(values))
    if len(values) < 2:
        raise InputError(name, values, "nothing can change over fewer than two values: give, for instance, range(1, 65)")
    return name, values


# ---------------------------------------------------------------------------------------------------------------- what is walked

FUSED = "fused with residual and norm"


@dataclass(frozen=True)
class _Seen:
    """One kind of call of a site, and where it goes; no decision where a fused kernel takes it."""

    call: Call
    context: str
    decision: Decision | None

    @property
    def key(self) -> tuple[object, ...]:
        d = self.decision
        return (FUSED,) if d is None else (d.path, d.kernel, d.returns, d.reduces, d.error)

    @property
    def words(self) -> str:
        d = self.decision
        if d is None:
            return FUSED
        if d.error:
            return f"raises {d.error}"
        where = "in place" if d.returns == "input" else "new tensor"
        return f"{d.path} ({d.kernel}), {where}" if d.kernel else f"{d.path}, {where}"


_Sites = dict[str, tuple[_Seen, ...]]


@dataclass(frozen=True)
class _Run:
    """Neighbouring values over which every site routes the same."""

    first: int
    last: int
    sites: tuple[_Sites, _Sites]
    """At the first value, and at the last: the same routes of other sizes."""


def _words(seen: tuple[_Seen, ...]) -> str:
    """A site may part: some of its layers fused, some not."""
    if len(seen) == 1:
        return seen[0].words
    return ", ".join(f"{one.call.count} x {one.words}" for one in seen)


def _keys(seen: tuple[_Seen, ...]) -> Counter[tuple[object, ...]]:
    keys: Counter[tuple[object, ...]] = Counter()
    for one in seen:
        keys[one.key] += one.call.count
    return keys


def _same(a: _Sites, b: _Sites) -> bool:
    return a.keys() == b.keys() and all(_keys(a[site]) == _keys(b[site]) for site in a)


class _GroupWalk:
    """One call of [tokens, hidden] in one group."""

    def __init__(self, subject: Subject, release: Release, context: str, dtype: str, hidden: int, over: str) -> None:
        if over == "batch":
            raise InputError("batch", "a range", "a group alone knows no requests: give tokens=..., or a launch line")
        if isinstance(hidden, bool) or not isinstance(hidden, int) or hidden < 1:
            raise InputError("hidden", hidden, "give the columns of the tensor, 7168 for instance")
        self.subject, self.release, self.context, self.dtype, self.hidden = subject, release, context, dtype, hidden
        (self.name,) = subject.groups

    def sites(self, tokens: int) -> _Sites:
        nbytes = tokens * self.hidden * DTYPE_BYTES[self.dtype]
        call = Call(nbytes=nbytes, dtype=self.dtype, group=self.name, tokens=tokens, hidden=self.hidden)
        decision = route(call, self.subject.groups[self.name], context=self.context, sglang=self.release)
        return {f"[tokens, {self.hidden}] in {self.name}": (_Seen(call, self.context, decision),)}


class _ServerWalk:
    """The step of a server; with ``tokens``, as many rows, not padded to a captured batch nor multiplied by draft tokens."""

    def __init__(self, subject: Subject, release: Release, context: str | None, over: str) -> None:
        server = subject.server
        assert server is not None
        self.release, self.context = release, context
        if over == "tokens":
            server = replace(server, draft_tokens=1, captured_batches=())
            self.context = context or "eager"
        self.server = server

    def sites(self, value: int) -> _Sites:
        from .._step.step import step_of

        step = step_of(self.server, sglang=self.release, batch=value, context=self.context)
        if step.not_modelled:
            notes = [note for note in step.notes if "not modelled" in note or "architecture" in note]
            why = "; ".join(notes) or f"about {step.not_modelled} calls"
            raise InputError("launch", self.server.source, f"not all of its calls are modelled, so nothing is proved: {why}")
        found: dict[str, list[_Seen]] = {}
        for call in step.fused_calls:
            found.setdefault(f"{call.site} ({call.group})", []).append(_Seen(call, step.context, None))
        for item in step.calls:
            name = f"{item.call.site} ({item.call.group})"
            found.setdefault(name, []).append(_Seen(item.call, step.context, item.decision))
        if not found:
            raise InputError(
                "launch", self.server.source, "its step makes no all-reduce: there is nothing that could be constant"
            )
        return {site: tuple(seen) for site, seen in sorted(found.items())}


def _change(walk: _GroupWalk | _ServerWalk, runs: list[_Run]) -> Change:
    """The first site that changes between the first two runs (one that is routed on both sides, if any), and all its runs."""
    before, after = runs[0].sites[1], runs[1].sites[0]
    sites = sorted(before.keys() | after.keys())
    differing = [site for site in sites if _keys(before.get(site, ())) != _keys(after.get(site, ()))]
    routed = [site for site in differing if all(one.decision for one in (*before.get(site, ()), *after.get(site, ())))]
    site = (routed or differing)[0]
    told: list[tuple[int, int, str]] = []
    for run in runs:
        words = _words(run.sites[0].get(site, ())) or "no call"
        if told and told[-1][2] == words:
            told[-1] = (told[-1][0], run.last, words)
        else:
            told.append((run.first, run.last, words))
    pair = tuple(_told_apart(mine.get(site, ()), other.get(site, ())) for mine, other in ((before, after), (after, before)))
    values = runs[0].last, runs[1].first
    return Change(site, len(differing), len(sites), tuple(told), values, pair, walk.release, walk.context)


def _told_apart(mine: tuple[_Seen, ...], other: tuple[_Seen, ...]) -> _Seen | None:
    theirs = _keys(other)
    return next((one for one in mine if one.key not in theirs), mine[0] if mine else None)
