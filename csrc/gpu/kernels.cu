/* All-reduce kernels over memory that every rank maps: a few lines for each way to move the data, over the one barrier and the one sum of
 * kernels_device.cuh. The ladder goes from the plainest to the fastest: plain, one_shot, push, mark, flag. The others are what SGLang's
 * classes launch besides. At the end, what C calls. Compiled by nvcc, needs no C++ runtime.
 * Invariant: all kernels take the same arguments, by value; a launch of a shape does the same on every rank. */
#include "kernels_device.cuh"

/* ---- pulling: every rank reads its peers ---- */

template <int N> DEVICE void find_inputs(const sp_kernel_args &a, uint4 *(&in)[N]) {
#pragma unroll
    for (int r = 0; r < N; r++) in[r] = (uint4 *)a.inputs[r];
}
template <class T, int N> DEVICE uint4 pull(uint4 *const (&in)[N], uint32_t v) {
    uint4 x[N];
#pragma unroll
    for (int r = 0; r < N; r++) x[r] = in[r][v];
    return sum<T, N>(x);
}

/* Loops are not unrolled: SGLang's are not, and one load of each peer in flight a thread is what its times show. */
template <class T, int N, bool ADD, bool FENCED, bool OVERLAP> DEVICE void pull_one(const sp_kernel_args &a) {
    uint4 *in[N];
    find_inputs<N>(a, in);
    if (OVERLAP) await_kernel_before();
    Barrier<N, ADD> barrier(a);
    barrier.template first<FENCED>(SP_PHASE_START);
    __syncthreads();
#pragma unroll 1
    for (uint32_t v = this_thread(); v < a.count; v += all_threads()) ((uint4 *)a.out)[v] = pull<T, N>(in, v);
    if (OVERLAP) let_next_begin();
    __syncthreads();
    barrier.template second<FENCED>(SP_PHASE_END);
}

/* Rung 1. The memory model's own words: what a peer wrote before it posted is there after the wait, at both ends. */
template <class T, int N> __global__ void __launch_bounds__(512, 1) plain(const __grid_constant__ sp_kernel_args a) {
    pull_one<T, N, false, true, false>(a);
}

/* Rung 2, v1. No fence. Start: an input was complete before its kernel began, and nobody has read a line of it into L1 before the wait.
 * End: it says that this rank has read its peers' inputs, so that they may be written again; a thread has stored its sums before it
 * comes to __syncthreads, so what they are made of had arrived. Results go to memory that no peer reads. */
template <class T, int N> __global__ void __launch_bounds__(512, 1) one_shot(const __grid_constant__ sp_kernel_args a) {
    pull_one<T, N, false, false, false>(a);
}

/* V2's one-shot pull: the same, posting by addition, and the next launch may come up while this one still reduces. */
template <class T, int N> __global__ void __launch_bounds__(1024, 1) pull_v2(const __grid_constant__ sp_kernel_args a) {
    pull_one<T, N, true, false, true>(a);
}

/* v1's two-shot. Each rank sums its part into its scratch, then reads all parts. The barrier between is fenced. A block reads there just
 * what the same block of each peer has written, so that a barrier of blocks is enough. No barrier at the end: scratch and input are
 * written again only after the next start barrier, or by a later launch, and a peer that has posted there has ended this launch; that
 * peers have read this rank's input, the barrier in the middle says. */
template <class T, int N> __global__ void __launch_bounds__(512, 1) two_shot(const __grid_constant__ sp_kernel_args a) {
    uint4 *in[N];
    find_inputs<N>(a, in);
    const uint32_t part = a.count / N, first = a.rank * part, length = a.rank == N - 1 ? a.count - first : part;
    const uint32_t longest = part + a.count % N;
    uint4 *scratch = (uint4 *)a.area[a.rank];
    Barrier<N, false> barrier(a);
    barrier.template first<false>(SP_PHASE_START);
    __syncthreads();
#pragma unroll 1
    for (uint32_t v = this_thread(); v < length; v += all_threads()) scratch[v] = pull<T, N>(in, first + v);
    __syncthreads();
    barrier.template second<true>(SP_PHASE_MIDDLE);
    __syncthreads();
#pragma unroll 1
    for (uint32_t v = this_thread(); v < longest; v += all_threads()) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const uint32_t r = (a.rank + i) % N;
            if (r == N - 1 || v < part) ((uint4 *)a.out)[r * part + v] = ((const uint4 *)a.area[r])[v];
        }
    }
}

/* V2's two-shot pull: each rank sums its part and writes the sums into every rank's input, in place. Parts are disjoint, and one thread
 * reads and writes a vector in all of them: no rank reads what another writes. The barrier at the end is fenced: sums that peers wrote
 * here are in this GPU's L2 before this kernel ends, where its stream's next launch finds them. */
template <class T, int N> __global__ void __launch_bounds__(1024, 1) pull_two(const __grid_constant__ sp_kernel_args a) {
    uint4 *in[N];
    find_inputs<N>(a, in);
#pragma unroll
    for (int r = 0; r < N; r++) in[r] += a.first;
    await_kernel_before();
    Barrier<N, true> barrier(a);
    barrier.template first<false>(SP_PHASE_START);
    __syncthreads();
#pragma unroll 1
    for (uint32_t v = this_thread(); v < a.length; v += all_threads()) {
        const uint4 total = pull<T, N>(in, v);
#pragma unroll
        for (int r = 0; r < N; r++) in[r][v] = total;
    }
    let_next_begin();
    __syncthreads();
    barrier.template second<true>(SP_PHASE_END);
}

/* ---- pushing: every rank writes to its peers, and the data says itself that it has arrived ----
 *
 * Slots and cells are doubled, and launches use the halves in turn, by the parity of the epoch. Why two are enough: a launch ends only
 * when it has received from its peers what they pushed in the same launch, directly, or (push_two) through an owner that had received
 * from all; and a peer pushes only after its launch before has ended. So when rank A's launch e + 1 has ended, launch e has ended on
 * every rank, and everything that it read and cleared there is in that rank's L2. A writes to the half of launch e again in launch
 * e + 2, which its stream begins after e + 1 has ended. This holds for any mix of these kernels, sizes and grids, as all count one epoch.
 *
 * The epoch stands once for each block, because no block may change the one that another has yet to read; each launch writes all of
 * them, those of blocks that it does not have too. */

DEVICE void count_push(const sp_kernel_args &a, const sp_kernel_line &line) {
    sp_kernel_line *lines = a.signals[a.rank]->push;
    for (uint32_t b = blockIdx.x + threadIdx.x * gridDim.x; b < SP_KERNEL_BLOCKS; b += all_threads())
        lines[b].epoch = line.epoch + 1;
}
template <int N, class V> DEVICE V *slot(const sp_kernel_args &a, const sp_kernel_line &line, uint32_t to, uint32_t from) {
    return (V *)(a.area[to] + ((line.epoch & 1) * N + from) * a.slot_bytes);
}
/* An empty slot holds zeros, so no word of data may be zero: plus zero goes as minus zero, which adds alike. */
template <class T> DEVICE uint4 marked(uint4 x) {
    x.x = x.x ? x.x : Lanes<T>::MINUS_ZERO;
    x.y = x.y ? x.y : Lanes<T>::MINUS_ZERO;
    x.z = x.z ? x.z : Lanes<T>::MINUS_ZERO;
    x.w = x.w ? x.w : Lanes<T>::MINUS_ZERO;
    return x;
}
DEVICE bool full(uint4 x) { return (x.x != 0) & (x.y != 0) & (x.z != 0) & (x.w != 0); }

/* The vectors at `at` in every rank's slot here but `skip`'s, once all have arrived. */
template <int N> DEVICE void await_vectors(const sp_kernel_args &a, const uint8_t *at, uint32_t skip, uint4 (&x)[N]) {
    await(
        a, SP_PHASE_DATA,
        [&] {
            bool all = true;
#pragma unroll
            for (int r = 0; r < N; r++)
                if (r != skip) x[r] = load_words((const uint4 *)(at + r * a.slot_bytes));
#pragma unroll
            for (int r = 0; r < N; r++) all &= r == skip || full(x[r]);
            return all;
        },
        [&] {
            uint32_t who = 0;
#pragma unroll
            for (int r = N - 1; r >= 0; r--)
                if (r != skip && !full(x[r])) who = r;
            return who;
        });
}
template <int N> DEVICE void clear_vectors(const sp_kernel_args &a, uint8_t *at, uint32_t skip) {
#pragma unroll
    for (int r = 0; r < N; r++)
        if (r != skip) *(uint4 *)(at + r * a.slot_bytes) = make_uint4(0, 0, 0, 0);
}

/* SELF: a rank pushes to itself too, as V2 does. spread: see kernels.h. */
template <class T, int N, bool SELF> DEVICE void push_one(const sp_kernel_args &a) {
    const uint32_t warp = threadIdx.x / 32 * gridDim.x + blockIdx.x;
    const uint32_t thread = a.spread ? warp * 32 + threadIdx.x % 32 : this_thread();
    const uint32_t skip = SELF ? N : a.rank;
    await_kernel_before();
    uint4 x0 = {};
    if (!SELF && thread < a.count) x0 = ((const uint4 *)a.in)[thread]; /* while the line is on its way */
    const sp_kernel_line line = load_line(&a.signals[a.rank]->push[blockIdx.x]);
    if (line.broken) return;
    if (!SELF) let_next_begin();
    uint8_t *box = slot<N, uint8_t>(a, line, a.rank, 0);
#pragma unroll 1
    for (uint32_t v = thread; v < a.count; v += all_threads()) {
        const uint4 x = marked<T>(!SELF && v == thread ? x0 : ((const uint4 *)a.in)[v]);
#pragma unroll
        for (int r = 0; r < N; r++)
            if (r != skip) store_words(slot<N, uint4>(a, line, r, a.rank) + v, x);
    }
    if (!SELF) {
        __syncthreads();
        count_push(a, line);
    }
#pragma unroll 1
    for (uint32_t v = thread; v < a.count; v += all_threads()) {
        uint4 x[N], own = {};
        if (!SELF) own = marked<T>(((const uint4 *)a.in)[v]);
        await_vectors<N>(a, box + v * 16ULL, skip, x);
#pragma unroll
        for (int r = 0; r < N; r++) x[r] = r == skip ? own : x[r];
        ((uint4 *)a.out)[v] = sum<T, N>(x);
        clear_vectors<N>(a, box + v * 16ULL, skip);
    }
    if (!SELF) return;
    let_next_begin();
    __syncthreads();
    count_push(a, line);
}

/* Rung 3, V2's one-shot push: no barrier at all. One way over the link, instead of a flag, a read there and back, and a flag. */
template <class T, int N> __global__ void __launch_bounds__(1024, 1) push(const __grid_constant__ sp_kernel_args a) {
    push_one<T, N, true>(a);
}

/* Rung 4. A rank's own share stays in its registers, no more blocks than there is work for, and the count is written while data travels. */
template <class T, int N> __global__ void __launch_bounds__(1024, 1) mark(const __grid_constant__ sp_kernel_args a) {
    push_one<T, N, false>(a);
}

DEVICE bool fresh(ulonglong2 cell, uint32_t number) { return cell.x >> 32 == number && cell.y >> 32 == number; }

/* Rung 5. Each 32 bits of data travel with the launch's number beside them, in one 64-bit word that arrives whole. Nothing to clear and no
 * value to avoid, for twice the bytes. A cell would be misread only when it was last written exactly 2^32 launches ago. */
template <class T, int N> __global__ void __launch_bounds__(1024, 1) flag(const __grid_constant__ sp_kernel_args a) {
    const uint32_t thread = this_thread();
    await_kernel_before();
    uint2 x0 = {};
    if (thread < a.count) x0 = ((const uint2 *)a.in)[thread]; /* while the line is on its way */
    const sp_kernel_line line = load_line(&a.signals[a.rank]->push[blockIdx.x]);
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
        uint2 x[N];
#pragma unroll
        for (int r = 0; r < N; r++) x[r] = r == a.rank ? own : make_uint2((uint32_t)cell[r].x, (uint32_t)cell[r].y);
        ((uint2 *)a.out)[c] = sum<T, N>(x);
    }
}

/* V2's two-shot push. Rank r owns chunk r: it takes everybody's partial of it, and pushes the sum to all. A slot has room for a chunk of
 * partials, and behind it a chunk of sums. Warps are dealt to peers in turn: each serves one peer, out and back. */
template <class T, int N> __global__ void __launch_bounds__(1024, 1) push_two(const __grid_constant__ sp_kernel_args a) {
    const uint32_t chunk = (a.count + N - 1) / N;
    auto length = [&](uint32_t c) { return min(chunk, a.count - min(a.count, c * chunk)); };
    const uint32_t warp = threadIdx.x / 32 * gridDim.x + blockIdx.x, warps = all_threads() / 32, lane = threadIdx.x % 32;
    const uint32_t team = warp % (N - 1), peer = (a.rank + 1 + team) % N;
    const uint32_t member = warp / (N - 1) * 32 + lane, members = (warps / (N - 1) + (team < warps % (N - 1))) * 32;
    const uint4 *in = (const uint4 *)a.in;
    uint4 *out = (uint4 *)a.out;
    await_kernel_before();
    const sp_kernel_line line = load_line(&a.signals[a.rank]->push[blockIdx.x]);
    if (line.broken) return;
    uint4 *partials = slot<N, uint4>(a, line, peer, a.rank);
#pragma unroll 1
    for (uint32_t v = member; v < length(peer); v += members) store_words(partials + v, marked<T>(in[peer * chunk + v]));

    uint8_t *box = slot<N, uint8_t>(a, line, a.rank, 0);
#pragma unroll 1
    for (uint32_t v = warp * 32 + lane; v < length(a.rank); v += all_threads()) {
        const uint4 own = in[a.rank * chunk + v];
        uint4 x[N];
        await_vectors<N>(a, box + v * 16ULL, a.rank, x);
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
        out[peer * chunk + v] = x;
        sums[v] = make_uint4(0, 0, 0, 0);
    }
    let_next_begin();
    __syncthreads();
    count_push(a, line);
}

/* ---- beside the reductions ---- */

/* V2 copies into its buffer and back by a kernel that may overlap, which a copy by the runtime may not. */
static __global__ void copy(const __grid_constant__ sp_kernel_args a) {
    await_kernel_before();
    let_next_begin();
    const uint32_t v = this_thread();
    if (v < a.count) ((uint4 *)a.out)[v] = ((const uint4 *)a.in)[v];
}

static __global__ void empty(const __grid_constant__ sp_kernel_args a) {}

/* One thread of ranks 0 and 1: a flag there, a flag back. */
static __global__ void ping_pong(const __grid_constant__ sp_kernel_args a) {
    if (a.rank > 1 || threadIdx.x || blockIdx.x) return;
    sp_kernel_signals *mine = a.signals[a.rank];
    const uint32_t peer = 1 - a.rank, base = load_line(&mine->pong).epoch;
    for (uint32_t n = 1; n <= a.count; n++) {
        if (a.rank == 0) store_flag(&a.signals[peer]->ping[a.rank], base + n);
        const bool ok = await(
            a, SP_PHASE_PING, [&] { return (int32_t)(load_flag(&mine->ping[peer]) - base - n) >= 0; }, [&] { return peer; });
        if (!ok) return;
        if (a.rank == 1) store_flag(&a.signals[peer]->ping[a.rank], base + n);
    }
    mine->pong.epoch = base + a.count;
}

/* ---- what C calls ---- */

typedef void (*kernel)(const sp_kernel_args);
enum { DTYPES = 3, WORLDS = SP_KERNEL_RANKS + 1 }; /* bf16, fp16, fp32: the first three of sp_dtype */

#define EVEN(name, T) \
    { 0, 0, name<T, 2>, 0, name<T, 4>, 0, name<T, 6>, 0, name<T, 8> }
#define EACH(name, T) \
    { 0, 0, name<T, 2>, name<T, 3>, name<T, 4>, name<T, 5>, name<T, 6>, name<T, 7>, name<T, 8> }
#define ROW(worlds, name) \
    { worlds(name, __nv_bfloat16), worlds(name, __half), worlds(name, float) }
#define ONE(name) \
    {             \
        { name }  \
    }

/* v1 has kernels for even numbers of ranks, as SGLang's. Those without dtype and world stand at [0][0]. */
static const kernel kernels[SP_BODY_COUNT][DTYPES][WORLDS] = {
    ROW(EACH, plain),   ROW(EVEN, one_shot), ROW(EACH, push),     ROW(EACH, mark), ROW(EACH, flag), ROW(EVEN, two_shot),
    ROW(EACH, pull_v2), ROW(EACH, pull_two), ROW(EACH, push_two), ONE(copy),       ONE(empty),      ONE(ping_pong),
};

static kernel find(int body, int dtype, int world) {
    if (body < 0 || body >= SP_BODY_COUNT) return 0;
    if (body >= SP_BODY_COPY) return kernels[body][0][0];
    return dtype >= 0 && dtype < DTYPES && world > 1 && world < WORLDS ? kernels[body][dtype][world] : 0;
}

bool sp_kernel_has(int body, int dtype, int world) { return find(body, dtype, world) != 0; }

int sp_kernel_launch(int body, int dtype, int world, const sp_kernel_args *args, const sp_kernel_shape *shape, void *stream) {
    const kernel run = find(body, dtype, world);
    if (!run) return cudaErrorInvalidDeviceFunction;
    cudaLaunchAttribute overlap;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(shape->blocks);
    config.blockDim = dim3(shape->threads);
    config.stream = (cudaStream_t)stream;
    config.attrs = &overlap;
    config.numAttrs = shape->overlap;
    void *given[] = {(void *)args};
    return cudaLaunchKernelExC(&config, (const void *)run, given);
}

int sp_kernel_load_all(void) {
    for (int i = 0; i < SP_BODY_COUNT * DTYPES * WORLDS; i++) {
        const kernel run = (&kernels[0][0][0])[i];
        cudaFuncAttributes attributes;
        const cudaError_t error = run ? cudaFuncGetAttributes(&attributes, (const void *)run) : cudaSuccess;
        if (error) return error;
    }
    return 0;
}

int sp_kernel_occupancy(int body, int dtype, int world, int threads, int *blocks_per_multiprocessor) {
    const kernel run = find(body, dtype, world);
    if (!run) return cudaErrorInvalidDeviceFunction;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks_per_multiprocessor, (const void *)run, threads, 0);
}

const char *sp_kernel_error(int error) { return cudaGetErrorString((cudaError_t)error); }
