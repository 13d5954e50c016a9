/* Stops: every reason for which a gate does not accept, once. Python turns them into sentences with the answer's limit and facts.
 * Invariant: a stop belongs to the constructor (SETUP: fixed when the server started) or to the call (CALL), never to both. */
#ifndef SP_STOPS_H
#define SP_STOPS_H

#include <stdint.h>

/* X(ENUM, name, when, text). Placeholders of text: {world_size} {nodes} {limit} {nbytes} {arch} {dtype} {multiple}. */
#define SP_STOPS(X)                                                                                                     \
    X(NOT_OWNED, "not_owned", SETUP, "this group is not built with it (flag, or kind of group)")                        \
    X(RELEASE, "release", SETUP, "this release does not have it")                                                       \
    X(DEVICE, "device", SETUP, "not on this kind of device")                                                            \
    X(LIBRARY, "library", SETUP, "its library does not import")                                                         \
    X(WORLD_SIZE, "world_size", SETUP, "world size {world_size} is not one that it supports")                           \
    X(NODES, "nodes", SETUP, "the group spans {nodes} nodes")                                                           \
    X(NVLINK, "no_full_nvlink", SETUP, "more than two GPUs that are not fully linked by NVLink")                        \
    X(P2P, "no_peer_access", SETUP, "peer access between the GPUs does not work")                                       \
    X(ARCH, "arch", SETUP, "compute capability {arch} is not in its table")                                             \
    X(MULTICAST, "no_multicast", SETUP, "the symmetric memory has no multicast address")                                \
    X(RANKS, "ranks_not_consecutive", SETUP, "the group's ranks are not consecutive")                                   \
    X(QUANTIZATION, "quantization_none", SETUP, "ROCM_QUICK_REDUCE_QUANTIZATION is NONE, the default")                  \
    X(MSCCL, "rccl_msccl", CALL, "RCCL_MSCCL_ENABLE is 1 at world size 8")                                              \
    X(CLIQUE, "no_fabric_clique", SETUP, "the GPUs are not in one NVLink fabric clique with a VMM allocator")           \
    X(DETERMINISTIC, "deterministic", SETUP, "deterministic inference turns it off")                                    \
    X(CONTEXT, "context_off", CALL, "it is switched off outside graph_capture()")                                       \
    X(MULTIPLE, "not_multiple", CALL, "{nbytes} bytes is not a multiple of {multiple}")                                 \
    X(LAYOUT, "not_contiguous", CALL, "the tensor is not contiguous in memory")                                         \
    X(LINK, "no_full_nvlink_call", CALL, "asked again for each call: world size above 2 without full NVLink")           \
    X(TOO_LARGE, "too_large", CALL, "{nbytes} bytes is over its limit of {limit}")                                      \
    X(TOO_SMALL, "too_small", CALL, "{nbytes} bytes is under its minimum")                                              \
    X(DTYPE, "dtype", CALL, "{dtype} is not one of its types")                                                          \
    X(SHAPE, "shape", CALL, "the tensor's shape does not fit its workspace")                                            \
    X(PIECEWISE, "piecewise", CALL, "it never runs inside a piecewise CUDA graph")                                      \
    X(HALF_BUILT, "half_built", CALL, "its constructor returned early and capture enables it all the same")             \
    X(AMX, "no_amx", SETUP, "the CPU has no AMX, and is not an ARM64 host that this release knows")                     \
    X(LOCAL_SIZE, "local_size", SETUP, "LOCAL_SIZE is not the group's {world_size} ranks")                              \
    X(WORKSPACE, "no_workspace", SETUP, "no FlashInfer workspace is set up for this group")                             \
    X(UNKNOWN_WIDTH, "unknown_width", CALL, "the tensor's columns are not known, so its workspace is not")              \
    X(NVLINK_V2, "no_full_nvlink_v2", SETUP, "the GPUs are not fully linked by NVLink, which V2 needs for two as well") \
    X(DEVICE_IDS, "device_ids", SETUP, "CUDA_VISIBLE_DEVICES holds no numbers, so its constructor raises")              \
    X(SWITCHED_OFF, "switched_off", CALL, "its `disabled` was set")

typedef enum sp_stop {
#define X(id, name, when, text) SP_STOP_BIT_##id,
    SP_STOPS(X)
#undef X
        SP_STOP_COUNT
} sp_stop;

#define SP_STOP(id) (UINT64_C(1) << SP_STOP_BIT_##id)

/* The stops that were settled when the server started. */
extern const uint64_t sp_stops_of_setup;

_Static_assert(SP_STOP_COUNT <= 64, "stops are one word");

#endif
