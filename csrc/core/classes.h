/* Every call that a worker of one group can make, in classes: contexts x dtypes x layouts x bands of sizes x residues, each routed once.
 * Called by the binding for reach, diff and history of a launch. Invariant: the classes of one context, dtype and layout cover every
 * size from 1 to 2^63 - 1 bytes that the dtype can have, once. */
#ifndef SP_CLASSES_H
#define SP_CLASSES_H

#include "route.h"

/* X(ENUM, name, contiguous, weakly contiguous, aligned, registered): how a tensor may lie in memory. */
#define SP_LAYOUTS(X)                                   \
    X(PLAIN, "contiguous", 1, 1, 1, 0)                  \
    X(WEAK, "weakly contiguous", 0, 1, 1, 0)            \
    X(STRIDED, "not contiguous", 0, 0, 1, 0)            \
    X(MISALIGNED, "contiguous, misaligned", 1, 1, 0, 0) \
    X(TAGGED, "contiguous, in symmetric memory", 1, 1, 1, 1)

typedef enum sp_layout {
#define X(id, name, contiguous, weak, aligned, registered) SP_LAYOUT_##id,
    SP_LAYOUTS(X)
#undef X
        SP_LAYOUT_COUNT
} sp_layout;

/* X(column): what a class holds, all as numbers: its sizes (bytes, both ends included, and one of the class), the context's bits, how its
 * tensor is, where it goes, and the word of conditions that decided it. */
#define SP_CLASS_LIST(X) \
    X(first)             \
    X(last)              \
    X(sample)            \
    X(context)           \
    X(dtype)             \
    X(layout)            \
    X(residue)           \
    X(path)              \
    X(rule)              \
    X(op)                \
    X(exception)         \
    X(kernel)            \
    X(backend)           \
    X(returns_new)       \
    X(cloned)            \
    X(reduces)           \
    X(word)              \
    X(raises)

typedef struct sp_class {
#define X(column) uint64_t column;
    SP_CLASS_LIST(X)
#undef X
} sp_class;

enum { SP_CLASS_COLUMNS = sizeof(sp_class) / sizeof(uint64_t) };

typedef struct sp_classes {
    sp_class *rows; /* malloc'ed; sp_classes_free */
    size_t count, room;
} sp_classes;

/* What to cover; the group, its facts and columns come with the case. */
typedef struct sp_classes_of {
    const uint32_t *contexts;
    size_t contexts_count;
    uint32_t dtypes;  /* bit mask of sp_dtype */
    uint32_t layouts; /* bit mask of sp_layout */
} sp_classes_of;

sp_status sp_classes_find(const sp_rules *rules, const sp_case *c, const sp_classes_of *of, sp_classes *classes);
void sp_classes_free(sp_classes *classes);

#endif
