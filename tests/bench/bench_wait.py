"""Does waiting come out as waiting? A delay is planted before calls of one rank, and the others' waits must be that delay.

    python tests/bench/bench_wait.py --out wait.json             two GPUs: 4 targets x 4 delays x 1,000 calls, eager, under two minutes
    python tests/bench/bench_wait.py --device host --quick       CPU ranks, as a trial: shown, and judged only where each has a core

A row passes where the median over calls of |wait - planted| is at most 2 us, or the error that is stated where that is larger. Our own
kernels are shown twice: by their own clock, and by clocks that are compared, as NCCL has to be: where both are there, one checks the other.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import sglang_probe as probe
from sglang_probe._bench import native
from sglang_probe._bench.driver import Wanted
from sglang_probe._bench.targets import TARGETS, routed, why_not
from sglang_probe._bench.waiting import Split, Stamped, split, stamp_calls
from sglang_probe._cli.options import ordinals
from sglang_probe._facts import DTYPE_BYTES
from sglang_probe._measure.provenance import stamp
from sglang_probe._run.arrays import arrays_of
from sglang_probe._run.inputs import element

NAMES = ("one_shot", "one_shot_push", "limit", "pynccl_in_place")
PLANTED_US = (0.0, 50.0, 250.0, 1000.0)
LEAST_US = 2.0
DTYPE = "bf16"
SHOWN = ("target", "clocks", "planted", "recovered", "error", "stated", "transfer", "stamp", "tick", "verdict")


def wanted_of(group: probe.LocalGroup, name: str, nbytes: int) -> Wanted:
    """The call of a target; refused here where the dispatch gives another."""
    target = TARGETS[name]
    settings = target.settings(group.group)
    decision = routed(settings, nbytes, nbytes // DTYPE_BYTES[DTYPE], DTYPE, captured=False)
    why = why_not(target, decision)
    if why:
        raise probe.InputError("targets", name, f"{nbytes} bytes: {why}")
    shape = (1, nbytes // DTYPE_BYTES[DTYPE])
    return Wanted(name, str(decision.path), decision.kernel, settings, False, shape, DTYPE, nbytes)


def in_rank(c: probe.Coordinator, wanted: Wanted, calls: int, planted_us: float, late: int) -> Stamped:
    """What each rank does for one row."""
    own_stream: Any = contextlib.nullcontext()
    if c.device == "gpu":
        torch: Any = __import__("torch")
        own_stream = torch.cuda.stream(torch.cuda.Stream())
    with own_stream:
        prepared = native.prepare(c, wanted)
        arrays_of(c.device).fill(prepared.tensor, np.zeros(wanted.shape[1], element(wanted.dtype).storage))
        return stamp_calls(c, prepared.tensor, calls=calls, planted_us=planted_us, planted_on=late)


def both_ways(answers: list[Stamped]) -> list[Split]:
    """By the path's own clock where it has one, and by clocks that are compared where they can be."""
    told = [split(answers)]
    if told[0].own_clock:
        with contextlib.suppress(probe.ProbeUnavailable):  # a row less: the one by its own clock stands
            told.append(split(answers, own_clock=False))
    return told


def row_of(name: str, told: Split, planted_us: float, late: int, judged: bool) -> dict[str, Any]:
    """One line of the table: of the ranks that had to wait, the one that did worst."""
    waiting = [rank for rank in range(len(told.wait_us)) if rank != late]
    errors = {rank: float(np.median(np.abs(told.wait_us[rank] - planted_us))) for rank in waiting}
    worst = max(errors, key=lambda rank: errors[rank])
    limit = max(LEAST_US, told.error_us)
    return {
        "target": name,
        "clocks": "own" if told.own_clock else "compared",
        "planted_us": planted_us,
        "recovered_us": float(np.median(told.wait_us[worst])),
        "error_us": errors[worst],
        "stated_us": told.error_us,
        "limit_us": limit,
        "late_rank_waits_us": float(np.median(told.wait_us[late])),
        "transfer_us": float(np.median(told.transfer_us[worst])),
        "stamp_us": told.stamp_us,
        "tick_us": told.tick_us,
        "drift_us_s": list(told.drift_us_s),
        "calls": len(told.last),
        "passed": errors[worst] <= limit if judged else None,
        "said": str(told),
    }


def measured(
    given: argparse.Namespace, calls: int, judged: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, str]]:
    """(rows, their splits, what failed). A group a target: one that fails must not hide the others."""
    rows: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for name in given.targets:
        try:
            with probe.LocalGroup(given.world_size, device=given.device, ordinals=given.ordinals, timeout_s=60) as group:
                wanted = wanted_of(group, name, given.nbytes)
                for planted_us in PLANTED_US:
                    for told in both_ways(group.run(in_rank, wanted, calls, planted_us, given.late, timeout_s=120)):
                        rows.append(row_of(name, told, planted_us, given.late, judged))
                        kept.append(told.to_dict())
        except Exception as error:  # every kind is a finding, and is printed
            failed[name] = f"{type(error).__name__}: {error}"
    return rows, kept, failed


def shown(rows: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in SHOWN:
        table.add_column(column, justify="left" if column in ("target", "clocks", "verdict") else "right")
    for row in rows:
        verdict = {True: "pass", False: f"MISS (limit {row['limit_us']:.2f})", None: "not judged"}[row["passed"]]
        numbers = (row["recovered_us"], row["error_us"], row["stated_us"], row["transfer_us"], row["stamp_us"])
        cells = [f"{value:.2f}" for value in numbers]
        table.add_row(row["target"], row["clocks"], f"{row['planted_us']:g}", *cells, f"{row['tick_us']:g}", verdict)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("gpu", "host"), default="gpu")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--ordinals", type=ordinals, help="the GPU of each rank, as 0,1")
    parser.add_argument("--targets", nargs="+", choices=tuple(TARGETS), default=NAMES, metavar="NAME", help=", ".join(TARGETS))
    parser.add_argument("--nbytes", type=int, default=16 << 10)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--late", type=int, default=1, help="the rank before whose calls the delay is planted")
    parser.add_argument("--quick", action="store_true", help="50 calls each")
    parser.add_argument("--out", help="all of it as JSON, every wait included")
    given = parser.parse_args()
    calls = 50 if given.quick else given.calls
    cores = len(os.sched_getaffinity(0))
    judged = given.device == "gpu" or given.world_size <= cores
    where = "GPUs" if given.device == "gpu" else f"CPU ranks over shared memory on {cores} cores; no figure of a GPU"
    start = time.monotonic()
    rows, kept, failed = measured(given, calls, judged)
    title = (
        f"{given.world_size} {where}; {given.nbytes:,} bytes of {DTYPE}, eager, {calls:,} calls a row, us (medians over calls)"
    )
    console = Console(width=None if sys.stdout.isatty() else 140, markup=False)
    console.print(shown(rows, title))
    for name, text in failed.items():
        console.print(f"FAILED {name}: {text}")
    if rows:
        console.print(f"said of the last row: {rows[-1]['said']}")
    missed = sum(row["passed"] is False for row in rows)
    verdict = f"{missed} of {len(rows)} rows MISS" if judged else f"{len(rows)} rows, none judged: ranks share cores"
    console.print(f"{verdict}; {time.monotonic() - start:.0f} s")
    if given.device == "host":
        console.print("(a CPU rank that waits for long sleeps between its looks, so by its own clock it really waits longer)")
    if given.out:
        whole = {"device": given.device, "provenance": stamp().to_dict(), "calls": calls, "late": given.late, "failed": failed}
        whole["rows"] = [{**row, "split": told} for row, told in zip(rows, kept, strict=True)]
        Path(given.out).write_text(json.dumps(whole))
    return 1 if failed or (missed and given.device == "gpu") else 0


if __name__ == "__main__":
    sys.exit(main())
