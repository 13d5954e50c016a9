/* Regions of the space of conditions, their walks and tallies, the covering of a difference, and the classes of calls.
 * Invariant: every region, difference and class is held against a plain loop over the states or sizes that it says it stands for. */
#include "harness.h"

#include "core/classes.h"
#include "core/dispatch.h"
#include "core/space.h"
#include "random_case.h"

static uint64_t next_number(void *source) { return sp_random(source); }

static sp_rules rules_at(size_t i) { return (sp_rules){.ruleset = &sp_rulesets[i]}; }

/* Any region: every axis of conditions with some of its values, the devices mostly left alone. */
static sp_subspace random_region(uint64_t *seed) {
    sp_subspace region = {0};
    for (int i = 0; i < SP_AXIS_COUNT; i++) {
        uint8_t all = (uint8_t)((1 << sp_axis_values(i)) - 1), some = (uint8_t)(sp_random(seed) >> 20 & all);
        bool fixed = i < SP_AXIS_pcie_ipc || sp_random(seed) % 3 == 0;
        region.allowed[i] = fixed ? (uint8_t)1 : some ? some : all;
    }
    region.one_rank = sp_random(seed) & 1;
    region.ranks = region.one_rank ? sp_random(seed) >> 32 & 1 : true;
    return region;
}

/* The same region as nested loops: counts values through like an odometer, most significant axis first. */
static size_t loop_over(const sp_subspace *region, uint64_t *words, size_t room) {
    size_t count = 0;
    if (region->one_rank) words[count++] = 0;
    if (!region->ranks) return count;
    uint64_t combinations = 1;
    for (int i = 0; i < SP_AXIS_COUNT; i++) combinations *= (uint64_t)sp_axis_values(i);
    for (uint64_t k = 0; k < combinations; k++) {
        uint8_t value[SP_AXIS_COUNT];
        uint64_t rest = k;
        bool inside = true;
        for (int i = SP_AXIS_COUNT; i--;) {
            value[i] = (uint8_t)(rest % (uint64_t)sp_axis_values(i));
            rest /= (uint64_t)sp_axis_values(i);
            inside = inside && region->allowed[i] >> value[i] & 1;
        }
        if (!inside) continue;
        CHECK(count < room);
        words[count++] = sp_subspace_word(value);
    }
    return count;
}

enum { WORDS_MAX = 1 << 17 };

static void a_region_is_walked_as_nested_loops_would(void) {
    uint64_t seed = 5, *words = malloc(WORDS_MAX * sizeof *words);
    CHECK(words);
    for (int trial = 0; trial < 12; trial++) {
        sp_subspace region = random_region(&seed);
        size_t count = loop_over(&region, words, WORDS_MAX), at = 0;
        CHECK_FOR(sp_subspace_count(&region) == count, "trial %d", trial);
        for (sp_walker w = {.region = &region}; sp_subspace_next(&w); at++)
            CHECK_FOR(at < count && w.word == words[at], "trial %d, state %zu", trial, at);
        CHECK_FOR(at == count, "trial %d: %zu of %zu", trial, at, count);
    }
    free(words);
}

static void a_region_without_states_is_walked_nowhere(void) {
    sp_subspace region, empty = {0};
    sp_subspace_init(&sp_rulesets[0], &region);
    sp_walker nowhere = {.region = &empty};
    CHECK(!sp_subspace_next(&nowhere) && sp_subspace_count(&empty) == 0);
    region.one_rank = false;
    region.allowed[SP_AXIS_custom] = 0;
    sp_walker contradiction = {.region = &region};
    CHECK(!sp_subspace_next(&contradiction) && sp_subspace_count(&region) == 0);
}

static void the_whole_region_is_the_states_in_their_order(void) {
    for (size_t r = 0; r < sp_ruleset_count; r++) {
        sp_subspace region;
        sp_subspace_init(&sp_rulesets[r], &region);
        CHECK(sp_subspace_count(&region) == sp_state_count(&sp_rulesets[r]));
        size_t state = 0;
        for (sp_walker w = {.region = &region}; sp_subspace_next(&w); state++)
            CHECK_FOR(w.word == sp_state_word(state), "%s state %zu", sp_rulesets[r].name, state);
    }
}

static void a_tally_counts_every_state_once_and_its_witness_is_one_of_them(void) {
    uint64_t seed = 11;
    static sp_tally tally;
    for (int trial = 0; trial < 60; trial++) {
        sp_rules rules = rules_at(sp_random(&seed) % sp_ruleset_count);
        sp_subspace region = random_region(&seed);
        uint64_t counted[SP_RULE_COUNT][SP_PATH_COUNT] = {{0}}, sum = 0;
        CHECK(sp_subspace_tally(&rules, &region, &tally) == SP_OK);
        for (sp_walker w = {.region = &region}; sp_subspace_next(&w);) {
            sp_decision d = sp_decide(rules.ruleset, w.word);
            counted[d.rule][d.path]++;
        }
        for (int rule = 0; rule < SP_RULE_COUNT; rule++)
            for (int path = 0; path < SP_PATH_COUNT; path++) {
                const sp_hit *hit = &tally.hits[rule][path];
                CHECK_FOR(hit->states == counted[rule][path], "trial %d, rule %d, path %d", trial, rule, path);
                sum += hit->states;
                if (!hit->states) continue;
                sp_decision d = sp_decide(rules.ruleset, hit->witness);
                CHECK_FOR(d.rule == rule && d.path == path, "witness %" PRIx64, hit->witness);
            }
        CHECK(sum == tally.states && sum == sp_subspace_count(&region));
        for (int rule = 1; rule < SP_RULE_COUNT; rule++) {
            bool reaches, tallied = false;
            for (int path = 0; path < SP_PATH_COUNT; path++) tallied = tallied || counted[rule][path];
            CHECK(sp_subspace_reaches(&rules, &region, (uint8_t)rule, 0, &reaches) == SP_OK);
            CHECK_FOR(reaches == tallied, "trial %d, rule %d", trial, rule);
        }
    }
}

static bool same_route(const sp_decision *a, const sp_decision *b) {
    return a->path == b->path && a->op == b->op && a->flags == b->flags && a->exception == b->exception;
}

static bool covers(const sp_cube *cube, const sp_walker *w) {
    if (cube->one_rank) return w->word == 0;
    if (w->word == 0) return false;
    for (int i = 0; i < SP_AXIS_COUNT; i++)
        if (!(cube->allowed[i] >> w->value[i] & 1)) return false;
    return true;
}

static bool same_decision(const sp_decision *a, const sp_decision *b) { return same_route(a, b) && a->rule == b->rule; }

/* Every changed state is in a cube of its own before and after, no other state is in any, and each cube alone holds some state. */
static void check_changes(const sp_rules *a, const sp_rules *b, const sp_subspace *region, const sp_changes *changes) {
    uint64_t states = 0, changed = 0, *alone = calloc(changes->count + 1, sizeof *alone);
    CHECK(alone);
    for (sp_walker w = {.region = region}; sp_subspace_next(&w); states++) {
        sp_decision before = sp_decide(a->ruleset, w.word), after = sp_decide(b->ruleset, w.word);
        size_t holding = 0, last = 0;
        for (size_t i = 0; i < changes->count; i++) {
            if (!covers(&changes->cubes[i], &w)) continue;
            CHECK(same_decision(&changes->cubes[i].before, &before) && same_decision(&changes->cubes[i].after, &after));
            holding++;
            last = i;
        }
        CHECK_FOR((holding > 0) == !same_route(&before, &after), "word %" PRIx64, w.word);
        changed += holding > 0;
        if (holding == 1) alone[last]++;
    }
    CHECK(states == changes->states && changed == changes->changed);
    for (size_t i = 0; i < changes->count; i++) CHECK_FOR(alone[i], "cube %zu of %zu is needless", i, changes->count);
    free(alone);
}

static void a_difference_is_covered_exactly_and_without_a_needless_cube(void) {
    uint64_t seed = 3;
    for (size_t r = 1; r < sp_ruleset_count; r++) {
        sp_rules a = rules_at(r - 1), b = rules_at(r);
        sp_subspace region;
        sp_changes changes;
        sp_subspace_init(&sp_rulesets[r - 1], &region);
        CHECK(sp_subspace_diff(&a, &b, &region, &changes) == SP_OK);
        check_changes(&a, &b, &region, &changes);
        sp_changes_free(&changes);
    }
    for (int trial = 0; trial < 40; trial++) { /* far apart, and over a part of the space only */
        sp_rules a = rules_at(sp_random(&seed) % sp_ruleset_count), b = rules_at(sp_random(&seed) % sp_ruleset_count);
        sp_subspace region = random_region(&seed);
        sp_changes changes;
        CHECK(sp_subspace_diff(&a, &b, &region, &changes) == SP_OK);
        check_changes(&a, &b, &region, &changes);
        sp_changes_free(&changes);
    }
}

static void a_table_differs_from_its_ruleset_nowhere_even_where_it_lacks_an_axis(void) {
    size_t bytes = (1 + SP_STATES_BASE) * SP_ANSWER_BYTES;
    uint8_t *answers = malloc(bytes);
    CHECK(answers);
    sp_walk(&sp_rulesets[0], answers);
    sp_rules a = {&sp_rulesets[0], answers, bytes}, b = rules_at(0);
    sp_subspace region;
    sp_changes changes;
    for (size_t r = 0; r < sp_ruleset_count; r++) { /* the regions of some know one communicator more than the table */
        sp_subspace_init(&sp_rulesets[r], &region);
        CHECK_FOR(sp_subspace_diff(&a, &b, &region, &changes) == SP_OK, "%s: %s", sp_rulesets[r].name, sp_error());
        CHECK(changes.states == sp_subspace_count(&region) && changes.changed == 0 && changes.count == 0);
        sp_changes_free(&changes);
    }
    free(answers);
}

/* A size of a class: inside, of its residue, and whole elements. */
static bool is_member(const sp_class *row, uint64_t size) {
    return size >= row->first && size <= row->last && sp_residue_of(size) == (sp_residue)row->residue &&
           size % (uint64_t)sp_dtype_bytes[row->dtype] == 0;
}

static void route_again(const sp_rules *rules, const sp_case *c, const sp_class *row, uint64_t size, sp_route_result *r) {
    static const struct {
        uint8_t contiguous, weak, aligned, registered;
    } lies[] = {
#define X(id, name, contiguous, weak, aligned, registered) {contiguous, weak, aligned, registered},
        SP_LAYOUTS(X)
#undef X
    };
    sp_call call = *c->call;
    sp_case one = *c;
    call.nbytes = size;
    call.dtype = (int64_t)row->dtype;
    call.contiguous = lies[row->layout].contiguous;
    call.weak_contiguous = lies[row->layout].weak;
    call.aligned = lies[row->layout].aligned;
    call.registered = lies[row->layout].registered;
    one.call = &call;
    one.edges = NULL;
    one.context = (uint32_t)row->context;
    CHECK(sp_route_call(rules, &one, r) == SP_OK);
}

static void check_member(const sp_rules *rules, const sp_case *c, const sp_class *row, uint64_t size) {
    sp_route_result r;
    route_again(rules, c, row, size, &r);
    CHECK_FOR(r.decision.path == row->path && r.decision.rule == row->rule && r.decision.op == row->op &&
                  r.decision.exception == row->exception && r.kernel == row->kernel && r.backend == row->backend &&
                  r.returns_new == row->returns_new && r.cloned == row->cloned && r.reduces == row->reduces &&
                  r.query.word == row->word,
              "%s, %" PRIu64 " bytes of a class from %" PRIu64 " to %" PRIu64, c->release->name, size, row->first, row->last);
}

/* Classes of one context, dtype, layout and residue: they follow one another without a gap, and end at the last size. */
static void check_cover(const sp_classes *classes) {
    for (size_t i = 0; i < classes->count; i++) {
        const sp_class *row = &classes->rows[i];
        CHECK(is_member(row, row->sample));
        for (size_t k = 0; k < i; k++) {
            const sp_class *other = &classes->rows[k];
            bool same = other->context == row->context && other->dtype == row->dtype && other->layout == row->layout &&
                        other->residue == row->residue;
            CHECK(!same || other->last < row->first || row->last < other->first);
        }
    }
}

static uint64_t random_size(uint64_t *seed, const sp_class *row) {
    uint64_t width = row->last - row->first + 1, at = row->first + sp_random(seed) % width;
    uint64_t bytes = (uint64_t)sp_dtype_bytes[row->dtype];
    for (uint64_t size = (at + bytes - 1) / bytes * bytes, tries = 0; tries < 32 && size <= row->last; tries++, size += bytes)
        if (is_member(row, size)) return size;
    return row->sample;
}

static void members_of_a_class_route_as_its_sample_does(void) {
    uint64_t seed = 17;
    size_t members = 0;
    for (int trial = 0; trial < 300; trial++) {
        sp_random_case drawn;
        sp_draw_case(next_number, &seed, trial % 8 == 0, &drawn);
        sp_rules rules = {.ruleset = sp_ruleset_named(drawn.c.release->ruleset)};
        uint32_t contexts[] = {drawn.c.context, drawn.c.context ^ 1};
        sp_classes_of of = {contexts, 2, UINT32_C(1) << sp_random(&seed) % SP_DTYPE_COUNT,
                            UINT32_C(1) << sp_random(&seed) % SP_LAYOUT_COUNT};
        sp_classes classes;
        CHECK_FOR(sp_classes_find(&rules, &drawn.c, &of, &classes) == SP_OK, "trial %d: %s", trial, sp_error());
        CHECK(classes.count > 0);
        check_cover(&classes);
        for (size_t i = 0; i < classes.count; i++)
            for (int k = 0; k < 8; k++, members++)
                check_member(&rules, &drawn.c, &classes.rows[i], random_size(&seed, &classes.rows[i]));
        sp_classes_free(&classes);
    }
    CHECK(members > 10000);
}

static void every_size_is_in_exactly_one_class(void) {
    uint64_t seed = 23;
    for (int trial = 0; trial < 100; trial++) {
        sp_random_case drawn;
        sp_draw_case(next_number, &seed, false, &drawn);
        sp_rules rules = {.ruleset = sp_ruleset_named(drawn.c.release->ruleset)};
        uint32_t dtype = (uint32_t)(sp_random(&seed) % SP_DTYPE_COUNT);
        sp_classes_of of = {&drawn.c.context, 1, UINT32_C(1) << dtype, 1};
        sp_classes classes;
        CHECK(sp_classes_find(&rules, &drawn.c, &of, &classes) == SP_OK);
        for (int k = 0; k < 200; k++) {
            uint64_t bytes = (uint64_t)sp_dtype_bytes[dtype],
                     size = (sp_random(&seed) >> (1 + sp_random(&seed) % 63)) / bytes * bytes;
            size_t holding = 0;
            if (!size) continue;
            for (size_t i = 0; i < classes.count; i++) holding += is_member(&classes.rows[i], size);
            CHECK_FOR(holding == 1, "trial %d: %" PRIu64 " bytes are in %zu classes", trial, size, holding);
        }
        sp_classes_free(&classes);
    }
}

SP_TESTS(T(a_region_is_walked_as_nested_loops_would), T(a_region_without_states_is_walked_nowhere),
         T(the_whole_region_is_the_states_in_their_order), T(a_tally_counts_every_state_once_and_its_witness_is_one_of_them),
         T(a_difference_is_covered_exactly_and_without_a_needless_cube),
         T(a_table_differs_from_its_ruleset_nowhere_even_where_it_lacks_an_axis), T(members_of_a_class_route_as_its_sample_does),
         T(every_size_is_in_exactly_one_class))
