"""Speed of proofs on one core, with their spread: `python tests/bench/bench_proof.py [VERSION]`. Not a test.

Each is timed beside the same walk through SGLang's own functions, lifted from the released package onto recording stand-ins: of a
proof at the level of conditions its dispatch over every state, of one about a launch its gates and dispatch over a call of each class.
Invariant: the two sides of a ratio are timed in turns, in one process; what has to be cold runs in a process and a cache of its own.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.bench_router import ROUNDS, Timing, ratio, rounds
from conformance.lifted_route import LiftedRoute

import sglang_probe as probe
from sglang_probe._conform.dispatch import Dispatch
from sglang_probe._conform.rules import codes_of
from sglang_probe._proof.worker import COLUMN, Worker, call_of, classes_of, context_name, worker_of_server
from sglang_probe._releases import COMMITS, RELEASES, RULESETS, known_release, resolve
from sglang_probe._route import CONTEXTS
from sglang_probe._source.fetch import fetch
from sglang_probe._source.lift import Tree

LINE = "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8"
GPU = "h200"
NEWEST = [name for name in RELEASES if name not in COMMITS][-1]
LAST = {known_release(n).ruleset: n for n in RELEASES if n not in COMMITS}


def timed(function: Callable[[], object], number: int = 1) -> Callable[[], float]:
    """Nanoseconds of one call."""

    def measure() -> float:
        start = time.perf_counter_ns()
        for _ in range(number):
            function()
        return (time.perf_counter_ns() - start) / number

    return measure


def line(what: str, timing: Timing, budget_ms: float | None = None, against: Timing | None = None) -> None:
    text = f"    {what:58} {timing}"
    if budget_ms is not None:
        text += f"   {'within' if timing.median < budget_ms * 1e6 else 'OVER'} {budget_ms:g} ms"
    if against is not None:
        text += f"   SGLang's / ours {ratio(against, timing)}"
    print(text)


def bench_conditions(version: str) -> None:
    print("\na proof at the level of conditions")
    dispatch = Dispatch(Tree(fetch(version)))
    unreachable, reachable, newest, theirs = rounds(
        timed(lambda: probe.reach("piecewise_pynccl", sglang=version, piecewise=False), 20),
        timed(lambda: probe.reach("piecewise_pynccl", sglang=version), 20),
        timed(lambda: probe.reach("piecewise_pynccl", sglang=NEWEST, piecewise=False), 20),
        timed(dispatch.walk),
    )
    line(f"{version}: unreachable with piecewise=False, and the reason", unreachable, 0.5, theirs)
    line(f"{version}: reachable, and the witness", reachable, 0.5, theirs)
    line(f"{NEWEST}: unreachable; four times the states", newest, 0.5)
    line(f"{version}: SGLang's own dispatch over all states", theirs)


def lifted_walk(worker: Worker) -> Callable[[], object]:
    """SGLang's own gates and dispatch for a call of each class of the tensor-parallel group, built before."""
    route, group = LiftedRoute(Tree(fetch(worker.release.name))), worker.groups["tp"]
    built = route.build({name: fact.value for name, fact in group.facts.items()})
    calls: dict[str, list[probe.Call]] = {}
    for classes in classes_of(worker, group):
        for row in classes.rows:
            calls.setdefault(context_name(int(row[COLUMN["context"]])), []).append(call_of(classes, row))

    def walk() -> None:
        for context, each in calls.items():
            with route.around(built, CONTEXTS[context]):
                for call in each:
                    route.ask(built, call)

    return walk


def bench_launch(version: str) -> None:
    print(f"\na proof about a launch line: {LINE}, {GPU}")
    for release in dict.fromkeys((version, NEWEST)):
        server = probe.read_launch(LINE, sglang=release, gpu=GPU)
        walk = lifted_walk(worker_of_server(server, resolve(release)))

        def whole(release: str = release) -> object:
            return probe.reach("piecewise_pynccl", sglang=release, launch=LINE, gpu=GPU)

        def of_server(release: str = release, server: object = server) -> object:
            return probe.reach("piecewise_pynccl", sglang=release, server=server)  # type: ignore[arg-type] # the table holds objects

        first, of_path, given, theirs = rounds(
            timed(whole, 3),
            timed(lambda release=release: probe.reach("custom", kind="path", sglang=release, launch=LINE, gpu=GPU), 3),  # type: ignore[misc] # bound
            timed(of_server, 3),
            timed(walk),
        )
        line(f"{release}: a rule; the line is read too", first, 5, theirs)
        line(f"{release}: a path, with every rule that leads there", of_path, 5, theirs)
        line(f"{release}: a rule; the server was read before", given, 5, theirs)
        line(f"{release}: SGLang's own gates and dispatch, a call a class", theirs)


def bench_diff(version: str) -> None:
    print("\na difference of two tabulated revisions")
    trees = [Dispatch(Tree(fetch(name))) for name in (LAST["E9"], version)]

    def theirs() -> object:
        codes = [codes_of(dispatch.walk()) for dispatch in trees]
        return (codes[0] != codes[1]).any(axis=1).sum()

    ends = (LAST[RULESETS[0]], LAST[RULESETS[-1]])
    hunt, lifted, far, last, same = rounds(
        timed(lambda: probe.diff("bba2fc4", "0be30d4"), 5),
        timed(theirs),
        timed(lambda: probe.diff(*ends)),
        timed(lambda: probe.diff(LAST["E19"], ends[1])),
        timed(lambda: probe.diff("0.5.9", "0.5.9"), 5),
    )
    line("bba2fc4 and 0be30d4: 1,296 states", hunt, 5, lifted)
    line("0.5.9 and itself", same, 5)
    line(f"E1 and E20 ({ends[0]}, {ends[1]}): {probe.diff(*ends).changed:,} of {probe.diff(*ends).walked:,} states", far, 5)
    line("E19 and E20", last, 5)
    line("SGLang's own two walks, compared by NumPy", lifted)


def bench_history() -> None:
    print("\na history over all releases")
    group = probe.Group.make(world_size=8, arch=90, full_nvlink=True)
    of_group, of_launch = rounds(timed(lambda: probe.history(group=group)), timed(lambda: probe.history(LINE, gpu=GPU)))
    line(f"a group, {len(LAST)} eras", of_group, 100)
    line("a launch line", of_launch, 100)


COLD = """
import sys, time
import sglang_probe as probe
start = time.perf_counter()
found = probe.diff(sys.argv[1], sys.argv[2])
print(time.perf_counter() - start, found.walked, found.changed)
"""


def bench_cold(version: str) -> None:
    """Two revisions as nobody tabulated them: packages on disk, in a cache that holds nothing, and again."""
    print("\na difference of two revisions that nobody tabulated, as checkouts")
    cold, warm = [], []
    for _ in range(5):
        with tempfile.TemporaryDirectory() as cache:
            for times in (cold, warm):
                paths = [str(fetch(name)) for name in (version, NEWEST)]
                done = subprocess.run(
                    [sys.executable, "-c", COLD, *paths],
                    check=True,
                    capture_output=True,
                    text=True,
                    env={**os.environ, "SGLANG_PROBE_CACHE": cache},
                    cwd=Path(probe.__file__).parents[1],
                )
                times.append(float(done.stdout.split()[0]) * 1e9)
    line(f"{version} and {NEWEST}: walked", Timing(tuple(cold)), 5000)
    line("the same code again: its tables are in the cache", Timing(tuple(warm)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", nargs="?", default="0.5.9", help="release whose own functions are lifted")
    version = parser.parse_args().version
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(f"medians of {ROUNDS} rounds on one core (smallest to largest); times are measured on this machine")
    bench_conditions(version)
    bench_launch(version)
    bench_diff(version)
    bench_history()
    bench_cold(version)


if __name__ == "__main__":
    main()
