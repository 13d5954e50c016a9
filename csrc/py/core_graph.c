/* Graph: captured calls that can be replayed. Made by Coordinator.begin_graph and end_graph; a replay runs no dispatch, as in SGLang.
 * Invariant: a graph keeps its Coordinator and every tensor of its calls, so that a replay never writes into memory that was given back. */
#include "core_coordinator.h"

enum { STRIDE = 256 }; /* replays between two looks at signals */

typedef struct graph_object {
    PyObject_HEAD coordinator_object *coordinator;
    PyObject *kept;      /* tensors of the captured calls */
    const sp_seam *seam; /* whose graph it is, after close() too */
    sp_graph *graph;
    void *stream;
} graph_object;

/* graph_capture(): enter, and leave with the addresses that were captured exchanged among the ranks. */
PyObject *sp_coordinator_enter_capture(PyObject *self, PyObject *unused) {
    (void)unused;
    coordinator_object *c = (coordinator_object *)self;
    if (!sp_coordinator_ready(c)) return NULL;
    c->captures++;
    Py_RETURN_NONE;
}

PyObject *sp_coordinator_exit_capture(PyObject *self, PyObject *unused) {
    (void)unused;
    coordinator_object *c = (coordinator_object *)self;
    uint64_t addresses = 0;
    if (!sp_coordinator_idle(c)) return NULL;
    if (c->captures) c->captures--;
    if (!sp_coordinator_ready(c)) return NULL;
    if (c->captures) return PyLong_FromLong(0);
    sp_status status;
    c->busy = true;
    Py_BEGIN_ALLOW_THREADS status = c->seam->registered(c->comm, &addresses, sp_coordinator_deadline(c));
    Py_END_ALLOW_THREADS sp_coordinator_done(c);
    return status ? sp_coordinator_fail(c, status, c->seam->error()) : PyLong_FromUnsignedLongLong(addresses);
}

PyObject *sp_coordinator_begin_graph(PyObject *self, PyObject *args) {
    coordinator_object *c = (coordinator_object *)self;
    unsigned long long stream = 0;
    if (!PyArg_ParseTuple(args, "|K", &stream) || !sp_coordinator_ready(c)) return NULL;
    if (c->kept) {
        PyErr_SetString(c->state->error, "a graph is being captured already; end it first");
        return NULL;
    }
    PyObject *kept = PyList_New(0);
    if (!kept) return NULL;
    sp_status status = c->seam->capture_begin(c->comm, sp_stream_of(stream));
    if (status) {
        Py_DECREF(kept);
        return sp_coordinator_fail(c, status, c->seam->error());
    }
    c->kept = kept;
    Py_RETURN_NONE;
}

PyObject *sp_coordinator_end_graph(PyObject *self, PyObject *args) {
    coordinator_object *c = (coordinator_object *)self;
    unsigned long long stream = 0;
    if (!PyArg_ParseTuple(args, "|K", &stream) || !sp_coordinator_ready(c)) return NULL;
    if (!c->kept) {
        PyErr_SetString(c->state->error, "no graph is being captured; begin one first");
        return NULL;
    }
    graph_object *g = PyObject_GC_New(graph_object, c->state->graph_type);
    if (!g) return NULL;
    g->graph = NULL;
    g->seam = c->seam;
    g->stream = sp_stream_of(stream);
    g->coordinator = (coordinator_object *)Py_NewRef(c);
    g->kept = c->kept;
    c->kept = NULL;
    sp_status status = c->seam->capture_end(c->comm, g->stream, &g->graph);
    PyObject_GC_Track(g);
    if (!status) return (PyObject *)g;
    sp_coordinator_fail(c, status, c->seam->error());
    Py_DECREF(g);
    return NULL;
}

/* Many replays between one look at the clock: what a measurement wants. */
static PyObject *graph_replay(PyObject *self, PyObject *args) {
    graph_object *g = (graph_object *)self;
    coordinator_object *c = g->coordinator;
    Py_ssize_t times = 1;
    int timed = 0;
    if (!PyArg_ParseTuple(args, "|np", &times, &timed)) return NULL;
    if (times < 1) {
        PyErr_Format(PyExc_ValueError, "times=%zd: give 1 or more", times);
        return NULL;
    }
    double device_us = -1;
    int64_t host_ns = 0;
    if (!sp_coordinator_enter(c)) return NULL;
    sp_status status = timed ? c->seam->mark(c->comm, 0, g->stream) : SP_OK;
    bool interrupted = false;
    for (Py_ssize_t done = 0; done < times && !status && !interrupted; done += STRIDE) {
        Py_ssize_t end = times - done > STRIDE ? done + STRIDE : times;
        PyThreadState *released = PyEval_SaveThread();
        int64_t start = sp_now_ns();
        for (Py_ssize_t i = done; i < end && !status; i++)
            status = c->seam->replay(c->comm, g->graph, g->stream, sp_coordinator_deadline(c));
        host_ns += sp_now_ns() - start;
        PyEval_RestoreThread(released);
        interrupted = PyErr_CheckSignals() < 0;
    }
    if (timed && !status && !interrupted) {
        Py_BEGIN_ALLOW_THREADS status = c->seam->mark(c->comm, 1, g->stream);
        if (!status) status = c->seam->wait(c->comm, g->stream, sp_coordinator_deadline(c));
        if (!status) status = c->seam->elapsed(c->comm, &device_us, sp_coordinator_deadline(c));
        Py_END_ALLOW_THREADS
    }
    sp_coordinator_done(c);
    if (interrupted) {
        sp_coordinator_break(c, "a replay was interrupted");
        return NULL;
    }
    if (status) return sp_coordinator_fail(c, status, c->seam->error());
    return timed ? Py_BuildValue("(dd)", (double)host_ns / 1000, device_us) : Py_NewRef(Py_None);
}

static int graph_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((graph_object *)self)->coordinator);
    Py_VISIT(((graph_object *)self)->kept);
    return 0;
}

static void graph_dealloc(PyObject *self) {
    graph_object *g = (graph_object *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    coordinator_object *c = g->coordinator;
    if (g->graph && c->seam)
        sp_coordinator_drop(c, SP_DROP_GRAPH, g->graph);
    else if (g->graph && g->seam == &sp_host_seam)
        g->seam->graph_free(NULL, g->graph); /* on GPUs, leaving has freed it */
    Py_DECREF((PyObject *)c);
    Py_DECREF(g->kept);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef graph_methods[] = {
    {"replay", graph_replay, METH_VARARGS,
     "replay($self, times=1, timed=False, /)\n--\n\nRuns what was captured. Timed: waits, and answers (host, device) "
     "microseconds in "
     "all."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot graph_slots[] = {
    {Py_tp_doc, "Captured calls of one rank."},
    {Py_tp_dealloc, graph_dealloc},
    {Py_tp_traverse, graph_traverse},
    {Py_tp_methods, graph_methods},
    {0, NULL},
};

PyType_Spec sp_graph_spec = {
    .name = "sglang_probe._core.Graph",
    .basicsize = sizeof(graph_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = graph_slots,
};
