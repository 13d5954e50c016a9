/* Ends of waits inside NCCL, which takes no deadline itself. Called by pynccl.c, window.c, graph.c and comm.c.
 *   bounded: a call that may never return (destroy, abort) is made by a thread of its own, and left behind when its time is over;
 *   guard:   a thread that looks, twenty times a second, whether a call that was entered is still inside after its deadline.
 * Invariant: entering and leaving cost three stores, so that a guarded call is timed as an unguarded one is. */
#ifndef SP_GPU_GUARD_H
#define SP_GPU_GUARD_H

#include <nccl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "core/deadline.h"
#include "core/status.h"

typedef struct sp_guard {
    atomic_uint_fast64_t calls; /* odd: inside a call */
    atomic_int_fast64_t until_ns;
    atomic_bool fired;
    void (*fire)(void *owner); /* called once, by the guard's thread */
    void *owner;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards stop */
    pthread_cond_t wake;
    bool running, stop;
} sp_guard;

sp_status sp_guard_start(sp_guard *guard, void (*fire)(void *owner), void *owner);
void sp_guard_stop(sp_guard *guard);

/* Only the rank's own thread enters and leaves, so plain adding is enough. */
static inline void sp_guard_enter(sp_guard *guard, sp_deadline deadline) {
    atomic_store_explicit(&guard->until_ns, deadline.at_ns, memory_order_relaxed);
    atomic_store_explicit(&guard->calls, atomic_load_explicit(&guard->calls, memory_order_relaxed) + 1, memory_order_release);
}

static inline void sp_guard_leave(sp_guard *guard) {
    atomic_store_explicit(&guard->calls, atomic_load_explicit(&guard->calls, memory_order_relaxed) + 1, memory_order_release);
}

/* SP_TIMEOUT: it has not returned, and its thread goes on by itself. */
sp_status sp_bounded(ncclResult_t (*call)(ncclComm_t comm), ncclComm_t comm, double seconds, int ordinal, ncclResult_t *result);

#endif
