/* Releases: which era and which generation of each communicator a version of SGLang has. Called by route.c, the gates, the binding.
 * Invariant: one line a release in releases.c; a column names a generation, never a number that a gate would compare. */
#ifndef SP_RELEASE_H
#define SP_RELEASE_H

#include "names.h"

/* X(ENUM, name): whose code runs. */
#define SP_BACKENDS(X)                  \
    X(NOBODY, "")                       \
    X(V1, "v1")                         \
    X(V1_TRT, "v1-trt")                 \
    X(V1_VLLM, "v1-vllm")               \
    X(V2, "V2")                         \
    X(AITER, "aiter")                   \
    X(QUICK_REDUCE, "quick_reduce")     \
    X(MSCCLPP, "mscclpp")               \
    X(TORCH_SYMM_MEM, "torch_symm_mem") \
    X(FLASHINFER, "flashinfer")         \
    X(NCCL, "nccl")                     \
    X(TORCH, "torch")                   \
    X(SGL_KERNEL, "sgl_kernel")         \
    X(IPEX, "ipex")

typedef enum sp_backend {
#define X(id, name) SP_BACKEND_##id,
    SP_BACKENDS(X)
#undef X
        SP_BACKEND_COUNT
} sp_backend;

typedef struct sp_release {
    const char *name;    /* "0.5.9", or a commit */
    const char *ruleset; /* "E10" */
    uint8_t v1;          /* generation of custom all-reduce v1 and its choice of class, see gate_custom.c */
    uint8_t v2;          /* generation of V2's thresholds; 0 none */
    uint8_t quick;       /* 0 none */
    uint8_t mscclpp;     /* 0 none */
    uint8_t symm;        /* torch symmetric memory; 0 none */
    uint8_t flashinfer;  /* all-reduce only; 0 none */
    uint8_t pcie;        /* FlashInfer PCIe-IPC; 0 none */
    uint8_t cpu;         /* 1 ipex, 2 to 4 shared memory, see gate_cpu.c */
} sp_release;

extern const sp_release sp_releases[];
extern const size_t sp_release_count;

const sp_release *sp_release_find(const char *name);

#endif
