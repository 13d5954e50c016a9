/* CUDA graphs: GraphWrapper stands in place of CUDAGraph's capture_begin,
 * capture_end and replay. Called by torch at each. Invariant: a replay costs
 * one look into a table by address and one addition; a graph is known by the
 * object that its capture began on. */
#include "core_hook.h"

#include <string.h>

enum { BEGIN, END, REPLAY, EVENTS };
static const char *const events[EVENTS] = {"begin", "end", "replay"};

static size_t place(const hook_graphs *g, const void *object) {
    size_t at = (size_t)(((uintptr_t)object >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 20);
    for (;; at++) {
        at &= g->size - 1;
        if (!g->row[at].object || g->row[at].object == object) return at;
    }
}

static bool grow(hook_graphs *g) {
    hook_graphs larger = {.size = g->size ? g->size * 2 : 256, .used = g->used};
    larger.row = PyMem_Calloc(larger.size, sizeof *larger.row);
    if (!larger.row) return false;
    for (size_t i = 0; i < g->size; i++)
        if (g->row[i].object) larger.row[place(&larger, g->row[i].object)] = g->row[i];
    PyMem_Free(g->row);
    *g = larger;
    return true;
}

static void began(recorder_object *r, const void *object) {
    hook_graphs *g = &r->graphs;
    r->capturing = sp_hook_thread()->number;
    r->graph_now = sp_ring_graph_begin(&r->ring, r->graph_label);
    if (g->used * 2 >= g->size && !grow(g)) {
        atomic_fetch_add_explicit(&r->ring.counts->failures, 1, memory_order_relaxed);
        return;
    }
    size_t at = place(g, object);
    g->used += !g->row[at].object;
    g->row[at].object = object;
    g->row[at].graph = r->graph_now;
}

static uint32_t graph_of(const hook_graphs *g, const void *object) { return g->size ? g->row[place(g, object)].graph : 0; }

PyObject *sp_hook_graph_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    const wrapper_object *w = (const wrapper_object *)self;
    recorder_object *r = w->recorder;
    const void *object = PyVectorcall_NARGS(nargsf) ? args[0] : NULL;
    PyObject *result = PyObject_Vectorcall(w->original, args, nargsf, keywords);
    if (!r->ring.map || !object || sp_hook_forks() != r->forks) return result;
    switch (w->event) {
    case BEGIN:
        if (result) began(r, object);
        break;
    case END:
        sp_ring_graph_end(&r->ring, graph_of(&r->graphs, object));

        r->graph_now = r->capturing = 0;
        break;
    default:
        if (result) sp_ring_graph_replayed(&r->ring, graph_of(&r->graphs, object), 1);
    }
    return result;
}

static PyObject *graph_wrapper_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"original", "recorder", "event", NULL};
    PyObject *original, *recorder;
    const char *event;
    core_state *state = sp_state_of_type(type);
    if (!state || !PyArg_ParseTupleAndKeywords(args, kwargs, "OOs", names, &original, &recorder, &event)) return NULL;
    recorder_object *r = sp_recorder_of(recorder, state);
    if (!r) return NULL;
    int which = 0;
    while (which < EVENTS && strcmp(event, events[which]) != 0) which++;
    if (which == EVENTS || !PyCallable_Check(original)) {
        PyErr_Format(PyExc_ValueError,
                     "event='%s' of %R: give \"begin\", \"end\" or \"replay\", and "
                     "a callable",
                     event, original);
        return NULL;
    }
    wrapper_object *w = (wrapper_object *)type->tp_alloc(type, 0);
    if (!w) return NULL;
    w->vectorcall = sp_hook_graph_call;
    w->original = Py_NewRef(original);
    w->recorder = (recorder_object *)Py_NewRef(recorder);
    w->event = which;
    return (PyObject *)w;
}

static PyType_Slot graph_wrapper_slots[] = {
    {Py_tp_doc, "GraphWrapper(original, recorder, event)\n--\n\n"
                "A C callable in place of a method of torch.cuda.CUDAGraph: \"begin\" "
                "(capture_begin), \"end\" (capture_end) or \"replay\"."},
    {Py_tp_new, graph_wrapper_new},
    SP_WRAPPER_SLOTS,
    {0, NULL},
};

PyType_Spec sp_graph_wrapper_spec = {
    .name = "sglang_probe._core.GraphWrapper",
    .basicsize = sizeof(wrapper_object),
    .flags = SP_WRAPPER_FLAGS,
    .slots = graph_wrapper_slots,
};
