/* The space of conditions and the classes of calls, for Python: tally, reaches, changes, classes. Called by reach, diff and history.
 * Invariant: every buffer that is held is released on every way out. */
#include "core_module.h"

/* A region as Python hands it over: a mask of values an axis, then whether world size 1 and above belong to it. */
static bool parse_region(PyObject *object, sp_subspace *region) {
    if (!PyBytes_Check(object) || PyBytes_GET_SIZE(object) != SP_AXIS_COUNT + 2) {
        PyErr_Format(PyExc_TypeError, "a region is bytes of length %d", SP_AXIS_COUNT + 2);
        return false;
    }
    const uint8_t *bytes = (const uint8_t *)PyBytes_AS_STRING(object);
    for (int i = 0; i < SP_AXIS_COUNT; i++) {
        if (!bytes[i] || bytes[i] >> sp_axis_values(i)) {
            PyErr_Format(PyExc_ValueError, "region: axis %d has the values 0x%x", i, bytes[i]);
            return false;
        }
        region->allowed[i] = bytes[i];
    }
    region->one_rank = bytes[SP_AXIS_COUNT];
    region->ranks = bytes[SP_AXIS_COUNT + 1];
    return true;
}

/* Rules from a ruleset's index and None or a derived table, whose buffer the caller releases. */
static bool parse_rules(PyObject *index, PyObject *derived, sp_rules *rules, Py_buffer *buffer) {
    size_t ruleset;
    buffer->obj = NULL;
    if (!sp_parse_index(index, "ruleset", sp_ruleset_count, &ruleset)) return false;
    *rules = (sp_rules){&sp_rulesets[ruleset], NULL, 0};
    return sp_parse_derived(derived, rules, buffer);
}

static void release(Py_buffer *buffer) {
    if (buffer->obj) PyBuffer_Release(buffer);
}

static PyObject *tally_list(const sp_tally *tally) {
    PyObject *list = PyList_New(0);
    for (int rule = 0; list && rule < SP_RULE_COUNT; rule++)
        for (int path = 0; list && path < SP_PATH_COUNT; path++) {
            const sp_hit *hit = &tally->hits[rule][path];
            if (!hit->states) continue;
            PyObject *row = Py_BuildValue("(iiKK)", rule, path, (unsigned long long)hit->states,
                                          (unsigned long long)hit->witness);
            if (!row || PyList_Append(list, row) < 0) Py_CLEAR(list);
            Py_XDECREF(row);
        }
    return list;
}

static PyObject *space_tally(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    sp_subspace region;
    sp_rules rules;
    Py_buffer derived;
    sp_tally tally;
    if (!sp_count_args("tally", count, 2, 3) || !parse_region(args[1], &region)) return NULL;
    if (!parse_rules(args[0], count > 2 ? args[2] : Py_None, &rules, &derived)) return NULL;
    sp_status status = sp_subspace_tally(&rules, &region, &tally);
    release(&derived);
    if (status) return sp_raise(module, status);
    PyObject *hits = tally_list(&tally);
    return hits ? Py_BuildValue("(KN)", (unsigned long long)tally.states, hits) : NULL;
}

static PyObject *space_reaches(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    sp_subspace region;
    sp_rules rules;
    Py_buffer derived;
    size_t rule, path;
    bool reaches;
    if (!sp_count_args("reaches", count, 4, 5) || !parse_region(args[1], &region)) return NULL;
    if (!sp_parse_index(args[2], "rule", SP_RULE_COUNT, &rule) || !sp_parse_index(args[3], "path", SP_PATH_COUNT, &path))
        return NULL;
    if (!parse_rules(args[0], count > 4 ? args[4] : Py_None, &rules, &derived)) return NULL;
    sp_status status = sp_subspace_reaches(&rules, &region, (uint8_t)rule, (uint8_t)path, &reaches);
    release(&derived);
    return status ? sp_raise(module, status) : PyBool_FromLong(reaches);
}

static PyObject *space_count(PyObject *module, PyObject *arg) {
    (void)module;
    sp_subspace region;
    if (!parse_region(arg, &region)) return NULL;
    return PyLong_FromUnsignedLongLong(sp_subspace_count(&region));
}

static PyObject *cube_tuple(const sp_cube *cube) {
    const sp_decision *b = &cube->before, *a = &cube->after;
    return Py_BuildValue("(y#iKK(iiiii)(iiiii))", (const char *)cube->allowed, (Py_ssize_t)SP_AXIS_COUNT, cube->one_rank,
                         (unsigned long long)cube->states, (unsigned long long)cube->group, b->path, b->rule, b->op, b->flags,
                         b->exception, a->path, a->rule, a->op, a->flags, a->exception);
}

static PyObject *changes_tuple(const sp_changes *changes) {
    PyObject *cubes = PyTuple_New((Py_ssize_t)changes->count);
    for (size_t i = 0; cubes && i < changes->count; i++) {
        PyObject *cube = cube_tuple(&changes->cubes[i]);
        if (cube)
            PyTuple_SET_ITEM(cubes, (Py_ssize_t)i, cube);
        else
            Py_CLEAR(cubes);
    }
    if (!cubes) return NULL;
    return Py_BuildValue("(KKN)", (unsigned long long)changes->states, (unsigned long long)changes->changed, cubes);
}

static PyObject *space_changes(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    sp_subspace region;
    sp_rules a, b;
    Py_buffer derived_a, derived_b;
    sp_changes changes;
    if (!sp_count_args("changes", count, 3, 5) || !parse_region(args[2], &region)) return NULL;
    if (!parse_rules(args[0], count > 3 ? args[3] : Py_None, &a, &derived_a)) return NULL;
    if (!parse_rules(args[1], count > 4 ? args[4] : Py_None, &b, &derived_b)) {
        release(&derived_a);
        return NULL;
    }
    sp_status status = sp_subspace_diff(&a, &b, &region, &changes);
    release(&derived_a);
    release(&derived_b);
    if (status) return sp_raise(module, status);
    PyObject *result = changes_tuple(&changes);
    sp_changes_free(&changes);
    return result;
}

enum { CONTEXTS_MAX = 64 };

static bool parse_contexts(PyObject *tuple, uint32_t contexts[CONTEXTS_MAX], size_t *count) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) < 1 || PyTuple_GET_SIZE(tuple) > CONTEXTS_MAX) {
        PyErr_Format(PyExc_TypeError, "contexts is a tuple of 1 to %d words", CONTEXTS_MAX);
        return false;
    }
    *count = (size_t)PyTuple_GET_SIZE(tuple);
    for (size_t i = 0; i < *count; i++) {
        uint64_t word;
        if (!sp_parse_word(PyTuple_GET_ITEM(tuple, (Py_ssize_t)i), &word)) return false;
        if (word >> SP_CTX_COUNT) {
            PyErr_Format(PyExc_ValueError, "context bits: there are %d", SP_CTX_COUNT);
            return false;
        }
        contexts[i] = (uint32_t)word;
    }
    return true;
}

/* release, facts, call, contexts, dtypes, layouts[, derived] */
static PyObject *space_classes(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    core_case parsed;
    sp_classes classes;
    uint32_t contexts[CONTEXTS_MAX];
    sp_classes_of of = {.contexts = contexts};
    uint64_t dtypes, layouts;
    if (!sp_count_args("classes", count, 6, 7) || !parse_contexts(args[3], contexts, &of.contexts_count)) return NULL;
    if (!sp_parse_word(args[4], &dtypes) || !sp_parse_word(args[5], &layouts)) return NULL;
    if (dtypes >> SP_DTYPE_COUNT || layouts >> SP_LAYOUT_COUNT) {
        PyErr_SetString(PyExc_ValueError, "dtypes or layouts outside of their lists");
        return NULL;
    }
    of.dtypes = (uint32_t)dtypes;
    of.layouts = (uint32_t)layouts;
    PyObject *zero = PyLong_FromLong(0);
    if (!zero) return NULL;
    PyObject *rest[] = {args[0], args[1], args[2], zero, count > 6 ? args[6] : Py_None};
    bool good = sp_parse_case(rest, 5, &parsed);
    Py_DECREF(zero);
    if (!good) return NULL;
    sp_status status = sp_classes_find(&parsed.rules, &parsed.c, &of, &classes);
    sp_release_case(&parsed);
    if (status) return sp_raise(module, status);
    PyObject *array = sp_classes_array(&classes);
    sp_classes_free(&classes);
    return array;
}

PyMethodDef sp_space_methods[] = {
    SP_FAST(
        "tally", space_tally,
        "tally($module, ruleset, region, derived=None, /)\n--\n\nWalks a region: (states, [(rule, path, states, word of the most "
        "ordinary one)])."),
    SP_FAST("reaches", space_reaches,
            "reaches($module, ruleset, region, rule, path, derived=None, /)\n--\n\nWhether a rule (or, with rule 0, a path) is "
            "reached in "
            "a region; stops at the first state."),
    {"region_count", space_count, METH_O, "region_count($module, region, /)\n--\n\nNumber of states of a region."},
    SP_FAST("changes", space_changes,
            "changes($module, ruleset_a, ruleset_b, region, derived_a=None, derived_b=None, /)\n--\n\nWhere two sources of rules "
            "differ: "
            "(states, changed, ((values an axis, one_rank, states, states of its group, before, after), ...))."),
    SP_FAST("classes", space_classes,
            "classes($module, release, facts, call, contexts, dtypes, layouts, derived=None, /)\n--\n\nAll calls of a worker in "
            "classes: "
            "uint64 array of shape [classes, 16], columns CLASS_COLUMNS."),
    {NULL, NULL, 0, NULL},
};
