"""Files of costs for tests: measurements of GPUs that nobody has, nccl-tests' output, published figures.

Invariant: every time in them is invented; nothing here was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sglang_probe._measure.cell import Cell
from sglang_probe._measure.measurement import Provenance
from sglang_probe._measure.writer import Writer

H200 = "NVIDIA H200"


def provenance(gpus: int = 2, name: str = H200, link: str = "NVLink x18", **more: Any) -> Provenance:
    """So many GPUs of one kind, each linked to each; `names` and `links` make others of them."""
    names = more.pop("names", [name] * gpus)
    links = more.pop("links", [["self" if i == j else link for j in range(gpus)] for i in range(gpus)])
    described = {"gpus": [{"name": one, "uuid": f"GPU-{i}"} for i, one in enumerate(names)], "links": links, "host": "0" * 16}
    return Provenance(version="0.0", **{"started": "2031-05-06T07:08:09", **described, **more})


def cells(
    nbytes: int,
    device_us: Sequence[float] = (),
    host_us: Sequence[float] = (),
    elapsed_us: Sequence[float] = (),
    **changes: Any,
) -> list[Cell]:
    """One cell a process: its figures are these, one each; rank 0 is the slower one."""
    values: dict[str, Any] = {
        "path": "pynccl_in_place",
        "kernel": "",
        "backend": "nccl",
        "release": "0.5.9",
        "phase": "captured",
        "pattern": "interleaved",
        "compute_us": 2.0,
        "driver": "native",
        "device": "gpu",
        "dtype": "bf16",
        "world_size": 2,
        "checked": 2,
        "wrong": 0,
    }
    values |= changes
    ranks = values["world_size"]

    def by_rank(us: float) -> list[list[float]]:
        return [[us, us, us]] + [[us / 2, us / 2, us / 2]] * (ranks - 1)

    def at(times: Sequence[float], i: int) -> list[list[float]]:
        return by_rank(times[i]) if times else [[]] * ranks

    count = max(map(len, (device_us, host_us, elapsed_us)))
    return [
        Cell(
            **values,
            nbytes=nbytes,
            process=i,
            device_us=at(device_us, i),
            host_us=at(host_us, i),
            elapsed_us=at(elapsed_us, i),
        )
        for i in range(count)
    ]


def write(path: Path, *groups: list[Cell], finish: bool = True, plan: Mapping[str, Any] | None = None, **machine: Any) -> Path:
    """A measurement file of these cells; the .partial one where it is not finished."""
    with Writer(path, plan=plan or {}, provenance=provenance(**machine)) as writer:
        for group in groups:
            for cell in group:
                writer.append(cell)
        return Path(writer.finish()) if finish else Path(writer.partial_path)


def published(path: Path, **changes: Any) -> Path:
    """A file of published figures: 8 GPUs over PCIe."""
    series = {
        "path": "pynccl_in_place",
        "kernel": "",
        "sglang": "",
        "phase": "captured",
        "pattern": "back_to_back",
        "driver": "engine",
        "dtype": "bf16",
        "world_size": 8,
        "quantity": "device_us",
        "rows": [[1024, 10.0], [65536, 40.0]],
    }
    plain = {
        "format": "sglang_probe published costs",
        "version": 1,
        "source": dict.fromkeys(("title", "repository", "date", "license", "read"), "x") | {"url": "https://example.org/1"},
        "machine": {"gpu": "NVIDIA RTX PRO 6000 Blackwell Server Edition", "count": 8, "link": "pcie", "nodes": 1},
        "what": "invented",
        "cautions": ["invented too"],
        "series": [series | changes.pop("series", {})],
    }
    path.write_text(json.dumps(plain | changes))
    return path


NCCL_TESTS = """\
# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 1024 maxBytes 65536 step: 64(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0 unalign: 0
#  Rank  0 Group  0 Pid   4242 on   some-host device  0 [0000:19:00] NVIDIA H200
#  Rank  1 Group  0 Pid   4242 on   some-host device  1 [0000:3b:00] NVIDIA H200
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
        1024           512  bfloat16     sum      -1    20.00    0.05    0.05       0    10.00    0.10    0.10       0
       65536         32768  bfloat16     sum      -1    40.00    1.64    1.64       0    40.00    1.64    1.64       3
# Out of bounds values : 0 OK
"""
