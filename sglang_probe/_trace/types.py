"""Checked: the answer of check, and its parts. Made by check.py; shown by page.py.

Invariant: what was not held against the trace is told as such; AGREES is only said of steps that were seen whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from .._types import FrozenMap
from .compare import Compared
from .expected import Expected
from .ranks import RankDifference
from .times import WayTime

if TYPE_CHECKING:
    from .._show.page import Block
    from .._step.types import Step


class Seen(str, Enum):
    """The answer in one word. A string: ``Seen.AGREES == "AGREES"``."""

    AGREES = "AGREES"
    DIFFERS = "DIFFERS"
    SEEN = "SEEN"
    CANNOT_TELL = "CANNOT_TELL"

    def __str__(self) -> str:
        return self.value

    def __format__(self, spec: str) -> str:
        return str.__format__(self.value, spec)  # the name, on every Python


STATUS: Mapping[Seen, int] = FrozenMap({Seen.AGREES: 0, Seen.SEEN: 0, Seen.DIFFERS: 1, Seen.CANNOT_TELL: 2})
"""The exit status of the command."""


@dataclass(frozen=True)
class RankSeen:
    """What the trace shows of one rank."""

    label: str
    told_by: str
    """What says which rank it is; "" where nothing does."""
    file: str
    found_by: str
    """By what its steps were found."""
    steps: int
    """Those that were held against what is expected; without an expectation, all."""
    kinds: tuple[Compared, ...]
    """Of these steps, the most frequent first."""
    others: Mapping[str, int]
    """What the other steps are, and how many."""
    calls: int
    """All-reduces of the whole trace, fused or not."""
    replayed: int
    """Of these, those that graphs launched."""
    graph_launches: int
    gathers: int
    reduce_scatters: int
    other_collectives: int
    kernels: int
    """Of all kinds."""
    outside: int = 0
    """All-reduces that are in no step."""
    wrong_phase: str = ""
    notes: tuple[str, ...] = ()

    @property
    def differing(self) -> int:
        """Steps that are not as expected."""
        return sum(kind.count for kind in self.kinds if kind.differing)

    @property
    def differs(self) -> bool:
        return bool(self.differing or self.wrong_phase)

    @property
    def worst(self) -> Compared | None:
        """The most frequent kind of step that is not as expected; of those that are, the most frequent."""
        return next((kind for kind in self.kinds if kind.differing), self.kinds[0] if self.kinds else None)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        kinds = [
            {
                "steps": kind.count,
                "phase": kind.phase,
                "calls": len(kind.ways),
                "counts": kind.counts,
                "differing": kind.differing,
                "first": None if kind.first is None else dict(vars(kind.first)),
                "other_kernel": kind.other_kernel,
            }
            for kind in self.kinds
        ]
        return {**vars(self), "kinds": kinds, "others": dict(self.others), "notes": list(self.notes), "differing": self.differing}


@dataclass(frozen=True, repr=False)
class Checked:
    """What a trace shows against what was expected. ``check`` gives it; ``str`` is the page, ``why()`` all of it."""

    word: Seen
    sentence: str
    """The answer in one line."""
    files: tuple[str, ...]
    written_by: tuple[str, ...]
    ranks: tuple[RankSeen, ...]
    expected: Expected | None = None
    """None where nothing was said of the server."""
    step: Step | None = field(default=None, compare=False)
    """What the expectation rests on."""
    apart: tuple[RankDifference, ...] = ()
    """Ranks that went another way than the others."""
    times: tuple[WayTime, ...] = ()
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """What stands above all else: a trace that is damaged, counts that were not held against it."""

    @property
    def agrees(self) -> bool:
        """Everything that was expected was seen, and nothing else."""
        return self.word is Seen.AGREES

    @property
    def status(self) -> int:
        """The exit status of the command: 0 agrees (or was only looked at), 1 differs, 2 cannot be told."""
        return STATUS[self.word]

    def __str__(self) -> str:
        from .._show.page import to_text

        return to_text(self.page())

    def __repr__(self) -> str:
        return f"<Checked: {self.sentence}>"

    def why(self) -> str:
        """All evidence as text."""
        from .._show.page import to_text

        return to_text(self.page(verbose=True))

    def page(self, verbose: bool = False) -> list[Block]:
        """What people see, as blocks. ``verbose``: every way with its kernels and where they are read, and what was assumed."""
        from .page import checked_page

        return checked_page(self, verbose)

    def _repr_html_(self) -> str:
        from .._show.page import to_html

        return to_html(self.page())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        texts = ("findings", "notes", "assumed", "warnings", "files", "written_by")
        return {
            "word": str(self.word),
            "sentence": self.sentence,
            "status": self.status,
            "expected": None if self.expected is None else self.expected.to_dict(),
            "step": None if self.step is None else {"sglang": self.step.sglang, "model": self.step.model, "context": self.step.context,
                                                    "batch": self.step.batch, "tokens": self.step.tokens, "bytes": self.step.nbytes},
            "ranks": [rank.to_dict() for rank in self.ranks],
            "apart": [{**vars(one), "others": list(one.others)} for one in self.apart],
            "times": [one.to_dict() for one in self.times],
            **{name: list(getattr(self, name)) for name in texts},
        }  # fmt: skip
