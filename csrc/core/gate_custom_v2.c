/* V2, the JIT-compiled custom all-reduce: its checks, the thresholds as the constructor clips them, and the algorithm for a size.
 * Called by gate_custom.c. Invariant: the walk over thresholds is SGLang's order; tables stand in v2_tables.c. */
#include "gate_custom.h"

/* A workspace's size is rounded up to this. */
#define ALIGN_BYTES     SP_KIB
#define FIRST_WORKSPACE (16 * SP_MIB)

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t round_up(uint64_t bytes) { return (larger(bytes, 1) + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES; }
static uint64_t from_kb(int64_t kb) { return kb > 0 ? smaller((uint64_t)kb, UINT64_C(1) << 40) * SP_KIB : 0; }

static bool has_world_size(const sp_case *c) {
    const sp_facts *f = c->facts;
    uint8_t generation = c->release->v2;
    if (generation >= SP_V2_CLIQUE) return sp_v2_table(generation, f->arch, f->world_size);
    bool wide = generation == SP_V2_MULTINODE && f->nodes <= 1; /* wider than its table: see the KeyError below */
    return f->world_size >= 2 && f->world_size <= (wide ? 16 : 8);
}

/* Everything for which can_use_custom_all_reduce_v2 (or its constructor, before that function) says no. */
static uint64_t setup_stops(const sp_case *c) {
    const sp_facts *f = c->facts;
    uint64_t stops = has_world_size(c) ? 0 : SP_STOP(WORLD_SIZE);
    if (f->nodes > 1 && c->release->v2 >= SP_V2_MULTINODE) {
        /* The links within a node say nothing here. v0.5.17 trusts its variable; later the fabric is asked. */
        bool joined = c->release->v2 == SP_V2_MULTINODE || (f->fabric_clique && f->vmm_allocator);
        return joined ? stops : stops | SP_STOP(CLIQUE);
    }
    if (f->nodes > 1) stops |= SP_STOP(NODES);
    if (!f->full_nvlink) stops |= f->world_size > 2 ? SP_STOP(NVLINK) : SP_STOP(NVLINK_V2);
    if (sp_custom_no_peers(f)) stops |= SP_STOP(P2P);
    return stops;
}

static bool is_asked_for(const sp_case *c) {
    const sp_facts *f = c->facts;
    uint8_t generation = c->release->v2;
    if (generation == SP_V2_NONE || f->device != SP_DEVICE_CUDA) return false;
    return f->custom_v2 < 0 ? generation >= SP_V2_DEFAULT : f->custom_v2;
}

uint64_t sp_custom_clique_stop(const sp_case *c) {
    if (c->release->v2 < SP_V2_CLIQUE || c->facts->nodes <= 1 || !is_asked_for(c)) return 0;
    return setup_stops(c) & SP_STOP(CLIQUE);
}

bool sp_custom_is_v2(const sp_case *c) {
    const sp_facts *f = c->facts;
    uint8_t generation = c->release->v2;
    if (!is_asked_for(c)) return false;
    /* A server of several nodes turned the variable off for its workers, whoever had set it. */
    bool by_server = generation >= SP_V2_DEFAULT && generation <= SP_V2_MULTINODE;
    if (by_server && f->nodes > 1 && !(generation == SP_V2_MULTINODE && f->v2_multinode)) return false;
    return generation < SP_V2_FALLBACK || !setup_stops(c);
}

/* What a workspace must hold: one push slot, and with two-shot push both halves of a rank's chunk in 16-byte vectors. */
static uint64_t push_bytes(const sp_v2_heuristic *h, uint64_t world_size) {
    uint64_t vectors = 16 * world_size;
    return larger(h->push, 32 * ((h->two_push + vectors - 1) / vectors));
}

static uint64_t pull_bytes(const sp_v2_heuristic *h) { return larger(larger(h->pull, h->two_shot), h->multicast_to); }

/* Thresholds of a context after the constructor has sized the workspaces and clipped the table to them. */
static sp_v2_heuristic clip(const sp_case *c, const sp_v2_row *row, bool graph) {
    const sp_facts *f = c->facts;
    uint64_t world_size = (uint64_t)f->world_size, cap = from_kb(f->v2_max_kb);
    uint64_t pull = smaller(larger(pull_bytes(&row->graph), pull_bytes(&row->eager)), cap);
    uint64_t push = smaller(larger(push_bytes(&row->graph, world_size), push_bytes(&row->eager, world_size)), cap);
    sp_v2_heuristic h = graph ? row->graph : row->eager;
    if (c->release->v2 >= SP_V2_MULTINODE) {
        if (f->v2_force_pull_kb >= 0) h.two_shot = pull = from_kb(f->v2_force_pull_kb);
        if (f->v2_force_push_kb >= 0) h.push = push = from_kb(f->v2_force_push_kb);
    }
    /* From v0.5.19 no pull workspace means no pull at all; before, the smallest one was made. */
    bool pulls = pull > 0 || c->release->v2 < SP_V2_CLIQUE;
    pull = pulls ? round_up(pull) : 0;
    push = round_up(push);
    h.push = smaller(h.push, push);
    h.two_push = smaller(h.two_push, world_size * 16 * (push / 32));
    h.pull = smaller(h.pull, pull);
    h.two_shot = smaller(h.two_shot, pull);
    h.multicast_from = smaller(h.multicast_from, pull);
    h.multicast_to = row->multicast && f->multicast && pulls ? smaller(h.multicast_to, pull) : 0;
    return h;
}

/* v0.5.10rc0 to v0.5.15: two thresholds, and two-shot pull up to the workspace. */
static sp_v2_heuristic first_clip(const sp_case *c) {
    sp_v2_heuristic h = *sp_v2_first_table(c->facts->arch, c->facts->world_size);
    h.push = smaller(h.push, FIRST_WORKSPACE);
    h.pull = smaller(h.pull, FIRST_WORKSPACE);
    h.two_shot = FIRST_WORKSPACE;
    return h;
}

static uint8_t pick(const sp_case *c, const sp_v2_heuristic *h) {
    bool push = sp_fits(c, h->push), two_push = h->two_push && sp_fits(c, h->two_push), pull = sp_fits(c, h->pull);
    bool multicast = h->multicast_to && !sp_below(c, h->multicast_from);
    if (h->multicast_to) multicast = sp_fits(c, h->multicast_to) && multicast;
    bool two_shot = sp_fits(c, h->two_shot);
    if (push) return SP_KERNEL_ONE_SHOT_PUSH;
    if (two_push) return SP_KERNEL_TWO_SHOT_PUSH;
    if (pull) return SP_KERNEL_ONE_SHOT_PULL;
    if (multicast) return SP_KERNEL_TWO_SHOT_MULTICAST;
    return two_shot ? SP_KERNEL_TWO_SHOT_PULL : SP_KERNEL_UNKNOWN;
}

/* The graph heuristic, and inputs read where they lie: only where the stream really captures. */
static bool is_graph_mode(const sp_case *c) {
    if (!sp_custom_in_capture(c) || !(c->context & SP_CTX(STREAM)) || c->context & SP_CTX(PIECEWISE)) return false;
    return !c->facts->memory_saver_graph && !(c->release->v2 >= SP_V2_MULTINODE && c->facts->nodes > 1);
}

/* Does the kernel write a new tensor? Read in its C++ source. */
static bool returns_new(const sp_case *c, uint8_t kernel) {
    if (c->release->v2 >= SP_V2_HEURISTICS) return !(kernel == SP_KERNEL_TWO_SHOT_PULL && is_graph_mode(c));
    bool saver = c->release->v2 >= SP_V2_SAVER && c->facts->memory_saver_graph;
    return kernel == SP_KERNEL_ONE_SHOT_PULL && sp_custom_in_capture(c) && !saver && !(c->context & SP_CTX(PIECEWISE));
}

/* What running raises: the kernel wants real contiguity, alignment, and a type that it compiles for. */
static uint8_t raises(const sp_case *c) {
    if (c->call->dtype == SP_DTYPE_FP64 && c->release->v2 < SP_V2_HEURISTICS) return SP_EXC_KEY_ERROR; /* no C++ name for it */
    bool kernel = sp_custom_has_kernel(c->call->dtype) && c->call->contiguous && c->call->aligned;
    return kernel ? SP_EXC_NO_EXCEPTION : SP_EXC_RUNTIME_ERROR;
}

static void accept(const sp_case *c, sp_answer *a, uint8_t kernel) {
    if (c->kernel) kernel = c->kernel;
    a->state = SP_STATE_ACCEPTS;
    a->kernel = kernel;
    a->returns_new = returns_new(c, kernel);
    a->exception = raises(c);
    a->assumed = a->exception == SP_EXC_RUNTIME_ERROR; /* C++ says so */
    bool graph_mode = sp_custom_in_capture(c) && !c->facts->memory_saver_graph && c->facts->nodes <= 1;
    if (c->release->v2 >= SP_V2_TWO_PUSH && !graph_mode && !sp_custom_has_kernel(c->call->dtype)) a->state = SP_STATE_RAISES_HERE;
}

void sp_custom_v2(const sp_case *c, sp_answer *a) {
    const sp_facts *f = c->facts;
    uint8_t generation = c->release->v2;
    a->backend = SP_BACKEND_V2;
    a->stops = setup_stops(c);
    bool first = generation < SP_V2_HEURISTICS;
    const sp_v2_row *row = first ? NULL : sp_v2_table(generation, f->arch, f->world_size);
    uint64_t declines = sp_custom_tensor_stops(c->call);
    uint8_t kernel = SP_KERNEL_UNKNOWN;
    if (first ? sp_v2_first_table(f->arch, f->world_size) != NULL : row != NULL) {
        sp_v2_heuristic h = first ? first_clip(c) : clip(c, row, is_graph_mode(c));
        kernel = pick(c, &h);
        a->limit = larger(larger(h.push, h.two_push), larger(larger(h.pull, h.two_shot), h.multicast_to)) / 16 * 16;
        if (!kernel) declines |= SP_STOP(TOO_LARGE);
    } else if (!a->stops) { /* v0.5.17: admitted, then the table's KeyError; the coordinator goes on without it */
        a->stops = SP_STOP(WORLD_SIZE) | declines;
        return; /* absent */
    }
    bool disabled = a->stops;
    a->stops |= declines;
    if (disabled && generation < SP_V2_DEFAULT && sp_custom_in_capture(c)) {
        a->state = SP_STATE_RAISES_HERE;
        a->stops |= SP_STOP(HALF_BUILT);
        a->exception = SP_EXC_ATTRIBUTE_ERROR;
    } else if (disabled) {
        a->state = SP_STATE_DISABLED;
    } else if (declines) {
        a->state = SP_STATE_DECLINES;
    } else {
        accept(c, a, kernel);
    }
}

unsigned sp_custom_style_of(const sp_release *release) {
    return release->v2 < SP_V2_HEURISTICS ? 0 : release->v2 < SP_V2_SPREAD ? 1 : 2;
}
