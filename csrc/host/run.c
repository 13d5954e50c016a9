/* Which kernel runs a call, whether it can, and the call itself. Called by seam.c, and by graph.c for recorded calls.
 * Adding a path or a kernel is a line in a table.
 * Invariant: a call that returned SP_OK or SP_MISMATCH left the ranks in step; after any other failure the communicator says why
 * and ends. */
#include <inttypes.h>
#include <string.h>

#include "comm.h"

enum {
    V1_SMALL = 524288,
    V1_SMALL_MANY = 262144,
    V1_FEW_RANKS = 4
}; /* v1's own choice, below these and between this many ranks */

static const kernel_plan one_shot = {"custom one_shot", sp_host_one_shot, false, false};
static const kernel_plan two_shot = {"custom two_shot", sp_host_two_shot, false, false};

static const kernel_plan custom_plans[SP_KERNEL_COUNT] = {
    [SP_KERNEL_ONE_SHOT] = {"custom one_shot", sp_host_one_shot, false, false},
    [SP_KERNEL_TWO_SHOT] = {"custom two_shot", sp_host_two_shot, false, false},
    [SP_KERNEL_ONE_SHOT_PUSH] = {"custom one_shot_push", sp_host_one_shot, true, false},
    [SP_KERNEL_ONE_SHOT_PULL] = {"custom one_shot_pull", sp_host_one_shot, false, false},
    [SP_KERNEL_TWO_SHOT_PULL] = {"custom two_shot_pull", sp_host_two_shot, false, false},
    [SP_KERNEL_TWO_SHOT_PUSH] = {"custom two_shot_push", sp_host_two_shot, true, true},
    [SP_KERNEL_TWO_SHOT_MULTICAST] = {"custom two_shot_multicast", sp_host_two_shot, false, true},
    [SP_KERNEL_LIMIT] = {"custom limit", sp_host_flagged, true, false},
};

static const kernel_plan symm_mem_plans[SP_KERNEL_COUNT] = {
    [SP_KERNEL_UNKNOWN] = {"torch_symm_mem", sp_host_one_shot, false, false},
    [SP_KERNEL_MULTIMEM] = {"torch_symm_mem multimem", sp_host_two_shot, false, true},
    [SP_KERNEL_TORCH_TWO_SHOT] = {"torch_symm_mem torch_two_shot", sp_host_two_shot, false, false},
};

/* The other paths have one kernel here, whatever the gate picked. */
static const kernel_plan path_plans[SP_PATH_COUNT] = {
    [SP_PATH_QUICK] = {"quick", sp_host_one_shot, false, false},
    [SP_PATH_MSCCLPP] = {"mscclpp", sp_host_one_shot, false, false},
    [SP_PATH_FLASHINFER] = {"flashinfer", sp_host_one_shot, true, false},
    [SP_PATH_PYNCCL_IN_PLACE] = {"pynccl_in_place", sp_host_ring, false, false},
    [SP_PATH_PYNCCL_OUT_OF_PLACE] = {"pynccl_out_of_place", sp_host_ring, false, false},
    [SP_PATH_TORCH_DISTRIBUTED] = {"torch_distributed", sp_host_root, false, false},
    [SP_PATH_CPU_SHM] = {"cpu_shm", sp_host_one_shot, false, false},
    [SP_PATH_PCIE_IPC] = {"pcie_ipc", sp_host_one_shot, true, false},
};

/* v1 one-shots between two ranks, and below a size that falls with more of them. */
static const kernel_plan *choice_of_v1(const sp_comm *comm, uint64_t nbytes) {
    int size = comm->world.size;
    return size <= 2 || nbytes < (size <= V1_FEW_RANKS ? V1_SMALL : V1_SMALL_MANY) ? &one_shot : &two_shot;
}

static const kernel_plan *plan_of(const sp_comm *comm, const sp_work *work) {
    const kernel_plan *plan = NULL;
    if (work->path >= SP_PATH_COUNT || work->kernel >= SP_KERNEL_COUNT) return NULL;
    if (work->path == SP_PATH_CUSTOM)
        plan = work->kernel == SP_KERNEL_UNKNOWN || work->kernel == SP_KERNEL_AITER ? choice_of_v1(comm, work->nbytes)
                                                                                    : &custom_plans[work->kernel];
    else if (work->path == SP_PATH_TORCH_SYMM_MEM)
        plan = &symm_mem_plans[work->kernel];
    else
        plan = &path_plans[work->path];
    return plan->run ? plan : NULL;
}

sp_status sp_host_check(const sp_comm *comm, const sp_work *work) {
    if (work->dtype >= SP_DTYPE_COUNT) return sp_fail(SP_INVALID, "dtype %d does not exist", work->dtype);
    if (!sp_host_sums(work->dtype))
        return sp_fail(SP_UNAVAILABLE, "CPU ranks sum no fp8: NCCL and torch take it on GPUs only; use bf16, fp16 or fp32");
    if (work->path == SP_PATH_CUSTOM && work->kernel == SP_KERNEL_DRY)
        return sp_fail(SP_UNAVAILABLE, "v1's dry run communicates nothing: there is nothing to run");
    if (!plan_of(comm, work)) return sp_fail(SP_UNAVAILABLE, "CPU ranks have no kernel %d of path %d", work->kernel, work->path);
    if (work->nbytes / (unsigned)sp_dtype_bytes[work->dtype] != work->count ||
        work->nbytes % (unsigned)sp_dtype_bytes[work->dtype] != 0)
        return sp_fail(SP_INVALID, "%" PRIu64 " elements of %d bytes are not %" PRIu64 " bytes", work->count,
                       sp_dtype_bytes[work->dtype], work->nbytes);
    if (work->stamp) SP_TRY(sp_host_check_slots(work->stamp, SP_STAMPS_CALL));
    uintptr_t in = (uintptr_t)work->in, out = (uintptr_t)work->out, apart = in > out ? in - out : out - in;
    if (work->count && (!in || !out)) return sp_fail(SP_INVALID, "%" PRIu64 " elements at no address", work->count);
    if (apart && apart < work->nbytes)
        return sp_fail(SP_INVALID, "input and output overlap by %" PRIu64 " bytes: they must be the same or apart",
                       work->nbytes - (uint64_t)apart);
    return SP_OK;
}

/* Peers can read the input itself where it lies on the board, and this rank's output is not written over it meanwhile. */
static uint64_t source_of(const sp_comm *comm, const sp_work *work, const kernel_plan *plan) {
    bool reads = (plan->run == sp_host_one_shot || plan->run == sp_host_two_shot) && !plan->push_scatter;
    if (!reads || !(work->flags & SP_WORK_REGISTERED) || work->in == work->out) return 0;
    uint64_t offset = (uintptr_t)work->in - (uintptr_t)sp_board_base(comm->board);
    return sp_board_holds(comm->board, comm->world.rank, offset, work->nbytes) ? offset : 0;
}

static sp_status run_plan(sp_comm *comm, const sp_work *work, const kernel_plan *plan) {
    if (comm->world.size == 1) {
        sp_host_stamp_call(comm, work->stamp, SP_STAMP_ENTER);
        sp_host_stamp_call(comm, work->stamp, SP_STAMP_MET);
        if (work->in != work->out && work->nbytes) memcpy(work->out, work->in, work->nbytes);
        return SP_OK;
    }
    host_call call = {.in = work->in,
                      .out = work->out,
                      .nbytes = work->nbytes,
                      .element = (size_t)sp_dtype_bytes[work->dtype],
                      .dtype = work->dtype,
                      .stamp = work->stamp,
                      .plan = plan,
                      .deadline = work->deadline};
    call.header.call = (sp_board_call){0, work->nbytes, work->path, work->kernel, work->dtype, 0};
    call.header.source = source_of(comm, work, plan);
    return plan->run(comm, &call);
}

sp_status sp_host_run(sp_comm *comm, const sp_work *work) {
    if (comm->broken)
        return sp_fail(SP_PEER, "rank %d's communicator ended with an earlier failure: %s", comm->world.rank, comm->why);
    SP_TRY(sp_host_check(comm, work));
    const kernel_plan *plan = plan_of(comm, work);
    sp_board_phase(comm->board, plan->phase);
    sp_board_hurry(comm->board, work->stamp != 0);
    sp_status status = run_plan(comm, work, plan);
    sp_board_hurry(comm->board, false);
    if (!status) {
        sp_host_stamp_call(comm, work->stamp, SP_STAMP_LEFT);
        comm->ran[work->path]++;
    } else if (status != SP_MISMATCH) {
        comm->broken = true;
        strncpy(comm->why, sp_error(), sizeof comm->why - 1);
        return status; /* the phase stays: it is where this rank ended */
    }
    sp_board_phase(comm->board, SP_PHASE_IDLE);
    return status;
}
