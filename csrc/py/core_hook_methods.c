/* What Python can call of a Recorder. Used by core_hook_recorder.c's type.
 * Invariant: signatures are those of _core.pyi; a closed Recorder, or one of
 * the process that this one was forked from, is refused. */
#include "core_hook.h"

#include <string.h>
#include <unistd.h>

#include "core/deadline.h"

#define NAMED(name, function, doc) \
    { name, (PyCFunction)(void (*)(void))function, METH_VARARGS | METH_KEYWORDS, doc }

static recorder_object *open_one(PyObject *self) { return sp_recorder_of(self, ((recorder_object *)self)->state); }

static PyObject *set_recording(PyObject *self, bool on) {
    recorder_object *r = open_one(self);
    if (!r) return NULL;
    uint32_t word = atomic_load_explicit(&r->ring.control->control, memory_order_relaxed);
    while ((word & 1) != on && !atomic_compare_exchange_weak_explicit(&r->ring.control->control, &word, word + 1,
                                                                      memory_order_relaxed, memory_order_relaxed))
        ;
    Py_RETURN_NONE;
}

static PyObject *recorder_start(PyObject *self, PyObject *unused) {
    (void)unused;
    return set_recording(self, true);
}

static PyObject *recorder_stop(PyObject *self, PyObject *unused) {
    (void)unused;
    return set_recording(self, false);
}

static PyObject *recorder_set_rank(PyObject *self, PyObject *args) {
    int rank;
    unsigned int size;
    recorder_object *r = PyArg_ParseTuple(args, "iI", &rank, &size) ? open_one(self) : NULL;
    if (!r) return NULL;
    atomic_store_explicit(&r->ring.control->rank, rank, memory_order_relaxed);
    atomic_store_explicit(&r->ring.control->world_size, size, memory_order_relaxed);
    Py_RETURN_NONE;
}

static PyObject *recorder_set_sources(PyObject *self, PyObject *sources) {
    if (!sp_hook_sources_set((recorder_object *)self, sources)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *recorder_set_expect(PyObject *self, PyObject *expect) {
    if (!sp_hook_expect_set((recorder_object *)self, expect)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *recorder_forget(PyObject *self, PyObject *unused) {
    (void)unused;
    sp_hook_forget((recorder_object *)self);
    Py_RETURN_NONE;
}

static PyObject *recorder_set_skipped(PyObject *self, PyObject *files) {
    recorder_object *r = (recorder_object *)self;
    bool good = PyTuple_Check(files);
    for (Py_ssize_t i = 0; good && i < PyTuple_GET_SIZE(files); i++) good = PyUnicode_Check(PyTuple_GET_ITEM(files, i));
    if (!good) {
        PyErr_SetString(PyExc_TypeError, "skipped files are a tuple of str");
        return NULL;
    }
    PyObject *old = r->skipped;
    r->skipped = Py_NewRef(files);
    sp_hook_sites_forget(r);
    Py_DECREF(old);
    Py_RETURN_NONE;
}

/* The kind of name by its word. */
static bool parse_kind(const char *text, sp_named *kind) {
    static const char *const names[] = {
#define X(id, name, text) name,
        SP_RING_NAMES(X)
#undef X
    };
    for (int i = 0; i < SP_NAMED_COUNT; i++)
        if (!strcmp(names[i], text)) {
            *kind = (sp_named)i;
            return true;
        }
    PyErr_Format(PyExc_ValueError, "kind='%s': it is none of RING_NAMES", text);
    return false;
}

static PyObject *recorder_intern(PyObject *self, PyObject *args) {
    const char *kind_name;
    PyObject *text;
    sp_named kind;
    uint32_t id;
    if (!PyArg_ParseTuple(args, "sU", &kind_name, &text) || !parse_kind(kind_name, &kind)) return NULL;
    recorder_object *r = open_one(self);
    if (!r) return NULL;
    return sp_hook_intern(r, kind, text, &id) ? PyLong_FromUnsignedLong(id) : NULL;
}

/* ---- graphs ---- */

static PyObject *recorder_graph_begin(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"label", NULL};
    PyObject *label = NULL;
    uint32_t id = 0;
    recorder_object *r = PyArg_ParseTupleAndKeywords(args, kwargs, "|U", names, &label) ? open_one(self) : NULL;
    if (!r) return NULL;
    if (label && !sp_hook_intern(r, SP_NAMED_GRAPH, label, &id)) return NULL;

    r->capturing = sp_hook_thread()->number;
    r->graph_now = sp_ring_graph_begin(&r->ring, label ? id : r->graph_label);
    return PyLong_FromUnsignedLong(r->graph_now);
}

static PyObject *recorder_graph_end(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"graph", NULL};
    unsigned int graph = 0;
    recorder_object *r = PyArg_ParseTupleAndKeywords(args, kwargs, "|I", names, &graph) ? open_one(self) : NULL;
    if (!r) return NULL;
    sp_ring_graph_end(&r->ring, graph ? graph : r->graph_now);

    if (!graph || graph == r->graph_now) r->graph_now = r->capturing = 0;

    Py_RETURN_NONE;
}

static PyObject *recorder_graph_replayed(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"graph", "times", NULL};
    unsigned int graph;
    unsigned long long times = 1;
    recorder_object *r = PyArg_ParseTupleAndKeywords(args, kwargs, "I|K", names, &graph, &times) ? open_one(self) : NULL;
    if (!r) return NULL;
    if (sp_ring_graph_replayed(&r->ring, graph, times)) Py_RETURN_NONE;
    PyErr_Format(PyExc_ValueError, "graph=%u: graph_begin() has not given this number", graph);
    return NULL;
}

static PyObject *recorder_registered(PyObject *self, PyObject *addresses) {
    uint64_t count;
    recorder_object *r = sp_parse_word(addresses, &count) ? open_one(self) : NULL;
    if (!r) return NULL;
    sp_ring_registered(&r->ring, count);
    Py_RETURN_NONE;
}

/* ---- records ---- */

static PyObject *recorder_timed(PyObject *self, PyObject *args) {
    unsigned long long seq;
    unsigned int ns;
    sp_record record;
    recorder_object *r = PyArg_ParseTuple(args, "KI", &seq, &ns) ? open_one(self) : NULL;
    if (!r) return NULL;
    if (!sp_ring_amend(&r->ring, seq, ns, &record)) Py_RETURN_FALSE;
    sp_kind_row *row = sp_ring_kind(&r->ring, &record);
    if (row) {
        atomic_fetch_add_explicit(&row->device_ns, ns, memory_order_relaxed);
        atomic_fetch_add_explicit(&row->timed, 1, memory_order_relaxed);
    }
    Py_RETURN_TRUE;
}

static bool in_range(const char *what, unsigned int value, unsigned int count, bool or_none) {
    if (value < count || (or_none && value == SP_RING_NONE)) return true;
    PyErr_Format(PyExc_ValueError, "%s=%u: there are %u", what, value, count);
    return false;
}

static PyObject *recorder_put(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"group",  "entry",    "path",  "nbytes", "dtype",   "rows",  "context", "op",
                            "kernel", "expected", "graph", "site",   "host_ns", "flags", NULL};
    PyObject *text[SP_NAMED_COUNT] = {NULL};
    unsigned int path, dtype = SP_RING_NONE, rows = 0, context = 0, op = 0, expected = SP_RING_NONE, graph = 0, host_ns = 0,
                       flags = 0;
    uint32_t id[SP_NAMED_COUNT] = {0};
    unsigned long long nbytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UUIK|IIIIUIIUII", names, &text[SP_NAMED_GROUP], &text[SP_NAMED_ENTRY], &path,
                                     &nbytes, &dtype, &rows, &context, &op, &text[SP_NAMED_KERNEL], &expected, &graph,
                                     &text[SP_NAMED_SITE], &host_ns, &flags))
        return NULL;
    if (!in_range("path", path, SP_PATH_COUNT, true) || !in_range("dtype", dtype, SP_DTYPE_COUNT, true) ||
        !in_range("op", op, SP_RING_OP_COUNT, false) || !in_range("expected", expected, SP_PATH_COUNT, true) ||
        !in_range("graph", graph, SP_RING_GRAPHS_MAX + 1, false) || !in_range("flags", flags, 1u << SP_FLAG_COUNT, false))
        return NULL;
    recorder_object *r = open_one(self);
    for (int i = 0; i < SP_NAMED_COUNT && r; i++)
        if (text[i] && !sp_hook_intern(r, (sp_named)i, text[i], &id[i])) return NULL;
    if (!r) return NULL;
    sp_record record = {.time_ns = (uint64_t)sp_now_ns(), .nbytes = nbytes, .host_ns = host_ns, .rows = rows, .context = context};
    record.thread = sp_hook_thread()->number;
    record.group = (uint16_t)id[SP_NAMED_GROUP], record.entry = (uint8_t)id[SP_NAMED_ENTRY];
    record.site = (uint16_t)id[SP_NAMED_SITE], record.kernel = (uint8_t)id[SP_NAMED_KERNEL];
    record.path = (uint8_t)path, record.expected = (uint8_t)expected, record.dtype = (uint8_t)dtype, record.op = (uint8_t)op;
    record.graph = (uint16_t)graph, record.flags = (uint16_t)flags | SP_FLAG(BY_HAND),
    record.phase = (uint8_t)sp_phase_of(context);
    return PyLong_FromUnsignedLongLong(sp_hook_write(r, &record, NULL));
}

/* ---- counts, end ---- */

static bool set_count(PyObject *dict, const char *name, uint64_t value) {
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    bool set = number && PyDict_SetItemString(dict, name, number) == 0;
    Py_XDECREF(number);
    return set;
}

static PyObject *recorder_counts(PyObject *self, PyObject *unused) {
    (void)unused;
    static const char *const names[] = {
#define X(type, numpy, field, text) #field,
        SP_COUNT_FIELDS(X)
#undef X
    };
    const recorder_object *r = open_one(self);
    if (!r) return NULL;
    const sp_ring_counts *c = r->ring.counts;
    const uint64_t slots = r->ring.shape.slots;
    const uint64_t values[] = {
#define X(type, numpy, field, text) atomic_load_explicit(&c->field, memory_order_relaxed),
        SP_COUNT_FIELDS(X)
#undef X
    };
    const uint64_t head = values[0]; /* the first field */
    PyObject *dict = PyDict_New();   /* Python may run: the ring may be gone */
    bool good = dict && set_count(dict, "overwritten", head > slots ? head - slots : 0);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) good = good && set_count(dict, names[i], values[i]);
    if (!good) Py_CLEAR(dict);
    return dict;
}

static PyObject *recorder_close(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"remove", NULL};
    recorder_object *r = (recorder_object *)self;
    int removed = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|p", names, &removed)) return NULL;
    bool is_ours = r->ring.map && sp_hook_forks() == r->forks;
    PyObject *path = removed && is_ours ? PyUnicode_EncodeFSDefault(r->path) : NULL;
    if (removed && is_ours && !path) return NULL;
    sp_recorder_close(r);
    if (path) unlink(PyBytes_AS_STRING(path));
    Py_XDECREF(path);
    Py_RETURN_NONE;
}

PyMethodDef sp_recorder_methods[] = {
    {"start", recorder_start, METH_NOARGS,
     "start($self, /)\n--\n\nWrapped calls are recorded from here on; calls "
     "are numbered anew."},
    {"stop", recorder_stop, METH_NOARGS, "stop($self, /)\n--\n\nWrapped calls are only passed on."},
    {"set_rank", recorder_set_rank, METH_VARARGS,
     "set_rank($self, rank, world_size, /)\n--\n\nWho this process is, once it "
     "knows."},
    {"set_sources", recorder_set_sources, METH_O,
     "set_sources($self, sources, /)\n--\n\nWhere context bits come from: "
     "((bits, where, name, when), ...)."},
    {"set_expect", recorder_set_expect, METH_O,
     "set_expect($self, expect, /)\n--\n\nWho knows the expected path: called "
     "once for everything that decides it."},
    {"forget", recorder_forget, METH_NOARGS, "forget($self, /)\n--\n\nExpected paths and groups' names are asked for anew."},
    {"set_skipped", recorder_set_skipped, METH_O,
     "set_skipped($self, files, /)\n--\n\nA call site is the first frame whose "
     "file name contains none of these."},
    {"intern", recorder_intern, METH_VARARGS, "intern($self, kind, text, /)\n--\n\nThe number of a name; 0: no room."},
    {"alarms", sp_hook_alarms, METH_NOARGS,
     "alarms($self, /)\n--\n\nAlarms that are new: [(group, entry, path, "
     "expected, calls so far, first_ns), ...]."},
    NAMED("graph_begin", recorder_graph_begin,
          "graph_begin($self, label='')\n--\n\nA capture begins: the graph's "
          "number; 0: no room."),
    NAMED("graph_end", recorder_graph_end,
          "graph_end($self, graph=0)\n--\n\nIt ends; 0: the one that began "
          "last."),
    NAMED("graph_replayed", recorder_graph_replayed, "graph_replayed($self, graph, times=1)\n--\n\nIt ran."),
    {"registered", recorder_registered, METH_O,
     "registered($self, addresses, /)\n--\n\nSo many addresses were registered "
     "for all graphs captured since the last time."},
    {"timed", recorder_timed, METH_VARARGS,
     "timed($self, seq, device_ns, /)\n--\n\nA record's device time, once it "
     "is known; False: it was overwritten."},
    NAMED("put", recorder_put,
          "put($self, group, entry, path, nbytes, dtype=255, rows=0, "
          "context=0, op=0, kernel='', expected=255, graph=0, site='', "
          "host_ns=0, flags=0)\n--\n\nA record by hand, whether recording or "
          "not: its seq."),
    {"counts", recorder_counts, METH_NOARGS,
     "counts($self, /)\n--\n\nThe ring's counters, and how many records were "
     "overwritten."},
    NAMED("close", recorder_close,
          "close($self, remove=False)\n--\n\nSays goodbye; the file stays "
          "unless `remove`."),
    {NULL, NULL, 0, NULL},
};
