/* The check of one custom kernel over several ranks of one process. See many.h.
 * Invariant: the collective calls run on a thread a rank; all launches come from one thread, rank by rank. */
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "many_parts.h"

static const double drain_seconds = 2;

/* ---- made safe ---- */

static sp_status meet(sp_many *w) {
    int present = 0;
    SP_TRY(sp_many_cuda(cudaGetDeviceCount(&present), "cudaGetDeviceCount"));
    if (!present) return sp_fail(SP_UNAVAILABLE, "no GPU is visible");
    w->gpus = w->what->gpus && w->what->gpus < present ? w->what->gpus : present;
    if (w->gpus > w->world) w->gpus = w->world;
    const int sharing = (w->world + w->gpus - 1) / w->gpus;
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    /* Two streams a rank. Streams that share a hardware queue wait for one another, and so would kernels that wait for one another. */
    if (sharing > 1 && (!queues || strtol(queues, NULL, 10) < 2 * sharing))
        return sp_fail(SP_UNAVAILABLE,
                       "%d ranks share a GPU and need %d hardware queues: set CUDA_DEVICE_MAX_CONNECTIONS=32 before the process "
                       "uses CUDA (it is %s)",
                       sharing, 2 * sharing, queues ? queues : "not set");
    for (int r = 0; r < w->world; r++) w->member[r].ordinal = r % w->gpus;
    for (int r = 0; r < w->gpus; r++) {
        SP_TRY(sp_many_cuda(cudaSetDevice(r), "cudaSetDevice"));
        for (int peer = 0; peer < w->gpus; peer++) {
            const cudaError_t error = peer == r ? cudaSuccess : cudaDeviceEnablePeerAccess(peer, 0);
            if (error == cudaErrorPeerAccessAlreadyEnabled)
                (void)cudaGetLastError();
            else
                SP_TRY(sp_many_cuda(error, "cudaDeviceEnablePeerAccess"));
        }
    }
    return SP_OK;
}

static sp_work work_of(const sp_many *w, const sp_member *m, uint32_t launch) {
    const sp_many_case *what = w->what;
    const int flags = what->captured ? SP_WORK_CAPTURING | (what->registered ? SP_WORK_REGISTERED : 0) : 0;
    return (sp_work){.in = sp_many_in(m, launch),
                     .out = sp_many_out(m, launch),
                     .count = what->nbytes / (uint64_t)sp_dtype_bytes[what->dtype],
                     .nbytes = what->nbytes,
                     .stream = m->stream,
                     .path = SP_PATH_CUSTOM,
                     .kernel = what->kernel,
                     .dtype = what->dtype,
                     .flags = (uint8_t)flags,
                     .stamp = what->traced ? sp_many_slot(launch) : 0,
                     .deadline = w->deadline};
}

/* All grids of a GPU fit it at once, if need be by smaller grids: each rank gets its share of the blocks that run together. */
static sp_status fit(sp_many *w) {
    const uint32_t sharing = (uint32_t)((w->world + w->gpus - 1) / w->gpus);
    sp_custom_tuning tuning = {(sp_custom_style)w->what->style, false, 0};
    uint32_t fits = 0;
    const sp_work work = work_of(w, &w->member[0], 0);
    for (int pass = 0; pass < 2; pass++) {
        SP_TRY(sp_many_cuda(cudaSetDevice(w->member[0].ordinal), "cudaSetDevice"));
        for (int r = 0; r < w->world; r++) sp_custom_tune(w->member[r].custom, &tuning);
        SP_TRY(sp_custom_shape(w->member[0].custom, &work, &w->result->blocks, &w->result->threads, &fits));
        tuning.blocks_max = fits / sharing;
        if (tuning.blocks_max && w->result->blocks * sharing <= fits) return SP_OK;
    }
    return sp_fail(SP_UNAVAILABLE, "%u ranks share a GPU that runs %u blocks of %u threads at once: not enough for %u each",
                   sharing, fits, w->result->threads, w->result->blocks);
}

/* ---- the check ---- */

static sp_status capture(sp_member *m) {
    cudaGraph_t graph = NULL;
    sp_status status = SP_OK;
    SP_TRY(sp_many_cuda(cudaStreamBeginCapture(m->stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture"));
    for (uint32_t b = 0; b < m->many->burst && !status; b++) {
        const sp_work work = work_of(m->many, m, b);
        status = sp_custom_enqueue(m->custom, &work);
    }
    const cudaError_t ended = cudaStreamEndCapture(m->stream, &graph);
    if (status) return status;
    SP_TRY(sp_many_cuda(ended, "cudaStreamEndCapture"));
    SP_TRY(sp_many_cuda(cudaGraphInstantiate(&m->graph, graph, 0), "cudaGraphInstantiate"));
    SP_TRY(sp_many_cuda(cudaGraphUpload(m->graph, m->stream), "cudaGraphUpload"));
    cudaGraphDestroy(graph);
    SP_TRY(sp_many_cuda(cudaStreamSynchronize(m->stream), "cudaStreamSynchronize"));
    return sp_custom_registered(m->custom, &m->addresses, m->many->deadline);
}

/* Inputs in, outputs poisoned, on every rank, before the first launch. */
static sp_status load(sp_many *w) {
    const size_t bytes = w->what->nbytes;
    for (int r = 0; r < w->world; r++) {
        sp_member *m = &w->member[r];
        SP_TRY(sp_many_cuda(cudaSetDevice(m->ordinal), "cudaSetDevice"));
        for (uint32_t b = 0; b < w->burst; b++) {
            SP_TRY(sp_many_cuda(cudaMemset(sp_many_out(m, b), 0xff, bytes), "cudaMemset"));
            SP_TRY(
                sp_many_cuda(cudaMemcpy(sp_many_in(m, b), w->values[b].input[r], bytes, cudaMemcpyHostToDevice), "cudaMemcpy"));
        }
        if (m->stamps) SP_TRY(sp_many_cuda(cudaMemset(m->stamps, 0, sp_many_slot(w->burst) * sizeof *m->stamps), "cudaMemset"));
        SP_TRY(sp_many_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize"));
    }
    return SP_OK;
}

static sp_status launch_rank(sp_many *w, sp_member *m, uint32_t b) {
    const sp_work work = work_of(w, m, b);
    SP_TRY(sp_many_cuda(cudaSetDevice(m->ordinal), "cudaSetDevice"));
    if (m->graph) return b ? SP_OK : sp_many_cuda(cudaGraphLaunch(m->graph, m->stream), "cudaGraphLaunch");
    return sp_custom_enqueue(m->custom, &work);
}

/* All ranks in turn, beginning with another one each time: nothing waits between them. */
static sp_status launch(sp_many *w, uint32_t iteration) {
    sp_member *first = &w->member[0];
    SP_TRY(sp_many_cuda(cudaSetDevice(first->ordinal), "cudaSetDevice"));
    SP_TRY(sp_many_cuda(cudaEventRecord(first->mark[0], first->stream), "cudaEventRecord"));
    for (uint32_t b = 0; b < w->burst; b++)
        for (int i = 0; i < w->world; i++)
            SP_TRY(launch_rank(w, &w->member[(i + (int)(iteration % (uint32_t)w->world)) % w->world], b));
    SP_TRY(sp_many_cuda(cudaSetDevice(first->ordinal), "cudaSetDevice"));
    return sp_many_cuda(cudaEventRecord(first->mark[1], first->stream), "cudaEventRecord");
}

static sp_status idle(sp_many *w, sp_deadline deadline, bool check) {
    int r = 0;
    for (unsigned looks = 0; r < w->world; looks++) {
        const cudaError_t error = w->member[r].stream ? cudaStreamQuery(w->member[r].stream) : cudaSuccess;
        if (check) SP_TRY(sp_custom_status(w->member[r].custom));
        if (!error)
            r++;
        else if (error != cudaErrorNotReady)
            return sp_many_cuda(error, "running the kernels");
        else if (sp_deadline_passed(deadline))
            return sp_fail(SP_TIMEOUT, "rank %d of %d has not ended in time", r, w->world);
        else
            sp_backoff(looks);
    }
    return SP_OK;
}

static sp_status compare(sp_many *w) {
    sp_many_result *result = w->result;
    const size_t bytes = w->what->nbytes;
    for (uint32_t b = 0; b < w->burst; b++)
        for (int r = 0; r < w->world; r++) {
            sp_member *m = &w->member[r];
            SP_TRY(sp_many_cuda(cudaSetDevice(m->ordinal), "cudaSetDevice"));
            SP_TRY(sp_many_cuda(cudaMemcpy(m->outcome, sp_many_out(m, b), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy"));
            result->wrong += sp_many_values_wrong(&w->values[b], m->outcome, &result->max_error);
            result->checked += w->values[b].count;
            result->bit_equal &= !memcmp(m->outcome, w->member[0].outcome, bytes);
        }
    return SP_OK;
}

/* Counts the launches of a burst whose stamps can be true. */
static sp_status check_stamps(sp_many *w) {
    const size_t bytes = sp_many_slot(w->burst) * sizeof *w->member[0].stamps;
    for (int r = 0; r < w->world; r++) {
        SP_TRY(sp_many_cuda(cudaSetDevice(w->member[r].ordinal), "cudaSetDevice"));
        SP_TRY(sp_many_cuda(cudaMemcpy(w->member[r].times, w->member[r].stamps, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy"));
    }
    for (uint32_t b = 0; b < w->burst; b++) {
        uint64_t entered = 0;
        for (int r = 0; r < w->world && w->gpus == 1; r++) {
            const uint64_t enter = SP_TRACE_TIME(w->member[r].times[sp_many_slot(b) + SP_STAMP_ENTER]);
            if (enter > entered) entered = enter;
        }
        for (int r = 0; r < w->world; r++) {
            const unsigned long long *slots = w->member[r].times + sp_many_slot(b);
            const uint64_t enter = SP_TRACE_TIME(slots[SP_STAMP_ENTER]), met = SP_TRACE_TIME(slots[SP_STAMP_MET]);
            const uint64_t left = SP_TRACE_TIME(slots[SP_STAMP_LEFT]);
            w->result->stamped += enter && enter <= met && met <= left && entered <= met;
        }
    }
    return SP_OK;
}

static sp_status run(sp_many *w) {
    double ms = 0;
    const uint64_t before = sp_custom_ran(w->member[0].custom);
    for (uint32_t i = 0; i < 2 * w->what->iterations; i++) {
        float took = 0;
        for (uint32_t b = 0; b < w->burst; b++)
            sp_many_values_draw(&w->values[b], w->what->seed + (uint64_t)i * w->burst + b, i % 2 == 0);
        SP_TRY(load(w));
        SP_TRY(launch(w, i));
        SP_TRY(idle(w, w->deadline, true));
        SP_TRY(compare(w));
        if (w->what->traced) SP_TRY(check_stamps(w));
        SP_TRY(sp_many_cuda(cudaSetDevice(w->member[0].ordinal), "cudaSetDevice"));
        SP_TRY(sp_many_cuda(cudaEventElapsedTime(&took, w->member[0].mark[0], w->member[0].mark[1]), "cudaEventElapsedTime"));
        ms += (double)took;
        w->result->launched += w->burst;
    }
    w->result->us = ms * 1000 / (double)w->result->launched;
    w->result->ran = sp_custom_ran(w->member[0].custom) - before;
    return SP_OK;
}

static sp_status open_all(sp_many *w) {
    const uint64_t count = w->what->nbytes / (uint64_t)sp_dtype_bytes[w->what->dtype];
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->all_here, &monotonic);
    pthread_condattr_destroy(&monotonic);
    for (int i = 0; i < 2; i++) {
        w->board[i] = malloc((size_t)w->world * SP_MANY_GATHERED);
        if (!w->board[i]) return sp_fail(SP_NOMEM, "no memory for the exchange of %d ranks", w->world);
    }
    w->values = calloc(w->burst, sizeof *w->values);
    if (!w->values) return sp_fail(SP_NOMEM, "no memory for the inputs of %u launches", w->burst);
    for (uint32_t b = 0; b < w->burst; b++) SP_TRY(sp_many_values_open(&w->values[b], w->world, w->what->dtype, count));
    SP_TRY(meet(w));
    return sp_many_together(w, sp_many_open_rank);
}

static void close_all(sp_many *w) {
    char said[256];
    strncpy(said, sp_error(), sizeof said - 1);
    said[sizeof said - 1] = 0;
    for (int r = 0; w->broken && r < w->world; r++)
        if (w->member[r].custom) sp_custom_abort(w->member[r].custom);
    if (w->broken) (void)idle(w, sp_deadline_in(drain_seconds), false);
    (void)sp_many_together(w, sp_many_close_rank);
    for (uint32_t b = 0; b < w->burst && w->values; b++) sp_many_values_close(&w->values[b]);
    free(w->values);
    for (int i = 0; i < 2; i++) free(w->board[i]);
    pthread_cond_destroy(&w->all_here);
    pthread_mutex_destroy(&w->lock);
    sp_fail(SP_OK, "%s", said);
}

sp_status sp_many_check(const sp_many_case *what, sp_many_result *result) {
    *result = (sp_many_result){.bit_equal = true};
    if (what->world < 2 || what->world > SP_MANY_RANKS)
        return sp_fail(SP_INVALID, "world: %d ranks: 2 to %d", what->world, SP_MANY_RANKS);
    if (what->dtype > SP_DTYPE_FP32) return sp_fail(SP_INVALID, "dtype %u: bf16, fp16 or fp32", what->dtype);
    if (what->style >= SP_CUSTOM_STYLES) return sp_fail(SP_INVALID, "style %u: below %d", what->style, SP_CUSTOM_STYLES);
    if (!what->iterations || !what->nbytes || !(what->seconds > 0))
        return sp_fail(SP_INVALID, "iterations, nbytes and seconds must be positive");
    if (what->registered && !what->captured) return sp_fail(SP_INVALID, "registered: only captured inputs are");
    sp_many *w = calloc(1, sizeof *w);
    if (!w) return sp_fail(SP_NOMEM, "no memory for %d ranks", what->world);
    w->what = what;
    w->result = result;
    w->world = what->world;
    w->burst = what->burst ? what->burst : 1;
    w->deadline = sp_deadline_in(what->seconds);
    for (int r = 0; r < w->world; r++) w->member[r] = (sp_member){.many = w, .rank = r};
    sp_status status = open_all(w);
    if (!status) status = fit(w);
    if (!status && what->captured) status = sp_many_together(w, capture);
    if (!status) {
        status = run(w);
        w->broken = status != SP_OK;
    }
    result->gpus = w->gpus;
    w->broken |= w->failed;
    close_all(w);
    free(w);
    return status;
}
