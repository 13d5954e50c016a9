/* What lies in a ring file, as constants of the module: fields with their
 * places, and the words of every list. Called once, at import. Invariant: each
 * table comes from the X-macros of core/ring_format.h, as the structs do. */
#include "core_hook.h"

typedef struct field {
    const char *name, *numpy;
    size_t at;
    const char *text;
} field;

#define X(type, numpy, name, text) {#name, numpy, offsetof(OF, name), text},
#define OF                         sp_record
static const field record_fields[] = {SP_RECORD_FIELDS(X)};
#undef OF
#define OF sp_graph_row
static const field graph_fields[] = {SP_GRAPH_FIELDS(X)};
#undef OF
#define OF sp_ring_header
static const field header_fields[] = {SP_HEADER_FIELDS(X)};
#undef OF
#undef X
static const field kind_fields[] = {{"state", "u4", offsetof(sp_kind_row, state), "0 unused, 1 being made, 2 good"},
#define X(type, numpy, name, text) {#name, numpy, offsetof(sp_kind_row, key) + offsetof(sp_kind_key, name), text},
                                    SP_KIND_KEY(X)
#undef X
#define X(type, numpy, name, text) {#name, numpy, offsetof(sp_kind_row, name), text},
                                        SP_KIND_SUMS(X)
#undef X
};

typedef struct word {
    const char *name, *text;
} word;
#define X(id, name, text) {name, text},
static const word name_words[] = {SP_RING_NAMES(X)};
static const word flag_words[] = {SP_RING_FLAGS(X)};
static const word layout_words[] = {SP_RING_LAYOUTS(X)};
static const word op_words[] = {SP_RING_OPS(X)};
static const word phase_words[] = {SP_PHASES(X)};
#undef X

/* A tuple of `count` rows, each made by Py_BuildValue from one line of a table.
 */
static int add_fields(PyObject *module, const char *name, const field *fields, size_t count) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; tuple && i < count; i++) {
        PyObject *row = Py_BuildValue("(ssns)", fields[i].name, fields[i].numpy, (Py_ssize_t)fields[i].at, fields[i].text);
        if (row)
            PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, row);
        else
            Py_CLEAR(tuple);
    }
    int added = tuple ? PyModule_AddObjectRef(module, name, tuple) : -1;
    Py_XDECREF(tuple);
    return added;
}

static int add_words(PyObject *module, const char *name, const word *list, size_t count) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; tuple && i < count; i++) {
        PyObject *row = Py_BuildValue("(ss)", list[i].name, list[i].text);
        if (row)
            PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, row);
        else
            Py_CLEAR(tuple);
    }
    int added = tuple ? PyModule_AddObjectRef(module, name, tuple) : -1;
    Py_XDECREF(tuple);
    return added;
}

#define COUNT(table) (sizeof(table) / sizeof *(table))

int sp_add_hook_lists(PyObject *module) {
    const struct {
        const char *name;
        const field *fields;
        size_t count;
    } tables[] = {{"RING_RECORD", record_fields, COUNT(record_fields)},
                  {"RING_GRAPH", graph_fields, COUNT(graph_fields)},
                  {"RING_KIND", kind_fields, COUNT(kind_fields)},
                  {"RING_HEADER", header_fields, COUNT(header_fields)}};
    const struct {
        const char *name;
        const word *list;
        size_t count;
    } lists[] = {{"RING_NAMES", name_words, COUNT(name_words)},
                 {"RING_FLAGS", flag_words, COUNT(flag_words)},
                 {"RING_LAYOUTS", layout_words, COUNT(layout_words)},
                 {"RING_OPS", op_words, COUNT(op_words)},
                 {"PHASES", phase_words, COUNT(phase_words)}};
    for (size_t i = 0; i < COUNT(tables); i++)
        if (add_fields(module, tables[i].name, tables[i].fields, tables[i].count) < 0) return -1;
    for (size_t i = 0; i < COUNT(lists); i++)
        if (add_words(module, lists[i].name, lists[i].list, lists[i].count) < 0) return -1;
    return 0;
}
