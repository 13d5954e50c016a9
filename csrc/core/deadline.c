/* Deadlines and the pause between two looks at something that another rank will change. See deadline.h. */
#include "deadline.h"

#include <sched.h>
#include <time.h>

enum { SPINS = 200, YIELDS = 2000 };
enum { NANOS = 1000000000, SLEEP_NS = 50000, SLEEP_MAX_NS = 1000000 };

int64_t sp_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NANOS + t.tv_nsec;
}

sp_deadline sp_deadline_in(double seconds) {
    if (!(seconds >= 0) || seconds > 1e9) return (sp_deadline){INT64_MAX};
    return (sp_deadline){sp_now_ns() + (int64_t)(seconds * NANOS)};
}

bool sp_deadline_passed(sp_deadline deadline) { return deadline.at_ns != INT64_MAX && sp_now_ns() >= deadline.at_ns; }

int64_t sp_deadline_left_ns(sp_deadline deadline) {
    if (deadline.at_ns == INT64_MAX) return INT64_MAX;
    int64_t left = deadline.at_ns - sp_now_ns();
    return left > 0 ? left : 0;
}

void sp_backoff(unsigned looks) {
    if (looks < SPINS) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        return;
    }
    if (looks < YIELDS) {
        sched_yield();
        return;
    }
    unsigned times = (looks - YIELDS) / 100 + 1;
    long ns = times > SLEEP_MAX_NS / SLEEP_NS ? SLEEP_MAX_NS : (long)times * SLEEP_NS;
    nanosleep(&(struct timespec){0, ns}, NULL);
}
