/* How far apart the clocks of the ranks' GPUs are: rank 0 makes round trips with each other rank, over the memory that custom kernels map.
 * Called through the table in paths.c.
 * Of SP_TRIPS trips the one that took least counts. The peer's time lay somewhere between its start and its end: in the middle, give or take
 * half of it and a step of the slower clock; its two ways are alike, so the truth is likely nearer.
 * Invariant: every rank makes the same exchanges whatever failed, and all have the same answer. */
#include <string.h>

#include "measure.h"

enum { STEP_MAX_NS = 10000000 }; /* no clock that moves so seldom compares anything */

/* Kernels and the copies of what they leave, all on the side stream. */
static sp_status make_trips(sp_comm *comm, sp_deadline deadline) {
    const sp_measure *m = comm->measure;
    const int rank = comm->world.rank, last = rank ? rank : comm->world.size - 1;
    int before;
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    sp_status status = SP_OK;
    for (int peer = rank ? rank : 1; peer <= last && !status; peer++)
        status = sp_custom_trips(comm->custom, peer, &m->device->trips[peer], m->side, deadline);
    if (!status) {
        const cudaError_t error = cudaMemcpyAsync(m->copy->trips, m->device->trips, sizeof m->copy->trips, cudaMemcpyDeviceToHost,
                                                  m->side);
        if (error) status = sp_cuda_fail(error, "cudaMemcpyAsync of round trips");
    }
    sp_device_leave(comm->world.ordinal, before);
    return status ? status : sp_comm_wait(comm, m->side, NULL, "comparing clocks", deadline);
}

typedef struct trip {
    unsigned long long number, sent, back;
} trip;

/* What each rank tells of its trips: rank 0 of the best with each peer, a peer of all. */
typedef struct told {
    unsigned long long step;
    trip best[SP_KERNEL_RANKS];
    unsigned long long came[SP_TRIPS];
} told;

static void tell(const sp_comm *comm, told *mine) {
    const sp_kernel_trips *trips = comm->measure->copy->trips;
    const int rank = comm->world.rank;
    memset(mine, 0, sizeof *mine);
    mine->step = trips[rank ? rank : 1].step;
    memcpy(mine->came, trips[rank].came, sizeof mine->came);
    for (int peer = 1; peer < comm->world.size && !rank; peer++)
        mine->best[peer] = (trip){trips[peer].number, trips[peer].sent, trips[peer].back};
}

static sp_status judge(const told *zero, const told *peer, int rank, double *offset_ns, double *error_ns) {
    const trip *t = &zero->best[rank];
    if (t->number >= SP_TRIPS || t->back < t->sent || zero->step > STEP_MAX_NS || peer->step > STEP_MAX_NS)
        return sp_fail(SP_CUDA, "comparing the GPUs' clocks: that of rank 0 or rank %d stands still or goes backwards", rank);
    const double took = (double)(t->back - t->sent);
    const double came = (double)(int64_t)(peer->came[t->number] - t->sent); /* the clocks may be far apart */
    *offset_ns = came - took / 2;
    *error_ns = took / 2 + (double)(zero->step > peer->step ? zero->step : peer->step);
    return SP_OK;
}

sp_status sp_clock_compare(sp_comm *comm, sp_clock *clock, sp_deadline deadline) {
    const sp_world *w = &comm->world;
    told mine, all[SP_KERNEL_RANKS];
    sp_status agreed;
    char why[SP_WHY];
    memset(clock, 0, sizeof *clock);
    if (w->size == 1) return SP_OK;
    for (int step = 0; step < 2; step++) { /* first all are here, so that no kernel waits long for its peer's */
        sp_status status = step ? make_trips(comm, deadline) : sp_measure_need(comm, "comparing clocks");
        SP_TRY(sp_comm_agree(w, status, deadline, &agreed, why));
        if (agreed) return sp_fail(agreed, "comparing the GPUs' clocks: %s", why);
    }
    tell(comm, &mine);
    SP_TRY(sp_gather(&w->exchange, &mine, all, sizeof mine, deadline));
    for (int r = 1; r < w->size; r++) SP_TRY(judge(&all[0], &all[r], r, &clock->offset_ns[r], &clock->error_ns[r]));
    return SP_OK;
}
