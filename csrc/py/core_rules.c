/* The rules alone, for Python: path, decide, explain, walk, and the space of states. Called by _route.py, conform and the benches.
 * Invariant: nothing here knows a gate. */
#include "core_module.h"

static PyObject *decision_tuple(const sp_decision *d) {
    return Py_BuildValue("(iiiii)", d->path, d->rule, d->op, d->flags, d->exception);
}

static bool parse_rule_args(PyObject *const *args, const sp_ruleset **ruleset, uint64_t *word) {
    size_t index;
    if (!sp_parse_index(args[0], "ruleset", sp_ruleset_count, &index) || !sp_parse_word(args[1], word)) return false;
    *ruleset = &sp_rulesets[index];
    return true;
}

static PyObject *rules_path(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    const sp_ruleset *ruleset;
    uint64_t word;
    if (!sp_count_args("path", count, 2, 2) || !parse_rule_args(args, &ruleset, &word)) return NULL;
    return Py_NewRef(PyTuple_GET_ITEM(sp_state_of_module(module)->paths, sp_decide(ruleset, word).path));
}

static PyObject *rules_decide(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    const sp_ruleset *ruleset;
    uint64_t word;
    if (!sp_count_args("decide", count, 2, 2) || !parse_rule_args(args, &ruleset, &word)) return NULL;
    sp_decision d = sp_decide(ruleset, word);
    return decision_tuple(&d);
}

static PyObject *rules_decide_derived(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    uint64_t word;
    Py_buffer table;
    sp_decision d;
    if (!sp_count_args("decide_derived", count, 2, 2) || !sp_parse_word(args[1], &word)) return NULL;
    if (PyObject_GetBuffer(args[0], &table, PyBUF_SIMPLE) < 0) return NULL;
    sp_status status = sp_derived_check(table.buf, (size_t)table.len);
    if (!status) status = sp_derived_decide(table.buf, (size_t)table.len, word, &d);
    PyBuffer_Release(&table);
    return status ? sp_raise(module, status) : decision_tuple(&d);
}

static PyObject *blocked_tuple(const sp_explanation *e) {
    PyObject *blocked = PyTuple_New((Py_ssize_t)e->blocked_count);
    if (!blocked) return NULL;
    for (size_t i = 0; i < e->blocked_count; i++) {
        const sp_blocked *b = &e->blocked[i];
        PyObject *row = Py_BuildValue("(iKK)", b->rule, (unsigned long long)b->missing, (unsigned long long)b->against);
        if (!row) {
            Py_DECREF(blocked);
            return NULL;
        }
        PyTuple_SET_ITEM(blocked, (Py_ssize_t)i, row);
    }
    return blocked;
}

static PyObject *rules_explain(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    const sp_ruleset *ruleset;
    sp_query query = {0};
    if (!sp_count_args("explain", count, 2, 3) || !parse_rule_args(args, &ruleset, &query.word)) return NULL;
    if (count > 2 && !sp_parse_word(args[2], &query.raises)) return NULL;
    sp_explanation e;
    sp_explain(ruleset, &query, &e);
    return Py_BuildValue("(NNN)", decision_tuple(&e.decision), decision_tuple(&e.next_best), blocked_tuple(&e));
}

static PyObject *rules_walk(PyObject *module, PyObject *arg) {
    (void)module;
    size_t index;
    if (!sp_parse_index(arg, "ruleset", sp_ruleset_count, &index)) return NULL;
    return sp_walk_array(&sp_rulesets[index]);
}

static PyObject *rules_state_count(PyObject *module, PyObject *arg) {
    (void)module;
    size_t index;
    if (!sp_parse_index(arg, "ruleset", sp_ruleset_count, &index)) return NULL;
    return PyLong_FromSize_t(sp_state_count(&sp_rulesets[index]));
}

static PyObject *rules_state_word(PyObject *module, PyObject *arg) {
    (void)module;
    size_t index;
    if (!sp_parse_index(arg, "state", 1 + 4 * SP_STATES_BASE, &index)) return NULL;
    return PyLong_FromUnsignedLongLong(sp_state_word(index));
}

static PyObject *rules_state_of(PyObject *module, PyObject *arg) {
    (void)module;
    uint64_t word;
    if (!sp_parse_word(arg, &word)) return NULL;
    return PyLong_FromLongLong(sp_state_of(word));
}

static PyObject *block_tuple(const sp_row *row) {
    PyObject *list = PyList_New(0);
    for (bool last = false; list && !last; row++) {
        last = row->need == 0 && row->forbid == 0;
        PyObject *item = Py_BuildValue("(iiiiiKK)", row->rule, row->target, row->op, row->flags, row->exception,
                                       (unsigned long long)row->need, (unsigned long long)row->forbid);
        if (!item || PyList_Append(list, item) < 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *ruleset_tuple(const sp_ruleset *ruleset) {
    PyObject *blocks = PyDict_New();
    for (int i = 0; blocks && i < SP_BLOCK_COUNT; i++) {
        if (!ruleset->blocks[i]) continue;
        PyObject *key = PyLong_FromLong(i), *rows = block_tuple(ruleset->blocks[i]);
        if (!key || !rows || PyDict_SetItem(blocks, key, rows) < 0) Py_CLEAR(blocks);
        Py_XDECREF(key);
        Py_XDECREF(rows);
    }
    if (!blocks) return NULL;
    return Py_BuildValue("(ssKN)", ruleset->name, ruleset->text, (unsigned long long)ruleset->reads, blocks);
}

static PyObject *rules_rulesets(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    PyObject *all = PyTuple_New((Py_ssize_t)sp_ruleset_count);
    for (size_t i = 0; all && i < sp_ruleset_count; i++) {
        PyObject *one = ruleset_tuple(&sp_rulesets[i]);
        if (one)
            PyTuple_SET_ITEM(all, (Py_ssize_t)i, one);
        else
            Py_CLEAR(all);
    }
    return all;
}

PyMethodDef sp_rules_methods[] = {
    SP_FAST("path", rules_path,
            "path($module, ruleset, word, /)\n--\n\nPath of one word of conditions; the fast way, without a trace."),
    SP_FAST("decide", rules_decide,
            "decide($module, ruleset, word, /)\n--\n\nCodes (path, rule, op, flags, exception) of one word of conditions."),
    SP_FAST("decide_derived", rules_decide_derived,
            "decide_derived($module, table, word, /)\n--\n\nThe same from a derived table (bytes of a walk, 5 a state)."),
    SP_FAST("explain", rules_explain,
            "explain($module, ruleset, word, raises=0, /)\n--\n\nDecision, next best, and what blocks every better rule."),
    {"walk", rules_walk, METH_O, "walk($module, ruleset, /)\n--\n\nCodes of all states: uint8 array of shape [states, 5]."},
    {"state_count", rules_state_count, METH_O, "state_count($module, ruleset, /)\n--\n\nNumber of states of a ruleset's space."},
    {"state_word", rules_state_word, METH_O, "state_word($module, state, /)\n--\n\nWord of conditions of a state."},
    {"state_of", rules_state_of, METH_O,
     "state_of($module, word, /)\n--\n\nState of a word, -1 where it is outside of the space."},
    {"rulesets", rules_rulesets, METH_NOARGS,
     "rulesets($module, /)\n--\n\nAll rulesets: (name, text, reads, {block: [(rule, target, op, flags, exception, need, "
     "forbid)]})."},
    {NULL, NULL, 0, NULL},
};
