/* Edges: what bands and routers rest on. Every threshold is noted on its far side, once, and never silently lost. */
#include "core/gate.h"
#include "harness.h"

static sp_facts facts;
static sp_call call;

static sp_case case_of(uint64_t nbytes, sp_edges *edges) {
    sp_facts_init(&facts);
    sp_call_init(&call);
    call.nbytes = nbytes;
    return (sp_case){.release = sp_release_find("0.5.9"), .facts = &facts, .call = &call, .edges = edges};
}

static void thresholds_are_noted_on_their_far_side(void) {
    sp_edges edges = {.count = 0};
    sp_case c = case_of(100, &edges);
    CHECK(sp_fits(&c, 100) && !sp_fits(&c, 99));
    CHECK(sp_below(&c, 101) && !sp_below(&c, 100));
    CHECK(edges.count == 2 && edges.at[0] == 101 && edges.at[1] == 100);
    CHECK(sp_fits(&c, UINT64_MAX) && edges.count == 2); /* nothing is larger: no edge */
}

static void edges_are_optional(void) {
    sp_case c = case_of(100, NULL);
    CHECK(sp_fits(&c, 100) && !sp_below(&c, 1));
}

static void too_many_edges_are_admitted(void) {
    sp_edges edges = {.count = 0};
    sp_case c = case_of(1, &edges);
    for (uint64_t i = 0; i < SP_EDGES_MAX; i++) sp_fits(&c, i);
    CHECK(edges.count == SP_EDGES_MAX && !edges.overflow);
    sp_fits(&c, 0); /* known already */
    CHECK(!edges.overflow);
    sp_fits(&c, SP_EDGES_MAX);
    CHECK(edges.count == SP_EDGES_MAX && edges.overflow);
}

/* Every answer of the custom gate is constant between its edges, at every release and world size. */
static void no_threshold_of_custom_is_missed(void) {
    for (size_t r = 0; r < sp_release_count; r++)
        for (int world_size = 2; world_size <= 16; world_size++) {
            sp_edges edges = {.count = 0};
            sp_case c = case_of(16, &edges);
            sp_answer first, second;
            c.release = &sp_releases[r];
            facts.world_size = world_size;
            facts.arch = r % 2 ? 90 : 107;
            sp_gate_custom(&c, &first);
            CHECK(!edges.overflow && edges.count < SP_EDGES_MAX);
            edges.at[edges.count++] = 16; /* the band before the first edge */
            c.edges = NULL;
            for (size_t e = 0; e < edges.count; e++) { /* one band each: from its edge to just before the next one */
                uint64_t end = 1 << 30;
                for (size_t k = 0; k < edges.count; k++)
                    if (edges.at[k] > edges.at[e] && edges.at[k] < end) end = edges.at[k];
                call.nbytes = (edges.at[e] + 15) / 16 * 16;
                if (call.nbytes >= end) continue;
                sp_gate_custom(&c, &first);
                for (int step = 1; step <= 64; step++) {
                    call.nbytes = (edges.at[e] + (end - 1 - edges.at[e]) / 64 * step) / 16 * 16;
                    if (call.nbytes < edges.at[e]) continue;
                    sp_gate_custom(&c, &second);
                    CHECK_FOR(first.state == second.state && first.kernel == second.kernel && first.stops == second.stops,
                              "%s at world size %d, %llu bytes", c.release->name, world_size, (unsigned long long)call.nbytes);
                }
            }
        }
}

SP_TESTS(T(thresholds_are_noted_on_their_far_side), T(edges_are_optional), T(too_many_edges_are_admitted),
         T(no_threshold_of_custom_is_missed))
