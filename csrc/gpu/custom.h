/* Custom all-reduce on GPUs: v1 and V2 kernels, and `limit`, over memory that all ranks of one machine map.
 * Called by comm.c (one process a rank) and many.c (several ranks a process, for world sizes that the GPUs do not have).
 * One communicator is one order: its launches, eager or replayed, follow one another on every rank in the same order, on one stream or on
 * streams that wait for one another. Two graphs that hold its calls must not run at the same time.
 * Invariant: a kernel that waits counts its looks and reads the abort word: it ends by itself, and says for whom it waited. */
#ifndef SP_CUSTOM_H
#define SP_CUSTOM_H

#include "core/path.h"

typedef struct sp_custom sp_custom;

/* Collective over world->exchange; memory from `memory` (owner is its first argument). Loads every kernel before the first can spin. */
sp_status sp_custom_open(const sp_memory *memory, sp_comm *owner, const sp_world *world, sp_deadline deadline,
                         sp_custom **custom);
sp_status sp_custom_supports(sp_custom *custom, const sp_work *work);
/* work->kernel: ONE_SHOT, TWO_SHOT (v1), ONE_SHOT_PUSH, ONE_SHOT_PULL, TWO_SHOT_PULL, TWO_SHOT_PUSH (V2), LIMIT (ours), DRY (zeros, no
 * communication); UNKNOWN: v1's choice; SP_KERNEL_RUNG + rung (kernels.h): a step of the ladder, for the bench.
 * The caller has made this rank's GPU the current one. */
sp_status sp_custom_enqueue(sp_custom *custom, const sp_work *work);
/* Collective: addresses that kernels noted while capturing become readable by the peers. */
sp_status sp_custom_registered(sp_custom *custom, uint64_t *addresses, sp_deadline deadline);
uint64_t sp_custom_pending(const sp_custom *custom); /* addresses noted and not yet registered: no replay before they are */
sp_status
sp_custom_status(sp_custom *custom);     /* SP_OK, or SP_TIMEOUT/SP_PEER: the kernel gave up, on which rank and in which phase */
void sp_custom_abort(sp_custom *custom); /* waiting kernels end within a millisecond */
void sp_custom_close(sp_custom *custom, bool broken);
/* Launches that the GPU itself has counted; waits for nothing. One that gave up may be among them: sp_custom_status knows of it. */
uint64_t sp_custom_ran(sp_custom *custom);

/* How V2's kernels are launched changed between releases: grids, blocks, and how warps are dealt to blocks. */
typedef enum sp_custom_style { SP_CUSTOM_V0510, SP_CUSTOM_V0516, SP_CUSTOM_V0521, SP_CUSTOM_STYLES } sp_custom_style;

typedef struct sp_custom_tuning {
    sp_custom_style style; /* of the first release with this shape; the default is the last */
    bool overlap;          /* programmatic dependent launch where V2 uses it; on by default */
    uint32_t blocks_max;   /* no launch has more: ranks share a GPU. 0, the default: as SGLang launches */
} sp_custom_tuning;

/* For all launches after it; the same on every rank. */
void sp_custom_tune(sp_custom *custom, const sp_custom_tuning *tuning);
/* What a call of this work would launch, and how many such blocks its GPU runs at once. */
sp_status sp_custom_shape(sp_custom *custom, const sp_work *work, uint32_t *blocks, uint32_t *threads, uint32_t *fit);

/* Slot 0 of the stamps, in device memory, that work->stamp counts from; none before this. A stamped call runs a kernel of its own, which
 * reads the clock three times; SP_STAMP_* are of that kernel alone: the copies around one that stages its input are before ENTER and after
 * LEFT. Where a launch may overlap the one before it, ENTER is when that has ended.
 * MET: where ranks meet at a barrier, when the first block is past it. Where data says itself that it is there, when the first vector of
 * every rank is (two-shot push: or the first sum, on a rank that sums nothing itself). */
void sp_custom_stamps(sp_custom *custom, unsigned long long *stamps);

/* The floor: an empty kernel of the shape that this work would have; and `trips` flags there and back between ranks 0 and 1. */
sp_status sp_custom_empty(sp_custom *custom, const sp_work *work);
sp_status sp_custom_ping_pong(sp_custom *custom, uint32_t trips, void *stream, sp_deadline deadline);
/* The same with times, SP_TRIPS of them, to `trips` (an sp_kernel_trips) in device memory: between rank 0 and `peer`, which both call it. */
sp_status sp_custom_trips(sp_custom *custom, int peer, void *trips, void *stream, sp_deadline deadline);

#endif
