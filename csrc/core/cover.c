/* Where two revisions answer differently, as an irredundant set of conjunctions. Called by the binding for diff.
 *
 * Changed states are grouped by what changes to what. A group is covered greedily: the first state that is still uncovered grows into
 * a cube by every value that keeps it inside of the group; then cubes whose states others cover too are dropped.
 * Invariant: a cube never leaves its group, and together they cover it: exactly the changed states, no more. */
#include <stdlib.h>
#include <string.h>

#include "space.h"

typedef struct change {
    uint8_t value[SP_AXIS_COUNT];
    uint16_t group;  /* index into groups */
    uint16_t covers; /* cubes that cover it */
} change;

enum { SLOTS = 257 };

typedef struct cover {
    sp_changes *out;
    size_t cubes_room;
    uint64_t stride[SP_AXIS_COUNT]; /* of the dense index of a state */
    uint32_t *index;                /* dense index -> change + 1, 0 where nothing changes */
    change *changes;
    size_t count, room;
    sp_cube *groups; /* before, after and group are used */
    size_t group_count, group_room;
    uint16_t recent[SLOTS]; /* groups by a hash of what they change: most states are like one before */
} cover;

static sp_status grow(void **array, size_t *room, size_t item) {
    size_t more = *room ? *room * 2 : 256;
    void *grown = realloc(*array, more * item);
    if (!grown) return sp_fail(SP_NOMEM, "%zu entries of a diff", more);
    *array = grown;
    *room = more;
    return SP_OK;
}

static bool same_decision(const sp_decision *a, const sp_decision *b) { return memcmp(a, b, sizeof *a) == 0; }

/* Rules may be renamed without a route changing: what a caller sees is path, op, buffer and exception. */
static bool same_route(const sp_decision *a, const sp_decision *b) {
    return a->path == b->path && a->op == b->op && a->flags == b->flags && a->exception == b->exception;
}

static sp_status group_of(cover *c, const sp_decision *before, const sp_decision *after, uint16_t *group) {
    unsigned slot = (before->path * 7u + before->rule * 3u + after->path * 31u + after->rule * 11u + after->exception * 5u +
                     before->flags * 13u + after->flags * 17u) %
                    SLOTS;
    size_t known = c->recent[slot];
    if (known < c->group_count && same_decision(&c->groups[known].before, before) &&
        same_decision(&c->groups[known].after, after)) {
        *group = (uint16_t)known;
        return SP_OK;
    }
    size_t i = 0;
    while (i < c->group_count && !(same_decision(&c->groups[i].before, before) && same_decision(&c->groups[i].after, after))) i++;
    if (i == c->group_count) {
        if (c->group_count == c->group_room) SP_TRY(grow((void **)&c->groups, &c->group_room, sizeof *c->groups));
        c->groups[c->group_count++] = (sp_cube){.before = *before, .after = *after};
    }
    c->recent[slot] = (uint16_t)i;
    *group = (uint16_t)i;
    return SP_OK;
}

static sp_status add_cube(cover *c, const sp_cube *cube) {
    if (c->out->count == c->cubes_room) SP_TRY(grow((void **)&c->out->cubes, &c->cubes_room, sizeof *cube));
    c->out->cubes[c->out->count++] = *cube;
    return SP_OK;
}

static sp_status collect(cover *c, const sp_rules *a, const sp_rules *b, const sp_subspace *region) {
    for (sp_walker w = {.region = region, .stride = c->stride}; sp_subspace_next(&w); c->out->states++) {
        sp_decision before, after;
        sp_query query = {.word = w.word};
        SP_TRY(sp_rules_decide(a, &query, &before));
        SP_TRY(sp_rules_decide(b, &query, &after));
        if (same_route(&before, &after)) continue;
        c->out->changed++;
        if (w.word == 0) {
            SP_TRY(add_cube(c, &(sp_cube){.one_rank = true, .states = 1, .group = 1, .before = before, .after = after}));
            continue;
        }
        if (c->count == c->room) SP_TRY(grow((void **)&c->changes, &c->room, sizeof *c->changes));
        change *one = &c->changes[c->count++];
        memcpy(one->value, w.value, sizeof one->value);
        one->covers = 0;
        SP_TRY(group_of(c, &before, &after, &one->group));
        c->groups[one->group].group++;
        c->index[w.index] = (uint32_t)c->count;
    }
    return SP_OK;
}

/* Visits every state of a cube: `visit` may stop the walk by answering false. */
typedef bool visit(cover *c, uint32_t at, void *with);

static bool each_state(cover *c, const sp_cube *cube, visit *seen, void *with) {
    sp_subspace region = {.ranks = true};
    memcpy(region.allowed, cube->allowed, sizeof region.allowed);
    for (sp_walker w = {.region = &region, .stride = c->stride}; sp_subspace_next(&w);)
        if (!seen(c, c->index[w.index], with)) return false;
    return true;
}

static bool in_group(cover *c, uint32_t at, void *with) { return at && c->changes[at - 1].group == *(uint16_t *)with; }

static bool mark(cover *c, uint32_t at, void *with) {
    c->changes[at - 1].covers = (uint16_t)(c->changes[at - 1].covers + *(int *)with);
    return true;
}

static bool covered_twice(cover *c, uint32_t at, void *with) {
    (void)with;
    return c->changes[at - 1].covers > 1;
}

static uint64_t cube_states(const sp_cube *cube) {
    uint64_t states = 1;
    for (int i = 0; i < SP_AXIS_COUNT; i++) states *= (uint64_t)__builtin_popcount(cube->allowed[i]);
    return states;
}

static void expand(cover *c, const change *from, const sp_subspace *region, sp_cube *cube) {
    uint16_t group = from->group;
    for (int i = 0; i < SP_AXIS_COUNT; i++) cube->allowed[i] = (uint8_t)(1 << from->value[i]);
    for (int i = 0; i < SP_AXIS_COUNT; i++)
        for (int v = 0; v < 4; v++) {
            uint8_t bit = (uint8_t)(1 << v);
            if (!(region->allowed[i] & bit) || cube->allowed[i] & bit) continue;
            sp_cube slice = *cube;
            slice.allowed[i] = bit;
            if (each_state(c, &slice, in_group, &group)) cube->allowed[i] |= bit;
        }
    cube->before = c->groups[group].before;
    cube->after = c->groups[group].after;
    cube->group = c->groups[group].group;
    cube->states = cube_states(cube);
}

static sp_status cover_all(cover *c, const sp_subspace *region) {
    int one = 1, minus = -1;
    size_t first = c->out->count;
    for (size_t i = 0; i < c->count; i++) {
        if (c->changes[i].covers) continue;
        sp_cube cube = {0};
        expand(c, &c->changes[i], region, &cube);
        SP_TRY(add_cube(c, &cube));
        each_state(c, &cube, mark, &one);
    }
    for (size_t i = first; i < c->out->count;) { /* a cube whose every state another covers is needless */
        sp_cube *cube = &c->out->cubes[i];
        if (each_state(c, cube, covered_twice, NULL)) {
            each_state(c, cube, mark, &minus);
            *cube = c->out->cubes[--c->out->count];
        } else {
            i++;
        }
    }
    return SP_OK;
}

sp_status sp_subspace_diff(const sp_rules *a, const sp_rules *b, const sp_subspace *region, sp_changes *changes) {
    cover c = {.out = changes};
    memset(changes, 0, sizeof *changes);
    uint64_t size = 1;
    for (int i = SP_AXIS_COUNT; i--;) {
        c.stride[i] = size;
        int widest = region->allowed[i] ? 32 - __builtin_clz(region->allowed[i]) : 0;
        size *= (uint64_t)(widest ? widest : 1);
    }
    c.index = calloc(size, sizeof *c.index);
    sp_status status = c.index ? SP_OK : sp_fail(SP_NOMEM, "an index of %llu states", (unsigned long long)size);
    if (!status) status = collect(&c, a, b, region);
    if (!status) status = cover_all(&c, region);
    free(c.index);
    free(c.changes);
    free(c.groups);
    if (status) sp_changes_free(changes);
    return status;
}

void sp_changes_free(sp_changes *changes) {
    free(changes->cubes);
    *changes = (sp_changes){0};
}
