/* Router: one group, context, dtype and release boiled down to a path a size. Called by Python as router(nbytes), for one size or a
 * NumPy array. Invariant: immutable once built, so that it may be shared between threads. */
#include "core_module.h"

#include <structmember.h>

typedef struct router_object {
    PyObject_HEAD vectorcallfunc vectorcall;
    PyObject *paths; /* the module's tuple of Path members */
    sp_router router;
} router_object;

static PyObject *router_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *names) {
    router_object *r = (router_object *)self;
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if (names && PyTuple_GET_SIZE(names)) {
        PyErr_SetString(PyExc_TypeError, "a Router takes no keyword");
        return NULL;
    }
    if (!sp_count_args("a Router", count, 1, 1)) return NULL;
    if (PyBool_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "a Router takes a number of bytes, or an array of them");
        return NULL;
    }
    if (!PyIndex_Check(args[0]) || PySequence_Check(args[0])) return sp_router_array(&r->router, args[0]);
    PyObject *number = PyNumber_Index(args[0]); /* NumPy's scalars too */
    if (!number) return NULL;
    long long nbytes = PyLong_AsLongLong(number);
    Py_DECREF(number);
    if (nbytes < 1) {
        if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_OverflowError)) {
            PyErr_Clear();
            PyErr_Format(PyExc_ValueError, "nbytes=%S: a tensor has 1 to 2^63 - 1 bytes", args[0]);
        }
        return NULL;
    }
    return Py_NewRef(PyTuple_GET_ITEM(r->paths, sp_router_path(&r->router, (uint64_t)nbytes)));
}

static PyObject *router_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    if (kwargs && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Router takes no keyword");
        return NULL;
    }
    core_case parsed;
    sp_router router;
    PyObject *items[5] = {NULL};
    Py_ssize_t count = PyTuple_GET_SIZE(args);
    for (Py_ssize_t i = 0; i < count && i < 5; i++) items[i] = PyTuple_GET_ITEM(args, i);
    if (!sp_parse_case(items, count, &parsed)) return NULL;
    sp_status status = sp_router_init(&parsed.rules, &parsed.c, &router);
    sp_release_case(&parsed);
    PyObject *module = PyType_GetModule(type);
    if (status) return sp_raise(module, status);
    router_object *self = module ? (router_object *)type->tp_alloc(type, 0) : NULL;
    if (!self) return NULL;
    self->vectorcall = router_call;
    self->router = router;
    self->paths = Py_NewRef(sp_state_of_module(module)->paths);
    return (PyObject *)self;
}

static int router_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((router_object *)self)->paths);
    return 0;
}

static void router_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(((router_object *)self)->paths);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *router_edges(PyObject *self, void *closure) {
    (void)closure;
    const sp_router *r = &((router_object *)self)->router;
    PyObject *edges = PyTuple_New((Py_ssize_t)r->edges);
    for (size_t i = 0; edges && i < r->edges; i++) {
        PyObject *edge = PyLong_FromUnsignedLongLong(r->edge[i]);
        if (edge)
            PyTuple_SET_ITEM(edges, (Py_ssize_t)i, edge);
        else
            Py_CLEAR(edges);
    }
    return edges;
}

static PyGetSetDef router_getset[] = {
    {"edges", router_edges, NULL, "First sizes of the bands after the first one, bytes.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef router_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(router_object, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot router_slots[] = {
    {Py_tp_doc,
     "Router(release, facts, call, context, derived=None, /)\n--\n\n"
     "Paths by size for one case. Call it with bytes (int -> Path) or an integer array (-> uint8 array of path codes)."},
    {Py_tp_new, router_new},
    {Py_tp_dealloc, router_dealloc},
    {Py_tp_traverse, router_traverse},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, router_members},
    {Py_tp_getset, router_getset},
    {0, NULL},
};

PyType_Spec sp_router_spec = {
    .name = "sglang_probe._core.Router",
    .basicsize = sizeof(router_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = router_slots,
};
