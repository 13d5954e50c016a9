/* Buffer: memory of the device itself, which peers can map, or which NCCL knows as a window. Made by Coordinator.buffer.
 * On CPU ranks it is a Python buffer; on either device torch and others take it by __dlpack__ (bytes: view it as what it holds).
 * Invariant: freed when the last of the Buffer and what was made of it is gone, or with its Coordinator's communicators. */
#include "core_coordinator.h"

#include <string.h>

typedef struct buffer_object {
    PyObject_HEAD coordinator_object *coordinator;
    void *data;
    Py_ssize_t nbytes;
    bool window;
} buffer_object;

PyObject *sp_coordinator_buffer(PyObject *self, PyObject *args) {
    coordinator_object *c = (coordinator_object *)self;
    unsigned long long nbytes;
    int window = 0;
    void *data = NULL;
    if (!PyArg_ParseTuple(args, "K|p", &nbytes, &window) || !sp_coordinator_ready(c)) return NULL;
    if (nbytes < 1 || nbytes > PY_SSIZE_T_MAX) {
        PyErr_Format(PyExc_ValueError, "nbytes=%llu: give one byte or more", nbytes);
        return NULL;
    }
    if (window && !c->seam->window_alloc)
        return sp_raise_text(c->state, SP_UNAVAILABLE, "CPU ranks have no NCCL, so no window; leave `window` out");
    sp_status status;
    Py_BEGIN_ALLOW_THREADS if (window) status = c->seam->window_alloc(c->comm, nbytes, &data, sp_coordinator_deadline(c));
    else status = c->seam->memory.alloc(c->comm, nbytes, &data);
    Py_END_ALLOW_THREADS if (status) return sp_coordinator_fail(c, status, c->seam->error());
    buffer_object *b = PyObject_GC_New(buffer_object, c->state->buffer_type);
    if (!b) {
        if (!window) c->seam->memory.free(c->comm, data);
        return NULL;
    }
    b->coordinator = (coordinator_object *)Py_NewRef(c);
    b->data = data;
    b->nbytes = (Py_ssize_t)nbytes;
    b->window = window;
    PyObject_GC_Track(b);
    return (PyObject *)b;
}

static bool is_gpu(const buffer_object *b) { return b->coordinator->seam && strcmp(b->coordinator->seam->name, "gpu") == 0; }

static bool check_open(const buffer_object *b) {
    if (b->coordinator->seam) return true;
    PyErr_SetString(PyExc_ValueError, "this Buffer's Coordinator is closed, and its memory with it");
    return false;
}

static int buffer_get(PyObject *self, Py_buffer *view, int flags) {
    buffer_object *b = (buffer_object *)self;
    view->obj = NULL;
    if (!check_open(b)) return -1;
    if (!is_gpu(b)) return PyBuffer_FillInfo(view, self, b->data, b->nbytes, 0, flags);
    PyErr_SetString(PyExc_BufferError, "memory of a GPU is no Python buffer; use torch.from_dlpack");
    return -1;
}

/* What a capsule owns: the tensor, its one dimension, and the Buffer. */
typedef struct loan {
    dl_managed managed;
    int64_t shape[1];
    PyObject *buffer;
} loan;

static void loan_end(dl_managed *managed) {
    loan *l = managed->context;
    PyGILState_STATE gil = PyGILState_Ensure();
    Py_DECREF(l->buffer);
    PyMem_Free(l);
    PyGILState_Release(gil);
}

static void capsule_end(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, "dltensor")) return; /* taken: its new owner ends it */
    dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor");
    managed->deleter(managed);
}

static PyObject *buffer_dlpack(PyObject *self, PyObject *args, PyObject *kwargs) {
    (void)args, (void)kwargs; /* a stream of the taker: nothing was enqueued on this memory by us */
    buffer_object *b = (buffer_object *)self;
    if (!check_open(b)) return NULL;
    loan *l = PyMem_Calloc(1, sizeof *l);
    if (!l) return PyErr_NoMemory();
    l->shape[0] = b->nbytes;
    l->buffer = Py_NewRef(self);
    l->managed.context = l;
    l->managed.deleter = loan_end;
    l->managed.tensor = (dl_tensor){.data = b->data,
                                    .ndim = 1,
                                    .dtype = {DL_UINT, 8, 1},
                                    .shape = l->shape,
                                    .device = {is_gpu(b) ? DL_CUDA : DL_CPU, is_gpu(b) ? b->coordinator->world.ordinal : 0}};
    PyObject *capsule = PyCapsule_New(&l->managed, "dltensor", capsule_end);
    if (!capsule) loan_end(&l->managed);
    return capsule;
}

static PyObject *buffer_dlpack_device(PyObject *self, PyObject *unused) {
    (void)unused;
    buffer_object *b = (buffer_object *)self;
    if (!check_open(b)) return NULL;
    return is_gpu(b) ? Py_BuildValue("(ii)", DL_CUDA, b->coordinator->world.ordinal) : Py_BuildValue("(ii)", DL_CPU, 0);
}

static PyObject *buffer_address(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromVoidPtr(((buffer_object *)self)->data);
}

static Py_ssize_t buffer_length(PyObject *self) { return ((buffer_object *)self)->nbytes; }

static int buffer_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((buffer_object *)self)->coordinator);
    return 0;
}

static void buffer_dealloc(PyObject *self) {
    buffer_object *b = (buffer_object *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    coordinator_object *c = b->coordinator;
    if (c->seam && b->window)
        c->seam->window_free(c->comm, b->data);
    else if (c->seam)
        c->seam->memory.free(c->comm, b->data);
    Py_DECREF(c);
    PyObject_GC_Del(self);
    Py_DECREF(type);
}

static PyMethodDef buffer_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))buffer_dlpack, METH_VARARGS | METH_KEYWORDS,
     "__dlpack__($self, /, **kwargs)\n--\n\nThis memory as bytes, by DLPack."},
    {"__dlpack_device__", buffer_dlpack_device, METH_NOARGS, "__dlpack_device__($self, /)\n--\n\n(kind, ordinal)"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef buffer_getset[] = {
    {"address", buffer_address, NULL, "Address in this process.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot buffer_slots[] = {
    {Py_tp_doc, "Memory of a Coordinator's device."},
    {Py_tp_dealloc, buffer_dealloc},
    {Py_tp_traverse, buffer_traverse},
    {Py_tp_methods, buffer_methods},
    {Py_tp_getset, buffer_getset},
    {Py_sq_length, buffer_length},
    {Py_bf_getbuffer, buffer_get},
    {0, NULL},
};

PyType_Spec sp_buffer_spec = {
    .name = "sglang_probe._core.Buffer",
    .basicsize = sizeof(buffer_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = buffer_slots,
};
