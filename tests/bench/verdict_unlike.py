"""Arms with one middle that are not alike: unlike spreads and sizes, two modes in unlike shares. Part of bench_verdict.py beside it.

No rank test promises anything here; what `judge` makes of it is held to limits all the same. Invariant: seeds are fixed.
"""

from __future__ import annotations

import math

import numpy as np
from rich.progress import track
from rich.table import Table
from verdict_noise import Check, Floats, percent

from sglang_probe._verdict.arm import Arm
from sglang_probe._verdict.judge import Error, judge

MARGIN = 0.02
SPREADS = [(a, b, wider, 0.08 if a == 4 else 0.065) for a, b in ((4, 4), (4, 30), (8, 8), (8, 30), (20, 20)) for wider in (3, 10)]
"""Runs of a and b, how many times as wide a spreads, and how often FASTER or SLOWER may be said. Four runs show little of their spread."""
SHARES = [(20, 0.3, 0.5), (40, 0.3, 0.5), (30, 0.1, 0.3)]
"""Runs an arm, and the shares in which they are 30 % slower: their means differ by 6 %."""


def unlike(trials: int, slack: float = 0.0) -> tuple[Table, list[Check]]:
    """How often FASTER or SLOWER where only spreads differ, and SAME where shares of modes do."""
    table = Table("arms", "FASTER or SLOWER", "SAME", title=f"One middle, and not alike, {trials:,} experiments")
    checks = []
    for a, b, wider, limit in track(SPREADS, "unlike spreads", transient=True):
        draw = np.random.default_rng([a, b, wider])
        drawn = [(0.01 * wider * draw.standard_normal(a), 0.01 * draw.standard_normal(b)) for _ in range(trials)]
        what = f"{a} runs against {b}, a spreads {wider} times as wide"
        different, same = words(drawn)
        checks.append(Check(what, different, limit + slack))
        table.add_row(what, percent(different), percent(same))
    for runs, one, other in track(SHARES, "unlike shares", transient=True):
        draw = np.random.default_rng([runs, round(100 * one)])
        drawn = [(_modes(draw, runs, one), _modes(draw, runs, other)) for _ in range(trials)]
        what = f"{runs} runs an arm, a slow mode in {one:.0%} of a and {other:.0%} of b"
        different, same = words(drawn)
        checks.append(Check(f"SAME: {what}", same, 0.01 + slack))
        table.add_row(what, percent(different), percent(same))
    return table, checks


def _modes(draw: np.random.Generator, runs: int, share: float) -> Floats:
    return np.asarray(0.003 * draw.standard_normal(runs) + 0.3 * (draw.random(runs) < share))


def words(drawn: list[tuple[Floats, Floats]]) -> tuple[float, float]:
    """Shares of FASTER or SLOWER, and of SAME; of logarithms."""
    found = []
    for pair in drawn:
        a, b = (Arm(label, tuple((math.exp(v),) for v in logs), "us") for label, logs in zip("ab", pair, strict=True))
        found.append(str(judge(a, b, "lower", MARGIN, Error(0.95, 0.05)).word))
    return (found.count("FASTER") + found.count("SLOWER")) / len(found), found.count("SAME") / len(found)
