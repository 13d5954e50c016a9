/* Values that ranks reduce in the tests of csrc/host's paths, and what must come out: written and read without csrc/host's own
 * sums. Used by test_host_paths.c and test_host_faults.c.
 * Invariant: what rank r puts at i is known to every rank. */
#ifndef SP_HOST_VALUES_H
#define SP_HOST_VALUES_H

#include "host_ranks.h"

typedef struct path_case {
    uint8_t path, kernel;
    bool rank_order; /* sums in rank order and rounds once: all of these have the same bits */
} path_case;

#define CUSTOM(kernel) \
    { SP_PATH_CUSTOM, SP_KERNEL_##kernel, true }
static const path_case path_cases[] = {
    CUSTOM(UNKNOWN),
    CUSTOM(ONE_SHOT),
    CUSTOM(TWO_SHOT),
    CUSTOM(ONE_SHOT_PUSH),
    CUSTOM(ONE_SHOT_PULL),
    CUSTOM(TWO_SHOT_PULL),
    CUSTOM(TWO_SHOT_PUSH),
    CUSTOM(TWO_SHOT_MULTICAST),
    CUSTOM(LIMIT),
    {SP_PATH_QUICK, SP_KERNEL_UNKNOWN, true},
    {SP_PATH_MSCCLPP, SP_KERNEL_UNKNOWN, true},
    {SP_PATH_TORCH_SYMM_MEM, SP_KERNEL_MULTIMEM, true},
    {SP_PATH_TORCH_SYMM_MEM, SP_KERNEL_TORCH_TWO_SHOT, true},
    {SP_PATH_FLASHINFER, SP_KERNEL_UNKNOWN, true},
    {SP_PATH_CPU_SHM, SP_KERNEL_UNKNOWN, true},
    {SP_PATH_PCIE_IPC, SP_KERNEL_UNKNOWN, true},
    {SP_PATH_PYNCCL_IN_PLACE, SP_KERNEL_UNKNOWN, false},
    {SP_PATH_PYNCCL_OUT_OF_PLACE, SP_KERNEL_UNKNOWN, false},
    {SP_PATH_TORCH_DISTRIBUTED, SP_KERNEL_UNKNOWN, false},
};
enum { PATH_CASES = sizeof path_cases / sizeof *path_cases };
#undef CUSTOM

static inline uint64_t mix(uint64_t salt, int rank, size_t i) {
    uint64_t state = (salt + 1) * UINT64_C(0x9e3779b97f4a7c15) + (uint64_t)rank * UINT64_C(0xbf58476d1ce4e5b9) + i + 1;
    return sp_random(&state) >> 11;
}

/* Small enough for bf16 to hold the sum over all ranks. */
static inline int integer_of(uint64_t salt, int rank, size_t i) { return (int)(mix(salt, rank, i) % 17) - 8; }

/* A value with eight bits, in (-2, 2): each half has it exactly. */
static inline double fraction_of(uint64_t salt, int rank, size_t i) { return ((int)(mix(salt, rank, i) % 511) - 255) / 128.0; }

/* Every value that is put is a half's own, so that truncation is exact. */
static inline void put_value(uint8_t dtype, void *data, size_t i, double value) {
    uint32_t bits;
    float single = (float)value;
    memcpy(&bits, &single, 4);
    switch (dtype) {
    case SP_DTYPE_BF16: ((uint16_t *)data)[i] = (uint16_t)(bits >> 16); break;
    case SP_DTYPE_FP16:
        ((uint16_t *)data)[i] = (uint16_t)(bits >> 16 & 0x8000);
        if (value != 0) ((uint16_t *)data)[i] |= (uint16_t)(((bits & 0x7fffffff) >> 13) - (112 << 10));
        break;
    case SP_DTYPE_FP32: ((float *)data)[i] = single; break;
    case SP_DTYPE_FP64: ((double *)data)[i] = value; break;
    case SP_DTYPE_INT8: ((int8_t *)data)[i] = (int8_t)value; break;
    case SP_DTYPE_INT32: ((int32_t *)data)[i] = (int32_t)value; break;
    default: ((int64_t *)data)[i] = (int64_t)value; break;
    }
}

static inline double get_value(uint8_t dtype, const void *data, size_t i) {
    uint32_t bits;
    float single;
    switch (dtype) {
    case SP_DTYPE_BF16:
        bits = (uint32_t)((const uint16_t *)data)[i] << 16;
        memcpy(&single, &bits, 4);
        return single;
    case SP_DTYPE_FP16: /* no test sums to an infinity or a subnormal */
        bits = ((const uint16_t *)data)[i];
        if (!(bits & 0x7fff)) return 0;
        bits = (bits & 0x8000) << 16 | ((bits & 0x7fff) + (112 << 10)) << 13;
        memcpy(&single, &bits, 4);
        return single;
    case SP_DTYPE_FP32: return ((const float *)data)[i];
    case SP_DTYPE_FP64: return ((const double *)data)[i];
    case SP_DTYPE_INT8: return ((const int8_t *)data)[i];
    case SP_DTYPE_INT32: return ((const int32_t *)data)[i];
    default: return (double)((const int64_t *)data)[i];
    }
}

static inline sp_work work_of(const path_case *which, uint8_t dtype, const void *in, void *out, size_t count) {
    return (sp_work){.in = in,
                     .out = out,
                     .count = count,
                     .nbytes = count * (size_t)sp_dtype_bytes[dtype],
                     .path = which->path,
                     .kernel = which->kernel,
                     .dtype = dtype,
                     .deadline = sp_deadline_in(60)};
}

static inline sp_status enqueue(sp_comm *comm, const sp_work *work) {
    return sp_host_seam.paths[work->path]->enqueue(comm, work);
}

#endif
