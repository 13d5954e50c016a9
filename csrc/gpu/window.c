/* Memory that NCCL knows on all ranks: windows of symmetric memory, for SGLang's --enable-symm-mem. Called through the table in paths.c.
 * Invariant: collective and agreed: either every rank has the window, or none has and all say why. NCCL chooses what it makes of it;
 * this code never asks for multicast. */
#include <stdlib.h>
#include <string.h>

#include "comm.h"

static const double DROP_S = 10;

struct sp_window {
    sp_window *next;
    void *data;
    ncclWindow_t window;
};

static sp_status can(const sp_pynccl *n) {
    if (atomic_load(&n->state) != SP_PYNCCL_READY)
        return sp_fail(SP_UNAVAILABLE, "a window needs NCCL's communicator: %s", *n->why ? n->why : "it was aborted");
    if (n->api->ncclMemAlloc && n->api->ncclMemFree && n->api->ncclCommWindowRegister && n->api->ncclCommWindowDeregister)
        return SP_OK;
    char version[16];
    sp_nccl_version_text(n->api->version, version);
    return sp_fail(SP_UNAVAILABLE, "NCCL %s (%.150s) has no windows of symmetric memory: 2.27 or newer has", version,
                   n->api->path);
}

static sp_status allocate(sp_comm *comm, size_t bytes, void **data) {
    int before;
    SP_TRY(can(&comm->nccl));
    if (!bytes) return sp_fail(SP_INVALID, "a window of 0 bytes");
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    size_t left = 0, all = 0;
    bool room = cudaMemGetInfo(&left, &all) != cudaSuccess || bytes <= left; /* NCCL calls it a CUDA error like any other */
    ncclResult_t result = room ? comm->nccl.api->ncclMemAlloc(data, bytes) : ncclSuccess;
    sp_device_leave(comm->world.ordinal, before);
    if (!room) return sp_fail(SP_NOMEM, "a window of %zu bytes: only %zu are free", bytes, left);
    return result ? sp_fail(SP_NCCL, "ncclMemAlloc of %zu bytes: %s", bytes, comm->nccl.api->ncclGetErrorString(result)) : SP_OK;
}

static sp_status enlist(sp_comm *comm, sp_window *w, size_t bytes, sp_deadline deadline) {
    sp_pynccl *n = &comm->nccl;
    sp_guard_enter(&comm->guard, deadline);
    ncclResult_t result = n->api->ncclCommWindowRegister(n->comm, w->data, bytes, &w->window, NCCL_WIN_COLL_SYMMETRIC);
    sp_guard_leave(&comm->guard);
    if (atomic_load(&n->state) == SP_PYNCCL_GONE)
        return sp_fail(SP_TIMEOUT, "ncclCommWindowRegister was still inside at the deadline: a rank does not come");
    SP_TRY(sp_pynccl_settle(comm, n->comm, result, "ncclCommWindowRegister", deadline));
    if (w->window) return SP_OK;
    return sp_fail(SP_UNAVAILABLE, "NCCL registered nothing: symmetric memory needs peer access between all GPUs, "
                                   "and neither NCCL_WIN_ENABLE=0 nor NCCL_CUMEM_ENABLE=0");
}

static void drop(sp_comm *comm, sp_window *w, bool registered) {
    const sp_pynccl *n = &comm->nccl;
    if (atomic_load(&comm->broken) || atomic_load(&n->state) != SP_PYNCCL_READY) return;
    sp_guard_enter(&comm->guard, sp_deadline_in(DROP_S)); /* both wait for what the GPU runs, which may never end */
    if (registered) n->api->ncclCommWindowDeregister(n->comm, w->window);
    if (w->data && atomic_load(&n->state) == SP_PYNCCL_READY) n->api->ncclMemFree(w->data);
    sp_guard_leave(&comm->guard);
}

/* A step of all ranks: where one of them failed, all do, with its status and its text. */
static sp_status together(sp_comm *comm, sp_status status, sp_deadline deadline) {
    sp_status agreed;
    char why[SP_WHY];
    SP_TRY(sp_comm_agree(&comm->world, status, deadline, &agreed, why));
    return agreed ? sp_fail(agreed, "a window of symmetric memory: %s", why) : SP_OK;
}

sp_status sp_gpu_window_alloc(sp_comm *comm, size_t bytes, void **data, sp_deadline deadline) {
    SP_TRY(sp_comm_usable(comm, "a window"));
    sp_window *w = calloc(1, sizeof *w);
    sp_status status = w ? allocate(comm, bytes, &w->data) : sp_fail(SP_NOMEM, "%zu bytes for a window's record", sizeof *w);
    bool registered = false;
    status = together(comm, status, deadline);
    if (!w || status) goto fail;
    status = enlist(comm, w, bytes, deadline);
    registered = !status;
    status = together(comm, status, deadline);
    if (status) goto fail;
    w->next = comm->windows;
    comm->windows = w;
    *data = w->data;
    return SP_OK;

fail:
    if (w) drop(comm, w, registered);
    free(w);
    return status;
}

void sp_gpu_window_free(sp_comm *comm, void *data) {
    for (sp_window **at = &comm->windows; *at; at = &(*at)->next)
        if ((*at)->data == data) {
            sp_window *w = *at;
            *at = w->next;
            drop(comm, w, true);
            free(w);
            return;
        }
}

void sp_window_close_all(sp_comm *comm) {
    while (comm->windows) sp_gpu_window_free(comm, comm->windows->data);
}
