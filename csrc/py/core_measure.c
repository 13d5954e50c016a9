/* What measuring needs beside the calls: marks and the time between them, stamps, compute that is only time, a stream that is held, and how
 * clocks stand to one another. Called as Coordinator's methods; what they time is enqueue's and all_reduce's.
 * Invariant: a stream that is held is let go before its Coordinator breaks or closes. */
#include "core_coordinator.h"

#include <unistd.h>

static const double SPIN_US_MAX = 1e6;

static coordinator_object *of(PyObject *self) { return (coordinator_object *)self; }

/* The end of a method that entered: None, or the failure. */
static PyObject *finish(coordinator_object *c, sp_status status) {
    sp_coordinator_done(c);
    return status ? sp_coordinator_fail(c, status, c->seam->error()) : Py_NewRef(Py_None);
}

static bool check_slots(Py_ssize_t first, Py_ssize_t count) {
    if (first >= 1 && count >= 1 && count <= SP_STAMPS && first <= SP_STAMPS - count + 1) return true;
    PyErr_Format(PyExc_ValueError, "%zd stamps from slot %zd on: the slots are 1 to %d", count, first, SP_STAMPS);
    return false;
}

/* A graph would run it again and again, each time with another one's time. */
static bool outside_of_capture(coordinator_object *c, void *stream, const char *what) {
    bool capturing = false;
    sp_status status = c->seam->capturing(c->comm, stream, &capturing);
    if (status) sp_coordinator_fail(c, status, c->seam->error());
    if (capturing) PyErr_Format(PyExc_ValueError, "%s while the stream is captured: do it around the replay", what);
    return !status && !capturing;
}

PyObject *sp_coordinator_spin(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"us", "stream", NULL};
    coordinator_object *c = of(self);
    double us;
    unsigned long long stream = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "d|K", names, &us, &stream)) return NULL;
    if (!(us >= 0 && us <= SPIN_US_MAX)) {
        PyErr_SetString(PyExc_ValueError, "us: give 0 to 1,000,000 microseconds");
        return NULL;
    }
    if (!sp_coordinator_enter(c)) return NULL;
    sp_status status;
    Py_BEGIN_ALLOW_THREADS status = c->seam->spin(c->comm, (uint64_t)(us * 1000 + 0.5), sp_stream_of(stream));
    Py_END_ALLOW_THREADS return finish(c, status);
}

PyObject *sp_coordinator_hold(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"stream", NULL};
    coordinator_object *c = of(self);
    unsigned long long stream = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|K", names, &stream) || !sp_coordinator_ready(c)) return NULL;
    if (c->held) {
        PyErr_SetString(c->state->error, "this Coordinator holds a stream already; release() it first");
        return NULL;
    }
    if (!outside_of_capture(c, sp_stream_of(stream), "a hold")) return NULL;
    sp_status status;
    c->busy = true;
    Py_BEGIN_ALLOW_THREADS status = c->seam->hold(c->comm, sp_stream_of(stream));
    Py_END_ALLOW_THREADS c->held = !status;
    return finish(c, status);
}

void sp_coordinator_let_go(coordinator_object *c) {
    if (c->held && c->comm && c->pid == (int)getpid()) c->seam->release(c->comm);
    c->held = false;
}

/* Of a call of another thread that waits for the stream, too: so nothing is asked first. */
PyObject *sp_coordinator_release(PyObject *self, PyObject *unused) {
    (void)unused;
    sp_coordinator_let_go(of(self));
    Py_RETURN_NONE;
}

PyObject *sp_coordinator_mark(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"which", "stream", NULL};
    coordinator_object *c = of(self);
    int which;
    unsigned long long stream = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i|K", names, &which, &stream)) return NULL;
    if (which != 0 && which != 1) {
        PyErr_Format(PyExc_ValueError, "which=%d: 0 is before, 1 after", which);
        return NULL;
    }
    if (!sp_coordinator_ready(c) || !outside_of_capture(c, sp_stream_of(stream), "a mark")) return NULL;
    sp_status status;
    c->busy = true;
    Py_BEGIN_ALLOW_THREADS status = c->seam->mark(c->comm, which, sp_stream_of(stream));
    Py_END_ALLOW_THREADS return finish(c, status);
}

PyObject *sp_coordinator_elapsed(PyObject *self, PyObject *unused) {
    (void)unused;
    coordinator_object *c = of(self);
    double us = 0;
    if (!sp_coordinator_enter(c)) return NULL;
    sp_status status;
    Py_BEGIN_ALLOW_THREADS status = c->seam->elapsed(c->comm, &us, sp_coordinator_deadline(c));
    Py_END_ALLOW_THREADS sp_coordinator_done(c);
    return status ? sp_coordinator_fail(c, status, c->seam->error()) : PyFloat_FromDouble(us);
}

PyObject *sp_coordinator_stamp(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"slot", "stream", NULL};
    coordinator_object *c = of(self);
    Py_ssize_t slot;
    unsigned long long stream = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n|K", names, &slot, &stream) || !check_slots(slot, 1)) return NULL;
    if (!sp_coordinator_enter(c)) return NULL;
    sp_status status;
    Py_BEGIN_ALLOW_THREADS status = c->seam->stamp(c->comm, (uint32_t)slot, sp_stream_of(stream));
    Py_END_ALLOW_THREADS return finish(c, status);
}

PyObject *sp_coordinator_stamps(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"first", "count", NULL};
    coordinator_object *c = of(self);
    Py_ssize_t first, count;
    uint64_t *ns;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nn", names, &first, &count) || !check_slots(first, count)) return NULL;
    PyObject *array = sp_stamps_array((size_t)count, &ns);
    if (!array || !sp_coordinator_enter(c)) {
        Py_XDECREF(array);
        return NULL;
    }
    sp_status status;
    Py_BEGIN_ALLOW_THREADS status = c->seam->stamps_read(c->comm, (uint32_t)first, (uint32_t)count, ns,
                                                         sp_coordinator_deadline(c));
    Py_END_ALLOW_THREADS sp_coordinator_done(c);
    if (!status) return array;
    Py_DECREF(array);
    return sp_coordinator_fail(c, status, c->seam->error());
}

PyObject *sp_coordinator_clear_stamps(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"first", "count", "stream", NULL};
    coordinator_object *c = of(self);
    Py_ssize_t first, count;
    unsigned long long stream = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nn|K", names, &first, &count, &stream) || !check_slots(first, count))
        return NULL;
    if (!sp_coordinator_enter(c)) return NULL;
    sp_status status;
    Py_BEGIN_ALLOW_THREADS status = c->seam->stamps_clear(c->comm, (uint32_t)first, (uint32_t)count, sp_stream_of(stream));
    Py_END_ALLOW_THREADS return finish(c, status);
}

static PyObject *microseconds(const double *ns, int count) {
    PyObject *all = PyTuple_New(count);
    for (int r = 0; all && r < count; r++) {
        PyObject *us = PyFloat_FromDouble(ns[r] / 1000);
        if (us)
            PyTuple_SET_ITEM(all, r, us);
        else
            Py_CLEAR(all);
    }
    return all;
}

PyObject *sp_coordinator_clock(PyObject *self, PyObject *unused) {
    (void)unused;
    coordinator_object *c = of(self);
    sp_clock clock = {0};
    if (!sp_coordinator_enter(c)) return NULL;
    sp_status status;
    Py_BEGIN_ALLOW_THREADS status = c->seam->clock(c->comm, &clock, sp_coordinator_deadline(c));
    Py_END_ALLOW_THREADS sp_coordinator_done(c);
    if (status) return sp_coordinator_fail(c, status, c->seam->error());
    PyObject *offsets = microseconds(clock.offset_ns, c->world.size);
    PyObject *errors = offsets ? microseconds(clock.error_ns, c->world.size) : NULL;
    PyObject *both = errors ? PyTuple_Pack(2, offsets, errors) : NULL;
    Py_XDECREF(offsets);
    Py_XDECREF(errors);
    return both;
}
