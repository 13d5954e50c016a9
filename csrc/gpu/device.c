/* What this machine has: driver, GPUs, links, libnccl. Called by csrc/py and comm.c.
 * Invariant: nothing here makes a context on a GPU, so that looking costs no memory on it. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "comm.h"
#include "gpu.h"

sp_status sp_cuda_fail(cudaError_t error, const char *call) {
    (void)cudaGetLastError(); /* it would be reported again by somebody else's next call */
    return sp_fail(error == cudaErrorMemoryAllocation ? SP_NOMEM : SP_CUDA, "%.160s: %s (%s)", call, cudaGetErrorString(error),
                   cudaGetErrorName(error));
}

sp_status sp_gpu_available(int *count) {
    int driver = 0, found = 0;
    *count = 0;
    cudaError_t error = cudaDriverGetVersion(&driver);
    if (error || !driver)
        return sp_fail(SP_UNAVAILABLE,
                       "no NVIDIA driver here (no libcuda.so.1 can be opened): the host device serves without one");
    error = cudaGetDeviceCount(&found);
    (void)cudaGetLastError();
    if (error == cudaErrorInsufficientDriver)
        return sp_fail(SP_UNAVAILABLE,
                       "the NVIDIA driver serves CUDA up to %d.%d and this build needs %d.%d: update the driver, or build "
                       "with an older toolkit",
                       driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (error) return sp_fail(SP_UNAVAILABLE, "no GPU can be used: %s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
    if (!found) return sp_fail(SP_UNAVAILABLE, "no GPU is visible: see CUDA_VISIBLE_DEVICES");
    *count = found;
    return SP_OK;
}

static sp_status check_ordinal(int ordinal) {
    int count;
    SP_TRY(sp_gpu_available(&count));
    if (ordinal >= 0 && ordinal < count) return SP_OK;
    return sp_fail(SP_INVALID, "GPU %d: this process sees %d, numbered from 0", ordinal, count);
}

sp_status sp_gpu_device_read(int ordinal, sp_gpu_device *device) {
    struct cudaDeviceProp p;
    memset(device, 0, sizeof *device);
    SP_TRY(check_ordinal(ordinal));
    SP_CUDA(cudaGetDeviceProperties(&p, ordinal));
    SP_CUDA(cudaDeviceGetPCIBusId(device->bus, (int)sizeof device->bus, ordinal));
    snprintf(device->name, sizeof device->name, "%s", p.name);
    int at = snprintf(device->uuid, sizeof device->uuid, "GPU");
    for (int i = 0; i < 16; i++) {
        const char *dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
        at += snprintf(device->uuid + at, sizeof device->uuid - (size_t)at, "%s%02x", dash, (unsigned char)p.uuid.bytes[i]);
    }
    device->major = p.major;
    device->minor = p.minor;
    device->multiprocessors = p.multiProcessorCount;
    device->bytes = p.totalGlobalMem;
    return SP_OK;
}

sp_status sp_gpu_link_read(int from, int to, sp_gpu_link *link) {
    memset(link, 0, sizeof *link);
    SP_TRY(check_ordinal(from));
    SP_TRY(check_ordinal(to));
    if (from == to) return sp_fail(SP_INVALID, "GPU %d and itself: a link is between two", from);
    SP_CUDA(cudaDeviceCanAccessPeer(&link->peer_access, from, to));
    SP_CUDA(cudaDeviceGetP2PAttribute(&link->native_atomics, cudaDevP2PAttrNativeAtomicSupported, from, to));
    SP_CUDA(cudaDeviceGetP2PAttribute(&link->rank, cudaDevP2PAttrPerformanceRank, from, to));
    return SP_OK;
}

sp_status sp_gpu_nccl(const char *asked, const char **path, char version[16]) {
    const sp_nccl_api *api;
    SP_TRY(sp_nccl_load(asked, &api));
    *path = api->path;
    sp_nccl_version_text(api->version, version);
    return SP_OK;
}
