/* What a call costs the host: through all_reduce, by its path alone (with the output that it is given), and by the library's own
 * function alone.
 * Called by Coordinator.cost, for measuring; the three are made in turn, so that a drift of the machine meets all of them.
 * Invariant: each round ends with a wait, outside of the times, so that no queue fills up and no launch is waited for. */
#include "core_coordinator.h"

#include <stdlib.h>

enum { CALLS = 50, ROUNDS_MAX = 1000 };

typedef struct cost {
    coordinator_object *c;
    PyObject *tensor;
    sp_work work;
    const sp_path_ops *ops;
    bool allocates; /* the result is a new tensor */
    double us[3][ROUNDS_MAX];
} cost;

static sp_status settle(const cost *k) {
    sp_status status;
    Py_BEGIN_ALLOW_THREADS status = k->c->seam->wait(k->c->comm, k->work.stream, sp_coordinator_deadline(k->c));
    Py_END_ALLOW_THREADS return status;
}

static bool whole(cost *k) {
    for (int i = 0; i < CALLS; i++) {
        PyObject *reduced = sp_coordinator_all_reduce((PyObject *)k->c, k->tensor);
        if (!reduced) return false;
        Py_DECREF(reduced);
    }
    return true;
}

/* The path, and the output that it is given: what SGLang pays for both, without us. */
static bool path_alone(cost *k, sp_status *status) {
    for (int i = 0; i < CALLS && !*status; i++) {
        PyObject *made = k->allocates ? sp_array_empty_like(&k->c->producers, k->tensor) : NULL;
        if (k->allocates && !made) return false;
        k->work.deadline = sp_coordinator_deadline(k->c);
        Py_BEGIN_ALLOW_THREADS *status = k->ops->enqueue(k->c->comm, &k->work);
        Py_END_ALLOW_THREADS Py_XDECREF(made);
    }
    return true;
}

/* One kind of call; what it failed with is raised. */
static bool measure(cost *k, int kind, int round) {
    sp_status status = SP_OK;
    int64_t start = sp_now_ns();
    if (kind == 0 && !whole(k)) return false;
    if (kind == 1 && !path_alone(k, &status)) return false;
    if (kind == 2) {
        Py_BEGIN_ALLOW_THREADS status = k->c->seam->bare(k->c->comm, &k->work, CALLS);
        Py_END_ALLOW_THREADS
    }
    k->us[kind][round] = (double)(sp_now_ns() - start) / 1000 / CALLS;
    if (!status) status = settle(k);
    if (status) sp_coordinator_fail(k->c, status, k->c->seam->error());
    return !status;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *us, int rounds) {
    qsort(us, (size_t)rounds, sizeof *us, by_value);
    return us[rounds / 2];
}

/* The work that one call of all_reduce makes. */
static PyObject *prepare(cost *k, PyObject *reduced) {
    const core_plan *p = &((reduced_object *)reduced)->plan;
    core_array in, out;
    k->ops = k->c->python_path[p->decision.path] ? NULL : k->c->seam->paths[p->decision.path];
    if (!k->ops || !p->reduces) {
        PyErr_SetString(PyExc_ValueError, "tensor: its call runs no path of this device here, so there is nothing to time");
        return NULL;
    }
    k->allocates = p->returns_new;
    if (!sp_array_read(&k->c->producers, k->tensor, &in)) return NULL;
    bool read = sp_array_read(&k->c->producers, ((reduced_object *)reduced)->tensor, &out);
    k->work = (sp_work){.in = in.data,
                        .out = out.data,
                        .count = in.count,
                        .nbytes = in.nbytes,
                        .stream = in.stream,
                        .path = p->decision.path,
                        .kernel = p->kernel,
                        .dtype = in.dtype};
    sp_array_release(&in);
    if (read) sp_array_release(&out);
    return read ? reduced : NULL;
}

PyObject *sp_coordinator_cost(PyObject *self, PyObject *args) {
    int rounds = 20;
    PyObject *tensor, *answer = NULL;
    if (!PyArg_ParseTuple(args, "O|i", &tensor, &rounds)) return NULL;
    if (rounds < 1 || rounds > ROUNDS_MAX) {
        PyErr_Format(PyExc_ValueError, "rounds=%d: give 1 to %d", rounds, ROUNDS_MAX);
        return NULL;
    }
    PyObject *reduced = sp_coordinator_all_reduce(self, tensor);
    cost *k = reduced ? PyMem_Calloc(1, sizeof *k) : NULL;
    if (!k) {
        if (reduced) PyErr_NoMemory();
        Py_XDECREF(reduced);
        return NULL;
    }
    k->c = (coordinator_object *)self;
    k->tensor = tensor;
    bool good = prepare(k, reduced), bare = good && k->c->seam->bare && k->work.path != SP_PATH_CUSTOM;
    for (int round = 0; good && round < rounds; round++)
        good = measure(k, 0, round) && measure(k, 1, round) && (!bare || measure(k, 2, round));
    if (good && bare)
        answer = Py_BuildValue("(ddd)", median(k->us[0], rounds), median(k->us[1], rounds), median(k->us[2], rounds));
    else if (good)
        answer = Py_BuildValue("(ddO)", median(k->us[0], rounds), median(k->us[1], rounds), Py_None);
    PyMem_Free(k);
    Py_DECREF(reduced);
    return answer;
}
