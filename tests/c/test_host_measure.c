/* What csrc/host measures with among forked ranks: stamps inside and beside calls of every kernel, compute that is only time, clocks;
 * and what a capture records of them. No time is held against a limit: stamps are compared with stamps, all of one clock. */
#define _GNU_SOURCE 1

#include <pthread.h>

#include "host_values.h"

enum { BEFORE, ENTER, MET, LEFT, AFTER, STAMPS_CALL = 5, PLANTED_NS = 5000000 };

typedef uint64_t call_stamps[STAMPS_CALL];

static void put_integers(float *data, size_t count, uint64_t salt, int rank) {
    for (size_t i = 0; i < count; i++) data[i] = (float)integer_of(salt, rank, i);
}

static void is_sum(const float *data, size_t count, uint64_t salt, int size) {
    for (size_t i = 0; i < count; i++) {
        int sum = 0;
        for (int r = 0; r < size; r++) sum += integer_of(salt, r, i);
        CHECK_FOR(data[i] == (float)sum, "element %zu of %zu: %g, not %d", i, count, (double)data[i], sum);
    }
}

static void read_stamps(sp_comm *comm, uint32_t first, call_stamps s) {
    CHECK_FOR(!sp_host_seam.stamps_read(comm, first, STAMPS_CALL, s, sp_deadline_in(1)), "%s", sp_error());
}

/* One call, stamped from `slot` on, after this rank has computed for so long. */
static void stamped_call(sp_comm *comm, const sp_work *work, uint32_t slot, uint64_t spin_ns) {
    sp_work w = *work;
    w.stamp = slot + ENTER;
    CHECK(!sp_host_seam.spin(comm, spin_ns, NULL));
    CHECK(!sp_host_seam.stamp(comm, slot + BEFORE, NULL));
    CHECK_FOR(!enqueue(comm, &w), "path %d, kernel %d: %s", w.path, w.kernel, sp_error());
    CHECK(!sp_host_seam.stamp(comm, slot + AFTER, NULL));
}

/* On this rank in the order of what happened; and nobody has met before the last rank entered. */
static void check_stamps(sp_board *board, int rank, const call_stamps mine, const path_case *which, size_t count) {
    sp_exchange exchange = sp_board_exchange(board);
    int size = sp_board_size(board);
    call_stamps all[SP_RANKS_MAX];
    for (int i = BEFORE; i < AFTER; i++)
        CHECK_FOR(mine[i] && mine[i] <= mine[i + 1],
                  "rank %d of %d, path %d, kernel %d, %zu elements: stamp %d is %" PRIu64 ", the next %" PRIu64, rank, size,
                  which->path, which->kernel, count, i, mine[i], mine[i + 1]);
    CHECK(!sp_gather(&exchange, mine, all, sizeof(call_stamps), sp_deadline_in(60)));
    for (int r = 0; r < size; r++)
        for (int s = 0; s < size; s++)
            CHECK_FOR(all[r][MET] >= all[s][ENTER],
                      "path %d, kernel %d, %zu elements: rank %d met %" PRIu64 " ns before rank %d entered", which->path,
                      which->kernel, count, r, all[s][ENTER] - all[r][MET], s);
    /* A rank leaves a ring only when its data went round everybody, so a rank that met after that has its stamp in the wrong place. */
    if (which->path == SP_PATH_PYNCCL_IN_PLACE)
        for (int r = 0; r < size; r++)
            for (int s = 0; s < size; s++) CHECK(all[r][MET] <= all[s][LEFT]);
}

static void stamps_every_kernel(int fd, int rank, void *argument) {
    static const size_t counts[] = {3, 1000, 200000};
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    int size = sp_board_size(board), late = size - 1;
    float *in = malloc(200000 * sizeof *in), *out = malloc(200000 * sizeof *out);
    CHECK(in && out);
    for (int p = 0; p < PATH_CASES; p++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            call_stamps mine;
            uint32_t slot = c == 1 ? SP_STAMPS - STAMPS_CALL + 1 : 1;
            put_integers(in, counts[c], (uint64_t)p, rank);
            sp_work work = work_of(&path_cases[p], SP_DTYPE_FP32, in, out, counts[c]);
            CHECK(!sp_host_seam.stamps_clear(comm, slot, STAMPS_CALL, NULL));
            stamped_call(comm, &work, slot, rank == late && c != 2 ? PLANTED_NS / 10 : 0);
            read_stamps(comm, slot, mine);
            is_sum(out, counts[c], (uint64_t)p, size);
            check_stamps(board, rank, mine, &path_cases[p], counts[c]);
        }
    free(in);
    free(out);
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
}

static void stamps_of_every_kernel_tell_who_waited_for_whom(void) {
    for (int size = 1; size <= 3; size++) run_ranks(size, sp_host_arena_bytes(size) + (1 << 20), stamps_every_kernel, NULL);
}

static void plants_a_delay(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    sp_exchange exchange = sp_board_exchange(board);
    float in[64] = {0}, out[64];
    sp_work work = work_of(&path_cases[1], SP_DTYPE_FP32, in, out, 64);
    call_stamps mine, all[2];
    uint64_t started;
    CHECK(!sp_gather(&exchange, NULL, NULL, 0, sp_deadline_in(60)));
    CHECK(!sp_host_seam.stamp(comm, 100, NULL));
    stamped_call(comm, &work, 1, rank ? PLANTED_NS : 0);
    read_stamps(comm, 1, mine);
    CHECK(!sp_host_seam.stamps_read(comm, 100, 1, &started, sp_deadline_in(1)));
    if (rank) CHECK(mine[BEFORE] - started >= PLANTED_NS);
    CHECK(!sp_gather(&exchange, mine, all, sizeof mine, sp_deadline_in(60)));
    /* What rank 1 was late by, its own stamps say; rank 0 has waited as long, and moved nothing before. */
    if (all[1][ENTER] > all[0][ENTER]) CHECK(all[0][MET] - all[0][ENTER] >= all[1][ENTER] - all[0][ENTER]);
    CHECK(all[0][MET] >= all[1][ENTER] && all[0][LEFT] >= all[0][MET]);
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
}

static void a_planted_delay_is_waiting_and_no_transfer(void) {
    run_ranks(2, sp_host_arena_bytes(2) + (1 << 20), plants_a_delay, NULL);
}

static void captures(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    sp_graph *graph = NULL;
    float in[512], out[512];
    sp_work work = work_of(&path_cases[2], SP_DTYPE_FP32, in, out, 512);
    call_stamps mine, before;
    CHECK(!sp_host_seam.stamps_clear(comm, 1, 64, NULL));
    CHECK(!sp_host_seam.capture_begin(comm, NULL));
    work.flags = SP_WORK_CAPTURING;
    CHECK(!sp_host_seam.stamps_clear(comm, 1, 2 * STAMPS_CALL + 1, NULL));
    stamped_call(comm, &work, 1, 0);
    stamped_call(comm, &work, 1 + STAMPS_CALL, PLANTED_NS);
    CHECK(!sp_host_seam.capture_end(comm, NULL, &graph));
    read_stamps(comm, 1, before);
    for (int i = 0; i < STAMPS_CALL; i++) CHECK_FOR(!before[i], "stamp %d was taken while it was captured", i);
    for (uint64_t turn = 0; turn < 2; turn++) {
        put_integers(in, 512, turn, rank);
        CHECK(!sp_host_seam.stamp(comm, 2 * STAMPS_CALL + 1, NULL)); /* the replay clears it */
        CHECK_FOR(!sp_host_seam.replay(comm, graph, NULL, sp_deadline_in(60)), "%s", sp_error());
        is_sum(out, 512, turn, sp_board_size(board));
        read_stamps(comm, 1, mine);
        CHECK(mine[BEFORE] > before[AFTER]);
        check_stamps(board, rank, mine, &path_cases[2], 512);
        memcpy(before, mine, sizeof mine);
        read_stamps(comm, 1 + STAMPS_CALL, mine);
        check_stamps(board, rank, mine, &path_cases[2], 512);
        CHECK(mine[BEFORE] - before[AFTER] >= PLANTED_NS);
        memcpy(before, mine, sizeof mine);
        CHECK(!sp_host_seam.stamps_read(comm, 2 * STAMPS_CALL + 1, 1, mine, sp_deadline_in(1)) && !mine[0]);
    }
    CHECK(sp_host_seam.ran(comm, work.path) == 4);
    sp_host_seam.graph_free(comm, graph);
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
}

static void spins_and_stamps_of_a_capture_run_at_each_replay(void) {
    for (int size = 1; size <= 2; size++) run_ranks(size, sp_host_arena_bytes(size) + (1 << 20), captures, NULL);
}

static void refuses_slots(int fd, int rank, void *argument) {
    static const struct {
        uint32_t first, count;
    } wrong[] = {{0, 1}, {1, 0}, {SP_STAMPS + 1, 1}, {SP_STAMPS, 2}, {1, SP_STAMPS + 1}, {2, UINT32_MAX}, {UINT32_MAX, 1}};
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    static uint64_t all[SP_STAMPS];
    float data[8] = {0};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK(sp_host_seam.stamps_read(comm, wrong[i].first, wrong[i].count, all, sp_deadline_in(1)) == SP_INVALID);
        CHECK(says("1 to 16384"));
        CHECK(sp_host_seam.stamps_clear(comm, wrong[i].first, wrong[i].count, NULL) == SP_INVALID);
        if (wrong[i].count == 1) CHECK(sp_host_seam.stamp(comm, wrong[i].first, NULL) == SP_INVALID);
    }
    sp_work work = work_of(&path_cases[1], SP_DTYPE_FP32, data, data, 8);
    work.stamp = SP_STAMPS - 1;
    CHECK(sp_host_seam.paths[work.path]->supports(comm, &work) == SP_INVALID && says("16383"));
    CHECK(enqueue(comm, &work) == SP_INVALID); /* and the communicator goes on */
    work.stamp = SP_STAMPS - 2;
    CHECK(!enqueue(comm, &work));
    CHECK(!sp_host_seam.stamps_read(comm, 1, SP_STAMPS, all, sp_deadline_in(1)));
    for (uint32_t i = 0; i < SP_STAMPS - 3; i++) CHECK_FOR(!all[i], "slot %u was never written", i + 1);
    CHECK(all[SP_STAMPS - 3] && all[SP_STAMPS - 1]);
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
}

static void slots_that_do_not_exist_are_refused(void) { run_ranks(2, sp_host_arena_bytes(2) + (1 << 20), refuses_slots, NULL); }

static void disagrees(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    float data[64] = {0};
    call_stamps mine;
    sp_work work = work_of(&path_cases[1], SP_DTYPE_FP32, data, data, rank ? 32 : 64);
    work.stamp = 1 + ENTER;
    CHECK(enqueue(comm, &work) == SP_MISMATCH);
    read_stamps(comm, 1, mine);
    CHECK(mine[ENTER] && mine[MET] && !mine[LEFT]);
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
}

static void a_call_that_failed_was_never_left(void) { run_ranks(2, sp_host_arena_bytes(2) + (1 << 20), disagrees, NULL); }

static void compares_clocks(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    sp_exchange exchange = sp_board_exchange(board);
    sp_clock clock;
    int64_t here, all[SP_RANKS_MAX];
    memset(&clock, 0xff, sizeof clock);
    here = sp_now_ns();
    CHECK(!sp_host_seam.clock(comm, &clock, sp_deadline_in(60)));
    int64_t after = sp_now_ns();
    for (int r = 0; r < SP_RANKS_MAX; r++) CHECK(clock.offset_ns[r] == 0 && clock.error_ns[r] == 0);
    CHECK(!sp_gather(&exchange, &here, all, sizeof here, sp_deadline_in(60)));
    for (int r = 0; r < sp_board_size(board); r++) CHECK_FOR(all[r] <= after, "rank %d left before rank %d came", rank, r);
    if (rank == 1) sp_board_fail(board, 1, "on purpose");
    if (rank == 0) CHECK(sp_host_seam.clock(comm, &clock, sp_deadline_in(60)) == SP_PEER && says("rank 1"));
    sp_host_seam.leave(comm, true);
    sp_board_detach(board);
}

static void clocks_are_one_and_ranks_meet_over_them(void) {
    run_ranks(2, sp_host_arena_bytes(2) + (1 << 20), compares_clocks, NULL);
}

static void *aborts(void *comm) {
    sp_host_seam.abort(comm);
    return NULL;
}

static void a_spin_ends_when_its_communicator_is_aborted(void) {
    int fd = new_board(1, sp_host_arena_bytes(1) + (1 << 20));
    sp_board *board = attached(fd, 0);
    sp_comm *comm = joined(board, 0);
    pthread_t other;
    CHECK(!sp_host_seam.hold(comm, NULL)); /* nothing waits for its release here */
    CHECK(!pthread_create(&other, NULL, aborts, comm));
    CHECK(sp_host_seam.spin(comm, UINT64_C(1000000000) * 86400, NULL) == SP_PEER && says("aborted"));
    CHECK(!pthread_join(other, NULL));
    sp_host_seam.release(comm);
    sp_host_seam.leave(comm, true);
    sp_board_detach(board);
    close(fd);
}

SP_TESTS(T(stamps_of_every_kernel_tell_who_waited_for_whom), T(a_planted_delay_is_waiting_and_no_transfer),
         T(spins_and_stamps_of_a_capture_run_at_each_replay), T(slots_that_do_not_exist_are_refused),
         T(a_call_that_failed_was_never_left), T(clocks_are_one_and_ranks_meet_over_them),
         T(a_spin_ends_when_its_communicator_is_aborted))
