/* Gates, route, bands and routers over random facts and calls, under the sanitizers; and the edges that bands are made of.
 * Invariant: what a router says of a size is what sp_route_call says of it. */
#include "harness.h"

#include "core/route.h"
#include "random_case.h"

static uint64_t draw(void *source) { return sp_random(source); }

static sp_rules rules_of(const sp_case *c) { return (sp_rules){sp_ruleset_named(c->release->ruleset), NULL, 0}; }

static void a_size_is_compared_to_the_byte_and_the_edge_is_noted(void) {
    sp_random_case r;
    uint64_t seed = 3;
    sp_draw_case(draw, &seed, false, &r);
    const uint64_t limits[] = {0, 1, 15, 16, 8388608, SP_SIZE_MAX - 1, SP_SIZE_MAX, UINT64_MAX - 1, UINT64_MAX};
    const uint64_t sizes[] = {1, 2, 15, 16, 17, 8388607, 8388608, 8388609, SP_SIZE_MAX};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        for (size_t j = 0; j < sizeof sizes / sizeof *sizes; j++) {
            sp_edges edges = {.count = 0};
            r.call.nbytes = sizes[j];
            r.c.edges = &edges;
            CHECK_FOR(sp_fits(&r.c, limits[i]) == (sizes[j] <= limits[i]), "%" PRIu64 " in %" PRIu64, sizes[j], limits[i]);
            CHECK_FOR(sp_below(&r.c, limits[i]) == (sizes[j] < limits[i]), "%" PRIu64 " below %" PRIu64, sizes[j], limits[i]);
            for (size_t k = 0; k < edges.count; k++) CHECK_FOR(edges.at[k] - limits[i] <= 1, "limit %" PRIu64, limits[i]);
            if (limits[i] == 8388608) CHECK(edges.count == 2 && edges.at[0] == 8388609 && edges.at[1] == 8388608);
            r.c.edges = NULL;
            CHECK(sp_fits(&r.c, limits[i]) == (sizes[j] <= limits[i]));
        }
}

static void edges_are_kept_once_and_too_many_are_told(void) {
    sp_random_case r;
    uint64_t seed = 3;
    sp_draw_case(draw, &seed, false, &r);
    sp_edges edges = {.count = 0};
    r.c.edges = &edges;
    for (uint64_t i = 0; i < SP_EDGES_MAX; i++) {
        sp_below(&r.c, 1000 + i);
        sp_below(&r.c, 1000 + i);
    }
    CHECK(edges.count == SP_EDGES_MAX && !edges.overflow);
    sp_below(&r.c, 5);
    CHECK(edges.count == SP_EDGES_MAX && edges.overflow);
}

static void check_answer(const sp_answer *a, const char *gate, const char *release) {
    CHECK_FOR(a->state < SP_STATE_COUNT && a->kernel < SP_KERNEL_COUNT && a->backend < SP_BACKEND_COUNT, "%s of %s", gate,
              release);
    CHECK_FOR(a->exception < SP_EXC_COUNT && a->stops >> SP_STOP_COUNT == 0, "%s of %s", gate, release);
    /* With an exception it takes the tensor, and running it raises. */
    if (a->state == SP_STATE_ACCEPTS && !a->exception)
        CHECK_FOR(!a->stops, "%s of %s accepts, stops %" PRIx64, gate, release, a->stops);
    if (a->state < SP_STATE_ACCEPTS)
        CHECK_FOR(a->stops, "%s of %s does not accept (state %d) and says no reason", gate, release, a->state);
    if (a->state == SP_STATE_RAISES_HERE) CHECK_FOR(a->exception, "%s of %s raises nothing", gate, release);
}

static void route_random(bool wild, int count, size_t reached[SP_PATH_COUNT]) {
    static const char *const names[] = {
#define X(id, ...) #id,
        SP_GATES(X)
#undef X
    };
    uint64_t seed = wild ? 11 : 7;
    for (int i = 0; i < count; i++) {
        sp_random_case r;
        sp_route_result result;
        sp_draw_case(draw, &seed, wild, &r);
        sp_rules rules = rules_of(&r.c);
        CHECK(sp_route_call(&rules, &r.c, &result) == SP_OK);
        for (int g = 0; g < SP_GATE_COUNT; g++) check_answer(&result.answers[g], names[g], r.c.release->name);
        CHECK(result.decision.path < SP_PATH_COUNT && result.decision.rule < SP_RULE_COUNT);
        reached[result.decision.path]++;
        CHECK_FOR((result.decision.path == SP_PATH_RAISES) == (result.decision.exception != 0), "%s", r.c.release->name);
        CHECK(!result.reduces || (result.decision.path != SP_PATH_NONE && result.decision.path != SP_PATH_RAISES));
        CHECK((r.facts.world_size > 1) == (result.decision.path != SP_PATH_NONE));
    }
}

static void any_plausible_case_is_routed_with_a_reason_for_every_no(void) {
    size_t reached[SP_PATH_COUNT] = {0};
    route_random(false, 200000, reached);
    for (int i = 0; i < SP_PATH_COUNT; i++) CHECK_FOR(reached[i], "path %d: the random cases test nothing there", i);
}

static void wild_facts_break_nothing(void) {
    size_t reached[SP_PATH_COUNT] = {0};
    route_random(true, 200000, reached);
}

static void a_size_outside_of_1_to_2_to_the_63_is_refused(void) {
    sp_random_case r;
    sp_route_result result;
    uint64_t seed = 3;
    sp_draw_case(draw, &seed, false, &r);
    sp_rules rules = rules_of(&r.c);
    const uint64_t bad[] = {0, SP_SIZE_MAX + 1, UINT64_MAX};
    for (size_t i = 0; i < 3; i++) {
        r.call.nbytes = bad[i];
        CHECK(sp_route_call(&rules, &r.c, &result) == SP_INVALID && sp_error()[0]);
    }
}

/* A size near an edge, near a power of two, or anywhere. */
static uint64_t draw_size(uint64_t *seed, const sp_router *router) {
    uint64_t r = sp_random(seed), near = sp_random(seed) % 40;
    uint64_t size = r % 3 == 0 && router->edges ? router->edge[(r >> 8) % router->edges] + near - 20
                    : r % 3 == 1                ? (UINT64_C(1) << (r >> 8) % 63) + near - 20
                                                : (r >> 1) >> (r >> 8) % 63;
    return size < 1 || size >= SP_SIZE_MAX ? 1 : size;
}

static void a_router_agrees_with_route_for_every_size(void) {
    uint64_t seed = 5;
    size_t bands = 0;
    for (int i = 0; i < 10000; i++) {
        sp_random_case r;
        sp_router router;
        sp_route_result result;
        sp_draw_case(draw, &seed, i % 8 == 0, &r);
        sp_rules rules = rules_of(&r.c);
        CHECK_FOR(sp_router_init(&rules, &r.c, &router) == SP_OK, "%s: %s", r.c.release->name, sp_error());
        CHECK(router.edges < SP_BANDS_MAX);
        bands += router.edges + 1;
        int64_t sizes[64];
        uint8_t paths[64];
        for (int k = 0; k < 64; k++) {
            sizes[k] = (int64_t)draw_size(&seed, &router);
            r.call.nbytes = (uint64_t)sizes[k];
            CHECK(sp_route_call(&rules, &r.c, &result) == SP_OK);
            CHECK_FOR(sp_router_path(&router, (uint64_t)sizes[k]) == result.decision.path,
                      "%s, %" PRId64 " bytes: router %d, route %d", r.c.release->name, sizes[k],
                      sp_router_path(&router, (uint64_t)sizes[k]), result.decision.path);
        }
        CHECK(sp_router_paths(&router, sizes, 64, paths) == 64);
        for (int k = 0; k < 64; k++) CHECK_FOR(paths[k] == sp_router_path(&router, (uint64_t)sizes[k]), "%" PRId64, sizes[k]);
        /* All of one residue: whole blocks take one of the ways through the array. */
        for (int k = 0; k < 64; k++) sizes[k] = (int64_t)(draw_size(&seed, &router) & ~UINT64_C(15)) + (i % 16 ? i % 16 : 16);
        CHECK(sp_router_paths(&router, sizes, 64, paths) == 64);
        for (int k = 0; k < 64; k++) CHECK_FOR(paths[k] == sp_router_path(&router, (uint64_t)sizes[k]), "%" PRId64, sizes[k]);
        sizes[i % 64] = i % 2 ? 0 : -5;
        CHECK(sp_router_paths(&router, sizes, 64, paths) == (size_t)(i % 64));
    }
    CHECK_FOR(bands > 10000, "%zu bands: too few to have tested anything", bands);
}

static void a_router_of_nothing_and_of_many_blocks_writes_only_its_own_bytes(void) {
    sp_random_case r;
    sp_router router;
    uint64_t seed = 9;
    sp_draw_case(draw, &seed, false, &r);
    sp_rules rules = rules_of(&r.c);
    CHECK(sp_router_init(&rules, &r.c, &router) == SP_OK);
    CHECK(sp_router_paths(&router, NULL, 0, NULL) == 0);
    const size_t counts[] = {1, 2047, 2048, 2049, 5000};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int64_t *sizes = malloc(counts[i] * sizeof *sizes);
        uint8_t *paths = malloc(counts[i]);
        CHECK(sizes && paths);
        for (size_t k = 0; k < counts[i]; k++) sizes[k] = (int64_t)draw_size(&seed, &router);
        CHECK(sp_router_paths(&router, sizes, counts[i], paths) == counts[i]);
        for (size_t k = 0; k < counts[i]; k++) CHECK(paths[k] == sp_router_path(&router, (uint64_t)sizes[k]));
        free(sizes);
        free(paths);
    }
}

static sp_route_result route_one(sp_case *c) {
    sp_rules rules = rules_of(c);
    sp_route_result r;
    CHECK(sp_route_call(&rules, c, &r) == SP_OK);
    return r;
}

static void a_communicator_that_somebody_switches_is_what_the_rules_see(void) {
    sp_facts facts;
    sp_call call;
    sp_facts_init(&facts);
    sp_call_init(&call);
    call.nbytes = 4096;
    for (size_t i = 0; i < sp_release_count; i++) {
        sp_case c = {.release = &sp_releases[i], .facts = &facts, .call = &call, .context = SP_CTX(IN_CAPTURE) | SP_CTX(STREAM)};
        CHECK_FOR(route_one(&c).decision.path == SP_PATH_CUSTOM, "%s", c.release->name);
        c.off = SP_GATE_BIT(CUSTOM);
        sp_route_result r = route_one(&c);
        CHECK_FOR(r.decision.path == SP_PATH_PYNCCL_IN_PLACE, "%s", c.release->name);
        CHECK(r.answers[SP_GATE_CUSTOM].state == SP_STATE_DISABLED && r.answers[SP_GATE_CUSTOM].stops & SP_STOP(SWITCHED_OFF));
        c.off |= SP_GATE_BIT(PYNCCL);
        CHECK_FOR(route_one(&c).decision.path == SP_PATH_TORCH_DISTRIBUTED, "%s", c.release->name);
        c.context = 0; /* eager: pynccl is off by itself, and change_state() puts it on */
        c.off = SP_GATE_BIT(CUSTOM);
        CHECK_FOR(route_one(&c).decision.path == SP_PATH_TORCH_DISTRIBUTED, "%s", c.release->name);
        c.on = SP_GATE_BIT(PYNCCL);
        CHECK_FOR(route_one(&c).decision.path == SP_PATH_PYNCCL_IN_PLACE, "%s", c.release->name);
    }
}

SP_TESTS(T(a_size_is_compared_to_the_byte_and_the_edge_is_noted), T(edges_are_kept_once_and_too_many_are_told),
         T(any_plausible_case_is_routed_with_a_reason_for_every_no), T(wild_facts_break_nothing),
         T(a_size_outside_of_1_to_2_to_the_63_is_refused), T(a_router_agrees_with_route_for_every_size),
         T(a_router_of_nothing_and_of_many_blocks_writes_only_its_own_bytes),
         T(a_communicator_that_somebody_switches_is_what_the_rules_see))
