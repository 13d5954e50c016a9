"""SGLang's real GroupCoordinator on GPUs, through the engine driver: right sums, the kernels that ran, and its switches as they were.

Needs an sglang that can be imported; where there is none each test is skipped with the reason that the driver gives. A target whose
communicator that sglang cannot build here (custom v1 needs sgl_kernel) is refused, and the test says which. Invariant: no time is asserted
but that it was taken.
"""

# ruff: noqa: E402 -- what imports torch comes after pytest.importorskip
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="GPU ranks hold torch's tensors")

from gpu.sharing import ordinals, share

from sglang_probe import LocalGroup, ProbeUnavailable, gpu
from sglang_probe._bench import engine
from sglang_probe._bench.bench import Done, run_bench
from sglang_probe._bench.driver import Wanted
from sglang_probe._bench.targets import TARGETS, routed, why_not
from sglang_probe._releases import resolve
from sglang_probe._run import machine

ALWAYS = ("torch_distributed", "pynccl_in_place", "pynccl_out_of_place")
"""What every sglang that imports at all builds on a GPU."""
ROWS = {"one_shot": 1, "two_shot": 512, "one_shot_push": 1, "one_shot_pull": 64, "two_shot_pull": 512}
# What a kernel of this path has in its name.
KERNELS = {
    **dict.fromkeys(ALWAYS, "nccl"),
    "one_shot": "cross_device_reduce_1stage",
    "two_shot": "cross_device_reduce_2stage",
    **dict.fromkeys(("one_shot_push", "one_shot_pull", "two_shot_pull", "two_shot_push"), "all_reduce"),
}
ASKED: dict[str, Any] = {
    **dict.fromkeys(("tokens", "nccl", "ordinals", "targets", "provider", "time_limit_s")),
    "device": "gpu",
    "world_size": 2,
    "sizes": "1K,64K,1M",
    "phases": "eager,captured",
    "patterns": "back_to_back,interleaved",
    "compute_us": 5.0,
    "drivers": "engine",
    "dtype": "bf16",
    "hidden": 7168,
    "processes": 1,
    "quick": True,
    "split": 0,
    "seed": 0,
    "timeout_s": 300.0,
    "facts": {},
}


@pytest.fixture(scope="module")
def release() -> str:
    try:
        return engine.release()
    except ProbeUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def ranks(release: str) -> Iterator[LocalGroup]:
    with LocalGroup(2, device="gpu", ordinals=ordinals(), timeout_s=300.0) as group:
        group.run(share)
        yield group


def wanted_of(release: str, target: str, captured: bool = False, **facts: int) -> Wanted:
    """The call of a target; skipped where this release's dispatch takes another path at this size."""
    group = machine.default_group(machine.choose("gpu", 2, ordinals()), 2).with_facts("given", "", full_nvlink=True, **facts)
    settings = TARGETS[target].settings(group, resolve(release))
    rows = ROWS.get(target, 16)
    decision = routed(settings, rows * 7168 * 2, 7168, "bf16", captured)
    why = why_not(TARGETS[target], decision)
    if why:
        pytest.skip(f"SGLang {release} does not take {target} here: {why}")
    return Wanted(target, str(decision.path), decision.kernel, settings, captured, (rows, 7168), "bf16", rows * 7168 * 2)


def seen(c: Any, wanted: Wanted) -> dict[str, Any]:
    """One checked call under torch's profiler, or one replay; what ran, whether it was right, and SGLang's switches afterwards."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    try:
        prepared = engine.prepare(c, wanted)
        captured = prepared.capture(1, 0.0) if wanted.captured else None
    except ProbeUnavailable as error:
        return {"refused": str(error)}
    prepared.tensor.fill_(c.rank + 1)
    if captured is not None and captured.result.data_ptr() != prepared.tensor.data_ptr():  # V2 may write where it reads
        captured.result.fill_(float("nan"))
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as made:
        if captured is None:
            result = prepared.call(0.0)
        else:
            captured.replay()
            result = captured.result
        torch.cuda.synchronize()
    events = list(made.events())
    values = sorted(set(result.flatten().tolist()))[:8]  # before the input is cleared, which an in-place result is
    prepared.tensor.zero_()
    own = vars(c)["engine"]["engine"]
    asks = next(n for n in ("is_in_piecewise_cuda_graph", "is_in_tc_piecewise_cuda_graph") if hasattr(own.state, n))
    pynccl = prepared._group.pynccl_comm
    return {
        "refused": "",
        "values": values,
        "in place": result is prepared.tensor,
        "path": prepared.path,
        "kernels": [event.name for event in events if event.device_type == DeviceType.CUDA],
        "through torch": any("c10d" in event.name for event in events),
        "piecewise": getattr(own.state, asks)(),
        "pynccl": pynccl is not None and not pynccl.disabled,
        "backend": prepared.backend,
    }


def check(target: str, by_rank: list[dict[str, Any]], captured: bool) -> None:
    if by_rank[0]["refused"]:
        assert all(one["refused"] for one in by_rank) and target not in ALWAYS, by_rank
        pytest.skip(by_rank[0]["refused"])
    for one in by_rank:
        assert one["values"] == [3.0], (target, one["values"])
        assert not one["piecewise"] and not one["pynccl"], (target, one["piecewise"], one["pynccl"])
        assert one["in place"] == (target in ("torch_distributed", "pynccl_in_place")), one
        assert one["path"] == TARGETS[target].path
        if not one["kernels"]:
            pytest.skip("torch's profiler sees no kernel on this machine")
        assert any(KERNELS[target] in name for name in one["kernels"]), one
        if KERNELS[target] != "nccl":
            assert not any("nccl" in name.lower() for name in one["kernels"]), one
        if not captured:
            assert one["through torch"] == (target == "torch_distributed"), one


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("target", [*ALWAYS, "one_shot", "two_shot"])
def test_each_target_runs_its_kernel_in_sglang_and_leaves_its_switches_as_they_were(
    ranks: LocalGroup, release: str, target: str, captured: bool
) -> None:
    check(target, ranks.run(seen, wanted_of(release, target, captured), timeout_s=300.0), captured)


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("target", ["one_shot_push", "one_shot_pull", "two_shot_pull"])
def test_v2_is_built_by_its_switch_and_runs_the_kernel_that_was_decided(
    ranks: LocalGroup, release: str, target: str, captured: bool
) -> None:
    by_rank = ranks.run(seen, wanted_of(release, target, captured, custom_v2=1), timeout_s=300.0)
    check(target, by_rank, captured)
    assert {one["backend"] for one in by_rank} == {"V2"}


def test_ours_is_right_beside_sglang_and_after_it(ranks: LocalGroup, release: str) -> None:
    ranks.run(seen, wanted_of(release, "pynccl_in_place"), timeout_s=300.0)
    for context in ("eager", "capture"):
        outcome = ranks.all_reduce(1 << 16, context=context)
        assert outcome.correct, outcome


def held(c: Any, wanted: Wanted, calls: int) -> tuple[float, bool]:
    """Host microseconds of calls that cannot begin yet, and whether their work waited."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        prepared = engine.prepare(c, wanted)
        prepared.enqueue(calls, 0.0)
        stream.synchronize()
        c.barrier()
        c.hold(stream.cuda_stream)
        try:
            us = prepared.enqueue(calls, 0.0)
            waited = not stream.query()
            c.barrier()
        finally:
            c.release()
        c.wait(stream.cuda_stream)
    return us, waited


@pytest.mark.parametrize("target", ALWAYS)
def test_calls_are_enqueued_while_the_stream_is_held(ranks: LocalGroup, release: str, target: str) -> None:
    for us, waited in ranks.run(held, wanted_of(release, target), 20, timeout_s=300.0):
        assert us > 0 and waited


def _each_has_its_own() -> None:
    """A bench starts ranks by itself, which nobody tells what ranks of one GPU must be told."""
    if len(gpu.devices()) < 2:
        pytest.skip("needs two GPUs")


@pytest.fixture(scope="module")
def benched(release: str, tmp_path_factory: pytest.TempPathFactory) -> Done:
    _each_has_its_own()
    return run_bench(tmp_path_factory.mktemp("bench") / "engine.jsonl", **ASKED)


def test_the_whole_table_through_sglang_is_right_and_timed(benched: Done, release: str) -> None:
    cells = benched.measurement.cells
    assert not benched.report.failed and {(cell.driver, cell.release) for cell in cells} == {("engine", release)}
    assert {cell.path for cell in cells} >= {TARGETS[name].path for name in ALWAYS}, benched.report.refused_texts()
    for cell in cells:
        assert (cell.checked, cell.wrong) == (4, 0), cell
        assert all(len(rank) >= 3 and np.isfinite(rank).all() and (rank > 0).all() for rank in cell.host_us), cell
        assert all(len(rank) >= 3 and np.isfinite(rank).all() for rank in (*cell.device_us, *cell.elapsed_us)), cell
    never = {task.wanted.target for task, _ in benched.report.refused} & set(ALWAYS)
    assert not never, benched.report.refused_texts()


def test_both_drivers_stand_in_one_file(release: str, tmp_path: Path) -> None:
    _each_has_its_own()
    done = run_bench(
        tmp_path / "both.jsonl", **{**ASKED, "drivers": "engine,native", "sizes": "64K", "targets": "pynccl_in_place"}
    )
    assert {cell.driver for cell in done.measurement.cells} == {"engine", "native"} and not done.report.failed
