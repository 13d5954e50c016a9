/* The GPU device as csrc/py sees it: its table for the Coordinator, and what a machine has. No type of CUDA or NCCL stands here.
 * Invariant: everything that only looks works without a driver, and then says why there is nothing. */
#ifndef SP_GPU_H
#define SP_GPU_H

#include "custom.h"

#define SP_COMM_CAPSULE "sglang_probe._core.comm" /* name of the capsule in which a Coordinator lends its sp_comm */

extern const sp_seam sp_gpu_seam;

typedef struct sp_gpu_device {
    char name[256];
    char uuid[48]; /* as nvidia-smi prints it: GPU-... */
    char bus[32];  /* PCI bus id */
    int major, minor;
    int multiprocessors;
    uint64_t bytes; /* of its memory */
} sp_gpu_device;

typedef struct sp_gpu_link {
    int peer_access; /* 1: can map the other's memory */
    int native_atomics;
    int rank; /* CUDA's performance rank of the link: 0 is the fastest of this machine */
} sp_gpu_link;

sp_status sp_gpu_available(int *count); /* SP_UNAVAILABLE and why; count: GPUs that this process sees */
sp_status sp_gpu_device_read(int ordinal, sp_gpu_device *device);
sp_status sp_gpu_link_read(int from, int to, sp_gpu_link *link);

/* What came of reading another GPU's memory (peer.c). */
typedef struct sp_gpu_moved {
    int possible;   /* 0: no peer access, nothing was tried */
    uint64_t wrong; /* 32-bit words that are not what was written */
    int64_t first;  /* the first of them, or -1 */
} sp_gpu_moved;

sp_status sp_gpu_peer_copy(int source, int target, size_t bytes, uint32_t seed, sp_deadline deadline, sp_gpu_moved *moved);

/* The libnccl that a communicator would use: path (valid forever) and version ("2.28.9"). asked NULL: found. */
sp_status sp_gpu_nccl(const char *asked, const char **path, char version[16]);
sp_status sp_nccl_wheel(const char *path);

/* The custom kernels of a communicator, for benches: SP_UNAVAILABLE with its reason where it has none. */
sp_status sp_gpu_tune(sp_comm *comm, const sp_custom_tuning *tuning);
sp_status sp_gpu_shape(sp_comm *comm, const sp_work *work, uint32_t *blocks, uint32_t *threads, uint32_t *fit);
sp_status sp_gpu_empty(sp_comm *comm, const sp_work *work);
sp_status sp_gpu_ping_pong(sp_comm *comm, uint32_t trips, void *stream, sp_deadline deadline);

#endif
