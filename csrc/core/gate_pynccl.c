/* PyNccl: SGLang's own NCCL communicator. Called by route.c. Every release has it; it asks nothing of the tensor.
 * It is switched off after its construction; graph_capture() enables it in the groups that it enters, --enable-pdmux for good.
 * NCCL's symmetric memory (bypass) and the out-of-place method enable it for one call: the rules know that, not this gate.
 * Invariant: `exception` is what running it raises, whoever enabled it; it may stand beside any state but absent. */
#include "gate.h"

void sp_gate_pynccl(const sp_case *c, sp_answer *answer) {
    const sp_facts *f = c->facts;
    bool cuda_alike = f->device == SP_DEVICE_CUDA || f->device == SP_DEVICE_HIP || f->device == SP_DEVICE_MUSA;
    bool enabled = f->pdmux || c->on & SP_GATE_BIT(PYNCCL) || (c->context & SP_CTX(IN_CAPTURE) && f->captured);
    answer->backend = SP_BACKEND_NCCL;
    if (!f->own_pynccl) answer->stops |= SP_STOP(NOT_OWNED);
    if (f->world_size == 1) answer->stops |= SP_STOP(WORLD_SIZE);
    if (!cuda_alike) answer->stops |= SP_STOP(DEVICE);
    if (!f->has_nccl) answer->stops |= SP_STOP(LIBRARY);
    if (!f->own_pynccl || f->world_size == 1 || !cuda_alike) {
        answer->state = SP_STATE_ABSENT;
        return;
    }
    if (!enabled) answer->stops |= SP_STOP(CONTEXT);
    answer->state = enabled ? SP_STATE_ACCEPTS : SP_STATE_DISABLED;
    if (!f->has_nccl) {
        answer->exception = SP_EXC_ATTRIBUTE_ERROR; /* its constructor returned before it had a device */
        if (enabled) answer->stops |= SP_STOP(HALF_BUILT);
    } else if (c->call->dtype == SP_DTYPE_FP8) {
        answer->stops |= SP_STOP(DTYPE);
        answer->exception = SP_EXC_VALUE_ERROR;
    }
}
