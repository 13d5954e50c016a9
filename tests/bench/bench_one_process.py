"""One process that drives both GPUs against one process a GPU, told apart from back to back against interleaved: a 2x2 table.

    python tests/bench/bench_one_process.py --out processes.json        captured NCCL in place, 4 sizes, 8 sets of fresh processes a kind
    python tests/bench/bench_one_process.py --env NCCL_GRAPH_MIXING_SUPPORT=0      the same with an environment of its own
    python tests/bench/bench_one_process.py --device host --quick       without GPUs: the processes are started, nothing is measured

Both kinds run nccl_alone.py, so that nothing but the number of processes differs. Kinds take turns in being the first of a block.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from equivalence import interval
from nccl_alone import KIB, PATTERNS, Spec, child
from rich.console import Console
from rich.table import Table

KINDS = ("one", "each")
TEXTS = {"one": "one process, both GPUs", "each": "one process a GPU"}
_SET_S = 180.0


@contextlib.contextmanager
def _environment(env: dict[str, str]) -> Iterator[None]:
    """Children inherit it."""
    before = {name: os.environ.get(name) for name in env}
    os.environ.update(env)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def run_set(kind: str, spec: Spec, env: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """Fresh processes of one kind; their rows put together: times by rank, [repeat][rank]. Raises what went wrong in one of them."""
    context = multiprocessing.get_context("spawn")
    everyone = list(range(spec.world_size))
    groups = [everyone] if kind == "one" else [[rank] for rank in everyone]
    barrier = context.Barrier(len(groups))
    pipes = [context.Pipe() for _ in groups]
    processes = [
        context.Process(target=child, args=(mine, spec, barrier, theirs), daemon=True)
        for mine, (_, theirs) in zip(groups, pipes, strict=True)
    ]
    deadline = time.monotonic() + _SET_S
    with _environment(env or {}):
        for process in processes:
            process.start()
    for _, theirs in pipes:
        theirs.close()
    try:
        ours = [mine for mine, _ in pipes]
        made = _heard(ours[0], deadline)
        if isinstance(made, tuple):
            raise RuntimeError(made[1])
        for pipe in ours:
            with contextlib.suppress(OSError):  # it has ended, and said why
                pipe.send(made)
        answers = _all_heard(ours, deadline)
    finally:
        _end(processes)
    merged = []
    for rows in zip(*answers, strict=True):
        row = dict(rows[0])
        for name in ("device_us", "wall_us"):
            row[name] = [sum(parts, []) for parts in zip(*(one[name] for one in rows), strict=True)]
        merged.append(row)
    return merged


def _heard(pipe: Any, deadline: float) -> Any:
    if not pipe.poll(max(0.0, deadline - time.monotonic())):
        raise TimeoutError(f"no answer within {_SET_S:g} s")
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a process ended without a word") from None


def _all_heard(pipes: list[Any], deadline: float) -> list[Any]:
    """Every process's rows; the first that failed ends the wait for the others."""
    answers: dict[int, Any] = {}
    while len(answers) < len(pipes):
        left = [pipe for i, pipe in enumerate(pipes) if i not in answers]
        ready = multiprocessing.connection.wait(left, max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError(f"no answer within {_SET_S:g} s")
        for pipe in ready:
            good, answer = _heard(pipe, deadline)
            if not good:
                raise RuntimeError(answer)
            answers[pipes.index(pipe)] = answer
    return [answers[i] for i in range(len(pipes))]


def _end(processes: list[Any]) -> None:
    for process in processes:
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join(10)


def figure(row: dict[str, Any], name: str = "device_us") -> float:
    """One number a process set: of each rank the median over repeats, then the largest over ranks."""
    return float(max(statistics.median(rank) for rank in zip(*row[name], strict=True)))


def text_of(values: list[float]) -> str:
    middle, low, high = interval(values)
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def ratio_text(above: list[float], below: list[float]) -> str:
    """Of figures of the same blocks, so that what drifts meets both."""
    ratios = [a / b if b > 0 else math.nan for a, b in zip(above, below, strict=True)]
    middle, low, high = interval(ratios)
    return f"{middle:.3f} [{low:.3f}, {high:.3f}]"


def table_of(found: dict[tuple[str, str, int], list[float]], sizes: tuple[int, ...], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("size", "", *(f"{pattern.replace('_', ' ')}, us" for pattern in PATTERNS), "interleaved / back to back"):
        table.add_column(column, justify="left" if not column else "right")
    for nbytes in sizes:
        for kind in KINDS:
            by = [found[kind, pattern, nbytes] for pattern in PATTERNS]
            table.add_row(
                f"{nbytes // KIB} KiB" if kind == "one" else "", TEXTS[kind], *map(text_of, by), ratio_text(by[1], by[0])
            )
        each, one = ([found[kind, pattern, nbytes] for pattern in PATTERNS] for kind in ("each", "one"))
        table.add_row("", "a process a GPU / one process", *map(ratio_text, each, one), "", end_section=True)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("gpu", "host"), default="gpu")
    parser.add_argument("--processes", type=int, default=8, help="sets of fresh processes of each kind")
    parser.add_argument("--world-size", type=int, default=2)
    parser.add_argument("--compute-us", type=float, default=5.0)
    parser.add_argument("--nccl", help="libnccl to load; else the one that sglang_probe would open")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--budget", type=float, default=540, help="seconds; no set is started that would not fit")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="2 sets of each kind, few repeats")
    parser.add_argument("--out")
    given = parser.parse_args()
    env = dict(one.split("=", 1) for one in given.env)
    nccl = given.nccl or (find_nccl() if given.device == "gpu" else "")
    spec = Spec(nccl, given.world_size, compute_us=given.compute_us, device=given.device, repeats=3 if given.quick else 9)
    told: dict[str, Any] = {"device": given.device, "spec": asdict(spec), "env": env, "sets": [], "failed": []}
    if given.device == "gpu":
        told["provenance"] = provenance(nccl)
    start = time.monotonic()
    try:
        blocks(given, spec, env, told)
    finally:
        show(given, spec, told)
    print(f"{time.monotonic() - start:.0f} s")
    return 1 if told["failed"] or not told["sets"] else 0


def blocks(given: argparse.Namespace, spec: Spec, env: dict[str, str], told: dict[str, Any]) -> None:
    """One set of each kind a block. A block in which one fails counts for neither; after three the rest is not tried."""
    count, start, longest, drawn = 2 if given.quick else given.processes, time.monotonic(), 0.0, random.Random(given.seed)
    for block in range(count):
        if time.monotonic() - start + longest > given.budget or len(told["failed"]) > 2:
            print(f"the budget, or what failed, ends this after {block} of {count} blocks", file=sys.stderr)
            return
        begun, sets = time.monotonic(), []
        try:
            for kind in KINDS if block % 2 else KINDS[::-1]:  # each is as often the first
                rows = run_set(kind, replace(spec, seed=drawn.getrandbits(32)), env)
                sets.append({"block": block, "kind": kind, "rows": rows})
        except Exception as error:  # every kind is a finding, and is printed
            told["failed"].append(f"block {block + 1}, {kind}: {type(error).__name__}: {error}")
            print(f"FAILED {told['failed'][-1]}", file=sys.stderr, flush=True)
            continue
        told["sets"] += sets
        longest = max(longest, time.monotonic() - begun)
        if given.out:
            Path(given.out).write_text(json.dumps(told))


def show(given: argparse.Namespace, spec: Spec, told: dict[str, Any]) -> None:
    found: dict[tuple[str, str, int], list[float]] = {}
    for one in told["sets"]:
        for row in one["rows"]:
            found.setdefault((one["kind"], row["pattern"], row["nbytes"]), []).append(figure(row))
    if not found:
        print("nothing was measured")
        return
    where = f"{given.world_size} GPUs, captured NCCL in place, bf16"
    if given.device == "host":
        where = "A TRIAL WITHOUT GPUS: nothing ran, a call takes 1 us by definition"
    title = (
        f"{where}; device time a call, us, geometric mean over {len(told['sets']) // 2} sets of fresh processes [95 %]; interleaved: a "
        f"{given.compute_us:g} us kernel before each call, whose own time is taken off{'; ' + ' '.join(given.env) if given.env else ''}"
    )
    Console(width=None if sys.stdout.isatty() else 140, markup=False).print(table_of(found, spec.sizes, title))


def find_nccl() -> str:
    from sglang_probe import gpu

    return gpu.nccl().path


def provenance(nccl: str) -> dict[str, Any]:
    from sglang_probe._measure.provenance import stamp

    return stamp(nccl).to_dict()


if __name__ == "__main__":
    sys.exit(main())
