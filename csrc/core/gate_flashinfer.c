/* FlashInfer's all-reduce without a fused norm, over the workspace of the fused one. Called by route.c.
 * Generations (release column `flashinfer`): 0 none; 1 v0.5.18 - v0.5.20; 2 v0.5.21 and later: mnnvl wants rows of 16 bytes.
 * Whether a group has a workspace (hint, FlashInfer there, same ranks) is one fact; here it is asked whether the tensor fits.
 * Invariant: without Dynamo FlashInfer itself has the last word on the size, and it is not in the package: always assumed. */
#include "gate.h"

enum { TRTLLM, MNNVL };

static uint64_t element_bytes(int64_t dtype) { return (uint64_t)dtype < SP_DTYPE_COUNT ? (uint64_t)sp_dtype_bytes[dtype] : 1; }

static uint64_t stops_call(const sp_case *c, sp_answer *answer) {
    const sp_facts *f = c->facts;
    const sp_call *t = c->call;
    bool compiling = c->context & SP_CTX(COMPILING);
    int64_t hidden = f->fi_hidden ? f->fi_hidden : t->columns, width = t->columns ? t->columns : hidden;
    uint64_t stops = 0, bytes = element_bytes(t->dtype);
    if (t->dims != 2) stops |= SP_STOP(SHAPE);
    if (!t->contiguous) stops |= SP_STOP(LAYOUT);
    if (!hidden) return stops | SP_STOP(UNKNOWN_WIDTH);
    uint64_t row = (uint64_t)width * bytes;
    if (c->release->flashinfer >= 2 && f->fi_backend == MNNVL && row % 16) stops |= SP_STOP(SHAPE);
    if (compiling) {
        if (width > hidden) stops |= SP_STOP(SHAPE);
        if (t->dtype != f->fi_dtype) stops |= SP_STOP(DTYPE);
        answer->limit = (uint64_t)f->fi_max_tokens * row;
    } else if (f->fi_backend == TRTLLM) {
        if ((f->fi_dtype == SP_DTYPE_FP32) != (t->dtype == SP_DTYPE_FP32)) stops |= SP_STOP(DTYPE);
        answer->limit = (uint64_t)f->fi_max_tokens * (uint64_t)hidden * bytes;
    } else {
        answer->limit = (uint64_t)f->fi_max_tokens * (uint64_t)hidden * element_bytes(f->fi_dtype);
    }
    if (!sp_fits(c, answer->limit)) stops |= SP_STOP(TOO_LARGE);
    return stops;
}

void sp_gate_flashinfer(const sp_case *c, sp_answer *answer) {
    const sp_facts *f = c->facts;
    if (!c->release->flashinfer) {
        answer->stops = SP_STOP(RELEASE);
        return;
    }
    uint64_t call = stops_call(c, answer);
    bool absent = !f->fi_workspace || f->world_size == 1;
    answer->stops = call | (f->fi_workspace ? 0 : SP_STOP(WORKSPACE)) | (f->world_size == 1 ? SP_STOP(WORLD_SIZE) : 0);
    answer->state = absent ? SP_STATE_ABSENT : call ? SP_STATE_DECLINES : SP_STATE_ACCEPTS;
    answer->backend = SP_BACKEND_FLASHINFER;
    answer->returns_new = true;
    answer->assumed = true;
}
