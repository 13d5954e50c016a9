"""NumPy dtypes of what a ring file holds: a record, a graph, a kind of call. A test holds them against the C structs.

Called by ring.py and by everything that reads records. Invariant: 64 bytes each, in the order of the file.
"""

from __future__ import annotations

import numpy as np

RECORD = np.dtype(
    [
        ("seq", "u8"),  # number of the record in this process, from 1; gaps are slots that a writer never left
        ("time_ns", "u8"),  # when the call began, CLOCK_MONOTONIC; captured: when it was captured
        ("nbytes", "u8"),  # bytes of the tensor
        ("host_ns", "u4"),  # from the call to its return on the host; 0 where it was not asked for
        ("device_ns", "u4"),  # on the device, by events; 0 where it was not sampled
        ("rows", "u4"),  # elements / last dimension; 0 unknown
        ("thread", "u4"),  # the kernel's number of the thread
        ("context", "u4"),  # CONTEXTS by their bits; from bit 16 on, what the hook's own sources say
        ("call", "u4"),  # number of the call among those of its group, from 1 when recording began
        ("site", "u2"),  # name of kind site
        ("graph", "u2"),  # the graph that it was captured into, from 1; 0: none, or not known
        ("group", "u2"),  # name of kind group
        ("flags", "u2"),  # RING_FLAGS by their bits
        ("entry", "u1"),  # name of kind entry
        ("path", "u1"),  # index in PATHS of what ran; 255: none was seen
        ("kernel", "u1"),  # name of kind kernel
        ("expected", "u1"),  # index in PATHS of what the router says; 255: nobody asked it, or it does not know
        ("dtype", "u1"),  # index in DTYPES; 255 unknown
        ("phase", "u1"),  # index in PHASES
        ("op", "u1"),  # index in RING_OPS
        ("layout", "u1"),  # RING_LAYOUTS by their bits, and from bit 5 on the number of dimensions (7: or more)
    ]
)

GRAPH = np.dtype(
    [
        ("state", "u4"),  # 0 unused, 1 being captured, 2 captured
        ("label", "u4"),  # name of kind graph
        ("captured", "u8"),  # calls recorded into it
        ("nbytes", "u8"),  # their bytes
        ("replays", "u8"),  # times it was replayed
        ("registered", "u8"),  # 1 + addresses that were registered for its batch; 0: nobody said
        ("began_ns", "u8"),  # CLOCK_MONOTONIC
        ("ended_ns", "u8"),  # CLOCK_MONOTONIC; 0: not yet
        ("batch", "u8"),  # captures that one registration covers share this number, from 1
    ]
)

KIND = np.dtype(
    [
        ("state", "u4"),  # 0 unused, 1 being made, 2 good
        ("group", "u2"),  # name of kind group
        ("graph", "u2"),  # the graph that they were captured into; 0: not captured, or not known
        ("entry", "u1"),  # name of kind entry
        ("path", "u1"),  # as in a record
        ("kernel", "u1"),  # as in a record
        ("expected", "u1"),  # as in a record
        ("dtype", "u1"),  # as in a record
        ("phase", "u1"),  # as in a record
        ("op", "u1"),  # as in a record
        ("flags", "u1"),  # the record's flags, its lower 8 bits: alarms are kinds of their own
        ("calls", "u8"),  # calls of this kind; captured ones once
        ("nbytes", "u8"),  # their bytes
        ("host_ns", "u8"),  # sum over the calls where it was taken
        ("device_ns", "u8"),  # sum over the sampled calls
        ("timed", "u8"),  # calls in device_ns
        ("first_ns", "u8"),  # time_ns of the first one
    ]
)

UNKNOWN = 255
"""Of path, expected and dtype: not known."""
