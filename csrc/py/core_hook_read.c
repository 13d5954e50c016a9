/* Ring files for Python: header, records, tables, control words; and the lists
 * that say what lies in them. Called by sglang_probe/_record. Invariant: every
 * call checks the whole header anew, and Python gets copies. */
#include "core_hook.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

static bool look(PyObject *module, int fd, sp_ring_image *image) {
    sp_status status = sp_ring_look(fd, image);
    if (status) sp_raise(module, status);
    return !status;
}

static bool parse_fd(PyObject *object, int *fd) {
    long value = PyLong_AsLong(object);
    if (value == -1 && PyErr_Occurred()) return false;
    *fd = value < 0 || value > INT_MAX ? -1 : (int)value;
    return true;
}

static bool set_number(PyObject *dict, const char *name, PyObject *number) {
    bool set = number && PyDict_SetItemString(dict, name, number) == 0;
    Py_XDECREF(number);
    return set;
}

static PyObject *ring_look(PyObject *module, PyObject *arg) {
    sp_ring_image image;
    int fd;
    if (!parse_fd(arg, &fd) || !look(module, fd, &image)) return NULL;
    PyObject *dict = PyDict_New();
    const sp_ring_header *h = &image.header;
    bool good = dict && set_number(dict, "release", PyUnicode_DecodeUTF8(h->release, (Py_ssize_t)strlen(h->release), "replace"));
#define X(type, numpy, field, text) good = good && set_number(dict, #field, PyLong_FromUnsignedLongLong(h->field));
    SP_HEADER_FIELDS(X)
#undef X
#define X(type, numpy, field, text) good = good && set_number(dict, #field, PyLong_FromLongLong((long long)image.field));
    SP_CONTROL_FIELDS(X)
    SP_COUNT_FIELDS(X)
#undef X
    if (!good) Py_CLEAR(dict);
    return dict;
}

static const struct {
    const char *name;
    size_t at;
} words[] = {{"control", offsetof(sp_ring_control, control)},
             {"site_every", offsetof(sp_ring_control, site_every)},
             {"timer_every", offsetof(sp_ring_control, timer_every)},
             {"host_time", offsetof(sp_ring_control, host_time)}};

static PyObject *ring_control(PyObject *module, PyObject *args) {
    int fd;
    const char *name;
    unsigned int value;
    sp_ring_image image;
    if (!PyArg_ParseTuple(args, "isI", &fd, &name, &value) || !look(module, fd, &image)) return NULL;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(words[i].name, name) != 0) continue;
        if (pwrite(fd, &value, sizeof value, (off_t)(SP_RING_CONTROL_AT + words[i].at)) == (ssize_t)sizeof value) Py_RETURN_NONE;
        return sp_raise(module, sp_fail(SP_SYSTEM, "%s=%u cannot be written: %s", name, value, strerror(errno)));
    }
    PyErr_Format(PyExc_ValueError, "name='%s': give control, site_every, timer_every or host_time", name);
    return NULL;
}

/* bytes shortened to what was filled in. */
static PyObject *fitted(PyObject *bytes, uint64_t used) {
    if (_PyBytes_Resize(&bytes, (Py_ssize_t)used) < 0) return NULL;
    return bytes;
}

static PyObject *ring_records(PyObject *module, PyObject *args) {
    int fd;
    unsigned long long since = 0;
    sp_ring_image image;
    sp_ring_seen seen;
    if (!PyArg_ParseTuple(args, "i|K", &fd, &since) || !look(module, fd, &image)) return NULL;
    uint64_t room = sp_ring_room(&image, since);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(room * sizeof(sp_record)));
    if (!bytes) return NULL;
    sp_record *records = (sp_record *)PyBytes_AS_STRING(bytes);
    sp_status status;
    Py_BEGIN_ALLOW_THREADS status = sp_ring_records(fd, &image, since, records, room, &seen);
    Py_END_ALLOW_THREADS if (status) {
        Py_DECREF(bytes);
        return sp_raise(module, status);
    }
    bytes = fitted(bytes, seen.records * sizeof(sp_record));
    return bytes ? Py_BuildValue("(NKKK)", bytes, (unsigned long long)seen.next, (unsigned long long)seen.overwritten,
                                 (unsigned long long)seen.torn)
                 : NULL;
}

typedef sp_status (*rows_reader)(int fd, const sp_ring_image *image, void *rows, uint64_t room, uint64_t *count);

static PyObject *rows(PyObject *module, rows_reader read, int fd, const sp_ring_image *image, uint64_t room) {
    uint64_t count = 0;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(room * SP_RING_ROW_BYTES));
    if (!bytes) return NULL;
    sp_status status = read(fd, image, PyBytes_AS_STRING(bytes), room, &count);
    if (!status) return fitted(bytes, count * SP_RING_ROW_BYTES);
    Py_DECREF(bytes);
    return sp_raise(module, status);
}

static PyObject *names(PyObject *module, int fd, const sp_ring_image *image) {
    static const char *const kinds[] = {
#define X(id, name, text) name,
        SP_RING_NAMES(X)
#undef X
    };
    uint64_t bytes = sp_ring_names(image), at = 0;
    unsigned char *copy = PyMem_Malloc(bytes + 1);
    if (!copy) return PyErr_NoMemory();
    sp_status status = sp_ring_names_copy(fd, image, copy);
    PyObject *list = status ? sp_raise(module, status) : PyList_New(0);
    sp_named kind;
    uint32_t id, length;
    const char *text;
    while (list && sp_ring_names_next(copy, bytes, &at, &kind, &id, &text, &length)) {
        PyObject *name = PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "replace");
        PyObject *row = name ? Py_BuildValue("(sIN)", kinds[kind], (unsigned int)id, name) : NULL;
        if (!row || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    PyMem_Free(copy);
    return list;
}

static PyObject *ring_tables(PyObject *module, PyObject *arg) {
    sp_ring_image image;
    int fd;
    if (!parse_fd(arg, &fd) || !look(module, fd, &image)) return NULL;
    PyObject *graphs = rows(module, sp_ring_graphs, fd, &image, image.graphs_used);
    PyObject *kinds = graphs ? rows(module, sp_ring_kinds, fd, &image, image.header.kinds) : NULL;
    PyObject *listed = kinds ? names(module, fd, &image) : NULL;
    if (listed) return Py_BuildValue("(NNN)", graphs, kinds, listed);
    Py_XDECREF(kinds);
    Py_XDECREF(graphs);
    return NULL;
}

PyMethodDef sp_hook_methods[] = {
    {"ring_look", ring_look, METH_O,
     "ring_look($module, fd, /)\n--\n\nThe header of a ring file, checked, and "
     "its counters: a dict."},
    {"ring_control", ring_control, METH_VARARGS,
     "ring_control($module, fd, name, value, /)\n--\n\nSets a control word of "
     "a ring file that is open for writing."},
    {"ring_records", ring_records, METH_VARARGS,
     "ring_records($module, fd, since=0, /)\n--\n\n(records after seq `since`, "
     "in order, since for the next time, overwritten, torn)."},
    {"ring_tables", ring_tables, METH_O,
     "ring_tables($module, fd, /)\n--\n\n(graphs, kinds of calls, names as a "
     "list of (kind, id, text))."},
    {NULL, NULL, 0, NULL},
};
