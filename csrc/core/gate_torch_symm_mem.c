/* torch symmetric memory: the tensor is copied into a symmetric buffer, reduced there and copied out. Called by route.c.
 * Generations (release column `symm`): 0 none;
 *   1 v0.5.3rc2 - v0.5.3.post1: first table of maximum sizes
 *   2 v0.5.3.post2 - v0.5.13.post1: second table; the in-place fallback uses it unasked, and loses the result
 *   3 v0.5.14 - v0.5.15.post1: an unknown compute capability disables instead of raising; the in-place fallback asks first
 *   4 v0.5.16 and later: SGLANG_OPT_USE_INKLING_CUSTOM_AR raises the maximum; multimem at world 4 of compute capability 10
 * Invariant: `exception` with `declines` is what the unasked in-place use of generation 2 raises. */
#include "gate.h"

// clang-format off
/* Maximum size, MiB, by generation (first, later), compute capability (9, 10) and world size (2, 4, 6, 8). */
static const uint8_t maximum_mib[2][2][4] = {
    {{64, 32,  64,  64}, {64, 32, 128, 128}},
    {{64, 64, 128, 128}, {64, 64, 128, 128}},
};
// clang-format on

static int world_column(int64_t world_size) {
    return world_size >= 2 && world_size <= 8 && world_size % 2 == 0 ? (int)(world_size / 2 - 1) : -1;
}

static uint64_t stops_setup(const sp_facts *f) {
    int64_t major = f->arch / 10;
    uint64_t stops = 0;
    if (!f->own_torch_symm_mem) stops |= SP_STOP(NOT_OWNED);
    if (f->device != SP_DEVICE_CUDA)
        stops |= SP_STOP(DEVICE);
    else if (major != 9 && major != 10)
        stops |= SP_STOP(ARCH);
    if (world_column(f->world_size) < 0) stops |= SP_STOP(WORLD_SIZE);
    if (!f->multicast) stops |= SP_STOP(MULTICAST);
    return stops;
}

/* Bytes of the symmetric buffer; 0 where the tables have none. */
static uint64_t buffer_bytes(const sp_case *c) {
    const sp_facts *f = c->facts;
    int64_t major = f->arch / 10;
    int column = world_column(f->world_size);
    if (column < 0 || (major != 9 && major != 10)) return 0;
    uint64_t bytes = maximum_mib[c->release->symm > 1][major - 9][column] * SP_MIB;
    uint64_t inkling = c->release->symm >= 4 && f->inkling ? (f->inkling_sconv ? 512 * SP_MIB : 256 * SP_MIB) : 0;
    return inkling > bytes ? inkling : bytes;
}

static bool multimem(const sp_case *c) {
    int64_t world = c->facts->world_size;
    if (c->facts->arch / 10 == 9 || c->release->symm >= 4) return world >= 4;
    return world >= 6;
}

void sp_gate_torch_symm_mem(const sp_case *c, sp_answer *answer) {
    const sp_facts *f = c->facts;
    const sp_call *t = c->call;
    if (!c->release->symm) {
        answer->stops = SP_STOP(RELEASE);
        return;
    }
    uint64_t setup = stops_setup(f), call = 0, buffer = buffer_bytes(c);
    if (t->dtype != SP_DTYPE_BF16) call |= SP_STOP(DTYPE);
    if (t->nbytes % 4) call |= SP_STOP(MULTIPLE);
    if (buffer && !sp_below(c, buffer)) call |= SP_STOP(TOO_LARGE);
    answer->limit = buffer ? buffer - 4 : 0;
    answer->stops = setup | call;
    answer->backend = SP_BACKEND_TORCH_SYMM_MEM;
    answer->returns_new = true;
    if (setup & SP_STOP(NOT_OWNED) || f->world_size == 1) {
        answer->state = SP_STATE_ABSENT;
    } else if (setup & SP_STOP(ARCH) && f->arch / 10 > 10 && c->release->symm <= 2) {
        answer->state = SP_STATE_RAISES_HERE; /* the constructor does: such a server does not start */
        answer->exception = SP_EXC_KEY_ERROR;
    } else if (setup) {
        answer->state = SP_STATE_DISABLED;
    } else {
        answer->state = call ? SP_STATE_DECLINES : SP_STATE_ACCEPTS;
        answer->kernel = multimem(c) ? SP_KERNEL_MULTIMEM : SP_KERNEL_TORCH_TWO_SHOT;
        answer->assumed = true; /* multicast is found by a rendezvous; the kernels may refuse what Python lets pass */
        bool unasked = call && c->release->symm == 2;
        if (!t->contiguous && (!call || unasked)) answer->exception = SP_EXC_RUNTIME_ERROR; /* view(-1) */
        if (unasked && !sp_fits(c, buffer / 2 * (uint64_t)sp_dtype_bytes[t->dtype])) answer->exception = SP_EXC_RUNTIME_ERROR;
    }
}
