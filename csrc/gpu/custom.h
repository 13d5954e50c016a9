/* Custom all-reduce on GPUs: v1 and V2 kernels, and `limit`, over memory that all ranks of one machine map.
 * Called by comm.c (one process a rank) and many.c (several ranks a process, for world sizes that the GPUs do not have).
 * Invariant: a kernel that waits counts its looks and reads the abort word: it ends by itself, and says for whom it waited. */
#ifndef SP_CUSTOM_H
#define SP_CUSTOM_H

#include "core/path.h"

typedef struct sp_custom sp_custom;

/* Collective over world->exchange; memory from `memory` (owner is its first argument). Loads every kernel before the first can spin. */
sp_status sp_custom_open(const sp_memory *memory, sp_comm *owner, const sp_world *world, sp_deadline deadline,
                         sp_custom **custom);
sp_status sp_custom_supports(sp_custom *custom, const sp_work *work);
/* work->kernel: ONE_SHOT, TWO_SHOT (v1), ONE_SHOT_PUSH, ONE_SHOT_PULL, TWO_SHOT_PULL, TWO_SHOT_PUSH (V2), LIMIT (ours); UNKNOWN: v1's choice. */
sp_status sp_custom_enqueue(sp_custom *custom, const sp_work *work);
/* Collective: addresses that kernels noted while capturing become readable by the peers. */
sp_status sp_custom_registered(sp_custom *custom, uint64_t *addresses, sp_deadline deadline);
sp_status
sp_custom_status(sp_custom *custom);     /* SP_OK, or SP_TIMEOUT/SP_PEER: the kernel gave up, on which rank and in which phase */
void sp_custom_abort(sp_custom *custom); /* waiting kernels end within a millisecond */
void sp_custom_close(sp_custom *custom, bool broken);
uint64_t sp_custom_ran(sp_custom *custom); /* launches that the GPU itself has counted; waits for nothing */

#endif
