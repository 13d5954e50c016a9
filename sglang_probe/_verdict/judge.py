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
from .drift import Drift, drift_of, neighbours, one_order
from .nouns import Better, Finding, Verdict, Word
from .ranks import LEAST, TIE, Design, Differences, all_apart, of_pairs, of_strata, of_two_samples
from .runs import MOST, Asked, asked, needed_by_share
from .shape import Modes, alike_shares, modes, new_mode, outliers, resolution
from .spread import Spread, drawn_in, of_arms, of_blocks
from .told import findings
from .walk import beside, step_of
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
    across: bool
    """So few pairs that they decide only where all runs of one arm lie beyond all of the other."""
    drift: Drift | None
    """Of arms whose order is known."""
    drifted: bool
    """The interval would give a word, had it not been widened to what time may have made of it."""
    interleaved: bool
    """In blocks whose order was drawn."""
    left_out: int
    """Processes whose block has no other arm."""
    coarse: float
    """The step that figures look rounded to, relative, where many are equal; else 0."""
    spread: Spread
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
    def timed(self) -> bool:
        """The order of the runs is known, and no blocks take out what time does."""
        return self.drift is not None and not self.interleaved

    @property
    def one_after_other(self) -> bool:
        """As is known of them; of figures alone nothing is."""
        return self.timed and self.drift is not None and self.drift.separate

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
    many = runs_asked(evidence)
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
        spread=evidence.spread.value if evidence.spread.free else None,
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
    spread = _spread(one, other, pairs, interleaved)
    ends, same, p = (float(both.low), float(both.high)), (float(equal.low), float(equal.high)), differences.design.p(below, above)
    across = (
        all_apart(*_of_common(one, other), error.alpha / 2) if pairs and not differences.design.rank(error.alpha / 2) else None
    )
    if across:
        ends, p = across[:2], across[2] if across[0] > 0 or across[1] < 0 else p
    if spread.unlike:
        ends, same = spread.unlike.reach(*ends, error.alpha / 2), spread.unlike.reach(*same, error.alpha)
        p = max(p, spread.unlike.p)
    evidence = Evidence(
        *(one, other, better, margin, error, differences.design, pairs),
        effect=float(both.middle),
        low=ends[0],
        high=ends[1],
        same_low=same[0],
        same_high=same[1],
        p=p,
        share=(total - below + (below + above - total) / 2) / total,
        separated=min(below, above) == 0,
        across=across is not None,
        drift=drift_of(one.logs, other.logs, a.order, b.order) if one_order(a, b) else None,
        drifted=False,
        interleaved=interleaved,
        left_out=left_out,
        coarse=_coarse(one, other),
        spread=spread,
    )
    evidence = _timed(evidence)
    why = veto(evidence)
    return replace(evidence, word=Word.UNDECIDED if why else _word(evidence), why=why)


def _timed(e: Evidence) -> Evidence:
    """Widened to what time may have made of it, where it is known when each run was made and no blocks take that out."""
    if not e.timed:
        return e
    a, b = (
        drawn_in(one.logs, beside(one.logs, one.out, other.logs, one.arm.order, other.arm.order))
        for one, other in ((e.a, e.b), (e.b, e.a))
    )
    step = step_of(a, b, e.a.arm.order, e.b.arm.order)
    (low, high), same = step.reach(e.low, e.high, e.error.alpha / 2), step.reach(e.same_low, e.same_high, e.error.alpha)
    wider = replace(e, low=low, high=high, same_low=same[0], same_high=same[1], p=max(e.p, step.p(e.effect)))
    return replace(wider, drifted=(e.differs or e.fits) and not (wider.differs or wider.fits))


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
    in_a, in_b = _of_common(a, b)
    return of_pairs(in_b - in_a), len(common), left_out, True


def _of_common(a: Side, b: Side) -> tuple[Floats, Floats]:
    """Of pairs: those of each block, in one order."""
    in_a, in_b = (dict(zip(side.arm.blocks, side.logs, strict=True)) for side in (a, b))
    common = sorted(in_a.keys() & in_b.keys())
    return np.array([in_a[number] for number in common]), np.array([in_b[number] for number in common])


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
    if e.drifted or (e.one_after_other and e.drift is not None and e.drift.shows and not (e.differs or e.fits)):
        return "drift"
    moved = max((_moved(side, e.margin) for side in (e.a, e.b)), default=0.0)
    near = min(abs(e.low), abs(e.high)) if e.differs else 0.0
    if moved and (near < moved if e.differs and not e.fits else e.fits):
        return "moving"
    if e.fits and (e.a.new or e.b.new):
        return "mode"
    if e.fits and not alike_shares((e.a.modes, e.a.logs), (e.b.modes, e.b.logs), e.limit, e.error.alpha):
        return "shares"
    if e.fits and e.coarse > e.margin:
        return "coarse"
    return ""


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


def runs_asked(e: Evidence) -> Asked | None:
    """Runs an arm, in all, that would settle it; None where it is settled, or where more of the same would not. Of arms that were measured
    one after the other, interleaved runs: more of the same take several times as many, and more with each pause."""
    if e.word is not Word.UNDECIDED or e.why in ("drift", "moving", "alike", "coarse") or e.spread.free < 1:
        return None
    least = LEAST if e.one_after_other else max(len(e.a.logs), len(e.b.logs)) + 1
    if (e.a.new or e.b.new) and e.least >= 2:
        runs = max(least, needed_by_share(e.share, alpha=e.error.alpha))
        return Asked(runs, runs) if runs < MOST else None
    paired, spread = bool(e.pairs) or e.one_after_other, e.spread
    found = asked(e.effect, spread.value, spread.free, spread.error, alpha=e.error.alpha, margin=e.margin, paired=paired)
    if (
        found.as_seen == found.either_way and e.spread.tamed
    ):  # such outliers will come again: the spread without them asks for too few
        least = max(least, needed_by_share(e.share, alpha=e.error.alpha, paired=paired))
    return Asked(max(least, found.either_way), max(least, found.as_seen)) if max(least, found.as_seen) < MOST else None


def _spread(a: Side, b: Side, pairs: int, interleaved: bool) -> Spread:
    """Of the design that the arms have. Modes are no outliers, however few runs have one: runs that are asked for must do for them."""
    if pairs:
        in_a, in_b = _of_common(a, b)
        return of_blocks(in_b - in_a)
    of_a, of_b = (side.arm.blocks if interleaved else (0,) * len(side.logs) for side in (a, b))
    found = of_arms(drawn_in(a.logs, a.out), drawn_in(b.logs, b.out), of_a, of_b)
    if a.modes or b.modes:
        return replace(of_arms(a.logs, b.logs, of_a, of_b), unlike=found.unlike)
    return replace(found, tamed=bool(len(a.out) or len(b.out)))
