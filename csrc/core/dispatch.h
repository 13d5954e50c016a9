/* The rules alone: a word of conditions in, a decision out; the space of all conditions, and its walk.
 * Called by route.c and the binding. Invariant: no allocation, no state; state i and its word are a bijection per ruleset. */
#ifndef SP_DISPATCH_H
#define SP_DISPATCH_H

#include "ruleset.h"
#include "status.h"

typedef struct sp_decision {
    uint8_t path;      /* sp_path */
    uint8_t rule;      /* sp_rule that fired */
    uint8_t op;        /* sp_op */
    uint8_t flags;     /* SP_ROW_NEW | SP_ROW_CLONE | SP_ROW_LOST */
    uint8_t exception; /* sp_exception, with SP_PATH_RAISES */
} sp_decision;

/* One better rule that did not fire: what it lacked and what forbade it. */
typedef struct sp_blocked {
    uint8_t rule;     /* sp_rule */
    uint64_t missing; /* needed conditions that do not hold */
    uint64_t against; /* forbidden conditions that hold */
} sp_blocked;

#define SP_BLOCKED_MAX 24

typedef struct sp_explanation {
    sp_decision decision;
    sp_decision next_best; /* without the rule that fired; rule NO_RULE where there is none */
    sp_blocked blocked[SP_BLOCKED_MAX];
    size_t blocked_count;
} sp_explanation;

/* Set in a decision's exception, beside the number of the ACCEPTS bit whose predicate raised: the caller knows what it raises. */
#define SP_ASKED 0x80

typedef struct sp_query {
    uint64_t word;
    uint64_t raises; /* ACCEPTS bits whose predicate raises when it is asked */
    uint8_t skip;    /* a rule to leave out, or NO_RULE */
} sp_query;

sp_decision sp_decide(const sp_ruleset *ruleset, uint64_t word);
sp_decision sp_decide_query(const sp_ruleset *ruleset, const sp_query *query);
void sp_explain(const sp_ruleset *ruleset, const sp_query *query, sp_explanation *explanation);

/* The space: 1 state at world size 1, then 12,288, times 4 where the era knows the PCIe-IPC communicator. */
#define SP_STATES_BASE 12288
size_t sp_state_count(const sp_ruleset *ruleset);
uint64_t sp_state_word(size_t state);
/* The state of a word, or -1 where the word has conditions outside of the space (a CPU tensor, say). */
int64_t sp_state_of(uint64_t word);

/* Answers of all states in order, five bytes a state (path, rule, op, flags, exception). */
#define SP_ANSWER_BYTES 5
void sp_walk(const sp_ruleset *ruleset, uint8_t *answers);

/* A derived table: the walk of a revision that nobody tabulated. Refuses a table with codes outside the lists. */
sp_status sp_derived_check(const uint8_t *answers, size_t bytes);
sp_status sp_derived_decide(const uint8_t *answers, size_t bytes, uint64_t word, sp_decision *decision);

#endif
