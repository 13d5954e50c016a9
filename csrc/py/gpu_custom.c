/* The custom kernels as tests and benches ask for them: their shapes, their floor, and many ranks in one process.
 * Called by tests/gpu and tests/bench. Invariant: kernels, dtypes and styles are numbers of the lists in _core; the core checks the rest. */
#include "gpu/many.h"
#include "gpu_module.h"

/* The capsule holds its Coordinator, and the place where that keeps its communicator. */
static sp_comm *comm_of(PyObject *capsule) {
    sp_comm **at = PyCapsule_GetPointer(capsule, SP_COMM_CAPSULE);
    if (at && !*at) PyErr_SetString(PyExc_ValueError, "comm: its Coordinator is closed");
    return at ? *at : NULL;
}

static bool check_numbers(unsigned kernel, unsigned dtype) {
    if (kernel <= UINT8_MAX && dtype < SP_DTYPE_COUNT) return true;
    PyErr_Format(PyExc_ValueError, "kernel=%u, dtype=%u: dtypes are below %d, kernels below 256", kernel, dtype, SP_DTYPE_COUNT);
    return false;
}

static void *address(unsigned long long number) {
    return (void *)(uintptr_t)number; /* NOLINT(performance-no-int-to-ptr): an address or a stream is a number to Python */
}

static sp_work work_of(unsigned kernel, unsigned dtype, unsigned long long nbytes, unsigned long long stream) {
    static const uint8_t sizes[] = {
#define X(id, name, bytes) bytes,
        SP_DTYPES(X)
#undef X
    };
    return (sp_work){.path = SP_PATH_CUSTOM,
                     .kernel = (uint8_t)kernel,
                     .dtype = (uint8_t)dtype,
                     .nbytes = nbytes,
                     .count = nbytes / sizes[dtype],
                     .stream = address(stream),
                     .deadline = sp_deadline_in(10)};
}

/* comm, kernel, dtype, nbytes[, stream] */
static sp_comm *parse_work(PyObject *args, sp_work *work) {
    PyObject *capsule;
    unsigned kernel, dtype;
    unsigned long long nbytes, stream = 0;
    if (!PyArg_ParseTuple(args, "OIIK|K", &capsule, &kernel, &dtype, &nbytes, &stream) || !check_numbers(kernel, dtype))
        return NULL;
    *work = work_of(kernel, dtype, nbytes, stream);
    return comm_of(capsule);
}

/* A call beside the Coordinator: it chooses no kernel, makes no output, tells the board nothing. */
static PyObject *reduce(PyObject *module, PyObject *args) {
    PyObject *capsule;
    unsigned kernel, dtype, stamp = 0;
    unsigned long long nbytes, in, out, stream = 0;
    bool capturing;
    if (!PyArg_ParseTuple(args, "OIIKKK|KI:reduce", &capsule, &kernel, &dtype, &nbytes, &in, &out, &stream, &stamp) ||
        !check_numbers(kernel, dtype))
        return NULL;
    sp_comm *comm = comm_of(capsule);
    if (!comm) return NULL;
    sp_work work = work_of(kernel, dtype, nbytes, stream);
    work.in = address(in);
    work.out = address(out);
    work.stamp = stamp;
    sp_status status = sp_gpu_seam.capturing(comm, work.stream, &capturing);
    if (!status) {
        work.flags = capturing ? SP_WORK_CAPTURING : 0;
        status = sp_gpu_seam.paths[SP_PATH_CUSTOM]->enqueue(comm, &work);
    }
    if (status) return sp_gpu_raise(module, status);
    Py_RETURN_NONE;
}

static PyObject *tune(PyObject *module, PyObject *args) {
    PyObject *capsule;
    unsigned style, blocks_max = 0;
    int overlap = 1;
    if (!PyArg_ParseTuple(args, "OI|pI:tune", &capsule, &style, &overlap, &blocks_max)) return NULL;
    if (style >= SP_CUSTOM_STYLES) return PyErr_Format(PyExc_ValueError, "style=%u: there are %d", style, SP_CUSTOM_STYLES), NULL;
    sp_comm *comm = comm_of(capsule);
    if (!comm) return NULL;
    sp_custom_tuning tuning = {(sp_custom_style)style, overlap, blocks_max};
    sp_status status = sp_gpu_tune(comm, &tuning);
    if (status) return sp_gpu_raise(module, status);
    Py_RETURN_NONE;
}

static PyObject *shape(PyObject *module, PyObject *args) {
    sp_work work;
    uint32_t blocks, threads, fit;
    sp_comm *comm = parse_work(args, &work);
    if (!comm) return NULL;
    sp_status status = sp_gpu_shape(comm, &work, &blocks, &threads, &fit);
    return status ? sp_gpu_raise(module, status) : Py_BuildValue("(III)", blocks, threads, fit);
}

static PyObject *empty(PyObject *module, PyObject *args) {
    sp_work work;
    sp_comm *comm = parse_work(args, &work);
    if (!comm) return NULL;
    sp_status status = sp_gpu_empty(comm, &work);
    if (status) return sp_gpu_raise(module, status);
    Py_RETURN_NONE;
}

static PyObject *ping_pong(PyObject *module, PyObject *args) {
    PyObject *capsule;
    unsigned trips;
    unsigned long long stream = 0;
    double timeout_s = 10;
    if (!PyArg_ParseTuple(args, "OI|Kd:ping_pong", &capsule, &trips, &stream, &timeout_s)) return NULL;
    sp_comm *comm = comm_of(capsule);
    if (!comm) return NULL;
    sp_status status = sp_gpu_ping_pong(comm, trips, address(stream), sp_deadline_in(timeout_s));
    if (status) return sp_gpu_raise(module, status);
    Py_RETURN_NONE;
}

static PyObject *many_check(PyObject *module, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"world",      "kernel",   "dtype",  "nbytes",     "gpus", "style",   "captured",
                            "registered", "in_place", "traced", "iterations", "seed", "seconds", NULL};
    sp_many_case c = {.iterations = 1, .seconds = 60};
    sp_many_result r;
    unsigned kernel, dtype, style = SP_CUSTOM_STYLES - 1;
    unsigned long long nbytes, seed = 1;
    int captured = 0, registered = 0, in_place = 0, traced = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iIIK|$iIppppIKd:many_check", names, &c.world, &kernel, &dtype, &nbytes,
                                     &c.gpus, &style, &captured, &registered, &in_place, &traced, &c.iterations, &seed,
                                     &c.seconds) ||
        !check_numbers(kernel, dtype))
        return NULL;
    if (style >= SP_CUSTOM_STYLES) return PyErr_Format(PyExc_ValueError, "style=%u: there are %d", style, SP_CUSTOM_STYLES), NULL;
    c.kernel = (uint8_t)kernel, c.dtype = (uint8_t)dtype, c.style = (uint8_t)style, c.nbytes = nbytes, c.seed = seed;
    c.captured = captured, c.registered = registered, c.in_place = in_place, c.traced = traced;
    sp_status status;
    Py_BEGIN_ALLOW_THREADS status = sp_many_check(&c, &r);
    Py_END_ALLOW_THREADS if (status) return sp_gpu_raise(module, status);
    return Py_BuildValue("{s:K,s:K,s:d,s:N,s:K,s:K,s:K,s:d,s:i,s:I,s:I}", "checked", (unsigned long long)r.checked, "wrong",
                         (unsigned long long)r.wrong, "max_error", r.max_error, "bit_equal", PyBool_FromLong(r.bit_equal),
                         "launched", (unsigned long long)r.launched, "ran", (unsigned long long)r.ran, "stamped",
                         (unsigned long long)r.stamped, "us", r.us, "gpus", r.gpus, "blocks", r.blocks, "threads", r.threads);
}

PyMethodDef sp_gpu_custom_methods[] = {
    {"reduce", reduce, METH_VARARGS,
     "reduce($module, comm, kernel, dtype, nbytes, source, target, stream=0, stamp=0, /)\n--\n\n"
     "Enqueue one custom kernel from one address to another, beside the Coordinator; inputs are copied, never registered.\n"
     "stamp: ENTER, MET and LEFT go into this slot and the next two. All ranks call it."},
    {"tune", tune, METH_VARARGS,
     "tune($module, comm, style, overlap=True, blocks_max=0, /)\n--\n\nHow V2's kernels are launched from now on: style 0 as "
     "v0.5.10, 1 as\n"
     "v0.5.16, 2 as v0.5.21; with programmatic dependent launch or not. The same on every rank."},
    {"shape", shape, METH_VARARGS,
     "shape($module, comm, kernel, dtype, nbytes, /)\n--\n\n(blocks, threads, blocks that its GPU runs at once) of such a call."},
    {"empty", empty, METH_VARARGS,
     "empty($module, comm, kernel, dtype, nbytes, stream=0, /)\n--\n\nEnqueue an empty kernel of the shape that such a call has: "
     "the floor."},
    {"ping_pong", ping_pong, METH_VARARGS,
     "ping_pong($module, comm, trips, stream=0, timeout_s=10.0, /)\n--\n\nEnqueue round trips of a flag between ranks 0 and 1. "
     "Both call it."},
    {"many_check", (PyCFunction)(void (*)(void))many_check, METH_VARARGS | METH_KEYWORDS,
     "many_check($module, world, kernel, dtype, nbytes, *, gpus=0, style=2, captured=False, registered=False,\n"
     "           in_place=False, traced=False, iterations=1, seed=1, seconds=60.0)\n--\n\n"
     "Run a custom kernel with all ranks in this process, several a GPU, and compare with float64: checked and wrong elements,\n"
     "max_error, bit_equal, launched, ran, stamped, us, gpus, blocks, threads. Traced: every launch is stamped, and `stamped` "
     "counts\n"
     "those of all ranks whose stamps are in their order. For a child process that can be killed."},
    {NULL, NULL, 0, NULL},
};
