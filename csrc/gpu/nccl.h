/* NCCL as it is opened at run time: its functions, typed from its own header. Called by pynccl.c, window.c and device.c.
 * Invariant: a library that is handed out has every needed symbol, and is never closed: the one that SGLang and PyTorch have in this
 * process is the one that is measured, and it is named. */
#ifndef SP_GPU_NCCL_H
#define SP_GPU_NCCL_H

#include <nccl.h>
#include <stdbool.h>

#include "core/status.h"

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0)
#error "nccl.h is too old: 2.27 or newer has the windows of symmetric memory (the package nvidia-nccl-cu13 has one)"
#endif

/* X(function, needed): without one that is not needed, windows are refused and the rest works. */
#define SP_NCCL_SYMBOLS(X)           \
    X(ncclGetVersion, true)          \
    X(ncclGetUniqueId, true)         \
    X(ncclCommInitRankConfig, true)  \
    X(ncclCommSplit, true)           \
    X(ncclCommDestroy, true)         \
    X(ncclCommAbort, true)           \
    X(ncclCommGetAsyncError, true)   \
    X(ncclGetErrorString, true)      \
    X(ncclGetLastError, true)        \
    X(ncclAllReduce, true)           \
    X(ncclAllGather, true)           \
    X(ncclMemAlloc, false)           \
    X(ncclMemFree, false)            \
    X(ncclCommWindowRegister, false) \
    X(ncclCommWindowDeregister, false)

typedef struct sp_nccl_api {
    void *library;
    int version;    /* as NCCL codes it: 22809 */
    char path[512]; /* the file that serves the symbols */
#define X(name, needed) __typeof__(name) *name;
    SP_NCCL_SYMBOLS(X)
#undef X
} sp_nccl_api;

/* asked: a path that somebody named, or NULL: the one already in this process, SGLANG_NCCL_SO_PATH, the wheel, the soname. */
sp_status sp_nccl_load(const char *asked, const sp_nccl_api **api);
/* Where the wheel's library lies, as Python found it; NULL: nowhere. */
sp_status sp_nccl_wheel(const char *path);
void sp_nccl_version_text(int version, char text[16]);

#endif
