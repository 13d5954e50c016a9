"""Side: what stands on one side of an experiment, ready to be run again and again; Outcome: what one run of it gave.

Made by commands.py and targets.py, used by experiment.py. Invariant: a run never raises for what its program did: that is an outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from .seen import Seen, content_of

Look = Callable[[bool], None]
"""Called now and then while a run goes on; with True at the moments at which the machine's state is to be taken."""


@dataclass(frozen=True)
class Outcome:
    """One run, from the start of its fresh processes to their end."""

    figures: tuple[float, ...] = ()
    """The iterations of its process; none where it failed."""
    failed: str = ""
    """Why it gave no figure."""
    wall_s: float = 0.0
    note: str = ""
    seen: Seen = field(default_factory=Seen)
    cell: Mapping[str, Any] | None = None
    """Of our own bench: the whole cell, as a measurement file has it."""
    output: str = ""
    """Of a run that failed, the tail of what it printed."""


@dataclass(frozen=True)
class Declared:
    """What is meant to differ between the sides: nothing that is named here is held against a verdict."""

    env: frozenset[str] = frozenset()
    libraries: frozenset[str] = frozenset()
    """Stems, as ``libnccl``."""
    folders: tuple[str, ...] = ()
    """Paths that a declared variable names: what is loaded from there is declared too."""
    nccl: tuple[tuple[str, str, str], ...] = ()
    """(label of an arm, the libnccl that it is to load, what tells its content): it must have loaded that and no other."""

    def __or__(self, other: Declared) -> Declared:
        folders, nccl = (*self.folders, *other.folders), (*self.nccl, *other.nccl)
        return Declared(self.env | other.env, self.libraries | other.libraries, folders, nccl)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "env": sorted(self.env),
            "libraries": sorted(self.libraries),
            "folders": sorted(set(self.folders)),
            "nccl": [list(one) for one in self.nccl],
        }

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Declared:
        """What `to_dict` gave."""
        nccl = tuple((str(label), str(path), str(told)) for label, path, told in plain["nccl"])
        return cls(frozenset(plain["env"]), frozenset(plain["libraries"]), tuple(plain["folders"]), nccl)


class Side(Protocol):
    """One arm, checked, with everything found out that does not need a run."""

    @property
    def label(self) -> str: ...

    @property
    def text(self) -> str:
        """What it is, for people: one line."""

    @property
    def unit(self) -> str: ...

    @property
    def declared(self) -> Declared: ...

    def to_dict(self) -> dict[str, Any]:
        """What a file keeps of it; the same whenever the same is asked for."""

    def run(self, number: int, limit_s: float, look: Look) -> Outcome:
        """Fresh processes, measured once; all of them are gone when it returns or raises. ``number``: of the run, over both sides.

        Raises ProbeUnavailable and InputError where no run of it will ever succeed here; KeyboardInterrupt.
        """


_LOADER = ("LD_LIBRARY_PATH", "LD_PRELOAD")


def declared_of(env: Mapping[str, str], nccl: str | None, label: str = "") -> Declared:
    """By the variables and the NCCL that somebody set."""
    folders = tuple(
        part for name, value in env.items() if name in _LOADER or name.endswith("_SO_PATH") for part in value.split(":") if part
    )
    if nccl is None:
        return Declared(frozenset(env), frozenset(), folders)
    return Declared(frozenset(env), frozenset({"libnccl"}), folders, ((label, nccl, content_of(nccl)),))
