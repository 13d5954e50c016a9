/* One rank on one GPU, private to csrc/gpu: what its communicators, graphs, windows and opened allocations hang on.
 * Called by every file here but the kernels. Invariant: once `broken`, nothing is freed that the GPU may still be using, because
 * cudaFree waits for it without a limit: the end of the process frees it. */
#ifndef SP_GPU_COMM_H
#define SP_GPU_COMM_H

#include <cuda_runtime_api.h>

#include "custom.h"
#include "guard.h"
#include "nccl.h"

#if CUDART_VERSION < 12050
#error "the CUDA toolkit is too old: 12.5 or newer is needed, 13.0 is what was tested"
#endif

enum { SP_WHY = 384 }; /* a reason that is kept, short enough to stand inside an error's text */

enum { SP_PYNCCL_ABSENT, SP_PYNCCL_READY, SP_PYNCCL_GONE };

/* NCCL's communicator. It is split off one that was made without blocking: an absent peer can be given up at init, and yet the calls
 * are those of SGLang's blocking communicator. Without blocking, NCCL starts and joins a thread for every single call. */
typedef struct sp_pynccl {
    const sp_nccl_api *api;
    ncclComm_t parent; /* only while it is built */
    ncclComm_t comm;
    pthread_mutex_t looking; /* held for a look at the asynchronous error, and to turn READY into GONE */
    atomic_int state;        /* SP_PYNCCL_*; GONE: aborted, `comm` must not be touched */
    uint64_t calls[2];       /* enqueued outside of a capture: out of place, in place */
    atomic_bool left_behind; /* a thread is still inside NCCL and may write into this struct: it is never freed */
    char why[SP_WHY];        /* why it is absent */
} sp_pynccl;

typedef struct sp_opened sp_opened;   /* memory.c: an allocation of another process, mapped here */
typedef struct sp_window sp_window;   /* window.c: memory that is registered as symmetric */
typedef struct sp_measure sp_measure; /* measure.h */

struct sp_graph {
    sp_graph *next;
    cudaGraphExec_t exec; /* NULL: the communicator was aborted */
};

struct sp_comm {
    sp_world world;    /* without nccl_path, which is the caller's */
    atomic_int broken; /* 0, or the sp_status that ended it */
    sp_guard guard;
    sp_pynccl nccl;
    sp_custom *custom;
    char custom_why[SP_WHY]; /* why it is absent */
    sp_measure *measure;
    char measure_why[SP_WHY]; /* why it is absent */
    cudaEvent_t marks[2];
    unsigned marked; /* 1: mark 0 was set, 3: and mark 1 since */
    sp_graph *graphs;
    sp_window *windows;
    sp_opened *opened;
};

/* Foreign codes are converted once: SP_NOMEM or SP_CUDA with the call's text. */
sp_status sp_cuda_fail(cudaError_t error, const char *call);
#define SP_CUDA(call)                                                 \
    do {                                                              \
        cudaError_t sp_cuda_error = (call);                           \
        if (sp_cuda_error) return sp_cuda_fail(sp_cuda_error, #call); \
    } while (0)

/* comm.c */
void sp_comm_keep(char why[SP_WHY], const char *format, ...) SP_PRINTF(2, 3);
/* Every rank tells whether it could; where one could not, all of them get its status and its text. Collective. */
sp_status sp_comm_agree(const sp_world *world, sp_status mine, sp_deadline deadline, sp_status *agreed, char why[SP_WHY]);
sp_status sp_comm_usable(const sp_comm *comm, const char *phase);
/* The rank's GPU becomes the current one; sp_device_leave gives back what was, where this thread had one in use. */
sp_status sp_device_enter(int ordinal, int *before);
void sp_device_leave(int ordinal, int before);
/* Until the stream (or the event, where there is one) is done; nothing is aborted. */
sp_status sp_comm_poll(sp_comm *comm, cudaStream_t stream, cudaEvent_t event, sp_deadline deadline);
/* The same, and on failure everything is aborted; the text names rank and phase. */
sp_status sp_comm_wait(sp_comm *comm, void *stream, cudaEvent_t event, const char *phase, sp_deadline deadline);
void sp_comm_break(sp_comm *comm, sp_status why, bool own_thread);
sp_status sp_gpu_join(const sp_world *world, sp_deadline deadline, sp_comm **comm);
void sp_gpu_leave(sp_comm *comm, bool broken);
void sp_gpu_abort(sp_comm *comm);

/* pynccl.c. Open is collective; what fails there is in `why`, and only a lost exchange is returned. */
sp_status sp_pynccl_open(sp_comm *comm, sp_deadline deadline);
sp_status sp_pynccl_supports(sp_comm *comm, const sp_work *work);
sp_status sp_pynccl_enqueue(sp_comm *comm, const sp_work *work, bool in_place);
sp_status sp_pynccl_bare(sp_comm *comm, const sp_work *work, unsigned calls); /* ncclAllReduce with nothing around it */
sp_status sp_pynccl_check(sp_comm *comm);                                     /* its asynchronous error */
sp_status sp_pynccl_settle(sp_comm *comm, ncclComm_t of, ncclResult_t result, const char *call, sp_deadline deadline);
void sp_pynccl_abort(sp_comm *comm); /* from any thread */
void sp_pynccl_close(sp_comm *comm);

/* memory.c, graph.c, window.c */
sp_status sp_gpu_alloc(sp_comm *comm, size_t bytes, void **data);
void sp_gpu_free(sp_comm *comm, void *data);
sp_status sp_gpu_export(sp_comm *comm, const void *data, sp_handle *handle);
sp_status sp_gpu_open(sp_comm *comm, const sp_handle *handle, void **data);
void sp_gpu_close(sp_comm *comm, const sp_handle *handle, void *data);
void sp_memory_close_all(sp_comm *comm);
sp_status sp_gpu_capturing(sp_comm *comm, void *stream, bool *capturing);
sp_status sp_gpu_copy(sp_comm *comm, void *to, const void *from, size_t bytes, void *stream);
sp_status sp_gpu_capture_begin(sp_comm *comm, void *stream);
sp_status sp_gpu_capture_end(sp_comm *comm, void *stream, sp_graph **graph);
sp_status sp_gpu_replay(sp_comm *comm, sp_graph *graph, void *stream, sp_deadline deadline);
void sp_gpu_graph_free(sp_comm *comm, sp_graph *graph);
void sp_graph_drop_all(sp_comm *comm); /* their CUDA side; NCCL waits for it before it ends */
sp_status sp_gpu_mark(sp_comm *comm, int which, void *stream);
sp_status sp_gpu_elapsed(sp_comm *comm, double *us, sp_deadline deadline);
sp_status sp_gpu_window_alloc(sp_comm *comm, size_t bytes, void **data, sp_deadline deadline);
void sp_gpu_window_free(sp_comm *comm, void *data);
void sp_window_close_all(sp_comm *comm);

/* measure.c, clock.c. Open keeps in `measure_why` what it failed with. */
void sp_measure_open(sp_comm *comm, sp_deadline deadline);
void sp_measure_close(sp_comm *comm, bool broken);
bool sp_measure_holds(const sp_comm *comm); /* a hold is not released yet */
void sp_measure_abort(sp_comm *comm);       /* from any thread: spins and holds end */
sp_status sp_measure_need(const sp_comm *comm, const char *what);
sp_status sp_measure_check(sp_comm *comm);                 /* SP_TIMEOUT, once, after a hold that ended by itself */
unsigned long long *sp_measure_slots(const sp_comm *comm); /* slot 0, on the GPU; or NULL */
sp_status sp_gpu_spin(sp_comm *comm, uint64_t ns, void *stream);
sp_status sp_gpu_stamp(sp_comm *comm, uint32_t slot, void *stream);
sp_status sp_gpu_stamps_read(sp_comm *comm, uint32_t first, uint32_t count, uint64_t *ns, sp_deadline deadline);
sp_status sp_gpu_stamps_clear(sp_comm *comm, uint32_t first, uint32_t count, void *stream);
sp_status sp_gpu_hold(sp_comm *comm, void *stream);
void sp_gpu_release(sp_comm *comm);
sp_status sp_clock_compare(sp_comm *comm, sp_clock *clock, sp_deadline deadline); /* where there is a `custom` */

#endif
