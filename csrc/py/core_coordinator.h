/* The Coordinator's state, shared by its files: core_coordinator.c (life and toggles), core_methods.c (what Python can call), core_reduce.c (one
 * call), core_graph.c (captures), core_reduced.c (what a call gives back), core_buffer.c (memory of the device), core_enqueue.c and
 * core_measure.c (measuring).
 * Invariant: one call at a time; a failure that leaves ranks apart breaks the Coordinator, and each later use says so. */
#ifndef SP_CORE_COORDINATOR_H
#define SP_CORE_COORDINATOR_H

#include "core_tensor.h"
#include "host/host.h"

/* Everything about a call that a route can depend on, besides what `configure` fixed. Compared by memcmp: no padding. */
typedef struct core_plan_key {
    uint64_t nbytes;
    int64_t columns, dims;
    uint32_t context;   /* SP_CTX() bits */
    uint8_t dtype;      /* sp_dtype */
    uint8_t layout;     /* bit 0 contiguous, bit 1 dense, bit 2 aligned to 16 */
    uint8_t registered; /* in symmetric memory, or tagged so */
    uint8_t used;       /* 1 in a plan that is filled in */
} core_plan_key;

typedef struct core_plan {
    core_plan_key key;
    sp_decision decision;
    uint8_t backend, kernel, flags; /* sp_backend, sp_kernel, SP_WORK_REGISTERED where inputs are read in place */
    uint8_t runs;                   /* 1 once supports() has said yes */
    bool returns_new, cloned, reduces;
} core_plan;

enum { SP_PLANS = 64 }; /* power of two */

typedef struct coordinator_object {
    PyObject_HEAD const sp_seam *seam; /* NULL: closed, or never joined */
    PyObject *seam_owner;
    PyObject *exchange_owner; /* NULL: the ranks meet on the board */
    sp_board *board;
    sp_comm *comm;
    sp_world world;
    core_state *state;  /* the module's; kept alive by the type */
    PyObject *settings; /* what Python set last; handed to _decide with a call's key */
    PyObject *derived;  /* bytes of a derived table, or NULL */
    PyObject *kept;     /* between begin_graph and end_graph: a list of the tensors of captured calls; else NULL */
    PyObject *python_path[SP_PATH_COUNT];
    sp_rules rules;
    sp_facts facts;
    const sp_release *release;
    uint32_t context;       /* bits that were switched on, besides capture */
    uint32_t off, on;       /* SP_GATE_BIT() */
    unsigned buffers;       /* Buffers that are alive */
    struct core_late *late; /* memory and graphs that were dropped during a call: given back after it */
    int pid;                /* of the process that joined: a fork of it only forgets */
    sp_board *left_board;   /* mapped for their sake after close() */
    unsigned captures;      /* graph_capture() entered */
    uint8_t forced_kernel;  /* sp_kernel that custom takes instead of its own choice, or UNKNOWN */
    bool timing, busy, joined;
    bool held;        /* hold() without its release(): see core_measure.c */
    char broken[512]; /* empty, or why nothing more is possible */
    double timeout_s;
    uint64_t seq;
    core_producers producers;
    core_plan plans[SP_PLANS];
} coordinator_object;

typedef struct reduced_object {
    PyObject_HEAD PyObject *tensor;
    coordinator_object *coordinator;
    PyObject *settings;
    core_plan plan;
    uint64_t seq;
    double host_us, device_us; /* negative: not measured */
} reduced_object;

sp_deadline sp_coordinator_deadline(const coordinator_object *c);
bool sp_coordinator_ready(coordinator_object *c); /* false with an exception: closed, broken or busy */
bool sp_coordinator_enter(coordinator_object *c); /* the same, and nobody else gets in until sp_coordinator_done */
void sp_coordinator_done(coordinator_object *c);
bool sp_coordinator_idle(const coordinator_object *c); /* false with an exception where a call of another thread runs */
/* Gives back memory of the device, or a graph; later, where a call is running now. */
void sp_coordinator_drop(coordinator_object *c, int kind, void *what);
enum { SP_DROP_MEMORY, SP_DROP_WINDOW, SP_DROP_GRAPH };
/* Raises a failure of the seam with what the board knows; breaks the Coordinator where the ranks are apart now. Always NULL. */
PyObject *sp_coordinator_fail(coordinator_object *c, sp_status status, const char *text);
/* A failure after the call was posted, whatever it was: the ranks are apart. `text` NULL: the Python exception that is set. */
void sp_coordinator_break(coordinator_object *c, const char *text);
/* A stream is a number to Python. */
static inline void *sp_stream_of(unsigned long long number) {
    return (void *)(uintptr_t)number; /* NOLINT(performance-no-int-to-ptr): that is what it is */
}
uint32_t sp_coordinator_context(const coordinator_object *c, bool capturing);

void sp_coordinator_let_go(coordinator_object *c); /* core_measure.c: a stream that is held */

extern PyMethodDef sp_coordinator_methods[];                      /* core_methods.c */
PyObject *sp_coordinator_close(PyObject *self, PyObject *unused); /* core_coordinator.c, and the next four */
PyObject *sp_coordinator_configure(PyObject *self, PyObject *const *args, Py_ssize_t count);
PyObject *sp_coordinator_register_path(PyObject *self, PyObject *args);
PyObject *sp_coordinator_wait(PyObject *self, PyObject *args);
PyObject *sp_coordinator_barrier(PyObject *self, PyObject *unused);
PyObject *sp_coordinator_all_reduce(PyObject *self, PyObject *tensor);                  /* core_reduce.c */
PyObject *sp_coordinator_enqueue(PyObject *self, PyObject *args, PyObject *kwargs);     /* core_enqueue.c */
PyObject *sp_coordinator_cost(PyObject *self, PyObject *args);                          /* core_cost.c */
PyObject *sp_coordinator_plan(PyObject *self, PyObject *const *args, Py_ssize_t count); /* core_plan.c */
PyObject *sp_coordinator_enter_capture(PyObject *self, PyObject *unused);               /* core_graph.c, and the next three */
PyObject *sp_coordinator_exit_capture(PyObject *self, PyObject *unused);
PyObject *sp_coordinator_begin_graph(PyObject *self, PyObject *args);
PyObject *sp_coordinator_end_graph(PyObject *self, PyObject *args);
PyObject *sp_coordinator_buffer(PyObject *self, PyObject *args); /* core_buffer.c */
PyObject *sp_coordinator_runs(PyObject *self, PyObject *unused); /* core_asked.c, and the next four */
PyObject *sp_coordinator_supports(PyObject *self, PyObject *args);
PyObject *sp_coordinator_ran(PyObject *self, PyObject *path);
PyObject *sp_coordinator_comm(PyObject *self, PyObject *unused);
PyObject *sp_coordinator_describe(PyObject *self, PyObject *unused);
PyObject *sp_coordinator_spin(PyObject *self, PyObject *args, PyObject *kwargs); /* core_measure.c, and the rest */
PyObject *sp_coordinator_hold(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *sp_coordinator_release(PyObject *self, PyObject *unused);
PyObject *sp_coordinator_mark(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *sp_coordinator_elapsed(PyObject *self, PyObject *unused);
PyObject *sp_coordinator_stamp(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *sp_coordinator_stamps(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *sp_coordinator_clear_stamps(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *sp_coordinator_clock(PyObject *self, PyObject *unused);
PyObject *sp_key_tuple(const core_plan_key *key); /* core_reduced.c */

#endif
