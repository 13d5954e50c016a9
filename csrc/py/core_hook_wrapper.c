/* Wrapper: a C callable that stands in place of one of SGLang's functions or
 * methods. Made by sglang_probe/hook, one a target. Invariant: to everybody but
 * the interpreter's call it looks like the original: its name, text, module,
 * signature and pickle are the original's, and so is every attribute that it
 * does not have. */
#include "core_hook.h"

#include <string.h>
#include <structmember.h>

int sp_wrapper_traverse(PyObject *self, visitproc visit, void *arg) {
    wrapper_object *w = (wrapper_object *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(w->original);
    Py_VISIT(w->recorder);
    Py_VISIT(w->through);
    Py_VISIT(w->chooser);
    for (int i = 0; i < SP_HOOK_OWNERS; i++) Py_VISIT(w->owner[i].weak);
    for (Py_ssize_t i = 0; i < w->kernels; i++) Py_VISIT(w->kernel[i].result);
    return 0;
}

/* The original and the recorder stay: a call may be on its way. They are given
 * back with the object. */
int sp_wrapper_clear(PyObject *self) {
    wrapper_object *w = (wrapper_object *)self;
    Py_CLEAR(w->through);
    Py_CLEAR(w->chooser);
    for (int i = 0; i < SP_HOOK_OWNERS; i++) Py_CLEAR(w->owner[i].weak);
    for (; w->kernels; w->kernels--) Py_CLEAR(w->kernel[w->kernels - 1].result); /* the macro reads its argument twice */
    return 0;
}

void sp_wrapper_dealloc(PyObject *self) {
    wrapper_object *w = (wrapper_object *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (w->weak) PyObject_ClearWeakRefs(self);
    sp_wrapper_clear(self);
    PyMem_Free(w->kernel);
    sp_hook_name_clear(&w->group_name);
    sp_hook_name_clear(&w->unless);
    Py_CLEAR(w->keyword);
    Py_CLEAR(w->which_keyword);
    Py_CLEAR(w->original);
    Py_CLEAR(w->recorder);
    type->tp_free(self);
    Py_DECREF(type);
}

PyObject *sp_wrapper_bind(PyObject *self, PyObject *instance, PyObject *owner) {
    (void)owner;
    return instance && instance != Py_None ? PyMethod_New(self, instance) : Py_NewRef(self);
}

static bool is_called(PyObject *name, const char *text) { return PyUnicode_CompareWithASCIIString(name, text) == 0; }

/* __wrapped__ is no attribute of the type, where inspect would take it for the
 * type's own. */
PyObject *sp_wrapper_getattro(PyObject *self, PyObject *name) {
    PyObject *original = ((wrapper_object *)self)->original;
    if (is_called(name, "__wrapped__")) return Py_NewRef(original);
    bool is_originals = is_called(name, "__module__") || is_called(name, "__doc__");
    PyObject *found = is_originals ? NULL : PyObject_GenericGetAttr(self, name);
    if (found || (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_AttributeError))) return found;
    PyErr_Clear();
    return PyObject_GetAttr(original, name);
}

PyObject *sp_wrapper_repr(PyObject *self) {
    return PyUnicode_FromFormat("<sglang_probe around %R>", ((wrapper_object *)self)->original);
}

/* By name, as a function is pickled: what stands under it when it is loaded. */
static PyObject *wrapper_reduce(PyObject *self, PyObject *unused) {
    (void)unused;
    return PyObject_GetAttrString(((wrapper_object *)self)->original, "__qualname__");
}

PyMethodDef sp_wrapper_methods[] = {
    {"__reduce__", wrapper_reduce, METH_NOARGS, "__reduce__($self, /)\n--\n\nPickled by its name, as a function is."},
    {NULL, NULL, 0, NULL},
};

PyMemberDef sp_wrapper_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(wrapper_object, vectorcall), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(wrapper_object, weak), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* ---- making one ---- */

static bool parse_op(const char *text, uint8_t *op) {
    static const char *const names[] = {
#define X(id, name, text) name,
        SP_RING_OPS(X)
#undef X
    };
    for (*op = 0; *op < SP_RING_OP_COUNT; ++*op)
        if (!strcmp(names[*op], text)) return true;
    PyErr_Format(PyExc_ValueError, "op='%s': give \"in_place\", \"out_of_place\", \"fused\" or \"\"", text);
    return false;
}

static bool parse_kernels(wrapper_object *w, PyObject *kernels) {
    Py_ssize_t count = PyTuple_GET_SIZE(kernels);
    w->kernel = PyMem_Calloc((size_t)count + 1, sizeof *w->kernel);
    if (!w->kernel) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *pair = PyTuple_GET_ITEM(kernels, i), *result, *name;
        uint32_t id;
        if (!PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "OU", &result, &name)) {
            if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "kernels is a tuple of tuples (result, name)");
            return false;
        }
        if (!sp_hook_intern(w->recorder, SP_NAMED_KERNEL, name, &id)) return false;
        w->kernel[i] = (hook_kernel){Py_NewRef(result), (uint8_t)id};
        w->kernels++;
    }
    return true;
}

static bool parse_through(wrapper_object *w, PyObject *codes) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(codes); i++)
        if (!PyCode_Check(PyTuple_GET_ITEM(codes, i))) {
            PyErr_Format(PyExc_TypeError, "through: %R is no code object", PyTuple_GET_ITEM(codes, i));
            return false;
        }
    if (PyTuple_GET_SIZE(codes)) w->through = Py_NewRef(codes);
    return true;
}

/* ".unique_name" is an attribute of the first argument, another text the name
 * itself; anything else is asked. */
static bool parse_group(wrapper_object *w, PyObject *group) {
    uint32_t id;
    if (!PyUnicode_Check(group)) {
        if (PyCallable_Check(group))
            w->chooser = Py_NewRef(group);
        else
            PyErr_Format(PyExc_TypeError, "group=%R: give a str or a callable", group);
        return w->chooser;
    }
    if (PyUnicode_GET_LENGTH(group) == 0 || PyUnicode_READ_CHAR(group, 0) != '.') {
        if (!sp_hook_intern(w->recorder, SP_NAMED_GROUP, group, &id)) return false;
        w->group = (uint16_t)id;
        return true;
    }
    PyObject *name = PyUnicode_Substring(group, 1, PyUnicode_GET_LENGTH(group));
    bool parsed = name && sp_hook_name_parse(name, &w->group_name);
    Py_XDECREF(name);
    return parsed;
}

/* So that a recording that begins inside of such a call knows it. */
static bool note_outer(wrapper_object *w) {
    PyObject *code = PyObject_GetAttrString(w->original, "__code__");
    if (!code && !PyErr_ExceptionMatches(PyExc_AttributeError)) return false;
    PyErr_Clear();
    int known = code && PyCode_Check(code) ? PySequence_Contains(w->recorder->outer, code) : 1;
    if (known == 0) known = PyList_Append(w->recorder->outer, code);
    Py_XDECREF(code);
    return known >= 0;
}

static void set_keyword(PyObject **kept, PyObject *given) {
    if (!PyUnicode_GET_LENGTH(given)) return;
    *kept = Py_NewRef(given);
    PyUnicode_InternInPlace(kept);
}

static bool set_up(wrapper_object *w, PyObject *entry, const char *op, PyObject *keyword, PyObject *group, PyObject *unless,
                   PyObject *kernels, PyObject *through, PyObject *which) {
    uint32_t id;
    if (!parse_op(op, &w->op) || !sp_hook_intern(w->recorder, SP_NAMED_ENTRY, entry, &id)) return false;
    w->entry = (uint8_t)id;
    if (PyUnicode_GET_LENGTH(entry) && !id) {
        PyErr_Format(PyExc_ValueError, "entry=%R: the ring has no room for its name", entry);
        return false;
    }
    set_keyword(&w->keyword, keyword);
    set_keyword(&w->which_keyword, which);
    return parse_group(w, group) && sp_hook_name_parse(unless, &w->unless) && parse_kernels(w, kernels) &&
           parse_through(w, through) && (!id || note_outer(w));
}

static PyObject *wrapper_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"original", "recorder", "entry",   "path",    "op",    "argument",      "keyword", "group",
                            "dry",      "unless",   "kernels", "through", "which", "which_keyword", NULL};
    core_state *state = sp_state_of_type(type);
    PyObject *original, *recorder, *entry = NULL, *keyword = NULL, *group = NULL, *unless = NULL, *kernels = NULL,
                                   *through = NULL, *which_keyword = NULL;
    const char *op = "";
    Py_ssize_t argument = 1, which = -1;
    int path = -1, dry = -1;
    if (!state || !PyArg_ParseTupleAndKeywords(args, kwargs, "OO|UisnUOiUO!O!nU", names, &original, &recorder, &entry, &path, &op,
                                               &argument, &keyword, &group, &dry, &unless, &PyTuple_Type, &kernels, &PyTuple_Type,
                                               &through, &which, &which_keyword))
        return NULL;
    recorder_object *r = sp_recorder_of(recorder, state);
    if (!r) return NULL;
    if (!PyCallable_Check(original) || path < -1 || path >= SP_PATH_COUNT || dry < -1 || dry > 1 || argument < -1 || which < -1) {
        PyErr_Format(PyExc_ValueError,
                     "%R, path=%d, dry=%d, argument=%zd, which=%zd: give a callable, "
                     "an index in PATHS or -1, -1 to 1, -1 or more, -1 or more",
                     original, path, dry, argument, which);
        return NULL;
    }
    PyObject *nothing = PyUnicode_FromString(""), *none = PyTuple_New(0), *name = PyUnicode_InternFromString(".unique_name");
    wrapper_object *w = nothing && none && name ? (wrapper_object *)type->tp_alloc(type, 0) : NULL;
    if (w) {
        w->vectorcall = sp_hook_call;
        w->original = Py_NewRef(original);
        w->recorder = (recorder_object *)Py_NewRef(recorder);
        w->path = path, w->dry = dry, w->argument = argument, w->which = which;
        if (!set_up(w, entry ? entry : nothing, op, keyword ? keyword : nothing, group ? group : name, unless ? unless : nothing,
                    kernels ? kernels : none, through ? through : none, which_keyword ? which_keyword : nothing))
            Py_CLEAR(w);
    }
    Py_XDECREF(name);
    Py_XDECREF(none);
    Py_XDECREF(nothing);
    return (PyObject *)w;
}

static PyType_Slot wrapper_slots[] = {
    {Py_tp_doc, "Wrapper(original, recorder, entry='', path=-1, op='', argument=1, "
                "keyword='', group='.unique_name', dry=-1, unless='', "
                "kernels=(), through=(), which=-1, which_keyword='')\n--\n\n"
                "A C callable in place of one of SGLang's functions: with an entry it "
                "opens a call, inside an open one it says which path runs."},
    {Py_tp_new, wrapper_new},
    SP_WRAPPER_SLOTS,
    {0, NULL},
};

PyType_Spec sp_wrapper_spec = {
    .name = "sglang_probe._core.Wrapper",
    .basicsize = sizeof(wrapper_object),
    .flags = SP_WRAPPER_FLAGS,
    .slots = wrapper_slots,
};
