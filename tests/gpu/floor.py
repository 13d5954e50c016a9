"""The floor under a custom all-reduce, measured by the rank processes of tests/bench/bench_gpu.py: an empty captured kernel of the same
shape, and the round trip of a flag over the link. What a call costs above both, and above its bytes over the link, is ours.

Invariant: measured in the same processes and the same run as what is compared with it.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch

from sglang_probe import _core, _gpu
from sglang_probe._run.coordinator import Coordinator

LINK_GB_S = 450.0
"""One direction of 18 NVLink 4 links, as published by the vendor; the round trip and the empty kernel are measured."""
_KERNELS = {name: i for i, (name, _, _) in enumerate(_core.KERNELS)}


def floor(c: Coordinator, kernel: str, sizes: list[int], calls: int = 100, repeats: int = 9) -> dict[str, Any]:
    """{"empty_us": {nbytes: a captured empty kernel of that call's shape}, "round_trip_us": a flag there and back}."""
    c.sglang, c.custom.kernel = "0.5.9", kernel
    empty = {}
    for nbytes in sizes:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            stream = torch.cuda.current_stream().cuda_stream
            for _ in range(calls):
                _gpu.empty(c.comm(), _KERNELS[kernel], 0, nbytes, stream)
        empty[nbytes] = _median(c, graph.replay, repeats) / calls
    trips = 1000
    stream = torch.cuda.current_stream().cuda_stream
    trip = _median(c, lambda: _gpu.ping_pong(c.comm(), trips, stream), repeats) / trips
    return {"empty_us": empty, "round_trip_us": trip}


def _median(c: Coordinator, run: Any, repeats: int) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    samples = []
    for turn in range(repeats + 2):
        c.barrier()
        begin.record()
        run()
        end.record()
        end.synchronize()
        if turn >= 2:
            samples.append(begin.elapsed_time(end) * 1000)
    return statistics.median(samples)
