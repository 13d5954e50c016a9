/* Waiting for a word that a peer writes, and the all-gather made of it. Called by everything of csrc/host that waits.
 * Invariant: no wait is longer than its deadline, and none outlives a peer's end by more than NAP_NS and the look for processes;
 * what a peer wrote before it ended counts. */
#define _GNU_SOURCE 1

#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "board_shared.h"

enum { NAP_NS = 20000000, NANOS = 1000000000 };

static long futex(const _Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *timeout) {
    return syscall(SYS_futex, (const uint32_t *)(const void *)word, operation, value, timeout, NULL, 0);
}

/* Counters go round: a value is reached while it lies in the half circle before. */
static bool reached(uint32_t seen, uint32_t value) { return (int32_t)(seen - value) >= 0; }

static void pause_a_moment(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static sp_status too_late(sp_board *board, int peer, int64_t since_ns) {
    char everybody[320];
    double seconds = (double)(sp_now_ns() - since_ns) / NANOS;
    if (atomic_load_explicit(&board->ranks[peer].state, memory_order_acquire) == SP_RANK_ABSENT)
        return sp_fail(SP_TIMEOUT, "rank %d never came: rank %d waited %.2f s for it in %s", peer, board->rank, seconds,
                       board->phase);
    sp_board_describe(board, everybody, sizeof everybody);
    return sp_fail(SP_TIMEOUT, "rank %d waited %.2f s for rank %d: %s", board->rank, seconds, peer, everybody);
}

static sp_status sleep_until(sp_board *board, const _Atomic uint32_t *word, uint32_t value, int peer, sp_deadline deadline) {
    shared_rank *from = &board->ranks[peer];
    int64_t since = sp_now_ns();
    for (;;) {
        /* In this order: what it wrote before it ended is seen after its end is. */
        uint32_t state = atomic_load_explicit(&from->state, memory_order_acquire);
        sp_status ended = sp_board_check(board);
        if (reached(atomic_load_explicit(word, memory_order_acquire), value)) return SP_OK;
        if (ended) return ended;
        if (state == SP_RANK_LEFT)
            return sp_fail(SP_PEER, "rank %d has left, rank %d waits for it in %s: ranks must make the same calls", peer,
                           board->rank, board->phase);
        int64_t left = sp_deadline_left_ns(deadline);
        if (left <= 0) return too_late(board, peer, since);
        if (left > NAP_NS) left = NAP_NS;
        /* Sequentially consistent with sp_board_signal: it sees the sleeper, or the sleeper sees its value. */
        atomic_fetch_add_explicit(&from->sleepers, 1, memory_order_seq_cst);
        uint32_t seen = atomic_load_explicit(word, memory_order_seq_cst);
        if (!reached(seen, value)) futex(word, FUTEX_WAIT, seen, &(struct timespec){0, (long)left});
        atomic_fetch_sub_explicit(&from->sleepers, 1, memory_order_relaxed);
    }
}

/* No longer than a sleep would be, so that a peer's end is seen as soon. Where another process wants this core, it may be that peer. */
static bool look_hard(const _Atomic uint32_t *word, uint32_t value, sp_deadline deadline) {
    int64_t end = sp_now_ns() + NAP_NS;
    if (end > deadline.at_ns) end = deadline.at_ns;
    do {
        if (reached(atomic_load_explicit(word, memory_order_acquire), value)) return true;
        sched_yield();
    } while (sp_now_ns() < end);
    return false;
}

sp_status sp_board_wait(sp_board *board, const uint32_t *word, uint32_t value, int peer, sp_deadline deadline) {
    const _Atomic uint32_t *shared = (const _Atomic uint32_t *)(const void *)word;
    uintptr_t at = (uintptr_t)word - (uintptr_t)board->shared;
    if (peer < 0 || peer >= board->size || at % sizeof *word || at > board->bytes - sizeof *word)
        return sp_fail(SP_INVALID, "a wait for rank %d of %d on a word that is not on the board", peer, board->size);
    for (int looks = 0; looks < board->spins; looks++) {
        if (reached(atomic_load_explicit(shared, memory_order_acquire), value)) return SP_OK;
        pause_a_moment();
    }
    if (board->hurry && look_hard(shared, value, deadline)) return SP_OK;
    return sleep_until(board, shared, value, peer, deadline);
}

void sp_board_wake(uint32_t *word) { futex((const _Atomic uint32_t *)(const void *)word, FUTEX_WAKE, INT32_MAX, NULL); }

void sp_board_signal(sp_board *board, uint32_t *word, uint32_t value) {
    _Atomic uint32_t *shared = (_Atomic uint32_t *)(void *)word;
    atomic_store_explicit(shared, value, memory_order_seq_cst);
    if (board->rank >= 0 && atomic_load_explicit(&board->ranks[board->rank].sleepers, memory_order_seq_cst)) sp_board_wake(word);
}

/* One piece: into this rank's box, everybody's word, out of everybody's box. Boxes are used in turn: a rank that writes one for
 * the second time has heard from all that they were through with the first. */
static sp_status gather_piece(sp_board *board, const uint8_t *mine, uint8_t *all, size_t bytes, size_t at, size_t piece,
                              sp_deadline deadline) {
    shared_rank *me = &board->ranks[board->rank];
    uint32_t turn = ++board->gathers;
    shared_box *box = &me->box[turn % 2];
    box->bytes = bytes;
    if (piece) memcpy(box->data, mine + at, piece);
    sp_board_signal(board, (uint32_t *)(void *)&me->gathers, turn);
    for (int r = 0; r < board->size; r++)
        if (r != board->rank)
            SP_TRY(sp_board_wait(board, (const uint32_t *)(const void *)&board->ranks[r].gathers, turn, r, deadline));
    for (int r = 0; r < board->size; r++)
        if (board->ranks[r].box[turn % 2].bytes != bytes)
            return sp_fail(SP_MISMATCH,
                           "rank %d gathers %zu bytes, rank %d %zu: ranks must make the same calls, in the same order", r,
                           (size_t)board->ranks[r].box[turn % 2].bytes, board->rank, bytes);
    if (piece)
        for (int r = 0; r < board->size; r++) memcpy(all + (size_t)r * bytes + at, board->ranks[r].box[turn % 2].data, piece);
    return SP_OK;
}

sp_status sp_board_all_gather(void *self, const void *mine, void *all, size_t bytes, sp_deadline deadline) {
    sp_board *board = self;
    if (board->rank < 0) return sp_fail(SP_INVALID, "an onlooker of a board takes no part in an all-gather");
    if (bytes && (!mine || !all)) return sp_fail(SP_INVALID, "an all-gather of %zu bytes needs both addresses", bytes);
    size_t at = 0;
    do {
        size_t piece = bytes - at < SP_BOARD_BOX ? bytes - at : SP_BOARD_BOX;
        SP_TRY(gather_piece(board, mine, all, bytes, at, piece, deadline));
        at += piece;
    } while (at < bytes);
    return SP_OK;
}

sp_exchange sp_board_exchange(sp_board *board) { return (sp_exchange){board, sp_board_all_gather, sp_board_check, sp_error}; }
