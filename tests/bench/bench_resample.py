"""Real fresh processes, split at random: is a verdict wrong as seldom as it says, and do the runs it asks for find what is planted?

    python tests/bench/bench_resample.py --captured one_shot.jsonl --eager nccl.jsonl --out resample.json
    ... --captured-cell "one_shot captured native back_to_back 16KiB"       where a file has more than one call

Several files of one call are taken together: at least 60 process sets of each, one figure a set. Alike: random splits of all sets into two
arms, and of smaller parts of them. Planted: b's figures are made slower; a first experiment of few runs an arm, as `verdict` sees it, or of
equal arms, as `noise` does, asks for a number of runs; so many are drawn anew, with replacement, and judged. Both arms always come from one
pool, so a drift over the hours of measuring is noise here, as it is in arms that are interleaved.
Invariant: seeds are fixed; a rate over its limit, or too few processes, ends the run with status 1. Two minutes at most.
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
from sglang_probe._verdict.ranks import of_pairs
from sglang_probe._verdict.runs import bound, needed
from sglang_probe._verdict.verdict import Verdict, Word

LEAST, SPLITS = 60, 1000
ALPHA, MARGIN, POWER = 0.05, 0.02, 0.8
FIRST = (5, 10)
"""Runs an arm of a first experiment: of `verdict`, and of `noise`, whose default that is."""
PARTS = (5, 10)
"""Runs an arm of small splits, besides half of all."""
MOST = 2000
"""Runs an arm above which nothing is drawn, and the resample counts as not found."""
PLANTED = {"captured": (0.02, 0.10), "eager": (0.20,)}
COLUMNS = {"captured": "device_us", "eager": "elapsed_us"}


@dataclass(frozen=True)
class Pool:
    """The figures of one call, one a process set."""

    name: str
    cell: str
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


def pool_of(name: str, files: Sequence[str], cell: str | None, column: str) -> Pool:
    """Raises InputError where a file has not this call, or is no measurement file."""
    arms = [arm(Path(file), label=name, cell=cell, column=column) for file in files]
    cells = {one.origin.partition(": ")[2] for one in arms}
    if len(cells) > 1:
        raise probe.InputError("files", ", ".join(files), f"they are of different calls: {'; '.join(sorted(cells))}")
    return Pool(name, cells.pop(), column, tuple(files), np.array([value for one in arms for value in values_of(one)]))


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
            )
        )
    return found


def _by_verdict(draw: np.random.Generator, figures: Floats, effect: float, first: int) -> tuple[Word, int]:
    """Its own word where that is one; else that of so many fresh runs as it asks for."""
    seen = _drawn(draw, figures, effect, first)
    if seen.word is not Word.UNDECIDED:
        return seen.word, first
    runs = seen.runs_needed
    if runs is None or runs > MOST:
        return Word.UNDECIDED, MOST if runs is None else runs
    return _drawn(draw, figures, effect, runs).word, runs


def _drawn(draw: np.random.Generator, figures: Floats, effect: float, runs: int, paired: bool = False) -> Verdict:
    a, b = draw.choice(figures, (2, runs))
    return said(a, b * (1 + effect), paired)


def _by_noise(draw: np.random.Generator, figures: Floats, effect: float, first: int) -> tuple[Word, int]:
    """As noise.py counts: two equal arms in blocks, whose spread is about 0 and not too small in 85 % of experiments."""
    a, b = np.log(draw.choice(figures, (2, first)))
    spread = bound(float(np.sqrt(np.mean((b - a) ** 2) / 2)), first)
    runs = needed(math.log1p(effect), spread, alpha=ALPHA, margin=None, paired=True)
    if runs > MOST:
        return Word.UNDECIDED, runs
    if runs <= 200:
        return _drawn(draw, figures, effect, runs, paired=True).word, runs
    one, other = np.log(
        draw.choice(figures, (2, runs))
    )  # the interval alone: the rest takes long, and has nothing to say of so many
    interval = of_pairs(other - one + math.log1p(effect)).interval(ALPHA / 2)
    return (Word.SLOWER if interval.low > 0 else Word.FASTER if interval.high < 0 else Word.UNDECIDED), runs


def checks_of(pools: Sequence[Pool], splits: Sequence[Split], planted: Sequence[Found]) -> list[Check]:
    """What must hold. A rate of 5 % of 1,000 splits has a standard error of 0.7 %."""
    checks = [Check(f"{one.name}: processes", float(len(one.figures)), LEAST, at_most=False) for one in pools]
    for split in splits:
        limit = ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / split.splits)
        checks.append(Check(f"{split.pool}, {split.runs} runs an arm: FASTER or SLOWER of alike", split.different, limit))
    for one in planted:
        checks.append(Check(f"{one.pool}, {one.planted:.0%} planted, by {one.asked_by}: found", one.found, POWER, at_most=False))
    return checks


def tables(pools: Sequence[Pool], splits: Sequence[Split], planted: Sequence[Found]) -> list[Table]:
    """Three: what there is, what was said of equal arms, what was found."""
    there = Table("call", "figure", "processes", "median", "CV", "least", "most", title="Fresh processes")
    for one in pools:
        values = one.figures
        ends = (f"{value:.4g} us" for value in (values.min(), values.max()))
        cv = f"{100 * values.std(ddof=1) / values.mean():.2g} %" if len(values) > 1 else "-"
        there.add_row(one.cell, one.column, str(len(values)), f"{np.median(values):.4g} us", cv, *ends)
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
