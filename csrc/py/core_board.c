/* The board for Python: made by the process that starts ranks, looked at by it, and told there which rank has died.
 * Called by LocalGroup. Invariant: a Board holds its mapping; the descriptor stays its maker's to close. */
#include "core_module.h"

#include "host/board.h"

typedef struct board_object {
    PyObject_HEAD sp_board *board;
    core_state *state;
} board_object;

static PyObject *board_create(PyObject *module, PyObject *args) {
    int size, fd = -1;
    unsigned long long arena = UINT64_C(64) << 20;
    if (!PyArg_ParseTuple(args, "i|K", &size, &arena)) return NULL;
    sp_status status = sp_board_create(size, arena, &fd);
    return status ? sp_raise(module, status) : PyLong_FromLong(fd);
}

PyMethodDef sp_board_methods[] = {
    {"board_create", board_create, METH_VARARGS,
     "board_create($module, size, arena_bytes=67108864, /)\n--\n\nA board for `size` ranks on this machine: its descriptor (a "
     "memfd)."},
    {NULL, NULL, 0, NULL},
};

static PyObject *board_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"fd", "rank", NULL};
    int fd, rank = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i|i", names, &fd, &rank)) return NULL;
    core_state *state = sp_state_of_type(type);
    board_object *self = state ? (board_object *)type->tp_alloc(type, 0) : NULL;
    if (!self) return NULL;
    self->state = state;
    sp_status status = sp_board_attach(fd, rank, &self->board);
    if (!status) return (PyObject *)self;
    self->board = NULL;
    Py_DECREF(self);
    return sp_raise_text(state, status, sp_error());
}

static PyObject *board_fail(PyObject *self, PyObject *args) {
    board_object *b = (board_object *)self;
    int rank;
    const char *text;
    if (!PyArg_ParseTuple(args, "is", &rank, &text)) return NULL;
    if (rank < 0 || rank >= sp_board_size(b->board)) {
        PyErr_Format(PyExc_ValueError, "rank=%d: this board has ranks 0 to %d", rank, sp_board_size(b->board) - 1);
        return NULL;
    }
    sp_board_fail(b->board, rank, text);
    Py_RETURN_NONE;
}

static PyObject *board_check(PyObject *self, PyObject *unused) {
    (void)unused;
    board_object *b = (board_object *)self;
    sp_status status = sp_board_check(b->board);
    if (status) return sp_raise_text(b->state, status, sp_error());
    Py_RETURN_NONE;
}

static PyObject *board_describe(PyObject *self, PyObject *unused) {
    (void)unused;
    char text[768];
    sp_board_describe(((board_object *)self)->board, text, sizeof text);
    return PyUnicode_FromString(text);
}

static PyObject *board_size(PyObject *self, void *closure) {
    (void)closure;
    return PyLong_FromLong(sp_board_size(((board_object *)self)->board));
}

static void board_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    board_object *b = (board_object *)self;
    if (b->board) sp_board_detach(b->board);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef board_object_methods[] = {
    {"fail", board_fail, METH_VARARGS, "fail($self, rank, text, /)\n--\n\nSays that a rank is gone; everybody's waits end."},
    {"check", board_check, METH_NOARGS, "check($self, /)\n--\n\nRaises ProbeError naming a rank that is dead or has failed."},
    {"describe", board_describe, METH_NOARGS, "describe($self, /)\n--\n\nWhere each rank stands, one sentence."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef board_getset[] = {
    {"size", board_size, NULL, "Ranks.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot board_slots[] = {
    {Py_tp_doc, "Board(fd, rank=-1)\n--\n\nThe shared memory on which the ranks of one machine meet; rank -1 looks on."},
    {Py_tp_new, board_new},
    {Py_tp_dealloc, board_dealloc},
    {Py_tp_methods, board_object_methods},
    {Py_tp_getset, board_getset},
    {0, NULL},
};

PyType_Spec sp_board_spec = {
    .name = "sglang_probe._core.Board",
    .basicsize = sizeof(board_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = board_slots,
};
