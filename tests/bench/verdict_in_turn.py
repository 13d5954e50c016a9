"""One arm measured after the other, on a machine that drifts: is that taken for a difference? Part of bench_verdict.py beside it.

What time does is known here: nothing, a line, a walk without end, one that comes back (its memory is as long as an arm). Invariant: seeds
are fixed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from rich.progress import track
from rich.table import Table
from verdict_noise import Check, Floats, percent

from sglang_probe._verdict.arm import Arm
from sglang_probe._verdict.judge import Error, judge

MARGIN, NOISE, LIMIT = 0.02, 0.03, 0.055
SIZES = (5, 8, 12, 20)
Time = Callable[[np.random.Generator, int], Floats]


def _line(over_all: float) -> Time:
    return lambda draw, n: np.linspace(0, over_all, n)


def _walk(step: float) -> Time:
    return lambda draw, n: NOISE * step * np.cumsum(draw.standard_normal(n))


def _returning(spread: float) -> Time:
    def drawn(draw: np.random.Generator, n: int) -> Floats:
        kept = math.exp(-2 / n)
        found = [draw.standard_normal()]
        for _ in range(n - 1):
            found.append(kept * found[-1] + math.sqrt(1 - kept * kept) * draw.standard_normal())
        return NOISE * spread * np.array(found)

    return drawn


TIMES: dict[str, Time] = {
    "nothing": _line(0.0),
    **{f"a line, {over_all:.0%} over all": _line(over_all) for over_all in (0.05, 0.1, 0.2)},
    **{f"a walk, steps of {step:g} x the noise": _walk(step) for step in (0.5, 1, 3)},
    **{f"a walk that returns, {spread:g} x the noise": _returning(spread) for spread in (1, 3)},
}


def in_turn(trials: int, slack: float = 0.0) -> tuple[Table, list[Check]]:
    """With the order known, and by the figures alone."""
    table = Table(
        *("runs an arm", "what time does", "false alarms", "without the order", "10 % found"),
        title=f"One arm after the other, noise {NOISE:.0%}, {trials:,} experiments",
    )
    checks = []
    for runs in track(SIZES, "one after the other", transient=True):
        for name, time in TIMES.items():
            draw = np.random.default_rng([runs, *map(ord, name)])
            wrong = bare = found = 0
            for _ in range(trials):
                logs = time(draw, 2 * runs) + NOISE * draw.standard_normal(2 * runs)
                a, b = logs[:runs], logs[runs:]
                wrong += _different(a, b, known=True)
                bare += _different(a, b, known=False)
                found += _different(a, b + math.log(1.1), known=True)
            checks.append(Check(f"one after the other: {runs} runs, {name}", wrong / trials, LIMIT + slack))
            table.add_row(str(runs), name, *(percent(count / trials) for count in (wrong, bare, found)))
    return table, checks


def _different(a: Floats, b: Floats, known: bool) -> bool:
    one, other = (Arm(label, tuple((math.exp(v),) for v in logs), "us") for label, logs in (("a", a), ("b", b)))
    if known:
        one, other = replace(one, order=tuple(range(len(a)))), replace(other, order=tuple(range(len(a), len(a) + len(b))))
    return str(judge(one, other, "lower", MARGIN, Error(0.95, 0.05)).word) in ("FASTER", "SLOWER")
