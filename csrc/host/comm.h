/* One CPU rank's communicator: its lane of shared memory, its place in the common order of steps, and what the kernels share.
 * Included by csrc/host only. A call is cut into turns of at most SP_HOST_CHUNK bytes, a turn into steps; a step is "I am so far"
 * on this rank's lane, and the others wait for it.
 * Invariant: every rank makes the same turns and steps, whatever the kernel, a refused call included. So buffers that a turn
 * fills come in two, used in turn: who enters turn k + 2 has heard from all in turn k + 1, that is after they were through with
 * turn k. */
#ifndef SP_HOST_COMM_H
#define SP_HOST_COMM_H

#include <stdatomic.h>

#include "board.h"

enum {
    SP_HOST_CHUNK = 131072, /* bytes of a turn; a multiple of 64 */
    SP_HOST_FLAGGED = 8192, /* largest call whose flags travel in the data */
    SP_HOST_LINE = 64
};

/* What a rank calls, beside its first step of the call. */
typedef struct call_header {
    _Alignas(SP_HOST_LINE) sp_board_call call;
    uint64_t source; /* offset on the board where peers read the whole input in place; 0: it comes in turns through `stage` */
} call_header;

/* The start of each rank's region; the buffers follow, see lane_layout. */
typedef struct lane {
    _Alignas(SP_HOST_LINE) _Atomic uint32_t step;
    call_header header[2];
} lane;

/* A buffer of a lane, by what it holds. */
typedef enum lane_buffer {
    LANE_STAGE,   /* this rank's input: peers read it */
    LANE_RESULT,  /* reduced parts: peers read them, or write theirs */
    LANE_RING,    /* what the rank before this one on the ring sends */
    LANE_INBOX,   /* what each peer sends, in rank order */
    LANE_FLAGGED, /* the same, small, each word with its flag: never holds a word of anything else */
    LANE_BUFFERS
} lane_buffer;

typedef struct kernel_plan kernel_plan;

struct sp_comm {
    sp_board *board;
    sp_world world;
    sp_region region;
    size_t buffer_at[LANE_BUFFERS], buffer_bytes[LANE_BUFFERS]; /* the first of two, and the size of one */
    uint32_t step, turn;
    uint8_t *scratch; /* one flagged message a rank, unpacked */
    sp_graph *recording;
    uint64_t noted; /* registered addresses that were recorded since the last registered() */
    uint64_t ran[SP_PATH_COUNT];
    int64_t mark_ns[2];
    uint64_t stamps[SP_STAMPS + 1]; /* ns, by slot; slot 0 is nobody's */
    _Atomic bool aborted;
    bool broken; /* this rank's steps are not the others' any more */
    char why[256];
};

static inline lane *lane_of(const sp_comm *comm, int rank) { return comm->region.peer[rank]; }

/* This turn's one of the two. */
static inline uint8_t *lane_at(const sp_comm *comm, int rank, lane_buffer which, uint32_t turn) {
    return (uint8_t *)comm->region.peer[rank] + comm->buffer_at[which] + comm->buffer_bytes[which] * (turn % 2);
}

static inline uint8_t *inbox_at(const sp_comm *comm, int rank, int from) {
    return lane_at(comm, rank, LANE_INBOX, comm->turn) + (size_t)from * SP_HOST_CHUNK;
}

/* One call on its way through a kernel. */
typedef struct host_call {
    call_header header;
    const uint8_t *in;
    uint8_t *out;
    uint64_t nbytes;
    size_t element; /* bytes */
    uint8_t dtype;
    uint32_t stamp; /* slot of SP_STAMP_ENTER, or 0 */
    const kernel_plan *plan;
    const uint8_t *source[SP_RANKS_MAX]; /* where each rank's whole input is read in place; NULL: in its stage */
    bool in_place;                       /* any of them: nobody returns before all have read */
    sp_deadline deadline;
} host_call;

/* The time now as the call's SP_STAMP_*, where the call is stamped: `stamp` is its slot, or 0. */
static inline void sp_host_stamp_call(sp_comm *comm, uint32_t stamp, int which) {
    if (stamp) comm->stamps[stamp + (uint32_t)which] = (uint64_t)sp_now_ns();
}

/* One more step of this rank; that a peer has made as many; that all have; a step and that all have (steps.c). */
void sp_host_step(sp_comm *comm);
sp_status sp_host_await(sp_comm *comm, int peer, uint32_t step, sp_deadline deadline);
sp_status sp_host_await_all(sp_comm *comm, sp_deadline deadline);
sp_status sp_host_meet(sp_comm *comm, sp_deadline deadline);
/* The first step of a call, with its header; that all made theirs and call the same; both. */
void sp_host_announce(sp_comm *comm, const host_call *call);
sp_status sp_host_agree(sp_comm *comm, host_call *call);
sp_status sp_host_enter(sp_comm *comm, host_call *call);

/* How a kernel does it: who writes where before the first step, and what follows. Kernels run a whole call, turn by turn. */
struct kernel_plan {
    const char *phase; /* static: shown to the others */
    sp_status (*run)(sp_comm *comm, host_call *call);
    bool push_scatter, push_gather; /* one-shot: only the first is read */
};

sp_status sp_host_one_shot(sp_comm *comm, host_call *call);
sp_status sp_host_flagged(sp_comm *comm, host_call *call);
sp_status sp_host_two_shot(sp_comm *comm, host_call *call);
sp_status sp_host_ring(sp_comm *comm, host_call *call);
sp_status sp_host_root(sp_comm *comm, host_call *call);

/* Whether this call can run at all (run.c): arguments, dtype, kernel. Then the call itself, now, within its deadline. */
sp_status sp_host_check(const sp_comm *comm, const sp_work *work);
sp_status sp_host_run(sp_comm *comm, const sp_work *work);

/* Coming, going and memory (comm.c). */
sp_status sp_host_join(const sp_world *world, sp_deadline deadline, sp_comm **comm);
void sp_host_leave(sp_comm *comm, bool broken);
void sp_host_abort(sp_comm *comm);
sp_status sp_host_alloc(sp_comm *comm, size_t bytes, void **data);
void sp_host_free(sp_comm *comm, void *data);
sp_status sp_host_export(sp_comm *comm, const void *data, sp_handle *handle);
sp_status sp_host_open(sp_comm *comm, const sp_handle *handle, void **data);
void sp_host_close(sp_comm *comm, const sp_handle *handle, void *data);

/* What a capture keeps, and a replay does (graph.c). */
typedef struct host_recorded {
    enum { HOST_CALL, HOST_COPY, HOST_SPIN, HOST_STAMP, HOST_CLEAR } kind;
    uint32_t slot, slots; /* of a stamp; the first of those that are cleared, and how many */
    uint64_t ns;          /* of a spin */
    sp_work work;         /* a call, or a copy of nbytes from in (NULL: zeros) to out */
} host_recorded;

/* Captured calls (graph.c). */
sp_status sp_host_record(sp_comm *comm, const host_recorded *what);
sp_status sp_host_record_call(sp_comm *comm, const sp_work *work);
sp_status sp_host_capturing(sp_comm *comm, void *stream, bool *capturing);
sp_status sp_host_copy(sp_comm *comm, void *to, const void *from, size_t bytes, void *stream);
sp_status sp_host_capture_begin(sp_comm *comm, void *stream);
sp_status sp_host_capture_end(sp_comm *comm, void *stream, sp_graph **graph);
sp_status sp_host_registered(sp_comm *comm, uint64_t *addresses, sp_deadline deadline);
sp_status sp_host_replay(sp_comm *comm, sp_graph *graph, void *stream, sp_deadline deadline);
void sp_host_graph_free(sp_comm *comm, sp_graph *graph);

/* What measuring needs beside the calls (measure.c). */
sp_status sp_host_check_slots(uint32_t first, uint32_t count);
sp_status sp_host_spin(sp_comm *comm, uint64_t ns, void *stream);
sp_status sp_host_stamp(sp_comm *comm, uint32_t slot, void *stream);
sp_status sp_host_stamps_read(sp_comm *comm, uint32_t first, uint32_t count, uint64_t *ns, sp_deadline deadline);
sp_status sp_host_stamps_clear(sp_comm *comm, uint32_t first, uint32_t count, void *stream);
sp_status sp_host_hold(sp_comm *comm, void *stream);
void sp_host_release(sp_comm *comm);
sp_status sp_host_clock(sp_comm *comm, sp_clock *clock, sp_deadline deadline);
sp_status sp_host_mark(sp_comm *comm, int which, void *stream);
sp_status sp_host_elapsed(sp_comm *comm, double *us, sp_deadline deadline);

/* dst[i] = the sum over the sources, in their order (reduce.c). dst may be one of them, or apart from all. */
bool sp_host_sums(uint8_t dtype); /* fp8 is not summed */
void sp_host_sum(uint8_t dtype, void *dst, const void *const *sources, int count, size_t elements);

#endif
