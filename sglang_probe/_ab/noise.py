"""noise: what this machine can resolve: an experiment with two equal arms, and what their spread allows. Public; the command calls it.

Invariant: no run is made to look better or worse: as many are made as were asked for, whatever they show; how many runs an effect takes is
asked of the very test that gives verdicts (_verdict/runs.py), at a spread that is not too small in four of five cases, and then tried
on resamples of the runs themselves.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._types import FrozenMap
from .._verdict.ranks import LEAST, of_pairs
from .._verdict.runs import MOST, POWER, bound, chance, needed
from .._verdict.within import process_of
from .ab import LIMIT_S, ArmLike, Interrupted, run_ab
from .commands import Command
from .noise_words import told
from .result import AbResult
from .runs import judged
from .targets import Target

if TYPE_CHECKING:
    from .._show.page import Block

Floats = NDArray[np.float64]

OUT = "noise.jsonl"
RUNS = 10
EFFECTS = (0.01, 0.02, 0.05, 0.10)
COUNTS = (6, 10, 20, 50)
"""Of fewer than 6 blocks no order decides."""
_TRIALS, _SEED = 2000, 0
_LARGEST = 10.0
"""Effects above elevenfold are not told."""
_RESAMPLED_MOST, _RESAMPLED_NUMBERS = 200, 8_000_000
"""Runs an arm up to which planted effects are looked for, and numbers that such a look sorts: beyond, it takes too long."""


@dataclass(frozen=True)
class NoiseResult:
    """What `noise` gives back: ``print`` shows the answer and the reason, ``why()`` the figures."""

    experiment: AbResult
    """Both equal arms, as `ab` has them."""
    sentence: str
    reason: str
    runs: int
    """Of each arm."""
    cv: float
    """Of fresh processes: standard deviation by mean. NaN of fewer than two runs an arm."""
    spread: float
    """The same of what a verdict is made of, within blocks; and at most so much in 85 % of experiments: `spread_most`."""
    spread_most: float
    smallest: float
    """The smallest effect that so many runs an arm tell from nothing with a chance of 80 %; infinite where they tell none."""
    effects: Mapping[int, float] = field(default_factory=lambda: FrozenMap({}))
    """The same by runs of an arm."""
    needed: Mapping[float, int | None] = field(default_factory=lambda: FrozenMap({}))
    """Runs of an arm by effect; None where over a million."""
    found: Mapping[float, float] = field(default_factory=lambda: FrozenMap({}))
    """Of these runs, resampled with that effect planted: the share in which as many runs as `needed` says showed it. Where few do."""
    told_apart: float = math.nan
    """Share of random relabellings of these equal arms that were FASTER or SLOWER."""
    told_apart_most: float = math.nan
    """What may be: 1 - confidence."""
    trials: int = 0
    confidence: float = 0.95

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> NoiseResult:
        """A file that `noise` wrote, finished or ``.partial``."""
        return noise_of(AbResult.read(path))

    def __str__(self) -> str:
        return f"{self.sentence}\n{self.reason}" if self.reason else self.sentence

    def __repr__(self) -> str:
        return f"<NoiseResult: {self.sentence}>"

    def why(self) -> str:
        """The figures as text."""
        from .._show.page import to_text

        return to_text(self.page(verbose=True))

    def page(self, verbose: bool = False) -> list[Block]:
        """What people see; ``verbose``: the machine's state, each run."""
        from .page import noise_page

        return noise_page(self, verbose)

    def _repr_html_(self) -> str:
        from .._report import html

        return html(self)

    def markdown(self) -> str:
        """For a bug report."""
        from .._report import markdown

        return markdown(self)

    def figure(self) -> Any:
        """Both arms' samples, as a matplotlib Figure."""
        from .._report import figure

        return figure(self)

    def write(self, path: str | os.PathLike[str]) -> str:
        """One HTML file that holds everything; its name comes back."""
        from .._report import write

        return write(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; what is not known or infinite is None."""
        names = ("sentence", "reason", "runs", "trials", "confidence")
        figures = ("cv", "spread", "spread_most", "smallest", "told_apart", "told_apart_most")
        return {
            **{name: getattr(self, name) for name in names},
            **{name: _plain(getattr(self, name)) for name in figures},
            "effects": {str(runs): _plain(effect) for runs, effect in self.effects.items()},
            "needed": {f"{effect:g}": runs for effect, runs in self.needed.items()},
            "found": {f"{effect:g}": share for effect, share in self.found.items()},
            "experiment": self.experiment.to_dict(),
        }


def noise(
    what: ArmLike,
    *,
    out: str | os.PathLike[str] = OUT,
    runs: int = RUNS,
    time_s: float | None = None,
    limit_s: float = LIMIT_S,
    unit: str | None = None,
    better: str | None = None,
    margin: float = 0.02,
    confidence: float = 0.95,
    seed: int = 0,
    warm_up: int = 1,
    failures: int = 3,
    allow: Iterable[str] = (),
    progress: bool | None = None,
) -> NoiseResult:
    """Runs one thing in two equal arms, as `ab` would, and says which effects it could tell from nothing.

    ``what``: a `Command` (a text or a list is one), or a `Target`. ``runs``: of each arm (10); as many are made, whatever they show, unless
    ``time_s`` ends it. Everything else means what it means for `ab`; so do the file, an interrupt, and what is raised.
    """
    asked = {name: value for name, value in locals().items() if name not in ("what", "progress")}
    return run_noise(what, progress=progress, **asked)


def run_noise(
    what: ArmLike, *, progress: bool | None = None, say: Callable[[str], None] | None = None, **asked: Any
) -> NoiseResult:
    """What noise does, with all that the command line shows."""
    if asked["better"] is None and asked["unit"] is None:
        asked["better"] = _either(what)
    if isinstance(what, Command | Target):
        what = replace(what, label="")  # two equal arms are called a and b
    try:
        return noise_of(run_ab(what, what, kind="noise", progress=progress, say=say, **asked))
    except Interrupted as stop:
        raise NoiseInterrupted(str(stop), None if stop.result is None else noise_of(stop.result)) from None


class NoiseInterrupted(KeyboardInterrupt):
    """Ctrl-C in the middle; the text says what is kept and how to go on."""

    def __init__(self, text: str, result: NoiseResult | None = None) -> None:
        super().__init__(text)
        self.result = result


def _either(what: ArmLike) -> str | None:
    """Of equal arms it does not matter which is better; a unit that says so is still asked first."""
    if isinstance(what, Target):
        return None
    command = what if isinstance(what, Command) else Command(what)
    return None if str(command.figure) == "wall clock" else "higher"


# ------------------------------------------------------------------------------------------------------------------------ figures


def noise_of(experiment: AbResult) -> NoiseResult:
    """What the runs of two equal arms say."""
    pairs = _pairs(experiment)
    runs, confidence = len(pairs), float(experiment.plan["confidence"])
    if runs < 2:
        sentence = f"NOISE: nothing is known of {runs} run{'s' * (runs != 1)} of each arm: {experiment.sentence}"
        return NoiseResult(experiment, sentence, experiment.reason, runs, *(math.nan,) * 3, math.inf, confidence=confidence)
    logs = np.log(pairs)
    differences = logs[:, 1] - logs[:, 0]
    spread = float(np.sqrt(np.mean(differences**2) / 2))  # about 0: the arms are known to be equal
    most = bound(spread, runs)
    alpha = 1 - confidence
    counts = sorted({*COUNTS, runs})
    effects = {count: smallest_effect(count, most, alpha) for count in counts}
    wanted, found = needed_runs(differences, most, alpha)
    result = NoiseResult(
        experiment,
        "",
        "",
        runs,
        cv=float(np.exp(logs).std(ddof=1) / np.exp(logs).mean()),
        spread=spread,
        spread_most=most,
        smallest=effects[runs],
        effects=FrozenMap(effects),
        needed=FrozenMap(wanted),
        found=FrozenMap(found),
        told_apart=told_apart(differences, alpha),
        told_apart_most=alpha,
        trials=_TRIALS,
        confidence=confidence,
    )
    return told(result)


def _pairs(experiment: AbResult) -> Floats:
    """[block, arm]: one figure a process, as a verdict has it."""
    blocks: dict[int, dict[str, float]] = {}
    for run in judged(experiment.runs):
        blocks.setdefault(run.block, {})[run.arm] = math.exp(process_of(run.figures).log)
    return np.array([[pair["a"], pair["b"]] for pair in blocks.values()], np.float64).reshape(len(blocks), 2)


def smallest_effect(runs: int, spread: float, alpha: float) -> float:
    """Relative; what so many interleaved runs of each arm show with a chance of 80 %; infinite where nothing would."""
    if runs < LEAST or not _shows(math.log1p(_LARGEST), runs, spread, alpha):
        return math.inf
    low, high = 0.0, math.log1p(_LARGEST)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if _shows(middle, runs, spread, alpha) else (middle, high)
    return math.expm1(high)


def _shows(log: float, runs: int, spread: float, alpha: float) -> bool:
    return chance(runs, log, spread, alpha=alpha, margin=None, paired=True) >= POWER


def needed_runs(differences: Floats, spread: float, alpha: float) -> tuple[dict[float, int | None], dict[float, float]]:
    """By effect: runs of each arm, and the share in which they find it in resamples of these; more runs where that is under 80 %."""
    wanted: dict[float, int | None] = {}
    found: dict[float, float] = {}
    for effect in EFFECTS:
        runs = needed(math.log1p(effect), spread, alpha=alpha, margin=None, paired=True)
        while runs <= _RESAMPLED_MOST:
            found[effect] = found_again(differences, effect, runs, alpha)
            if found[effect] >= POWER:
                break
            runs += max(1, runs // 10)
        else:
            found.pop(effect, None)
        wanted[effect] = runs if runs < MOST else None
    return wanted, found


def told_apart(differences: Floats, alpha: float) -> float:
    """Share of random relabellings within blocks in which the test tells the equal arms apart."""
    draw = np.random.default_rng(_SEED)
    signs = draw.choice((-1.0, 1.0), (_TRIALS, len(differences)))
    return _told_share(signs * differences, alpha)


def found_again(differences: Floats, effect: float, runs: int, alpha: float) -> float:
    """Blocks drawn from these with replacement, relabelled at random, an effect planted: the share in which the test shows it."""
    draw = np.random.default_rng(_SEED)
    trials = max(200, min(_TRIALS, _RESAMPLED_NUMBERS // (runs * (runs + 1))))
    drawn = draw.choice(differences, (trials, runs)) * draw.choice((-1.0, 1.0), (trials, runs))
    return _told_share(drawn + math.log1p(effect), alpha, above=True)


def _told_share(differences: Floats, alpha: float, above: bool = False) -> float:
    interval = of_pairs(differences).interval(alpha / 2)
    told = interval.low > 0 if above else (interval.low > 0) | (interval.high < 0)
    return float(np.mean(told))


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
