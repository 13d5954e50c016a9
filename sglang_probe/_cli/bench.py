"""`sglang-probe bench`: what each path costs here, into a measurement file. Called by cli.py.

Exit status: 0 the plan is done, or one launch's part of it, and every result was right; 1 a result was WRONG, or cells failed; 3 it was
stopped before its plan was done (a time limit, no ranks come up any more); 130 interrupted, 143 by SIGTERM, 129 by SIGHUP (130 for all of
them under a launcher). After these and after 3 the same command goes on, and the table shows what is there.
Invariant: every option is a keyword of the Python function.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

_ABOUT = """Measures what an all-reduce costs on each path, size by size: eager and captured, back to back and with a compute kernel before
each call, over several sets of fresh processes. Each sum is checked before it is timed. All samples go into a file.
The default takes some minutes on two GPUs (156 s on two H200s), --quick some seconds; --time-limit ends either earlier.

targets:
  pynccl_in_place      ncclAllReduce, send buffer = receive buffer
  pynccl_out_of_place  ncclAllReduce into a new tensor
  one_shot, two_shot   custom all-reduce v1
  one_shot_push, one_shot_pull, two_shot_pull, two_shot_push
                       custom all-reduce V2
  limit                a kernel of our own, which no release of SGLang has: the fastest that we know for small sizes
  custom               all from one_shot to limit
  torch_distributed    torch.distributed.all_reduce
  torch_symm_mem       torch symmetric memory, two shots"""
_EXAMPLES = """examples:
  sglang-probe bench --quick
  sglang-probe bench --out here.jsonl
  sglang-probe bench --targets pynccl_in_place,one_shot --sizes 1K:1M --phases captured --out two.jsonl
  sglang-probe bench --tokens 1,4,64,512 --hidden 7168 --processes 12 --out step.jsonl
interrupted, or over --time-limit? The same command goes on."""
UNFINISHED = 3


def add_parsers(commands: Any) -> None:
    from .options import count, ordinals

    parser = commands.add_parser(
        "bench",
        help="what each path costs here: times with their spread, into a file",
        description=_ABOUT,
        epilog=_EXAMPLES,
    )
    parser.verbose_text = "least and most of each figure in place of +-, and what is not known of this machine"
    parser.add_argument("--out", default="bench.jsonl", metavar="FILE", help="where it goes (bench.jsonl); never overwritten")
    parser.add_argument("--quick", action="store_true", help="few sizes, two process sets, fewer samples")
    parser.add_argument("--time-limit", type=float, metavar="S", help="stop after so many seconds; the same command goes on")
    what = parser.add_argument_group("what")
    what.add_argument("--targets", metavar="NAMES", help="some of those above, as pynccl_in_place,one_shot (all)")
    what.add_argument("--sizes", metavar="SIZES", help="1K:256M (by 4), 1K:256M:2, or 1K,42KiB (GPUs 1K:256M, CPU ranks 1K:4M)")
    what.add_argument("--tokens", metavar="ROWS", help="instead of --sizes: 1,4,64,512 rows")
    what.add_argument("--hidden", type=count, metavar="N", help="with --tokens: of so many columns (7168)")
    what.add_argument("--phases", default="eager,captured", metavar="NAMES", help="eager,captured")
    what.add_argument("--patterns", default="back_to_back,interleaved", metavar="NAMES", help="back_to_back,interleaved")
    what.add_argument("--compute-us", type=float, default=5.0, metavar="US", help="interleaved: length of the kernel between (5)")
    text = "native (our C), engine (SGLang's own call); by default native, and on GPUs also engine, where SGLang can be imported"
    what.add_argument("--drivers", metavar="NAMES", help=text)
    what.add_argument("--dtype", default="bf16", help="bf16, fp16, fp32, fp64, int8, int32 or int64 (bf16)")
    text = "cut so many calls of a cell into waiting for the last rank and moving data besides (0)"
    what.add_argument("--split", type=int, default=0, metavar="CALLS", help=text)
    on = parser.add_argument_group("on what")
    on.add_argument("--device", default="auto", choices=("auto", "gpu", "host"), help="GPUs, or CPU ranks; auto: GPUs if there")
    on.add_argument("--world-size", type=count, metavar="N", help="ranks (one a GPU; 2 CPU ranks)")
    text = "the GPU of each rank, as 0,1. Ranks on one GPU are a trial: they share it, NCCL refuses them, and no cost is read from it"
    on.add_argument("--ordinals", type=ordinals, metavar="N,N", help=text)
    on.add_argument("--processes", type=count, metavar="N", help="sets of fresh processes: what is replicated (5; --quick 2)")
    on.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of cells (0)")
    on.add_argument("--timeout", type=float, default=30.0, metavar="S", help="of each wait for a rank (30)")
    on.add_argument("--nccl", metavar="FILE", help="the libnccl.so.2 to measure")
    text = "a fact of the group, such as full_nvlink=0; repeat it. A wrong name prints all of them"
    on.add_argument("--fact", action="append", default=[], metavar="NAME=VALUE", help=text)
    parser.set_defaults(run=run_bench)


_SAME = (
    *("quick", "targets", "sizes", "tokens", "hidden", "phases", "patterns", "compute_us", "drivers", "dtype", "device"),
    *("world_size", "processes", "seed", "nccl", "split", "ordinals"),
)
"""Options that are called as the keyword is."""


def run_bench(args: argparse.Namespace) -> int:
    from .._bench.bench import Done, Interrupted, to_come
    from .._bench.bench import run_bench as run
    from .._bench.launched import follows, is_launched
    from .._bench.page import bench_page, to_dict
    from .._show.page import Line, printable
    from ..cli import show
    from .options import facts_of

    def say(text: str) -> None:
        with contextlib.suppress(OSError):  # of a terminal that was closed: the bench goes on
            sys.stderr.write(f"sglang-probe: {printable(text)}\n")

    def shown(done: Done) -> None:
        page = bench_page(done, args.verbose)
        if more := to_come(done):
            page.insert(1, Line(more))
        show(args, to_dict(done) if args.json else None, page)

    with _ended_by_signals(not is_launched()) as came:
        try:
            done = run(
                args.out,
                time_limit_s=args.time_limit,
                timeout_s=args.timeout,
                facts=facts_of(args.fact),
                say=say,
                **{name: getattr(args, name) for name in _SAME},
            )
        except KeyboardInterrupt as stop:
            say(str(stop) or "interrupted before anything was measured")
            if isinstance(stop, Interrupted) and stop.done is not None:
                with contextlib.suppress(OSError):  # of a terminal that was closed
                    shown(stop.done)
                    sys.stdout.flush()
            return 128 + (came[0] if came else signal.SIGINT)
    if not follows():  # of a launch, rank 0 speaks for all
        shown(done)
    if done.report.failed or any(cell.wrong for cell in done.measurement.cells):
        return 1
    return UNFINISHED if done.report.stopped else 0


@contextlib.contextmanager
def _ended_by_signals(here: bool) -> Iterator[list[int]]:
    """Within, and where ``here``: SIGTERM and SIGHUP end a bench as Ctrl-C does. The list has those that came."""
    came: list[int] = []

    def end(number: int, _frame: object) -> None:
        came.append(number)
        raise KeyboardInterrupt

    here = here and threading.current_thread() is threading.main_thread()
    ours = [number for number in (signal.SIGTERM, signal.SIGHUP) if here and signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield came
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
