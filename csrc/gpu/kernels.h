/* The CUDA kernels as C sees them: what they are given, what lies at the head of every rank's shared memory, how they are launched.
 * Called by custom.c, by many.c for occupancy, by measure.c and clock.c, and by the bench for the floor (empty kernel, round trip).
 * Invariant: plain structs of fixed size; a function answers a cudaError_t as int, 0 for success, and sets no text. */
#ifndef SP_KERNELS_H
#define SP_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SP_KERNEL_RANKS = 8, SP_KERNEL_BLOCKS = 256, SP_KERNEL_VECTOR = 16, SP_KERNEL_CELL = 8 };

/* What can be launched. The first five are the ladder, slowest first; V1, V2: which class of SGLang launches such a kernel. */
typedef enum sp_kernel_body {
    SP_BODY_PLAIN,          /* rung 1: every rank reads every peer; release and acquire at both ends */
    SP_BODY_ONE_SHOT,       /* rung 2, V1 */
    SP_BODY_PUSH,           /* rung 3, V2 */
    SP_BODY_MARK,           /* rung 4, limit for larger sizes */
    SP_BODY_FLAG,           /* rung 5, limit for small sizes */
    SP_BODY_TWO_SHOT,       /* V1 */
    SP_BODY_PULL,           /* V2 */
    SP_BODY_PULL_TWO,       /* V2 */
    SP_BODY_PUSH_TWO,       /* V2 */
    SP_BODY_PUSH_FIRST,     /* V2 of releases before v0.5.16 */
    SP_BODY_PULL_FIRST,     /* the same */
    SP_BODY_PULL_TWO_FIRST, /* the same */
    SP_BODY_COPY,           /* V2: into the staging buffer and back */
    SP_BODY_EMPTY,          /* the floor: nothing */
    SP_BODY_PING_PONG,      /* the floor: ranks 0 and `first`, `count` round trips */
    SP_BODY_CLOCK,          /* the same, with times, which go to `trace` (sp_kernel_trips) */
    SP_BODY_SPIN,           /* computes for `limit_ns` */
    SP_BODY_STAMP,          /* the time, to `trace` */
    SP_BODY_HOLD,           /* waits until host->released comes to `count`, for `limit_ns` at most */
    SP_BODY_COUNT
} sp_kernel_body;

/* A work's kernel that names a rung of the ladder instead of a kernel of SGLang: SP_KERNEL_RUNG + rung. */
typedef enum sp_kernel_rung { RUNG_PLAIN, RUNG_RELAXED, RUNG_PUSH, RUNG_MARK, RUNG_FLAG, RUNG_COUNT } sp_kernel_rung;
enum { SP_KERNEL_RUNG = 64 };

/* X(ENUM, text): where a kernel waits. */
#define SP_KERNEL_PHASES(X)                        \
    X(START, "the barrier before the reduction")   \
    X(MIDDLE, "the barrier between the two shots") \
    X(END, "the barrier after the reduction")      \
    X(DATA, "the wait for a peer's data")          \
    X(GATHER, "the wait for a peer's sums")        \
    X(PING, "the round trip of the link")

typedef enum sp_kernel_phase {
#define X(id, text) SP_PHASE_##id,
    SP_KERNEL_PHASES(X)
#undef X
        SP_PHASE_COUNT
} sp_kernel_phase;

/* What one block counts, in memory that its own GPU alone touches. Read in one load; never reset, so that a captured launch goes on
 * where the launch before it ended. */
typedef struct sp_kernel_line {
    uint32_t epoch;  /* launches that came to their last wait */
    uint32_t broken; /* a wait was given up: later launches end no barrier, push nothing and wait for nothing */
} sp_kernel_line;

/* The head of every rank's region. All zero before the first launch. */
typedef struct sp_kernel_signals {
    uint32_t arrived[2][SP_KERNEL_BLOCKS][SP_KERNEL_RANKS]; /* [first or second barrier][block][peer]: launches that came to it */
    uint32_t ping[SP_KERNEL_RANKS];                         /* by peer */
    sp_kernel_line barrier[SP_KERNEL_BLOCKS];               /* blocks count apart: grids differ. Block 0 is in every launch */
    sp_kernel_line push[SP_KERNEL_BLOCKS];                  /* all alike: every launch writes all of them, whatever its grid */
    unsigned long long report;                              /* the first wait that was given up, packed as below */
    uint32_t pong[SP_KERNEL_RANKS];                         /* by peer: round trips that this GPU has made with it */
    uint32_t looked;                                        /* when a wait last asked the host whether to give up, in 1,024 ns */
} sp_kernel_signals;

/* Pinned host memory that the GPU maps: one for the custom kernels of a communicator, one for what measures. */
typedef struct sp_kernel_host {
    volatile uint32_t abort;            /* the host: give up now */
    volatile uint32_t released;         /* the host: holds up to this one end now */
    volatile unsigned long long report; /* the GPU: SP_REPORT_*, once; of a hold, its number when its patience was over */
    sp_kernel_line counted[2];          /* barrier[0] and push[0], copied here by whoever asks how many launches ran */
} sp_kernel_host;

/* A report, 0 for none: 1 | aborted | phase | peer | block | kernel. */
#define SP_REPORT(aborted, phase, peer, block, kernel)                                                                         \
    (1ULL << 63 | (unsigned long long)(aborted) << 62 | (unsigned long long)(phase) << 40 | (unsigned long long)(peer) << 32 | \
     (unsigned long long)(block) << 16 | (unsigned long long)(kernel))
#define SP_REPORT_ABORTED(report) ((int)((report) >> 62 & 1))
#define SP_REPORT_PHASE(report)   ((int)((report) >> 40 & 0xff))
#define SP_REPORT_PEER(report)    ((int)((report) >> 32 & 0xff))
#define SP_REPORT_BLOCK(report)   ((int)((report) >> 16 & 0xffff))
#define SP_REPORT_KERNEL(report)  ((int)((report)&0xffff))

/* What a launch with `trace` leaves there, each SP_TRACE_TIME of a slot, and 0 where none: the earliest block's entry and meeting, the last
 * block's end. Many blocks write a slot, by atomics, and a slot that is cleared holds 0: so the earliest time is kept as the largest
 * complement, and the highest bit, which no time has, tells which of the two a slot holds. A slot that is not cleared before the next
 * launch keeps the earliest and the last of both. */
enum { SP_TRACE_ENTER, SP_TRACE_MET, SP_TRACE_LEFT };
#define SP_TRACE_TIME(slot) ((slot) >> 63 ? ~(slot) : (slot))

/* What SP_BODY_CLOCK leaves: rank 0 of its best trip, the peer of every trip, each by its own clock, in ns. */
enum { SP_TRIPS = 500 };
typedef struct sp_kernel_trips {
    unsigned long long step;           /* the smallest by which this clock was seen to move */
    unsigned long long number;         /* rank 0: the trip that was back soonest, from 0 */
    unsigned long long sent, back;     /* rank 0: of that trip */
    unsigned long long came[SP_TRIPS]; /* the peer: when each trip was with it */
} sp_kernel_trips;

/* Everything a kernel is given, by value. Addresses are this process's. A launch finds none of it in its constant cache and fetches it by
 * 64 bytes, where it waits or has something else on its way: hence the order. The first 48 bytes come with what every launch reads. */
typedef struct sp_kernel_args {
    sp_kernel_signals *mine; /* signals[rank] */
    const void *in;
    void *out;
    void *const *inputs; /* in device memory: where each rank's input lies. Filled after a capture, before its first replay */
    uint32_t count;      /* 16-byte vectors; flag: 8-byte cells; ping_pong: round trips */
    uint32_t slot_bytes; /* bytes between two slots of an area */
    uint32_t kernel;     /* for reports */
    uint32_t length;     /* pull_two: vectors that this rank reduces, from `first` */
    uint32_t rank;
    uint32_t spread; /* push: warps are dealt to blocks in turn (releases from v0.5.21), not in runs. Brings area[0] */
    uint8_t *area[SP_KERNEL_RANKS];              /* by rank: scratch (two-shot), slots (push, mark) or cells (flag) */
    sp_kernel_signals *signals[SP_KERNEL_RANKS]; /* by rank */
    sp_kernel_host *host;                        /* the GPU's address of it */
    uint64_t limit_ns;                           /* patience of one wait */
    uint32_t first;
    unsigned long long
        *trace; /* NULL: nothing is stamped. Last, and read by kernels of their own: the others are what they were */
} sp_kernel_args;

typedef struct sp_kernel_shape {
    uint32_t blocks, threads;
    bool overlap; /* programmatic dependent launch: the launch may begin before the kernel before it has ended */
} sp_kernel_shape;

/* dtype: sp_dtype; ignored, as world is, from SP_BODY_COPY on. */
bool sp_kernel_has(int body, int dtype, int world);
int sp_kernel_launch(int body, int dtype, int world, const sp_kernel_args *args, const sp_kernel_shape *shape, void *stream);
/* Loads every kernel on the current device: a kernel that is loaded when first launched would wait for one that spins. */
int sp_kernel_load_all(void);
int sp_kernel_occupancy(int body, int dtype, int world, bool traced, int threads, int *blocks_per_multiprocessor);
const char *sp_kernel_error(int error);

#ifdef __cplusplus
}
#endif

#endif
