/* Buffer: memory of the device itself, which peers can map, or which NCCL knows as a window. Made by Coordinator.buffer.
 * On CPU ranks it is a Python buffer; on either device torch and others take it by __dlpack__ (bytes: view it as what it holds).
 * Invariant: freed when the Buffer and all that was made of it are gone; memory of CPU ranks stays mapped until then even after close(),
 * memory of a GPU is then the process's to lose. */
#include "core_coordinator.h"

#include <string.h>

typedef struct buffer_object {
    PyObject_HEAD coordinator_object *coordinator;
    void *data;
    Py_ssize_t nbytes;
    bool window;
} buffer_object;

static PyObject *allocate(coordinator_object *c, size_t nbytes, bool window) {
    void *data = NULL;
    if (window && !c->seam->window_alloc)
        return sp_raise_text(c->state, SP_UNAVAILABLE, "CPU ranks have no NCCL, so no window; leave `window` out");
    buffer_object *b = PyObject_GC_New(buffer_object, c->state->buffer_type);
    if (!b) return NULL;
    b->coordinator = (coordinator_object *)Py_NewRef((PyObject *)c);
    b->data = NULL;
    b->nbytes = (Py_ssize_t)nbytes;
    b->window = window;
    c->buffers++;
    PyObject_GC_Track(b);
    sp_status status;
    Py_BEGIN_ALLOW_THREADS if (window) status = c->seam->window_alloc(c->comm, nbytes, &data, sp_coordinator_deadline(c));
    else status = c->seam->memory.alloc(c->comm, nbytes, &data);
    Py_END_ALLOW_THREADS b->data = data;
    if (!status) return (PyObject *)b;
    b->data = NULL;
    Py_DECREF((PyObject *)b);
    return sp_coordinator_fail(c, status, c->seam->error());
}

PyObject *sp_coordinator_buffer(PyObject *self, PyObject *args) {
    coordinator_object *c = (coordinator_object *)self;
    Py_ssize_t nbytes;
    int window = 0;
    if (!PyArg_ParseTuple(args, "n|p", &nbytes, &window)) return NULL;
    if (nbytes < 1) {
        PyErr_Format(PyExc_ValueError, "nbytes=%zd: give one byte or more", nbytes);
        return NULL;
    }
    if (!sp_coordinator_enter(c)) return NULL;
    PyObject *buffer = allocate(c, (size_t)nbytes, window);
    sp_coordinator_done(c);
    return buffer;
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
    if (!Py_IsInitialized()) return; /* an owner that outlived Python; the process is ending */
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
    (void)args; /* a stream of the taker: nothing was enqueued on this memory by us */
    buffer_object *b = (buffer_object *)self;
    PyObject *copy = kwargs ? PyDict_GetItemString(kwargs, "copy") : NULL;
    if (!check_open(b)) return NULL;
    if (copy == Py_True) {
        PyErr_SetString(PyExc_BufferError, "this memory is lent, not copied; copy what you made of it");
        return NULL;
    }
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
    if (b->data) sp_coordinator_drop(c, b->window ? SP_DROP_WINDOW : SP_DROP_MEMORY, b->data);
    if (--c->buffers == 0 && c->left_board) {
        sp_board_detach(c->left_board);
        c->left_board = NULL;
    }
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
