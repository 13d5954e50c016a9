/* An exchange over NCCL. See exchange.h.
 * Every all-gather is one or more ncclAllGather of slots whose size all ranks know: the first holds a head, so that ranks that gather
 * other numbers of bytes find out, all of them, and nobody waits. Its stream has the highest priority, and with it hardware queues
 * apart from those of streams that are measured, or held.
 * Invariant: no call into NCCL blocks (the communicator is made so), and every wait looks at its deadline and at NCCL's asynchronous
 * error. */
#include "exchange.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"

enum { SLOT_FIRST = 4096, SLOT = 65536 }; /* bytes of a rank in the first ncclAllGather, and in each later one */
static const double ABORT_S = 5, CLOSE_S = 10, DRAIN_S = 1;

typedef struct head {
    uint64_t turn, bytes; /* of the whole all-gather */
} head;

struct sp_nccl_exchange {
    sp_exchange exchange;
    const sp_nccl_api *api;
    ncclComm_t comm;
    cudaStream_t stream;
    uint8_t *host, *device; /* SLOT bytes of this rank, then SLOT bytes of each; host is pinned */
    int rank, size, ordinal;
    pid_t pid; /* of the process that opened it: a fork of that only forgets */
    uint64_t turn;
    sp_status broken;
    char why[SP_WHY];
    bool left_behind; /* a thread is still inside NCCL, or a kernel on the GPU: nothing is freed */
};

static sp_status fail(const sp_nccl_exchange *e, ncclResult_t result, const char *call) {
    const char *last = e->api->ncclGetLastError(e->comm);
    return sp_fail(result == ncclRemoteError ? SP_PEER : SP_NCCL, "%s: %s%s%.200s", call, e->api->ncclGetErrorString(result),
                   last && *last ? ": " : "", last ? last : "");
}

/* Until NCCL has taken what it was asked for; it does so in a thread of its own. */
static sp_status settle(const sp_nccl_exchange *e, ncclResult_t result, const char *call, sp_deadline deadline) {
    int64_t start = sp_now_ns();
    for (unsigned looks = 0;; looks++) {
        if (result && result != ncclInProgress) return fail(e, result, call);
        ncclResult_t state = ncclSuccess;
        result = e->comm ? e->api->ncclCommGetAsyncError(e->comm, &state) : ncclSuccess;
        if (result) return fail(e, result, call);
        if (state == ncclSuccess) return SP_OK;
        if (state != ncclInProgress) return fail(e, state, call);
        if (sp_deadline_passed(deadline))
            return sp_fail(SP_TIMEOUT, "%s: still in progress after %.1f s: a rank does not come", call,
                           (double)(sp_now_ns() - start) / 1e9);
        sp_backoff(looks);
    }
}

static sp_status look(const sp_nccl_exchange *e) {
    ncclResult_t state = ncclSuccess;
    ncclResult_t result = e->api->ncclCommGetAsyncError(e->comm, &state);
    if (!result) result = state;
    return result && result != ncclInProgress ? fail(e, result, "NCCL's asynchronous error") : SP_OK;
}

static sp_status drain(const sp_nccl_exchange *e, sp_deadline deadline) {
    int64_t start = sp_now_ns();
    for (unsigned looks = 0;; looks++) {
        cudaError_t error = cudaStreamQuery(e->stream);
        if (error && error != cudaErrorNotReady) return sp_cuda_fail(error, "cudaStreamQuery");
        if (!error) return SP_OK;
        (void)cudaGetLastError();
        SP_TRY(look(e));
        if (sp_deadline_passed(deadline))
            return sp_fail(SP_TIMEOUT,
                           "nothing within %.1f s, and NCCL reports no error: a rank is gone, stands still, or did not make this "
                           "call (ranks on several machines cannot see which)",
                           (double)(sp_now_ns() - start) / 1e9);
        sp_backoff(looks);
    }
}

/* What stands in the host's first `slot` bytes, to all; everybody's comes behind the first SLOT bytes. */
static sp_status gather_slot(const sp_nccl_exchange *e, size_t slot, sp_deadline deadline) {
    SP_CUDA(cudaMemcpyAsync(e->device, e->host, slot, cudaMemcpyHostToDevice, e->stream));
    ncclResult_t result = e->api->ncclAllGather(e->device, e->device + SLOT, slot, ncclUint8, e->comm, e->stream);
    SP_TRY(settle(e, result, "ncclAllGather", deadline)); /* before the copy that must come after it on the stream */
    SP_CUDA(cudaMemcpyAsync(e->host + SLOT, e->device + SLOT, slot * (size_t)e->size, cudaMemcpyDeviceToHost, e->stream));
    return drain(e, deadline);
}

static sp_status compare(const sp_nccl_exchange *e, const head *mine) {
    for (int r = 0; r < e->size; r++) {
        head theirs;
        memcpy(&theirs, e->host + SLOT + (size_t)r * SLOT_FIRST, sizeof theirs);
        if (theirs.turn != mine->turn || theirs.bytes != mine->bytes)
            return sp_fail(SP_MISMATCH,
                           "rank %d gathers %" PRIu64 " bytes (its gather %" PRIu64 "), rank %d %" PRIu64 " (its %" PRIu64
                           "): ranks must make the same calls, in the same order",
                           r, theirs.bytes, theirs.turn, e->rank, mine->bytes, mine->turn);
    }
    return SP_OK;
}

static sp_status gather_all(sp_nccl_exchange *e, const uint8_t *mine, uint8_t *all, size_t bytes, sp_deadline deadline) {
    const head first = {++e->turn, bytes};
    for (size_t at = 0, slot = SLOT_FIRST, skip = sizeof first;; slot = SLOT, skip = 0) {
        size_t room = slot - skip, piece = bytes - at < room ? bytes - at : room;
        memset(e->host, 0, slot);
        if (skip) memcpy(e->host, &first, sizeof first);
        if (piece) memcpy(e->host + skip, mine + at, piece);
        SP_TRY(gather_slot(e, slot, deadline));
        if (skip) SP_TRY(compare(e, &first));
        for (int r = 0; piece && r < e->size; r++)
            memcpy(all + (size_t)r * bytes + at, e->host + SLOT + (size_t)r * slot + skip, piece);
        at += piece;
        if (at == bytes) return SP_OK;
    }
}

static void end_comm(sp_nccl_exchange *e, ncclResult_t (*call)(ncclComm_t), double seconds) {
    ncclResult_t result;
    if (e->comm && sp_bounded(call, e->comm, seconds, e->ordinal, &result)) e->left_behind = true;
    e->comm = NULL;
}

/* NCCL's kernel waits on the GPU until it is aborted. */
static sp_status break_it(sp_nccl_exchange *e, sp_status status) {
    char said[SP_WHY];
    sp_comm_keep(said, "%s", sp_error());
    e->broken = status;
    sp_comm_keep(e->why, "%s", said);
    end_comm(e, e->api->ncclCommAbort, ABORT_S);
    return sp_fail(status, "rank %d of %d, meeting over NCCL: %s%s", e->rank, e->size, said,
                   e->left_behind ? "; NCCL does not let itself be aborted: end this process" : "");
}

static sp_status far_all_gather(void *self, const void *mine, void *all, size_t bytes, sp_deadline deadline) {
    sp_nccl_exchange *e = self;
    int before;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed; /* another stream of this thread may be capturing */
    if (e->broken)
        return sp_fail(e->broken, "rank %d of %d, meeting over NCCL: it is broken: %s; join anew", e->rank, e->size, e->why);
    if (bytes && (!mine || !all)) return sp_fail(SP_INVALID, "an all-gather of %zu bytes needs both addresses", bytes);
    SP_TRY(sp_device_enter(e->ordinal, &before));
    bool exchanged = cudaThreadExchangeStreamCaptureMode(&mode) == cudaSuccess;
    sp_status status = gather_all(e, mine, all, bytes, deadline);
    if (status && status != SP_MISMATCH) status = break_it(e, status);
    if (exchanged) (void)cudaThreadExchangeStreamCaptureMode(&mode);
    sp_device_leave(e->ordinal, before);
    return status;
}

static sp_status far_check(void *self) {
    sp_nccl_exchange *e = self;
    if (e->broken)
        return sp_fail(e->broken, "rank %d of %d, meeting over NCCL: it is broken: %s; join anew", e->rank, e->size, e->why);
    sp_status status = look(e);
    return status ? break_it(e, status) : SP_OK;
}

bool sp_exchange_is_far(const sp_exchange *exchange) { return exchange->all_gather == far_all_gather; }
const sp_exchange *sp_exchange_of(const sp_nccl_exchange *exchange) { return &exchange->exchange; }
int sp_exchange_size(const sp_nccl_exchange *exchange) { return exchange->size; }

static sp_status build(sp_nccl_exchange *e, sp_deadline deadline) {
    int lowest, highest;
    size_t bytes = (size_t)SLOT * (size_t)(e->size + 1);
    SP_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    SP_CUDA(cudaStreamCreateWithPriority(&e->stream, cudaStreamNonBlocking, highest));
    SP_CUDA(cudaMallocHost((void **)&e->host, bytes));
    SP_CUDA(cudaMalloc((void **)&e->device, bytes));
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.minCTAs = config.maxCTAs = 1;                /* it moves little, and shall take little of the GPU */
    ncclResult_t result = e->api->ncclGetUniqueId(&id); /* the same on every rank: made from NCCL_COMM_ID */
    if (result) return fail(e, result, "ncclGetUniqueId");
    result = e->api->ncclCommInitRankConfig(&e->comm, e->size, id, e->rank, &config);
    SP_TRY(settle(e, result, "ncclCommInitRankConfig", deadline));
    uint8_t all[SP_RANKS_MAX], mine = (uint8_t)e->rank;
    SP_TRY(gather_all(e, &mine, all, 1, deadline));
    for (int r = 0; r < e->size; r++)
        if (all[r] != r) return sp_fail(SP_MISMATCH, "NCCL's rank %d says that it is rank %d", r, all[r]);
    return SP_OK;
}

sp_status sp_exchange_open(int rank, int size, int ordinal, const char *nccl_path, sp_deadline deadline,
                           sp_nccl_exchange **exchange) {
    int before;
    const char *address = getenv("NCCL_COMM_ID");
    if (size < 2 || size > SP_RANKS_MAX || rank < 0 || rank >= size)
        return sp_fail(SP_INVALID, "rank %d of %d: 2 to %d ranks, numbered from 0, meet over NCCL", rank, size, SP_RANKS_MAX);
    if (!address || !*address)
        return sp_fail(SP_INVALID, "rank %d of %d, meeting over NCCL: set NCCL_COMM_ID to rank 0's host:port", rank, size);
    sp_nccl_exchange *e = calloc(1, sizeof *e);
    if (!e) return sp_fail(SP_NOMEM, "rank %d of %d, meeting over NCCL: %zu bytes", rank, size, sizeof *e);
    e->rank = rank, e->size = size, e->ordinal = ordinal;
    e->pid = getpid();
    e->exchange = (sp_exchange){e, far_all_gather, far_check, sp_error};
    sp_status status = sp_nccl_load(nccl_path, &e->api);
    if (!status) status = sp_device_enter(ordinal, &before);
    if (status) {
        free(e);
        return status;
    }
    status = build(e, deadline);
    if (status) {
        char said[SP_WHY];
        sp_comm_keep(said, "%s", sp_error());
        e->broken = status;
        end_comm(e, e->api->ncclCommAbort, ABORT_S);
        sp_exchange_close(e);
        sp_fail(
            status,
            "rank %d of %d, meeting over NCCL at %.100s: %s; rank 0 must be at that address, and every rank have an interface in "
            "its subnet (NCCL_DEBUG=INFO says what NCCL tries)",
            rank, size, address, said);
    } else {
        *exchange = e;
    }
    sp_device_leave(ordinal, before);
    return status;
}

void sp_exchange_close(sp_nccl_exchange *e) {
    int before;
    if (!e || e->pid != getpid()) return;
    if (sp_device_enter(e->ordinal, &before)) return; /* without its device nothing of it can be given back */
    end_comm(e, e->api->ncclCommDestroy, CLOSE_S);
    /* What NCCL leaves on the stream would hold up a free without a limit. */
    sp_deadline deadline = sp_deadline_in(DRAIN_S);
    bool idle = !e->left_behind && e->stream;
    for (unsigned looks = 0; idle && cudaStreamQuery(e->stream) == cudaErrorNotReady; looks++) {
        (void)cudaGetLastError();
        idle = !sp_deadline_passed(deadline);
        sp_backoff(looks);
    }
    if (idle || !e->stream) {
        if (e->device) (void)cudaFree(e->device);
        if (e->host) (void)cudaFreeHost(e->host);
        if (e->stream) (void)cudaStreamDestroy(e->stream);
    }
    sp_device_leave(e->ordinal, before);
    if (!e->left_behind) free(e);
}
