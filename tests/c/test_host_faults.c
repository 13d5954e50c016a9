/* What goes wrong between CPU ranks in csrc/host's paths: a dead rank, a late one, one that calls something else, no room, an
 * abort. Each ends every rank's call within its limit, with an error that names who and where. */
#define _GNU_SOURCE 1

#include "host_values.h"

#include <pthread.h>

/* One of each way of moving data. */
static const path_case ways[] = {
    {SP_PATH_CUSTOM, SP_KERNEL_ONE_SHOT_PULL, true},
    {SP_PATH_CUSTOM, SP_KERNEL_ONE_SHOT_PUSH, true},
    {SP_PATH_CUSTOM, SP_KERNEL_TWO_SHOT, true},
    {SP_PATH_CUSTOM, SP_KERNEL_TWO_SHOT_PUSH, true},
    {SP_PATH_CUSTOM, SP_KERNEL_LIMIT, true},
    {SP_PATH_PYNCCL_IN_PLACE, SP_KERNEL_UNKNOWN, false},
    {SP_PATH_TORCH_DISTRIBUTED, SP_KERNEL_UNKNOWN, false},
};
enum { WAYS = sizeof ways / sizeof *ways };

typedef struct fault_case {
    const path_case *way;
    size_t bytes;
} fault_case;

static void meet(sp_board *board) { CHECK_FOR(!sp_board_all_gather(board, NULL, NULL, 0, sp_deadline_in(20)), "%s", sp_error()); }

/* The same call again and again until one fails; rank 1 is killed from outside at some moment, mostly within a call. */
static void reduces_until_it_fails(int fd, int rank, void *argument) {
    const fault_case *fault = argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    void *data = calloc(1, fault->bytes);
    CHECK(data);
    sp_status status = SP_OK;
    int64_t start = 0;
    while (!status) {
        sp_work work = work_of(fault->way, SP_DTYPE_FP32, data, data, fault->bytes / 4);
        start = sp_now_ns();
        work.deadline = sp_deadline_in(20);
        status = enqueue(comm, &work);
    }
    CHECK_FOR(status == SP_PEER && says("rank 1 (pid") && says("its process is gone"), "rank %d: %s", rank, sp_error());
    CHECK_FOR(seconds_since(start) < 0.5, "rank %d: %.3f s", rank, seconds_since(start));
    CHECK_FOR(says("between calls") || says("custom") || says("pynccl") || says("torch"), "where it ended: %s", sp_error());
    sp_work work = work_of(fault->way, SP_DTYPE_FP32, data, data, 1);
    CHECK(enqueue(comm, &work) == SP_PEER && says("earlier failure"));
    CHECK(sp_host_seam.wait(comm, NULL, sp_deadline_in(1)) == SP_PEER);
    free(data);
    sp_host_seam.leave(comm, true);
    sp_board_detach(board);
}

static void kill_in_the_middle(const path_case *way, size_t bytes, unsigned after_us) {
    fault_case fault = {way, bytes};
    int fd = new_board(3, sp_host_arena_bytes(3)), status = 0;
    pid_t children[3];
    for (int r = 0; r < 3; r++) children[r] = start_rank(reduces_until_it_fails, fd, r, &fault);
    usleep(after_us);
    kill(children[1], SIGKILL);
    rank_ended_well(children[0], 0);
    rank_ended_well(children[2], 2);
    CHECK(waitpid(children[1], &status, 0) == children[1] && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close(fd);
}

static void a_rank_killed_in_the_middle_ends_every_path_at_once(void) {
    for (int w = 0; w < WAYS; w++) {
        kill_in_the_middle(&ways[w], 4096, 100000);
        kill_in_the_middle(&ways[w], 4 << 20, 130000);
    }
}

static void waits_for_rank_2(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    for (int w = 0; w < WAYS; w++) {
        float data[64] = {0};
        sp_work work = work_of(&ways[w], SP_DTYPE_FP32, data, data, 64);
        int64_t start = sp_now_ns();
        work.deadline = sp_deadline_in(0.1);
        sp_status status = rank == 2 ? SP_OK : enqueue(comm, &work);
        double took = seconds_since(start);
        if (rank != 2) {
            CHECK_FOR(status == SP_TIMEOUT && says("for rank 2") && says("rank 2 (pid") && says("between calls"), "%s",
                      sp_error());
            CHECK_FOR(took >= 0.1 && took < 0.6, "%.3f s", took);
        }
        meet(board);
        sp_host_seam.leave(comm, rank != 2);
        comm = joined(board, rank); /* what timed out is over; a new communicator on the same board is not */
        CHECK_FOR(!enqueue(comm, &(sp_work){.in = data,
                                            .out = data,
                                            .count = 64,
                                            .nbytes = 256,
                                            .path = ways[w].path,
                                            .kernel = ways[w].kernel,
                                            .dtype = SP_DTYPE_FP32,
                                            .deadline = sp_deadline_in(20)}),
                  "%s", sp_error());
    }
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
}

static void a_rank_that_never_calls_is_named_at_the_deadline(void) {
    /* The lanes of a communicator that ended in a timeout stay in the arena: a peer might still read them. */
    run_ranks(3, sp_host_arena_bytes(3) * (WAYS + 1), waits_for_rank_2, NULL);
}

static void joins_without_rank_2(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_world world = {.rank = rank, .size = 3, .exchange = sp_board_exchange(board)};
    sp_comm *comm = NULL;
    CHECK(sp_host_seam.join(&world, sp_deadline_in(0.2), &comm) == SP_TIMEOUT && !comm);
    CHECK_FOR(says("rank 2 never came") && says("joining"), "%s", sp_error());
    sp_board_detach(board);
}

static void a_rank_that_never_joins_is_named_too(void) {
    int fd = new_board(3, sp_host_arena_bytes(3));
    pid_t first = start_rank(joins_without_rank_2, fd, 0, NULL), second = start_rank(joins_without_rank_2, fd, 1, NULL);
    rank_ended_well(first, 0);
    rank_ended_well(second, 1);
    close(fd);
}

typedef struct disagreement {
    sp_work usual, odd;
    const char *field;
} disagreement;

static void disagree(sp_board *board, sp_comm *comm, int rank, const disagreement *d, void *data, size_t bytes) {
    for (int odd = 0; odd < 3; odd++) {
        sp_work work = rank == odd ? d->odd : d->usual, right = d->usual;
        work.in = right.in = data;
        work.out = right.out = data;
        work.deadline = right.deadline = sp_deadline_in(20);
        memset(data, 0, bytes);
        CHECK_FOR(enqueue(comm, &work) == SP_MISMATCH, "rank %d, rank %d odd, %s of path %d kernel %d: %s", rank, odd, d->field,
                  d->usual.path, d->usual.kernel, sp_error());
        CHECK_FOR(says(d->field) && says("rank 0") + says("rank 1") + says("rank 2") == 2, "%s", sp_error());
        meet(board);
        CHECK_FOR(!enqueue(comm, &right), "the right call after it, rank %d: %s", rank, sp_error());
    }
}

static void calls_something_else(int fd, int rank, void *argument) {
    enum { BYTES = 1 << 20 };
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    void *data = malloc(BYTES);
    CHECK(data);
    for (int w = 0; w < WAYS; w++) {
        sp_work small = work_of(&ways[w], SP_DTYPE_FP32, data, data, 16),
                large = work_of(&ways[w], SP_DTYPE_FP32, data, data, BYTES / 4);
        sp_work halves = work_of(&ways[w], SP_DTYPE_FP16, data, data, 32),
                other = work_of(&ways[(w + 1) % WAYS], SP_DTYPE_FP32, data, data, 16);
        sp_work empty = work_of(&ways[w], SP_DTYPE_FP32, data, data, 0);
        disagreement all[] = {{small, large, "size"},
                              {large, small, "size"},
                              {small, halves, "dtype"},
                              {small, other, "disagree on the"},
                              {empty, small, "size"}};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) disagree(board, comm, rank, &all[i], data, BYTES);
    }
    free(data);
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
}

static void ranks_that_call_different_things_all_hear_of_it_and_go_on(void) {
    run_ranks(3, sp_host_arena_bytes(3), calls_something_else, NULL);
}

static void says_both_sizes(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    uint16_t data[4096] = {0};
    sp_work work = work_of(&ways[0], SP_DTYPE_BF16, data, data, rank ? 4096 : 2048);
    CHECK(enqueue(comm, &work) == SP_MISMATCH);
    CHECK_FOR(
        rank
            ? says("rank 0 calls custom one_shot_pull of 4,096 bytes of bf16, rank 1 custom one_shot_pull of 8,192 bytes of bf16")
            : says(
                  "rank 1 calls custom one_shot_pull of 8,192 bytes of bf16, rank 0 custom one_shot_pull of 4,096 bytes of bf16"),
        "%s", sp_error());
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
}

static void a_mismatch_gives_both_calls_in_words(void) { run_ranks(2, sp_host_arena_bytes(2), says_both_sizes, NULL); }

/* Only rank 2 may not grow the file; its slice is the last one. */
static void joins_without_room(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    if (rank == 2) CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 20, 1 << 20}) == 0);
    sp_world world = {.rank = rank, .size = 3, .exchange = sp_board_exchange(board)};
    sp_comm *comm = NULL;
    CHECK(sp_host_seam.join(&world, sp_deadline_in(20), &comm) == SP_NOMEM && !comm);
    CHECK_FOR(says("rank 2 asks for") && says("file size limit"), "rank %d: %s", rank, sp_error());
    sp_board_detach(board);
}

static void a_rank_without_room_fails_all_of_them_alike(void) { run_ranks(3, sp_host_arena_bytes(3), joins_without_room, NULL); }

static void too_small_an_arena(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_world world = {.rank = rank, .size = 2, .exchange = sp_board_exchange(board)};
    sp_comm *comm = NULL;
    CHECK(sp_host_seam.join(&world, sp_deadline_in(20), &comm) == SP_NOMEM && says("larger"));
    world.size = 3;
    CHECK(sp_host_seam.join(&world, sp_deadline_in(20), &comm) == SP_INVALID);
    sp_board_detach(board);
}

static void an_arena_too_small_for_a_communicator_says_so(void) { run_ranks(2, 65536, too_small_an_arena, NULL); }

static void *aborts_soon(void *comm) {
    usleep(50000);
    sp_host_seam.abort(comm);
    sp_host_seam.abort(comm);
    return NULL;
}

static void one_aborts(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    float data[64] = {0};
    pthread_t thread;
    meet(board);
    int64_t start = sp_now_ns();
    if (rank == 0) CHECK(!pthread_create(&thread, NULL, aborts_soon, comm));
    sp_work work = work_of(&ways[2], SP_DTYPE_FP32, data, data, 64);
    CHECK((rank == 2 ? sp_board_all_gather(board, NULL, NULL, 0, sp_deadline_in(20)) : enqueue(comm, &work)) == SP_PEER);
    CHECK_FOR(says("rank 0") && says("aborted"), "%s", sp_error());
    CHECK_FOR(seconds_since(start) < 0.6, "%.3f s", seconds_since(start));
    if (rank == 0) CHECK(!pthread_join(thread, NULL));
    sp_host_seam.leave(comm, rank == 2);
    sp_board_detach(board);
}

static void an_abort_from_another_thread_ends_every_rank_s_wait(void) { run_ranks(3, sp_host_arena_bytes(3), one_aborts, NULL); }

static void one_leaves(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    float data[64] = {0};
    if (rank == 1) {
        sp_host_seam.leave(comm, false);
        sp_board_detach(board);
        return;
    }
    sp_work work = work_of(&ways[0], SP_DTYPE_FP32, data, data, 64);
    CHECK(enqueue(comm, &work) == SP_PEER);
    CHECK_FOR(says("rank 1 has left"), "%s", sp_error());
    sp_host_seam.leave(comm, true);
    sp_board_detach(board);
}

static void a_call_to_one_who_has_left_says_so(void) { run_ranks(2, sp_host_arena_bytes(2), one_leaves, NULL); }

static void reduces_registered_stack(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    float in[64] = {0}, out[64] = {0};
    sp_work work = work_of(&ways[0], SP_DTYPE_FP32, in, out, 64);
    work.flags = SP_WORK_REGISTERED; /* not in the arena: it is copied, and no fault */
    CHECK_FOR(!enqueue(comm, &work), "%s", sp_error());
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
}

static void a_registered_input_that_peers_cannot_reach_is_copied(void) {
    run_ranks(2, sp_host_arena_bytes(2), reduces_registered_stack, NULL);
}

SP_TESTS(T(a_rank_killed_in_the_middle_ends_every_path_at_once), T(a_rank_that_never_calls_is_named_at_the_deadline),
         T(a_rank_that_never_joins_is_named_too), T(ranks_that_call_different_things_all_hear_of_it_and_go_on),
         T(a_mismatch_gives_both_calls_in_words), T(a_rank_without_room_fails_all_of_them_alike),
         T(an_arena_too_small_for_a_communicator_says_so), T(an_abort_from_another_thread_ends_every_rank_s_wait),
         T(a_call_to_one_who_has_left_says_so), T(a_registered_input_that_peers_cannot_reach_is_copied))
