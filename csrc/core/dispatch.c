/* Walks a ruleset's rows for one word of conditions, and over all words. See ruleset.h for how rows hold.
 * Invariant: sp_decide and sp_explain share one walk, so an explanation cannot disagree with its decision. */
#include "dispatch.h"

#include <assert.h>
#include <string.h>

/* In one branch: rows that do not hold are what a walk is made of. */
static inline bool row_holds(const sp_row *row, uint64_t word) { return ((row->need & ~word) | (row->forbid & word)) == 0; }

/* Does Python, which stops at the first false operand, ask a predicate of this row that raises? The ACCEPTS bits come last in every
 * condition, so the others decide whether they are reached. Answers the bits that are asked. */
static inline uint64_t row_asks(const sp_row *row, const sp_query *query) {
    uint64_t asked = (row->need | row->forbid) & query->raises;
    return asked && (row->need & ~asked & ~query->word) == 0 && (row->forbid & ~asked & query->word) == 0 ? asked : 0;
}

/* `plain`: nothing raises and nothing is skipped, which the compiler then leaves out: the walks over all states are plain. */
static inline __attribute__((always_inline)) sp_decision decide(const sp_ruleset *ruleset, const sp_query *query,
                                                                const bool plain) {
    sp_decision d = {0};
    bool jumped = false;
    const sp_row *row = ruleset->blocks[SP_BLOCK_SELECT];
    for (;;) {
        while (true) { /* a loop of its own: rows that do not hold are most of a walk */
            bool skipped = !plain && query->skip && row->rule == query->skip && (row->need | row->forbid);
            uint64_t asked = !plain && query->raises && !skipped ? row_asks(row, query) : 0;
            if (asked) {
                uint8_t rule = d.rule ? d.rule : row->rule;
                return (sp_decision){SP_PATH_RAISES, rule, jumped ? d.op : row->op, 0, 0, (uint8_t)(1 + __builtin_ctzll(asked))};
            }
            if (!skipped && row_holds(row, query->word) && !(row->flags & SP_ROW_ASK)) break;
            row++;
        }
        if (!d.rule) d.rule = row->rule;
        if (!jumped) d.op = row->op;
        d.flags |= row->flags & (SP_ROW_NEW | SP_ROW_CLONE | SP_ROW_LOST);
        if (!(row->flags & SP_ROW_JUMP)) break;
        jumped = true;
        assert(ruleset->blocks[row->target]);
        row = ruleset->blocks[row->target];
    }
    d.path = row->target;
    d.exception = row->exception;
    if (d.path == SP_PATH_RAISES) d.flags = 0;
    return d;
}

sp_decision sp_decide(const sp_ruleset *ruleset, uint64_t word) {
    sp_query query = {.word = word};
    return decide(ruleset, &query, true);
}

sp_decision sp_decide_query(const sp_ruleset *ruleset, const sp_query *query) {
    return query->raises || query->skip ? decide(ruleset, query, false) : decide(ruleset, query, true);
}

static void note_blocked(sp_explanation *e, const sp_row *row, uint64_t word) {
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

/* Notes the rows of a block up to the one that holds, which it answers; NULL where a row raised on the way. */
static const sp_row *note_block(sp_explanation *e, const sp_row *row, const sp_query *query) {
    for (;; row++) {
        if (query->raises && row_asks(row, query)) return NULL;
        if (row->flags & SP_ROW_ASK) continue;
        if (row_holds(row, query->word)) return row;
        if (is_choice(row->rule)) note_blocked(e, row, query->word);
    }
}

/* Another row of the rule that fired did not stop it. */
static void drop(sp_explanation *e, uint8_t rule) {
    for (size_t i = 0; i < e->blocked_count; i++)
        if (e->blocked[i].rule == rule) {
            e->blocked_count--;
            memmove(&e->blocked[i], &e->blocked[i + 1], (e->blocked_count - i) * sizeof *e->blocked);
            return;
        }
}

void sp_explain(const sp_ruleset *ruleset, const sp_query *query, sp_explanation *e) {
    memset(e, 0, sizeof *e);
    e->decision = sp_decide_query(ruleset, query);
    const sp_row *row = ruleset->blocks[SP_BLOCK_SELECT];
    while ((row = note_block(e, row, query))) {
        if (!(row->flags & SP_ROW_JUMP) || (row->rule && row->rule == e->decision.rule)) break;
        /* Traced without any communicator, nobody is asked: what "auto" would have asked is what is missing. */
        if (row->need & SP_BIT(COMPILING) && row->target == SP_BLOCK_IN_PLACE)
            note_block(e, ruleset->blocks[SP_BLOCK_AUTO], query);
        row = ruleset->blocks[row->target];
    }
    drop(e, e->decision.rule);
    if (is_choice(e->decision.rule)) {
        sp_query without = *query;
        without.skip = e->decision.rule;
        e->next_best = sp_decide_query(ruleset, &without);
        if (e->next_best.rule == e->decision.rule) e->next_best = (sp_decision){0};
    }
}
