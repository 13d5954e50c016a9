/* Coordinator: its life (join, close), its toggles (configure) and what goes wrong. Its Python subclass names and checks everything.
 * Called by sglang_probe/_run/coordinator.py. Invariant: configure() sets everything a route depends on at once and forgets all plans,
 * so that no call sees half of a change. */
#include "core_coordinator.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>
#include <unistd.h>

static const double TIMEOUT_MAX_S = 86400;

static const sp_seam *seam_of(PyObject *device) {
    if (device == Py_None) return &sp_host_seam;
    const sp_seam *seam = PyCapsule_GetPointer(device, SP_SEAM_CAPSULE);
    if (!seam) return NULL;
    if (seam->abi == SP_SEAM_ABI && seam->bytes == sizeof(sp_seam)) return seam;
    PyErr_Format(PyExc_ImportError,
                 "_gpu was built for another version of this package (table %u of %u bytes, wanted %d of %zu): "
                 "build both again",
                 seam->abi, seam->bytes, SP_SEAM_ABI, sizeof(sp_seam));
    return NULL;
}

static void leave(coordinator_object *c) {
    sp_coordinator_let_go(c);
    const sp_seam *seam = c->seam;
    sp_comm *comm = c->comm;
    sp_board *board = c->board;
    bool broken = *c->broken, ours = c->pid == (int)getpid(), lent = c->buffers;
    c->seam = NULL, c->comm = NULL, c->board = NULL;
    if (!ours) return; /* a fork: what is there is its parent's, who goes on with it */
    Py_BEGIN_ALLOW_THREADS if (seam && comm) seam->leave(comm, broken);
    if (board && !lent) sp_board_detach(board);
    Py_END_ALLOW_THREADS if (lent) c->left_board = board; /* arrays lie on it: the last Buffer unmaps it */
    Py_CLEAR(c->exchange_owner);
}

/* Ranks on several machines: how they meet, and how many they are; the board is this process's own. False with an exception. */
static bool take_exchange(coordinator_object *c, PyObject *capsule, int size) {
    Py_CLEAR(c->exchange_owner); /* of a join that failed */
    if (capsule == Py_None) return true;
    const sp_exchange *exchange = PyCapsule_GetPointer(capsule, SP_EXCHANGE_CAPSULE);
    if (!exchange) return false;
    if (size < 1 || size > SP_RANKS_MAX || c->world.rank < 0 || c->world.rank >= size) {
        PyErr_Format(PyExc_ValueError, "rank %d of world_size=%d: 1 to %d ranks meet over an exchange", c->world.rank, size,
                     SP_RANKS_MAX);
        return false;
    }
    Py_XSETREF(c->exchange_owner, Py_NewRef(capsule));
    c->world.size = size;
    c->world.exchange = *exchange;
    return true;
}

static int join(coordinator_object *c, const sp_seam *seam, PyObject *device, int fd, double timeout_s) {
    sp_status status = sp_board_attach(fd, c->exchange_owner ? 0 : c->world.rank, &c->board);
    if (status) {
        sp_raise_text(c->state, status, sp_error());
        return -1;
    }
    c->joined = true;
    c->pid = (int)getpid();
    c->timeout_s = timeout_s;
    if (!c->exchange_owner) {
        c->world.size = sp_board_size(c->board);
        c->world.exchange = sp_board_exchange(c->board);
    }
    sp_comm *comm = NULL;
    Py_BEGIN_ALLOW_THREADS status = seam->join(&c->world, sp_deadline_in(timeout_s), &comm);
    Py_END_ALLOW_THREADS c->world.nccl_path = NULL; /* its text is the caller's */
    sp_board_phase(c->board, SP_PHASE_IDLE);
    if (status) {
        sp_coordinator_fail(c, status, seam->error());
        leave(c);
        return -1;
    }
    c->seam_owner = Py_NewRef(device);
    c->comm = comm;
    c->seam = seam;
    return 0;
}

static bool check_timeout(double seconds) {
    if (seconds > 0 && seconds <= TIMEOUT_MAX_S) return true;
    PyErr_SetString(PyExc_ValueError, "timeout_s: give seconds above 0, at most a day: every wait ends");
    return false;
}

static int coordinator_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"device",    "board", "rank",     "ordinal",    "timeout_s",
                            "max_bytes", "nccl",  "exchange", "world_size", NULL};
    coordinator_object *c = (coordinator_object *)self;
    PyObject *device, *exchange = Py_None;
    int fd, size = 0;
    unsigned long long max_bytes = UINT64_C(16) << 20;
    double timeout_s = 30;
    const char *nccl = NULL;
    if (c->joined) {
        PyErr_SetString(PyExc_TypeError, "a Coordinator joins once; make a new one");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Oii|idKzOi", names, &device, &fd, &c->world.rank, &c->world.ordinal,
                                     &timeout_s, &max_bytes, &nccl, &exchange, &size) ||
        !check_timeout(timeout_s))
        return -1;
    const sp_seam *seam = seam_of(device);
    if (!seam || !take_exchange(c, exchange, size)) return -1;
    c->world.max_bytes = max_bytes;
    c->world.nccl_path = nccl;
    return join(c, seam, device, fd, timeout_s);
}

static PyObject *coordinator_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args, (void)kwargs;
    core_state *state = sp_state_of_type(type);
    coordinator_object *c = state ? (coordinator_object *)type->tp_alloc(type, 0) : NULL;
    if (!c) return NULL;
    c->state = state;
    c->settings = Py_NewRef(Py_None);
    c->release = &sp_releases[sp_release_count - 1];
    for (size_t i = 0; i < sp_ruleset_count; i++)
        if (strcmp(sp_rulesets[i].name, c->release->ruleset) == 0) c->rules.ruleset = &sp_rulesets[i];
    sp_facts_init(&c->facts);
    return (PyObject *)c;
}

PyObject *sp_coordinator_close(PyObject *self, PyObject *unused) {
    (void)unused;
    coordinator_object *c = (coordinator_object *)self;
    if (!sp_coordinator_idle(c)) return NULL;
    leave(c);
    Py_RETURN_NONE;
}

/* configure(settings, release, facts, context, off, on, kernel, derived) */
PyObject *sp_coordinator_configure(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    coordinator_object *c = (coordinator_object *)self;
    core_case parsed;
    uint64_t off, on;
    size_t kernel;
    if (!sp_count_args("configure", count, 8, 8) || !sp_coordinator_idle(c)) return NULL;
    if (args[7] != Py_None && !PyBytes_CheckExact(args[7])) { /* its bytes must stay where they are */
        PyErr_SetString(PyExc_TypeError, "derived: bytes, or None");
        return NULL;
    }
    PyObject *call = PyTuple_New(1 + sizeof(sp_call) / sizeof(int64_t) - 1);
    for (Py_ssize_t i = 0; call && i < PyTuple_GET_SIZE(call); i++) {
        PyObject *one = PyLong_FromLong(i ? 0 : 1);
        if (!one) Py_CLEAR(call);
        if (call) PyTuple_SET_ITEM(call, i, one);
    }
    if (!call) return NULL;
    PyObject *items[] = {args[1], args[2], call, args[3], args[7]};
    bool good = sp_parse_word(args[4], &off) && sp_parse_word(args[5], &on) &&
                sp_parse_index(args[6], "kernel", SP_KERNEL_COUNT, &kernel) && sp_parse_case(items, 5, &parsed);
    Py_DECREF(call);
    if (!good) return NULL;
    c->release = parsed.c.release;
    c->rules = parsed.rules;
    c->facts = parsed.facts;
    c->context = parsed.c.context;
    c->off = (uint32_t)off, c->on = (uint32_t)on;
    c->forced_kernel = (uint8_t)kernel;
    if (c->seam && c->seam->style) c->seam->style(c->comm, sp_custom_style_of(c->release));
    sp_release_case(&parsed);
    Py_XSETREF(c->derived, args[7] == Py_None ? NULL : Py_NewRef(args[7])); /* bytes, whose buffer stays where it is */
    Py_XSETREF(c->settings, Py_NewRef(args[0]));
    memset(c->plans, 0, sizeof c->plans);
    Py_RETURN_NONE;
}

PyObject *sp_coordinator_register_path(PyObject *self, PyObject *args) {
    coordinator_object *c = (coordinator_object *)self;
    int path;
    PyObject *implementation;
    if (!PyArg_ParseTuple(args, "iO", &path, &implementation) || !sp_coordinator_idle(c)) return NULL;
    if (path < 0 || path >= SP_PATH_COUNT) {
        PyErr_Format(PyExc_ValueError, "path %d: there are %d", path, SP_PATH_COUNT);
        return NULL;
    }
    Py_XSETREF(c->python_path[path], implementation == Py_None ? NULL : Py_NewRef(implementation));
    memset(c->plans, 0, sizeof c->plans);
    Py_RETURN_NONE;
}

PyObject *sp_coordinator_wait(PyObject *self, PyObject *args) {
    coordinator_object *c = (coordinator_object *)self;
    unsigned long long stream = 0;
    if (!PyArg_ParseTuple(args, "|K", &stream) || !sp_coordinator_ready(c)) return NULL;
    sp_status status;
    c->busy = true;
    Py_BEGIN_ALLOW_THREADS status = c->seam->wait(c->comm, sp_stream_of(stream), sp_coordinator_deadline(c));
    Py_END_ALLOW_THREADS sp_coordinator_done(c);
    sp_board_phase(c->board, SP_PHASE_IDLE);
    if (!status) status = sp_board_compare(c->board, c->seq);
    if (status) return sp_coordinator_fail(c, status, status == SP_MISMATCH ? sp_error() : c->seam->error());
    Py_RETURN_NONE;
}

PyObject *sp_coordinator_barrier(PyObject *self, PyObject *unused) {
    (void)unused;
    coordinator_object *c = (coordinator_object *)self;
    uint8_t mine = 0, all[SP_RANKS_MAX];
    if (!sp_coordinator_ready(c)) return NULL;
    sp_status status;
    c->busy = true;
    sp_board_hurry(c->board, true); /* who sleeps is woken some 20 us late, and times begin here */
    Py_BEGIN_ALLOW_THREADS status = sp_gather(&c->world.exchange, &mine, all, 1, sp_coordinator_deadline(c));
    Py_END_ALLOW_THREADS sp_board_hurry(c->board, false);
    sp_coordinator_done(c);
    if (status) return sp_coordinator_fail(c, status, sp_error());
    Py_RETURN_NONE;
}

static int coordinator_traverse(PyObject *self, visitproc visit, void *arg) {
    coordinator_object *c = (coordinator_object *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(c->seam_owner);
    Py_VISIT(c->exchange_owner);
    Py_VISIT(c->settings);
    Py_VISIT(c->derived);
    Py_VISIT(c->kept);
    for (int i = 0; i < SP_PATH_COUNT; i++) Py_VISIT(c->python_path[i]);
    return sp_producers_traverse(&c->producers, visit, arg);
}

static int coordinator_clear(PyObject *self) {
    coordinator_object *c = (coordinator_object *)self;
    Py_CLEAR(c->settings);
    Py_CLEAR(c->kept);
    for (int i = 0; i < SP_PATH_COUNT; i++) Py_CLEAR(c->python_path[i]);
    sp_producers_clear(&c->producers);
    return 0;
}

static void coordinator_dealloc(PyObject *self) {
    coordinator_object *c = (coordinator_object *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    leave(c);
    coordinator_clear(self);
    Py_CLEAR(c->derived);
    Py_CLEAR(c->exchange_owner);
    Py_CLEAR(c->seam_owner);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *get_rank(PyObject *self, void *closure) {
    const sp_world *w = &((coordinator_object *)self)->world;
    return PyLong_FromLong(closure ? w->size : w->rank);
}

static PyObject *get_device(PyObject *self, void *closure) {
    (void)closure;
    const coordinator_object *c = (coordinator_object *)self;
    return PyUnicode_FromString(c->seam ? c->seam->name : "closed");
}

static PyObject *get_timeout(PyObject *self, void *closure) {
    (void)closure;
    return PyFloat_FromDouble(((coordinator_object *)self)->timeout_s);
}

static int set_timeout(PyObject *self, PyObject *value, void *closure) {
    (void)closure;
    double seconds = value ? PyFloat_AsDouble(value) : -1;
    if (PyErr_Occurred() || !check_timeout(seconds)) return -1;
    ((coordinator_object *)self)->timeout_s = seconds;
    return 0;
}

static PyGetSetDef coordinator_getset[] = {
    {"timeout_s", get_timeout, set_timeout, "Limit of every wait, seconds.", NULL},
    {"rank", get_rank, NULL, "This rank.", NULL},
    {"world_size", get_rank, NULL, "Ranks that joined.", (void *)1},
    {"device", get_device, NULL, "host, gpu, or closed.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef coordinator_members[] = {
    {"timing", T_BOOL, offsetof(coordinator_object, timing), 0, "Whether calls are timed, and waited for."},
    {"seq", T_ULONGLONG, offsetof(coordinator_object, seq), READONLY, "Calls so far."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot coordinator_slots[] = {
    {Py_tp_doc, "Coordinator(device, board, rank, ordinal=0, timeout_s=30.0, max_bytes=16777216, nccl=None, exchange=None, "
                "world_size=0)\n--\n\n"
                "The dispatch over real communicators, one rank of it. Joining is collective."},
    {Py_tp_new, coordinator_new},
    {Py_tp_init, coordinator_init},
    {Py_tp_dealloc, coordinator_dealloc},
    {Py_tp_traverse, coordinator_traverse},
    {Py_tp_clear, coordinator_clear},
    {Py_tp_methods, sp_coordinator_methods},
    {Py_tp_members, coordinator_members},
    {Py_tp_getset, coordinator_getset},
    {0, NULL},
};

PyType_Spec sp_coordinator_spec = {
    .name = "sglang_probe._core.Coordinator",
    .basicsize = sizeof(coordinator_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = coordinator_slots,
};
