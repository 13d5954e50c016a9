"""Is a verdict wrong as seldom as it says? By simulation, seeds fixed: `python tests/bench/bench_verdict.py [--quick]`.

Some minutes; in the tests with few trials (test_verdict_calibration.py).

Five kinds of noise, whose truth is known; thousands of experiments each, through the very functions that `verdict` and `ab` decide by, and
some of each through `verdict` itself. Beside it, on the same figures, Welch's t and Mann-Whitney's test as SciPy has them.
Invariant: a rate that is over its limit ends the run with status 1.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy import stats
from verdict_in_turn import in_turn
from verdict_noise import KINDS, POWERS, QUIET, Check, Floats, Noise, iterations, percent
from verdict_unlike import unlike

from sglang_probe._verdict.arm import Arm
from sglang_probe._verdict.judge import Error, judge
from sglang_probe._verdict.ranks import Differences, of_pairs, of_two_samples, two_samples
from sglang_probe._verdict.runs import runs_for
from sglang_probe._verdict.shape import modes, outliers
from sglang_probe._verdict.stopping import Plan
from sglang_probe._verdict.within import process_of

SIZES = (4, 5, 8, 12, 20)
ALPHA, MARGIN, LIMIT = 0.05, 0.02, 0.055
AT_ONCE = 2000
"""Experiments that are drawn together."""
THROUGH = 100
"""Of each kind and size, how many go through `judge` as well, and must get the same word."""


# --------------------------------------------------------------------------------------------------------------------------- deciding


@dataclass
class Words:
    """Counts of words, and of what two other tests say of the same figures at 5 %."""

    trials: int = 0
    faster: int = 0
    slower: int = 0
    same: int = 0
    welch: int = 0
    mann_whitney: int = 0

    @property
    def different(self) -> float:
        return (self.faster + self.slower) / self.trials

    def rate(self, name: str) -> float:
        """Of one of the counts."""
        return float(getattr(self, name)) / self.trials


def differences(noise: Noise, a: Floats, b: Floats) -> Differences:
    """As `judge` makes them."""
    return of_pairs(b - a) if noise.paired else of_two_samples(a, b)


def words(noise: Noise, a: Floats, b: Floats, alpha: float = ALPHA, margin: float = MARGIN) -> tuple[Floats, Floats]:
    """What the intervals say: +1 where b is higher, -1 where it is lower, else 0; and where SAME, which goes first. Higher is better."""
    found = differences(noise, a, b)
    two, one, limit = found.interval(alpha / 2), found.interval(alpha), math.log1p(margin)
    same = (one.low > -limit) & (one.high < limit) if a.shape[-1] >= 4 else np.zeros(a.shape[0], bool)
    low, high = two.low, two.high
    few = noise.paired and not found.design.rank(alpha / 2)
    if few and a.shape[-1] >= 5 and two_samples(a.shape[-1], b.shape[-1]).rank(alpha / 2):
        low, high = b.min(axis=-1) - a.max(axis=-1), b.max(axis=-1) - a.min(axis=-1)
    return (low > 0) * 1.0 - (high < 0) * 1.0, same


def simulate(noise: Noise, runs: int, trials: int, effect: float = 0.0, scale: float = 1.0, others: bool = True) -> Words:
    """So many experiments with b higher by this; seeds by kind, size and effect."""
    count = Words()
    draw = np.random.default_rng([sum(map(ord, noise.name)), runs, round(1e4 * effect), round(1e4 * scale)])
    while count.trials < trials:
        some = min(AT_ONCE, trials - count.trials)
        a, b = (scale * one for one in noise.draw(draw, some, runs))
        b = b + math.log1p(effect)
        sign, same = words(noise, a, b)
        if not count.trials:
            through(noise, a, b, sign, same)
        count.trials += some
        count.faster += int(((sign > 0) & ~same).sum())
        count.slower += int(((sign < 0) & ~same).sum())
        count.same += int(same.sum())
        if others:
            count.welch += int((stats.ttest_ind(np.exp(a), np.exp(b), axis=1, equal_var=False).pvalue < ALPHA).sum())
            count.mann_whitney += int((stats.mannwhitneyu(a, b, axis=1, method="exact").pvalue < ALPHA).sum())
    return count


def through(noise: Noise, a: Floats, b: Floats, sign: Floats, same: Floats) -> None:
    """That `judge` says the same of the first experiments, or less: what else it looks at takes words away, and gives none. A small
    difference that is SAME may be told instead, where the interval was widened."""
    for i in range(min(THROUGH, len(a))):
        word = str(judge(*arms(noise, a[i], b[i]), "higher", MARGIN, Error(1 - ALPHA, ALPHA)).word)
        expected = {1.0: "FASTER", -1.0: "SLOWER", 0.0: "UNDECIDED"}[float(sign[i])]
        if word not in (expected, "UNDECIDED", *(["SAME"] if same[i] else [])):
            raise AssertionError(f"{noise.name}, {len(a[i])} runs: judge says {word}, its intervals {expected}")


def arms(noise: Noise, a: Floats, b: Floats) -> tuple[Arm, Arm]:
    """Of logarithms."""
    blocks = tuple(range(len(a))) if noise.paired else ()
    made = [Arm(label, tuple((float(v),) for v in np.exp(logs)), "tok/s", blocks=blocks) for label, logs in (("a", a), ("b", b))]
    return made[0], made[1]


# ------------------------------------------------------------------------------------------------------------------------- the tables


def false_alarms(trials: int, slack: float = 0.0) -> tuple[Table, list[Check]]:
    """Arms that are alike: how often FASTER or SLOWER."""
    table = Table(
        "noise",
        "runs an arm",
        "FASTER or SLOWER",
        "Welch",
        "Mann-Whitney",
        title=f"Alike: false alarms in {trials:,} experiments",
    )
    checks = []
    for noise in track(KINDS, "false alarms", transient=True):
        for runs in SIZES:
            found = simulate(noise, runs, trials)
            checks.append(Check(f"false alarms: {noise.name}, {runs} runs", found.different, LIMIT + slack))
            table.add_row(
                noise.name, str(runs), *map(percent, (found.different, found.rate("welch"), found.rate("mann_whitney")))
            )
    return table, checks


def false_same(trials: int, slack: float = 0.0) -> tuple[Table, list[Check]]:
    """At the margin's edge: how often SAME; and how often where there is nothing."""
    table = Table(
        "noise (quieter)", "runs an arm", "SAME at 2 %", "SAME at 0 %", title=f"SAME within 2 %, {trials:,} experiments"
    )
    checks = []
    for noise in track(KINDS, "false SAME", transient=True):
        for runs in SIZES:
            edge = simulate(noise, runs, trials, MARGIN, QUIET[noise.name], others=False)
            nothing = simulate(noise, runs, trials, 0.0, QUIET[noise.name], others=False)
            checks.append(Check(f"SAME at the edge: {noise.name}, {runs} runs", edge.rate("same"), LIMIT + slack))
            table.add_row(noise.name, str(runs), percent(edge.rate("same")), percent(nothing.rate("same")))
    return table, checks


def power(trials: int) -> tuple[Table, list[Check]]:
    """How often a difference is found; at 2 % some are SAME, which is within the margin's edge."""
    table = Table(
        "noise",
        "runs an arm",
        "effect",
        "FASTER",
        "SLOWER",
        "SAME",
        "Welch",
        "Mann-Whitney",
        title=f"Power, {trials:,} experiments",
    )
    checks = []
    for noise in track(POWERS, "power", transient=True):
        for runs in (5, 8, 12, 20):
            for effect in (0.02, 0.05, 0.10):
                found = simulate(noise, runs, trials, effect)
                rates = (found.rate(name) for name in ("faster", "slower", "same", "welch", "mann_whitney"))
                table.add_row(noise.name, str(runs), f"{effect:.0%}", *map(percent, rates))
                checks.append(
                    Check(f"SLOWER of what is faster: {noise.name}, {runs}, {effect}", found.rate("slower"), ALPHA / 2 + 0.005)
                )
    return table, checks


def asked(trials: int, slack: float = 0.0) -> tuple[Table, list[Check]]:
    """Runs that are asked for: of a stated difference and spread, and of what a first experiment of five runs an arm saw."""
    table = Table(
        "spread",
        "difference",
        "runs that it takes",
        "decided with them",
        "first experiments UNDECIDED",
        "asked for (median)",
        "decided with those",
        title="Runs asked for: is it settled then?",
    )
    checks = []
    cases = [(spread, effect) for spread in (0.01, 0.027, 0.087) for effect in (0.0, 0.02, 0.05, 0.10)]
    for spread, effect in track(cases, "runs asked for", transient=True):
        draw = np.random.default_rng([round(1e4 * spread), round(1e4 * effect)])
        stated = runs_for(effect, spread, margin=MARGIN)
        decided = _rate_decided(draw, stated, spread, effect, trials)
        first, numbers, settled = 0, [], 0
        for _ in range(trials):
            a, b = spread * draw.standard_normal(5), spread * draw.standard_normal(5) + math.log1p(effect)
            seen = judge(*arms(KINDS[0], a, b), "higher", MARGIN, Error(1 - ALPHA, ALPHA))
            if seen.runs_needed is None:
                continue
            first += 1
            numbers.append(seen.runs_needed)
            settled += _decided(draw, seen.runs_needed, spread, effect)
        what = f"{100 * effect:.0f} % at a spread of {100 * spread:.1f} %"
        checks.append(Check(f"decided with the runs that are asked for: {what}", decided, 0.8 - slack, at_most=False))
        if first >= 50:
            checks.append(Check(f"decided with what five runs asked for: {what}", settled / first, 0.75 - slack, at_most=False))
        after = (
            percent(first / trials),
            str(int(np.median(numbers))) if numbers else "-",
            percent(settled / first) if first else "-",
        )
        table.add_row(f"{100 * spread:.1f} %", f"{100 * effect:.0f} %", str(stated), percent(decided), *after)
    return table, checks


def _rate_decided(draw: np.random.Generator, runs: int, spread: float, effect: float, trials: int) -> float:
    """As `_decided`, of many at once where they are small."""
    if runs > 100:
        return sum(_decided(draw, runs, spread, effect) for _ in range(trials)) / trials
    sign, same = words(
        KINDS[0], *(spread * draw.standard_normal((2, 10 * trials, runs)) + np.array([0, math.log1p(effect)])[:, None, None])
    )
    return float(((sign != 0) | same).mean())


def _decided(draw: np.random.Generator, runs: int, spread: float, effect: float) -> bool:
    """Whether an experiment of so many fresh runs an arm has a word."""
    found = of_two_samples(spread * draw.standard_normal(runs), spread * draw.standard_normal(runs) + math.log1p(effect))
    two, one, limit = found.interval(ALPHA / 2), found.interval(ALPHA), math.log1p(MARGIN)
    return bool(two.low > 0 or two.high < 0 or (one.low > -limit and one.high < limit))


def stopping(trials: int, slack: float = 0.0) -> tuple[Table, list[Check]]:
    """Experiments that stop at the first look which decides: pairs in blocks, all looks together."""
    plan = Plan(60)
    table = Table(
        *("noise", "effect", "FASTER", "SLOWER", "SAME", "UNDECIDED", "blocks (mean)"),
        title=f"Stopping at the first look that decides (after {', '.join(map(str, plan.schedule))} blocks), {trials:,} experiments",
    )
    checks = []
    cases = [
        (KINDS[0], 0.6, 0.0),
        (KINDS[0], 0.2, MARGIN),
        (KINDS[0], 0.6, 0.05),
        (KINDS[2], 1.0, 0.0),
        (KINDS[3], 1.0, 0.0),
        (KINDS[3], 0.25, MARGIN),
        (KINDS[3], 1.0, 0.1),
    ]
    for noise, scale, effect in track(cases, "looks", transient=True):
        faster, slower, same, blocks = sequential(plan, noise, scale, effect, trials)
        name = f"{noise.name} x {scale:g}"
        if effect == 0.0:
            checks.append(Check(f"false alarms over all looks: {name}", faster + slower, ALPHA + 0.005 + slack))
        if effect == MARGIN:
            checks.append(Check(f"SAME at the edge over all looks: {name}", same, ALPHA + 0.005 + slack))
        table.add_row(
            name, f"{effect:.0%}", *map(percent, (faster, slower, same, max(0.0, 1 - faster - slower - same))), f"{blocks:.1f}"
        )
    return table, checks


def sequential(plan: Plan, noise: Noise, scale: float, effect: float, trials: int) -> tuple[float, float, float, float]:
    """Rates of FASTER, SLOWER, SAME; the mean number of blocks."""
    draw = np.random.default_rng([len(noise.name), round(1e4 * scale), round(1e4 * effect)])
    a, b = (scale * one for one in noise.draw(draw, trials, plan.max_blocks))
    b = b + math.log1p(effect)
    ended = np.full(trials, plan.max_blocks)
    final, done = np.zeros(trials), np.zeros(trials, bool)
    pairs = Noise("", noise.draw, paired=True)
    for number, look in enumerate(plan.schedule):
        sign, same = words(pairs, a[:, :look], b[:, :look], plan.alpha(number), plan.margin)
        word = np.where(same, 2.0, sign)
        now = ~done & (word != 0)
        final[now], ended[now] = word[now], look
        done |= now
    return float((final == 1).mean()), float((final == -1).mean()), float((final == 2).mean()), float(ended.mean())


SHAPES: dict[str, Callable[[np.random.Generator, tuple[int, int]], Any]] = {
    "normal": lambda draw, size: draw.standard_normal(size),
    "uniform": lambda draw, size: draw.random(size),
    "Laplace": lambda draw, size: draw.laplace(size=size),
    "t, 3 degrees": lambda draw, size: draw.standard_t(3, size),
}


def shapes(trials: int, slack: float = 0.0) -> tuple[Table, list[Check]]:
    """How often one mode is taken for two, and a normal run for an outlier."""
    table = Table("noise", "runs", "modes found", "outliers found", title=f"Findings where there is nothing, {trials:,} arms")
    checks = []
    for name, draw_of in track(SHAPES.items(), "findings", transient=True):
        for runs in (4, 5, 6, 8, 12, 20, 30, 60):
            drawn = 0.3 * draw_of(np.random.default_rng([len(name), runs]), (trials, runs))
            found = sum(modes(row, MARGIN) is not None for row in drawn) / trials
            out = sum(len(outliers(row)) > 0 for row in drawn) / trials
            checks.append(Check(f"modes of one mode: {name}, {runs} runs", found, 0.015 + slack))
            if name == "normal":
                checks.append(Check(f"outliers of normal noise: {runs} runs", out, 0.02 + slack))
            table.add_row(name, str(runs), percent(found), percent(out))
    return table, checks


def medians(trials: int) -> list[Check]:
    """That the medians of iterations which the third kind takes are what the library takes, but for a warm-up that chance looks like."""
    (one, _), (middle, _) = iterations(np.random.default_rng(3), trials, 1, 40)
    same = [abs(process_of(tuple(np.exp(row[0]))).log - m[0]) < 0.03 for row, m in zip(one, middle, strict=True)]
    return [Check("a process's figure is its median", float(np.mean(same)), 0.95, at_most=False)]


def main(argv: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the experiments, and limits that allow for it")
    quick = parser.parse_args(None if argv is None else list(argv)).quick
    trials, slack = (1000, 0.02) if quick else (10_000, 0.0)
    console = Console() if sys.stdout.isatty() else Console(width=130)
    checks = medians(500)
    parts: list[Callable[[], tuple[Table, list[Check]]]] = [
        lambda: false_alarms(trials, slack),
        lambda: false_same(trials, slack),
        lambda: power(trials // 5),
        lambda: asked(trials // 10, slack * 3),
        lambda: stopping(trials, slack),
        lambda: in_turn(trials // 10, slack),
        lambda: shapes(trials // 5, slack),
        lambda: unlike(trials // 5, slack),
    ]
    for part in parts:
        table, more = part()
        console.print(table)
        checks += more
    wrong = [check for check in checks if not check.holds]
    for check in wrong:
        console.print(f"OVER ITS LIMIT: {check.what}: {percent(check.rate)}, limit {percent(check.limit)}", style="bold red")
    console.print(f"{len(checks) - len(wrong)} of {len(checks)} rates are within their limits")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
