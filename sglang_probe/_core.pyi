# Types of the C extension; tests/test_stub.py holds every name and signature against the module.
from os import PathLike
from typing import Any, Final, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Buffer as _Bytes  # known to type checkers; nothing is installed for it

from ._decision import Decision
from ._run.switches import Settings
from ._types import Path

PATHS: Final[tuple[tuple[str, str], ...]]
RULES: Final[tuple[tuple[str, str], ...]]
EXCEPTIONS: Final[tuple[tuple[str, str], ...]]
CONDITIONS: Final[tuple[tuple[str, str, str], ...]]
CONTEXTS: Final[tuple[tuple[str, str], ...]]
DTYPES: Final[tuple[tuple[str, int], ...]]
STATES: Final[tuple[str, ...]]
DEVICES: Final[tuple[str, ...]]
BACKENDS: Final[tuple[str, ...]]
KERNELS: Final[tuple[tuple[str, int, str], ...]]
GATES: Final[tuple[str, ...]]
STOPS: Final[tuple[tuple[str, str, str], ...]]
FACTS: Final[tuple[tuple[str, int, str], ...]]
CALL_FACTS: Final[tuple[tuple[str, int, str], ...]]
AXES: Final[tuple[tuple[str, int], ...]]
LAYOUTS: Final[tuple[str, ...]]
CLASS_COLUMNS: Final[tuple[str, ...]]

# One record, graph, kind of call and the header of a ring file: (name, NumPy format, byte, text); _record/dtype.py has them as dtypes.
RING_RECORD: Final[tuple[tuple[str, str, int, str], ...]]
RING_GRAPH: Final[tuple[tuple[str, str, int, str], ...]]
RING_KIND: Final[tuple[tuple[str, str, int, str], ...]]
RING_HEADER: Final[tuple[tuple[str, str, int, str], ...]]
RING_NAMES: Final[tuple[tuple[str, str], ...]]
RING_FLAGS: Final[tuple[tuple[str, str], ...]]
RING_LAYOUTS: Final[tuple[tuple[str, str], ...]]
RING_OPS: Final[tuple[tuple[str, str], ...]]
PHASES: Final[tuple[tuple[str, str], ...]]

_Codes = tuple[int, int, int, int, int]
_Answer = tuple[int, int, int, int, int, int, int, int, int]

def register_paths(members: tuple[Path, ...], /) -> None: ...
def path(ruleset: int, word: int, /) -> Path: ...
def decide(ruleset: int, word: int, /) -> _Codes: ...
def decide_derived(table: _Bytes, word: int, /) -> _Codes: ...
def explain(ruleset: int, word: int, raises: int = 0, /) -> tuple[_Codes, _Codes, tuple[tuple[int, int, int], ...]]: ...
def walk(ruleset: int, /) -> NDArray[np.uint8]: ...
def state_count(ruleset: int, /) -> int: ...
def state_word(state: int, /) -> int: ...
def state_of(word: int, /) -> int: ...
def rulesets() -> tuple[tuple[str, str, int, dict[int, list[tuple[int, int, int, int, int, int, int]]]], ...]: ...
def releases() -> tuple[tuple[str, str, int, int, int, int, int, int, int, int], ...]: ...
def gate(release: int, gate: int, facts: tuple[int, ...], call: tuple[int, ...], context: int, /) -> _Answer: ...
def route(
    release: int,
    facts: tuple[int, ...],
    call: tuple[int, ...],
    context: int,
    derived: _Bytes | None = None,
    lifted: int = 0,
    off: int = 0,
    on: int = 0,
    kernel: int = 0,
    /,
) -> tuple[tuple[int, int], tuple[_Answer, ...], _Codes, tuple[int, int, int, int, int, int], tuple[int, int]]: ...
def bands(
    release: int, facts: tuple[int, ...], call: tuple[int, ...], context: int, derived: _Bytes | None = None, /
) -> tuple[tuple[int, tuple[int, int, int]], ...]: ...
def tally(ruleset: int, region: bytes, derived: _Bytes | None = None, /) -> tuple[int, list[tuple[int, int, int, int]]]: ...
def reaches(ruleset: int, region: bytes, rule: int, path: int, derived: _Bytes | None = None, /) -> bool: ...
def region_count(region: bytes, /) -> int: ...
def changes(
    ruleset_a: int,
    ruleset_b: int,
    region: bytes,
    derived_a: _Bytes | None = None,
    derived_b: _Bytes | None = None,
    /,
) -> tuple[int, int, tuple[tuple[bytes, int, int, int, _Codes, _Codes], ...]]: ...
def classes(
    release: int,
    facts: tuple[int, ...],
    call: tuple[int, ...],
    contexts: tuple[int, ...],
    dtypes: int,
    layouts: int,
    derived: _Bytes | None = None,
    /,
) -> NDArray[np.uint64]: ...

class Router:
    """Paths by size for one case."""

    def __new__(
        cls, release: int, facts: tuple[int, ...], call: tuple[int, ...], context: int, derived: _Bytes | None = None, /
    ) -> Router: ...
    @overload
    def __call__(self, nbytes: int, /) -> Path: ...
    @overload
    def __call__(self, sizes: ArrayLike, /) -> NDArray[np.uint8]: ...
    @property
    def edges(self) -> tuple[int, ...]: ...

class ProbeError(Exception):
    """Something of ours failed; the text says what and what to do about it."""

class ProbeUnavailable(ProbeError):
    """A part that this machine does not have (a GPU, an index, a package); the text says which."""

def board_create(size: int, arena_bytes: int = 67108864, /) -> int: ...

class Board:
    """The shared memory on which the ranks of one machine meet; rank -1 looks on."""

    size: int
    def __new__(cls, fd: int, rank: int = -1) -> Board: ...
    def fail(self, rank: int, text: str, /) -> None: ...
    def check(self) -> None: ...
    def describe(self) -> str: ...

class Buffer:
    """Memory of a Coordinator's device."""

    address: int
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(self, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Graph:
    """Captured calls of one rank."""

    def replay(self, times: int = 1, timed: bool = False, /) -> tuple[float, float] | None: ...

class Reduced:
    """What one all_reduce gave back."""

    tensor: Any
    path: Path
    rule: str
    kernel: str
    reduces: bool
    returns_new: bool
    host_us: float | None
    device_us: float | None
    seq: int
    decision: Decision

class Coordinator:
    """The dispatch over real communicators, one rank of it. Joining is collective."""

    rank: int
    world_size: int
    device: str
    timing: bool
    timeout_s: float
    seq: int
    def __init__(
        self,
        device: Any,
        board: int,
        rank: int,
        ordinal: int = 0,
        timeout_s: float = 30.0,
        max_bytes: int = 16777216,
        nccl: str | None = None,
        exchange: Any = None,
        world_size: int = 0,
    ) -> None: ...
    def all_reduce(self, tensor: Any, /) -> Reduced: ...
    def plan(self, tensor: Any, /) -> tuple[int, int, int, int, int, int, int]: ...
    def configure(
        self,
        settings: Settings,
        release: int,
        facts: tuple[int, ...],
        context: int,
        off: int,
        on: int,
        kernel: int,
        derived: bytes | None,
        /,
    ) -> None: ...
    def register_path(self, path: int, implementation: Any, /) -> None: ...
    def enter_capture(self) -> None: ...
    def exit_capture(self) -> int: ...
    def begin_graph(self, stream: int = 0, /) -> None: ...
    def end_graph(self, stream: int = 0, /) -> Graph: ...
    def buffer(self, nbytes: int, window: bool = False, /) -> Buffer: ...
    def wait(self, stream: int = 0, /) -> None: ...
    def barrier(self) -> None: ...
    def runs(self) -> tuple[tuple[str, int], ...]: ...
    def supports(self, path: int, kernel: int, dtype: int, nbytes: int, /) -> str: ...
    def cost(self, tensor: Any, rounds: int = 20, /) -> tuple[float, float, float | None]: ...
    def enqueue(self, tensor: Any, calls: int = 1, compute_us: float = 0.0, stamp: int = 0) -> float:
        """The path that ``all_reduce`` would take now, ``calls`` times, without its Python layer; host microseconds of one call.

        Timed are the output that SGLang allocates and the path, not the compute of ``compute_us`` before each call. With ``stamp``, call i
        has the slots from ``stamp + 5 * i`` on: before it, ENTER, MET and LEFT of a path that stamps (else 0), after it. While the stream
        captures, all of it is recorded. In place, the tensor is summed again and again.
        """

    def spin(self, us: float, stream: int = 0) -> None:
        """Compute that is only time, on the stream."""

    def hold(self, stream: int = 0) -> None:
        """What is enqueued from here on begins at ``release()``; after 5 s by itself, and then the next wait fails."""

    def release(self) -> None:
        """Lets go what ``hold()`` held, if anything; from any thread."""

    def mark(self, which: int, stream: int = 0) -> None:
        """The beginning (0) or the end (1) of what ``elapsed()`` measures."""

    def elapsed(self) -> float:
        """Device microseconds between the marks; waits for the second."""

    def stamp(self, slot: int, stream: int = 0) -> None:
        """The device's clock into a slot, 1 to 16384, when the stream comes to it."""

    def stamps(self, first: int, count: int) -> NDArray[np.uint64]:
        """ns of this rank's device clock; 0 where there is none. The stream was waited for."""

    def clear_stamps(self, first: int, count: int, stream: int = 0) -> None: ...
    def clock(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Offset and error of each rank's device clock, microseconds: its time minus its offset is rank 0's. Collective."""

    def comm(self) -> Any: ...
    def ran(self, path: int, /) -> int: ...
    def describe(self) -> str: ...
    def close(self) -> None: ...

class Recorder:
    """One process's ring file, and what wrapped calls share. Made by the hook; every method may be called from any thread."""

    path: str
    recording: bool
    pending: bool  # alarms() has something new
    context: int  # bits of CONTEXTS that hold now whatever the sources say (in_graph_capture, ...); settable
    label: str  # settable: what the graphs that are captured next are for
    site_every: int  # settable: the call site of every n-th call; 0 of none
    host_time: bool  # settable
    timer_every: int  # settable; needs a timer
    timer: (
        Any  # settable: timer(None) -> token before, timer(token, seq) after; None of a token: not this one. Never in a capture
    )
    def __new__(
        cls,
        path: str | PathLike[str],
        slots: int = 65536,
        graphs: int = 8192,
        kinds: int = 16384,
        release: str = "",
    ) -> Recorder:
        """Makes the file, in a folder that is there. ProbeError, MemoryError (the disk is full) and ValueError; a signal never, where the
        file system keeps what it reserved (tmpfs, ext4, XFS)."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def set_rank(self, rank: int, world_size: int, /) -> None: ...
    def set_sources(self, sources: tuple[tuple[int, Any, str, int], ...], /) -> None:
        """Where a call's context bits come from: (bits, where, name, when).

        where: a dict (a module's __dict__): its item `name`; None: the attribute `name` ("ca_comm.disabled", whose communicator is read
        once until forget()) of the call's first argument, which need not have it; anything else: its attribute `name`, or with "" it is
        called without arguments. True sets `bits` (CONTEXTS; bits 16 to 31 are the hook's own and reach expect() and the record). when:
        asked only if one of these bits is set already; 0: always. In this order. A source that fails counts a failure and sets nothing.
        """

    def set_expect(self, expect: Any, /) -> None:
        """expect(group, entry, dtype, nbytes, rows, columns, layout, context, direct, owner) -> index in PATHS, or (index, kernel's name),
        or None: not known.

        Called once a key (all but owner, the call's first argument); remembered until forget(). What it raises counts a failure, and is
        remembered as not known. dtype: index in DTYPES, 255 unknown. direct: known not to have come through all_reduce.
        The kernel stands in the record, as derived, where that path ran and no Wrapper saw which.
        """

    def forget(self) -> None:
        """Expected paths and groups' names are asked for anew: something that they rest on has changed."""

    def set_skipped(self, files: tuple[str, ...], /) -> None:
        """A call site is the first frame whose file name contains none of these."""

    def intern(self, kind: str, text: str, /) -> int: ...
    def alarms(self) -> list[tuple[str, str, int, int, int, int]]:
        """Alarms that are new since the last time: (group, entry, path, expected, calls so far, first_ns); paths as indexes."""

    def graph_begin(self, label: str = "") -> int:
        """A capture begins: until it ends, this thread's calls have the bit stream_capturing whatever the sources say."""

    def graph_end(self, graph: int = 0) -> None: ...
    def registered(self, addresses: int, /) -> None:
        """So many addresses were registered for all graphs captured since the last time: they share a batch."""

    def graph_replayed(self, graph: int, times: int = 1) -> None: ...
    def timed(self, seq: int, device_ns: int, /) -> bool:
        """Device time of a record, once it is known; False: it was overwritten."""

    def put(
        self,
        group: str,
        entry: str,
        path: int,
        nbytes: int,
        dtype: int = 255,
        rows: int = 0,
        context: int = 0,
        op: int = 0,
        kernel: str = "",
        expected: int = 255,
        graph: int = 0,
        site: str = "",
        host_ns: int = 0,
        flags: int = 0,
    ) -> int:
        """A record by hand, whether recording or not: its seq."""

    def counts(self) -> dict[str, int]: ...
    def close(self, remove: bool = False) -> None:
        """Says goodbye. Wrapped calls go on without it; the file stays unless `remove`."""

class Wrapper:
    """A C callable in place of one of SGLang's functions: `Class.method = Wrapper(Class.method, ...)` or a module's attribute.

    With an entry it opens a call, unless one of the same group is open on this thread; inside an open call it says which path and kernel
    run. Without an entry it does only the latter, and is a plain call elsewhere. Whatever the function returns or raises is passed on.
    """

    __wrapped__: Any
    def __new__(
        cls,
        original: Any,
        recorder: Recorder,
        entry: str = "",
        path: int = -1,
        op: str = "",
        argument: int = 1,
        keyword: str = "",
        group: Any = ".unique_name",
        dry: int = -1,
        unless: str = "",
        kernels: tuple[tuple[Any, str], ...] = (),
        through: tuple[Any, ...] = (),
        which: int = -1,
        which_keyword: str = "",
    ) -> Wrapper:
        """
        entry: its name, "" for an inner one. path: index in PATHS that this call means; of an outer one: unless an inner one says
        otherwise; -1: it says nothing. op: of RING_OPS. argument, keyword: where the tensor is, counted with `self` as 0, or its name.
        group: ".name": that attribute (a str) of the first argument, ".a.b" through several, read once until forget(); another str: the
        name itself; "": not known, which joins any open call, as an attribute of "" does (with `unless`, it opens none); a callable:
        group(bool) -> str, asked once for each answer until forget(), with whether the argument `which`, or of the name `which_keyword`,
        is true (it is where it was not given). dry: 1 says that nothing is launched
        from here on, 0 that something is. unless: attribute of the first argument that, where true, means that this call does nothing.
        kernels: (result, name): what it means that this object (or a tuple that begins with these objects; ... for any) is returned, by
        identity. through: code objects of the callers that make the call one of all_reduce: looked for on the stack only where the path
        is not the expected one, and then in each such call (measured with CPU tensors on an AMD EPYC: 0.2 us more for a stack of 5
        frames, 0.4 of 20, 1.0 of 60; a third of it for frames walked before).
        """

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: Any, owner: Any = None, /) -> Any: ...
    def __reduce__(self) -> str: ...

class GraphWrapper:
    """A C callable in place of a method of torch.cuda.CUDAGraph: "begin" (capture_begin), "end" (capture_end) or "replay".

    Graphs are told apart by the object that the method is called on, from its capture_begin on. Replays are counted while recording
    or not. Between "begin" and "end" that thread's calls have the bit stream_capturing, which then needs no source.
    """

    __wrapped__: Any
    def __new__(cls, original: Any, recorder: Recorder, event: str) -> GraphWrapper: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: Any, owner: Any = None, /) -> Any: ...
    def __reduce__(self) -> str: ...

def ring_look(fd: int, /) -> dict[str, int | str]:
    """The header of a ring file, checked: RING_HEADER's fields, release. ValueError says what is wrong with it."""

def ring_control(fd: int, name: str, value: int, /) -> None:
    """Sets a control word of a checked file opened for writing: control, site_every, timer_every, host_time."""

def ring_records(fd: int, since: int = 0, /) -> tuple[bytes, int, int, int]:
    """(records in order, `since` for the next time, overwritten before they were read, torn)."""

def ring_tables(fd: int, /) -> tuple[bytes, bytes, list[tuple[str, int, str]]]:
    """(graphs, kinds, names as (kind, id, text))."""
