/* Plans: where a call of this size, dtype, layout and context goes, routed once and then looked up. Used by core_call.c for every call,
 * and called as Coordinator.plan. Invariant: a plan depends on its key and on what configure() set, and on nothing else. */
#include "core_call.h"

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

core_plan *sp_plan_of(coordinator_object *c, const core_array *a, uint32_t context) {
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

PyObject *sp_plan_raise(const core_plan *plan, const char *release) {
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
