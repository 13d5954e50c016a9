/* Rulesets: how one era of SGLang chooses a path, as tables. Called by dispatch.c and the binding.
 *
 * A ruleset is an array of blocks; a block is an array of rows ended by a row that always holds. A row holds when every bit of
 * `need` is set in the word of conditions and no bit of `forbid` is. The first row that holds either ends the walk (a path, an
 * exception) or jumps to another block, which is how SGLang's own choosing (`all_reduce`) and carrying out
 * (`_all_reduce_out_place`, `_all_reduce_in_place`) stay two tables. The rule of a decision is the first named rule on the way.
 * Invariant: jumps go to a later block number, so every walk ends. */
#ifndef SP_RULESET_H
#define SP_RULESET_H

#include <stdbool.h>

#include "names.h"

typedef enum sp_block_id {
    SP_BLOCK_SELECT,     /* all_reduce */
    SP_BLOCK_AUTO,       /* _all_reduce_out_place, method "auto": resolved when the op runs */
    SP_BLOCK_OUT_CUSTOM, /* _all_reduce_out_place, by method */
    SP_BLOCK_OUT_QUICK,
    SP_BLOCK_OUT_MSCCLPP,
    SP_BLOCK_OUT_SYMM,
    SP_BLOCK_OUT_PCIE,
    SP_BLOCK_OUT_PYNCCL,
    SP_BLOCK_IN_PLACE, /* _all_reduce_in_place */
    SP_BLOCK_COUNT
} sp_block_id;

typedef enum sp_op { SP_OP_DIRECT, SP_OP_IN_PLACE, SP_OP_OUT_OF_PLACE } sp_op;

enum {
    SP_ROW_JUMP = 1,  /* `target` is a block */
    SP_ROW_NEW = 2,   /* the result is a new tensor */
    SP_ROW_CLONE = 4, /* the input is cloned first */
    SP_ROW_LOST = 8,  /* the communicator's result is dropped: nothing is reduced */
    SP_ROW_ASK = 16   /* never holds: SGLang asks a predicate here, which matters when asking raises */
};

typedef struct sp_row {
    uint8_t rule;      /* sp_rule, or NO_RULE where the next block names it */
    uint8_t target;    /* sp_path, or sp_block_id with SP_ROW_JUMP */
    uint8_t op;        /* sp_op: how SGLang gets there; kept from the first row that jumps */
    uint8_t flags;     /* SP_ROW_* */
    uint8_t exception; /* sp_exception, with SP_PATH_RAISES */
    uint64_t need;     /* conditions that must hold */
    uint64_t forbid;   /* conditions that must not hold */
} sp_row;

/* `symmetric_memory` is a tag on the tensor, not yet a flag of the server. */
#define SP_READS_TAG (UINT64_C(1) << 63)

typedef struct sp_ruleset {
    const char *name;                     /* "E10" */
    const char *text;                     /* what changed against the era before */
    const sp_row *blocks[SP_BLOCK_COUNT]; /* NULL where the era has no such block */
    uint64_t reads;                       /* conditions beyond the common ones that it reads, and SP_READS_TAG */
} sp_ruleset;

extern const sp_ruleset *const sp_rulesets;
extern const size_t sp_ruleset_count;

#endif
