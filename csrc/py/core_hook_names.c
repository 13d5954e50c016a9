/* Names by number: groups, entries, kernels, sites, graphs, notes. Called where
 * one is met for the first time. Invariant: a text has one number in its kind;
 * the texts of a kind stand in its list by number, 0 is "". */
#include "core_hook.h"

/* Room for the calls of a new group. */
static bool grow_calls(recorder_object *r, uint32_t group) {
    if (group < r->calls_size) return true;
    size_t size = r->calls_size ? r->calls_size : 16;
    while (size <= group) size *= 2;
    uint32_t *calls = PyMem_Realloc(r->calls, size * sizeof *calls);
    if (!calls) {
        PyErr_NoMemory();
        return false;
    }
    for (size_t i = r->calls_size; i < size; i++) calls[i] = 0;
    r->calls = calls, r->calls_size = size;
    return true;
}

static bool keep(recorder_object *r, sp_named kind, PyObject *text, uint32_t id) {
    PyObject *number = PyLong_FromUnsignedLong(id);
    bool kept = number && (kind != SP_NAMED_GROUP || grow_calls(r, id));
    while (kept && PyList_GET_SIZE(r->texts[kind]) < (Py_ssize_t)id) /* one whose keeping failed has left a gap */
        kept = PyList_Append(r->texts[kind], PyList_GET_ITEM(r->texts[kind], 0)) == 0;
    kept = kept && PyList_Append(r->texts[kind], text) == 0 && PyDict_SetItem(r->ids[kind], text, number) == 0;
    Py_XDECREF(number);
    return kept;
}

/* `text` is a str itself: looking it up runs no Python. */
static bool intern(recorder_object *r, sp_named kind, PyObject *text, uint32_t *id) {
    Py_ssize_t length;
    const char *bytes = PyUnicode_AsUTF8AndSize(text, &length);
    if (!bytes) return false;
    if (!length || !r->ring.map) return true;
    PyObject *number = PyDict_GetItemWithError(r->ids[kind], text);
    if (number) {
        *id = (uint32_t)PyLong_AsUnsignedLong(number);
        return true;
    }
    if (PyErr_Occurred()) return false;
    sp_status status = sp_ring_name(&r->ring, kind, bytes, (size_t)length, id);
    if (status == SP_NOMEM)
        return true; /* no room is no error: it is counted in the ring, and the id
                    is 0 */
    if (!status && keep(r, kind, text, *id)) return true;
    if (status) sp_raise_text(r->state, status, sp_error());
    *id = 0;
    return false;
}

/* A subclass of str may hash as it likes, and close the recorder in the middle of it: its text is what counts. */
bool sp_hook_intern(recorder_object *r, sp_named kind, PyObject *text, uint32_t *id) {
    *id = 0;
    PyObject *plain = PyUnicode_FromObject(text);
    bool interned = plain && intern(r, kind, plain, id);
    Py_XDECREF(plain);
    return interned;
}

PyObject *sp_hook_text(const recorder_object *r, sp_named kind, uint32_t id) {
    PyObject *texts = r->texts[kind];
    return PyList_GET_ITEM(texts, id < (size_t)PyList_GET_SIZE(texts) ? (Py_ssize_t)id : 0);
}
