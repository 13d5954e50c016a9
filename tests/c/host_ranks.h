/* Forked ranks for the tests of csrc/host: a board, one process a rank, and what each of them ended with.
 * Used by test_host_*.c.
 * Invariant: no rank outlives its test, and a rank that fails fails the test. */
#ifndef SP_HOST_RANKS_H
#define SP_HOST_RANKS_H

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include "harness.h"
#include "host/host.h"

enum { RANK_SECONDS = 100 };

typedef void rank_main(int fd, int rank, void *argument);

/* One rank in a process of its own; it ends by the end of `run`, or with a failed CHECK. */
static inline pid_t start_rank(rank_main *run, int fd, int rank, void *argument) {
    fflush(NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(RANK_SECONDS);
    run(fd, rank, argument);
    exit(0);
}

static inline void rank_ended_well(pid_t child, int rank) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_FOR(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d, status %x", rank, (unsigned)status);
}

static inline int new_board(int size, size_t arena_bytes) {
    int fd = -1;
    CHECK_FOR(sp_board_create(size, arena_bytes, &fd) == SP_OK, "%d ranks: %s", size, sp_error());
    return fd;
}

/* All ranks of a new board run the same; all of them must end well. */
static inline void run_ranks(int size, size_t arena_bytes, rank_main *run, void *argument) {
    int fd = new_board(size, arena_bytes);
    pid_t children[SP_RANKS_MAX];
    for (int r = 0; r < size; r++) children[r] = start_rank(run, fd, r, argument);
    for (int r = 0; r < size; r++) rank_ended_well(children[r], r);
    close(fd);
}

static inline sp_board *attached(int fd, int rank) {
    sp_board *board = NULL;
    CHECK_FOR(sp_board_attach(fd, rank, &board) == SP_OK, "rank %d: %s", rank, sp_error());
    return board;
}

static inline sp_comm *joined(sp_board *board, int rank) {
    sp_world world = {.rank = rank, .size = sp_board_size(board), .exchange = sp_board_exchange(board)};
    sp_comm *comm = NULL;
    CHECK_FOR(sp_host_seam.join(&world, sp_deadline_in(20), &comm) == SP_OK, "rank %d: %s", rank, sp_error());
    return comm;
}

static inline double seconds_since(int64_t start_ns) { return (double)(sp_now_ns() - start_ns) / 1e9; }

static inline bool says(const char *part) { return strstr(sp_error(), part) != NULL; }

#endif
