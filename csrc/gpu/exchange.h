/* How GPU ranks of several machines meet: an sp_exchange over a small NCCL communicator of its own, which NCCL's bootstrap builds at the
 * address in NCCL_COMM_ID. Called by csrc/py/gpu_exchange.c; comm.c asks whether a world has one.
 * It hears of a peer's end where NCCL does (a broken connection), and else by the deadline alone: no board tells.
 * Invariant: a failure but SP_MISMATCH breaks it for good, and each later call says why. One thread a handle. */
#ifndef SP_GPU_EXCHANGE_H
#define SP_GPU_EXCHANGE_H

#include "core/path.h"

typedef struct sp_nccl_exchange sp_nccl_exchange;

/* Collective. NCCL_COMM_ID is set to rank 0's host:port on every rank, which NCCL reads itself. nccl_path NULL: find it. */
sp_status sp_exchange_open(int rank, int size, int ordinal, const char *nccl_path, sp_deadline deadline,
                           sp_nccl_exchange **exchange);
void sp_exchange_close(sp_nccl_exchange *exchange); /* within a limit; not collective */
/* What a world takes; its address is the exchange's own, and good until it is closed. */
const sp_exchange *sp_exchange_of(const sp_nccl_exchange *exchange);
int sp_exchange_size(const sp_nccl_exchange *exchange);

/* Whether the ranks of an exchange may be on several machines, which share no memory. */
bool sp_exchange_is_far(const sp_exchange *exchange);

#endif
