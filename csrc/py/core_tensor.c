/* Reads tensors: NumPy arrays, torch's by DLPack's C exchange table (cached by type), anybody else's by __dlpack__().
 * Called by the Coordinator for every call. Invariant: shape, strides and dtype are looked at here and nowhere else; the paths below
 * see a pointer and a count. */
#include "core_tensor.h"

#include <string.h>

enum { DIMS_MAX = 64 };

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

/* Dense: each dimension starts where the smaller ones end. Few dimensions, so the quadratic search is fine. */
static bool is_dense(int64_t dims, const int64_t *shape, const int64_t *strides) {
    int64_t expected = 1;
    uint64_t used = 0;
    for (int64_t n = 0; n < dims; n++) {
        int64_t found = -1;
        for (int64_t i = 0; i < dims && found < 0; i++)
            if (!(used >> i & 1) && (shape[i] == 1 || strides[i] == expected)) found = i;
        if (found < 0) return false;
        used |= UINT64_C(1) << found;
        if (shape[found] != 1) expected *= shape[found];
    }
    return true;
}

bool sp_array_layout(core_array *a, int64_t dims, const int64_t *shape, const int64_t *strides) {
    int64_t count = 1;
    bool good = dims <= DIMS_MAX;
    a->contiguous = true;
    a->order = 0;
    for (int64_t i = dims; good && i-- > 0;) {
        if (strides && shape[i] != 1 && strides[i] != count) a->contiguous = false;
        good = shape[i] > 0 && !__builtin_mul_overflow(count, shape[i], &count) && count <= INT64_MAX / 16;
    }
    if (!good) {
        PyErr_Format(PyExc_ValueError, "tensor: give 1 to 2^59 elements in at most %d dimensions", DIMS_MAX);
        return false;
    }
    for (int64_t i = 0; !a->contiguous && i < dims; i++)
        a->order = (a->order ^ (uint64_t)strides[i] * (shape[i] != 1)) * UINT64_C(0x100000001B3) + 1;
    a->count = (uint64_t)count;
    a->dims = dims;
    a->columns = dims ? shape[dims - 1] : 1;
    a->dense = a->contiguous || is_dense(dims, shape, strides);
    return true;
}

static bool fill(const dl_tensor *t, core_array *a) {
    if (!dtype_of(t->dtype, &a->dtype) || !sp_array_layout(a, t->ndim, t->shape, t->strides)) return false;
    a->data = (char *)t->data + t->byte_offset;
    a->nbytes = a->count * t->dtype.bits / 8;
    a->device_type = t->device.type == DL_CUDA_HOST ? DL_CPU : t->device.type;
    a->device_id = t->device.id;
    return true;
}

/* `empty_like` of the package that defines this type, or one that it derives from: a user's subclass of torch.Tensor is torch's. */
static PyObject *empty_like_of(PyTypeObject *type) {
    PyObject *bases = type->tp_mro, *function = NULL;
    for (Py_ssize_t i = bases ? PyTuple_GET_SIZE(bases) : 0; i-- > 0 && !function && !PyErr_Occurred();) {
        PyObject *module_name = PyObject_GetAttrString(PyTuple_GET_ITEM(bases, i), "__module__");
        const char *full = module_name ? PyUnicode_AsUTF8(module_name) : NULL;
        const char *dot = full ? strchr(full, '.') : NULL;
        PyObject *top = full ? PyUnicode_FromStringAndSize(full, dot ? dot - full : (Py_ssize_t)strlen(full)) : NULL;
        PyObject *module = top ? PyImport_Import(top) : NULL;
        function = module ? PyObject_GetAttrString(module, "empty_like") : NULL;
        if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_MemoryError)) PyErr_Clear(); /* `object` and mixins have none */
        Py_XDECREF(module);
        Py_XDECREF(top);
        Py_XDECREF(module_name);
    }
    return function;
}

/* NULL for a type without it, which is read the slow way; NULL with an exception where that could not be found out. */
static const dl_exchange *exchange_of(PyTypeObject *type) {
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    const dl_exchange *exchange = NULL;
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
        exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        if (exchange && (exchange->version.major != 1 || !exchange->tensor_from_object || !exchange->current_stream))
            exchange = NULL;
    }
    Py_XDECREF(capsule);
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_MemoryError)) PyErr_Clear();
    return exchange;
}

static core_producer *producer_of(core_producers *producers, PyObject *tensor) {
    PyTypeObject *type = Py_TYPE(tensor);
    for (int i = 0; i < SP_PRODUCERS; i++)
        if (producers->of[i].type == type) return &producers->of[i];
    core_producer *p = &producers->of[producers->next++ % SP_PRODUCERS];
    Py_CLEAR(p->empty_like);
    Py_CLEAR(p->held);
    p->type = NULL;
    bool is_numpy = sp_is_numpy(tensor);
    const dl_exchange *exchange = is_numpy ? NULL : exchange_of(type);
    if (PyErr_Occurred()) return NULL;
    *p = (core_producer){.type = type, .held = Py_NewRef(type), .is_numpy = is_numpy, .exchange = exchange};
    return p;
}

/* By __dlpack__() without a stream: the producer then orders its data before the legacy default stream, on which the call runs.
 * A producer that knows versions says whether the tensor is read-only; one that does not is asked in the old way. */
static PyObject *ask_capsule(PyObject *tensor) {
    PyObject *method = PyObject_GetAttrString(tensor, "__dlpack__");
    if (!method) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return NULL;
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "tensor: a %s is none; give a NumPy array, a torch tensor or anything with __dlpack__",
                     Py_TYPE(tensor)->tp_name);
        return NULL;
    }
    PyObject *nothing = PyTuple_New(0), *newest = nothing ? Py_BuildValue("{s(ii)}", "max_version", 1, 0) : NULL;
    PyObject *capsule = newest ? PyObject_Call(method, nothing, newest) : NULL;
    if (!capsule && newest && PyErr_ExceptionMatches(PyExc_TypeError)) {
        PyErr_Clear();
        capsule = PyObject_CallNoArgs(method);
    }
    Py_XDECREF(newest);
    Py_XDECREF(nothing);
    Py_DECREF(method);
    return capsule;
}

static bool read_slowly(PyObject *tensor, core_array *a) {
    PyObject *capsule = ask_capsule(tensor);
    if (!capsule) return false;
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
    if (!p) return false;
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
    if (!p) return NULL;
    if (!p->empty_like) {
        p->empty_like = empty_like_of(p->type);
        if (!p->empty_like && PyErr_Occurred()) return NULL;
        if (!p->empty_like) {
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
