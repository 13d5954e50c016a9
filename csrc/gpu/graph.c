/* Streams, graphs and events of one rank: captured calls, replays, copies and device time. Called through the table in paths.c.
 * Invariant: a capture is thread-local, so that another thread's allocation cannot end it; a graph is known to its communicator, which
 * drops it before NCCL ends, because NCCL waits for the graphs that hold its calls. */
#include <stdlib.h>

#include "comm.h"

sp_status sp_gpu_capturing(sp_comm *comm, void *stream, bool *capturing) {
    (void)comm;
    enum cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
    SP_CUDA(cudaStreamIsCapturing(stream, &state));
    *capturing = state == cudaStreamCaptureStatusActive;
    if (state != cudaStreamCaptureStatusInvalidated) return SP_OK;
    return sp_fail(SP_CUDA, "the capture of this stream is invalid since a call that cannot be captured; end it and begin anew");
}

sp_status sp_gpu_copy(sp_comm *comm, void *to, const void *from, size_t bytes, void *stream) {
    int before;
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    cudaError_t error = from ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream)
                             : cudaMemsetAsync(to, 0, bytes, stream);
    sp_device_leave(comm->world.ordinal, before);
    return error ? sp_cuda_fail(error, from ? "cudaMemcpyAsync" : "cudaMemsetAsync") : SP_OK;
}

sp_status sp_gpu_capture_begin(sp_comm *comm, void *stream) {
    SP_TRY(sp_comm_usable(comm, "capture"));
    if (!stream || stream == cudaStreamLegacy)
        return sp_fail(SP_INVALID, "the legacy default stream cannot be captured: capture on a stream of your own");
    SP_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    return SP_OK;
}

static sp_status instantiate(const sp_comm *comm, cudaGraph_t graph, cudaGraphExec_t *exec) {
    int before;
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    cudaError_t error = cudaGraphInstantiate(exec, graph, 0);
    sp_device_leave(comm->world.ordinal, before);
    return error ? sp_cuda_fail(error, "cudaGraphInstantiate") : SP_OK;
}

sp_status sp_gpu_capture_end(sp_comm *comm, void *stream, sp_graph **captured) {
    cudaGraph_t graph = NULL;
    SP_CUDA(cudaStreamEndCapture(stream, &graph));
    sp_graph *made = calloc(1, sizeof *made);
    if (!made) {
        (void)cudaGraphDestroy(graph);
        return sp_fail(SP_NOMEM, "%zu bytes for a captured graph", sizeof *made);
    }
    sp_status status = instantiate(comm, graph, &made->exec);
    (void)cudaGraphDestroy(graph);
    if (status) {
        free(made);
        return status;
    }
    made->next = comm->graphs;
    comm->graphs = made;
    *captured = made;
    return SP_OK;
}

sp_status sp_gpu_replay(sp_comm *comm, sp_graph *graph, void *stream, sp_deadline deadline) {
    int before;
    SP_TRY(sp_comm_usable(comm, "replay"));
    if (!graph->exec) return sp_fail(SP_INVALID, "the graph was dropped when its communicators were aborted");
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    sp_guard_enter(&comm->guard, deadline); /* a launch blocks while the queue is full, and a full queue may be one that hangs */
    cudaError_t error = cudaGraphLaunch(graph->exec, stream);
    sp_guard_leave(&comm->guard);
    sp_device_leave(comm->world.ordinal, before);
    return error ? sp_cuda_fail(error, "cudaGraphLaunch") : SP_OK;
}

static void drop(sp_graph *graph) {
    if (graph->exec && cudaGraphExecDestroy(graph->exec)) (void)cudaGetLastError();
    graph->exec = NULL;
}

void sp_graph_drop_all(sp_comm *comm) {
    for (sp_graph *g = comm->graphs; g; g = g->next) drop(g);
}

void sp_gpu_graph_free(sp_comm *comm, sp_graph *graph) {
    for (sp_graph **at = &comm->graphs; *at; at = &(*at)->next)
        if (*at == graph) {
            *at = graph->next;
            drop(graph);
            free(graph);
            return;
        }
}

sp_status sp_gpu_mark(sp_comm *comm, int which, void *stream) {
    int before;
    if (which != 0 && which != 1) return sp_fail(SP_INVALID, "mark %d: 0 is before, 1 is after", which);
    SP_TRY(sp_device_enter(comm->world.ordinal, &before));
    cudaError_t error = cudaEventRecord(comm->marks[which], stream);
    sp_device_leave(comm->world.ordinal, before);
    if (error) return sp_cuda_fail(error, "cudaEventRecord");
    comm->marked = which ? comm->marked | 2 : 1;
    return SP_OK;
}

sp_status sp_gpu_elapsed(sp_comm *comm, double *us, sp_deadline deadline) {
    float ms = 0;
    if (comm->marked != 3) return sp_fail(SP_INVALID, "no time was taken: mark 0, the calls, mark 1, outside a capture");
    SP_TRY(sp_comm_wait(comm, NULL, comm->marks[1], "the device time of a call", deadline));
    SP_CUDA(cudaEventElapsedTime(&ms, comm->marks[0], comm->marks[1]));
    *us = (double)ms * 1000;
    return SP_OK;
}
