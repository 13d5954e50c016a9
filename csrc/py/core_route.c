/* Gates and routes for Python: releases, gate, route, bands. Called by _route.py, _bands.py and conform.
 * Invariant: every function parses a case with sp_parse_case and releases it on every way out. */
#include "core_module.h"

static PyObject *answer_tuple(const sp_answer *a) {
    return Py_BuildValue("(iiiiKKiii)", a->state, a->kernel, a->backend, a->exception, (unsigned long long)a->stops,
                         (unsigned long long)a->limit, a->returns_new, a->reduces, a->assumed);
}

static sp_gate *const gates[SP_GATE_COUNT] = {
#define X(id, function, name) function,
    SP_GATES(X)
#undef X
};

static PyObject *route_gate(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    (void)module;
    size_t gate;
    core_case parsed;
    if (!sp_count_args("gate", count, 5, 5) || !sp_parse_index(args[1], "gate", SP_GATE_COUNT, &gate)) return NULL;
    PyObject *rest[] = {args[0], args[2], args[3], args[4]};
    if (!sp_parse_case(rest, 4, &parsed)) return NULL;
    sp_answer answer = {.reduces = true};
    gates[gate](&parsed.c, &answer);
    sp_release_case(&parsed);
    return answer_tuple(&answer);
}

static PyObject *answers_tuple(const sp_route_result *r) {
    PyObject *answers = PyTuple_New(SP_GATE_COUNT);
    for (Py_ssize_t i = 0; answers && i < SP_GATE_COUNT; i++) {
        PyObject *one = answer_tuple(&r->answers[i]);
        if (one)
            PyTuple_SET_ITEM(answers, i, one);
        else
            Py_CLEAR(answers);
    }
    return answers;
}

static PyObject *route_route(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    core_case parsed;
    sp_route_result r;
    if (!sp_parse_case(args, count, &parsed)) return NULL;
    sp_decision next;
    sp_status status = sp_route_call(&parsed.rules, &parsed.c, &r);
    if (!status) status = sp_route_next(&parsed.rules, &parsed.c, &r, &next);
    sp_release_case(&parsed);
    if (status) return sp_raise(module, status);
    const sp_decision *d = &r.decision;
    return Py_BuildValue("((KK)N(iiiii)(iiiiii)(ii))", (unsigned long long)r.query.word, (unsigned long long)r.query.raises,
                         answers_tuple(&r), d->path, d->rule, d->op, d->flags, d->exception, r.backend, r.kernel, r.returns_new,
                         r.cloned, r.reduces, r.assumed, next.path, next.rule);
}

static PyObject *route_bands(PyObject *module, PyObject *const *args, Py_ssize_t count) {
    core_case parsed;
    sp_bands bands;
    if (!sp_parse_case(args, count, &parsed)) return NULL;
    sp_status status = sp_bands_find(&parsed.rules, &parsed.c, &bands);
    sp_release_case(&parsed);
    if (status) return sp_raise(module, status);
    PyObject *list = PyTuple_New((Py_ssize_t)bands.count);
    for (size_t i = 0; list && i < bands.count; i++) {
        const uint64_t *sample = bands.sample[i];
        PyObject *band = Py_BuildValue("(K(KKK))", (unsigned long long)bands.first[i], (unsigned long long)sample[SP_RESIDUE_16],
                                       (unsigned long long)sample[SP_RESIDUE_4], (unsigned long long)sample[SP_RESIDUE_1]);
        if (band)
            PyTuple_SET_ITEM(list, (Py_ssize_t)i, band);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *route_releases(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    PyObject *all = PyTuple_New((Py_ssize_t)sp_release_count);
    for (size_t i = 0; all && i < sp_release_count; i++) {
        const sp_release *r = &sp_releases[i];
        PyObject *one = Py_BuildValue("(ssiiiiiiii)", r->name, r->ruleset, r->v1, r->v2, r->quick, r->mscclpp, r->symm,
                                      r->flashinfer, r->pcie, r->cpu);
        if (one)
            PyTuple_SET_ITEM(all, (Py_ssize_t)i, one);
        else
            Py_CLEAR(all);
    }
    return all;
}

PyMethodDef sp_route_methods[] = {
    {"releases", route_releases, METH_NOARGS,
     "releases($module, /)\n--\n\nAll releases, oldest first: (name, ruleset, v1, v2, quick, mscclpp, symm, flashinfer, pcie, "
     "cpu)."},
    SP_FAST("gate", route_gate,
            "gate($module, release, gate, facts, call, context, /)\n--\n\nOne gate's answer: (state, kernel, backend, exception, "
            "stops, "
            "limit, returns_new, reduces, assumed)."),
    SP_FAST("route", route_route,
            "route($module, release, facts, call, context, derived=None, lifted=0, off=0, on=0, kernel=0, /)\n--\n\nOne call: "
            "((word, raises), answers, "
            "decision, "
            "(backend, kernel, returns_new, cloned, reduces, assumed), (next path, next rule))."),
    SP_FAST(
        "bands", route_bands,
        "bands($module, release, facts, call, context, derived=None, /)\n--\n\nAll sizes in classes: ((first, (a size that is a "
        "multiple of 16, of 4 only, neither; 0 for none)), ...)."),
    {NULL, NULL, 0, NULL},
};
