"""What the hook costs: SGLang's own calls with it and without it, turn about inside the same two processes, and replays of a graph.

    python tests/bench/bench_hook.py --out hook.json       on two GPUs, about a minute; on one, two ranks share it: host times stand
    python tests/bench/bench_hook.py --quick               few rounds
    python tests/bench/bench_hook.py --device host         a rehearsal on CPU ranks: SGLang's in-place method over gloo, and no graphs

A round has a block of each mode in an order of its own; a block's figure is the median of its batches, and a mode's cost is its figure less
that of the same round without the hook: their median over rounds, and where it lies with 95 % by order statistics, of the rank for which
it is larger. Between processes such a difference would drown. Needs an SGLang that can be imported; says so where there is none.
Invariant: a block in which the hook did not count each call, or counted one where it should not, is an error and no figure.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))
from gpu.sharing import ordinals, share

import sglang_probe as probe
from sglang_probe import LocalGroup, ProbeUnavailable, gpu
from sglang_probe._bench import engine
from sglang_probe._bench.engine_state import Built, _enabled, engine_of
from sglang_probe._bench.native import stream_of
from sglang_probe._live.counts import kinds_of
from sglang_probe._record.ring import Ring
from sglang_probe.hook import session as hook_session

WITHOUT = "without"
MODES = {
    WITHOUT: "without the hook",
    "stopped": "installed, not recording",
    "recording": "recording",
    "host_time": "recording, host time of each call",
    "site": "recording, call site of each call",
}
CASES = {
    "torch": ("torch.distributed", Built()),
    "pynccl": ("pynccl in place", Built(pynccl=True)),
    "v1": ("custom all-reduce, v1", Built(pynccl=True, custom=True, v2=0)),
    "v2": ("custom all-reduce, V2", Built(pynccl=True, custom=True, v2=1)),
}
REPLAYED = (WITHOUT, "recording")
GPU_CASES, HOST_CASES = ("torch", "pynccl", "v1"), ("torch",)
SHAPE = (1, 7168)
WARM, BATCHES, BATCH, IN_GRAPH, REPLAYS = 30, 10, 25, 100, 20
"""Calls before a block; batches of calls in it; calls of a graph; replays a block."""
CHUNK = 8
"""Rounds an order to the ranks: between them the budget is looked at."""
_ORDER_S = 180.0
_MEMORY = "/dev/shm"
"""Where ring files lie by default."""
Order = list[list[str]]


# ----------------------------------------------------------------------------------------------------------------- run by the ranks


def recorder() -> Any:
    session = hook_session.current()
    if session is None:
        raise RuntimeError(f"the hook stands aside: {[finding.text for finding in probe.hook.findings()]}")
    return session.recorder


def toggle(mode: str) -> None:
    if mode == WITHOUT:
        probe.hook.uninstall()
        return
    probe.hook.install()
    own = recorder()
    own.site_every, own.host_time = int(mode == "site"), mode == "host_time"
    (own.stop if mode == "stopped" else own.start)()


def counted(mode: str, name: str) -> int:
    """Calls that the hook has on record."""
    return 0 if mode == WITHOUT else int(recorder().counts()[name])


class Ready:
    """A group of SGLang's, and one call of it as the case makes it."""

    def __init__(self, c: Any, case: str) -> None:
        import torch

        self.c, self.torch, self.on_gpu = c, torch, c.device == "gpu"
        self.group = engine_of(c).group(CASES[case][1])
        device, dtype = ("cuda", torch.bfloat16) if self.on_gpu else ("cpu", torch.float32)
        self.x = torch.zeros(SHAPE, dtype=dtype, device=device)
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(torch.no_grad())
        if case == "pynccl":  # in eager calls it is off
            self.stack.enter_context(_enabled(self.group.pynccl_comm, torch.cuda.current_stream))

    def calls(self, count: int) -> None:
        """On a CPU all_reduce goes past SGLang's operators, which are what is wrapped: there the in-place one's method is called."""
        group, x = self.group, self.x
        if self.on_gpu:
            for _ in range(count):
                group.all_reduce(x)
        else:
            for _ in range(count):
                group._all_reduce_in_place(x)

    def meet(self) -> None:
        """Nothing runs any more, on any rank."""
        if self.on_gpu:
            self.c.wait(stream_of(self.c))
        self.c.barrier()


def rounds(
    c: Any, case: str, order: Order, measure: Callable[[Ready, str], dict[str, float]]
) -> list[dict[str, dict[str, float]]]:
    """Figures of each mode, by round."""
    ready, found = Ready(c, case), []
    with ready.stack:
        gc.collect()
        gc.disable()
        try:
            for modes in order:
                figures = {}
                for mode in modes:
                    toggle(mode)
                    figures[mode] = measure(ready, mode)
                    if mode != WITHOUT and counted(mode, "failures"):
                        raise RuntimeError(f"{case}, {mode}: {counted(mode, 'failures')} failures inside the hook")
                found.append(figures)
            toggle("recording")
            ready.calls(1)
            _as_expected(case)
        finally:
            gc.enable()
            toggle(WITHOUT)
    return found


def _as_expected(case: str) -> None:
    """A hook that raises alarms is not the one whose cost is asked for."""
    with Ring(probe.hook.installed()) as ring:
        kinds = kinds_of(ring.tables())
    odd = [kind.to_dict() for kind in kinds if kind.is_alarm or not kind.path]
    if odd:
        raise RuntimeError(f"{case}: what ran is not what was expected: {odd[:3]}")


def eager(ready: Ready, mode: str) -> dict[str, float]:
    ready.calls(WARM)
    ready.meet()
    before, clock, batches = counted(mode, "head"), time.perf_counter_ns, []
    for _ in range(BATCHES):
        start = clock()
        ready.calls(BATCH)
        batches.append((clock() - start) / BATCH)
    ready.meet()
    _check(mode, counted(mode, "head") - before, 0 if mode in (WITHOUT, "stopped") else BATCHES * BATCH)
    return {"host_ns": statistics.median(batches)}


def _check(mode: str, got: int, wanted: int) -> None:
    if got != wanted:
        raise RuntimeError(f"{mode}: the hook counted {got} where {wanted} were made")


def replays(ready: Ready, mode: str) -> dict[str, float]:
    """A graph that is captured in this mode: the hook counts replays of graphs that it saw captured."""
    torch, graph = ready.torch, ready.torch.cuda.CUDAGraph()
    with ready.group.graph_capture() as context:
        ready.calls(1)
        context.stream.synchronize()
        with torch.cuda.graph(graph, stream=context.stream):
            ready.calls(IN_GRAPH)
    torch.cuda.current_stream().wait_stream(context.stream)
    graph.replay()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before, clock, host, device = _replayed(mode), time.perf_counter_ns, [], []
    for _ in range(REPLAYS):
        ready.meet()
        begin.record()
        start = clock()
        graph.replay()
        host.append(float(clock() - start))
        end.record()
        ready.c.wait(stream_of(ready.c))
        device.append(begin.elapsed_time(end) * 1e6)
    _check(mode, _replayed(mode) - before, 0 if mode == WITHOUT else REPLAYS)
    graph.reset()
    return {"host_ns": statistics.median(host), "device_ns": statistics.median(device)}


def _replayed(mode: str) -> int:
    if mode == WITHOUT:
        return 0
    with Ring(probe.hook.installed()) as ring:
        return int(ring.tables().graphs["replays"].sum())


def run_eager(c: Any, case: str, order: Order) -> list[dict[str, dict[str, float]]]:
    return rounds(c, case, order, eager)


def run_replays(c: Any, case: str, order: Order) -> list[dict[str, dict[str, float]]]:
    return rounds(c, case, order, replays)


def there(c: Any, case: str) -> str:
    """ "" or, on all ranks alike, why this SGLang cannot build the group."""
    if c.device == "gpu":
        share(c)
    try:
        engine_of(c).group(CASES[case][1])
    except ProbeUnavailable as error:
        return str(error)
    return ""


# --------------------------------------------------------------------------------------------------------------------- the figures


def middle(values: list[float]) -> tuple[float, float, float]:
    """The median, and between which of the values it lies with 95 %; NaN ends where they are too few to say."""
    ordered, count = sorted(values), len(values)
    if count < 6:
        return statistics.median(ordered), math.nan, math.nan
    half = 0.98 * math.sqrt(count)
    low, high = max(0, math.floor(count / 2 - half)), min(count - 1, math.ceil(count / 2 + half) - 1)
    return statistics.median(ordered), ordered[low], ordered[high]


def costs(by_rank: list[list[dict[str, dict[str, float]]]], mode: str, name: str) -> tuple[float, float, float]:
    """Of the rank for which it is larger."""
    return max(middle([one[mode][name] - one[WITHOUT][name] for one in rank]) for rank in by_rank)


def plain(by_rank: list[list[dict[str, dict[str, float]]]], mode: str, name: str) -> float:
    return max(statistics.median(one[mode][name] for one in rank) for rank in by_rank)


def drawn(modes: tuple[str, ...], count: int, chance: random.Random) -> Order:
    return [chance.sample(modes, len(modes)) for _ in range(count)]


def table_of(told: dict[str, Any]) -> Table:
    where = "A REHEARSAL ON CPU RANKS, gloo"
    if told["device"] == "gpu":
        where = f"{'two ranks, one a GPU' if told['ordinals'] == (0, 1) else 'TWO RANKS THAT SHARE ONE GPU'}, bf16, 14 KiB"
    table = Table(title=f"The hook's cost in SGLang {told['sglang']}: {where}; medians over rounds [95 %]", title_justify="left")
    for column in ("", "", "us", "more than without, ns"):
        table.add_column(column, justify="right" if column else "left")
    for row in told["rows"]:
        cost = "" if row["mode"] == WITHOUT else f"{row['cost_ns']:+.0f} [{row['low_ns']:+.0f}, {row['high_ns']:+.0f}]"
        first = row["mode"] == WITHOUT
        table.add_row(row["what"] if first else "", MODES[row["mode"]], f"{row['us']:.3f}", cost, end_section=row["last"])
    return table


def rows_of(
    what: str, by_rank: list[list[dict[str, dict[str, float]]]], modes: tuple[str, ...], name: str
) -> list[dict[str, Any]]:
    rows = []
    for mode in modes:
        cost, low, high = costs(by_rank, mode, name)
        row = {"what": what, "mode": mode, "us": plain(by_rank, mode, name) / 1e3, "rounds": len(by_rank[0])}
        rows.append({**row, "cost_ns": cost, "low_ns": low, "high_ns": high, "last": mode == modes[-1]})
    return rows


def measured(
    ranks: LocalGroup, function: Any, case: str, modes: tuple[str, ...], count: int, end: float, chance: random.Random
) -> list[list[dict[str, dict[str, float]]]]:
    """By rank and round; so many rounds as the budget has."""
    found: list[list[dict[str, dict[str, float]]]] = [[], []]
    for first in range(0, count, CHUNK):
        if first and time.monotonic() > end:
            print(f"the budget ends {case} after {first} of {count} rounds", file=sys.stderr)
            break
        for mine, more in zip(
            found, ranks.run(function, case, drawn(modes, min(CHUNK, count - first), chance), timeout_s=_ORDER_S), strict=True
        ):
            mine += more
    return found


def play(given: argparse.Namespace, told: dict[str, Any], folder: str) -> None:
    count, chance, end = 6 if given.quick else given.rounds, random.Random(given.seed), time.monotonic() + given.budget
    told["ordinals"] = ordinals() if given.device == "gpu" else None
    with LocalGroup(
        2, device=given.device, ordinals=told["ordinals"], timeout_s=_ORDER_S, env={"SGLANG_PROBE_DIR": folder}
    ) as ranks:
        for case in given.cases or (GPU_CASES if given.device == "gpu" else HOST_CASES):
            why = ranks.run(there, case, timeout_s=_ORDER_S)[0]
            if why:
                told["refused"][case] = why
                print(f"not here: {CASES[case][0]}: {why}", file=sys.stderr)
                continue
            text = CASES[case][0]
            by_rank = measured(ranks, run_eager, case, tuple(MODES), count, end, chance)
            told["raw"][f"{case} eager"] = by_rank
            told["rows"] += rows_of(f"{text}: host time of an eager call", by_rank, tuple(MODES), "host_ns")
            if given.device != "gpu" or case == "torch":
                continue
            by_rank = measured(ranks, run_replays, case, REPLAYED, max(6, count // 2), end, chance)
            told["raw"][f"{case} replays"] = by_rank
            told["rows"] += rows_of(f"{text}: host time of a replay ({IN_GRAPH} calls)", by_rank, REPLAYED, "host_ns")
            told["rows"] += rows_of(f"{text}: that replay on the GPU", by_rank, REPLAYED, "device_ns")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("gpu", "host"), default="gpu")
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), help="default: all but V2, which is compiled first")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--budget", type=float, default=90, help="seconds, after which no more rounds begin")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="6 rounds")
    parser.add_argument("--out")
    given = parser.parse_args()
    if given.rounds < 1:
        parser.error("--rounds: give 1 or more")
    try:
        release = engine.release()
    except ProbeUnavailable as error:
        print(f"skipped: {error}")
        return 0
    available = gpu.available()
    if given.device == "gpu" and not available:
        print(f"skipped: needs a GPU ({available}); --device host is a rehearsal")
        return 0
    if given.device == "host" and given.cases and set(given.cases) != set(HOST_CASES):
        parser.error("--cases: on CPU ranks there is torch alone")
    told: dict[str, Any] = {"device": given.device, "sglang": release, "rows": [], "refused": {}, "raw": {}}
    if given.device == "gpu":
        from sglang_probe._measure.provenance import stamp

        told["provenance"] = stamp(gpu.nccl().path).to_dict()
    start = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as folder:
            play(given, told, folder)
    finally:
        if given.out:
            Path(given.out).write_text(json.dumps(told))
        if told["rows"]:
            Console(width=None if sys.stdout.isatty() else 140, markup=False).print(table_of(told))
    print(f"{time.monotonic() - start:.0f} s")
    return 0 if told["rows"] else 1


if __name__ == "__main__":
    sys.exit(main())
