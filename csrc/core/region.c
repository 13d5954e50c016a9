/* Exchanges between ranks, and memory that all of them map, over any device's memory table. Called by csrc/host and csrc/gpu when they join.
 * Invariant: every rank makes the same exchanges whatever failed before, so that a failure on one rank is everybody's and no rank
 * is left waiting; what a failed open had opened is closed. */
#include <string.h>

#include "path.h"

/* Two modules that each link status.c have two texts. */
static sp_status take_over(const sp_exchange *exchange, sp_status status) {
    const char *text = status && exchange->error ? exchange->error() : NULL;
    return text && text != sp_error() ? sp_fail(status, "%s", text) : status;
}

sp_status sp_gather(const sp_exchange *exchange, const void *mine, void *all, size_t bytes, sp_deadline deadline) {
    return take_over(exchange, exchange->all_gather(exchange->self, mine, all, bytes, deadline));
}

sp_status sp_check(const sp_exchange *exchange) { return take_over(exchange, exchange->check(exchange->self)); }

typedef struct offer {
    sp_handle handle;
    uint32_t status; /* sp_status of that rank so far */
    char text[160];
} offer;

static void note(offer *mine, sp_status status) {
    mine->status = status;
    if (status) {
        strncpy(mine->text, sp_error(), sizeof mine->text - 1);
        mine->text[sizeof mine->text - 1] = 0;
    }
}

/* The first rank that failed, in everybody's words. */
static sp_status verdict(const sp_world *world, const offer *all) {
    for (int r = 0; r < world->size; r++)
        if (all[r].status)
            return sp_fail((sp_status)all[r].status, "rank %d of %d, sharing memory: %s", r, world->size, all[r].text);
    return SP_OK;
}

static void close_peers(const sp_memory *memory, sp_comm *comm, const sp_world *world, sp_region *region) {
    for (int r = 0; r < world->size; r++) {
        if (r != world->rank && region->peer[r]) memory->close(comm, &region->handle[r], region->peer[r]);
        region->peer[r] = NULL;
    }
}

static sp_status share(const sp_memory *memory, sp_comm *comm, const sp_world *world, sp_status status, void *data,
                       sp_deadline deadline, sp_region *region) {
    offer mine, all[SP_RANKS_MAX];
    memset(&mine, 0, sizeof mine);
    if (!status) status = memory->export(comm, data, &mine.handle);
    note(&mine, status);
    SP_TRY(sp_gather(&world->exchange, &mine, all, sizeof mine, deadline));
    SP_TRY(verdict(world, all));
    for (int r = 0; r < world->size && !status; r++) {
        region->handle[r] = all[r].handle;
        if (r == world->rank)
            region->peer[r] = data;
        else
            status = memory->open(comm, &all[r].handle, &region->peer[r]);
    }
    note(&mine, status);
    sp_status gathered = sp_gather(&world->exchange, &mine, all, sizeof mine, deadline);
    if (!gathered) gathered = verdict(world, all);
    if (gathered) close_peers(memory, comm, world, region);
    return gathered;
}

sp_status sp_region_share(const sp_memory *memory, sp_comm *comm, const sp_world *world, void *data, sp_deadline deadline,
                          sp_region *region) {
    memset(region, 0, sizeof *region);
    region->mine = data;
    return share(memory, comm, world, data ? SP_OK : sp_fail(SP_INVALID, "no address to share"), data, deadline, region);
}

sp_status sp_region_open(const sp_memory *memory, sp_comm *comm, const sp_world *world, size_t bytes, sp_deadline deadline,
                         sp_region *region) {
    memset(region, 0, sizeof *region);
    if (world->size < 1 || world->size > SP_RANKS_MAX)
        return sp_fail(SP_INVALID, "%d ranks: 1 to %d can share memory", world->size, SP_RANKS_MAX);
    region->bytes = bytes;
    sp_status status = memory->alloc(comm, bytes, &region->mine);
    status = share(memory, comm, world, status, region->mine, deadline, region);
    if (status && region->mine) {
        memory->free(comm, region->mine);
        region->mine = NULL;
    }
    return status;
}

void sp_region_close(const sp_memory *memory, sp_comm *comm, const sp_world *world, sp_region *region) {
    close_peers(memory, comm, world, region);
    if (region->bytes && region->mine) memory->free(comm, region->mine);
    region->mine = NULL;
}
