/* Recorder: one process's ring and what all wrapped calls share. Made by
 * sglang_probe/hook; its methods are in core_hook_methods.c. Invariant: closed
 * or never opened, `control` is a word that never records, so that a wrapped
 * call needs no other look. */
#include "core_hook.h"

#include <string.h>
#include <unistd.h>

#include "host/board_shared.h"

enum { NAMES_BYTES = 256 << 10 };

static const sp_ring_control never;

const sp_ring_control *sp_hook_never(void) { return &never; }

/* Wrapped calls go on without it. A child of a fork leaves its parent's file as
 * it is. */
void sp_recorder_close(recorder_object *r) {
    r->control = &never;
    if (!r->ring.map) return;
    if (sp_hook_forks() == r->forks)
        sp_ring_close(&r->ring);
    else
        sp_ring_leave(&r->ring);
}

recorder_object *sp_recorder_of(PyObject *object, const core_state *state) {
    if (!Py_IS_TYPE(object, state->recorder_type)) {
        PyErr_Format(PyExc_TypeError, "recorder: a %s is none", Py_TYPE(object)->tp_name);
        return NULL;
    }
    recorder_object *r = (recorder_object *)object;
    if (r->ring.map && sp_hook_forks() == r->forks) return r;
    PyErr_Format(state->error, "this Recorder is %s; make a new one",
                 r->ring.map ? "another process's, which this one was forked from" : "closed");
    return NULL;
}

static bool make_parts(recorder_object *r) {
    r->timer = Py_NewRef(Py_None);
    r->expect = Py_NewRef(Py_None);
    r->reported = PySet_New(NULL);
    r->skipped = PyTuple_New(0);
    r->outer = PyList_New(0);
    bool made = r->reported && r->skipped && r->outer && sp_hook_facts_init(r) == 0;
    for (int i = 0; made && i < SP_NAMED_COUNT; i++) {
        PyObject *nothing = PyUnicode_FromString("");
        r->ids[i] = PyDict_New();
        r->texts[i] = PyList_New(0);
        made = nothing && r->ids[i] && r->texts[i] && PyList_Append(r->texts[i], nothing) == 0;
        Py_XDECREF(nothing);
    }
    return made;
}

static PyObject *recorder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"path", "slots", "graphs", "kinds", "release", NULL};
    PyObject *path = NULL, *text = NULL;
    const char *release = "";
    sp_ring_shape shape = {65536, 8192, 16384, NAMES_BYTES};
    char state_of_process = 0;
    core_state *state = sp_state_of_type(type);
    if (!state || !PyArg_ParseTupleAndKeywords(args, kwargs, "O&|KKKs", names, PyUnicode_FSConverter, &path, &shape.slots,
                                               &shape.graphs, &shape.kinds, &release))
        return NULL;
    recorder_object *r = (recorder_object *)type->tp_alloc(type, 0);
    text = r ? PyUnicode_DecodeFSDefault(PyBytes_AS_STRING(path)) : NULL;
    if (!r || !text) goto done;
    r->control = &never;
    r->state = state;
    r->path = text;
    r->forks = sp_hook_forks();
    if (!make_parts(r)) goto fail;
    sp_ring_writer writer = {sp_process_started((uint32_t)getpid(), &state_of_process), release};
    sp_status status = sp_ring_create(PyBytes_AS_STRING(path), &shape, &writer, &r->ring);
    if (status) {
        sp_raise_text(state, status, sp_error());
        goto fail;
    }
    r->control = r->ring.control;
    goto done;

fail:
    Py_CLEAR(r);
done:
    if (!text) Py_CLEAR(r);
    Py_DECREF(path);
    return (PyObject *)r;
}

static int recorder_traverse(PyObject *self, visitproc visit, void *arg) {
    recorder_object *r = (recorder_object *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(r->timer);
    Py_VISIT(r->expect);
    Py_VISIT(r->outer);
    for (int i = 0; i < SP_HOOK_TYPES; i++) Py_VISIT(r->type[i].type);
    for (int i = 0; r->code && i < SP_HOOK_CODES; i++) Py_VISIT(r->code[i].code);
    return sp_hook_sources_traverse(r, visit, arg);
}

/* What may lead back to the recorder; everything else goes with it. */
static int recorder_clear(PyObject *self) {
    recorder_object *r = (recorder_object *)self;
    if (r->timer) Py_XSETREF(r->timer, Py_NewRef(Py_None));
    if (r->expect) Py_XSETREF(r->expect, Py_NewRef(Py_None));
    sp_hook_sources_clear(r);
    return 0;
}

static void recorder_dealloc(PyObject *self) {
    recorder_object *r = (recorder_object *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    sp_recorder_close(r);
    recorder_clear(self);
    sp_hook_sites_clear(r);
    sp_hook_facts_clear(r);
    for (int i = 0; i < SP_NAMED_COUNT; i++) {
        Py_CLEAR(r->ids[i]);
        Py_CLEAR(r->texts[i]);
    }
    for (int i = 0; i < SP_HOOK_GROUPS; i++) Py_CLEAR(r->group[i].text);
    Py_CLEAR(r->timer);
    Py_CLEAR(r->expect);
    Py_CLEAR(r->reported);
    Py_CLEAR(r->skipped);
    Py_CLEAR(r->outer);
    Py_CLEAR(r->path);
    PyMem_Free(r->calls);
    PyMem_Free(r->expected_memory);
    PyMem_Free(r->graphs.row);
    type->tp_free(self);
    Py_DECREF(type);
}

/* ---- attributes ---- */

/* A control word, as an attribute. */
typedef struct word {
    const char *name;
    size_t at; /* in sp_ring_control */
    bool is_switch;
} word;
static const word site_every = {"site_every", offsetof(sp_ring_control, site_every), false};
static const word timer_every = {"timer_every", offsetof(sp_ring_control, timer_every), false};
static const word host_time = {"host_time", offsetof(sp_ring_control, host_time), true};

static _Atomic uint32_t *control_word(recorder_object *r, const word *w) {
    return (_Atomic uint32_t *)((char *)r->ring.control + w->at);
}

static PyObject *get_word(PyObject *self, void *closure) {
    recorder_object *r = (recorder_object *)self;
    const word *w = closure;
    uint32_t value = r->ring.map ? atomic_load_explicit(control_word(r, w), memory_order_relaxed) : 0;
    return w->is_switch ? PyBool_FromLong(value != 0) : PyLong_FromUnsignedLong(value);
}

static bool parse_u32(PyObject *value, const char *what, uint32_t *word) {
    if (!value) {
        PyErr_Format(PyExc_AttributeError, "%s cannot be deleted", what);
        return false;
    }
    unsigned long long number = PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred()) return false;
    if (number > UINT32_MAX) {
        PyErr_Format(PyExc_ValueError, "%s=%R: give 0 to 2^32 - 1", what, value);
        return false;
    }
    *word = (uint32_t)number;
    return true;
}

static int set_word(PyObject *self, PyObject *value, void *closure) {
    recorder_object *r = (recorder_object *)self;
    const word *w = closure;
    uint32_t number;
    if (!sp_recorder_of(self, r->state) || !parse_u32(value, w->name, &number)) return -1;
    atomic_store_explicit(control_word(r, w), w->is_switch ? number != 0 : number, memory_order_relaxed);
    return 0;
}

static PyObject *get_context(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromUnsignedLong(((recorder_object *)self)->context);
}

static int set_context(PyObject *self, PyObject *value, void *closure) {
    (void)closure;
    return parse_u32(value, "context", &((recorder_object *)self)->context) ? 0 : -1;
}

static PyObject *get_label(PyObject *self, void *closure) {
    (void)closure;
    recorder_object *r = (recorder_object *)self;
    return Py_NewRef(sp_hook_text(r, SP_NAMED_GRAPH, r->graph_label));
}

static int set_label(PyObject *self, PyObject *value, void *closure) {
    (void)closure;
    recorder_object *r = (recorder_object *)self;
    if (value && PyUnicode_Check(value)) return sp_hook_intern(r, SP_NAMED_GRAPH, value, &r->graph_label) ? 0 : -1;
    PyErr_SetString(PyExc_TypeError, "label: give a str");
    return -1;
}

static PyObject *get_timer(PyObject *self, void *closure) {
    (void)closure;
    return Py_NewRef(((recorder_object *)self)->timer);
}

static int set_timer(PyObject *self, PyObject *value, void *closure) {
    (void)closure;
    recorder_object *r = (recorder_object *)self;
    if (!value || (value != Py_None && !PyCallable_Check(value))) {
        PyErr_SetString(PyExc_TypeError, "timer: give a callable, or None");
        return -1;
    }
    Py_SETREF(r->timer, Py_NewRef(value));
    return 0;
}

static PyObject *get_recording(PyObject *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(atomic_load_explicit(&((recorder_object *)self)->control->control, memory_order_relaxed) & 1);
}

static PyObject *get_pending(PyObject *self, void *closure) {
    (void)closure;
    return PyBool_FromLong(((recorder_object *)self)->pending);
}

static PyObject *get_path(PyObject *self, void *closure) {
    (void)closure;
    return Py_NewRef(((recorder_object *)self)->path);
}

static PyGetSetDef recorder_getset[] = {
    {"path", get_path, NULL, "The ring file.", NULL},
    {"recording", get_recording, NULL, "Whether calls are recorded now.", NULL},
    {"pending", get_pending, NULL, "alarms() may have something new.", NULL},
    {"context", get_context, set_context, "Bits of CONTEXTS that hold now, whatever the sources say.", NULL},
    {"label", get_label, set_label, "What the graphs that are captured next are for.", NULL},
    {"site_every", get_word, set_word, "The call site of every n-th call; 0: of none.", (void *)&site_every},
    {"timer_every", get_word, set_word, "Every n-th eager call goes to the timer; 0: none.", (void *)&timer_every},
    {"host_time", get_word, set_word, "Whether each call's host time is taken.", (void *)&host_time},
    {"timer", get_timer, set_timer,
     "timer(None) before a call gives a token, timer(token, seq) follows; "
     "None: no timer.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot recorder_slots[] = {
    {Py_tp_doc, "Recorder(path, slots=65536, graphs=8192, kinds=16384, release='')\n--\n\n"
                "One process's ring file, and what wrapped calls share. Slots and kinds "
                "are powers of two."},
    {Py_tp_new, recorder_new},
    {Py_tp_dealloc, recorder_dealloc},
    {Py_tp_traverse, recorder_traverse},
    {Py_tp_clear, recorder_clear},
    {Py_tp_methods, sp_recorder_methods},
    {Py_tp_getset, recorder_getset},
    {0, NULL},
};

PyType_Spec sp_recorder_spec = {
    .name = "sglang_probe._core.Recorder",
    .basicsize = sizeof(recorder_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = recorder_slots,
};
