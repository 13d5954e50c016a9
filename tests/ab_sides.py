"""What tests of experiments share: simulated sides, a book in memory, a machine that is told, a view that keeps what it is shown.

Invariant: nothing here starts a process or looks at a clock.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sglang_probe._ab.experiment import Budget, Experiment
from sglang_probe._ab.journal import Found
from sglang_probe._ab.rule import Rule, Sequential
from sglang_probe._ab.runs import Run
from sglang_probe._ab.seen import Seen
from sglang_probe._ab.sides import Declared, Look, Outcome
from sglang_probe._types import FrozenMap
from sglang_probe._verdict.verdict import Verdict

Make = Callable[[int], Outcome]
"""The outcome of a run, by its number."""


@dataclass
class Side:
    """One that gives what it is told."""

    label: str
    make: Make
    unit: str = "us"
    text: str = "simulated"
    declared: Declared = field(default_factory=Declared)
    numbers: list[int] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "simulated", "label": self.label}

    def run(self, number: int, limit_s: float, look: Look) -> Outcome:
        self.numbers.append(number)
        return self.make(number)


def gave(figure: float, **more: Any) -> Outcome:
    return Outcome((figure,), wall_s=0.001, **{"seen": Seen(1), **more})


def noisy(center: float, spread: float, seed: int) -> Make:
    draw = random.Random(seed)
    return lambda number: gave(center * math.exp(draw.gauss(0, spread)))


class Book:
    """In memory."""

    def __init__(self) -> None:
        self.found = Found()

    def add(self, run: Run) -> None:
        self.found.runs.append(run)

    def add_look(self, look: Mapping[str, Any]) -> None:
        self.found.looks.append(FrozenMap(look))


class Machine:
    """Says what it is told, again and again."""

    def __init__(self, states: Iterable[Mapping[str, Any]] = ({},)) -> None:
        self._states = list(states)
        self._next = 0

    def state(self) -> Mapping[str, Any]:
        self._next += 1
        return self._states[(self._next - 1) % len(self._states)]


@dataclass
class View:
    """Keeps what it is shown."""

    begun: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    blocks: int = 0

    def begin(self, text: str, runs: int) -> None:
        self.begun.append(text)

    def so_far(self, verdict: Callable[[], Verdict], runs: int) -> None:
        self.blocks += 1

    def tell(self, text: str) -> None:
        self.told.append(text)


def experiment(
    a: Make,
    b: Make,
    *,
    rule: Rule | None = None,
    runs: int = 12,
    seed: int = 0,
    machine: Machine | None = None,
    deadline: float = math.inf,
    **budget: Any,
) -> tuple[Experiment, Book, View]:
    book, view = Book(), View()
    sides: Any = {"a": Side("a", a), "b": Side("b", b)}
    rule = rule or Sequential(runs, 0.95, 0.02, "lower")
    found = Experiment(
        sides,
        rule,
        book,
        machine or Machine(),
        view,
        seed=seed,
        budget=Budget(runs, **budget),
        origin="simulated",
        unit="us",
        deadline=deadline,
    )
    return found, book, view
