/* All-reduce of CPU tensors: Intel's extension, or sgl_kernel through shared memory. Called by route.c.
 * Generations (release column `cpu`):
 *   1 to v0.4.8.post1: intel_extension_for_pytorch, asked nothing
 *   2 v0.4.9 - v0.5.3.post3: shared memory for bf16 and fp32, with AMX
 *   3 v0.5.4 - v0.5.7: and fp16
 *   4 v0.5.8 and later: and ARM64 hosts
 * Invariant: in place, input returned; a tensor that it does not take goes to torch.distributed. */
#include "gate.h"

void sp_gate_cpu(const sp_case *c, sp_answer *answer) {
    const sp_facts *f = c->facts;
    int64_t dtype = c->call->dtype;
    int generation = c->release->cpu;
    if (f->device != SP_DEVICE_CPU) {
        answer->stops = SP_STOP(DEVICE);
        return;
    }
    answer->backend = generation == 1 ? SP_BACKEND_IPEX : SP_BACKEND_SGL_KERNEL;
    answer->assumed = generation == 1;
    if (generation >= 2) {
        if (!f->cpu_amx && !(generation >= 4 && f->cpu_arm64)) answer->stops |= SP_STOP(AMX);
        if (dtype != SP_DTYPE_BF16 && dtype != SP_DTYPE_FP32 && !(generation >= 3 && dtype == SP_DTYPE_FP16))
            answer->stops |= SP_STOP(DTYPE);
        if (f->world_size != f->local_size) answer->stops |= SP_STOP(LOCAL_SIZE);
    }
    if (f->world_size == 1) answer->stops |= SP_STOP(WORLD_SIZE);
    answer->state = answer->stops & ~SP_STOP(DTYPE) ? SP_STATE_DISABLED : answer->stops ? SP_STATE_DECLINES : SP_STATE_ACCEPTS;
}
