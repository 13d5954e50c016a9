/* The seam: everything that measures stands behind it. A device (csrc/host, csrc/gpu) fills one sp_seam; the Coordinator of csrc/py
 * runs any path of any device by it, and knows neither CUDA nor NCCL nor shared memory.
 *
 *   route.c picks a path and a kernel -> paths[path].supports(work)  yes, or the reason why it cannot run here
 *                                     -> paths[path].enqueue(work)   on work->stream; on CPU ranks it is done when it returns
 *                                     -> paths[path].finish(...)     waits until it is done, or aborts it at the deadline
 *
 * Invariant: nothing here waits without a deadline, and an error names the rank, the path and the phase that failed. */
#ifndef SP_PATH_H
#define SP_PATH_H

#include <stddef.h>

#include "deadline.h"
#include "names.h"
#include "status.h"

#define SP_SEAM_ABI         2
#define SP_RANKS_MAX        16
#define SP_HANDLE_BYTES     128
#define SP_SEAM_CAPSULE     "sglang_probe._gpu.seam"     /* name of the capsule that holds an sp_seam */
#define SP_EXCHANGE_CAPSULE "sglang_probe._gpu.exchange" /* the same of an sp_exchange, for ranks on several machines */
#define SP_STAMPS           16384                        /* slots 1 to 16384 hold times that a device took for one rank */

typedef struct sp_comm sp_comm;   /* one rank's communicators on one device */
typedef struct sp_graph sp_graph; /* captured calls */

/* How ranks meet before they can reduce anything, and hear of one another's end. */
typedef struct sp_exchange {
    void *self;
    /* Every rank gives `bytes` at `mine` and gets everybody's at `all`, in rank order. Also a barrier. */
    sp_status (*all_gather)(void *self, const void *mine, void *all, size_t bytes, sp_deadline deadline);
    /* SP_OK while every peer lives, else SP_PEER with its name. Cheap: every wait asks it between two looks. */
    sp_status (*check)(void *self);
    const char *(*error)(
        void); /* text of the last failure of these two: they may be another extension module's, with a text of its own */
} sp_exchange;

/* The two calls, with the failure's text taken over into this module: what every user of an exchange calls. */
sp_status sp_gather(const sp_exchange *exchange, const void *mine, void *all, size_t bytes, sp_deadline deadline);
sp_status sp_check(const sp_exchange *exchange);

typedef struct sp_world {
    int rank, size;
    int ordinal; /* the GPU of this rank; unused on CPU ranks */
    sp_exchange exchange;
    uint64_t max_bytes;    /* largest tensor of the custom paths: their buffers are sized by it */
    const char *nccl_path; /* libnccl to open, NULL: find it */
} sp_world;

/* One all-reduce (sum). `in` may be `out`; both hold count elements. */
typedef struct sp_work {
    const void *in;
    void *out;
    uint64_t count;
    uint64_t nbytes;
    void *stream;   /* cudaStream_t of the producer; unused on CPU ranks */
    uint8_t path;   /* sp_path */
    uint8_t kernel; /* sp_kernel that the gate picked; UNKNOWN: the path's own choice */
    uint8_t dtype;  /* sp_dtype */
    uint8_t flags;  /* SP_WORK_* */
    uint32_t stamp; /* SP_STAMP_* of the call go into this slot and the next two; 0: nothing is stamped */
    sp_deadline deadline;
} sp_work;

/* What a path that can look inside its call stamps: on its own device's clock, which no other device shares. The wait for the last rank is
 * from ENTER (what this rank stages for the others is there, and none of them can know it yet) to MET, moving the data from MET to LEFT. A
 * kernel whose flag travels in the data has MET when the last rank's first data is there. A path that cannot (NCCL, torch) leaves the slots
 * alone. */
enum { SP_STAMP_ENTER, SP_STAMP_MET, SP_STAMP_LEFT, SP_STAMPS_CALL };

/* Where a rank's device clock stands against rank 0's: its time minus offset_ns is rank 0's, within error_ns either way. */
typedef struct sp_clock {
    double offset_ns[SP_RANKS_MAX];
    double error_ns[SP_RANKS_MAX];
} sp_clock;

#define SP_WORK_CAPTURING  UINT8_C(1) /* the stream is being captured: enqueue is recorded, nothing runs */
#define SP_WORK_REGISTERED UINT8_C(2) /* read the input where it lies; without it, copy it into the shared buffer first */

typedef struct sp_path_ops {
    const char *runs;                                          /* what executes it here, for people */
    sp_status (*supports)(sp_comm *comm, const sp_work *work); /* SP_OK, or SP_UNAVAILABLE and why */
    sp_status (*enqueue)(sp_comm *comm, const sp_work *work);
    sp_status (*finish)(sp_comm *comm, void *stream, sp_deadline deadline);
} sp_path_ops;

/* An allocation as another process can open it, and where in it an address lies. */
typedef struct sp_handle {
    uint8_t bytes[SP_HANDLE_BYTES];
    uint64_t offset;
} sp_handle;

typedef struct sp_memory {
    sp_status (*alloc)(sp_comm *comm, size_t bytes, void **data);
    void (*free)(sp_comm *comm, void *data);
    sp_status (*export)(sp_comm *comm, const void *data, sp_handle *handle); /* any address inside an allocation */
    sp_status (*open)(sp_comm *comm, const sp_handle *handle, void **data);  /* the peer's address, here */
    void (*close)(sp_comm *comm, const sp_handle *handle, void *data);
} sp_memory;

typedef struct sp_seam {
    uint32_t abi;   /* SP_SEAM_ABI */
    uint32_t bytes; /* sizeof(sp_seam): a table of another build is refused */
    const char *name;
    const char *(*error)(void); /* text of the last failure on this thread */
    sp_memory memory;
    const sp_path_ops *paths[SP_PATH_COUNT]; /* NULL: this device has no such path */
    /* Collective. Communicators that cannot be built here leave their paths unsupported; join itself still succeeds. */
    sp_status (*join)(const sp_world *world, sp_deadline deadline, sp_comm **comm);
    void (*leave)(sp_comm *comm, bool broken); /* broken: nothing that needs a peer */
    void (*abort)(sp_comm *comm); /* our kernels first, then NCCL; from any thread; the communicator is broken after */
    sp_status (*capturing)(sp_comm *comm, void *stream, bool *capturing);
    sp_status (*copy)(sp_comm *comm, void *to, const void *from, size_t bytes, void *stream); /* from NULL: zeros */
    sp_status (*capture_begin)(sp_comm *comm, void *stream);
    sp_status (*capture_end)(sp_comm *comm, void *stream, sp_graph **graph);
    /* Collective: addresses noted while capturing are exchanged; after the capture ends, before the first replay. */
    sp_status (*registered)(sp_comm *comm, uint64_t *addresses, sp_deadline deadline);
    sp_status (*replay)(sp_comm *comm, sp_graph *graph, void *stream, sp_deadline deadline);
    void (*graph_free)(sp_comm *comm, sp_graph *graph);
    sp_status (*mark)(sp_comm *comm, int which, void *stream);             /* which: 0 before, 1 after */
    sp_status (*elapsed)(sp_comm *comm, double *us, sp_deadline deadline); /* device time between the two marks */
    sp_status (*wait)(sp_comm *comm, void *stream, sp_deadline deadline);  /* everything on the stream */
    uint64_t (*ran)(sp_comm *comm, uint8_t path);                          /* calls that the device itself counted as run */
    /* Memory that NCCL knows as a window on every rank (its symmetric memory). Collective; NULL where there is no NCCL. */
    sp_status (*window_alloc)(sp_comm *comm, size_t bytes, void **data, sp_deadline deadline);
    void (*window_free)(sp_comm *comm, void *data);
    /* How the chosen release launches custom kernels from now on (sp_custom_style_of); NULL where that makes no difference. */
    void (*style)(sp_comm *comm, unsigned style);
    /* The library's own call of this path, `calls` times with nothing of ours around it; NULL where there is none. For measuring. */
    sp_status (*bare)(sp_comm *comm, const sp_work *work, unsigned calls);

    /* ---- for measuring: none of these is part of a call ---- */

    /* A compute kernel of this length (CPU ranks: a busy loop). Recorded where the stream is captured, as a stamp is. */
    sp_status (*spin)(sp_comm *comm, uint64_t ns, void *stream);
    /* The device's clock, in ns, into this slot when the stream comes to it. */
    sp_status (*stamp)(sp_comm *comm, uint32_t slot, void *stream);
    /* Stamps as they are now: the caller has waited for the stream. A slot that nothing wrote since it was cleared is 0. Clearing is in the
     * stream's order, and recorded where it is captured. */
    sp_status (*stamps_read)(sp_comm *comm, uint32_t first, uint32_t count, uint64_t *ns, sp_deadline deadline);
    sp_status (*stamps_clear)(sp_comm *comm, uint32_t first, uint32_t count, void *stream);
    /* What is enqueued after hold begins when release is called (from any thread), or after SP_HOLD_NS, and then the next wait fails.
     * CPU ranks, whose calls are done when enqueue returns, do nothing for either. */
    sp_status (*hold)(sp_comm *comm, void *stream);
    void (*release)(sp_comm *comm);
    /* Collective: compares the device clocks; nothing else runs meanwhile. SP_UNAVAILABLE where devices cannot reach one another. */
    sp_status (*clock)(sp_comm *comm, sp_clock *clock, sp_deadline deadline);
} sp_seam;

#define SP_HOLD_NS (UINT64_C(5) * 1000000000)

/* Memory of the same size on every rank, each rank's mapped by all: what custom paths are made of. Collective. */
typedef struct sp_region {
    void *mine;
    void *peer[SP_RANKS_MAX]; /* by rank; peer[rank] == mine */
    sp_handle handle[SP_RANKS_MAX];
    size_t bytes;
} sp_region;

sp_status sp_region_open(const sp_memory *memory, sp_comm *comm, const sp_world *world, size_t bytes, sp_deadline deadline,
                         sp_region *region);
void sp_region_close(const sp_memory *memory, sp_comm *comm, const sp_world *world, sp_region *region);
/* Collective: opens every rank's `data`; where one rank has none, or cannot open, all of them fail alike. */
sp_status sp_region_share(const sp_memory *memory, sp_comm *comm, const sp_world *world, void *data, sp_deadline deadline,
                          sp_region *region);

#endif
