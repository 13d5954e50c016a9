/* libFuzzer target: whatever bytes come in, the router's tables and gates are asked with them. Run by tests/c/run.sh fuzz.
 * The first byte picks what the rest is: a derived table, a release's name, a case with any facts, a word of conditions.
 * Invariant: nothing read outside of what was given, no undefined behaviour, and whatever is accepted is inside of the lists. */
#include <stdlib.h>
#include <string.h>

#include "../c/random_case.h"
#include "core/space.h"

#define REQUIRE(condition)         \
    do {                           \
        if (!(condition)) abort(); \
    } while (0)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct bytes {
    const uint8_t *at, *end;
} bytes;

/* The next number of the input; zeros when it has ended. */
static uint64_t draw(void *source) {
    bytes *b = source;
    uint64_t value = 0;
    size_t left = (size_t)(b->end - b->at), n = left < sizeof value ? left : sizeof value;
    if (n) memcpy(&value, b->at, n);
    b->at += n;
    return value;
}

static void require_listed(const sp_decision *d) {
    REQUIRE(d->path < SP_PATH_COUNT && d->rule < SP_RULE_COUNT && d->op <= SP_OP_OUT_OF_PLACE && d->exception < SP_EXC_COUNT);
}

/* The same of a query, which names the predicate that raised and leaves it to its caller to say what. */
static void require_listed_or_asked(sp_decision d) {
    if (d.asked) {
        REQUIRE(d.path == SP_PATH_RAISES && d.asked <= 64);
        d.exception = 0;
    }
    require_listed(&d);
}

/* The walk of an era, made once. */
static const uint8_t *walk_of(size_t ruleset) {
    static uint8_t *walks[256];
    if (!walks[ruleset]) {
        walks[ruleset] = malloc(sp_state_count(&sp_rulesets[ruleset]) * SP_ANSWER_BYTES);
        REQUIRE(walks[ruleset]);
        sp_walk(&sp_rulesets[ruleset], walks[ruleset]);
    }
    return walks[ruleset];
}

/* A walk with the input laid over it somewhere: nearly whole tables are where mistakes would hide. */
static void fuzz_derived(bytes b) {
    size_t ruleset = draw(&b) % sp_ruleset_count, whole = sp_state_count(&sp_rulesets[ruleset]) * SP_ANSWER_BYTES;
    size_t length = draw(&b) % 4 ? whole : draw(&b) % (whole + 1);
    uint64_t word = draw(&b), at = draw(&b) % whole;
    uint8_t *table = malloc(whole), *given = malloc(length ? length : 1);
    REQUIRE(table && given);
    memcpy(table, walk_of(ruleset), whole);
    for (; b.at < b.end && at < whole; at++) table[at] = *b.at++;
    memcpy(given, table, length);
    free(table);
    if (sp_derived_check(given, length) == SP_OK) {
        sp_decision d;
        const uint64_t words[] = {word, sp_state_word(at % (whole / SP_ANSWER_BYTES)), sp_state_word(0)};
        for (size_t i = 0; i < 3; i++)
            if (sp_derived_decide(given, length, words[i], &d) == SP_OK) require_listed(&d);
    }
    free(given);
}

static void fuzz_release(bytes b) {
    size_t length = (size_t)(b.end - b.at);
    char *name = malloc(length + 1);
    REQUIRE(name);
    if (length) memcpy(name, b.at, length);
    name[length] = 0;
    const sp_release *release = sp_release_find(name);
    REQUIRE(!release || !strcmp(release->name, name));
    free(name);
}

static void fuzz_case(bytes b, bool wild) {
    sp_random_case r;
    sp_draw_case(draw, &b, wild, &r);
    sp_rules rules = {sp_ruleset_named(r.c.release->ruleset), NULL, 0};
    sp_route_result result;
    if (sp_route_call(&rules, &r.c, &result) == SP_OK) require_listed(&result.decision);
    sp_router router;
    if (sp_router_init(&rules, &r.c, &router) != SP_OK) return;
    int64_t sizes[32];
    uint8_t paths[32];
    for (size_t i = 0; i < 32; i++) sizes[i] = (int64_t)(draw(&b) >> 2) + 1;
    REQUIRE(sp_router_paths(&router, sizes, 32, paths) == 32);
    for (size_t i = 0; i < 32; i++) {
        r.call.nbytes = (uint64_t)sizes[i];
        REQUIRE(sp_route_call(&rules, &r.c, &result) == SP_OK);
        REQUIRE(paths[i] == result.decision.path && paths[i] == sp_router_path(&router, r.call.nbytes));
    }
}

static void fuzz_word(bytes b) {
    const sp_ruleset *set = &sp_rulesets[draw(&b) % sp_ruleset_count];
    sp_query query = {.word = draw(&b), .raises = draw(&b), .skip = (uint8_t)(draw(&b) % SP_RULE_COUNT)};
    sp_explanation e;
    require_listed_or_asked(sp_decide_query(set, &query));
    sp_explain(set, &query, &e);
    require_listed_or_asked(e.decision);
    require_listed_or_asked(e.next_best);
    REQUIRE(e.blocked_count <= SP_BLOCKED_MAX);
    int64_t state = sp_state_of(query.word);
    REQUIRE(state == -1 || sp_state_word((size_t)state) == query.word);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    bytes b = {data + 1, data + size};
    switch (data[0] % 8) {
    case 0: fuzz_derived(b); break;
    case 1: fuzz_release(b); break;
    case 2: fuzz_word(b); break;
    case 3: fuzz_case(b, true); break;
    default: fuzz_case(b, false); break;
    }
    return 0;
}
