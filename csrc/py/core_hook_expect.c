/* The path and kernel that the router expects of a call, remembered by
 * everything that decides them. Called once a recorded call. Invariant: a hit allocates nothing
 * and runs no Python; a miss asks once, and what cannot be answered is
 * remembered as not known. */
#include "core_hook.h"

#include <string.h>

static uint64_t hash_of(const hook_key *key) {
    uint64_t a, b, c;
    memcpy(&a, key, sizeof a);
    memcpy(&b, (const char *)key + 8, sizeof b);
    memcpy(&c, (const char *)key + 16, sizeof c);
    uint64_t h = a * UINT64_C(0x9E3779B97F4A7C15) ^ (b + key->layout) * UINT64_C(0xD6E8FEB86659FD93) ^
                 (c + key->direct) * UINT64_C(0xA0761D6478BD642F);
    return h ^ h >> 29;
}

static PyObject *whole_number(uint64_t value) { return PyLong_FromUnsignedLongLong(value); }

/* A path, or a tuple of it and its kernel's name; false with an exception. */
static bool parse_answer(recorder_object *r, PyObject *answer, long *path, uint32_t *kernel) {
    PyObject *name = NULL;
    if (answer == Py_None) return true;
    if (!PyTuple_Check(answer))
        *path = PyLong_AsLong(answer);
    else if (!PyArg_ParseTuple(answer, "lU", path, &name) || !sp_hook_intern(r, SP_NAMED_KERNEL, name, kernel))
        return false;
    return !PyErr_Occurred();
}

/* Sets the answer: SP_RING_NONE for None and for anything that went wrong. */
static SP_RARE void ask(recorder_object *r, hook_key *k, PyObject *first) {
    enum { ARGUMENTS = 10 };
    PyObject *expect = Py_NewRef(r->expect);
    PyObject *argument[ARGUMENTS] = {Py_NewRef(sp_hook_text(r, SP_NAMED_GROUP, k->group)),
                                     Py_NewRef(sp_hook_text(r, SP_NAMED_ENTRY, k->entry)),
                                     whole_number(k->dtype),
                                     whole_number(k->nbytes),
                                     whole_number(k->rows),
                                     whole_number(k->columns),
                                     whole_number(k->layout),
                                     whole_number(k->context),
                                     PyBool_FromLong(k->direct),
                                     Py_NewRef(first ? first : Py_None)};
    bool made = true;
    for (int i = 0; i < ARGUMENTS; i++) made = made && argument[i];
    PyObject *answer = made ? PyObject_Vectorcall(expect, argument, ARGUMENTS, NULL) : NULL;
    for (int i = 0; i < ARGUMENTS; i++) Py_XDECREF(argument[i]);
    Py_DECREF(expect);
    long path = SP_RING_NONE;
    uint32_t kernel = 0;
    bool good = answer && parse_answer(r, answer, &path, &kernel) &&
                ((path >= 0 && path < SP_PATH_COUNT) || path == SP_RING_NONE);
    Py_XDECREF(answer);
    if (!good) sp_hook_failed(r);
    k->path = good ? (uint8_t)path : SP_RING_NONE;
    k->kernel = good ? (uint8_t)kernel : 0;
}

static inline void answer_with(hook_open *open, const hook_key *key) {
    open->record.expected = key->path;
    open->kernel = key->kernel;
}

static SP_RARE void ask_and_remember(recorder_object *r, hook_open *open, hook_key *key, uint64_t at, PyObject *first) {
    atomic_fetch_add_explicit(&r->ring.counts->asked, 1, memory_order_relaxed);
    unsigned asked = r->forgotten;
    ask(r, key, first);
    answer_with(open, key);
    /* Python ran: the table may be gone, or what it rested on. */
    if (!r->expected || asked != r->forgotten) return;
    hook_key *pair = &r->expected[at % (SP_HOOK_EXPECTED / 2) * 2];
    pair[1] = pair[0];
    pair[0] = *key;
    open->known = pair;
}

SP_OFTEN void sp_hook_expected(recorder_object *r, hook_open *open, bool direct, PyObject *first) {
    const sp_record *record = &open->record;
    open->record.expected = SP_RING_NONE, open->kernel = 0, open->known = NULL;
    if (!r->expected || !r->ring.map) return;
    hook_key key = {.nbytes = record->nbytes, .rows = record->rows, .columns = open->columns, .context = record->context};
    key.group = record->group, key.entry = record->entry, key.dtype = record->dtype;
    key.layout = record->layout, key.direct = direct, key.used = 1;
    uint64_t at = hash_of(&key);
    hook_key *pair = &r->expected[at % (SP_HOOK_EXPECTED / 2) * 2];
    for (int i = 0; i < 2; i++)
        if (pair[i].used && !memcmp(&pair[i], &key, SP_HOOK_KEY_BYTES)) {
            answer_with(open, &pair[i]);
            open->known = &pair[i];
            return;
        }
    ask_and_remember(r, open, &key, at, first);
}

bool sp_hook_expect_set(recorder_object *r, PyObject *expect) {
    if (expect != Py_None && !PyCallable_Check(expect)) {
        PyErr_Format(PyExc_TypeError, "expect=%R: give a callable, or None", expect);
        return false;
    }
    if (!r->expected_memory) r->expected_memory = PyMem_Calloc(SP_HOOK_EXPECTED + 2, sizeof *r->expected);
    if (!r->expected_memory) {
        PyErr_NoMemory();
        return false;
    }
    r->expected = (hook_key *)((char *)r->expected_memory + (-(uintptr_t)r->expected_memory & 63)); /* on a whole cache line */
    PyObject *old = r->expect;
    r->expect = Py_NewRef(expect);
    sp_hook_forget(r);
    Py_XDECREF(old);
    return true;
}

void sp_hook_forget(recorder_object *r) {
    r->forgotten++;
    if (r->expected) memset(r->expected, 0, SP_HOOK_EXPECTED * sizeof *r->expected);
}
