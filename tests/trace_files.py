"""Profiler traces as PyTorch's profiler and Nsight Systems write them, made by the tests: forwards of a server, eager or replayed.

Used by test_check*.py. A Recording is neutral; ``chrome`` and ``nsys`` write it, field by field as libkineto and NVIDIA's export do.
Invariant: kernels' names are whole names, as the sources that the table cites compile to; nothing here knows the table.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FI = "flashinfer::trtllm_allreduce_fusion::"
NAMES = {
    "nccl": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "rccl": "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
    "v1": "void sglang::cross_device_reduce_1stage<__nv_bfloat16, 8>(sglang::RankData*, sglang::RankSignals, sglang::Signal*, "
    "__nv_bfloat16*, int, int)",
    "v1_two": "void sglang::cross_device_reduce_2stage<__nv_bfloat16, 8>(sglang::RankData*, sglang::RankSignals, sglang::Signal*, "
    "__nv_bfloat16*, int, int)",
    "v2": "void (anonymous namespace)::all_reduce_kernel<(anonymous namespace)::AllReducePushImpl<__nv_bfloat16, 8u, true>, 8u, 1>"
    "((anonymous namespace)::AllReduceParams<8u>)",
    "fused": f"void {_FI}allreduce_fusion_kernel_oneshot_lamport<({_FI}AllReduceFusionPattern)1, __nv_bfloat16, 8, true, true>"
    f"({_FI}AllReduceFusionParams<__nv_bfloat16>)",
    "flashinfer": f"void {_FI}allreduce_fusion_kernel_oneshot_lamport<({_FI}AllReduceFusionPattern)0, __nv_bfloat16, 8, true, true>"
    f"({_FI}AllReduceFusionParams<__nv_bfloat16>)",
    "mnnvl": "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)8, __nv_bfloat16, true, float4>(x)",
    "mnnvl_norm": "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<__nv_bfloat16, (QuantType)0, false, 1, float4>(x)",
    "symm_mem": "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
    "mscclpp": "void mscclpp::collective::allreducePacket<__half, false>(__half*, __half*, __half*)",
    "quick": "void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__hip_bfloat16, 8>, __hip_bfloat16>(x)",
    "gemm": "nvjet_tst_64x8_64x16_4x1_v_bz_TNT",
    "norm": "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps>>(at::native::ReduceOp<float>)",
}


@dataclass
class Kernel:
    name: str
    start: float
    dur: float
    correlation: int
    stream: int = 7
    node: int = 0
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class Recording:
    """What one rank did, in microseconds of its clock."""

    rank: int = 0
    kernels: list[Kernel] = field(default_factory=list)
    launches: list[tuple[str, float, int]] = field(default_factory=list)
    marks: list[tuple[str, float, float]] = field(default_factory=list)
    clock: float = 1000.0
    _correlation: int = 100

    def forward(
        self, ways: Sequence[str], *, graph: bool, gather: bool = True, mark: str = "", args: dict[str, Any] | None = None
    ) -> Recording:
        """One pass of a model: before each all-reduce a matrix product, behind the last the gather of logits."""
        began, host, graph_number = self.clock, self.clock, self._next()
        if graph:
            self.launches.append(("cudaGraphLaunch", host, graph_number))
        for i, way in enumerate([*ways, *(["gather"] if gather else [])]):
            for j, name in enumerate(("gemm", way)):
                number = graph_number if graph else self._next()
                if not graph:
                    host += 2.0
                    self.launches.append(("cudaLaunchKernel", host, number))
                self.clock = max(self.clock, host) + 1.5
                dur = 3.25 + (i % 5)
                node = 2 * i + j + 1 if graph else 0
                self.kernels.append(
                    Kernel(NAMES[name], self.clock, dur, number, 7, node, dict(args or {}) if name == way else {})
                )
                self.clock += dur
        if mark:
            self.marks.append((mark, began - 1, host + 1))
        self.clock += 50.0
        return self

    def _next(self) -> int:
        self._correlation += 1
        return self._correlation

    # ------------------------------------------------------------------------------------------------------------------- Chrome's JSON

    def events(self, pid: str = "") -> list[dict[str, Any]]:
        """As libkineto writes them; ``pid`` is what stands before a pid in a merged file."""
        process, device = (f"{pid} 4321", f"{pid} {self.rank}") if pid else (4321, self.rank)
        found: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "ts": 0.0, "pid": process, "tid": 0, "args": {"name": "python"}},
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": "aten::mm",
                "pid": process,
                "tid": 4321,
                "ts": 1.0,
                "dur": 2.0,
                "args": {"External id": 1},
            },
        ]
        for name, begin, end in self.marks:
            found.append(
                {"ph": "X", "cat": "user_annotation", "name": name, "pid": process, "tid": 4321, "ts": begin, "dur": end - begin}
            )
        for name, at, number in self.launches:
            args: dict[str, Any] = {"External id": number, "cbid": 211, "correlation": number}
            found.append(
                {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": process, "tid": 4321, "ts": at, "dur": 1.0, "args": args}
            )
        for one in self.kernels:
            args = {
                "External id": one.correlation, "queued": 0, "device": self.rank, "context": 1, "stream": one.stream,
                "correlation": one.correlation, "registers per thread": 64, "shared memory": 0, "grid": [8, 1, 1], "block": [512, 1, 1],
                **one.args,
            }  # fmt: skip
            if one.node:
                args["graph node id"] = one.node
            found.append(
                {
                    "ph": "X",
                    "cat": "kernel",
                    "name": one.name,
                    "pid": device,
                    "tid": one.stream,
                    "ts": one.start,
                    "dur": one.dur,
                    "args": args,
                }
            )
        return found

    def chrome(self, path: Path, *, said: bool = True) -> Path:
        """``said``: the trace itself says which rank it is."""
        return write_chrome(path, self.events(), {"backend": "nccl", "rank": self.rank, "world_size": 8} if said else None)


def write_chrome(path: Path, events: Iterable[dict[str, Any]], info: dict[str, Any] | None = None) -> Path:
    """The whole file as libkineto lays it out; gzip where its name says so."""
    head: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]}
    if info is not None:
        head["distributedInfo"] = info
    body = ",\n".join(json.dumps(event, indent=2) for event in events)
    text = json.dumps(head, indent=2)[:-2] + ',\n  "traceEvents": [\n' + body + '\n  ],\n  "traceName": "x.json"\n}\n'
    data = text.encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


# ---------------------------------------------------------------------------------------------------------------------- Nsight Systems

# What two versions differ in, as NVIDIA documents them: types, new columns, and NULL where there was 0.
_KERNEL_COLUMNS = {
    "2023": "start INT NOT NULL, end INT NOT NULL, deviceId INT NOT NULL, contextId INT NOT NULL, streamId INT NOT NULL, "
    "correlationId INT, globalPid INT, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, "
    "mangledName INTEGER, launchType INT, graphNodeId INT",
    "2025": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, greenContextId INTEGER, "
    "streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, "
    "mangledName INTEGER, launchType INTEGER, graphNodeId INTEGER",
}
_RANGES = {
    "2023": "start INT NOT NULL, end INT, eventType INT NOT NULL, rangeId INT, category INT, color INT, text TEXT, globalTid INT, "
    "endGlobalTid INT, textId INT, domainId INT",
    "2025": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, "
    "globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER, uint64Value INTEGER, jsonTextId INTEGER, binaryData TEXT",
}


def write_nsys(path: Path, recordings: Sequence[Recording], schema: str = "2025", *, whole_graphs: bool = False) -> Path:
    """One export of several ranks. ``whole_graphs``: as with --cuda-graph-trace=graph, which leaves a graph's kernels out."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
        db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({_KERNEL_COLUMNS[schema]})")
        db.execute(f"CREATE TABLE NVTX_EVENTS ({_RANGES[schema]})")
        db.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER, "
            "correlationId INTEGER, nameId INTEGER, returnValue INTEGER)"
        )
        if schema == "2025":
            db.execute("CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT)")
            db.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.20.3')")
        if whole_graphs:
            db.execute(
                "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, "
                "streamId INTEGER, correlationId INTEGER, globalPid INTEGER, graphId INTEGER, graphExecId INTEGER)"
            )
        strings: dict[str, int] = {}
        for recording in recordings:
            _write_rank(db, recording, schema, strings, whole_graphs)
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, text) for text, number in strings.items()])
        db.commit()
    return path


def _write_rank(db: sqlite3.Connection, one: Recording, schema: str, strings: dict[str, int], whole_graphs: bool) -> None:
    pid = (1 << 56) | (5000 + one.rank) << 24
    tid = pid | 77

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings) + 1)

    def ns(us: float) -> int:
        return round(us * 1000)

    for kernel in one.kernels:
        if whole_graphs and kernel.node:
            continue
        node = (kernel.node << 32 if kernel.node else 0) if schema == "2023" else (kernel.node << 32 or None)
        short = kernel.name.split("<")[0].split("(")[0].split("::")[-1]
        row = {
            "start": ns(kernel.start), "end": ns(kernel.start + kernel.dur),
            "deviceId": one.rank, "contextId": 1, "streamId": kernel.stream,
            "correlationId": kernel.correlation, "globalPid": pid, "demangledName": text(kernel.name), "shortName": text(short),
            "graphNodeId": node,
        }  # fmt: skip
        _insert(db, "CUPTI_ACTIVITY_KIND_KERNEL", row)
    for name, at, number in one.launches:
        row = {"start": ns(at), "end": ns(at + 1), "eventClass": 0, "globalTid": tid, "correlationId": number, "returnValue": 0}
        _insert(db, "CUPTI_ACTIVITY_KIND_RUNTIME", {**row, "nameId": text(f"{name}_v7000")})
        if whole_graphs and "Graph" in name:
            row = {
                "start": ns(at),
                "end": ns(at + 90),
                "deviceId": one.rank,
                "correlationId": number,
                "globalPid": pid,
                "graphId": 3,
            }
            _insert(db, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", row)
    for i, (name, begin, end) in enumerate(one.marks):
        # A registered string is a number, any other stands in the row.
        told = {"textId": text(name)} if i % 2 else {"text": name}
        _insert(db, "NVTX_EVENTS", {"start": ns(begin), "end": ns(end), "eventType": 59, "globalTid": tid, "domainId": 0, **told})


def _insert(db: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    names, marks = ", ".join(f'"{name}"' for name in row), ", ".join("?" * len(row))
    db.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(row.values()))
