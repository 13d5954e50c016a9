/* The one limit of every wait: on a kernel, on NCCL, on a futex, on a child. Called by everything of host, gpu and py that waits.
 * Invariant: a point on CLOCK_MONOTONIC, so that a wait made of several waits ends when the whole one should. */
#ifndef SP_DEADLINE_H
#define SP_DEADLINE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct sp_deadline {
    int64_t at_ns; /* CLOCK_MONOTONIC; INT64_MAX: never */
} sp_deadline;

int64_t sp_now_ns(void);
sp_deadline sp_deadline_in(double seconds); /* negative or infinite: never */
bool sp_deadline_passed(sp_deadline deadline);
int64_t sp_deadline_left_ns(sp_deadline deadline); /* 0 when it has passed */

/* Between two looks of a wait: spins at first, then yields, then sleeps up to a millisecond. `looks` counts from 0. */
void sp_backoff(unsigned looks);

#endif
