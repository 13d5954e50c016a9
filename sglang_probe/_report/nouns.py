"""What a report is made of, whatever result it is of: Sheet (words, tables, machine, data), and what is drawn: Samples, Effect, Bar.

Made by verdicts.py and explained.py, read by everything else here; so that a result's own shape is known in one place.
Invariant: a Sheet has nothing that its result did not say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._show.page import Block, Line, Table
from .._types import FrozenMap


@dataclass(frozen=True)
class Mode:
    """Processes of one arm that lie together, apart from its others."""

    center: float
    processes: int


@dataclass(frozen=True)
class Samples:
    """One arm as it is drawn."""

    label: str
    processes: tuple[tuple[float, ...], ...]
    """Iterations of each process, in the order measured."""
    figures: tuple[float, ...]
    """What each process counts with: the median of its iterations after its warm-up."""
    unit: str
    origin: str
    center: float
    """The median of the figures."""
    warm: tuple[int, ...] = ()
    """Of each process, how many iterations at its start were a warm-up; empty where none was."""
    modes: tuple[Mode, ...] = ()
    """Empty where there is one."""
    outliers: tuple[int, ...] = ()
    """Places of processes that lie far from the others."""


@dataclass(frozen=True)
class Effect:
    """What b is against a: shares (0.02 is 2 %), None or infinite where there is no such end."""

    value: float | None
    low: float | None
    high: float | None
    margin: float
    """The same is a ratio between 1 / (1 + margin) and 1 + margin."""
    level: float
    """Confidence of low to high."""
    better: str
    """"higher" or "lower"."""
    word: str


@dataclass(frozen=True)
class Bar:
    """A line of an explanation's picture: a figure with its interval, in the picture's unit."""

    label: str
    value: float
    low: float | None
    high: float | None
    origin: str
    kind: str
    """"seen", "bound", "ceiling" (all of the step's calls), "elsewhere" (of another machine), "waiting" (no path causes it)."""


@dataclass(frozen=True)
class Picture:
    """What is drawn: two arms and the effect, or bars, or what `draw` draws; and what one who cannot see it is told."""

    alt: str
    arms: tuple[Samples, ...] = ()
    effect: Effect | None = None
    bars: tuple[Bar, ...] = ()
    unit: str = ""
    missing: tuple[str, ...] = ()
    """What has no number and is therefore no bar."""
    draw: Callable[[Any], Any] | None = field(default=None, compare=False)
    """A Theme, under its settings, becomes a Figure."""


@dataclass(frozen=True)
class Sheet:
    """A result as a report has it."""

    kind: str
    """"verdict", "ab", "noise" or "explanation", or one of paged.py's."""
    word: str
    sentence: str
    reason: str
    tables: tuple[Table, ...]
    """The figures of a bug report."""
    findings: tuple[str, ...] = ()
    """What nobody may overlook: outliers, modes, drift, what differed."""
    lead: tuple[Line, ...] = ()
    """Of a page: what stands between the sentence and the picture."""
    body: tuple[Block, ...] = ()
    """Of a page: all that follows, in its order."""
    details: tuple[Block, ...] = ()
    """All that the result's own page has beside them: what --why prints."""
    machine: tuple[tuple[str, str], ...] = ()
    """What it was measured on: (what, which), as far as the result tells."""
    unknown: tuple[tuple[str, str], ...] = ()
    """What the machine does not tell, and why."""
    commands: tuple[tuple[str, str], ...] = ()
    """(arm or what, the command)."""
    versions: tuple[tuple[str, str], ...] = ()
    picture: Picture | None = None
    data: Mapping[str, Any] = field(default_factory=lambda: FrozenMap({}))
    """The whole result, every sample, as JSON holds it."""
