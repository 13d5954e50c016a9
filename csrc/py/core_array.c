/* What makes NumPy arrays: the walk over all states, the classes of calls, a Router over many sizes, stamps; and what reads
 * them. Called by core_rules.c, core_router.c, core_measure.c and core_tensor.c; the only file that uses NumPy's C API. Invariant: the GIL is released around core calls
 * that see pointers and counts only. */
#include "core_tensor.h"

#include <string.h>

#include <numpy/arrayobject.h>

int sp_import_numpy(void) { return _import_array(); }

PyObject *sp_walk_array(const sp_ruleset *ruleset) {
    npy_intp shape[] = {(npy_intp)sp_state_count(ruleset), SP_ANSWER_BYTES};
    PyObject *array = PyArray_SimpleNew(2, shape, NPY_UINT8);
    if (!array) return NULL;
    uint8_t *answers = PyArray_DATA((PyArrayObject *)array);
    Py_BEGIN_ALLOW_THREADS sp_walk(ruleset, answers);
    Py_END_ALLOW_THREADS return array;
}

PyObject *sp_classes_array(const sp_classes *classes) {
    npy_intp shape[] = {(npy_intp)classes->count, SP_CLASS_COLUMNS};
    PyObject *array = PyArray_SimpleNew(2, shape, NPY_UINT64);
    if (!array) return NULL;
    if (classes->count) memcpy(PyArray_DATA((PyArrayObject *)array), classes->rows, classes->count * sizeof *classes->rows);
    return array;
}

PyObject *sp_stamps_array(size_t count, uint64_t **stamps) {
    npy_intp shape[] = {(npy_intp)count};
    PyObject *array = PyArray_SimpleNew(1, shape, NPY_UINT64);
    if (array) *stamps = PyArray_DATA((PyArrayObject *)array);
    return array;
}

PyObject *sp_router_array(const sp_router *router, PyObject *sizes) {
    PyArrayObject *input = (PyArrayObject *)PyArray_FROM_OTF(sizes, NPY_INT64, NPY_ARRAY_IN_ARRAY);
    if (!input) return NULL;
    PyObject *output = PyArray_SimpleNew(PyArray_NDIM(input), PyArray_DIMS(input), NPY_UINT8);
    if (!output) {
        Py_DECREF(input);
        return NULL;
    }
    const int64_t *data = PyArray_DATA(input);
    uint8_t *paths = PyArray_DATA((PyArrayObject *)output);
    size_t count = (size_t)PyArray_SIZE(input), good;
    Py_BEGIN_ALLOW_THREADS good = sp_router_paths(router, data, count, paths);
    Py_END_ALLOW_THREADS if (good < count) {
        PyErr_Format(PyExc_ValueError, "sizes[%zu]=%lld: a tensor has 1 to 2^63 - 1 bytes", good, (long long)data[good]);
        Py_CLEAR(output);
    }
    Py_DECREF(input);
    return output;
}

static bool numpy_dtype(PyArrayObject *array, uint8_t *dtype) {
    switch (PyArray_TYPE(array)) {
    case NPY_HALF: *dtype = SP_DTYPE_FP16; return true;
    case NPY_FLOAT: *dtype = SP_DTYPE_FP32; return true;
    case NPY_DOUBLE: *dtype = SP_DTYPE_FP64; return true;
    case NPY_INT8: *dtype = SP_DTYPE_INT8; return true;
    case NPY_INT: *dtype = SP_DTYPE_INT32; return true;
    case NPY_LONG:
    case NPY_LONGLONG: *dtype = PyArray_ITEMSIZE(array) == 8 ? SP_DTYPE_INT64 : SP_DTYPE_INT32; return true;
    case NPY_UINT16:
        *dtype = SP_DTYPE_BF16;
        return true; /* NumPy has no bf16 of its own: its bits, where ml_dtypes is not there */
    default: break;
    }
    const char *name = PyArray_DESCR(array)->typeobj->tp_name, *dot = strrchr(name, '.');
    name = dot ? dot + 1 : name;
    if (strcmp(name, "bfloat16") == 0) {
        *dtype = SP_DTYPE_BF16;
        return true;
    }
    if (strncmp(name, "float8", 6) == 0) {
        *dtype = SP_DTYPE_FP8;
        return true;
    }
    PyErr_Format(PyExc_ValueError,
                 "tensor: dtype %S: give bf16 (ml_dtypes.bfloat16, or its bits as uint16), fp16, fp32, fp64, int8, "
                 "int32 or int64",
                 (PyObject *)PyArray_DESCR(array));
    return false;
}

bool sp_is_numpy(PyObject *object) { return PyArray_Check(object); }

int sp_array_of_numpy(PyObject *object, core_array *a) {
    if (!PyArray_Check(object)) return 0;
    PyArrayObject *array = (PyArrayObject *)object;
    *a = (core_array){.device_type = DL_CPU};
    if (!numpy_dtype(array, &a->dtype)) return -1;
    if (!PyArray_ISWRITEABLE(array)) {
        PyErr_SetString(PyExc_ValueError, "tensor: the array is read-only, and an all-reduce may write it; give a copy");
        return -1;
    }
    if (PyArray_SIZE(array) < 1 || PyArray_ISBYTESWAPPED(array)) {
        PyErr_SetString(PyExc_ValueError, "tensor: give one element or more, in this machine's byte order");
        return -1;
    }
    int dims = PyArray_NDIM(array);
    int64_t shape[NPY_MAXDIMS], strides[NPY_MAXDIMS];
    npy_intp size = PyArray_ITEMSIZE(array);
    for (int i = 0; i < dims; i++) {
        shape[i] = PyArray_DIM(array, i);
        strides[i] = PyArray_STRIDE(array, i) % size ? 0
                                                     : PyArray_STRIDE(array, i) / size; /* 0: not dense, which is what it is */
    }
    if (!sp_array_layout(a, dims, shape, strides)) return -1;
    a->data = PyArray_DATA(array);
    a->nbytes = a->count * (uint64_t)size;
    return 1;
}
