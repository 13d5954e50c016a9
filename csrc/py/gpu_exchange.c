/* The exchange over NCCL for Python: opened by a rank that has peers on other machines, given to its Coordinator as a capsule, and used by
 * Python itself for what the ranks tell one another. Called by sglang_probe/_run/joining.py and _bench/launched.py.
 * Invariant: the capsule owns the exchange; who uses one holds the capsule. */
#include "gpu/exchange.h"

#include <string.h>

#include "gpu_module.h"

static const double TIMEOUT_MAX_S = 86400;

/* The capsule's pointer is the sp_exchange, which a Coordinator takes; what it belongs to is its self. */
static void close_exchange(PyObject *capsule) {
    sp_exchange *exchange = PyCapsule_GetPointer(capsule, SP_EXCHANGE_CAPSULE);
    if (!exchange) return;
    Py_BEGIN_ALLOW_THREADS sp_exchange_close(exchange->self);
    Py_END_ALLOW_THREADS
}

static bool check_timeout(double seconds) {
    if (seconds > 0 && seconds <= TIMEOUT_MAX_S) return true;
    PyErr_SetString(PyExc_ValueError, "timeout_s: give seconds above 0, at most a day: every wait ends");
    return false;
}

static PyObject *open_exchange(PyObject *module, PyObject *args) {
    int rank, size, ordinal = 0;
    const char *nccl = NULL;
    double timeout_s = 30;
    sp_nccl_exchange *opened = NULL;
    if (!PyArg_ParseTuple(args, "ii|izd:exchange", &rank, &size, &ordinal, &nccl, &timeout_s) || !check_timeout(timeout_s))
        return NULL;
    sp_status status;
    Py_BEGIN_ALLOW_THREADS status = sp_exchange_open(rank, size, ordinal, nccl, sp_deadline_in(timeout_s), &opened);
    Py_END_ALLOW_THREADS if (status) return sp_gpu_raise(module, status);
    PyObject *capsule = PyCapsule_New((void *)sp_exchange_of(opened), SP_EXCHANGE_CAPSULE, close_exchange);
    if (!capsule) sp_exchange_close(opened);
    return capsule;
}

/* Everybody's bytes, padded to the longest: `lengths` by rank. */
static sp_status gather_longest(const sp_exchange *exchange, const char *mine, uint64_t length, int size,
                                uint64_t lengths[SP_RANKS_MAX], char **all, sp_deadline deadline) {
    uint64_t longest = 0;
    SP_TRY(exchange->all_gather(exchange->self, &length, lengths, sizeof length, deadline));
    for (int r = 0; r < size; r++)
        if (lengths[r] > longest) longest = lengths[r];
    /* Where one rank has no room, all of them hear of it before any of them gathers. */
    *all = longest <= SIZE_MAX / (SP_RANKS_MAX + 1) ? PyMem_RawCalloc((size_t)size + 1, longest ? longest : 1) : NULL;
    uint8_t room = *all != NULL, rooms[SP_RANKS_MAX];
    SP_TRY(exchange->all_gather(exchange->self, &room, rooms, 1, deadline));
    for (int r = 0; r < size; r++)
        if (!rooms[r])
            return sp_fail(SP_NOMEM, "rank %d of %d has no room for %llu bytes a rank", r, size, (unsigned long long)longest);
    if (!*all) return sp_fail(SP_INTERNAL, "a rank without room says that it has some");
    char *padded = *all + (size_t)size * longest;
    if (length) memcpy(padded, mine, length);
    return longest ? exchange->all_gather(exchange->self, padded, *all, longest, deadline) : SP_OK;
}

static PyObject *exchange_all_gather(PyObject *module, PyObject *args) {
    PyObject *capsule, *list = NULL;
    const char *mine;
    Py_ssize_t length;
    double timeout_s = 30;
    uint64_t lengths[SP_RANKS_MAX];
    char *all = NULL;
    if (!PyArg_ParseTuple(args, "Oy#|d:exchange_all_gather", &capsule, &mine, &length, &timeout_s) || !check_timeout(timeout_s))
        return NULL;
    const sp_exchange *exchange = PyCapsule_GetPointer(capsule, SP_EXCHANGE_CAPSULE);
    if (!exchange) return NULL;
    int size = sp_exchange_size(exchange->self);
    sp_status status;
    Py_BEGIN_ALLOW_THREADS status = gather_longest(exchange, mine, (uint64_t)length, size, lengths, &all,
                                                   sp_deadline_in(timeout_s));
    Py_END_ALLOW_THREADS if (status) { sp_gpu_raise(module, status); }
    else {
        uint64_t longest = 0;
        for (int r = 0; r < size; r++)
            if (lengths[r] > longest) longest = lengths[r];
        list = PyList_New(size);
        for (int r = 0; list && r < size; r++) {
            PyObject *one = PyBytes_FromStringAndSize(all + (size_t)r * longest, (Py_ssize_t)lengths[r]);
            if (one)
                PyList_SET_ITEM(list, r, one);
            else
                Py_CLEAR(list);
        }
    }
    PyMem_RawFree(all);
    return list;
}

static PyObject *exchange_check(PyObject *module, PyObject *capsule) {
    const sp_exchange *exchange = PyCapsule_GetPointer(capsule, SP_EXCHANGE_CAPSULE);
    if (!exchange) return NULL;
    sp_status status = exchange->check(exchange->self);
    if (status) return sp_gpu_raise(module, status);
    Py_RETURN_NONE;
}

PyMethodDef sp_gpu_exchange_methods[] = {
    {"exchange", open_exchange, METH_VARARGS,
     "exchange($module, rank, size, ordinal=0, nccl=None, timeout_s=30.0, /)\n--\n\nHow ranks on several machines meet: a "
     "capsule "
     "for a\n"
     "Coordinator. Collective; NCCL_COMM_ID is rank 0's host:port. TimeoutError and ProbeError with rank and phase."},
    {"exchange_all_gather", exchange_all_gather, METH_VARARGS,
     "exchange_all_gather($module, exchange, data, timeout_s=30.0, /)\n--\n\nEvery rank's bytes, by rank; of any lengths. "
     "Collective."},
    {"exchange_check", exchange_check, METH_O,
     "exchange_check($module, exchange, /)\n--\n\nRaises where NCCL has heard of a peer's end, or an earlier failure broke it."},
    {NULL, NULL, 0, NULL},
};
