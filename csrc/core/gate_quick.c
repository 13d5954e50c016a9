/* QuickReduce (ROCm): quantized all-reduce of large tensors. Called by route.c.
 * Generations (release column `quick`): 0 none; 1 v0.4.9.post4 and later, unchanged since.
 * The object exists only beside custom all-reduce, on gfx94* and gfx95*; it is disabled by default, because its quantization is.
 * Invariant: graph_capture() does not toggle it. */
#include "gate.h"

enum { FP, INT8, INT6, INT4, LEVELS };

// clang-format off
/* Smallest size it takes, MiB, by dtype, world size (2, 4, 8) and quantization. */
static const uint16_t minimum_mib[2][3][LEVELS] = {
    {/* bf16 */ {2, 8, 8, 8}, {8, 64, 64, 16}, {16, 2048, 2048, 2048}},
    {/* fp16 */ {1, 2, 2, 1}, {1, 16,  4,  2}, {16,    4,    4,    2}},
};
// clang-format on

static int world_row(int64_t world_size) { return world_size == 2 ? 0 : world_size == 4 ? 1 : world_size == 8 ? 2 : -1; }

static bool arch_known(int64_t gfx) { return gfx / 10 == 94 || gfx / 10 == 95; }

static uint64_t stops_setup(const sp_facts *f) {
    uint64_t stops = 0;
    if (!f->own_custom) stops |= SP_STOP(NOT_OWNED);
    if (f->device != SP_DEVICE_HIP)
        stops |= SP_STOP(DEVICE);
    else if (!arch_known(f->arch))
        stops |= SP_STOP(ARCH);
    if (!f->has_custom_ops) stops |= SP_STOP(LIBRARY);
    if (f->nodes > 1) stops |= SP_STOP(NODES);
    if (world_row(f->world_size) < 0) stops |= SP_STOP(WORLD_SIZE);
    if (f->world_size > 2 && !f->full_nvlink) stops |= SP_STOP(NVLINK);
    if (f->qr_quantization == 0) stops |= SP_STOP(QUANTIZATION);
    return stops;
}

void sp_gate_quick(const sp_case *c, sp_answer *answer) {
    const sp_facts *f = c->facts;
    const sp_call *t = c->call;
    if (!c->release->quick) {
        answer->stops = SP_STOP(RELEASE);
        return;
    }
    uint64_t setup = stops_setup(f), call = 0;
    bool half = t->dtype == SP_DTYPE_BF16 || t->dtype == SP_DTYPE_FP16;
    if (!half) call |= SP_STOP(DTYPE);
    if (t->nbytes % 16) call |= SP_STOP(MULTIPLE);
    if (!t->weak_contiguous) call |= SP_STOP(LAYOUT);
    answer->limit = f->qr_max_mb > 0 ? (uint64_t)f->qr_max_mb * SP_MIB : 2048 * SP_MIB;
    if (!sp_fits(c, answer->limit)) call |= SP_STOP(TOO_LARGE);
    int world = world_row(f->world_size);
    if (half && world >= 0 && f->qr_quantization > 0) {
        bool fp16_row = t->dtype == SP_DTYPE_FP16 || f->qr_cast_bf16;
        if (sp_below(c, minimum_mib[fp16_row][world][(f->qr_quantization - 1) % LEVELS] * SP_MIB)) call |= SP_STOP(TOO_SMALL);
    }
    bool absent = setup & (SP_STOP(NOT_OWNED) | SP_STOP(DEVICE) | SP_STOP(ARCH)) || f->world_size == 1;
    answer->stops = setup | call;
    answer->state = absent ? SP_STATE_ABSENT : setup ? SP_STATE_DISABLED : call ? SP_STATE_DECLINES : SP_STATE_ACCEPTS;
    answer->backend = SP_BACKEND_QUICK_REDUCE;
    answer->returns_new = true;
    answer->assumed = f->qr_max_mb == 0; /* the library's own maximum is not in the package */
}
