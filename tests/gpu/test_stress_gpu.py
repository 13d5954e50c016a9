"""Many launches: the memory order between GPUs, which no sanitizer sees, under ranks that come late in turn; and calls back to back.

SGLANG_PROBE_STRESS_LAUNCHES sets how many (default 20,000 a kernel); tests/bench/bench_gpu.py runs a million in all. Invariant: every
result is compared on the GPU, and a rate of wrong results is told with the bound that so many launches give it.
"""

# ruff: noqa: F401, F811 -- fixtures are imported, and then asked for by name

from __future__ import annotations

import os
import time
from typing import Any, Literal

import pytest

torch = pytest.importorskip("torch", reason="GPU ranks hold torch's tensors")

from gpu import ranks  # noqa: E402 # imports torch
from gpu.sharing import need  # noqa: E402 # pytest.importorskip comes first
from run_fixtures import Groups, gpus, group_of  # noqa: E402 # pytest.importorskip comes first

from sglang_probe import Coordinator  # noqa: E402

KIB = 1 << 10
LAUNCHES = int(os.environ.get("SGLANG_PROBE_STRESS_LAUNCHES", 20_000))
JITTER_CYCLES = 4000
RUN_S = max(120.0, LAUNCHES * 5e-4)


@pytest.fixture(scope="session")
def device() -> Literal["host", "gpu"]:
    return "gpu"


@pytest.fixture(scope="session")
def ranks_max() -> int:
    """Two share a GPU where CUDA's MPS lets them run at once: by turns it would take hours."""
    return max(2, gpus()) if "CUDA_MPS_PIPE_DIRECTORY" in os.environ else gpus()


def rate(wrong: int, launches: int) -> str:
    """Wrong results in so many launches, and what is known of their rate."""
    bound = f", so the rate is under {3 / launches:.1e} (95 %)" if not wrong else ""
    return f"{wrong} wrong in {launches:,} launches{bound}"


# -------------------------------------------------------------------------------------------------------------------------- late ranks


def late(c: Coordinator, options: dict[str, Any], nbytes: int, launches: int) -> dict[str, Any]:
    with ranks.as_before(c):
        return ranks.stress(c, options, nbytes, launches, JITTER_CYCLES)


@pytest.mark.slow
@pytest.mark.parametrize(("nbytes", "part"), [(16, 4), (KIB, 1), (64 * KIB, 4)])
@pytest.mark.parametrize("name", ranks.CUSTOM)
def test_a_rank_that_comes_late_never_makes_a_sum_wrong(name: str, nbytes: int, part: int, group_of: Groups) -> None:
    by_rank = group_of(2).run(late, ranks.options_of(name), nbytes, LAUNCHES // part, timeout_s=RUN_S)
    print(f"{name}, {nbytes} bytes: {rate(sum(row['wrong'] for row in by_rank), by_rank[0]['launches'])}")
    for row in by_rank:
        assert (row["path"], row["kernel"], row["wrong"]) == ("custom", name, 0)
        assert row["counted_by_the_gpu"] == row["launches"] >= LAUNCHES // part


# ------------------------------------------------------------------------------------------------------------------------ back to back


def bursts(c: Coordinator, options: dict[str, Any], nbytes: int, launches: int, together: int = 50) -> dict[str, Any]:
    """Eager calls: `together` of them with nothing between, on inputs of their own; then all their results are compared on the GPU."""
    count = nbytes // 2
    source, total = (part.view(together, count) for part in ranks.exact_input(c, together * count, "bf16", 2))
    want, block, bad = total.to(torch.bfloat16), torch.empty_like(source), torch.zeros((), dtype=torch.int64, device="cuda")
    with ranks.as_before(c):
        ranks.configure(c, options)
        reduced = c.all_reduce(block[0])  # what is built at the first call
        c.wait(torch.cuda.current_stream().cuda_stream)
        before, done, start = ranks.ran(c, str(reduced.path)), 0, time.perf_counter()
        while done < launches:
            step = done // together % 7
            torch.add(source, step, out=block)
            results = [c.all_reduce(row) for row in block]
            bad += (torch.stack([one.tensor for one in results]) != want + c.world_size * step).sum()
            done += together
        c.wait(torch.cuda.current_stream().cuda_stream)
    seen = {"path": str(reduced.path), "kernel": reduced.kernel, "launches": done, "wrong": int(bad)}
    return {**seen, "ran": ranks.ran(c, str(reduced.path)) - before, "seconds": time.perf_counter() - start}


@pytest.mark.parametrize("name", [name for name in ranks.PATHS if name != "torch_symm_mem"])
def test_ten_thousand_calls_back_to_back_are_all_right(name: str, group_of: Groups) -> None:
    need(name)
    by_rank = group_of(2).run(bursts, ranks.options_of(name), 16 * KIB, 10_000, timeout_s=RUN_S)
    print(f"{name}: elements: {rate(sum(row['wrong'] for row in by_rank), 10_000)}, {by_rank[0]['seconds']:.1f} s")
    for row in by_rank:
        assert (row["path"], row["kernel"]) == ranks.expected(name) and row["wrong"] == 0
        assert name == "torch_distributed" or row["ran"] == row["launches"] == 10_000  # torch's calls are nobody's to count
