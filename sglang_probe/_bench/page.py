"""What people see of a bench: one table, a row a call and size, figures with their range over process sets. Called by the command line.

Invariant: a figure never stands without the number of process sets behind it; a wrong result stands above the table and has no figure.
"""

from __future__ import annotations

from typing import Any

from .._measure.summary import Spread, Summary, summaries
from .._show.page import Block, Line, Table, items
from .._show.sizes import human_bytes
from .bench import Done, ending
from .targets import TARGETS

_ORDER = {(target.path, target.kernel): i for i, target in enumerate(TARGETS.values())}


def bench_page(done: Done, verbose: bool = False) -> list[Block]:
    """The answer, what is wrong or missing, the table; ``verbose``: least and most of every figure, and what it was measured on."""
    found = ordered(done)
    wrong = [f"{_what(one)}: WRONG: {one.wrong} of {one.checked} results" for one in found if one.wrong]
    blocks: list[Block] = [Line(answer(done), "answer"), Line(str(done.measurement.provenance), "dim")]
    blocks += items("WRONG, and therefore not timed", wrong, "warn")
    told = ending(done)
    blocks += items("Not all of the plan", [text for text in told if not _ran_elsewhere(text)], "warn")
    blocks += [_table(found, verbose)] if found else []
    blocks += [Line(_legend(found, done), "dim")] if found else []
    blocks += items("Not measured", [text for text in told if _ran_elsewhere(text)], "dim")
    if verbose and done.measurement.provenance is not None:
        missing = done.measurement.provenance.missing
        blocks += items("Not known of this machine", (f"{name}: {why}" for name, why in missing.items()), "dim")
    return blocks


def answer(done: Done) -> str:
    """``480 cells on 2 GPU ranks, 5 process sets, in 312.0 s, written to FILE``."""
    plan, cells = done.plan, done.measurement.cells
    on = f"{plan.world_size} {'GPU' if plan.device == 'gpu' else 'CPU'} rank{'s' * (plan.world_size > 1)}"
    sets = len({cell.process for cell in cells})
    before = f" ({done.report.there} were there)" if done.report.there else ""
    told = [f"{len(cells):,} cell{'s' * (len(cells) != 1)} on {on}, {sets} process set{'s' * (sets != 1)}"]
    told.append(f"in {done.seconds:.1f} s{before}, written to {done.path}")
    if wrong := sum(cell.wrong > 0 for cell in cells):
        told.insert(0, f"{wrong} WRONG")
    if not done.report.whole:
        told.insert(0, "UNFINISHED")
    return ", ".join(told)


def to_dict(done: Done) -> dict[str, Any]:
    """Plain data for JSON: what the table shows. The samples are in the file."""
    return {
        "answer": answer(done),
        "file": done.path,
        "whole": done.report.whole,
        "launches_to_come": done.report.launches,
        "stopped": done.report.stopped,
        "seconds": done.seconds,
        "cells": len(done.measurement.cells),
        "measured": done.report.measured,
        "wrong": sum(cell.wrong > 0 for cell in done.measurement.cells),
        "summaries": [one.to_dict() for one in ordered(done)],
        "left_out": done.plan.left_out_texts(),
        "refused": done.report.refused_texts(),
        "failed": [f"{task}: {why}" for task, why in done.report.failed],
        "plan": done.plan.to_dict(),
        "provenance": done.measurement.provenance.to_dict() if done.measurement.provenance else None,
    }


def ordered(done: Done) -> list[Summary]:
    """By what was measured; the file has them as they came."""
    return sorted(summaries(done.measurement), key=_place)


def _place(one: Summary) -> tuple[Any, ...]:
    return (_ORDER.get((one.path, one.kernel), len(_ORDER)), one.driver, one.phase, one.pattern, one.nbytes)


def _ran_elsewhere(text: str) -> bool:
    """What this machine or the dispatch does not have, which is no failure."""
    return text.startswith(("left out: ", "does not run here: "))


def _what(one: Summary) -> str:
    kernel = f" ({one.kernel})" if one.kernel else ""
    return f"{one.path}{kernel}, {one.driver}, {one.phase}, {one.pattern}, {human_bytes(one.nbytes)}"


def _table(found: list[Summary], verbose: bool) -> Table:
    """Without the columns that say the same in each row: the legend says it once."""
    times = ["device us", "host us", "elapsed us"]
    if any(len(one.wait_us) for one in found):
        times += ["wait us", "transfer us"]
    columns: dict[str, list[str]] = {
        "path": [f"{one.path} ({one.kernel})" if one.kernel else one.path for one in found],
        "driver": [one.driver for one in found],
        "phase": [one.phase for one in found],
        "compute": [f"{one.compute_us:g} us" if one.compute_us else "-" for one in found],
        "size": [human_bytes(one.nbytes) for one in found],
        **{name: [_figure(one.spread(name.replace(" ", "_")), verbose) for one in found] for name in times},
        "sets": [str(one.n_processes) for one in found],
        "result": [_result(one) for one in found],
    }
    for name in _ONCE:
        if len(set(columns[name])) == 1:
            del columns[name]
    rows = tuple(zip(*columns.values(), strict=True))
    return Table("", tuple(columns), rows, frozenset({"compute", "size", *times, "sets"}), "path")


_ONCE = ("driver", "sets", "result")


def _result(one: Summary) -> str:
    return f"WRONG: {one.wrong} of {one.checked}" if one.wrong else "correct" if one.checked else "not checked"


def _figure(figure: Spread, verbose: bool) -> str:
    """``4.31 +-1 %``, or ``4.31 [4.28, 4.40]``."""
    if not figure.processes:
        return "-"
    if figure.processes == 1:
        return us(figure.median)
    if verbose or figure.median <= 0:
        return f"{us(figure.median)} [{us(figure.low)}, {us(figure.high)}]"
    most = max(figure.high - figure.median, figure.median - figure.low) / figure.median * 100
    return f"{us(figure.median)} +-{most:.0f} %"


def us(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _legend(found: list[Summary], done: Done) -> str:
    samples = [one.samples for one in found if one.samples]
    once = {
        "driver {}": {one.driver for one in found},
        "{} process sets": {str(one.n_processes) for one in found},
        "all {}": {_result(one) for one in found},
    }
    told = [text.format(*values) for text, values in once.items() if len(values) == 1]
    told.append(f"{min(samples)} to {max(samples)} samples a rank and cell" if samples else "no samples")
    clock = "" if done.plan.device == "gpu" else ". These are a CPU's times, and say nothing of a GPU"
    return (
        f"{', '.join(told)}. us a call: of each process set the largest over ranks of the rank's median, of these the median, +- the "
        f"farthest. compute: the kernel before each call (interleaved), subtracted; -: back to back{clock}"
    )
