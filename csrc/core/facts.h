/* Facts: what the tensor, the group, the machine and the package are, as far as a gate can ask.
 * Filled by Python (given, found or assumed: Python keeps the origin), read by the gates.
 * Invariant: every field is an int64_t with the default that a plain CUDA server has, so that a Facts is always whole. */
#ifndef SP_FACTS_H
#define SP_FACTS_H

#include <stdint.h>

#include "lists.h"

/* X(ENUM, name) */
#define SP_DEVICES(X) \
    X(CUDA, "cuda")   \
    X(HIP, "hip")     \
    X(MUSA, "musa")   \
    X(CPU, "cpu")     \
    X(HPU, "hpu")     \
    X(XPU, "xpu")     \
    X(NPU, "npu")

/* X(field, default, text): -1 means "the release's own default" where the text says so. */
#define SP_FACTS(X)                                                                                                        \
    X(device, 0, "kind of device: 0 cuda, 1 hip, 2 musa, 3 cpu, 4 hpu, 5 xpu, 6 npu")                                      \
    X(arch, 90, "CUDA: 10 x major + minor of the compute capability; HIP: the gfx number, 942 or 950")                     \
    X(full_nvlink, 1, "every pair of the group's GPUs is linked by NVLink (XGMI on HIP)")                                  \
    X(p2p, 1, "peer access between all of the group's GPUs works")                                                         \
    X(multicast, 1, "the group's symmetric memory has a multicast address")                                                \
    X(vmm_allocator, 0, "PyTorch's allocator uses expandable segments (virtual memory management)")                        \
    X(fabric_clique, 0, "all GPUs of the group are in one NVLink fabric clique, across nodes")                             \
    X(has_custom_ops, 1, "the kernel library of v1 custom all-reduce imports")                                             \
    X(has_mscclpp, 0, "the mscclpp packages import")                                                                       \
    X(has_flashinfer_pcie, 0, "the installed FlashInfer has pcie_ipc_comm")                                                \
    X(has_nccl, 1, "libnccl loads")                                                                                        \
    X(has_aiter, 0, "AMD's aiter imports")                                                                                 \
    X(cpu_amx, 1, "the CPU has AMX")                                                                                       \
    X(local_size, 0, "LOCAL_SIZE in the environment, 0 when absent")                                                       \
    X(world_size, 8, "ranks of the group")                                                                                 \
    X(nodes, 1, "nodes that the group spans")                                                                              \
    X(consecutive, 1, "the group's ranks are consecutive")                                                                 \
    X(own_custom, 1, "the group is built with custom all-reduce")                                                          \
    X(own_pynccl, 1, "the group is built with pynccl")                                                                     \
    X(own_mscclpp, 0, "the group is built with mscclpp")                                                                   \
    X(own_torch_symm_mem, 0, "the group is built with torch symmetric memory")                                             \
    X(own_pcie_ipc, 0, "the group is built with FlashInfer's PCIe-IPC all-reduce")                                         \
    X(captured, 1, "graph_capture() enters this group")                                                                    \
    X(symm_mem, 0, "--enable-symm-mem")                                                                                    \
    X(pdmux, 0, "--enable-pdmux: pynccl stays enabled")                                                                    \
    X(p2p_check, 0, "--enable-p2p-check: without it peer access is taken for granted")                                     \
    X(deterministic, 0, "--enable-deterministic-inference")                                                                \
    X(piecewise_server, 0, "the server runs a piecewise CUDA graph at all")                                                \
    X(memory_saver_graph, 0, "SGLANG_MEMORY_SAVER_CUDA_GRAPH")                                                             \
    X(fi_workspace, 0, "a FlashInfer all-reduce workspace is set up for this group")                                       \
    X(fi_max_tokens, 2048, "tokens that the FlashInfer workspace holds")                                                   \
    X(fi_hidden, 0, "hidden size that the FlashInfer workspace was built for")                                             \
    X(custom_v2, -1, "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2 (SGLANG_USE_JIT_ALL_REDUCE before v0.5.12); -1 release default") \
    X(v2_max_kb, 16384, "SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB")                                                         \
    X(v2_force_pull_kb, -1, "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PULL_SIZE_KB; -1 unset")                                    \
    X(v2_force_push_kb, -1, "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PUSH_SIZE_KB; -1 unset")                                    \
    X(v2_multinode, 0, "SGLANG_ENABLE_CUSTOM_ALL_REDUCE_V2_MULTINODE")                                                     \
    X(v1_algo, 0, "SGLANG_CUSTOM_ALLREDUCE_ALGO: 0 unset, 1 one-stage, 2 two-stage")                                       \
    X(vllm_custom, -1, "USE_VLLM_CUSTOM_ALLREDUCE; -1 release default")                                                    \
    X(rccl_msccl, 1, "RCCL_MSCCL_ENABLE")                                                                                  \
    X(mscclpp_max_bytes, 1048576, "SGLANG_MSCCLPP_MAX_BYTES")                                                              \
    X(use_aiter, 1, "SGLANG_USE_AITER_AR")                                                                                 \
    X(one_stage, -1, "SGLANG_USE_1STAGE_ALLREDUCE; -1 unset")                                                              \
    X(qr_quantization, 0, "ROCM_QUICK_REDUCE_QUANTIZATION: 0 NONE, 1 FP, 2 INT8, 3 INT6, 4 INT4")                          \
    X(qr_max_mb, 0, "ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB; 0 library default")                                              \
    X(qr_cast_bf16, 1, "ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16")                                                              \
    X(inkling, 1, "SGLANG_OPT_USE_INKLING_CUSTOM_AR")                                                                      \
    X(pcie_max_numel, 0, "SGLANG_PCIE_IPC_MAX_NUMEL; 0 unset")                                                             \
    X(decode_rows, 64, "rows of the widest decode batch: largest captured batch x draft tokens")                           \
    X(cpu_arm64, 0, "the CPU is an ARM64 host")                                                                            \
    X(inkling_sconv, 1, "SGLANG_OPT_USE_INKLING_FUSED_AR_SCONV, or scattered sconv")                                       \
    X(fi_backend, 0, "backend of the FlashInfer workspace: 0 trtllm, 1 mnnvl")                                             \
    X(fi_dtype, 0, "index of the dtype that the FlashInfer workspace was built for")                                       \
    X(pcie_hidden, 0, "hidden size that the PCIe-IPC workspace was built for; 0: the columns of the tensor")               \
    X(tp_group, 1, "this is the tensor-parallel group: some settings of custom all-reduce touched no other")               \
    X(device_ids_ok, 1, "CUDA_VISIBLE_DEVICES holds numbers, or is not set")

typedef struct sp_facts {
#define X(field, def, text) int64_t field;
    SP_FACTS(X)
#undef X
} sp_facts;

/* X(field, default, text): one tensor. nbytes is apart, because it is what bands and routers vary. */
#define SP_CALL_FACTS(X)                                            \
    X(dtype, 0, "index of the dtype")                               \
    X(columns, 0, "elements of the last dimension; 0 unknown")      \
    X(dims, 2, "number of dimensions")                              \
    X(contiguous, 1, "contiguous in memory")                        \
    X(weak_contiguous, 1, "contiguous, or the rest of its storage") \
    X(aligned, 1, "its address is a multiple of 16")                \
    X(registered, 0, "its address is in symmetric memory, or tagged as such")

typedef struct sp_call {
    uint64_t nbytes; /* bytes of the tensor */
#define X(field, def, text) int64_t field;
    SP_CALL_FACTS(X)
#undef X
} sp_call;

void sp_facts_init(sp_facts *facts);
void sp_call_init(sp_call *call);

#endif
