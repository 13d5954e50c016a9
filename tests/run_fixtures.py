"""Fixtures of the Coordinator's tests: which device, whose tensors, and groups that are started once and toggled from test to test;
and the verdict on what the ranks saw.

Imported by test_coordinator*.py; gpu/test_coordinator_gpu.py says ``gpu`` for ``device``. Invariant: a group that a test broke is started
anew, so that one failure is one failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import pytest
from run_cases import WORLD_SIZES, Case
from run_ranks import Seen, key_of

from sglang_probe import LocalGroup

Groups = Callable[[int], LocalGroup]


@pytest.fixture(scope="session")
def device() -> Literal["host", "gpu"]:
    return "host"


@pytest.fixture(scope="session")
def package(device: str) -> str:
    """Whose tensors are reduced."""
    return "torch" if device == "gpu" else "numpy"


@pytest.fixture(scope="session")
def ranks_max(device: str) -> int:
    """Largest world size of the device: NCCL refuses two ranks on one GPU."""
    return max(WORLD_SIZES) if device == "host" else gpus()


def gpus() -> int:
    """GPUs of this machine."""
    from sglang_probe import gpu

    return len(gpu.devices())


@pytest.fixture(scope="module")
def group_of(device: Literal["host", "gpu"], ranks_max: int) -> Iterator[Groups]:
    """A group a world size, started when it is first asked for, and again where a test broke it; a GPU a rank while there are so many."""
    running: dict[int, LocalGroup] = {}

    def group(world_size: int) -> LocalGroup:
        if world_size > ranks_max:
            pytest.skip(f"{world_size} ranks: there are {ranks_max} GPUs, and NCCL refuses two ranks on one")
        if world_size not in running or running[world_size].closed:
            if device == "host":
                running[world_size] = LocalGroup(world_size, device=device)
            else:
                part = str(min(100, 100 * gpus() // world_size))  # of a GPU: kernels that wait for one another must run at once
                ordinals = [rank % gpus() for rank in range(world_size)]
                env = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": part}
                running[world_size] = LocalGroup(world_size, device=device, ordinals=ordinals, env=env)
        return running[world_size]

    yield group
    for one in running.values():
        one.close()


@pytest.fixture(scope="module")
def not_here() -> Counter[str]:
    """Calls whose path does not run on this device, by what it says."""
    return Counter()


# ------------------------------------------------------------------------------------------------------------------------------ verdict


def judge(case: Case, seen: list[tuple[Seen, Seen]], not_here: Counter[str]) -> list[str]:
    """What is wrong with one case; ``seen`` by rank."""
    wrong = []
    for rank, both in enumerate(seen):
        for what, one, bits in (("warm-up: ", both[0], case.warm_context), ("", both[1], case.context)):
            if bits is None:
                continue
            expected = key_of(case.decision(bits))
            said = [f"decide says {one.decided}, route {expected}"] if one.decided != expected else []
            if one.unavailable and str(expected[0]) in one.text:
                not_here[one.text] += rank == 0
            elif one.error != expected[-1]:
                said.append(f"raised {one.error or 'nothing'} ({one.text}), and SGLang raises {expected[-1] or 'nothing'}")
            elif one.took and one.took != (*expected[:4], expected[5]):
                said.append(f"took {one.took}, route says {expected}")
            wrong += [f"{case}: rank {rank}: {what}{text}" for text in (*said, *one.wrong)]
    if len({both[1].digest for both in seen}) > 1:
        wrong.append(f"{case}: ranks have different bits")
    return wrong


def judge_all(cases: Sequence[Case], by_rank: list[list[tuple[Seen, Seen]]], not_here: Counter[str]) -> list[str]:
    """What is wrong with all of them; ``by_rank`` is what run_ranks.run_all gave."""
    return [text for i, case in enumerate(cases) for text in judge(case, [seen[i] for seen in by_rank], not_here)]
