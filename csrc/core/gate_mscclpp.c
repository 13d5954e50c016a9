/* MSCCL++. Called by route.c.
 * Generations (release column `mscclpp`): 0 none;
 *   1 v0.4.7 - v0.5.13.post1: kernels in sgl_kernel, up to SGLANG_MSCCLPP_MAX_BYTES, a new tensor
 *   2 v0.5.14 - v0.5.20: the mscclpp packages, algorithms tuned at start for powers of two to 8 MiB, in place
 *   3 v0.5.21 and later: rewritten; more world sizes, NVLink domains instead of nodes, and a constructor that knows its failure
 * Invariant: graph_capture() alone switches it on. In generations 1 and 2 it does so even where the constructor returned early:
 * then the predicate reads attributes that are not there, and raises. */
#include "gate.h"

#define TUNED_MAX (8 * 1024 * SP_KIB)

/* How a constructor ended. Names as in the stops that explain it. */
typedef struct built {
    uint64_t stops;   /* of the constructor */
    bool half;        /* returned early, and yet capture enables it */
    bool available;   /* capture can enable it */
    uint64_t minimum; /* smallest size with an algorithm, bytes */
    uint64_t maximum; /* largest */
} built;

static uint64_t floor_power(uint64_t value) {
    uint64_t power = 1;
    while (power <= value / 2) power *= 2;
    return power;
}

static built build_first(const sp_facts *f) {
    built b = {.maximum = f->mscclpp_max_bytes > 0 ? (uint64_t)f->mscclpp_max_bytes : 0, .available = true};
    if (f->device != SP_DEVICE_CUDA) b.stops |= SP_STOP(DEVICE);
    if (!f->has_custom_ops) b.stops |= SP_STOP(LIBRARY);
    if (f->world_size != 8 && f->world_size != 16) b.stops |= SP_STOP(WORLD_SIZE);
    if (!f->consecutive) b.stops |= SP_STOP(RANKS);
    b.half = b.stops != 0;
    return b;
}

static built build_second(const sp_facts *f) {
    built b = {.maximum = TUNED_MAX, .available = f->has_mscclpp};
    if (f->world_size != 8 && f->world_size != 16 && f->world_size != 32) b.stops |= SP_STOP(WORLD_SIZE);
    if (!f->consecutive) b.stops |= SP_STOP(RANKS);
    b.half = b.stops != 0 && f->has_mscclpp;
    if (!f->has_mscclpp) b.stops |= SP_STOP(LIBRARY);
    if (f->world_size == 16 || f->world_size == 32) {
        b.minimum = 513; /* 512 bytes and less ask for an entry that is not tuned */
        /* Any other count is built with nothing in its table. */
        if (f->nodes != 2 && f->nodes != 4) b.stops |= SP_STOP(NODES);
    }
    return b;
}

static built build_third(const sp_facts *f) {
    int64_t world = f->world_size, domains = f->fabric_clique ? 1 : f->nodes;
    built b = {0};
    if (world != 4 && world != 8 && world != 16 && world != 32 && world != 64) b.stops |= SP_STOP(WORLD_SIZE);
    if (!f->consecutive) b.stops |= SP_STOP(RANKS);
    if (!f->has_mscclpp) b.stops |= SP_STOP(LIBRARY);
    if (domains == 1) {
        if (world == 64) b.stops |= SP_STOP(WORLD_SIZE);
        b.minimum = 1;
        b.maximum = TUNED_MAX;
    } else {
        if (domains != 2 && domains != 4 && domains != 8) b.stops |= SP_STOP(NODES);
        b.minimum = SP_KIB;
        b.maximum = (uint64_t)domains * 1024 * SP_KIB;
    }
    b.available = b.stops == 0;
    return b;
}

static uint64_t stops_call(const sp_case *c, const built *b) {
    const sp_call *t = c->call;
    const uint32_t piecewise = SP_CTX(PIECEWISE) | SP_CTX(COMPILE_WARMUP) | SP_CTX(PIECEWISE_STREAM);
    uint64_t stops = 0;
    if (t->dtype != SP_DTYPE_FP32 && t->dtype != SP_DTYPE_FP16 && t->dtype != SP_DTYPE_BF16) stops |= SP_STOP(DTYPE);
    if (!t->weak_contiguous) stops |= SP_STOP(LAYOUT);
    if (!sp_fits(c, b->maximum)) stops |= SP_STOP(TOO_LARGE);
    if (b->minimum > 1 && sp_below(c, b->minimum)) stops |= SP_STOP(TOO_SMALL);
    if (c->release->mscclpp >= 2 && c->context & piecewise) stops |= SP_STOP(PIECEWISE);
    return stops;
}

void sp_gate_mscclpp(const sp_case *c, sp_answer *answer) {
    const sp_facts *f = c->facts;
    int generation = c->release->mscclpp;
    if (!generation) {
        answer->stops = SP_STOP(RELEASE);
        return;
    }
    built b = generation == 1 ? build_first(f) : generation == 2 ? build_second(f) : build_third(f);
    bool switched_on = c->on & SP_GATE_BIT(MSCCLPP) || (c->context & SP_CTX(IN_CAPTURE) && f->captured);
    answer->stops = b.stops | stops_call(c, &b);
    answer->limit = b.maximum;
    answer->backend = SP_BACKEND_MSCCLPP;
    answer->returns_new = generation == 1;
    answer->assumed = generation > 1; /* what the tuning at start found is not in the package */
    if (!f->own_mscclpp) answer->stops |= SP_STOP(NOT_OWNED);
    if (!switched_on) answer->stops |= SP_STOP(CONTEXT);
    if (!f->own_mscclpp || f->world_size == 1) {
        answer->state = SP_STATE_ABSENT;
    } else if (!switched_on || !b.available) {
        answer->state = SP_STATE_DISABLED;
    } else if (b.half) {
        answer->stops |= SP_STOP(HALF_BUILT);
        answer->state = SP_STATE_RAISES_HERE;
        answer->exception = SP_EXC_ATTRIBUTE_ERROR;
    } else if (answer->stops) {
        answer->state = SP_STATE_DECLINES;
    } else {
        answer->state = SP_STATE_ACCEPTS;
        /* Its sizes are tuned to the last power of two; the predicate lets the rest of a crooked maximum pass. */
        if (generation == 1 && !sp_fits(c, floor_power(b.maximum))) answer->exception = SP_EXC_INDEX_ERROR;
    }
}
