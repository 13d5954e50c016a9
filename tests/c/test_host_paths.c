/* Every path of csrc/host among forked ranks: right sums, whatever the kernel, dtype, size and number of ranks; captures and
 * registered inputs. Faults are test_host_faults.c's. */
#define _GNU_SOURCE 1

#include "host_values.h"

enum { GUARD = 64, POISON = 0xa5 };

typedef struct buffers {
    uint8_t *in, *out;
    size_t bytes;
} buffers;

static buffers buffers_of(size_t bytes) {
    buffers b = {malloc(bytes + GUARD), malloc(bytes + GUARD), bytes};
    CHECK(b.in && b.out);
    return b;
}

static void buffers_free(buffers *b) {
    free(b->in);
    free(b->out);
}

static void fill(const buffers *b, uint8_t dtype, size_t count, uint64_t salt, int rank, bool exact) {
    size_t bytes = count * (size_t)sp_dtype_bytes[dtype];
    memset(b->in, POISON, bytes + GUARD);
    memset(b->out, POISON, bytes + GUARD);
    for (size_t i = 0; i < count; i++) put_value(dtype, b->in, i, exact ? integer_of(salt, rank, i) : fraction_of(salt, rank, i));
}

static void look_at_guard(const uint8_t *data, size_t bytes) {
    for (int i = 0; i < GUARD; i++) CHECK_FOR(data[bytes + (size_t)i] == POISON, "byte %d past the end", i);
}

/* One call with sums that are exact in every order and dtype; by turns in place, where the input becomes the output. */
static void reduce_integers(sp_comm *comm, int rank, int size, const path_case *which, uint8_t dtype, size_t count,
                            uint64_t salt) {
    bool in_place = salt % 2;
    buffers b = buffers_of(count * 8);
    fill(&b, dtype, count, salt, rank, true);
    uint8_t *out = in_place ? b.in : b.out;
    sp_work work = work_of(which, dtype, b.in, out, count);
    CHECK_FOR(!enqueue(comm, &work), "rank %d, path %d, kernel %d: %s", rank, which->path, which->kernel, sp_error());
    for (size_t i = 0; i < count; i++) {
        int sum = 0;
        for (int r = 0; r < size; r++) sum += integer_of(salt, r, i);
        CHECK_FOR(get_value(dtype, out, i) == sum, "element %zu of %zu, rank %d of %d, path %d, kernel %d, dtype %d: %g, not %d",
                  i, count, rank, size, which->path, which->kernel, dtype, get_value(dtype, out, i), sum);
        if (!in_place) CHECK_FOR(get_value(dtype, b.in, i) == integer_of(salt, rank, i), "the input's element %zu changed", i);
    }
    look_at_guard(b.in, work.nbytes);
    look_at_guard(b.out, in_place ? 0 : work.nbytes);
    buffers_free(&b);
}

static const uint8_t dtypes[] = {SP_DTYPE_BF16, SP_DTYPE_FP16,  SP_DTYPE_FP32, SP_DTYPE_FP64,
                                 SP_DTYPE_INT8, SP_DTYPE_INT32, SP_DTYPE_INT64};

static void reduces_small_sizes(int fd, int rank, void *argument) {
    static const size_t counts[] = {0, 1, 3, 8, 31, 509, 4096 + 5};
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    uint64_t salt = 0, ran = 0;
    for (int p = 0; p < PATH_CASES; p++) {
        for (size_t d = 0; d < sizeof dtypes; d++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                reduce_integers(comm, rank, sp_board_size(board), &path_cases[p], dtypes[d], counts[c], salt++);
        bool last = p + 1 == PATH_CASES || path_cases[p + 1].path != path_cases[p].path;
        ran += sizeof dtypes * (sizeof counts / sizeof *counts);
        if (last) CHECK(sp_host_seam.ran(comm, path_cases[p].path) == ran);
        if (last) ran = 0;
    }
    CHECK(!sp_host_seam.wait(comm, NULL, sp_deadline_in(1)));
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
}

static void every_path_dtype_and_small_size_is_exact(void) {
    for (int size = 1; size <= 4; size++) run_ranks(size, sp_host_arena_bytes(size) + 4096, reduces_small_sizes, NULL);
}

/* Several turns, and last ones of odd sizes; a ring's turn is longer by the number of ranks. */
static void reduces_large_sizes(int fd, int rank, void *argument) {
    static const size_t bytes[] = {131072 - 8, 131072, 131072 + 8, 2 * 131072 + 1016, (1 << 20) + 24};
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    for (int p = 0; p < PATH_CASES; p++)
        for (size_t b = 0; b < sizeof bytes / sizeof *bytes; b++) {
            uint8_t dtype = dtypes[(b + (size_t)p) % 3];
            reduce_integers(comm, rank, sp_board_size(board), &path_cases[p], dtype, bytes[b] / (size_t)sp_dtype_bytes[dtype],
                            b + (size_t)p);
        }
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
}

static void calls_of_many_turns_are_exact(void) {
    for (int size = 2; size <= 3; size++) run_ranks(size, sp_host_arena_bytes(size), reduces_large_sizes, NULL);
}

/* 256 MiB, looked at in places, each way of moving data once. */
static void reduces_the_largest(int fd, int rank, void *argument) {
    static const uint8_t kernels[] = {SP_KERNEL_ONE_SHOT, SP_KERNEL_ONE_SHOT_PUSH, SP_KERNEL_TWO_SHOT, SP_KERNEL_TWO_SHOT_PUSH};
    static const uint8_t others[] = {SP_PATH_PYNCCL_IN_PLACE, SP_PATH_TORCH_DISTRIBUTED};
    const size_t count = (size_t)(256 << 20) / 4;
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    float *data = malloc(count * sizeof *data);
    CHECK(data);
    for (int p = 0; p < 6; p++) {
        path_case which = p < 4 ? (path_case){SP_PATH_CUSTOM, kernels[p], true}
                                : (path_case){others[p - 4], SP_KERNEL_UNKNOWN, false};
        for (size_t i = 0; i < count; i++) data[i] = (float)((i * 7 + (size_t)rank + (size_t)p) % 1021);
        sp_work work = work_of(&which, SP_DTYPE_FP32, data, data, count);
        CHECK_FOR(!enqueue(comm, &work), "%s", sp_error());
        for (size_t i = 0; i < count; i += 997)
            CHECK_FOR(data[i] == (float)((i * 7 + (size_t)p) % 1021 + (i * 7 + 1 + (size_t)p) % 1021), "element %zu", i);
    }
    free(data);
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
}

static void a_quarter_of_a_gibibyte_is_exact(void) { run_ranks(2, sp_host_arena_bytes(2), reduces_the_largest, NULL); }

static double unit_of(uint8_t dtype) {
    return dtype == SP_DTYPE_BF16 ? 1.0 / 256 : dtype == SP_DTYPE_FP16 ? 1.0 / 2048 : 1.0 / (1 << 24);
}

static void look_at_fractions(const path_case *which, uint8_t dtype, const void *out, size_t count, uint64_t salt, int size) {
    /* In rank order with one rounding: half a unit of the result. A ring rounds at each hop. */
    double roundings = which->rank_order || which->path == SP_PATH_TORCH_DISTRIBUTED ? 1 : size;
    for (size_t i = 0; i < count; i++) {
        double sum = 0, sizes = 0;
        for (int r = 0; r < size; r++) {
            double value = fraction_of(salt, r, i);
            sum += value;
            sizes += value < 0 ? -value : value;
        }
        double off = get_value(dtype, out, i) - sum, allowed = roundings * unit_of(dtype) * sizes;
        CHECK_FOR(off <= allowed && -off <= allowed, "element %zu, path %d, kernel %d, dtype %d: off by %g of %g", i, which->path,
                  which->kernel, dtype, off, sum);
    }
}

/* Random values: within the dtype's tolerance, the same bits on all ranks, and on all kernels that sum in rank order. */
static void reduces_fractions(int fd, int rank, void *argument) {
    enum { COUNT = 3001, LARGE = 90001 };
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    int size = sp_board_size(board);
    for (uint64_t salt = 0; salt < 6; salt++) {
        size_t count = salt < 3 ? COUNT : LARGE;
        uint8_t dtype = dtypes[salt % 3];
        size_t bytes = count * (size_t)sp_dtype_bytes[dtype];
        buffers b = buffers_of(bytes);
        uint8_t *first = NULL, *all = malloc(bytes * (size_t)size);
        CHECK(all);
        for (int p = 0; p < PATH_CASES; p++) {
            fill(&b, dtype, count, salt, rank, false);
            sp_work work = work_of(&path_cases[p], dtype, b.in, b.out, count);
            CHECK_FOR(!enqueue(comm, &work), "%s", sp_error());
            look_at_fractions(&path_cases[p], dtype, b.out, count, salt, size);
            CHECK(!sp_board_all_gather(board, b.out, all, bytes, sp_deadline_in(60)));
            for (int r = 0; r < size; r++)
                CHECK_FOR(!memcmp(all, all + bytes * (size_t)r, bytes), "path %d, kernel %d: rank %d has other bits than rank 0",
                          path_cases[p].path, path_cases[p].kernel, r);
            if (path_cases[p].rank_order && first)
                CHECK_FOR(!memcmp(first, b.out, bytes), "path %d, kernel %d has other bits", path_cases[p].path,
                          path_cases[p].kernel);
            if (!first) {
                first = malloc(bytes);
                CHECK(first);
                memcpy(first, b.out, bytes);
            }
        }
        free(first);
        free(all);
        buffers_free(&b);
    }
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
}

static void random_sums_are_near_and_bit_equal_on_every_rank(void) {
    for (int size = 2; size <= 5; size += 3) run_ranks(size, sp_host_arena_bytes(size), reduces_fractions, NULL);
}

/* Paths, kernels, sizes and dtypes change from call to call, in an order that all ranks draw alike; ranks dawdle each by its own
 * dice. */
static void reduces_back_to_back(int fd, int rank, void *argument) {
    int calls = *(int *)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    uint64_t common = 77, own = 1000 + (uint64_t)rank;
    for (int i = 0; i < calls; i++) {
        uint64_t draw = sp_random(&common) >> 8;
        const path_case *which = &path_cases[draw % PATH_CASES];
        if (sp_random(&own) >> 58 == 0) usleep((unsigned)(sp_random(&own) >> 56));
        reduce_integers(comm, rank, sp_board_size(board), which, dtypes[draw / 100 % sizeof dtypes], draw / 1000 % 300,
                        draw / 1000000);
    }
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
}

static void thousands_of_calls_of_changing_kernels_stay_exact(void) {
    int calls[] = {2000, 2000};
    run_ranks(2, sp_host_arena_bytes(2), reduces_back_to_back, &calls[0]);
    run_ranks(6, sp_host_arena_bytes(6), reduces_back_to_back, &calls[1]); /* more than most machines of CI have cores */
}

/* A graph of two calls and two copies keeps the addresses and runs again with what lies there; registered inputs lie in the
 * arena. */
static void captures_and_replays(int fd, int rank, void *argument) {
    enum { COUNT = 40000 };
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    int size = sp_board_size(board);
    for (int p = 0; p < PATH_CASES; p++) {
        void *shared = NULL;
        uint64_t addresses = 99;
        bool capturing = true;
        CHECK(!sp_host_seam.memory.alloc(comm, COUNT * 4, &shared));
        float *in = shared, *out = malloc(COUNT * 4), *kept = malloc(COUNT * 4);
        CHECK(out && kept);
        sp_graph *graph = NULL;
        sp_work work = work_of(&path_cases[p], SP_DTYPE_FP32, in, out, COUNT),
                again = work_of(&path_cases[p], SP_DTYPE_FP32, out, out, COUNT);
        work.flags = SP_WORK_CAPTURING | SP_WORK_REGISTERED;
        again.flags = SP_WORK_CAPTURING;
        memset(out, 0, COUNT * 4);
        CHECK(enqueue(comm, &work) == SP_INVALID);
        CHECK(!sp_host_seam.capturing(comm, NULL, &capturing) && !capturing);
        CHECK(!sp_host_seam.capture_begin(comm, NULL) && sp_host_seam.capture_begin(comm, NULL) == SP_INVALID);
        CHECK(!sp_host_seam.capturing(comm, NULL, &capturing) && capturing);
        CHECK(!enqueue(comm, &work) && !sp_host_seam.copy(comm, kept, out, COUNT * 4, NULL) && !enqueue(comm, &again));
        CHECK(!sp_host_seam.copy(comm, in, NULL, 4, NULL)); /* the input's first element is zero from the second replay on */
        CHECK(sp_host_seam.mark(comm, 0, NULL) == SP_INVALID &&
              sp_host_seam.replay(comm, NULL, NULL, work.deadline) == SP_INVALID);
        CHECK(!sp_host_seam.capture_end(comm, NULL, &graph) && sp_host_seam.capture_end(comm, NULL, &graph) == SP_INVALID);
        CHECK(out[0] == 0); /* nothing ran */
        CHECK(!sp_host_seam.registered(comm, &addresses, sp_deadline_in(20)) && addresses == 1);
        CHECK(!sp_host_seam.registered(comm, &addresses, sp_deadline_in(20)) && addresses == 0);
        for (uint64_t replay = 0; replay < 4; replay++) {
            for (size_t i = 0; i < COUNT; i++) in[i] = (float)integer_of(replay, rank, i);
            if (replay) in[0] = 0;
            CHECK_FOR(!sp_host_seam.replay(comm, graph, NULL, sp_deadline_in(60)), "%s", sp_error());
            for (size_t i = 0; i < COUNT; i++) {
                int sum = 0;
                for (int r = 0; r < size; r++) sum += i || !replay ? integer_of(replay, r, i) : 0;
                CHECK_FOR(kept[i] == (float)sum && out[i] == (float)(sum * size), "replay %d, element %zu", (int)replay, i);
                CHECK_FOR(in[i] == (i ? (float)integer_of(replay, rank, i) : 0), "the input changed at %zu", i);
            }
        }
        sp_host_seam.graph_free(comm, graph);
        sp_host_seam.memory.free(comm, shared);
        free(out);
        free(kept);
    }
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
}

static void a_graph_runs_again_with_what_lies_at_its_addresses(void) {
    run_ranks(3, sp_host_arena_bytes(3) + (1 << 20), captures_and_replays, NULL);
}

/* A registered input is the caller's again when the call returns: whoever is through overwrites its own at once, from the end,
 * which peers read last; or the call itself does, where the output is the input. */
static void overwrites_registered_inputs(int fd, int rank, void *argument) {
    enum { COUNT = 65536 };
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    int size = sp_board_size(board);
    void *shared = NULL;
    float *out = malloc(COUNT * sizeof *out);
    CHECK(out && !sp_host_seam.memory.alloc(comm, COUNT * sizeof *out, &shared));
    float *in = shared;
    for (int round = 0; round < 120; round++) {
        for (size_t i = 0; i < COUNT; i++) in[i] = (float)(rank + round);
        float *to = round % 2 ? in : out;
        sp_work work = work_of(&path_cases[round % 3], SP_DTYPE_FP32, in, to, COUNT);
        work.flags = SP_WORK_REGISTERED;
        CHECK_FOR(!enqueue(comm, &work), "%s", sp_error());
        for (size_t i = COUNT; i-- > 0 && to != in;) in[i] = -1e6F;
        for (size_t i = 0; i < COUNT; i++)
            CHECK_FOR(to[i] == (float)(size * (2 * round + size - 1)) / 2, "round %d, element %zu: %g", round, i, to[i]);
    }
    free(out);
    sp_host_seam.memory.free(comm, shared);
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
}

static void a_registered_input_can_be_overwritten_when_the_call_returns(void) {
    run_ranks(3, sp_host_arena_bytes(3) + (1 << 20), overwrites_registered_inputs, NULL);
}

/* Handles: memory of a peer by what it exported, and refusals of what it did not; then a second communicator on that board. */
static void opens_peers_memory(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    sp_comm *comm = joined(board, rank);
    const sp_memory *memory = &sp_host_seam.memory;
    struct {
        sp_handle handle;
    } mine = {0}, all[2];
    void *data = NULL, *theirs = NULL;
    CHECK(!memory->alloc(comm, 1000, &data));
    memset(data, rank + 1, 1000);
    CHECK(memory->export(comm, &mine, &mine.handle) == SP_INVALID);
    CHECK(!memory->export(comm, (char *)data + 100, &mine.handle) && mine.handle.offset == 100);
    CHECK(!sp_board_all_gather(board, &mine, all, sizeof mine, sp_deadline_in(20)));
    CHECK(!memory->open(comm, &all[1 - rank].handle, &theirs));
    for (int i = 0; i < 900; i++) CHECK(((uint8_t *)theirs)[i] == 2 - rank);
    CHECK(!sp_board_all_gather(board, NULL, NULL, 0, sp_deadline_in(20)));
    memory->close(comm, &all[1 - rank].handle, theirs);
    sp_handle wrong = all[1 - rank].handle;
    wrong.offset = 1 << 20;
    CHECK(memory->open(comm, &wrong, &theirs) == SP_INVALID);
    memset(wrong.bytes, 0, sizeof wrong.bytes);
    CHECK(memory->open(comm, &wrong, &theirs) == SP_INVALID);
    memory->free(comm, data);
    sp_host_seam.leave(comm, false);
    sp_comm *second = joined(board, rank); /* the board serves a communicator after another */
    reduce_integers(second, rank, 2, &path_cases[8], SP_DTYPE_BF16, 77, 5);
    sp_host_seam.leave(second, false);
    sp_board_detach(board);
}

static void peers_open_what_was_exported_and_nothing_else(void) {
    run_ranks(2, sp_host_arena_bytes(2) + 4096, opens_peers_memory, NULL);
}

static void supports_says_what_cannot_run_and_why(void) {
    int fd = new_board(1, sp_host_arena_bytes(1));
    sp_board *board = attached(fd, 0);
    sp_comm *comm = joined(board, 0);
    float data[8] = {0};
    CHECK(!sp_host_seam.paths[SP_PATH_NONE] && !sp_host_seam.paths[SP_PATH_RAISES]);
    CHECK(sp_host_seam.abi == SP_SEAM_ABI && sp_host_seam.bytes == sizeof(sp_seam));
    for (int p = 0; p < PATH_CASES; p++) {
        const sp_path_ops *ops = sp_host_seam.paths[path_cases[p].path];
        sp_work work = work_of(&path_cases[p], SP_DTYPE_FP32, data, data, 8);
        CHECK(ops && ops->runs[0] && !ops->supports(comm, &work));
        work.dtype = SP_DTYPE_FP8;
        CHECK(ops->supports(comm, &work) == SP_UNAVAILABLE && says("fp8"));
        work.dtype = SP_DTYPE_COUNT;
        CHECK(ops->supports(comm, &work) == SP_INVALID);
        work.dtype = SP_DTYPE_FP32;
        work.count = 7;
        CHECK(ops->enqueue(comm, &work) == SP_INVALID && says("7 elements"));
        work = work_of(&path_cases[p], SP_DTYPE_FP32, data, data + 1, 7);
        CHECK(ops->enqueue(comm, &work) == SP_INVALID && says("overlap by 24 bytes"));
        work.in = NULL;
        CHECK(ops->enqueue(comm, &work) == SP_INVALID);
    }
    sp_work dry = work_of(&path_cases[0], SP_DTYPE_FP32, data, data, 8);
    dry.kernel = SP_KERNEL_DRY;
    CHECK(sp_host_seam.paths[SP_PATH_CUSTOM]->supports(comm, &dry) == SP_UNAVAILABLE);
    double us = -1;
    CHECK(sp_host_seam.elapsed(comm, &us, sp_deadline_in(1)) == SP_INVALID);
    CHECK(!sp_host_seam.mark(comm, 0, NULL) && sp_host_seam.mark(comm, 2, NULL) == SP_INVALID &&
          !sp_host_seam.mark(comm, 1, NULL));
    CHECK(!sp_host_seam.elapsed(comm, &us, sp_deadline_in(1)) && us >= 0);
    sp_host_seam.leave(comm, false);
    sp_board_detach(board);
    close(fd);
}

SP_TESTS(T(every_path_dtype_and_small_size_is_exact), T(calls_of_many_turns_are_exact), T(a_quarter_of_a_gibibyte_is_exact),
         T(random_sums_are_near_and_bit_equal_on_every_rank), T(thousands_of_calls_of_changing_kernels_stay_exact),
         T(a_graph_runs_again_with_what_lies_at_its_addresses), T(a_registered_input_can_be_overwritten_when_the_call_returns),
         T(peers_open_what_was_exported_and_nothing_else), T(supports_says_what_cannot_run_and_why))
