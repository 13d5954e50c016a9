/* The board of csrc/host: all-gathers, who is there, calls compared, the arena, and every way in which a rank can be missing. */
#define _GNU_SOURCE 1

#include "host_ranks.h"

#include <dirent.h>
#include <sys/mman.h>

#include "host/board_shared.h"

enum { ARENA = 1 << 20 };

static uint8_t byte_of(int rank, size_t i, unsigned round) { return (uint8_t)((size_t)rank * 37 + i * 11 + round * 101); }

static void gather_and_look(sp_board *board, int rank, size_t bytes, unsigned round) {
    int size = sp_board_size(board);
    uint8_t *mine = malloc(bytes + 1), *all = malloc(bytes * (size_t)size + 1);
    CHECK(mine && all);
    for (size_t i = 0; i < bytes; i++) mine[i] = byte_of(rank, i, round);
    memset(all, 0xa5, bytes * (size_t)size + 1);
    CHECK_FOR(!sp_board_all_gather(board, mine, all, bytes, sp_deadline_in(60)), "rank %d: %s", rank, sp_error());
    for (int r = 0; r < size; r++)
        for (size_t i = 0; i < bytes; i++)
            CHECK_FOR(all[(size_t)r * bytes + i] == byte_of(r, i, round), "byte %zu of rank %d, round %u", i, r, round);
    CHECK(all[bytes * (size_t)size] == 0xa5);
    free(mine);
    free(all);
}

static void gathers_of_many_sizes(int fd, int rank, void *argument) {
    static const size_t sizes[] = {0, 1, 7, 64, 100, 4096, 32767, 32768, 32769, 65536, 200001};
    (void)argument;
    sp_board *board = attached(fd, rank);
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) gather_and_look(board, rank, sizes[i], i);
    for (unsigned round = 0; round < 400; round++) gather_and_look(board, rank, round % 97, round);
    sp_board_detach(board);
}

static void every_rank_gets_every_rank_s_bytes(void) {
    for (int size = 1; size <= 5; size++) run_ranks(size, ARENA, gathers_of_many_sizes, NULL);
}

static void gathers_uneven(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    uint8_t mine[100000] = {0}, all[300000];
    for (int odd = 0; odd < 3; odd++) {
        size_t bytes = rank == odd ? 100000 : 8;
        CHECK(sp_board_all_gather(board, mine, all, bytes, sp_deadline_in(20)) == SP_MISMATCH);
        CHECK_FOR(says("100000") && says(" 8"), "%s", sp_error());
        gather_and_look(board, rank, 50, (unsigned)odd);
    }
    sp_board_detach(board);
}

static void ranks_that_gather_different_sizes_all_hear_of_it_and_go_on(void) { run_ranks(3, ARENA, gathers_uneven, NULL); }

static void waits_for_one_who_never_comes(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    int64_t start = sp_now_ns();
    CHECK(sp_board_all_gather(board, NULL, NULL, 0, sp_deadline_in(0.2)) == SP_TIMEOUT);
    CHECK_FOR(says("rank 2 never came"), "%s", sp_error());
    double took = seconds_since(start);
    CHECK_FOR(took >= 0.2 && took < 0.7, "%.3f s", took);
    sp_board_detach(board);
}

static void a_rank_that_never_comes_is_named_at_the_deadline(void) {
    int fd = new_board(3, 0);
    pid_t first = start_rank(waits_for_one_who_never_comes, fd, 0, NULL),
          second = start_rank(waits_for_one_who_never_comes, fd, 1, NULL);
    rank_ended_well(first, 0);
    rank_ended_well(second, 1);
    close(fd);
}

/* Rank 1 is killed while it sleeps; the others wait for it in an all-gather. */
static void outlives_rank_1(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    gather_and_look(board, rank, 8, 0);
    if (rank == 1) {
        sp_board_phase(board, "a long sleep");
        sp_board_call call = {7, 64, SP_PATH_CUSTOM, 0, 0, 0};
        sp_board_post(board, &call);
        gather_and_look(board, rank, 0, 0);
        raise(SIGKILL);
    }
    gather_and_look(board, rank, 0, 0);
    int64_t start = sp_now_ns();
    CHECK(sp_board_all_gather(board, NULL, NULL, 0, sp_deadline_in(20)) == SP_PEER);
    CHECK_FOR(says("rank 1 (pid") && says("a long sleep, call 7") && says("its process is gone"), "%s", sp_error());
    CHECK_FOR(seconds_since(start) < 0.5, "%.3f s", seconds_since(start));
    CHECK(sp_board_check(board) == SP_PEER);
    sp_board_detach(board);
}

/* `reap`: the dead rank leaves the process table at once, else it stays there as a zombie. */
static void kill_rank_1(bool reap) {
    int fd = new_board(3, 0), status = 0;
    pid_t children[3];
    for (int r = 0; r < 3; r++) children[r] = start_rank(outlives_rank_1, fd, r, NULL);
    if (reap) CHECK(waitpid(children[1], &status, 0) == children[1]);
    rank_ended_well(children[0], 0);
    rank_ended_well(children[2], 2);
    if (!reap) CHECK(waitpid(children[1], &status, 0) == children[1]);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close(fd);
}

static void a_killed_rank_is_named_at_once_gone_or_zombie(void) {
    kill_rank_1(false);
    kill_rank_1(true);
}

static void a_recycled_pid_is_not_taken_for_the_rank(void) {
    int fd = new_board(2, 0);
    sp_board *mine = attached(fd, 0);
    sp_board *other = attached(fd, 1);
    CHECK(sp_board_check(mine) == SP_OK);
    atomic_fetch_add(&mine->ranks[1].started, 1);
    mine->looked_ns = 0;
    CHECK(sp_board_check(mine) == SP_PEER);
    CHECK(says("rank 1"));
    sp_board_detach(other);
    sp_board_detach(mine);
    close(fd);
}

static void an_onlooker_can_give_a_rank_up_and_everyone_hears_why(void) {
    int fd = new_board(3, 0);
    sp_board *parent = attached(fd, -1), *mine = attached(fd, 0);
    sp_board_fail(parent, 2, "it ended with exit code 3");
    CHECK(sp_board_all_gather(mine, NULL, NULL, 0, sp_deadline_in(20)) == SP_PEER);
    CHECK_FOR(says("rank 2") && says("it ended with exit code 3"), "%s", sp_error());
    sp_board *late = NULL;
    CHECK(sp_board_attach(fd, 2, &late) == SP_PEER);
    CHECK(sp_board_all_gather(parent, NULL, NULL, 0, sp_deadline_in(1)) == SP_INVALID);
    sp_board_detach(mine);
    sp_board_detach(parent);
    close(fd);
}

static void a_rank_that_left_is_not_waited_for(void) {
    int fd = new_board(2, 0);
    sp_board *mine = attached(fd, 0), *other = attached(fd, 1);
    sp_board_detach(other);
    CHECK(sp_board_check(mine) == SP_OK); /* a goodbye is no failure */
    CHECK(sp_board_all_gather(mine, NULL, NULL, 0, sp_deadline_in(20)) == SP_PEER);
    CHECK_FOR(says("rank 1 has left"), "%s", sp_error());
    sp_board_detach(mine);
    close(fd);
}

static void wrong_arguments_are_refused_with_their_values(void) {
    int fd = new_board(2, 0), other = memfd_create("not a board", 0);
    sp_board *board = NULL, *mine = attached(fd, 1);
    CHECK(sp_board_create(0, 0, &fd) == SP_INVALID && says("0 ranks"));
    CHECK(sp_board_create(SP_RANKS_MAX + 1, 0, &fd) == SP_INVALID);
    CHECK(sp_board_create(2, SIZE_MAX, &fd) == SP_INVALID);
    CHECK(sp_board_attach(fd, 2, &board) == SP_INVALID && says("rank 2"));
    CHECK(sp_board_attach(fd, -2, &board) == SP_INVALID);
    CHECK(sp_board_attach(fd, 1, &board) == SP_INVALID && says("taken"));
    CHECK(sp_board_attach(-1, 0, &board) == SP_INVALID);
    CHECK(sp_board_attach(other, 0, &board) == SP_INVALID && says("no board"));
    CHECK(ftruncate(other, 1 << 20) == 0);
    CHECK(sp_board_attach(other, 0, &board) == SP_INVALID);
    uint32_t word = 0;
    CHECK(sp_board_wait(mine, &word, 1, 0, sp_deadline_in(1)) == SP_INVALID && says("not on the board"));
    CHECK(sp_board_wait(mine, sp_board_base(mine), 1, 2, sp_deadline_in(1)) == SP_INVALID);
    CHECK(sp_board_all_gather(mine, NULL, NULL, 8, sp_deadline_in(1)) == SP_INVALID);
    CHECK(board == NULL);
    CHECK(ftruncate(fd, 0) != 0); /* nobody can cut the file under the map */
    sp_board_detach(mine);
    close(fd);
    close(other);
}

static void the_arena_gives_out_aligned_parts_and_joins_what_is_freed(void) {
    int fd = new_board(2, ARENA);
    sp_board *mine = attached(fd, 0), *peer = attached(fd, 1);
    void *part[4], *start, *again;
    size_t bytes;
    for (int i = 0; i < 4; i++) {
        CHECK(!sp_board_alloc(mine, ARENA / 4, &part[i]));
        CHECK((uintptr_t)part[i] % 64 == 0);
        memset(part[i], i + 1, ARENA / 4);
    }
    CHECK(sp_board_alloc(mine, 1, &again) == SP_NOMEM && says("rank 0 asks for 1 bytes"));
    CHECK(sp_board_find(mine, (char *)part[2] + 5, &start, &bytes) && start == part[2] && bytes == ARENA / 4);
    CHECK(!sp_board_find(mine, &start, &start, &bytes));
    size_t offset = (size_t)((char *)part[2] - (char *)sp_board_base(mine));
    CHECK(((uint8_t *)sp_board_base(peer))[offset] == 3);
    CHECK(sp_board_holds(peer, 0, offset, ARENA / 2) && !sp_board_holds(peer, 0, offset, ARENA / 2 + 1));
    CHECK(!sp_board_holds(peer, 1, offset, 1) && !sp_board_holds(peer, 0, UINT64_MAX, 2));
    sp_board_free(mine, part[1]);
    sp_board_free(mine, part[3]);
    CHECK(sp_board_alloc(mine, ARENA / 2, &again) == SP_NOMEM);
    sp_board_free(mine, part[2]);
    sp_board_free(mine, part[2]); /* twice: nothing happens */
    CHECK(!sp_board_alloc(mine, 3 * (ARENA / 4), &again) && again == part[1]);
    CHECK(!sp_board_find(mine, (char *)part[0] - 1, &start, &bytes));
    sp_board_detach(mine);
    sp_board_detach(peer);
    close(fd);
}

static void limit_files(size_t bytes) { CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){bytes, bytes}) == 0); }

/* SIGXFSZ has its default here, which ends a process. */
static void a_machine_without_room_is_an_error_and_no_signal(void) {
    int fd = new_board(2, ARENA), none = -1;
    size_t control = sizeof(shared_board) + 2 * sizeof(shared_rank) + 2 * SP_BOARD_PAGE;
    sp_board *board = attached(fd, 1);
    void *data = NULL;
    limit_files(control);
    CHECK(sp_board_alloc(board, 12345, &data) == SP_NOMEM);
    CHECK_FOR(says("rank 1 asks for 12345 bytes") && says("file size limit"), "%s", sp_error());
    limit_files(SP_BOARD_PAGE);
    CHECK(sp_board_create(2, 0, &none) == SP_NOMEM && none == -1);
    CHECK_FOR(says("bytes of shared memory"), "%s", sp_error());
    sp_board_detach(board);
    close(fd);
}

static int open_files(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static void nothing_is_left_of_a_board(void) {
    int before = open_files();
    int fd = new_board(2, ARENA);
    sp_board *board = attached(fd, 0);
    char link[64], target[64] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    CHECK(readlink(link, target, sizeof target - 1) > 0);
    CHECK_FOR(strncmp(target, "/memfd:", 7) == 0, "%s", target); /* it never had a name in a folder */
    CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    sp_board_detach(board);
    close(fd);
    CHECK(open_files() == before);
}

static void post(sp_board *board, uint64_t seq, uint64_t nbytes, int kernel) {
    sp_board_call call = {seq, nbytes, SP_PATH_CUSTOM, (uint8_t)kernel, SP_DTYPE_BF16, 0};
    sp_board_post(board, &call);
}

static void calls_are_compared_and_both_are_put_into_words(void) {
    int fd = new_board(3, 0);
    sp_board *a = attached(fd, 0), *b = attached(fd, 1), *c = attached(fd, 2);
    for (uint64_t seq = 1; seq <= 1000; seq++) {
        post(a, seq, seq * 2, SP_KERNEL_ONE_SHOT);
        if (seq <= 990) post(b, seq, seq * 2, SP_KERNEL_ONE_SHOT);
        if (seq % 100 == 0) CHECK(!sp_board_compare(a, seq));
    }
    CHECK(!sp_board_compare(b, 990)); /* 734 of them were overwritten before it looked */
    post(a, 1001, 8192, SP_KERNEL_ONE_SHOT);
    post(c, 1001, 4096, SP_KERNEL_ONE_SHOT);
    CHECK(!sp_board_compare(a, 1000));
    CHECK(sp_board_compare(a, 1001) == SP_MISMATCH);
    CHECK_FOR(says("call 1001") && says("size") && says("rank 2 calls custom one_shot of 4,096 bytes of bf16") &&
                  says("rank 0 custom one_shot of 8,192 bytes"),
              "%s", sp_error());
    CHECK(sp_board_compare(c, 1001) == SP_MISMATCH && says("rank 0 calls"));
    sp_board_call x = {0, 8, SP_PATH_CUSTOM, SP_KERNEL_LIMIT, SP_DTYPE_FP32, 0}, y = x;
    CHECK(!sp_board_same_call(0, 0, &x, 1, &y));
    y.kernel = SP_KERNEL_TWO_SHOT;
    CHECK(sp_board_same_call(3, 0, &x, 1, &y) == SP_MISMATCH && says("kernel") && says("limit") && says("two_shot"));
    y.path = SP_PATH_QUICK;
    CHECK(sp_board_same_call(3, 0, &x, 1, &y) == SP_MISMATCH && says("disagree on the path") && says("quick"));
    y.dtype = SP_DTYPE_FP16;
    CHECK(sp_board_same_call(3, 0, &x, 1, &y) == SP_MISMATCH && says("disagree on the dtype"));
    y = x;
    y.flags = SP_WORK_CAPTURING | SP_WORK_REGISTERED;
    CHECK(sp_board_same_call(3, 0, &x, 1, &y) == SP_MISMATCH && says("captured"));
    y.flags = SP_WORK_REGISTERED; /* each rank's own affair */
    CHECK(!sp_board_same_call(3, 0, &x, 1, &y));
    sp_board_detach(a);
    sp_board_detach(b);
    sp_board_detach(c);
    close(fd);
}

static void an_error_can_say_where_every_rank_stands(void) {
    int fd = new_board(4, 0);
    sp_board *a = attached(fd, 0), *b = attached(fd, 1), *c = attached(fd, 2);
    char text[400], expected[64];
    sp_board_phase(a, "a phase whose name is longer than the forty-eight bytes that the board has for it");
    post(b, 12, 64, SP_KERNEL_ONE_SHOT);
    sp_board_detach(c);
    sp_board_describe(a, text, sizeof text);
    snprintf(expected, sizeof expected, "rank 1 (pid %d) is in starting, call 12; rank 2 has left; ", (int)getpid());
    CHECK_FOR(strstr(text, expected) && strstr(text, "rank 3 never came") && strstr(text, "a phase whose name"), "%s", text);
    for (size_t size = 0; size < 100; size++) {
        memset(text, 'x', sizeof text);
        sp_board_describe(a, text, size);
        CHECK_FOR(text[size] == 'x' && (!size || memchr(text, 0, size)), "%zu bytes", size);
    }
    sp_board_detach(a);
    sp_board_detach(b);
    close(fd);
}

/* One rank at a time passes the turn on: every step needs a wake, and there are more ranks than cores. */
static void passes_the_turn(int fd, int rank, void *argument) {
    (void)argument;
    sp_board *board = attached(fd, rank);
    int size = sp_board_size(board);
    uint64_t mine = 0, all[SP_RANKS_MAX];
    void *word = NULL;
    CHECK(!sp_board_alloc(board, 4, &word));
    *(uint32_t *)word = UINT32_MAX - 100; /* counters go round */
    mine = (uint64_t)((char *)word - (char *)sp_board_base(board));
    CHECK(!sp_board_all_gather(board, &mine, all, sizeof mine, sp_deadline_in(20)));
    int before = (rank + size - 1) % size;
    const uint32_t *theirs = (const uint32_t *)(const void *)((char *)sp_board_base(board) + all[before]);
    for (uint32_t i = 1; i <= 300; i++) {
        uint32_t value = UINT32_MAX - 100 + i;
        if (rank || i > 1)
            CHECK_FOR(!sp_board_wait(board, theirs, rank ? value : value - 1, before, sp_deadline_in(20)), "%s", sp_error());
        sp_board_signal(board, word, value);
    }
    gather_and_look(board, rank, 0, 0);
    sp_board_detach(board);
}

/* Without wakes each of the 1,800 steps would sleep out its 20 ms. */
static void six_ranks_pass_a_turn_round_without_losing_a_wake(void) {
    int64_t start = sp_now_ns();
    run_ranks(6, ARENA, passes_the_turn, NULL);
    CHECK_FOR(seconds_since(start) < 15, "%.1f s", seconds_since(start));
}

SP_TESTS(T(every_rank_gets_every_rank_s_bytes), T(ranks_that_gather_different_sizes_all_hear_of_it_and_go_on),
         T(a_rank_that_never_comes_is_named_at_the_deadline), T(a_killed_rank_is_named_at_once_gone_or_zombie),
         T(a_recycled_pid_is_not_taken_for_the_rank), T(an_onlooker_can_give_a_rank_up_and_everyone_hears_why),
         T(a_rank_that_left_is_not_waited_for), T(wrong_arguments_are_refused_with_their_values),
         T(the_arena_gives_out_aligned_parts_and_joins_what_is_freed), T(a_machine_without_room_is_an_error_and_no_signal),
         T(nothing_is_left_of_a_board), T(calls_are_compared_and_both_are_put_into_words),
         T(an_error_can_say_where_every_rank_stands), T(six_ranks_pass_a_turn_round_without_losing_a_wake))
