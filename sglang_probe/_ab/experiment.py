"""Experiment: runs both sides in their drawn order, block by block, until the rule decides or something ends it. Called by ab.py.

Invariant: every run is in the journal before the next begins; the rule is asked at the looks that it planned, and at no others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from .._verdict.arm import Arm
from .._verdict.verdict import Verdict, Word
from .compare import FIXED, differences
from .journal import Found
from .order import Arm as Name
from .order import order_of
from .rule import Rule
from .runs import WARM_UP, Run, arm_of, judged
from .sides import Declared, Look, Side

StoppedBy = Literal["decided", "runs", "time", "failures", "states", "interrupted", ""]
FINAL: tuple[StoppedBy, ...] = ("decided", "runs", "time")
"""After these the error of its rule is spent, and there is nothing left to do; after the others the same command goes on."""
_HOPELESS = 2
"""Failures of an arm that has never succeeded, after which nothing more is tried."""


class Book(Protocol):
    """Where runs are kept: a Journal, or a simulation's list."""

    @property
    def found(self) -> Found: ...

    def add(self, run: Run) -> None: ...

    def add_look(self, look: Mapping[str, Any]) -> None: ...


class States(Protocol):
    """What tells the machine's state: states.Machine."""

    def state(self) -> Mapping[str, Any]: ...


class Shown(Protocol):
    """What people see meanwhile: progress.Progress."""

    def begin(self, text: str, runs: int) -> None:
        """A run begins; so many are done."""

    def so_far(self, verdict: Callable[[], Verdict], runs: int) -> None:
        """A block is done; how it stands, where that is shown."""

    def tell(self, text: str) -> None: ...


@dataclass(frozen=True)
class Budget:
    """What an experiment may take."""

    blocks: int
    """Runs of each arm that count."""
    limit_s: float = 600.0
    """Of one run."""
    failures: int = 3
    """Of one arm, after which it ends."""
    warm_up: int = 1
    """Runs of each arm that are not judged, at the start."""


class Experiment:
    """``run()`` carries it out; what is known by then is in the book, also after an exception."""

    def __init__(
        self,
        sides: Mapping[Name, Side],
        rule: Rule,
        book: Book,
        states: States,
        shown: Shown,
        *,
        seed: int,
        budget: Budget,
        origin: str,
        unit: str,
        allow: Sequence[str] = (),
        deadline: float = math.inf,
    ) -> None:
        self._sides, self._rule, self._book, self._states, self._shown = sides, rule, book, states, shown
        self._seed, self._budget, self._origin, self._unit, self._allow = seed, budget, origin, unit, tuple(allow)
        self.declared: Declared = sides["a"].declared | sides["b"].declared
        self._deadline = deadline
        """Of time.monotonic: no block begins after it."""
        self._failed: dict[Name, int] = {"a": 0, "b": 0}
        """In this call: what failed before was another's patience."""
        self._block = self._next_block()
        self.stopped = ""
        """Why it ended, in words."""

    @property
    def runs(self) -> list[Run]:
        return self._book.found.runs

    def run(self) -> StoppedBy:
        """Until something ends it."""
        if ended := self._ended_before() or self._warm_up():
            return ended
        while True:
            blocks = len(judged(self.runs)) // 2
            if blocks and (ended := self._after_block(blocks)):
                return ended
            if blocks >= self._budget.blocks:
                self.stopped = f"all {blocks} runs of each arm are done"
                return "runs"
            if self._time_is_over():
                return self._at_the_time(blocks)
            if ended := self._one_block():
                return ended

    # ------------------------------------------------------------------------------------------------------------------------- blocks

    def _next_block(self) -> int:
        """The one that is unfinished, else a new one; one in which a run failed is over."""
        blocks = [run.block for run in self.runs if run.block != WARM_UP]
        if not blocks:
            return 0
        last = [run for run in self.runs if run.block == max(blocks)]
        return max(blocks) + (len(last) == 2 or any(run.failed for run in last))

    def _warm_up(self) -> StoppedBy:
        names: tuple[Name, Name] = ("a", "b")
        for count in range(1, self._budget.warm_up + 1):
            for name in names:
                while sum(run.block == WARM_UP and run.arm == name and bool(run.figures) for run in self.runs) < count:
                    if ended := self._told(self._one(name, WARM_UP)):
                        return ended
        return ""

    def _one_block(self) -> StoppedBy:
        there = {run.arm for run in self.runs if run.block == self._block}
        for name in order_of(self._block, self._seed):
            if name in there:
                continue
            run = self._one(name, self._block)
            if ended := self._told(run):
                return ended
            if run.failed:  # the other run of this block would have nothing to be compared with
                break
        self._block += 1
        return ""

    def _one(self, name: Name, block: int) -> Run:
        side, number = self._sides[name], len(self.runs)
        what = "warming up" if block == WARM_UP else f"block {block + 1}"
        self._shown.begin(f"{what}, {side.label}", number)
        during: list[Mapping[str, Any]] = []
        before = self._states.state()

        def look(now: bool) -> None:
            if now:
                during.append(self._states.state())

        heard: Look = look
        outcome = side.run(number, self._budget.limit_s, heard)
        run = Run(
            number=number,
            arm=name,
            block=block,
            figures=() if outcome.failed else outcome.figures,
            failed=outcome.failed,
            wall_s=outcome.wall_s,
            note=outcome.note,
            output=outcome.output,
            before=before,
            during=tuple(during),
            after=self._states.state(),
            seen=outcome.seen,
            cell=outcome.cell,
        )
        self._book.add(run)
        return run

    def _told(self, run: Run) -> StoppedBy:
        """A failure is told at once; too many of one arm end the experiment."""
        if not run.failed:
            return ""
        self._failed[run.arm] += 1
        label, count = self._sides[run.arm].label, self._failed[run.arm]
        where = "warming up" if run.block == WARM_UP else f"block {run.block + 1}"
        self._shown.tell(f"run {run.number + 1} ({label}, {where}) failed: {run.failed}")
        never = not any(one.arm == run.arm and one.figures for one in self.runs)
        if count >= self._budget.failures or (never and count >= _HOPELESS):
            times = "once" if count == 1 else f"{count} times"
            self.stopped = f"{label} failed {times}, the last time in run {run.number + 1} ({where}): {run.failed}"
            return "failures"
        return ""

    # -------------------------------------------------------------------------------------------------------------------------- looks

    def arms(self) -> tuple[Arm, Arm]:
        """What is judged."""
        runs = judged(self.runs)
        a, b = (arm_of(runs, name, self._sides[name].label, self._unit, self._origin) for name in ("a", "b"))
        return a, b

    def _after_block(self, blocks: int) -> StoppedBy:
        gave = [run for run in self.runs if run.figures]
        labels = (self._sides["a"].label, self._sides["b"].label)
        found = [one for one in differences(gave, self.declared, self._allow, FIXED, labels) if one.refuses]
        if found and all(sum(run.arm == name and run.seen.looks > 0 for run in gave) >= 2 for name in ("a", "b")):
            self.stopped = found[0].text
            return "states"
        if self._rule.due(blocks) and not any(look["blocks"] == blocks for look in self._book.found.looks):
            return self._look(blocks, self._rule.look(*self.arms()))
        self._shown.so_far(lambda: self._rule.now(*self.arms()), len(self.runs))
        return ""

    def _look(self, blocks: int, verdict: Verdict, last: bool = False) -> StoppedBy:
        self._shown.so_far(lambda: verdict, len(self.runs))
        ends = {name: getattr(verdict, name) for name in ("effect", "low", "high")}
        plain = {name: value if math.isfinite(value) else None for name, value in ends.items()}
        self._book.add_look({"blocks": blocks, "last": last, "word": str(verdict.word), **plain})
        if verdict.word == Word.UNDECIDED:
            return ""
        self.stopped = f"it was decided after {blocks} runs of each arm"
        return "decided"

    def _ended_before(self) -> StoppedBy:
        """By an earlier call, whose file has no end: it was killed, or its arms differed in what may be allowed now."""
        looks = self._book.found.looks
        look: Mapping[str, Any] = looks[-1] if looks else {"word": Word.UNDECIDED, "last": False}
        if look["last"]:
            return self._time(int(look["blocks"]))
        if look["word"] == Word.UNDECIDED:
            return ""
        self.stopped = f"it was decided after {look['blocks']} runs of each arm"
        return "decided"

    # --------------------------------------------------------------------------------------------------------------------------- time

    def _time_is_over(self) -> bool:
        """Also where another block would not fit in."""
        left = self._deadline - time.monotonic()
        if left <= 0:
            return True
        last = {name: [run.wall_s for run in self.runs if run.arm == name and not run.failed][-5:] for name in ("a", "b")}
        return all(last.values()) and sum(sum(each) / len(each) for each in last.values()) > left

    def _at_the_time(self, blocks: int) -> StoppedBy:
        """The last look: what later ones would have spent is spent here."""
        if blocks:
            self._look(blocks, self._rule.last(*self.arms()), last=True)
        return self._time(blocks)

    def _time(self, blocks: int) -> StoppedBy:
        self.stopped = f"its time was over after {blocks} run{'s' * (blocks != 1)} of each arm"
        return "time"
