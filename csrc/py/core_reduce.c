/* One all-reduce: read the tensor, route it, make the output that this release makes, run the path, give back the result.
 * Called by Coordinator.all_reduce. Invariant: everything that can fail on one rank alone (a tensor of the wrong kind, a path that does
 * not run here, no memory for the output) fails before the call is posted, so that it leaves no peer waiting. */
#include "core_call.h"

static sp_status run_native(coordinator_object *c, const core_call *call, double *device_us) {
    const sp_path_ops *ops = c->seam->paths[call->plan.decision.path];
    const sp_work *w = &call->work;
    bool timed = c->timing && !(w->flags & SP_WORK_CAPTURING);
    if (timed) SP_TRY(c->seam->mark(c->comm, 0, w->stream));
    SP_TRY(ops->enqueue(c->comm, w));
    if (!timed) return SP_OK;
    SP_TRY(c->seam->mark(c->comm, 1, w->stream));
    *device_us = 0;
    return SP_OK;
}

/* The wait of a timed call, after its host time was taken. */
static sp_status finish_native(coordinator_object *c, const core_call *call, double *device_us) {
    SP_TRY(c->seam->paths[call->plan.decision.path]->finish(c->comm, call->work.stream, call->work.deadline));
    sp_board_phase(c->board, SP_PHASE_IDLE);
    return c->seam->elapsed(c->comm, device_us, call->work.deadline);
}

static bool finish_python(coordinator_object *c, const core_call *call) {
    PyObject *done = PyObject_CallMethod(c->python_path[call->plan.decision.path], "finish", "d", c->timeout_s);
    Py_XDECREF(done);
    return done != NULL;
}

static reduced_object *new_reduced(coordinator_object *c, core_call *call, uint64_t seq, double host_us, double device_us) {
    reduced_object *r = PyObject_GC_New(reduced_object, c->state->reduced_type);
    if (!r) return NULL;
    r->tensor = call->result;
    call->result = NULL;
    r->coordinator = (coordinator_object *)Py_NewRef(c);
    r->settings = Py_NewRef(c->settings);
    r->plan = call->plan;
    r->seq = seq;
    r->host_us = host_us;
    r->device_us = device_us;
    PyObject_GC_Track(r);
    return r;
}

/* After the tensors are there: everything that other ranks notice. */
static PyObject *execute(coordinator_object *c, PyObject *tensor, core_call *call, int64_t start) {
    const core_plan *p = &call->plan;
    bool runs = !sp_call_is_nothing(p) && !sp_call_is_dry(p), python = runs && sp_call_in_python(c, call);
    double device_us = -1;
    uint64_t seq = runs ? sp_call_post(c, call) : c->seq;
    PyThreadState *released = PyEval_SaveThread();
    sp_status status = sp_call_prepare(c, call);
    if (!status && runs && !python) status = run_native(c, call, &device_us);
    PyEval_RestoreThread(released);
    if (status) return sp_call_fail(c, status);
    if (python && !sp_call_python(c, tensor, call)) return sp_call_fail_by_exception(c);
    if (python && c->timing && !(call->work.flags & SP_WORK_CAPTURING) && !finish_python(c, call))
        return sp_call_fail_by_exception(c);
    double host_us = c->timing ? (double)(sp_now_ns() - start) / 1000 : -1;
    if (device_us >= 0) {
        Py_BEGIN_ALLOW_THREADS status = finish_native(c, call, &device_us);
        Py_END_ALLOW_THREADS if (status) return sp_call_fail(c, status);
    }
    return (PyObject *)new_reduced(c, call, seq, host_us, device_us);
}

static PyObject *reduce(coordinator_object *c, PyObject *tensor, core_call *call, int64_t start) {
    if (!sp_call_route(c, call) || !sp_call_output(c, tensor, call)) return NULL;
    if (!sp_call_is_nothing(&call->plan) && !sp_call_is_dry(&call->plan) && !sp_call_check(c, call)) return NULL;
    if (!sp_call_keep(c, tensor, call)) return NULL;
    call->work.deadline = sp_coordinator_deadline(c);
    return execute(c, tensor, call, start);
}

PyObject *sp_coordinator_all_reduce(PyObject *self, PyObject *tensor) {
    coordinator_object *c = (coordinator_object *)self;
    core_call call = {0};
    if (!sp_coordinator_enter(c)) return NULL;
    int64_t start = c->timing ? sp_now_ns() : 0;
    PyObject *reduced = sp_array_read(&c->producers, tensor, &call.in) ? reduce(c, tensor, &call, start) : NULL;
    sp_coordinator_done(c);
    sp_call_release(&call);
    return reduced;
}
