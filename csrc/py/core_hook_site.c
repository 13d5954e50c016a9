/* Who called: the first frame of the stack that is not the dispatch's own.
 * Called for sampled calls, and where a path is not the expected one.
 * Invariant: with a cache that hits, nothing but the interpreter's own frame
 * objects is made; the walk has an end. */
#include "core_hook.h"

#include <frameobject.h>
#include <string.h>

enum { FRAMES = 64, SKIPPED = -1 };

/* The next one down, in place of this; both are owned. NULL: there is none, or no memory for its object. */
static PyFrameObject *back(recorder_object *r, PyFrameObject *frame) {
    PyFrameObject *next = PyFrame_GetBack(frame);
    if (!next && PyErr_Occurred()) sp_hook_failed(r);
    Py_DECREF(frame);
    return next;
}

static PyFrameObject *innermost(void) {
    PyFrameObject *frame = PyEval_GetFrame();
    return (PyFrameObject *)Py_XNewRef((PyObject *)frame);
}

static bool is_among(PyObject *code, PyObject *codes) {
    Py_ssize_t count = PySequence_Fast_GET_SIZE(codes);
    PyObject **item = PySequence_Fast_ITEMS(codes);
    for (Py_ssize_t i = 0; i < count; i++)
        if (item[i] == code) return true;
    return false;
}

bool sp_hook_stack_has(recorder_object *r, PyObject *codes) {
    bool found = false;
    PyFrameObject *frame = innermost();
    for (int i = 0; frame && i < FRAMES && !found; i++) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        found = is_among((PyObject *)code, codes);
        Py_DECREF(code);
        frame = back(r, frame);
    }
    Py_XDECREF(frame);
    return found;
}

/* Where in its code a frame is: what is cheap to ask, since it is only
 * compared. */
static int position(PyFrameObject *frame) {
#if PY_VERSION_HEX >= 0x030B0000
    return PyFrame_GetLasti(frame);
#else
    return PyFrame_GetLineNumber(frame);
#endif
}

static hook_code *entry_of(recorder_object *r, const void *code, int at) {
    uint64_t h = ((uintptr_t)code >> 4 ^ (uint64_t)(unsigned)at * 31) * UINT64_C(0x9E3779B97F4A7C15);
    return &r->code[(h >> 32) % SP_HOOK_CODES];
}

static void remember(recorder_object *r, PyObject *code, int at, uint16_t site) {
    hook_code *entry = entry_of(r, code, at);
    PyObject *old = entry->code;
    *entry = (hook_code){Py_NewRef(code), at, site};
    Py_XDECREF(old);
}

/* 1, 0, or -1 with an exception. */
static int is_skipped(recorder_object *r, PyObject *file) {
    PyObject *skipped = Py_NewRef(r->skipped); /* a file name may be of any kind of str, and Python may set others */
    int found = 0;
    for (Py_ssize_t i = 0; !found && i < PyTuple_GET_SIZE(skipped); i++)
        found = PySequence_Contains(file, PyTuple_GET_ITEM(skipped, i));
    Py_DECREF(skipped);
    return found;
}

/* "sglang/srt/models/deepseek_v2.py:1234 forward": from the package on where
 * the file is an installed one; the end of what is too long. */
static PyObject *site_text(PyObject *file, int line, PyObject *function) {
    PyObject *whole = PyUnicode_FromFormat("%U:%d %U", file, line, function);
    Py_ssize_t length;
    const char *text = whole ? PyUnicode_AsUTF8AndSize(whole, &length) : NULL;
    if (!text) {
        Py_XDECREF(whole);
        return NULL;
    }
    const char *packages = strstr(text, "site-packages/");
    const char *from = packages ? packages + strlen("site-packages/") : text;
    Py_ssize_t left = length - (from - text);
    if (left > SP_RING_TEXT_MAX) from += left - SP_RING_TEXT_MAX;
    while ((*from & 0xC0) == 0x80) from++; /* not in the middle of a character */
    PyObject *site = PyUnicode_FromString(from);
    Py_DECREF(whole);
    return site;
}

/* The site of this frame, 0 where there is no room for its name, and whether it is skipped; false with an exception. */
static bool site_of(recorder_object *r, PyFrameObject *frame, PyObject *code, int at, uint16_t *site, bool *is_skipped_one) {
    PyObject *file = PyObject_GetAttrString(code, "co_filename"), *function = NULL, *text = NULL;
    uint32_t id = 0;
    int skipped = file ? is_skipped(r, file) : -1;
    *is_skipped_one = skipped > 0;
    if (skipped > 0) remember(r, code, SKIPPED, 0);
    if (!skipped) {
        function = PyObject_GetAttrString(code, PY_VERSION_HEX >= 0x030B0000 ? "co_qualname" : "co_name");
        text = function ? site_text(file, PyFrame_GetLineNumber(frame), function) : NULL;
        if (text && sp_hook_intern(r, SP_NAMED_SITE, text, &id)) remember(r, code, at, (uint16_t)id);
    }
    Py_XDECREF(text);
    Py_XDECREF(function);
    Py_XDECREF(file);
    *site = (uint16_t)id;
    return !PyErr_Occurred();
}

/* The site of a frame, and whether the walk goes on to the one below. */
static bool look_below(recorder_object *r, PyFrameObject *frame, PyObject *code, uint16_t *site) {
    const hook_code *skipped = entry_of(r, code, SKIPPED);
    if (skipped->code == code && skipped->at == SKIPPED) return true;
    int at = position(frame);
    const hook_code *known = entry_of(r, code, at);
    if (known->code == code && known->at == at) {
        *site = known->site;
        return false;
    }
    bool is_skipped_one = false;
    if (!site_of(r, frame, code, at, site, &is_skipped_one)) sp_hook_failed(r);
    return is_skipped_one;
}

uint16_t sp_hook_site(recorder_object *r) {
    if (!r->code) r->code = PyMem_Calloc(SP_HOOK_CODES, sizeof *r->code);
    uint16_t site = 0;
    bool goes_on = true;
    PyFrameObject *frame = r->code ? innermost() : NULL;
    for (int i = 0; frame && i < FRAMES && goes_on; i++) {
        PyObject *code = (PyObject *)PyFrame_GetCode(frame);
        goes_on = look_below(r, frame, code, &site);
        Py_DECREF(code);
        frame = back(r, frame);
    }
    Py_XDECREF(frame);
    return site;
}

void sp_hook_sites_forget(recorder_object *r) {
    for (int i = 0; r->code && i < SP_HOOK_CODES; i++) Py_CLEAR(r->code[i].code);
}

void sp_hook_sites_clear(recorder_object *r) {
    sp_hook_sites_forget(r);
    PyMem_Free(r->code);
    r->code = NULL;
}
