/* What makes NumPy arrays: the walk over all states, the classes of calls, and a Router over many sizes.
 * Called by core_rules.c and core_router.c; the only file that uses NumPy's C API. Invariant: the GIL is released around core calls
 * that see pointers and counts only. */
#include "core_module.h"

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
