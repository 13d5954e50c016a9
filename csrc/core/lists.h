/* The names of the domain, each list once: status codes, paths, backends, rules, exceptions, conditions, contexts, dtypes, kernels.
 * Enums, texts, the type stub, README's tables and conform's domain are generated from these lists.
 * Invariant: add at the end of a list, never rename; Python sees the second column, C the first. */
#ifndef SP_LISTS_H
#define SP_LISTS_H

/* X(ENUM, text): what a fallible function of the core can answer. */
#define SP_STATUSES(X)                   \
    X(OK, "ok")                          \
    X(INVALID, "invalid argument")       \
    X(NOMEM, "out of memory")            \
    X(UNAVAILABLE, "not available here") \
    X(TIMEOUT, "timed out")              \
    X(INTERNAL, "internal error")        \
    X(SYSTEM, "system call failed")      \
    X(CUDA, "CUDA failed")               \
    X(NCCL, "NCCL failed")               \
    X(PEER, "another rank failed")       \
    X(MISMATCH, "mismatch")

/* X(ENUM, name, text): what executes. */
#define SP_PATHS(X)                                                                      \
    X(NONE, "none", "nothing to do: a group of one rank")                                \
    X(CUSTOM, "custom", "custom all-reduce kernels over peer-mapped memory")             \
    X(QUICK, "quick", "QuickReduce (ROCm)")                                              \
    X(MSCCLPP, "mscclpp", "MSCCL++")                                                     \
    X(TORCH_SYMM_MEM, "torch_symm_mem", "torch symmetric memory")                        \
    X(FLASHINFER, "flashinfer", "FlashInfer all-reduce without a fused norm")            \
    X(PYNCCL_IN_PLACE, "pynccl_in_place", "ncclAllReduce, send buffer = receive buffer") \
    X(PYNCCL_OUT_OF_PLACE, "pynccl_out_of_place", "ncclAllReduce into a new tensor")     \
    X(TORCH_DISTRIBUTED, "torch_distributed", "torch.distributed.all_reduce, in place")  \
    X(CPU_SHM, "cpu_shm", "sgl_kernel's shared-memory all-reduce on CPU ranks")          \
    X(RAISES, "raises", "SGLang raises an exception here")                               \
    X(PCIE_IPC, "pcie_ipc", "FlashInfer's PCIe-IPC all-reduce")

/* X(ENUM, name, text): why. First column order is not the order of asking: the rulesets say that. */
#define SP_RULES(X)                                                                                             \
    X(NO_RULE, "", "")                                                                                          \
    X(WORLD_OF_ONE, "world_of_one", "the group has one rank: the input is returned untouched")                  \
    X(CPU, "cpu", "the tensor is on the CPU")                                                                   \
    X(HPU, "hpu", "the group has an HPU communicator")                                                          \
    X(XPU, "xpu", "the group has an XPU communicator")                                                          \
    X(NPU, "npu", "the group has an NPU communicator")                                                          \
    X(AMD_DETERMINISTIC, "amd_deterministic", "ROCm with the one-stage (deterministic) all-reduce asked for")   \
    X(SYMM_MEM_BYPASS, "symm_mem_bypass", "NCCL symmetric memory goes straight to pynccl, in place")            \
    X(FLASHINFER, "flashinfer", "the group has a FlashInfer workspace that fits the tensor")                    \
    X(CUSTOM, "custom", "custom all-reduce accepts the tensor")                                                 \
    X(QUICK, "quick", "quick reduce accepts the tensor")                                                        \
    X(MSCCLPP, "mscclpp", "MSCCL++ accepts the tensor")                                                         \
    X(TORCH_SYMM_MEM, "torch_symm_mem", "torch symmetric memory accepts the tensor")                            \
    X(PIECEWISE_PYNCCL, "piecewise_pynccl", "inside a piecewise CUDA graph: pynccl, out of place")              \
    X(AUTO_PYNCCL, "auto_pynccl", "traced by Dynamo, nothing better at run time: pynccl, out of place")         \
    X(AUTO_CLONE, "auto_clone", "traced by Dynamo, no pynccl: a clone is reduced in place and returned")        \
    X(IN_PLACE_PYNCCL, "in_place_pynccl", "nothing better, and pynccl is enabled")                              \
    X(IN_PLACE_TORCH_SYMM_MEM, "in_place_torch_symm_mem", "nothing better, pynccl is off, symmetric memory on") \
    X(IN_PLACE_TORCH, "in_place_torch", "the last resort: torch.distributed")                                   \
    X(PCIE_IPC, "pcie_ipc", "FlashInfer's PCIe-IPC all-reduce accepts the tensor")

/* X(ENUM, name, text): the exceptions that SGLang's own dispatch can end in. */
#define SP_EXCEPTIONS(X)                                                                                   \
    X(NO_EXCEPTION, "", "")                                                                                \
    X(ASSERTION_ERROR, "AssertionError", "an assertion of the out-of-place op fails")                      \
    X(ATTRIBUTE_ERROR, "AttributeError", "a communicator that does not exist, or was half built, is used") \
    X(KEY_ERROR, "KeyError", "a table of the communicator has no entry")                                   \
    X(RUNTIME_ERROR, "RuntimeError", "the kernel or the copy refuses the tensor")                          \
    X(INDEX_ERROR, "IndexError", "the size is past the last one that was tuned")                           \
    X(VALUE_ERROR, "ValueError", "NCCL has no such dtype")

/* X(BIT, name, communicator or "", text): one bit each in the word that rules read. */
#define SP_CONDITIONS(X)                                                                                                    \
    X(RANKS, "ranks", "", "the group has more than one rank")                                                               \
    X(CPU, "cpu", "", "the tensor is on the CPU")                                                                           \
    X(CPU_SHM, "cpu_shm", "", "sgl_kernel's shared-memory all-reduce is available")                                         \
    X(HPU, "hpu", "", "the HPU communicator is enabled")                                                                    \
    X(XPU, "xpu", "", "the XPU communicator is enabled")                                                                    \
    X(NPU, "npu", "", "the NPU communicator is enabled")                                                                    \
    X(AMD_DETERMINISTIC, "amd_deterministic", "", "ROCm and one-stage all-reduce asked for")                                \
    X(CUSTOM_PRESENT, "custom_present", "custom", "the communicator object exists")                                         \
    X(CUSTOM_ENABLED, "custom_enabled", "custom", "and is not disabled")                                                    \
    X(CUSTOM_ACCEPTS, "custom_accepts", "custom", "and accepts this tensor")                                                \
    X(QUICK_PRESENT, "quick_present", "quick", "the communicator object exists")                                            \
    X(QUICK_ENABLED, "quick_enabled", "quick", "and is not disabled")                                                       \
    X(QUICK_ACCEPTS, "quick_accepts", "quick", "and accepts this tensor")                                                   \
    X(MSCCLPP_PRESENT, "mscclpp_present", "mscclpp", "the communicator object exists")                                      \
    X(MSCCLPP_ENABLED, "mscclpp_enabled", "mscclpp", "and is not disabled")                                                 \
    X(MSCCLPP_ACCEPTS, "mscclpp_accepts", "mscclpp", "and accepts this tensor")                                             \
    X(SYMM_PRESENT, "torch_symm_mem_present", "torch_symm_mem", "the communicator object exists")                           \
    X(SYMM_ENABLED, "torch_symm_mem_enabled", "torch_symm_mem", "and is not disabled")                                      \
    X(SYMM_ACCEPTS, "torch_symm_mem_accepts", "torch_symm_mem", "and accepts this tensor")                                  \
    X(PCIE_PRESENT, "pcie_ipc_present", "pcie_ipc", "the communicator object exists")                                       \
    X(PCIE_ENABLED, "pcie_ipc_enabled", "pcie_ipc", "and is not disabled")                                                  \
    X(PCIE_ACCEPTS, "pcie_ipc_accepts", "pcie_ipc", "and accepts this tensor")                                              \
    X(PYNCCL_PRESENT, "pynccl_present", "pynccl", "the communicator object exists")                                         \
    X(PYNCCL_ENABLED, "pynccl_enabled", "pynccl", "and is enabled now")                                                     \
    X(SYMMETRIC_MEMORY, "symmetric_memory", "", "NCCL symmetric memory: the flag, or the tensor's tag before v0.5.4.post3") \
    X(PIECEWISE, "piecewise", "", "the piecewise CUDA graph flag is set")                                                   \
    X(COMPILING, "compiling", "", "Dynamo is tracing")                                                                      \
    X(FLASHINFER, "flashinfer", "", "a FlashInfer workspace fits the tensor")                                               \
    X(CUSTOM_MULTINODE, "custom_multinode", "", "SGLANG_ENABLE_CUSTOM_ALL_REDUCE_V2_MULTINODE was on at import")

/* X(BIT, name, text): what surrounds one call. */
#define SP_CONTEXTS(X)                                                                  \
    X(IN_CAPTURE, "in_graph_capture", "inside SGLang's graph_capture()")                \
    X(STREAM, "stream_capturing", "the current stream is really capturing")             \
    X(PIECEWISE, "piecewise", "the piecewise CUDA graph flag is set")                   \
    X(COMPILING, "compiling", "Dynamo is tracing")                                      \
    X(COMPILE_WARMUP, "compile_warmup", "torch.compile warm-up of the piecewise graph") \
    X(PIECEWISE_STREAM, "piecewise_stream", "a piecewise capture stream is set")

/* X(ENUM, name, bytes per element) */
#define SP_DTYPES(X)     \
    X(BF16, "bf16", 2)   \
    X(FP16, "fp16", 2)   \
    X(FP32, "fp32", 4)   \
    X(FP64, "fp64", 8)   \
    X(FP8, "fp8", 1)     \
    X(INT8, "int8", 1)   \
    X(INT32, "int32", 4) \
    X(INT64, "int64", 8)

/* X(ENUM, name): what a gate answers. */
#define SP_STATES(X)        \
    X(ABSENT, "absent")     \
    X(DISABLED, "disabled") \
    X(DECLINES, "declines") \
    X(ACCEPTS, "accepts")   \
    X(RAISES_HERE, "raises")

/* X(ENUM, name, conformed, text): which kernel the communicator picks. conformed = 0: not Python in the package, so conform cannot compare it. */
#define SP_KERNELS(X)                                                                    \
    X(UNKNOWN, "", 1, "")                                                                \
    X(ONE_SHOT, "one_shot", 0, "v1: every rank reads every peer")                        \
    X(TWO_SHOT, "two_shot", 0, "v1: reduce-scatter, then all-gather")                    \
    X(ONE_SHOT_PUSH, "one_shot_push", 1, "V2: every rank writes to every peer")          \
    X(ONE_SHOT_PULL, "one_shot_pull", 1, "V2: every rank reads every peer")              \
    X(TWO_SHOT_PULL, "two_shot_pull", 1, "V2: reduce-scatter and all-gather by reading") \
    X(TWO_SHOT_MULTICAST, "two_shot_multicast", 1, "V2: through NVLink multicast")       \
    X(TWO_SHOT_PUSH, "two_shot_push", 1, "V2: reduce-scatter and all-gather by writing") \
    X(DRY, "dry", 1, "v1 in graph warm-up: a dummy tensor, nothing is communicated")     \
    X(MULTIMEM, "multimem", 1, "torch symmetric memory through NVLink multicast")        \
    X(TORCH_TWO_SHOT, "torch_two_shot", 1, "torch symmetric memory, two-shot")           \
    X(AITER, "aiter", 0, "AMD's own library decides")                                    \
    X(LIMIT, "limit", 0, "ours, no release picks it: the flag travels in the data")

#endif
