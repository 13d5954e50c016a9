"""The table of kernels, second part: FlashInfer and TensorRT-LLM, torch's symmetric memory, MSCCL++, AMD's libraries. Read by kernels.py.

Invariant: as in table.py. FlashInfer's one fused kernel also does a plain all-reduce: its template's pattern 0 says so.
"""

from __future__ import annotations

from .._types import Path
from .kernels import Kernel, Kind

_FUSION = "FlashInfer, comm/trtllm_allreduce_fusion.cuh, and TensorRT-LLM, allReduceFusionKernels.cu"
_MNNVL = "FlashInfer, comm/trtllm_mnnvl_allreduce.cuh"
_CUTEDSL = "FlashInfer, comm/mnnvl_cutedsl, by CuTe DSL's way to name a kernel"
_TRTLLM = "FlashInfer, comm/trtllm_allreduce.cuh, and TensorRT-LLM, customAllReduceKernels.cu"
_TORCH = "PyTorch, c10d/symm_mem/CUDASymmetricMemoryOps.cu"
_MSCCL = "MSCCL++, src/ext/collectives/allreduce/ (SGLang v0.5.14 on)"
_MSCCL_OLD = "sgl-kernel, csrc/allreduce/mscclpp_allreduce.cuh (SGLang v0.4.7 to v0.5.13)"
_MSCCL_PLAN = "MSCCL++, src/core/include/execution_kernel.hpp: compiled algorithms"
_AITER = "aiter, csrc/include/custom_all_reduce.cuh"
_QUICK_FUSED = "aiter, csrc/include/quick_all_reduce.cuh"
_QUICK = "sgl-kernel, csrc/allreduce/quick_all_reduce.h; aiter has the same"
_PLAIN = r"AllReduceFusionPattern\)\s*0|AllReduceFusionPatternE0E"
# oneshotAllreduceFusionKernel<ranks, type, with a norm or without, ...>
_NORM = r"<[^,<>]*,[^,<>]*,\s*(?:\(bool\)\s*)?(?:true|1)\b|Lh\d+E\w*?Lb1E"
# two_shot_all_reduce_kernel<type, alignment, ranks, only the first half, ...>
_SCATTER = r"<[^,<>]*,[^,<>]*,[^,<>]*,\s*(?:\(bool\)\s*)?(?:true|1)\b|Li\d+ELi\d+ELb1E"


def _reduce(path: Path, backend: str, names: str, label: str, source: str, kernel: str = "", within: str = "") -> Kernel:
    return Kernel(names, Kind.ALL_REDUCE, label, source, frozenset({path}), (backend,) if backend else (), kernel, within)


def _fused(backend: str, names: str, label: str, source: str, within: str = "") -> Kernel:
    return Kernel(names, Kind.FUSED, label, source, backends=(backend,), within=within)


def _flashinfer(names: str, label: str, source: str, within: str = "") -> Kernel:
    return _reduce(Path.FLASHINFER, "flashinfer", names, label, source, within=within)


def _symm_mem(names: str, label: str, kernel: str = "") -> Kernel:
    return _reduce(Path.TORCH_SYMM_MEM, "torch_symm_mem", names, label, _TORCH, kernel)


def _mscclpp(names: str, label: str, source: str, within: str = "") -> Kernel:
    return _reduce(Path.MSCCLPP, "mscclpp", names, label, source, within=within)


_PLAIN_OR_FUSED = "allreduce_fusion_kernel_(oneshot_lamport|twoshot_sync)"
_ONE_OR_TWO = "oneshotAllreduceFusionKernel|twoshotAllreduceKernel|twoshot_allreduce_kernel"
_OVER_PCIE = r"ipc_(tp2_remote_push|rsag|topo_rsag8)\w*|push_oneshot_param_kernel"
_SPLIT = _AITER + ": the first kernel of a split fused call"

OTHERS = (
    # FlashInfer, TensorRT-LLM
    _flashinfer(_PLAIN_OR_FUSED, "allreduce_fusion_kernel, pattern 0", _FUSION, _PLAIN),
    _fused("flashinfer", f"(moereduce_|moefinalize_)?{_PLAIN_OR_FUSED}", "allreduce_fusion_kernel", _FUSION),
    _fused("flashinfer", "oneshotAllreduceFusionKernel", "oneshotAllreduceFusionKernel", _MNNVL, _NORM),
    _flashinfer(_ONE_OR_TWO, "oneshot/twoshotAllreduce", _MNNVL),
    Kernel("rmsNormLamport|RMSNorm", Kind.PART, "rmsNormLamport", _MNNVL, within="mnnvl", fuses=True),
    _fused("flashinfer", r"kernel_cutlass\w*mnnvl_cutedsl\w*", "mnnvl_cutedsl", _CUTEDSL),
    _fused("flashinfer", "(lamport_style_)?one_shot_(prenorm_)?all_reduce_norm_kernel", "all_reduce_norm_kernel", _TRTLLM),
    _flashinfer("(one|two)ShotAllReduceKernel", "one/twoShotAllReduceKernel", _TRTLLM),
    _reduce(Path.PCIE_IPC, "", _OVER_PCIE, "pcie_ipc_all_reduce", "FlashInfer, comm/pcie_ipc_all_reduce.cuh"),
    Kernel(
        r"(fused_\w*)?(all|reduces)\w*_kernel", Kind.OTHER, "mixed_comm", "FlashInfer, comm/mixed_comm.cuh", within="mixed_comm"
    ),
    # torch symmetric memory
    Kernel("two_shot_all_reduce_kernel", Kind.REDUCE_SCATTER, "two_shot_all_reduce_kernel, first half", _TORCH, within=_SCATTER),
    _symm_mem("two_shot_all_reduce_kernel(_inplace)?", "two_shot_all_reduce_kernel", "torch_two_shot"),
    _symm_mem("multimem_(one_shot_)?all_reduce_kernel", "multimem_all_reduce_kernel", "multimem"),
    _symm_mem("one_shot_all_reduce_kernel", "one_shot_all_reduce_kernel"),
    Kernel("multimem_all_gather_kernel", Kind.ALL_GATHER, "multimem_all_gather_kernel", _TORCH),
    # MSCCL++
    _mscclpp("allreduce_1shotLL_[12]node", "allreduce_1shotLL", _MSCCL_OLD),
    _mscclpp(r"allreduce(AllPairs|Packet|Fullmesh|RsAg\w*|Nvls\w*)", "mscclpp allreduce", _MSCCL),
    _mscclpp("executionKernel", "mscclpp executionKernel", _MSCCL_PLAN, "mscclpp"),
    Kernel("allgatherFullmesh2?", Kind.ALL_GATHER, "mscclpp allgather", "MSCCL++, src/ext/collectives/allgather/"),
    # AMD: QuickReduce, aiter
    _fused("aiter", "allreduce_rmsnorm_prototype_twoshot", "allreduce_rmsnorm_prototype", _QUICK_FUSED),
    _reduce(Path.QUICK, "quick_reduce", "allreduce_prototype(_twoshot)?", "allreduce_prototype_twoshot", _QUICK),
    _fused("aiter", r"allreduce_fusion_kernel_[12]stage\w*", "allreduce_fusion_kernel_1/2stage", _AITER),
    _fused("aiter", "reduce_scatter_cross_device_store", "reduce_scatter_cross_device_store", _SPLIT),
    Kernel(r"local_device_load_rmsnorm\w*", Kind.PART, "local_device_load_rmsnorm", _AITER, fuses=True),
    Kernel(r"allgather_(naive|vec|lastdim)|ag_gfx1250\w*", Kind.ALL_GATHER, "aiter all-gather", _AITER),
    Kernel(r"reduce_scatter_split_\w+|rs_gfx1250\w*", Kind.REDUCE_SCATTER, "aiter reduce-scatter", _AITER),
)
