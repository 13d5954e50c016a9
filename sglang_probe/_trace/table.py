"""The table of kernels, first part: NCCL and RCCL, and SGLang's own kernels in all their shapes. Read by kernels.py.

A name is read in the sources that the row cites, at the releases that it cites. A row stands before another that would also match.
Invariant: a path is named only where SGLang's dispatch launches that kernel; what a model calls by itself has none.
"""

from __future__ import annotations

from .._types import Path
from .kernels import Kernel, Kind

NCCL_PATHS = frozenset({Path.PYNCCL_IN_PLACE, Path.PYNCCL_OUT_OF_PLACE, Path.TORCH_DISTRIBUTED})
_CUSTOM = frozenset({Path.CUSTOM})
_NCCL = "NCCL, src/device/generate.py (2.19 on)"
_OLD = "NCCL, src/collectives/device/common.h (to 2.18)"
_SYMMETRIC = "NCCL, src/device/symmetric/generate.py (ncclSymDevKernel in 2.27, ncclSymkDevKernel from 2.28)"
_RCCL = "RCCL, src/device/common.cu: one generic kernel, whatever the collective"


def _collectives(prefix: str, label: str, source: str) -> tuple[Kernel, ...]:
    """NCCL's kernels say their collective: one row for each."""
    return (
        Kernel(rf"{prefix}_AllReduce(_\w+)?", Kind.ALL_REDUCE, f"{label}_AllReduce", source, NCCL_PATHS),
        Kernel(rf"{prefix}_AllGatherV?(_\w+)?", Kind.ALL_GATHER, f"{label}_AllGather", source),
        Kernel(rf"{prefix}_ReduceScatter(_\w+)?", Kind.REDUCE_SCATTER, f"{label}_ReduceScatter", source),
        Kernel(rf"{prefix}_(Broadcast|Reduce|SendRecv|AllToAllPivot)(_\w+)?", Kind.OTHER, label, source),
    )


NCCL = (
    *_collectives("ncclDevKernel", "ncclDevKernel", _NCCL),
    *_collectives("ncclKernel", "ncclKernel", _OLD),
    *_collectives("ncclSymk?DevKernel", "ncclSymkDevKernel", _SYMMETRIC),
    Kernel(r"ncclDevKernel(Debug)?_Generic\w*", Kind.UNKNOWN, "ncclDevKernel_Generic", _RCCL, NCCL_PATHS),
    Kernel(r"mscclKernel_\w+", Kind.UNKNOWN, "mscclKernel", "RCCL, src/include/msccl/msccl_kernel.h", NCCL_PATHS),
)

_V1 = "sgl-kernel, csrc/allreduce/custom_all_reduce.cuh and _hip.cuh (SGLang v0.4.4.post4 on)"
_VLLM = "vLLM, csrc/custom_all_reduce.cuh; sgl-kernel kept its namespace until May 2025"
_TRT = "sgl-kernel, csrc/allreduce/trt_reduce_internal.cu (SGLang v0.4.1.post7 to v0.4.4.post3)"
_AITER = "aiter, csrc/include/custom_all_reduce.cuh and custom_all_reduce_gfx1250.cuh"
_V2_FIRST = "SGLang, jit_kernel/csrc/distributed/custom_all_reduce_{push,pull}.cuh (v0.5.10 to v0.5.15)"
_V2_SECOND = "SGLang, custom_all_reduce.cuh (v0.5.16 to v0.5.18)"
_V2_THIRD = "SGLang, kernels/jit/csrc/distributed/custom_all_reduce.cuh (v0.5.19 on)"
_V2_FOURTH = "SGLang, kernels/jit/csrc/distributed/custom_all_reduce.cuh (v0.5.23 on)"
# The last of all_reduce_kernel's arguments says the shots; the mode of a pull is an enumerator: 2 is multicast.
_TWO = r",\s*(?:\(int\)\s*)?2\s*>|Li2EE"
_MULTICAST = r"PullMode\)\s*2|PullModeE2E"


def _v1(names: str, kernel: str, source: str, backends: tuple[str, ...], within: str = "") -> Kernel:
    return Kernel(names, Kind.ALL_REDUCE, names.partition("|")[0], source, _CUSTOM, backends, kernel, within)


def _v2(names: str, kernel: str, source: str, within: str = "") -> Kernel:
    return Kernel(names, Kind.ALL_REDUCE, f"V2 {kernel}", source, _CUSTOM, ("V2",), kernel, within)


_AITER_NAMES = r"cross_device_reduce_[12]stage\w*|allReduceQuantFp8|ar_\w*gfx1250\w*"
_CUSTOM_KERNELS = (
    # AMD's aiter has v1's names in a namespace of its own.
    Kernel(_AITER_NAMES, Kind.ALL_REDUCE, "aiter all-reduce", _AITER, _CUSTOM, ("aiter",), "aiter", r"\baiter::|5aiter"),
    _v1("cross_device_reduce_1stage", "one_shot", _VLLM, ("v1", "v1-vllm"), "vllm"),
    _v1("cross_device_reduce_2stage", "two_shot", _VLLM, ("v1", "v1-vllm"), "vllm"),
    _v1("cross_device_reduce_1stage", "one_shot", _V1, ("v1",)),
    _v1("cross_device_reduce_2stage|custom_all_reduce_2shot", "two_shot", _V1, ("v1",)),
    _v1("oneShotAllReduceKernel", "one_shot", _TRT, ("v1-trt",), "trt_llm"),
    _v1("twoShotAllReduceKernel", "two_shot", _TRT, ("v1-trt",), "trt_llm"),
    _v2("all_reduce_one_shot_push_kernel", "one_shot_push", _V2_FIRST),
    _v2("all_reduce_one_shot_kernel", "one_shot_pull", _V2_FIRST),
    _v2("all_reduce_two_shot_kernel", "two_shot_pull", _V2_FIRST),
    _v2("all_reduce_kernel", "one_shot_push", _V2_SECOND, "AllReducePushImpl"),
    _v2("all_reduce_kernel", "two_shot_multicast", _V2_SECOND, rf"AllReducePullImpl.*(?:{_MULTICAST})"),
    _v2("all_reduce_kernel", "two_shot_pull", _V2_SECOND, rf"AllReducePullImpl.*(?:{_TWO})"),
    _v2("all_reduce_kernel", "one_shot_pull", _V2_SECOND, "AllReducePullImpl"),
    _v2("all_reduce_1shot_push_kernel", "one_shot_push", _V2_THIRD),
    _v2("all_reduce_2shot_push_kernel", "two_shot_push", _V2_FOURTH),
    _v2("all_reduce_2shot_pull_kernel", "two_shot_multicast", _V2_THIRD, "MultiCastImpl"),
    _v2("all_reduce_1shot_pull_kernel", "one_shot_pull", _V2_THIRD),
    _v2("all_reduce_2shot_pull_kernel", "two_shot_pull", _V2_THIRD),
)

_IN = "SGLang, kernels/jit/csrc/"
_NVLINK = _IN + "distributed/nvlink_comm.cuh (v0.5.21 on)"
_K3 = _IN + "kimi_k3/comm/"


def _own(kind: Kind, names: str, label: str, where: str, within: str = "") -> Kernel:
    """A kernel that SGLang launches beside its dispatch."""
    return Kernel(names, kind, label, where, within=within)


_BESIDE = (
    _own(Kind.FUSED, "moe_finalize_all_reduce_kernel", "moe_finalize_all_reduce", _IN + "distributed/all_reduce_fusion.cuh"),
    _own(Kind.FUSED, r"all_?reduce_mhc_post\w*", "all_reduce_mhc_post", _IN + "distributed/all_reduce_mhc_hip.cuh; aiter"),
    _own(Kind.FUSED, "kernel", "beam_all_reduce_norm", _IN + "distributed/beam_all_reduce.cuh (v0.5.23)", "beam_ar"),
    _own(
        Kind.FUSED, r"all_reduce_(push|pull)_(res|norm)\w*", "all_reduce_push/pull_res/norm", _K3 + "ar_fusion.cuh (v0.5.17 on)"
    ),
    _own(Kind.FUSED, r"oproj(_dense)?_ar_kernel", "oproj_ar", _K3 + "gemm_ar.cuh (v0.5.17 to v0.5.20)"),
    _own(Kind.FUSED, r"inkling_ar_\w+", "inkling_ar", _IN + "inkling/ (v0.5.16 on)"),
    _own(
        Kind.ALL_REDUCE,
        r"inkling_(two_shot_all_reduce|multimem)\w*",
        "inkling_all_reduce",
        _IN + "inkling/inkling_all_reduce.cuh",
    ),
    _own(Kind.ALL_REDUCE, r"nvlink_(push|pull)_kernel", "nvlink all-reduce", _NVLINK, r"Primitive\)\s*3|PrimitiveE3E"),
    _own(Kind.REDUCE_SCATTER, r"nvlink_(push|pull)_kernel", "nvlink reduce-scatter", _NVLINK, r"Primitive\)\s*1|PrimitiveE1E"),
    _own(Kind.ALL_GATHER, r"nvlink_(push|pull)_kernel", "nvlink all-gather", _NVLINK),
    _own(
        Kind.ALL_GATHER, r"all_gather(_direct)?_kernel", "all_gather", _K3 + "sp_collective.cuh", "sp_collective|muse_all_gather"
    ),
    _own(
        Kind.ALL_GATHER,
        r"muse_spark_all_gather\w*|gemm_ag_gemv_kernel",
        "all_gather",
        _IN + "muse_spark/; " + _K3 + "gemm_ag.cuh",
    ),
    _own(Kind.ALL_GATHER, "_all_gather_kernel_inner", "all_gather", "SGLang, device_communicators/triton_symm_mem_ag.py"),
    _own(Kind.REDUCE_SCATTER, r"reduce_scatter_(res|pull)_kernel", "reduce_scatter", _K3 + "sp_collective.cuh", "sp_collective"),
    _own(
        Kind.OTHER,
        r"parallel_qknorm_across_head|qknorm_allreduce_\w+",
        "norm of q and k",
        _IN + "distributed/tp_qknorm.cuh; aiter",
    ),
)

SGLANG = (*_CUSTOM_KERNELS, *_BESIDE)
