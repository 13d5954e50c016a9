"""A bench on two GPUs: every target there, right, with samples of both clocks; and its own checking, on the GPU, sees what is wrong.

Invariant: no time is asserted but that it was taken.
"""

# ruff: noqa: E402 -- what imports torch comes after pytest.importorskip
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="GPU ranks hold torch's tensors")

from sglang_probe import gpu
from sglang_probe._bench.bench import Done, run_bench
from sglang_probe._bench.checking import Reference
from sglang_probe._bench.targets import TARGETS
from sglang_probe._run.arrays import TorchArrays
from sglang_probe._run.inputs import PERIOD

ASKED: dict[str, Any] = {
    "device": "gpu",
    "world_size": 2,
    "targets": None,
    "sizes": "1K,64K,1M",
    "tokens": None,
    "hidden": 7168,
    "phases": "eager,captured",
    "patterns": "back_to_back,interleaved",
    "compute_us": 5.0,
    "drivers": "native",
    "dtype": "bf16",
    "processes": 1,
    "quick": True,
    "split": 0,
    "seed": 0,
    "timeout_s": 60.0,
    "nccl": None,
    "ordinals": None,
    "facts": {},
}


def bench(out: Path, **changes: Any) -> Done:
    if len(gpu.devices()) < 2:
        pytest.skip("needs two GPUs")
    return run_bench(out, **(ASKED | changes))


@pytest.fixture(scope="module")
def all_targets(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return bench(tmp_path_factory.mktemp("bench") / "all.jsonl")


def test_every_target_is_measured_at_every_size_that_it_takes(all_targets: Done) -> None:
    report = all_targets.report
    assert report.whole and not report.failed
    assert {(task.wanted.target, task.wanted.nbytes) for task, _ in report.refused} <= {("limit", 1 << 20)}, (
        report.refused_texts()
    )
    assert {(cell.path, cell.kernel) for cell in all_targets.measurement.cells} == {(t.path, t.kernel) for t in TARGETS.values()}


def test_every_result_was_right_and_every_clock_was_read(all_targets: Done) -> None:
    for cell in all_targets.measurement.cells:
        assert (cell.checked, cell.wrong) == (4, 0), cell
        for samples in (cell.device_us, cell.host_us, cell.elapsed_us):
            assert all(len(rank) >= 3 and np.isfinite(rank).all() for rank in samples), cell
        assert all((rank > 0).all() for rank in cell.host_us), cell
        if cell.pattern == "back_to_back":
            assert all((rank > 0).all() for samples in (cell.device_us, cell.elapsed_us) for rank in samples), cell
        assert cell.before["gpus"] and cell.after["gpus"]


def test_the_file_names_the_torch_and_the_nccl_that_the_ranks_had(all_targets: Done) -> None:
    provenance = all_targets.measurement.provenance
    assert provenance is not None and provenance.torch == torch.__version__ and provenance.nccl["version"]


def test_a_quarter_of_a_gibibyte_is_checked_whole(tmp_path: Path) -> None:
    names = "pynccl_in_place,pynccl_out_of_place,torch_distributed"
    done = bench(tmp_path / "a.jsonl", targets=names, sizes="256M", patterns="back_to_back")
    assert done.report.whole and len(done.measurement.cells) == 6
    assert {(cell.checked, cell.wrong) for cell in done.measurement.cells} == {(4, 0)}


def test_calls_are_split_by_the_paths_own_stamps_and_by_aligned_clocks(tmp_path: Path) -> None:
    done = bench(tmp_path / "a.jsonl", targets="one_shot,pynccl_in_place", sizes="1K", patterns="back_to_back", split=96)
    for cell in done.measurement.cells:
        assert {len(rank) for samples in (cell.wait_us, cell.transfer_us) for rank in samples} == {96}, cell.note
        assert 0 < cell.split_error_us < 10, cell  # what a flag takes to cross, or how far off compared clocks may be


@pytest.mark.parametrize("count", [8, PERIOD, 2 * PERIOD + 17])
def test_one_wrong_element_on_the_gpu_is_seen_wherever_it_is(count: int) -> None:
    ranks = [Reference(TorchArrays(), "bf16", count, rank, 2) for rank in (0, 1)]
    inputs = [torch.empty(count, dtype=torch.bfloat16, device="cuda") for _ in ranks]
    for reference, tensor in zip(ranks, inputs, strict=True):
        reference.fill(tensor, 1)
    total = inputs[0] + inputs[1]
    assert not ranks[0].wrong(total, 1) and ranks[0].wrong(total, 2)
    for index in (0, count // 2, count - 1):
        spoiled = total.clone()
        spoiled[index] += 1
        assert f"[{index:,}] is" in ranks[0].wrong(spoiled, 1)
    ranks[0].poison(total)
    assert torch.isnan(total).all() and "nan" in ranks[0].wrong(total, 1)
    ranks[0].zero(total)
    assert not total.any()
