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

static SP_RARE int ask_truth(PyObject *value) {
    int truth = value ? PyObject_IsTrue(value) : -1;
    Py_XDECREF(value);
    return truth;
}

/* 1, 0, or -1 with an exception. Takes the reference. */
static inline int is_true(PyObject *value) {
    if (value != Py_True && value != Py_False && value != Py_None) return ask_truth(value);
    int truth = value == Py_True;
    Py_DECREF(value); /* there are more of these */
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
static SP_RARE PyObject *value_of_first(const hook_name *name, PyObject *first) {
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

static SP_RARE PyObject *value_elsewhere(const hook_source *s) {
    return s->name.parts ? sp_hook_name_get(&s->name, s->where) : PyObject_CallNoArgs(s->where);
}

/* A dict has a number that is no other dict's and changes with whatever is stored in it, up to Python 3.13; 0: it has none. */
static inline uint64_t version_of(PyObject *dict) {
#if PY_VERSION_HEX < 0x030E0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return ((PyDictObject *)dict)->ma_version_tag;
#pragma GCC diagnostic pop
#else
    (void)dict;
    return 0;
#endif
}

static SP_RARE PyObject *look_at_item(hook_source *s) {
    PyObject *item = PyDict_GetItemWithError(s->where, s->name.part[0]);
    if (!item && PyErr_Occurred()) return NULL;
    if (!item) item = Py_False;
    bool is_plain = PyDict_CheckExact(s->where) && (item == Py_True || item == Py_False || item == Py_None);
    /* A dict that shares an object's own values keeps its number in 3.13 when an attribute is set. */
    is_plain = is_plain && !((PyDictObject *)s->where)->ma_values;
    s->version = is_plain ? version_of(s->where) : 0;
    s->was_true = item == Py_True;
    return Py_NewRef(item);
}

static inline int truth_of_attribute(PyObject *of, PyObject *name) {
    PyObject *value = NULL;
    int found = look_up(of, name, &value);
    return found > 0 ? is_true(value) : found;
}

static SP_RARE int hold(const recorder_object *r, const hook_source *s, hook_held *held, PyObject *first) {
    unsigned now = r->forgotten;
    PyObject *object = NULL;
    int truth = look_up(first, s->name.part[0], &object);
    if (truth > 0 && object != Py_None) {
        PyObject *of = PyWeakref_NewRef(first, NULL), *weak = of ? PyWeakref_NewRef(object, NULL) : NULL;
        if (!weak) sp_hook_drop(); /* of a kind that has none: it is asked for each time */
        hook_held old = *held;
        *held = (hook_held){of, weak, now};
        Py_XDECREF(old.of);
        Py_XDECREF(old.object);
        truth = truth_of_attribute(object, s->name.part[1]);
    } else if (truth > 0)
        truth = 0;
    Py_XDECREF(object);
    return truth;
}

/* Of "communicator.switch". */
static inline int truth_of_held(const recorder_object *r, hook_source *s, PyObject *first) {
    hook_held *held = &s->held[sp_hook_place(first)];
    if (!held->object || held->at != r->forgotten || sp_hook_referent(held->of) != first) return hold(r, s, held, first);
    PyObject *object = sp_hook_referent(held->object);
    if (!object) return hold(r, s, held, first);
    Py_INCREF(object);
    int truth = truth_of_attribute(object, s->name.part[1]);
    Py_DECREF(object);
    return truth;
}

static inline int truth_of(const recorder_object *r, hook_source *s, PyObject *first) {
    if (s->is_item && s->where) return s->version && s->version == version_of(s->where) ? s->was_true : is_true(look_at_item(s));
    if (!s->where && s->name.parts == 2) return truth_of_held(r, s, first);
    return is_true(s->where || !s->name.parts ? value_elsewhere(s) : value_of_first(&s->name, first));
}

static SP_RARE void free_sources(hook_sources *sources) {
    for (Py_ssize_t i = 0; i < sources->count; i++) {
        Py_CLEAR(sources->of[i].where);
        sp_hook_name_clear(&sources->of[i].name);
        for (int at = 0; at < SP_HOOK_OWNERS; at++) {
            Py_CLEAR(sources->of[i].held[at].of);
            Py_CLEAR(sources->of[i].held[at].object);
        }
    }
    PyMem_Free(sources);
}

static inline void release_sources(hook_sources *sources) {
    if (sources && !--sources->users) free_sources(sources);
}

SP_OFTEN uint32_t sp_hook_context(recorder_object *r, uint32_t thread, PyObject *first) {
    uint32_t context = r->context | (r->capturing == thread ? SP_CTX(STREAM) : 0);

    hook_sources *sources = r->sources;
    if (!sources) return context;
    sources->users++;
    for (Py_ssize_t i = 0; i < sources->count; i++) {
        hook_source *s = &sources->of[i];
        if ((s->when && !(s->when & context)) || (!s->where && !first)) continue;
        int truth = truth_of(r, s, first);
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
static SP_RARE uint16_t id_of(recorder_object *r, PyObject *text) {
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
static SP_RARE uint16_t chosen(recorder_object *r, wrapper_object *w, PyObject *which) {
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

static SP_RARE uint16_t read_group(recorder_object *r, wrapper_object *w, PyObject *first, hook_owner *owner) {
    unsigned now = r->forgotten;
    uint16_t id = id_of(r, sp_hook_name_get(&w->group_name, first));
    PyObject *weak = id ? PyWeakref_NewRef(first, NULL) : NULL, *old = owner->weak;
    if (id && !weak) sp_hook_drop(); /* of a kind that has none: its name is read each time */
    *owner = (hook_owner){weak, now, id};
    Py_XDECREF(old);
    return id;
}

SP_OFTEN uint16_t sp_hook_group(recorder_object *r, wrapper_object *w, PyObject *const *args, Py_ssize_t count,
                                PyObject *keywords) {
    if (w->chooser) return chosen(r, w, sp_hook_argument(w->which, w->which_keyword, args, count, keywords));
    if (!w->group_name.parts) return w->group;
    if (!count) return 0;
    hook_owner *owner = &w->owner[sp_hook_place(args[0])];
    bool known = owner->weak && owner->at == r->forgotten && sp_hook_referent(owner->weak) == args[0];
    return known ? owner->group : read_group(r, w, args[0], owner);
}
