/* The lists of lists.h, facts.h, gate.h, stops.h and release.h as tuples of tuples, and the tables as Python sees them.
 * Called once, when _core is executed. Invariant: every tuple is generated from the X-macro that also makes the C enum. */
#include "core_module.h"

/* Steals `row`; appends it to `list`. */
static int append(PyObject *list, PyObject *row) {
    if (!row) return -1;
    int failed = PyList_Append(list, row);
    Py_DECREF(row);
    return failed;
}

typedef int fill(PyObject *list);

#define FILL(function, LIST)              \
    static int function(PyObject *list) { \
        LIST(X)                           \
        return 0;                         \
    }

#define X(id, name, text) \
    if (append(list, Py_BuildValue("(ss)", name, text)) < 0) return -1;
FILL(fill_paths, SP_PATHS)
FILL(fill_rules, SP_RULES)
FILL(fill_exceptions, SP_EXCEPTIONS)
FILL(fill_contexts, SP_CONTEXTS)
#undef X
#define X(id, name, communicator, text) \
    if (append(list, Py_BuildValue("(sss)", name, communicator, text)) < 0) return -1;
FILL(fill_conditions, SP_CONDITIONS)
#undef X
#define X(id, name, bytes) \
    if (append(list, Py_BuildValue("(si)", name, bytes)) < 0) return -1;
FILL(fill_dtypes, SP_DTYPES)
#undef X
#define X(id, name) \
    if (append(list, Py_BuildValue("s", name)) < 0) return -1;
FILL(fill_states, SP_STATES)
FILL(fill_devices, SP_DEVICES)
FILL(fill_backends, SP_BACKENDS)
#undef X
#define X(id, name, conformed, text) \
    if (append(list, Py_BuildValue("(sis)", name, conformed, text)) < 0) return -1;
FILL(fill_kernels, SP_KERNELS)
#undef X
#define X(id, function, name) \
    if (append(list, Py_BuildValue("s", name)) < 0) return -1;
FILL(fill_gates, SP_GATES)
#undef X
#define X(id, name, when, text) \
    if (append(list, Py_BuildValue("(sss)", name, #when, text)) < 0) return -1;
FILL(fill_stops, SP_STOPS)
#undef X
#define X(field, def, text) \
    if (append(list, Py_BuildValue("(sis)", #field, (int)(def), text)) < 0) return -1;
FILL(fill_facts, SP_FACTS)
FILL(fill_call_facts, SP_CALL_FACTS)
#undef X

#define X(name, values) \
    if (append(list, Py_BuildValue("(si)", #name, values)) < 0) return -1;
FILL(fill_axes, SP_AXES)
#undef X
#define X(id, name, contiguous, weak, aligned, registered) \
    if (append(list, Py_BuildValue("s", name)) < 0) return -1;
FILL(fill_layouts, SP_LAYOUTS)
#undef X
#define X(column) \
    if (append(list, Py_BuildValue("s", #column)) < 0) return -1;
FILL(fill_class_columns, SP_CLASS_LIST)
#undef X

static const struct {
    const char *name;
    fill *fill;
} lists[] = {
    {"PATHS", fill_paths},
    {"RULES", fill_rules},
    {"EXCEPTIONS", fill_exceptions},
    {"CONDITIONS", fill_conditions},
    {"CONTEXTS", fill_contexts},
    {"DTYPES", fill_dtypes},
    {"STATES", fill_states},
    {"DEVICES", fill_devices},
    {"BACKENDS", fill_backends},
    {"KERNELS", fill_kernels},
    {"GATES", fill_gates},
    {"STOPS", fill_stops},
    {"FACTS", fill_facts},
    {"CALL_FACTS", fill_call_facts},
    {"AXES", fill_axes},
    {"LAYOUTS", fill_layouts},
    {"CLASS_COLUMNS", fill_class_columns},
};

int sp_add_lists(PyObject *module) {
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        PyObject *list = PyList_New(0);
        if (!list) return -1;
        PyObject *tuple = lists[i].fill(list) < 0 ? NULL : PyList_AsTuple(list);
        Py_DECREF(list);
        if (!tuple) return -1;
        int failed = PyModule_AddObjectRef(module, lists[i].name, tuple);
        Py_DECREF(tuple);
        if (failed < 0) return -1;
    }
    return 0;
}
