"""Agreement: do all ranks of a group make the same calls in the same order? What compare.py found, as data and as people see it.

Invariant: one line says what differs first, and of which ranks; a rank that is behind for a moment is no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .._show.page import Block, Line, items, to_html, to_text
from .._types import FrozenMap
from . import words

STALLED_S = 2.0
"""A rank that is behind and has done nothing for so long does not come along by itself."""


@dataclass(frozen=True)
class Seen:
    """A call as some ranks made it."""

    ranks: tuple[int, ...]
    call: str
    """``custom 42 KiB of bf16, captured``."""

    def __str__(self) -> str:
        return f"{words.ranks_text(self.ranks)} {self.call}"


@dataclass(frozen=True)
class Behind:
    """A rank that has made fewer calls than others."""

    rank: int
    calls: int
    """So many fewer."""
    last: str
    """What it did last, in whatever group."""
    idle_s: float | None
    """Since its last call of this group; None: not known. Where all are gone: before the last one's."""
    gone: str = ""
    """``was killed`` or ``has ended``, while others are there."""

    @property
    def is_stalled(self) -> bool:
        return bool(self.gone) or (self.idle_s is not None and self.idle_s >= STALLED_S)

    def __str__(self) -> str:
        how = f"{words.ranks_text([self.rank])} is {words.many(self.calls, 'call')} behind"
        if self.gone:
            return f"{how}: its process {self.gone} (last: {self.last})"
        if self.idle_s is None or not self.is_stalled:
            return f"{how} (last: {self.last})"
        return f"{how} and has not moved for {words.seconds_text(self.idle_s)} (last: {self.last})"


@dataclass(frozen=True)
class GroupAgreement:
    """One group of one server."""

    group: str
    ranks: tuple[int, ...]
    compared: int
    """Calls that two ranks or more have on record."""
    first: int = 0
    last: int = 0
    """Numbers of these calls."""
    call: int = 0
    """The first that differs; 0: none does."""
    differ: tuple[Seen, ...] = ()
    """That call as each made it, the largest part of the ranks first."""
    behind: tuple[Behind, ...] = ()
    shifts: Mapping[int, int] = field(default_factory=lambda: FrozenMap({}))
    """By rank, what is added to the numbers of its calls, where they began to record at another call."""
    assumed: bool = False
    """Who is in the group was not told: all that have one of this name."""
    notes: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        return not self.differ and not self.stalled

    @property
    def stalled(self) -> tuple[Behind, ...]:
        return tuple(one for one in self.behind if one.is_stalled)

    @property
    def text(self) -> str:
        """One line."""
        told = []
        if self.differ:
            told.append(f"call {self.call:,}: {'; '.join(map(str, self.differ))}")
        told += [str(one) for one in self.behind if self.differ or one.is_stalled]
        if not told:
            who = words.ranks_text(self.ranks)
            told.append(
                f"{who} agree in {words.many(self.compared, 'call')}" if self.compared else f"{who}: nothing to compare yet"
            )
        assumed = " (its members are assumed: all that have a group of this name)" if self.assumed and not self.agrees else ""
        return f"{self.group}: {'; '.join([*told, *self.notes])}{assumed}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "group": self.group,
            "agrees": self.agrees,
            "ranks": list(self.ranks),
            "compared": self.compared,
            "calls": [self.first, self.last],
            "differs_at": self.call or None,
            "differ": [{"ranks": list(one.ranks), "call": one.call} for one in self.differ],
            "behind": [vars(one) | {"stalled": one.is_stalled} for one in self.behind],
            "shifts": {str(rank): shift for rank, shift in self.shifts.items()},
            "members_assumed": self.assumed,
            "text": self.text,
        }


@dataclass(frozen=True, repr=False)
class Agreement:
    """All groups of all servers that were looked at."""

    groups: tuple[GroupAgreement, ...]
    graphs: tuple[str, ...] = ()
    """Graphs that are not the same on all ranks."""

    @property
    def agrees(self) -> bool:
        """Nothing differs, and nobody is behind and stands still."""
        return not self.graphs and all(group.agrees for group in self.groups)

    @property
    def answer(self) -> str:
        """One line: what differs first, else what was compared."""
        wrong = [*(group.text for group in self.groups if not group.agrees), *self.graphs]
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            return f"ranks DIFFER: {wrong[0]}{more}"
        compared = [group for group in self.groups if group.compared]
        if not compared:
            return "nothing to compare: no two ranks of a group have records of the same calls"
        calls = sum(group.compared for group in compared)
        return f"all ranks agree: {words.many(calls, 'call')} of {words.many(len(compared), 'group')}"

    @property
    def short(self) -> str:
        """A few words, where all of it stands below."""
        if self.agrees:
            return self.answer
        told = [f"{group.group} at call {group.call:,}" for group in self.groups if group.differ]
        told += [
            f"{words.ranks_text(one.rank for one in group.stalled)} of {group.group} behind"
            for group in self.groups
            if group.stalled
        ]
        return f"ranks DIFFER: {'; '.join([*told, *(['graphs'] if self.graphs else [])])}"

    def page(self, verbose: bool = False) -> list[Block]:
        """What people see."""
        blocks: list[Block] = [Line(self.answer, "answer")]
        blocks += items("Graphs differ", self.graphs, "warn")
        blocks += items("Groups", (group.text for group in self.groups if group.compared or group.behind))
        return blocks

    def __str__(self) -> str:
        return to_text(self.page())

    def __repr__(self) -> str:
        return f"<Agreement: {self.answer}>"

    def _repr_html_(self) -> str:
        return to_html(self.page())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "agrees": self.agrees,
            "answer": self.answer,
            "groups": [group.to_dict() for group in self.groups],
            "graphs": list(self.graphs),
        }
