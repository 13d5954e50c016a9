"""A kernel's name -> the row of the one table that says which path it is of. Called by chrome.py, nsys.py and what shows a call.

A row is found by the function's own name, whole, so that a name that merely holds another is not taken for it; where one function serves
several paths, the row also asks the template's arguments. Invariant: a name that no row has is no collective as far as we know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from .._types import Path


class Kind(str, Enum):
    """What a kernel does. A string: ``Kind.FUSED == "fused"``."""

    ALL_REDUCE = "all_reduce"
    FUSED = "fused"
    """An all-reduce with residual and norm in it."""
    PART = "part"
    """The second kernel of one call; with it the call before may be a fused one."""
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    OTHER = "other"
    """A collective that is none of these."""
    UNKNOWN = "unknown"
    """A collective that does not say which."""

    def __str__(self) -> str:
        return self.value

    def __format__(self, spec: str) -> str:
        return str.__format__(self.value, spec)  # the name, on every Python


@dataclass(frozen=True)
class Kernel:
    """One row: names, what such a kernel is, and where that is read."""

    names: str
    """A pattern that the function's own name matches whole."""
    kind: Kind
    label: str
    """As people know it."""
    source: str
    """Where the name stands: project, file, releases."""
    paths: frozenset[Path] = frozenset()
    """Paths that launch it; empty where none of SGLang's dispatch does (a fused op, a model's own kernel, another collective)."""
    backends: tuple[str, ...] = ()
    """Whose code it may be, by the router's names; empty where that is not told."""
    kernel: str = ""
    """Which kernel of its path, by the router's names; "" where that is not told."""
    within: str = ""
    """A pattern that is found in the whole name: a namespace, a template's argument."""
    fuses: bool = False
    """Of a part: the call before it is a fused one."""

    @property
    def called(self) -> bool:
        """One call of an all-reduce, fused or not."""
        return self.kind in (Kind.ALL_REDUCE, Kind.FUSED, Kind.UNKNOWN)

    def of_path(self) -> str:
        """``custom (V2, one_shot_push)``."""
        paths = " or ".join(sorted(str(path) for path in self.paths)) or str(self.kind)
        told = ", ".join(filter(None, ["/".join(self.backends), self.kernel]))
        return f"{paths} ({told})" if told and told != paths else paths


_ANONYMOUS = "(anonymous namespace)"
_OWN = re.compile(r"[A-Za-z_$][\w$]*$")
_LENGTH = re.compile(r"L?(\d+)")


def own_name(name: str) -> str:
    """The function's own name, without return type, namespaces, template and arguments; "" where it has none."""
    text = name.strip()
    if text.startswith("_Z"):
        return _mangled_own_name(text)
    text = text.replace(_ANONYMOUS, "anonymous")
    depth, end = 0, len(text)
    for i, letter in enumerate(text):
        if letter == "<":
            depth += 1
        elif letter == ">":
            depth -= 1
        elif letter == "(" and depth == 0:
            end = i
            break
    text = text[:end].rstrip()
    if text.endswith(">"):
        text = text[: _opening(text)]
    found = _OWN.search(text)
    return found[0] if found else ""


def _opening(text: str) -> int:
    """Where the template's arguments at the end of a name begin."""
    depth = 0
    for i in range(len(text) - 1, -1, -1):
        depth += (text[i] == ">") - (text[i] == "<")
        if depth == 0:
            return i
    return 0


def _mangled_own_name(text: str) -> str:
    """Of a name as the compiler writes it: the last of the plain names before template or arguments."""
    nested = text[2:3] == "N"
    pos, own = 3 if nested else 2, ""
    while (found := _LENGTH.match(text, pos)) is not None:
        pos = found.end() + int(found[1][:6])
        own = text[found.end() : pos]
        if not nested:
            break  # what follows are types of its arguments
    return own


@lru_cache(maxsize=1 << 12)
def find_kernel(name: str) -> Kernel | None:
    """The row of a kernel's name; None where it is no collective that the table knows."""
    own = own_name(name)
    if not own:
        return None
    for pattern, within, row in _rows():
        if pattern.fullmatch(own) and (within is None or within.search(name)):
            return row
    return None


@lru_cache(maxsize=1)
def _rows() -> tuple[tuple[re.Pattern[str], re.Pattern[str] | None, Kernel], ...]:
    return tuple((re.compile(row.names), re.compile(row.within) if row.within else None, row) for row in kernel_table())


def kernel_table() -> tuple[Kernel, ...]:
    """The whole table; the first row that matches is taken."""
    from .table import NCCL, SGLANG
    from .table_others import OTHERS

    return (*NCCL, *SGLANG, *OTHERS)
