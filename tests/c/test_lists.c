/* The lists and the table of releases: names are there, differ, and lead where they say. */
#include "harness.h"

#include "core/route.h"
#include "core/space.h"
#include "random_case.h"

static void check_unique(const char *const *names, size_t count, const char *list) {
    for (size_t i = 0; i < count; i++) {
        CHECK_FOR(names[i] && (names[i][0] || i == 0), "%s %zu", list, i);
        for (size_t j = 0; j < i; j++) CHECK_FOR(strcmp(names[i], names[j]) != 0, "%s: %s stands twice", list, names[i]);
    }
}

#define NAME2(id, name)                     name,
#define NAME3(id, name, text)               name,
#define NAME4(id, name, communicator, text) name,
#define FIELD(field, def, text)             #field,
#define LIST(list, X)                                             \
    {                                                             \
        static const char *const names[] = { list(X) };           \
        check_unique(names, sizeof names / sizeof *names, #list); \
    }

static void no_name_stands_twice_in_a_list(void) {
    LIST(SP_PATHS, NAME3)
    LIST(SP_RULES, NAME3)
    LIST(SP_EXCEPTIONS, NAME3)
    LIST(SP_CONDITIONS, NAME4)
    LIST(SP_CONTEXTS, NAME3)
    LIST(SP_DTYPES, NAME3)
    LIST(SP_STATES, NAME2)
    LIST(SP_KERNELS, NAME4)
    LIST(SP_STOPS, NAME4)
    LIST(SP_BACKENDS, NAME2)
    LIST(SP_FACTS, FIELD)
    LIST(SP_CALL_FACTS, FIELD)
}

static void facts_and_calls_start_with_the_defaults_of_the_list(void) {
    sp_facts facts;
    sp_call call;
    memset(&facts, 0x5a, sizeof facts);
    memset(&call, 0x5a, sizeof call);
    sp_facts_init(&facts);
    sp_call_init(&call);
#define X(field, def, text) CHECK_FOR(facts.field == (def), #field);
    SP_FACTS(X)
#undef X
#define X(field, def, text) CHECK_FOR(call.field == (def), #field);
    SP_CALL_FACTS(X)
#undef X
}

static void every_dtype_has_its_bytes(void) {
#define X(id, name, bytes) CHECK_FOR(sp_dtype_bytes[SP_DTYPE_##id] == (bytes), name);
    SP_DTYPES(X)
#undef X
}

static void every_status_has_its_text(void) {
    for (int i = 0; i < SP_STATUS_COUNT; i++) {
        const char *text = sp_status_text((sp_status)i);
        CHECK_FOR(text[0] && strcmp(text, "unknown status") != 0, "status %d", i);
    }
    CHECK(!strcmp(sp_status_text((sp_status)SP_STATUS_COUNT), "unknown status"));
    CHECK(sp_fail(SP_INVALID, "%s is %d", "this", 7) == SP_INVALID);
    CHECK(!strcmp(sp_error(), "this is 7"));
    char longer[2000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    sp_fail(SP_INTERNAL, "%s", longer);
    CHECK(strlen(sp_error()) > 100 && strlen(sp_error()) < sizeof longer);
}

static void every_release_is_found_by_name_and_has_a_ruleset(void) {
    CHECK(sp_release_count > 80);
    bool used[64] = {false};
    for (size_t i = 0; i < sp_release_count; i++) {
        const sp_release *release = &sp_releases[i];
        CHECK_FOR(sp_release_find(release->name) == release, "%s", release->name);
        const sp_ruleset *set = sp_ruleset_named(release->ruleset);
        CHECK_FOR(set, "%s says %s", release->name, release->ruleset);
        used[set - sp_rulesets] = true;
    }
    for (size_t r = 0; r < sp_ruleset_count; r++) CHECK_FOR(used[r], "no release is of %s", sp_rulesets[r].name);
    const char *const strangers[] = {"", "0", "0.5", "0.5.", "0.4.1.post6", "99.0", "E10", "0.5.9 ", " 0.5.9", "0.5.9\n"};
    for (size_t i = 0; i < sizeof strangers / sizeof *strangers; i++)
        CHECK_FOR(!sp_release_find(strangers[i]), "'%s'", strangers[i]);
}

/* 1.2.3rc4 < 1.2.3 < 1.2.3.post1: numbers, then rc = -1, post = +1. Returns false for a name that is not a version (a commit). */
static bool version_key(const char *name, long key[6]) {
    memset(key, 0, 6 * sizeof *key);
    size_t n = 0;
    for (const char *at = name; *at;) {
        if (!strncmp(at, "rc", 2) || !strncmp(at, "post", 4)) {
            key[4] = *at == 'r' ? -1 : 1;
            at += *at == 'r' ? 2 : 4;
            key[5] = strtol(at, (char **)&at, 10);
            return *at == 0;
        }
        if (n == 4 || *at < '0' || *at > '9') return false;
        key[n++] = strtol(at, (char **)&at, 10);
        if (*at == '.') at++;
    }
    return n >= 3;
}

static void releases_stand_oldest_first_and_once(void) {
    long before[6] = {0}, now[6];
    size_t versions = 0;
    for (size_t i = 0; i < sp_release_count; i++) {
        if (!version_key(sp_releases[i].name, now)) continue;
        int order = 0;
        for (int k = 0; k < 6 && !order; k++) order = (now[k] > before[k]) - (now[k] < before[k]);
        CHECK_FOR(order > 0, "%s does not come after the release before it", sp_releases[i].name);
        memcpy(before, now, sizeof before);
        versions++;
    }
    CHECK(versions > 80);
}

static void the_commits_of_the_motivating_hunt_differ_in_1296_states_all_piecewise(void) {
    const sp_release *a = sp_release_find("bba2fc4"), *b = sp_release_find("0be30d4");
    CHECK(a && b);
    const sp_ruleset *before = sp_ruleset_named(a->ruleset), *after = sp_ruleset_named(b->ruleset);
    size_t differ = 0;
    for (size_t i = 0; i < sp_state_count(before); i++) {
        uint64_t word = sp_state_word(i);
        sp_decision x = sp_decide(before, word), y = sp_decide(after, word);
        if (x.path == y.path && x.rule == y.rule && x.op == y.op && x.flags == y.flags && x.exception == y.exception) continue;
        CHECK_FOR(word & SP_BIT(PIECEWISE), "state %zu", i);
        differ++;
    }
    CHECK_FOR(differ == 1296, "%zu states", differ);
}

SP_TESTS(T(no_name_stands_twice_in_a_list), T(facts_and_calls_start_with_the_defaults_of_the_list), T(every_dtype_has_its_bytes),
         T(every_status_has_its_text), T(every_release_is_found_by_name_and_has_a_ruleset),
         T(releases_stand_oldest_first_and_once), T(the_commits_of_the_motivating_hunt_differ_in_1296_states_all_piecewise))
