/* Joining, waiting, aborting and leaving of one rank on one GPU. Called through the table in paths.c.
 * Invariant: every rank makes the same exchanges whatever failed before; NCCL and the custom kernels fail each alone, with a reason
 * that is the same on all ranks; what waits is polled, and ends at its deadline with our kernels stopped first and NCCL aborted. */
#include "comm.h"

#include <cuda.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exchange.h"
#include "gpu.h"

void sp_comm_keep(char why[SP_WHY], const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(why, SP_WHY, format, args);
    va_end(args);
}

typedef struct vote {
    uint32_t status;
    char why[SP_WHY];
} vote;

sp_status sp_comm_agree(const sp_world *world, sp_status mine, sp_deadline deadline, sp_status *agreed, char why[SP_WHY]) {
    vote own, votes[SP_RANKS_MAX];
    memset(&own, 0, sizeof own);
    own.status = (uint32_t)mine;
    if (mine) sp_comm_keep(own.why, "rank %d of %d: %s", world->rank, world->size, sp_error());
    *agreed = SP_OK;
    SP_TRY(sp_gather(&world->exchange, &own, votes, sizeof own, deadline));
    for (int r = 0; r < world->size && !*agreed; r++)
        if (votes[r].status) {
            *agreed = (sp_status)votes[r].status;
            sp_comm_keep(why, "%s", votes[r].why);
        }
    return SP_OK;
}

sp_status sp_comm_usable(const sp_comm *comm, const char *phase) {
    int broken = atomic_load_explicit(&comm->broken, memory_order_relaxed);
    if (!broken) return SP_OK;
    return sp_fail((sp_status)broken, "rank %d of %d, %s: the communicators were aborted after a failure (%s); join anew",
                   comm->world.rank, comm->world.size, phase, sp_status_text((sp_status)broken));
}

static bool has_context(void) {
    void *found = NULL;
    __typeof__(cuCtxGetCurrent) *current;
    CUcontext context = NULL;
    enum cudaDriverEntryPointQueryResult answer;
    if (cudaGetDriverEntryPointByVersion("cuCtxGetCurrent", &found, 12000, cudaEnableDefault, &answer) || !found) return true;
    memcpy(&current, &found, sizeof found);
    return current(&context) == CUDA_SUCCESS && context;
}

/* Going back to a GPU that this thread has never used would make a context there: hundreds of megabytes on another rank's GPU. */
sp_status sp_device_enter(int ordinal, int *before) {
    SP_CUDA(cudaGetDevice(before));
    if (*before == ordinal) return SP_OK;
    bool used = has_context();
    SP_CUDA(cudaSetDevice(ordinal));
    if (!used) *before = ordinal;
    return SP_OK;
}

void sp_device_leave(int ordinal, int before) {
    if (before != ordinal) (void)cudaSetDevice(before);
}

static sp_status custom_check(const sp_comm *comm) { return comm->custom ? sp_custom_status(comm->custom) : SP_OK; }

/* A peer that ended well may be gone before our own last kernel is. */
enum { GRACE_NS = 100000000 };

sp_status sp_comm_poll(sp_comm *comm, cudaStream_t stream, cudaEvent_t event, sp_deadline deadline) {
    int64_t start = sp_now_ns(), gone_ns = 0;
    for (unsigned looks = 0;; looks++) {
        cudaError_t error = event ? cudaEventQuery(event) : cudaStreamQuery(stream);
        if (error && error != cudaErrorNotReady) return sp_cuda_fail(error, event ? "cudaEventQuery" : "cudaStreamQuery");
        SP_TRY(sp_pynccl_check(comm)); /* before custom: a call that hung inside NCCL has both aborted, and only NCCL's says so */
        SP_TRY(custom_check(comm));
        if (!error) return SP_OK;
        (void)cudaGetLastError();
        sp_status peers = sp_check(&comm->world.exchange);
        int64_t now = sp_now_ns();
        if (peers && gone_ns && now - gone_ns > GRACE_NS) return peers;
        if (peers && !gone_ns) gone_ns = now;
        if (sp_deadline_passed(deadline) && sp_measure_holds(comm))
            return sp_fail(SP_TIMEOUT, "nothing within %.1f s, for this rank's stream is held: release() it, then wait",
                           (double)(now - start) / 1e9);
        if (sp_deadline_passed(deadline))
            return sp_fail(SP_TIMEOUT,
                           "nothing within %.1f s; no peer is gone and NCCL reports no error, so a rank did not make this call, "
                           "or made another",
                           (double)(now - start) / 1e9);
        sp_backoff(looks);
    }
}

sp_status sp_comm_wait(sp_comm *comm, void *stream, cudaEvent_t event, const char *phase, sp_deadline deadline) {
    int before;
    bool capturing = false;
    char said[SP_WHY];
    SP_TRY(sp_comm_usable(comm, phase));
    if (!event) SP_TRY(sp_gpu_capturing(comm, stream, &capturing));
    if (capturing)
        return sp_fail(SP_INVALID, "%s: the stream is being captured, so nothing runs that could end; end the capture first",
                       phase);
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed; /* another stream of this thread may be capturing */
    bool exchanged = !cudaThreadExchangeStreamCaptureMode(&mode);
    sp_status status = sp_comm_poll(comm, stream, event, deadline);
    if (exchanged) (void)cudaThreadExchangeStreamCaptureMode(&mode);
    if (status) {
        sp_comm_keep(said, "%s", sp_error());
        sp_comm_break(comm, status, true);
        const char *end = atomic_load(&comm->nccl.left_behind) ? "NCCL does not let itself be aborted: end this process"
                                                               : "the communicators are aborted";
        sp_fail(status, "rank %d of %d, %s: %s; %s", comm->world.rank, comm->world.size, phase, said, end);
    }
    sp_device_leave(comm->world.ordinal, before);
    if (status) return status;
    status = sp_measure_check(comm); /* what ran is right all the same, so nothing is aborted */
    if (status) {
        sp_comm_keep(said, "%s", sp_error());
        sp_fail(status, "rank %d of %d, %s: %s", comm->world.rank, comm->world.size, phase, said);
    }
    return status;
}

/* Graphs hold NCCL back until they are gone; another thread cannot drop what this rank's own may be replaying. */
void sp_comm_break(sp_comm *comm, sp_status why, bool own_thread) {
    int whole = 0;
    if (!atomic_compare_exchange_strong(&comm->broken, &whole, (int)why)) return;
    sp_measure_abort(comm); /* it may hold back what ends next */
    if (comm->custom) sp_custom_abort(comm->custom);
    if (own_thread) sp_graph_drop_all(comm);
    sp_pynccl_abort(comm);
}

/* The guard's: only what makes the call return. The rank's own thread, which is inside, does the rest. */
static void get_out(void *owner) {
    sp_comm *comm = owner;
    sp_measure_abort(comm);
    if (comm->custom) sp_custom_abort(comm->custom);
    sp_pynccl_abort(comm);
}

/* What each rank tells of itself before anything is built. */
typedef struct hello {
    uint32_t status, nccl_status;
    int32_t nccl_version;
    char bus[32];
    char why[SP_WHY], nccl[SP_WHY]; /* nccl: its path, or why there is none */
} hello;

static sp_status start(sp_comm *comm, hello *mine) {
    sp_gpu_device device;
    int before;
    SP_TRY(sp_gpu_device_read(comm->world.ordinal, &device));
    memcpy(mine->bus, device.bus, sizeof mine->bus);
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    cudaError_t error = cudaFree(NULL); /* makes the context */
    for (int i = 0; i < 2 && !error; i++) error = cudaEventCreate(&comm->marks[i]);
    sp_device_leave(comm->world.ordinal, before);
    return error ? sp_cuda_fail(error, "the first use of the GPU") : SP_OK;
}

/* Why no rank shall build NCCL's communicator, or "". */
static void judge_nccl(const sp_world *w, const hello *all, char why[SP_WHY]) {
    char version[2][16];
    if (w->size == 1) sp_comm_keep(why, "SGLang makes none for a group of one rank");
    bool far = sp_exchange_is_far(&w->exchange); /* then two machines' buses may have one number */
    for (int r = w->size - 1; r >= 0; r--) {
        for (int other = 0; other < r && !far; other++)
            if (strncmp(all[r].bus, all[other].bus, sizeof all[r].bus) == 0)
                sp_comm_keep(why, "NCCL refuses two ranks on one GPU, and ranks %d and %d of %d are both on GPU %s", other, r,
                             w->size, all[r].bus);
        if (all[r].nccl_version != all[0].nccl_version && !all[r].nccl_status && !all[0].nccl_status) {
            sp_nccl_version_text(all[0].nccl_version, version[0]);
            sp_nccl_version_text(all[r].nccl_version, version[1]);
            sp_comm_keep(why,
                         "NCCL %s on rank 0 (%.120s) and NCCL %s on rank %d (%.120s): give all ranks one SGLANG_NCCL_SO_PATH",
                         version[0], all[0].nccl, version[1], r, all[r].nccl);
        }
        if (all[r].nccl_status) sp_comm_keep(why, "rank %d of %d: %s", r, w->size, all[r].nccl);
    }
}

static sp_status meet(sp_comm *comm, const sp_world *world, sp_deadline deadline) {
    hello mine, all[SP_RANKS_MAX];
    memset(&mine, 0, sizeof mine);
    mine.status = (uint32_t)start(comm, &mine);
    if (mine.status)
        sp_comm_keep(mine.why, "rank %d of %d, joining on GPU %d: %s", world->rank, world->size, world->ordinal, sp_error());
    mine.nccl_status = (uint32_t)sp_nccl_load(world->nccl_path, &comm->nccl.api);
    sp_comm_keep(mine.nccl, "%s", mine.nccl_status ? sp_error() : comm->nccl.api->path);
    mine.nccl_version = mine.nccl_status ? 0 : comm->nccl.api->version;
    SP_TRY(sp_gather(&world->exchange, &mine, all, sizeof mine, deadline));
    for (int r = 0; r < world->size; r++)
        if (all[r].status) return sp_fail((sp_status)all[r].status, "%s", all[r].why);
    judge_nccl(world, all, comm->nccl.why);
    return SP_OK;
}

static sp_status join_nccl(sp_comm *comm, sp_deadline deadline) {
    sp_status agreed;
    if (*comm->nccl.why) return SP_OK; /* on every rank */
    sp_status status = sp_guard_start(&comm->guard, get_out, comm);
    SP_TRY(sp_comm_agree(&comm->world, status, deadline, &agreed, comm->nccl.why));
    return agreed ? SP_OK : sp_pynccl_open(comm, deadline);
}

static sp_status join_custom(sp_comm *comm, sp_deadline deadline) {
    sp_custom *custom = NULL;
    if (sp_exchange_is_far(&comm->world.exchange)) {
        sp_comm_keep(comm->custom_why,
                     "CUDA IPC, by which its ranks share memory, ends at a machine's edge: these ranks met over NCCL");
        return SP_OK;
    }
    sp_status agreed, status = sp_custom_open(&sp_gpu_seam.memory, comm, &comm->world, deadline, &custom);
    SP_TRY(sp_comm_agree(&comm->world, status, deadline, &agreed, comm->custom_why));
    if (agreed && !status) sp_custom_close(custom, false);
    if (agreed) return SP_OK;
    comm->custom = custom;
    sp_custom_stamps(custom, sp_measure_slots(comm));
    return SP_OK;
}

/* All ranks can measure, or none: a rank that alone refuses to would leave the others at their next barrier. */
static sp_status join_measure(sp_comm *comm, sp_deadline deadline) {
    sp_status agreed;
    sp_measure_open(comm, deadline);
    sp_status status = comm->measure ? SP_OK : sp_fail(SP_UNAVAILABLE, "%s", comm->measure_why);
    SP_TRY(sp_comm_agree(&comm->world, status, deadline, &agreed, comm->measure_why));
    if (agreed) sp_measure_close(comm, false);
    return SP_OK;
}

sp_status sp_gpu_join(const sp_world *world, sp_deadline deadline, sp_comm **joined) {
    int before = world->ordinal;
    if (world->size < 1 || world->size > SP_RANKS_MAX || world->rank < 0 || world->rank >= world->size)
        return sp_fail(SP_INVALID, "rank %d of %d: 1 to %d ranks, numbered from 0", world->rank, world->size, SP_RANKS_MAX);
    if (!world->exchange.all_gather || !world->exchange.check) return sp_fail(SP_INVALID, "ranks need an exchange to join");
    sp_comm *comm = calloc(1, sizeof *comm);
    if (!comm) return sp_fail(SP_NOMEM, "rank %d of %d, joining: %zu bytes", world->rank, world->size, sizeof *comm);
    pthread_mutex_init(&comm->nccl.looking, NULL);
    comm->world = *world;
    comm->world.nccl_path = NULL;
    sp_status status = meet(comm, world, deadline);
    if (!status) status = sp_device_enter(world->ordinal, &before);
    if (!status) status = join_measure(comm, deadline);
    if (!status) status = join_nccl(comm, deadline);
    if (!status) status = join_custom(comm, deadline);
    sp_device_leave(world->ordinal, before);
    if (status) {
        char said[SP_WHY];
        sp_comm_keep(said, "%s", sp_error());
        sp_gpu_leave(comm, true);
        return sp_fail(status, "%s", said);
    }
    *joined = comm;
    return SP_OK;
}

/* From any thread. */
void sp_gpu_abort(sp_comm *comm) { sp_comm_break(comm, SP_PEER, false); }

void sp_gpu_leave(sp_comm *comm, bool broken) {
    int before = comm->world.ordinal;
    sp_gpu_release(comm);
    if (broken) sp_comm_break(comm, SP_PEER, true);
    broken = atomic_load(&comm->broken) != 0;
    bool entered = sp_device_enter(comm->world.ordinal, &before) == SP_OK;
    sp_graph_drop_all(comm);
    sp_window_close_all(comm);
    sp_guard_stop(&comm->guard);
    sp_pynccl_close(comm); /* within a limit; and before custom, whose frees wait for whatever the GPU runs */
    if (atomic_load(&comm->nccl.left_behind)) {
        broken = true;
        atomic_store(&comm->broken, SP_TIMEOUT);
    }
    if (comm->custom) sp_custom_close(comm->custom, broken);
    sp_measure_close(comm, broken);
    sp_memory_close_all(comm);
    for (int i = 0; i < 2; i++)
        if (comm->marks[i]) (void)cudaEventDestroy(comm->marks[i]);
    if (entered) sp_device_leave(comm->world.ordinal, before);
    while (comm->graphs) sp_gpu_graph_free(comm, comm->graphs);
    if (atomic_load(&comm->nccl.left_behind)) return;
    pthread_mutex_destroy(&comm->nccl.looking);
    free(comm);
}
