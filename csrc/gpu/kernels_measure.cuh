/* Kernels that measure, or that measurements are made with: round trips over the link, a spin, a stamp, a hold. Included by kernels.cu alone.
 * Launched as one block of one warp. Invariant: each ends by itself, within `limit_ns` (of a round trip: of one wait), and at once when
 * the host says abort; only round trips wait for a peer. */
#ifndef SP_KERNELS_MEASURE_CUH
#define SP_KERNELS_MEASURE_CUH

#include "kernels_device.cuh"

/* A flag there, a flag back, `count` times between ranks 0 and `first`. TIMED: rank 0 keeps the trip that took least; the peer looks at its
 * clock between seeing a flag and sending its own, so that both ways are made of the same: a look at the clock, a store that crosses the
 * link, a load that sees it, a look at the clock. */
template <bool TIMED> static __global__ void ping_pong(const __grid_constant__ sp_kernel_args a) {
    const uint32_t peer = a.rank ? 0 : a.first;
    if ((a.rank && a.rank != a.first) || threadIdx.x || blockIdx.x) return;
    sp_kernel_trips *times = (sp_kernel_trips *)a.trace;
    const uint32_t *from = &a.mine->ping[peer], base = a.mine->pong[peer];
    uint32_t *to = &a.signals[peer]->ping[a.rank];
    uint64_t best = ~0ULL, sent = 0, came = 0;
    for (uint32_t n = 1; n <= a.count; n++) {
        if (TIMED && !a.rank) sent = clock_ns();
        if (!a.rank) store_flag(to, base + n);
        const bool ok = await(
            a, SP_PHASE_PING, [&] { return (int32_t)(load_flag(from) - base - n) >= 0; }, [&] { return peer; });
        if (!ok) return;
        if (TIMED) came = clock_ns();
        if (a.rank) store_flag(to, base + n);
        if (TIMED && a.rank) times->came[n - 1] = came;
        if (TIMED && !a.rank && came - sent < best) {
            best = came - sent;
            times->number = n - 1;
            times->sent = sent;
            times->back = came;
        }
    }
    a.mine->pong[peer] = base + a.count;
    if (!TIMED) return;
    uint64_t step = ~0ULL, last = clock_ns();
    for (int looks = 0; looks < 8192; looks++) { /* many steps of a clock that moves each microsecond, too */
        const uint64_t now = clock_ns();
        if (now != last && now - last < step) step = now - last;
        last = now;
    }
    times->step = step;
}

/* Looks over PCIe at what the host says take a microsecond or two: once a millisecond, and not near the end. */
static __global__ void spin(const __grid_constant__ sp_kernel_args a) {
    const uint64_t between = 1 << 20, start = clock_ns();
    uint64_t looked = 0, gone = 0;
    for (; gone < a.limit_ns; gone = clock_ns() - start) {
        if (gone - looked < between || a.limit_ns - gone < between) continue;
        if (a.host->abort) return;
        looked = gone;
    }
}

static __global__ void stamp(const __grid_constant__ sp_kernel_args a) {
    if (threadIdx.x == 0) *a.trace = clock_ns();
}

static __global__ void hold(const __grid_constant__ sp_kernel_args a) {
    if (threadIdx.x) return;
    const uint64_t start = clock_ns();
    for (;;) {
        const uint32_t aborted = a.host->abort, released = a.host->released; /* both on their way at once */
        if (aborted || (int32_t)(released - a.count) >= 0) return;
        if (clock_ns() - start >= a.limit_ns) break;
    }
    a.host->report = a.count;
    __threadfence_system();
}

#endif
