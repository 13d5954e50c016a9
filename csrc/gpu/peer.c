/* Does a GPU read of another GPU's memory what lies there? Asked by moving data: a kernel on the one reads the other's mapped address.
 * Called by _gpu.peer_copy, for preflight, in a process of its own that can be killed: with a sick driver any call here may not return.
 * Invariant: the target holds something else before, so that a copy that did not happen is wrong data. */
#include <cuda_runtime_api.h>

#include "comm.h"
#include "gpu.h"
#include "kernels.h"

enum { THREADS = 128, POISON = 0x5A };

typedef struct peer_copy {
    int source, target;
    size_t bytes;
    void *there, *here; /* on either GPU */
    uint32_t *host;     /* pinned: what is written, then what was read */
    cudaStream_t on[2]; /* of source, of target */
    sp_deadline deadline;
} peer_copy;

static uint32_t word_of(uint64_t i, uint32_t seed) { return (uint32_t)((i + ((uint64_t)seed << 16)) * UINT64_C(2654435761)); }

static sp_status settle(const peer_copy *p, int which, const char *doing) {
    for (unsigned looks = 0;; looks++) {
        const cudaError_t error = cudaStreamQuery(p->on[which]);
        if (!error) return SP_OK;
        if (error != cudaErrorNotReady) return sp_cuda_fail(error, doing);
        if (sp_deadline_passed(p->deadline))
            return sp_fail(SP_TIMEOUT, "GPU %d to GPU %d: %s is not done at its deadline", p->source, p->target, doing);
        sp_backoff(looks);
    }
}

static sp_status make(peer_copy *p) {
    SP_CUDA(cudaHostAlloc((void **)&p->host, p->bytes, cudaHostAllocPortable));
    SP_CUDA(cudaSetDevice(p->source));
    SP_CUDA(cudaStreamCreateWithFlags(&p->on[0], cudaStreamNonBlocking));
    SP_CUDA(cudaMalloc(&p->there, p->bytes));
    SP_CUDA(cudaSetDevice(p->target));
    SP_CUDA(cudaStreamCreateWithFlags(&p->on[1], cudaStreamNonBlocking));
    SP_CUDA(cudaMalloc(&p->here, p->bytes));
    const cudaError_t error = cudaDeviceEnablePeerAccess(p->source, 0);
    if (error && error != cudaErrorPeerAccessAlreadyEnabled) return sp_cuda_fail(error, "cudaDeviceEnablePeerAccess");
    (void)cudaGetLastError();
    return SP_OK;
}

static sp_status move(const peer_copy *p, uint32_t seed) {
    const uint64_t words = p->bytes / sizeof *p->host;
    for (uint64_t i = 0; i < words; i++) p->host[i] = word_of(i, seed);
    SP_CUDA(cudaSetDevice(p->source));
    SP_CUDA(cudaMemcpyAsync(p->there, p->host, p->bytes, cudaMemcpyHostToDevice, p->on[0]));
    SP_TRY(settle(p, 0, "writing the pattern"));
    SP_CUDA(cudaSetDevice(p->target));
    SP_CUDA(cudaMemsetAsync(p->here, POISON, p->bytes, p->on[1]));
    const sp_kernel_args args = {.in = p->there, .out = p->here, .count = (uint32_t)(p->bytes / SP_KERNEL_VECTOR)};
    const sp_kernel_shape shape = {(args.count + THREADS - 1) / THREADS, THREADS, false}; /* a vector a thread */
    const int error = sp_kernel_launch(SP_BODY_COPY, 0, 0, &args, &shape, p->on[1]);
    if (error) return sp_cuda_fail((cudaError_t)error, "a kernel that reads the other GPU");
    SP_TRY(settle(p, 1, "reading the other GPU's memory"));
    SP_CUDA(cudaMemcpyAsync(p->host, p->here, p->bytes, cudaMemcpyDeviceToHost, p->on[1]));
    return settle(p, 1, "reading back");
}

static void drop(const peer_copy *p, bool hung) {
    if (hung) return; /* freeing would wait for what does not end: the end of the process frees it */
    if (p->there) (void)cudaFree(p->there);
    if (p->here) (void)cudaFree(p->here);
    if (p->host) (void)cudaFreeHost(p->host);
    for (int i = 0; i < 2; i++)
        if (p->on[i]) (void)cudaStreamDestroy(p->on[i]);
    (void)cudaGetLastError();
}

sp_status sp_gpu_peer_copy(int source, int target, size_t bytes, uint32_t seed, sp_deadline deadline, sp_gpu_moved *moved) {
    int before = -1;
    sp_gpu_link link;
    *moved = (sp_gpu_moved){.first = -1};
    if (!bytes || bytes % SP_KERNEL_VECTOR || bytes > UINT64_C(1) << 30)
        return sp_fail(SP_INVALID, "nbytes=%zu: give a multiple of %d, at most 1 GiB", bytes, SP_KERNEL_VECTOR);
    SP_TRY(sp_gpu_link_read(target, source, &link));
    moved->possible = link.peer_access;
    if (!link.peer_access) return SP_OK;
    SP_TRY(sp_device_enter(target, &before));
    peer_copy p = {.source = source, .target = target, .bytes = bytes, .deadline = deadline};
    sp_status status = make(&p);
    if (!status) status = move(&p, seed);
    for (uint64_t i = 0; !status && i < bytes / sizeof *p.host; i++) {
        if (p.host[i] == word_of(i, seed)) continue;
        if (!moved->wrong++) moved->first = (int64_t)i;
    }
    drop(&p, status == SP_TIMEOUT);
    (void)cudaSetDevice(target);
    sp_device_leave(target, before);
    return status;
}
