/* Sums of elements on the CPU, one loop a dtype. Called by every kernel of the host.
 * bf16 and fp16 are widened to float, added in the order of the sources, and rounded once, to nearest even, at the end; integers
 * wrap.
 * Invariant: the sum of an element depends on the sources' values and order alone, so that whoever computes it gets the
 * same bits. */
#include <string.h>

#include "comm.h"

enum { BLOCK = 512 }; /* elements that are widened at a time: they stay in the first cache */

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float from_bf16(uint16_t half) { return float_of((uint32_t)half << 16); }

static uint16_t to_bf16(float value) {
    uint32_t bits = bits_of(value);
    uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    bool is_nan = (bits & 0x7fffffff) > 0x7f800000; /* rounding could carry one to infinity */
    return (uint16_t)((is_nan ? bits | 0x400000 : rounded) >> 16);
}

/* Both sides are computed: a choice between floats would keep the loops below from being vectorised. */
static uint32_t pick(bool choice, uint32_t yes, uint32_t no) {
    uint32_t mask = 0U - (uint32_t)choice;
    return (yes & mask) | (no & ~mask);
}

/* No float below is subnormal: a process that flushes those to zero (torch can) still gets fp16's own. */
static float from_fp16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff, wide = rest << 13;
    uint32_t normal = wide + (112U << 23);                                          /* exponents start at -14, floats' at -126 */
    uint32_t small = bits_of(float_of(wide + (113U << 23)) - float_of(113U << 23)); /* 1.m less 1, at 2^-14 */
    uint32_t huge = wide + (224U << 23);                                            /* infinity stays it, a NaN keeps its bits */
    return float_of(sign | pick(rest >= 0x7c00, huge, pick(rest < 0x400, small, normal)));
}

static uint16_t to_fp16(float value) {
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    uint32_t normal = (rest - (112U << 23) + 0xfff + (rest >> 13 & 1)) >>
                      13;                                            /* a carry into the exponent is right, into infinity too */
    uint32_t small = bits_of(float_of(rest) + 0.5F) - bits_of(0.5F); /* the addition rounds at 2^-24, fp16's last place */
    uint32_t huge = rest > 0x7f800000 ? 0x7e00 : 0x7c00;
    return (uint16_t)(sign | pick(rest >= 0x47800000, huge, pick(rest < 0x38800000, small, normal)));
}

/* Sources may lie at any address: copies of a known size are loads. */
#define LOAD(type, from, i, value) \
    type value;                    \
    memcpy(&(value), (const uint8_t *)(from) + (i) * sizeof(type), sizeof(type))

#define SUM_HALVES(name, widen, narrow)                                                       \
    static void name(void *dst, const void *const *sources, int count, size_t elements) {     \
        float sum[BLOCK];                                                                     \
        for (size_t at = 0; at < elements; at += BLOCK) {                                     \
            size_t n = elements - at < BLOCK ? elements - at : BLOCK;                         \
            for (size_t i = 0; i < n; i++) {                                                  \
                LOAD(uint16_t, sources[0], at + i, first);                                    \
                sum[i] = widen(first);                                                        \
            }                                                                                 \
            for (int s = 1; s < count; s++)                                                   \
                for (size_t i = 0; i < n; i++) {                                              \
                    LOAD(uint16_t, sources[s], at + i, next);                                 \
                    sum[i] += widen(next);                                                    \
                }                                                                             \
            for (size_t i = 0; i < n; i++) {                                                  \
                uint16_t rounded = narrow(sum[i]);                                            \
                memcpy((uint8_t *)dst + (at + i) * sizeof rounded, &rounded, sizeof rounded); \
            }                                                                                 \
        }                                                                                     \
    }

#define SUM_PLAIN(name, type)                                                               \
    static void name(void *dst, const void *const *sources, int count, size_t elements) {   \
        type sum[BLOCK];                                                                    \
        for (size_t at = 0; at < elements; at += BLOCK) {                                   \
            size_t n = elements - at < BLOCK ? elements - at : BLOCK;                       \
            memcpy(sum, (const uint8_t *)sources[0] + at * sizeof(type), n * sizeof(type)); \
            for (int s = 1; s < count; s++)                                                 \
                for (size_t i = 0; i < n; i++) {                                            \
                    LOAD(type, sources[s], at + i, next);                                   \
                    sum[i] = (type)(sum[i] + next);                                         \
                }                                                                           \
            memcpy((uint8_t *)dst + at * sizeof(type), sum, n * sizeof(type));              \
        }                                                                                   \
    }

SUM_HALVES(sum_bf16, from_bf16, to_bf16)
SUM_HALVES(sum_fp16, from_fp16, to_fp16)
SUM_PLAIN(sum_fp32, float)
SUM_PLAIN(sum_fp64, double)
SUM_PLAIN(sum_int8, uint8_t) /* unsigned: they wrap, as NCCL's do */
SUM_PLAIN(sum_int32, uint32_t)
SUM_PLAIN(sum_int64, uint64_t)

typedef void sum_function(void *dst, const void *const *sources, int count, size_t elements);

static sum_function *const sums[SP_DTYPE_COUNT] = {
    [SP_DTYPE_BF16] = sum_bf16, [SP_DTYPE_FP16] = sum_fp16,   [SP_DTYPE_FP32] = sum_fp32,   [SP_DTYPE_FP64] = sum_fp64,
    [SP_DTYPE_INT8] = sum_int8, [SP_DTYPE_INT32] = sum_int32, [SP_DTYPE_INT64] = sum_int64,
};

bool sp_host_sums(uint8_t dtype) { return dtype < SP_DTYPE_COUNT && sums[dtype]; }

void sp_host_sum(uint8_t dtype, void *dst, const void *const *sources, int count, size_t elements) {
    if (elements) sums[dtype](dst, sources, count, elements);
}
