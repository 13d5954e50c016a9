"""NCCL as we measure it beside nccl-tests' all_reduce_perf: fresh processes that take turns, in place and out of place, eager and captured.

    python tests/bench/bench_nccl_tests.py --nccl-tests build/all_reduce_perf --nccl-tests-mpi build/all_reduce_perf_mpi --out beside.json
    python tests/bench/bench_nccl_tests.py --device host --quick        CPU ranks, as a trial of ours alone; no figure of a GPU

all_reduce_perf is not part of this project: build it from github.com/NVIDIA/nccl-tests against the NCCL that sglang_probe opens
(`make NCCL_HOME=...`; with `MPI=1 MPI_HOME=...` for the second; the wheel `mpich` has mpi.h, libmpi and mpirun where a machine has none).

How many processes drive the GPUs changes what a call costs (bench_one_process.py), so like is held against like: our ranks, one process a
GPU, against nccl-tests under MPI; and one process with all GPUs, whose calls and clock are bench_one_process.py's, against nccl-tests by
itself. Ours against nccl-tests by itself is shown, and not judged. Both sides time alike: rows of as many calls, graphs of as many that are
launched as often with no launch before, the host's clock until the stream is done, means over ranks, the next piece of a large buffer for
each captured call.

Captured: judged the same within 5 % by two one-sided t tests on the logarithms of the ratios, a pair a block of processes. They are made
after so many blocks as `--looks` says, at 5 % divided by the number of looks, so that looking again is no advantage. Eager: both with
their spread over processes; no claim is made.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench_one_process import provenance
from equivalence import equal, orders
from nccl_sides import PHASES, PLACES, Rows, Shape, Side
from rich.console import Console
from rich.table import Table

from sglang_probe._show.sizes import human_bytes

KIB = 1 << 10
SIZES = tuple(KIB << shift for shift in range(0, 20, 2))
ALPHA = 0.05
WHO = {
    "ours": "ours, a process a GPU",
    "ours_one": "ctypes, one process",
    "tests_mpi": "nccl-tests, a process a GPU (MPI)",
    "tests_one": "nccl-tests, one process",
}
PAIRS = (("ours", "tests_mpi", True), ("ours_one", "tests_one", True), ("ours", "tests_one", False))
"""(ours, theirs, alike and so judged)."""
Found = dict[tuple[str, str, str, int], dict[int, float]]
"""By who, phase, place and size: of each block one figure, the median over its cycles."""


def figures(rows: Rows, block: int, found: Found) -> None:
    for row in rows:
        key = row["who"], row["phase"], row["place"], row["nbytes"]
        found.setdefault(key, {})[block] = statistics.median(statistics.mean(cycle) for cycle in row["us"])


def ratios_of(found: Found, ours: str, theirs: str, phase: str, place: str, nbytes: int) -> list[float]:
    """Of the blocks that have both."""
    one, other = (found.get((who, phase, place, nbytes), {}) for who in (ours, theirs))
    return [one[block] / other[block] for block in one if block in other]


def pairs_of(found: Found) -> list[tuple[str, str, bool]]:
    names = {who for who, *_ in found}
    return [pair for pair in PAIRS if pair[0] in names and pair[1] in names]


def decided(found: Found, shape: Shape, alpha: float) -> bool:
    """Whether every judged size is the same, or is not."""
    tests = [
        equal(ratios_of(found, ours, theirs, "captured", place, nbytes), alpha).verdict
        for ours, theirs, judged in pairs_of(found)
        if judged
        for place in PLACES
        for nbytes in shape.sizes
    ]
    return bool(tests) and all(not verdict.startswith(("not shown", "too few")) for verdict in tests)


# ------------------------------------------------------------------------------------------------------------------------------- shown


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]" if values else "-"


def tables_of(found: Found, shape: Shape, alpha: float) -> tuple[list[Table], Rows]:
    """For people, and the same as plain data."""
    tables, plain = [], []
    pairs = pairs_of(found) or [(who, "", False) for who in dict.fromkeys(who for who, *_ in found)]
    for phase in PHASES:
        for ours, theirs, judged in pairs:
            if not any(key[:2] == (ours, phase) for key in found):
                continue
            claim = f"equivalence at {alpha:.3g} a side" if judged and phase == "captured" else "no claim"
            against = f" against {WHO[theirs]}" if theirs else ", nothing beside it"
            table = Table(title=f"{phase}: {WHO[ours]}{against}; {claim}", title_justify="left")
            columns = ("size", "place", "ours us", "theirs us", "ratio", f"{100 - 200 * alpha:.3g} %", "blocks", "verdict")
            for column in columns:
                table.add_column(column, justify="left" if column in ("place", "verdict") else "right")
            for nbytes in shape.sizes:
                for place in PLACES:
                    both = [list(found.get((who, phase, place, nbytes), {}).values()) for who in (ours, theirs)]
                    ratios = ratios_of(found, ours, theirs, phase, place, nbytes)
                    said = equal(ratios, alpha) if ratios else None
                    verdict = said.verdict if said and judged and phase == "captured" else ""
                    ends = (f"{said.ratio:.3f}", f"[{said.low:.3f}, {said.high:.3f}]", str(said.blocks)) if said else ("", "", "")
                    table.add_row(human_bytes(nbytes), place, *map(_spread, both), *ends, verdict)
                    plain.append(
                        {"phase": phase, "ours": ours, "theirs": theirs, "place": place, "nbytes": nbytes, "judged": judged}
                    )
                    plain[-1] |= {"us": both, "test": asdict(said) if said else None}
            tables.append(table)
    return tables, plain


class Beside:
    """The blocks as they are run: what each unit gave, what failed, and why it ended."""

    def __init__(self, given: argparse.Namespace, shape: Shape, looks: list[int]) -> None:
        self.given, self.shape, self.looks, self.alpha = given, shape, looks, ALPHA / len(looks)
        self.side, self.found, self.kept, self.start = Side(given, shape), Found(), Rows(), time.monotonic()
        self.failed: dict[str, list[str]] = {}
        self.ended = f"all {looks[-1]} blocks"
        self.provenance = provenance(given.nccl)

    def run(self) -> None:
        longest, drawn = 0.0, random.Random(self.given.seed)
        for block, order in enumerate(orders(list(self.side.units), self.looks[-1], self.given.seed)):
            if time.monotonic() - self.start + longest > self.given.budget:
                self.ended = f"the budget, after {block} of {self.looks[-1]} blocks, where it was looked instead"
                break
            begun = time.monotonic()
            for name in order:
                self._unit(name, block, drawn.getrandbits(32))
            longest = max(longest, time.monotonic() - begun)
            print(f"block {block + 1}: {time.monotonic() - begun:.0f} s, {', '.join(order)}", file=sys.stderr, flush=True)
            self.save()
            if block + 1 in self.looks[:-1] and decided(self.found, self.shape, self.alpha):
                self.ended = f"a look after {block + 1} blocks, which decided every size"
                break

    def _unit(self, name: str, block: int, seed: int) -> None:
        """One that fails must not take the others' figures along; after the second time it is not tried again."""
        failed = self.failed.setdefault(name, [])
        if len(failed) > 1:
            return
        try:
            rows = self.side.units[name](block, seed)
        except Exception as error:  # every kind is a finding, and is printed
            failed.append(f"block {block + 1}: {type(error).__name__}: {error}")
            print(f"FAILED {name}, {failed[-1]}", file=sys.stderr, flush=True)
            return
        figures(rows, block, self.found)
        self.kept.append({"block": block, "unit": name, "at_s": time.monotonic() - self.start, "rows": rows})

    def save(self) -> None:
        """After every block, so that whatever ends this leaves what was measured."""
        if not self.given.out:
            return
        told: dict[str, Any] = {
            "device": self.given.device,
            "shape": asdict(self.shape),
            "looks": self.looks,
            "alpha": self.alpha,
        }
        told |= {"ended": self.ended, "nccl": sorted(self.side.versions), "failed": self.failed, "provenance": self.provenance}
        told |= {"table": tables_of(self.found, self.shape, self.alpha)[1], "units": self.kept}
        Path(self.given.out).write_text(json.dumps(told))

    def show(self) -> None:
        console = Console(width=None if sys.stdout.isatty() else 150, markup=False)
        for table in tables_of(self.found, self.shape, self.alpha)[0]:
            console.print(table)
        cpu = "CPU ranks over shared memory, a ring in NCCL's place: NO FIGURE OF A GPU"
        console.print(
            f"{self.given.world_size} {'GPUs' if self.given.device == 'gpu' else cpu}; host's clock, us a call: median over blocks "
            f"[least, largest]; a block's figure is the median of {self.shape.cycles} cycles of {self.shape.calls} calls, captured "
            f"x {self.shape.launches} launches. Ended by {self.ended}. {time.monotonic() - self.start:.0f} s"
        )
        for name, texts in self.failed.items():
            for text in texts:
                console.print(f"FAILED {name}, {text}")
        if len(self.side.versions) > 1:
            console.print(
                f"DIFFERENT NCCL ON THE TWO SIDES: {', '.join(sorted(self.side.versions))}: nothing above is a comparison"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("gpu", "host"), default="gpu")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--nccl-tests", metavar="FILE", help="all_reduce_perf without MPI")
    parser.add_argument("--nccl-tests-mpi", metavar="FILE", help="all_reduce_perf built with MPI=1")
    parser.add_argument("--mpirun", default=shutil.which("mpirun") or "mpirun", help="with its options, as one text")
    parser.add_argument("--nccl", help="libnccl to open; else the one that sglang_probe finds")
    parser.add_argument("--looks", type=int, nargs="+", default=[6, 12, 20], help="after so many blocks it is tested")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--cycles", type=int, default=3)
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--budget", type=float, default=540, help="seconds; no block is started that would not fit")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one set of processes")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="3 sizes, 3 blocks, few calls")
    parser.add_argument("--out", help="all raw figures as JSON, written anew after every block")
    given = parser.parse_args()
    shape = Shape(tuple(n for n in SIZES if n <= given.largest), given.calls, given.launches, given.cycles)
    beside = Beside(given, Shape(SIZES[:3], 5, 3, 2, 1), [3]) if given.quick else Beside(given, shape, sorted(given.looks))
    try:
        beside.run()
    finally:
        beside.save()
        beside.show()
    return 1 if len(beside.side.versions) > 1 or any(beside.failed.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
