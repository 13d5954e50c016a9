/* Random cases for the tests and the fuzzer: facts that a server could have, and facts that none has.
 * Invariant: a case is a function of the numbers drawn, so a failing seed shows the same case again. */
#ifndef SP_RANDOM_CASE_H
#define SP_RANDOM_CASE_H

#include <stdint.h>

#include "core/route.h"

typedef uint64_t sp_draw(void *source);

typedef struct sp_random_case {
    sp_facts facts;
    sp_call call;
    sp_case c;
} sp_random_case;

/* Values at which gates change their mind, for any fact: a draw picks from here or takes a plain flag. */
static const int64_t sp_likely[] = {0,  1,   2,   3,   4,   6,   8,   16,   -1,   80,    86,     89,
                                    90, 100, 103, 120, 942, 950, 512, 1024, 2048, 16384, 1048576};

/* One fact in `rarity` is not what a plain server has. */
static inline int64_t sp_draw_fact(sp_draw *draw, void *source, uint64_t rarity, int64_t usual) {
    uint64_t r = draw(source);
    if (r % rarity) return usual;
    return r >> 32 & 1 ? (int64_t)(r >> 33 & 1) : sp_likely[(r >> 40) % (sizeof sp_likely / sizeof *sp_likely)];
}

/* What a server switches on, drawn evenly: otherwise hardly a case would reach the communicators behind it. */
static inline void sp_draw_server(sp_draw *draw, void *source, sp_random_case *r) {
    uint64_t bits = draw(source), kind = bits >> 32;
    int64_t *const flags[] = {&r->facts.own_mscclpp,  &r->facts.own_torch_symm_mem,  &r->facts.own_pcie_ipc,
                              &r->facts.has_mscclpp,  &r->facts.has_flashinfer_pcie, &r->facts.has_aiter,
                              &r->facts.fi_workspace, &r->facts.full_nvlink,         &r->facts.rccl_msccl};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) *flags[i] = (int64_t)(bits >> i & 1);
    r->facts.qr_quantization = (int64_t)(bits >> 16) % 5;
    r->facts.device = kind % 8 < 5 ? SP_DEVICE_CUDA : kind % 8 < 7 ? SP_DEVICE_HIP : (int64_t)(kind / 8 % SP_DEVICE_COUNT);
    if (r->facts.device == SP_DEVICE_HIP) r->facts.arch = 942;
    r->call.dtype = (int64_t)(kind >> 8 & 1 ? SP_DTYPE_BF16 : (kind >> 9) % SP_DTYPE_COUNT);
    r->call.columns = kind >> 16 & 1 ? 7168 : r->call.columns;
}

/* `wild`: any number that the binding lets through (-1 to 2^31 - 1) may stand in any fact. */
static inline void sp_draw_case(sp_draw *draw, void *source, bool wild, sp_random_case *r) {
    static const int64_t worlds[] = {1, 2, 3, 4, 5, 6, 7, 8, 16};
    uint64_t rarity = draw(source) % 2 ? 4 : 24;
    sp_facts_init(&r->facts);
    sp_call_init(&r->call);
    r->facts.world_size = worlds[draw(source) % (sizeof worlds / sizeof *worlds)];
#define X(field, def, text) r->facts.field = sp_draw_fact(draw, source, rarity, r->facts.field);
    SP_FACTS(X)
#undef X
#define X(field, def, text) r->call.field = sp_draw_fact(draw, source, rarity, r->call.field);
    SP_CALL_FACTS(X)
#undef X
    if (wild) {
        uint64_t at = draw(source) % (sizeof r->facts / sizeof(int64_t));
        ((int64_t *)&r->facts)[at] = (int64_t)(draw(source) & INT32_MAX) - (int64_t)(draw(source) & 1);
    } else {
        sp_draw_server(draw, source, r);
    }
    /* The binding refuses an index outside of its list and a group of no rank; the core trusts it. */
    if (r->facts.world_size < 1) r->facts.world_size = 2;
    r->facts.device = (int64_t)((uint64_t)r->facts.device % SP_DEVICE_COUNT);
    r->facts.fi_dtype = (int64_t)((uint64_t)r->facts.fi_dtype % SP_DTYPE_COUNT);
    r->call.dtype = (int64_t)((uint64_t)r->call.dtype % SP_DTYPE_COUNT);
    uint64_t size = draw(source), bits = draw(source);
    r->call.nbytes = 1 + (size >> (bits % 63 + 1));
    if (bits >> 32 & 3 && r->call.nbytes > 16) r->call.nbytes &= ~UINT64_C(15);
    r->c = (sp_case){&sp_releases[draw(source) % sp_release_count], &r->facts, &r->call,
                     (uint32_t)(draw(source) & ((1u << SP_CTX_COUNT) - 1)), NULL};
}

static inline const sp_ruleset *sp_ruleset_named(const char *name) {
    for (size_t i = 0; i < sp_ruleset_count; i++)
        if (!__builtin_strcmp(sp_rulesets[i].name, name)) return &sp_rulesets[i];
    return NULL;
}

#endif
