/* All-reduce kernels over memory that every rank maps: a few lines for each way to move the data, over the one barrier and the one sum of
 * kernels_device.cuh. The ladder goes from the plainest to the fastest: plain, one_shot, push, mark, flag. The others are what SGLang's
 * classes launch besides. At the end, what C calls. Compiled by nvcc, needs no C++ runtime.
 * Invariant: all kernels take the same arguments, by value; a launch of a shape does the same on every rank. */
#include "kernels_device.cuh"
#include "kernels_measure.cuh"
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
template <class T, int N, barrier_kind KIND, bool FENCED, bool TRACED> DEVICE void pull_one(const sp_kernel_args &a) {
    constexpr bool OVERLAP = KIND == AS_FIRST || KIND == AS_V2;
    if (KIND == AS_FIRST) prefetch(a.inputs);
    uint4 *in[N];
    find_inputs<N>(a, in);
    signals_on_stack stack;
    if (OVERLAP) await_kernel_before();
    stamp_enter<TRACED>(a);
    Barrier<N, KIND> barrier(a, KIND == AS_V1 ? put_on_stack(a, stack) : a.signals);
    barrier.template first<FENCED>(SP_PHASE_START);
    __syncthreads();
    stamp_met<TRACED>(a);
#pragma unroll 1
    for (uint32_t v = this_thread(); v < a.count; v += all_threads()) ((uint4 *)a.out)[v] = pull<T, N, KIND == AS_FIRST>(in, v);
    if (OVERLAP) let_next_begin();
    __syncthreads();
    barrier.template second<FENCED>(SP_PHASE_END);
    stamp_left<TRACED>(a);
}

/* Figures of the ladder: one call, us, at 1 KiB, 16 KiB, 256 KiB and 1 MiB of bf16; measured on two H200 (NV18), driver 580.159.04,
 * captured, 20 calls a graph back to back. */

/* Rung 1, 4.64 4.79 6.21 9.44. The memory model's own words: what a peer wrote before it posted is there after the wait, at both ends. */
template <class T, int N, bool TRACED> __global__ void __launch_bounds__(512, 1) plain(const __grid_constant__ sp_kernel_args a) {
    pull_one<T, N, AS_PLAIN, true, TRACED>(a);
}

/* Rung 2, v1, 3.81 3.99 4.63 7.86. No fence. Start: an input was complete before its kernel began, and nobody has read a line of it into L1
 * before the wait. End: it says that this rank has read its peers' inputs, so that they may be written again; a thread has stored its sums
 * before it comes to __syncthreads, so what they are made of had arrived. Results go to memory that no peer reads. */
template <class T, int N, bool TRACED>
__global__ void __launch_bounds__(512, 1) one_shot(const __grid_constant__ sp_kernel_args a) {
    pull_one<T, N, AS_V1, false, TRACED>(a);
}

/* V2's one-shot pull: the same, posting by addition, and the next launch may come up while this one still reduces. In releases before
 * v0.5.16 every thread prefetches the row of inputs. */
template <class T, int N, bool TRACED>
__global__ void __launch_bounds__(1024, 1) pull_v2(const __grid_constant__ sp_kernel_args a) {
    pull_one<T, N, AS_V2, false, TRACED>(a);
}
template <class T, int N, bool TRACED>
__global__ void __launch_bounds__(1024, 1) pull_first(const __grid_constant__ sp_kernel_args a) {
    pull_one<T, N, AS_FIRST, false, TRACED>(a);
}

/* v1's two-shot. Each rank sums its part into its scratch, then reads all parts. The barrier between is fenced. A block reads there just
 * what the same block of each peer has written, so that a barrier of blocks is enough. No barrier at the end: scratch and input are
 * written again only after the next start barrier, or by a later launch, and a peer that has posted there has ended this launch; that
 * peers have read this rank's input, the barrier in the middle says. */
template <class T, int N, bool TRACED>
__global__ void __launch_bounds__(512, 1) two_shot(const __grid_constant__ sp_kernel_args a) {
    uint4 *in[N];
    find_inputs<N>(a, in);
    const uint32_t part = a.count / N, first = a.rank * part, length = a.rank == N - 1 ? a.count - first : part;
    const uint32_t longest = part + a.count % N;
    uint4 *scratch = (uint4 *)a.area[a.rank];
    signals_on_stack stack;
    stamp_enter<TRACED>(a);
    Barrier<N, AS_V1> barrier(a, put_on_stack(a, stack));
    barrier.template first<false>(SP_PHASE_START);
    __syncthreads();
    stamp_met<TRACED>(a);
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
    stamp_left<TRACED>(a);
}

/* V2's two-shot pull: each rank sums its part and writes the sums into every rank's input, in place. Parts are disjoint, and one thread
 * reads and writes a vector in all of them: no rank reads what another writes. The barrier at the end is fenced: sums that peers wrote
 * here are in this GPU's L2 before this kernel ends, where its stream's next launch finds them. */
template <class T, int N, barrier_kind KIND, bool TRACED> DEVICE void pull_parts(const sp_kernel_args &a) {
    if (KIND == AS_FIRST) prefetch(a.inputs);
    uint4 *in[N];
    find_inputs<N>(a, in);
#pragma unroll
    for (int r = 0; r < N; r++) in[r] += a.first;
    await_kernel_before();
    stamp_enter<TRACED>(a);
    Barrier<N, KIND> barrier(a, a.signals);
    barrier.template first<false>(SP_PHASE_START);
    __syncthreads();
    stamp_met<TRACED>(a);
#pragma unroll 1
    for (uint32_t v = this_thread(); v < a.length; v += all_threads()) {
        const uint4 total = pull<T, N, KIND == AS_FIRST>(in, v);
#pragma unroll
        for (int r = 0; r < N; r++) in[r][v] = total;
    }
    let_next_begin();
    __syncthreads();
    barrier.template second<true>(SP_PHASE_END);
    stamp_left<TRACED>(a);
}

template <class T, int N, bool TRACED>
__global__ void __launch_bounds__(1024, 1) pull_two(const __grid_constant__ sp_kernel_args a) {
    pull_parts<T, N, AS_V2, TRACED>(a);
}
template <class T, int N, bool TRACED>
__global__ void __launch_bounds__(1024, 1) pull_two_first(const __grid_constant__ sp_kernel_args a) {
    pull_parts<T, N, AS_FIRST, TRACED>(a);
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

/* ---- what C calls ---- */

typedef void (*kernel)(const sp_kernel_args);
enum { DTYPES = 3, WORLDS = SP_KERNEL_RANKS + 1 }; /* bf16, fp16, fp32: the first three of sp_dtype */

#define EVEN(name, T, traced) \
    { 0, 0, name<T, 2, traced>, 0, name<T, 4, traced>, 0, name<T, 6, traced>, 0, name<T, 8, traced> }
#define EACH(name, T, traced)                                                                                     \
    {                                                                                                             \
        0, 0, name<T, 2, traced>, name<T, 3, traced>, name<T, 4, traced>, name<T, 5, traced>, name<T, 6, traced>, \
            name<T, 7, traced>, name<T, 8, traced>                                                                \
    }
#define ROW(worlds, name, traced) \
    { worlds(name, __nv_bfloat16, traced), worlds(name, __half, traced), worlds(name, float, traced) }
#define ROWS(traced)                                                                                                       \
    {                                                                                                                      \
        ROW(EACH, plain, traced), ROW(EVEN, one_shot, traced), ROW(EACH, push, traced), ROW(EACH, mark, traced),           \
            ROW(EACH, flag, traced), ROW(EVEN, two_shot, traced), ROW(EACH, pull_v2, traced), ROW(EACH, pull_two, traced), \
            ROW(EACH, push_two, traced), ROW(EACH, push_first, traced), ROW(EACH, pull_first, traced),                     \
            ROW(EACH, pull_two_first, traced)                                                                              \
    }

/* Without stamps and with. v1 has kernels for even numbers of ranks, as SGLang's. */
static const kernel reductions[2][SP_BODY_COPY][DTYPES][WORLDS] = {ROWS(false), ROWS(true)};
/* From SP_BODY_COPY on: for any dtype and world. */
static const kernel others[SP_BODY_COUNT - SP_BODY_COPY] = {copy, empty, ping_pong<false>, ping_pong<true>, spin, stamp, hold};

static kernel find(int body, int dtype, int world, bool traced) {
    if (body < 0 || body >= SP_BODY_COUNT) return 0;
    if (body >= SP_BODY_COPY) return others[body - SP_BODY_COPY];
    return dtype >= 0 && dtype < DTYPES && world > 1 && world < WORLDS ? reductions[traced][body][dtype][world] : 0;
}

bool sp_kernel_has(int body, int dtype, int world) { return find(body, dtype, world, false) != 0; }

int sp_kernel_launch(int body, int dtype, int world, const sp_kernel_args *args, const sp_kernel_shape *shape, void *stream) {
    const kernel run = find(body, dtype, world, args->trace != 0);
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

static cudaError_t load(const kernel *all, size_t count) {
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < count && !error; i++) {
        cudaFuncAttributes attributes;
        if (all[i]) error = cudaFuncGetAttributes(&attributes, (const void *)all[i]);
    }
    return error;
}

int sp_kernel_load_all(void) {
    const cudaError_t error = load(&reductions[0][0][0][0], sizeof reductions / sizeof(kernel));
    return error ? error : load(others, sizeof others / sizeof(kernel));
}

int sp_kernel_occupancy(int body, int dtype, int world, bool traced, int threads, int *blocks_per_multiprocessor) {
    const kernel run = find(body, dtype, world, traced);
    if (!run) return cudaErrorInvalidDeviceFunction;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks_per_multiprocessor, (const void *)run, threads, 0);
}

const char *sp_kernel_error(int error) { return cudaGetErrorString((cudaError_t)error); }
