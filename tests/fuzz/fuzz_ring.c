/* libFuzzer target: whatever file a reader is given, it reads inside of it. Run by tests/c/run.sh fuzz-ring.
 * The first byte picks what the rest is: a whole file, or changes (32 bits of place, 64 of value) to one that a writer left.
 * Invariant: no crash, nothing outside of the buffers that were asked for, and whatever comes out is inside of the lists. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/ring.h"

#define REQUIRE(condition)         \
    do {                           \
        if (!(condition)) abort(); \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SLOTS = 64, CHANGE = 12 };
static const sp_ring_shape shape = {SLOTS, 8, 64, 1024};

typedef struct good_file {
    uint8_t *bytes;
    size_t size;
    int fd; /* of the file that each input is written into */
} good_file;

/* A ring with everything in it, as its writer left it. */
static good_file make_good(void) {
    char folder[] = "/tmp/sp_fuzz_XXXXXX", path[64];
    sp_ring ring;
    good_file good = {NULL, 0, -1};
    uint32_t id;
    REQUIRE(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/a.ring", folder);
    REQUIRE(!sp_ring_create(path, &shape, &(sp_ring_writer){1, "0.5.9"}, &ring));
    for (uint64_t n = 1; n <= SLOTS + 9; n++) {
        sp_record r = {.time_ns = n, .nbytes = n * 2, .group = 1, .path = (uint8_t)(n % SP_PATH_COUNT), .entry = 1};
        sp_ring_count(sp_ring_kind(&ring, &r), &r);
        sp_ring_write(&ring, &r);
    }
    REQUIRE(!sp_ring_name(&ring, SP_NAMED_GROUP, "tp:0", 4, &id) && !sp_ring_name(&ring, SP_NAMED_ENTRY, "all_reduce", 10, &id));
    sp_ring_graph_end(&ring, sp_ring_graph_begin(&ring, 0));
    good.size = ring.bytes;
    good.bytes = malloc(good.size);
    REQUIRE(good.bytes != NULL);
    memcpy(good.bytes, ring.map, good.size);
    sp_ring_close(&ring);
    good.fd = open(path, O_RDWR | O_CLOEXEC);
    REQUIRE(good.fd >= 0 && !unlink(path) && !rmdir(folder));
    return good;
}

static void write_file(const good_file *good, const uint8_t *data, size_t size) {
    bool changes = size && data[0] & 1;
    size_t length = changes ? good->size : size ? size - 1 : 0;
    REQUIRE(!ftruncate(good->fd, (off_t)length));
    if (!changes) {
        REQUIRE(!length || pwrite(good->fd, data + 1, length, 0) == (ssize_t)length);
        return;
    }
    REQUIRE(pwrite(good->fd, good->bytes, good->size, 0) == (ssize_t)good->size);
    for (size_t at = 1; at + CHANGE <= size; at += CHANGE) {
        uint32_t place;
        memcpy(&place, data + at, sizeof place);
        REQUIRE(pwrite(good->fd, data + at + sizeof place, CHANGE - sizeof place, (off_t)(place % (good->size - 8))) > 0);
    }
    if (data[0] & 2) REQUIRE(!ftruncate(good->fd, (off_t)(good->size - data[0])));
}

static void read_records(int fd, const sp_ring_image *image, uint64_t since) {
    uint64_t room = sp_ring_room(image, since);
    sp_ring_seen seen;
    REQUIRE(room <= image->header.slots);
    sp_record *records = malloc(room * sizeof *records + !room);
    REQUIRE(records != NULL);
    if (!sp_ring_records(fd, image, since, records, room, &seen)) {
        REQUIRE(seen.records <= room);
        for (uint64_t i = 0; i < seen.records; i++) {
            const sp_record *r = &records[i];
            REQUIRE(r->seq > since && r->seq <= seen.next && (!i || r->seq > records[i - 1].seq));
            REQUIRE(r->phase < SP_PHASE_COUNT && r->op < SP_RING_OP_COUNT);
            REQUIRE((r->path < SP_PATH_COUNT || r->path == SP_RING_NONE) &&
                    (r->dtype < SP_DTYPE_COUNT || r->dtype == SP_RING_NONE));
        }
    }
    free(records);
}

static void read_tables(int fd, const sp_ring_image *image) {
    uint64_t rows = image->header.kinds > image->graphs_used ? image->header.kinds : image->graphs_used, count, at = 0;
    uint64_t length = sp_ring_names(image);
    uint8_t *buffer = malloc(rows * SP_RING_ROW_BYTES), *names = malloc(length + !length);
    REQUIRE(buffer != NULL && names != NULL);
    if (!sp_ring_kinds(fd, image, buffer, rows, &count)) REQUIRE(count <= image->header.kinds);
    if (!sp_ring_graphs(fd, image, buffer, rows, &count)) REQUIRE(count <= image->header.graphs);
    static volatile unsigned looked_at;
    sp_named kind;
    uint32_t id, text_length;
    const char *text;
    if (!sp_ring_names_copy(fd, image, names))
        while (sp_ring_names_next(names, length, &at, &kind, &id, &text, &text_length)) {
            REQUIRE(kind < SP_NAMED_COUNT && id && text_length && (const uint8_t *)text + text_length <= names + length);
            for (uint32_t i = 0; i < text_length; i++) looked_at = looked_at + (unsigned char)text[i];
        }
    free(names);
    free(buffer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static good_file good;
    if (!good.bytes) good = make_good();
    write_file(&good, data, size);
    sp_ring_image image;
    if (sp_ring_look(good.fd, &image)) return 0;
    read_records(good.fd, &image, 0);
    read_records(good.fd, &image, image.head / 2);
    read_records(good.fd, &image, UINT64_MAX);
    read_tables(good.fd, &image);
    return 0;
}
