/* The GPU device's table: its paths and everything else that the Coordinator calls. Handed to csrc/py by gpu.h.
 * Invariant: what SGLang calls and PyTorch owns (torch_distributed, torch_symm_mem) is run by Python and is NULL here, as is what no
 * GPU of NVIDIA has. */
#include "comm.h"
#include "gpu.h"

static sp_status in_place(sp_comm *comm, const sp_work *work) { return sp_pynccl_enqueue(comm, work, true); }

static sp_status out_of_place(sp_comm *comm, const sp_work *work) { return sp_pynccl_enqueue(comm, work, false); }

static sp_status need_custom(const sp_comm *comm) {
    SP_TRY(sp_comm_usable(comm, "custom"));
    return comm->custom ? SP_OK : sp_fail(SP_UNAVAILABLE, "no custom all-reduce: %s", comm->custom_why);
}

static sp_status custom_supports(sp_comm *comm, const sp_work *work) {
    SP_TRY(need_custom(comm));
    return sp_custom_supports(comm->custom, work);
}

static sp_status custom_enqueue(sp_comm *comm, const sp_work *work) {
    int before;
    SP_TRY(need_custom(comm));
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    sp_status status = sp_custom_enqueue(comm->custom, work);
    sp_device_leave(comm->world.ordinal, before);
    return status;
}

static sp_status in_place_finish(sp_comm *comm, void *stream, sp_deadline deadline) {
    return sp_comm_wait(comm, stream, NULL, "pynccl_in_place", deadline);
}

static sp_status out_of_place_finish(sp_comm *comm, void *stream, sp_deadline deadline) {
    return sp_comm_wait(comm, stream, NULL, "pynccl_out_of_place", deadline);
}

static sp_status custom_finish(sp_comm *comm, void *stream, sp_deadline deadline) {
    return sp_comm_wait(comm, stream, NULL, "custom", deadline);
}

static const sp_path_ops in_place_ops = {"ncclAllReduce, send buffer = receive buffer", sp_pynccl_supports, in_place,
                                         in_place_finish};
static const sp_path_ops out_of_place_ops = {"ncclAllReduce into another buffer", sp_pynccl_supports, out_of_place,
                                             out_of_place_finish};
/* The comparison: SGLang's own kernels beside ours in one run, two H200s, captured, bf16, 8 KiB to 16 MiB. */
static const sp_path_ops custom_ops = {"our CUDA kernels over CUDA IPC; time over that of SGLang's own on two H200s, measured, "
                                       "by kernel and size: v1 0.98 to 1.02, V2 of "
                                       "v0.5.23 0.94 to 1.06, V2 of v0.5.12 0.80 to 1.08",
                                       custom_supports, custom_enqueue, custom_finish};

sp_status sp_gpu_tune(sp_comm *comm, const sp_custom_tuning *tuning) {
    SP_TRY(need_custom(comm));
    sp_custom_tune(comm->custom, tuning);
    return SP_OK;
}

sp_status sp_gpu_shape(sp_comm *comm, const sp_work *work, uint32_t *blocks, uint32_t *threads, uint32_t *fit) {
    int before;
    SP_TRY(need_custom(comm));
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    sp_status status = sp_custom_shape(comm->custom, work, blocks, threads, fit);
    sp_device_leave(comm->world.ordinal, before);
    return status;
}

sp_status sp_gpu_empty(sp_comm *comm, const sp_work *work) {
    int before;
    SP_TRY(need_custom(comm));
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    sp_status status = sp_custom_empty(comm->custom, work);
    sp_device_leave(comm->world.ordinal, before);
    return status;
}

sp_status sp_gpu_ping_pong(sp_comm *comm, uint32_t trips, void *stream, sp_deadline deadline) {
    int before;
    SP_TRY(need_custom(comm));
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    sp_status status = sp_custom_ping_pong(comm->custom, trips, stream, deadline);
    sp_device_leave(comm->world.ordinal, before);
    return status;
}

static sp_status wait_all(sp_comm *comm, void *stream, sp_deadline deadline) {
    return sp_comm_wait(comm, stream, NULL, "waiting for the stream", deadline);
}

static sp_status registered(sp_comm *comm, uint64_t *addresses, sp_deadline deadline) {
    *addresses = 0;
    SP_TRY(sp_comm_usable(comm, "registering captured addresses"));
    return comm->custom ? sp_custom_registered(comm->custom, addresses, deadline) : SP_OK; /* all ranks have it, or none */
}

/* NCCL counts nothing on the GPU: its calls are those that were enqueued outside of a capture. */
static uint64_t ran(sp_comm *comm, uint8_t path) {
    int before;
    if (path == SP_PATH_PYNCCL_IN_PLACE) return comm->nccl.calls[1];
    if (path == SP_PATH_PYNCCL_OUT_OF_PLACE) return comm->nccl.calls[0];
    if (path != SP_PATH_CUSTOM || need_custom(comm) || sp_device_enter(comm->world.ordinal, &before)) return 0;
    uint64_t count = sp_custom_ran(comm->custom);
    sp_device_leave(comm->world.ordinal, before);
    return count;
}

static sp_status clock_of(sp_comm *comm, sp_clock *clock, sp_deadline deadline) {
    if (comm->world.size > 1) SP_TRY(need_custom(comm)); /* all ranks have it, or none */
    return sp_clock_compare(comm, clock, deadline);
}

static void set_style(sp_comm *comm, unsigned style) {
    const sp_custom_tuning tuning = {(sp_custom_style)style, true, 0};
    if (comm->custom && style < SP_CUSTOM_STYLES) sp_custom_tune(comm->custom, &tuning);
}

const sp_seam sp_gpu_seam = {
    .abi = SP_SEAM_ABI,
    .bytes = sizeof(sp_seam),
    .name = "gpu",
    .error = sp_error,
    .memory = {sp_gpu_alloc, sp_gpu_free, sp_gpu_export, sp_gpu_open, sp_gpu_close},
    .paths =
        {
            [SP_PATH_PYNCCL_IN_PLACE] = &in_place_ops,
            [SP_PATH_PYNCCL_OUT_OF_PLACE] = &out_of_place_ops,
            [SP_PATH_CUSTOM] = &custom_ops,
        },
    .window_alloc = sp_gpu_window_alloc,
    .window_free = sp_gpu_window_free,
    .join = sp_gpu_join,
    .leave = sp_gpu_leave,
    .abort = sp_gpu_abort,
    .capturing = sp_gpu_capturing,
    .copy = sp_gpu_copy,
    .capture_begin = sp_gpu_capture_begin,
    .capture_end = sp_gpu_capture_end,
    .registered = registered,
    .replay = sp_gpu_replay,
    .graph_free = sp_gpu_graph_free,
    .mark = sp_gpu_mark,
    .elapsed = sp_gpu_elapsed,
    .wait = wait_all,
    .ran = ran,
    .style = set_style,
    .bare = sp_pynccl_bare,
    .spin = sp_gpu_spin,
    .stamp = sp_gpu_stamp,
    .stamps_read = sp_gpu_stamps_read,
    .stamps_clear = sp_gpu_stamps_clear,
    .hold = sp_gpu_hold,
    .release = sp_gpu_release,
    .clock = clock_of,
};
