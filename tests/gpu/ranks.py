"""What the rank processes of the GPU tests and of tests/bench/bench_gpu.py run: functions of (coordinator, ...) for LocalGroup.run.

Invariant: correctness first. A figure of a call whose result was not checked in the same process is not returned.
"""

from __future__ import annotations

import statistics
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sglang_probe._run.coordinator import Coordinator

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# Sums of a few of these are exact in bf16 too, in whatever order they are added.
LARGEST = 16

V1_KERNELS, V2_KERNELS = ("one_shot", "two_shot"), ("one_shot_push", "one_shot_pull", "two_shot_pull", "two_shot_push")
CUSTOM = (*V1_KERNELS, *V2_KERNELS, "limit")
PATHS = (*CUSTOM, "pynccl_in_place", "pynccl_out_of_place", "torch_distributed", "torch_symm_mem")
_RESET: dict[str, Any] = {
    "sglang": "0.5.9",
    "custom.disabled": False,
    "pynccl.disabled": True,
    "piecewise": False,
    "kernel": "",
    "facts": {"own_torch_symm_mem": False, "full_nvlink": True},
}
_OPTIONS: dict[str, dict[str, Any]] = {
    **{kernel: {"kernel": kernel} for kernel in (*V1_KERNELS, "limit")},
    **{kernel: {"kernel": kernel, "sglang": "0.5.16"} for kernel in V2_KERNELS},
    "pynccl_in_place": {"custom.disabled": True, "pynccl.disabled": False},
    "pynccl_out_of_place": {"custom.disabled": True, "piecewise": True},
    "torch_distributed": {"custom.disabled": True},
    "torch_symm_mem": {"sglang": "0.5.16", "custom.disabled": True, "facts": {"own_torch_symm_mem": True}},
}


def options_of(name: str, sglang: str = "") -> dict[str, Any]:
    """What `configure` takes for one of PATHS: by a release that takes it, or by another one; nothing is left of what was set before."""
    return {**_RESET, **_OPTIONS[name], **({"sglang": sglang} if sglang else {})}


def expected(name: str) -> tuple[str, str]:
    """Path and kernel of one of PATHS, as a Reduced says them."""
    if name in CUSTOM:
        return "custom", name
    return name, "torch_two_shot" if name == "torch_symm_mem" else ""


@contextmanager
def as_before(c: Coordinator) -> Iterator[None]:
    """Undoes every toggle of the block."""
    settings = c.settings
    try:
        yield
    finally:
        c.apply(settings)


def element_bytes(dtype: str) -> int:
    return torch.empty((), dtype=DTYPES[dtype]).element_size()


def exact_input(c: Coordinator, count: int, dtype: str, turn: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's tensor of small integers, and the exact sum over ranks in float64; other integers each turn."""
    index = torch.arange(count, dtype=torch.int32, device="cuda")
    total = torch.zeros(count, dtype=torch.float64, device="cuda")
    mine = torch.empty(0, device="cuda")
    for rank in range(c.world_size):
        values = (index.remainder(2 * LARGEST + 1) * (2 * rank + 3) + 7 * turn + rank).remainder(2 * LARGEST + 1) - LARGEST
        total += values
        if rank == c.rank:
            mine = values.to(DTYPES[dtype])
    return mine, total


def random_input(c: Coordinator, count: int, dtype: str, seed: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Random values, their sum in float64 of what the dtype holds, and the largest error that summing in float32 and rounding allows."""
    mine, total = torch.empty(0), torch.zeros(count, dtype=torch.float64, device="cuda")
    for rank in range(c.world_size):
        generator = torch.Generator("cuda").manual_seed(1000 * seed + rank)  # the same numbers on every GPU
        part = torch.randn(count, generator=generator, device="cuda").to(DTYPES[dtype])
        total += part.double()
        if rank == c.rank:
            mine = part
    largest = max(float(total.abs().max()), 1.0)
    steps = {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-22}[dtype]
    # NCCL rounds after each hop, our kernels once: as many roundings as there are ranks
    return mine, total, steps * largest * c.world_size


def configure(c: Coordinator, options: dict[str, Any]) -> None:
    """Toggles by name; "kernel" is custom's."""
    for name, value in options.items():
        if name == "kernel":
            c.custom.kernel = value
        elif name.endswith(".disabled"):
            getattr(c, name.removesuffix(".disabled")).disabled = value
        elif name == "facts":
            c.set_facts(**value)
        else:
            setattr(c, name, value)


def check(
    c: Coordinator, options: dict[str, Any], sizes: list[int], dtypes: list[str], captured: bool, turns: int = 3
) -> list[dict[str, Any]]:
    """Each size and dtype against the reference: exact sums (poisoned output, input changed each turn), then random values.

    Captured: one graph a size, replayed with changed inputs. Gives rows {nbytes, dtype, path, kernel, checked, wrong, worst; calls that
    were checked, warm: calls before them that communicated; ran: what the device counted meanwhile}.
    """
    configure(c, options)
    rows = []
    for dtype in dtypes:
        for nbytes in sizes:
            count = nbytes // element_bytes(dtype)
            row: dict[str, Any] = {"nbytes": nbytes, "dtype": dtype, "captured": captured, "checked": 0, "wrong": 0, "worst": 0.0}
            inputs = [(*exact_input(c, count, dtype, turn), 0.0) for turn in range(turns)]
            inputs.append(random_input(c, count, dtype, seed=nbytes % 1000))
            torch.cuda.synchronize()
            row["calls"], row["warm"], before = len(inputs), 0, _counts(c)
            _check_captured(c, inputs, row) if captured else _check_eager(c, inputs, row)
            row["ran"] = _counts(c)[row["path"]] - before[row["path"]]
            rows.append(row)
    return rows


def _compare(result: torch.Tensor, total: torch.Tensor, tolerance: float, row: dict[str, Any]) -> None:
    error = (result.double() - total).abs()
    wrong = (error > tolerance) | ~torch.isfinite(error)
    row["checked"] += result.numel()
    row["wrong"] += int(wrong.sum())
    row["worst"] = max(row["worst"], float(error.nan_to_num(float("inf")).max()))
    # of all bytes where they are few, else of the sum of bytes and of the first ones: ranks are compared by it
    raw = result.view(torch.uint8)
    row.setdefault("sums", []).append((zlib.crc32(bytes(raw[: 1 << 20].cpu().numpy())), int(raw.to(torch.int64).sum())))


def _check_eager(c: Coordinator, inputs: list[Any], row: dict[str, Any]) -> None:
    for x, total, tolerance in inputs:
        poison = torch.full_like(x, float("nan"))  # what the allocator hands out next is not a right answer left over
        del poison
        reduced = c.all_reduce(x)
        torch.cuda.current_stream().synchronize()
        row["path"], row["kernel"] = str(reduced.path), reduced.kernel
        _compare(reduced.tensor, total, tolerance, row)


def _check_captured(c: Coordinator, inputs: list[Any], row: dict[str, Any]) -> None:
    static = inputs[0][0].clone()
    with c.graph_capture():
        row["warm"] = int(c.all_reduce(static.clone()).kernel != "dry")  # warm-up, as a server does
        with c.graph() as graph:
            reduced = c.all_reduce(static)
    row["path"], row["kernel"] = str(reduced.path), reduced.kernel
    for x, total, tolerance in inputs:
        static.copy_(x)
        if reduced.tensor is not static:
            reduced.tensor.fill_(float("nan"))
        graph.replay()
        torch.cuda.current_stream().synchronize()
        _compare(reduced.tensor, total, tolerance, row)


def captured_latency(
    c: Coordinator,
    options: dict[str, Any],
    sizes: list[int],
    dtype: str = "bf16",
    calls: int = 100,
    repeats: int = 9,
    sleep_cycles: int = 0,
) -> list[dict[str, Any]]:
    """Device time of one call inside a graph of ``calls``; median over ``repeats`` replays. ``sleep_cycles``: a busy kernel between calls,
    whose own time is measured alone and taken off."""
    configure(c, options)
    rows = []
    for nbytes in sizes:
        x, total = exact_input(c, nbytes // element_bytes(dtype), dtype, turn=1)
        last: list[Any] = []

        def body(x: torch.Tensor = x, last: list[Any] = last) -> None:
            for _ in range(calls):
                last[:] = [c.all_reduce(x)]
                if sleep_cycles:
                    torch.cuda._sleep(sleep_cycles)

        with c.graph_capture():
            c.all_reduce(x.clone())
            with c.graph() as graph:
                body()
        samples = _time_graph(c, graph, repeats)
        right: bool | None = None
        if last[0].tensor is not x:  # in place, the sum grows by each call: checked by `check`, with one call a graph
            right = bool((last[0].tensor.double() == total).all())
        alone = 0.0
        if sleep_cycles:
            graph_alone = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph_alone):
                for _ in range(calls):
                    torch.cuda._sleep(sleep_cycles)
            alone = statistics.median(_time_graph(c, graph_alone, repeats))
        rows.append(
            {
                "nbytes": nbytes,
                "path": str(last[0].path),
                "kernel": last[0].kernel,
                "us": (statistics.median(samples) - alone) / calls,
                "low": (min(samples) - alone) / calls,
                "high": (max(samples) - alone) / calls,
                "right": right,
            }
        )
        del graph
    return rows


def _time_graph(c: Coordinator, graph: Any, repeats: int) -> list[float]:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    samples = []
    for turn in range(repeats + 2):
        c.barrier()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if turn >= 2:
            samples.append(begin.elapsed_time(end) * 1000)
    return samples


def eager_latency(
    c: Coordinator, options: dict[str, Any], sizes: list[int], dtype: str = "bf16", calls: int = 200, repeats: int = 9
) -> list[dict[str, Any]]:
    """Eager calls back to back: time on the device between two events, and host time to enqueue, each a call."""
    configure(c, options)
    rows = []
    for nbytes in sizes:
        x, _ = exact_input(c, nbytes // element_bytes(dtype), dtype, turn=1)
        x.zero_()
        reduced = c.all_reduce(x)
        device, host = [], []
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for turn in range(repeats + 2):
            c.barrier()
            begin.record()
            start = time.perf_counter_ns()
            for _ in range(calls):
                c.all_reduce(x)
            enqueued = time.perf_counter_ns() - start
            end.record()
            end.synchronize()
            if turn >= 2:
                device.append(begin.elapsed_time(end) * 1000 / calls)
                host.append(enqueued / 1000 / calls)
        rows.append(
            {
                "nbytes": nbytes,
                "path": str(reduced.path),
                "kernel": reduced.kernel,
                "us": statistics.median(device),
                "host_us": statistics.median(host),
            }
        )
    return rows


def stress(
    c: Coordinator, options: dict[str, Any], nbytes: int, launches: int, jitter_cycles: int, dtype: str = "fp32"
) -> dict[str, Any]:
    """Many captured launches with jittered ranks; each result is compared on the GPU, in the same graph, with the sum that it must be."""
    configure(c, options)
    count = nbytes // element_bytes(dtype)
    x = torch.zeros(count, dtype=DTYPES[dtype], device="cuda")
    bad = torch.zeros((), dtype=torch.int64, device="cuda")
    turn = torch.zeros((), dtype=torch.float32, device="cuda")
    base = torch.arange(count, device="cuda").remainder(97).to(torch.float32)
    per_graph = 200
    generator = torch.Generator().manual_seed(17 + c.rank)

    def body() -> Any:
        reduced = None
        for _ in range(per_graph):
            turn.add_(1).remainder_(1000)
            torch.add(base * (c.rank + 1), turn, out=x) if dtype == "fp32" else x.copy_(base * (c.rank + 1) + turn)
            cycles = int(torch.randint(0, jitter_cycles + 1, (), generator=generator))
            if cycles:
                torch.cuda._sleep(cycles)
            reduced = c.all_reduce(x)
            want = base * (c.world_size * (c.world_size + 1) // 2) + turn * c.world_size
            bad.add_((reduced.tensor.float() != want).any())
        return reduced

    with c.graph_capture():
        c.all_reduce(x.clone())
        with c.graph() as graph:
            reduced = body()
    before = c.ran(_index(c, "custom")) if str(reduced.path) == "custom" else None
    c.barrier()
    start = time.perf_counter()
    done = 0
    while done < launches:
        graph.replay()
        done += per_graph
        if done % (per_graph * 50) == 0:
            torch.cuda.current_stream().synchronize()
    c.wait(torch.cuda.current_stream().cuda_stream)
    after = c.ran(_index(c, "custom")) if before is not None else None
    return {
        "nbytes": nbytes,
        "path": str(reduced.path),
        "kernel": reduced.kernel,
        "launches": done,
        "wrong": int(bad),
        "counted_by_the_gpu": None if before is None or after is None else after - before,
        "seconds": time.perf_counter() - start,
    }


def _index(c: Coordinator, path: str) -> int:
    from sglang_probe._route import PATHS

    return [str(p) for p in PATHS].index(path)


def ran(c: Coordinator, path: str) -> int:
    """Calls of a path that the device counted so far; what runs on a stream must have ended."""
    return c.ran(_index(c, path))


def _counts(c: Coordinator) -> dict[str, int]:
    from sglang_probe._route import PATHS

    return {str(path): c.ran(i) for i, path in enumerate(PATHS)}


def many_launches(c: Coordinator, options: dict[str, Any], nbytes: int, launches: int) -> dict[str, Any]:
    """Eager launches back to back without a wait between them; the last result is checked, and each one's by the stress."""
    configure(c, options)
    x, total = exact_input(c, nbytes // 2, "bf16", turn=5)
    start = time.perf_counter()
    reduced = None
    for _ in range(launches):
        reduced = c.all_reduce(x)
    c.wait(torch.cuda.current_stream().cuda_stream)
    assert reduced is not None
    in_place = reduced.tensor is x
    wrong = 0 if in_place else int((reduced.tensor.double() != total).sum())
    return {
        "path": str(reduced.path),
        "kernel": reduced.kernel,
        "launches": launches,
        "wrong": wrong,
        "seconds": time.perf_counter() - start,
    }


def host_cost(c: Coordinator, options: dict[str, Any], nbytes: int) -> tuple[float, float, float | None]:
    """Host microseconds of a call: through all_reduce, its path alone, the library alone (see Coordinator.cost)."""
    configure(c, options)
    return c.cost(torch.zeros(nbytes // 2, dtype=torch.bfloat16, device="cuda"), 100)
