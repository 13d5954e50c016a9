/* One all-reduce: read the tensor, route it, make the output that this release makes, run the path, give back the result.
 * Called by Coordinator.all_reduce. Invariant: everything that can fail on one rank alone (a tensor of the wrong kind, a path that does
 * not run here, no memory for the output) fails before the call is posted, so that it leaves no peer waiting. */
#include "core_coordinator.h"

#include <string.h>

static void key_of(const coordinator_object *c, const core_array *a, uint32_t context, core_plan_key *key) {
    memset(key, 0, sizeof *key);
    *key = (core_plan_key){.nbytes = a->nbytes,
                           .columns = a->columns,
                           .dims = a->dims,
                           .context = context,
                           .dtype = a->dtype,
                           .layout = (uint8_t)(a->contiguous | a->dense << 1 | ((uintptr_t)a->data % 16 == 0) << 2),
                           .registered = (uint8_t)(c->facts.symm_mem != 0),
                           .used = 1};
}

static unsigned slot_of(const core_plan_key *key) {
    uint64_t mixed = (key->nbytes ^ (uint64_t)key->columns << 20 ^ (uint64_t)key->context << 50 ^ (uint64_t)key->dtype << 44 ^
                      (uint64_t)key->layout << 40) *
                     UINT64_C(0x9E3779B97F4A7C15);
    return (unsigned)(mixed >> 58) % SP_PLANS;
}

/* Custom kernels read a captured input where it lies, but where the release copies it all the same. */
static bool reads_in_place(const coordinator_object *c, const core_plan *plan) {
    const uint32_t captured = SP_CTX(IN_CAPTURE) | SP_CTX(STREAM);
    bool pushes = plan->kernel == SP_KERNEL_ONE_SHOT_PUSH || plan->kernel == SP_KERNEL_TWO_SHOT_PUSH ||
                  plan->kernel == SP_KERNEL_LIMIT || plan->kernel == SP_KERNEL_DRY; /* peers read nothing of this rank */
    if (pushes || plan->decision.path != SP_PATH_CUSTOM || (plan->key.context & captured) != captured ||
        c->facts.memory_saver_graph)
        return false;
    return plan->backend != SP_BACKEND_V2 || !(plan->key.context & SP_CTX(PIECEWISE) || c->facts.nodes > 1);
}

static sp_status make_plan(coordinator_object *c, const core_plan_key *key, core_plan *plan) {
    sp_call call = {.nbytes = key->nbytes,
                    .dtype = key->dtype,
                    .columns = key->columns,
                    .dims = key->dims,
                    .contiguous = key->layout & 1,
                    .weak_contiguous = (key->layout & 3) != 0,
                    .aligned = key->layout >> 2 & 1,
                    .registered = key->registered};
    sp_case one = {.release = c->release,
                   .facts = &c->facts,
                   .call = &call,
                   .context = key->context,
                   .off = c->off,
                   .on = c->on,
                   .kernel = c->forced_kernel};
    sp_route_result r;
    SP_TRY(sp_route_call(&c->rules, &one, &r));
    *plan = (core_plan){.key = *key,
                        .decision = r.decision,
                        .backend = r.backend,
                        .kernel = r.kernel,
                        .returns_new = r.returns_new,
                        .cloned = r.cloned,
                        .reduces = r.reduces};
    if (reads_in_place(c, plan)) plan->flags = SP_WORK_REGISTERED;
    return SP_OK;
}

static core_plan *plan_of(coordinator_object *c, const core_array *a, uint32_t context) {
    core_plan_key key;
    key_of(c, a, context, &key);
    core_plan *plan = &c->plans[slot_of(&key)];
    if (memcmp(&plan->key, &key, sizeof key) == 0) return plan;
    sp_status status = make_plan(c, &key, plan);
    if (!status) return plan;
    plan->key.used = 0;
    sp_raise_text(c->state, status, sp_error());
    return NULL;
}

static PyObject *raise_as_sglang(const core_plan *plan, const char *release) {
    static const char *const names[] = {
#define X(id, name, text) name,
        SP_EXCEPTIONS(X)
#undef X
    };
    static const char *const texts[] = {
#define X(id, name, text) text,
        SP_EXCEPTIONS(X)
#undef X
    };
    PyObject *type = PyExc_RuntimeError;
    switch (plan->decision.exception) {
    case SP_EXC_ASSERTION_ERROR: type = PyExc_AssertionError; break;
    case SP_EXC_ATTRIBUTE_ERROR: type = PyExc_AttributeError; break;
    case SP_EXC_KEY_ERROR: type = PyExc_KeyError; break;
    case SP_EXC_INDEX_ERROR: type = PyExc_IndexError; break;
    case SP_EXC_VALUE_ERROR: type = PyExc_ValueError; break;
    default: break;
    }
    uint8_t e = plan->decision.exception;
    PyErr_Format(type, "SGLang %s raises %s here: %s; Coordinator.decide(tensor) says by which rule", release, names[e],
                 texts[e]);
    return NULL;
}

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

typedef struct one_call {
    core_array in, out;
    core_plan *cached; /* where supports() notes its yes */
    core_plan plan;    /* a copy: what is looked up here must outlive whatever Python code runs on the way */
    PyObject *result;  /* new reference: what the method gives back */
    PyObject *target;  /* borrowed from result, or a scratch tensor that SGLang drops: new reference in `scratch` */
    PyObject *scratch;
    sp_work work;
} one_call;

static bool is_lost(const core_plan *p) { return !p->reduces && p->decision.path == SP_PATH_TORCH_SYMM_MEM; }
static bool is_dry(const core_plan *p) { return !p->reduces && p->decision.path == SP_PATH_CUSTOM; }

/* The tensors of the call: what is returned, and what the path writes. */
static bool make_output(coordinator_object *c, PyObject *tensor, one_call *call) {
    const core_plan *p = &call->plan;
    bool makes = p->returns_new || p->cloned || is_lost(p);
    PyObject *made = makes ? sp_array_empty_like(&c->producers, tensor) : NULL;
    if (makes && !made) return false;
    if (is_lost(p)) call->scratch = made;
    call->target = makes ? made : tensor;
    call->result = makes && !is_lost(p) ? made : Py_NewRef(tensor);
    if (!makes) {
        call->out = call->in;
        call->out.capsule = NULL;
        return true;
    }
    if (!sp_array_read(&c->producers, made, &call->out)) return false;
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

static bool check_path(coordinator_object *c, one_call *call) {
    core_plan *p = &call->plan;
    PyObject *python = c->python_path[p->decision.path];
    /* what was said once holds for every call of the plan, but for the address of a new output */
    if (p->runs && (uintptr_t)call->work.out % 16 == 0) return true;
    if (python) {
        call->cached->runs = ask_python(c, python, p);
        return call->cached->runs;
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
    call->cached->runs = !status;
    return !status;
}

static sp_status run_native(coordinator_object *c, const one_call *call, double *device_us) {
    const sp_path_ops *ops = c->seam->paths[call->plan.decision.path];
    const sp_work *w = &call->work;
    bool timed = c->timing && !(w->flags & SP_WORK_CAPTURING);
    if (timed) SP_TRY(c->seam->mark(c->comm, 0, w->stream));
    SP_TRY(ops->enqueue(c->comm, w));
    if (!timed) return SP_OK;
    SP_TRY(c->seam->mark(c->comm, 1, w->stream));
    *device_us = 0;
    return SP_OK;
}

/* The wait of a timed call, after its host time was taken. */
static sp_status finish_native(coordinator_object *c, const one_call *call, double *device_us) {
    SP_TRY(c->seam->paths[call->plan.decision.path]->finish(c->comm, call->work.stream, call->work.deadline));
    sp_board_phase(c->board, SP_PHASE_IDLE);
    return c->seam->elapsed(c->comm, device_us, call->work.deadline);
}

static bool run_python(coordinator_object *c, PyObject *tensor, const one_call *call) {
    PyObject *input = call->plan.cloned ? call->target : tensor;
    PyObject *done = PyObject_CallMethod(c->python_path[call->plan.decision.path], "enqueue", "OOd", input, call->target,
                                         c->timeout_s);
    Py_XDECREF(done);
    return done != NULL;
}

static bool finish_python(coordinator_object *c, const one_call *call) {
    PyObject *done = PyObject_CallMethod(c->python_path[call->plan.decision.path], "finish", "d", c->timeout_s);
    Py_XDECREF(done);
    return done != NULL;
}

static reduced_object *new_reduced(coordinator_object *c, one_call *call, uint64_t seq, double host_us, double device_us) {
    reduced_object *r = PyObject_GC_New(reduced_object, c->state->reduced_type);
    if (!r) return NULL;
    r->tensor = call->result;
    call->result = NULL;
    r->coordinator = (coordinator_object *)Py_NewRef(c);
    r->settings = Py_NewRef(c->settings);
    r->plan = call->plan;
    r->seq = seq;
    r->host_us = host_us;
    r->device_us = device_us;
    PyObject_GC_Track(r);
    return r;
}

/* What a replay reads and writes: the input, the result, and the tensor that SGLang drops. */
static bool keep(coordinator_object *c, PyObject *tensor, const one_call *call) {
    if (!c->kept) return true;
    return PyList_Append(c->kept, tensor) == 0 && PyList_Append(c->kept, call->result) == 0 &&
           (!call->scratch || PyList_Append(c->kept, call->scratch) == 0);
}

/* From the post on, a rank that fails alone leaves the others waiting: whatever it was, they hear of it. */
static PyObject *fail_posted(coordinator_object *c, sp_status status) {
    char text[768];
    snprintf(text, sizeof text, "%s", c->seam->error());
    sp_coordinator_break(c, text);
    return sp_coordinator_fail(c, status, text);
}

static PyObject *break_by_exception(coordinator_object *c) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *words = value ? PyObject_Str(value) : NULL;
    const char *text = words ? PyUnicode_AsUTF8(words) : NULL;
    sp_coordinator_break(c, text ? text : "a path in Python raised");
    Py_XDECREF(words);
    PyErr_Restore(type, value, trace);
    return NULL;
}

/* After the tensors are there: everything that other ranks notice. */
static PyObject *execute(coordinator_object *c, PyObject *tensor, one_call *call, int64_t start) {
    core_plan *p = &call->plan;
    bool dry = is_dry(p), nothing = p->decision.path == SP_PATH_NONE;
    bool python = !nothing && !dry && c->python_path[p->decision.path];
    double device_us = -1;
    sp_status status = SP_OK;
    uint64_t seq = c->seq;
    if (!nothing && !dry) {
        seq = ++c->seq;
        sp_board_call said = {seq, p->key.nbytes, p->decision.path, p->kernel, p->key.dtype, call->work.flags};
        sp_board_post(c->board, &said);
        sp_board_phase(c->board,
                       sp_path_name(p->decision.path)); /* on GPUs it goes on after we are back: it stays until a wait ends */
    }
    PyThreadState *released = PyEval_SaveThread();
    if (dry)
        status = c->seam->copy(c->comm, call->work.out, NULL, p->key.nbytes, call->work.stream);
    else if (p->cloned)
        status = c->seam->copy(c->comm, call->work.out, call->in.data, p->key.nbytes, call->work.stream);
    if (p->cloned) call->work.in = call->work.out;
    if (!status && !nothing && !dry && !python) status = run_native(c, call, &device_us);
    PyEval_RestoreThread(released);
    if (status) return fail_posted(c, status);
    if (python && !run_python(c, tensor, call)) return break_by_exception(c);
    if (python && c->timing && !(call->work.flags & SP_WORK_CAPTURING) && !finish_python(c, call)) return break_by_exception(c);
    double host_us = c->timing ? (double)(sp_now_ns() - start) / 1000 : -1;
    if (device_us >= 0) {
        Py_BEGIN_ALLOW_THREADS status = finish_native(c, call, &device_us);
        Py_END_ALLOW_THREADS if (status) return fail_posted(c, status);
    }
    return (PyObject *)new_reduced(c, call, seq, host_us, device_us);
}

static PyObject *reduce(coordinator_object *c, PyObject *tensor, one_call *call, int64_t start) {
    bool capturing = false;
    if (!check_tensor(c, &call->in)) return NULL;
    sp_status status = c->seam->capturing(c->comm, call->in.stream, &capturing);
    if (status) return sp_coordinator_fail(c, status, c->seam->error());
    core_plan *p = &call->plan;
    call->cached = plan_of(c, &call->in, sp_coordinator_context(c, capturing));
    if (!call->cached) return NULL;
    *p = *call->cached;
    if (p->decision.path == SP_PATH_RAISES) return raise_as_sglang(p, c->release->name);
    call->work = (sp_work){.in = call->in.data,
                           .count = call->in.count,
                           .nbytes = call->in.nbytes,
                           .stream = call->in.stream,
                           .path = p->decision.path,
                           .kernel = p->kernel,
                           .dtype = call->in.dtype,
                           .flags = (uint8_t)(p->flags | (capturing ? SP_WORK_CAPTURING : 0)),
                           .out = call->in.data};
    if (!make_output(c, tensor, call)) return NULL;
    call->work.out = call->out.data;
    if (p->decision.path != SP_PATH_NONE && !is_dry(p) && !check_path(c, call)) return NULL;
    if (!keep(c, tensor, call)) return NULL;
    call->work.deadline = sp_coordinator_deadline(c);
    return execute(c, tensor, call, start);
}

PyObject *sp_coordinator_all_reduce(PyObject *self, PyObject *tensor) {
    coordinator_object *c = (coordinator_object *)self;
    one_call call = {0};
    if (!sp_coordinator_enter(c)) return NULL;
    int64_t start = c->timing ? sp_now_ns() : 0;
    PyObject *reduced = sp_array_read(&c->producers, tensor, &call.in) ? reduce(c, tensor, &call, start) : NULL;
    sp_coordinator_done(c);
    sp_array_release(&call.in);
    sp_array_release(&call.out);
    Py_XDECREF(call.result);
    Py_XDECREF(call.scratch);
    return reduced;
}

/* plan(tensor) -> (nbytes, columns, dims, context, dtype, layout, registered): what all_reduce would route, without a call. */
PyObject *sp_coordinator_plan(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    coordinator_object *c = (coordinator_object *)self;
    core_array a;
    core_plan_key key;
    bool capturing = false;
    if (!sp_count_args("plan", count, 1, 1) || !sp_coordinator_enter(c)) return NULL;
    bool read = sp_array_read(&c->producers, args[0], &a);
    sp_status status = read ? c->seam->capturing(c->comm, a.stream, &capturing) : SP_OK;
    if (read) key_of(c, &a, sp_coordinator_context(c, capturing), &key);
    sp_coordinator_done(c);
    if (!read) return NULL;
    sp_array_release(&a);
    return status ? sp_coordinator_fail(c, status, c->seam->error()) : sp_key_tuple(&key);
}
