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

/* A tuple of `count` rows, each made of one line of a table. */
static int add_rows(PyObject *module, const char *name, PyObject *(*row_of)(const void *table, size_t i), const void *table,
                    size_t count) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; tuple && i < count; i++) {
        PyObject *row = row_of(table, i);
        if (row)
            PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, row);
        else
            Py_CLEAR(tuple);
    }
    int added = tuple ? PyModule_AddObjectRef(module, name, tuple) : -1;
    Py_XDECREF(tuple);
    return added;
}

static PyObject *row_of_field(const void *table, size_t i) {
    const field *f = (const field *)table + i;
    return Py_BuildValue("(ssns)", f->name, f->numpy, (Py_ssize_t)f->at, f->text);
}

static PyObject *row_of_word(const void *table, size_t i) {
    const word *w = (const word *)table + i;
    return Py_BuildValue("(ss)", w->name, w->text);
}

#define COUNT(table) (sizeof(table) / sizeof *(table))

int sp_add_hook_lists(PyObject *module) {
    static const struct {
        const char *name;
        PyObject *(*row_of)(const void *table, size_t i);
        const void *table;
        size_t count;
    } lists[] = {{"RING_RECORD", row_of_field, record_fields, COUNT(record_fields)},
                 {"RING_GRAPH", row_of_field, graph_fields, COUNT(graph_fields)},
                 {"RING_KIND", row_of_field, kind_fields, COUNT(kind_fields)},
                 {"RING_HEADER", row_of_field, header_fields, COUNT(header_fields)},
                 {"RING_NAMES", row_of_word, name_words, COUNT(name_words)},
                 {"RING_FLAGS", row_of_word, flag_words, COUNT(flag_words)},
                 {"RING_LAYOUTS", row_of_word, layout_words, COUNT(layout_words)},
                 {"RING_OPS", row_of_word, op_words, COUNT(op_words)},
                 {"PHASES", row_of_word, phase_words, COUNT(phase_words)}};
    for (size_t i = 0; i < COUNT(lists); i++)
        if (add_rows(module, lists[i].name, lists[i].row_of, lists[i].table, lists[i].count) < 0) return -1;
    return 0;
}
