/* The parts of one call: is the tensor one of this device, what does the path write, does it run here; then what peers see of it, and what
 * they hear when it fails. Used by core_reduce.c and core_enqueue.c. Invariant: core_call.h's order. */
#include "core_call.h"

#include <string.h>

/* A tensor that this device cannot run on, whatever the path. */
static bool check_tensor(const coordinator_object *c, const core_array *a) {
    bool gpu = strcmp(c->seam->name, "gpu") == 0;
    if (a->device_type != (gpu ? DL_CUDA : DL_CPU)) {
        PyErr_Format(PyExc_ValueError, "tensor: it is on DLPack device %d, and this Coordinator runs on %s; give a tensor there",
                     a->device_type, gpu ? "a GPU" : "CPU ranks");
        return false;
    }
    if (gpu && a->device_id != c->world.ordinal) {
        PyErr_Format(PyExc_ValueError, "tensor: it is on GPU %d, and rank %d has GPU %d", a->device_id, c->world.rank,
                     c->world.ordinal);
        return false;
    }
    if (a->dense) return true;
    PyErr_SetString(PyExc_ValueError,
                    "tensor: its elements do not fill one piece of memory; SGLang would pass them on as if they did, "
                    "which is not run here: give .contiguous()");
    return false;
}

bool sp_call_route(coordinator_object *c, core_call *call) {
    bool capturing = false;
    if (!check_tensor(c, &call->in)) return false;
    sp_status status = c->seam->capturing(c->comm, call->in.stream, &capturing);
    if (status) {
        sp_coordinator_fail(c, status, c->seam->error());
        return false;
    }
    call->cached = sp_plan_of(c, &call->in, sp_coordinator_context(c, capturing));
    if (!call->cached) return false;
    const core_plan *p = &call->plan;
    call->plan = *call->cached;
    if (p->decision.path == SP_PATH_RAISES) {
        sp_plan_raise(p, c->release->name);
        return false;
    }
    call->work = (sp_work){.in = call->in.data,
                           .count = call->in.count,
                           .nbytes = call->in.nbytes,
                           .stream = call->in.stream,
                           .path = p->decision.path,
                           .kernel = p->kernel,
                           .dtype = call->in.dtype,
                           .flags = (uint8_t)(p->flags | (capturing ? SP_WORK_CAPTURING : 0)),
                           .out = call->in.data};
    return true;
}

/* The tensors of the call: what is returned, and what the path writes. */
bool sp_call_output(coordinator_object *c, PyObject *tensor, core_call *call) {
    const core_plan *p = &call->plan;
    bool makes = p->returns_new || p->cloned || sp_call_is_lost(p);
    PyObject *made = makes ? sp_array_empty_like(&c->producers, tensor) : NULL;
    if (makes && !made) return false;
    if (sp_call_is_lost(p)) call->scratch = made;
    call->target = makes ? made : tensor;
    call->result = makes && !sp_call_is_lost(p) ? made : Py_NewRef(tensor);
    if (!makes) {
        call->out = call->in;
        call->out.capsule = NULL; /* the input's alone */
        return true;
    }
    if (!sp_array_read(&c->producers, made, &call->out)) return false;
    call->work.out = call->out.data;
    if (call->out.nbytes == call->in.nbytes && call->out.dense && call->out.order == call->in.order) return true;
    PyErr_SetString(PyExc_ValueError, "tensor: empty_like of its package gave a tensor of another size or layout");
    return false;
}

static PyObject *path_unavailable(const coordinator_object *c, const core_plan *p, const char *why) {
    PyErr_Format(c->state->unavailable, "path %s, which SGLang %s takes here, does not run on this device: %s",
                 sp_path_name(p->decision.path), c->release->name, why);
    return NULL;
}

/* A path that stands in Python (torch's own): the same three calls. */
static bool ask_python(const coordinator_object *c, PyObject *path, const core_plan *p) {
    PyObject *answer = PyObject_CallMethod(path, "supports", "Ks", (unsigned long long)p->key.nbytes,
                                           sp_dtype_name(p->key.dtype));
    const char *why = answer ? PyUnicode_AsUTF8(answer) : NULL;
    if (why && *why) path_unavailable(c, p, why);
    bool yes = why && !*why;
    Py_XDECREF(answer);
    return yes;
}

bool sp_call_check(coordinator_object *c, core_call *call) {
    core_plan *p = &call->plan;
    PyObject *python = c->python_path[p->decision.path];
    /* what was said once holds for every call of the plan, but for the address of a new output */
    if (p->runs && (uintptr_t)call->work.out % 16 == 0) return true;
    if (python) {
        p->runs = call->cached->runs = ask_python(c, python, p);
        return p->runs;
    }
    const sp_path_ops *ops = c->seam->paths[p->decision.path];
    if (!ops) {
        path_unavailable(c, p, "it is another library's; see Coordinator.paths");
        return false;
    }
    sp_status status = ops->supports(c->comm, &call->work);
    if (status == SP_UNAVAILABLE)
        path_unavailable(c, p, c->seam->error());
    else if (status)
        sp_coordinator_fail(c, status, c->seam->error());
    p->runs = call->cached->runs = !status;
    return !status;
}

bool sp_call_python(coordinator_object *c, PyObject *tensor, const core_call *call) {
    PyObject *input = call->plan.cloned ? call->target : tensor;
    PyObject *done = PyObject_CallMethod(c->python_path[call->plan.decision.path], "enqueue", "OOd", input, call->target,
                                         c->timeout_s);
    Py_XDECREF(done);
    return done != NULL;
}

/* What a replay reads and writes: the input, the result, and the tensor that SGLang drops. */
bool sp_call_keep(coordinator_object *c, PyObject *tensor, const core_call *call) {
    if (!c->kept) return true;
    return PyList_Append(c->kept, tensor) == 0 && PyList_Append(c->kept, call->result) == 0 &&
           (!call->scratch || PyList_Append(c->kept, call->scratch) == 0);
}

uint64_t sp_call_post(coordinator_object *c, const core_call *call) {
    const core_plan *p = &call->plan;
    sp_board_call said = {++c->seq, p->key.nbytes, p->decision.path, p->kernel, p->key.dtype, call->work.flags};
    sp_board_post(c->board, &said);
    /* On GPUs it goes on after we are back: the phase stays until a wait ends. */
    sp_board_phase(c->board, sp_path_name(p->decision.path));
    return c->seq;
}

void sp_call_release_output(core_call *call) {
    sp_array_release(&call->out);
    Py_CLEAR(call->result);
    Py_CLEAR(call->scratch);
    call->target = NULL;
}

void sp_call_release(core_call *call) {
    sp_call_release_output(call);
    sp_array_release(&call->in);
}

PyObject *sp_call_fail(coordinator_object *c, sp_status status) {
    char text[768];
    snprintf(text, sizeof text, "%s", c->seam->error());
    sp_coordinator_break(c, text);
    return sp_coordinator_fail(c, status, text);
}

PyObject *sp_call_fail_by_exception(coordinator_object *c) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *words = value ? PyObject_Str(value) : NULL;
    const char *text = words ? PyUnicode_AsUTF8(words) : NULL;
    sp_coordinator_break(c, text ? text : "a path in Python raised");
    Py_XDECREF(words);
    PyErr_Restore(type, value, trace);
    return NULL;
}
