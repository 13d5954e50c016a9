/* The native driver: the path that all_reduce would take, many times, without its Python layer. Called by Coordinator.enqueue, for
 * measuring. A call is [compute] [stamp] the path with the output that SGLang allocates for it [stamp]; what is timed is the output and the
 * path. Invariant: what a peer can see is what as many calls of all_reduce show it, and it fails as they do. */
#include "core_call.h"

enum { CALLS_MAX = 10000, BEFORE = 0, INSIDE = 1, AFTER = INSIDE + SP_STAMPS_CALL, SLOTS }; /* of one call */
static const double COMPUTE_US_MAX = 1e6;

typedef struct batch {
    coordinator_object *c;
    PyObject *tensor;
    core_call call;
    int calls;
    uint64_t compute_ns;
    uint32_t stamp; /* the first call's BEFORE; 0: none */
    int64_t host_ns;
} batch;

static bool parse(PyObject *args, PyObject *kwargs, batch *b) {
    static char *names[] = {"tensor", "calls", "compute_us", "stamp", NULL};
    int stamp = 0;
    double compute_us = 0;
    b->calls = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|idi", names, &b->tensor, &b->calls, &compute_us, &stamp)) return false;
    if (b->calls < 1 || b->calls > CALLS_MAX)
        PyErr_Format(PyExc_ValueError, "calls=%d: give 1 to %d", b->calls, CALLS_MAX);
    else if (!(compute_us >= 0 && compute_us <= COMPUTE_US_MAX))
        PyErr_SetString(PyExc_ValueError, "compute_us: give 0 to 1,000,000 microseconds");
    else if (stamp < 0 || (stamp && stamp > SP_STAMPS + 1 - SLOTS * b->calls))
        PyErr_Format(PyExc_ValueError, "stamp=%d: %d calls take %d slots each, and slots are 1 to %d; 0 is none", stamp, b->calls,
                     SLOTS, SP_STAMPS);
    if (PyErr_Occurred()) return false;
    b->compute_ns = (uint64_t)(compute_us * 1000 + 0.5);
    b->stamp = (uint32_t)stamp;
    return true;
}

static bool is_timeable(const core_plan *p) {
    const char *why = sp_call_is_nothing(p) ? "SGLang makes no call here (Coordinator.decide says why)"
                      : sp_call_is_dry(p) ? "it is v1's dry run, which communicates nothing: capture it, or leave graph_capture()"
                                          : NULL;
    if (why) PyErr_Format(PyExc_ValueError, "tensor: there is nothing to time: %s", why);
    return !why;
}

/* One call's tensors, as SGLang makes them. */
static bool make(batch *b) {
    int64_t start = sp_now_ns();
    bool made = sp_call_output(b->c, b->tensor, &b->call);
    b->host_ns += sp_now_ns() - start;
    return made && sp_call_check(b->c, &b->call) && sp_call_keep(b->c, b->tensor, &b->call);
}

static sp_status stamp_beside(const batch *b, uint32_t slot, int which) {
    return slot ? b->c->seam->stamp(b->c->comm, slot + (uint32_t)which, b->call.work.stream) : SP_OK;
}

static sp_status compute(const batch *b) {
    return b->compute_ns ? b->c->seam->spin(b->c->comm, b->compute_ns, b->call.work.stream) : SP_OK;
}

/* The path, where it stands in C. */
static sp_status enter_path(batch *b, bool python) {
    int64_t start = sp_now_ns();
    sp_status status = sp_call_prepare(b->c, &b->call);
    if (!status && !python) status = b->c->seam->paths[b->call.work.path]->enqueue(b->c->comm, &b->call.work);
    b->host_ns += sp_now_ns() - start;
    return status;
}

static bool enter_python(batch *b) {
    int64_t start = sp_now_ns();
    bool done = sp_call_python(b->c, b->tensor, &b->call);
    b->host_ns += sp_now_ns() - start;
    return done;
}

/* From the post on: peers notice. */
static bool run(batch *b, uint32_t slot) {
    bool python = sp_call_in_python(b->c, &b->call);
    b->call.work.stamp = slot ? slot + INSIDE : 0;
    b->call.work.deadline = sp_coordinator_deadline(b->c);
    sp_call_post(b->c, &b->call);
    PyThreadState *released = PyEval_SaveThread();
    sp_status status = compute(b);
    if (!status) status = stamp_beside(b, slot, BEFORE);
    if (!status) status = enter_path(b, python);
    if (!status && !python) status = stamp_beside(b, slot, AFTER);
    PyEval_RestoreThread(released);
    if (!status && python) {
        if (!enter_python(b)) {
            sp_call_fail_by_exception(b->c);
            return false;
        }
        status = stamp_beside(b, slot, AFTER);
    }
    if (status) sp_call_fail(b->c, status);
    return !status;
}

/* "0 where none": what an earlier call left in the slots goes. */
static bool clear(const batch *b) {
    coordinator_object *c = b->c;
    sp_status status;
    if (!b->stamp) return true;
    Py_BEGIN_ALLOW_THREADS status = c->seam->stamps_clear(c->comm, b->stamp, (uint32_t)(SLOTS * b->calls), b->call.work.stream);
    Py_END_ALLOW_THREADS if (status) sp_coordinator_fail(c, status, c->seam->error());
    return !status;
}

static bool run_all(batch *b) {
    if (!sp_call_route(b->c, &b->call) || !is_timeable(&b->call.plan) || !clear(b)) return false;
    for (int i = 0; i < b->calls; i++) {
        bool made = (!i || PyErr_CheckSignals() == 0) && make(b);
        if (!made && i) sp_call_fail_by_exception(b->c); /* peers are on their way into this call */
        if (!made || !run(b, b->stamp ? b->stamp + (uint32_t)(SLOTS * i) : 0)) return false;
        sp_call_release_output(&b->call);
    }
    return true;
}

PyObject *sp_coordinator_enqueue(PyObject *self, PyObject *args, PyObject *kwargs) {
    batch b = {.c = (coordinator_object *)self};
    if (!parse(args, kwargs, &b) || !sp_coordinator_enter(b.c)) return NULL;
    bool good = sp_array_read(&b.c->producers, b.tensor, &b.call.in) && run_all(&b);
    sp_coordinator_done(b.c);
    sp_call_release(&b.call);
    return good ? PyFloat_FromDouble((double)b.host_ns / 1000 / b.calls) : NULL;
}
