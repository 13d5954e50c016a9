/* Steps: how the ranks of a communicator keep together. Called by the kernels; see comm.h for why buffers come in two.
 * Invariant: a call is compared with everybody's after all of them have made the step, so that ranks that disagree are still
 * together. */
#include <inttypes.h>

#include "comm.h"

static const uint32_t *step_word(const sp_comm *comm, int rank) {
    return (const uint32_t *)(const void *)&lane_of(comm, rank)->step;
}

void sp_host_step(sp_comm *comm) {
    sp_board_signal(comm->board, (uint32_t *)(void *)&lane_of(comm, comm->world.rank)->step, ++comm->step);
}

sp_status sp_host_await(sp_comm *comm, int peer, uint32_t step, sp_deadline deadline) {
    return sp_board_wait(comm->board, step_word(comm, peer), step, peer, deadline);
}

sp_status sp_host_await_all(sp_comm *comm, sp_deadline deadline) {
    for (int r = 0; r < comm->world.size; r++)
        if (r != comm->world.rank) SP_TRY(sp_host_await(comm, r, comm->step, deadline));
    return SP_OK;
}

sp_status sp_host_meet(sp_comm *comm, sp_deadline deadline) {
    sp_host_step(comm);
    return sp_host_await_all(comm, deadline);
}

void sp_host_announce(sp_comm *comm, const host_call *call) {
    lane_of(comm, comm->world.rank)->header[comm->turn % 2] = call->header;
    sp_host_step(comm);
}

/* What a peer wrote is followed only where it leads into its own arena. */
static sp_status take_source(sp_comm *comm, host_call *call, int r, uint64_t source) {
    call->source[r] = NULL;
    if (!source) return SP_OK;
    if (!sp_board_holds(comm->board, r, source, call->nbytes))
        return sp_fail(SP_INTERNAL, "rank %d offers %" PRIu64 " bytes at offset %" PRIu64 " of the board, which is not its arena",
                       r, call->nbytes, source);
    call->source[r] = (const uint8_t *)sp_board_base(comm->board) + source;
    call->in_place = true;
    return SP_OK;
}

sp_status sp_host_agree(sp_comm *comm, host_call *call) {
    int me = comm->world.rank;
    SP_TRY(sp_host_await_all(comm, call->deadline));
    sp_host_stamp_call(comm, call->stamp, SP_STAMP_MET);
    for (int r = 0; r < comm->world.size; r++) {
        const call_header *theirs = &lane_of(comm, r)->header[comm->turn % 2];
        if (theirs->call.path == SP_PATH_NONE)
            return sp_fail(SP_PEER, "rank %d has left, rank %d still makes a call: ranks must make the same calls", r, me);
        SP_TRY(sp_board_same_call(0, r, &theirs->call, me, &call->header.call));
    }
    for (int r = 0; r < comm->world.size; r++)
        SP_TRY(take_source(comm, call, r, lane_of(comm, r)->header[comm->turn % 2].source));
    return SP_OK;
}

sp_status sp_host_enter(sp_comm *comm, host_call *call) {
    sp_host_stamp_call(comm, call->stamp, SP_STAMP_ENTER);
    sp_host_announce(comm, call);
    return sp_host_agree(comm, call);
}
