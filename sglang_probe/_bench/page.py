"""What people see of what was measured: one table, a row a call and size, figures with their range over process sets.

At the end of a bench (the command line), and of a file that is looked at again (Measurement.page, which starts none).
Invariant: a figure never stands without the number of process sets behind it; a wrong result stands above the table and has no figure.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._measure.cell import SAMPLES
from .._measure.cell import _median as median
from .._measure.measurement import Measurement
from .._measure.summary import Spread, Summary, summaries
from .._show.page import Block, Line, Table, items
from .._show.sizes import human_bytes
from .targets import TARGETS

if TYPE_CHECKING:
    from .bench import Done

_ORDER = {(target.path, target.kernel): i for i, target in enumerate(TARGETS.values())}
_PHASES, _PATTERNS, _DRIVERS = ("eager", "captured"), ("back_to_back", "interleaved"), ("native", "engine")


def bench_page(done: Done, verbose: bool = False) -> list[Block]:
    """The answer, what is wrong or missing, the table; ``verbose``: least and most of every figure, each rank's, and what it was measured
    on."""
    from .bench import ending

    found = ordered(summaries(done.measurement))
    blocks: list[Block] = [Line(answer(done), "answer"), Line(str(done.measurement.provenance), "dim")]
    told = ending(done)
    blocks += items("Not all of the plan", [text for text in told if not _ran_elsewhere(text)], "warn")
    blocks += items("Failed once, and asked for again in fresh processes", done.report.retried, "warn")
    blocks += summary_blocks(found, done.measurement, verbose)
    blocks += items("Not measured", [text for text in told if _ran_elsewhere(text)], "dim")
    if verbose and done.measurement.provenance is not None:
        missing = done.measurement.provenance.missing
        blocks += items("Not known of this machine", (f"{name}: {why}" for name, why in missing.items()), "dim")
    return blocks


def summary_blocks(found: Sequence[Summary], measurement: Measurement, verbose: bool = False) -> list[Block]:
    """What is WRONG, what to beware of, the table, who waits for whom, and the words that the table is read by; ``found`` as `ordered`."""
    wrong = [f"{_what(one)}: WRONG: {one.wrong} of {one.checked} results" for one in found if one.wrong]
    blocks = items("WRONG, and therefore not timed", wrong, "warn")
    blocks += [Line(text, "warn") for text in _crowded(found, measurement)]
    if not found:
        return blocks
    table, gone = _table(found, verbose)
    blocks += [table, *(_by_rank(found) if verbose else [])]
    blocks += items("Who waits for whom", filter(None, map(waiting, found)))
    return [*blocks, Line(_legend(found, gone), "dim")]


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
    if done.report.unfinished:
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
        "summaries": [one.to_dict() for one in ordered(summaries(done.measurement))],
        "left_out": done.plan.left_out_texts(),
        "refused": done.report.refused_texts(),
        "failed": [f"{task}: {why}" for task, why in done.report.failed],
        "retried": list(done.report.retried),
        "plan": done.plan.to_dict(),
        "provenance": done.measurement.provenance.to_dict() if done.measurement.provenance else None,
    }


def ordered(found: Iterable[Summary]) -> list[Summary]:
    """Several targets: by size, so that what is compared stands together; one: by size last. A file has cells as they came."""
    found = list(found)
    several = len({(one.path, one.kernel) for one in found}) > 1

    def place(one: Summary) -> tuple[Any, ...]:
        how = (_index(_PHASES, one.phase), _index(_PATTERNS, one.pattern), one.compute_us)
        what = (_ORDER.get((one.path, one.kernel), len(_ORDER)), one.path, one.kernel, _index(_DRIVERS, one.driver))
        rest = (one.release, one.dtype, one.world_size, one.device, one.backend)
        return (one.nbytes, *how, *what, *rest) if several else (*what, *how, *rest, one.nbytes)

    return sorted(found, key=place)


def _index(words: tuple[str, ...], word: str) -> int:
    return words.index(word) if word in words else len(words)


def _ran_elsewhere(text: str) -> bool:
    """What this machine or the dispatch does not have, which is no failure."""
    return text.startswith(("left out: ", "does not run here: "))


def _what(one: Summary) -> str:
    kernel = f" ({one.kernel})" if one.kernel else ""
    return f"{one.path}{kernel}, {one.driver}, {one.phase}, {one.pattern}, {human_bytes(one.nbytes)}"


def _crowded(found: Sequence[Summary], measurement: Measurement) -> list[str]:
    """CPU ranks that cannot all run at once."""
    cpu = measurement.provenance.cpu if measurement.provenance else {}
    # A launcher may bind each rank to cores of its own: then what rank 0 may use is not what all have.
    cores = cpu.get("usable" if measurement.plan.get("started") == "local processes" else "cores")
    ranks = max((one.world_size for one in found if one.device == "host"), default=0)
    if not isinstance(cores, int) or ranks <= cores:
        return []
    told = f"{ranks} CPU ranks on {cores} core{'s' * (cores != 1)}: they wait for a core more than for each other"
    return [f"{told}, and these times say little"]


# ------------------------------------------------------------------------------------------------------------------------- the table

_COLUMNS: dict[str, Callable[[Summary], str]] = {
    "path": lambda one: f"{one.path} ({one.kernel})" if one.kernel else one.path,
    "driver": lambda one: one.driver,
    "phase": lambda one: one.phase,
    "compute": lambda one: f"{one.compute_us:g} us" if one.compute_us else "-",
    "size": lambda one: human_bytes(one.nbytes),
    "dtype": lambda one: one.dtype,
    "ranks": lambda one: f"{one.world_size} {'GPU' if one.device == 'gpu' else 'CPU'}",
    "release": lambda one: one.release,
    "backend": lambda one: one.backend or "-",
    "sets": lambda one: str(one.n_processes),
    "result": lambda one: _result(one),
}
_ALWAYS = ("path", "phase", "compute", "size")
_VARY = ("driver", "dtype", "ranks")
"""Shown where rows differ in them; else the legend says it once."""
_TELL_APART = ("release", "backend")
"""Shown where rows would read the same without them."""


_SPLIT = ("wait us", "transfer us")
_BUSBW = "busbw GB/s"
_GIVE_WAY = ((_BUSBW,), _SPLIT)
"""Columns that a narrow terminal does without, in this order: bandwidth is device time told in another way, and who waits is told below."""


def _table(found: Sequence[Summary], verbose: bool) -> tuple[Table, tuple[str, ...]]:
    """Without the columns that say the same in each row; and which gave way to others."""
    split = any(len(one.wait_us) for one in found)
    times = ["device us", "host us", "elapsed us", *(_SPLIT if split else ())]
    columns = {name: [_COLUMNS[name](one) for one in found] for name in _names(found)}
    for name in times:
        columns[name] = [_figure(one.spread(name.replace(" ", "_")), verbose) for one in found]
        if name == "device us":
            columns[_BUSBW] = [_gb_s(one.busbw_gb_s) for one in found]
    columns |= {name: [_COLUMNS[name](one) for one in found] for name in ("sets", "result")}
    for name in ("sets", "result"):
        if len(set(columns[name])) == 1:
            del columns[name]
    right = frozenset({"compute", "size", *times, _BUSBW, "sets"})
    gone: list[str] = []
    for names in _GIVE_WAY:
        crowded = names == (_BUSBW,) and split and not verbose
        if columns.keys() & set(names) and (crowded or not _fits(columns, right)):
            gone += names
            columns = {name: cells for name, cells in columns.items() if name not in names}
    return Table("", tuple(columns), tuple(zip(*columns.values(), strict=True)), right, "path"), tuple(gone)


def _names(found: Sequence[Summary]) -> list[str]:
    """Columns that tell rows apart, in the order of _COLUMNS."""
    shown = {*_ALWAYS, *(name for name in _VARY if len({_COLUMNS[name](one) for one in found}) > 1)}
    for name in _TELL_APART:
        if len({tuple(_COLUMNS[each](one) for each in shown) for one in found}) < len(found):
            shown.add(name)
    return [name for name in _COLUMNS if name in shown]


def _fits(columns: dict[str, list[str]], right: frozenset[str]) -> bool:
    """Whether a terminal shows it with no number broken; what is no terminal shows lines of any length."""
    if not sys.stdout.isatty():
        return True
    least = 0
    for name, cells in columns.items():
        words = (part for text in (name, *cells) for part in (text.split() if name not in right or text == name else [text]))
        least += 2 + max(map(len, words), default=0)
    return least <= shutil.get_terminal_size().columns


def _by_rank(found: Sequence[Summary]) -> list[Block]:
    """A table for each time: every rank's median, of these the median over process sets."""
    names, ranks = _names(found), range(max(one.world_size for one in found))
    blocks: list[Block] = []
    for name in SAMPLES:
        timed = [one for one in found if len(getattr(one, name))]
        rows = []
        for one in timed:
            by_rank = [us(median(rank)) for rank in one.by_rank(name).T]
            rows.append((*(_COLUMNS[column](one) for column in names), *by_rank, *["-"] * (len(ranks) - len(by_rank))))
        columns = tuple(f"rank {rank}" for rank in ranks)
        title = f"{name.replace('_', ' ')}, by rank (the median over process sets of its median)"
        right = frozenset({"compute", "size", *columns})
        blocks += [Table(title, (*names, *columns), tuple(rows), right, "path")] if rows else []
    return blocks


def _result(one: Summary) -> str:
    return f"WRONG: {one.wrong} of {one.checked}" if one.wrong else "correct" if one.checked else "not checked"


_PERCENT_FROM = 3
"""Process sets below which a percentage would look like knowledge: two that agree by chance would read +-0%."""
_PERCENT_TO = 20.0


def _figure(figure: Spread, verbose: bool) -> str:
    """``4.31 +-1%``; ``4.31 [4.28, 6.40]`` where that is asked for, far, or of too few process sets for a percentage."""
    if not figure.processes:
        return "-"
    if figure.processes == 1:
        return us(figure.median)
    most = (
        max(figure.high - figure.median, figure.median - figure.low) / figure.median * 100 if figure.median > 0 else float("inf")
    )
    if verbose or figure.processes < _PERCENT_FROM or not most <= _PERCENT_TO:
        return f"{us(figure.median)} [{us(figure.low)}, {us(figure.high)}]"
    return f"{us(figure.median)} +-{most:.0f}%"


def us(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _gb_s(value: float) -> str:
    return us(value) if value > 0 else "-"


# ------------------------------------------------------------------------------------------------------------------------ waiting


def waiting(one: Summary) -> str:
    """``custom (one_shot), eager, 1 KiB: rank 0 waits 48.9 us of 57.1 for rank 1``: of the process set in the middle; "" where nothing was
    split."""
    from .waiting import said

    told: list[tuple[float, tuple[int, int], str]] = []
    for cell in one.cells if len(one.wait_us) else ():
        if {len(rank) for rank in (*cell.wait_us, *cell.transfer_us)} != {len(cell.wait_us[0])} or not len(cell.wait_us[0]):
            continue
        waits = [median(rank) for rank in cell.wait_us]
        last = np.stack(cell.wait_us).argmin(axis=0)  # it waits for nobody
        longest = int(np.argmax(waits))
        counts = np.bincount(last, minlength=len(waits))
        counts[longest] = 0
        text = said(cell.wait_us, cell.transfer_us, cell.split_error_us, last)
        told.append((waits[longest], (longest, int(np.argmax(counts))), text))
    if not told:
        return ""
    _, pair, text = sorted(told)[(len(told) - 1) // 2]
    others = sum(each != pair for _, each, _ in told)
    sets = (
        ""
        if len(told) == 1
        else f" (the middle one of {len(told)} process sets{f'; in {others}, other ranks' if others else ''})"
    )
    kernel = f" ({one.kernel})" if one.kernel else ""
    return f"{one.path}{kernel}, {one.phase}, {human_bytes(one.nbytes)}: {text}{sets}"


# ------------------------------------------------------------------------------------------------------------------------- legend


def _legend(found: Sequence[Summary], gone: tuple[str, ...]) -> str:
    samples = [one.samples for one in found if one.samples]
    checked = {one.checked_in for one in found}
    sets = {one.n_processes for one in found}
    once = {
        "driver {}": {one.driver for one in found},
        "{} process set" + "s" * (sets != {1}): {str(count) for count in sets},
        "all {}": {_result(one) for one in found},
    }
    told = [text.format(*values) for text, values in once.items() if len(values) == 1]
    if len(checked) == 1 and sets != {1} and (numbers := next(iter(checked))):
        told.append(f"checked in set{'s' * (len(numbers) > 1)} {', '.join(str(number + 1) for number in numbers)}")
    counts = " to ".join(str(count) for count in sorted({min(samples), max(samples)})) if samples else "no"
    told.append(f"{counts} samples{' a rank and cell' * bool(samples)}")
    for name, unit in (("dtype", ""), ("ranks", " ranks")):
        values = {_COLUMNS[name](one) for one in found}
        told += [f"{next(iter(values))}{unit}"] if len(values) == 1 else []
    parts = [
        ", ".join(told),
        "us a call: of each process set the largest over ranks of the rank's median, of these the median, +- the farthest or [least, most]",
        "compute: the kernel before each call (interleaved), subtracted; -: back to back",
        "busbw: bytes x 2 (n - 1) / n / device us",
        *_waits(found),
    ]
    if gone:
        parts.append(f"left out to save room: {', '.join(gone)} (JSON and Measurement.summary() have it)")
    if any(one.device == "host" for one in found):
        parts.append("These are a CPU's times, and say nothing of a GPU")
    return ". ".join(parts)


def _waits(found: Sequence[Summary]) -> list[str]:
    split = [one for one in found if len(one.wait_us)]
    if not split:
        return []
    error = max(one.split_error_us for one in split)
    within = (
        f"within {us(error)} us (clocks that were compared, or how long a flag takes to cross)" if error else "taken on one clock"
    )
    return [
        "wait and transfer are of other calls than device us, each with a synchronising call before it, and each column is the largest "
        f"over ranks by itself: they add up to nothing in the row; waits are {within}"
    ]
