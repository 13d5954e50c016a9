/* Captured calls, and what was recorded between them: a list that keeps the pointers, and runs again with whatever lies there then.
 * Called through the seam.
 * Invariant: while a capture is open nothing runs, and the list's order is the order of the calls. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"

struct sp_graph {
    host_recorded *all;
    size_t count, room;
};

sp_status sp_host_record(sp_comm *comm, const host_recorded *what) {
    sp_graph *graph = comm->recording;
    if (graph->count == graph->room) {
        size_t room = graph->room ? graph->room * 2 : 16;
        host_recorded *all = realloc(graph->all, room * sizeof *all);
        if (!all) return sp_fail(SP_NOMEM, "no memory for part %zu of a capture", graph->count + 1);
        graph->all = all;
        graph->room = room;
    }
    graph->all[graph->count++] = *what;
    return SP_OK;
}

sp_status sp_host_record_call(sp_comm *comm, const sp_work *work) {
    SP_TRY(sp_host_check(comm, work));
    host_recorded call = {.kind = HOST_CALL, .work = *work};
    call.work.flags &= (uint8_t)~SP_WORK_CAPTURING;
    SP_TRY(sp_host_record(comm, &call));
    if (work->flags & SP_WORK_REGISTERED) comm->noted++;
    return SP_OK;
}

static void copy_now(void *to, const void *from, size_t bytes) {
    if (from)
        memmove(to, from, bytes);
    else
        memset(to, 0, bytes);
}

sp_status sp_host_copy(sp_comm *comm, void *to, const void *from, size_t bytes, void *stream) {
    (void)stream;
    if (!bytes) return SP_OK;
    if (!to) return sp_fail(SP_INVALID, "a copy of %zu bytes to no address", bytes);
    host_recorded copy = {.kind = HOST_COPY, .work = {.in = from, .out = to, .nbytes = bytes}};
    if (comm->recording) return sp_host_record(comm, &copy);
    copy_now(to, from, bytes);
    return SP_OK;
}

sp_status sp_host_capturing(sp_comm *comm, void *stream, bool *capturing) {
    (void)stream;
    *capturing = comm->recording != NULL;
    return SP_OK;
}

sp_status sp_host_capture_begin(sp_comm *comm, void *stream) {
    (void)stream;
    if (comm->recording) return sp_fail(SP_INVALID, "a capture is open already: end it first");
    comm->recording = calloc(1, sizeof *comm->recording);
    return comm->recording ? SP_OK : sp_fail(SP_NOMEM, "no memory for a capture");
}

sp_status sp_host_capture_end(sp_comm *comm, void *stream, sp_graph **graph) {
    (void)stream;
    if (!comm->recording) return sp_fail(SP_INVALID, "no capture is open: begin one first");
    *graph = comm->recording;
    comm->recording = NULL;
    return SP_OK;
}

sp_status sp_host_registered(sp_comm *comm, uint64_t *addresses, sp_deadline deadline) {
    uint64_t all[SP_RANKS_MAX];
    sp_board_phase(comm->board, "registering captured addresses");
    SP_TRY(sp_gather(&comm->world.exchange, &comm->noted, all, sizeof comm->noted, deadline));
    for (int r = 0; r < comm->world.size; r++)
        if (all[r] != comm->noted)
            return sp_fail(SP_MISMATCH,
                           "rank %d captured %" PRIu64 " registered addresses, rank %d %" PRIu64 ": ranks must capture the same",
                           r, all[r], comm->world.rank, comm->noted);
    *addresses = comm->noted;
    comm->noted = 0;
    sp_board_phase(comm->board, SP_PHASE_IDLE);
    return SP_OK;
}

static sp_status run_again(sp_comm *comm, const host_recorded *what, sp_deadline deadline) {
    sp_work work = what->work;
    work.deadline = deadline;
    switch (what->kind) {
    case HOST_CALL: return sp_host_run(comm, &work);
    case HOST_COPY: copy_now(work.out, work.in, work.nbytes); return SP_OK;
    case HOST_SPIN: return sp_host_spin(comm, what->ns, NULL);
    case HOST_STAMP: return sp_host_stamp(comm, what->slot, NULL);
    case HOST_CLEAR: return sp_host_stamps_clear(comm, what->slot, what->slots, NULL);
    }
    return sp_fail(SP_INTERNAL, "a capture holds a part of kind %d", (int)what->kind);
}

sp_status sp_host_replay(sp_comm *comm, sp_graph *graph, void *stream, sp_deadline deadline) {
    (void)stream;
    if (comm->recording) return sp_fail(SP_INVALID, "a replay while a capture is open: end it first");
    for (size_t i = 0; i < graph->count; i++) SP_TRY(run_again(comm, &graph->all[i], deadline));
    return SP_OK;
}

void sp_host_graph_free(sp_comm *comm, sp_graph *graph) {
    (void)comm;
    if (!graph) return;
    free(graph->all);
    free(graph);
}
