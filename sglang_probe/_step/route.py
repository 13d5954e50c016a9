"""The route of a step's calls: each distinct call is asked once. Called by step.

Invariant: calls that differ only in their site or count share one Decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .._decision import Decision
from .._releases import Release
from .._route import route
from .._types import Call, Group


class StepRouter:
    """Routes the calls of one step over the server's groups, in one context and release."""

    def __init__(self, groups: Mapping[str, Group], release: Release, context: str) -> None:
        self.groups, self.release, self.context = groups, release, context
        self._known: dict[Call, Decision] = {}

    def __call__(self, call: Call) -> Decision:
        key = replace(call, site="", count=1)
        if key not in self._known:
            self._known[key] = route(key, self.groups[call.group], context=self.context, sglang=self.release)
        return self._known[key]
