/* `limit` among CPU ranks: a one-shot push whose flags travel in the data. Called by run.c through a plan; larger calls are
 * pushed plainly. A word of a message is four bytes and, above them, the turn; the first two words say what the call is.
 * Invariant: only such words are ever written to LANE_FLAGGED, so that a word with this turn's number is this turn's (or 2^32
 * turns old). */
#include <string.h>

#include "comm.h"

enum { HEAD = 2, WORD = 4 };

typedef _Atomic uint64_t flagged_word;

static flagged_word *message_at(const sp_comm *comm, int rank, int from) {
    size_t bytes = comm->buffer_bytes[LANE_FLAGGED] / (size_t)comm->world.size;
    return (flagged_word *)(void *)(lane_at(comm, rank, LANE_FLAGGED, comm->turn) + bytes * (size_t)from);
}

static size_t words_of(uint64_t nbytes) { return (size_t)(nbytes + WORD - 1) / WORD; }

/* The first bytes of a message, on both sides: a rank that calls something else is then seen by its header. */
static void head_of(const sp_board_call *call, uint32_t head[HEAD]) {
    head[0] = (uint32_t)call->nbytes;
    head[1] = (uint32_t)call->path | (uint32_t)call->kernel << 8 | (uint32_t)call->dtype << 16;
}

static void push(sp_comm *comm, const host_call *call, int to) {
    uint64_t flag = (uint64_t)comm->turn << 32;
    flagged_word *message = message_at(comm, to, comm->world.rank);
    uint32_t head[HEAD];
    head_of(&call->header.call, head);
    for (int i = 0; i < HEAD; i++) atomic_store_explicit(&message[i], flag | head[i], memory_order_relaxed);
    size_t whole = (size_t)call->nbytes / WORD, left = (size_t)call->nbytes % WORD;
    for (size_t i = 0; i < whole; i++) {
        uint32_t value;
        memcpy(&value, call->in + i * WORD, WORD);
        atomic_store_explicit(&message[HEAD + i], flag | value, memory_order_relaxed);
    }
    if (left) {
        uint32_t value = 0;
        memcpy(&value, call->in + whole * WORD, left);
        atomic_store_explicit(&message[HEAD + whole], flag | value, memory_order_relaxed);
    }
}

/* The first word of rank r's message is there, after at most `looks` looks. */
static bool has_come(const sp_comm *comm, int r, int looks) {
    const flagged_word *message = message_at(comm, comm->world.rank, r);
    while ((uint32_t)(atomic_load_explicit(message, memory_order_relaxed) >> 32) != comm->turn) {
        if (looks-- <= 0) return false;
        sp_backoff(0);
    }
    return true;
}

/* Of a stamped call: waits for everybody's first word before any message is taken apart, so that no copy counts as waiting. */
static sp_status meet_first(sp_comm *comm, host_call *call, bool *agreed) {
    for (int r = 0; r < comm->world.size && !*agreed; r++) {
        if (r == comm->world.rank || has_come(comm, r, sp_board_spins(comm->board))) continue;
        SP_TRY(sp_host_agree(comm, call));
        *agreed = true;
    }
    if (!*agreed) sp_host_stamp_call(comm, call->stamp, SP_STAMP_MET);
    call->stamp = 0; /* they have met: to agree later, because a last word is late, is no second time */
    return SP_OK;
}

/* Takes rank r's message apart into `to`; false where a word is not there after `looks` looks, or is of another call. */
static bool pull(sp_comm *comm, const host_call *call, int r, int looks, uint8_t *to) {
    const flagged_word *message = message_at(comm, comm->world.rank, r);
    uint32_t head[HEAD];
    head_of(&call->header.call, head);
    size_t count = HEAD + words_of(call->nbytes);
    for (size_t i = 0; i < count; i++) {
        uint64_t word = atomic_load_explicit(&message[i], memory_order_relaxed);
        while ((uint32_t)(word >> 32) != comm->turn) {
            if (looks-- <= 0) return false;
            sp_backoff(0);
            word = atomic_load_explicit(&message[i], memory_order_relaxed);
        }
        uint32_t value = (uint32_t)word;
        if (i >= HEAD)
            memcpy(to + (i - HEAD) * WORD, &value, WORD);
        else if (value != head[i])
            return false;
    }
    return true;
}

sp_status sp_host_flagged(sp_comm *comm, host_call *call) {
    if (call->nbytes > SP_HOST_FLAGGED) return sp_host_one_shot(comm, call);
    const void *sources[SP_RANKS_MAX];
    int me = comm->world.rank;
    bool agreed = false;
    comm->turn++;
    /* What this rank read in the turn before is read before its peers may write it again; the fence below is the other half. */
    atomic_thread_fence(memory_order_release);
    sp_host_stamp_call(comm, call->stamp, SP_STAMP_ENTER);
    for (int r = 0; r < comm->world.size; r++)
        if (r != me) push(comm, call, r);
    sp_host_announce(comm, call);
    if (call->stamp) SP_TRY(meet_first(comm, call, &agreed));
    for (int r = 0; r < comm->world.size; r++) {
        uint8_t *message = comm->scratch + (size_t)r * SP_HOST_FLAGGED;
        sources[r] = r == me ? call->in : message;
        if (r == me || pull(comm, call, r, agreed ? 0 : sp_board_spins(comm->board), message)) continue;
        if (!agreed) SP_TRY(sp_host_agree(comm, call));
        agreed = true;
        if (!pull(comm, call, r, 0, message))
            return sp_fail(SP_INTERNAL, "rank %d made its step, and its words of turn %u are not there", r, comm->turn);
    }
    atomic_thread_fence(memory_order_acquire);
    sp_host_sum(call->dtype, call->out, sources, comm->world.size, (size_t)call->nbytes / call->element);
    return SP_OK;
}
