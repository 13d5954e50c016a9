/* What measuring needs beside the calls, among CPU ranks: marks, stamps, compute that is only time, and clocks. Called through the
 * seam, and by a replay for what was recorded; the stamps inside of a call are steps.c's, flagged.c's and run.c's.
 * Invariant: every time of every rank is CLOCK_MONOTONIC's, which all processes of a machine share. */
#include <string.h>

#include "comm.h"

sp_status sp_host_check_slots(uint32_t first, uint32_t count) {
    if (first >= 1 && count >= 1 && count <= SP_STAMPS && first <= SP_STAMPS - count + 1) return SP_OK;
    return sp_fail(SP_INVALID, "%u stamps from slot %u on: the slots are 1 to %d", count, first, SP_STAMPS);
}

sp_status sp_host_spin(sp_comm *comm, uint64_t ns, void *stream) {
    (void)stream;
    if (comm->recording) return sp_host_record(comm, &(host_recorded){.kind = HOST_SPIN, .ns = ns});
    uint64_t start = (uint64_t)sp_now_ns();
    while ((uint64_t)sp_now_ns() - start < ns)
        if (atomic_load_explicit(&comm->aborted, memory_order_relaxed))
            return sp_fail(SP_PEER, "rank %d's communicator was aborted while it computed", comm->world.rank);
    return SP_OK;
}

sp_status sp_host_stamp(sp_comm *comm, uint32_t slot, void *stream) {
    (void)stream;
    SP_TRY(sp_host_check_slots(slot, 1));
    if (comm->recording) return sp_host_record(comm, &(host_recorded){.kind = HOST_STAMP, .slot = slot});
    comm->stamps[slot] = (uint64_t)sp_now_ns();
    return SP_OK;
}

sp_status sp_host_stamps_read(sp_comm *comm, uint32_t first, uint32_t count, uint64_t *ns, sp_deadline deadline) {
    (void)deadline; /* every call was done when it returned */
    SP_TRY(sp_host_check_slots(first, count));
    memcpy(ns, &comm->stamps[first], count * sizeof *ns);
    return SP_OK;
}

sp_status sp_host_stamps_clear(sp_comm *comm, uint32_t first, uint32_t count, void *stream) {
    (void)stream;
    SP_TRY(sp_host_check_slots(first, count));
    if (comm->recording) return sp_host_record(comm, &(host_recorded){.kind = HOST_CLEAR, .slot = first, .slots = count});
    memset(&comm->stamps[first], 0, count * sizeof *comm->stamps);
    return SP_OK;
}

/* A call is done when its enqueue returns: nothing can be put before a gate. */
sp_status sp_host_hold(sp_comm *comm, void *stream) {
    (void)comm;
    (void)stream;
    return SP_OK;
}

void sp_host_release(sp_comm *comm) { (void)comm; }

/* One clock: nothing is compared, and no rank is off. The ranks meet all the same, as they do where clocks differ. */
sp_status sp_host_clock(sp_comm *comm, sp_clock *clock, sp_deadline deadline) {
    memset(clock, 0, sizeof *clock);
    sp_board_phase(comm->board, "comparing clocks");
    SP_TRY(sp_gather(&comm->world.exchange, NULL, NULL, 0, deadline));
    sp_board_phase(comm->board, SP_PHASE_IDLE);
    return SP_OK;
}

sp_status sp_host_mark(sp_comm *comm, int which, void *stream) {
    (void)stream;
    if (which != 0 && which != 1) return sp_fail(SP_INVALID, "mark %d: 0 is before, 1 after", which);
    if (comm->recording) return sp_fail(SP_INVALID, "a mark in a capture would not run: take it around the replay");
    if (!which) comm->mark_ns[1] = 0;
    comm->mark_ns[which] = sp_now_ns();
    return SP_OK;
}

sp_status sp_host_elapsed(sp_comm *comm, double *us, sp_deadline deadline) {
    (void)deadline;
    if (comm->recording || !comm->mark_ns[0] || !comm->mark_ns[1])
        return sp_fail(SP_INVALID, "no time was taken: mark 0, the calls, mark 1, outside a capture");
    *us = (double)(comm->mark_ns[1] - comm->mark_ns[0]) / 1e3;
    return SP_OK;
}
