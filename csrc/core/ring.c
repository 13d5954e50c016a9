/* The writing side of a ring: making the file, and putting records into its
 * slots. Called by csrc/py's Recorder. Invariant: a slot's word is changed by
 * compare-and-swap, from a whole record's to one being written, by whoever then
 * owns the slot. */
#include "ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "deadline.h"

enum { PATH_MAX_HERE = 4000, RESERVE_TRIES = 100, WRITE_TRIES = 1024 };

/* ---- slots ---- */

static inline bool is_busy(uint64_t word) { return word >> 63; }
static inline uint64_t owner(uint64_t word) { return is_busy(word) ? ~word : word; }

/* A release store keeps the claim before it: whoever reads this word finds the
 * slot claimed, or whole again. */
static void store_payload(sp_slot *slot, const sp_record *record) {
    uint64_t words[SP_RING_WORDS];
    memcpy(words, (const char *)record + sizeof record->seq, sizeof words);
    for (int i = 0; i < SP_RING_WORDS; i++) atomic_store_explicit(&slot->payload[i], words[i], memory_order_release);
}

/* The file's head follows ours. It never falls back: it is replaced only as long as it is what it was before ours was
 * looked at. Whatever somebody else wrote there is put right. */
static inline void tell_head(sp_ring *ring) {
    uint64_t told = atomic_load_explicit(&ring->counts->head, memory_order_acquire);
    for (int i = 0; i < WRITE_TRIES; i++) {
        uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);
        if (told == head ||
            atomic_compare_exchange_strong_explicit(&ring->counts->head, &told, head, memory_order_acq_rel, memory_order_acquire))
            return;
    }
}

/* Head is a hint, moved on by whoever finds it behind; what counts is the slot's word. */
static inline bool move_on(sp_ring *ring, uint64_t head) {
    bool moved = atomic_compare_exchange_strong_explicit(&ring->head, &head, head + 1, memory_order_release,
                                                         memory_order_relaxed);
    tell_head(ring);
    return moved;
}

SP_OFTEN uint64_t sp_ring_write(sp_ring *ring, const sp_record *record) {
    for (int i = 0; i < WRITE_TRIES; i++) {
        uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire), seq = head + 1;
        sp_slot *slot = &ring->slot[head & (ring->shape.slots - 1)];
        uint64_t word = atomic_load_explicit(&slot->word, memory_order_acquire), of = owner(word);
        /* Nobody here has claimed more than one past head: a word that says so is somebody else's, and no slot is lost for it. */
        if (of >= seq && of <= atomic_load_explicit(&ring->head, memory_order_relaxed) + 1) { /* another thread's already */
            move_on(ring, head);
        } else if (is_busy(word) && of < seq) { /* whoever writes here is a lap behind, or was killed: it keeps the slot */
            if (move_on(ring, head)) atomic_fetch_add_explicit(&ring->counts->passed, 1, memory_order_relaxed);
        } else if (atomic_compare_exchange_strong_explicit(&slot->word, &word, ~seq, memory_order_acq_rel,
                                                           memory_order_relaxed)) {
            move_on(ring, head);
            store_payload(slot, record);
            atomic_store_explicit(&slot->word, seq, memory_order_release);
            return seq;
        }
    }
    atomic_fetch_add_explicit(&ring->counts->failures, 1, memory_order_relaxed);
    return 0;
}

bool sp_ring_amend(sp_ring *ring, uint64_t seq, uint32_t device_ns, sp_record *record) {
    uint64_t words[SP_RING_WORDS], word = seq;
    if (!seq || is_busy(seq)) return false;
    sp_slot *slot = &ring->slot[(seq - 1) & (ring->shape.slots - 1)];
    if (!atomic_compare_exchange_strong_explicit(&slot->word, &word, ~seq, memory_order_acquire, memory_order_relaxed))
        return false;
    for (int i = 0; i < SP_RING_WORDS; i++) words[i] = atomic_load_explicit(&slot->payload[i], memory_order_acquire);
    record->seq = seq;
    memcpy((char *)record + sizeof record->seq, words, sizeof words);
    record->device_ns = device_ns;
    store_payload(slot, record);
    atomic_store_explicit(&slot->word, seq, memory_order_release);
    return true;
}

/* ---- the file ---- */

static bool is_power_of_two(uint64_t n) { return n && !(n & (n - 1)); }

static sp_status check_shape(const sp_ring_shape *s) {
    if (!is_power_of_two(s->slots) || s->slots < SP_RING_SLOTS_MIN || s->slots > SP_RING_SLOTS_MAX)
        return sp_fail(SP_INVALID, "slots=%llu: give a power of two from %d to %d", (unsigned long long)s->slots,
                       SP_RING_SLOTS_MIN, SP_RING_SLOTS_MAX);
    if (!is_power_of_two(s->kinds) || s->kinds > SP_RING_KINDS_MAX)
        return sp_fail(SP_INVALID, "kinds=%llu: give a power of two up to %d", (unsigned long long)s->kinds, SP_RING_KINDS_MAX);
    if (s->graphs < 1 || s->graphs > SP_RING_GRAPHS_MAX)
        return sp_fail(SP_INVALID, "graphs=%llu: give 1 to %d", (unsigned long long)s->graphs, SP_RING_GRAPHS_MAX);
    if (s->names_bytes < SP_RING_ROW_BYTES || s->names_bytes > SP_RING_NAMES_MAX || s->names_bytes % SP_RING_ROW_BYTES)
        return sp_fail(SP_INVALID, "names_bytes=%llu: give a multiple of %d up to %d", (unsigned long long)s->names_bytes,
                       SP_RING_ROW_BYTES, SP_RING_NAMES_MAX);
    return SP_OK;
}

static uint64_t wall_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void lay_out(const sp_ring_shape *shape, const sp_ring_writer *writer, sp_ring_header *h) {
    *h = (sp_ring_header){.magic = SP_RING_MAGIC, .version = SP_RING_VERSION, .row_bytes = SP_RING_ROW_BYTES};
    h->names_at = SP_RING_HEADER_BYTES, h->names_bytes = shape->names_bytes;
    h->graphs_at = h->names_at + h->names_bytes, h->graphs = shape->graphs;
    h->kinds_at = h->graphs_at + h->graphs * SP_RING_ROW_BYTES, h->kinds = shape->kinds;
    h->slots_at = h->kinds_at + h->kinds * SP_RING_ROW_BYTES, h->slots = shape->slots;
    h->file_bytes = h->slots_at + h->slots * SP_RING_ROW_BYTES;
    h->started = writer->started, h->pid = (uint32_t)getpid(), h->uid = (uint32_t)geteuid();
    h->mono_ns = (uint64_t)sp_now_ns(), h->wall_ns = wall_ns();
    strncpy(h->release, writer->release ? writer->release : "", sizeof h->release - 1);
}

/* Past the process's own limit the kernel would send a signal, and for a page
 * without room as well: both are asked first. Where a file system writes in
 * place (tmpfs, ext4, XFS), what is reserved stays so; one that writes elsewhere
 * each time (btrfs, ZFS) or on another machine (NFS) promises less. */
static sp_status reserve(int fd, const char *path, uint64_t bytes) {
    struct rlimit limit;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes)
        return sp_fail(SP_NOMEM,
                       "%s: this process may write files of %llu bytes only "
                       "(ulimit -f), the ring has %llu",
                       path, (unsigned long long)limit.rlim_cur, (unsigned long long)bytes);
    int error = EINTR;
    for (int i = 0; error == EINTR && i < RESERVE_TRIES; i++) error = posix_fallocate(fd, 0, (off_t)bytes);
    if (error == ENOSPC || error == EDQUOT || error == EFBIG || error == ENOMEM)
        return sp_fail(SP_NOMEM,
                       "%s: no room for %llu bytes: %s; free some, make fewer "
                       "slots, or choose another folder",
                       path, (unsigned long long)bytes, strerror(error));
    return error ? sp_fail(SP_SYSTEM, "%s: reserving %llu bytes: %s", path, (unsigned long long)bytes, strerror(error)) : SP_OK;
}

static sp_status make_new(const char *path, int *fd) {
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    *fd = open(path, flags, 0600);
    if (*fd < 0 && errno == EEXIST && !unlink(path)) *fd = open(path, flags, 0600); /* left by one that was killed on the way */
    return *fd < 0 ? sp_fail(SP_SYSTEM, "%s cannot be made: %s", path, strerror(errno)) : SP_OK;
}

static void point(sp_ring *ring, const sp_ring_header *h) {
    ring->control = (sp_ring_control *)(ring->map + SP_RING_CONTROL_AT);
    ring->counts = (sp_ring_counts *)(ring->map + SP_RING_COUNTS_AT);
    ring->names_at = ring->map + h->names_at;
    ring->graph = (sp_graph_row *)(ring->map + h->graphs_at);
    ring->kind = (sp_kind_row *)(ring->map + h->kinds_at);
    ring->slot = (sp_slot *)(ring->map + h->slots_at);
}

sp_status sp_ring_create(const char *path, const sp_ring_shape *shape, const sp_ring_writer *writer, sp_ring *ring) {
    char fresh[PATH_MAX_HERE + sizeof ".new"];
    sp_ring_header header;
    struct stat file;
    int fd = -1;
    memset(ring, 0, sizeof *ring);
    size_t length = strlen(path);
    if (!length || length > PATH_MAX_HERE) return sp_fail(SP_INVALID, "a path of %zu bytes", length);
    SP_TRY(check_shape(shape));
    snprintf(fresh, sizeof fresh, "%s.new", path);
    lay_out(shape, writer, &header);
    SP_TRY(make_new(fresh, &fd));
    /* Until the last process ends that has the descriptor: this one, or one that it forked. A file system without locks has none. */
    (void)flock(fd, LOCK_SH | LOCK_NB);
    sp_status status = reserve(fd, path, header.file_bytes);
    if (status) goto remove;
    void *map = mmap(NULL, header.file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        status = sp_fail(SP_NOMEM, "%s: mapping %llu bytes: %s", path, (unsigned long long)header.file_bytes, strerror(errno));
        goto remove;
    }
    ring->map = map, ring->bytes = header.file_bytes, ring->shape = *shape;
    point(ring, &header);
    memcpy(map, &header, sizeof header);
    atomic_store_explicit(&ring->control->rank, -1, memory_order_relaxed);
    atomic_store_explicit(&ring->control->batch, 1, memory_order_relaxed);
    if (fstat(fd, &file) || rename(fresh, path)) {
        status = sp_fail(SP_SYSTEM, "%s cannot be given its name: %s", path, strerror(errno));
        goto unmap;
    }
    ring->fd = fd, ring->device = (uint64_t)file.st_dev, ring->inode = (uint64_t)file.st_ino;
    return SP_OK;

unmap:
    munmap(map, header.file_bytes);
    memset(ring, 0, sizeof *ring);
remove:
    close(fd);
    unlink(fresh);
    return status;
}

void sp_ring_close(sp_ring *ring) {
    if (!ring->map) return;
    atomic_store_explicit(&ring->control->control, 0, memory_order_relaxed);
    atomic_store_explicit(&ring->control->closed, 1, memory_order_release);
    sp_ring_leave(ring);
}

void sp_ring_leave(sp_ring *ring) {
    if (!ring->map) return;
    struct stat file;
    munmap(ring->map, ring->bytes);
    if (!fstat(ring->fd, &file) && (uint64_t)file.st_dev == ring->device && (uint64_t)file.st_ino == ring->inode) close(ring->fd);
    memset(ring, 0, sizeof *ring);
}
