/* One call on its way, as all_reduce (core_reduce.c) and the native driver (core_enqueue.c) both make it: core_plan.c routes it, core_call.c
 * does the rest. Invariant: what can fail on one rank alone comes before sp_call_post; after it, a failure is one of every rank. */
#ifndef SP_CORE_CALL_H
#define SP_CORE_CALL_H

#include "core_coordinator.h"

typedef struct core_call {
    core_array in, out;
    core_plan *cached; /* where supports() notes its yes */
    core_plan plan;    /* a copy: what is looked up here must outlive whatever Python code runs on the way */
    PyObject *result;  /* new reference: what the method gives back */
    PyObject *target;  /* borrowed from result, or a scratch tensor that SGLang drops: new reference in `scratch` */
    PyObject *scratch;
    sp_work work;
} core_call;

static inline bool sp_call_is_nothing(const core_plan *p) { return p->decision.path == SP_PATH_NONE; }
/* v1's warm-up, which communicates nothing; and the in-place torch symmetric memory whose result SGLang drops. */
static inline bool sp_call_is_dry(const core_plan *p) { return !p->reduces && p->decision.path == SP_PATH_CUSTOM; }
static inline bool sp_call_is_lost(const core_plan *p) { return !p->reduces && p->decision.path == SP_PATH_TORCH_SYMM_MEM; }

core_plan *sp_plan_of(coordinator_object *c, const core_array *a, uint32_t context); /* NULL with an exception */
PyObject *sp_plan_raise(const core_plan *plan, const char *release);                 /* what SGLang raises here; always NULL */

/* In this order. Each is false with an exception set, and nothing has happened that a peer could see. `call->in` is read already. */
bool sp_call_route(coordinator_object *c, core_call *call);
bool sp_call_output(coordinator_object *c, PyObject *tensor, core_call *call);
bool sp_call_check(coordinator_object *c, core_call *call); /* that the path runs here */
bool sp_call_keep(coordinator_object *c, PyObject *tensor, const core_call *call);

/* From here on peers notice. */
uint64_t sp_call_post(coordinator_object *c, const core_call *call); /* the call's number */
static inline bool sp_call_in_python(const coordinator_object *c, const core_call *call) {
    return c->python_path[call->plan.decision.path] != NULL;
}

/* The copy or the zeros before the path; without the GIL. */
static inline sp_status sp_call_prepare(coordinator_object *c, core_call *call) {
    const core_plan *p = &call->plan;
    sp_work *w = &call->work;
    if (sp_call_is_dry(p)) return c->seam->copy(c->comm, w->out, NULL, p->key.nbytes, w->stream);
    if (!p->cloned) return SP_OK;
    w->in = w->out;
    return c->seam->copy(c->comm, w->out, call->in.data, p->key.nbytes, w->stream);
}

bool sp_call_python(coordinator_object *c, PyObject *tensor, const core_call *call);
/* A rank that fails alone leaves the others waiting: whatever it was, they hear of it. Always NULL. */
PyObject *sp_call_fail(coordinator_object *c, sp_status status);
PyObject *sp_call_fail_by_exception(coordinator_object *c);

void sp_call_release_output(core_call *call); /* so that the call can be made again */
void sp_call_release(core_call *call);

#endif
