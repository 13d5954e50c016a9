/* This rank's arena: first fit over a list of blocks in order of address. Called by the host's memory table and its communicator.
 * Invariant: a block that was given out has its pages; free neighbours are one block; only its own rank allocates in an arena. */
#include <stdlib.h>

#include "board_shared.h"

static size_t arena_at(const sp_board *board, int rank) { return board->arena + (size_t)rank * board->arena_bytes; }

static bool lies_in(const sp_board *board, int rank, const void *data, size_t *at) {
    uintptr_t start = (uintptr_t)board->shared + arena_at(board, rank), address = (uintptr_t)data;
    if (address < start || address - start >= board->arena_bytes) return false;
    *at = address - start;
    return true;
}

bool sp_board_holds(const sp_board *board, int rank, uint64_t offset, uint64_t bytes) {
    size_t start = arena_at(board, rank);
    return offset >= start && offset - start <= board->arena_bytes && bytes <= board->arena_bytes - (offset - start);
}

/* Pages up to `end` of the arena: a mark that only grows, so that memory which is used again costs no system call. */
static sp_status reserve_to(sp_board *board, size_t end, size_t wanted) {
    if (end <= board->reserved) return SP_OK;
    size_t grown = (end + SP_BOARD_PAGE - 1) & ~(size_t)(SP_BOARD_PAGE - 1);
    sp_status status = sp_board_reserve(board->fd, arena_at(board, board->rank) + board->reserved, grown - board->reserved,
                                        "an arena");
    if (status) {
        char text[SP_BOARD_FAILURE];
        __builtin_strncpy(text, sp_error(), sizeof text - 1);
        text[sizeof text - 1] = 0;
        return sp_fail(status, "rank %d asks for %zu bytes: %s", board->rank, wanted, text);
    }
    board->reserved = grown;
    return SP_OK;
}

sp_status sp_board_alloc(sp_board *board, size_t bytes, void **data) {
    if (board->rank < 0) return sp_fail(SP_INVALID, "an onlooker of a board has no arena");
    if (!bytes) bytes = 1;
    size_t need = (bytes + SP_BOARD_LINE - 1) & ~(size_t)(SP_BOARD_LINE - 1);
    block *found = board->blocks;
    while (found && (found->used || found->bytes < need)) found = found->next;
    if (need < bytes || !found)
        return sp_fail(SP_NOMEM,
                       "rank %d asks for %zu bytes, its arena of %zu has no such piece left: make the board with a larger one",
                       board->rank, bytes, board->arena_bytes);
    SP_TRY(reserve_to(board, found->at + need, bytes));
    if (found->bytes > need) {
        block *rest = malloc(sizeof *rest);
        if (!rest) return sp_fail(SP_NOMEM, "no memory to note an allocation of %zu bytes", bytes);
        *rest = (block){found->at + need, found->bytes - need, false, found->next};
        found->next = rest;
        found->bytes = need;
    }
    found->used = true;
    *data = (char *)board->shared + arena_at(board, board->rank) + found->at;
    return SP_OK;
}

static void join_next(block *b) {
    block *next = b->next;
    if (!next || next->used || b->used) return;
    b->bytes += next->bytes;
    b->next = next->next;
    free(next);
}

void sp_board_free(sp_board *board, void *data) {
    size_t at = 0;
    if (!data || board->rank < 0 || !lies_in(board, board->rank, data, &at)) return;
    block *before = NULL, *b = board->blocks;
    for (; b && b->at != at; b = b->next) before = b;
    if (!b || !b->used) return;
    b->used = false;
    join_next(b);
    if (before) join_next(before);
}

bool sp_board_find(const sp_board *board, const void *data, void **start, size_t *bytes) {
    size_t at = 0;
    if (board->rank < 0 || !lies_in(board, board->rank, data, &at)) return false;
    const block *b = board->blocks;
    while (b && at - b->at >= b->bytes) b = b->next;
    if (!b || !b->used) return false;
    *start = (char *)board->shared + arena_at(board, board->rank) + b->at;
    *bytes = b->bytes;
    return true;
}
