"""From two arms to a Verdict: one number a process, the rank test of their design, what takes a word away, the runs that would settle it.

Called by verdict.py and stopping.py, which say how much error may be spent.
Invariant: FASTER, SLOWER and SAME come from the interval alone; everything else that is found can only make them UNDECIDED.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from . import words
from .arm import Arm
from .drift import Drift, drift_of, neighbours
from .nouns import Better, Finding, Verdict, Word
from .ranks import LEAST, TIE, Design, Differences, of_pairs, of_strata, of_two_samples
from .runs import Asked, asked, needed_by_share
from .shape import Modes, modes, new_mode, outliers, resolution
from .told import findings
from .within import Process, process_of, still_moving

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Error:
    """What may be wrong how often."""

    confidence: float
    """Of the whole experiment, all looks together."""
    alpha: float
    """Spent on this look: two-sided for FASTER and SLOWER, one-sided for SAME."""
    looks: int = 1
    """That the experiment has, at most."""


@dataclass(frozen=True)
class Side:
    """One arm, one number a process."""

    arm: Arm
    processes: list[Process]
    logs: Floats
    out: NDArray[np.int64]
    """Places of its outliers."""
    modes: Modes | None
    new: bool = False
    """It has a mode that the other arm does not have."""

    @property
    def figures(self) -> Floats:
        return np.asarray(np.exp(self.logs))


@dataclass(frozen=True)
class Evidence:
    """All that a word is made of, and all that is said about it. Effects are differences of logarithms, b - a."""

    a: Side
    b: Side
    better: Better
    margin: float
    error: Error
    design: Design
    pairs: int
    """Blocks of one process of each arm; 0 where the test is another."""
    effect: float
    low: float
    high: float
    same_low: float
    same_high: float
    p: float
    share: float
    """Of the differences that are above 0; half of those that are 0."""
    separated: bool
    """Every difference is on the same side of 0."""
    drift: Drift | None
    interleaved: bool
    """In blocks whose order was drawn."""
    left_out: int
    """Processes whose block has no other arm."""
    coarse: float
    """The step that figures look rounded to, relative, where many are equal; else 0."""
    word: Word = Word.UNDECIDED
    why: str = ""
    """What made it UNDECIDED, or ""."""

    @property
    def limit(self) -> float:
        return math.log1p(self.margin)

    @property
    def least(self) -> int:
        return min(len(self.a.logs), len(self.b.logs))

    @property
    def differs(self) -> bool:
        """The interval leaves 0 out."""
        return self.low > 0 or self.high < 0

    @property
    def fits(self) -> bool:
        """The interval of the equivalence test is inside the margin."""
        inside = self.limit - TIE  # what lies on the margin is not inside, whichever way its digits were rounded
        return self.least >= LEAST and -inside < self.same_low and self.same_high < inside


def judge(a: Arm, b: Arm, better: Better, margin: float, error: Error, notes: tuple[Finding, ...] = ()) -> Verdict:
    """The verdict; both arms in one unit. ``notes``: findings of whoever read the figures."""
    evidence = weigh(a, b, better, margin, error)
    spread, free = _spread(evidence)
    many = runs_asked(evidence, spread, free)
    same = evidence.word is Word.SAME
    ends = (evidence.same_low, evidence.same_high) if same else (evidence.low, evidence.high)
    verdict = Verdict(
        word=evidence.word,
        effect=math.expm1(evidence.effect),
        low=math.expm1(ends[0]),
        high=math.expm1(ends[1]),
        level=1 - error.alpha * (2 if same else 1),
        confidence=error.confidence,
        margin=margin,
        p=evidence.p,
        method=words.method(evidence),
        runs_needed=many.either_way if many else None,
        runs_as_seen=many.as_seen if many else None,
        spread=spread if free else None,
        sentence="",
        reason="",
        findings=(*notes, *findings(evidence)),
        a=a,
        b=b,
        better=better,
    )
    return replace(verdict, sentence=words.sentence(evidence, many), reason=words.reason(evidence))


def weigh(a: Arm, b: Arm, better: Better, margin: float, error: Error) -> Evidence:
    """The test, then what takes its word away."""
    one, other = _side(a, margin), _side(b, margin)
    one, other = _newer(one, other.logs), _newer(other, one.logs)
    differences, pairs, left_out, interleaved = _differences(one, other)
    both, equal = differences.interval(error.alpha / 2), differences.interval(error.alpha)
    below, above = differences.counts()
    total = differences.design.total
    known = bool(a.order and b.order and a.clock == b.clock)
    evidence = Evidence(
        *(one, other, better, margin, error, differences.design, pairs),
        effect=float(both.middle),
        low=float(both.low),
        high=float(both.high),
        same_low=float(equal.low),
        same_high=float(equal.high),
        p=differences.design.p(below, above),
        share=(total - below + (below + above - total) / 2) / total,
        separated=min(below, above) == 0,
        drift=drift_of(one.logs, other.logs, a.order, b.order) if known else None,
        interleaved=interleaved,
        left_out=left_out,
        coarse=_coarse(one, other),
    )
    why = veto(evidence)
    return replace(evidence, word=Word.UNDECIDED if why else _word(evidence), why=why)


def _side(arm: Arm, margin: float) -> Side:
    processes = [process_of(iterations) for iterations in arm.processes]
    logs = np.array([one.log for one in processes])
    return Side(arm, processes, logs, outliers(logs), modes(logs, margin))


def _newer(side: Side, other: Floats) -> Side:
    return replace(side, new=new_mode(side.modes, other) is not None)


def _differences(a: Side, b: Side) -> tuple[Differences, int, int, bool]:
    """Of the design that the arms have; how many pairs, how many processes are left out, whether in blocks."""
    blocks_a, blocks_b = (np.array(side.arm.blocks, np.int64) for side in (a, b))
    common = np.intersect1d(blocks_a, blocks_b)
    if not len(common) or a.arm.experiment != b.arm.experiment:
        return of_two_samples(a.logs, b.logs), 0, 0, False
    left_out = int((~np.isin(blocks_a, common)).sum() + (~np.isin(blocks_b, common)).sum())
    counts = [(int((blocks_a == k).sum()), int((blocks_b == k).sum())) for k in common]
    if set(counts) != {(1, 1)}:
        return of_strata(a.logs, b.logs, blocks_a, blocks_b), 0, left_out, True
    kept_a, kept_b = np.isin(blocks_a, common), np.isin(blocks_b, common)
    in_a = a.logs[kept_a][np.argsort(blocks_a[kept_a], kind="stable")]
    in_b = b.logs[kept_b][np.argsort(blocks_b[kept_b], kind="stable")]
    return of_pairs(in_b - in_a), len(common), left_out, True


def _word(evidence: Evidence) -> Word:
    if evidence.fits:
        return Word.SAME
    if evidence.differs:
        higher = evidence.low > 0
        return Word.FASTER if higher == (evidence.better == "higher") else Word.SLOWER
    return Word.UNDECIDED


def veto(e: Evidence) -> str:
    """What makes the interval's word worth nothing: its kind, or ""."""
    if e.least < 2:
        return "one"
    if not e.interleaved and (_alike(e.a) or _alike(e.b)):
        return "alike"
    if e.drift is not None and not e.interleaved and _drifted(e, e.drift):
        return "drift"
    moved = max((_moved(side, e.margin) for side in (e.a, e.b)), default=0.0)
    near = min(abs(e.low), abs(e.high)) if e.differs else 0.0
    if moved and (near < moved if e.differs and not e.fits else e.fits):
        return "moving"
    if e.fits and (e.a.new or e.b.new):
        return "mode"
    if e.fits and e.coarse > e.margin:
        return "coarse"
    return ""


def _drifted(e: Evidence, drift: Drift) -> bool:
    """Whether time may have made the word, in the order that the arms were measured in."""
    if e.fits:
        low, high = drift.taken_off(e.effect, e.same_low, e.same_high)
        return low <= -e.limit or high >= e.limit
    low, high = drift.taken_off(e.effect, e.low, e.high)
    return (not (low > 0 or high < 0)) if e.differs else drift.shows and drift.separate


def _alike(side: Side) -> bool:
    return neighbours(side.arm, side.logs) > 0


def _moved(side: Side, margin: float) -> float:
    """How far the processes of an arm were still moving, where most of them were: a difference of logarithms above 0."""
    moving = still_moving(side.processes, margin)
    return float(np.median(np.abs(moving))) if 2 * len(moving) > len(side.processes) else 0.0


def _coarse(a: Side, b: Side) -> float:
    """The step that figures were rounded to, relative, where many are equal; else 0."""
    logs = np.concatenate([a.logs, b.logs])
    if len(np.unique(logs)) > len(logs) / 2:
        return 0.0
    values = tuple(value for side in (a, b) for process in side.arm.processes for value in process)
    return resolution(values) / math.exp(float(np.median(logs)))


# -------------------------------------------------------------------------------------------------------------------------------- runs


def runs_asked(e: Evidence, spread: float, free: int) -> Asked | None:
    """Runs an arm, in all, that would settle it; None where it is settled, or where more of the same would not."""
    if e.word is not Word.UNDECIDED or e.why in ("drift", "moving", "alike", "coarse") or free < 1:
        return None
    least = max(len(e.a.logs), len(e.b.logs)) + 1
    if (e.a.new or e.b.new) and e.least >= 2:
        runs = max(least, needed_by_share(e.share, alpha=e.error.alpha))
        return Asked(runs, runs)
    error = spread * math.sqrt(1 / len(e.a.logs) + 1 / len(e.b.logs))
    found = asked(e.effect, spread, free, error, alpha=e.error.alpha, margin=e.margin, paired=bool(e.pairs))
    return Asked(max(least, found.either_way), max(least, found.as_seen))


def _spread(e: Evidence) -> tuple[float, int]:
    """Of the logarithms of processes of one arm: standard deviation, outliers drawn in to the next figure; its degrees of freedom."""
    if e.pairs:
        a, b = (dict(zip(side.arm.blocks, side.logs, strict=True)) for side in (e.a, e.b))
        both = np.array([b[number] - a[number] for number in sorted(a.keys() & b.keys())])
        both = _drawn_in(both, outliers(both))
        return float(both.std(ddof=1)) / math.sqrt(2) if len(both) > 1 else 0.0, len(both) - 1
    squares, free = 0.0, 0
    for side in (e.a, e.b):
        logs = _drawn_in(side.logs, side.out)
        numbers = np.array(side.arm.blocks) if e.interleaved else np.zeros(len(logs), np.int64)
        for number in np.unique(numbers):
            cell = logs[numbers == number]
            squares += float(((cell - cell.mean()) ** 2).sum())
            free += len(cell) - 1
    return (math.sqrt(squares / free), free) if free else (0.0, 0)


def _drawn_in(logs: Floats, out: NDArray[np.int64]) -> Floats:
    kept = np.delete(logs, out)
    return np.clip(logs, kept.min(), kept.max()) if len(out) and len(kept) else logs
