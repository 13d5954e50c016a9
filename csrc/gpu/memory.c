/* Memory of one GPU that the ranks of a machine map into one another by CUDA IPC. Called by sp_region and the custom kernels' code.
 * Invariant: an allocation of another process is opened once a communicator and counted; an address of this process is never opened,
 * because CUDA refuses that. Memory that CUDA IPC cannot share is refused with the setting that made it so. */
#include <cuda.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm.h"

/* What lies in an sp_handle's bytes. */
typedef struct shared {
    cudaIpcMemHandle_t ipc;
    uint64_t base;      /* where it lies in the process that owns it */
    uint64_t pid, pids; /* that process: its number, and the name space in which it has that number */
    int32_t ordinal;
    int32_t zero;
} shared;
_Static_assert(sizeof(shared) <= SP_HANDLE_BYTES, "a handle holds it");

struct sp_opened {
    sp_opened *next;
    cudaIpcMemHandle_t ipc;
    void *base;
    unsigned users;
};

/* The driver's functions, without linking to it. */
typedef struct driver {
    __typeof__(cuMemGetAddressRange) *range;
    __typeof__(cuPointerGetAttribute) *attribute;
} driver;

static sp_status find_driver(driver *d) {
    static const char *const names[] = {"cuMemGetAddressRange", "cuPointerGetAttribute"};
    void *found[2] = {NULL, NULL};
    enum cudaDriverEntryPointQueryResult answer;
    for (int i = 0; i < 2; i++) {
        SP_CUDA(cudaGetDriverEntryPointByVersion(names[i], &found[i], 12000, cudaEnableDefault, &answer));
    }
    memcpy(&d->range, &found[0], sizeof found[0]);
    memcpy(&d->attribute, &found[1], sizeof found[1]);
    return SP_OK;
}

/* While a stream of this process is captured, an allocation outside of it must not end the capture. */
static cudaError_t relaxed(cudaError_t (*call)(void **data, size_t bytes), void **data, size_t bytes) {
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);
    if (error) return error;
    error = call(data, bytes);
    cudaError_t back = cudaThreadExchangeStreamCaptureMode(&mode);
    return error ? error : back;
}

static cudaError_t take(void **data, size_t bytes) { return cudaMalloc(data, bytes); }

static cudaError_t give(void **data, size_t bytes) {
    (void)bytes;
    return cudaFree(*data);
}

sp_status sp_gpu_alloc(sp_comm *comm, size_t bytes, void **data) {
    int before;
    size_t free_bytes = 0, total = 0;
    SP_TRY(sp_comm_usable(comm, "allocating"));
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    cudaError_t error = relaxed(take, data, bytes);
    sp_status status = SP_OK;
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&free_bytes, &total);
        status = sp_fail(SP_NOMEM,
                         "cudaMalloc of %zu bytes on GPU %d: %zu of its %zu bytes are free; end what else holds its memory, or "
                         "ask for less",
                         bytes, comm->world.ordinal, free_bytes, total);
    } else if (error) {
        status = sp_cuda_fail(error, "cudaMalloc");
    }
    sp_device_leave(comm->world.ordinal, before);
    return status;
}

void sp_gpu_free(sp_comm *comm, void *data) {
    int before;
    if (!data || atomic_load(&comm->broken) || sp_device_enter(comm->world.ordinal, &before)) return;
    if (relaxed(give, &data, 0)) (void)cudaGetLastError();
    sp_device_leave(comm->world.ordinal, before);
}

static uint64_t name_space(void) {
    struct stat s;
    return stat("/proc/self/ns/pid", &s) == 0 ? (uint64_t)s.st_ino : 0;
}

/* Why CUDA IPC cannot share it, or SP_OK. */
static sp_status can_share(const driver *d, const void *data) {
    int legacy = 1;
    CUmemoryPool pool = NULL;
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)data;
    if (d->attribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at))
        return sp_fail(SP_INVALID, "%p is no memory of a GPU", data);
    if (legacy) return SP_OK;
    if (d->attribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at) == CUDA_SUCCESS && pool)
        return sp_fail(SP_UNAVAILABLE,
                       "%p comes from a pool of cudaMallocAsync, which CUDA IPC cannot share: PyTorch uses one where "
                       "PYTORCH_CUDA_ALLOC_CONF has backend:cudaMallocAsync; take that out",
                       data);
    return sp_fail(SP_UNAVAILABLE,
                   "%p is mapped piece by piece, which CUDA IPC cannot share: PyTorch does that where "
                   "PYTORCH_CUDA_ALLOC_CONF has expandable_segments:True; set it to False",
                   data);
}

static sp_status export_here(sp_comm *comm, const void *data, sp_handle *handle) {
    driver d = {NULL, NULL};
    shared s;
    CUdeviceptr base = 0;
    size_t bytes = 0;
    memset(&s, 0, sizeof s);
    memset(handle, 0, sizeof *handle);
    SP_TRY(find_driver(&d));
    if (!d.range || !d.attribute) return sp_fail(SP_CUDA, "the driver has no cuMemGetAddressRange or no cuPointerGetAttribute");
    SP_TRY(can_share(&d, data));
    CUresult result = d.range(&base, &bytes, (CUdeviceptr)(uintptr_t)data);
    if (result) return sp_fail(SP_CUDA, "cuMemGetAddressRange of %p answers %d: is it freed?", data, (int)result);
    SP_CUDA(cudaIpcGetMemHandle(&s.ipc,
                                (void *)(uintptr_t)base)); /* NOLINT(performance-no-int-to-ptr): an address is what CUDA gives */
    s.base = base;
    s.pid = (uint64_t)getpid();
    s.pids = name_space();
    s.ordinal = comm->world.ordinal;
    memcpy(handle->bytes, &s, sizeof s);
    handle->offset = (uint64_t)(uintptr_t)data - s.base;
    return SP_OK;
}

sp_status sp_gpu_export(sp_comm *comm, const void *data, sp_handle *handle) {
    int before;
    SP_TRY(sp_comm_usable(comm, "exporting memory"));
    if (!data) return sp_fail(SP_INVALID, "no address to export");
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    sp_status status = export_here(comm, data, handle);
    sp_device_leave(comm->world.ordinal, before);
    return status;
}

static bool is_ours(const shared *s) { return s->pid == (uint64_t)getpid() && s->pids == name_space(); }

static sp_opened **find_opened(sp_comm *comm, const cudaIpcMemHandle_t *ipc) {
    sp_opened **at = &comm->opened;
    while (*at && memcmp(&(*at)->ipc, ipc, sizeof *ipc) != 0) at = &(*at)->next;
    return at;
}

/* Another rank of this very process. */
static sp_status open_ours(const sp_comm *comm, const shared *s, void **base) {
    *base = (void *)(uintptr_t)s->base; /* NOLINT(performance-no-int-to-ptr): it was one before it travelled */
    if (s->ordinal == comm->world.ordinal) return SP_OK;
    cudaError_t error = cudaDeviceEnablePeerAccess(s->ordinal, 0);
    if (error && error != cudaErrorPeerAccessAlreadyEnabled) return sp_cuda_fail(error, "cudaDeviceEnablePeerAccess");
    (void)cudaGetLastError(); /* that it was enabled already */
    return SP_OK;
}

static sp_status open_theirs(sp_comm *comm, const shared *s, void **base) {
    sp_opened *o = *find_opened(comm, &s->ipc);
    if (!o) {
        o = calloc(1, sizeof *o);
        if (!o) return sp_fail(SP_NOMEM, "%zu bytes for the record of an opened allocation", sizeof *o);
        cudaError_t error = cudaIpcOpenMemHandle(&o->base, s->ipc, cudaIpcMemLazyEnablePeerAccess);
        if (error) {
            free(o);
            (void)cudaGetLastError();
            return sp_fail(SP_CUDA,
                           "cudaIpcOpenMemHandle of memory on GPU %d of process %llu: %s (%s); the GPUs need peer access, and "
                           "containers one IPC name space (--ipc=host)",
                           s->ordinal, (unsigned long long)s->pid, cudaGetErrorString(error), cudaGetErrorName(error));
        }
        o->ipc = s->ipc;
        o->next = comm->opened;
        comm->opened = o;
    }
    o->users++;
    *base = o->base;
    return SP_OK;
}

sp_status sp_gpu_open(sp_comm *comm, const sp_handle *handle, void **data) {
    int before;
    shared s;
    void *base = NULL;
    memcpy(&s, handle->bytes, sizeof s);
    SP_TRY(sp_comm_usable(comm, "opening a peer's memory"));
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    sp_status status = is_ours(&s) ? open_ours(comm, &s, &base) : open_theirs(comm, &s, &base);
    sp_device_leave(comm->world.ordinal, before);
    if (!status) *data = (char *)base + handle->offset;
    return status;
}

/* Also where the communicator is broken: the record goes, the mapping stays until the process ends. */
static void release(sp_comm *comm, sp_opened **at) {
    sp_opened *o = *at;
    *at = o->next;
    if (!atomic_load(&comm->broken) && cudaIpcCloseMemHandle(o->base)) (void)cudaGetLastError();
    free(o);
}

void sp_gpu_close(sp_comm *comm, const sp_handle *handle, void *data) {
    int before;
    shared s;
    (void)data;
    memcpy(&s, handle->bytes, sizeof s);
    if (is_ours(&s)) return;
    sp_opened **at = find_opened(comm, &s.ipc);
    if (!*at || --(*at)->users || sp_device_enter(comm->world.ordinal, &before)) return;
    release(comm, at);
    sp_device_leave(comm->world.ordinal, before);
}

void sp_memory_close_all(sp_comm *comm) {
    while (comm->opened) release(comm, &comm->opened);
}
