"""The motivating step, costed: 123 all-reduces of [tokens, 7168] bf16, at 1, 4, 64 and 512 tokens, by the paths that the hunt was about.

    python tests/bench/bench_step.py --out step.jsonl                  two GPUs, 8 sets of fresh processes; the file is a Measurement
    python tests/bench/bench_step.py --read step.jsonl --json s.json   the tables of a file that is there, and their numbers
    python tests/bench/bench_step.py --device host --quick             CPU ranks, as a trial; no figure of a GPU

Eager, torch.distributed against pynccl out of place: what the branch of commit 0be30d4 would have replaced by what. Captured, in place
against out of place. `sglang_probe.bench` measures; here are the pairs, over the process sets that have both, with 95 % t intervals. A step
is a call's time as often as it has calls: its all-reduces alone, and only as long as one call's time does not depend on the next.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

import sglang_probe as probe
from sglang_probe._bench.bench import bench
from sglang_probe._measure.cell import Cell
from sglang_probe._measure.measurement import Measurement
from sglang_probe._measure.summary import over_ranks

CALLS, HIDDEN, BYTES = 123, 7168, 2
TOKENS = (1, 4, 64, 512)
PAIRS = (("eager", "torch_distributed", "pynccl_out_of_place"), ("captured", "pynccl_in_place", "pynccl_out_of_place"))
TIMES = {"elapsed_us": "host's clock", "device_us": "device", "host_us": "host, inside the call"}


@dataclass(frozen=True)
class Mean:
    """Over process sets, and where it lies at 95 %; NaN ends of a single one."""

    value: float
    low: float
    high: float
    count: int

    def text(self, scale: float = 1.0, digits: int = 1, sign: str = "") -> str:
        if not self.count:
            return "not measured"
        value, low, high = (one * scale for one in (self.value, self.low, self.high))
        ends = "" if math.isnan(low) else f" [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"
        return f"{value:{sign}.{digits}f}{ends}"


def mean(values: list[float]) -> Mean:
    if len(values) < 2:
        return Mean(values[0] if values else math.nan, math.nan, math.nan, len(values))
    if np.ptp(values) == 0:
        return Mean(values[0], values[0], values[0], len(values))
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    return Mean(float(np.mean(values)), float(low), float(high), len(values))


def by_process(cells: list[Cell], path: str, kind: str) -> dict[int, float]:
    """Of each process set one figure: a rank's median, the largest over ranks. Wrong cells have none."""
    found = {cell.process: over_ranks(getattr(cell, kind)) for cell in cells if cell.path == path and not cell.wrong}
    return {process: us for process, us in found.items() if us is not None}


def rows_of(measurement: Measurement) -> list[dict[str, Any]]:
    """A row for each driver, pattern, pair, number of tokens and kind of time that the file has."""
    rows = []
    shapes = sorted({(cell.driver, cell.pattern, cell.compute_us, cell.nbytes) for cell in measurement.cells})
    for phase, before, after in PAIRS:
        for driver, pattern, compute_us, nbytes in shapes:
            same = (driver, pattern, compute_us, nbytes)
            cells = [c for c in measurement.cells if c.phase == phase and (c.driver, c.pattern, c.compute_us, c.nbytes) == same]
            for kind in TIMES:
                old, new = (by_process(cells, path, kind) for path in (before, after))
                both = sorted(old.keys() & new.keys())
                rows.append(
                    {"phase": phase, "before": before, "after": after, "driver": driver, "pattern": pattern}
                    | {"compute_us": compute_us, "tokens": nbytes / (HIDDEN * BYTES), "nbytes": nbytes, "time": kind}
                    | {"before_us": old, "after_us": new}
                    | {"old": mean(list(old.values())), "new": mean(list(new.values()))}
                    | {"change": mean([new[process] - old[process] for process in both])}
                )
    return rows


def tables_of(rows: list[dict[str, Any]]) -> list[Table]:
    tables: dict[tuple[Any, ...], Table] = {}
    for row in rows:
        key = tuple(row[name] for name in ("phase", "driver", "pattern", "compute_us"))
        if key not in tables:
            with_ = f" with a {row['compute_us']:g} us kernel before each call" if row["compute_us"] else ", back to back"
            title = f"{row['phase']}, {row['driver']} driver{with_}: {row['before']} -> {row['after']}"
            tables[key] = Table(title=title, title_justify="left")
            for column in (
                "tokens",
                "time",
                "before, us",
                "after, us",
                "change a call, us",
                f"a step of {CALLS}, ms",
                "change, ms",
            ):
                tables[key].add_column(column, justify="left" if column == "time" else "right")
        if not row["old"].count and not row["new"].count:
            continue
        step = f"{row['old'].text(CALLS / 1000, 2)} -> {row['new'].text(CALLS / 1000, 2)}"
        change = row["change"].text(1, 2, "+"), step, row["change"].text(CALLS / 1000, 2, "+")
        tables[key].add_row(f"{row['tokens']:g}", TIMES[row["time"]], row["old"].text(), row["new"].text(), *change)
    return [table for table in tables.values() if table.row_count]


def measured(given: argparse.Namespace) -> Measurement:
    """By the bench itself; unfinished files are gone on with by the same command."""
    out = given.out or os.path.join(tempfile.mkdtemp(prefix="bench_step_"), "step.jsonl")
    return bench(
        out,
        device=given.device,
        world_size=given.world_size,
        targets=sorted({path for _, *paths in PAIRS for path in paths}),
        tokens=TOKENS[:2] if given.quick else TOKENS,
        hidden=HIDDEN,
        drivers=given.drivers,
        compute_us=given.compute_us,
        processes=2 if given.quick else given.processes,
        quick=given.quick,
        time_limit_s=given.budget,
        seed=given.seed,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("gpu", "host"), default="gpu")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--processes", type=int, default=8, help="sets of fresh processes")
    parser.add_argument(
        "--drivers", nargs="+", choices=("native", "engine"), help="by default both, where SGLang can be imported"
    )
    parser.add_argument("--compute-us", type=float, default=5.0)
    parser.add_argument(
        "--budget", type=float, default=540, help="seconds; what is measured by then is shown, and is gone on with"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="1 and 4 tokens, 2 process sets, few samples")
    parser.add_argument("--read", metavar="FILE", help="a Measurement that is there, in the place of measuring")
    parser.add_argument("--out", metavar="FILE", help="the Measurement file")
    parser.add_argument("--json", metavar="FILE", help="the tables' numbers")
    given = parser.parse_args()
    start = time.monotonic()
    measurement = Measurement.read(given.read) if given.read else measured(given)
    devices = {cell.device for cell in measurement.cells}
    rows = rows_of(measurement)
    console = Console(width=None if sys.stdout.isatty() else 170, markup=False)
    for table in tables_of(rows):
        console.print(table)
    where = "GPUs" if devices == {"gpu"} else "CPU RANKS OVER SHARED MEMORY: NO FIGURE OF A GPU"
    counts = {row["change"].count for row in rows if row["change"].count}
    console.print(
        f"{where}. Means over {' or '.join(map(str, sorted(counts)))} sets of fresh processes [95 % t interval]; changes over the sets "
        f"that have both. {measurement!r}"
    )
    for note in measurement.notes:
        console.print(f"note: {note}")
    print(f"{time.monotonic() - start:.0f} s")
    if given.json:
        plain = [{**row, **{name: vars(row[name]) for name in ("old", "new", "change")}} for row in rows]
        Path(given.json).write_text(json.dumps({"calls": CALLS, "version": probe.__version__, "rows": plain}))
    return 0 if any(row["change"].count for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
