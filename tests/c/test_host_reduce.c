/* The sums of csrc/host against arithmetic that knows nothing of bits: every bf16 and fp16 value, and the nearest one to each
 * sum. */
#include <math.h>

#include "harness.h"
#include "host/comm.h"

typedef struct format {
    uint8_t dtype;
    int mantissa, exponent_least; /* bits; of the smallest normal number */
} format;

static const format formats[] = {{SP_DTYPE_BF16, 7, -126}, {SP_DTYPE_FP16, 10, -14}};

static uint16_t infinity_of(const format *f) { return f->dtype == SP_DTYPE_BF16 ? 0x7f80 : 0x7c00; }

/* By definition: an integer times a power of two. */
static double value_of(const format *f, uint16_t bits) {
    uint16_t rest = bits & 0x7fff;
    int exponent = rest >> f->mantissa, fraction = rest & ((1 << f->mantissa) - 1);
    double value = exponent ? ldexp((1 << f->mantissa) + fraction, exponent - 1 + f->exponent_least - f->mantissa)
                            : ldexp(fraction, f->exponent_least - f->mantissa);
    return bits & 0x8000 ? -value : value;
}

/* The nearest value, of two the even one; past the largest, infinity stands where the next value would. */
static uint16_t nearest(const format *f, double value) {
    double size = fabs(value);
    uint16_t low = 0, high = infinity_of(f);
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (value_of(f, middle) <= size)
            low = middle;
        else
            high = middle;
    }
    double below = size - value_of(f, low), above = value_of(f, high) - size;
    uint16_t bits = above < below || (above == below && (high & 1) == 0) ? high : low;
    return (uint16_t)(bits | (signbit(value) ? 0x8000 : 0));
}

static bool is_nan(const format *f, uint16_t bits) { return (bits & 0x7fff) > infinity_of(f); }

static void every_half_survives_being_widened_and_rounded(void) {
    static uint16_t in[65536], out[65536];
    for (int i = 0; i < 65536; i++) in[i] = (uint16_t)i;
    for (size_t k = 0; k < 2; k++) {
        const format *f = &formats[k];
        const void *sources[] = {in};
        memset(out, 0xa5, sizeof out);
        sp_host_sum(f->dtype, out, sources, 1, 65536);
        for (int i = 0; i < 65536; i++)
            CHECK_FOR(is_nan(f, in[i]) ? is_nan(f, out[i]) : out[i] == in[i], "%x of dtype %d: %x", (unsigned)i, f->dtype,
                      out[i]);
    }
}

/* A half of any exponent, or one that makes ties and overflows likely. */
static uint16_t some_half(const format *f, uint64_t *state) {
    uint64_t random = sp_random(state);
    uint16_t bits = (uint16_t)random;
    if (random >> 62 == 0) bits = (uint16_t)((bits & 0x8000) | (infinity_of(f) - 1 - (bits & 15)));
    if (random >> 62 == 1) bits &= 0x83ff;
    return (bits & 0x7fff) >= infinity_of(f) ? (uint16_t)(bits & 0x8000) : bits;
}

static void a_sum_of_halves_is_the_nearest_half_ties_to_even(void) {
    enum { COUNT = 100003 };
    static uint16_t a[COUNT], b[COUNT], out[COUNT];
    uint64_t state = 20;
    for (size_t k = 0; k < 2; k++) {
        const format *f = &formats[k];
        const void *sources[] = {a, b};
        for (int i = 0; i < COUNT; i++) {
            a[i] = some_half(f, &state);
            b[i] = i % 3 ? some_half(f, &state) : (uint16_t)(a[i] ^ (sp_random(&state) & 0x3ff));
            if (is_nan(f, b[i]) || (b[i] & 0x7fff) == infinity_of(f)) b[i] = 0;
        }
        sp_host_sum(f->dtype, out, sources, 2, COUNT);
        for (int i = 0; i < COUNT; i++) {
            /* The float between is rounded too: bf16's exponents are further apart than a float's 24 bits. */
            double sum = (double)(float)(value_of(f, a[i]) + value_of(f, b[i]));
            uint16_t expected = isinf(sum) ? (uint16_t)(infinity_of(f) | (sum < 0 ? 0x8000 : 0)) : nearest(f, sum);
            CHECK_FOR(out[i] == expected, "%x + %x of dtype %d: %x, not %x", a[i], b[i], f->dtype, out[i], expected);
        }
    }
}

static void infinities_and_nans_come_through(void) {
    for (size_t k = 0; k < 2; k++) {
        const format *f = &formats[k];
        uint16_t infinity = infinity_of(f), minus = infinity | 0x8000, nan = infinity | 1, one = nearest(f, 1), out;
        const struct {
            uint16_t a, b;
            int nan;
        } cases[] = {{infinity, one, 0}, {infinity, minus, 1}, {nan, one, 1}, {one, nan, 1}, {infinity, infinity, 0}};
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            sp_host_sum(f->dtype, &out, (const void *[]){&cases[i].a, &cases[i].b}, 2, 1);
            CHECK_FOR(cases[i].nan ? is_nan(f, out) : out == infinity, "case %zu of dtype %d: %x", i, f->dtype, out);
        }
    }
}

static void many_sources_are_added_in_their_order_and_rounded_once(void) {
    float big = 16777216, one = 1, out;
    const void *sources[] = {&big, &one, &one}, *other[] = {&one, &one, &big};
    sp_host_sum(SP_DTYPE_FP32, &out, sources, 3, 1);
    CHECK(out == 16777216);
    sp_host_sum(SP_DTYPE_FP32, &out, other, 3, 1);
    CHECK(out == 16777218);
    uint16_t half = nearest(&formats[0], 1), tiny = nearest(&formats[0], 1.0 / 256), sum;
    sp_host_sum(SP_DTYPE_BF16, &sum, (const void *[]){&half, &tiny, &tiny}, 3, 1);
    CHECK(value_of(&formats[0], sum) == 1 + 2.0 / 256); /* rounded after each, 1 would have stayed 1 */
}

static void integers_wrap_and_any_address_will_do(void) {
    uint8_t bytes[2][41], out[41];
    for (int i = 0; i < 41; i++) bytes[0][i] = (uint8_t)(i * 7), bytes[1][i] = (uint8_t)(200 + i);
    sp_host_sum(SP_DTYPE_INT8, out + 1, (const void *[]){bytes[0] + 1, bytes[1] + 1}, 2, 40);
    for (int i = 1; i < 41; i++) CHECK(out[i] == (uint8_t)(bytes[0][i] + bytes[1][i]));
    sp_host_sum(SP_DTYPE_INT64, out + 1, (const void *[]){bytes[0] + 1, bytes[1] + 1}, 2, 5);
    for (size_t i = 0; i < 5; i++) {
        int64_t a, b, c;
        memcpy(&a, bytes[0] + 1 + 8 * i, 8);
        memcpy(&b, bytes[1] + 1 + 8 * i, 8);
        memcpy(&c, out + 1 + 8 * i, 8);
        CHECK((uint64_t)c == (uint64_t)a + (uint64_t)b);
    }
    int32_t most = INT32_MAX, one = 1, sum = 0;
    sp_host_sum(SP_DTYPE_INT32, &sum, (const void *[]){&most, &one}, 2, 1);
    CHECK(sum == INT32_MIN);
    CHECK(!sp_host_sums(SP_DTYPE_FP8) && !sp_host_sums(SP_DTYPE_COUNT) && sp_host_sums(SP_DTYPE_FP16));
}

SP_TESTS(T(every_half_survives_being_widened_and_rounded), T(a_sum_of_halves_is_the_nearest_half_ties_to_even),
         T(infinities_and_nans_come_through), T(many_sources_are_added_in_their_order_and_rounded_once),
         T(integers_wrap_and_any_address_will_do))
