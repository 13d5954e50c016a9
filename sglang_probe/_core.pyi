# Types of the C extension; tests/test_stub.py holds every name and signature against the module.
from typing import Final, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from typing_extensions import Buffer  # known to type checkers; nothing is installed for it

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
def decide_derived(table: Buffer, word: int, /) -> _Codes: ...
def explain(ruleset: int, word: int, raises: int = 0, /) -> tuple[_Codes, _Codes, tuple[tuple[int, int, int], ...]]: ...
def walk(ruleset: int, /) -> NDArray[np.uint8]: ...
def state_count(ruleset: int, /) -> int: ...
def state_word(state: int, /) -> int: ...
def state_of(word: int, /) -> int: ...
def rulesets() -> tuple[tuple[str, str, int, dict[int, list[tuple[int, int, int, int, int, int, int]]]], ...]: ...
def releases() -> tuple[tuple[str, str, int, int, int, int, int, int, int, int], ...]: ...
def gate(release: int, gate: int, facts: tuple[int, ...], call: tuple[int, ...], context: int, /) -> _Answer: ...
def route(
    release: int, facts: tuple[int, ...], call: tuple[int, ...], context: int, derived: Buffer | None = None, lifted: int = 0, /
) -> tuple[tuple[int, int], tuple[_Answer, ...], _Codes, tuple[int, int, int, int, int, int], tuple[int, int]]: ...
def bands(
    release: int, facts: tuple[int, ...], call: tuple[int, ...], context: int, derived: Buffer | None = None, /
) -> tuple[tuple[int, tuple[int, int, int]], ...]: ...
def tally(ruleset: int, region: bytes, derived: Buffer | None = None, /) -> tuple[int, list[tuple[int, int, int, int]]]: ...
def reaches(ruleset: int, region: bytes, rule: int, path: int, derived: Buffer | None = None, /) -> bool: ...
def region_count(region: bytes, /) -> int: ...
def changes(
    ruleset_a: int,
    ruleset_b: int,
    region: bytes,
    derived_a: Buffer | None = None,
    derived_b: Buffer | None = None,
    /,
) -> tuple[int, int, tuple[tuple[bytes, int, int, int, _Codes, _Codes], ...]]: ...
def classes(
    release: int,
    facts: tuple[int, ...],
    call: tuple[int, ...],
    contexts: tuple[int, ...],
    dtypes: int,
    layouts: int,
    derived: Buffer | None = None,
    /,
) -> NDArray[np.uint64]: ...

class Router:
    """Paths by size for one case."""

    def __new__(
        cls, release: int, facts: tuple[int, ...], call: tuple[int, ...], context: int, derived: Buffer | None = None, /
    ) -> Router: ...
    @overload
    def __call__(self, nbytes: int, /) -> Path: ...
    @overload
    def __call__(self, sizes: ArrayLike, /) -> NDArray[np.uint8]: ...
    @property
    def edges(self) -> tuple[int, ...]: ...
