/* The module _core: multi-phase init, state, the one boundary for errors and
 * the parsing of arguments. Called by sglang_probe/_core's importers.
 * Invariant: a failed call leaves nothing held. */
#include "core_hook.h"

#include <string.h>

PyObject *sp_raise_text(const core_state *state, sp_status status, const char *text) {
    PyObject *type = status == SP_INVALID       ? PyExc_ValueError
                     : status == SP_NOMEM       ? PyExc_MemoryError
                     : status == SP_TIMEOUT     ? PyExc_TimeoutError
                     : !state                   ? PyExc_RuntimeError
                     : status == SP_UNAVAILABLE ? state->unavailable
                                                : state->error;
    PyErr_Format(type, "%s: %s", sp_status_text(status), text);
    return NULL;
}

PyObject *sp_raise(PyObject *module, sp_status status) {
    return sp_raise_text(module ? sp_state_of_module(module) : NULL, status, sp_error());
}

core_state *sp_state_of_type(PyTypeObject *type) {
    for (PyTypeObject *t = type; t; t = t->tp_base) {
        PyObject *module = PyType_HasFeature(t, Py_TPFLAGS_HEAPTYPE) ? PyType_GetModule(t) : NULL;
        if (module && PyModule_GetDef(module) == &sp_core_module) return PyModule_GetState(module);
        PyErr_Clear();
    }
    return NULL;
}

bool sp_count_args(const char *name, Py_ssize_t given, Py_ssize_t least, Py_ssize_t most) {
    if (given >= least && given <= most) return true;
    PyErr_Format(PyExc_TypeError, "%s takes %zd to %zd arguments, %zd given", name, least, most, given);
    return false;
}

bool sp_parse_index(PyObject *object, const char *what, size_t count, size_t *index) {
    size_t value = PyLong_AsSize_t(object);
    if (value == (size_t)-1 && PyErr_Occurred()) return false;
    if (value >= count) {
        PyErr_Format(PyExc_ValueError, "%s index %zu: there are %zu", what, value, count);
        return false;
    }
    *index = value;
    return true;
}

bool sp_parse_word(PyObject *object, uint64_t *word) {
    *word = PyLong_AsUnsignedLongLong(object);
    return !(*word == (uint64_t)-1 && PyErr_Occurred());
}

/* Fills `count` int64 fields, which lie side by side in their struct, from a
 * tuple. */
static bool parse_fields(PyObject *tuple, const char *what, Py_ssize_t skip, int64_t *fields, Py_ssize_t count) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count + skip) {
        PyErr_Format(PyExc_TypeError, "%s is a tuple of %zd integers", what, count + skip);
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        fields[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i + skip));
        if (fields[i] == -1 && PyErr_Occurred()) return false;
        if (fields[i] < -1 || fields[i] > INT32_MAX) { /* so that no product of two facts overflows in
                                    a gate */
            PyErr_Format(PyExc_ValueError, "%s[%zd]=%lld: a fact is -1 to 2^31 - 1", what, i, (long long)fields[i]);
            return false;
        }
    }
    return true;
}

bool sp_parse_facts(PyObject *tuple, sp_facts *facts) {
    if (!parse_fields(tuple, "facts", 0, (int64_t *)facts, sizeof *facts / sizeof(int64_t))) return false;
    if ((uint64_t)facts->device < SP_DEVICE_COUNT && (uint64_t)facts->fi_dtype < SP_DTYPE_COUNT && facts->world_size >= 1)
        return true;
    PyErr_SetString(PyExc_ValueError, "fi_dtype or device outside of its list, or a world size below 1");
    return false;
}

bool sp_parse_derived(PyObject *object, sp_rules *rules, Py_buffer *buffer) {
    if (object == Py_None) return true;
    if (PyObject_GetBuffer(object, buffer, PyBUF_SIMPLE) < 0) return false;
    sp_status status = sp_derived_length((size_t)buffer->len);
    if (status) {
        PyBuffer_Release(buffer);
        sp_raise(NULL, status);
        return false;
    }
    rules->derived = buffer->buf;
    rules->derived_bytes = (size_t)buffer->len;
    return true;
}

static const sp_ruleset *ruleset_named(const char *name) {
    for (size_t i = 0; i < sp_ruleset_count; i++)
        if (strcmp(sp_rulesets[i].name, name) == 0) return &sp_rulesets[i];
    return NULL;
}

/* release, facts, call, context[, derived[, lifted[, off, on, kernel]]] */
bool sp_parse_case(PyObject *const *args, Py_ssize_t count, core_case *p) {
    size_t release;
    uint64_t context, off = 0, on = 0;
    memset(p, 0, sizeof *p);
    if (!sp_count_args("a case", count, 4, 9) || !sp_parse_index(args[0], "release", sp_release_count, &release) ||
        !sp_parse_facts(args[1], &p->facts) ||
        !parse_fields(args[2], "call", 1, (int64_t *)((char *)&p->call + sizeof p->call.nbytes),
                      sizeof p->call / sizeof(int64_t) - 1) ||
        !sp_parse_word(PyTuple_GET_ITEM(args[2], 0), &p->call.nbytes) || !sp_parse_word(args[3], &context))
        return false;
    if (context >> SP_CTX_COUNT) {
        PyErr_Format(PyExc_ValueError, "context bits: there are %d", SP_CTX_COUNT);
        return false;
    }
    if ((uint64_t)p->call.dtype >= SP_DTYPE_COUNT) {
        PyErr_SetString(PyExc_ValueError, "dtype outside of its list");
        return false;
    }
    p->rules.ruleset = ruleset_named(sp_releases[release].ruleset);
    if (!p->rules.ruleset) {
        PyErr_Format(PyExc_RuntimeError, "release %s names no ruleset", sp_releases[release].name);
        return false;
    }
    p->c = (sp_case){.release = &sp_releases[release], .facts = &p->facts, .call = &p->call, .context = (uint32_t)context};
    if (count > 5 && !sp_parse_word(args[5], &p->c.lifted)) return false;
    if ((count > 6 && !sp_parse_word(args[6], &off)) || (count > 7 && !sp_parse_word(args[7], &on))) return false;
    size_t kernel = 0;
    if (count > 8 && !sp_parse_index(args[8], "kernel", SP_KERNEL_COUNT, &kernel)) return false;
    p->c.off = (uint32_t)off, p->c.on = (uint32_t)on, p->c.kernel = (uint8_t)kernel;
    return count < 5 || sp_parse_derived(args[4], &p->rules, &p->derived);
}

void sp_release_case(core_case *p) {
    if (p->derived.obj) PyBuffer_Release(&p->derived);
}

static PyObject *register_paths(PyObject *module, PyObject *arg) {
    if (!PyTuple_Check(arg) || PyTuple_GET_SIZE(arg) != SP_PATH_COUNT) {
        PyErr_Format(PyExc_TypeError, "register_paths takes a tuple of %d members", SP_PATH_COUNT);
        return NULL;
    }
    core_state *state = sp_state_of_module(module);
    Py_INCREF(arg);
    Py_XSETREF(state->paths, arg);
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"register_paths", register_paths, METH_O,
     "register_paths($module, members, /)\n--\n\nHand over the members of "
     "Path, in the order of PATHS; decisions then return "
     "them."},
    {NULL, NULL, 0, NULL},
};

static int add_exceptions(PyObject *module, core_state *state) {
    state->error = PyErr_NewExceptionWithDoc("sglang_probe.ProbeError",
                                             "Something of ours failed; the text says what and what to do about it.", NULL, NULL);
    if (!state->error || PyModule_AddObjectRef(module, "ProbeError", state->error) < 0) return -1;
    state->unavailable = PyErr_NewExceptionWithDoc("sglang_probe.ProbeUnavailable",
                                                   "A part that this machine does not have (a GPU, an index, a package); "
                                                   "the text says which.",
                                                   state->error, NULL);
    return !state->unavailable ? -1 : PyModule_AddObjectRef(module, "ProbeUnavailable", state->unavailable);
}

static int add_types(PyObject *module, core_state *state) {
    const struct {
        PyTypeObject **type;
        PyType_Spec *spec;
    } types[] = {{&state->router_type, &sp_router_spec},
                 {&state->coordinator_type, &sp_coordinator_spec},
                 {&state->reduced_type, &sp_reduced_spec},
                 {&state->graph_type, &sp_graph_spec},
                 {&state->board_type, &sp_board_spec},
                 {&state->buffer_type, &sp_buffer_spec},
                 {&state->recorder_type, &sp_recorder_spec},
                 {&state->wrapper_type, &sp_wrapper_spec},
                 {&state->graph_wrapper_type, &sp_graph_wrapper_spec}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        *types[i].type = (PyTypeObject *)PyType_FromModuleAndSpec(module, types[i].spec, NULL);
        if (!*types[i].type || PyModule_AddType(module, *types[i].type) < 0) return -1;
    }
    return 0;
}

static int core_exec(PyObject *module) {
    core_state *state = sp_state_of_module(module);
    if (sp_import_numpy() < 0) return -1;
    if (add_exceptions(module, state) < 0 || add_types(module, state) < 0) return -1;
    if (PyModule_AddFunctions(module, sp_rules_methods) < 0 || PyModule_AddFunctions(module, sp_route_methods) < 0 ||
        PyModule_AddFunctions(module, sp_space_methods) < 0 || PyModule_AddFunctions(module, sp_board_methods) < 0 ||
        PyModule_AddFunctions(module, sp_hook_methods) < 0 || sp_add_hook_lists(module) < 0)
        return -1;
    state->paths = PyTuple_New(SP_PATH_COUNT);
    if (!state->paths) return -1;
    static const char *const names[] = {
#define X(id, name, text) name,
        SP_PATHS(X)
#undef X
    };
    for (Py_ssize_t i = 0; i < SP_PATH_COUNT; i++) {
        PyObject *name = PyUnicode_InternFromString(names[i]);
        if (!name) return -1;
        PyTuple_SET_ITEM(state->paths, i, name);
    }
    return sp_add_lists(module);
}

/* Everything in the state is an object. */
enum { HELD = 12 };
#define SP_STATE_HOLDS(s)                                                                                                        \
    (PyObject *)(s)->router_type, (PyObject *)(s)->coordinator_type, (PyObject *)(s)->reduced_type, (PyObject *)(s)->graph_type, \
        (PyObject *)(s)->board_type, (PyObject *)(s)->buffer_type, (PyObject *)(s)->recorder_type,                               \
        (PyObject *)(s)->wrapper_type, (PyObject *)(s)->graph_wrapper_type, (s)->paths, (s)->error, (s)->unavailable

_Static_assert(sizeof(core_state) == HELD * sizeof(PyObject *), "every field of the state is visited and cleared");

static int core_traverse(PyObject *module, visitproc visit, void *arg) {
    core_state *state = sp_state_of_module(module);
    PyObject *held[HELD] = {SP_STATE_HOLDS(state)};
    for (size_t i = 0; i < HELD; i++) Py_VISIT(held[i]);
    return 0;
}

static int core_clear(PyObject *module) {
    core_state *state = sp_state_of_module(module);
    PyObject *held[HELD] = {SP_STATE_HOLDS(state)};
    memset(state, 0, sizeof *state);
    for (size_t i = 0; i < HELD; i++) Py_XDECREF(held[i]);
    return 0;
}

static void core_free(void *module) { core_clear(module); }

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, core_exec},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED}, /* as NumPy, which the module
                                                     needs */
#endif
    {0, NULL},
};

PyModuleDef sp_core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "sglang_probe._core",
    .m_doc = "Rulesets, gates and routes of SGLang's all-reduce dispatch. "
             "Private: use sglang_probe's functions.",
    .m_size = sizeof(core_state),
    .m_methods = module_methods,
    .m_slots = core_slots,
    .m_traverse = core_traverse,
    .m_clear = core_clear,
    .m_free = core_free,
};

PyMODINIT_FUNC PyInit__core(void) { return PyModuleDef_Init(&sp_core_module); }
