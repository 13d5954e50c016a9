"""The route of a step's calls: each distinct call is asked once. Called by step.

Invariant: calls that differ only in their site or count share one Decision, unless one of them runs outside of the piecewise graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .._decision import Decision
from .._releases import Release
from .._route import route
from .._types import Call, Group
from .._versions import at_least
from .calls import EMBEDDING

_IN_REPLAY = "piecewise_replay"
# Releases whose in-place op splits the piecewise graph: it runs between the pieces at each replay, and is not captured.
_SPLITS = (("0.5.4.post1", "0.5.6"), ("0.5.7", "99.0.0"))


class StepRouter:
    """Routes the calls of one step over the server's groups, in one context and release."""

    def __init__(
        self, groups: Mapping[str, Group], release: Release, context: str, *, replayed: bool = False, multimodal: bool = False
    ) -> None:
        """``replayed``: the context is the capture of a piecewise graph; that of a ``multimodal`` model holds no embedding."""
        self.groups, self.release, self.context = groups, release, context
        self._replayed, self._outside = replayed, replayed and multimodal
        self._known: dict[tuple[Call, bool], Decision] = {}
        self._eager: set[tuple[Call, bool]] = set()
        self.notes: tuple[str, ...] = ()

    def __call__(self, call: Call) -> Decision:
        outside = self._outside and call.site == EMBEDDING
        key = replace(call, site="", count=1)
        if (key, outside) not in self._known:
            self._known[key, outside] = self._route(key, outside)
        return self._known[key, outside]

    def context_of(self, call: Call) -> str:
        """In which context the call itself is made: what a replayed graph does not hold runs outside of it."""
        outside = self._outside and call.site == EMBEDDING
        return _IN_REPLAY if (replace(call, site="", count=1), outside) in self._eager else self.context

    def _route(self, call: Call, outside: bool) -> Decision:
        group = self.groups[call.group]
        if outside:
            self._eager.add((call, outside))
            return route(call, group, context=_IN_REPLAY, sglang=self.release)
        decision = route(call, group, context=self.context, sglang=self.release)
        if self._replayed and decision.op == "in_place" and self._splits():
            self.notes = (
                "the in-place op splits the piecewise graph: it runs between the pieces, at each replay, and is not captured",
            )
            self._eager.add((call, outside))
            return route(call, group, context=_IN_REPLAY, sglang=self.release)
        return decision

    def _splits(self) -> bool:
        name = self.release.name
        return any(at_least(name, first) and not at_least(name, last) for first, last in _SPLITS)
