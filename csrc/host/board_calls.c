/* What each rank said that it calls, and whether all of them said the same. Called by the Coordinator around every call, and by
 * the host's paths for the words of a mismatch.
 * Invariant: an entry is read between two looks at its number: one that its rank was writing meanwhile is passed over, not
 * misread. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "board_shared.h"

#define NAME3(id, name, text)            name,
#define NAME4(id, name, conformed, text) name,
#define DTYPE(id, name, bytes)           name,
static const char *const path_names[] = {SP_PATHS(NAME3)};
static const char *const kernel_names[] = {SP_KERNELS(NAME4)};
static const char *const dtype_names[] = {SP_DTYPES(DTYPE)};

/* 1,234,567 */
static void put_number(uint64_t n, char text[32]) {
    char digits[24];
    int count = snprintf(digits, sizeof digits, "%" PRIu64, n), to = 0;
    for (int i = 0; i < count; i++) {
        if (i && (count - i) % 3 == 0) text[to++] = ',';
        text[to++] = digits[i];
    }
    text[to] = 0;
}

static void put_call(const sp_board_call *call, char *text, size_t size) {
    char bytes[32];
    put_number(call->nbytes, bytes);
    const char *path = call->path < SP_PATH_COUNT ? path_names[call->path] : "an unknown path";
    const char *kernel = call->kernel < SP_KERNEL_COUNT ? kernel_names[call->kernel] : "an unknown kernel";
    const char *dtype = call->dtype < SP_DTYPE_COUNT ? dtype_names[call->dtype] : "an unknown dtype";
    snprintf(text, size, "%s%s%s of %s bytes of %s%s", path, *kernel ? " " : "", kernel, bytes, dtype,
             call->flags & SP_WORK_CAPTURING ? ", captured" : "");
}

sp_status sp_board_same_call(uint64_t seq, int rank_a, const sp_board_call *a, int rank_b, const sp_board_call *b) {
    const char *field = a->nbytes != b->nbytes                             ? "size"
                        : a->dtype != b->dtype                             ? "dtype"
                        : a->path != b->path                               ? "path"
                        : a->kernel != b->kernel                           ? "kernel"
                        : ((a->flags ^ b->flags) & SP_WORK_CAPTURING) != 0 ? "capture"
                                                                           : NULL;
    if (!field) return SP_OK;
    char of_a[128], of_b[128], number[32] = "";
    put_call(a, of_a, sizeof of_a);
    put_call(b, of_b, sizeof of_b);
    if (seq) snprintf(number, sizeof number, "call %" PRIu64 ": ", seq);
    return sp_fail(
        SP_MISMATCH,
        "%sranks disagree on the %s: rank %d calls %s, rank %d %s: every rank must make the same calls, in the same order",
        number, field, rank_a, of_a, rank_b, of_b);
}

void sp_board_post(sp_board *board, const sp_board_call *call) {
    if (board->rank < 0) return;
    shared_rank *mine = &board->ranks[board->rank];
    shared_call *entry = &mine->calls[call->seq % SP_BOARD_CALLS];
    uint64_t fields = (uint64_t)call->path | (uint64_t)call->kernel << 8 | (uint64_t)call->dtype << 16 |
                      (uint64_t)call->flags << 24;
    atomic_store_explicit(&entry->seq, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->nbytes, call->nbytes, memory_order_release);
    atomic_store_explicit(&entry->fields, fields, memory_order_release);
    atomic_store_explicit(&entry->seq, call->seq, memory_order_release);
    atomic_store_explicit(&mine->posted, call->seq, memory_order_release);
}

static bool read_call(const shared_rank *rank, uint64_t seq, sp_board_call *call) {
    const shared_call *entry = &rank->calls[seq % SP_BOARD_CALLS];
    if (atomic_load_explicit(&entry->seq, memory_order_acquire) != seq) return false;
    call->seq = seq;
    call->nbytes = atomic_load_explicit(&entry->nbytes, memory_order_acquire);
    uint64_t fields = atomic_load_explicit(&entry->fields, memory_order_acquire);
    call->path = (uint8_t)fields;
    call->kernel = (uint8_t)(fields >> 8);
    call->dtype = (uint8_t)(fields >> 16);
    call->flags = (uint8_t)(fields >> 24);
    return atomic_load_explicit(&entry->seq, memory_order_relaxed) == seq;
}

sp_status sp_board_compare(sp_board *board, uint64_t seq) {
    if (board->rank < 0) return SP_OK;
    const shared_rank *mine = &board->ranks[board->rank];
    uint64_t posted = atomic_load_explicit(&mine->posted, memory_order_relaxed);
    for (int r = 0; r < board->size; r++) {
        if (r == board->rank) continue;
        uint64_t end = atomic_load_explicit(&board->ranks[r].posted, memory_order_acquire);
        if (end > posted) end = posted;
        if (end > seq) end = seq;
        uint64_t at = board->compared[r] + 1;
        if (end >= SP_BOARD_CALLS && at <= end - SP_BOARD_CALLS) at = end - SP_BOARD_CALLS + 1;
        for (; at <= end; at++) {
            sp_board_call ours, theirs;
            if (!read_call(mine, at, &ours) || !read_call(&board->ranks[r], at, &theirs)) continue;
            SP_TRY(sp_board_same_call(at, r, &theirs, board->rank, &ours));
            board->compared[r] = at;
        }
        if (end > board->compared[r]) board->compared[r] = end;
    }
    return SP_OK;
}
