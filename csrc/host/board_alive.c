/* Who is there, what each rank is doing, and whose end ends every wait. Called by each wait between two looks, and for an error's
 * text.
 * Invariant: a healthy check reads one shared word and a coarse clock; a process is looked for at most every LOOK_NS. */
#define _GNU_SOURCE 1

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "board_shared.h"

enum { LOOK_NS = 20000000, FIELDS_TO_START = 19 };

/* /proc/PID/stat: "12 (a name) S ...", where the name may hold anything and the 22nd field is the start. */
uint64_t sp_process_started(uint32_t pid, char *state) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%" PRIu32 "/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    if (got <= 0) return 0;
    text[got] = 0;
    const char *at = strrchr(text, ')');
    if (!at || at[1] != ' ' || !at[2]) return 0;
    *state = at[2];
    for (int field = 0; field <= FIELDS_TO_START && at; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

/* A zombie is dead: its parent may be one of us, busy waiting for it on the board. */
static bool is_gone(const shared_rank *rank) {
    uint32_t pid = atomic_load_explicit(&rank->pid, memory_order_relaxed);
    uint64_t started = atomic_load_explicit(&rank->started, memory_order_relaxed);
    if (kill((pid_t)pid, 0) && errno == ESRCH) return true;
    char state = 0;
    uint64_t now = started ? sp_process_started(pid, &state) : 0;
    return now && (now != started || state == 'Z' || state == 'X');
}

void sp_board_phase(sp_board *board, const char *phase) {
    if (board->rank < 0 || phase == board->phase) return;
    board->phase = phase;
    uint64_t words[SP_BOARD_PHASE_WORDS] = {0};
    memcpy(words, phase, strnlen(phase, sizeof words - 1));
    shared_rank *mine = &board->ranks[board->rank];
    for (int i = 0; i < SP_BOARD_PHASE_WORDS; i++) atomic_store_explicit(&mine->phase[i], words[i], memory_order_relaxed);
}

void sp_board_fail(sp_board *board, int rank, const char *text) {
    if (rank < 0 || rank >= board->size) return;
    shared_rank *failed = &board->ranks[rank];
    if (atomic_exchange_explicit(&failed->claimed, 1, memory_order_relaxed)) return;
    strncpy(failed->failure, text ? text : "no reason given", sizeof failed->failure - 1);
    atomic_store_explicit(&failed->state, SP_RANK_FAILED, memory_order_release);
    uint32_t none = 0;
    atomic_compare_exchange_strong_explicit(&board->shared->failed, &none, (uint32_t)rank + 1, memory_order_release,
                                            memory_order_relaxed);
}

/* "rank 1 (pid 12) is in custom one_shot, call 7"; after a failure `verb` says so and the text follows. */
static int stand(const sp_board *board, int r, const char *verb, char *text, size_t size) {
    const shared_rank *rank = &board->ranks[r];
    char phase[SP_BOARD_PHASE_WORDS * 8], call[32] = "";
    uint64_t posted = atomic_load_explicit(&rank->posted, memory_order_relaxed);
    if (posted) snprintf(call, sizeof call, ", call %" PRIu64, posted);
    return snprintf(text, size, "rank %d (pid %" PRIu32 ") %s %s%s", r, atomic_load_explicit(&rank->pid, memory_order_relaxed),
                    verb, sp_board_phase_of(rank, phase), call);
}

static sp_status report(const sp_board *board, int r) {
    const shared_rank *rank = &board->ranks[r];
    char where[160];
    bool told = atomic_load_explicit(&rank->state, memory_order_acquire) == SP_RANK_FAILED;
    stand(board, r, r == board->rank ? "(this one) was given up in" : "failed in", where, sizeof where);
    return sp_fail(SP_PEER, "%s: %s", where, told ? rank->failure : "its process is gone");
}

static sp_status look_for_peers(sp_board *board) {
    for (int r = 0; r < board->size; r++) {
        shared_rank *rank = &board->ranks[r];
        if (r == board->rank || atomic_load_explicit(&rank->state, memory_order_acquire) != SP_RANK_ATTACHED) continue;
        if (!is_gone(rank)) continue;
        /* It may have said goodbye between the two looks. */
        if (atomic_load_explicit(&rank->state, memory_order_acquire) == SP_RANK_LEFT) continue;
        sp_board_fail(board, r, "its process is gone");
        return report(board, r);
    }
    return SP_OK;
}

sp_status sp_board_check(void *self) {
    sp_board *board = self;
    uint32_t failed = atomic_load_explicit(&board->shared->failed, memory_order_acquire);
    if (failed) return report(board, (int)failed - 1);
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    int64_t now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    if (now - board->looked_ns < LOOK_NS) return SP_OK;
    board->looked_ns = now;
    return look_for_peers(board);
}

void sp_board_describe(sp_board *board, char *text, size_t size) {
    if (!size) return;
    text[0] = 0;
    size_t at = 0;
    for (int r = 0; r < board->size && at < size; r++) {
        const shared_rank *rank = &board->ranks[r];
        uint32_t state = atomic_load_explicit(&rank->state, memory_order_acquire);
        int wrote = 0;
        if (r) at += (size_t)snprintf(text + at, size - at, "; ");
        if (at >= size) return;
        if (state == SP_RANK_ABSENT)
            wrote = snprintf(text + at, size - at, "rank %d never came", r);
        else if (state == SP_RANK_LEFT)
            wrote = snprintf(text + at, size - at, "rank %d has left", r);
        else
            wrote = stand(board, r, state == SP_RANK_FAILED ? "failed in" : "is in", text + at, size - at);
        at += (size_t)wrote;
    }
}
