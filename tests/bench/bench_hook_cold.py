"""What a wrapped call costs when it is cold: blocks with and without the hook in one process, and between two calls some tens of
microseconds of other work that takes the caches and the branch predictors away, as a server's own code does. On CPU tensors, no SGLang.

    python tests/bench/bench_hook_cold.py [--rounds 40] [--megabytes 2] [--hot]

The group is a stand-in with what the hook reads of SGLang's: its unique name, two communicators with their switches, and pynccl's
all_reduce inside of the in-place operator's method; both are wrapped as the table of targets says. Invariant: a figure is the median over
rounds of the difference to the same round's block without the hook; blocks come in random order, calls are timed one by one from outside.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import sglang_probe as probe
from sglang_probe import _core
from sglang_probe.hook.expected import Expected
from sglang_probe.hook.targets import GROUP_NAME, TARGETS
from sglang_probe.hook.wrapping import PATHS

RELEASE = "0.5.11"
MODES = ("without", "stopped", "recording", "host_time")
CALLS, FIRST = 150, 50
"""Of a block, and how many of them are not counted: meanwhile the interpreter specialises its code."""
ATTRIBUTES = 24
"""That a group has besides those that matter here: its dict is as large as SGLang's."""


class Communicator:
    def __init__(self, disabled: bool) -> None:
        self.rank, self.world_size, self.available, self.device = 0, 2, True, None
        self.max_size, self.full_nvlink, self.disabled = 8 << 20, True, disabled

    def all_reduce(self, tensor: Any) -> None:
        if self.disabled:
            raise RuntimeError("it is switched off")


class GroupCoordinator:
    world_size, ranks, local_size = 2, (0, 1), 2

    def __init__(self) -> None:
        for i in range(ATTRIBUTES):
            setattr(self, f"other_{i}", i)
        self.unique_name, self.device = "tp:0", None
        self.ca_comm, self.pynccl_comm = Communicator(True), Communicator(False)
        setattr(self.pynccl_comm, GROUP_NAME, self.unique_name)

    def _all_reduce_in_place(self, tensor: Any) -> None:
        comm = self.pynccl_comm
        if comm is not None and not comm.disabled:
            comm.all_reduce(tensor)


PLACES: tuple[tuple[type, str, str], ...] = (
    (GroupCoordinator, "_all_reduce_in_place", ":GroupCoordinator._all_reduce_in_place"),
    (Communicator, "all_reduce", ":PyNcclCommunicator.all_reduce"),
)


def wrapped(recorder: _core.Recorder, owner: type, name: str, end: str) -> _core.Wrapper:
    of = next(target for target in TARGETS if target.where.endswith(end))
    path = -1 if of.path is None else PATHS[of.path]
    return _core.Wrapper(vars(owner)[name], recorder, of.entry, path, of.op, keyword=of.keyword, group=of.group, unless=of.unless)


class Work:
    """Some tens of microseconds of this and that, in turn, and a walk over memory."""

    def __init__(self, megabytes: float) -> None:
        self.memory = torch.zeros(int(megabytes * (1 << 18)), dtype=torch.int32)[::16]  # one value of each cache line
        small = torch.rand(64, 64)
        self.kinds: tuple[Callable[[], Any], ...] = (
            lambda: torch.nn.functional.layer_norm(small, (64,)),
            lambda: small.t().contiguous().relu_().add(1),
            lambda: torch.softmax(small, 1).topk(4),
            lambda: torch.cat((small, small)).view(-1, 32).sum(1),
            lambda: sorted({f"{i}": i for i in range(60)}.items(), key=lambda item: -item[1]),
            lambda: torch.index_select(small, 0, torch.tensor([1, 5, 7])).cumsum(0),
        )
        self.turn = 0

    def __call__(self) -> None:
        self.memory.sum()
        for _ in range(2):
            self.turn += 1
            self.kinds[self.turn % len(self.kinds)]()


def block(group: Any, tensor: Any, work: Callable[[], Any]) -> float:
    clock, took = time.perf_counter_ns, []
    for _ in range(CALLS):
        work()
        start = clock()
        group._all_reduce_in_place(tensor)
        took.append(clock() - start)
    return statistics.median(took[FIRST:])


def recorder_of(folder: str, group: Any) -> _core.Recorder:
    """With the sources of SGLang's flags and of the group's switches, and a path that is expected."""
    recorder, expected = _core.Recorder(str(Path(folder) / "cold.ring"), release=RELEASE), Expected(probe.resolve(RELEASE))
    expected.add(group)
    flags = dict.fromkeys(("_in_piecewise_cuda_graph", "_in_pcg_torch_compile", "_pcg_capture_stream"), False)
    recorder.set_sources((*((4 << i, flags, name, 0) for i, name in enumerate(flags)), *expected.switches()))
    recorder.set_expect(lambda *key: (PATHS[probe.Path.PYNCCL_IN_PLACE], ""))
    return recorder


def measure(rounds: int, work: Callable[[], Any], folder: str) -> dict[str, list[float]]:
    group, tensor, chance = GroupCoordinator(), torch.zeros(1, 7168, dtype=torch.bfloat16), random.Random(1)
    recorder = recorder_of(folder, group)
    plain = [vars(owner)[name] for owner, name, _ in PLACES]
    wrappers = [wrapped(recorder, *place) for place in PLACES]
    found: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(rounds):
        for mode in chance.sample(MODES, len(MODES)):
            for (owner, name, _), original, wrapper in zip(PLACES, plain, wrappers, strict=True):
                setattr(owner, name, original if mode == "without" else wrapper)
            recorder.host_time = mode == "host_time"
            (recorder.stop if mode in ("without", "stopped") else recorder.start)()
            before = recorder.counts()["head"]
            found[mode].append(block(group, tensor, work))
            made, wanted = recorder.counts()["head"] - before, 0 if mode in ("without", "stopped") else CALLS
            if made != wanted:
                raise RuntimeError(f"{mode}: {made} records of {wanted} calls")
    counts = recorder.counts()
    recorder.close()
    if counts["failures"] or counts["alarms"] or counts["kinds_used"] > 2:
        raise RuntimeError(f"what ran is not what was expected: {counts}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--megabytes", type=float, default=2, help="of memory that is walked between two calls")
    parser.add_argument("--hot", action="store_true", help="nothing between two calls")
    given = parser.parse_args()
    torch.set_num_threads(1)
    gc.collect()
    gc.disable()
    work: Callable[[], Any] = (lambda: None) if given.hot else Work(given.megabytes)
    start = time.perf_counter_ns()
    for _ in range(CALLS):
        work()
    between = (time.perf_counter_ns() - start) / CALLS
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        found = measure(given.rounds, work, folder)
    print(f"{between / 1e3:.1f} us between two calls; a call without the hook: {statistics.median(found['without']):.0f} ns")
    for mode in MODES[1:]:
        cost = sorted(one - base for one, base in zip(found[mode], found["without"], strict=True))
        low, high = cost[len(cost) // 4], cost[3 * len(cost) // 4]
        print(f"{mode:10s} {statistics.median(cost):+6.0f} ns, half of the rounds from {low:+.0f} to {high:+.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
