"""Speed of the router, as ratios within one run on one core: `python tests/bench/bench_router.py [VERSION]`. Not a test.

Against it runs SGLang's own `GroupCoordinator.all_reduce`, lifted out of the released package onto stand-ins that do nothing: their
predicates are constants and the ops return at once, so that only SGLang's choosing is timed (anything more would flatter us).
Invariant: the two sides of a ratio are timed in turns, so that a busy machine slows both; every number comes with its spread.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

import sglang_probe as probe
from sglang_probe import _core
from sglang_probe._conform.dispatch import FILE, METHODS, OPTIONAL, Dispatch
from sglang_probe._source.fetch import fetch
from sglang_probe._source.lift import Tree

ROUNDS = 15
STATES = 12289


@dataclass(frozen=True)
class Timing:
    """Times of one thing over all rounds, ns."""

    times: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    def __str__(self) -> str:
        low, high = min(self.times), max(self.times)
        scale, unit = (1e6, "ms") if self.median > 1e6 else (1e3, "us") if self.median > 1e3 else (1.0, "ns")
        return f"{self.median / scale:9.1f} {unit} ({low / scale:.1f} to {high / scale:.1f})"


def rounds(*things: Callable[[], float]) -> list[Timing]:
    """Each thing once a round, in turns; the first round warms up and is dropped."""
    times = [[thing() for thing in things] for _ in range(ROUNDS + 1)][1:]
    return [Timing(column) for column in zip(*times, strict=True)]


def ratio(slow: Timing, fast: Timing) -> str:
    each = [a / b for a, b in zip(slow.times, fast.times, strict=True)]
    return f"{statistics.median(each):6.1f}x ({min(each):.1f} to {max(each):.1f})"


def per_call(function: Callable[..., object], *arguments: object, number: int = 20000) -> Callable[[], float]:
    """Nanoseconds of one call in a plain loop, the loop itself included."""

    def measure() -> float:
        start = time.perf_counter_ns()
        for _ in itertools.repeat(None, number):
            function(*arguments)
        return (time.perf_counter_ns() - start) / number

    return measure


def per_call_1(function: Callable[[Any], object], argument: object, number: int = 50000) -> Callable[[], float]:
    """The same without unpacking: one argument, as a caller writes it."""

    def measure() -> float:
        start = time.perf_counter_ns()
        for _ in itertools.repeat(None, number):
            function(argument)
        return (time.perf_counter_ns() - start) / number

    return measure


def per_call_2(function: Callable[[Any, Any], object], first: object, second: object, number: int = 50000) -> Callable[[], float]:
    def measure() -> float:
        start = time.perf_counter_ns()
        for _ in itertools.repeat(None, number):
            function(first, second)
        return (time.perf_counter_ns() - start) / number

    return measure


class _Nothing:
    """A name that the lifted code holds but does not use in the timed states."""

    def __getattr__(self, name: str) -> Any:
        return _Nothing()


def sglang_method(tree: Tree, custom: str) -> tuple[Any, Any]:
    """SGLang's dispatch on stand-ins that do nothing: (group, tensor). `custom`: "accepts", or "absent" for the last resort."""

    def false(*_: object) -> bool:
        return False

    def done(tensor: Any, **_: object) -> Any:
        return tensor

    unset = SimpleNamespace(is_set=false, get=false)
    envs = SimpleNamespace(SGLANG_USE_1STAGE_ALLREDUCE=unset, SGLANG_ENABLE_DETERMINISTIC_INFERENCE=unset)
    torch = SimpleNamespace(
        compiler=SimpleNamespace(is_compiling=false),
        ops=SimpleNamespace(sglang=SimpleNamespace(inplace_all_reduce=done, outplace_all_reduce=done)),
        distributed=_Nothing(),
    )
    names: dict[str, Any] = {
        "torch": torch,
        "inplace_all_reduce": done,
        "outplace_all_reduce": done,
        "is_in_piecewise_cuda_graph": false,
        "is_in_tc_piecewise_cuda_graph": false,
        "is_hip": false,
        "supports_custom_op": lambda: True,
        "envs": envs,
        "logger": _Nothing(),
        "_is_hip": False,
        "_supports_custom_op": True,
        "_CA_V2_MULTINODE": False,
        "flashinfer_allreduce": done,
        "is_shm_available": false,
        "REDUCE_OP_SUM": 0,
    }
    lifted = tree.lift(FILE, METHODS, names, OPTIONAL)
    group = lifted["GroupCoordinator"]()
    group.world_size, group.unique_name, group.device_group = 8, "tp:0", None
    for name in ("hpu", "xpu", "npu"):
        setattr(group, f"{name}_communicator", None)
    for name in ("qr", "pymscclpp", "symm_mem", "torch_symm_mem", "pcie_ipc", "pynccl", "ca"):
        setattr(group, f"{name}_comm", None)
    group.is_symmetric_memory_enabled = group._can_use_flashinfer_allreduce = false
    group.debug_check_symmetric_mempool = done
    if custom == "accepts":
        group.ca_comm = SimpleNamespace(disabled=False, should_custom_ar=lambda tensor: True)
    return group, SimpleNamespace(is_cpu=False)


def bench_decision(tree: Tree, version: str) -> None:
    print("\none decision, from Python, path only (the loop around it included)")
    ruleset = probe.resolve(version).ruleset_index
    group = probe.Group.make(world_size=8, arch=90, full_nvlink=True)
    empty = per_call_1(id, None)
    for custom in ("accepts", "absent"):
        word = _core.state_word(1)  # eight ranks, no communicator
        if custom == "accepts":
            word |= sum(1 << i for i, (_, communicator, _) in enumerate(_core.CONDITIONS) if communicator == "custom")
        theirs, tensor = sglang_method(tree, custom)
        router = probe.router(group.with_facts(own_custom=custom == "accepts"), context="capture", sglang=version)
        all_reduce = theirs.all_reduce
        them, path, sized, nothing = rounds(
            per_call_1(all_reduce, tensor), per_call_2(_core.path, ruleset, word), per_call_1(router, 43008), empty
        )
        print(f"  custom {custom}")
        print(f"    SGLang {version}'s own method      {them}")
        print(f"    conditions -> path             {path}   SGLang / ours {ratio(them, path)}")
        print(f"    bytes -> path (a Router)       {sized}   SGLang / ours {ratio(them, sized)}")
        print(f"    an empty C call (id)           {nothing}")


def bench_walk(tree: Tree, version: str) -> None:
    print(f"\nall {STATES} states")
    ruleset = probe.resolve(version).ruleset_index
    recorded = Dispatch(tree)
    group, tensor = sglang_method(tree, "accepts")
    all_reduce = group.all_reduce

    def theirs() -> float:
        start = time.perf_counter_ns()
        recorded.walk()
        return float(time.perf_counter_ns() - start)

    def calls_only() -> float:
        start = time.perf_counter_ns()
        for _ in itertools.repeat(None, STATES):
            all_reduce(tensor)
        return float(time.perf_counter_ns() - start)

    def ours() -> float:
        start = time.perf_counter_ns()
        for _ in itertools.repeat(None, 10):
            _core.walk(ruleset)
        return (time.perf_counter_ns() - start) / 10

    walk, bare, table = rounds(theirs, calls_only, ours)
    print(f"    through SGLang's method, recorded  {walk}   / ours {ratio(walk, table)}")
    print(f"    {STATES} bare calls of it            {bare}   / ours {ratio(bare, table)}")
    print(f"    ours, with rule, op and exception  {table}")


def bench_decision_with_blockers(version: str) -> None:
    print("\na full Decision: rule, gates, every blocker, next best (states are few: keep them)")
    group = probe.Group.make(world_size=8, arch=90, full_nvlink=True)
    call = probe.Call(nbytes=43008)
    release = probe.resolve(version)
    rules, gates = rounds(
        per_call(lambda: probe.dispatch(release, custom="accepts", pynccl="enabled"), number=300),
        per_call(lambda: probe.route(call, group, context="capture", sglang=release), number=100),
    )
    print(f"    dispatch(...)                  {rules}")
    print(f"    route(...)                     {gates}")


def bench_array(version: str) -> None:
    generator = np.random.default_rng(1)
    aligned = generator.integers(1, 1 << 20, 1_000_000) * 16
    odd = np.where(generator.random(len(aligned)) < 0.01, aligned + 2, aligned)
    print(f"\none NumPy array of {len(aligned):,} sizes, 16 B to 16 MiB")
    group = probe.Group.make(world_size=8, arch=90, full_nvlink=True)
    newest = _core.releases()[-1][0]
    for release, context, sizes, what in (
        (version, "capture", aligned, "multiples of 16"),
        (version, "eager", aligned, "multiples of 16"),
        (newest, "capture", aligned, "multiples of 16"),
        (version, "capture", odd, "one in a hundred is not"),
    ):
        router = probe.router(group, context=context, sglang=release)

        def once(router: Any = router, sizes: Any = sizes) -> float:
            start = time.perf_counter_ns()
            router(sizes)
            return (time.perf_counter_ns() - start) / len(sizes)

        (each,) = rounds(once)
        rates = sorted(1e3 / t for t in each.times)
        print(
            f"    {release:7} {context:8} {what:24} {len(router.edges)} edges {statistics.median(rates):6.0f} million/s "
            f"({rates[0]:.0f} to {rates[-1]:.0f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", nargs="?", default="0.5.9", help="release whose own method is lifted")
    version = parser.parse_args().version
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print(f"medians of {ROUNDS} rounds on one core (smallest to largest); times are measured on this machine")
    tree = Tree(fetch(version))
    bench_decision(tree, version)
    bench_walk(tree, version)
    bench_decision_with_blockers(version)
    bench_array(version)


if __name__ == "__main__":
    main()
