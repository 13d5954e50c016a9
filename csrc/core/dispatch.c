/* Walks a ruleset's rows for one word of conditions, and over all words. See ruleset.h for how rows hold.
 * Invariant: sp_decide and sp_explain share one walk, so an explanation cannot disagree with its decision. */
#include "dispatch.h"

#include <assert.h>
#include <string.h>

static inline bool row_holds(const sp_row *row, uint64_t word) { return (row->need & ~word) == 0 && (row->forbid & word) == 0; }

/* Does Python, which stops at the first false operand, ask a predicate of this row that raises? The ACCEPTS bits come last in every
 * condition, so the others decide whether they are reached. Answers the bits that are asked. */
static inline uint64_t row_asks(const sp_row *row, const sp_query *query) {
    uint64_t asked = (row->need | row->forbid) & query->raises;
    return asked && (row->need & ~asked & ~query->word) == 0 && (row->forbid & ~asked & query->word) == 0 ? asked : 0;
}

static inline sp_decision decide(const sp_ruleset *ruleset, const sp_query *query) {
    sp_decision d = {0};
    const sp_row *row = ruleset->blocks[SP_BLOCK_SELECT];
    bool jumped = false;
    for (;; row++) {
        uint64_t asked = query->raises ? row_asks(row, query) : 0;
        if (asked) {
            uint8_t exception = (uint8_t)(SP_ASKED | __builtin_ctzll(asked));
            return (sp_decision){SP_PATH_RAISES, d.rule ? d.rule : row->rule, jumped ? d.op : row->op, 0, exception};
        }
        if (row->flags & SP_ROW_ASK || !row_holds(row, query->word)) continue;
        if (query->skip && row->rule == query->skip && (row->need | row->forbid)) continue;
        if (!d.rule) d.rule = row->rule;
        if (!jumped) d.op = row->op;
        d.flags |= row->flags & (SP_ROW_NEW | SP_ROW_CLONE | SP_ROW_LOST);
        if (!(row->flags & SP_ROW_JUMP)) break;
        jumped = true;
        assert(ruleset->blocks[row->target]);
        row = ruleset->blocks[row->target] - 1;
    }
    d.path = row->target;
    d.exception = row->exception;
    if (d.path == SP_PATH_RAISES) d.flags = 0;
    return d;
}

sp_decision sp_decide(const sp_ruleset *ruleset, uint64_t word) {
    sp_query query = {.word = word};
    return decide(ruleset, &query);
}

sp_decision sp_decide_query(const sp_ruleset *ruleset, const sp_query *query) { return decide(ruleset, query); }

static void note_blocked(sp_explanation *e, const sp_row *row, uint64_t word) {
    if (!row->rule || row->flags & SP_ROW_ASK) return;
    uint64_t missing = row->need & ~word, against = row->forbid & word;
    for (size_t i = 0; i < e->blocked_count; i++)
        if (e->blocked[i].rule == row->rule) { /* two rows of one rule: the nearer one tells what it takes */
            int before = __builtin_popcountll(e->blocked[i].missing) + __builtin_popcountll(e->blocked[i].against);
            if (__builtin_popcountll(missing) + __builtin_popcountll(against) < before)
                e->blocked[i] = (sp_blocked){row->rule, missing, against};
            return;
        }
    assert(e->blocked_count < SP_BLOCKED_MAX);
    e->blocked[e->blocked_count++] = (sp_blocked){row->rule, missing, against};
}

/* Rules that a kind of device or group fixes: nothing is "next best" to them, and they are no better path to long for. */
static bool is_choice(uint8_t rule) { return rule > SP_RULE_NPU && rule < SP_RULE_COUNT; }

void sp_explain(const sp_ruleset *ruleset, const sp_query *query, sp_explanation *e) {
    memset(e, 0, sizeof *e);
    e->decision = decide(ruleset, query);
    const sp_row *row = ruleset->blocks[SP_BLOCK_SELECT];
    for (;; row++) {
        if (!row_holds(row, query->word) || row->flags & SP_ROW_ASK) {
            if (is_choice(row->rule)) note_blocked(e, row, query->word);
            continue;
        }
        if (row->rule && row->rule == e->decision.rule) break;
        if (!(row->flags & SP_ROW_JUMP)) break;
        row = ruleset->blocks[row->target] - 1;
    }
    for (size_t i = 0; i < e->blocked_count; i++) /* another row of the rule that fired did not stop it */
        if (e->blocked[i].rule == e->decision.rule) e->blocked[i--] = e->blocked[--e->blocked_count];
    if (is_choice(e->decision.rule)) {
        sp_query without = *query;
        without.skip = e->decision.rule;
        e->next_best = decide(ruleset, &without);
        if (e->next_best.rule == e->decision.rule) e->next_best = (sp_decision){0};
    }
}

/* Digits of a state, most significant first; world size 1 is state 0. */
static const struct digit {
    uint8_t radix;
    uint64_t words[4];
} digits[] = {
#define COMMUNICATOR(id)                                                           \
    {                                                                              \
        4, {                                                                       \
            0, SP_BIT(id##_PRESENT), SP_BIT(id##_PRESENT) | SP_BIT(id##_ENABLED),  \
                SP_BIT(id##_PRESENT) | SP_BIT(id##_ENABLED) | SP_BIT(id##_ACCEPTS) \
        }                                                                          \
    }
#define FLAG(id)             \
    {                        \
        2, { 0, SP_BIT(id) } \
    }
    COMMUNICATOR(PCIE),     COMMUNICATOR(CUSTOM),
    COMMUNICATOR(QUICK),    COMMUNICATOR(MSCCLPP),
    COMMUNICATOR(SYMM),     {3, {0, SP_BIT(PYNCCL_PRESENT), SP_BIT(PYNCCL_PRESENT) | SP_BIT(PYNCCL_ENABLED)}},
    FLAG(SYMMETRIC_MEMORY), FLAG(PIECEWISE),
    FLAG(COMPILING),        FLAG(FLASHINFER),
#undef COMMUNICATOR
#undef FLAG
};
enum { DIGITS = sizeof digits / sizeof *digits };

size_t sp_state_count(const sp_ruleset *ruleset) { return 1 + SP_STATES_BASE * (ruleset->reads & SP_BIT(PCIE_PRESENT) ? 4 : 1); }

uint64_t sp_state_word(size_t state) {
    if (state == 0) return 0;
    uint64_t word = SP_BIT(RANKS);
    size_t rest = state - 1;
    for (int i = DIGITS; i--;) {
        word |= digits[i].words[rest % digits[i].radix];
        rest /= digits[i].radix;
    }
    return word;
}

int64_t sp_state_of(uint64_t word) {
    if (!(word & SP_BIT(RANKS))) return word == 0 ? 0 : -1;
    int64_t state = 0;
    uint64_t left = word & ~SP_BIT(RANKS);
    for (int i = 0; i < DIGITS; i++) {
        uint64_t mask = digits[i].words[digits[i].radix - 1];
        int value = digits[i].radix;
        while (value-- && digits[i].words[value] != (word & mask)) continue;
        if (value < 0) return -1;
        state = state * digits[i].radix + value;
        left &= ~mask;
    }
    return left ? -1 : state + 1;
}

void sp_walk(const sp_ruleset *ruleset, uint8_t *answers) {
    size_t count = sp_state_count(ruleset);
    for (size_t i = 0; i < count; i++) {
        sp_decision d = sp_decide(ruleset, sp_state_word(i));
        memcpy(answers + i * SP_ANSWER_BYTES, (uint8_t[]){d.path, d.rule, d.op, d.flags, d.exception}, SP_ANSWER_BYTES);
    }
}

sp_status sp_derived_check(const uint8_t *answers, size_t bytes) {
    size_t base = (size_t)(1 + SP_STATES_BASE) * SP_ANSWER_BYTES, all = (size_t)(1 + 4 * SP_STATES_BASE) * SP_ANSWER_BYTES;
    if (bytes != base && bytes != all)
        return sp_fail(SP_INVALID, "a derived table has %zu bytes; %zu or %zu are whole ones", bytes, base, all);
    for (size_t i = 0; i < bytes; i += SP_ANSWER_BYTES) {
        const uint8_t *a = answers + i;
        if (a[0] >= SP_PATH_COUNT || a[1] >= SP_RULE_COUNT || a[2] > SP_OP_OUT_OF_PLACE || a[4] >= SP_EXC_COUNT ||
            a[3] & ~(SP_ROW_NEW | SP_ROW_CLONE | SP_ROW_LOST))
            return sp_fail(SP_INVALID, "state %zu of a derived table holds a code outside of the lists", i / SP_ANSWER_BYTES);
    }
    return SP_OK;
}

sp_status sp_derived_decide(const uint8_t *answers, size_t bytes, uint64_t word, sp_decision *decision) {
    int64_t state = sp_state_of(word);
    if (state < 0 || (size_t)(state + 1) * SP_ANSWER_BYTES > bytes)
        return sp_fail(SP_INVALID, "the conditions 0x%llx are outside of the derived table", (unsigned long long)word);
    const uint8_t *a = answers + (size_t)state * SP_ANSWER_BYTES;
    *decision = (sp_decision){a[0], a[1], a[2], a[3], a[4]};
    return SP_OK;
}
