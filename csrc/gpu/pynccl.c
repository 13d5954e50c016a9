/* NCCL's communicator: built, warmed up, called, aborted. Called by comm.c and paths.c.
 * Invariant: whatever answers "in progress" is polled until it is done, the deadline has passed or a peer is gone; a call that NCCL
 * takes at once costs nothing beside it but the guard's three stores. */
#include <stdio.h>
#include <string.h>

#include "comm.h"

static const double ABORT_S = 5, CLOSE_S = 10;

static const struct {
    bool known;
    ncclDataType_t type;
} types[SP_DTYPE_COUNT] = {
    [SP_DTYPE_BF16] = {true, ncclBfloat16}, [SP_DTYPE_FP16] = {true, ncclFloat16}, [SP_DTYPE_FP32] = {true, ncclFloat32},
    [SP_DTYPE_FP64] = {true, ncclFloat64},  [SP_DTYPE_INT8] = {true, ncclInt8},    [SP_DTYPE_INT32] = {true, ncclInt32},
    [SP_DTYPE_INT64] = {true, ncclInt64},
};

static sp_status fail(const sp_pynccl *n, ncclComm_t of, ncclResult_t result, const char *call) {
    const char *last = n->api->ncclGetLastError(of);
    return sp_fail(SP_NCCL, "%s: %s%s%.200s", call, n->api->ncclGetErrorString(result), last && *last ? ": " : "",
                   last ? last : "");
}

/* A call's own answer is not enough: ncclCommSplit says "success" of what has only begun. */
sp_status sp_pynccl_settle(sp_comm *comm, ncclComm_t of, ncclResult_t result, const char *call, sp_deadline deadline) {
    sp_pynccl *n = &comm->nccl;
    int64_t start = sp_now_ns();
    for (unsigned looks = 0;; looks++) {
        if (result && result != ncclInProgress) return fail(n, of, result, call);
        ncclResult_t state = ncclSuccess;
        result = of ? n->api->ncclCommGetAsyncError(of, &state) : ncclSuccess;
        if (result) return fail(n, of, result, call);
        if (state == ncclSuccess) return SP_OK;
        if (state != ncclInProgress) return fail(n, of, state, call);
        if (sp_deadline_passed(deadline))
            return sp_fail(SP_TIMEOUT, "%s: still in progress after %.1f s: a rank does not come", call,
                           (double)(sp_now_ns() - start) / 1e9);
        SP_TRY(sp_check(&comm->world.exchange));
        sp_backoff(looks);
    }
}

/* The one element that SGLang reduces when it builds the communicator: NCCL connects and loads its kernels. */
static sp_status warm_up(sp_comm *comm, sp_deadline deadline) {
    sp_pynccl *n = &comm->nccl;
    cudaStream_t stream;
    void *one = NULL;
    SP_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cudaError_t error = cudaMalloc(&one, sizeof(float));
    if (!error) error = cudaMemsetAsync(one, 0, sizeof(float), stream);
    sp_status status = error ? sp_cuda_fail(error, "the element that warms NCCL up") : SP_OK;
    if (!status) {
        sp_guard_enter(&comm->guard, deadline);
        ncclResult_t result = n->api->ncclAllReduce(one, one, 1, ncclFloat32, ncclSum, n->comm, stream);
        sp_guard_leave(&comm->guard);
        bool gone = atomic_load(&n->state) == SP_PYNCCL_GONE;
        status = gone ? sp_fail(SP_TIMEOUT, "the warm-up was still inside ncclAllReduce at its deadline: a rank does not come")
                      : sp_pynccl_settle(comm, n->comm, result, "ncclAllReduce of the warm-up", deadline);
    }
    if (!status) status = sp_comm_poll(comm, stream, NULL, deadline);
    if (status) return status; /* stream and element stay: to free them waits for a kernel that may never end */
    cudaFree(one);
    cudaStreamDestroy(stream);
    return SP_OK;
}

static sp_status build(sp_comm *comm, const ncclUniqueId *id, sp_deadline deadline) {
    sp_pynccl *n = &comm->nccl;
    const sp_world *w = &comm->world;
    ncclConfig_t patient = NCCL_CONFIG_INITIALIZER, plain = NCCL_CONFIG_INITIALIZER;
    patient.blocking = 0;
    plain.blocking = 1;
    ncclResult_t result = n->api->ncclCommInitRankConfig(&n->parent, w->size, *id, w->rank, &patient);
    SP_TRY(sp_pynccl_settle(comm, n->parent, result, "ncclCommInitRankConfig", deadline));
    result = n->api->ncclCommSplit(n->parent, 0, w->rank, &n->comm, &plain);
    SP_TRY(sp_pynccl_settle(comm, n->parent, result, "ncclCommSplit", deadline));
    if (!n->comm) return sp_fail(SP_NCCL, "ncclCommSplit made no communicator and gave no reason");
    atomic_store(&n->state, SP_PYNCCL_READY);
    return warm_up(comm, deadline);
}

/* The parent has done its work, or takes down what it has begun. */
static void end_parent(sp_comm *comm, bool failed) {
    sp_pynccl *n = &comm->nccl;
    ncclResult_t result;
    if (n->parent && sp_bounded(failed ? n->api->ncclCommAbort : n->api->ncclCommDestroy, n->parent, failed ? ABORT_S : CLOSE_S,
                                comm->world.ordinal, &result))
        atomic_store(&n->left_behind, true);
    n->parent = NULL;
}

/* Half of what is left: if a peer never comes to NCCL, the custom paths still get their turn. */
static sp_deadline share(sp_deadline deadline) {
    if (deadline.at_ns == INT64_MAX) return sp_deadline_in(120);
    return (sp_deadline){sp_now_ns() + sp_deadline_left_ns(deadline) / 2};
}

typedef struct invitation {
    ncclUniqueId id;
    uint32_t status;
    char why[SP_WHY];
} invitation;

sp_status sp_pynccl_open(sp_comm *comm, sp_deadline deadline) {
    sp_pynccl *n = &comm->nccl;
    const sp_world *w = &comm->world;
    invitation mine, all[SP_RANKS_MAX];
    memset(&mine, 0, sizeof mine);
    if (w->rank == 0) {
        ncclResult_t result = n->api->ncclGetUniqueId(&mine.id);
        if (result) {
            mine.status = (uint32_t)fail(n, NULL, result, "ncclGetUniqueId");
            sp_comm_keep(mine.why, "rank 0 of %d: %s", w->size, sp_error());
        }
    }
    SP_TRY(sp_gather(&w->exchange, &mine, all, sizeof mine, deadline));
    if (all[0].status) {
        sp_comm_keep(n->why, "%s", all[0].why);
        return SP_OK;
    }
    sp_status status = build(comm, &all[0].id, share(deadline));
    sp_status agreed;
    char said[SP_WHY] = "";
    if (status) sp_comm_keep(said, "%s", sp_error());
    end_parent(comm, status != SP_OK);
    if (status) sp_fail(status, "%s", said);
    SP_TRY(sp_comm_agree(w, status, deadline, &agreed, n->why));
    if (agreed) sp_pynccl_abort(comm);
    return SP_OK;
}

sp_status sp_pynccl_supports(sp_comm *comm, const sp_work *work) {
    const sp_pynccl *n = &comm->nccl;
    int state = atomic_load_explicit(&n->state, memory_order_relaxed);
    if (state == SP_PYNCCL_ABSENT || *n->why) return sp_fail(SP_UNAVAILABLE, "no NCCL communicator: %s", n->why);
    SP_TRY(sp_comm_usable(comm, "pynccl"));
    if (state == SP_PYNCCL_GONE)
        return sp_fail(SP_TIMEOUT, "NCCL's communicator was aborted: a call was still inside NCCL at its deadline; join anew");
    if (work->dtype >= SP_DTYPE_COUNT) return sp_fail(SP_INVALID, "dtype %d: there are %d", work->dtype, SP_DTYPE_COUNT);
    if (!types[work->dtype].known)
        return sp_fail(SP_UNAVAILABLE, "SGLang's pynccl sums no fp8: reduce in bf16, fp16, fp32, fp64, int8, int32 or int64");
    return SP_OK;
}

/* What did not go through at once. */
static sp_status explain(sp_comm *comm, const sp_work *work, bool in_place, ncclResult_t result) {
    const sp_world *w = &comm->world;
    const char *path = in_place ? "pynccl_in_place" : "pynccl_out_of_place";
    sp_status status = SP_TIMEOUT;
    char said[SP_WHY] =
        "still inside ncclAllReduce at the deadline: a peer does not come, or too many calls wait in front of this one";
    bool gone = atomic_load(&comm->nccl.state) == SP_PYNCCL_GONE;
    if (gone && !atomic_load(&comm->guard.fired)) { /* by another thread, which says why */
        status = SP_PEER;
        sp_comm_keep(said, "NCCL's communicator was aborted while this call was made");
    }
    if (!gone) {
        status = sp_pynccl_settle(comm, comm->nccl.comm, result, "ncclAllReduce", work->deadline);
        if (!status) return SP_OK;
        sp_comm_keep(said, "%s", sp_error());
    }
    if (gone || status == SP_TIMEOUT || status == SP_PEER) sp_comm_break(comm, status, true);
    return sp_fail(status, "rank %d of %d, %s: %s", w->rank, w->size, path, said);
}

sp_status sp_pynccl_enqueue(sp_comm *comm, const sp_work *work, bool in_place) {
    sp_pynccl *n = &comm->nccl;
    if (atomic_load_explicit(&n->state, memory_order_relaxed) != SP_PYNCCL_READY || work->dtype >= SP_DTYPE_COUNT ||
        !types[work->dtype].known) {
        SP_TRY(sp_pynccl_supports(comm, work));
        return sp_fail(SP_TIMEOUT, "NCCL's communicator was aborted while this call was made; join anew");
    }
    if ((work->in == work->out) != in_place)
        return sp_fail(SP_INVALID, in_place ? "pynccl_in_place: the output is another buffer than the input"
                                            : "pynccl_out_of_place: the output is the input's own buffer");
    sp_guard_enter(&comm->guard, work->deadline);
    ncclResult_t result = n->api->ncclAllReduce(work->in, work->out, work->count, types[work->dtype].type, ncclSum, n->comm,
                                                work->stream);
    sp_guard_leave(&comm->guard);
    /* A call that was aborted while it waited may still say success. */
    bool gone = atomic_load_explicit(&n->state, memory_order_relaxed) != SP_PYNCCL_READY;
    if (result || gone) SP_TRY(explain(comm, work, in_place, result));
    n->calls[in_place] += !(work->flags & SP_WORK_CAPTURING);
    return SP_OK;
}

sp_status sp_pynccl_bare(sp_comm *comm, const sp_work *work, unsigned calls) {
    sp_pynccl *n = &comm->nccl;
    SP_TRY(sp_pynccl_supports(comm, work));
    ncclResult_t result = ncclSuccess;
    for (unsigned i = 0; i < calls && !result; i++)
        result = n->api->ncclAllReduce(work->in, work->out, work->count, types[work->dtype].type, ncclSum, n->comm, work->stream);
    return result ? fail(n, n->comm, result, "ncclAllReduce") : SP_OK;
}

sp_status sp_pynccl_check(sp_comm *comm) {
    sp_pynccl *n = &comm->nccl;
    ncclResult_t result = ncclSuccess, state = ncclSuccess;
    pthread_mutex_lock(&n->looking);
    int now = atomic_load(&n->state);
    if (now == SP_PYNCCL_READY) result = n->api->ncclCommGetAsyncError(n->comm, &state);
    sp_status status = SP_OK;
    if (now == SP_PYNCCL_GONE && !*n->why) /* it was there: what was enqueued on it has ended without a sum */
        status = atomic_load(&comm->guard.fired)
                     ? sp_fail(SP_TIMEOUT, "NCCL's communicator was aborted: a call was still inside NCCL at its deadline")
                     : sp_fail(SP_PEER, "NCCL's communicator was aborted");
    if (!result) result = state;
    if (result && result != ncclInProgress) status = fail(n, n->comm, result, "NCCL's asynchronous error");
    pthread_mutex_unlock(&n->looking);
    return status;
}

/* Whoever takes it ends it, and nobody else. */
static void end(sp_comm *comm, ncclResult_t (*call)(ncclComm_t), double seconds) {
    sp_pynccl *n = &comm->nccl;
    ncclResult_t result;
    int ready = SP_PYNCCL_READY;
    pthread_mutex_lock(&n->looking);
    bool ours = atomic_compare_exchange_strong(&n->state, &ready, SP_PYNCCL_GONE);
    pthread_mutex_unlock(&n->looking);
    if (ours && sp_bounded(call, n->comm, seconds, comm->world.ordinal, &result)) atomic_store(&n->left_behind, true);
}

void sp_pynccl_abort(sp_comm *comm) {
    if (comm->nccl.api) end(comm, comm->nccl.api->ncclCommAbort, ABORT_S);
}

void sp_pynccl_close(sp_comm *comm) {
    if (comm->nccl.api) end(comm, comm->nccl.api->ncclCommDestroy, CLOSE_S);
}
