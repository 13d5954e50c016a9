/* What a record says of a tensor: bytes, rows, dtype, layout. By DLPack's C
 * exchange table where its type has one (no stream is asked for, nothing is
 * synchronised), by attributes elsewhere. Called once a recorded call.
 * Invariant: the tensor's data is never touched. */
#include "core_hook.h"

#include <string.h>

#include "core_tensor.h"

static const char *const attributes[SP_HOOK_ATTRIBUTES] = {"nbytes", "dtype", "shape", "is_contiguous", "data_ptr"};

static const struct {
    const char *name; /* of torch.NAME, numpy's NAME */
    uint8_t code, bits, dtype;
} dtypes[] = {
    {"bfloat16", DL_BFLOAT, 16, SP_DTYPE_BF16}, {"float16", DL_FLOAT, 16, SP_DTYPE_FP16},
    {"float32", DL_FLOAT, 32, SP_DTYPE_FP32},   {"float64", DL_FLOAT, 64, SP_DTYPE_FP64},
    {"int8", DL_INT, 8, SP_DTYPE_INT8},         {"int32", DL_INT, 32, SP_DTYPE_INT32},
    {"int64", DL_INT, 64, SP_DTYPE_INT64},
};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static SP_RARE uint8_t search_dtype(dl_dtype d) {
    for (int i = 0; i < DTYPES; i++)
        if (dtypes[i].code == d.code && dtypes[i].bits == d.bits && d.lanes == 1) return dtypes[i].dtype;
    return d.code >= DL_FLOAT8_FIRST && d.code <= DL_FLOAT8_LAST && d.bits == 8 && d.lanes == 1 ? SP_DTYPE_FP8 : SP_RING_NONE;
}

static inline uint8_t dtype_of_code(dl_dtype d) {
    return d.code == DL_BFLOAT && d.bits == 16 && d.lanes == 1 ? SP_DTYPE_BF16 : search_dtype(d);
}

static uint8_t dtype_of_name(const char *name) {
    const char *dot = strrchr(name, '.');
    if (dot) name = dot + 1;
    for (int i = 0; i < DTYPES; i++)
        if (!strcmp(dtypes[i].name, name)) return dtypes[i].dtype;
    return strncmp(name, "float8", 6) ? SP_RING_NONE : SP_DTYPE_FP8;
}

static uint8_t dims_of(int64_t dims) { return (uint8_t)((dims > 7 ? 7 : dims) << SP_LAID_DIMS_SHIFT); }

static SP_RARE void set_rows(hook_open *open, uint64_t count, int64_t dims, uint64_t columns) {
    uint64_t rows = dims && columns ? count / columns : 0;
    open->columns = columns > UINT32_MAX ? UINT32_MAX : (uint32_t)columns;
    open->record.rows = rows > UINT32_MAX ? UINT32_MAX : (uint32_t)rows;
    open->record.layout |= dims_of(dims);
}

/* ---- by the exchange table ---- */

/* By value: letting go of a type may run Python, which may ask for others. */
static SP_RARE const dl_exchange *ask_exchange(recorder_object *r, PyTypeObject *type) {
    PyObject *capsule = PyObject_GetAttrString((PyObject *)type, "__dlpack_c_exchange_api__");
    const dl_exchange *exchange = NULL;
    if (capsule && PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
        exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        if (exchange && (exchange->version.major != 1 || !exchange->tensor_from_object)) exchange = NULL;
    }
    Py_XDECREF(capsule);
    sp_hook_drop(); /* most types have none */
    hook_type *found = &r->type[r->type_next++ % SP_HOOK_TYPES];
    PyTypeObject *old = found->type;
    *found = (hook_type){(PyTypeObject *)Py_NewRef(type), exchange};
    Py_XDECREF(old);
    return exchange;
}

static inline const dl_exchange *exchange_of(recorder_object *r, PyTypeObject *type) {
    for (int i = 0; i < SP_HOOK_TYPES; i++)
        if (r->type[i].type == type) return r->type[i].exchange;
    return ask_exchange(r, type);
}

/* Any tensor. */
static SP_RARE uint64_t lay_out(recorder_object *r, const dl_tensor *t, hook_open *open) {
    uint64_t count = 1;
    for (int32_t i = 0; i < t->ndim; i++) count *= t->shape[i] > 0 ? (uint64_t)t->shape[i] : 0;
    set_rows(open, count, t->ndim, t->ndim ? (uint64_t)t->shape[t->ndim - 1] : 1);
    core_array layout = {.contiguous = true, .dense = true};
    if (count && !sp_array_layout(&layout, t->ndim, t->shape, t->strides)) sp_hook_failed(r);
    if (layout.contiguous) open->record.layout |= SP_LAID(CONTIGUOUS);
    if (layout.dense) open->record.layout |= SP_LAID(DENSE);
    return count;
}

/* What nearly all are: contiguous, of two dimensions. 0: it is not, and nothing was set. */
static inline uint64_t lay_out_plain(const dl_tensor *t, hook_open *open) {
    if (t->ndim != 2) return 0;
    const uint64_t rows = (uint64_t)t->shape[0], columns = (uint64_t)t->shape[1];
    if (rows - 1 >= INT32_MAX || columns - 1 >= INT32_MAX || rows * columns > INT64_MAX / 16) return 0;
    if (t->strides && ((t->strides[1] != 1 && columns != 1) || (t->strides[0] != t->shape[1] && rows != 1))) return 0;
    open->columns = (uint32_t)columns, open->record.rows = (uint32_t)rows;
    open->record.layout |= (uint8_t)(SP_LAID(CONTIGUOUS) | SP_LAID(DENSE) | 2 << SP_LAID_DIMS_SHIFT);
    return rows * columns;
}

static inline bool by_exchange(recorder_object *r, const dl_exchange *exchange, PyObject *tensor, hook_open *open) {
    dl_tensor t;
    if (exchange->tensor_from_object(tensor, &t) < 0) {
        sp_hook_failed(r);
        return false;
    }
    sp_record *record = &open->record;
    uint64_t count = lay_out_plain(&t, open);
    if (!count) count = lay_out(r, &t, open);
    record->dtype = dtype_of_code(t.dtype);
    record->nbytes = count * t.dtype.bits * t.dtype.lanes / 8;
    if (!(((uintptr_t)t.data + t.byte_offset) & 15)) record->layout |= SP_LAID(ALIGNED);
    return true;
}

/* ---- by attributes ---- */

/* A non-negative number, -1 where it is none. */
static int64_t number(PyObject *object) {
    long long value = object ? PyLong_AsLongLong(object) : -1;
    Py_XDECREF(object);
    if (PyErr_Occurred()) sp_hook_drop();
    return value < 0 ? -1 : value;
}

static uint8_t dtype_of_object(recorder_object *r, PyObject *object) {
    const int known = sizeof r->dtype / sizeof *r->dtype;
    for (int i = 0; i < known; i++)
        if (r->dtype[i].object == object) return r->dtype[i].dtype;
    PyObject *text = PyObject_Str(object);
    const char *name = text ? PyUnicode_AsUTF8(text) : NULL;
    hook_dtype found = {name ? Py_NewRef(object) : NULL, name ? dtype_of_name(name) : SP_RING_NONE};
    Py_XDECREF(text);
    if (!name) {
        sp_hook_failed(r);
        return SP_RING_NONE;
    }
    hook_dtype *slot = &r->dtype[r->dtype_next++ % (unsigned)known];
    PyObject *old = slot->object;
    *slot = found;
    Py_XDECREF(old);
    return found.dtype;
}

static void read_shape(recorder_object *r, PyObject *shape, hook_open *open) {
    uint64_t count = 1, columns = 1;
    Py_ssize_t dims = PyTuple_GET_SIZE(shape);
    for (Py_ssize_t i = 0; i < dims; i++) {
        int64_t n = number(Py_NewRef(PyTuple_GET_ITEM(shape, i)));
        if (n < 0) {
            sp_hook_failed(r);
            return;
        }
        count *= (uint64_t)n, columns = (uint64_t)n;
    }
    set_rows(open, count, dims, columns);
}

static SP_RARE bool by_attributes(recorder_object *r, PyObject *tensor, hook_open *open) {
    sp_record *record = &open->record;
    int64_t nbytes = number(PyObject_GetAttr(tensor, r->attribute[SP_HOOK_NBYTES]));
    if (nbytes < 0) {
        sp_hook_failed(r);
        return false;
    }
    record->nbytes = (uint64_t)nbytes;
    record->layout |= SP_LAID(ELSEWHERE);
    PyObject *dtype = PyObject_GetAttr(tensor, r->attribute[SP_HOOK_DTYPE]);
    if (dtype) record->dtype = dtype_of_object(r, dtype);
    Py_XDECREF(dtype);
    PyObject *shape = PyObject_GetAttr(tensor, r->attribute[SP_HOOK_SHAPE]);
    if (shape && PyTuple_Check(shape)) read_shape(r, shape, open);
    Py_XDECREF(shape);
    PyObject *is_contiguous = PyObject_CallMethodNoArgs(tensor, r->attribute[SP_HOOK_CONTIGUOUS]);
    if (is_contiguous == Py_True) record->layout |= SP_LAID(CONTIGUOUS) | SP_LAID(DENSE);
    Py_XDECREF(is_contiguous);
    sp_hook_drop(); /* NumPy has no such method */
    int64_t address = number(PyObject_CallMethodNoArgs(tensor, r->attribute[SP_HOOK_POINTER]));
    if (address >= 0 && !(address & 15)) record->layout |= SP_LAID(ALIGNED);
    return true;
}

SP_OFTEN bool sp_hook_facts(recorder_object *r, PyObject *tensor, hook_open *open) {
    const dl_exchange *exchange = exchange_of(r, Py_TYPE(tensor));
    return exchange ? by_exchange(r, exchange, tensor, open) : by_attributes(r, tensor, open);
}

int sp_hook_facts_init(recorder_object *r) {
    for (int i = 0; i < SP_HOOK_ATTRIBUTES; i++) {
        r->attribute[i] = PyUnicode_InternFromString(attributes[i]);
        if (!r->attribute[i]) return -1;
    }
    return 0;
}

void sp_hook_facts_clear(recorder_object *r) {
    for (int i = 0; i < SP_HOOK_ATTRIBUTES; i++) Py_CLEAR(r->attribute[i]);
    for (int i = 0; i < SP_HOOK_TYPES; i++) Py_CLEAR(r->type[i].type);
    for (size_t i = 0; i < sizeof r->dtype / sizeof *r->dtype; i++) Py_CLEAR(r->dtype[i].object);
}
