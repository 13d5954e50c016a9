"""Calls of the Coordinator beside the grid: kernels and their bits, dtypes, memory of its own, paths in Python, threads.

On CPU ranks here; gpu/test_coordinator_gpu.py runs what it can of it on GPUs. Invariant: as in test_coordinator.py: what is expected
stands in the test, or is the router's answer and NumPy's sum.
"""

# ruff: noqa: F401, F811 -- fixtures are imported, and then asked for by name

from __future__ import annotations

import os
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest
import run_ranks
from run_cases import CAPTURE, Case, Setting, cases_of
from run_fixtures import Groups, device, group_of, judge_all, not_here, package, ranks_max

from sglang_probe import Coordinator, LocalGroup, Path, ProbeError, ProbeUnavailable, _core

OLD, NEW = "0.5.9", "0.5.23"
"""Custom all-reduce is v1, and V2."""

# ------------------------------------------------------------------------------------------------------------------- kernels and bits


def _random(c: Coordinator, case: Case, package: str) -> tuple[str, bytes, float, float] | str:
    """(kernel, result, largest error, what is allowed) of random numbers, whose sum depends on its order."""
    tensors = run_ranks.tensors_of(c, package)
    tensor, count = tensors.make(case.shape, case.dtype), case.shape[0] * case.shape[1]
    draws = [np.random.default_rng([case.seed, rank]).standard_normal(count) for rank in range(c.world_size)]
    inputs = [run_ranks.rounded(draw, case.dtype) for draw in draws]
    with run_ranks.as_before(c):
        run_ranks.set_up(c, case)
        tensors.write(tensor, inputs[c.rank])
        try:
            reduced = c.all_reduce(tensor)
        except ProbeUnavailable as error:
            return str(error)
        c.wait()
        result = tensors.read(reduced.tensor)
    values = [run_ranks.values_of(one, case.dtype) for one in inputs]
    error = np.abs(run_ranks.values_of(result, case.dtype) - np.sum(values, axis=0)).max()
    unit = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-23}[case.dtype]
    return reduced.kernel, result.tobytes(), float(error), float(unit * c.world_size * np.sum(np.abs(values), axis=0).max())


@pytest.mark.parametrize("sglang", ["0.4.3.post2", OLD, "0.5.13.post1", "0.5.16", NEW])
@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_every_custom_kernel_sums_random_numbers_to_the_same_bits_on_all_ranks(
    world_size: int, sglang: str, group_of: Groups, package: str, device: str
) -> None:
    found: dict[str, Case] = {}
    for case in cases_of(sglang, world_size):
        kernel = case.decision().kernel
        if case.decision().path == "custom" and not case.context and kernel != "dry" and (device == "host" or case.on_cuda):
            found.setdefault(kernel, replace(case, layout="plain"))
    if world_size == 3 and sglang in ("0.4.3.post2", OLD):
        assert not found  # v1 takes no odd number of ranks
        return
    assert found
    group = group_of(world_size)
    for case in found.values():
        for dtype in ("bf16", "fp16", "fp32"):
            case = replace(case, dtype=dtype, nbytes=max(case.nbytes, 48 << 10) // 48 * 48)
            by_rank = group.run(_random, case, package)
            if isinstance(by_rank[0], str):
                assert device == "gpu" and "custom" in by_rank[0], by_rank
                continue
            assert {took for took, *_ in by_rank} == {case.decision().kernel}
            assert len({bits for _, bits, *_ in by_rank}) == 1, f"{case}: ranks differ"
            assert all(error <= allowed for *_, error, allowed in by_rank), f"{case}: {by_rank[0][2:]}"


def _limit(c: Coordinator, package: str) -> list[str]:
    kernels = []
    with run_ranks.as_before(c):
        for count in (8, 2048, 4096):
            mine = run_ranks.Rank(c, package, count=count)
            for kernel in ("limit", "one_shot_push", ""):
                c.custom.kernel = kernel
                assert c.custom.kernel == kernel
                for seed in range(3):
                    reduced = c.all_reduce(mine.fill(seed))
                    assert mine.is_sum(reduced.tensor, seed) and reduced.tensor is not mine.tensor
                    kernels.append(reduced.kernel)
    return kernels


def test_the_fastest_kernel_that_we_know_can_be_asked_for_and_sums_right(group_of: Groups, package: str) -> None:
    wanted = ["limit"] * 3 + ["one_shot_push"] * 6
    assert group_of(2).run(_limit, package) == [wanted * 3] * 2


# ------------------------------------------------------------------------------------------------------------------------------ dtypes


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp64", "int8", "int32", "int64"])
def test_every_path_takes_the_dtypes_that_sglang_lets_through(
    dtype: str, group_of: Groups, package: str, device: str, not_here: Counter[str]
) -> None:
    cases = {}
    for case in (*cases_of(NEW, 2), *cases_of(OLD, 2)):
        if device == "host" or case.on_cuda:
            cases.setdefault(
                (case.decision().path, case.captured), replace(case, dtype=dtype, nbytes=max(case.nbytes, 4096), layout="plain")
            )
    assert len(cases) > 8
    chosen = list(cases.values())
    by_rank = group_of(2).run(run_ranks.run_all, chosen, package)
    assert judge_all(chosen, by_rank, not_here) == []
    if device == "host":
        assert not not_here


# ------------------------------------------------------------------------------------------------------------- paths in Python, memory


class _Said:
    """A path in Python that writes ones."""

    def __init__(self, c: Coordinator, package: str) -> None:
        self.tensors, self.why, self.raises = run_ranks.tensors_of(c, package), "", False
        self.calls: list[tuple[Any, Any, float]] = []

    def supports(self, nbytes: int, dtype: str) -> str:
        return self.why and f"{self.why}: {nbytes} bytes of {dtype}"

    def enqueue(self, tensor: Any, out: Any, timeout_s: float) -> None:
        if self.raises:
            raise KeyError("in Python")
        self.calls.append((tensor, out, timeout_s))
        self.tensors.write(out, run_ranks.stored(np.ones(1), "bf16", 2048))

    def finish(self, timeout_s: float) -> None:
        self.finished = timeout_s


def _python_path(c: Coordinator, package: str) -> None:
    mine, said = run_ranks.Rank(c, package), _Said(c, package)
    with run_ranks.as_before(c):
        c.sglang = NEW
        c.set_facts(fi_workspace=True)
        c.register(Path.FLASHINFER, said)
        try:
            said.why = "not so much"
            with pytest.raises(ProbeUnavailable, match="flashinfer.*not so much: 4096 bytes of bf16"):
                c.all_reduce(mine.fill())
            said.why = ""
            assert "in this process" in c.paths[Path.FLASHINFER]
            reduced = c.all_reduce(mine.fill())
            ((tensor, out, timeout_s),) = said.calls
            assert tensor is mine.tensor and out is reduced.tensor and timeout_s == c.timeout_s
            assert np.all(mine.tensors.read(out) == run_ranks.stored(np.ones(1), "bf16", 1))
        finally:
            c.register(Path.FLASHINFER, None)
        if c.device == "host":
            assert mine.is_sum(c.all_reduce(mine.fill()).tensor)
        else:
            with pytest.raises(ProbeUnavailable, match="flashinfer"):
                c.all_reduce(mine.fill())


def test_a_path_in_python_stands_behind_the_same_three_calls(group_of: Groups, package: str) -> None:
    group_of(2).run(_python_path, package)


def _raising_path(c: Coordinator, package: str) -> None:
    mine, said = run_ranks.Rank(c, package), _Said(c, package)
    c.sglang = NEW
    c.set_facts(fi_workspace=True)
    c.register(Path.FLASHINFER, said)
    said.raises = c.rank == 1
    try:
        c.all_reduce(mine.fill())
    except KeyError as error:
        assert "in Python" in str(error)
    with pytest.raises(ProbeError, match="in Python"):
        for _ in range(100):
            c.all_reduce(mine.fill())
            c.barrier()


def test_a_path_in_python_that_raises_on_one_rank_leaves_no_other_waiting(device: str, package: str) -> None:
    with LocalGroup(2, device=device, timeout_s=20) as group:
        group.run(_raising_path, package)


class _Roomless:
    """A tensor of a package whose `empty_like` finds no memory."""

    __module__ = "roomless"

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


def _no_room(c: Coordinator) -> bool:
    def empty_like(like: object) -> None:
        raise MemoryError("no room for the result")

    package = types.ModuleType("roomless")
    package.empty_like = empty_like  # type: ignore[attr-defined] # that is what a module is for
    sys.modules["roomless"] = package
    with run_ranks.as_before(c):
        c.sglang, before = OLD, c.seq
        with pytest.raises(MemoryError, match="no room for the result"):
            c.all_reduce(_Roomless(np.ones(8, np.float32)))
        x = np.ones(8, np.float32)
        return c.seq == before and bool(np.all(c.all_reduce(x).tensor == c.world_size))


def test_no_memory_for_a_result_is_the_producers_own_error_and_nobody_hears_of_the_call(group_of: Groups, device: str) -> None:
    if device != "host":
        pytest.skip("a producer made for this test, whose memory is the CPU's")
    assert group_of(2).run(_no_room) == [True, True]


def _own_memory(c: Coordinator, package: str) -> None:
    tensors = run_ranks.tensors_of(c, package)
    tensor = c.empty(2048, "fp32")
    with run_ranks.as_before(c):
        for release in (OLD, NEW):
            c.sglang = release
            with c.graph_capture():
                c.all_reduce(tensor)
                with c.graph() as graph:
                    reduced = c.all_reduce(tensor)
            assert c.captured_addresses == (0 if reduced.kernel.endswith("push") else 1)  # of what is pushed, peers read nothing
            for seed in (7, 8, 9):
                tensors.write(tensor, run_ranks.stored(run_ranks.numbers(seed, c.rank), "fp32", 2048))
                graph.replay()
                c.wait()
                wanted = run_ranks.stored(run_ranks.total(seed, c.world_size), "fp32", 2048)
                assert np.array_equal(tensors.read(reduced.tensor), wanted)


@pytest.mark.parametrize("world_size", [2, 4])
def test_captured_inputs_that_peers_can_map_are_read_where_they_lie(world_size: int, group_of: Groups, package: str) -> None:
    group_of(world_size).run(_own_memory, package)


def _paths(c: Coordinator) -> dict[str, str]:
    return {str(path): text for path, text in c.paths.items()}


def test_paths_say_what_runs_each_of_them_or_why_it_is_not_here(group_of: Groups, device: str) -> None:
    for texts in group_of(2).run(_paths):
        assert set(texts) == {name for name, _ in _core.PATHS} - {"none", "raises"}
        away = {path for path, text in texts.items() if text.startswith("not here: ")}
        assert all(texts.values()) and (not away if device == "host" else {"quick", "mscclpp"} <= away)


# ----------------------------------------------------------------------------------------------------------------------------- threads


def _in_a_call(c: Coordinator, thread: threading.Thread) -> None:
    """Returns when another thread of this rank waits in its call: the board says where each rank is."""
    while f"rank {c.rank} (pid {os.getpid()}) is in custom" not in c.describe():
        assert thread.is_alive()
        thread.join(0.001)


def _while_a_call_waits(c: Coordinator, package: str, act: Callable[[Coordinator], object], gate: str) -> str:
    """What ``act`` raises in another thread of rank 0 while a call of it waits for rank 1; the call itself must come out right."""
    mine, said = run_ranks.Rank(c, package), []
    with run_ranks.as_before(c):
        c.sglang = OLD
        c.barrier()
        if c.rank == 1:
            with open(gate):  # a FIFO: until rank 0 opens it too
                pass
            assert mine.is_sum(c.all_reduce(mine.fill()).tensor)
            return ""

        def call() -> None:
            reduced = c.all_reduce(mine.fill())
            good = mine.is_sum(reduced.tensor) and reduced.tensor is not mine.tensor
            said.append((good, str(reduced.path), reduced.kernel, str(reduced.decision.path), reduced.decision.sglang))

        thread = threading.Thread(target=call)
        thread.start()
        _in_a_call(c, thread)
        try:
            act(c)
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        else:
            text = "nothing"
        with open(gate, "w"):
            pass
        thread.join()
        assert said == [(True, "custom", "one_shot", "custom", OLD)], said
        return text


def _call_too(c: Coordinator) -> None:
    c.all_reduce(run_ranks.Rank(c, "numpy").fill())


def _toggle(c: Coordinator) -> None:
    c.sglang, c.piecewise, c.custom.disabled = NEW, True, True


_IN_A_CALL: dict[str, Callable[[Coordinator], object]] = {
    "all_reduce": _call_too,
    "a toggle": _toggle,
    "wait": lambda c: c.wait(),
    "barrier": lambda c: c.barrier(),
    "begin_graph": lambda c: c.begin_graph(),
    "close": lambda c: c.close(),
}


@pytest.mark.parametrize("what", _IN_A_CALL)
def test_what_a_second_thread_does_never_harms_the_call_of_the_first(
    what: str, group_of: Groups, package: str, tmp_path: FilePath
) -> None:
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    text = group_of(2).run(_while_a_call_waits, package, _IN_A_CALL[what], gate)[0]
    assert what == "a toggle" or ("ProbeError" in text and "thread" in text), text
    case = Case(OLD, 2, Setting(), CAPTURE, 4096)
    assert judge_all([case], group_of(2).run(run_ranks.run_all, (case,), package), Counter()) == []
