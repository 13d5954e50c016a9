/* FlashInfer's PCIe-IPC all-reduce, for hosts without NVLink. Called by route.c.
 * Generations (release column `pcie`): 0 none; 1 v0.5.21 and later.
 * It is built for the TP group alone, off by default (SGLANG_ENABLE_PCIE_IPC_ALLREDUCE), and looks for no NVLink: on a host that
 * has it, custom all-reduce is merely asked first. Its workspace holds the rows of the widest decode batch, or an override.
 * Invariant: what accepts here still rests on FlashInfer's own supports(), which is not in the package: always assumed. */
#include "gate.h"

static uint64_t stops_setup(const sp_facts *f) {
    uint64_t stops = 0;
    if (!f->own_pcie_ipc) stops |= SP_STOP(NOT_OWNED);
    if (f->one_stage >= 0 ? f->one_stage : f->deterministic) stops |= SP_STOP(DETERMINISTIC);
    if (f->world_size != 2 && f->world_size != 4 && f->world_size != 8) stops |= SP_STOP(WORLD_SIZE);
    if (f->device != SP_DEVICE_CUDA && f->device != SP_DEVICE_HIP) stops |= SP_STOP(DEVICE);
    if (!f->has_flashinfer_pcie) stops |= SP_STOP(LIBRARY);
    return stops;
}

void sp_gate_pcie_ipc(const sp_case *c, sp_answer *answer) {
    const sp_facts *f = c->facts;
    const sp_call *t = c->call;
    if (!c->release->pcie) {
        answer->stops = SP_STOP(RELEASE);
        return;
    }
    uint64_t setup = stops_setup(f), call = 0;
    uint64_t hidden = (uint64_t)(f->pcie_hidden ? f->pcie_hidden : t->columns);
    uint64_t rows = f->decode_rows ? (uint64_t)f->decode_rows : 64;
    uint64_t numel = f->pcie_max_numel ? (uint64_t)f->pcie_max_numel : rows * hidden;
    if (!t->contiguous) call |= SP_STOP(LAYOUT);
    if (t->dims < 2) call |= SP_STOP(SHAPE);
    if (t->dtype != SP_DTYPE_BF16) call |= SP_STOP(DTYPE);
    answer->limit = numel * 2; /* bf16 */
    if (!numel) call |= SP_STOP(UNKNOWN_WIDTH);
    if (numel && !sp_fits(c, answer->limit)) call |= SP_STOP(TOO_LARGE);
    bool absent = setup & (SP_STOP(NOT_OWNED) | SP_STOP(DETERMINISTIC)) || f->world_size == 1;
    answer->stops = setup | call;
    answer->state = absent ? SP_STATE_ABSENT : setup ? SP_STATE_DISABLED : call ? SP_STATE_DECLINES : SP_STATE_ACCEPTS;
    answer->backend = SP_BACKEND_FLASHINFER;
    answer->returns_new = true;
    answer->assumed = true;
}
