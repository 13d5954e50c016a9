"""Memory of a Coordinator on GPUs: what empty() gives, NCCL's windows of it, and what happens when it is freed, when there is too little,
and when the Coordinator is closed.

Invariant: sums are exact; a window that NCCL does not give is skipped with NCCL's reason, which all ranks must say.
"""

# ruff: noqa: F401, F811 -- fixtures are imported, and then asked for by name

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Literal

import pytest

torch = pytest.importorskip("torch", reason="GPU ranks hold torch's tensors")

from gpu import ranks  # noqa: E402 # imports torch
from run_fixtures import Groups, group_of, ranks_max  # noqa: E402 # pytest.importorskip comes first

from sglang_probe import Coordinator, LocalGroup, ProbeError, ProbeUnavailable  # noqa: E402

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
TIB = 1 << 40
"""More than any GPU has."""
RUN_S = 120.0


@pytest.fixture(scope="session")
def device() -> Literal["host", "gpu"]:
    return "gpu"


def error_of(kinds: type[BaseException] | tuple[type[BaseException], ...], call: Callable[[], object]) -> str:
    """What a call says when it raises such an error; "nothing" where it does not."""
    try:
        call()
    except kinds as error:
        return str(error)
    return "nothing"


def wrong_in(reduced: Any, total: Any) -> int:
    torch.cuda.current_stream().synchronize()
    return int((reduced.tensor.double() != total).sum())


# ------------------------------------------------------------------------------------------------------------------------------- plain


def plain(c: Coordinator, dtype: str, count: int, names: list[str]) -> dict[str, Any]:
    """One tensor of ours, reduced by each of these paths."""
    tensor, wrong = c.empty(count, dtype), []
    with ranks.as_before(c):
        for turn, name in enumerate(names):
            ranks.configure(c, ranks.options_of(name))
            mine, total = ranks.exact_input(c, count, dtype, turn)
            tensor.copy_(mine)
            reduced = c.all_reduce(tensor)
            wrong.append((str(reduced.path), wrong_in(reduced, total)))
    here = tensor.device.type == "cuda" and tensor.device.index == torch.cuda.current_device()
    return {"shape": tuple(tensor.shape), "dtype": str(tensor.dtype), "here": here, "wrong": wrong}


@pytest.mark.parametrize("dtype", ranks.DTYPES)
def test_empty_gives_a_tensor_of_this_gpu_that_every_path_takes(dtype: str, group_of: Groups) -> None:
    names = ["one_shot", "one_shot_pull", "limit", "pynccl_out_of_place", "pynccl_in_place", "torch_distributed"]
    wrong = [(ranks.expected(name)[0], 0) for name in names]
    for seen in group_of(2).run(plain, dtype, 1000, names, timeout_s=RUN_S):
        assert seen == {"shape": (1000,), "dtype": str(ranks.DTYPES[dtype]), "here": True, "wrong": wrong}


def impossible(c: Coordinator) -> list[str]:
    calls = [lambda n=n: c.empty(n, "bf16") for n in (0, -1, (1 << 63) + 8)] + [lambda: c.empty(8, "bf17")]
    return [error_of((ValueError, OverflowError), call) for call in calls]


def test_sizes_and_dtypes_that_cannot_be_are_refused_by_name(group_of: Groups) -> None:
    for none, negative, huge, dtype in group_of(2).run(impossible):
        assert "0" in none and "-" in negative and huge != "nothing" and "dtype" in dtype and "bf17" in dtype


def anew(c: Coordinator, name: str, rounds: int, count: int) -> dict[str, Any]:
    """Captured inputs that are freed and allocated again, mostly at the same address."""
    wrong, addresses = 0, []
    for turn in range(rounds):
        tensor = c.empty(count, "bf16")
        addresses.append(tensor.data_ptr())
        with ranks.as_before(c):
            ranks.configure(c, ranks.options_of(name))
            with c.graph_capture():
                c.all_reduce(tensor.clone())
                with c.graph() as graph:
                    reduced = c.all_reduce(tensor)
        mine, total = ranks.exact_input(c, count, "bf16", turn)
        tensor.copy_(mine)
        graph.replay()
        wrong += wrong_in(reduced, total)
        c.barrier()
        del graph, reduced, tensor
    return {"wrong": wrong, "addresses": len(set(addresses))}


@pytest.mark.parametrize("name", ["one_shot", "two_shot_pull"])
def test_an_input_at_the_address_of_a_freed_one_is_not_taken_for_it(name: str, group_of: Groups) -> None:
    seen = group_of(2).run(anew, name, 4, 2 * MIB, timeout_s=RUN_S)
    print(f"4 allocations at {seen[0]['addresses']} addresses")
    assert [one["wrong"] for one in seen] == [0, 0]


# ----------------------------------------------------------------------------------------------------------------------------- windows


def skip_without(windows: list[Any]) -> None:
    """Where ranks have no window: none has, and NCCL says why."""
    if any(isinstance(one, str) for one in windows):
        assert all(isinstance(one, str) and one for one in windows), windows
        pytest.skip(windows[0].splitlines()[0])


def in_window(c: Coordinator, nbytes: int, dtype: str, captured: bool) -> list[dict[str, Any]] | str:
    """The same sums by NCCL in place, on a tensor in a window and on a plain one; or why there is no window."""
    count = nbytes // ranks.element_bytes(dtype)
    try:
        window = c.empty(count, dtype, window=True)
    except ProbeUnavailable as error:
        return str(error)
    with ranks.as_before(c):
        ranks.configure(c, ranks.options_of("pynccl_in_place"))
        return [reduced_often(c, tensor, dtype, captured) for tensor in (window, c.empty(count, dtype))]


def reduced_often(c: Coordinator, tensor: Any, dtype: str, captured: bool) -> dict[str, Any]:
    """Three sums of other inputs; a graph is gone when this returns, before its tensor may be."""
    seen: dict[str, Any] = {"paths": set(), "in_place": True, "wrong": 0}
    tensor.zero_()
    if captured:
        with c.graph_capture():
            c.all_reduce(tensor)
            with c.graph() as graph:
                reduced = c.all_reduce(tensor)
    for turn in range(3):
        mine, total = ranks.exact_input(c, tensor.numel(), dtype, turn)
        tensor.copy_(mine)
        if captured:
            graph.replay()
        else:
            reduced = c.all_reduce(tensor)
        seen["wrong"] += wrong_in(reduced, total)
        seen["paths"].add(str(reduced.path))
        seen["in_place"] &= reduced.tensor is tensor
    return seen


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("dtype", ranks.DTYPES)
@pytest.mark.parametrize("nbytes", [KIB, 64 * KIB + 16, 4 * MIB])
def test_nccl_sums_a_window_in_place_as_it_sums_plain_memory(nbytes: int, dtype: str, captured: bool, group_of: Groups) -> None:
    by_rank = group_of(2).run(in_window, nbytes, dtype, captured, timeout_s=RUN_S)
    skip_without(by_rank)
    right = {"paths": {"pynccl_in_place"}, "in_place": True, "wrong": 0}
    assert by_rank == [[right, right]] * 2


# ------------------------------------------------------------------------------------------------------------------- freed, and too little


def freed(c: Coordinator, nbytes: int, window: bool) -> tuple[int, int] | str:
    """Bytes that the GPU had less while a tensor lived, and still has less when it is gone."""

    def free() -> int:
        gc.collect()
        torch.cuda.synchronize()
        return int(torch.cuda.mem_get_info()[0])

    try:
        first = c.empty(1 << 20, "int8", window=window)  # what the library makes once stays
    except ProbeUnavailable as error:
        return str(error)
    del first
    before = free()
    tensor = c.empty(nbytes, "int8", window=window)
    during = free()
    del tensor
    return before - during, before - free()


@pytest.mark.parametrize("window", [False, True], ids=["plain", "window"])
def test_memory_is_given_back_with_its_last_tensor(window: bool, group_of: Groups) -> None:
    by_rank = group_of(2).run(freed, 2 * GIB, window, timeout_s=RUN_S)
    skip_without(by_rank)
    for taken, kept in by_rank:
        assert taken >= 2 * GIB and kept < GIB


def too_much(c: Coordinator) -> tuple[str, int]:
    said = error_of(MemoryError, lambda: c.empty(TIB, "int8"))
    mine, total = ranks.exact_input(c, 1024, "bf16", 1)
    return said, wrong_in(c.all_reduce(mine), total)


def test_more_memory_than_there_is_is_a_memory_error_with_its_numbers_and_the_next_call_works(group_of: Groups) -> None:
    for rank, (said, wrong) in enumerate(group_of(2).run(too_much)):
        assert f"cudaMalloc of {TIB} bytes on GPU {rank}" in said and "are free" in said and wrong == 0, said


# -------------------------------------------------------------------------------------------------------- ends: a group of its own each


def closed(c: Coordinator) -> tuple[list[str], str, str]:
    buffer, tensor = c.buffer(4096), torch.ones(8, device="cuda")
    c.close()
    c.close()
    calls: list[Callable[[], object]] = [
        lambda: c.empty(8),
        lambda: c.empty(8, window=True),
        lambda: c.all_reduce(tensor),
        lambda: c.graph_capture().__enter__(),
        c.wait,
        c.barrier,
    ]
    said = [error_of(ProbeError, call) for call in calls]
    return said, error_of(ValueError, lambda: torch.from_dlpack(buffer)), c.device


def test_a_closed_coordinator_says_so_whatever_is_asked_of_it(group_of: Groups) -> None:
    group_of(2)  # skips where there are fewer GPUs
    with LocalGroup(2, device="gpu") as group:
        for said, buffer, where in group.run(closed):
            assert all("closed" in text for text in said) and "closed" in buffer and where == "closed", (said, buffer)


def huge_window(c: Coordinator) -> None:
    c.empty(TIB, "int8", window=True)


def test_a_window_larger_than_the_gpu_names_its_bytes(group_of: Groups) -> None:
    group_of(2)  # skips where there are fewer GPUs
    with LocalGroup(2, device="gpu") as group, pytest.raises((MemoryError, ProbeError)) as refused:
        group.run(huge_window)
    if isinstance(refused.value, ProbeUnavailable):
        skip_without([str(refused.value)])
    assert f"a window of {TIB} bytes: only " in str(refused.value) and "are free" in str(refused.value)
