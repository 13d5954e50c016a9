/* Writing and reading a ring (ring_format.h says what lies in it). The writer
 * is csrc/py's Recorder; readers are anybody of the same user, by a descriptor:
 * they never map the file. Invariant: a writer never waits for another one in
 * sp_ring_write; a reader believes nothing before it was held against the
 * file's size. */
#ifndef SP_RING_H
#define SP_RING_H

#include <stdbool.h>
#include <string.h>

#include "ring_format.h"
#include "status.h"

/* A call is recorded once in tens of microseconds, and by then the caches are somebody else's: what it costs is the lines and pages of code and
 * data that it needs. So what each call runs lies side by side, and what few calls run lies elsewhere. */
#define SP_OFTEN __attribute__((hot))
#define SP_RARE  __attribute__((cold, noinline))

/* ---- the writer: ring.c, ring_tables.c ---- */

typedef struct sp_ring_shape {
    uint64_t slots, graphs, kinds, names_bytes; /* slots and kinds: powers of two */
} sp_ring_shape;

/* Who writes, as far as the core cannot find it out. */
typedef struct sp_ring_writer {
    uint64_t started; /* start of the process */
    const char *release;
} sp_ring_writer;

typedef struct sp_ring {
    unsigned char *map;
    sp_slot *slot;
    sp_ring_counts *counts;
    sp_kind_row *kind;
    _Atomic uint64_t head;
    sp_ring_shape shape;
    sp_ring_control *control;
    unsigned char *names_at;
    sp_graph_row *graph;
    uint64_t bytes;
    int fd;                 /* kept for its lock: who can lock the file knows that nobody writes it any more */
    uint64_t device, inode; /* of the file: by the time that fd is closed, it may be another one's */
    /* What is used, of our own, as head is: the file's numbers are for readers, and anybody of this user can change them. */
    _Atomic uint64_t graphs;
    _Atomic uint32_t names_busy;
    uint64_t names_used;
    uint32_t names[SP_NAMED_COUNT]; /* ids given out; both under names_busy */
} sp_ring;

/* Makes `path` (0600) under another name, reserves and maps it, and gives it
 * its name once it is whole. A file of that name that is there is replaced.
 * SP_NOMEM: the disk is full; SP_SYSTEM: the folder is missing, or not ours to
 * write. */
sp_status sp_ring_create(const char *path, const sp_ring_shape *shape, const sp_ring_writer *writer, sp_ring *ring);
void sp_ring_close(sp_ring *ring); /* says goodbye and unmaps; the file stays */
void sp_ring_leave(sp_ring *ring); /* unmaps: for a child of the process that
                                      writes, whose file it is not */

/* One record, from any thread; its seq is set here and returned. Never waits
 * for another writer; 0: somebody else writes into the file and left it no slot. */
uint64_t sp_ring_write(sp_ring *ring, const sp_record *record);
/* Sets device_ns of a record that is still there, and gives back the whole of
 * it; false: it was overwritten. */
bool sp_ring_amend(sp_ring *ring, uint64_t seq, uint32_t device_ns, sp_record *record);

/* Said before a call whose record will be written: what that takes is fetched while the call runs. `place` is as in sp_ring_kind_at(). */
static inline void sp_ring_expect(const sp_ring *ring, uint64_t place) {
    if (!ring->map) return;
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    __builtin_prefetch(&ring->slot[head & (ring->shape.slots - 1)], 1);
    __builtin_prefetch(ring->counts, 1);
    if (place && place <= ring->shape.kinds) __builtin_prefetch(&ring->kind[place - 1], 1);
}

static inline sp_kind_key sp_ring_kind_key(const sp_record *r) {
    return (sp_kind_key){r->group,    r->graph, r->entry, r->path, r->kernel,
                         r->expected, r->dtype, r->phase, r->op,   (uint8_t)r->flags};
}

/* The row at place - 1 if it is this record's kind's; NULL: it is another one's, or place is 0. */
static inline sp_kind_row *sp_ring_kind_at(const sp_ring *ring, uint64_t place, const sp_record *record) {
    if (!place || place > ring->shape.kinds) return NULL;
    sp_kind_row *row = &ring->kind[place - 1];
    sp_kind_key key = sp_ring_kind_key(record);
    if (atomic_load_explicit(&row->state, memory_order_acquire) != 2) return NULL;
    return memcmp(&row->key, &key, sizeof key) ? NULL : row;
}

/* The row of this record's kind, made where there is none; NULL: no room. */
sp_kind_row *sp_ring_kind(sp_ring *ring, const sp_record *record);
/* Counts it there: how many there were before. */
static inline uint64_t sp_ring_count(sp_kind_row *row, const sp_record *record) {
    atomic_fetch_add_explicit(&row->nbytes, record->nbytes, memory_order_relaxed);
    if (record->host_ns) atomic_fetch_add_explicit(&row->host_ns, record->host_ns, memory_order_relaxed);
    return atomic_fetch_add_explicit(&row->calls, 1, memory_order_relaxed);
}

/* Appends a name; the caller sees to it that each is given once. SP_NOMEM: no
 * room, the id is 0. */
sp_status sp_ring_name(sp_ring *ring, sp_named kind, const char *text, size_t bytes, uint32_t *id);

uint32_t sp_ring_graph_begin(sp_ring *ring, uint32_t label); /* its number; 0: no room */
void sp_ring_graph_end(sp_ring *ring, uint32_t graph);
void sp_ring_graph_captured(sp_ring *ring, uint32_t graph, const sp_record *record);
bool sp_ring_graph_replayed(sp_ring *ring, uint32_t graph, uint64_t times); /* false: there is no such graph */
/* So many addresses were registered for all graphs captured since the last
 * time. */
void sp_ring_registered(sp_ring *ring, uint64_t addresses);

sp_phase sp_phase_of(uint32_t context); /* by CONTEXTS' bits */

/* ---- the reader: ring_read.c. Works on a descriptor, of a live file, a dead
 * one or anything else ---- */

/* A file's header and what changes in it, as they were at one moment. */
typedef struct sp_ring_image {
    sp_ring_header header;
#define X(type, numpy, field, text) type field;
    SP_CONTROL_FIELDS(X)
    SP_COUNT_FIELDS(X)
#undef X
} sp_ring_image;

typedef struct sp_ring_seen {
    uint64_t next;        /* what `since` is for whatever comes later */
    uint64_t records;     /* that were copied */
    uint64_t overwritten; /* that came after `since` and were gone already */
    uint64_t torn;        /* whose writer was inside, or came in while they were copied;
                    slots that were passed over too */
} sp_ring_seen;

/* SP_INVALID and why where the file is none of these, or contradicts itself or
 * its size. Everything below wants an image of this. */
sp_status sp_ring_look(int fd, sp_ring_image *image);
/* Records after seq `since`, in order; `room` is at least sp_ring_room(). */
uint64_t sp_ring_room(const sp_ring_image *image, uint64_t since);
sp_status sp_ring_records(int fd, const sp_ring_image *image, uint64_t since, sp_record *records, uint64_t room,
                          sp_ring_seen *seen);
/* Rows: graphs up to the last used one; kinds that are good, in any order.
 * `room` is what the header has of them. */
sp_status sp_ring_graphs(int fd, const sp_ring_image *image, void *rows, uint64_t room, uint64_t *count);
sp_status sp_ring_kinds(int fd, const sp_ring_image *image, void *rows, uint64_t room, uint64_t *count);
/* The names' bytes, sp_ring_names() of them, and one name after the other:
 * false at the end, or where they stop making sense. */
uint64_t sp_ring_names(const sp_ring_image *image);
sp_status sp_ring_names_copy(int fd, const sp_ring_image *image, unsigned char *copy);
bool sp_ring_names_next(const unsigned char *copy, uint64_t bytes, uint64_t *at, sp_named *kind, uint32_t *id, const char **text,
                        uint32_t *length);

#endif
