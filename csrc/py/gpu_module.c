/* The module _gpu: the GPU device's table in a capsule for _core, and what this machine has. Called by sglang_probe/gpu.py alone.
 * Invariant: it imports without a driver, a GPU or NCCL; no type of CUDA is seen here. */
#include "gpu_module.h"

typedef struct gpu_state {
    PyObject *error, *unavailable; /* ProbeError and ProbeUnavailable, which _core owns */
} gpu_state;

PyObject *sp_gpu_raise(PyObject *module, sp_status status) {
    const gpu_state *state = PyModule_GetState(module);
    PyObject *type = status == SP_INVALID       ? PyExc_ValueError
                     : status == SP_NOMEM       ? PyExc_MemoryError
                     : status == SP_TIMEOUT     ? PyExc_TimeoutError
                     : status == SP_UNAVAILABLE ? state->unavailable
                                                : state->error;
    PyErr_Format(type, "%s: %s", sp_status_text(status), sp_error());
    return NULL;
}

static PyObject *seam(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyCapsule_New((void *)&sp_gpu_seam, SP_SEAM_CAPSULE, NULL); /* its taker keeps it const */
}

static PyObject *available(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    int count;
    sp_status status;
    Py_BEGIN_ALLOW_THREADS status = sp_gpu_available(&count);
    Py_END_ALLOW_THREADS return PyUnicode_FromString(status ? sp_error() : "");
}

static PyObject *device_dict(int ordinal, const sp_gpu_device *d) {
    return Py_BuildValue("{s:i,s:s,s:s,s:s,s:(ii),s:i,s:K}", "ordinal", ordinal, "name", d->name, "uuid", d->uuid, "pci_bus_id",
                         d->bus, "capability", d->major, d->minor, "multiprocessors", d->multiprocessors, "memory_bytes",
                         (unsigned long long)d->bytes);
}

static PyObject *devices(PyObject *module, PyObject *unused) {
    (void)unused;
    int count;
    sp_status status;
    Py_BEGIN_ALLOW_THREADS status = sp_gpu_available(&count);
    Py_END_ALLOW_THREADS if (status) return sp_gpu_raise(module, status);
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < count; i++) {
        sp_gpu_device device;
        status = sp_gpu_device_read(i, &device);
        PyObject *one = status ? sp_gpu_raise(module, status) : device_dict(i, &device);
        if (!one || PyList_Append(list, one) < 0) Py_CLEAR(list);
        Py_XDECREF(one);
    }
    return list;
}

static PyObject *link_of(PyObject *module, PyObject *args) {
    int from, to;
    sp_gpu_link link;
    if (!PyArg_ParseTuple(args, "ii:link", &from, &to)) return NULL;
    sp_status status = sp_gpu_link_read(from, to, &link);
    if (status) return sp_gpu_raise(module, status);
    return Py_BuildValue("{s:N,s:N,s:i}", "peer_access", PyBool_FromLong(link.peer_access), "native_atomics",
                         PyBool_FromLong(link.native_atomics), "rank", link.rank);
}

static const double peer_copy_s = 10;

static PyObject *peer_copy(PyObject *module, PyObject *args) {
    int source, target;
    unsigned long long nbytes;
    unsigned seed;
    sp_gpu_moved moved;
    sp_status status;
    if (!PyArg_ParseTuple(args, "iiKI:peer_copy", &source, &target, &nbytes, &seed)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = sp_gpu_peer_copy(source, target, (size_t)nbytes, seed, sp_deadline_in(peer_copy_s), &moved);
    Py_END_ALLOW_THREADS if (status) return sp_gpu_raise(module, status);
    if (!moved.possible) Py_RETURN_NONE;
    return Py_BuildValue("(KL)", (unsigned long long)moved.wrong, (long long)moved.first);
}

static PyObject *nccl(PyObject *module, PyObject *args) {
    const char *asked = NULL, *path;
    char version[16];
    sp_status status;
    if (!PyArg_ParseTuple(args, "|z:nccl", &asked)) return NULL;
    Py_BEGIN_ALLOW_THREADS status = sp_gpu_nccl(asked, &path, version);
    Py_END_ALLOW_THREADS if (status) return sp_gpu_raise(module, status);
    return Py_BuildValue("(NN)", PyUnicode_DecodeFSDefault(path), PyUnicode_FromString(version));
}

static PyObject *nccl_wheel(PyObject *module, PyObject *args) {
    const char *path;
    if (!PyArg_ParseTuple(args, "z:nccl_wheel", &path)) return NULL;
    sp_status status = sp_nccl_wheel(path);
    if (status) return sp_gpu_raise(module, status);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"seam", seam, METH_NOARGS, "seam($module, /)\n--\n\nThe GPU device's table, for _core's Coordinator."},
    {"available", available, METH_NOARGS,
     "available($module, /)\n--\n\n\"\" where a GPU can be used, else why not. Asks the driver; makes no context."},
    {"devices", devices, METH_NOARGS,
     "devices($module, /)\n--\n\nThe GPUs that this process sees: ordinal, name, uuid, pci_bus_id, capability, multiprocessors,\n"
     "memory_bytes. ProbeUnavailable where there is none."},
    {"link", link_of, METH_VARARGS,
     "link($module, a, b, /)\n--\n\nBetween two GPUs: peer_access, native_atomics, and CUDA's performance rank (0: the fastest "
     "here)."},
    {"peer_copy", peer_copy, METH_VARARGS,
     "peer_copy($module, source, target, nbytes, seed, /)\n--\n\n(wrong 32-bit words, the first of them or -1) after a kernel on "
     "target read nbytes of source's memory,\nwhere word i is (i + seed * 2^16) * 2654435761 modulo 2^32; None without peer "
     "access."},
    {"nccl", nccl, METH_VARARGS,
     "nccl($module, path=None, /)\n--\n\n(path, version) of the libnccl that a communicator would open. None: the one in this "
     "process,\n"
     "SGLANG_NCCL_SO_PATH, the wheel, the soname, in this order. It stays open. ProbeUnavailable says what is wrong with it."},
    {"nccl_wheel", nccl_wheel, METH_VARARGS,
     "nccl_wheel($module, path, /)\n--\n\nTell where the wheel's libnccl lies; None: nowhere."},
    {NULL, NULL, 0, NULL},
};

static int gpu_exec(PyObject *module) {
    gpu_state *state = PyModule_GetState(module);
    PyObject *types = PyImport_ImportModule("sglang_probe._types");
    if (!types) return -1;
    state->error = PyObject_GetAttrString(types, "ProbeError");
    state->unavailable = state->error ? PyObject_GetAttrString(types, "ProbeUnavailable") : NULL;
    Py_DECREF(types);
    if (!state->unavailable || PyModule_AddFunctions(module, sp_gpu_custom_methods) < 0) return -1;
    return PyModule_AddFunctions(module, sp_gpu_exchange_methods);
}

static int gpu_traverse(PyObject *module, visitproc visit, void *arg) {
    gpu_state *state = PyModule_GetState(module);
    Py_VISIT(state->error);
    Py_VISIT(state->unavailable);
    return 0;
}

static int gpu_clear(PyObject *module) {
    gpu_state *state = PyModule_GetState(module);
    Py_CLEAR(state->error);
    Py_CLEAR(state->unavailable);
    return 0;
}

static void gpu_free(void *module) { gpu_clear(module); }

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, gpu_exec},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED}, /* as _core, whose exceptions it raises */
#endif
    {0, NULL},
};

static PyModuleDef gpu_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "sglang_probe._gpu",
    .m_doc = "GPUs, NCCL and our CUDA kernels. Private: use sglang_probe.gpu.",
    .m_size = sizeof(gpu_state),
    .m_methods = methods,
    .m_slots = slots,
    .m_traverse = gpu_traverse,
    .m_clear = gpu_clear,
    .m_free = gpu_free,
};

PyMODINIT_FUNC PyInit__gpu(void) { return PyModuleDef_Init(&gpu_module); }
