/* Thresholds of V2 by generation, architecture and world size, as SGLang's tables have them. Read by gate_custom_v2.c.
 * Invariant: numbers before clipping; a range of generations and architectures names each world size at most once. */
#include "gate_custom.h"

#define KB(x)           ((uint64_t)((x)*1024))
#define MB(x)           ((uint64_t)((x)*1048576)) /* a fraction is cut off, as SGLang's int() does */
#define UNLIMITED       UINT64_MAX
#define ALL_WORLD_SIZES 0

// clang-format off
/* v0.5.10rc0 to v0.5.15, index = world size. */
#define FIRST(push_, pull_) {.push = push_, .pull = pull_}
static const sp_v2_heuristic first_sm100[] = {
    [2] = FIRST(MB(4), UNLIMITED), [3] = FIRST(MB(4), MB(4)),     [4] = FIRST(MB(2), MB(2)),     [5] = FIRST(MB(2), MB(2)),
    [6] = FIRST(MB(1), MB(1)),     [7] = FIRST(KB(896), KB(896)), [8] = FIRST(KB(720), KB(720)),
};
static const sp_v2_heuristic first_others[] = {
    [2] = FIRST(MB(2), UNLIMITED),   [3] = FIRST(KB(512), KB(512)), [4] = FIRST(KB(384), KB(256)), [5] = FIRST(KB(256), KB(256)),
    [6] = FIRST(KB(192), KB(192)), [7] = FIRST(KB(192), KB(192)), [8] = FIRST(KB(160), KB(160)),
};

/* v0.5.16 on: in graphs, then eager. PLAIN: push, one-shot pull, two-shot pull; PUSH and others where push = one-shot pull;
 * MC: with a multicast range; TWO: with two-shot push. */
#define PLAIN(push_, pull_, two_shot_) {.push = push_, .pull = pull_, .two_shot = two_shot_}
#define PUSH(push_, two_shot_) PLAIN(push_, push_, two_shot_)
#define MC(push_, two_shot_, from, to) \
    {.push = push_, .pull = push_, .two_shot = two_shot_, .multicast_from = from, .multicast_to = to}
#define TWO(push_, two_shot_, from, to, two_push_) \
    {.push = push_, .pull = push_, .two_shot = two_shot_, .multicast_from = from, .multicast_to = to, .two_push = two_push_}
#define BOTH(...) __VA_ARGS__, __VA_ARGS__
#define MC_ABOVE(push_) MC(push_, MB(128), push_, MB(128))
#define END {.world_size = -1}

static const sp_v2_row sm90[] = {
    {2, 0, PLAIN(MB(16), MB(128), MB(128)),             PLAIN(MB(32), MB(128), MB(128))},
    {3, 0, PUSH(MB(1.25), MB(128)),                     PUSH(MB(3), MB(16))},
    {4, 1, PUSH(KB(384), MB(128)),                      MC(KB(896), MB(32), 0, MB(32))},
    {5, 1, PUSH(KB(192), MB(32)),                       MC(KB(384), MB(32), 0, MB(32))},
    {6, 1, MC(KB(128), MB(32), MB(8), MB(32)),          MC(KB(192), MB(32), 0, MB(32))},
    {7, 1, MC(KB(128), MB(32), MB(1), MB(32)),          MC(KB(128), MB(32), 0, MB(32))},
    {8, 1, MC(KB(128), MB(32), KB(512), MB(128)),       MC(KB(128), MB(128), 0, MB(128))},
    END,
};
static const sp_v2_row sm100[] = { /* world sizes that no release changed */
    {2, 0, PLAIN(MB(8), MB(32), MB(128)),               PLAIN(MB(16), MB(128), MB(128))},
    {3, 0, PUSH(MB(4), MB(128)),                        PUSH(MB(8), MB(32))},
    {5, 1, PUSH(MB(1.5), MB(128)),                      MC(MB(2), MB(32), 0, MB(32))},
    {6, 1, PUSH(MB(1), MB(128)),                        MC(MB(1.25), MB(64), 0, MB(64))},
    {7, 1, PUSH(MB(0.625), MB(128)),                    MC(MB(1), MB(64), 0, MB(64))},
    END,
};
static const sp_v2_row sm100_one_push[] = {
    {4, 0, PUSH(MB(2.25), MB(128)),                     PUSH(MB(3), MB(32))},
    {8, 1, MC(MB(0.5), MB(128), MB(8), MB(128)),        MC(MB(0.75), MB(128), 0, MB(128))},
    END,
};
static const sp_v2_row sm100_two_push[] = {
    {4, 0, TWO(MB(0.625), MB(128), 0, 0, MB(8)),        TWO(MB(0.625), MB(32), 0, 0, MB(8))},
    {8, 1, TWO(KB(256), MB(128), MB(8), MB(128), MB(8)), TWO(KB(256), MB(128), 0, MB(128), MB(8))},
    END,
};
static const sp_v2_row sm100_multinode[] = {
    {16, 1, BOTH(MC(MB(0.25), MB(128), KB(256), MB(128)))},
    END,
};
static const sp_v2_row sm107[] = {
    {2, 0, BOTH(PUSH(MB(128), MB(128)))},
    {3, 0, PUSH(MB(19.625), MB(128)),                   PUSH(MB(39.188), MB(128))},
    {4, 1, PUSH(MB(6.938), MB(128)),                    MC_ABOVE(MB(9.812))},
    {5, 1, BOTH(MC_ABOVE(MB(6.938)))},
    {6, 1, BOTH(MC_ABOVE(MB(4.875)))},
    {7, 1, BOTH(MC_ABOVE(MB(3.438)))},
    {8, 1, BOTH(MC_ABOVE(MB(2.438)))},
    {16, 1, BOTH(MC_ABOVE(KB(832)))},
    END,
};
static const sp_v2_row others[] = {
    {ALL_WORLD_SIZES, 0, BOTH(PUSH(MB(1), MB(16)))},
    END,
};

static const struct {
    uint8_t since, until; /* generations */
    int16_t from, to;     /* architectures */
    const sp_v2_row *rows;
} lists[] = {
    {SP_V2_HEURISTICS, UINT8_MAX,       90,  99,        sm90},
    {SP_V2_HEURISTICS, SP_V2_MULTINODE, 100, 109,       sm100},
    {SP_V2_HEURISTICS, SP_V2_MULTINODE, 100, 109,       sm100_one_push},
    {SP_V2_MULTINODE,  SP_V2_MULTINODE, 100, 109,       sm100_multinode},
    {SP_V2_CLIQUE,     UINT8_MAX,       100, 106,       sm100},
    {SP_V2_CLIQUE,     SP_V2_SPREAD,    100, 106,       sm100_one_push},
    {SP_V2_TWO_PUSH,   UINT8_MAX,       100, 106,       sm100_two_push},
    {SP_V2_CLIQUE,     UINT8_MAX,       100, 106,       sm100_multinode},
    {SP_V2_CLIQUE,     UINT8_MAX,       107, 109,       sm107},
    {SP_V2_HEURISTICS, UINT8_MAX,       0,   89,        others},
    {SP_V2_HEURISTICS, UINT8_MAX,       110, INT16_MAX, others},
};
// clang-format on

static const sp_v2_row *row_of(const sp_v2_row *row, int64_t world_size) {
    for (; row->world_size >= 0; row++) {
        bool any = row->world_size == ALL_WORLD_SIZES && world_size >= 2 && world_size <= 16;
        if (any || row->world_size == world_size) return row;
    }
    return NULL;
}

const sp_v2_row *sp_v2_table(uint8_t generation, int64_t arch, int64_t world_size) {
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        if (generation < lists[i].since || generation > lists[i].until) continue;
        const sp_v2_row *row = arch >= lists[i].from && arch <= lists[i].to ? row_of(lists[i].rows, world_size) : NULL;
        if (row) return row;
    }
    return NULL;
}

const sp_v2_heuristic *sp_v2_first_table(int64_t arch, int64_t world_size) {
    if (world_size < 2 || world_size > 8) return NULL;
    return arch / 10 == 10 ? &first_sm100[world_size] : &first_others[world_size];
}
