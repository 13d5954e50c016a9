/* The rulesets as data, and the walk over them, against a second walk that is written here as plainly as the rules of ruleset.h.
 * Invariant: every row of every era can fire, or is in `unreachable` below with the reason why SGLang has it all the same. */
#include "harness.h"

#include "core/dispatch.h"
#include "core/space.h"

/* Conditions outside of the space of states: each is added to every state in turn. */
static const uint64_t extras[] = {
    0,           SP_BIT(CPU), SP_BIT(CPU) | SP_BIT(CPU_SHM), SP_BIT(HPU),
    SP_BIT(XPU), SP_BIT(NPU), SP_BIT(AMD_DETERMINISTIC),     SP_BIT(CUSTOM_MULTINODE),
};
enum { EXTRAS = sizeof extras / sizeof *extras };

static bool is_last(const sp_row *row) { return !(row->need | row->forbid); }

static size_t block_rows(const sp_row *block) {
    size_t n = 0;
    while (!is_last(&block[n])) n++;
    return n + 1;
}

static void every_block_ends_and_every_jump_goes_forward(void) {
    CHECK(sp_ruleset_count > 0);
    for (size_t r = 0; r < sp_ruleset_count; r++) {
        const sp_ruleset *set = &sp_rulesets[r];
        CHECK_FOR(set->blocks[SP_BLOCK_SELECT] && set->blocks[SP_BLOCK_IN_PLACE], "%s", set->name);
        for (int b = 0; b < SP_BLOCK_COUNT; b++) {
            if (!set->blocks[b]) continue;
            size_t rows = block_rows(set->blocks[b]);
            CHECK_FOR(rows < 40, "%s block %d", set->name, b);
            for (size_t i = 0; i < rows; i++) {
                const sp_row *row = &set->blocks[b][i];
                CHECK_FOR((row->need & row->forbid) == 0, "%s block %d row %zu", set->name, b, i);
                CHECK_FOR(row->rule < SP_RULE_COUNT && row->op <= SP_OP_OUT_OF_PLACE, "%s block %d row %zu", set->name, b, i);
                if (row->flags & SP_ROW_ASK) continue;
                if (row->flags & SP_ROW_JUMP) {
                    CHECK_FOR(row->target > b && row->target < SP_BLOCK_COUNT, "%s block %d row %zu", set->name, b, i);
                    CHECK_FOR(set->blocks[row->target], "%s block %d row %zu", set->name, b, i);
                } else {
                    CHECK_FOR(row->target < SP_PATH_COUNT, "%s block %d row %zu", set->name, b, i);
                    CHECK_FOR((row->target == SP_PATH_RAISES) == (row->exception != 0), "%s block %d row %zu", set->name, b, i);
                    CHECK_FOR(row->rule || row->target == SP_PATH_RAISES, "%s block %d row %zu", set->name, b, i);
                }
            }
        }
    }
}

/* The second walk, without the rows of rule `skip`. Marks every row that fires. */
static sp_decision plain_walk(const sp_ruleset *set, uint64_t word, uint8_t skip, bool fired[SP_BLOCK_COUNT][40]) {
    sp_decision d = {0};
    int block = SP_BLOCK_SELECT, steps = 0;
    for (size_t i = 0;;) {
        const sp_row *row = &set->blocks[block][i];
        bool holds = !(row->flags & SP_ROW_ASK) && (word & row->need) == row->need && (word & row->forbid) == 0;
        if (!holds || (skip && row->rule == skip && !is_last(row))) {
            i++;
            continue;
        }
        fired[block][i] = true;
        if (!d.rule) d.rule = row->rule;
        if (steps++ == 0) d.op = row->op;
        d.flags |= row->flags & (SP_ROW_NEW | SP_ROW_CLONE | SP_ROW_LOST);
        if (row->flags & SP_ROW_JUMP) {
            block = row->target;
            i = 0;
            continue;
        }
        d.path = row->target;
        d.exception = row->exception;
        if (d.path == SP_PATH_RAISES) d.flags = 0;
        return d;
    }
}

static bool same(sp_decision a, sp_decision b) {
    return a.path == b.path && a.rule == b.rule && a.op == b.op && a.flags == b.flags && a.exception == b.exception;
}

/* Rows that no combination of conditions reaches, and why they stand in the table. */
static const struct {
    const char *ruleset;
    uint8_t block, row;
    const char *why;
} unreachable[] = {
    {"E13", SP_BLOCK_IN_PLACE, 1, "whoever has all three conditions went out of place before; from E14 on XPU reaches it"},
};

static bool is_marked(const char *ruleset, int block, size_t row) {
    for (size_t i = 0; i < sizeof unreachable / sizeof *unreachable; i++)
        if (!strcmp(unreachable[i].ruleset, ruleset) && unreachable[i].block == block && unreachable[i].row == row) return true;
    return false;
}

static void every_row_fires_somewhere_and_the_walk_is_the_plain_one(void) {
    int dead = 0;
    for (size_t r = 0; r < sp_ruleset_count; r++) {
        const sp_ruleset *set = &sp_rulesets[r];
        bool fired[SP_BLOCK_COUNT][40] = {{false}};
        for (size_t s = 0; s < sp_state_count(set); s++)
            for (size_t e = 0; e < EXTRAS; e++) {
                uint64_t word = sp_state_word(s) | extras[e];
                CHECK_FOR(same(plain_walk(set, word, SP_RULE_NO_RULE, fired), sp_decide(set, word)), "%s word %" PRIx64,
                          set->name, word);
            }
        for (int b = 0; b < SP_BLOCK_COUNT; b++)
            for (size_t i = 0; set->blocks[b] && i < block_rows(set->blocks[b]); i++) {
                if (set->blocks[b][i].flags & SP_ROW_ASK || fired[b][i] != is_marked(set->name, b, i)) continue;
                fprintf(stderr, "%s block %d row %zu (rule %d): %s\n", set->name, b, i, set->blocks[b][i].rule,
                        fired[b][i] ? "marked unreachable, but fires" : "never fires");
                dead++;
            }
    }
    CHECK(dead == 0);
}

static void an_explanation_has_the_decision_and_only_true_blockers(void) {
    size_t with_next = 0;
    bool fired[SP_BLOCK_COUNT][40];
    for (size_t r = 0; r < sp_ruleset_count; r++) {
        const sp_ruleset *set = &sp_rulesets[r];
        for (size_t s = 0; s < sp_state_count(set); s += 7) {
            sp_query query = {.word = sp_state_word(s) | extras[s % EXTRAS]};
            sp_explanation e;
            sp_explain(set, &query, &e);
            CHECK_FOR(same(e.decision, sp_decide(set, query.word)), "%s state %zu", set->name, s);
            CHECK(e.blocked_count <= SP_BLOCKED_MAX);
            for (size_t i = 0; i < e.blocked_count; i++) {
                const sp_blocked *b = &e.blocked[i];
                CHECK_FOR(b->rule && b->rule != e.decision.rule, "%s state %zu", set->name, s);
                CHECK_FOR(b->missing | b->against, "%s state %zu rule %d", set->name, s, b->rule);
                CHECK_FOR((b->missing & query.word) == 0, "%s state %zu rule %d", set->name, s, b->rule);
                CHECK_FOR((b->against & ~query.word) == 0, "%s state %zu rule %d", set->name, s, b->rule);
                for (size_t j = 0; j < i; j++) CHECK_FOR(b->rule != e.blocked[j].rule, "%s state %zu", set->name, s);
            }
            if (!e.next_best.rule) continue;
            CHECK_FOR(e.next_best.rule != e.decision.rule, "%s state %zu", set->name, s);
            CHECK_FOR(same(e.next_best, plain_walk(set, query.word, e.decision.rule, fired)), "%s state %zu", set->name, s);
            with_next++;
        }
    }
    CHECK_FOR(with_next > 1000, "%zu explanations with a next best", with_next);
}

static void a_predicate_that_raises_is_named_or_never_asked(void) {
    const uint64_t predicates[] = {SP_BIT(CUSTOM_ACCEPTS), SP_BIT(QUICK_ACCEPTS), SP_BIT(MSCCLPP_ACCEPTS), SP_BIT(SYMM_ACCEPTS),
                                   SP_BIT(PCIE_ACCEPTS)};
    size_t raised = 0;
    for (size_t r = 0; r < sp_ruleset_count; r++)
        for (size_t s = 0; s < sp_state_count(&sp_rulesets[r]); s++)
            for (size_t p = 0; p < sizeof predicates / sizeof *predicates; p++) {
                sp_query query = {.word = sp_state_word(s), .raises = predicates[p]};
                sp_decision with = sp_decide_query(&sp_rulesets[r], &query), without = sp_decide(&sp_rulesets[r], query.word);
                if (same(with, without)) continue;
                CHECK_FOR(with.path == SP_PATH_RAISES && with.asked == 1 + __builtin_ctzll(predicates[p]), "%s state %zu",
                          sp_rulesets[r].name, s);
                raised++;
            }
    CHECK(raised > 0);
}

static void names_of_rulesets_are_unique_and_told(void) {
    for (size_t r = 0; r < sp_ruleset_count; r++) {
        CHECK_FOR(sp_rulesets[r].name[0] == 'E' && sp_rulesets[r].text[0], "ruleset %zu", r);
        for (size_t q = 0; q < r; q++)
            CHECK_FOR(strcmp(sp_rulesets[r].name, sp_rulesets[q].name) != 0, "%s", sp_rulesets[r].name);
    }
}

SP_TESTS(T(every_block_ends_and_every_jump_goes_forward), T(every_row_fires_somewhere_and_the_walk_is_the_plain_one),
         T(an_explanation_has_the_decision_and_only_true_blockers), T(a_predicate_that_raises_is_named_or_never_asked),
         T(names_of_rulesets_are_unique_and_told))
