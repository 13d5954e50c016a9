"""Real fresh processes, split at random: is a verdict wrong as seldom as it says, and do the runs it asks for find what is planted?

    python tests/bench/bench_resample.py --captured one_shot.jsonl --eager nccl.jsonl --out resample.json
    ... --captured-cell "one_shot captured native back_to_back 16KiB"       where a file has more than one call

One of --captured and --eager will do; both may be cells of one file. Several files of one call are taken together: at least 60 process
sets of each, one figure a set. Alike: random splits of all sets into two arms, and of smaller parts of them. Planted: b's figures are made
slower (by 2 and 10 % captured, 20 % eager); a first experiment of few runs an arm, as `verdict` sees it, or of equal arms, as `noise` does,
asks for a number of runs; so many are drawn anew, with replacement, and judged. Both arms always come from one pool, so a drift over the
hours of measuring is noise here, as it is in arms that are interleaved.
Invariant: seeds are fixed; a rate over its limit, or too few processes, ends the run with status 1. Some minutes at most.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from verdict_noise import Check, Floats, percent

import sglang_probe as probe
from sglang_probe._verdict.arm import Arm, arm
from sglang_probe._verdict.figures import values_of
from sglang_probe._verdict.judge import Error, judge
from sglang_probe._verdict.ranks import Design, of_pairs, of_two_samples
from sglang_probe._verdict.runs import MOST as MILLION
from sglang_probe._verdict.runs import bound, needed
from sglang_probe._verdict.verdict import Verdict, Word

LEAST, SPLITS = 60, 1000
ALPHA, MARGIN, POWER = 0.05, 0.02, 0.8
FIRST = (5, 10)
"""Runs an arm of a first experiment: of `verdict`, and of `noise`, whose default that is."""
PARTS = (5, 10)
"""Runs an arm of small splits, besides half of all."""
MOST, WHOLE = 50_000, 200
"""Runs an arm above which nothing is drawn, and the resample counts as not found; and up to which all that a verdict looks at is looked at:
beyond, the test alone, which is all that so many have to say."""
PLANTED = {"captured": (0.02, 0.10), "eager": (0.20,)}
COLUMNS = {"captured": "device_us", "eager": "elapsed_us"}


@dataclass(frozen=True)
class Pool:
    """The figures of one call, one a process set."""

    name: str
    cell: str
    on: str
    """The ranks, and the machine that the file names."""
    column: str
    files: tuple[str, ...]
    figures: Floats


@dataclass(frozen=True)
class Split:
    """Of random splits of one pool into two arms, shares of words."""

    pool: str
    runs: int
    splits: int
    different: float
    same: float


@dataclass(frozen=True)
class Found:
    """What became of a planted slow-down."""

    pool: str
    planted: float
    asked_by: str
    runs: float
    """That were asked for: the median of resamples; of a first experiment that decided, its own."""
    runs_most: float
    """And in 9 of 10 resamples at most."""
    found: float
    """Share of SLOWER."""
    wrong: float
    """Share of FASTER."""
    resamples: int
    undrawn: float
    """Share in which more runs were asked for than are drawn here: not found."""


def pool_of(name: str, files: Sequence[str], cell: str | None, column: str) -> Pool:
    """Raises InputError where a file has not this call, or is no measurement file."""
    measurements = [probe.Measurement.read(file) for file in files]
    arms = [arm(one, label=name, cell=cell, column=column) for one in measurements]
    for what, told in (
        ("calls", {one.origin.partition(": ")[2].partition(f", {column}")[0] for one in arms}),
        ("machines", {ranks_of(one) for one in measurements}),
    ):
        if len(told) > 1:
            raise probe.InputError("files", ", ".join(files), f"they are of different {what}: {'; '.join(sorted(told))}")
        if what == "calls":
            call = told.pop()
    on = ranks_of(measurements[0])
    return Pool(name, call, on, column, tuple(files), np.array([value for one in arms for value in values_of(one)]))


def ranks_of(measurement: probe.Measurement) -> str:
    """``2 GPU ranks, NVIDIA H200, NVIDIA H200``; where they shared one, that they did, and that it is a trial."""
    first, provenance, ordinals = measurement.cells[0], measurement.provenance, tuple(measurement.plan.get("ordinals", ()))
    shared = ", sharing GPUs: a trial, which says nothing of a cost" if len(set(ordinals)) < len(ordinals) else ""
    machine = "" if provenance is None else str(provenance).partition(";")[0]
    return f"{first.world_size} {'GPU' if first.device == 'gpu' else 'CPU'} ranks{shared} ({machine or 'no machine is named'})"


def said(a: Floats, b: Floats, paired: bool = False) -> Verdict:
    """What a verdict says of these figures, by the very functions."""
    blocks = tuple(range(len(a))) if paired else ()
    one, other = (Arm(label, tuple((float(v),) for v in values), "us", blocks=blocks) for label, values in (("a", a), ("b", b)))
    return judge(one, other, "lower", MARGIN, Error(1 - ALPHA, ALPHA))


def splits_of(pool: Pool, splits: int) -> list[Split]:
    """All in two halves, and small parts of them, without replacement."""
    found = []
    for runs in (*(part for part in PARTS if 2 * part < len(pool.figures)), len(pool.figures) // 2):
        draw = np.random.default_rng([runs, len(pool.name)])
        words = []
        for _ in track(range(splits), f"{pool.name}: splits of {runs}", transient=True, disable=not sys.stdout.isatty()):
            drawn = draw.permutation(pool.figures)[: 2 * runs]
            words.append(said(drawn[:runs], drawn[runs:]).word)
        different = sum(word in (Word.FASTER, Word.SLOWER) for word in words)
        found.append(Split(pool.name, runs, splits, different / splits, words.count(Word.SAME) / splits))
    return found


def planted_in(pool: Pool, effect: float, splits: int) -> list[Found]:
    """By what a first `verdict` asks for, and by what a first `noise` does."""
    found = []
    for by, first in zip(("verdict", "noise"), FIRST, strict=True):
        draw = np.random.default_rng([first, round(1e4 * effect), len(pool.name)])
        words, asked = [], []
        for _ in track(range(splits), f"{pool.name}: {effect:.0%} by {by}", transient=True, disable=not sys.stdout.isatty()):
            word, runs = (_by_verdict if by == "verdict" else _by_noise)(draw, pool.figures, effect, first)
            words.append(word)
            asked.append(runs)
        found.append(
            Found(
                *(pool.name, effect, f"{by}, {first} runs an arm", float(np.median(asked)), float(np.quantile(asked, 0.9))),
                *(words.count(Word.SLOWER) / splits, words.count(Word.FASTER) / splits, splits),
                sum(runs > MOST for runs in asked) / splits,
            )
        )
    return found


def _by_verdict(draw: np.random.Generator, figures: Floats, effect: float, first: int) -> tuple[Word, int]:
    """Its own word where that is one; else that of so many fresh runs as it asks for."""
    seen = said(*_drawn(draw, figures, effect, first))
    if seen.word is not Word.UNDECIDED:
        return seen.word, first
    runs = MILLION if seen.runs_needed is None else seen.runs_needed
    return _word(draw, figures, effect, runs, paired=False), runs


def _by_noise(draw: np.random.Generator, figures: Floats, effect: float, first: int) -> tuple[Word, int]:
    """As noise.py counts: two equal arms in blocks, whose spread is about 0 and not too small in 85 % of experiments."""
    a, b = np.log(draw.choice(figures, (2, first)))
    spread = bound(float(np.sqrt(np.mean((b - a) ** 2) / 2)), first)
    runs = needed(math.log1p(effect), spread, alpha=ALPHA, margin=None, paired=True)
    return _word(draw, figures, effect, runs, paired=True), runs


def _drawn(draw: np.random.Generator, figures: Floats, effect: float, runs: int) -> tuple[Floats, Floats]:
    a, b = draw.choice(figures, (2, runs))
    return a, b * (1 + effect)


def _word(draw: np.random.Generator, figures: Floats, effect: float, runs: int, paired: bool) -> Word:
    """Of so many runs."""
    if runs > MOST:
        return Word.UNDECIDED
    a, b = _drawn(draw, figures, effect, runs)
    if runs <= WHOLE:
        return said(a, b, paired).word
    a, b = np.log(a), np.log(b)

    def counts(shift: float) -> tuple[Design, int, int]:
        """Of the differences by which b lies above a and ``shift``: at or below 0, at or above 0. An end of the interval lies beyond
        ``shift`` where they are few."""
        found = of_pairs(b - a - shift) if paired else of_two_samples(a + shift, b)
        return found.design, *found.counts()

    (design, below, above), limit = counts(0.0), math.log1p(MARGIN)
    if max(design.tail(counts(-limit)[1]), design.tail(counts(limit)[2])) <= ALPHA:
        return Word.SAME
    return Word.UNDECIDED if design.p(below, above) > ALPHA else Word.SLOWER if above > below else Word.FASTER


def checks_of(pools: Sequence[Pool], splits: Sequence[Split], planted: Sequence[Found]) -> list[Check]:
    """What must hold. A rate of 5 % of 1,000 splits has a standard error of 0.7 %."""
    checks = [Check(f"{one.name}: processes", float(len(one.figures)), LEAST, at_most=False) for one in pools]
    for split in splits:
        limit = ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / split.splits)
        checks.append(Check(f"{split.pool}, {split.runs} runs an arm: FASTER or SLOWER of alike", split.different, limit))
    for one in planted:
        beyond = f" (over {MOST:,} runs were asked for, and not drawn, in {one.undrawn:.0%})" if one.undrawn else ""
        what = f"{one.pool}, {one.planted:.0%} planted, by {one.asked_by}: found{beyond}"
        checks.append(Check(what, one.found, POWER, at_most=False))
    return checks


def tables(pools: Sequence[Pool], splits: Sequence[Split], planted: Sequence[Found]) -> list[Table]:
    """Three: what there is, what was said of equal arms, what was found."""
    on = "; ".join(sorted({one.on for one in pools}))
    there = Table("call", "figure", "processes", "median", "CV", "least", "most", title=f"Fresh processes: {on}")
    for one in pools:
        values = one.figures
        ends = (f"{value:.4g} us" for value in (values.min(), values.max()))
        cv = f"{100 * values.std(ddof=1) / values.mean():.3g} %" if len(values) > 1 else "-"
        there.add_row(f"{one.name}: {one.cell}", one.column, str(len(values)), f"{np.median(values):.4g} us", cv, *ends)
    alike = Table("call", "runs an arm", "FASTER or SLOWER", "SAME", title="Random splits into two arms (resampled)")
    for split in splits:
        alike.add_row(split.pool, str(split.runs), percent(split.different), percent(split.same))
    slower = Table(
        *("call", "planted", "asked by", "runs an arm (median)", "in 9 of 10 at most", "SLOWER", "FASTER"),
        title="Planted slow-downs, at the runs that were asked for (resampled)",
    )
    for found in planted:
        runs = (f"{found.runs:,.0f}", f"{found.runs_most:,.0f}")
        slower.add_row(found.pool, f"{found.planted:.0%}", found.asked_by, *runs, percent(found.found), percent(found.wrong))
    return [there, alike, slower]


def main(argv: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in PLANTED:
        parser.add_argument(f"--{name}", nargs="+", default=[], metavar="FILE")
        parser.add_argument(f"--{name}-cell", metavar="WORDS")
        parser.add_argument(f"--{name}-column", default=COLUMNS[name])
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--out", metavar="FILE", help="JSON")
    asked = parser.parse_args(None if argv is None else list(argv))
    if not (asked.captured or asked.eager) or asked.splits < 1:
        parser.error("give files: --captured FILE..., --eager FILE...; and at least one split")
    try:
        pools = [
            pool_of(name, files, getattr(asked, f"{name}_cell"), getattr(asked, f"{name}_column"))
            for name in PLANTED
            if (files := getattr(asked, name))
        ]
    except probe.InputError as error:
        parser.error(str(error))
    splits = [split for pool in pools for split in splits_of(pool, asked.splits)]
    planted = [found for pool in pools for effect in PLANTED[pool.name] for found in planted_in(pool, effect, asked.splits)]
    checks = checks_of(pools, splits, planted)
    console = Console() if sys.stdout.isatty() else Console(width=130)
    for table in tables(pools, splits, planted):
        console.print(table)
    wrong = [check for check in checks if not check.holds]
    for check in wrong:
        side = "over" if check.at_most else "under"
        console.print(f"{side.upper()} ITS LIMIT: {check.what}: {check.rate:.4g}, limit {check.limit:.4g}", style="bold red")
    console.print(f"{len(checks) - len(wrong)} of {len(checks)} checks hold")
    if asked.out:
        Path(asked.out).write_text(json.dumps(plain(pools, splits, planted, checks), indent=1) + "\n")
    return 1 if wrong else 0


def plain(pools: Sequence[Pool], splits: Sequence[Split], planted: Sequence[Found], checks: Sequence[Check]) -> dict[str, Any]:
    """All of it for JSON, with every figure that was split."""
    return {
        "pools": [asdict(pool) | {"figures": pool.figures.tolist()} for pool in pools],
        "splits": [asdict(split) for split in splits],
        "planted": [asdict(found) for found in planted],
        "checks": [asdict(check) | {"holds": check.holds} for check in checks],
    }


if __name__ == "__main__":
    sys.exit(main())
