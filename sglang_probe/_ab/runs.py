"""Run: one run of one arm, with everything that is known of it; a file has one line for each. Made by experiment.py and journal.py.

Invariant: a Run has figures or says why it has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._measure.cell import Cell
from .._measure.format import check_mapping, check_text, freeze, thaw
from .._types import FrozenMap, InputError
from .._verdict.arm import Arm
from .order import Arm as Name
from .seen import Seen

WARM_UP = -1
"""The block of runs that warm up and are not judged."""


@dataclass(frozen=True)
class Run:
    """One run: fresh processes, measured once."""

    number: int
    """From 0, over both arms, in time."""
    arm: Name
    block: int
    """From 0; -1 warmed up."""
    figures: tuple[float, ...]
    """Iterations of its process."""
    failed: str = ""
    wall_s: float = 0.0
    note: str = ""
    output: str = ""
    """Of a run that failed, the tail of what it printed."""
    before: Mapping[str, Any] = field(default_factory=lambda: FrozenMap({}))
    """The machine before it, as states.py has it; ``during`` at the moments at which the guard looked, ``after`` at its end."""
    during: tuple[Mapping[str, Any], ...] = ()
    after: Mapping[str, Any] = field(default_factory=lambda: FrozenMap({}))
    seen: Seen = field(default_factory=Seen)
    cell: Mapping[str, Any] | None = None
    """Of our own bench: the whole cell, with every sample of every rank."""

    def __post_init__(self) -> None:
        if self.arm not in ("a", "b"):
            raise InputError("run.arm", self.arm, "give a or b")
        if bool(self.figures) == bool(self.failed):
            raise InputError("run.figures", self.figures, "a run has figures, or the reason why it has none")
        for name in ("failed", "note", "output"):
            object.__setattr__(self, name, check_text(getattr(self, name), name))
        object.__setattr__(self, "figures", tuple(map(float, self.figures)))
        for name in ("before", "after"):
            object.__setattr__(self, name, check_mapping(getattr(self, name), name))
        object.__setattr__(self, "during", freeze(self.during, "during"))

    @property
    def states(self) -> tuple[Mapping[str, Any], ...]:
        """Those under load: while it ran, and at its end."""
        return (*self.during, self.after)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as a file has it."""
        return {
            "number": self.number,
            "arm": self.arm,
            "block": self.block,
            "figures": list(self.figures),
            "failed": self.failed,
            "wall_s": self.wall_s,
            "note": self.note,
            "output": self.output,
            "before": thaw(self.before),
            "during": [thaw(one) for one in self.during],
            "after": thaw(self.after),
            "seen": self.seen.to_dict(),
            "cell": None if self.cell is None else thaw(self.cell),
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Run:
        """What `to_dict` gave, as JSON has it. Raises InputError."""
        try:
            members = dict(plain)
            members["figures"], members["during"] = tuple(members["figures"]), tuple(members["during"])
            members["seen"] = Seen.from_dict(members["seen"])
            if members["cell"] is not None:
                Cell.from_dict(members["cell"])  # checked here, made when it is asked for
            return cls(**members)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError("run", str(plain)[:80], f"this is no run ({type(error).__name__}: {error})") from None


def judged(runs: Iterable[Run]) -> list[Run]:
    """Those of blocks in which both arms gave figures, in time."""
    blocks: dict[int, dict[str, Run]] = {}
    for run in runs:
        if run.block != WARM_UP and run.figures:
            blocks.setdefault(run.block, {})[run.arm] = run
    return sorted((run for pair in blocks.values() if len(pair) == 2 for run in pair.values()), key=lambda run: run.number)


def arm_of(runs: Iterable[Run], name: Name, label: str, unit: str, origin: str) -> Arm:
    """One arm of an experiment, as a verdict takes it; of runs that `judged` gave."""
    runs = list(runs)
    mine = [(place, run) for place, run in enumerate(runs) if run.arm == name]
    return Arm(
        label,
        tuple(run.figures for _, run in mine),
        unit,
        f"{origin}, arm {name}",
        tuple(place for place, _ in mine),
        tuple(run.block for _, run in mine),
        clock=origin,
        experiment=origin,
    )
