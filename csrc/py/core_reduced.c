/* Reduced: what one all_reduce gives back: the tensor, the path that it took, and its times. Made by core_reduce.c.
 * Invariant: it holds what the call was routed by, so that its Decision is that of the call, whatever was toggled since. */
#include "core_coordinator.h"

#include <stddef.h>
#include <structmember.h>

PyObject *sp_key_tuple(const core_plan_key *k) {
    return Py_BuildValue("(KLLIiii)", (unsigned long long)k->nbytes, (long long)k->columns, (long long)k->dims, k->context,
                         k->dtype, k->layout, k->registered);
}

static reduced_object *of(PyObject *self) { return (reduced_object *)self; }

static PyObject *get_path(PyObject *self, void *closure) {
    (void)closure;
    return Py_NewRef(PyTuple_GET_ITEM(of(self)->coordinator->state->paths, of(self)->plan.decision.path));
}

static PyObject *get_rule(PyObject *self, void *closure) {
    (void)closure;
    static const char *const names[] = {
#define X(id, name, text) name,
        SP_RULES(X)
#undef X
    };
    return PyUnicode_FromString(names[of(self)->plan.decision.rule]);
}

static PyObject *get_kernel(PyObject *self, void *closure) {
    (void)closure;
    return PyUnicode_FromString(sp_kernel_name(of(self)->plan.kernel));
}

static PyObject *get_flag(PyObject *self, void *closure) {
    const core_plan *p = &of(self)->plan;
    return PyBool_FromLong(closure ? p->returns_new || p->cloned : p->reduces);
}

static PyObject *microseconds(double us) {
    if (us < 0) Py_RETURN_NONE;
    return PyFloat_FromDouble(us);
}

static PyObject *get_us(PyObject *self, void *closure) { return microseconds(closure ? of(self)->device_us : of(self)->host_us); }

static PyObject *get_decision(PyObject *self, void *closure) {
    (void)closure;
    PyObject *key = sp_key_tuple(&of(self)->plan.key);
    PyObject *decision = key ? PyObject_CallMethod((PyObject *)of(self)->coordinator, "_decide", "OO", of(self)->settings, key)
                             : NULL;
    Py_XDECREF(key);
    return decision;
}

static PyObject *reduced_repr(PyObject *self) {
    const reduced_object *r = of(self);
    const core_plan *p = &r->plan;
    PyObject *host = microseconds(r->host_us), *device = microseconds(r->device_us), *text = NULL;
    const char *kernel = sp_kernel_name(p->kernel);
    if (host && device)
        text = PyUnicode_FromFormat("<Reduced %llu: %s%s%s, %s%s; host_us %R, device_us %R>", (unsigned long long)r->seq,
                                    sp_path_name(p->decision.path), *kernel ? " " : "", kernel,
                                    p->returns_new || p->cloned ? "new tensor" : "in place",
                                    p->reduces || p->decision.path == SP_PATH_NONE ? "" : ", NOT REDUCED", host, device);
    Py_XDECREF(host);
    Py_XDECREF(device);
    return text;
}

static int reduced_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(of(self)->tensor);
    Py_VISIT(of(self)->coordinator);
    Py_VISIT(of(self)->settings);
    return 0;
}

static void reduced_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(of(self)->tensor);
    Py_XDECREF(of(self)->settings);
    Py_XDECREF(of(self)->coordinator);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyObject *reduced_reduce(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    PyErr_SetString(PyExc_TypeError,
                    "a Reduced belongs to its rank and cannot be sent; return what you want of it: .tensor, .path, "
                    ".host_us, .decision.to_dict()");
    return NULL;
}

static PyMethodDef reduced_methods[] = {
    {"__reduce__", reduced_reduce, METH_NOARGS, "__reduce__($self, /)\n--\n\nRefused: it belongs to its rank."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef reduced_getset[] = {
    {"path", get_path, NULL, "What executed it: a Path.", NULL},
    {"rule", get_rule, NULL, "The rule that fired.", NULL},
    {"kernel", get_kernel, NULL, "The communicator's kernel, '' where it names none.", NULL},
    {"reduces", get_flag, NULL, "False where this release loses the result, or only pretends.", NULL},
    {"returns_new", get_flag, NULL, "Whether the result is a new tensor.", (void *)1},
    {"host_us", get_us, NULL, "Host time of the call, microseconds; None unless timed.", NULL},
    {"device_us", get_us, NULL, "Time on the device, microseconds; None unless timed, and while capturing.", (void *)1},
    {"decision", get_decision, NULL, "The whole Decision behind it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef reduced_members[] = {
    {"tensor", T_OBJECT_EX, offsetof(reduced_object, tensor), READONLY, "The result: the input itself, or a new tensor."},
    {"seq", T_ULONGLONG, offsetof(reduced_object, seq), READONLY, "Number of the call in this Coordinator, from 1."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot reduced_slots[] = {
    {Py_tp_doc, "What one all_reduce gave back."},
    {Py_tp_dealloc, reduced_dealloc},
    {Py_tp_traverse, reduced_traverse},
    {Py_tp_repr, reduced_repr},
    {Py_tp_methods, reduced_methods},
    {Py_tp_members, reduced_members},
    {Py_tp_getset, reduced_getset},
    {0, NULL},
};

PyType_Spec sp_reduced_spec = {
    .name = "sglang_probe._core.Reduced",
    .basicsize = sizeof(reduced_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = reduced_slots,
};
