"""What people see of an experiment: the answer, the reason, what differed, how it went, and the figures. Called by the results.

Invariant: what refuses a verdict, and what failed, stands above the figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._show.page import Block, Line, Table, items
from .._verdict.words import about
from .compare import texts
from .noise_words import effect_text
from .runs import WARM_UP, Run

if TYPE_CHECKING:
    from .noise import NoiseResult
    from .result import AbResult

_FAILED_SHOWN = 5


def ab_page(result: AbResult, verbose: bool = False) -> list[Block]:
    """``verbose``: the arms' states, each run, each look."""
    a, b = result.labels
    blocks: list[Block] = [Line(result.sentence, "answer")]
    blocks += [Line(result.reason)] if result.reason else []
    blocks += items("Findings", _findings(result), "warn")
    blocks += items("Runs that failed", _failures(result), "warn")
    blocks.append(Line(f"{a}: {result.texts[0]}", "dim"))
    blocks.append(Line(f"{b}: {result.texts[1]}", "dim"))
    blocks.append(Line(how(result), "dim"))
    blocks += items("Notes", result.notes, "dim")
    if verbose:
        blocks += _details(result)
    return blocks


def how(result: AbResult) -> str:
    """``12 runs of each arm, in balanced random order (seed 0), in 31.0 s; it was decided ...; FILE``"""
    runs = f"{result.blocks} run{'s' * (result.blocks != 1)} of each arm, each of fresh processes, in balanced random order"
    told = [f"{result.measured}: {runs} (seed {result.seed})"]
    told += [f"in {result.seconds:.1f} s"] if result.seconds else []
    text = ", ".join(told)
    if result.stopped:
        text += f"; {result.stopped}"
    return f"{text}; {result.path}" if result.path else text


def _findings(result: AbResult) -> list[str]:
    told = [one.line for one in result.verdict.findings] if result.verdict else []
    told += [text for text in texts(one for one in result.differences if not one.refuses) if text not in told]
    return told


def _failures(result: AbResult) -> list[str]:
    told = [f"run {run.number + 1}, {_label(result, run)}, {_where(run)}: {run.failed}" for run in result.failed]
    left = len(told) - _FAILED_SHOWN
    return told if left <= 0 else [*told[:_FAILED_SHOWN], f"and {left} more"]


def _label(result: AbResult, run: Run) -> str:
    return result.labels["ab".index(run.arm)]


def _where(run: Run) -> str:
    return "warming up" if run.block == WARM_UP else f"block {run.block + 1}"


def _details(result: AbResult) -> list[Block]:
    a, b = result.labels
    blocks: list[Block] = []
    if result.verdict is not None:
        v = result.verdict
        row = (f"{v.effect:+.2%}", f"{v.low:+.2%} to {v.high:+.2%}", f"{v.level:.1%}", f"{v.p:.3g}", v.method)
        blocks.append(Table("The verdict's figures", ("b / a - 1", "interval", "level", "p", "method"), (row,)))
    if result.states:
        rows = tuple((one.name, one.a, one.b) for one in result.states)
        blocks.append(Table("The machine, in the middle (least to most)", ("what", a, b), rows, frozenset({a, b})))
    if result.looks:
        looks = tuple((str(one["blocks"]), str(one["word"]), _interval(one)) for one in result.looks)
        blocks.append(Table("Looks that could have ended it", ("runs of each arm", "word", "interval"), looks))
    runs = tuple(
        (str(run.number + 1), _label(result, run), _where(run), _figure(run), f"{run.wall_s:.3g} s", run.failed or run.note)
        for run in result.runs
    )
    blocks.append(Table("Runs, in the order in which they were made", ("run", "arm", "block", "figure", "took", "note"), runs))
    blocks += [Line(str(result.provenance), "dim")] if result.provenance else []
    return blocks


def _interval(look: Mapping[str, Any]) -> str:
    ends = [look[name] for name in ("low", "high")]
    return " to ".join("-" if end is None else f"{end:+.2%}" for end in ends)


def _figure(run: Run) -> str:
    if not run.figures:
        return "-"
    middle = sorted(run.figures)[len(run.figures) // 2]
    return f"{middle:.6g}" + (f" ({len(run.figures)} iterations)" if len(run.figures) > 1 else "")


def noise_page(result: NoiseResult, verbose: bool = False) -> list[Block]:
    """``verbose``: the arms' states, each run."""
    blocks: list[Block] = [Line(result.sentence, "answer"), Line(result.reason)]
    if result.needed:
        rows = tuple(
            (f"{100 * effect:g} %", "over a million" if runs is None else about(runs), _share(result.found.get(effect)))
            for effect, runs in result.needed.items()
        )
        title = "Runs of each arm that show an effect, 4 times in 5"
        columns = ("effect", "runs", "found in resamples")
        blocks.append(Table(title, columns, rows, frozenset(columns[1:])))
        least = tuple((f"{runs:,}", _effect(effect)) for runs, effect in result.effects.items())
        title, columns = "The smallest effect that runs of each arm show", ("runs", "effect", "")
        blocks.append(Table(title, columns[:2], least, frozenset(columns)))
        told = f"relabelled at random, these equal arms were told apart in {result.told_apart:.1%} of {result.trials:,} trials"
        blocks.append(Line(f"{told} (at most {result.told_apart_most:.0%} may be)"))
        spread = f"spread within blocks {result.spread:.2%}, taken for {result.spread_most:.2%} (too small in 1 case of 7)"
        blocks.append(Line(f"{spread}; spread of all processes {result.cv:.2%}", "dim"))
    return [*blocks, *ab_page(result.experiment, verbose)[2 if result.experiment.reason else 1 :]]


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _effect(value: float) -> str:
    return effect_text(value) if math.isfinite(value) else "none"
