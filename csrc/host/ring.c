/* The stand-ins for NCCL and torch.distributed among CPU ranks: a ring, and a root that sums for all. Called by run.c through a
 * plan. The ring adds in the order of its hops and rounds to the dtype at each; the root adds from the last rank to the first and
 * rounds once.
 * Invariant: an element is summed by one chain and then only copied, so that all ranks have the same bits. */
#include <string.h>

#include "comm.h"

typedef struct ring_turn {
    uint64_t at;    /* of the call */
    size_t piece;   /* bytes of this turn: a part of at most SP_HOST_CHUNK a rank */
    size_t part;    /* bytes of each part but the last ones */
    uint32_t start; /* steps before the first message */
} ring_turn;

static size_t part_at(const ring_turn *t, int part) {
    size_t at = t->part * (size_t)part;
    return at < t->piece ? at : t->piece;
}

/* Message m goes on with the part that came in message m - 1; after size - 1 of them each rank has one whole sum, which goes
 * round. */
static sp_status exchange(sp_comm *comm, const host_call *call, const ring_turn *t, int m) {
    int size = comm->world.size, me = comm->world.rank, next = (me + 1) % size, previous = (me + size - 1) % size;
    int sends = (me + 2 * size - m) % size, takes = (me + 2 * size - m - 1) % size;
    size_t from = part_at(t, sends), to = part_at(t, sends + 1);
    /* The next rank has sent message m - 1, so it is through with m - 2, which lay in the same buffer. */
    if (m > 1) SP_TRY(sp_host_await(comm, next, t->start + (uint32_t)m, call->deadline));
    if (to > from) memcpy(lane_at(comm, next, LANE_RING, (uint32_t)m), (m ? call->out : call->in) + t->at + from, to - from);
    sp_host_step(comm);
    SP_TRY(sp_host_await(comm, previous, comm->step, call->deadline));
    from = part_at(t, takes);
    to = part_at(t, takes + 1);
    const uint8_t *came = lane_at(comm, me, LANE_RING, (uint32_t)m);
    if (m < size - 1)
        sp_host_sum(call->dtype, call->out + t->at + from, (const void *[]){came, call->in + t->at + from}, 2,
                    (to - from) / call->element);
    else if (to > from)
        memcpy(call->out + t->at + from, came, to - from);
    return SP_OK;
}

sp_status sp_host_ring(sp_comm *comm, host_call *call) {
    size_t size = (size_t)comm->world.size, most = size * SP_HOST_CHUNK;
    ring_turn t = {0};
    do {
        t.piece = call->nbytes - t.at < most ? (size_t)(call->nbytes - t.at) : most;
        t.part = ((t.piece + size - 1) / size + SP_HOST_LINE - 1) / SP_HOST_LINE * SP_HOST_LINE;
        comm->turn++;
        SP_TRY(t.at ? sp_host_meet(comm, call->deadline) : sp_host_enter(comm, call));
        t.start = comm->step;
        for (int m = 0; m < 2 * (comm->world.size - 1); m++) SP_TRY(exchange(comm, call, &t, m));
        t.at += t.piece;
    } while (t.at < call->nbytes);
    return SP_OK;
}

/* Rank 0's turn: it reads every stage. */
static void sum_at_root(sp_comm *comm, const host_call *call, uint64_t at, size_t piece, uint8_t *result) {
    const void *sources[SP_RANKS_MAX];
    int size = comm->world.size;
    for (int r = 0; r < size; r++) sources[size - 1 - r] = r ? lane_at(comm, r, LANE_STAGE, comm->turn) : call->in + at;
    sp_host_sum(call->dtype, result, sources, size, piece / call->element);
}

sp_status sp_host_root(sp_comm *comm, host_call *call) {
    bool root = comm->world.rank == 0;
    uint64_t at = 0;
    do {
        size_t piece = call->nbytes - at < SP_HOST_CHUNK ? (size_t)(call->nbytes - at) : SP_HOST_CHUNK;
        comm->turn++;
        uint8_t *result = lane_at(comm, 0, LANE_RESULT, comm->turn);
        if (!root && piece) memcpy(lane_at(comm, comm->world.rank, LANE_STAGE, comm->turn), call->in + at, piece);
        SP_TRY(at ? sp_host_meet(comm, call->deadline) : sp_host_enter(comm, call));
        if (root) sum_at_root(comm, call, at, piece, result);
        sp_host_step(comm);
        if (!root) SP_TRY(sp_host_await(comm, 0, comm->step, call->deadline));
        if (piece) memcpy(call->out + at, result, piece);
        at += piece;
    } while (at < call->nbytes);
    return SP_OK;
}
