"""The table of kernels: names as compilers and profilers write them, each path, and what is no collective."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_files import NAMES

from sglang_probe import _core
from sglang_probe._trace.kernels import Kind, find_kernel, kernel_table, own_name
from sglang_probe._trace.table import NCCL_PATHS
from sglang_probe._types import Path

_V2 = "(anonymous namespace)::all_reduce_kernel<(anonymous namespace)::AllReduce"
_FI = "flashinfer::trtllm_mnnvl_allreduce::"
# whole name, kind, path ("" none, NCCL any of three), kernel
CASES = [
    (NAMES["nccl"], Kind.ALL_REDUCE, "nccl", ""),
    ("ncclDevKernel_AllReduce_Sum_f16_TREE_LL", Kind.ALL_REDUCE, "nccl", ""),
    ("ncclKernel_AllReduce_RING_LL_Sum_half(ncclDevComm*, unsigned long, ncclWork*)", Kind.ALL_REDUCE, "nccl", ""),
    ("ncclSymkDevKernel_AllReduce_RSxLDMC_AGxSTMC_sum_bf16(ncclSymkDevWorkArgs4K)", Kind.ALL_REDUCE, "nccl", ""),
    ("ncclSymDevKernel_AllReduce_AGxLL_R_sum_bf16(ncclSymDevArgs)", Kind.ALL_REDUCE, "nccl", ""),
    (NAMES["gather"], Kind.ALL_GATHER, "", ""),
    (NAMES["scatter"], Kind.REDUCE_SCATTER, "", ""),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", Kind.OTHER, "", ""),
    ("ncclDevKernel_Reduce_Sum_f32_RING_LL(x)", Kind.OTHER, "", ""),
    ("_Z23ncclDevKernel_Generic_424ncclDevKernelArgsStorageILm4096EE", Kind.UNKNOWN, "nccl", ""),
    (NAMES["rccl"], Kind.UNKNOWN, "nccl", ""),
    (NAMES["v1"], Kind.ALL_REDUCE, "custom", "one_shot"),
    (NAMES["v1_two"], Kind.ALL_REDUCE, "custom", "two_shot"),
    ("void vllm::cross_device_reduce_2stage<half, 4>(vllm::RankData*)", Kind.ALL_REDUCE, "custom", "two_shot"),
    ("void aiter::cross_device_reduce_1stage<opus::bf16_t, 8>(aiter::RankData*)", Kind.ALL_REDUCE, "custom", "aiter"),
    ("void trt_llm::oneShotAllReduceKernel<__nv_bfloat16, 8, true>(trt_llm::AllReduceParams)", Kind.ALL_REDUCE, "custom", "one_shot"),
    ("void all_reduce_one_shot_push_kernel<__nv_bfloat16, 8u, true>(x)", Kind.ALL_REDUCE, "custom", "one_shot_push"),
    ("void all_reduce_two_shot_kernel<__nv_bfloat16, 8u, true>(x)", Kind.ALL_REDUCE, "custom", "two_shot_pull"),
    (NAMES["v2"], Kind.ALL_REDUCE, "custom", "one_shot_push"),
    (f"void {_V2}PullImpl<__nv_bfloat16, 8u, (PullMode)0, true>, 8u, 1>(x)", Kind.ALL_REDUCE, "custom", "one_shot_pull"),
    (f"void {_V2}PullImpl<__nv_bfloat16, 8u, (PullMode)1, true>, 8u, 2>(x)", Kind.ALL_REDUCE, "custom", "two_shot_pull"),
    (f"void {_V2}PullImpl<__nv_bfloat16, (unsigned int)8, (PullMode)0, (bool)1>, (unsigned int)8, (int)2>(x)", Kind.ALL_REDUCE, "custom",
     "two_shot_pull"),
    (f"void {_V2}PullImpl<__nv_bfloat16, 8u, (PullMode)2, true>, 8u, 2>(x)", Kind.ALL_REDUCE, "custom", "two_shot_multicast"),
    ("void sglang::all_reduce_2shot_pull_kernel<sglang::MultiCastImpl<V, 8u, false>, __nv_bfloat16, 8u, true>(x)", Kind.ALL_REDUCE,
     "custom", "two_shot_multicast"),
    ("void sglang::all_reduce_2shot_pull_kernel<sglang::LoadStoreImpl<V, 8u, true>, __nv_bfloat16, 8u, true>(x)", Kind.ALL_REDUCE,
     "custom", "two_shot_pull"),
    ("void sglang::all_reduce_2shot_push_kernel<__nv_bfloat16, 8u, true>(x)", Kind.ALL_REDUCE, "custom", "two_shot_push"),
    (NAMES["fused"], Kind.FUSED, "", ""),
    (NAMES["flashinfer"], Kind.ALL_REDUCE, "flashinfer", ""),
    (f"void {_FI}oneshotAllreduceFusionKernel<(unsigned char)8, __nv_bfloat16, true, (QuantType)0, float4>(x)", Kind.FUSED, "", ""),
    (f"void {_FI}oneshotAllreduceFusionKernel<(unsigned char)8, __nv_bfloat16, false, (QuantType)0, float4>(x)", Kind.ALL_REDUCE,
     "flashinfer", ""),
    (NAMES["mnnvl_norm"], Kind.PART, "", ""),
    (NAMES["symm_mem"], Kind.ALL_REDUCE, "torch_symm_mem", "multimem"),
    ("void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8, false, false>(x)", Kind.ALL_REDUCE, "torch_symm_mem",
     "torch_two_shot"),
    ("void (anonymous namespace)::two_shot_all_reduce_kernel<c10::BFloat16, 16, 8, true, false>(x)", Kind.REDUCE_SCATTER, "", ""),
    (NAMES["mscclpp"], Kind.ALL_REDUCE, "mscclpp", ""),
    ("void sglang::allreduce_1shotLL_1node<__half>(mscclpp::MemoryChannelDeviceHandle*)", Kind.ALL_REDUCE, "mscclpp", ""),
    (NAMES["quick"], Kind.ALL_REDUCE, "quick", ""),
    ("void flashinfer::push_oneshot_param_kernel<__nv_bfloat16, 8>(x)", Kind.ALL_REDUCE, "pcie_ipc", ""),
    ("void aiter::allreduce_fusion_kernel_1stage<opus::bf16_t, opus::bf16_t, 8, false>(x)", Kind.FUSED, "", ""),
    ("void all_reduce_one_shot_kernel<__nv_bfloat16, 8u, true>(x)", Kind.ALL_REDUCE, "custom", "one_shot_pull"),
    ("void sglang::all_reduce_1shot_push_kernel<__nv_bfloat16, 8u, true>(x)", Kind.ALL_REDUCE, "custom", "one_shot_push"),
    ("void sglang::all_reduce_1shot_pull_kernel<sglang::LoadStoreImpl<V, 8u, true>, half, 8u, true>(x)", Kind.ALL_REDUCE, "custom",
     "one_shot_pull"),
    ("void vllm::cross_device_reduce_1stage<half, 4>(vllm::RankData*)", Kind.ALL_REDUCE, "custom", "one_shot"),
    ("void trt_llm::twoShotAllReduceKernel<__nv_bfloat16, 8, true>(trt_llm::AllReduceParams)", Kind.ALL_REDUCE, "custom", "two_shot"),
    ("void flashinfer::trtllm_allreduce::oneShotAllReduceKernel<half, 8>(x)", Kind.ALL_REDUCE, "flashinfer", ""),
    ("void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8>(x)", Kind.ALL_REDUCE, "torch_symm_mem", ""),
    ("void mscclpp::executionKernel<mscclpp::LL16Packet, true>(x)", Kind.ALL_REDUCE, "mscclpp", ""),
    ("mscclKernel_Sum_half_LL_true(ncclDevComm*, mscclAlgo*, mscclWork*)", Kind.UNKNOWN, "nccl", ""),
    ("void sglang::sp_collective::all_gather_kernel<8u, true>(x)", Kind.ALL_GATHER, "", ""),
    ("void sglang::beam_ar::kernel<8, 4096, 2>(x)", Kind.FUSED, "", ""),
]  # fmt: skip
NONE = [
    NAMES["norm"], NAMES["gemm"], "kernel", "all_gather_kernel", "void at::native::index_put_all_reduce<int>(x)", "Memcpy DtoD", "",
    "_Z", "_ZN", "<<>>((",
    "void my::cross_device_reduce_1stage_copy<half>(x)", "void device::memcpy_kernel<16u>(x)", "triton_red_fused_all_reduce_0",
    "void flashinfer::norm::RMSNormKernel<8u, __nv_bfloat16>(x)",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind", "path", "kernel"), CASES, ids=[f"{own_name(case[0])}-{i}" for i, case in enumerate(CASES)]
)
def test_a_kernels_name_says_its_path(name: str, kind: Kind, path: str, kernel: str) -> None:
    row = find_kernel(name)
    assert row is not None
    assert (row.kind, row.kernel) == (kind, kernel)
    assert row.paths == (NCCL_PATHS if path == "nccl" else frozenset({Path(path)} if path else ()))


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_collective_is_not_taken_for_one(name: str) -> None:
    assert find_kernel(name) is None


def test_every_row_can_be_reached_and_says_where_it_is_read() -> None:
    """A row that an earlier one hides would never answer: its own name must find it, with what it asks of the template."""
    names = [case[0] for case in CASES]
    for row in kernel_table():
        re.compile(row.names)
        assert row.source and row.label, row
        assert row.kind is not Kind.ALL_REDUCE or row.paths or row.source.startswith("SGLang"), row
        assert bool(row.fuses) <= (row.kind is Kind.PART)
    found = {find_kernel(name) for name in names}
    missing = [
        row.label for row in kernel_table() if row not in found and row.kind in (Kind.ALL_REDUCE, Kind.FUSED) and row.paths
    ]
    assert not missing


def test_rows_speak_the_routers_words() -> None:
    backends, kernels = set(_core.BACKENDS), {kernel[0] for kernel in _core.KERNELS}
    for row in kernel_table():
        assert set(row.backends) <= backends, row
        assert row.kernel in kernels, row


def test_every_path_that_launches_a_gpu_kernel_has_a_row() -> None:
    told = frozenset().union(*(row.paths for row in kernel_table()))
    assert set(Path) - told == {Path.NONE, Path.RAISES, Path.CPU_SHM}


@given(st.text(max_size=80) | st.text("_ZNEL0123456789<>(): abcdef", max_size=80))
def test_any_text_is_a_name_or_none(text: str) -> None:
    assert isinstance(own_name(text), str)
    find_kernel(text)


@given(
    st.sampled_from(["void ", "", "static void "]),
    st.sampled_from(["", "ns::", "(anonymous namespace)::", "a::b<int>::"]),
    st.sampled_from(["", "<int>", "<a<b>, (E)1>", "<(anonymous namespace)::t>"]),
    st.sampled_from(["", "(int, f<g>*)", "(void (*)(int))"]),
)
def test_a_functions_own_name_is_found_in_any_signature(result: str, scope: str, template: str, arguments: str) -> None:
    assert own_name(f"{result}{scope}cross_device{template}{arguments}") == "cross_device"
