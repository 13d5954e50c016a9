/* Walks regions of the space of conditions, and tallies what a ruleset answers there. See space.h. */
#include "space.h"

#include <string.h>

#define COMMUNICATOR(id)                                                       \
    {                                                                          \
        0, SP_BIT(id##_PRESENT), SP_BIT(id##_PRESENT) | SP_BIT(id##_ENABLED),  \
            SP_BIT(id##_PRESENT) | SP_BIT(id##_ENABLED) | SP_BIT(id##_ACCEPTS) \
    }

/* The bits that each value of an axis sets. */
static const struct {
    uint8_t values;
    uint64_t bits[4];
} axes[SP_AXIS_COUNT] = {
    [SP_AXIS_cpu] = {2, {0, SP_BIT(CPU)}},
    [SP_AXIS_cpu_shm] = {2, {0, SP_BIT(CPU_SHM)}},
    [SP_AXIS_hpu] = {2, {0, SP_BIT(HPU)}},
    [SP_AXIS_xpu] = {2, {0, SP_BIT(XPU)}},
    [SP_AXIS_npu] = {2, {0, SP_BIT(NPU)}},
    [SP_AXIS_amd_deterministic] = {2, {0, SP_BIT(AMD_DETERMINISTIC)}},
    [SP_AXIS_custom_multinode] = {2, {0, SP_BIT(CUSTOM_MULTINODE)}},
    [SP_AXIS_pcie_ipc] = {4, COMMUNICATOR(PCIE)},
    [SP_AXIS_custom] = {4, COMMUNICATOR(CUSTOM)},
    [SP_AXIS_quick] = {4, COMMUNICATOR(QUICK)},
    [SP_AXIS_mscclpp] = {4, COMMUNICATOR(MSCCLPP)},
    [SP_AXIS_torch_symm_mem] = {4, COMMUNICATOR(SYMM)},
    [SP_AXIS_pynccl] = {3, {0, SP_BIT(PYNCCL_PRESENT), SP_BIT(PYNCCL_PRESENT) | SP_BIT(PYNCCL_ENABLED)}},
    [SP_AXIS_symmetric_memory] = {2, {0, SP_BIT(SYMMETRIC_MEMORY)}},
    [SP_AXIS_piecewise] = {2, {0, SP_BIT(PIECEWISE)}},
    [SP_AXIS_compiling] = {2, {0, SP_BIT(COMPILING)}},
    [SP_AXIS_flashinfer] = {2, {0, SP_BIT(FLASHINFER)}},
};

int sp_axis_values(int axis) { return axes[axis].values; }

void sp_subspace_init(const sp_ruleset *ruleset, sp_subspace *region) {
    for (int i = 0; i < SP_AXIS_COUNT; i++) region->allowed[i] = i < SP_AXIS_pcie_ipc ? 1 : (uint8_t)((1 << axes[i].values) - 1);
    if (!(ruleset->reads & SP_BIT(PCIE_PRESENT))) region->allowed[SP_AXIS_pcie_ipc] = 1;
    region->one_rank = region->ranks = true;
}

uint64_t sp_subspace_count(const sp_subspace *region) {
    uint64_t count = region->ranks;
    for (int i = 0; i < SP_AXIS_COUNT; i++) count *= (uint64_t)__builtin_popcount(region->allowed[i]);
    return count + region->one_rank;
}

uint64_t sp_subspace_word(const uint8_t value[SP_AXIS_COUNT]) {
    uint64_t word = SP_BIT(RANKS);
    for (int i = 0; i < SP_AXIS_COUNT; i++) word |= axes[i].bits[value[i]];
    return word;
}

static uint8_t first_value(uint8_t allowed) { return (uint8_t)__builtin_ctz(allowed); }

static uint32_t cost_of_value(uint8_t value) { return value ? 8u + value : 0; }

bool sp_subspace_next(sp_walker *w) {
    const sp_subspace *r = w->region;
    if (r->one_rank && !w->one_rank_done) {
        w->one_rank_done = true;
        w->word = 0;
        return true;
    }
    if (!r->ranks) return false;
    if (!w->started) {
        w->started = true;
        for (int i = 0; i < SP_AXIS_COUNT; i++) {
            if (!r->allowed[i]) return false;
            w->value[i] = first_value(r->allowed[i]);
            w->cost += cost_of_value(w->value[i]);
            if (w->stride) w->index += w->value[i] * w->stride[i];
        }
        w->word = sp_subspace_word(w->value);
        return true;
    }
    for (int i = SP_AXIS_COUNT; i--;) {
        uint8_t above = (uint8_t)(r->allowed[i] & ~((2u << w->value[i]) - 1));
        w->word &= ~axes[i].bits[w->value[i]];
        w->cost -= cost_of_value(w->value[i]);
        if (w->stride) w->index -= w->value[i] * w->stride[i];
        w->value[i] = first_value(above ? above : r->allowed[i]);
        w->word |= axes[i].bits[w->value[i]];
        w->cost += cost_of_value(w->value[i]);
        if (w->stride) w->index += w->value[i] * w->stride[i];
        if (above) return true;
    }
    return false;
}

sp_status sp_subspace_tally(const sp_rules *rules, const sp_subspace *region, sp_tally *tally) {
    memset(tally, 0, sizeof *tally);
    for (sp_walker w = {.region = region}; sp_subspace_next(&w); tally->states++) {
        sp_decision d;
        SP_TRY(sp_rules_decide(rules, &(sp_query){.word = w.word}, &d));
        sp_hit *hit = &tally->hits[d.rule][d.path];
        uint32_t cost = w.cost + (d.path == SP_PATH_RAISES ? 1000 : 0); /* an exception is dearer than any departure */
        if (hit->states++ && cost >= hit->cost) continue;
        hit->witness = w.word;
        hit->cost = cost;
    }
    return SP_OK;
}

sp_status sp_subspace_reaches(const sp_rules *rules, const sp_subspace *region, uint8_t rule, uint8_t path, bool *reaches) {
    *reaches = false;
    for (sp_walker w = {.region = region}; !*reaches && sp_subspace_next(&w);) {
        sp_decision d;
        SP_TRY(sp_rules_decide(rules, &(sp_query){.word = w.word}, &d));
        *reaches = rule ? d.rule == rule : d.path == path;
    }
    return SP_OK;
}

size_t sp_state_count(const sp_ruleset *ruleset) { return 1 + SP_STATES_BASE * (ruleset->reads & SP_BIT(PCIE_PRESENT) ? 4 : 1); }

uint64_t sp_state_word(size_t state) {
    if (state == 0) return 0;
    uint8_t value[SP_AXIS_COUNT] = {0};
    size_t rest = state - 1;
    for (int i = SP_AXIS_COUNT; i-- > SP_AXIS_pcie_ipc;) {
        value[i] = (uint8_t)(rest % axes[i].values);
        rest /= axes[i].values;
    }
    return sp_subspace_word(value);
}

int64_t sp_state_of(uint64_t word) {
    if (!(word & SP_BIT(RANKS))) return word == 0 ? 0 : -1;
    int64_t state = 0;
    uint64_t left = word & ~SP_BIT(RANKS);
    for (int i = SP_AXIS_pcie_ipc; i < SP_AXIS_COUNT; i++) {
        int value = axes[i].values;
        uint64_t mask = axes[i].bits[value - 1];
        while (value-- && axes[i].bits[value] != (word & mask)) continue;
        if (value < 0) return -1;
        state = state * axes[i].values + value;
        left &= ~mask;
    }
    return left ? -1 : state + 1;
}

enum { LOW_STATES = 3 * 2 * 2 * 2 * 2 }; /* of the last five axes, which turn fastest */

static uint8_t *put(uint8_t *answers, const sp_ruleset *ruleset, uint64_t word) {
    sp_decision d = sp_decide(ruleset, word);
    memcpy(answers, (uint8_t[]){d.path, d.rule, d.op, d.flags, d.exception}, SP_ANSWER_BYTES);
    return answers + SP_ANSWER_BYTES;
}

void sp_walk(const sp_ruleset *ruleset, uint8_t *answers) {
    uint64_t low[LOW_STATES];
    for (size_t i = 0; i < LOW_STATES; i++) low[i] = sp_state_word(1 + i);
    answers = put(answers, ruleset, sp_state_word(0));
    size_t count = sp_state_count(ruleset);
    for (size_t state = 1; state < count; state += LOW_STATES) {
        uint64_t high = sp_state_word(state);
        for (size_t i = 0; i < LOW_STATES; i++) answers = put(answers, ruleset, high | low[i]);
    }
}
