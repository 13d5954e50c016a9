/* Gates: can this communicator take this tensor, here? One file a communicator (gate_*.c); called by route.c.
 *
 * A gate reads a case (release, facts, call, context) and writes its answer: the state that the rules read, and every reason that
 * stops it, those of the constructor and those of the call apart, so that lifting one still shows the others.
 * Invariant: a gate compares the size only through sp_fits() and sp_below(): that is how bands and routers learn every boundary
 * from the gates themselves, and a threshold that is added cannot be forgotten there. */
#ifndef SP_GATE_H
#define SP_GATE_H

#include <stdbool.h>

#include "names.h"
#include "release.h"
#include "stops.h"

/* Sizes at which an answer can change: every threshold that a gate compared the size with. */
#define SP_EDGES_MAX 64
typedef struct sp_edges {
    uint64_t at[SP_EDGES_MAX]; /* first size of the next band, bytes; unsorted, no duplicates */
    size_t count;
    bool overflow; /* more edges than fit: the caller must refuse */
} sp_edges;

typedef struct sp_case {
    const sp_release *release;
    const sp_facts *facts;
    const sp_call *call;
    uint32_t context; /* SP_CTX() bits */
    sp_edges *edges;  /* NULL where nobody asks */
    uint64_t lifted;  /* SP_STOP() bits that are taken not to be there: what if */
    uint32_t off, on; /* SP_GATE_BIT() of communicators whose `disabled` somebody set, or cleared, since they were built */
    uint8_t kernel;   /* sp_kernel that custom all-reduce runs instead of its own choice; UNKNOWN: its own */
} sp_case;

typedef struct sp_answer {
    uint64_t stops;    /* SP_STOP() bits: everything that stops this communicator; stops.h says which belong to the constructor */
    uint64_t limit;    /* largest size it takes here, bytes; 0 where size is not asked */
    uint8_t state;     /* sp_state */
    uint8_t kernel;    /* sp_kernel, where it accepts */
    uint8_t backend;   /* sp_backend: whose code */
    uint8_t exception; /* sp_exception: what asking, or running, raises */
    bool returns_new;  /* the result is a new tensor */
    bool reduces;      /* a reduction really happens */
    bool assumed;      /* rests on something that is not Python in the package */
} sp_answer;

/* How this release launches V2's kernels: 0 as v0.5.10, 1 as v0.5.16, 2 as v0.5.21. */
unsigned sp_custom_style_of(const sp_release *release);

typedef void sp_gate(const sp_case *c, sp_answer *answer);

#define SP_KIB UINT64_C(1024)
#define SP_MIB (1024 * SP_KIB)

/* ROCm with the one-stage, deterministic all-reduce: the variable where it is set, else deterministic inference. */
static inline bool sp_is_one_stage(const sp_facts *f) {
    return f->device == SP_DEVICE_HIP && (f->one_stage >= 0 ? f->one_stage : f->deterministic);
}

/* nbytes <= limit, and nbytes < limit; both note the boundary when somebody collects them. */
bool sp_fits(const sp_case *c, uint64_t limit);
bool sp_below(const sp_case *c, uint64_t limit);

/* X(ENUM, gate function, name) */
#define SP_GATES(X)                                   \
    X(CUSTOM, sp_gate_custom, "custom")               \
    X(QUICK, sp_gate_quick, "quick")                  \
    X(MSCCLPP, sp_gate_mscclpp, "mscclpp")            \
    X(SYMM, sp_gate_torch_symm_mem, "torch_symm_mem") \
    X(PCIE, sp_gate_pcie_ipc, "pcie_ipc")             \
    X(PYNCCL, sp_gate_pynccl, "pynccl")               \
    X(FLASHINFER, sp_gate_flashinfer, "flashinfer")   \
    X(CPU, sp_gate_cpu, "cpu")

typedef enum sp_gate_id {
#define X(id, function, name) SP_GATE_##id,
    SP_GATES(X)
#undef X
        SP_GATE_COUNT
} sp_gate_id;

#define SP_GATE_BIT(id) (UINT32_C(1) << SP_GATE_##id)

#define X(id, function, name) sp_gate function;
SP_GATES(X)
#undef X

#endif
