/* The space of states and derived tables: numbering, the walk's bytes, and tables that are not whole.
 * Invariant: a state and its word are a bijection, so a proof over all states is a proof over all words of the space. */
#include "harness.h"

#include "core/dispatch.h"
#include <string.h>

#include "core/space.h"

enum { ALL_STATES = 1 + 4 * SP_STATES_BASE };

static int compare_words(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void every_state_has_its_own_word_and_comes_back(void) {
    uint64_t *words = malloc(ALL_STATES * sizeof *words);
    CHECK(words);
    for (size_t i = 0; i < ALL_STATES; i++) {
        words[i] = sp_state_word(i);
        CHECK_FOR(sp_state_of(words[i]) == (int64_t)i, "state %zu", i);
    }
    qsort(words, ALL_STATES, sizeof *words, compare_words);
    for (size_t i = 1; i < ALL_STATES; i++) CHECK_FOR(words[i - 1] != words[i], "word %" PRIx64, words[i]);
    free(words);
}

static void the_first_states_are_the_12289_of_dispatch(void) {
    CHECK(sp_state_word(0) == 0);
    size_t wide = 0;
    for (size_t r = 0; r < sp_ruleset_count; r++) {
        size_t count = sp_state_count(&sp_rulesets[r]);
        CHECK_FOR(count == 12289 || count == ALL_STATES, "%s", sp_rulesets[r].name);
        wide += count == ALL_STATES;
    }
    CHECK(wide < sp_ruleset_count);
    for (size_t i = 0; i < 12289; i++) CHECK_FOR(!(sp_state_word(i) & SP_BIT(PCIE_PRESENT)), "state %zu", i);
}

static void words_outside_of_the_space_are_refused(void) {
    const uint64_t outside[] = {SP_BIT(CPU) | SP_BIT(RANKS),      SP_BIT(CUSTOM_ACCEPTS) | SP_BIT(RANKS), SP_BIT(CUSTOM_PRESENT),
                                SP_BIT(HPU) | SP_BIT(RANKS),      SP_BIT(PYNCCL_ENABLED) | SP_BIT(RANKS), UINT64_MAX,
                                UINT64_C(1) << 63 | SP_BIT(RANKS)};
    for (size_t i = 0; i < sizeof outside / sizeof *outside; i++) CHECK_FOR(sp_state_of(outside[i]) == -1, "word %zu", i);
    uint64_t seed = 1;
    size_t inside = 0;
    for (int i = 0; i < 1000000; i++) {
        uint64_t word = sp_random(&seed) & ((UINT64_C(1) << SP_COND_COUNT) - 1);
        int64_t state = sp_state_of(word);
        CHECK_FOR(state == -1 || (state < ALL_STATES && sp_state_word((size_t)state) == word), "word %" PRIx64, word);
        inside += state >= 0;
    }
    (void)inside;
}

static void a_walk_is_a_derived_table_that_decides_the_same(void) {
    for (size_t r = 0; r < sp_ruleset_count; r++) {
        const sp_ruleset *set = &sp_rulesets[r];
        size_t count = sp_state_count(set), bytes = count * SP_ANSWER_BYTES;
        uint8_t *answers = malloc(bytes); /* its exact size: one byte more and the sanitizer tells */
        CHECK(answers);
        sp_walk(set, answers);
        CHECK_FOR(sp_derived_check(answers, bytes) == SP_OK, "%s: %s", set->name, sp_error());
        for (size_t i = 0; i < count; i++) {
            sp_decision d, direct = sp_decide(set, sp_state_word(i));
            CHECK(sp_derived_decide(answers, bytes, sp_state_word(i), &d) == SP_OK);
            CHECK_FOR(d.path == direct.path && d.rule == direct.rule && d.op == direct.op && d.flags == direct.flags &&
                          d.exception == direct.exception,
                      "%s state %zu", set->name, i);
        }
        sp_decision d;
        CHECK(sp_derived_decide(answers, bytes, SP_BIT(CPU) | SP_BIT(RANKS), &d) == SP_INVALID);
        CHECK(sp_error()[0]);
        if (count < ALL_STATES) { /* a communicator that the revision does not know changes nothing */
            sp_decision without;
            CHECK(sp_derived_decide(answers, bytes, sp_state_word(count), &d) == SP_OK);
            CHECK(sp_derived_decide(answers, bytes, sp_state_word(1), &without) == SP_OK);
            CHECK(memcmp(&d, &without, sizeof d) == 0);
        }
        free(answers);
    }
}

static void a_derived_table_that_is_not_whole_is_refused(void) {
    size_t bytes = sp_state_count(&sp_rulesets[0]) * SP_ANSWER_BYTES;
    uint8_t *answers = malloc(bytes);
    CHECK(answers);
    sp_walk(&sp_rulesets[0], answers);
    const size_t lengths[] = {0, 1, SP_ANSWER_BYTES, bytes - 1, bytes - SP_ANSWER_BYTES};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        CHECK_FOR(sp_derived_check(answers, lengths[i]) == SP_INVALID && sp_error()[0], "%zu bytes", lengths[i]);
    const size_t columns[] = {0, 1, 2, 3, 4};
    for (size_t c = 0; c < sizeof columns / sizeof *columns; c++)
        for (size_t at = columns[c]; at < bytes; at += SP_ANSWER_BYTES * 4001) {
            uint8_t before = answers[at];
            answers[at] = 255;
            CHECK_FOR(sp_derived_check(answers, bytes) == SP_INVALID, "byte %zu", at);
            answers[at] = before;
        }
    CHECK(sp_derived_check(answers, bytes) == SP_OK);
    free(answers);
}

SP_TESTS(T(every_state_has_its_own_word_and_comes_back), T(the_first_states_are_the_12289_of_dispatch),
         T(words_outside_of_the_space_are_refused), T(a_walk_is_a_derived_table_that_decides_the_same),
         T(a_derived_table_that_is_not_whole_is_refused))
