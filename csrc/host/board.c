/* The board's life: made once by a parent, attached by each rank, gone with the last of them. Called by the Coordinator and by
 * tests.
 * Invariant: no page is touched that was not reserved, and a file that cannot shrink (it is sealed) keeps it so. */
#define _GNU_SOURCE 1

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "board_shared.h"

/* With a core for each rank a peer is mostly a microsecond away, and a sleep costs ten; with fewer a spin holds the peer up. */
enum { SPINS = 400, SPINS_CROWDED = 20 };

static size_t page_up(size_t bytes) { return (bytes + SP_BOARD_PAGE - 1) & ~(size_t)(SP_BOARD_PAGE - 1); }

static size_t control_bytes(int size) { return page_up(sizeof(shared_board)) + (size_t)size * sizeof(shared_rank); }

/* Past RLIMIT_FSIZE the kernel sends SIGXFSZ as well as an error, and its default ends the process. */
sp_status sp_board_reserve(int fd, size_t at, size_t bytes, const char *what) {
    sigset_t limit, before, pending;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &limit, &before);
    sigpending(&pending);
    int failed;
    do failed = fallocate(fd, 0, (off_t)at, (off_t)bytes) ? errno : 0;
    while (failed == EINTR);
    if (failed == EFBIG && !sigismember(&pending, SIGXFSZ)) sigtimedwait(&limit, NULL, &(struct timespec){0, 0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    switch (failed) {
    case 0: return SP_OK;
    case EFBIG:
        return sp_fail(SP_NOMEM,
                       "%s: no room for %zu bytes of shared memory at offset %zu: raise the file size limit (ulimit -f)", what,
                       bytes, at);
    case ENOSPC:
    case ENOMEM:
        return sp_fail(SP_NOMEM,
                       "%s: no room for %zu bytes of shared memory: %s; free memory, or use fewer ranks or smaller tensors", what,
                       bytes, strerror(failed));
    default: return sp_fail(SP_SYSTEM, "%s: fallocate(%zu bytes of shared memory): %s", what, bytes, strerror(failed));
    }
}

sp_status sp_board_create(int size, size_t arena_bytes, int *fd) {
    if (size < 1 || size > SP_RANKS_MAX) return sp_fail(SP_INVALID, "a board of %d ranks: it has 1 to %d", size, SP_RANKS_MAX);
    if (arena_bytes > (size_t)1 << 42) return sp_fail(SP_INVALID, "an arena of %zu bytes a rank: at most 4 TiB", arena_bytes);
    arena_bytes = page_up(arena_bytes);
    int file = memfd_create("sglang_probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0) return sp_fail(SP_SYSTEM, "memfd_create for a board of %d ranks: %s", size, strerror(errno));
    size_t control = control_bytes(size);
    shared_board *shared = MAP_FAILED;
    sp_status status = sp_board_reserve(file, 0, control, "a board's control part");
    if (status) goto close_file;
    shared = mmap(NULL, control, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK)) {
        status = sp_fail(SP_SYSTEM, "mapping and sealing a board of %zu bytes: %s", control, strerror(errno));
        goto close_file;
    }
    shared->magic = SP_BOARD_MAGIC;
    shared->arena_bytes = arena_bytes;
    shared->size = (uint32_t)size;
    munmap(shared, control);
    *fd = file;
    return SP_OK;

close_file:
    if (shared != MAP_FAILED) munmap(shared, control);
    close(file);
    return status;
}

/* A file that is not a board, or that could shrink under the map, is refused before anything of it is read. */
static sp_status map_board(sp_board *b) {
    struct stat found;
    int seals = fcntl(b->fd, F_GET_SEALS);
    if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(b->fd, &found) || found.st_size < (off_t)control_bytes(1))
        return sp_fail(SP_INVALID, "file descriptor %d is no board: pass on the one that made it", b->fd);
    shared_board header;
    if (pread(b->fd, &header, sizeof header, 0) != (ssize_t)sizeof header || header.magic != SP_BOARD_MAGIC || header.size < 1 ||
        header.size > SP_RANKS_MAX || found.st_size < (off_t)control_bytes((int)header.size))
        return sp_fail(SP_INVALID, "file descriptor %d is no board of this version of sglang_probe", b->fd);
    b->size = (int)header.size;
    b->arena = control_bytes(b->size);
    b->arena_bytes = header.arena_bytes;
    b->bytes = b->arena + b->arena_bytes * header.size;
    void *base = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, b->fd, 0);
    if (base == MAP_FAILED)
        return sp_fail(SP_SYSTEM, "mapping a board of %zu bytes: %s; a smaller arena may do", b->bytes, strerror(errno));
    b->shared = base;
    b->ranks = (shared_rank *)((char *)base + page_up(sizeof(shared_board)));
    return SP_OK;
}

static sp_status take_rank(sp_board *b) {
    if (b->rank >= b->size || b->rank < -1)
        return sp_fail(SP_INVALID, "rank %d: this board has ranks 0 to %d", b->rank, b->size - 1);
    if (b->rank < 0) return SP_OK;
    shared_rank *mine = &b->ranks[b->rank];
    uint32_t nobody = 0;
    uint32_t pid = (uint32_t)getpid();
    if (!atomic_compare_exchange_strong_explicit(&mine->pid, &nobody, pid, memory_order_relaxed, memory_order_relaxed))
        return sp_fail(SP_INVALID, "rank %d is taken by process %u: a rank attaches once, a new run needs a new board", b->rank,
                       nobody);
    char state;
    atomic_store_explicit(&mine->started, sp_process_started(pid, &state), memory_order_relaxed);
    sp_board_phase(b, "starting");
    uint32_t absent = SP_RANK_ABSENT;
    if (!atomic_compare_exchange_strong_explicit(&mine->state, &absent, SP_RANK_ATTACHED, memory_order_release,
                                                 memory_order_relaxed))
        return sp_fail(SP_PEER, "rank %d was given up before it came", b->rank);
    return SP_OK;
}

sp_status sp_board_attach(int fd, int rank, sp_board **board) {
    sp_board *b = calloc(1, sizeof *b);
    block *arena = calloc(1, sizeof *arena);
    sp_status status = SP_NOMEM;
    if (!b || !arena) {
        sp_fail(status, "no memory for rank %d's handle of the board", rank);
        goto free_handle;
    }
    b->rank = rank;
    b->phase = "looking on";
    b->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (b->fd < 0) {
        status = sp_fail(SP_INVALID, "file descriptor %d: %s", fd, strerror(errno));
        goto free_handle;
    }
    status = map_board(b);
    if (status) goto close_file;
    status = take_rank(b);
    if (status) goto unmap;
    cpu_set_t cores;
    b->crowded = !sched_getaffinity(0, sizeof cores, &cores) && CPU_COUNT(&cores) < b->size;
    b->spins = b->crowded ? SPINS_CROWDED : SPINS;
    arena->bytes = b->arena_bytes;
    b->blocks = arena;
    *board = b;
    return SP_OK;

unmap:
    munmap(b->shared, b->bytes);
close_file:
    close(b->fd);
free_handle:
    free(arena);
    free(b);
    return status;
}

void sp_board_detach(sp_board *board) {
    if (!board) return;
    if (board->rank >= 0) {
        uint32_t attached = SP_RANK_ATTACHED;
        atomic_compare_exchange_strong_explicit(&board->ranks[board->rank].state, &attached, SP_RANK_LEFT, memory_order_release,
                                                memory_order_relaxed);
    }
    munmap(board->shared, board->bytes);
    close(board->fd);
    for (block *b = board->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(board);
}

int sp_board_size(const sp_board *board) { return board->size; }
int sp_board_spins(const sp_board *board) { return board->spins; }
void sp_board_hurry(sp_board *board, bool on) { board->hurry = on && !board->crowded; }
void *sp_board_base(sp_board *board) { return board->shared; }
size_t sp_board_bytes(const sp_board *board) { return board->bytes; }
