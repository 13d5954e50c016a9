/* One wrapped call. Called by the interpreter through Wrapper's vectorcall.
 * Invariant: the original is called exactly once, with what the caller gave,
 * whatever happens to the recorder; `thread->ours` is set while our own code
 * runs, so that nothing which it calls is recorded. */
#include "core_hook.h"

#include <string.h>

#include "core/deadline.h"

static inline PyObject *pass_on(const wrapper_object *w, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    return PyObject_Vectorcall(w->original, args, nargsf, keywords);
}

SP_RARE void sp_hook_failed(recorder_object *r) {
    sp_hook_drop();
    if (r->ring.map) atomic_fetch_add_explicit(&r->ring.counts->failures, 1, memory_order_relaxed);
}

static inline uint32_t saturated(int64_t ns) { return ns <= 0 ? 0 : ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns; }

/* ---- inside of an open call ---- */

static inline void say_path(const wrapper_object *w, hook_open *open) {
    sp_record *record = &open->record;
    if (w->path >= 0) {
        if (open->marked && !open->inside && record->path != w->path) record->flags |= SP_FLAG(MANY);
        record->path = (uint8_t)w->path;
    }
    if (w->dry == 1) record->flags |= SP_FLAG(DRY);
    if (w->dry == 0) record->flags &= (uint16_t)~SP_FLAG(DRY);
}

static SP_RARE bool begins_with(PyObject *result, PyObject *first) {
    if (result == first) return true;
    if (!PyTuple_Check(result) || !PyTuple_Check(first) || PyTuple_GET_SIZE(first) > PyTuple_GET_SIZE(result)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(first); i++) {
        PyObject *wanted = PyTuple_GET_ITEM(first, i);
        if (wanted != Py_Ellipsis && wanted != PyTuple_GET_ITEM(result, i)) return false;
    }
    return true;
}

static SP_RARE void name_kernel(const wrapper_object *w, hook_open *open, PyObject *result) {
    for (Py_ssize_t i = 0; i < w->kernels; i++)
        if (begins_with(result, w->kernel[i].result)) {
            open->record.kernel = w->kernel[i].id;
            return;
        }
}

static PyObject *inner_call(const wrapper_object *w, hook_open *open, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    say_path(w, open);
    open->inside++;
    PyObject *result = pass_on(w, args, nargsf, keywords);
    open->inside--;
    if (w->path >= 0) open->marked = true;
    if (w->kernels && result) name_kernel(w, open, result);
    return result;
}

/* ---- a call of its own ---- */

/* timer(None) before, timer(token, seq) after; what it raises is ours to keep.
 */
static SP_RARE PyObject *timer_begin(recorder_object *r, uint32_t every) {
    if (r->timer == Py_None || ++r->timer_count % every) return NULL;
    PyObject *timer = Py_NewRef(r->timer);
    PyObject *token = PyObject_CallOneArg(timer, Py_None);
    Py_DECREF(timer);
    if (!token) sp_hook_failed(r);
    if (token == Py_None) Py_CLEAR(token);
    return token;
}

static SP_RARE void timer_end(recorder_object *r, PyObject *token, uint64_t seq) {
    PyObject *number = PyLong_FromUnsignedLongLong(seq), *timer = Py_NewRef(r->timer), *done = NULL;
    if (number && timer != Py_None) done = PyObject_CallFunctionObjArgs(timer, token, number, NULL);
    if (PyErr_Occurred()) sp_hook_failed(r);
    Py_XDECREF(done);
    Py_DECREF(timer);
    Py_XDECREF(number);
}

static inline void begin(const wrapper_object *w, recorder_object *r, hook_thread *t, uint16_t group, PyObject *first,
                         PyObject *tensor) {
    hook_open *open = &t->open[t->depth];
    *open = (hook_open){.recorder = r};

    sp_record *record = &open->record;
    record->group = group, record->entry = w->entry, record->op = w->op;
    record->path = record->expected = record->dtype = SP_RING_NONE;

    open->generation = r->generation;
    record->thread = t->number;
    record->context = sp_hook_context(r, t->number, first);
    record->phase = (uint8_t)sp_phase_of(record->context);
    if (!tensor || !sp_hook_facts(r, tensor, open)) record->flags |= SP_FLAG(NO_TENSOR);
    if (r->expect != Py_None) sp_hook_expected(r, open, false, first);
    sp_ring_expect(&r->ring, open->known ? open->known->kind : 0);
    uint32_t every = r->ring.map ? atomic_load_explicit(&r->control->site_every, memory_order_relaxed) : 0;
    if (every && ++r->site_count % every == 0) record->site = sp_hook_site(r);
    say_path(w, open);
}

static inline bool gave_nothing(const sp_record *record, PyObject *result) {
    if (record->op != SP_RING_OP_OUT_OF_PLACE && record->op != SP_RING_OP_FUSED) return false;
    if (PyTuple_Check(result) && PyTuple_GET_SIZE(result)) result = PyTuple_GET_ITEM(result, 0);
    return result == Py_None;
}

static inline bool is_alarm(const sp_record *record) {
    if (record->expected == SP_RING_NONE || record->path == record->expected) return false;
    return record->path != SP_RING_NONE || record->flags & SP_FLAG(NOTHING);
}

/* The path is not the expected one of a call through all_reduce. Perhaps it is
 * a direct call, of which something else is expected. Each such call pays for a
 * walk up the stack, sampled or not: measured with CPU tensors on an AMD EPYC,
 * 0.2 us for a stack of 5 frames, 0.4 us of 20 and 1.0 us of 60; a third of it
 * where the same frames were walked before. */
static SP_RARE void look_who_called(const wrapper_object *w, recorder_object *r, hook_open *open, PyObject *first) {
    sp_record *record = &open->record;
    bool through = sp_hook_stack_has(r, w->through);
    record->flags |= through ? SP_FLAG(THROUGH) : SP_FLAG(DIRECT);
    if (!through) sp_hook_expected(r, open, true, first);
}

/* Where the expected path ran and nothing said by which kernel, it is the expected one. */
static inline void derive_kernel(hook_open *open) {
    sp_record *record = &open->record;
    if (record->kernel || !open->kernel || record->path != record->expected) return;
    if (record->flags & (SP_FLAG(DRY) | SP_FLAG(NOTHING) | SP_FLAG(MANY))) return;
    record->kernel = open->kernel, record->flags |= SP_FLAG(DERIVED);
}

static SP_RARE sp_kind_row *find_kind(recorder_object *r, const sp_record *record, hook_key *known) {
    sp_kind_row *row = sp_ring_kind(&r->ring, record);
    uint64_t place = row ? (uint64_t)(row - r->ring.kind) + 1 : 0;
    if (known && place <= UINT16_MAX) known->kind = (uint16_t)place;
    return row;
}

static SP_RARE void note_alarm(recorder_object *r, const sp_record *record, bool has_row, bool is_new) {
    atomic_fetch_add_explicit(&r->ring.counts->alarms, 1, memory_order_relaxed);
    if (is_new) r->pending = true;
    if (!has_row) sp_hook_alarm_lost(r, record);
}

SP_OFTEN uint64_t sp_hook_write(recorder_object *r, sp_record *record, hook_key *known) {
    if (is_alarm(record)) record->flags |= SP_FLAG(ALARM);
    if (record->group < r->calls_size) record->call = ++r->calls[record->group];
    if (record->graph) sp_ring_graph_captured(&r->ring, record->graph, record);
    sp_kind_row *row = sp_ring_kind_at(&r->ring, known ? known->kind : 0, record);
    if (!row) row = find_kind(r, record, known);
    bool is_new = row && !sp_ring_count(row, record);
    if (record->flags & SP_FLAG(ALARM)) note_alarm(r, record, row, is_new);
    return sp_ring_write(&r->ring, record);
}

/* With an exception pending (result is NULL), nothing here runs Python. */
static uint64_t end(const wrapper_object *w, const hook_thread *t, hook_open *open, PyObject *first, PyObject *result) {
    recorder_object *r = w->recorder;
    sp_record *record = &open->record;
    /* Of a call in whose middle recording was stopped, the part that says which path ran may not have been seen. */
    if (atomic_load_explicit(&r->control->control, memory_order_relaxed) != open->generation) return 0;
    if (!result) record->path = SP_PATH_RAISES, record->flags |= SP_FLAG(RAISED);
    if (result && gave_nothing(record, result)) record->path = SP_RING_NONE, record->flags |= SP_FLAG(NOTHING);
    if (result && w->through && is_alarm(record)) look_who_called(w, r, open, first);
    derive_kernel(open);

    if (!r->ring.map || !t->number || t->forks != r->forks)
        return 0; /* closed meanwhile, or this is a child that was forked meanwhile */
    if (record->phase == SP_PHASE_CAPTURED) record->graph = (uint16_t)r->graph_now;
    return sp_hook_write(r, record, open->known);
}

static PyObject *outer_call(const wrapper_object *w, hook_thread *t, uint16_t group, PyObject *const *args, size_t nargsf,
                            PyObject *keywords) {
    recorder_object *r = w->recorder;
    hook_open *open = &t->open[t->depth];
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    PyObject *first = count ? args[0] : NULL, *token = NULL;
    begin(w, r, t, group, first, sp_hook_argument(w->argument, w->keyword, args, count, keywords));

    bool is_timed = r->ring.map && atomic_load_explicit(&r->control->host_time, memory_order_relaxed);
    uint32_t every = r->ring.map ? atomic_load_explicit(&r->control->timer_every, memory_order_relaxed) : 0;
    /* While any thread captures: it must not meet another one's questions to the device. */
    if (every && !r->capturing && open->record.phase != SP_PHASE_CAPTURED) token = timer_begin(r, every);

    int64_t began = sp_now_ns();
    open->record.time_ns = (uint64_t)began;
    t->depth++;
    t->ours = false;
    PyObject *result = pass_on(w, args, nargsf, keywords);
    t->ours = true;
    t->depth--;
    if (is_timed) open->record.host_ns = saturated(sp_now_ns() - began);
    uint64_t seq = end(w, t, open, first, result);
    if (token && result && seq) timer_end(r, token, seq);
    Py_XDECREF(token);
    return result;
}

/* Whether the calls that are open here are known: of a recording that began in
 * the middle of one they are not. */
static SP_RARE bool saw_all(recorder_object *r, hook_thread *t, uint32_t control) {
    if (sp_hook_stack_has(r, r->outer)) return false;
    t->of = r, t->generation = control;
    return true;
}

/* false: it is passed on, unseen. */
static SP_RARE bool becomes_ours(recorder_object *r, hook_thread *t, uint32_t control) {
    if (t->depth == SP_HOOK_DEPTH) {
        atomic_fetch_add_explicit(&r->ring.counts->deep, 1, memory_order_relaxed);
        return false;
    }
    if (control != r->generation) {
        r->generation = control;
        if (r->calls_size) memset(r->calls, 0, r->calls_size * sizeof *r->calls);
    }
    return (t->of == r && t->generation == control) || saw_all(r, t, control);
}

static inline bool is_ours(recorder_object *r, hook_thread *t, uint32_t control) {
    if (t->depth < SP_HOOK_DEPTH && control == r->generation && t->of == r && t->generation == control) return true;
    return becomes_ours(r, t, control);
}

static SP_OFTEN __attribute__((noinline)) PyObject *recorded_call(wrapper_object *w, uint32_t control, PyObject *const *args,
                                                                  size_t nargsf, PyObject *keywords) {
    recorder_object *r = w->recorder;
    hook_thread *t = sp_hook_thread();
    hook_open *open = t->depth && t->open[t->depth - 1].recorder == r ? &t->open[t->depth - 1] : NULL;
    if (t->ours || (!open && !w->entry)) return pass_on(w, args, nargsf, keywords);
    if (open && !w->entry && !w->unless.parts) return inner_call(w, open, args, nargsf, keywords);
    if (t->forks != r->forks) {
        r->control = sp_hook_never();
        return pass_on(w, args, nargsf, keywords);
    }
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    t->ours = true;
    bool skip = w->unless.parts && count && sp_hook_is_true(&w->unless, args[0], r);
    uint16_t group = w->entry && !skip ? sp_hook_group(r, w, args, count, keywords) : 0;
    /* A communicator that belongs to no group yet: its constructor calls it. */
    if (w->unless.parts && !group && !open && w->group_name.parts) skip = true;
    bool joins = open && (!w->entry || !group || !open->record.group || group == open->record.group);
    if (skip || (!joins && (!r->ring.map || !is_ours(r, t, control)))) {
        t->ours = false;
        return pass_on(w, args, nargsf, keywords);
    }
    if (joins) {
        t->ours = false;
        return inner_call(w, open, args, nargsf, keywords);
    }
    PyObject *result = outer_call(w, t, group, args, nargsf, keywords);
    t->ours = false;
    return result;
}

SP_OFTEN PyObject *sp_hook_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *keywords) {
    wrapper_object *w = (wrapper_object *)self;
    uint32_t control = atomic_load_explicit(&w->recorder->control->control, memory_order_relaxed);
    if (!(control & 1)) return pass_on(w, args, nargsf, keywords);
    return recorded_call(w, control, args, nargsf, keywords);
}
