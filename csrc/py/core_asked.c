/* What a Coordinator is asked besides all_reduce: which paths run here, by what, how often they ran, where the ranks stand.
 * Called as its methods. Invariant: nothing here is collective, and nothing changes. */
#include "core_coordinator.h"

#include <string.h>

/* ((path code, what runs it or "", 1 where it stands in Python), ...) of the paths that this device has. */
PyObject *sp_coordinator_runs(PyObject *self, PyObject *unused) {
    (void)unused;
    coordinator_object *c = (coordinator_object *)self;
    PyObject *all = PyTuple_New(SP_PATH_COUNT);
    for (int i = 0; all && i < SP_PATH_COUNT; i++) {
        const sp_path_ops *ops = c->seam ? c->seam->paths[i] : NULL;
        PyObject *one = Py_BuildValue("(si)", ops ? ops->runs : "", c->python_path[i] != NULL);
        if (one)
            PyTuple_SET_ITEM(all, i, one);
        else
            Py_CLEAR(all);
    }
    return all;
}

/* supports(path, kernel, dtype, nbytes) -> "" or why not: one question to the device, without a tensor. */
PyObject *sp_coordinator_supports(PyObject *self, PyObject *args) {
    coordinator_object *c = (coordinator_object *)self;
    unsigned char path, kernel, dtype;
    unsigned long long nbytes;
    static const uint8_t sizes[] = {
#define X(id, name, bytes) bytes,
        SP_DTYPES(X)
#undef X
    };
    if (!PyArg_ParseTuple(args, "bbbK", &path, &kernel, &dtype, &nbytes) || !sp_coordinator_ready(c)) return NULL;
    const sp_path_ops *ops = path < SP_PATH_COUNT && dtype < SP_DTYPE_COUNT ? c->seam->paths[path] : NULL;
    if (!ops) return PyUnicode_FromString("this device has no such path");
    static const _Alignas(256) char somewhere[256]; /* an aligned address: nothing is read or written there */
    sp_work work = {.path = path,
                    .kernel = kernel,
                    .dtype = dtype,
                    .nbytes = nbytes,
                    .count = nbytes / sizes[dtype],
                    .in = somewhere,
                    .out = (void *)somewhere};
    return PyUnicode_FromString(ops->supports(c->comm, &work) ? c->seam->error() : "");
}

PyObject *sp_coordinator_ran(PyObject *self, PyObject *path) {
    coordinator_object *c = (coordinator_object *)self;
    size_t index;
    if (!sp_coordinator_ready(c) || !sp_parse_index(path, "path", SP_PATH_COUNT, &index)) return NULL;
    return PyLong_FromUnsignedLongLong(c->seam->ran(c->comm, (uint8_t)index));
}

static void let_go(PyObject *capsule) { Py_XDECREF((PyObject *)PyCapsule_GetContext(capsule)); }

/* For the measuring functions of _gpu, which know what lies behind it: where the Coordinator keeps it, NULL there once it is closed. */
PyObject *sp_coordinator_comm(PyObject *self, PyObject *unused) {
    (void)unused;
    coordinator_object *c = (coordinator_object *)self;
    if (!sp_coordinator_ready(c)) return NULL;
    bool gpu = strcmp(c->seam->name, "gpu") == 0; /* under another name, _gpu refuses those of CPU ranks */
    PyObject *capsule = PyCapsule_New(&c->comm, gpu ? "sglang_probe._core.comm" : "sglang_probe._core.comm of CPU ranks", let_go);
    if (capsule && PyCapsule_SetContext(capsule, Py_NewRef(self)) == 0) return capsule;
    Py_XDECREF(capsule);
    return NULL;
}

PyObject *sp_coordinator_describe(PyObject *self, PyObject *unused) {
    (void)unused;
    coordinator_object *c = (coordinator_object *)self;
    char text[768] = "closed";
    if (c->board && c->exchange_owner)
        snprintf(text, sizeof text, "rank %d of %d meets the others over NCCL: where they stand is not known", c->world.rank,
                 c->world.size);
    else if (c->board)
        sp_board_describe(c->board, text, sizeof text);
    return PyUnicode_FromString(text);
}
