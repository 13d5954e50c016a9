/* What the classes of custom all-reduce share. Private to gate_custom.c (v1, aiter, the choice), gate_custom_v2.c, v2_tables.c.
 * Invariant: a class collects every stop of its own; who may be asked at all (ownership, one rank) is sp_gate_custom's. */
#ifndef SP_GATE_CUSTOM_H
#define SP_GATE_CUSTOM_H

#include "gate.h"

/* Generations of V2 (column v2 of releases.c). Each name says what is new in it. */
enum {
    SP_V2_NONE,
    SP_V2_OPT_IN,     /* v0.5.10rc0: behind a variable; no fallback to v1 when it disables itself, and capture() then breaks */
    SP_V2_CLIPPED,    /* v0.5.11: thresholds clipped to the workspaces */
    SP_V2_DEFAULT,    /* v0.5.12: chosen by default, off in servers of several nodes; a disabled one survives capture() */
    SP_V2_FALLBACK,   /* v0.5.13: v1 where its own checks fail */
    SP_V2_SAVER,      /* v0.5.15: no graph mode under the memory saver */
    SP_V2_HEURISTICS, /* v0.5.16: rewritten; one table for graphs, one for eager; multicast */
    SP_V2_MULTINODE,  /* v0.5.17: several nodes behind a variable; forced workspace sizes; world 16 on SM100 */
    SP_V2_CLIQUE,     /* v0.5.19: several nodes in one fabric clique; world sizes are those of the table; SM107 */
    SP_V2_SPREAD,     /* v0.5.21: kernels deal warps to blocks in turn; thresholds as before */
    SP_V2_TWO_PUSH    /* v0.5.23: two-shot push; an eager question already builds the kernel */
};

/* Thresholds of one context, bytes: a size is taken by the first of these that it does not exceed. */
typedef struct sp_v2_heuristic {
    uint64_t push, pull, two_shot;
    uint64_t multicast_from, multicast_to; /* both 0: never */
    uint64_t two_push;                     /* asked after push; 0: never */
} sp_v2_heuristic;

typedef struct sp_v2_row {
    int world_size;
    bool multicast; /* the table has a block count for it */
    sp_v2_heuristic graph, eager;
} sp_v2_row;

/* v0.5.10rc0 to v0.5.15, or v0.5.16 on; NULL where the table has no such world size. */
const sp_v2_heuristic *sp_v2_first_table(int64_t arch, int64_t world_size);
const sp_v2_row *sp_v2_table(uint8_t generation, int64_t arch, int64_t world_size);

/* dispatch_custom_allreduce: is V2 the class that this group is built with? */
bool sp_custom_is_v2(const sp_case *c);
void sp_custom_v2(const sp_case *c, sp_answer *answer);

/* Across nodes v1 is what is left where V2 missed a common fabric: that reason, or none. */
uint64_t sp_custom_clique_stop(const sp_case *c);

/* Tests that both classes make of a tensor before its size. */
static inline uint64_t sp_custom_tensor_stops(const sp_call *call) {
    return (call->nbytes % 16 ? SP_STOP(MULTIPLE) : 0) | (call->contiguous || call->weak_contiguous ? 0 : SP_STOP(LAYOUT));
}

/* Inside graph_capture(), for a group that it enters. */
static inline bool sp_custom_in_capture(const sp_case *c) { return c->context & SP_CTX(IN_CAPTURE) && c->facts->captured; }

/* Peer access is only tested with --enable-p2p-check. */
static inline bool sp_custom_no_peers(const sp_facts *f) { return f->p2p_check && !f->p2p; }

/* The kernels of all classes know these; any other type fails when it runs. */
static inline bool sp_custom_has_kernel(int64_t dtype) {
    return dtype == SP_DTYPE_BF16 || dtype == SP_DTYPE_FP16 || dtype == SP_DTYPE_FP32;
}

#endif
