# Types of the C extension; tests/test_stub.py holds every name and signature against the module.
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
