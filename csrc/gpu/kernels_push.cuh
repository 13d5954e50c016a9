/* Kernels that push: every rank writes to its peers, and the data says itself that it has arrived. Included by kernels.cu alone.
 *
 * Slots and cells are doubled, and launches use the halves in turn, by the parity of the epoch. Why two are enough: a launch ends only
 * when it has received from its peers what they pushed in the same launch, directly, or (push_two) through an owner that had received
 * from all; and a peer pushes only after its launch before has ended. So when rank A's launch e + 1 has ended, launch e has ended on
 * every rank, and everything that it read and cleared there is in that rank's L2. A writes to the half of launch e again in launch
 * e + 2, which its stream begins after e + 1 has ended. This holds for any mix of these kernels, sizes and grids, as all count one epoch.
 *
 * The epoch stands once for each block, because no block may change the one that another has yet to read; each launch writes all of
 * them, those of blocks that it does not have too.
 * Invariant: a slot is empty, or holds what was pushed in the last launch of its half; every block of every launch counts. */
#ifndef SP_KERNELS_PUSH_CUH
#define SP_KERNELS_PUSH_CUH

#include "kernels_device.cuh"

DEVICE void count_push(const sp_kernel_args &a, const sp_kernel_line &line) {
    if (line.broken) return;
    sp_kernel_line *lines = a.mine->push;
    for (uint32_t b = blockIdx.x + threadIdx.x * gridDim.x; b < SP_KERNEL_BLOCKS; b += all_threads())
        lines[b].epoch = line.epoch + 1;
}
template <int N, class V> DEVICE V *slot(const sp_kernel_args &a, const sp_kernel_line &line, uint32_t to, uint32_t from) {
    return (V *)(a.area[to] + ((line.epoch & 1) * N + from) * a.slot_bytes);
}
/* An empty slot holds zeros, so no word of data may be zero: plus zero goes as minus zero, which adds alike. HALVES: no half of a word may
 * be, as V2 had it before v0.5.20; it costs instructions that large tensors show. */
template <class T, bool HALVES = false> DEVICE uint32_t marked(uint32_t x) {
    if (!HALVES || sizeof(T) == 4) return x ? x : Lanes<T>::MINUS_ZERO;
    if (!(x & 0xffff)) x |= Lanes<T>::MINUS_ZERO;
    if (!(x >> 16)) x |= Lanes<T>::MINUS_ZERO << 16;
    return x;
}
template <class T, bool HALVES = false> DEVICE uint4 marked(uint4 x) {
    return make_uint4(marked<T, HALVES>(x.x), marked<T, HALVES>(x.y), marked<T, HALVES>(x.z), marked<T, HALVES>(x.w));
}
template <bool HALVES> DEVICE bool full(uint32_t x) { return HALVES ? ((x & 0xffff) != 0) & ((x >> 16) != 0) : x != 0; }
template <bool HALVES = false> DEVICE bool full(uint4 x) {
    return full<HALVES>(x.x) & full<HALVES>(x.y) & full<HALVES>(x.z) & full<HALVES>(x.w);
}

/* The vectors at `at` in every rank's slot here but `skip`'s: have all arrived? */
template <int N, bool HALVES = false>
DEVICE bool look_for_vectors(const sp_kernel_args &a, const uint8_t *at, uint32_t skip, uint4 (&x)[N]) {
    bool all = true;
#pragma unroll
    for (int r = 0; r < N; r++)
        if (r != skip) x[r] = load_words((const uint4 *)(at + r * a.slot_bytes));
#pragma unroll
    for (int r = 0; r < N; r++) all &= r == skip || full<HALVES>(x[r]);
    return all;
}
template <int N, bool HALVES = false>
DEVICE void await_vectors(const sp_kernel_args &a, const uint8_t *at, uint32_t skip, uint4 (&x)[N]) {
    await(
        a, SP_PHASE_DATA, [&] { return look_for_vectors<N, HALVES>(a, at, skip, x); },
        [&] {
            uint32_t who = 0;
#pragma unroll
            for (int r = N - 1; r >= 0; r--)
                if (r != skip && !full<HALVES>(x[r])) who = r;
            return who;
        });
}
template <int N> DEVICE void clear_vectors(const sp_kernel_args &a, uint8_t *at, uint32_t skip) {
#pragma unroll
    for (int r = 0; r < N; r++)
        if (r != skip) *(uint4 *)(at + r * a.slot_bytes) = make_uint4(0, 0, 0, 0);
}

/* When the last rank is there is seen by the thread that waits for vector 0, which every rank pushes first: in its wait, and between its
 * own pushes, because a large tensor takes long to push, and that is no wait. */
template <bool TRACED> struct Met {
    const sp_kernel_args &a;
    bool due;

    __device__ __forceinline__ Met(const sp_kernel_args &args, bool watches) : a(args), due(TRACED && watches) {}
    __device__ __forceinline__ void stamp() {
        if (TRACED && due) stamp_earliest(&a.trace[SP_TRACE_MET]);
        due = false;
    }
    template <int N, bool HALVES = false> __device__ __forceinline__ void look(const uint8_t *box, uint32_t skip) {
        uint4 x[N];
        if (TRACED && due && look_for_vectors<N, HALVES>(a, box, skip, x)) stamp();
    }
};

/* MARK: a rank's own share stays in its registers, and the count is written while data travels. The others push to themselves too, as V2
 * does. FIRST, before v0.5.16: halves are marked, sums begin at zero, and the next launch may come up before the data has. */
enum push_kind { PUSH_FIRST, PUSH_V2, PUSH_MARK };

template <class T, int N, push_kind KIND, bool TRACED> DEVICE void push_one(const sp_kernel_args &a) {
    constexpr bool SELF = KIND != PUSH_MARK, FIRST = KIND == PUSH_FIRST, HALVES = FIRST && sizeof(T) == 2;
    const sp_kernel_line *at = &a.mine->push[blockIdx.x];
    const uint32_t warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;
    const uint32_t thread = !FIRST && a.spread ? warp * 32 + threadIdx.x % 32 : this_thread();
    const uint32_t skip = SELF ? N : a.rank;
    await_kernel_before();
    stamp_enter<TRACED>(a);
    Met<TRACED> met(a, thread == 0);
    uint4 x0 = {};
    if (!SELF && thread < a.count) x0 = ((const uint4 *)a.in)[thread]; /* while the line is on its way */
    const sp_kernel_line line = load_line(at);
    const uint32_t count = line.broken ? 0 : a.count; /* and no return: it would part the loads above from what is below */
    if (!SELF) let_next_begin();
    uint8_t *box = slot<N, uint8_t>(a, line, a.rank, 0);
#pragma unroll 1
    for (uint32_t v = thread; v < count; v += all_threads()) {
        const uint4 x = marked<T, HALVES>(!SELF && v == thread ? x0 : ((const uint4 *)a.in)[v]);
#pragma unroll
        for (int r = 0; r < N; r++)
            if (r != skip) store_words(slot<N, uint4>(a, line, r, a.rank) + v, x);
        if (v + all_threads() < count) met.template look<N, HALVES>(box, skip);
    }
    if (FIRST) let_next_begin();
    if (!SELF) {
        __syncthreads();
        count_push(a, line);
    }
#pragma unroll 1
    for (uint32_t v = thread; v < count; v += all_threads()) {
        uint4 x[N], own = {};
        if (!SELF) own = marked<T>(((const uint4 *)a.in)[v]);
        await_vectors<N, HALVES>(a, box + v * 16ULL, skip, x);
        met.stamp();
#pragma unroll
        for (int r = 0; r < N; r++) x[r] = r == skip ? own : x[r];
        ((uint4 *)a.out)[v] = sum<T, N, FIRST>(x);
        clear_vectors<N>(a, box + v * 16ULL, skip);
    }
    stamp_left<TRACED>(a);
    if (!SELF) return;
    if (!FIRST) let_next_begin();
    __syncthreads();
    count_push(a, line);
}

/* Rung 3, V2's one-shot push, 1.77 2.01 2.80 5.01: no barrier at all. One way over the link, instead of a flag, a read there and back, and
 * a flag. */
template <class T, int N, bool TRACED> __global__ void __launch_bounds__(1024, 1) push(const __grid_constant__ sp_kernel_args a) {
    push_one<T, N, PUSH_V2, TRACED>(a);
}
template <class T, int N, bool TRACED>
__global__ void __launch_bounds__(1024, 1) push_first(const __grid_constant__ sp_kernel_args a) {
    push_one<T, N, PUSH_FIRST, TRACED>(a);
}

/* Rung 4, 1.59 1.92 2.66 4.88. Nothing goes from a rank to itself, the input is loaded beside the count, and there are no more blocks than
 * there is work for. */
template <class T, int N, bool TRACED> __global__ void __launch_bounds__(1024, 1) mark(const __grid_constant__ sp_kernel_args a) {
    push_one<T, N, PUSH_MARK, TRACED>(a);
}

DEVICE bool fresh(ulonglong2 cell, uint32_t number) { return cell.x >> 32 == number && cell.y >> 32 == number; }

/* Rung 5, 1.53 1.92 3.29, no larger. Each 32 bits of data travel with the launch's number beside them, in one 64-bit word that arrives
 * whole. Nothing to clear and no value to avoid, for twice the bytes. A cell would be misread only when it was last written exactly 2^32
 * launches ago. */
template <class T, int N, bool TRACED> __global__ void __launch_bounds__(1024, 1) flag(const __grid_constant__ sp_kernel_args a) {
    const sp_kernel_line *at = &a.mine->push[blockIdx.x];
    const uint32_t thread = this_thread();
    await_kernel_before();
    stamp_enter<TRACED>(a);
    Met<TRACED> met(a, thread == 0); /* no look between pushes: there is one for each thread */
    uint2 x0 = {};
    if (thread < a.count) x0 = ((const uint2 *)a.in)[thread]; /* while the line is on its way */
    const sp_kernel_line line = load_line(at);
    if (line.broken) return;
    let_next_begin();
    const uint32_t number = line.epoch + 1;
#pragma unroll 1
    for (uint32_t c = thread; c < a.count; c += all_threads()) {
        const uint2 x = c == thread ? x0 : ((const uint2 *)a.in)[c];
#pragma unroll
        for (int r = 0; r < N; r++)
            if (r != a.rank) store_cell(slot<N, ulonglong2>(a, line, r, a.rank) + c, x, number);
    }
    __syncthreads();
    count_push(a, line);
#pragma unroll 1
    for (uint32_t c = thread; c < a.count; c += all_threads()) {
        const uint2 own = ((const uint2 *)a.in)[c];
        ulonglong2 cell[N];
        await(
            a, SP_PHASE_DATA,
            [&] {
                bool all = true;
#pragma unroll
                for (int r = 0; r < N; r++)
                    if (r != a.rank) cell[r] = load_cell(slot<N, ulonglong2>(a, line, a.rank, r) + c);
#pragma unroll
                for (int r = 0; r < N; r++) all &= r == a.rank || fresh(cell[r], number);
                return all;
            },
            [&] {
                uint32_t who = 0;
#pragma unroll
                for (int r = N - 1; r >= 0; r--)
                    if (r != a.rank && !fresh(cell[r], number)) who = r;
                return who;
            });
        met.stamp();
        uint2 x[N];
#pragma unroll
        for (int r = 0; r < N; r++) x[r] = r == a.rank ? own : make_uint2((uint32_t)cell[r].x, (uint32_t)cell[r].y);
        ((uint2 *)a.out)[c] = sum<T, N>(x);
    }
    stamp_left<TRACED>(a);
}

/* V2's two-shot push. Rank r owns chunk r: it takes everybody's partial of it, and pushes the sum to all. A slot has room for a chunk of
 * partials, and behind it a chunk of sums. Warps are dealt to peers in turn: each serves one peer, out and back. */
template <class T, int N, bool TRACED>
__global__ void __launch_bounds__(1024, 1) push_two(const __grid_constant__ sp_kernel_args a) {
    const sp_kernel_line *at = &a.mine->push[blockIdx.x];
    const uint32_t chunk = (a.count + N - 1) / N;
    auto length = [&](uint32_t c) { return min(chunk, a.count - min(a.count, c * chunk)); };
    const uint32_t warp = threadIdx.x / 32 * gridDim.x + blockIdx.x, warps = all_threads() / 32, lane = threadIdx.x % 32;
    const uint32_t team = warp % (N - 1), peer = (a.rank + 1 + team) % N;
    const uint32_t member = warp / (N - 1) * 32 + lane, members = (warps / (N - 1) + (team < warps % (N - 1))) * 32;
    const uint4 *in = (const uint4 *)a.in;
    uint4 *out = (uint4 *)a.out;
    await_kernel_before();
    stamp_enter<TRACED>(a);
    const sp_kernel_line line = load_line(at);
    if (line.broken) return;
    uint4 *partials = slot<N, uint4>(a, line, peer, a.rank);
    Met<TRACED> met(a, length(a.rank) ? this_thread() == 0 : member == 0); /* who owns nothing waits for sums alone */
#pragma unroll 1
    for (uint32_t v = member; v < length(peer); v += members) {
        store_words(partials + v, marked<T>(in[peer * chunk + v]));
        if (length(a.rank) && v + members < length(peer)) met.template look<N>(slot<N, uint8_t>(a, line, a.rank, 0), a.rank);
    }

    uint8_t *box = slot<N, uint8_t>(a, line, a.rank, 0);
#pragma unroll 1
    for (uint32_t v = warp * 32 + lane; v < length(a.rank); v += all_threads()) {
        const uint4 own = in[a.rank * chunk + v];
        uint4 x[N];
        await_vectors<N>(a, box + v * 16ULL, a.rank, x);
        met.stamp();
#pragma unroll
        for (int r = 0; r < N; r++) x[r] = r == a.rank ? own : x[r];
        const uint4 total = marked<T>(sum<T, N>(x)); /* before it is kept too: ranks agree bit for bit */
#pragma unroll
        for (int r = 0; r < N; r++)
            if (r != a.rank) store_words(slot<N, uint4>(a, line, r, a.rank) + chunk + v, total);
        out[a.rank * chunk + v] = total;
        clear_vectors<N>(a, box + v * 16ULL, a.rank);
    }

    uint4 *sums = slot<N, uint4>(a, line, a.rank, peer) + chunk;
#pragma unroll 1
    for (uint32_t v = member; v < length(peer); v += members) {
        uint4 x;
        await(
            a, SP_PHASE_GATHER, [&] { return full(x = load_words(sums + v)); }, [&] { return peer; });
        met.stamp();
        out[peer * chunk + v] = x;
        sums[v] = make_uint4(0, 0, 0, 0);
    }
    stamp_left<TRACED>(a);
    let_next_begin();
    __syncthreads();
    count_push(a, line);
}

#endif
