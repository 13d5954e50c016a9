/* What measure.c and clock.c share of one rank. Included by them.
 * Invariant: made when the rank joins, and never again; the GPU writes `device` and `host->report`, the host the rest of `host`. */
#ifndef SP_GPU_MEASURE_H
#define SP_GPU_MEASURE_H

#include "comm.h"
#include "kernels.h"

typedef struct sp_measured {
    unsigned long long slots[SP_STAMPS + 1];
    sp_kernel_trips trips[SP_KERNEL_RANKS]; /* by peer of rank 0; elsewhere only the own rank's */
} sp_measured;

struct sp_measure {
    sp_measured *device;        /* on the GPU */
    sp_measured *copy;          /* pinned: what was read of it last */
    sp_kernel_host *host;       /* pinned and mapped: abort, release, and the last hold that nobody released in time */
    sp_kernel_host *seen;       /* the GPU's address of it */
    cudaStream_t side;          /* waits for no other */
    atomic_uint_least32_t held; /* number of the last hold */
    uint64_t told;              /* the last expired hold that a wait has told of */
};

#endif
