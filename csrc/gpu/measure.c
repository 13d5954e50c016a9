/* What measures a rank's GPU from the inside: stamps of its clock, compute kernels of a given length, streams that are held. Called through
 * the table in paths.c; clock.c has the comparison between GPUs.
 * Everything that these need is made when the rank joins, 160 KiB on the GPU and as much on the host, because at first use the stream may
 * be captured or held: then to allocate, to load a kernel or to copy for the first time would wait for what waits. Where it cannot be made,
 * as on a GPU that this build has no kernels for, the rank joins all the same, and each of these says why.
 * Invariant: a spin and a hold end by themselves, whatever becomes of the host. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "gpu.h"
#include "measure.h"

static const uint64_t spin_max_ns = UINT64_C(10) * 1000000000;

/* ---- made, and ended ---- */

static sp_status make(sp_comm *comm, sp_deadline deadline) {
    sp_measure *m = comm->measure;
    void *seen = NULL;
    int lowest, highest;
    SP_CUDA((cudaError_t)sp_kernel_load_all()); /* a kernel that is loaded at its first launch would wait for a hold */
    SP_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    SP_CUDA(cudaStreamCreateWithPriority(&m->side, cudaStreamNonBlocking, highest)); /* shares no queue with a held stream */
    SP_CUDA(cudaMalloc((void **)&m->device, sizeof *m->device));
    SP_CUDA(cudaHostAlloc((void **)&m->copy, sizeof *m->copy, cudaHostAllocPortable));
    SP_CUDA(cudaHostAlloc((void **)&m->host, sizeof *m->host, cudaHostAllocMapped | cudaHostAllocPortable));
    memset((void *)m->host, 0, sizeof *m->host);
    SP_CUDA(cudaHostGetDevicePointer(&seen, (void *)m->host, 0));
    m->seen = seen;
    SP_CUDA(cudaMemsetAsync(m->device, 0, sizeof *m->device, m->side));
    SP_CUDA(cudaMemcpyAsync(m->copy, m->device, sizeof *m->copy, cudaMemcpyDeviceToHost, m->side));
    return sp_comm_poll(comm, m->side, NULL, deadline);
}

void sp_measure_open(sp_comm *comm, sp_deadline deadline) {
    comm->measure = calloc(1, sizeof *comm->measure);
    sp_status status = comm->measure ? make(comm, deadline) : sp_fail(SP_NOMEM, "%zu bytes", sizeof *comm->measure);
    if (!status) return;
    sp_comm_keep(comm->measure_why, "%s", sp_error());
    sp_measure_close(comm, status == SP_TIMEOUT || status == SP_PEER);
}

sp_status sp_measure_need(const sp_comm *comm, const char *what) {
    SP_TRY(sp_comm_usable(comm, what));
    if (comm->measure) return SP_OK;
    return sp_fail(SP_UNAVAILABLE, "%s: nothing can be measured on GPU %d: %s", what, comm->world.ordinal, comm->measure_why);
}

bool sp_measure_holds(const sp_comm *comm) {
    const sp_measure *m = comm->measure;
    return m && m->host && m->host->released != atomic_load(&m->held);
}

/* From any thread. */
void sp_measure_abort(sp_comm *comm) {
    if (comm->measure && comm->measure->host) comm->measure->host->abort = 1;
}

void sp_measure_close(sp_comm *comm, bool broken) {
    sp_measure *m = comm->measure;
    comm->measure = NULL;
    if (m && !broken) {
        if (m->device) (void)cudaFree(m->device);
        if (m->copy) (void)cudaFreeHost(m->copy);
        if (m->host) (void)cudaFreeHost((void *)m->host);
        if (m->side) (void)cudaStreamDestroy(m->side);
        (void)cudaGetLastError();
    }
    free(m);
}

unsigned long long *sp_measure_slots(const sp_comm *comm) { return comm->measure ? comm->measure->device->slots : NULL; }

/* ---- on a stream ---- */

static sp_status launch(sp_comm *comm, int body, const sp_kernel_args *args, void *stream, const char *what) {
    const sp_kernel_shape shape = {1, 32, false};
    int before;
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    const cudaError_t error = sp_kernel_launch(body, 0, 0, args, &shape, stream);
    sp_device_leave(comm->world.ordinal, before);
    return error ? sp_cuda_fail(error, what) : SP_OK;
}

sp_status sp_gpu_spin(sp_comm *comm, uint64_t ns, void *stream) {
    SP_TRY(sp_measure_need(comm, "a spin"));
    if (ns > spin_max_ns)
        return sp_fail(SP_INVALID, "a spin of %.1f s: at most %.1f s", (double)ns / 1e9, (double)spin_max_ns / 1e9);
    const sp_kernel_args args = {.host = comm->measure->seen, .limit_ns = ns};
    return launch(comm, SP_BODY_SPIN, &args, stream, "a spin");
}

static sp_status check_slots(uint32_t first, uint32_t count) {
    if (first >= 1 && first <= SP_STAMPS && count <= SP_STAMPS + 1 - first) return SP_OK;
    return sp_fail(SP_INVALID, "%u stamps from slot %u: slots are 1 to %d", count, first, SP_STAMPS);
}

sp_status sp_gpu_stamp(sp_comm *comm, uint32_t slot, void *stream) {
    SP_TRY(sp_measure_need(comm, "a stamp"));
    SP_TRY(check_slots(slot, 1));
    const sp_kernel_args args = {.trace = comm->measure->device->slots + slot};
    return launch(comm, SP_BODY_STAMP, &args, stream, "a stamp");
}

sp_status sp_gpu_stamps_clear(sp_comm *comm, uint32_t first, uint32_t count, void *stream) {
    SP_TRY(sp_measure_need(comm, "clearing stamps"));
    SP_TRY(check_slots(first, count));
    unsigned long long *slots = comm->measure->device->slots + first;
    return count ? sp_gpu_copy(comm, slots, NULL, count * sizeof *slots, stream) : SP_OK;
}

/* By a stream of its own, which no hold stops, into memory that the GPU writes itself: a copy into any other is a wait without a limit. */
sp_status sp_gpu_stamps_read(sp_comm *comm, uint32_t first, uint32_t count, uint64_t *ns, sp_deadline deadline) {
    int before;
    const sp_measure *m = comm->measure;
    SP_TRY(sp_measure_need(comm, "reading stamps"));
    SP_TRY(check_slots(first, count));
    if (!count) return SP_OK;
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    const cudaError_t error = cudaMemcpyAsync(m->copy->slots + first, m->device->slots + first, count * sizeof *m->copy->slots,
                                              cudaMemcpyDeviceToHost, m->side);
    sp_device_leave(comm->world.ordinal, before);
    if (error) return sp_cuda_fail(error, "cudaMemcpyAsync of stamps");
    SP_TRY(sp_comm_wait(comm, m->side, NULL, "reading stamps", deadline));
    for (uint32_t i = 0; i < count; i++) ns[i] = SP_TRACE_TIME(m->copy->slots[first + i]);
    return SP_OK;
}

/* ---- held ---- */

/* What is enqueued meanwhile must not need the GPU's past to end: no first launch of a kernel (NCCL's and other libraries' are loaded by a
 * call of the same kind before the hold), no cudaFree, no copy to or from plain host memory; and a queue takes about a thousand launches, after
 * which the next one waits for the hold's end. */
sp_status sp_gpu_hold(sp_comm *comm, void *stream) {
    sp_measure *m = comm->measure;
    bool capturing;
    SP_TRY(sp_measure_need(comm, "a hold"));
    SP_TRY(sp_gpu_capturing(comm, stream, &capturing));
    if (capturing) return sp_fail(SP_INVALID, "a hold is not captured: hold the stream that the graph is replayed on");
    const uint32_t last = atomic_load(&m->held);
    if (m->host->released != last) return sp_fail(SP_INVALID, "a stream of this rank is held already: release it first");
    const sp_kernel_args args = {.host = m->seen, .count = last + 1, .limit_ns = SP_HOLD_NS};
    atomic_store(&m->held, last + 1); /* before the launch: a release from now on is this one's */
    sp_status status = launch(comm, SP_BODY_HOLD, &args, stream, "a hold");
    if (status) m->host->released = last + 1;
    return status;
}

/* From any thread; calls nothing of CUDA. */
void sp_gpu_release(sp_comm *comm) {
    if (comm->measure && comm->measure->host) comm->measure->host->released = atomic_load(&comm->measure->held);
}

sp_status sp_measure_check(sp_comm *comm) {
    sp_measure *m = comm->measure;
    const uint64_t expired = m ? m->host->report : 0;
    if (!expired || expired == m->told) return SP_OK;
    m->told = expired;
    if (m->host->released != (uint32_t)expired) sp_gpu_release(comm); /* it is over: the next one may begin */
    return sp_fail(SP_TIMEOUT,
                   "the stream was held for %.1f s and then went on by itself: what was enqueued behind the hold began before "
                   "release(), so its times mean nothing; enqueue less between hold() and release()",
                   (double)SP_HOLD_NS / 1e9);
}
