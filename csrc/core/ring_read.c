/* The reading side of a ring: whole records out of a file that is being
 * written, was left by a killed process, or is none at all. Called by csrc/py
 * and by tests/fuzz. Invariant: nothing is read outside of the file's real size
 * or the caller's buffer, and a record is given out only if its slot said the
 * same before and after the copy. */
#include "ring.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    CHUNK = 128,
    TRIES = 3
}; /* slots that are looked at together: few, so that few are replaced meanwhile
    */

/* All of it, or an error: the file may get shorter at any time. */
static sp_status copy_out(int fd, void *to, uint64_t bytes, uint64_t at) {
    for (uint64_t done = 0; done < bytes;) {
        ssize_t got = pread(fd, (char *)to + done, bytes - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return sp_fail(SP_SYSTEM, "reading at byte %" PRIu64 ": %s", at + done, strerror(errno));
        if (!got) return sp_fail(SP_INVALID, "the file ends at byte %" PRIu64 ": it got shorter while it was read", at + done);
        done += (uint64_t)got;
    }
    return SP_OK;
}

static sp_status check_part(const char *what, uint64_t at, uint64_t bytes, uint64_t file_bytes) {
    if (at % SP_RING_ROW_BYTES == 0 && at >= SP_RING_HEADER_BYTES && at <= file_bytes && bytes <= file_bytes - at) return SP_OK;
    return sp_fail(SP_INVALID, "%s: %" PRIu64 " bytes at byte %" PRIu64 " do not lie in a file of %" PRIu64, what, bytes, at,
                   file_bytes);
}

static sp_status check_header(const sp_ring_header *h, uint64_t size) {
    if (h->magic != SP_RING_MAGIC) return sp_fail(SP_INVALID, "this is no ring file: it does not begin as one");
    if (h->version != SP_RING_VERSION || h->row_bytes != SP_RING_ROW_BYTES)
        return sp_fail(SP_INVALID,
                       "version %u, rows of %u bytes; this reads version %d: use "
                       "the sglang_probe that wrote it",
                       h->version, h->row_bytes, SP_RING_VERSION);
    if (h->file_bytes != size)
        return sp_fail(SP_INVALID, "the file has %" PRIu64 " bytes and says that it has %" PRIu64 ": it is damaged", size,
                       h->file_bytes);
    if (h->slots < SP_RING_SLOTS_MIN || h->slots > SP_RING_SLOTS_MAX || (h->slots & (h->slots - 1)) || !h->kinds ||
        h->kinds > SP_RING_KINDS_MAX || (h->kinds & (h->kinds - 1)) || !h->graphs || h->graphs > SP_RING_GRAPHS_MAX ||
        h->names_bytes > SP_RING_NAMES_MAX)
        return sp_fail(SP_INVALID,
                       "%" PRIu64 " slots, %" PRIu64 " kinds, %" PRIu64 " graphs, %" PRIu64 " bytes of names: "
                       "it is damaged",
                       h->slots, h->kinds, h->graphs, h->names_bytes);
    SP_TRY(check_part("names", h->names_at, h->names_bytes, size));
    SP_TRY(check_part("graphs", h->graphs_at, h->graphs * SP_RING_ROW_BYTES, size));
    SP_TRY(check_part("kinds", h->kinds_at, h->kinds * SP_RING_ROW_BYTES, size));
    SP_TRY(check_part("slots", h->slots_at, h->slots * SP_RING_ROW_BYTES, size));
    if (!memchr(h->release, 0, sizeof h->release)) return sp_fail(SP_INVALID, "the release has no end: it is damaged");
    return SP_OK;
}

sp_status sp_ring_look(int fd, sp_ring_image *image) {
    struct stat file;
    unsigned char page[SP_RING_HEADER_BYTES];
    if (fstat(fd, &file)) return sp_fail(SP_SYSTEM, "the descriptor: %s", strerror(errno));
    if (!S_ISREG(file.st_mode)) return sp_fail(SP_INVALID, "it is no plain file");
    if (file.st_size < SP_RING_HEADER_BYTES)
        return sp_fail(SP_INVALID, "%" PRIu64 " bytes: this is no ring file", (uint64_t)file.st_size);
    SP_TRY(copy_out(fd, page, sizeof page, 0));
    memcpy(&image->header, page, sizeof image->header);
    SP_TRY(check_header(&image->header, (uint64_t)file.st_size));
    /* Offsets of the atomic structs; the plain numbers are as large. */
#define X(type, numpy, field, text) \
    memcpy(&image->field, page + SP_RING_CONTROL_AT + offsetof(sp_ring_control, field), sizeof image->field);
    SP_CONTROL_FIELDS(X)
#undef X
#define X(type, numpy, field, text) \
    memcpy(&image->field, page + SP_RING_COUNTS_AT + offsetof(sp_ring_counts, field), sizeof image->field);
    SP_COUNT_FIELDS(X)
#undef X
    const sp_ring_header *h = &image->header;
    if (image->head >> 62 || image->names_used > h->names_bytes || image->graphs_used > h->graphs)
        return sp_fail(SP_INVALID,
                       "%" PRIu64 " records, %" PRIu64 " bytes of names, %" PRIu64 " graphs: more than "
                       "can be; it is damaged",
                       image->head, image->names_used, image->graphs_used);
    return SP_OK;
}

/* ---- records ---- */

/* What no writer of ours writes is not a record. A path or dtype of a newer
 * list is not known here. */
static bool make_good(sp_record *r) {
    if (r->phase >= SP_PHASE_COUNT || r->op >= SP_RING_OP_COUNT) return false;
    if (r->path >= SP_PATH_COUNT) r->path = SP_RING_NONE;
    if (r->expected >= SP_PATH_COUNT) r->expected = SP_RING_NONE;
    if (r->dtype >= SP_DTYPE_COUNT) r->dtype = SP_RING_NONE;
    return true;
}

/* `count` slots of one run, of which the first should hold `seq`. */
static sp_status read_run(int fd, uint64_t at, uint64_t seq, uint64_t count, sp_record *out, sp_ring_seen *seen) {
    sp_record first[CHUNK], middle[CHUNK], last[CHUNK];
    uint64_t bytes = count * SP_RING_ROW_BYTES;
    bool again = true;
    /* Three copies: the slot's word before, the payload, and both after it. A
   * device time that came in between makes the last two differ. */
    for (int i = 0; again && i < TRIES; i++) {
        SP_TRY(copy_out(fd, first, bytes, at));
        SP_TRY(copy_out(fd, middle, bytes, at));
        SP_TRY(copy_out(fd, last, bytes, at));
        again = false;
        for (uint64_t n = 0; n < count; n++)
            if (first[n].seq == last[n].seq && memcmp(&middle[n], &last[n], sizeof *last) != 0) again = true;
    }
    for (uint64_t n = 0; n < count; n++, seq++) {
        bool same = first[n].seq == seq && last[n].seq == seq && !memcmp(&middle[n], &last[n], sizeof *last);
        if (same && make_good(&last[n]))
            out[seen->records++] = last[n];
        else if (!(last[n].seq >> 63) && last[n].seq > seq)
            seen->overwritten++;
        else
            seen->torn++;
    }
    return SP_OK;
}

static uint64_t first_seq(const sp_ring_image *image, uint64_t since) {
    uint64_t oldest = image->head > image->header.slots ? image->head - image->header.slots : 0;
    return (since > oldest ? since : oldest) + 1;
}

uint64_t sp_ring_room(const sp_ring_image *image, uint64_t since) {
    return since < image->head ? image->head + 1 - first_seq(image, since) : 0;
}

sp_status sp_ring_records(int fd, const sp_ring_image *image, uint64_t since, sp_record *records, uint64_t room,
                          sp_ring_seen *seen) {
    const sp_ring_header *h = &image->header;
    *seen = (sp_ring_seen){.next = image->head};
    if (since >= image->head) return SP_OK;
    uint64_t seq = first_seq(image, since);
    if (room < image->head + 1 - seq)
        return sp_fail(SP_INVALID, "room for %" PRIu64 " records: sp_ring_room() says how many", room);
    seen->overwritten = seq - since - 1;
    while (seq <= image->head) {
        uint64_t slot = (seq - 1) & (h->slots - 1), count = image->head + 1 - seq;
        if (count > CHUNK) count = CHUNK;
        if (count > h->slots - slot) count = h->slots - slot;
        SP_TRY(read_run(fd, h->slots_at + slot * SP_RING_ROW_BYTES, seq, count, records, seen));
        seq += count;
    }
    return SP_OK;
}

/* ---- tables ---- */

sp_status sp_ring_graphs(int fd, const sp_ring_image *image, void *rows, uint64_t room, uint64_t *count) {
    if (room < image->graphs_used)
        return sp_fail(SP_INVALID, "room for %" PRIu64 " graphs: there are %" PRIu64, room, image->graphs_used);
    *count = image->graphs_used;
    return copy_out(fd, rows, *count * SP_RING_ROW_BYTES, image->header.graphs_at);
}

static bool kind_is_good(const unsigned char *row) {
    uint32_t state;
    sp_kind_key key;
    memcpy(&state, row, sizeof state);
    memcpy(&key, row + sizeof state, sizeof key);
    return state == 2 && key.phase < SP_PHASE_COUNT && key.op < SP_RING_OP_COUNT &&
           (key.path < SP_PATH_COUNT || key.path == SP_RING_NONE) &&
           (key.expected < SP_PATH_COUNT || key.expected == SP_RING_NONE) &&
           (key.dtype < SP_DTYPE_COUNT || key.dtype == SP_RING_NONE);
}

sp_status sp_ring_kinds(int fd, const sp_ring_image *image, void *rows, uint64_t room, uint64_t *count) {
    const sp_ring_header *h = &image->header;
    unsigned char *at = rows;
    *count = 0;
    if (room < h->kinds) return sp_fail(SP_INVALID, "room for %" PRIu64 " kinds: there are %" PRIu64 " rows", room, h->kinds);
    SP_TRY(copy_out(fd, rows, h->kinds * SP_RING_ROW_BYTES, h->kinds_at));
    for (uint64_t i = 0; i < h->kinds; i++) {
        const unsigned char *row = at + i * SP_RING_ROW_BYTES;
        if (kind_is_good(row)) memmove(at + (*count)++ * SP_RING_ROW_BYTES, row, SP_RING_ROW_BYTES);
    }
    return SP_OK;
}

uint64_t sp_ring_names(const sp_ring_image *image) { return image->names_used; }

sp_status sp_ring_names_copy(int fd, const sp_ring_image *image, unsigned char *copy) {
    return copy_out(fd, copy, image->names_used, image->header.names_at);
}

bool sp_ring_names_next(const unsigned char *copy, uint64_t bytes, uint64_t *at, sp_named *kind, uint32_t *id, const char **text,
                        uint32_t *length) {
    uint16_t head[2];
    const uint64_t head_bytes = sizeof head + sizeof *id;
    if (*at > bytes || bytes - *at < head_bytes) return false;
    memcpy(head, copy + *at, sizeof head);
    memcpy(id, copy + *at + sizeof head, sizeof *id);
    uint64_t whole = (head_bytes + head[1] + 7) / 8 * 8;
    if (head[0] >= SP_NAMED_COUNT || !head[1] || head[1] > SP_RING_TEXT_MAX || !*id || whole > bytes - *at) return false;
    *kind = (sp_named)head[0];
    *text = (const char *)copy + *at + head_bytes;
    *length = head[1];
    *at += whole;
    return true;
}
