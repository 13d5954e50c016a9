/* What lies on the board, and this process's handle of it. Included by csrc/host/board*.c only.
 * In the file: one shared_board, then each rank's shared_rank, then each rank's arena, whose pages are reserved as they are
 * allocated.
 * Invariant: what several processes touch at once is atomic; plain bytes (mailboxes, the text of a failure) are
 * written before the word that announces them is released, and read after it was acquired. */
#ifndef SP_BOARD_SHARED_H
#define SP_BOARD_SHARED_H

#include <stdatomic.h>

#include "board.h"

enum { SP_BOARD_LINE = 64, SP_BOARD_PAGE = 4096, SP_BOARD_BOX = 32768, SP_BOARD_PHASE_WORDS = 6, SP_BOARD_FAILURE = 256 };
#define SP_BOARD_MAGIC UINT64_C(0x73705f626f617231)

enum { SP_RANK_ABSENT, SP_RANK_ATTACHED, SP_RANK_LEFT, SP_RANK_FAILED };

typedef struct shared_board {
    uint64_t magic;
    uint64_t arena_bytes; /* of each rank */
    uint32_t size;
    _Atomic uint32_t failed; /* 1 + the first rank that failed: the one word that a healthy wait reads */
} shared_board;

typedef struct shared_call {
    _Atomic uint64_t seq, nbytes, fields; /* fields: path, kernel, dtype, flags, a byte each */
} shared_call;

typedef struct shared_box {
    uint64_t bytes; /* of the whole all-gather */
    uint8_t data[SP_BOARD_BOX];
} shared_box;

/* Written by its rank, but for state, claimed and failure: whoever finds that rank dead writes those. */
typedef struct shared_rank {
    _Alignas(SP_BOARD_PAGE) _Atomic uint32_t state; /* SP_RANK_* */
    _Atomic uint32_t claimed;                       /* by who writes the failure: the first one only */
    _Atomic uint32_t pid;
    _Atomic uint64_t started;                          /* in clock ticks since boot, 0: not known; a recycled pid has another */
    _Alignas(SP_BOARD_LINE) _Atomic uint32_t sleepers; /* others that sleep on a word of this rank */
    _Alignas(SP_BOARD_LINE) _Atomic uint32_t gathers;  /* pieces of all-gathers that lie in `box`, odd and even in turn */
    _Alignas(SP_BOARD_LINE) _Atomic uint64_t posted;   /* seq of the last call */
    _Atomic uint64_t phase[SP_BOARD_PHASE_WORDS];      /* text, read while it may change: the last byte is always 0 */
    _Alignas(SP_BOARD_LINE) char failure[SP_BOARD_FAILURE]; /* why, once state is SP_RANK_FAILED */
    shared_call calls[SP_BOARD_CALLS];
    shared_box box[2];
} shared_rank;

_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2, "a lock would not reach over processes");
_Static_assert(sizeof(_Atomic uint32_t) == sizeof(uint32_t), "a futex is a plain 32-bit word");

/* A part of this rank's arena, in order of address; they cover it without a gap. */
typedef struct block {
    size_t at, bytes;
    bool used;
    struct block *next;
} block;

struct sp_board {
    shared_board *shared;
    shared_rank *ranks;
    int fd, rank, size;
    size_t bytes; /* that are mapped */
    size_t arena; /* where rank 0's arena starts */
    size_t arena_bytes;
    block *blocks;
    size_t reserved; /* bytes of this rank's arena that have pages */
    int spins;
    bool crowded, hurry; /* more ranks than cores; see sp_board_hurry */
    uint32_t gathers;
    const char *phase;               /* as last written */
    int64_t looked_ns;               /* when the peers' processes were last looked for */
    uint64_t compared[SP_RANKS_MAX]; /* seq up to which that rank's calls are like this one's */
};

static inline const char *sp_board_phase_of(const shared_rank *rank, char text[SP_BOARD_PHASE_WORDS * 8]) {
    uint64_t words[SP_BOARD_PHASE_WORDS];
    for (int i = 0; i < SP_BOARD_PHASE_WORDS; i++) words[i] = atomic_load_explicit(&rank->phase[i], memory_order_relaxed);
    __builtin_memcpy(text, words, sizeof words);
    text[sizeof words - 1] = 0;
    return text;
}

/* Reserves pages of the file: SP_NOMEM where there is no room, never a signal. */
sp_status sp_board_reserve(int fd, size_t at, size_t bytes, const char *what);
uint64_t sp_process_started(uint32_t pid, char *state); /* from the process table; 0: not there; state is its letter there */

#endif
