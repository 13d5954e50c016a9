/* Ranks of one process: their exchange, their memory, and a thread for each where all must take part. Called by many.c.
 * Invariant: an exchange ends for all ranks or, after an error or the deadline, for none; nobody waits for a thread that has ended. */
#include <stdlib.h>
#include <string.h>

#include "many_parts.h"

sp_status sp_many_cuda(cudaError_t error, const char *what) {
    return error ? sp_fail(SP_CUDA, "%s: %s", what, cudaGetErrorString(error)) : SP_OK;
}

/* Two tensors a launch, each behind a gap. */
static uint64_t allocated(const sp_many *w) { return 2 * w->burst * (w->what->nbytes + SP_MANY_OFFSET); }

uint8_t *sp_many_in(const sp_member *m, uint32_t launch) {
    return m->base + SP_MANY_OFFSET + 2 * launch * (m->many->what->nbytes + SP_MANY_OFFSET);
}

uint8_t *sp_many_out(const sp_member *m, uint32_t launch) {
    return sp_many_in(m, launch) + (m->many->what->in_place ? 0 : m->many->what->nbytes + SP_MANY_OFFSET);
}

/* ---- exchange and memory, inside one process ---- */

static sp_status all_gather(void *self, const void *mine, void *all, size_t bytes, sp_deadline deadline) {
    sp_member *m = self;
    sp_many *w = m->many;
    if (bytes > SP_MANY_GATHERED)
        return sp_fail(SP_INVALID, "an exchange of %zu bytes a rank: at most %d", bytes, SP_MANY_GATHERED);
    const int64_t at = deadline.at_ns < w->deadline.at_ns ? deadline.at_ns : w->deadline.at_ns;
    const struct timespec until = {at / 1000000000, at % 1000000000};
    int late = 0;
    pthread_mutex_lock(&w->lock);
    const uint64_t round = w->round;
    uint8_t *board = w->board[round % 2];
    memcpy(board + (size_t)m->rank * bytes, mine, bytes);
    if (++w->here == w->world) {
        w->here = 0;
        w->round++;
        pthread_cond_broadcast(&w->all_here);
    }
    while (w->round == round && !late && !w->failed) late = pthread_cond_timedwait(&w->all_here, &w->lock, &until);
    const bool met = w->round != round;
    if (met) memcpy(all, board, bytes * (size_t)w->world);
    pthread_mutex_unlock(&w->lock);
    if (met) return SP_OK;
    return late ? sp_fail(SP_TIMEOUT, "rank %d: not all ranks came to an exchange in time", m->rank)
                : sp_fail(SP_PEER, "rank %d: another rank failed", m->rank);
}

static sp_status check(void *self) {
    (void)self;
    return SP_OK;
}

static sp_status take(sp_comm *comm, size_t bytes, void **data) {
    SP_TRY(sp_many_cuda(cudaSetDevice(((sp_member *)comm)->ordinal), "cudaSetDevice"));
    return sp_many_cuda(cudaMalloc(data, bytes), "cudaMalloc");
}

static void give(sp_comm *comm, void *data) {
    if (!cudaSetDevice(((sp_member *)comm)->ordinal)) cudaFree(data);
}

static sp_status export_address(sp_comm *comm, const void *data, sp_handle *handle) {
    const sp_member *m = (const sp_member *)comm;
    const bool ours = (const uint8_t *)data >= m->base && (const uint8_t *)data < m->base + allocated(m->many);
    const uint8_t *start = ours ? m->base : data;
    memset(handle, 0, sizeof *handle);
    memcpy(handle->bytes, &start, sizeof start);
    handle->offset = (uint64_t)((const uint8_t *)data - start);
    return SP_OK;
}

static sp_status open_address(sp_comm *comm, const sp_handle *handle, void **data) {
    uint8_t *start;
    (void)comm;
    memcpy(&start, handle->bytes, sizeof start);
    *data = start + handle->offset;
    return SP_OK;
}

static void close_address(sp_comm *comm, const sp_handle *handle, void *data) { (void)comm, (void)handle, (void)data; }

static const sp_memory memory = {take, give, export_address, open_address, close_address};

/* ---- collective calls, on a thread a rank ---- */

typedef struct errand {
    sp_member *member;
    sp_status (*run)(sp_member *m);
} errand;

static void *run_errand(void *given) {
    errand *e = given;
    e->member->status = sp_many_cuda(cudaSetDevice(e->member->ordinal), "cudaSetDevice");
    if (!e->member->status) e->member->status = e->run(e->member);
    if (!e->member->status) return NULL;
    strncpy(e->member->why, sp_error(), sizeof e->member->why - 1);
    sp_many *w = e->member->many;
    pthread_mutex_lock(&w->lock);
    w->failed = true;
    pthread_cond_broadcast(&w->all_here);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

sp_status sp_many_together(sp_many *w, sp_status (*run)(sp_member *m)) {
    pthread_t thread[SP_MANY_RANKS];
    errand errands[SP_MANY_RANKS];
    int started = 0;
    while (started < w->world) {
        errands[started] = (errand){&w->member[started], run};
        if (pthread_create(&thread[started], NULL, run_errand, &errands[started])) break;
        started++;
    }
    for (int r = 0; r < started; r++) pthread_join(thread[r], NULL);
    if (started < w->world) return sp_fail(SP_SYSTEM, "no thread for rank %d", started);
    for (int only_peers = 0; only_peers < 2; only_peers++) /* the cause before its effects on others */
        for (int r = 0; r < w->world; r++)
            if (w->member[r].status && (only_peers || w->member[r].status != SP_PEER))
                return sp_fail(w->member[r].status, "%s", w->member[r].why);
    return SP_OK;
}

sp_status sp_many_open_rank(sp_member *m) {
    sp_many *w = m->many;
    const sp_world world = {
        .rank = m->rank,
        .size = w->world,
        .ordinal = m->ordinal,
        .exchange = {m, all_gather, check, sp_error},
        .max_bytes = w->what->nbytes,
    };
    SP_TRY(sp_many_cuda(cudaStreamCreateWithFlags(&m->stream, cudaStreamNonBlocking), "cudaStreamCreate"));
    for (int i = 0; i < 2; i++) SP_TRY(sp_many_cuda(cudaEventCreate(&m->mark[i]), "cudaEventCreate"));
    SP_TRY(sp_many_cuda(cudaMalloc((void **)&m->base, allocated(w)), "cudaMalloc"));
    m->outcome = malloc(w->what->nbytes);
    if (!m->outcome) return sp_fail(SP_NOMEM, "no memory for an output of %llu bytes", (unsigned long long)w->what->nbytes);
    if (w->what->traced) {
        const size_t bytes = sp_many_slot(w->burst) * sizeof *m->stamps;
        SP_TRY(sp_many_cuda(cudaMalloc((void **)&m->stamps, bytes), "cudaMalloc"));
        m->times = malloc(bytes);
        if (!m->times) return sp_fail(SP_NOMEM, "no memory for the stamps of %u launches", w->burst);
    }
    SP_TRY(sp_custom_open(&memory, (sp_comm *)m, &world, w->deadline, &m->custom));
    sp_custom_stamps(m->custom, m->stamps);
    return SP_OK;
}

sp_status sp_many_close_rank(sp_member *m) {
    const bool broken = m->many->broken;
    sp_custom_close(m->custom, broken);
    free(m->outcome);
    free(m->times);
    if (broken) return SP_OK; /* the process ends; to free what a kernel may still use would wait for it */
    if (m->graph) cudaGraphExecDestroy(m->graph);
    for (int i = 0; i < 2; i++)
        if (m->mark[i]) cudaEventDestroy(m->mark[i]);
    if (m->stream) cudaStreamDestroy(m->stream);
    if (m->base) cudaFree(m->base);
    if (m->stamps) cudaFree(m->stamps);
    return SP_OK;
}
