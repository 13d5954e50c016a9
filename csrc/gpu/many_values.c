/* Inputs for many.c, in bf16, fp16 and fp32, and the float64 sums that outputs are held against.
 * Invariant: the reference sums the values that the dtype holds, not those that were drawn; a NaN is never right. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "many_parts.h"

/* ---- dtypes ---- */

static uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Rounds to nearest, ties to even. Values drawn here are finite. */
static uint16_t to_bf16(float f) {
    const uint32_t bits = bits_of(f);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t x) { return float_of((uint32_t)x << 16); }

static uint16_t to_fp16(float f) {
    const uint16_t sign = (uint16_t)(bits_of(f) >> 16 & 0x8000);
    const float size = fabsf(f);
    /* Subnormal, in steps of 2^-24: added to 2^23, a float has no room for less than a step. */
    if (size < 0x1p-14f) return (uint16_t)(sign | (bits_of(size * 0x1p24f + 0x1p23f) & 0x7ff));
    const uint32_t bits = bits_of(size), rounded = bits + 0xfff + (bits >> 13 & 1);
    return (uint16_t)(sign | (uint16_t)((rounded - (112U << 23)) >> 13));
}

static float from_fp16(uint16_t x) {
    const uint32_t exponent = x >> 10 & 31, fraction = x & 1023, sign = (uint32_t)(x & 0x8000) << 16;
    if (exponent == 0) return (sign ? -1.0F : 1.0F) * (float)fraction * 0x1p-24f;
    if (exponent == 31) return float_of(sign | 0x7f800000 | fraction << 13);
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

static void put(uint8_t dtype, void *data, uint64_t i, float f) {
    if (dtype == SP_DTYPE_FP32)
        ((float *)data)[i] = f;
    else
        ((uint16_t *)data)[i] = dtype == SP_DTYPE_BF16 ? to_bf16(f) : to_fp16(f);
}

static double get(uint8_t dtype, const void *data, uint64_t i) {
    if (dtype == SP_DTYPE_FP32) return ((const float *)data)[i];
    const uint16_t x = ((const uint16_t *)data)[i];
    return dtype == SP_DTYPE_BF16 ? from_bf16(x) : from_fp16(x);
}

/* ---- values ---- */

sp_status sp_many_values_open(sp_many_values *v, int world, uint8_t dtype, uint64_t count) {
    *v = (sp_many_values){.dtype = dtype, .world = world, .count = count};
    bool ok = true;
    v->input = calloc((size_t)world, sizeof *v->input);
    v->sum = calloc(count, sizeof *v->sum);
    v->bound = calloc(count, sizeof *v->bound);
    for (int r = 0; r < world && v->input; r++) {
        v->input[r] = calloc(count, (size_t)sp_dtype_bytes[dtype]);
        ok &= v->input[r] != NULL;
    }
    if (ok && v->input && v->sum && v->bound) return SP_OK;
    sp_many_values_close(v);
    return sp_fail(SP_NOMEM, "no memory for the inputs of %d ranks, %llu elements each", world, (unsigned long long)count);
}

void sp_many_values_close(sp_many_values *v) {
    for (int r = 0; r < v->world && v->input; r++) free(v->input[r]);
    free(v->input);
    free(v->sum);
    free(v->bound);
    memset(v, 0, sizeof *v);
}

static uint64_t next_random(uint64_t *state) { /* splitmix64 */
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

void sp_many_values_draw(sp_many_values *v, uint64_t seed, bool exact) {
    /* Half a step of the dtype at the sum, and a step of float for each addition. */
    const double step = v->dtype == SP_DTYPE_BF16 ? 0x1p-8 : v->dtype == SP_DTYPE_FP16 ? 0x1p-11 : 0x1p-24;
    const double least = v->dtype == SP_DTYPE_FP16 ? 0x1p-25 : 0;
    uint64_t state = seed;
    for (uint64_t i = 0; i < v->count; i++) {
        double sum = 0, sizes = 0;
        for (int r = 0; r < v->world; r++) {
            const uint64_t x = next_random(&state);
            const float f = exact ? (float)(int)(x % 17) - 8 : (float)(x >> 40) * 0x1p-23f - 1;
            put(v->dtype, v->input[r], i, f);
            const double held = get(v->dtype, v->input[r], i);
            sum += held;
            sizes += fabs(held);
        }
        v->sum[i] = sum;
        v->bound[i] = exact ? 0 : fabs(sum) * step * 1.001 + least + sizes * v->world * 0x1p-23;
    }
}

uint64_t sp_many_values_wrong(const sp_many_values *v, const void *output, double *max_error) {
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < v->count; i++) {
        const double error = fabs(get(v->dtype, output, i) - v->sum[i]);
        wrong += !(error <= v->bound[i]);
        if (!(error <= *max_error)) *max_error = error;
    }
    return wrong;
}
