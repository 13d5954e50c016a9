"""`sglang-probe bench`: what each path costs here, into a measurement file. Called by cli.py.

Exit status: 0 the plan is done, or one launch's part of it, and every result was right; 1 a result was WRONG, or cells failed; 3 it was
stopped before its plan was done (a time limit, no ranks come up any more); 130 interrupted. After 3 and 130 the same command goes on.
Invariant: every option is a keyword of the Python function.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

_EXAMPLES = """examples:
  sglang-probe bench --quick
  sglang-probe bench --out here.jsonl
  sglang-probe bench --targets pynccl_in_place,one_shot --sizes 1K:1M --phases captured --out two.jsonl
  sglang-probe bench --tokens 1,4,64,512 --hidden 7168 --processes 12 --out step.jsonl
interrupted, or over --time-limit? The same command goes on."""
UNFINISHED = 3


def add_parsers(commands: Any) -> None:
    from .options import count

    parser = commands.add_parser(
        "bench", help="what each path costs here: times with their spread, into a file", epilog=_EXAMPLES
    )
    parser.add_argument("--out", default="bench.jsonl", metavar="FILE", help="where it goes (bench.jsonl); never overwritten")
    parser.add_argument("--quick", action="store_true", help="few sizes, two process sets, fewer samples")
    parser.add_argument("--time-limit", type=float, metavar="S", help="stop after so many seconds; the same command goes on")
    what = parser.add_argument_group("what")
    what.add_argument("--targets", metavar="NAMES", help="paths and kernels, as pynccl_in_place,one_shot (all)")
    what.add_argument("--sizes", metavar="SIZES", help="1K:256M (by 4), 1K:256M:2, or 1K,42KiB (GPUs 1K:256M, CPU ranks 1K:4M)")
    what.add_argument("--tokens", metavar="ROWS", help="instead: 1,4,64,512 rows")
    what.add_argument("--hidden", type=count, default=7168, metavar="N", help="of so many columns (7168)")
    what.add_argument("--phases", default="eager,captured", metavar="NAMES", help="eager,captured")
    what.add_argument("--patterns", default="back_to_back,interleaved", metavar="NAMES", help="back_to_back,interleaved")
    what.add_argument("--compute-us", type=float, default=5.0, metavar="US", help="interleaved: length of the kernel between (5)")
    what.add_argument("--drivers", metavar="NAMES", help="native,engine (both, where SGLang can be imported)")
    what.add_argument("--dtype", default="bf16", help="bf16, fp16, fp32, ... (bf16)")
    text = "cut so many calls of a cell into waiting for the last rank and moving data besides (0)"
    what.add_argument("--split", type=int, default=0, metavar="CALLS", help=text)
    on = parser.add_argument_group("on what")
    on.add_argument("--device", default="auto", choices=("auto", "gpu", "host"), help="GPUs, or CPU ranks; auto: GPUs if there")
    on.add_argument("--world-size", type=count, metavar="N", help="ranks (one a GPU; 2 CPU ranks)")
    on.add_argument("--processes", type=count, metavar="N", help="sets of fresh processes: what is replicated (5)")
    on.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of cells (0)")
    on.add_argument("--timeout", type=float, default=30.0, metavar="S", help="of each wait for a rank (30)")
    on.add_argument("--nccl", metavar="FILE", help="the libnccl.so.2 to measure")
    text = "a fact of the group, such as full_nvlink=0; repeat it. A wrong name prints all of them"
    on.add_argument("--fact", action="append", default=[], metavar="NAME=VALUE", help=text)
    parser.set_defaults(run=run_bench)


_SAME = (
    *("quick", "targets", "sizes", "tokens", "hidden", "phases", "patterns", "compute_us", "drivers", "dtype", "device"),
    *("world_size", "processes", "seed", "nccl", "split"),
)
"""Options that are called as the keyword is."""


def run_bench(args: argparse.Namespace) -> int:
    from .._bench.bench import Interrupted
    from .._bench.bench import run_bench as run
    from .._bench.launched import follows
    from .._bench.page import bench_page, to_dict
    from .._show.page import printable
    from ..cli import show
    from .options import facts_of

    def say(text: str) -> None:
        sys.stderr.write(f"sglang-probe: {printable(text)}\n")

    try:
        done = run(
            args.out,
            time_limit_s=args.time_limit,
            timeout_s=args.timeout,
            facts=facts_of(args.fact),
            ordinals=None,
            say=say,
            **{name: getattr(args, name) for name in _SAME},
        )
    except Interrupted as stop:
        say(str(stop))
        return 130
    if not follows():  # of a launch, rank 0 speaks for all
        show(args, to_dict(done) if args.json else None, bench_page(done, args.verbose))
    if done.report.failed or any(cell.wrong for cell in done.measurement.cells):
        return 1
    return UNFINISHED if done.report.stopped else 0
