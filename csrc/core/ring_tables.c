/* The tables beside a ring's slots: names, graphs, kinds of calls. Called by
 * csrc/py's Recorder. Invariant: a row or a name counts only once its state, or
 * the length of what is used, says so; that is stored last, with release. */
#include <sched.h>
#include <string.h>

#include "deadline.h"
#include "ring.h"

enum { PROBES = 64, LOOKS = 10000, NAME_HEAD = 8 };

SP_OFTEN sp_phase sp_phase_of(uint32_t context) {
    if (context & SP_CTX(STREAM)) return SP_PHASE_CAPTURED;
    if (context & (SP_CTX(COMPILING) | SP_CTX(COMPILE_WARMUP))) return SP_PHASE_COMPILE;
    if (context & SP_CTX(PIECEWISE)) return SP_PHASE_PIECEWISE;
    return context & SP_CTX(IN_CAPTURE) ? SP_PHASE_WARMUP : SP_PHASE_EAGER;
}

/* ---- kinds: an open-addressed table in the file, that only grows ---- */

static uint64_t hash_of(const sp_kind_key *key) {
    uint64_t first;
    uint32_t rest;
    memcpy(&first, key, sizeof first);
    memcpy(&rest, (const char *)key + sizeof first, sizeof rest);
    uint64_t h = (first ^ rest * UINT64_C(0x9E3779B97F4A7C15)) * UINT64_C(0xD6E8FEB86659FD93);
    return h ^ h >> 32;
}

/* Whoever makes the row needs a few stores for it; one that was stopped in the
 * middle costs this row. */
static uint32_t wait_made(sp_kind_row *row) {
    uint32_t state = atomic_load_explicit(&row->state, memory_order_acquire);
    for (unsigned looks = 0; state == 1 && looks < LOOKS; looks++)
        state = atomic_load_explicit(&row->state, memory_order_acquire);
    return state;
}

sp_kind_row *sp_ring_kind(sp_ring *ring, const sp_record *record) {
    sp_kind_key key = sp_ring_kind_key(record);
    uint64_t at = hash_of(&key);
    for (int i = 0; i < PROBES; i++, at++) {
        sp_kind_row *row = &ring->kind[at & (ring->shape.kinds - 1)];
        uint32_t state = atomic_load_explicit(&row->state, memory_order_acquire);
        if (!state &&
            atomic_compare_exchange_strong_explicit(&row->state, &state, 1, memory_order_acquire, memory_order_acquire)) {
            row->key = key;
            atomic_store_explicit(&row->first_ns, record->time_ns, memory_order_relaxed);
            atomic_store_explicit(&row->state, 2, memory_order_release);
            atomic_fetch_add_explicit(&ring->counts->kinds_used, 1, memory_order_relaxed);
            return row;
        }
        if (state == 1) state = wait_made(row);
        if (state == 2 && !memcmp(&row->key, &key, sizeof key)) return row;
    }
    atomic_fetch_add_explicit(&ring->counts->kinds_lost, 1, memory_order_relaxed);
    return NULL;
}

/* ---- names ---- */

static const uint32_t most_ids[SP_NAMED_COUNT] = {
    [SP_NAMED_GROUP] = UINT16_MAX, [SP_NAMED_ENTRY] = UINT8_MAX,  [SP_NAMED_KERNEL] = UINT8_MAX,
    [SP_NAMED_SITE] = UINT16_MAX,  [SP_NAMED_GRAPH] = UINT32_MAX, [SP_NAMED_NOTE] = UINT32_MAX,
};

/* kind, length, id: 8 bytes; the text; zeros up to a multiple of 8. */
static sp_status append(sp_ring *ring, sp_named kind, const char *text, size_t bytes, uint32_t *id) {
    uint64_t used = ring->names_used;
    uint64_t whole = (NAME_HEAD + bytes + 7) / 8 * 8;
    if (ring->names[kind] >= most_ids[kind] || whole > ring->shape.names_bytes - used) {
        atomic_fetch_add_explicit(&ring->counts->names_lost, 1, memory_order_relaxed);
        return sp_fail(SP_NOMEM, "no room for another name");
    }
    uint16_t head[2] = {(uint16_t)kind, (uint16_t)bytes};
    *id = ++ring->names[kind];
    memcpy(ring->names_at + used, head, sizeof head);
    memcpy(ring->names_at + used + sizeof head, id, sizeof *id);
    memcpy(ring->names_at + used + NAME_HEAD, text, bytes);
    ring->names_used = used + whole;
    atomic_store_explicit(&ring->counts->names_used, used + whole, memory_order_release);
    return SP_OK;
}

sp_status sp_ring_name(sp_ring *ring, sp_named kind, const char *text, size_t bytes, uint32_t *id) {
    *id = 0;
    if ((unsigned)kind >= SP_NAMED_COUNT) return sp_fail(SP_INVALID, "kind of name %d: there are %d", (int)kind, SP_NAMED_COUNT);
    if (!bytes || bytes > SP_RING_TEXT_MAX)
        return sp_fail(SP_INVALID, "a name of %zu bytes: give 1 to %d", bytes, SP_RING_TEXT_MAX);
    uint32_t free_now = 0;
    while (!atomic_compare_exchange_weak_explicit(&ring->names_busy, &free_now, 1, memory_order_acquire, memory_order_relaxed)) {
        free_now = 0;
        sched_yield();
    }
    sp_status status = append(ring, kind, text, bytes, id);
    atomic_store_explicit(&ring->names_busy, 0, memory_order_release);
    return status;
}

/* ---- graphs ---- */

static sp_graph_row *graph_row(sp_ring *ring, uint32_t graph) {
    return graph && graph <= atomic_load_explicit(&ring->graphs, memory_order_acquire) ? &ring->graph[graph - 1] : NULL;
}

uint32_t sp_ring_graph_begin(sp_ring *ring, uint32_t label) {
    uint64_t used = atomic_load_explicit(&ring->graphs, memory_order_relaxed);
    do {
        if (used >= ring->shape.graphs) {
            atomic_fetch_add_explicit(&ring->counts->graphs_lost, 1, memory_order_relaxed);
            return 0;
        }
    } while (!atomic_compare_exchange_weak_explicit(&ring->graphs, &used, used + 1, memory_order_acq_rel, memory_order_relaxed));
    sp_graph_row *row = &ring->graph[used];
    atomic_store_explicit(&row->label, label, memory_order_relaxed);
    atomic_store_explicit(&row->began_ns, (uint64_t)sp_now_ns(), memory_order_relaxed);
    atomic_store_explicit(&row->batch, atomic_load_explicit(&ring->control->batch, memory_order_relaxed), memory_order_relaxed);
    atomic_store_explicit(&row->state, 1, memory_order_release);
    atomic_fetch_add_explicit(&ring->counts->graphs_used, 1, memory_order_release);
    return (uint32_t)used + 1;
}

void sp_ring_graph_end(sp_ring *ring, uint32_t graph) {
    sp_graph_row *row = graph_row(ring, graph);
    if (!row) return;
    atomic_store_explicit(&row->ended_ns, (uint64_t)sp_now_ns(), memory_order_relaxed);
    atomic_store_explicit(&row->state, 2, memory_order_release);
}

void sp_ring_graph_captured(sp_ring *ring, uint32_t graph, const sp_record *record) {
    sp_graph_row *row = graph_row(ring, graph);
    if (!row) return;
    atomic_fetch_add_explicit(&row->captured, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&row->nbytes, record->nbytes, memory_order_relaxed);
}

bool sp_ring_graph_replayed(sp_ring *ring, uint32_t graph, uint64_t times) {
    sp_graph_row *row = graph_row(ring, graph);
    if (row)
        atomic_fetch_add_explicit(&row->replays, times, memory_order_relaxed);
    else
        atomic_fetch_add_explicit(&ring->counts->replays_lost, times, memory_order_relaxed);
    return row;
}

void sp_ring_registered(sp_ring *ring, uint64_t addresses) {
    uint32_t batch = atomic_fetch_add_explicit(&ring->control->batch, 1, memory_order_acq_rel);
    uint64_t used = atomic_load_explicit(&ring->graphs, memory_order_acquire);
    for (uint64_t i = used; i-- > 0;) {
        sp_graph_row *row = &ring->graph[i];
        uint64_t of = atomic_load_explicit(&row->batch, memory_order_relaxed);
        if (of && of < batch) break;
        if (of == batch) atomic_store_explicit(&row->registered, addresses + 1, memory_order_relaxed);
    }
}
