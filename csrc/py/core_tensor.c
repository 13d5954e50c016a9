/* Reads tensors: NumPy arrays, torch's by DLPack's C exchange table (cached by type), anybody else's by __dlpack__().
 * Called by the Coordinator for every call. Invariant: shape, strides and dtype are looked at here and nowhere else; the paths below
 * see a pointer and a count. */
#include "core_tensor.h"

#include <string.h>

static const struct {
    uint8_t code, bits, dtype;
} dtypes[] = {
    {DL_BFLOAT, 16, SP_DTYPE_BF16}, {DL_FLOAT, 16, SP_DTYPE_FP16}, {DL_FLOAT, 32, SP_DTYPE_FP32}, {DL_FLOAT, 64, SP_DTYPE_FP64},
    {DL_INT, 8, SP_DTYPE_INT8},     {DL_INT, 32, SP_DTYPE_INT32},  {DL_INT, 64, SP_DTYPE_INT64},
};

static bool dtype_of(dl_dtype d, uint8_t *dtype) {
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (dtypes[i].code == d.code && dtypes[i].bits == d.bits && d.lanes == 1) {
            *dtype = dtypes[i].dtype;
            return true;
        }
    if (d.code >= DL_FLOAT8_FIRST && d.code <= DL_FLOAT8_LAST && d.bits == 8 && d.lanes == 1) {
        *dtype = SP_DTYPE_FP8;
        return true;
    }
    PyErr_Format(PyExc_ValueError, "tensor: DLPack type %d of %d bits: give bf16, fp16, fp32, fp64, int8, int32 or int64", d.code,
                 d.bits);
    return false;
}

/* Dense: sorted by stride, each dimension starts where the smaller ones end. Few dimensions, so the quadratic search is fine. */
static bool is_dense(const dl_tensor *t) {
    int64_t expected = 1;
    uint64_t used = 0;
    if (t->ndim > 64) return false;
    for (int32_t n = 0; n < t->ndim; n++) {
        int32_t found = -1;
        for (int32_t i = 0; i < t->ndim && found < 0; i++)
            if (!(used >> i & 1) && (t->shape[i] == 1 || t->strides[i] == expected)) found = i;
        if (found < 0) return false;
        used |= UINT64_C(1) << found;
        if (t->shape[found] != 1) expected *= t->shape[found];
    }
    return true;
}

static bool fill(const dl_tensor *t, core_array *a) {
    if (!dtype_of(t->dtype, &a->dtype)) return false;
    int64_t count = 1;
    bool contiguous = true;
    for (int32_t i = t->ndim; i-- > 0;) {
        if (t->strides && t->shape[i] != 1 && t->strides[i] != count) contiguous = false;
        count *= t->shape[i];
    }
    if (count < 1) {
        PyErr_SetString(PyExc_ValueError, "tensor: it has no element; an all-reduce takes one or more");
        return false;
    }
    a->data = (char *)t->data + t->byte_offset;
    a->count = (uint64_t)count;
    a->nbytes = (uint64_t)count * t->dtype.bits / 8;
    a->dims = t->ndim;
    a->columns = t->ndim ? t->shape[t->ndim - 1] : 1;
    a->device_type = t->device.type == DL_CUDA_HOST ? DL_CPU : t->device.type;
    a->device_id = t->device.id;
    a->contiguous = contiguous;
    a->dense = contiguous || is_dense(t);
    return true;
}

/* The producer's own function of this name, from the package that defines its type. */
static PyObject *function_of(PyTypeObject *type, const char *name) {
    PyObject *module_name = PyObject_GetAttrString((PyObject *)type, "__module__");
    if (!module_name) return NULL;
    const char *full = PyUnicode_AsUTF8(module_name);
    const char *dot = full ? strchr(full, '.') : NULL;
    PyObject *top = full ? PyUnicode_FromStringAndSize(full, dot ? dot - full : (Py_ssize_t)strlen(full)) : NULL;
    PyObject *module = top ? PyImport_Import(top) : NULL;
    PyObject *function = module ? PyObject_GetAttrString(module, name) : NULL;
    Py_XDECREF(module);
    Py_XDECREF(top);
    Py_DECREF(module_name);
    return function;
}

static const dl_exchange *exchange_of(PyTypeObject *type) {
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    const dl_exchange *exchange = NULL;
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
        exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        if (exchange && (exchange->version.major != 1 || !exchange->tensor_from_object || !exchange->current_stream))
            exchange = NULL;
    }
    Py_XDECREF(capsule);
    PyErr_Clear(); /* a type without it is read the slow way */
    return exchange;
}

static core_producer *producer_of(core_producers *producers, PyObject *tensor) {
    PyTypeObject *type = Py_TYPE(tensor);
    for (int i = 0; i < SP_PRODUCERS; i++)
        if (producers->of[i].type == type) return &producers->of[i];
    core_producer *p = &producers->of[producers->next++ % SP_PRODUCERS];
    Py_CLEAR(p->empty_like);
    Py_CLEAR(p->held);
    core_array probe;
    int numpy = sp_array_of_numpy(tensor, &probe);
    PyErr_Clear(); /* its dtype is judged when it is read */
    *p = (core_producer){.type = type, .held = Py_NewRef(type), .is_numpy = numpy != 0};
    if (!p->is_numpy) p->exchange = exchange_of(type);
    return p;
}

/* By __dlpack__() without a stream: the producer then orders its data before the legacy default stream, on which the call runs. */
static bool read_slowly(PyObject *tensor, core_array *a) {
    PyObject *capsule = PyObject_CallMethod(tensor, "__dlpack__", NULL);
    if (!capsule) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_Clear();
            PyErr_Format(PyExc_TypeError, "tensor: a %s is none; give a NumPy array, a torch tensor or anything with __dlpack__",
                         Py_TYPE(tensor)->tp_name);
        }
        return false;
    }
    a->capsule = capsule;
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        const dl_managed_versioned *m = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        if (m->flags & DL_READ_ONLY) {
            PyErr_SetString(PyExc_ValueError, "tensor: it is read-only, and an all-reduce may write it");
            return false;
        }
        return fill(&m->tensor, a);
    }
    const dl_managed *m = PyCapsule_GetPointer(capsule, "dltensor");
    return m && fill(&m->tensor, a);
}

bool sp_array_read(core_producers *producers, PyObject *tensor, core_array *a) {
    memset(a, 0, sizeof *a);
    const core_producer *p = producer_of(producers, tensor);
    if (p->is_numpy) return sp_array_of_numpy(tensor, a) > 0;
    if (p->exchange) {
        dl_tensor t;
        if (p->exchange->tensor_from_object(tensor, &t) < 0 || !fill(&t, a)) return false;
        return a->device_type != DL_CUDA || p->exchange->current_stream(t.device.type, t.device.id, &a->stream) == 0;
    }
    if (read_slowly(tensor, a)) return true;
    sp_array_release(a);
    return false;
}

void sp_array_release(core_array *a) { Py_CLEAR(a->capsule); }

PyObject *sp_array_empty_like(core_producers *producers, PyObject *tensor) {
    core_producer *p = producer_of(producers, tensor);
    if (!p->empty_like) {
        p->empty_like = function_of(p->type, "empty_like");
        if (!p->empty_like) {
            PyErr_Clear();
            PyErr_Format(PyExc_TypeError, "tensor: the package of a %s has no empty_like, and this path gives back a new tensor",
                         p->type->tp_name);
            return NULL;
        }
    }
    return PyObject_CallOneArg(p->empty_like, tensor);
}

void sp_producers_clear(core_producers *producers) {
    for (int i = 0; i < SP_PRODUCERS; i++) {
        producers->of[i].type = NULL;
        Py_CLEAR(producers->of[i].empty_like);
        Py_CLEAR(producers->of[i].held);
    }
}

int sp_producers_traverse(core_producers *producers, visitproc visit, void *arg) {
    for (int i = 0; i < SP_PRODUCERS; i++) {
        Py_VISIT(producers->of[i].held);
        Py_VISIT(producers->of[i].empty_like);
    }
    return 0;
}
