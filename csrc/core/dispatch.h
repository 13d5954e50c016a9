/* The rules alone: a word of conditions in, a decision out, and what stopped every better rule.
 * Called by route.c, space.c and the binding. Invariant: no allocation, no state. */
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
    uint8_t asked;     /* 1 + the number of the ACCEPTS bit whose predicate raised; the caller knows what it raises */
    uint8_t unused[2]; /* eight bytes are returned in one register; six are put together in memory, byte by byte */
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

typedef struct sp_query {
    uint64_t word;
    uint64_t raises; /* ACCEPTS bits whose predicate raises when it is asked */
    uint8_t skip;    /* a rule to leave out, or NO_RULE */
} sp_query;

sp_decision sp_decide(const sp_ruleset *ruleset, uint64_t word);
sp_decision sp_decide_query(const sp_ruleset *ruleset, const sp_query *query);
void sp_explain(const sp_ruleset *ruleset, const sp_query *query, sp_explanation *explanation);

#endif
