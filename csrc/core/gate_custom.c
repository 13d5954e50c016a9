/* Custom all-reduce: which class stands behind it, and v1 and aiter; V2 is gate_custom_v2.c. Called by route.c, as every gate.
 * A generation (column v1 of releases.c) is a set of features: code reads "does this release have X", never version numbers.
 * Invariant: setup stops, tensor stops and the size are all tested, whatever an earlier one answered. */
#include "gate_custom.h"

// clang-format off
enum {
    HIP = 1 << 0,            /* works on ROCm */
    MUSA = 1 << 1,           /* works on MUSA */
    MSCCL = 1 << 2,          /* ROCm: leaves world size 8 to RCCL while RCCL_MSCCL_ENABLE is 1 */
    VLLM = 1 << 3,           /* USE_VLLM_CUSTOM_ALLREDUCE chooses the library */
    VLLM_DEFAULT = 1 << 4,   /* and is on when unset */
    VLLM_ANY = 1 << 5,       /* and any value means on, "0" too */
    TRT = 1 << 6,            /* without vLLM: the kernel derived from TensorRT-LLM */
    OVERRIDE = 1 << 7,       /* the coordinator passes its own size limit on every platform */
    PIECEWISE_OFF = 1 << 8,  /* switched off around the piecewise graph */
    AITER = 1 << 9,          /* ROCm: aiter's class where it imports */
    CHOICE = 1 << 10,        /* the choice asserts on other devices, and one-stage forces v1 on ROCm */
    INCLUSIVE = 1 << 11,     /* <= the limit, before < */
    PIECEWISE_REAL = 1 << 12, /* warm-up inside the piecewise graph really reduces */
    ALGO = 1 << 13,          /* the pinned kernel library reads SGLANG_CUSTOM_ALLREDUCE_ALGO */
    ANY_SIZE = 1 << 14       /* ROCm one-stage takes every size */
};

#define SINCE_0_4_4_POST4 (HIP | VLLM)
#define SINCE_0_5_4_POST3 HIP
#define SINCE_0_5_7 (HIP | AITER | CHOICE)
#define SINCE_0_5_9 (SINCE_0_5_7 | MUSA | INCLUSIVE)

static const uint32_t generations[] = {
    [1] = VLLM | VLLM_DEFAULT | VLLM_ANY | TRT,                /* v0.4.1.post7 */
    [2] = HIP | MSCCL | VLLM | VLLM_DEFAULT | VLLM_ANY | TRT,  /* v0.4.3.post3 */
    [3] = HIP | MSCCL | VLLM | VLLM_DEFAULT | TRT,             /* v0.4.4 */
    [4] = HIP | MSCCL | VLLM | TRT,                            /* v0.4.4.post2 */
    [5] = SINCE_0_4_4_POST4 | MSCCL,                           /* v0.4.4.post4 */
    [6] = SINCE_0_4_4_POST4,                                   /* v0.4.6.post3 */
    [7] = SINCE_0_4_4_POST4 | OVERRIDE,                        /* v0.5.3.post2 */
    [8] = SINCE_0_4_4_POST4 | PIECEWISE_OFF,                   /* v0.5.4.post1 */
    [9] = SINCE_0_5_4_POST3 | PIECEWISE_OFF,                   /* v0.5.4.post3 */
    [10] = SINCE_0_5_4_POST3 | PIECEWISE_OFF | AITER,          /* v0.5.5.post3 */
    [11] = SINCE_0_5_7,                                        /* v0.5.7 */
    [12] = SINCE_0_5_9,                                        /* bba2fc4 */
    [13] = SINCE_0_5_9 | PIECEWISE_REAL,                       /* 0be30d4, v0.5.9 */
    [14] = SINCE_0_5_9 | PIECEWISE_REAL | ALGO,                /* v0.5.10rc0 */
    [15] = SINCE_0_5_9 | PIECEWISE_REAL | ALGO | ANY_SIZE,     /* v0.5.10 */
};
// clang-format on

enum { GENERATIONS = sizeof generations / sizeof *generations };

static uint32_t features(const sp_case *c) { return c->release->v1 < GENERATIONS ? generations[c->release->v1] : 0; }

static bool has_device(uint32_t has, int64_t device) {
    return device == SP_DEVICE_CUDA || (device == SP_DEVICE_HIP && has & HIP) || (device == SP_DEVICE_MUSA && has & MUSA);
}

static uint8_t library(uint32_t has, const sp_facts *f) {
    bool asked = f->vllm_custom < 0 ? has & VLLM_DEFAULT : has & VLLM_ANY || f->vllm_custom;
    if (f->device == SP_DEVICE_HIP) return SP_BACKEND_V1;
    if (has & VLLM && asked) return SP_BACKEND_V1_VLLM;
    return has & TRT ? SP_BACKEND_V1_TRT : SP_BACKEND_V1;
}

/* Everything for which v1's constructor (and aiter's, as far as it is known) stays disabled. */
static uint64_t setup_stops(const sp_case *c) {
    const sp_facts *f = c->facts;
    uint64_t stops = 0;
    if (!has_device(features(c), f->device)) stops |= SP_STOP(DEVICE);
    if (!f->has_custom_ops) stops |= SP_STOP(LIBRARY);
    if (f->nodes > 1) stops |= SP_STOP(NODES);
    if (f->world_size < 2 || f->world_size > 8 || f->world_size % 2) stops |= SP_STOP(WORLD_SIZE);
    if (f->world_size > 2 && !f->full_nvlink) stops |= SP_STOP(NVLINK);
    if (f->device != SP_DEVICE_HIP && sp_custom_no_peers(f)) stops |= SP_STOP(P2P);
    return stops;
}

static uint64_t size_limit(uint32_t has, const sp_facts *f) {
    if (has & OVERRIDE && f->tp_group) return f->piecewise_server ? 256 * SP_MIB : 8 * SP_MIB;
    switch (f->device) {
    case SP_DEVICE_HIP: return 16 * SP_MIB;
    case SP_DEVICE_MUSA: return 16 * UINT64_C(8196) * SP_KIB; /* 8196 is SGLang's own number */
    default: return 8 * SP_MIB;
    }
}

/* The size test; both of its comparisons where the TensorRT-LLM kernel has its own workspace. */
static bool size_fits(const sp_case *c, uint32_t has, uint8_t backend, uint64_t *limit) {
    uint64_t most = size_limit(has, c->facts);
    if (has & INCLUSIVE) {
        *limit = most;
        return sp_fits(c, most);
    }
    bool fits = sp_below(c, most);
    if (backend == SP_BACKEND_V1_TRT) {
        uint64_t workspace = c->facts->world_size == 2 ? 16 * SP_MIB : 8 * SP_MIB;
        fits &= sp_below(c, workspace);
        if (workspace < most) most = workspace;
    }
    *limit = most - 16; /* the largest multiple of 16 below it */
    return fits;
}

/* Read in the kernel libraries' C++ sources: no Python to run, so always an assumption. */
static uint8_t kernel_of(const sp_case *c, uint32_t has, uint8_t backend) {
    const sp_facts *f = c->facts;
    if (sp_is_one_stage(f) && has & CHOICE) return SP_KERNEL_ONE_SHOT;
    if (backend == SP_BACKEND_V1_TRT) {
        if (f->world_size <= 2) return SP_KERNEL_ONE_SHOT;
        return sp_below(c, f->world_size <= 4 ? SP_MIB : 512 * SP_KIB) ? SP_KERNEL_ONE_SHOT : SP_KERNEL_TWO_SHOT;
    }
    if (f->device == SP_DEVICE_MUSA && c->call->dtype != SP_DTYPE_FP32) return SP_KERNEL_TWO_SHOT;
    if (f->device == SP_DEVICE_CUDA && has & ALGO && f->v1_algo) return f->v1_algo == 1 ? SP_KERNEL_ONE_SHOT : SP_KERNEL_TWO_SHOT;
    if (f->world_size == 2) return SP_KERNEL_ONE_SHOT;
    return sp_below(c, f->world_size <= 4 ? 512 * SP_KIB : 256 * SP_KIB) ? SP_KERNEL_ONE_SHOT : SP_KERNEL_TWO_SHOT;
}

/* Graph warm-up: inside graph_capture() with no stream capturing, nothing is communicated. */
static bool is_dry(const sp_case *c, uint32_t has) {
    if (!sp_custom_in_capture(c) || c->context & SP_CTX(STREAM)) return false;
    return !(c->context & SP_CTX(PIECEWISE) && has & PIECEWISE_REAL);
}

static void settle(const sp_case *c, sp_answer *a, uint64_t setup, uint64_t off, uint64_t declines, uint8_t kernel) {
    uint32_t has = features(c);
    a->stops = setup | off | declines;
    a->state = setup || off ? SP_STATE_DISABLED : declines ? SP_STATE_DECLINES : SP_STATE_ACCEPTS;
    a->returns_new = true;
    if (a->state != SP_STATE_ACCEPTS) return;
    bool dry = is_dry(c, has);
    a->kernel = dry ? SP_KERNEL_DRY : c->kernel ? c->kernel : kernel;
    a->reduces = !dry;
    a->assumed |= !dry;
    if (!dry && a->backend != SP_BACKEND_AITER && !sp_custom_has_kernel(c->call->dtype)) a->exception = SP_EXC_RUNTIME_ERROR;
}

static void v1(const sp_case *c, sp_answer *a) {
    const sp_facts *f = c->facts;
    uint32_t has = features(c);
    bool hip = f->device == SP_DEVICE_HIP, any_size = has & ANY_SIZE && sp_is_one_stage(f);
    uint64_t setup = setup_stops(c), declines = sp_custom_tensor_stops(c->call);
    a->backend = library(has, f);
    if (!any_size) {
        if (!f->full_nvlink && (hip || f->world_size != 2)) declines |= SP_STOP(LINK);
        if (!size_fits(c, has, a->backend, &a->limit)) declines |= SP_STOP(TOO_LARGE);
    }
    if (hip && has & MSCCL && f->world_size == 8 && f->rccl_msccl) declines |= SP_STOP(MSCCL);
    uint64_t off = has & PIECEWISE_OFF && f->tp_group && c->context & SP_CTX(PIECEWISE) ? SP_STOP(PIECEWISE) : 0;
    settle(c, a, setup, off, declines, setup ? SP_KERNEL_UNKNOWN : kernel_of(c, has, a->backend));
    /* The choice of class asserts where it knows no class, and the coordinator goes on without a communicator. */
    if (has & CHOICE && setup & SP_STOP(DEVICE)) a->state = SP_STATE_ABSENT;
}

/* AMD's own class: outside of the package. A comment of SGLang states its limit, half of 128 MiB; the rest is as v1. */
static void aiter(const sp_case *c, sp_answer *a) {
    const sp_facts *f = c->facts;
    uint64_t setup = setup_stops(c) & ~SP_STOP(LIBRARY), declines = sp_custom_tensor_stops(c->call);
    uint64_t off = features(c) & PIECEWISE_OFF && f->tp_group && c->context & SP_CTX(PIECEWISE) ? SP_STOP(PIECEWISE) : 0;
    a->backend = SP_BACKEND_AITER;
    a->assumed = true;
    a->limit = 64 * SP_MIB;
    if (f->world_size != 2 && !f->full_nvlink) declines |= SP_STOP(LINK);
    if (!sp_fits(c, a->limit)) declines |= SP_STOP(TOO_LARGE);
    settle(c, a, setup, off, declines, SP_KERNEL_AITER);
}

static bool is_aiter(const sp_case *c) {
    const sp_facts *f = c->facts;
    uint32_t has = features(c);
    if (f->device != SP_DEVICE_HIP || !(has & AITER) || !f->use_aiter || !f->has_aiter) return false;
    return !(has & CHOICE && sp_is_one_stage(f));
}

void sp_gate_custom(const sp_case *c, sp_answer *a) {
    *a = (sp_answer){.reduces = true};
    if (sp_custom_is_v2(c)) {
        sp_custom_v2(c, a);
    } else if (is_aiter(c)) {
        aiter(c, a);
    } else {
        v1(c, a);
    }
    if (a->backend != SP_BACKEND_V2) a->stops |= sp_custom_clique_stop(c);
    if (!c->facts->own_custom) a->stops |= SP_STOP(NOT_OWNED);
    /* It parses them after the checks below, and before links and peers; a group over nodes never gets there. */
    const uint64_t before = SP_STOP(LIBRARY) | SP_STOP(DEVICE) | SP_STOP(NODES) | SP_STOP(CLIQUE) | SP_STOP(WORLD_SIZE);
    if (!c->facts->device_ids_ok && c->facts->nodes == 1 && !(a->stops & before)) a->stops |= SP_STOP(DEVICE_IDS);
    if (!c->facts->own_custom || c->facts->world_size < 2 ||
        a->stops & SP_STOP(DEVICE_IDS)) { /* communicators are built for more than one rank */
        a->state = SP_STATE_ABSENT;
        a->exception = SP_EXC_NO_EXCEPTION;
        a->kernel = SP_KERNEL_UNKNOWN;
        a->assumed = false;
    }
}
