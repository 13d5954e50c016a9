/* What the kernels of kernels.cu are made of: memory operations, the clock and stamps, the sum, a bounded wait, the barrier.
 * Included by kernels.cu alone.
 *
 * How memory is ordered. A launch begins when all that its stream held before has ended and lies in the GPU's L2, which is where peers
 * read and write over NVLink: inputs need no fence of ours. Flags and slots are loaded .relaxed.sys: from L2, never from an L1 that
 * knows nothing of a peer's store. What else a kernel relies on stands at the kernel.
 * Invariant: every rank sums in rank order, in float; every wait is bounded; a rank that gave up ends no barrier of a peer. */
#ifndef SP_KERNELS_DEVICE_CUH
#define SP_KERNELS_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels.h"

#define DEVICE static __device__ __forceinline__

/* ---- memory ---- */

DEVICE uint32_t load_flag(const uint32_t *at) {
    uint32_t x;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}
DEVICE uint32_t load_acquire(const uint32_t *at) {
    uint32_t x;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(at) : "memory");
    return x;
}
DEVICE void store_flag(uint32_t *at, uint32_t x) {
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}
DEVICE void store_release(uint32_t *at, uint32_t x) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(x) : "memory");
}
DEVICE void add_flag(uint32_t *at) { asm volatile("red.relaxed.sys.global.add.u32 [%0], 1;" ::"l"(at) : "memory"); }
DEVICE void add_release(uint32_t *at) { asm volatile("red.release.sys.global.add.u32 [%0], 1;" ::"l"(at) : "memory"); }

/* A vector whose 32-bit words each arrive whole, in any order. */
DEVICE uint4 load_words(const uint4 *at) {
    uint4 x;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(at)
                 : "memory");
    return x;
}
DEVICE void store_words(uint4 *at, uint4 x) {
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}

/* A cell: two 64-bit words that each arrive whole, each with 32 bits of data below and a flag above. */
DEVICE ulonglong2 load_cell(const ulonglong2 *at) {
    ulonglong2 x;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(x.x), "=l"(x.y) : "l"(at) : "memory");
    return x;
}
DEVICE void store_cell(ulonglong2 *at, uint2 data, uint32_t flag) {
    const unsigned long long high = (unsigned long long)flag << 32;
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(high | data.x), "l"(high | data.y) : "memory");
}

DEVICE sp_kernel_line load_line(const sp_kernel_line *at) {
    sp_kernel_line x;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.epoch), "=r"(x.broken) : "l"(at) : "memory");
    return x;
}

/* Programmatic dependent launch, as V2 uses it; both do nothing in a launch without it. After the first, the kernels before have ended
 * and what they wrote is there. Every kernel that may overlap calls it, so that the end of one is the end of all before it. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
DEVICE void await_kernel_before() {}
DEVICE void let_next_begin() {}
#else
DEVICE void await_kernel_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void let_next_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
#endif

DEVICE void prefetch(const void *at) { asm volatile("prefetchu.L1 [%0];" ::"l"(at) : "memory"); }

DEVICE uint32_t this_thread() { return blockIdx.x * blockDim.x + threadIdx.x; }
DEVICE uint32_t all_threads() { return gridDim.x * blockDim.x; }

/* ---- the clock, and stamps of it ---- */

/* In ns: one clock for the whole GPU, and no other GPU's. It moves in steps, on some GPUs of a microsecond; sp_kernel_trips has them. */
DEVICE uint64_t clock_ns() {
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns)::"memory");
    return ns;
}

/* Stamps are taken by kernels of their own (TRACED): the others have no instruction, register or load for them. */
DEVICE void stamp_earliest(unsigned long long *slot) { atomicMax(slot, ~(unsigned long long)clock_ns()); }

/* The earliest block's, before one of its threads tells a peer of it: nobody's MET is before anybody's ENTER. */
template <bool TRACED> DEVICE void stamp_enter(const sp_kernel_args &a) {
    if (!TRACED) return;
    if (threadIdx.x == 0) stamp_earliest(&a.trace[SP_TRACE_ENTER]);
    __syncthreads();
}
/* The earliest block's, of those that are past their barrier. */
template <bool TRACED> DEVICE void stamp_met(const sp_kernel_args &a) {
    if (TRACED && threadIdx.x == 0) stamp_earliest(&a.trace[SP_TRACE_MET]);
}
/* The last block's, once all its threads are there. */
template <bool TRACED> DEVICE void stamp_left(const sp_kernel_args &a) {
    if (!TRACED) return;
    __syncthreads();
    if (threadIdx.x == 0) atomicMax(&a.trace[SP_TRACE_LEFT], (unsigned long long)clock_ns());
}

/* ---- the sum ---- */

/* How a 32-bit word of a dtype becomes floats, and back. */
template <class T> struct Lanes;
template <> struct Lanes<__nv_bfloat16> {
    static constexpr uint32_t MINUS_ZERO = 0x8000;
    DEVICE float2 wide(uint32_t w) { return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u)); }
    DEVICE uint32_t narrow(float2 f) {
        const __nv_bfloat162 h = __floats2bfloat162_rn(f.x, f.y);
        return *(const uint32_t *)&h;
    }
};
template <> struct Lanes<__half> {
    static constexpr uint32_t MINUS_ZERO = 0x8000;
    DEVICE float2 wide(uint32_t w) { return __half22float2(*(const __half2 *)&w); }
    DEVICE uint32_t narrow(float2 f) {
        const __half2 h = __floats2half2_rn(f.x, f.y);
        return *(const uint32_t *)&h;
    }
};
template <> struct Lanes<float> {
    static constexpr uint32_t MINUS_ZERO = 0x80000000u;
    DEVICE float wide(uint32_t w) { return __uint_as_float(w); }
    DEVICE uint32_t narrow(float f) { return __float_as_uint(f); }
};
DEVICE float plus(float a, float b) { return a + b; }
DEVICE float2 plus(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }

/* V: uint4, or uint2 for cells. In rank order, so that ranks agree bit for bit. ZERO: begin at zero, as V2's first releases do, so that
 * a sum of minus zeros is plus zero. */
template <class T, int N, bool ZERO = false, class V> DEVICE V sum(const V (&x)[N]) {
    V result;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(V) / 4); i++) {
        auto total = Lanes<T>::wide(((const uint32_t *)&x[0])[i]);
        if (ZERO) total = plus(Lanes<T>::wide(0), total);
#pragma unroll
        for (int r = 1; r < N; r++) total = plus(total, Lanes<T>::wide(((const uint32_t *)&x[r])[i]));
        ((uint32_t *)&result)[i] = Lanes<T>::narrow(total);
    }
    return result;
}

/* ---- waiting ---- */

enum { LOOKS = 1024, BETWEEN = 64 }; /* looks at memory before one at the clock; 1,024 ns between two at the host */

/* Whether the host says abort, asked by one of all threads that wait: a push has thousands, each look crosses PCIe, and those of all
 * together made a rank that came 250 us late seem to come 640 late. Who gives up tells the others by `broken`, in the GPU's memory. */
DEVICE bool host_aborts(sp_kernel_signals *mine, const sp_kernel_host *host, uint32_t now) {
    const uint32_t last = load_flag(&mine->looked);
    return now - last >= BETWEEN && atomicCAS(&mine->looked, last, now) == last && host->abort;
}

/* The slow side of a wait, once in LOOKS looks: when the wait began, or 0 when it is given up. Whoever gives up first tells the host, and
 * later launches. A call, not inlined: the instructions between a wait and what follows it would be fetched at every launch. */
static __device__ __noinline__ uint32_t go_on(sp_kernel_signals *mine, sp_kernel_host *host, uint64_t limit_ns, uint32_t kernel,
                                              uint32_t since, uint32_t phase, uint32_t peer) {
    const uint32_t now = clock_ns() >> 10 | 1; /* in one register: this is alive in loops that have none to spare */
    if (!since) since = now;
    const bool aborted = host_aborts(mine, host, now);
    if (!aborted && now - since < limit_ns >> 10 && !load_flag(&mine->barrier[blockIdx.x].broken)) return since;
    const unsigned long long report = SP_REPORT(aborted, phase, peer, blockIdx.x, kernel);
    if (atomicCAS(&mine->report, 0ULL, report) == 0) {
#pragma unroll 1
        for (int b = 0; b < SP_KERNEL_BLOCKS; b++) {
            store_flag(&mine->barrier[b].broken, 1);
            store_flag(&mine->push[b].broken, 1);
        }
        host->report = report;
        __threadfence_system();
    }
    return 0;
}

/* look() until it is true; who() says which peer is missing, if it comes to that. */
template <class Look, class Who> DEVICE bool await(const sp_kernel_args &a, uint32_t phase, Look look, Who who) {
    uint32_t since = 0;
    for (;;) {
#pragma unroll 1
        for (int n = 0; n < LOOKS; n++)
            if (__builtin_expect(look(), 1)) return true;
        since = go_on(a.mine, a.host, a.limit_ns, a.kernel, since, phase, who());
        if (!since) return false;
    }
}

/* Block b of every rank meets block b of every other, twice a launch, each time over words of its own: the thread of rank r posts to
 * rank r and waits for rank r. The words count launches. A post is the count itself, or an addition, which does not wait for the load of
 * the count (V2); both leave the same number behind.
 * A thread that gave up, on its peer or in an earlier launch, never posts second: between two ranks, neither then ends the launch, and
 * both report. Among three or more, the threads of the peers that did come still post, so one of them may end a two-shot launch with a
 * part that was summed without the late rank. The rank that gave up has reported, and everybody's wait then fails: results count only
 * once a wait has ended well, which is what finish() is for.
 * What costs time and is there because SGLang's kernels have it: AS_V1 finds the ranks' signals on its stack; AS_FIRST has a warp for
 * each rank, and a fence in each. */
enum barrier_kind { AS_PLAIN, AS_V1, AS_FIRST, AS_V2 };

typedef sp_kernel_signals *signals_on_stack[SP_KERNEL_RANKS];
DEVICE sp_kernel_signals *const *put_on_stack(const sp_kernel_args &a, signals_on_stack &stack) {
#pragma unroll
    for (int r = 0; r < SP_KERNEL_RANKS; r++) stack[r] = a.signals[r];
    asm volatile("" ::"l"(stack) : "memory"); /* read here, for all that the compiler knows: so it is written */
    return stack;
}

template <int N, barrier_kind KIND> struct Barrier {
    static constexpr bool ADD = KIND == AS_FIRST || KIND == AS_V2;
    const sp_kernel_args &a;
    sp_kernel_signals *const *signals; /* a.signals, or the stack's */
    uint32_t peer;
    sp_kernel_line line;
    bool ok;

    __device__ __forceinline__ Barrier(const sp_kernel_args &args, sp_kernel_signals *const *all)
        : a(args), signals(all), ok(true) {
        peer = KIND != AS_FIRST ? threadIdx.x : threadIdx.x % 32 ? N : threadIdx.x / 32;
    }

    /* FENCED: what the peer's block wrote before the __syncthreads before its post is there after the __syncthreads after this. */
    template <bool FENCED> __device__ __forceinline__ void first(uint32_t phase) { meet<FENCED, 0>(phase); }
    template <bool FENCED> __device__ __forceinline__ void second(uint32_t phase) { meet<FENCED, 1>(phase); }

  private:
    template <bool FENCED, int WHICH> __device__ __forceinline__ void meet(uint32_t phase) {
        if (peer >= N) return;
        uint32_t *theirs = &signals[peer]->arrived[WHICH][blockIdx.x][a.rank];
        const uint32_t *mine = &a.mine->arrived[WHICH][blockIdx.x][peer];
        if (WHICH == 0) line = load_line(&a.mine->barrier[blockIdx.x]);
        if (ADD && WHICH == 0) FENCED ? add_release(theirs) : add_flag(theirs);
        if (WHICH == 0) ok = !line.broken;
        if (!ok) return;
        const uint32_t goal = line.epoch + 1;
        if (ADD && WHICH == 1) FENCED ? add_release(theirs) : add_flag(theirs);
        if (!ADD) FENCED ? store_release(theirs, goal) : store_flag(theirs, goal);
        /* Before the wait: a store after it would be one more way to L2 at the end of the kernel. */
        if (WHICH == 1 && peer == 0) a.mine->barrier[blockIdx.x].epoch = goal;
        ok = await(
            a, phase, [&] { return (int32_t)((FENCED ? load_acquire(mine) : load_flag(mine)) - goal) >= 0; },
            [&] { return peer; });
    }
};

#endif
