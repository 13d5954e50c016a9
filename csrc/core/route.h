/* One call through gates and rules: facts in, the whole trace out; and the same over all sizes at once.
 * Called by the binding, and later by the hook: sp_route_call and sp_router_path allocate nothing. */
#ifndef SP_ROUTE_H
#define SP_ROUTE_H

#include "derived.h"
#include "gate.h"

typedef struct sp_route_result {
    sp_query query; /* the word that the rules read, and which predicates raise */
    sp_answer answers[SP_GATE_COUNT];
    sp_decision decision;
    uint8_t backend;  /* sp_backend: whose code runs */
    uint8_t kernel;   /* sp_kernel where known */
    bool returns_new; /* the result is a new tensor, not the input */
    bool cloned;      /* the input is cloned first */
    bool reduces;     /* a reduction really happens */
    bool assumed;     /* rests on something that conform cannot compare */
} sp_route_result;

/* Gates, then rules. */
sp_status sp_route_call(const sp_rules *rules, const sp_case *c, sp_route_result *result);
/* Where the same call would go without the rule that fired; rule NO_RULE where there is no other. */
sp_status sp_route_next(const sp_rules *rules, const sp_case *c, const sp_route_result *result, sp_decision *next);

/* All sizes cut into the classes that the gates of this case can tell apart: bands between edges, and in each band three residues
 * (multiples of 16; of 4 only; the rest), in the order of sp_residue. A band's first size need not be in the class. */
typedef enum sp_residue { SP_RESIDUE_16, SP_RESIDUE_4, SP_RESIDUE_1, SP_RESIDUE_COUNT } sp_residue;

#define SP_BANDS_MAX (SP_EDGES_MAX + 1)

typedef struct sp_bands {
    uint64_t first[SP_BANDS_MAX];                    /* first size of the band, bytes; first[0] = 1; sorted */
    uint64_t sample[SP_BANDS_MAX][SP_RESIDUE_COUNT]; /* a size of that band and residue, 0 where there is none */
    size_t count;
} sp_bands;

#define SP_SIZE_MAX (UINT64_C(1) << 63) /* one past the largest size */

/* Finds every edge by routing a sample of each class until no gate names a new one. */
sp_status sp_bands_find(const sp_rules *rules, const sp_case *c, sp_bands *bands);

/* A router: the bands of one case boiled down to a path a size. */
typedef struct sp_router {
    uint64_t edge[SP_BANDS_MAX];                      /* first size of band i + 1, bytes */
    uint8_t path[SP_BANDS_MAX + 1][SP_RESIDUE_COUNT]; /* sp_path */
    size_t edges;
} sp_router;

sp_status sp_router_init(const sp_rules *rules, const sp_case *c, sp_router *router);

static inline sp_residue sp_residue_of(uint64_t nbytes) {
    return nbytes % 16 == 0 ? SP_RESIDUE_16 : nbytes % 4 == 0 ? SP_RESIDUE_4 : SP_RESIDUE_1;
}

static inline uint8_t sp_router_path(const sp_router *router, uint64_t nbytes) {
    size_t band = 0;
    while (band < router->edges && nbytes >= router->edge[band]) band++;
    return router->path[band][sp_residue_of(nbytes)];
}

/* Paths of many sizes. Returns the index of the first size below 1, or `count` when all are good. */
size_t sp_router_paths(const sp_router *router, const int64_t *sizes, size_t count, uint8_t *paths);

#endif
