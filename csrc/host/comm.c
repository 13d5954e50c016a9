/* A communicator of CPU ranks comes and goes, and its memory table over the arena. Called through the seam.
 * Invariant: the exchange of a world is the board that the lanes lie on; lanes go back to the arena only when no peer can still
 * read them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm.h"
#include "host.h"

enum { FAREWELL_MS = 100 }; /* how long one who leaves waits for peers that are still reading */
#define HANDLE_MAGIC UINT64_C(0x73705f686f737431)

/* What a handle's bytes hold. */
typedef struct host_handle {
    uint64_t magic, start, bytes; /* start: offset on the board */
    int64_t rank;
} host_handle;

_Static_assert(sizeof(host_handle) <= SP_HANDLE_BYTES, "a handle holds what peers open by");

static size_t line_up(size_t bytes) { return (bytes + SP_HOST_LINE - 1) / SP_HOST_LINE * SP_HOST_LINE; }

/* Fills in where the buffers of a lane lie; returns the lane's bytes. */
static size_t lane_layout(int size, size_t at[LANE_BUFFERS], size_t bytes[LANE_BUFFERS]) {
    size_t ranks = (size_t)size, message = line_up(SP_HOST_FLAGGED / 4 * 8 + 16), end = line_up(sizeof(lane));
    bytes[LANE_STAGE] = bytes[LANE_RESULT] = bytes[LANE_RING] = SP_HOST_CHUNK;
    bytes[LANE_INBOX] = ranks * SP_HOST_CHUNK;
    bytes[LANE_FLAGGED] = ranks * message;
    for (int b = 0; b < LANE_BUFFERS; b++) {
        at[b] = end;
        end += 2 * bytes[b];
    }
    return end;
}

size_t sp_host_arena_bytes(int size) {
    size_t at[LANE_BUFFERS], bytes[LANE_BUFFERS];
    return lane_layout(size, at, bytes);
}

sp_status sp_host_alloc(sp_comm *comm, size_t bytes, void **data) { return sp_board_alloc(comm->board, bytes, data); }

void sp_host_free(sp_comm *comm, void *data) { sp_board_free(comm->board, data); }

sp_status sp_host_export(sp_comm *comm, const void *data, sp_handle *handle) {
    void *start;
    host_handle h = {HANDLE_MAGIC, 0, 0, comm->world.rank};
    size_t bytes;
    if (!sp_board_find(comm->board, data, &start, &bytes))
        return sp_fail(SP_INVALID, "%p lies in no allocation of rank %d's arena: peers can open only such memory", data,
                       comm->world.rank);
    h.start = (uintptr_t)start - (uintptr_t)sp_board_base(comm->board);
    h.bytes = bytes;
    memset(handle, 0, sizeof *handle);
    memcpy(handle->bytes, &h, sizeof h);
    handle->offset = (uintptr_t)data - (uintptr_t)start;
    return SP_OK;
}

sp_status sp_host_open(sp_comm *comm, const sp_handle *handle, void **data) {
    host_handle h;
    memcpy(&h, handle->bytes, sizeof h);
    if (h.magic != HANDLE_MAGIC || h.rank < 0 || h.rank >= comm->world.size || handle->offset >= h.bytes ||
        !sp_board_holds(comm->board, (int)h.rank, h.start, h.bytes))
        return sp_fail(SP_INVALID, "not a handle of memory on this board: handles come from a rank's export");
    *data = (char *)sp_board_base(comm->board) + h.start + handle->offset;
    return SP_OK;
}

/* The whole board is mapped all the time. */
void sp_host_close(sp_comm *comm, const sp_handle *handle, void *data) {
    (void)comm;
    (void)handle;
    (void)data;
}

sp_status sp_host_join(const sp_world *world, sp_deadline deadline, sp_comm **comm) {
    if (world->exchange.all_gather != sp_board_all_gather)
        return sp_fail(SP_INVALID, "CPU ranks meet on a board: the world's exchange must be sp_board_exchange's");
    sp_board *board = world->exchange.self;
    if (world->size != sp_board_size(board) || world->rank < 0 || world->rank >= world->size)
        return sp_fail(SP_INVALID, "rank %d of %d on a board of %d ranks", world->rank, world->size, sp_board_size(board));
    sp_board_phase(board, "joining");
    sp_status status = SP_OK;
    sp_comm *c = calloc(1, sizeof *c);
    uint8_t *scratch = malloc((size_t)world->size * SP_HOST_FLAGGED);
    if (!c || !scratch) {
        /* The peers are on their way into a collective that this rank cannot join. */
        sp_board_fail(board, world->rank, "no memory for a communicator");
        status = sp_fail(SP_NOMEM, "no memory for rank %d's communicator", world->rank);
        goto free_comm;
    }
    c->board = board;
    c->world = *world;
    c->scratch = scratch;
    size_t bytes = lane_layout(world->size, c->buffer_at, c->buffer_bytes);
    status = sp_region_open(&sp_host_seam.memory, c, world, bytes, deadline, &c->region);
    if (status) goto free_comm;
    memset(c->region.mine, 0, bytes); /* it may be used memory: no step was made, no word is flagged */
    status = sp_gather(&world->exchange, NULL, NULL, 0, deadline);
    if (status) goto close_region;
    sp_board_phase(board, SP_PHASE_IDLE);
    *comm = c;
    return SP_OK;

close_region:
    sp_region_close(&sp_host_seam.memory, c, world, &c->region);
free_comm:
    free(scratch);
    free(c);
    return status;
}

/* A last step, which peers take for "has left" if they come with a call; true when all of them have made it too. */
static bool say_goodbye(sp_comm *comm) {
    if (comm->broken || atomic_load_explicit(&comm->aborted, memory_order_acquire)) return false;
    host_call goodbye = {.header.call.path = SP_PATH_NONE};
    sp_board_phase(comm->board, "leaving");
    comm->turn++;
    sp_host_announce(comm, &goodbye);
    return sp_host_await_all(comm, sp_deadline_in(FAREWELL_MS / 1e3)) == SP_OK;
}

void sp_host_leave(sp_comm *comm, bool broken) {
    if (!comm) return;
    bool through = !broken && say_goodbye(comm);
    /* A peer may still read this lane: then it stays until the board goes. */
    if (through) sp_region_close(&sp_host_seam.memory, comm, &comm->world, &comm->region);
    sp_host_graph_free(comm, comm->recording);
    free(comm->scratch);
    free(comm);
}

void sp_host_abort(sp_comm *comm) {
    if (!atomic_exchange_explicit(&comm->aborted, true, memory_order_acq_rel))
        sp_board_fail(comm->board, comm->world.rank, "aborted its communicator");
}
