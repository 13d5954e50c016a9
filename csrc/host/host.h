/* The host device: every path among CPU ranks over the board. Its table is for the Coordinator in csrc/py.
 * Invariant: same buffers, same in-place-ness, same kernels by name as on GPUs; its times are a CPU's and are called so. */
#ifndef SP_HOST_H
#define SP_HOST_H

#include "board.h"

extern const sp_seam sp_host_seam;

/* join() of the host needs the board itself: its exchange's `self` is the sp_board. Several communicators can share a board, one
 * after the other or side by side; each needs this much of every rank's arena, and what the ranks allocate comes on top. */
size_t sp_host_arena_bytes(int size);

#endif
