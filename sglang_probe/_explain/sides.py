"""One launch on both releases: the steps, and their calls in pairs, each with the phase it runs in. Called by explain.py, bounds.py.

Invariant: both steps are of the same batch, width and context asked for; what a release's own defaults make of these is part of the change.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .._costs.costs import phase_of
from .._decision import Decision
from .._releases import Release, resolve
from .._step.calls import is_multimodal
from .._step.context import find_context
from .._step.route import StepRouter
from .._step.step import _EXAMPLE_HARDWARE, _EXAMPLE_LAUNCH, EXAMPLE_COMMITS, step, step_of
from .._step.types import Step, StepCall
from .._types import FrozenMap, Group, InputError, Model, Server

EXAMPLE: Mapping[str, Any] = FrozenMap(
    {
        **_EXAMPLE_HARDWARE,
        "launch": _EXAMPLE_LAUNCH,
        "sglang_before": EXAMPLE_COMMITS[0],
        "sglang_after": EXAMPLE_COMMITS[1],
        "context": "eager",
        "before": "19ms",
        "after": "29ms",
        "plain_before": "89tok/s",
        "plain_after": "82tok/s",
    }
)
"""The motivating case: the verify step ran eagerly, the rates are of decoding without speculation."""


@dataclass(frozen=True)
class Asked:
    """The server, as it was described, and the two releases."""

    sglang_before: str | Release
    sglang_after: str | Release
    launch: str | None = None
    log: str | os.PathLike[str] | None = None
    url: str | None = None
    model: str | os.PathLike[str] | Model | None = None
    machine: Mapping[str, Any] = field(default_factory=lambda: FrozenMap({}))
    """gpu, link, nodes, gpus, env, as step takes them."""
    batch: int = 1
    draft_tokens: int | None = None
    context: str | None = None


def _seen(d: Decision) -> tuple[object, ...]:
    """What a caller can tell of a route; of one that raises, only what it raises."""
    if d.error:
        return (d.path, d.error)
    return (d.path, d.op, d.kernel, d.backend, d.returns, d.cloned, d.reduces)


@dataclass(frozen=True)
class Way:
    """One kind of call on one side: where it goes, and in which phase."""

    item: StepCall
    group: Group
    phase: str

    @property
    def decision(self) -> Decision:
        return self.item.decision

    @property
    def key(self) -> tuple[object, ...]:
        """What makes another way of it; a rule that was only renamed does not."""
        return (*_seen(self.decision), self.phase, self.item.call.nbytes, self.item.call.dtype)

    def __str__(self) -> str:
        """``custom (v1, two_shot, new tensor), captured``."""
        d = self.decision
        if d.error:
            return f"raises {d.error}"
        result = "NOT REDUCED" if not d.reduces and d.path != "none" else "clone" if d.cloned else ""
        result = result or ("new tensor" if d.returns == "new" and d.path != "pynccl_out_of_place" else "")
        extra = [
            part for part in (d.backend, d.kernel, result) if part and part != d.path and part not in _SAID.get(str(d.path), ())
        ]
        told = f" ({', '.join(extra)})" if extra else ""
        return f"{d.path}{told}, {self.phase}"


_SAID = {
    "pynccl_in_place": ("nccl",),
    "pynccl_out_of_place": ("nccl",),
    "torch_distributed": ("torch",),
}
"""What a path's own name says already."""


@dataclass(frozen=True)
class Pair:
    """Calls of one site: so many of them go this way before and that way after. None: it is not made there, or a fused kernel takes it."""

    site: str
    group: str
    count: int
    before: Way | None
    after: Way | None

    @property
    def changes(self) -> bool:
        return self.before is None or self.after is None or self.before.key != self.after.key


@dataclass(frozen=True)
class Sides:
    """The same step on both releases."""

    before: Step
    after: Step
    pairs: tuple[Pair, ...]

    @property
    def steps(self) -> tuple[Step, Step]:
        return self.before, self.after

    @property
    def changed(self) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.pairs if pair.changes)

    @property
    def drafts(self) -> tuple[str, ...]:
        """The draft's own all-reduces that change: they are of the cycle, not of the step, and in no sum."""
        ways = [
            {part.name: (part.count, part.nbytes, *_seen(part.decision)) for part in step.cycle if part.decision is not None}
            for step in self.steps
        ]
        return tuple(name for name in {**ways[0], **ways[1]} if ways[0].get(name) != ways[1].get(name))

    @property
    def unmodelled(self) -> int:
        return max(self.before.not_modelled, self.after.not_modelled)


class Reader:
    """Reads the server once, and gives the step of either release in any context and width."""

    def __init__(self, asked: Asked, report: Callable[[str], None]) -> None:
        self.asked = asked
        self.releases = (_release(asked, "sglang_before"), _release(asked, "sglang_after"))
        report("reading the server")
        self.notes: tuple[str, ...] = ()
        self.first = self._first()
        if any(one.server is None for one in self.first):
            raise InputError("launch", asked.launch, "no server was read of it")

    @property
    def servers(self) -> tuple[Server, Server]:
        before, after = (one.server for one in self.first)
        assert before is not None and after is not None
        return before, after

    @property
    def width(self) -> int:
        """Tokens of a request in a verify step."""
        return self.first[1].draft_tokens

    def sides(self, *, width: int | None = None, context: str | None = None, own: bool = False) -> Sides:
        """Both steps; ``context``: as asked where it is None, or with ``own`` what the server does."""
        before, after = (self.step(i, width=width, context=context, own=own) for i in range(2))
        return Sides(before, after, _pairs(self._ways(0, before), self._ways(1, after)))

    def step(self, side: int, *, width: int | None = None, context: str | None = None, own: bool = False) -> Step:
        asked, server = self.asked, self.servers[side]
        server = replace(server, draft_tokens=width or self.asked.draft_tokens or server.draft_tokens)
        return step_of(server, sglang=self.releases[side], batch=asked.batch, context=context or (None if own else asked.context))

    def contexts(self, *, width: int | None = None) -> Sides:
        """What changes for one release alone: its step captured (before), and eager (after)."""
        captured, eager = (self.step(1, width=width, context=name) for name in ("capture", "eager"))
        return Sides(captured, eager, _pairs(self._ways(1, captured), self._ways(1, eager)))

    def _first(self) -> tuple[Step, Step]:
        a = self.asked
        given = {name: value for name, value in (("log", a.log), ("url", a.url), ("launch", a.launch)) if value is not None}
        if len(given) > 1:
            first, second = list(given)[:2]
            raise InputError(second, given[second], f"give either {first} or {second}")
        common: dict[str, Any] = {
            **a.machine, "model": a.model, "batch": a.batch, "draft_tokens": a.draft_tokens, "context": a.context, "costs": "none",
        }  # fmt: skip
        if a.log is None and a.url is None:
            return (
                step(a.launch, sglang=self.releases[0], **common),
                step(a.launch, sglang=self.releases[1], **common),
            )
        read = step(log=None if a.log is None else os.fspath(a.log), url=a.url, sglang=self.releases[1], **common)
        assert read.server is not None
        said = read.server.sglang
        others = [release.name for release in self.releases if release.name != said]
        if others:
            self.notes = (f"the server is of {said}: its settings are taken for {' and '.join(others)} too",)
        server = replace(read.server, draft_tokens=a.draft_tokens or read.server.draft_tokens)
        found = [step_of(server, sglang=release, batch=a.batch, context=a.context) for release in self.releases]
        return found[0], found[1]

    def _ways(self, side: int, one: Step) -> list[Way]:
        server = one.server
        assert server is not None
        phases = self._phases(side, one)
        return [Way(item, server.groups[item.call.group], phases(item)) for item in one.calls]

    def _phases(self, side: int, one: Step) -> Callable[[StepCall], str]:
        """Captured or eager: in a replayed piecewise graph some calls run outside of its pieces."""
        server, release = self.servers[side], self.releases[side]
        assert server.model is not None
        if one.context != "piecewise_capture":
            phase = phase_of(one.context)
            return lambda _item: phase
        how = find_context(server, server.model, self.asked.context, self.asked.batch, one.draft_tokens, server.sglang)
        replayed = how.replayed and how.name == one.context
        router = StepRouter(server.groups, release, one.context, replayed=replayed, multimodal=is_multimodal(server.model))

        def of(item: StepCall) -> str:
            router(item.call)
            return phase_of(router.context_of(item.call))

        return of


def _release(asked: Asked, name: str) -> Release:
    """Raises InputError that names this side."""
    try:
        return resolve(getattr(asked, name))
    except InputError as error:
        raise InputError(name, error.value, error.remedy) from None


def _pairs(before: list[Way], after: list[Way]) -> tuple[Pair, ...]:
    """Site by site, in the order of the step; what is left of a count on one side has no partner."""
    left: dict[tuple[str, str], list[tuple[int, Way]]] = {}
    for way in after:
        left.setdefault((way.item.call.site, way.item.call.group), []).append((way.item.call.count, way))
    pairs: list[Pair] = []
    for way in before:
        site, group, count = way.item.call.site, way.item.call.group, way.item.call.count
        waiting = left.get((site, group), [])
        while count and waiting:
            there, other = waiting.pop(0)
            both = min(count, there)
            pairs.append(Pair(site, group, both, way, other))
            count -= both
            if there > both:
                waiting.insert(0, (there - both, other))
        if count:
            pairs.append(Pair(site, group, count, way, None))
    pairs += [Pair(site, group, count, None, way) for (site, group), waiting in left.items() for count, way in waiting]
    return tuple(pairs)
