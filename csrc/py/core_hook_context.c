/* What surrounds a call: context bits from the hook's sources, and the group's
 * name. Called once a recorded call. Invariant: a source that fails sets
 * nothing and is counted; sources may be replaced while one of them runs. */
#include "core_hook.h"

#include <string.h>

/* ---- dotted names ---- */

bool sp_hook_name_parse(PyObject *text, hook_name *name) {
    *name = (hook_name){.parts = 0};
    Py_ssize_t length;
    const char *at = PyUnicode_AsUTF8AndSize(text, &length), *end = at ? at + length : NULL;
    while (at && at < end) {
        const char *dot = memchr(at, '.', (size_t)(end - at)), *stop = dot ? dot : end;
        if (name->parts == SP_HOOK_PARTS) {
            PyErr_Format(PyExc_ValueError, "%R: give at most %d names with dots between them", text, name->parts);
            break;
        }
        PyObject *part = PyUnicode_FromStringAndSize(at, stop - at);
        if (!part) break;
        PyUnicode_InternInPlace(&part);
        name->part[name->parts++] = part;
        at = dot ? dot + 1 : end;
    }
    if (at && !PyErr_Occurred()) return true;
    sp_hook_name_clear(name);
    return false;
}

void sp_hook_name_clear(hook_name *name) {
    for (; name->parts; name->parts--) Py_CLEAR(name->part[name->parts - 1]); /* the macro reads its argument twice */
}

PyObject *sp_hook_name_get(const hook_name *name, PyObject *of) {
    PyObject *value = Py_NewRef(of);
    for (int i = 0; value && i < name->parts; i++) Py_SETREF(value, PyObject_GetAttr(value, name->part[i]));
    return value;
}

/* 1, 0, or -1 with an exception. Takes the reference. */
static int is_true(PyObject *value) {
    if (!value) return -1;
    int truth = value == Py_True ? 1 : value == Py_False || value == Py_None ? 0 : PyObject_IsTrue(value);
    Py_DECREF(value);
    return truth;
}

bool sp_hook_is_true(const hook_name *name, PyObject *of, recorder_object *r) {
    int truth = is_true(sp_hook_name_get(name, of));
    if (truth < 0) sp_hook_failed(r);
    return truth > 0;
}

/* ---- sources ---- */

/* 1 and a new reference, 0, or -1 with an exception: what is not there costs no exception. */
static int look_up(PyObject *of, PyObject *name, PyObject **value) {
#if PY_VERSION_HEX >= 0x030D0000
    return PyObject_GetOptionalAttr(of, name, value);
#else
    return _PyObject_LookupAttr(of, name, value);
#endif
}

/* What the call's first argument has by this name; None where it has none, or None on the way. */
static PyObject *value_of_first(const hook_name *name, PyObject *first) {
    PyObject *value = Py_NewRef(first);
    for (int i = 0; value != Py_None && i < name->parts; i++) {
        PyObject *next = NULL;
        int found = look_up(value, name->part[i], &next);
        Py_DECREF(value);
        if (found < 0) return NULL;
        value = found ? next : Py_NewRef(Py_None);
    }
    return value;
}

static PyObject *value_of(const hook_source *s, PyObject *first) {
    if (s->is_item) {
        PyObject *item = PyDict_GetItemWithError(s->where, s->name.part[0]);
        return item ? Py_NewRef(item) : PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    }
    if (!s->name.parts) return PyObject_CallNoArgs(s->where);
    return s->where ? sp_hook_name_get(&s->name, s->where) : value_of_first(&s->name, first);
}

static void release_sources(hook_sources *sources) {
    if (!sources || --sources->users) return;
    for (Py_ssize_t i = 0; i < sources->count; i++) {
        Py_CLEAR(sources->of[i].where);
        sp_hook_name_clear(&sources->of[i].name);
    }
    PyMem_Free(sources);
}

uint32_t sp_hook_context(recorder_object *r, uint32_t thread, PyObject *first) {
    uint32_t context = r->context | (r->capturing == thread ? SP_CTX(STREAM) : 0);

    hook_sources *sources = r->sources;
    if (!sources) return context;
    sources->users++;
    for (Py_ssize_t i = 0; i < sources->count; i++) {
        const hook_source *s = &sources->of[i];
        if ((s->when && !(s->when & context)) || (!s->where && !first)) continue;
        int truth = is_true(value_of(s, first));
        if (truth < 0) sp_hook_failed(r);
        if (truth > 0) context |= s->bits;
    }
    release_sources(sources);
    return context;
}

static bool parse_source(PyObject *tuple, hook_source *s) {
    PyObject *bits, *where, *name, *when;
    if (!PyTuple_Check(tuple) || !PyArg_ParseTuple(tuple, "OOUO", &bits, &where, &name, &when)) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a source is a tuple (bits, where, name, when)");
        return false;
    }
    unsigned long on = PyLong_AsUnsignedLong(bits), asked = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLong(when);
    if (PyErr_Occurred()) return false;
    if (on > UINT32_MAX || asked > UINT32_MAX) {
        PyErr_Format(PyExc_ValueError, "bits %lu, when %lu: a context has 32 bits", on, asked);
        return false;
    }
    *s = (hook_source){.bits = (uint32_t)on, .when = (uint32_t)asked};
    if (!sp_hook_name_parse(name, &s->name)) return false;
    s->is_item = PyDict_Check(where);
    if (s->is_item ? s->name.parts != 1 : s->name.parts == 0 && !PyCallable_Check(where)) {
        PyErr_Format(PyExc_ValueError,
                     "a source %R of name %R: a dict has one key, what has no name "
                     "is callable",
                     where, name);
        sp_hook_name_clear(&s->name);
        return false;
    }
    s->where = where == Py_None ? NULL : Py_NewRef(where);
    return true;
}

bool sp_hook_sources_set(recorder_object *r, PyObject *tuple) {
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "sources are a tuple of tuples (bits, where, name, when)");
        return false;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    hook_sources *made = PyMem_Calloc(1, sizeof *made + (size_t)count * sizeof *made->of);
    if (!made) {
        PyErr_NoMemory();
        return false;
    }
    made->users = 1;
    for (; made->count < count; made->count++)
        if (!parse_source(PyTuple_GET_ITEM(tuple, made->count), &made->of[made->count])) {
            release_sources(made);
            return false;
        }
    hook_sources *old = r->sources;
    r->sources = made;
    release_sources(old);
    return true;
}

void sp_hook_sources_clear(recorder_object *r) {
    hook_sources *old = r->sources;
    r->sources = NULL;
    release_sources(old);
}

int sp_hook_sources_traverse(recorder_object *r, visitproc visit, void *arg) {
    for (Py_ssize_t i = 0; r->sources && i < r->sources->count; i++) Py_VISIT(r->sources->of[i].where);
    return 0;
}

/* ---- groups ---- */

/* The id of a group by its name, which is looked at by its address first. Takes the reference. */
static uint16_t id_of(recorder_object *r, PyObject *text) {
    if (!text || !PyUnicode_CheckExact(text)) {
        sp_hook_failed(r);
        Py_XDECREF(text);
        return 0;
    }
    size_t at = ((uintptr_t)text >> 4) % SP_HOOK_GROUPS;
    uint32_t id = r->group[at].id;
    if (r->group[at].text != text) {
        if (!sp_hook_intern(r, SP_NAMED_GROUP, text, &id)) sp_hook_failed(r);
        if (id) {
            PyObject *old = r->group[at].text;
            r->group[at].text = Py_NewRef(text);
            r->group[at].id = (uint16_t)id;
            Py_XDECREF(old);
        }
    }
    Py_DECREF(text);
    return (uint16_t)id;
}

/* What the chooser says, which is asked once for each answer, until the recorder forgets. */
static uint16_t chosen(recorder_object *r, wrapper_object *w, PyObject *which) {
    int truth = which ? is_true(Py_NewRef(which)) : 1;
    if (truth < 0) {
        sp_hook_failed(r);
        return 0;
    }
    unsigned now = r->forgotten;
    if (w->chosen_at != now) w->chosen[0] = w->chosen[1] = 0, w->chosen_at = now;
    if (w->chosen[truth] || !w->chooser) return w->chosen[truth];
    PyObject *chooser = Py_NewRef(w->chooser);
    uint16_t id = id_of(r, PyObject_CallOneArg(chooser, truth ? Py_True : Py_False));
    Py_DECREF(chooser);
    if (w->chosen_at == r->forgotten) w->chosen[truth] = id; /* Python ran */
    return id;
}

uint16_t sp_hook_group(recorder_object *r, wrapper_object *w, PyObject *const *args, Py_ssize_t count, PyObject *keywords) {
    if (w->chooser) return chosen(r, w, sp_hook_argument(w->which, w->which_keyword, args, count, keywords));
    if (!w->group_name.parts) return w->group;
    return count ? id_of(r, sp_hook_name_get(&w->group_name, args[0])) : 0;
}
