/* What custom.c (launches), custom_open.c (memory) and custom_register.c (captured inputs) share of one communicator. Included by them.
 * Invariant: written by custom_open.c while nothing runs; later only the notes and the tuning change. */
#ifndef SP_CUSTOM_PARTS_H
#define SP_CUSTOM_PARTS_H

#include "custom.h"
#include "kernels.h"

#define SP_CUSTOM_WAIT_NS (UINT64_C(10) * 1000000000) /* patience of a wait without a deadline of its own, so of captured ones */
enum { SP_CUSTOM_INPUTS = 131072 };                   /* captured inputs of one communicator, as many as V2 takes */

/* A peer's allocation that holds captured inputs. */
typedef struct sp_custom_opened {
    int rank;
    sp_handle handle; /* of its first byte */
    void *data;
} sp_custom_opened;

struct sp_custom {
    const sp_memory *memory;
    sp_comm *owner;
    sp_world world;
    sp_region region;
    uint64_t staging_at, scratch_at, slots_at, cells_at; /* in every rank's region */
    uint64_t v1_bytes, v2_bytes, flag_bytes;             /* largest tensors */
    sp_kernel_args args;                                 /* what all launches have in common */
    sp_custom_tuning tuning;
    int arch, multiprocessors;
    sp_kernel_host *host;
    unsigned long long *stamps; /* slot 0, in device memory; NULL: nothing is stamped */
    void *side;                 /* cudaStream_t for what must not wait for the caller's streams */
    void **inputs;        /* in device memory, SP_KERNEL_RANKS a row. Row 0: the staging buffers. Row n: captured input n - 1 */
    const void **notes;   /* this rank's captured inputs */
    uint64_t noted, done; /* how many were captured, how many of them are registered */
    uint64_t room;
    sp_custom_opened *opened;
    uint64_t opened_count;
};

sp_status sp_custom_cuda(const sp_custom *custom, int error, const char *what); /* SP_OK for 0 */
/* Makes its GPU the current one; *before says which was. */
sp_status sp_custom_device(const sp_custom *custom, int *before);
/* Collective: all fail, in the same words, where one rank failed. */
sp_status sp_custom_agree(const sp_custom *custom, sp_status status, const char *doing, sp_deadline deadline);
/* The row of the next captured input. It counts once its launch is captured: custom->noted++. */
sp_status sp_custom_note(sp_custom *custom, const void *input, void *const **row);
void sp_custom_forget(sp_custom *custom); /* closes what was opened for captured inputs */
const char *sp_custom_name(unsigned kernel);

#endif
