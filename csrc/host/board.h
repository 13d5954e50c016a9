/* The board: one piece of shared memory on which the ranks of one machine meet. Called by csrc/host's communicator, and by the
 * Coordinator for GPU ranks too: all-gathers for set-up, who is alive, what each rank called, and the arena of CPU ranks.
 *
 * It is a memfd: it has no name, and disappears with the last process that holds it. Its space is reserved before it is mapped,
 * so that a machine without room answers with an error and never with SIGBUS.
 * Invariant: each word has one writing rank (but the few that say that a rank has ended); whoever waits spins, then sleeps on a
 * futex, until its deadline or a peer's end. One thread a handle, but for sp_board_fail. */
#ifndef SP_BOARD_H
#define SP_BOARD_H

#include "core/path.h"

typedef struct sp_board sp_board;

enum { SP_BOARD_CALLS = 256 }; /* calls of each rank that the board remembers */

/* What a rank says that it calls, before it does. */
typedef struct sp_board_call {
    uint64_t seq; /* 1 for the first call */
    uint64_t nbytes;
    uint8_t path, kernel, dtype, flags;
} sp_board_call;

sp_status sp_board_create(int size, size_t arena_bytes, int *fd); /* arena_bytes a rank; fd is close-on-exec */
sp_status sp_board_attach(int fd, int rank,
                          sp_board **board); /* rank -1: an onlooker, such as the parent; fd stays the caller's */
void sp_board_detach(sp_board *board);
int sp_board_size(const sp_board *board);

/* Both parts of an exchange over this board. all_gather takes any number of bytes; 0 is a barrier. Ranks that give different
 * numbers of bytes all get SP_MISMATCH and can go on. */
sp_exchange sp_board_exchange(sp_board *board);
sp_status sp_board_all_gather(void *board, const void *mine, void *all, size_t bytes, sp_deadline deadline);
sp_status sp_board_check(void *board); /* SP_PEER: a rank is dead (its process is gone, or somebody said so), or has failed */

#define SP_PHASE_IDLE "between calls"
/* What this rank is doing, for the errors of others: a static text. */
void sp_board_phase(sp_board *board, const char *phase);
/* This rank cannot go on (text: why), or, by an onlooker, that rank is gone. All waits of the others end. */
void sp_board_fail(sp_board *board, int rank, const char *text);

void sp_board_post(sp_board *board, const sp_board_call *call);
/* Every call up to `seq` that both a peer and this rank have posted is the same: else SP_MISMATCH naming rank, field and both
 * values. */
sp_status sp_board_compare(sp_board *board, uint64_t seq);
/* SP_MISMATCH, with both calls in words, where they differ in bytes, dtype, path, kernel or capturing. seq 0: not known. */
sp_status sp_board_same_call(uint64_t seq, int rank_a, const sp_board_call *a, int rank_b, const sp_board_call *b);
/* One sentence on where each rank stands ("rank 1 (pid 12) is in custom one_shot, call 7; ..."), for an error's text. */
void sp_board_describe(sp_board *board, char *text, size_t size);

/* A part of this rank's arena, 64-byte aligned; offset from the board's start is what peers open. What was freed is used again
 * but stays reserved until the board goes: a peer may still be reading it. */
sp_status sp_board_alloc(sp_board *board, size_t bytes, void **data);
void sp_board_free(sp_board *board, void *data);
/* The allocation that holds an address. */
bool sp_board_find(const sp_board *board, const void *data, void **start, size_t *bytes);
/* `bytes` at `offset` lie in the arena of that rank: what is to be asked before an offset that a peer wrote is followed. */
bool sp_board_holds(const sp_board *board, int rank, uint64_t offset, uint64_t bytes);
void *sp_board_base(sp_board *board);
size_t sp_board_bytes(const sp_board *board);

/* Waits until *word, which `peer` writes, is at least `value`; `word` lies on the board. After writing one's own:
 * sp_board_wake. */
sp_status sp_board_wait(sp_board *board, const uint32_t *word, uint32_t value, int peer, sp_deadline deadline);
void sp_board_wake(uint32_t *word);
/* Both in one: *word becomes `value`, and whoever sleeps on this rank is woken; no system call where nobody sleeps. */
void sp_board_signal(sp_board *board, uint32_t *word, uint32_t value);
/* Looks before a wait sleeps: none to speak of where there are more ranks than cores. */
int sp_board_spins(const sp_board *board);
/* While this is on, a wait looks for up to 20 ms before it sleeps, where there is a core for each rank: to be woken takes some 20 us,
 * which a measured wait must not hold. */
void sp_board_hurry(sp_board *board, bool on);

#endif
