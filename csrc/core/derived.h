/* Rules from either source: a ruleset that somebody wrote, or a derived table, the walk of a revision that nobody tabulated.
 * Called by route.c, space.c and the binding. Invariant: no code of a table is believed before it was held against its list. */
#ifndef SP_DERIVED_H
#define SP_DERIVED_H

#include "dispatch.h"

/* Bytes a state in a walk: path, rule, op, flags, exception. */
#define SP_ANSWER_BYTES 5

typedef struct sp_rules {
    const sp_ruleset *ruleset; /* of the release; of a derived table, the ruleset that comes closest */
    const uint8_t *derived;    /* answers in the order of states; NULL: ask the ruleset */
    size_t derived_bytes;
} sp_rules;

/* Refuses a length that no walk has. */
sp_status sp_derived_length(size_t bytes);
/* Refuses a table that is not whole, or holds codes outside of the lists; deciding by it checks the one state that it reads. */
sp_status sp_derived_check(const uint8_t *answers, size_t bytes);

/* One state of a derived table. INVALID for a word outside of the states. */
sp_status sp_derived_decide(const uint8_t *answers, size_t bytes, uint64_t word, sp_decision *decision);

/* What either source answers; the nearest ruleset where a derived table does not know the word (a CPU tensor, another device). */
sp_status sp_rules_decide(const sp_rules *rules, const sp_query *query, sp_decision *decision);

#endif
