/* All-reduce kernels over memory that every rank maps: a few lines for each way to move the data, over the one barrier and the one sum of
 * kernels_device.cuh. The ladder goes from the plainest to the fastest: plain, one_shot, push, mark, flag. The others are what SGLang's
 * classes launch besides. At the end, what C calls. Compiled by nvcc, needs no C++ runtime.
 * Invariant: all kernels take the same arguments, by value; a launch of a shape does the same on every rank. */
#include "kernels_device.cuh"
#include "kernels_push.cuh"

/* ---- pulling: every rank reads its peers ---- */

template <int N> DEVICE void find_inputs(const sp_kernel_args &a, uint4 *(&in)[N]) {
#pragma unroll
    for (int r = 0; r < N; r++) in[r] = (uint4 *)a.inputs[r];
}
template <class T, int N, bool ZERO = false> DEVICE uint4 pull(uint4 *const (&in)[N], uint32_t v) {
    uint4 x[N];
#pragma unroll
    for (int r = 0; r < N; r++) x[r] = in[r][v];
    return sum<T, N, ZERO>(x);
}

/* Loops are not unrolled: SGLang's are not, and one load of each peer in flight a thread is what its times show. */
template <class T, int N, barrier_kind KIND, bool FENCED> DEVICE void pull_one(const sp_kernel_args &a) {
    constexpr bool OVERLAP = KIND == AS_FIRST || KIND == AS_V2;
    if (KIND == AS_FIRST) prefetch(a.inputs);
    uint4 *in[N];
    find_inputs<N>(a, in);
    signals_on_stack stack;
    if (OVERLAP) await_kernel_before();
    Barrier<N, KIND> barrier(a, KIND == AS_V1 ? put_on_stack(a, stack) : a.signals);
    barrier.template first<FENCED>(SP_PHASE_START);
    __syncthreads();
#pragma unroll 1
    for (uint32_t v = this_thread(); v < a.count; v += all_threads()) ((uint4 *)a.out)[v] = pull<T, N, KIND == AS_FIRST>(in, v);
    if (OVERLAP) let_next_begin();
    __syncthreads();
    barrier.template second<FENCED>(SP_PHASE_END);
}

/* Figures of the ladder: one call, us, at 1 KiB, 16 KiB, 256 KiB and 1 MiB of bf16; measured on two H200 (NV18), driver 580.159.04,
 * captured, 20 calls a graph back to back. */

/* Rung 1, 4.64 4.79 6.21 9.44. The memory model's own words: what a peer wrote before it posted is there after the wait, at both ends. */
template <class T, int N> __global__ void __launch_bounds__(512, 1) plain(const __grid_constant__ sp_kernel_args a) {
    pull_one<T, N, AS_PLAIN, true>(a);
}

/* Rung 2, v1, 3.81 3.99 4.63 7.86. No fence. Start: an input was complete before its kernel began, and nobody has read a line of it into L1
 * before the wait. End: it says that this rank has read its peers' inputs, so that they may be written again; a thread has stored its sums
 * before it comes to __syncthreads, so what they are made of had arrived. Results go to memory that no peer reads. */
template <class T, int N> __global__ void __launch_bounds__(512, 1) one_shot(const __grid_constant__ sp_kernel_args a) {
    pull_one<T, N, AS_V1, false>(a);
}

/* V2's one-shot pull: the same, posting by addition, and the next launch may come up while this one still reduces. In releases before
 * v0.5.16 every thread prefetches the row of inputs. */
template <class T, int N> __global__ void __launch_bounds__(1024, 1) pull_v2(const __grid_constant__ sp_kernel_args a) {
    pull_one<T, N, AS_V2, false>(a);
}
template <class T, int N> __global__ void __launch_bounds__(1024, 1) pull_first(const __grid_constant__ sp_kernel_args a) {
    pull_one<T, N, AS_FIRST, false>(a);
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
    signals_on_stack stack;
    Barrier<N, AS_V1> barrier(a, put_on_stack(a, stack));
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
template <class T, int N, barrier_kind KIND> DEVICE void pull_parts(const sp_kernel_args &a) {
    if (KIND == AS_FIRST) prefetch(a.inputs);
    uint4 *in[N];
    find_inputs<N>(a, in);
#pragma unroll
    for (int r = 0; r < N; r++) in[r] += a.first;
    await_kernel_before();
    Barrier<N, KIND> barrier(a, a.signals);
    barrier.template first<false>(SP_PHASE_START);
    __syncthreads();
#pragma unroll 1
    for (uint32_t v = this_thread(); v < a.length; v += all_threads()) {
        const uint4 total = pull<T, N, KIND == AS_FIRST>(in, v);
#pragma unroll
        for (int r = 0; r < N; r++) in[r][v] = total;
    }
    let_next_begin();
    __syncthreads();
    barrier.template second<true>(SP_PHASE_END);
}

template <class T, int N> __global__ void __launch_bounds__(1024, 1) pull_two(const __grid_constant__ sp_kernel_args a) {
    pull_parts<T, N, AS_V2>(a);
}
template <class T, int N> __global__ void __launch_bounds__(1024, 1) pull_two_first(const __grid_constant__ sp_kernel_args a) {
    pull_parts<T, N, AS_FIRST>(a);
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
    sp_kernel_signals *mine = a.mine;
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
    ROW(EACH, plain),      ROW(EVEN, one_shot),       ROW(EACH, push),     ROW(EACH, mark),     ROW(EACH, flag),
    ROW(EVEN, two_shot),   ROW(EACH, pull_v2),        ROW(EACH, pull_two), ROW(EACH, push_two), ROW(EACH, push_first),
    ROW(EACH, pull_first), ROW(EACH, pull_two_first), ONE(copy),           ONE(empty),          ONE(ping_pong),
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
