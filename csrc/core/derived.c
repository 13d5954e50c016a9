/* Decides by a ruleset or by a derived table. See derived.h. */
#include "derived.h"

#include <string.h>

#include "space.h"

sp_status sp_derived_length(size_t bytes) {
    size_t base = (size_t)(1 + SP_STATES_BASE) * SP_ANSWER_BYTES, all = (size_t)(1 + 4 * SP_STATES_BASE) * SP_ANSWER_BYTES;
    if (bytes == base || bytes == all) return SP_OK;
    return sp_fail(SP_INVALID, "a derived table has %zu bytes; %zu or %zu are whole ones", bytes, base, all);
}

/* An exception where it raises, and nowhere else. */
static bool is_listed(const uint8_t *a) {
    return a[0] < SP_PATH_COUNT && a[1] < SP_RULE_COUNT && a[2] <= SP_OP_OUT_OF_PLACE && a[4] < SP_EXC_COUNT &&
           !(a[3] & ~(SP_ROW_NEW | SP_ROW_CLONE | SP_ROW_LOST)) && (a[0] == SP_PATH_RAISES) == (a[4] != SP_EXC_NO_EXCEPTION);
}

sp_status sp_derived_check(const uint8_t *answers, size_t bytes) {
    SP_TRY(sp_derived_length(bytes));
    for (size_t i = 0; i < bytes; i += SP_ANSWER_BYTES)
        if (!is_listed(answers + i))
            return sp_fail(SP_INVALID, "state %zu of a derived table holds a code outside of the lists", i / SP_ANSWER_BYTES);
    return SP_OK;
}

sp_status sp_derived_decide(const uint8_t *answers, size_t bytes, uint64_t word, sp_decision *decision) {
    const uint64_t pcie = SP_BIT(PCIE_PRESENT) | SP_BIT(PCIE_ENABLED) | SP_BIT(PCIE_ACCEPTS);
    bool knows_pcie = bytes > (size_t)(1 + SP_STATES_BASE) * SP_ANSWER_BYTES;
    int64_t state = sp_state_of(knows_pcie ? word : word & ~pcie); /* a revision without that communicator asks nothing of it */
    if (state < 0 || (size_t)(state + 1) * SP_ANSWER_BYTES > bytes)
        return sp_fail(SP_INVALID, "the conditions 0x%llx are outside of the derived table", (unsigned long long)word);
    const uint8_t *a = answers + (size_t)state * SP_ANSWER_BYTES;
    if (!is_listed(a))
        return sp_fail(SP_INVALID, "state %lld of a derived table holds a code outside of the lists", (long long)state);
    *decision = (sp_decision){a[0], a[1], a[2], a[3], a[4], 0};
    return SP_OK;
}

/* A table does not say which predicates its revision asks. One that raises was asked if its answer would have mattered. */
static sp_status ask_derived(const sp_rules *rules, const sp_query *query, sp_decision *decision) {
    for (uint64_t left = query->raises; left; left &= left - 1) {
        uint64_t bit = left & -left;
        sp_decision accepts;
        SP_TRY(sp_derived_decide(rules->derived, rules->derived_bytes, query->word | bit, &accepts));
        if (memcmp(&accepts, decision, sizeof accepts) == 0) continue;
        *decision = (sp_decision){SP_PATH_RAISES, accepts.rule, accepts.op, 0, 0, (uint8_t)(1 + __builtin_ctzll(bit))};
        return SP_OK;
    }
    return SP_OK;
}

sp_status sp_rules_decide(const sp_rules *rules, const sp_query *query, sp_decision *decision) {
    if (!rules->derived || sp_state_of(query->word) < 0) { /* a table knows the states alone: no CPU tensor, no other device */
        *decision = sp_decide_query(rules->ruleset, query);
        return SP_OK;
    }
    SP_TRY(sp_derived_decide(rules->derived, rules->derived_bytes, query->word, decision));
    return query->raises ? ask_derived(rules, query, decision) : SP_OK;
}
