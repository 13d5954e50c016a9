"""Which of a track's steps are the step that was asked about; the others are counted and told, never held against it. Called by check.py.

In this order: what a range says (SGLang's word for the step, its batch), the phase in which the step should run, the number of calls. A
prefill makes as many calls as a decode step, eagerly: it is left out wherever the step in question is replayed.
Invariant: where no step is what was asked about, the nearest ones are taken, and a note says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .expected import Expected
from .marks import DECODES
from .steps import SeenStep, Steps


@dataclass(frozen=True)
class Asked:
    """What the step in question is like."""

    expected: Expected | None
    batch: int
    padded: int
    verify: bool
    """More than one token a request: a verify step."""
    phase: str = ""
    """Only steps of this phase: replayed, eager."""
    steps: tuple[int, int] | None = None
    """Only steps of these numbers, the second one not included."""


@dataclass(frozen=True, eq=False)
class Target:
    """The steps in question, of one track."""

    steps: tuple[SeenStep, ...]
    others: tuple[tuple[str, int], ...]
    """What the others are, and how many."""
    notes: tuple[str, ...] = ()
    wrong_phase: str = ""
    """All of them run in this phase, and should not."""


def choose(found: Steps, asked: Asked, stage: str = "") -> Target:
    """``stage``: what the file says that it holds."""
    chooser = _Chooser(found.steps)
    if asked.steps is not None:
        first, last = asked.steps
        numbered = {id(step) for step in found.steps[first:last]}
        chooser.keep(lambda step: id(step) in numbered, "of other numbers than --steps")
    if asked.phase:
        chooser.keep(lambda step: step.phase == asked.phase, f"not {asked.phase}")
    if stage in ("EXTEND", "PREFILL") and asked.expected is not None:
        chooser.keep(lambda _step: False, "prefill, as the file's name says")
    _by_stage(chooser, asked)
    if asked.expected is None:
        return chooser.target()
    wrong = _by_phase(chooser, asked.expected)
    _by_count(chooser, asked.expected)
    return chooser.target(wrong)


class _Chooser:
    """Leaves out step by step, and remembers why."""

    def __init__(self, steps: tuple[SeenStep, ...]) -> None:
        self.left = steps
        self.others: Counter[str] = Counter()
        self.notes: list[str] = []

    def keep(self, wanted: Callable[[SeenStep], bool], others: str) -> None:
        kept = tuple(step for step in self.left if wanted(step))
        self.others[others] += len(self.left) - len(kept)
        self.left = kept

    def keep_if_any(self, wanted: Callable[[SeenStep], bool], others: str) -> bool:
        """The same where that leaves any."""
        if not any(wanted(step) for step in self.left):
            return False
        self.keep(wanted, others)
        return True

    def target(self, wrong_phase: str = "") -> Target:
        others = tuple((name, count) for name, count in self.others.items() if count)
        return Target(self.left, others, tuple(self.notes), wrong_phase)


def _by_stage(chooser: _Chooser, asked: Asked) -> None:
    """By SGLang's own words in the names of ranges."""
    stages = {step.stage for step in chooser.left} - {""}
    if not stages or asked.expected is None:
        return
    wanted = [stage for stage in DECODES if stage in stages and (stage == "DECODE") != asked.verify] or [
        stage for stage in DECODES if stage in stages
    ]
    if not wanted:
        chooser.notes.append(f"no range of a decode or verify step is in the trace, only {', '.join(sorted(stages))}")
        return
    chooser.keep(lambda step: step.stage in wanted, "draft, prefill and other steps, by their ranges")
    batches = Counter(step.batch for step in chooser.left)
    if not chooser.keep_if_any(lambda step: step.batch == asked.batch, "steps of other batches"):
        told = ", ".join(f"{batch} ({count} times)" for batch, count in sorted(batches.items())[:6])
        chooser.notes.append(f"no step of batch {asked.batch} is in the trace: held against those of batch {told}; give --batch")


def _by_phase(chooser: _Chooser, expected: Expected) -> str:
    """The phase in which all steps of the right number run, if it is the wrong one."""
    right, wrong = ("replayed", "eager") if expected.captured else ("eager", "replayed")
    sized = [step for step in chooser.left if _fits(step, expected)]
    pool: Iterable[SeenStep] = sized or chooser.left
    phases = {step.phase for step in pool}
    if right in phases:
        chooser.keep(lambda step: step.phase == right, f"{wrong} (other batches, or prefill)" if expected.captured else wrong)
        return ""
    return wrong if phases == {wrong} else ""


def _fits(step: SeenStep, expected: Expected) -> bool:
    """As many calls as expected; or as many as are left where no fused one was made at all."""
    return len(step) in (len(expected), len(expected) - expected.fused)


def _by_count(chooser: _Chooser, expected: Expected) -> None:
    if not expected.exact or not chooser.left:
        return
    if chooser.keep_if_any(lambda step: len(step) == len(expected), "of another number of calls"):
        return
    if any(not step.edge for step in chooser.left):
        chooser.keep(lambda step: not step.edge, "at an end of the recording")
    plain = len(expected) - expected.fused
    if expected.fused and plain and chooser.keep_if_any(lambda step: len(step) == plain, "of another number of calls"):
        return
    sizes = Counter(len(step) for step in chooser.left)
    nearest = min(sizes, key=lambda size: (abs(size - len(expected)), -sizes[size]))
    chooser.keep(lambda step: len(step) == nearest, "of another number of calls")
    told = ", ".join(f"{size} calls ({count} times)" for size, count in sorted(sizes.items(), reverse=True)[:6])
    chooser.notes.append(f"no step of {len(expected)} calls is in the trace: {told}; held against those of {nearest}")
