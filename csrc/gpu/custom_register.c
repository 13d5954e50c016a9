/* Captured inputs: noted while a graph is captured, exchanged after it, so that its replays read them where they lie on every rank.
 * Called by comm.c between the end of a capture and the first replay.
 * Invariant: row n of the table in device memory belongs to the n-th captured call of every rank; a row is filled once. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "custom_parts.h"

enum { CHUNK = 128 }; /* addresses in one exchange */

sp_status sp_custom_note(sp_custom *c, const void *input, void *const **row) {
    if (c->noted == SP_CUSTOM_INPUTS)
        return sp_fail(SP_UNAVAILABLE, "rank %d: %d captured inputs are all that one communicator takes", c->world.rank,
                       SP_CUSTOM_INPUTS);
    if (c->noted == c->room) {
        const uint64_t room = c->room ? 2 * c->room : CHUNK;
        const void **notes = realloc(c->notes, room * sizeof *notes);
        if (!notes)
            return sp_fail(SP_NOMEM, "rank %d: no memory for %llu captured inputs", c->world.rank, (unsigned long long)room);
        c->notes = notes;
        c->room = room;
    }
    c->notes[c->noted] = input;
    *row = c->inputs + (1 + c->noted) * SP_KERNEL_RANKS;
    return SP_OK;
}

uint64_t sp_custom_pending(const sp_custom *c) { return c->noted - c->done; }

void sp_custom_forget(sp_custom *c) {
    for (uint64_t i = 0; i < c->opened_count; i++) c->memory->close(c->owner, &c->opened[i].handle, c->opened[i].data);
    c->opened_count = 0;
}

static sp_status export_all(sp_custom *c, uint64_t count, sp_handle *mine) {
    for (uint64_t i = 0; i < count; i++) {
        char why[200];
        const unsigned long long nth = c->done + i;
        if (!c->memory->export(c->owner, c->notes[nth], &mine[i])) continue;
        strncpy(why, sp_error(), sizeof why - 1);
        why[sizeof why - 1] = 0;
        return sp_fail(
            SP_UNAVAILABLE,
            "captured input %llu at %p cannot be shared: %s. Memory of PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True "
            "has no handle for other processes: set it to False, or capture without registered inputs",
            nth, c->notes[nth], why);
    }
    return SP_OK;
}

/* Many inputs lie in few allocations, and each is opened once. */
static sp_status open_peer(sp_custom *c, int rank, const sp_handle *handle, void **data) {
    for (uint64_t i = c->opened_count; i-- > 0;) {
        const sp_custom_opened *known = &c->opened[i];
        if (known->rank != rank || memcmp(known->handle.bytes, handle->bytes, sizeof handle->bytes) != 0) continue;
        *data = (uint8_t *)known->data + handle->offset;
        return SP_OK;
    }
    sp_custom_opened *opened = realloc(c->opened, (c->opened_count + 1) * sizeof *opened);
    if (!opened) return sp_fail(SP_NOMEM, "no memory for what rank %d shares", rank);
    c->opened = opened;
    sp_custom_opened new = {.rank = rank, .handle = *handle};
    new.handle.offset = 0;
    SP_TRY(c->memory->open(c->owner, &new.handle, &new.data));
    opened[c->opened_count++] = new;
    *data = (uint8_t *)new.data + handle->offset;
    return SP_OK;
}

static sp_status fill_rows(sp_custom *c, uint64_t count, const sp_handle *all, void *(*rows)[SP_KERNEL_RANKS]) {
    int before;
    SP_TRY(sp_custom_device(c, &before));
    sp_status status = SP_OK;
    memset(rows, 0, count * sizeof *rows);
    for (int r = 0; r < c->world.size && !status; r++)
        for (uint64_t i = 0; i < count && !status; i++) {
            const unsigned long long nth = c->done + i;
            if (r == c->world.rank)
                rows[i][r] = (void *)c->notes[nth];
            else
                status = open_peer(c, r, &all[(uint64_t)r * count + i], &rows[i][r]);
            if (!status && (uintptr_t)rows[i][r] % SP_KERNEL_VECTOR)
                status = sp_fail(SP_MISMATCH, "captured input %llu of rank %d is not aligned to 16 bytes", nth, r);
        }
    void **to = c->inputs + (1 + c->done) * SP_KERNEL_RANKS;
    if (!status)
        status = sp_custom_cuda(c, cudaMemcpyAsync(to, rows, count * sizeof *rows, cudaMemcpyHostToDevice, c->side),
                                "cudaMemcpy");
    if (!status) status = sp_custom_cuda(c, cudaStreamSynchronize(c->side), "writing the addresses of captured inputs");
    if (before != c->world.ordinal) cudaSetDevice(before);
    return status;
}

static sp_status register_chunk(sp_custom *c, uint64_t count, sp_deadline deadline) {
    sp_handle *mine = calloc(count * (1 + (uint64_t)c->world.size), sizeof *mine), *all = mine + count;
    void *(*rows)[SP_KERNEL_RANKS] = calloc(count, sizeof *rows);
    const bool room = mine && rows;
    sp_status status = room ? export_all(c, count, mine) : sp_fail(SP_NOMEM, "no memory for %d handles", CHUNK);
    status = sp_custom_agree(c, status, "sharing captured inputs", deadline);
    if (!status && room) {
        status = sp_gather(&c->world.exchange, mine, all, count * sizeof *mine, deadline);
        if (!status) status = sp_custom_agree(c, fill_rows(c, count, all, rows), "opening captured inputs", deadline);
    }
    if (!status) c->done += count;
    free(rows);
    free(mine);
    return status;
}

sp_status sp_custom_registered(sp_custom *c, uint64_t *addresses, sp_deadline deadline) {
    const uint64_t count = c->noted - c->done;
    uint64_t counts[SP_KERNEL_RANKS];
    *addresses = 0;
    SP_TRY(sp_gather(&c->world.exchange, &count, counts, sizeof count, deadline));
    for (int r = 1; r < c->world.size; r++)
        if (counts[r] != counts[0])
            return sp_fail(SP_MISMATCH, "custom all-reduce: rank 0 captured %llu registered inputs, rank %d %llu",
                           (unsigned long long)counts[0], r, (unsigned long long)counts[r]);
    sp_status status = SP_OK;
    while (c->done < c->noted && !status) {
        const uint64_t left = c->noted - c->done;
        status = register_chunk(c, left < CHUNK ? left : CHUNK, deadline);
    }
    if (status)
        c->done = c->noted; /* refused alike on all ranks: their graphs are not replayed, and the next capture begins anew */
    SP_TRY(status);
    *addresses = count;
    return SP_OK;
}
