/* What many.c (the check), many_ranks.c (ranks on threads) and many_values.c (inputs) share. Included by them.
 * Invariant: one thread at a time uses a member; only the exchange is used by several. */
#ifndef SP_MANY_PARTS_H
#define SP_MANY_PARTS_H

#include <cuda_runtime_api.h>
#include <pthread.h>

#include "many.h"

enum { SP_MANY_RANKS = 8, SP_MANY_GATHERED = 65536, SP_MANY_OFFSET = 256 };

/* many_values.c: inputs and the float64 reference. */
typedef struct sp_many_values {
    uint8_t dtype;
    int world;
    uint64_t count;
    void **input;        /* by rank, as the dtype has it */
    double *sum, *bound; /* by element: the reference, and how far a right result may be from it */
} sp_many_values;

sp_status sp_many_values_open(sp_many_values *values, int world, uint8_t dtype, uint64_t count);
void sp_many_values_close(sp_many_values *values);
/* exact: small integers, whose sums every dtype holds; else anything in [-1, 1). */
void sp_many_values_draw(sp_many_values *values, uint64_t seed, bool exact);
/* Counts what is wrong in one rank's output. */
uint64_t sp_many_values_wrong(const sp_many_values *values, const void *output, double *max_error);

typedef struct sp_many sp_many;

/* One rank. */
typedef struct sp_member {
    sp_many *many;
    int rank, ordinal;
    sp_custom *custom;
    uint8_t *base;              /* one allocation: inputs and outputs of a burst, none at its start, as tensors lie */
    void *outcome;              /* on the host, of one launch */
    unsigned long long *stamps; /* as many slots as a burst writes, behind slot 0; NULL: none */
    unsigned long long *times;  /* the same on the host */
    cudaStream_t stream;
    cudaGraphExec_t graph;
    cudaEvent_t mark[2]; /* rank 0 */
    sp_status status;
    char why[256];
    uint64_t addresses;
} sp_member;

struct sp_many {
    const sp_many_case *what;
    sp_many_result *result;
    sp_deadline deadline;
    int world, gpus;
    bool broken;
    sp_member member[SP_MANY_RANKS];
    sp_many_values *values; /* of each launch of a burst */
    uint32_t burst;
    pthread_mutex_t lock; /* the exchange: */
    pthread_cond_t all_here;
    int here;
    bool failed; /* a rank's thread ended with an error: nobody waits for it */
    uint64_t round;
    uint8_t *board[2]; /* by the round's parity, so that the next round writes where nobody reads */
};

static inline uint32_t sp_many_slot(uint32_t launch) { return 1 + launch * SP_STAMPS_CALL; }
uint8_t *sp_many_in(const sp_member *member, uint32_t launch);
uint8_t *sp_many_out(const sp_member *member, uint32_t launch);
sp_status sp_many_cuda(cudaError_t error, const char *what);
/* Runs it for every rank, each on a thread of its own with its GPU current; the first failure by rank is the answer. */
sp_status sp_many_together(sp_many *many, sp_status (*run)(sp_member *member));
sp_status sp_many_open_rank(sp_member *member);
sp_status sp_many_close_rank(sp_member *member);

#endif
