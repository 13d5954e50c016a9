/* Several ranks in one process, over the GPUs that are there: how the custom kernels are checked for world sizes that the machine does not
 * have. Called by csrc/py in a child process that can be killed.
 *
 * Kernels of ranks that share a GPU wait for one another, so all of them must run at once. Before anything is launched:
 * the grids of all ranks of a GPU fit it together, by the occupancy that is asked there and then; they are on streams with hardware queues
 * of their own; every kernel is loaded; no launch may overlap the one before it. Between the launches of the ranks nothing is allocated
 * and nothing waits. And every wait on the GPU is bounded.
 * Invariant: what cannot be made safe is refused, with what to do about it. */
#ifndef SP_MANY_H
#define SP_MANY_H

#include "core/path.h"
#include "custom.h"

typedef struct sp_many_case {
    int world;           /* ranks, dealt to the GPUs in turn */
    int gpus;            /* to use at most; 0: all */
    uint8_t kernel;      /* as in sp_work */
    uint8_t dtype;       /* sp_dtype */
    uint8_t style;       /* sp_custom_style */
    bool captured;       /* one burst, then replayed with other inputs at the same addresses */
    bool registered;     /* with captured: inputs are read where they lie */
    bool in_place;       /* the output is the input */
    bool traced;         /* every launch is stamped */
    uint64_t nbytes;     /* of one rank's tensor */
    uint32_t burst;      /* launches back to back, each with an input and an output of its own */
    uint32_t iterations; /* bursts for each of the two kinds of input; every output is checked */
    uint64_t seed;
    double seconds; /* limit of the whole */
} sp_many_case;

typedef struct sp_many_result {
    uint64_t checked, wrong; /* elements, over ranks and iterations */
    double max_error;        /* largest distance from the float64 sum */
    bool bit_equal;          /* all ranks, always */
    uint64_t launched, ran;  /* launches of rank 0, and those that its GPU counted */
    uint64_t stamped;        /* launches of all ranks with stamps in their order: each rank's, and where all ranks have one clock,
                                nobody's MET before everybody's ENTER */
    double us;               /* mean time of a launch on rank 0; ranks share GPUs, so this is no measure of speed */
    int gpus;
    uint32_t blocks, threads;
} sp_many_result;

sp_status sp_many_check(const sp_many_case *what, sp_many_result *result);

#endif
