"""Rule: when an experiment is looked at, and what each look may say. Used by experiment.py and judged.py.

Sequential is `ab`'s: the looks of a stopping.Plan. Fixed is `noise`'s: one look, when all runs are there.
Invariant: `look` and `last` spend the error that the plan has for them; `now` is for the eye, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from .._verdict.arm import Arm
from .._verdict.judge import Error, judge
from .._verdict.stopping import Plan
from .._verdict.verdict import Verdict, direction


class Rule(Protocol):
    """What an experiment asks."""

    def due(self, blocks: int) -> bool:
        """Whether there is a look after so many blocks."""

    def look(self, a: Arm, b: Arm) -> Verdict:
        """At a look."""

    def last(self, a: Arm, b: Arm) -> Verdict:
        """Where the budget ends between looks, for a reason that the figures had no part in."""

    def now(self, a: Arm, b: Arm) -> Verdict:
        """As it stands, by what the next look may spend."""


class Sequential:
    """As stopping.Plan has it."""

    def __init__(self, blocks: int, confidence: float, margin: float, better: str) -> None:
        self.plan = Plan(blocks, confidence=confidence, margin=margin)
        self._better = better

    def due(self, blocks: int) -> bool:
        """See Rule."""
        return self.plan.due(blocks)

    def look(self, a: Arm, b: Arm) -> Verdict:
        """See Rule."""
        return self.plan.look(a, b, better=self._better)

    def last(self, a: Arm, b: Arm) -> Verdict:
        """See Rule."""
        return self.plan.look(a, b, better=self._better, last=True)

    def now(self, a: Arm, b: Arm) -> Verdict:
        """See Rule."""
        schedule = self.plan.schedule
        following = min(sum(one < len(a) for one in schedule), len(schedule) - 1)
        error = Error(self.plan.confidence, self.plan.alpha(following), len(schedule))
        return judge(a, b, direction(self._better, a.unit), self.plan.margin, error)


class Fixed:
    """So many runs, whatever they show."""

    def __init__(self, blocks: int, confidence: float, margin: float, better: str) -> None:
        self.blocks, self._confidence, self._margin, self._better = blocks, confidence, margin, better

    def due(self, blocks: int) -> bool:
        """Never: nothing that is seen ends it."""
        return False

    def look(self, a: Arm, b: Arm) -> Verdict:
        """See Rule."""
        return judge(a, b, direction(self._better, a.unit), self._margin, Error(self._confidence, 1 - self._confidence))

    last = now = look


def rule_of(plan: Mapping[str, Any]) -> Rule:
    """That of a file's plan."""
    kind = Fixed if plan["ab"] == "noise" else Sequential
    return kind(int(plan["runs"]), float(plan["confidence"]), float(plan["margin"]), str(plan["better"]))
