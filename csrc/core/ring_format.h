/* The ring: one file a process in which a hook writes what it saw, read by
 * others while it is written and after its writer was killed. Here is what lies
 * in it; ring.h has the functions.
 *
 *   header | names | graphs | kinds | slots
 *
 * A slot is 8 words of 64 bits. The first one says whose it is: 0 nobody's yet,
 * seq of a whole record, ~seq of one being written: no mixture of the bytes of
 * two of these reads as a third. It is claimed by compare-and-swap and its seq
 * only ever grows, so that two writers never share a slot, and a reader that
 * finds the same seq before and after its copy has a whole record. Payload
 * words are release stores and acquire loads; there is no fence. A writer that
 * was stopped inside a slot costs that slot, once a lap, and nothing else.
 *
 * Invariant: a reader believes nothing that the file says before it was held
 * against the file's real size; a writer gets no signal for a full disk, because
 * every byte was reserved before it was mapped: on a file system that keeps what
 * it reserved (tmpfs, ext4, XFS; btrfs, ZFS and NFS may run out all the same). */
#ifndef SP_RING_FORMAT_H
#define SP_RING_FORMAT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "names.h"

#define SP_RING_MAGIC \
    UINT64_C(0x01474E4952425053) /* "SPBRING" and 1, as a little-endian machine  \
                                  writes it */
#define SP_RING_VERSION 1

enum {
    SP_RING_HEADER_BYTES = 4096,
    SP_RING_ROW_BYTES = 64, /* of a slot, a graph and a kind */
    SP_RING_WORDS = 7,      /* of payload in a slot */
    SP_RING_SLOTS_MIN = 64,
    SP_RING_SLOTS_MAX = 1 << 20,
    SP_RING_GRAPHS_MAX = 65535, /* numbered from 1; 0 is none */
    SP_RING_KINDS_MAX = 1 << 20,
    SP_RING_NAMES_MAX = 1 << 24, /* bytes */
    SP_RING_TEXT_MAX = 480,      /* bytes of one name */
    SP_RING_NONE = 255,          /* of path, expected and dtype: not known */
};

/* X(ENUM, name, text): what a name is one of. Ids count from 1 in each; 0 is
 * none. */
#define SP_RING_NAMES(X)                                         \
    X(GROUP, "group", "a process group, by its unique name")     \
    X(ENTRY, "entry", "which of SGLang's functions was entered") \
    X(KERNEL, "kernel", "which kernel the communicator picked")  \
    X(SITE, "site", "who called: file, line and function")       \
    X(GRAPH, "graph", "what a graph was captured for")           \
    X(NOTE, "note", "what the hook had to say once, for whoever reads")

/* X(ENUM, name, text): where in a server's life a call was made; follows from
 * its context bits. */
#define SP_PHASES(X)                                                                 \
    X(EAGER, "eager", "run at once")                                                 \
    X(CAPTURED, "captured", "recorded into a CUDA graph: it runs when that replays") \
    X(WARMUP, "warmup", "run inside graph_capture() before the stream captures")     \
    X(PIECEWISE, "piecewise", "run at once with the piecewise flag set")             \
    X(COMPILE, "compile", "run while the piecewise graph is compiled or warmed up")

/* X(ENUM, name, text): where the result is. */
#define SP_RING_OPS(X)                                      \
    X(UNKNOWN, "", "not known")                             \
    X(IN_PLACE, "in_place", "in the tensor that was given") \
    X(OUT_OF_PLACE, "out_of_place", "in a new tensor")      \
    X(FUSED, "fused", "together with the residual add and the normalisation")

/* X(ENUM, name, text): bits of a record's flags. */
#define SP_RING_FLAGS(X)                                                                            \
    X(ALARM, "alarm", "the path that ran is not the expected one")                                  \
    X(DRY, "dry", "nothing was launched: v1's warm-up gives back zeros")                            \
    X(NOTHING, "nothing", "the function gave back nothing where it owes a tensor: it reduced none") \
    X(RAISED, "raised", "the function ended in an exception")                                       \
    X(MANY, "many", "more than one path ran inside of this one call")                               \
    X(DIRECT, "direct", "known not to have come through all_reduce")                                \
    X(THROUGH, "through", "known to have come through all_reduce")                                  \
    X(NO_TENSOR, "no_tensor", "the tensor could not be read: bytes and dtype are not known")        \
    X(BY_HAND, "by_hand", "written by put(), not by a wrapped call")                                \
    X(DERIVED, "derived", "the kernel was not seen: it is the one that the release's rules pick")

/* X(ENUM, name, text): bits of a record's layout. The three highest bits are
 * the number of dimensions, 7 for more. */
#define SP_RING_LAYOUTS(X)                                                        \
    X(CONTIGUOUS, "contiguous", "contiguous in memory")                           \
    X(DENSE, "dense", "its elements fill one piece of memory, in whatever order") \
    X(ALIGNED, "aligned", "its address is a multiple of 16")                      \
    X(ELSEWHERE, "elsewhere", "read by attributes: strides and address were not looked at")

#define X(id, name, text) SP_NAMED_##id,
typedef enum sp_named { SP_RING_NAMES(X) SP_NAMED_COUNT } sp_named;
#undef X
#define X(id, name, text) SP_PHASE_##id,
typedef enum sp_phase { SP_PHASES(X) SP_PHASE_COUNT } sp_phase;
#undef X
#define X(id, name, text) SP_RING_OP_##id,
typedef enum sp_ring_op { SP_RING_OPS(X) SP_RING_OP_COUNT } sp_ring_op;
#undef X
#define X(id, name, text) SP_FLAG_BIT_##id,
typedef enum sp_ring_flag { SP_RING_FLAGS(X) SP_FLAG_COUNT } sp_ring_flag;
#undef X
#define X(id, name, text) SP_LAID_BIT_##id,
typedef enum sp_ring_layout { SP_RING_LAYOUTS(X) SP_LAID_COUNT } sp_ring_layout;
#undef X

#define SP_FLAG(id)        ((uint16_t)(1u << SP_FLAG_BIT_##id))
#define SP_LAID(id)        ((uint8_t)(1u << SP_LAID_BIT_##id))
#define SP_LAID_DIMS_SHIFT 5

/* X(type, numpy, field, text): one record. Plain in the writer's hands, words
 * in the file; seq is the slot's word there. */
#define SP_RECORD_FIELDS(X)                                                                               \
    X(uint64_t, "u8", seq,                                                                                \
      "number of the record in this process, from 1; gaps are slots that a "                              \
      "writer never left")                                                                                \
    X(uint64_t, "u8", time_ns, "when the call began, CLOCK_MONOTONIC; captured: when it was captured")    \
    X(uint64_t, "u8", nbytes, "bytes of the tensor")                                                      \
    X(uint32_t, "u4", host_ns, "from the call to its return on the host; 0 where it was not asked for")   \
    X(uint32_t, "u4", device_ns, "on the device, by events; 0 where it was not sampled")                  \
    X(uint32_t, "u4", rows, "elements / last dimension; 0 unknown")                                       \
    X(uint32_t, "u4", thread, "the kernel's number of the thread")                                        \
    X(uint32_t, "u4", context, "CONTEXTS by their bits; from bit 16 on, what the hook's own sources say") \
    X(uint32_t, "u4", call,                                                                               \
      "number of the call among those of its group, from 1 when recording "                               \
      "began")                                                                                            \
    X(uint16_t, "u2", site, "name of kind site")                                                          \
    X(uint16_t, "u2", graph, "the graph that it was captured into")                                       \
    X(uint16_t, "u2", group, "name of kind group")                                                        \
    X(uint16_t, "u2", flags, "RING_FLAGS by their bits")                                                  \
    X(uint8_t, "u1", entry, "name of kind entry")                                                         \
    X(uint8_t, "u1", path, "index in PATHS of what ran; 255: none was seen")                              \
    X(uint8_t, "u1", kernel, "name of kind kernel")                                                       \
    X(uint8_t, "u1", expected,                                                                            \
      "index in PATHS of what the router says; 255: nobody asked it, or it "                              \
      "does not know")                                                                                    \
    X(uint8_t, "u1", dtype, "index in DTYPES; 255 unknown")                                               \
    X(uint8_t, "u1", phase, "index in PHASES")                                                            \
    X(uint8_t, "u1", op, "index in RING_OPS")                                                             \
    X(uint8_t, "u1", layout, "RING_LAYOUTS by their bits, and from bit 5 on the number of dimensions")

typedef struct sp_record {
#define X(type, numpy, field, text) type field;
    SP_RECORD_FIELDS(X)
#undef X
} sp_record;

/* X(type, numpy, field, text): one CUDA graph. Row n is graph n + 1. */
#define SP_GRAPH_FIELDS(X)                                                                            \
    X(uint32_t, "u4", state, "0 unused, 1 being captured, 2 captured")                                \
    X(uint32_t, "u4", label, "name of kind graph")                                                    \
    X(uint64_t, "u8", captured, "calls recorded into it")                                             \
    X(uint64_t, "u8", nbytes, "their bytes")                                                          \
    X(uint64_t, "u8", replays, "times it was replayed")                                               \
    X(uint64_t, "u8", registered, "1 + addresses that were registered for its batch; 0: nobody said") \
    X(uint64_t, "u8", began_ns, "CLOCK_MONOTONIC")                                                    \
    X(uint64_t, "u8", ended_ns, "CLOCK_MONOTONIC; 0: not yet")                                        \
    X(uint64_t, "u8", batch, "captures that one registration covers share this number, from 1")

/* All calls of one kind since the file was made: what the ring overwrites stays
 * counted here. A row is its state, then what tells one kind from another,
 * which never changes once the state is 2, then sums. X(type, numpy, field,
 * text) */
#define SP_KIND_KEY(X)                                                                                \
    X(uint16_t, "u2", group, "name of kind group")                                                    \
    X(uint16_t, "u2", graph, "the graph that they were captured into; 0: not captured, or not known") \
    X(uint8_t, "u1", entry, "name of kind entry")                                                     \
    X(uint8_t, "u1", path, "as in a record")                                                          \
    X(uint8_t, "u1", kernel, "as in a record")                                                        \
    X(uint8_t, "u1", expected, "as in a record")                                                      \
    X(uint8_t, "u1", dtype, "as in a record")                                                         \
    X(uint8_t, "u1", phase, "as in a record")                                                         \
    X(uint8_t, "u1", op, "as in a record")                                                            \
    X(uint8_t, "u1", flags, "the record's flags, its lower 8 bits: alarms are kinds of their own")

#define SP_KIND_SUMS(X)                                                 \
    X(uint64_t, "u8", calls, "calls of this kind; captured ones once")  \
    X(uint64_t, "u8", nbytes, "their bytes")                            \
    X(uint64_t, "u8", host_ns, "sum over the calls where it was taken") \
    X(uint64_t, "u8", device_ns, "sum over the sampled calls")          \
    X(uint64_t, "u8", timed, "calls in device_ns")                      \
    X(uint64_t, "u8", first_ns, "time_ns of the first one")

typedef struct sp_kind_key {
#define X(type, numpy, field, text) type field;
    SP_KIND_KEY(X)
#undef X
} sp_kind_key;

/* What the file holds in place of a plain number is an atomic of the same size
 * and place. */
typedef struct sp_graph_row {
#define X(type, numpy, field, text) _Atomic type field;
    SP_GRAPH_FIELDS(X)
#undef X
} sp_graph_row;

typedef struct sp_kind_row {
    _Atomic uint32_t state; /* 0 unused, 1 being made, 2 good */
    sp_kind_key key;
#define X(type, numpy, field, text) _Atomic type field;
    SP_KIND_SUMS(X)
#undef X
} sp_kind_row;

typedef struct sp_slot {
    _Atomic uint64_t word;
    _Atomic uint64_t payload[SP_RING_WORDS];
} sp_slot;

/* X(type, numpy, field, text): the header's fixed part: written once, before
 * the file has its name. */
#define SP_HEADER_FIELDS(X)                                                      \
    X(uint64_t, "u8", magic, "SPBRING and the version")                          \
    X(uint32_t, "u4", version, "1")                                              \
    X(uint32_t, "u4", row_bytes, "64")                                           \
    X(uint64_t, "u8", file_bytes, "of the whole file")                           \
    X(uint64_t, "u8", names_at, "where the names begin")                         \
    X(uint64_t, "u8", names_bytes, "room for them")                              \
    X(uint64_t, "u8", graphs_at, "where the graphs begin")                       \
    X(uint64_t, "u8", graphs, "rows")                                            \
    X(uint64_t, "u8", kinds_at, "where the kinds begin")                         \
    X(uint64_t, "u8", kinds, "rows, a power of two")                             \
    X(uint64_t, "u8", slots_at, "where the slots begin")                         \
    X(uint64_t, "u8", slots, "slots, a power of two")                            \
    X(uint64_t, "u8", started, "start of the process, as /proc/PID/stat has it") \
    X(uint64_t, "u8", mono_ns, "CLOCK_MONOTONIC when the file was made")         \
    X(uint64_t, "u8", wall_ns, "CLOCK_REALTIME at that moment, since 1970")      \
    X(uint32_t, "u4", pid, "the process that writes")                            \
    X(uint32_t, "u4", uid, "its user")

/* X(type, numpy, field, text): what the writer looks at before each call.
 * Written from outside too, by pwrite(). */
#define SP_CONTROL_FIELDS(X)                                                                \
    X(uint32_t, "u4", control,                                                              \
      "odd: recording. Each start adds 2, so that a new value is a new "                    \
      "recording")                                                                          \
    X(uint32_t, "u4", site_every, "the call site of every n-th call; 0: of none")           \
    X(uint32_t, "u4", timer_every, "every n-th eager call is timed on the device; 0: none") \
    X(uint32_t, "u4", host_time, "1: host_ns of every call")                                \
    X(uint32_t, "u4", closed, "1: the writer said goodbye")                                 \
    X(int32_t, "i4", rank, "rank in the world; -1 not known")                               \
    X(uint32_t, "u4", world_size, "ranks; 0 not known")                                     \
    X(uint32_t, "u4", batch, "registrations so far + 1: what captures carry")

/* X(type, numpy, field, text): what only grows. */
#define SP_COUNT_FIELDS(X)                                                                 \
    X(uint64_t, "u8", head, "records so far, and slots that were passed over")             \
    X(uint64_t, "u8", passed, "slots that were passed over: their writer never left them") \
    X(uint64_t, "u8", deep, "calls inside of so many others that they were not recorded")  \
    X(uint64_t, "u8", failures, "times that the recorder itself failed and stood aside")   \
    X(uint64_t, "u8", asked,                                                               \
      "times that the expected path was asked for: everything else was "                   \
      "remembered")                                                                        \
    X(uint64_t, "u8", alarms, "calls whose path was not the expected one")                 \
    X(uint64_t, "u8", names_used, "bytes of the names that are whole")                     \
    X(uint64_t, "u8", names_lost, "names that found no room")                              \
    X(uint64_t, "u8", graphs_used, "graphs so far")                                        \
    X(uint64_t, "u8", graphs_lost, "graphs that found no row")                             \
    X(uint64_t, "u8", kinds_used, "kinds so far")                                          \
    X(uint64_t, "u8", kinds_lost, "calls whose kind found no row")                         \
    X(uint64_t, "u8", replays_lost, "replays of graphs that have no row")

typedef struct sp_ring_header {
#define X(type, numpy, field, text) type field;
    SP_HEADER_FIELDS(X)
#undef X
    char release[64]; /* of SGLang, with its 0 */
} sp_ring_header;

typedef struct sp_ring_control {
#define X(type, numpy, field, text) _Atomic type field;
    SP_CONTROL_FIELDS(X)
#undef X
} sp_ring_control;

typedef struct sp_ring_counts {
#define X(type, numpy, field, text) _Atomic type field;
    SP_COUNT_FIELDS(X)
#undef X
} sp_ring_counts;

enum { SP_RING_CONTROL_AT = 1024, SP_RING_COUNTS_AT = 2048 }; /* in the header's page, on lines of their own */

_Static_assert(sizeof(sp_record) == SP_RING_ROW_BYTES && sizeof(sp_slot) == SP_RING_ROW_BYTES, "a slot is one cache line");
_Static_assert(sizeof(sp_graph_row) == SP_RING_ROW_BYTES, "a graph is one cache line");
_Static_assert(sizeof(sp_kind_key) == 12, "a kind's key has no hole: it is compared as bytes");
_Static_assert(sizeof(sp_kind_row) == SP_RING_ROW_BYTES, "a kind is one cache line");
_Static_assert(sizeof(sp_ring_header) <= SP_RING_CONTROL_AT, "what changes stands behind what does not");
_Static_assert(SP_RING_CONTROL_AT + sizeof(sp_ring_control) <= SP_RING_COUNTS_AT, "parts of the header do not overlap");
_Static_assert(SP_RING_COUNTS_AT + sizeof(sp_ring_counts) <= SP_RING_HEADER_BYTES, "the header is one page");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2, "a lock would not reach over processes");

#endif
