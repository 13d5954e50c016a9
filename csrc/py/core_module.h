/* What the files of the _core binding share: module state, argument helpers,
 * and each file's methods. Invariant: only csrc/py includes Python.h; the core
 * below never sees an object. */
#ifndef SP_CORE_MODULE_H
#define SP_CORE_MODULE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "core/classes.h"
#include "core/space.h"

typedef struct core_state {
    PyTypeObject *router_type, *coordinator_type, *reduced_type, *graph_type, *board_type, *buffer_type;
    PyTypeObject *recorder_type, *wrapper_type, *graph_wrapper_type;
    PyObject *paths;       /* tuple of path names, or the members of Path once registered */
    PyObject *error;       /* ProbeError */
    PyObject *unavailable; /* ProbeUnavailable */
} core_state;

extern PyModuleDef sp_core_module;
extern PyMethodDef sp_rules_methods[];                             /* core_rules.c */
extern PyMethodDef sp_route_methods[];                             /* core_route.c */
extern PyMethodDef sp_space_methods[];                             /* core_space.c */
extern PyMethodDef sp_board_methods[];                             /* core_board.c */
extern PyType_Spec sp_router_spec;                                 /* core_router.c */
extern PyType_Spec sp_coordinator_spec;                            /* core_coordinator.c */
extern PyType_Spec sp_reduced_spec, sp_graph_spec, sp_buffer_spec; /* core_reduced.c, core_graph.c, core_buffer.c */
extern PyType_Spec sp_board_spec;                                  /* core_board.c */

int sp_add_lists(PyObject *module); /* core_lists.c */

/* core_array.c: the only user of NumPy's C API */
int sp_import_numpy(void);
PyObject *sp_walk_array(const sp_ruleset *ruleset);
PyObject *sp_classes_array(const sp_classes *classes);
PyObject *sp_router_array(const sp_router *router, PyObject *sizes);
PyObject *sp_stamps_array(size_t count, uint64_t **stamps); /* to be filled in */

#define SP_FAST(name, function, doc) \
    { name, (PyCFunction)(void (*)(void))function, METH_FASTCALL, doc }

static inline core_state *sp_state_of_module(PyObject *module) { return PyModule_GetState(module); }

/* A failure as a Python exception, with the text of sp_error() or another;
 * always NULL. `module` may be NULL where only an INVALID or NOMEM can come. */
PyObject *sp_raise(PyObject *module, sp_status status);
PyObject *sp_raise_text(const core_state *state, sp_status status, const char *text);
core_state *sp_state_of_type(PyTypeObject *type); /* of an instance's type, or of a Python subclass of it */
bool sp_count_args(const char *name, Py_ssize_t given, Py_ssize_t least, Py_ssize_t most);
bool sp_parse_index(PyObject *object, const char *what, size_t count, size_t *index);
bool sp_parse_word(PyObject *object, uint64_t *word);
bool sp_parse_facts(PyObject *tuple, sp_facts *facts);

/* One case as Python hands it over: release index, facts, call, context bits,
 * and an optional derived table. */
typedef struct core_case {
    sp_facts facts;
    sp_call call;
    sp_case c;
    sp_rules rules;
    Py_buffer derived; /* held while rules.derived points into it */
} core_case;

bool sp_parse_derived(PyObject *object, sp_rules *rules, Py_buffer *buffer); /* None, or a whole table; the caller releases it */
bool sp_parse_case(PyObject *const *args, Py_ssize_t count, core_case *parsed);
void sp_release_case(core_case *parsed);

#endif
