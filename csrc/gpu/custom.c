/* Custom all-reduce on GPUs: what each kernel takes, refuses and is launched with. See custom.h; custom_open.c makes the memory.
 * Called by comm.c and many.c.
 * Invariant: nothing here waits; what a kernel reads on a peer is either the staging buffer or an address that was registered. */
#include <assert.h>
#include <cuda_runtime_api.h>

#include "custom_parts.h"

_Static_assert((int)SP_TRACE_ENTER == (int)SP_STAMP_ENTER && (int)SP_TRACE_MET == (int)SP_STAMP_MET &&
                   (int)SP_TRACE_LEFT == (int)SP_STAMP_LEFT,
               "kernels stamp as the seam says");
enum { V1_BLOCKS = 36, V1_THREADS = 512, PULL_BLOCKS = 64, COPY_THREADS = 128 };
static const uint64_t copy_kernel_bytes = UINT64_C(8) << 20; /* V2 copies more by the runtime */
static const uint64_t limit_flag_bytes = UINT64_C(64) << 10; /* limit: by flag up to here, by mark above */
static const int64_t limit_max_ns = INT64_C(3600) * 1000000000;

typedef enum family { NONE, V1, V2, FLAG, MARK } family;
typedef enum shape_rule { AS_V1, AS_PUSH, AS_PUSH_TWO, AS_PULL, AS_PULL_TWO, AS_FITS } shape_rule;

typedef struct plan {
    const char *name;
    uint8_t body;   /* sp_kernel_body */
    uint8_t family; /* who launches it, and so how much its buffers hold */
    uint8_t rule;   /* shape_rule */
    bool pulls;     /* peers read this rank's input: staged, or registered */
    bool in_place;  /* sums land where the input lay */
    bool overlap;
} plan;

static const plan plans[SP_KERNEL_COUNT] = {
    [SP_KERNEL_ONE_SHOT] = {"one_shot", SP_BODY_ONE_SHOT, V1, AS_V1, true},
    [SP_KERNEL_TWO_SHOT] = {"two_shot", SP_BODY_TWO_SHOT, V1, AS_V1, true},
    [SP_KERNEL_ONE_SHOT_PUSH] = {"one_shot_push", SP_BODY_PUSH, V2, AS_PUSH, false, false, true},
    [SP_KERNEL_TWO_SHOT_PUSH] = {"two_shot_push", SP_BODY_PUSH_TWO, V2, AS_PUSH_TWO, false, false, true},
    [SP_KERNEL_ONE_SHOT_PULL] = {"one_shot_pull", SP_BODY_PULL, V2, AS_PULL, true, false, true},
    [SP_KERNEL_TWO_SHOT_PULL] = {"two_shot_pull", SP_BODY_PULL_TWO, V2, AS_PULL_TWO, true, true, true},
    [SP_KERNEL_LIMIT] = {"limit", SP_BODY_MARK, MARK, AS_FITS, false, false, true},
};
static const plan rungs[RUNG_COUNT] = {
    [RUNG_PLAIN] = {"plain", SP_BODY_PLAIN, V1, AS_V1, true},
    [RUNG_RELAXED] = {"relaxed", SP_BODY_ONE_SHOT, V1, AS_V1, true},
    [RUNG_PUSH] = {"push", SP_BODY_PUSH, V2, AS_PUSH, false, false, true},
    [RUNG_MARK] = {"mark", SP_BODY_MARK, MARK, AS_FITS, false, false, true},
    [RUNG_FLAG] = {"flag", SP_BODY_FLAG, FLAG, AS_FITS, false, false, true},
};

const char *sp_custom_name(unsigned kernel) {
    if (kernel < SP_KERNEL_COUNT && plans[kernel].name) return plans[kernel].name;
    return kernel >= SP_KERNEL_RUNG && kernel < SP_KERNEL_RUNG + RUNG_COUNT ? rungs[kernel - SP_KERNEL_RUNG].name : "ping_pong";
}

/* v1 without SGLang's gate: one shot where the bytes are few for that many ranks. */
static unsigned v1_choice(const sp_custom *c, uint64_t nbytes) {
    const uint64_t few = c->world.size <= 4 ? 524288 : 262144;
    return c->world.size == 2 || nbytes < few ? SP_KERNEL_ONE_SHOT : SP_KERNEL_TWO_SHOT;
}

static const plan *find_plan(const sp_custom *c, const sp_work *work) {
    unsigned kernel = work->kernel == SP_KERNEL_UNKNOWN ? v1_choice(c, work->nbytes) : work->kernel;
    if (kernel == SP_KERNEL_LIMIT && work->nbytes <= limit_flag_bytes) kernel = SP_KERNEL_RUNG + RUNG_FLAG;
    if (kernel < SP_KERNEL_COUNT) return plans[kernel].family ? &plans[kernel] : NULL;
    kernel -= SP_KERNEL_RUNG;
    return kernel < RUNG_COUNT ? &rungs[kernel] : NULL;
}

/* V2 before v0.5.16 had other kernels of the same names. */
static int body_of(const sp_custom *c, const plan *plan) {
    if (c->tuning.style != SP_CUSTOM_V0510) return plan->body;
    switch (plan->body) {
    case SP_BODY_PUSH: return SP_BODY_PUSH_FIRST;
    case SP_BODY_PULL: return SP_BODY_PULL_FIRST;
    case SP_BODY_PULL_TWO: return SP_BODY_PULL_TWO_FIRST;
    default: return plan->body;
    }
}

static uint64_t ceiling(const sp_custom *c, const plan *plan) {
    return plan->family == V1 ? c->v1_bytes : plan->family == FLAG ? c->flag_bytes : c->v2_bytes;
}

static bool registered(const plan *plan, const sp_work *work) { return plan->pulls && (work->flags & SP_WORK_REGISTERED); }

static sp_status refuse(const sp_custom *c, const sp_work *work, const plan *plan) {
    if (work->kernel == SP_KERNEL_TWO_SHOT_MULTICAST)
        return sp_fail(SP_UNAVAILABLE,
                       "custom two_shot_multicast: routed but not run here: NVLink multicast is not used by this build");
    if (!plan) return sp_fail(SP_UNAVAILABLE, "custom: kernel %u is none of its own", work->kernel);
    if (!sp_kernel_has(body_of(c, plan), work->dtype, c->world.size)) {
        if (work->dtype > SP_DTYPE_FP32)
            return sp_fail(SP_UNAVAILABLE, "custom %s: dtype %u: only bf16, fp16 and fp32 are summed", plan->name, work->dtype);
        return sp_fail(SP_UNAVAILABLE, "custom %s: no kernel for %d ranks (v1: 2, 4, 6 or 8)", plan->name, c->world.size);
    }
    if (!work->nbytes || work->nbytes % SP_KERNEL_VECTOR)
        return sp_fail(SP_UNAVAILABLE, "custom %s: %llu bytes: must be a multiple of 16, and not 0", plan->name,
                       (unsigned long long)work->nbytes);
    if (work->nbytes != work->count * (uint64_t)sp_dtype_bytes[work->dtype])
        return sp_fail(SP_INVALID, "custom %s: %llu elements are not %llu bytes", plan->name, (unsigned long long)work->count,
                       (unsigned long long)work->nbytes);
    if (work->nbytes > ceiling(c, plan))
        return sp_fail(SP_UNAVAILABLE, "custom %s: %llu bytes: its buffers hold %llu", plan->name,
                       (unsigned long long)work->nbytes, (unsigned long long)ceiling(c, plan));
    if (((uintptr_t)work->in | (uintptr_t)work->out) % SP_KERNEL_VECTOR)
        return sp_fail(SP_UNAVAILABLE, "custom %s: input %p and output %p must be aligned to 16 bytes", plan->name, work->in,
                       work->out);
    if (!registered(plan, work)) return SP_OK;
    if (!(work->flags & SP_WORK_CAPTURING))
        return sp_fail(SP_UNAVAILABLE, "custom %s: an input is read where it lies only in a captured call", plan->name);
    if (plan->in_place && work->in != work->out)
        return sp_fail(SP_UNAVAILABLE, "custom %s: a registered input is summed in place: the output must be the input",
                       plan->name);
    if (!plan->in_place && work->in == work->out && plan->body != SP_BODY_TWO_SHOT)
        return sp_fail(SP_UNAVAILABLE, "custom %s: peers read a registered input while the output is written: they must differ",
                       plan->name);
    return SP_OK;
}

sp_status sp_custom_supports(sp_custom *c, const sp_work *work) {
    return work->kernel == SP_KERNEL_DRY ? SP_OK : refuse(c, work, find_plan(c, work));
}

/* ---- shapes ---- */

static uint32_t up(uint64_t n, uint64_t d) {
    assert(d > 0);
    return (uint32_t)((n + d - 1) / d);
}
static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* V2: the smallest block with which one for each multiprocessor is enough. */
static uint32_t threads_for(const sp_custom *c, uint32_t vectors) {
    for (uint32_t threads = 128; threads < 1024; threads *= 2)
        if (up(vectors, threads) <= (uint32_t)c->multiprocessors) return threads;
    return 1024;
}

/* Tuned by SGLang for each architecture. */
static uint32_t pull_blocks(const sp_custom *c) {
    if (c->arch / 10 == 9) return PULL_BLOCKS;
    if (c->arch / 10 != 10 || (c->world.size == 2 && c->arch < 107)) return (uint32_t)c->multiprocessors;
    return c->arch < 107 ? 96 : least(192, (uint32_t)c->multiprocessors);
}

static sp_kernel_shape shape_of(const sp_custom *c, const plan *plan, uint64_t nbytes) {
    const uint32_t vectors = (uint32_t)(nbytes / SP_KERNEL_VECTOR), all = (uint32_t)c->multiprocessors;
    const uint32_t units = plan->body == SP_BODY_FLAG ? 2 * vectors : vectors;
    const bool first_style = c->tuning.style == SP_CUSTOM_V0510;
    sp_kernel_shape shape = {all, threads_for(c, units), plan->overlap && c->tuning.overlap && c->arch >= 90};
    switch ((shape_rule)plan->rule) {
    case AS_V1: shape = (sp_kernel_shape){least(V1_BLOCKS, up(vectors, V1_THREADS)), V1_THREADS, false}; break;
    case AS_FITS: shape.blocks = least(all, up(units, shape.threads)); break;
    case AS_PULL:
    case AS_PULL_TWO:
        shape.blocks = first_style ? least(all, up(vectors, 512)) : pull_blocks(c);
        if (plan->rule == AS_PULL_TWO) shape.threads = threads_for(c, up(vectors, (uint64_t)c->world.size));
        if (first_style) shape.threads = 512;
        break;
    case AS_PUSH:
    case AS_PUSH_TWO: break;
    }
    shape.blocks = least(shape.blocks, c->tuning.blocks_max ? c->tuning.blocks_max : SP_KERNEL_BLOCKS);
    shape.blocks = least(shape.blocks, SP_KERNEL_BLOCKS);
    const uint32_t warps = up((uint64_t)c->world.size - 1, shape.blocks); /* a warp for each peer, in all */
    if (plan->rule == AS_PUSH_TWO && shape.threads < 32 * warps) shape.threads = 32 * warps;
    return shape;
}

sp_status sp_custom_shape(sp_custom *c, const sp_work *work, uint32_t *blocks, uint32_t *threads, uint32_t *fit) {
    SP_TRY(sp_custom_supports(c, work));
    const plan *plan = find_plan(c, work);
    if (!plan) return sp_fail(SP_INVALID, "custom dry launches no kernel");
    const sp_kernel_shape shape = shape_of(c, plan, work->nbytes);
    int each = 0;
    SP_TRY(sp_custom_cuda(
        c, sp_kernel_occupancy(body_of(c, plan), work->dtype, c->world.size, work->stamp != 0, (int)shape.threads, &each),
        "cudaOccupancyMaxActiveBlocksPerMultiprocessor"));
    *blocks = shape.blocks;
    *threads = shape.threads;
    *fit = (uint32_t)(each * c->multiprocessors);
    return SP_OK;
}

/* ---- launches ---- */

static uint64_t patience(const sp_work *work) {
    const int64_t left = work->flags & SP_WORK_CAPTURING ? INT64_MAX : sp_deadline_left_ns(work->deadline);
    return left == INT64_MAX ? SP_CUSTOM_WAIT_NS : (uint64_t)(left > limit_max_ns ? limit_max_ns : left);
}

static sp_kernel_args args_of(const sp_custom *c, const plan *plan, const sp_work *work) {
    sp_kernel_args args = c->args;
    const uint32_t vectors = (uint32_t)(work->nbytes / SP_KERNEL_VECTOR), size = (uint32_t)c->world.size, rank = args.rank;
    assert(size > 0);
    const uint64_t area = plan->family == V1 ? c->scratch_at : plan->family == FLAG ? c->cells_at : c->slots_at;
    for (uint32_t r = 0; r < size; r++) args.area[r] = (uint8_t *)c->region.peer[r] + area;
    args.slot_bytes = (uint32_t)(plan->family == FLAG ? 2 * c->flag_bytes : c->v2_bytes);
    args.count = plan->family == FLAG ? 2 * vectors : vectors;
    args.spread = c->tuning.style == SP_CUSTOM_V0521 && plan->family == V2;
    args.kernel = work->kernel == SP_KERNEL_UNKNOWN ? v1_choice(c, work->nbytes) : work->kernel;
    args.in = work->in;
    args.out = work->out;
    args.limit_ns = patience(work);
    args.trace = work->stamp ? c->stamps + work->stamp : NULL;
    if (c->tuning.style == SP_CUSTOM_V0510) { /* parts of whole warps */
        const uint32_t part = up(up(vectors, size), 32) * 32;
        args.first = least(vectors, rank * part);
        args.length = least(vectors - args.first, part);
    } else {
        args.first = rank * (vectors / size) + least(rank, vectors % size);
        args.length = vectors / size + (rank < vectors % size);
    }
    return args;
}

/* Into the staging buffer, and out of it. *by_kernel: the launch after it may overlap it. */
static sp_status copy(sp_custom *c, const plan *plan, void *to, const void *from, const sp_work *work, bool *by_kernel) {
    *by_kernel = plan->family == V2 && c->tuning.style != SP_CUSTOM_V0510 && work->nbytes <= copy_kernel_bytes;
    if (!*by_kernel)
        return sp_custom_cuda(c, cudaMemcpyAsync(to, from, work->nbytes, cudaMemcpyDeviceToDevice, (cudaStream_t)work->stream),
                              "cudaMemcpyAsync");
    sp_kernel_args args = {.in = from, .out = to, .count = (uint32_t)(work->nbytes / SP_KERNEL_VECTOR)};
    const sp_kernel_shape shape = {up(args.count, COPY_THREADS), COPY_THREADS, c->tuning.overlap && c->arch >= 90};
    return sp_custom_cuda(c, sp_kernel_launch(SP_BODY_COPY, 0, 0, &args, &shape, work->stream), "launching the copy kernel");
}

static sp_status launch(sp_custom *c, const plan *plan, const sp_work *work) {
    sp_kernel_args args = args_of(c, plan, work);
    sp_kernel_shape shape = shape_of(c, plan, work->nbytes);
    const bool noted = registered(plan, work), staged = plan->pulls && !noted;
    void *staging = (uint8_t *)c->region.mine + c->staging_at;
    bool by_kernel = true;
    if (noted) SP_TRY(sp_custom_note(c, work->in, &args.inputs));
    if (staged) SP_TRY(copy(c, plan, staging, work->in, work, &by_kernel));
    shape.overlap &= by_kernel;
    const int error = sp_kernel_launch(body_of(c, plan), work->dtype, c->world.size, &args, &shape, work->stream);
    if (error)
        return sp_fail(SP_CUDA, "rank %d: launching custom %s, %u blocks of %u: %s", c->world.rank, plan->name, shape.blocks,
                       shape.threads, sp_kernel_error(error));
    c->noted += noted;
    return staged && plan->in_place ? copy(c, plan, work->out, staging, work, &by_kernel) : SP_OK;
}

sp_status sp_custom_enqueue(sp_custom *c, const sp_work *work) {
    SP_TRY(sp_custom_supports(c, work));
    SP_TRY(sp_custom_status(c));
    if (work->stamp && (!c->stamps || work->stamp > SP_STAMPS + 1 - SP_STAMPS_CALL))
        return sp_fail(SP_INVALID, "custom: slot %u for stamps: a call has %d from 1 to %d", work->stamp, SP_STAMPS_CALL,
                       c->stamps ? SP_STAMPS : 0);
    if (work->kernel == SP_KERNEL_DRY)
        return sp_custom_cuda(c, cudaMemsetAsync(work->out, 0, work->nbytes, (cudaStream_t)work->stream), "cudaMemsetAsync");
    return launch(c, find_plan(c, work), work);
}

sp_status sp_custom_empty(sp_custom *c, const sp_work *work) {
    SP_TRY(sp_custom_supports(c, work));
    const plan *plan = find_plan(c, work);
    if (!plan) return sp_fail(SP_INVALID, "custom dry launches no kernel");
    const sp_kernel_args args = c->args;
    const sp_kernel_shape shape = shape_of(c, plan, work->nbytes);
    return sp_custom_cuda(c, sp_kernel_launch(SP_BODY_EMPTY, 0, 0, &args, &shape, work->stream), "launching the empty kernel");
}

static sp_status round_trips(sp_custom *c, uint32_t count, int peer, void *times, void *stream, sp_deadline deadline) {
    SP_TRY(sp_custom_status(c));
    sp_kernel_args args = c->args;
    args.count = count;
    args.first = (uint32_t)peer;
    args.limit_ns = patience(&(sp_work){.deadline = deadline});
    args.trace = times;
    const sp_kernel_shape shape = {1, 32, false};
    const int body = times ? SP_BODY_CLOCK : SP_BODY_PING_PONG;
    return sp_custom_cuda(c, sp_kernel_launch(body, 0, 0, &args, &shape, stream), "launching the round trips");
}

sp_status sp_custom_ping_pong(sp_custom *c, uint32_t trips, void *stream, sp_deadline deadline) {
    return round_trips(c, trips, 1, NULL, stream, deadline);
}

sp_status sp_custom_trips(sp_custom *c, int peer, void *trips, void *stream, sp_deadline deadline) {
    if (peer < 1 || peer >= c->world.size || !trips)
        return sp_fail(SP_INVALID, "round trips between rank 0 and rank %d of %d", peer, c->world.size);
    return round_trips(c, SP_TRIPS, peer, trips, stream, deadline);
}
