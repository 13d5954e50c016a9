/* Alarms: kinds of calls whose path was not the expected one, told once each.
 * Called by the hook's log, through Recorder.alarms(). Invariant: nothing is
 * forgotten before it was handed over: where the list cannot be made, the next
 * call tells it. */
#include "core_hook.h"

/* Adds one kind of call to what is told of its alarm, in a dict by (group, entry, path, expected). Python may run: the
 * kind is the caller's copy, no row of a ring that may be gone. */
static bool add_alarm(recorder_object *r, PyObject *told, const hook_alarm *alarm) {
    PyObject *key = Py_BuildValue("(iiii)", alarm->group, alarm->entry, alarm->path, alarm->expected);
    int known = key ? PySet_Contains(r->reported, key) : -1;
    PyObject *before = known == 0 ? PyDict_GetItemWithError(told, key) : NULL, *sums = NULL;
    unsigned long long calls = 0, first = UINT64_MAX;
    bool good = known >= 0 && !PyErr_Occurred() && (!before || PyArg_ParseTuple(before, "KK", &calls, &first));
    if (good && known == 0) {
        calls += alarm->calls;
        sums = Py_BuildValue("(KK)", calls, alarm->first_ns < first ? (unsigned long long)alarm->first_ns : first);
        good = sums && PyDict_SetItem(told, key, sums) == 0;
    }
    Py_XDECREF(sums);
    Py_XDECREF(key);
    return good;
}

static hook_alarm alarm_of(sp_kind_row *row) {
    const sp_kind_key *k = &row->key;
    return (hook_alarm){atomic_load_explicit(&row->calls, memory_order_relaxed),
                        atomic_load_explicit(&row->first_ns, memory_order_relaxed),
                        k->group,
                        k->entry,
                        k->path,
                        k->expected};
}

void sp_hook_alarm_lost(recorder_object *r, const sp_record *record) {
    const hook_alarm new = {1, record->time_ns, record->group, record->entry, record->path, record->expected};
    for (unsigned i = 0; i < r->lost_count; i++) {
        hook_alarm *a = &r->lost[i];
        if (a->group != new.group || a->entry != new.entry || a->path != new.path || a->expected != new.expected) continue;
        a->calls++;
        return;
    }
    if (r->lost_count == SP_HOOK_LOST) return; /* the ring's counters have it */
    r->lost[r->lost_count++] = new;
    r->pending = true;
}

static PyObject *listed(recorder_object *r, PyObject *told) {
    PyObject *list = PyList_New(0), *key, *sums;
    Py_ssize_t at = 0;
    while (list && PyDict_Next(told, &at, &key, &sums)) {
        int group, entry, path, expected;
        unsigned long long calls, first;
        PyObject *row = NULL;
        if (PyArg_ParseTuple(key, "iiii", &group, &entry, &path, &expected) && PyArg_ParseTuple(sums, "KK", &calls, &first))
            row = Py_BuildValue("(OOiiKK)", sp_hook_text(r, SP_NAMED_GROUP, (uint32_t)group),
                                sp_hook_text(r, SP_NAMED_ENTRY, (uint32_t)entry), path, expected, calls, first);
        if (!row || PyList_Append(list, row) < 0) Py_CLEAR(list);
        Py_XDECREF(row);
    }
    at = 0;
    while (list && PyDict_Next(told, &at, &key, &sums))
        if (PySet_Add(r->reported, key) < 0) Py_CLEAR(list);
    return list;
}

PyObject *sp_hook_alarms(PyObject *self, PyObject *unused) {
    (void)unused;
    recorder_object *r = sp_recorder_of(self, ((recorder_object *)self)->state);
    if (!r) return NULL;
    if (!r->pending) return PyList_New(0);
    r->pending = false; /* what comes while this is told is told the next time */
    PyObject *told = PyDict_New();
    for (uint64_t i = 0; told && i < r->ring.shape.kinds; i++) { /* closed meanwhile, it has none */
        sp_kind_row *row = &r->ring.kind[i];
        if (atomic_load_explicit(&row->state, memory_order_acquire) != 2 || !(row->key.flags & SP_FLAG(ALARM))) continue;
        const hook_alarm alarm = alarm_of(row);
        if (!add_alarm(r, told, &alarm)) Py_CLEAR(told);
    }
    for (unsigned i = 0; told && i < r->lost_count; i++) {
        const hook_alarm alarm = r->lost[i];
        if (!add_alarm(r, told, &alarm)) Py_CLEAR(told);
    }
    PyObject *list = told ? listed(r, told) : NULL;
    if (!list) r->pending = true;
    Py_XDECREF(told);
    return list;
}
