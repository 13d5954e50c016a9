/* The ring: what one writer wrote is read back in order; many writers and readers at once, a writer that is killed at any moment, files that lie.
 * RING_SECONDS, RING_THREADS and RING_KILLS make the last ones longer: run.sh tsan hammers with 64 threads.
 * Invariant: every field of a record follows from its time, so that a mixture of two records is seen. */
#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include "core/deadline.h"
#include "core/ring.h"

enum { SLOTS = 64, GRAPHS = 8, KINDS = 64, NAMES = 1024 };

static const sp_ring_shape small = {SLOTS, GRAPHS, KINDS, NAMES};
static const sp_ring_writer writer = {77, "0.5.9"};
static char folder[64], path[96];

static void make_folder(void) {
    snprintf(folder, sizeof folder, "/tmp/sp_ring_XXXXXX");
    CHECK(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a.ring", folder);
}

static void remove_folder(void) {
    unlink(path);
    rmdir(folder);
}

static int open_file(int flags) {
    int fd = open(path, flags | O_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

static unsigned number_of(const char *name, unsigned otherwise) {
    const char *text = getenv(name);
    return text ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}

static sp_record record_of(uint64_t n) {
    uint64_t state = n * 2 + 1;
    uint64_t a = sp_random(&state), b = sp_random(&state), c = sp_random(&state);
    sp_record r = {.time_ns = n, .nbytes = a, .host_ns = (uint32_t)b, .rows = (uint32_t)c, .context = (uint32_t)(a >> 32)};
    r.thread = (uint32_t)(b >> 32), r.call = (uint32_t)(c >> 32), r.site = (uint16_t)a, r.graph = (uint16_t)b,
    r.flags = (uint16_t)c;
    r.group = (uint16_t)(a >> 16), r.entry = (uint8_t)b, r.kernel = (uint8_t)c, r.layout = (uint8_t)(a >> 8);
    r.path = (uint8_t)(b % SP_PATH_COUNT), r.expected = SP_RING_NONE, r.dtype = (uint8_t)(c % SP_DTYPE_COUNT);
    r.phase = (uint8_t)(a % SP_PHASE_COUNT), r.op = (uint8_t)(b % SP_RING_OP_COUNT);
    return r;
}

/* device_ns may have come later; it follows from the time too. */
static void check_record(const sp_record *r) {
    sp_record whole = record_of(r->time_ns);
    whole.seq = r->seq;
    CHECK_FOR(!r->device_ns || r->device_ns == (uint32_t)r->time_ns, "seq %" PRIu64 ": device_ns %u", r->seq, r->device_ns);
    whole.device_ns = r->device_ns;
    CHECK_FOR(!memcmp(&whole, r, sizeof whole), "seq %" PRIu64 ", time %" PRIu64, r->seq, r->time_ns);
}

/* Reads what came after `since`, checks it, and says how many and where to go on. */
static sp_ring_seen look(int fd, uint64_t since) {
    static _Thread_local sp_record records[1 << 12];
    sp_ring_image image;
    sp_ring_seen seen;
    sp_status status = sp_ring_look(fd, &image);
    CHECK_FOR(!status, "%s", sp_error());
    CHECK(image.header.slots <= sizeof records / sizeof *records);
    CHECK(!sp_ring_records(fd, &image, since, records, sizeof records / sizeof *records, &seen));
    CHECK(seen.records <= sp_ring_room(&image, since));
    for (uint64_t i = 0; i < seen.records; i++) {
        CHECK(records[i].seq > since && records[i].seq <= seen.next && (!i || records[i].seq > records[i - 1].seq));
        check_record(&records[i]);
    }
    return seen;
}

static void what_was_written_is_read_in_order_and_what_was_overwritten_is_counted(void) {
    make_folder();
    sp_ring ring;
    CHECK(!sp_ring_create(path, &small, &writer, &ring));
    int fd = open_file(O_RDONLY);
    sp_ring_seen seen = look(fd, 0);
    CHECK(!seen.records && !seen.next);
    for (uint64_t n = 1; n <= 3 * SLOTS + 5; n++) {
        sp_record r = record_of(n);
        CHECK(sp_ring_write(&ring, &r) == n);
        seen = look(fd, n - 1);
        CHECK(seen.records == 1 && seen.next == n && !seen.torn && !seen.overwritten);
    }
    seen = look(fd, 10);
    CHECK(seen.records == SLOTS && seen.overwritten == 3 * SLOTS + 5 - 10 - SLOTS && !seen.torn);
    seen = look(fd, UINT64_MAX);
    CHECK(!seen.records && seen.next == 3 * SLOTS + 5);
    sp_ring_close(&ring);
    sp_ring_image image;
    CHECK(!sp_ring_look(fd, &image) && image.closed && !(image.control & 1));
    CHECK(look(fd, 0).records == SLOTS);
    close(fd);
    remove_folder();
}

static void a_writer_that_never_left_its_slot_costs_that_slot_alone(void) {
    make_folder();
    sp_ring ring;
    CHECK(!sp_ring_create(path, &small, &writer, &ring));
    int fd = open_file(O_RDONLY);
    atomic_store(&ring.slot[5].word, ~UINT64_C(6)); /* seq 6, being written for ever */
    for (uint64_t n = 1; n <= 4 * SLOTS; n++) {
        sp_record r = record_of(n);
        CHECK(sp_ring_write(&ring, &r) >= n);
    }
    CHECK(atomic_load(&ring.counts->passed) == 3 && atomic_load(&ring.counts->head) == 4 * SLOTS + 4);
    sp_ring_seen seen = look(fd, 0);
    CHECK_FOR(seen.records == SLOTS - 1 && seen.torn == 1, "%" PRIu64 " records, %" PRIu64 " torn", seen.records, seen.torn);
    sp_ring_close(&ring);
    close(fd);
    remove_folder();
}

static void a_device_time_reaches_its_record_or_says_that_it_is_gone(void) {
    make_folder();
    sp_ring ring;
    CHECK(!sp_ring_create(path, &small, &writer, &ring));
    int fd = open_file(O_RDONLY);
    sp_record r, got;
    for (uint64_t n = 1; n <= SLOTS + 1; n++) r = record_of(n), sp_ring_write(&ring, &r);
    CHECK(!sp_ring_amend(&ring, 1, 1, &got) && !sp_ring_amend(&ring, 0, 1, &got) && !sp_ring_amend(&ring, UINT64_MAX, 1, &got));
    CHECK(!sp_ring_amend(&ring, SLOTS + 2, 1, &got));
    CHECK(sp_ring_amend(&ring, 2, 2, &got) && got.time_ns == 2 && got.seq == 2);
    CHECK(look(fd, 0).records == SLOTS);
    sp_ring_close(&ring);
    close(fd);
    remove_folder();
}

static void tables_hold_what_the_ring_forgets(void) {
    make_folder();
    sp_ring ring;
    CHECK(!sp_ring_create(path, &small, &writer, &ring));
    int fd = open_file(O_RDONLY);
    uint32_t id;
    CHECK(!sp_ring_name(&ring, SP_NAMED_GROUP, "tp:0", 4, &id) && id == 1);
    CHECK(!sp_ring_name(&ring, SP_NAMED_GROUP, "pp:0", 4, &id) && id == 2);
    CHECK(sp_ring_name(&ring, SP_NAMED_SITE, "", 0, &id) == SP_INVALID && !id);
    CHECK(!sp_ring_name(&ring, SP_NAMED_SITE, "a.py:1 f", 8, &id) && id == 1);
    while (!sp_ring_name(&ring, SP_NAMED_SITE, "a.py:1 f", 8, &id)) CHECK(id);
    CHECK(!id && atomic_load(&ring.counts->names_lost) == 1);
    for (uint32_t n = 0; n < 2 * KINDS; n++) {
        sp_record r = {.group = (uint16_t)(n / 2), .nbytes = 8, .time_ns = n + 1};
        sp_kind_row *row = sp_ring_kind(&ring, &r);
        CHECK(row && sp_ring_count(row, &r) == n % 2);
    }
    sp_record more = {.group = KINDS};
    CHECK(!sp_ring_kind(&ring, &more) && atomic_load(&ring.counts->kinds_lost) == 1);
    for (uint32_t n = 1; n <= GRAPHS; n++) CHECK(sp_ring_graph_begin(&ring, 1) == n);
    CHECK(!sp_ring_graph_begin(&ring, 1) && !sp_ring_graph_replayed(&ring, GRAPHS + 1, 1) &&
          !sp_ring_graph_replayed(&ring, 0, 1));
    CHECK(atomic_load(&ring.counts->graphs_lost) == 1 && atomic_load(&ring.counts->replays_lost) == 2);
    sp_ring_graph_captured(&ring, 3, &(sp_record){.nbytes = 16});
    sp_ring_graph_end(&ring, 3);
    CHECK(sp_ring_graph_replayed(&ring, 3, 7));
    sp_ring_registered(&ring, 0);

    sp_ring_image image;
    unsigned char rows[KINDS * SP_RING_ROW_BYTES], names[NAMES];
    uint64_t count, at = 0, seen = 0;
    CHECK(!sp_ring_look(fd, &image));
    CHECK(!sp_ring_kinds(fd, &image, rows, KINDS, &count) && count == KINDS);
    CHECK(!sp_ring_graphs(fd, &image, rows, GRAPHS, &count) && count == GRAPHS);
    const sp_graph_row *third = (const sp_graph_row *)(const void *)(rows + 2 * SP_RING_ROW_BYTES);
    CHECK(third->state == 2 && third->captured == 1 && third->replays == 7 && third->registered == 1 && third->batch == 1);
    CHECK(!sp_ring_names_copy(fd, &image, names));
    sp_named kind;
    const char *text;
    uint32_t length;
    while (sp_ring_names_next(names, sp_ring_names(&image), &at, &kind, &id, &text, &length)) {
        if (!seen++) CHECK(kind == SP_NAMED_GROUP && id == 1 && length == 4 && !memcmp(text, "tp:0", 4));
    }
    CHECK(seen > 10 && at == sp_ring_names(&image));
    sp_ring_close(&ring);
    close(fd);
    remove_folder();
}

/* Anybody of this user can write into the file: what is used there is told to readers, and not believed. */
static void a_writer_does_not_believe_what_others_wrote_into_its_file(void) {
    make_folder();
    sp_ring ring;
    uint32_t id;
    CHECK(!sp_ring_create(path, &small, &writer, &ring));
    CHECK(!sp_ring_name(&ring, SP_NAMED_GROUP, "tp:0", 4, &id) && sp_ring_graph_begin(&ring, 0) == 1);
    const uint64_t lies[] = {NAMES, UINT64_C(1) << 40, UINT64_MAX - 63, 0};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        atomic_store(&ring.counts->names_used, lies[i]);
        atomic_store(&ring.counts->graphs_used, lies[i]);
        CHECK(!sp_ring_name(&ring, SP_NAMED_GROUP, "pp:0", 4, &id) && id == i + 2);
        CHECK(atomic_load(&ring.counts->names_used) == (i + 2) * 16);
        CHECK(sp_ring_graph_begin(&ring, 0) == i + 2);
        atomic_store(&ring.counts->graphs_used, lies[i]);
        CHECK(!sp_ring_graph_replayed(&ring, GRAPHS, 1) && sp_ring_graph_replayed(&ring, (uint32_t)i + 2, 1));
        sp_ring_graph_end(&ring, 1 << 20);
        sp_ring_registered(&ring, 1);
    }
    sp_ring_close(&ring);
    remove_folder();
}

static void a_writer_goes_on_whatever_others_wrote_over_its_head_and_its_slots(void) {
    make_folder();
    sp_ring ring;
    CHECK(!sp_ring_create(path, &small, &writer, &ring));
    int fd = open_file(O_RDONLY);
    uint64_t seq = 0;
    const uint64_t lies[] = {0, 1, 5, SLOTS, UINT64_C(1) << 40, UINT64_C(1) << 62, UINT64_C(1) << 63, UINT64_MAX - 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        sp_record r = record_of(++seq);
        atomic_store(&ring.counts->head, lies[i]);
        CHECK_FOR(sp_ring_write(&ring, &r) == seq && atomic_load(&ring.counts->head) == seq, "head %" PRIx64, lies[i]);
        CHECK(look(fd, seq - 1).records == 1);
    }
    for (size_t i = 4; i < sizeof lies / sizeof *lies; i++) {
        uint64_t lie = lies[i] == UINT64_MAX || lies[i] == UINT64_MAX - 1 ? ~(UINT64_C(1) << 41) : lies[i];
        for (int n = 0; n < SLOTS; n++) atomic_store(&ring.slot[n].word, lie);
        for (int n = 0; n < SLOTS; n++) {
            sp_record r = record_of(++seq);
            CHECK_FOR(sp_ring_write(&ring, &r) == seq, "word %" PRIx64, lie);
        }
        sp_ring_seen seen = look(fd, 0);
        CHECK(seen.records == SLOTS && !seen.torn);
    }
    for (int n = 0; n < SLOTS; n++)
        atomic_store(&ring.slot[n].word, UINT64_MAX); /* nobody's, and being written: all are passed over */
    sp_record r = record_of(1);
    uint64_t passed = atomic_load(&ring.counts->passed), failures = atomic_load(&ring.counts->failures);
    CHECK(!sp_ring_write(&ring, &r));
    CHECK(atomic_load(&ring.counts->passed) > passed && atomic_load(&ring.counts->failures) == failures + 1);
    sp_ring_close(&ring);
    close(fd);
    remove_folder();
}

static void a_writer_locks_its_file_and_lets_go_of_nobody_elses(void) {
    make_folder();
    sp_ring ring;
    CHECK(!sp_ring_create(path, &small, &writer, &ring));
    int other = open_file(O_RDONLY), fd = ring.fd;
    CHECK(flock(other, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK);
    sp_ring_close(&ring);
    CHECK(!flock(other, LOCK_EX | LOCK_NB) && !flock(other, LOCK_UN) && fcntl(fd, F_GETFD) < 0);
    CHECK(!sp_ring_create(path, &small, &writer, &ring));
    fd = ring.fd;
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC); /* as in a child that closed everything and opened something */
    CHECK(null >= 0 && dup2(null, fd) == fd);
    sp_ring_leave(&ring);
    CHECK(fcntl(fd, F_GETFD) >= 0);
    close(null), close(fd), close(other);
    remove_folder();
}

/* ---- many at once ---- */

static sp_ring shared;
static atomic_uint stop;
static atomic_uint_fast64_t numbers, written, records_read;

static void *write_all(void *unused) {
    (void)unused;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        uint64_t n = atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed) + 1;
        sp_record r = record_of(n), got;
        sp_record kind = {.group = (uint16_t)(n % 40), .nbytes = 1, .time_ns = n};
        uint64_t seq = sp_ring_write(&shared, &r);
        sp_kind_row *row = sp_ring_kind(&shared, &kind);
        CHECK(row);
        sp_ring_count(row, &kind);
        if (n % 7 == 0 && sp_ring_amend(&shared, seq, (uint32_t)n, &got)) CHECK(got.time_ns == n);
        if (n % 1000 == 0) {
            uint32_t id;
            sp_ring_name(&shared, SP_NAMED_NOTE, "note", 4, &id);
            sp_ring_graph_replayed(&shared, sp_ring_graph_begin(&shared, 0), 1);
        }
        atomic_fetch_add_explicit(&written, 1, memory_order_relaxed);
    }
    return NULL;
}

static void *read_all(void *unused) {
    (void)unused;
    int fd = open_file(O_RDONLY);
    uint64_t since = 0;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        sp_ring_seen seen = look(fd, since);
        since = seen.next;
        atomic_fetch_add_explicit(&records_read, seen.records, memory_order_relaxed);
    }
    close(fd);
    return NULL;
}

static void check_sums(int fd, uint64_t calls) {
    sp_ring_image image;
    unsigned char rows[KINDS * SP_RING_ROW_BYTES];
    uint64_t count, sum = 0;
    CHECK(!sp_ring_look(fd, &image) && !sp_ring_kinds(fd, &image, rows, KINDS, &count));
    for (uint64_t i = 0; i < count; i++) {
        uint64_t of;
        memcpy(&of, rows + i * SP_RING_ROW_BYTES + offsetof(sp_kind_row, calls), sizeof of);
        sum += of;
    }
    CHECK_FOR(sum == calls && count == 40, "%" PRIu64 " counted of %" PRIu64 ", %" PRIu64 " kinds", sum, calls, count);
}

static void many_threads_never_mix_two_records_nor_lose_a_count(void) {
    enum { READERS = 2, MOST = 64 };
    unsigned threads = number_of("RING_THREADS", 8), seconds = number_of("RING_SECONDS", 1);
    pthread_t thread[MOST + READERS];
    CHECK(threads >= 1 && threads <= MOST && seconds < SP_TEST_SECONDS);
    make_folder();
    CHECK(!sp_ring_create(path, &small, &writer, &shared));
    for (unsigned i = 0; i < threads + READERS; i++)
        CHECK(!pthread_create(&thread[i], NULL, i < threads ? write_all : read_all, NULL));
    sp_deadline deadline = sp_deadline_in(seconds);
    while (!sp_deadline_passed(deadline)) nanosleep(&(struct timespec){0, 10000000}, NULL);
    atomic_store(&stop, 1);
    for (unsigned i = 0; i < threads + READERS; i++) CHECK(!pthread_join(thread[i], NULL));
    int fd = open_file(O_RDONLY);
    sp_ring_seen seen = look(fd, 0);
    uint64_t passed = atomic_load(&shared.counts->passed), head = atomic_load(&shared.counts->head);
    CHECK_FOR(seen.records + seen.torn == SLOTS && seen.torn <= passed, "%" PRIu64 " whole, %" PRIu64 " torn", seen.records,
              seen.torn);
    CHECK(head >= atomic_load(&written) && head <= atomic_load(&written) + passed);
    check_sums(fd, atomic_load(&written));
    printf("%u threads, %u s: %" PRIu64 " records, %" PRIu64 " read while they were written, %" PRIu64 " slots passed over\n",
           threads, seconds, (uint64_t)atomic_load(&written), (uint64_t)atomic_load(&records_read), passed);
    sp_ring_close(&shared);
    close(fd);
    remove_folder();
}

/* ---- kill -9 ---- */

static pid_t start_writer(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child) return child;
    pthread_t second;
    if (sp_ring_create(path, &small, &writer, &shared) || pthread_create(&second, NULL, write_all, NULL)) _exit(1);
    write_all(NULL);
    _exit(0);
}

static void a_writer_that_is_killed_leaves_whole_records_alone(void) {
    unsigned kills = number_of("RING_KILLS", 60);
    uint64_t state = (uint64_t)sp_now_ns() | 1, whole = 0, torn = 0;
    make_folder();
    for (unsigned i = 0; i < kills; i++) {
        pid_t child = start_writer();
        int fd = -1, status;
        while (fd < 0) {
            CHECK(waitpid(child, &status, WNOHANG) == 0);
            fd = open(path, O_RDONLY | O_CLOEXEC);
        }
        sp_deadline deadline = {sp_now_ns() + (int64_t)(sp_random(&state) % 3000000)};
        uint64_t since = 0;
        do since = look(fd, since).next;
        while (!sp_deadline_passed(deadline));
        CHECK(!kill(child, SIGKILL));
        look(fd, since);
        CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
        sp_ring_seen seen = look(fd, 0);
        CHECK(seen.torn <= 2 + SLOTS && seen.records <= SLOTS);
        whole += seen.records, torn += seen.torn;
        close(fd);
        unlink(path);
    }
    CHECK(whole);
    printf("%u writers killed: %" PRIu64 " whole records left, %" PRIu64 " torn ones seen as such\n", kills, whole, torn);
    remove_folder();
}

/* ---- what is refused ---- */

static sp_status look_with(size_t at, const void *bytes, size_t count) {
    sp_ring ring;
    sp_ring_image image;
    CHECK(!sp_ring_create(path, &small, &writer, &ring));
    sp_ring_close(&ring);
    int fd = open_file(O_RDWR);
    CHECK(pwrite(fd, bytes, count, (off_t)at) == (ssize_t)count);
    sp_status status = sp_ring_look(fd, &image);
    close(fd);
    return status;
}

static void a_file_that_lies_is_refused(void) {
    make_folder();
    const uint64_t wrong[] = {0, 1, 63, UINT64_C(1) << 20, UINT64_C(1) << 40, UINT64_MAX, UINT64_MAX - 63, UINT64_C(1) << 63};
    const size_t sizes[] = {offsetof(sp_ring_header, magic),      offsetof(sp_ring_header, version),
                            offsetof(sp_ring_header, file_bytes), offsetof(sp_ring_header, names_at),
                            offsetof(sp_ring_header, slots_at),   offsetof(sp_ring_header, kinds_at),
                            offsetof(sp_ring_header, graphs_at),  offsetof(sp_ring_header, slots)};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (size_t j = 0; j < sizeof wrong / sizeof *wrong; j++)
            CHECK_FOR(look_with(sizes[i], &wrong[j], sizeof wrong[j]) == SP_INVALID, "byte %zu, %" PRIx64, sizes[i], wrong[j]);
    char no_end[64];
    memset(no_end, 'x', sizeof no_end);
    CHECK(look_with(offsetof(sp_ring_header, release), no_end, sizeof no_end) == SP_INVALID);
    const uint64_t many = UINT64_MAX;
    CHECK(look_with(SP_RING_COUNTS_AT + offsetof(sp_ring_counts, head), &many, sizeof many) == SP_INVALID);
    CHECK(look_with(SP_RING_COUNTS_AT + offsetof(sp_ring_counts, names_used), &many, sizeof many) == SP_INVALID);
    CHECK(look_with(SP_RING_COUNTS_AT + offsetof(sp_ring_counts, graphs_used), &many, sizeof many) == SP_INVALID);
    CHECK(!look_with(4000, &many, sizeof many));
    remove_folder();
}

static void a_file_that_gets_shorter_is_an_error_and_no_signal(void) {
    make_folder();
    sp_ring ring;
    sp_ring_image image;
    sp_ring_seen seen;
    sp_record records[SLOTS], r = record_of(1);
    CHECK(!sp_ring_create(path, &small, &writer, &ring));
    for (int i = 0; i < SLOTS; i++) sp_ring_write(&ring, &r);
    int fd = open_file(O_RDWR);
    CHECK(!sp_ring_look(fd, &image));
    sp_ring_close(&ring);
    CHECK(!ftruncate(fd, (off_t)image.header.file_bytes - 64));
    CHECK(sp_ring_records(fd, &image, 0, records, SLOTS, &seen) == SP_INVALID && sp_ring_look(fd, &image) == SP_INVALID);
    CHECK(!ftruncate(fd, 0) && sp_ring_look(fd, &image) == SP_INVALID);
    close(fd);
    remove_folder();
}

static void a_ring_that_cannot_be_made_leaves_nothing_behind(void) {
    make_folder();
    sp_ring ring;
    const sp_ring_shape odd = {63, GRAPHS, KINDS, NAMES}, none = {SLOTS, 0, KINDS, NAMES},
                        huge = {UINT64_MAX, GRAPHS, KINDS, NAMES};
    CHECK(sp_ring_create(path, &odd, &writer, &ring) == SP_INVALID && sp_ring_create(path, &none, &writer, &ring) == SP_INVALID);
    CHECK(sp_ring_create(path, &huge, &writer, &ring) == SP_INVALID && !ring.map);
    char missing[128];
    snprintf(missing, sizeof missing, "%s/nowhere/a.ring", folder);
    CHECK(sp_ring_create(missing, &small, &writer, &ring) == SP_SYSTEM && strstr(sp_error(), strerror(ENOENT)));
    struct rlimit limit;
    CHECK(!getrlimit(RLIMIT_FSIZE, &limit));
    limit.rlim_cur = 4096;
    CHECK(!setrlimit(RLIMIT_FSIZE, &limit));
    CHECK(sp_ring_create(path, &small, &writer, &ring) == SP_NOMEM && strstr(sp_error(), "ulimit"));
    CHECK(rmdir(folder) == 0); /* it is empty */
}

static void a_ring_is_this_users_alone_and_replaces_a_link_of_its_name(void) {
    make_folder();
    sp_ring ring;
    struct stat found;
    char target[128];
    snprintf(target, sizeof target, "%s/target", folder);
    CHECK(!symlink(target, path));
    umask(0);
    CHECK(!sp_ring_create(path, &small, &writer, &ring));
    CHECK(!lstat(path, &found) && S_ISREG(found.st_mode) && (found.st_mode & 0777) == 0600);
    CHECK(lstat(target, &found) && errno == ENOENT);
    sp_ring_close(&ring);
    remove_folder();
}

static void a_phase_follows_from_the_context(void) {
    CHECK(sp_phase_of(0) == SP_PHASE_EAGER);
    CHECK(sp_phase_of(SP_CTX(IN_CAPTURE)) == SP_PHASE_WARMUP);
    CHECK(sp_phase_of(SP_CTX(IN_CAPTURE) | SP_CTX(STREAM)) == SP_PHASE_CAPTURED);
    CHECK(sp_phase_of(SP_CTX(PIECEWISE)) == SP_PHASE_PIECEWISE);
    CHECK(sp_phase_of(SP_CTX(PIECEWISE) | SP_CTX(STREAM)) == SP_PHASE_CAPTURED);
    CHECK(sp_phase_of(SP_CTX(PIECEWISE) | SP_CTX(COMPILE_WARMUP)) == SP_PHASE_COMPILE);
}

SP_TESTS(T(what_was_written_is_read_in_order_and_what_was_overwritten_is_counted),
         T(a_writer_that_never_left_its_slot_costs_that_slot_alone), T(a_device_time_reaches_its_record_or_says_that_it_is_gone),
         T(tables_hold_what_the_ring_forgets), T(a_writer_does_not_believe_what_others_wrote_into_its_file),
         T(a_writer_goes_on_whatever_others_wrote_over_its_head_and_its_slots),
         T(a_writer_locks_its_file_and_lets_go_of_nobody_elses), T(many_threads_never_mix_two_records_nor_lose_a_count),
         T(a_writer_that_is_killed_leaves_whole_records_alone), T(a_file_that_lies_is_refused),
         T(a_file_that_gets_shorter_is_an_error_and_no_signal), T(a_ring_that_cannot_be_made_leaves_nothing_behind),
         T(a_ring_is_this_users_alone_and_replaces_a_link_of_its_name), T(a_phase_follows_from_the_context))
