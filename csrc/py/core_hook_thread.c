/* What the hook keeps of each thread: the calls that are open on it. Called by
 * every wrapped call that is recorded. Invariant: the only writable statics of
 * the hook; a thread touches its own alone, and a fork is counted in the child
 * before it runs on. */
#define _GNU_SOURCE 1

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core_hook.h"

static _Thread_local hook_thread thread;
static atomic_uint forks;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void count_fork(void) {
    atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
    thread.number = 0;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, count_fork); }

/* A child of a fork has one thread, the one that forked: it comes here anew, and so does every other one that begins. */
static SP_RARE void meet(hook_thread *t) {
    t->forks = sp_hook_forks();
    t->number = (uint32_t)syscall(SYS_gettid);
}

SP_OFTEN hook_thread *sp_hook_thread(void) {
    hook_thread *t = &thread; /* its address is asked for once */
    if (!t->number) meet(t);
    return t;
}

unsigned sp_hook_forks(void) {
    pthread_once(&once, watch_forks);
    return atomic_load_explicit(&forks, memory_order_relaxed);
}
