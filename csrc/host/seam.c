/* The host's table of the seam: what the Coordinator calls on CPU ranks, and what stands behind each path's name.
 * Invariant: a call is done when enqueue returns, so that finish and wait have nothing to wait for. */
#include "comm.h"
#include "host.h"

static sp_status host_supports(sp_comm *comm, const sp_work *work) { return sp_host_check(comm, work); }

static sp_status host_enqueue(sp_comm *comm, const sp_work *work) {
    if (comm->recording) return sp_host_record_call(comm, work);
    if (work->flags & SP_WORK_CAPTURING) return sp_fail(SP_INVALID, "a captured call, and nothing is being captured");
    return sp_host_run(comm, work);
}

static sp_status host_wait(sp_comm *comm, void *stream, sp_deadline deadline) {
    (void)stream;
    (void)deadline; /* every call was done when it returned */
    return comm->broken ? sp_fail(SP_PEER, "rank %d's communicator ended: %s", comm->world.rank, comm->why) : SP_OK;
}

static uint64_t host_ran(sp_comm *comm, uint8_t path) { return path < SP_PATH_COUNT ? comm->ran[path] : 0; }

// clang-format off
#define OPS(name, text) static const sp_path_ops name = {text, host_supports, host_enqueue, host_wait};
OPS(custom_ops, "shared memory on CPU ranks: one-shot or two-shot, pushed or pulled, as the kernel's name says")
OPS(quick_ops, "shared memory on CPU ranks, one-shot by reading, standing in for QuickReduce")
OPS(mscclpp_ops, "shared memory on CPU ranks, one-shot by reading, standing in for MSCCL++")
OPS(symm_mem_ops, "shared memory on CPU ranks, one-shot or two-shot by the kernel's name, standing in for torch symmetric memory")
OPS(flashinfer_ops, "shared memory on CPU ranks, one-shot by writing, standing in for FlashInfer")
OPS(pynccl_ops, "a ring over shared memory on CPU ranks, standing in for NCCL")
OPS(torch_ops, "shared memory on CPU ranks: rank 0 sums, the others read it, standing in for torch.distributed")
OPS(cpu_shm_ops, "shared memory on CPU ranks, one-shot by reading, standing in for sgl_kernel's")
OPS(pcie_ipc_ops, "shared memory on CPU ranks, one-shot by writing, standing in for FlashInfer's PCIe-IPC kernel")
// clang-format on

const sp_seam sp_host_seam = {
    .abi = SP_SEAM_ABI,
    .bytes = sizeof(sp_seam),
    .name = "host",
    .error = sp_error,
    .memory = {sp_host_alloc, sp_host_free, sp_host_export, sp_host_open, sp_host_close},
    .paths =
        {
            [SP_PATH_CUSTOM] = &custom_ops,
            [SP_PATH_QUICK] = &quick_ops,
            [SP_PATH_MSCCLPP] = &mscclpp_ops,
            [SP_PATH_TORCH_SYMM_MEM] = &symm_mem_ops,
            [SP_PATH_FLASHINFER] = &flashinfer_ops,
            [SP_PATH_PYNCCL_IN_PLACE] = &pynccl_ops,
            [SP_PATH_PYNCCL_OUT_OF_PLACE] = &pynccl_ops,
            [SP_PATH_TORCH_DISTRIBUTED] = &torch_ops,
            [SP_PATH_CPU_SHM] = &cpu_shm_ops,
            [SP_PATH_PCIE_IPC] = &pcie_ipc_ops,
        },
    .join = sp_host_join,
    .leave = sp_host_leave,
    .abort = sp_host_abort,
    .capturing = sp_host_capturing,
    .copy = sp_host_copy,
    .capture_begin = sp_host_capture_begin,
    .capture_end = sp_host_capture_end,
    .registered = sp_host_registered,
    .replay = sp_host_replay,
    .graph_free = sp_host_graph_free,
    .mark = sp_host_mark,
    .elapsed = sp_host_elapsed,
    .wait = host_wait,
    .ran = host_ran,
    .spin = sp_host_spin,
    .stamp = sp_host_stamp,
    .stamps_read = sp_host_stamps_read,
    .stamps_clear = sp_host_stamps_clear,
    .hold = sp_host_hold,
    .release = sp_host_release,
    .clock = sp_host_clock,
};
