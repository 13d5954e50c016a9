"""The two sides of bench_nccl_tests.py: our ranks, NCCL alone in one process, and all_reduce_perf, each in fresh processes.

Invariant: all sides time alike: rows of as many calls, graphs of as many that are launched as often with no launch before, the host's clock
until the stream is done, the next piece of a large buffer for each captured call.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import math
import os
import random
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nccl_alone
from bench_one_process import run_set

import sglang_probe as probe
from sglang_probe._bench.checking import Reference
from sglang_probe._bench.native import stream_of
from sglang_probe._bench.targets import TARGETS, routed, why_not
from sglang_probe._measure.nccl_tests import NcclTests, parse_nccl_tests
from sglang_probe._run.arrays import arrays_of

PLACES = {"in": "pynccl_in_place", "out": "pynccl_out_of_place"}
PHASES = ("eager", "captured")
DTYPE, BYTES = "bf16", 2
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Shape:
    """What one process does on either side; nccl-tests' -n, -G and -N."""

    sizes: tuple[int, ...]
    calls: int = 20
    launches: int = 20
    cycles: int = 3
    warm: int = 5


def in_rank(c: probe.Coordinator, settings: dict[str, Any], shape: Shape, checked: bool, seed: int) -> Rows:
    """What each of our ranks does: checked where it is asked for, then timed, in an order of its own."""
    gc.collect()
    gc.freeze()  # torch collects garbage before each capture: what is there by now is not looked at again
    own_stream: Any = contextlib.nullcontext()
    if c.device == "gpu":
        torch: Any = __import__("torch")
        own_stream = torch.cuda.stream(torch.cuda.Stream())
    keys = [(phase, place, nbytes) for phase in PHASES for place in PLACES for nbytes in shape.sizes]
    random.Random(seed).shuffle(keys)
    keys.sort(
        key=lambda key: PHASES.index(key[0])
    )  # eager first: once NCCL was captured, its eager calls cost more, and theirs never were
    with own_stream:
        buffer = arrays_of(c.device).empty((max(shape.sizes) // BYTES,), DTYPE)
        return [_timed(c, settings[place], buffer, phase, place, nbytes, shape, checked) for phase, place, nbytes in keys]


def _timed(
    c: probe.Coordinator, settings: Any, buffer: Any, phase: str, place: str, nbytes: int, shape: Shape, checked: bool
) -> dict[str, Any]:
    c.apply(settings)
    count = nbytes // BYTES
    pieces = [buffer[first : first + count] for first in range(0, len(buffer) - count + 1, count)][: shape.calls]
    if checked:
        _check(c, pieces[0], phase == "captured")
    Reference(arrays_of(c.device), DTYPE, len(buffer), c.rank, c.world_size).fill(buffer, 1)
    c.enqueue(pieces[0], shape.warm)
    c.wait(stream_of(c))
    row: dict[str, Any] = {"who": "ours", "phase": phase, "place": place, "nbytes": nbytes, "us": [], "device_us": []}
    for _ in range(shape.cycles):
        elapsed, device = (_captured if phase == "captured" else _eager)(c, pieces, shape)
        row["us"].append(elapsed)
        row["device_us"].append(device)
    return row


def _check(c: probe.Coordinator, tensor: Any, captured: bool) -> None:
    """One call against the sum, and as in a graph."""
    reference = Reference(arrays_of(c.device), DTYPE, len(tensor), c.rank, c.world_size)
    if captured:
        with c.graph_capture(), c.graph() as graph:
            result = c.all_reduce(tensor).tensor
        if result is not tensor:
            reference.poison(result)
        reference.fill(tensor, 7)
        graph.replay()
    else:
        reference.fill(tensor, 7)
        result = c.all_reduce(tensor).tensor
    c.wait(stream_of(c))
    wrong = reference.wrong(result, 7)
    if wrong:
        raise RuntimeError(f"{tensor.nbytes} bytes: {wrong}")


def _eager(c: probe.Coordinator, pieces: list[Any], shape: Shape) -> tuple[float, float]:
    """Microseconds a call: of the host's clock until all are done; of the device's, which then waits for no host."""
    stream = stream_of(c)
    c.barrier()
    start = time.perf_counter_ns()
    c.enqueue(pieces[0], shape.calls)
    _until_done(c)
    elapsed = (time.perf_counter_ns() - start) / 1e3
    c.barrier()
    c.hold(stream)
    try:
        c.mark(0, stream)
        c.enqueue(pieces[0], shape.calls)
        c.mark(1, stream)
        c.barrier()
    finally:
        c.release()
    return elapsed / shape.calls, c.elapsed() / shape.calls


def _captured(c: probe.Coordinator, pieces: list[Any], shape: Shape) -> tuple[float, float]:
    """The same of a graph that is captured here; the second time on the device, when it has been launched before."""
    with c.graph_capture(), c.graph() as graph:
        for i in range(shape.calls):
            c.enqueue(pieces[i % len(pieces)])
    calls, stream = shape.calls * shape.launches, stream_of(c)
    c.barrier()
    start = time.perf_counter_ns()
    graph.replay(shape.launches)
    _until_done(c)
    elapsed = (time.perf_counter_ns() - start) / 1e3
    c.barrier()
    c.mark(0, stream)
    graph.replay(shape.launches)
    c.mark(1, stream)
    return elapsed / calls, c.elapsed() / calls


def _until_done(c: probe.Coordinator) -> None:
    """By asking the stream all the time, as nccl-tests does: Coordinator.wait sleeps between its looks after a while."""
    if c.device == "gpu":
        torch: Any = __import__("torch")
        stream, limit = torch.cuda.current_stream(), time.monotonic() + c.timeout_s
        while not stream.query():
            if time.monotonic() > limit:
                raise TimeoutError(f"rank {c.rank}: the stream is not done after {c.timeout_s:g} s")
    c.wait(stream_of(c))


# --------------------------------------------------------------------------------------------------------------- who is measured, and how


class Side:
    """Everything that a block starts: each of `units` is a name and what gives its rows from fresh processes."""

    def __init__(self, given: argparse.Namespace, shape: Shape) -> None:
        self._given, self._shape = given, shape
        self.versions: set[str] = set()
        self.units: dict[str, Callable[[int, int], Rows]] = {"ours": self._ours}
        self._env = dict(os.environ)
        self._nccl = ""
        if given.device == "gpu":
            from sglang_probe import gpu

            nccl = gpu.nccl(given.nccl)
            self._nccl = nccl.path
            self.versions.add(nccl.version)
            folders = [str(Path(nccl.path).resolve().parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
            self._env["LD_LIBRARY_PATH"] = ":".join(folders)  # so that nccl-tests loads the same one; its version is compared
            self._env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if given.nccl_tests:
            if given.device == "gpu":
                self.units["ours_one"] = self._ours_one
            for phase in PHASES:
                self.units[f"tests_one {phase}"] = self._tests(
                    "tests_one", [given.nccl_tests, "-g", str(given.world_size)], phase
                )
        if given.nccl_tests_mpi:
            launch = [*shlex.split(given.mpirun), "-np", str(given.world_size), given.nccl_tests_mpi, "-g", "1", "-a", "1"]
            for phase in PHASES:
                self.units[f"tests_mpi {phase}"] = self._tests("tests_mpi", launch, phase)

    def _ours(self, block: int, seed: int) -> Rows:
        with probe.LocalGroup(
            self._given.world_size, device=self._given.device, nccl=self._nccl or None, timeout_s=self._given.timeout
        ) as group:
            settings = {}
            for place, name in PLACES.items():
                settings[place] = TARGETS[name].settings(group.group)
                for captured, nbytes in ((captured, nbytes) for captured in (False, True) for nbytes in self._shape.sizes):
                    why = why_not(TARGETS[name], routed(settings[place], nbytes, nbytes // BYTES, DTYPE, captured))
                    if why:
                        raise probe.InputError("largest", nbytes, f"{name}: {why}")
            by_rank = group.run(in_rank, settings, self._shape, block == 0, seed, timeout_s=self._given.timeout)
        rows = []
        for parts in zip(*by_rank, strict=True):
            row = dict(parts[0])
            for name in ("us", "device_us"):  # [cycle][rank]
                row[name] = [list(cycle) for cycle in zip(*(part[name] for part in parts), strict=True)]
            rows.append(row)
        return rows

    def _ours_one(self, block: int, seed: int) -> Rows:
        shape = self._shape
        spec = nccl_alone.Spec(
            *(self._nccl, self._given.world_size, shape.sizes, ("captured",), tuple(PLACES), ("back_to_back",)),
            calls=shape.calls,
            launches=shape.launches,
            repeats=shape.cycles,
            shift=True,
            warm=False,
            seed=seed,
        )
        return [
            {"who": "ours_one", "phase": row["phase"], "place": row["place"], "nbytes": row["nbytes"]}
            | {"us": row["wall_us"], "device_us": row["device_us"]}
            for row in run_set("one", spec)
        ]

    def _tests(self, who: str, launch: list[str], phase: str) -> Callable[[int, int], Rows]:
        shape = self._shape
        sizes = ["-b", str(shape.sizes[0]), "-e", str(shape.sizes[-1]), "-f", str(shape.sizes[1] // shape.sizes[0])]
        often = ["-d", "bfloat16", "-n", str(shape.calls), "-w", str(shape.warm), "-N", str(shape.cycles)]
        graph = ["-G", str(shape.launches)] if phase == "captured" else []

        def run(block: int, seed: int) -> Rows:
            tables = cycles(
                _output([*launch, *sizes, *often, *graph, "-c", str(int(block == 0))], self._env, self._given.timeout)
            )
            for table in tables:
                if table.captured != (phase == "captured") or table.dtype != DTYPE or table.wrong:
                    raise RuntimeError(f"nccl-tests did something else, or got wrong sums: {table!r}")
                if table.nccl:
                    self.versions.add(table.nccl.split("+")[0])  # its log has the CUDA version behind it
            rows: Rows = []
            for i, first in enumerate(tables[0].rows):
                for place in PLACES:
                    us = [[getattr(table.rows[i], f"{place}_{'of_' * (place == 'out')}place_us")] for table in tables]
                    rows.append({"who": who, "phase": phase, "place": place, "nbytes": first.nbytes, "us": us})
            return rows

        return run


def _output(command: list[str], env: dict[str, str], timeout_s: float) -> str:
    """What it prints. In a session of its own, all of which is ended at the limit: mpirun has children."""
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        text, said = process.communicate(timeout=timeout_s)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    if process.returncode:
        raise RuntimeError(f"{shlex.join(command)} ended with {process.returncode}:\n{text[-1000:]}{said[-1000:]}")
    return text


def cycles(text: str) -> list[NcclTests]:
    """One table a cycle of -N: nccl-tests prints them one after the other, under one head and with one foot."""
    head: list[str] = []
    foot: list[str] = []
    rows: list[list[str]] = []
    last = math.inf
    for line in text.splitlines():
        words = line.split()
        if words and words[0].isdigit():
            if int(words[0]) <= last:
                rows.append([])
            last = int(words[0])
            rows[-1].append(line)
        else:
            (foot if rows else head).append(line)
    tables = [parse_nccl_tests("\n".join([*head, *part, *foot]), "all_reduce_perf") for part in rows]
    if not tables or len({tuple(table.nbytes) for table in tables}) > 1:
        raise RuntimeError(f"nccl-tests printed no table, or cycles of different sizes:\n{text[-2000:]}")
    return tables
