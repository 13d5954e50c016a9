/* The one-shot and two-shot kernels, by pushing and by pulling, among CPU ranks. Called by run.c through a plan.
 *   one-shot            every rank sums everything: it reads its peers' stages (pull), or its own inbox, which they wrote (push)
 *   two-shot            every rank sums its part of each turn, then all parts go to all ranks, by reading or by writing
 * Invariant: all add in rank order and round once, so every rank has the same bits, whichever of these kernels ran. */
#include <string.h>

#include "comm.h"

static size_t piece_of(const host_call *call, uint64_t at) {
    return call->nbytes - at < SP_HOST_CHUNK ? (size_t)(call->nbytes - at) : SP_HOST_CHUNK;
}

/* Where rank r's share of a turn starts; r = size: where the turn ends. Whole cache lines, so that no two ranks write one. */
static size_t part_at(const sp_comm *comm, size_t piece, int r) {
    size_t lines = (piece + SP_HOST_LINE - 1) / SP_HOST_LINE, size = (size_t)comm->world.size;
    size_t at = (lines + size - 1) / size * SP_HOST_LINE * (size_t)r;
    return at < piece ? at : piece;
}

static sp_status begin_turn(sp_comm *comm, host_call *call, uint64_t at) {
    return at ? sp_host_meet(comm, call->deadline) : sp_host_enter(comm, call);
}

/* Before the first step of a turn: a part of the input for each rank where the plan has it lie. A one-shot's part is the whole
 * turn. */
static void offer(sp_comm *comm, const host_call *call, uint64_t at, size_t piece, bool parts) {
    int me = comm->world.rank;
    if (!call->plan->push_scatter) {
        if (!call->header.source && piece) memcpy(lane_at(comm, me, LANE_STAGE, comm->turn), call->in + at, piece);
        return;
    }
    for (int r = 0; r < comm->world.size; r++) {
        size_t from = parts ? part_at(comm, piece, r) : 0, to = parts ? part_at(comm, piece, r + 1) : piece;
        if (r != me && to > from) memcpy(inbox_at(comm, r, me), call->in + at + from, to - from);
    }
}

/* The sum of everybody's bytes [from, to) of this turn. */
static void sum_turn(sp_comm *comm, const host_call *call, uint64_t at, size_t from, size_t to, uint8_t *dst) {
    const void *sources[SP_RANKS_MAX];
    int me = comm->world.rank;
    for (int r = 0; r < comm->world.size; r++)
        sources[r] = r == me                    ? call->in + at + from
                     : call->plan->push_scatter ? inbox_at(comm, me, r)
                     : call->source[r]          ? call->source[r] + at + from
                                                : lane_at(comm, r, LANE_STAGE, comm->turn) + from;
    sp_host_sum(call->dtype, dst, sources, comm->world.size, (to - from) / call->element);
}

sp_status sp_host_one_shot(sp_comm *comm, host_call *call) {
    uint64_t at = 0;
    do {
        size_t piece = piece_of(call, at);
        comm->turn++;
        offer(comm, call, at, piece, false);
        SP_TRY(begin_turn(comm, call, at));
        sum_turn(comm, call, at, 0, piece, call->out + at);
        at += piece;
    } while (at < call->nbytes);
    return call->in_place ? sp_host_meet(comm, call->deadline) : SP_OK;
}

/* The part that this rank summed, to where the others find it. */
static void give_part(sp_comm *comm, const host_call *call, uint64_t at, size_t piece) {
    int me = comm->world.rank;
    size_t from = part_at(comm, piece, me), to = part_at(comm, piece, me + 1);
    uint8_t *mine = lane_at(comm, me, LANE_RESULT, comm->turn) + from;
    if (to == from) return;
    sum_turn(comm, call, at, from, to, mine);
    if (!call->plan->push_gather) return;
    for (int r = 0; r < comm->world.size; r++)
        if (r != me) memcpy(lane_at(comm, r, LANE_RESULT, comm->turn) + from, mine, to - from);
}

static void take_parts(sp_comm *comm, const host_call *call, uint64_t at, size_t piece) {
    for (int r = 0; r < comm->world.size; r++) {
        size_t from = part_at(comm, piece, r), to = part_at(comm, piece, r + 1);
        int holder = call->plan->push_gather ? comm->world.rank : r;
        if (to > from) memcpy(call->out + at + from, lane_at(comm, holder, LANE_RESULT, comm->turn) + from, to - from);
    }
}

sp_status sp_host_two_shot(sp_comm *comm, host_call *call) {
    uint64_t at = 0;
    do {
        size_t piece = piece_of(call, at);
        comm->turn++;
        offer(comm, call, at, piece, true);
        SP_TRY(begin_turn(comm, call, at));
        give_part(comm, call, at, piece);
        SP_TRY(sp_host_meet(comm, call->deadline));
        take_parts(comm, call, at, piece);
        at += piece;
    } while (at < call->nbytes);
    return SP_OK;
}
