"""What diff answers: outcomes, changed states, changed sizes. Made by diff.py and diff_worker.py; shown by _show/proof.py and changes.py.

Invariant: plain data; whatever a caller can tell of a route is in an Outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import _core
from .._types import FrozenMap

OPS = ("direct", "in place", "out of place")
EXCEPTIONS = tuple(name for name, _ in _core.EXCEPTIONS)


@dataclass(frozen=True)
class Outcome:
    """Where a call goes, as far as a caller can tell."""

    path: str
    rule: str
    op: str
    result: str
    """``input``, ``new tensor``, ``clone``, ``lost``, or the exception's name."""
    kernel: str = ""
    backend: str = ""

    def __str__(self) -> str:
        what = f"raises {self.result}" if self.path == "raises" else self.path
        extra = [part for part in (self.backend, self.kernel) if part and part != self.path]
        extra += [self.result] if self.path != "raises" and self.result not in ("input",) else []
        return f"{what} ({', '.join(extra)})" if extra else what


@dataclass(frozen=True)
class StateChange:
    """Changed states with one outcome before and one after."""

    before: Outcome
    after: Outcome
    states: int
    when: tuple[Mapping[str, tuple[Any, ...]], ...]
    """Conjunctions that together hold in exactly these states."""
    example: str
    """One of them as a call, to be asked of both revisions."""


@dataclass(frozen=True)
class SizeChange:
    """A range of sizes of one worker whose route changes."""

    group: str
    context: str
    first_bytes: int
    last_bytes: int
    before: Outcome
    after: Outcome
    tensors: tuple[str, ...]
    """Which dtypes, layouts and residues."""


@dataclass(frozen=True)
class Diff:
    """What changes between two revisions; false when nothing does."""

    a: str
    b: str
    level: str
    walked: int
    changed: int
    changes: tuple[StateChange, ...] = ()
    common: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: FrozenMap({}))
    """Conditions that every changed state has."""
    sizes: tuple[SizeChange, ...] = ()
    step: tuple[str, ...] = ()
    """How the verify step of a launch changes: fused and routed calls."""
    notes: tuple[str, ...] = ()
    """What could not be compared."""
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=FrozenMap)
    assumed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.changed or self.step or any(": only " in note for note in self.notes))

    def __str__(self) -> str:
        from .._show.proof import diff_text

        return diff_text(self)

    def __repr__(self) -> str:
        return f"<Diff: {str(self).splitlines()[0]}>"

    def _repr_html_(self) -> str:
        from .._show.proof import diff_html

        return diff_html(self)

    def to_dict(self) -> dict[str, Any]:
        return {
            "a": self.a,
            "b": self.b,
            "level": self.level,
            "walked": self.walked,
            "changed": self.changed,
            "common": {name: list(values) for name, values in self.common.items()},
            "changes": [
                {
                    "before": vars(c.before),
                    "after": vars(c.after),
                    "states": c.states,
                    "when": [{name: list(values) for name, values in when.items()} for when in c.when],
                    "example": c.example,
                }
                for c in self.changes
            ],
            "sizes": [
                {**vars(s), "before": vars(s.before), "after": vars(s.after), "tensors": list(s.tensors)} for s in self.sizes
            ],
            "step": list(self.step),
            "notes": list(self.notes),
            "fixed": {name: list(values) for name, values in self.fixed.items()},
            "assumed": list(self.assumed),
        }
