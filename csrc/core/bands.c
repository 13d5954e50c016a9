/* Cuts all sizes into bands on which every answer is constant, and boils them down to a router. Called by the binding.
 * Invariant: complete by construction. A band is final when routing its samples names no edge inside of it. */
#include <string.h>

#include "route.h"

/* The smallest size of a residue class that is not below `from`. */
static uint64_t first_of(uint64_t from, sp_residue residue) {
    while (sp_residue_of(from) != residue) from++;
    return from;
}

static void insert(sp_bands *bands, size_t at, uint64_t first) {
    memmove(&bands->first[at + 1], &bands->first[at], (bands->count - at) * sizeof *bands->first);
    bands->first[at] = first;
    bands->count++;
}

static uint64_t end_of(const sp_bands *bands, size_t i) {
    return i + 1 < bands->count ? bands->first[i + 1] : SP_SIZE_MAX; /* one past the band's last size */
}

/* Routes the samples of band i. Sets *split to an edge strictly inside of the band, or 0. */
static sp_status probe(const sp_rules *rules, const sp_case *c, sp_bands *bands, size_t i, uint64_t *split) {
    *split = 0;
    for (sp_residue residue = 0; residue < SP_RESIDUE_COUNT; residue++) {
        uint64_t size = first_of(bands->first[i], residue), end = end_of(bands, i);
        bands->sample[i][residue] = size < end ? size : 0;
        if (size >= end) continue;
        sp_edges edges = {.count = 0};
        sp_call call = *c->call;
        sp_case probe_case = *c;
        sp_route_result result;
        call.nbytes = size;
        probe_case.call = &call;
        probe_case.edges = &edges;
        SP_TRY(sp_route_call(rules, &probe_case, &result));
        if (edges.overflow) return sp_fail(SP_INTERNAL, "more than %d size thresholds in one case", SP_EDGES_MAX);
        for (size_t k = 0; k < edges.count; k++)
            if (edges.at[k] > bands->first[i] && edges.at[k] < end) {
                *split = edges.at[k];
                return SP_OK;
            }
    }
    return SP_OK;
}

sp_status sp_bands_find(const sp_rules *rules, const sp_case *c, sp_bands *bands) {
    memset(bands, 0, sizeof *bands);
    bands->count = 1;
    bands->first[0] = 1;
    for (size_t i = 0; i < bands->count;) {
        uint64_t split;
        SP_TRY(probe(rules, c, bands, i, &split));
        if (!split) {
            i++;
            continue;
        }
        if (bands->count == SP_BANDS_MAX) return sp_fail(SP_INTERNAL, "more than %d size bands in one case", SP_BANDS_MAX);
        insert(bands, i + 1, split);
    }
    return SP_OK;
}

sp_status sp_router_init(const sp_rules *rules, const sp_case *c, sp_router *router) {
    sp_bands bands;
    SP_TRY(sp_bands_find(rules, c, &bands));
    memset(router, 0, sizeof *router);
    for (size_t i = 0; i < bands.count; i++) {
        uint8_t paths[SP_RESIDUE_COUNT] = {0};
        for (sp_residue residue = 0; residue < SP_RESIDUE_COUNT; residue++) {
            if (!bands.sample[i][residue]) { /* no such size here: as its neighbour, so that no edge is made for it */
                paths[residue] = i ? router->path[router->edges][residue] : 0;
                continue;
            }
            sp_call call = *c->call;
            sp_case sample = *c;
            sp_route_result result;
            call.nbytes = bands.sample[i][residue];
            sample.call = &call;
            sample.edges = NULL;
            SP_TRY(sp_route_call(rules, &sample, &result));
            paths[residue] = result.decision.path;
        }
        if (i && memcmp(paths, router->path[router->edges], sizeof paths) == 0) continue;
        if (i) router->edge[router->edges++] = bands.first[i];
        memcpy(router->path[router->edges], paths, sizeof paths);
    }
    return SP_OK;
}
