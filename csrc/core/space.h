/* The space of conditions: regions of it, their walk, what a walk tallies, and where two rulesets differ.
 * Called by the binding for reach, diff and the walks of conform. Invariant: one iterator (sp_subspace_next) visits every state of a
 * region once; everything else is a projection of that walk, so that "unreachable" and "no state changes" are proofs by exhaustion. */
#ifndef SP_SPACE_H
#define SP_SPACE_H

#include "derived.h"

/* X(name, number of values): the axes of the space, most significant first. The first seven are fixed to their first value unless
 * somebody asks for them; the last nine make the 12,288 states, and pcie_ipc multiplies them where an era reads it. */
#define SP_AXES(X)          \
    X(cpu, 2)               \
    X(cpu_shm, 2)           \
    X(hpu, 2)               \
    X(xpu, 2)               \
    X(npu, 2)               \
    X(amd_deterministic, 2) \
    X(custom_multinode, 2)  \
    X(pcie_ipc, 4)          \
    X(custom, 4)            \
    X(quick, 4)             \
    X(mscclpp, 4)           \
    X(torch_symm_mem, 4)    \
    X(pynccl, 3)            \
    X(symmetric_memory, 2)  \
    X(piecewise, 2)         \
    X(compiling, 2)         \
    X(flashinfer, 2)

typedef enum sp_axis {
#define X(name, values) SP_AXIS_##name,
    SP_AXES(X)
#undef X
        SP_AXIS_COUNT
} sp_axis;

/* For every axis the values it may take, as a bit mask; and whether the one state of world size 1 belongs to it. */
typedef struct sp_subspace {
    uint8_t allowed[SP_AXIS_COUNT];
    bool one_rank; /* world size 1 */
    bool ranks;    /* world size above 1 */
} sp_subspace;

typedef struct sp_walker {
    const sp_subspace *region;
    uint8_t value[SP_AXIS_COUNT];
    uint64_t word;
    uint32_t cost;          /* departures from a plain group: the further a value is from "absent" or "off" the dearer */
    const uint64_t *stride; /* of a dense index, by axis; NULL where nobody needs one */
    uint64_t index;         /* sum of value x stride */
    bool started, one_rank_done;
} sp_walker;

/* The states that conform walks: 1 at world size 1, then 12,288, times 4 where the era knows the PCIe-IPC communicator. */
#define SP_STATES_BASE 12288
size_t sp_state_count(const sp_ruleset *ruleset);
uint64_t sp_state_word(size_t state);
/* The state of a word, or -1 where the word has conditions outside of the space (a CPU tensor, say). */
int64_t sp_state_of(uint64_t word);
/* Answers of all states in order, SP_ANSWER_BYTES a state. */
void sp_walk(const sp_ruleset *ruleset, uint8_t *answers);

/* Everything that a ruleset's `dispatch` can be asked without naming a device: the states above. */
void sp_subspace_init(const sp_ruleset *ruleset, sp_subspace *region);
int sp_axis_values(int axis); /* how many values it has */
uint64_t sp_subspace_count(const sp_subspace *region);
bool sp_subspace_next(sp_walker *walker); /* sets walker->word; false at the end */
uint64_t sp_subspace_word(const uint8_t value[SP_AXIS_COUNT]);

/* What a walk found for one rule and path: how many states, and the most ordinary of them. */
typedef struct sp_hit {
    uint64_t states;
    uint64_t witness; /* word; the one with the fewest and smallest departures from "absent" and "off" */
    uint32_t cost;    /* of the witness */
} sp_hit;

typedef struct sp_tally {
    uint64_t states;
    sp_hit hits[SP_RULE_COUNT][SP_PATH_COUNT];
} sp_tally;

sp_status sp_subspace_tally(const sp_rules *rules, const sp_subspace *region, sp_tally *tally);
/* Is there a state of the region in which the rule fires (or, with NO_RULE, that the path takes)? Stops at the first. */
sp_status sp_subspace_reaches(const sp_rules *rules, const sp_subspace *region, uint8_t rule, uint8_t path, bool *reaches);

/* One conjunction: for every axis the values it covers. A state is covered when each of its values is. */
typedef struct sp_cube {
    uint8_t allowed[SP_AXIS_COUNT];
    bool one_rank;   /* the cube of the one state at world size 1 */
    uint64_t states; /* that it covers */
    uint64_t group;  /* states with this before and after, over all of their cubes */
    sp_decision before, after;
} sp_cube;

/* All states of a region whose answers differ, as conjunctions: exactly those states, none of the conjunctions needless. */
typedef struct sp_changes {
    uint64_t states; /* walked */
    uint64_t changed;
    sp_cube *cubes; /* malloc'ed; sp_changes_free */
    size_t count;
} sp_changes;

sp_status sp_subspace_diff(const sp_rules *a, const sp_rules *b, const sp_subspace *region, sp_changes *changes);
void sp_changes_free(sp_changes *changes);

#endif
