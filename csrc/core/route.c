/* Asks every gate about a case, packs the answers into the word of conditions, and decides. See route.h.
 * Invariant: gates and rules never know of each other; the word of conditions is all that passes between them. */
#include "route.h"

#include <assert.h>
#include <string.h>

#include "space.h"

static sp_gate *const gates[SP_GATE_COUNT] = {
#define X(id, function, name) [SP_GATE_##id] = function,
    SP_GATES(X)
#undef X
};

/* A gate's state in the word: its PRESENT, ENABLED and ACCEPTS bits follow one another in lists.h. */
static const struct {
    sp_gate_id gate;
    uint64_t present, enabled, accepts;
} communicators[] = {
#define COMMUNICATOR(id) \
    { SP_GATE_##id, SP_BIT(id##_PRESENT), SP_BIT(id##_ENABLED), SP_BIT(id##_ACCEPTS) }
    COMMUNICATOR(CUSTOM), COMMUNICATOR(QUICK), COMMUNICATOR(MSCCLPP),
    COMMUNICATOR(SYMM),   COMMUNICATOR(PCIE),  {SP_GATE_PYNCCL, SP_BIT(PYNCCL_PRESENT), 0, SP_BIT(PYNCCL_ENABLED)},
#undef COMMUNICATOR
};

static const uint64_t device_bits[SP_DEVICE_COUNT] = {
    [SP_DEVICE_CPU] = SP_BIT(CPU), [SP_DEVICE_HPU] = SP_BIT(HPU), [SP_DEVICE_XPU] = SP_BIT(XPU), [SP_DEVICE_NPU] = SP_BIT(NPU)};

static const uint8_t backends[SP_PATH_COUNT] = {[SP_PATH_PYNCCL_IN_PLACE] = SP_BACKEND_NCCL,
                                                [SP_PATH_PYNCCL_OUT_OF_PLACE] = SP_BACKEND_NCCL,
                                                [SP_PATH_TORCH_DISTRIBUTED] = SP_BACKEND_TORCH,
                                                [SP_PATH_CPU_SHM] = SP_BACKEND_SGL_KERNEL};

/* The gate behind a path, or SP_GATE_COUNT where nobody's answer describes the result. */
static sp_gate_id gate_of(uint8_t path) {
    switch (path) {
    case SP_PATH_CUSTOM: return SP_GATE_CUSTOM;
    case SP_PATH_QUICK: return SP_GATE_QUICK;
    case SP_PATH_MSCCLPP: return SP_GATE_MSCCLPP;
    case SP_PATH_TORCH_SYMM_MEM: return SP_GATE_SYMM;
    case SP_PATH_PCIE_IPC: return SP_GATE_PCIE;
    case SP_PATH_PYNCCL_IN_PLACE:
    case SP_PATH_PYNCCL_OUT_OF_PLACE: return SP_GATE_PYNCCL;
    case SP_PATH_FLASHINFER: return SP_GATE_FLASHINFER;
    default: return SP_GATE_COUNT;
    }
}

/* What the gate would answer without some of its reasons. Those that are left keep their say. */
static void lift(sp_answer *a, uint64_t lifted) {
    if (!(a->stops & lifted)) return;
    a->stops &= ~lifted;
    if (a->stops & (sp_stops_of_setup | SP_STOP(CONTEXT))) return;
    a->state = a->stops ? SP_STATE_DECLINES : SP_STATE_ACCEPTS;
    a->kernel = SP_KERNEL_UNKNOWN; /* picked from numbers that the lifted reason had kept it from */
    a->exception = SP_EXC_NO_EXCEPTION;
    a->assumed = true;
}

/* Somebody set its `disabled`: it is there, and asked nothing. */
static void switch_off(sp_answer *a) {
    if (a->state == SP_STATE_ABSENT) return;
    a->state = SP_STATE_DISABLED;
    a->stops |= SP_STOP(SWITCHED_OFF);
}

static void ask(const sp_rules *rules, const sp_case *c, sp_route_result *r) {
    const sp_facts *f = c->facts;
    uint64_t word = SP_BIT(RANKS);
    for (size_t i = 0; i < SP_GATE_COUNT; i++) {
        r->answers[i] = (sp_answer){.reduces = true};
        gates[i](c, &r->answers[i]);
        lift(&r->answers[i], c->lifted);
        if (c->off >> i & 1) switch_off(&r->answers[i]);
    }
    for (size_t i = 0; i < sizeof communicators / sizeof *communicators; i++) {
        const sp_answer *a = &r->answers[communicators[i].gate];
        if (a->state >= SP_STATE_DISABLED) word |= communicators[i].present;
        if (a->state >= SP_STATE_DECLINES) word |= communicators[i].enabled;
        if (a->state == SP_STATE_ACCEPTS) word |= communicators[i].accepts;
        if (a->state == SP_STATE_RAISES_HERE) r->query.raises |= communicators[i].accepts;
    }
    word |= device_bits[f->device];
    if (r->answers[SP_GATE_CPU].state == SP_STATE_ACCEPTS) word |= SP_BIT(CPU_SHM);
    if (r->answers[SP_GATE_FLASHINFER].state == SP_STATE_ACCEPTS) word |= SP_BIT(FLASHINFER);
    if (sp_is_one_stage(f)) word |= SP_BIT(AMD_DETERMINISTIC) & rules->ruleset->reads;
    if (f->v2_multinode) word |= SP_BIT(CUSTOM_MULTINODE) & rules->ruleset->reads;
    if (rules->ruleset->reads & SP_READS_TAG ? c->call->registered : f->symm_mem) word |= SP_BIT(SYMMETRIC_MEMORY);
    if (c->context & SP_CTX(PIECEWISE)) word |= SP_BIT(PIECEWISE);
    if (c->context & SP_CTX(COMPILING)) word |= SP_BIT(COMPILING);
    r->query.word = f->world_size > 1 ? word : 0;
}

/* What the rules cannot know: whose code, which kernel, which buffer, and whether running it raises. */
static void describe(const sp_case *c, sp_route_result *r) {
    sp_decision *d = &r->decision;
    sp_gate_id gate = gate_of(d->path);
    r->backend = backends[d->path];
    r->returns_new = d->flags & SP_ROW_NEW;
    r->cloned = d->flags & SP_ROW_CLONE;
    r->reduces = d->path != SP_PATH_NONE && d->path != SP_PATH_RAISES && !(d->flags & SP_ROW_LOST);
    if (d->rule == SP_RULE_CPU && c->release->cpu == 1) r->backend = SP_BACKEND_IPEX;
    if (gate == SP_GATE_COUNT) return;
    const sp_answer *a = &r->answers[gate];
    r->backend = a->backend;
    r->assumed = a->assumed;
    uint8_t exception = a->exception;
    if (d->rule == SP_RULE_AMD_DETERMINISTIC) { /* custom's one-stage kernel, asked nothing; half built where it is disabled */
        if (!(a->stops & sp_stops_of_setup)) return; /* whatever its `disabled` says: nobody asks that here */
        exception = SP_EXC_ATTRIBUTE_ERROR;
    }
    if (exception) {
        *d = (sp_decision){SP_PATH_RAISES, d->rule, d->op, 0, exception, 0};
        r->returns_new = r->reduces = false;
        return;
    }
    r->kernel = a->kernel;
    r->reduces = r->reduces && a->reduces;
    if (d->op == SP_OP_OUT_OF_PLACE && gate != SP_GATE_PYNCCL && !r->cloned) r->returns_new = a->returns_new;
}

/* Which predicate raised, by its bit in the word, into what it raises. */
static void resolve_asked(const sp_route_result *r, sp_decision *d) {
    for (size_t i = 0; d->asked && i < sizeof communicators / sizeof *communicators; i++)
        if (communicators[i].accepts == UINT64_C(1) << (d->asked - 1)) d->exception = r->answers[communicators[i].gate].exception;
    assert(!d->asked || d->exception);
}

sp_status sp_route_next(const sp_rules *rules, const sp_case *c, const sp_route_result *r, sp_decision *next) {
    *next = (sp_decision){0};
    sp_explanation e;
    if (rules->derived && sp_state_of(r->query.word) >= 0) return SP_OK; /* a table has no rows to go on with */
    sp_explain(rules->ruleset, &r->query, &e);
    if (!e.next_best.rule) return SP_OK;
    sp_route_result second = *r;
    second.decision = e.next_best;
    resolve_asked(&second, &second.decision);
    describe(c, &second);
    *next = second.decision;
    return SP_OK;
}

sp_status sp_route_call(const sp_rules *rules, const sp_case *c, sp_route_result *r) {
    memset(r, 0, sizeof *r);
    if (c->call->nbytes < 1 || c->call->nbytes >= SP_SIZE_MAX)
        return sp_fail(SP_INVALID, "a tensor of %llu bytes", (unsigned long long)c->call->nbytes);
    ask(rules, c, r);
    SP_TRY(sp_rules_decide(rules, &r->query, &r->decision));
    resolve_asked(r, &r->decision);
    describe(c, r);
    return SP_OK;
}
