/* The two kinds of thread that end a wait inside NCCL. See guard.h.
 * Invariant: a guard fires only on a call that it saw inside at two looks, past its deadline both times: a call that is merely
 * made late is never taken for one that hangs. */
#include "guard.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOOK_NS = 50000000, SECOND_NS = 1000000000 };

static void wait_for_a_look(sp_guard *guard) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    at.tv_nsec += LOOK_NS;
    at.tv_sec += at.tv_nsec / SECOND_NS;
    at.tv_nsec %= SECOND_NS;
    while (!guard->stop && pthread_cond_timedwait(&guard->wake, &guard->mutex, &at) != ETIMEDOUT) {
    }
}

static void *watch(void *argument) {
    sp_guard *guard = argument;
    uint64_t late = 0; /* the call that was inside and late at the last look; no call has the number 0 */
    pthread_mutex_lock(&guard->mutex);
    while (!guard->stop) {
        wait_for_a_look(guard);
        uint64_t call = atomic_load_explicit(&guard->calls, memory_order_acquire);
        sp_deadline until = {atomic_load_explicit(&guard->until_ns, memory_order_relaxed)};
        bool inside = call % 2 && sp_deadline_passed(until);
        if (inside && call == late) {
            pthread_mutex_unlock(&guard->mutex);
            atomic_store(&guard->fired, true);
            guard->fire(guard->owner);
            return NULL;
        }
        late = inside ? call : 0;
    }
    pthread_mutex_unlock(&guard->mutex);
    return NULL;
}

sp_status sp_guard_start(sp_guard *guard, void (*fire)(void *owner), void *owner) {
    memset(guard, 0, sizeof *guard);
    guard->fire = fire;
    guard->owner = owner;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_mutex_init(&guard->mutex, NULL);
    pthread_cond_init(&guard->wake, &clock);
    pthread_condattr_destroy(&clock);
    int error = pthread_create(&guard->thread, NULL, watch, guard);
    if (!error) {
        guard->running = true;
        return SP_OK;
    }
    pthread_cond_destroy(&guard->wake);
    pthread_mutex_destroy(&guard->mutex);
    return sp_fail(SP_SYSTEM,
                   "pthread_create: %s: no thread to watch over NCCL's calls; raise the limit of processes (ulimit -u)",
                   strerror(error));
}

void sp_guard_stop(sp_guard *guard) {
    if (!guard->running) return;
    pthread_mutex_lock(&guard->mutex);
    guard->stop = true;
    pthread_cond_signal(&guard->wake);
    pthread_mutex_unlock(&guard->mutex);
    pthread_join(guard->thread, NULL);
    pthread_cond_destroy(&guard->wake);
    pthread_mutex_destroy(&guard->mutex);
    guard->running = false;
}

/* Shared by the caller and the thread; whoever is second frees it. */
typedef struct job {
    ncclResult_t (*call)(ncclComm_t);
    ncclComm_t comm;
    int ordinal; /* its GPU: a new thread is on GPU 0, and NCCL would make a context there when it goes back to it */
    ncclResult_t result;
    atomic_int state;
} job;

enum { RUNNING, DONE, ABANDONED };

static void *do_job(void *argument) {
    job *j = argument;
    (void)cudaSetDevice(j->ordinal);
    j->result = j->call(j->comm);
    if (atomic_exchange(&j->state, DONE) == ABANDONED) free(j);
    return NULL;
}

sp_status sp_bounded(ncclResult_t (*call)(ncclComm_t comm), ncclComm_t comm, double seconds, int ordinal, ncclResult_t *result) {
    pthread_t thread;
    job *j = calloc(1, sizeof *j);
    if (!j) return sp_fail(SP_NOMEM, "%zu bytes for a call of NCCL that has a time limit", sizeof *j);
    j->call = call;
    j->comm = comm;
    j->ordinal = ordinal;
    int error = pthread_create(&thread, NULL, do_job, j);
    if (error) {
        free(j);
        return sp_fail(SP_SYSTEM, "pthread_create: %s: raise the limit of processes (ulimit -u)", strerror(error));
    }
    pthread_detach(thread);
    sp_deadline deadline = sp_deadline_in(seconds);
    for (unsigned looks = 0; atomic_load(&j->state) == RUNNING; looks++) {
        if (sp_deadline_passed(deadline) && atomic_exchange(&j->state, ABANDONED) == RUNNING)
            return sp_fail(SP_TIMEOUT, "no return within %.1f s", seconds);
        sp_backoff(looks);
    }
    *result = j->result;
    free(j);
    return SP_OK;
}
