/* The memory of one custom communicator: made together by all ranks, and given back; and what is asked about its kernels from outside.
 * Called by comm.c and many.c through custom.h.
 * Invariant: every rank makes the same exchanges whatever failed, and no kernel runs before all ranks have cleared their memory. */
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

#include "custom_parts.h"

enum { ALIGN = 4096 };
static const uint64_t v1_ceiling = UINT64_C(8) << 20, v2_ceiling = UINT64_C(16) << 20, flag_ceiling = UINT64_C(512) << 10;
static const double close_seconds = 10;

sp_status sp_custom_cuda(const sp_custom *c, int error, const char *what) {
    return error ? sp_fail(SP_CUDA, "rank %d: %s: %s", c->world.rank, what, sp_kernel_error(error)) : SP_OK;
}

sp_status sp_custom_device(const sp_custom *c, int *before) {
    SP_TRY(sp_custom_cuda(c, cudaGetDevice(before), "cudaGetDevice"));
    return *before == c->world.ordinal ? SP_OK : sp_custom_cuda(c, cudaSetDevice(c->world.ordinal), "cudaSetDevice");
}

sp_status sp_custom_agree(const sp_custom *c, sp_status status, const char *doing, sp_deadline deadline) {
    struct {
        uint32_t status;
        char text[252];
    } mine = {status, ""}, all[SP_KERNEL_RANKS];
    if (status) strncpy(mine.text, sp_error(), sizeof mine.text - 1);
    SP_TRY(sp_gather(&c->world.exchange, &mine, all, sizeof mine, deadline));
    for (int r = 0; r < c->world.size; r++)
        if (all[r].status)
            return sp_fail((sp_status)all[r].status, "rank %d of %d, %s: %s", r, c->world.size, doing, all[r].text);
    return SP_OK;
}

/* ---- open ---- */

static uint64_t align(uint64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }
static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* signals | staging | scratch of two-shot | slots: 2 halves x ranks | cells: 2 halves x ranks x twice the data */
static uint64_t lay_out(sp_custom *c) {
    const uint64_t size = (uint64_t)c->world.size, wanted = c->world.max_bytes ? c->world.max_bytes : v2_ceiling;
    c->v1_bytes = least(align(wanted), v1_ceiling);
    c->v2_bytes = least(align(wanted), v2_ceiling);
    c->flag_bytes = least(align(wanted), flag_ceiling);
    c->staging_at = align(sizeof(sp_kernel_signals));
    c->scratch_at = c->staging_at + c->v2_bytes;
    c->slots_at = c->scratch_at + align(c->v1_bytes / 2 + SP_KERNEL_RANKS * SP_KERNEL_VECTOR);
    c->cells_at = c->slots_at + 2 * size * c->v2_bytes;
    return c->cells_at + 2 * size * 2 * c->flag_bytes;
}

/* Everything that this rank makes alone. */
static sp_status prepare(sp_custom *c) {
    int before, major = 0, minor = 0;
    SP_TRY(sp_custom_device(c, &before));
    SP_TRY(sp_custom_cuda(c, cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, c->world.ordinal),
                          "cudaDeviceGetAttribute"));
    SP_TRY(sp_custom_cuda(c, cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, c->world.ordinal),
                          "cudaDeviceGetAttribute"));
    SP_TRY(sp_custom_cuda(c, cudaDeviceGetAttribute(&c->multiprocessors, cudaDevAttrMultiProcessorCount, c->world.ordinal),
                          "device"));
    c->arch = major * 10 + minor;
    c->tuning = (sp_custom_tuning){SP_CUSTOM_STYLES - 1, true, 0};
    SP_TRY(sp_custom_cuda(c, sp_kernel_load_all(), "loading the custom kernels"));
    cudaStream_t side;
    SP_TRY(sp_custom_cuda(c, cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking), "cudaStreamCreate"));
    c->side = side;
    void *host;
    SP_TRY(
        sp_custom_cuda(c, cudaHostAlloc(&host, sizeof *c->host, cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc"));
    c->host = memset(host, 0, sizeof *c->host);
    SP_TRY(sp_custom_cuda(c, cudaHostGetDevicePointer(&host, c->host, 0), "cudaHostGetDevicePointer"));
    c->args.host = host;
    void *inputs;
    SP_TRY(sp_custom_cuda(c, cudaMalloc(&inputs, (SP_CUSTOM_INPUTS + 1) * SP_KERNEL_RANKS * sizeof(void *)), "cudaMalloc"));
    c->inputs = inputs;
    return SP_OK;
}

/* Shapes follow from the GPU, and blocks of all ranks meet one another: so all ranks count with the same one. */
static sp_status compare(sp_custom *c, sp_deadline deadline) {
    int32_t mine[2] = {c->arch, c->multiprocessors}, all[SP_KERNEL_RANKS][2];
    SP_TRY(sp_gather(&c->world.exchange, mine, all, sizeof mine, deadline));
    for (int r = 0; r < c->world.size; r++) {
        if (all[r][0] != all[0][0])
            return sp_fail(SP_MISMATCH, "rank 0 has a GPU of architecture %d, rank %d one of %d", all[0][0], r, all[r][0]);
        if (all[r][1] < c->multiprocessors) c->multiprocessors = all[r][1];
    }
    return SP_OK;
}

/* Also the first copy and the first fill on this GPU: what the runtime loads for them, it loads now and not while a kernel spins. */
static sp_status clear(sp_custom *c, uint64_t bytes) {
    void *row[SP_KERNEL_RANKS] = {NULL};
    for (int r = 0; r < c->world.size; r++) {
        row[r] = (uint8_t *)c->region.peer[r] + c->staging_at;
        c->args.signals[r] = c->region.peer[r];
    }
    c->args.mine = c->args.signals[c->world.rank];
    c->args.inputs = c->inputs;
    c->args.rank = (uint32_t)c->world.rank;
    uint8_t *staging = (uint8_t *)c->region.mine + c->staging_at;
    SP_TRY(sp_custom_cuda(c, cudaMemsetAsync(c->region.mine, 0, bytes, c->side), "cudaMemset"));
    SP_TRY(sp_custom_cuda(c, cudaMemsetAsync(c->inputs, 0, (SP_CUSTOM_INPUTS + 1) * SP_KERNEL_RANKS * sizeof(void *), c->side),
                          "cudaMemset"));
    SP_TRY(sp_custom_cuda(c, cudaMemcpyAsync(c->inputs, row, sizeof row, cudaMemcpyHostToDevice, c->side), "cudaMemcpy"));
    SP_TRY(sp_custom_cuda(c, cudaMemcpyAsync(staging, staging + ALIGN / 2, ALIGN / 2, cudaMemcpyDeviceToDevice, c->side),
                          "cudaMemcpy"));
    return sp_custom_cuda(c, cudaStreamSynchronize(c->side), "clearing the shared memory");
}

/* Broken: the GPU's memory stays until the process ends. To free it would wait for all that the device runs, which may never end. */
static void give_back(sp_custom *c, bool broken) {
    int before = c->world.ordinal;
    if (!broken && !sp_custom_device(c, &before)) {
        sp_custom_forget(c);
        sp_region_close(c->memory, c->owner, &c->world, &c->region);
        if (c->inputs) cudaFree(c->inputs);
        if (c->host) cudaFreeHost((void *)c->host);
        if (c->side) cudaStreamDestroy(c->side);
        if (before != c->world.ordinal) cudaSetDevice(before);
    }
    free(c->notes);
    free(c->opened);
    free(c);
}

sp_status sp_custom_open(const sp_memory *memory, sp_comm *owner, const sp_world *world, sp_deadline deadline,
                         sp_custom **custom) {
    *custom = NULL;
    if (world->size < 2 || world->size > SP_KERNEL_RANKS)
        return sp_fail(SP_UNAVAILABLE, "custom all-reduce: %d ranks: 2 to %d", world->size, SP_KERNEL_RANKS);
    sp_custom *c = calloc(1, sizeof *c), none = {.world = *world};
    if (!c) return sp_custom_agree(&none, sp_fail(SP_NOMEM, "custom all-reduce: no memory"), "opening it", deadline);
    c->memory = memory;
    c->owner = owner;
    c->world = *world;
    const uint64_t bytes = lay_out(c);
    int before = 0;
    const bool had = cudaGetDevice(&before) == cudaSuccess;
    sp_status status = sp_custom_agree(c, prepare(c), "preparing custom all-reduce", deadline);
    if (!status) status = compare(c, deadline);
    if (!status) status = sp_region_open(memory, owner, world, bytes, deadline, &c->region);
    if (!status) status = sp_custom_agree(c, clear(c, bytes), "clearing shared memory", deadline);
    if (status)
        give_back(c, false);
    else
        *custom = c;
    if (had) cudaSetDevice(before);
    return status;
}

void sp_custom_close(sp_custom *c, bool broken) {
    if (!c) return;
    if (broken) {
        sp_custom_abort(c);
    } else { /* a peer may still be reading */
        char mine = 0, all[SP_KERNEL_RANKS];
        broken = sp_gather(&c->world.exchange, &mine, all, sizeof mine, sp_deadline_in(close_seconds)) != SP_OK;
    }
    give_back(c, broken);
}

/* ---- asked from outside ---- */

void sp_custom_tune(sp_custom *c, const sp_custom_tuning *tuning) { c->tuning = *tuning; }

void sp_custom_stamps(sp_custom *c, unsigned long long *stamps) { c->stamps = stamps; }

void sp_custom_abort(sp_custom *c) { c->host->abort = 1; }

static const char *const phases[] = {
#define X(id, text) text,
    SP_KERNEL_PHASES(X)
#undef X
};

sp_status sp_custom_status(sp_custom *c) {
    const unsigned long long report = c->host->report;
    if (!report && !c->host->abort) return SP_OK;
    if (!report) return sp_fail(SP_PEER, "rank %d of %d: custom all-reduce was aborted", c->world.rank, c->world.size);
    const int phase = SP_REPORT_PHASE(report), aborted = SP_REPORT_ABORTED(report);
    return sp_fail(aborted ? SP_PEER : SP_TIMEOUT, "rank %d of %d: custom %s %s in %s, waiting for rank %d (block %d)",
                   c->world.rank, c->world.size, sp_custom_name((unsigned)SP_REPORT_KERNEL(report)),
                   aborted ? "was aborted" : "gave up", phases[phase < SP_PHASE_COUNT ? phase : 0], SP_REPORT_PEER(report),
                   SP_REPORT_BLOCK(report));
}

/* By a copy on a stream of its own, which waits for no other. */
uint64_t sp_custom_ran(sp_custom *c) {
    int before = c->world.ordinal;
    if (sp_custom_device(c, &before)) return 0;
    const sp_kernel_signals *mine = c->region.mine;
    sp_kernel_line *to = c->host->counted;
    const bool ok = !cudaMemcpyAsync(&to[0], &mine->barrier[0], sizeof *to, cudaMemcpyDeviceToHost, c->side) &&
                    !cudaMemcpyAsync(&to[1], &mine->push[0], sizeof *to, cudaMemcpyDeviceToHost, c->side) &&
                    !cudaStreamSynchronize(c->side);
    if (before != c->world.ordinal) cudaSetDevice(before);
    return ok ? (uint64_t)to[0].epoch + to[1].epoch : 0;
}
