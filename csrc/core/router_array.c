/* Paths of many sizes at once: size classes, not rules, in the inner loop. Called by the binding's Router.
 *
 * A size's path is the first band's path plus, for every edge at or below it, the difference that this edge makes: sums of masked
 * constants. Sizes that are no multiples of 16 are rare in practice, so only blocks that hold one pay for the other two residues.
 * Invariant: equal to sp_router_path for every size; the tests hold the two side by side. */
#include <string.h>

#include "route.h"

/* Clones by instruction set need ifunc; sanitizers start too late for the resolvers. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer) || __has_feature(thread_sanitizer)
#define SP_NO_CLONES
#endif
#endif
#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(SP_NO_CLONES)
#define SP_CLONES __attribute__((target_clones("avx512f", "avx2", "sse4.2", "default")))
#else
#define SP_CLONES
#endif

enum { BLOCK = 2048 };

/* The edges of one residue class at which its path changes. */
typedef struct class_edges {
    int64_t edge[SP_BANDS_MAX];
    uint8_t delta[SP_BANDS_MAX]; /* modulo 256 */
    size_t count;
    uint8_t base; /* path of the first band */
} class_edges;

static void class_init(const sp_router *router, sp_residue residue, class_edges *c) {
    c->count = 0;
    c->base = router->path[0][residue];
    for (size_t k = 0; k < router->edges; k++) {
        c->edge[c->count] = (int64_t)router->edge[k];
        c->delta[c->count] = (uint8_t)(router->path[k + 1][residue] - router->path[k][residue]);
        c->count += c->delta[c->count] != 0;
    }
}

/* One loop an edge, over a block that stays in the first-level cache: the form that compilers turn into vector compares. */
SP_CLONES static void class_paths(const class_edges *c, const int64_t *restrict sizes, size_t count, uint8_t *restrict paths) {
    for (size_t i = 0; i < count; i++) paths[i] = c->base;
    for (size_t k = 0; k < c->count; k++) {
        int64_t edge = c->edge[k];
        uint8_t delta = c->delta[k];
        for (size_t i = 0; i < count; i++) paths[i] = (uint8_t)(paths[i] + (sizes[i] >= edge ? delta : 0));
    }
}

/* Overwrites the paths of sizes that are no multiple of `mask + 1`. */
SP_CLONES static void overwrite(const int64_t *restrict sizes, size_t count, int64_t mask, const uint8_t *restrict other,
                                uint8_t *restrict paths) {
    for (size_t i = 0; i < count; i++) {
        uint8_t all = (uint8_t) - (uint8_t)((sizes[i] & mask) != 0);
        paths[i] = (uint8_t)((other[i] & all) | (paths[i] & ~all));
    }
}

static bool same_class(const class_edges *a, const class_edges *b) {
    return a->count == b->count && a->base == b->base && memcmp(a->edge, b->edge, a->count * sizeof *a->edge) == 0 &&
           memcmp(a->delta, b->delta, a->count) == 0;
}

SP_CLONES static int64_t block_check(const int64_t *restrict sizes, size_t count, int64_t *restrict bits) {
    int64_t smallest = INT64_MAX, any = 0;
    for (size_t i = 0; i < count; i++) {
        smallest = sizes[i] < smallest ? sizes[i] : smallest;
        any |= sizes[i];
    }
    *bits = any;
    return smallest;
}

size_t sp_router_paths(const sp_router *router, const int64_t *sizes, size_t count, uint8_t *paths) {
    class_edges classes[SP_RESIDUE_COUNT];
    uint8_t other[BLOCK];
    for (sp_residue residue = 0; residue < SP_RESIDUE_COUNT; residue++) class_init(router, residue, &classes[residue]);
    bool fours = !same_class(&classes[SP_RESIDUE_4], &classes[SP_RESIDUE_16]);
    bool rest = !same_class(&classes[SP_RESIDUE_1], &classes[SP_RESIDUE_4]);
    for (size_t start = 0; start < count; start += BLOCK) {
        const int64_t *block = sizes + start;
        size_t n = count - start < BLOCK ? count - start : BLOCK;
        int64_t bits;
        if (block_check(block, n, &bits) < 1)
            for (size_t i = 0; i < n; i++)
                if (block[i] < 1) return start + i;
        class_paths(&classes[SP_RESIDUE_16], block, n, paths + start);
        if (fours && bits & 15) {
            class_paths(&classes[SP_RESIDUE_4], block, n, other);
            overwrite(block, n, 15, other, paths + start);
        }
        if (rest && bits & 3) {
            class_paths(&classes[SP_RESIDUE_1], block, n, other);
            overwrite(block, n, 3, other, paths + start);
        }
    }
    return count;
}
