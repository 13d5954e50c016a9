"""AbResult: what an experiment came to: the verdict, the runs, what differed between the arms, how it ended. Made by judged.py.

Invariant: where the arms' states differ, or the experiment was ended by anything but its rule or its budget, the word is UNDECIDED, and the
reason says why and what to do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._measure.cell import Cell
from .._measure.format import thaw
from .._measure.measurement import Measurement, Provenance
from .._types import FrozenMap, InputError
from .._verdict.verdict import Verdict, Word
from .compare import Difference
from .experiment import FINAL, StoppedBy
from .order import Arm as Name
from .runs import WARM_UP, Run
from .table import StateRow

if TYPE_CHECKING:
    from .._show.page import Block


@dataclass(frozen=True, repr=False)
class AbResult:
    """What `ab` gives back: ``print`` shows the answer and the reason, ``why()`` the figures, ``write("x.html")`` all of it."""

    verdict: Verdict | None
    """Of b against a; None where no block was whole. Its word is the answer."""
    sentence: str
    reason: str
    stopped_by: StoppedBy
    """``decided`` (the interval), ``runs``, ``time`` (the budget), ``failures``, ``states``, ``interrupted``; "" of a file that is
    unfinished, and nobody knows."""
    stopped: str
    """The same in words, with the arm and the run."""
    labels: tuple[str, str]
    texts: tuple[str, str]
    """What a and b are, one line each: the command, or the call."""
    runs: tuple[Run, ...]
    """All, in time: those that warmed up, and those that failed too."""
    blocks: int
    """Runs of each arm that are judged."""
    differences: tuple[Difference, ...] = ()
    """What differed between the arms and was not declared."""
    states: tuple[StateRow, ...] = ()
    """The machine, side by side."""
    looks: tuple[Mapping[str, Any], ...] = ()
    """Each look that could have ended it."""
    measured: str = ""
    """What is judged: "wall clock", "device_us", ..."""
    unit: str = ""
    seed: int = 0
    """Of the order."""
    seconds: float = 0.0
    """That this call took."""
    notes: tuple[str, ...] = ()
    plan: Mapping[str, Any] = field(default_factory=lambda: FrozenMap({}))
    provenance: Provenance | None = None
    path: str = ""
    """The file; "" where there is none."""

    @property
    def word(self) -> Word:
        """FASTER, SLOWER, SAME or UNDECIDED."""
        return Word.UNDECIDED if self.verdict is None else self.verdict.word

    @property
    def whole(self) -> bool:
        """Whether its rule or its budget of runs ended it: nothing is left for the same command to do."""
        return self.stopped_by in FINAL and self.blocks > 0

    @property
    def failed(self) -> tuple[Run, ...]:
        """Runs that gave no figure."""
        return tuple(run for run in self.runs if run.failed)

    @property
    def refused(self) -> tuple[Difference, ...]:
        """The differences that forbid a verdict."""
        return tuple(one for one in self.differences if one.refuses)

    def measurement(self, arm: Name) -> Measurement:
        """Of an arm of our own bench: its judged process sets as a measurement, every sample of every rank; ``.write(path)`` makes a file.

        Raises InputError of an arm that is a command.
        """
        if arm not in ("a", "b"):
            raise InputError("arm", arm, "give a or b")
        cells = [Cell.from_dict(thaw(run.cell)) for run in self.runs if run.arm == arm and run.cell and run.block != WARM_UP]
        if not cells:
            raise InputError("arm", arm, "it has no cells: a command's figures are in runs, each with all its iterations")
        plan = {"ab": thaw(self.plan), "arm": arm}
        return Measurement(tuple(cells), self.provenance, FrozenMap(plan), not self.whole, self.notes, self.path)

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, allow: Iterable[str] = ()) -> AbResult:
        """An experiment's file, finished or ``.partial``, judged anew by the rule that its plan names; ``allow`` as `ab` has it."""
        from .ab import read_result

        return read_result(path, allow)

    # -------------------------------------------------------------------------------------------------------------------------- shown

    def __str__(self) -> str:
        return f"{self.sentence}\n{self.reason}" if self.reason else self.sentence

    def __repr__(self) -> str:
        return f"<AbResult: {self.sentence}>"

    def why(self) -> str:
        """The figures as text."""
        from .._show.page import to_text

        return to_text(self.page(verbose=True))

    def page(self, verbose: bool = False) -> list[Block]:
        """What people see: the answer, the reason, what differed, how it went; ``verbose``: every figure."""
        from .page import ab_page

        return ab_page(self, verbose)

    def _repr_html_(self) -> str:
        from .. import _report

        return _report.html(self)

    def markdown(self) -> str:
        """For a bug report."""
        from .. import _report

        return _report.markdown(self)

    def figure(self) -> Any:
        """Both arms' samples and the interval, as a matplotlib Figure."""
        from .. import _report

        return _report.figure(self)

    def write(self, path: str | os.PathLike[str]) -> str:
        """One HTML file that holds everything; its name comes back."""
        from .. import _report

        return _report.write(self, path)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: all of it."""
        return {
            "word": str(self.word),
            "sentence": self.sentence,
            "reason": self.reason,
            "stopped_by": self.stopped_by,
            "stopped": self.stopped,
            "whole": self.whole,
            "labels": list(self.labels),
            "texts": list(self.texts),
            "measured": self.measured,
            "unit": self.unit,
            "seed": self.seed,
            "blocks": self.blocks,
            "seconds": self.seconds,
            "verdict": None if self.verdict is None else self.verdict.to_dict(),
            "differences": [one.to_dict() for one in self.differences],
            "states": [one.to_dict() for one in self.states],
            "looks": [dict(one) for one in self.looks],
            "runs": [run.to_dict() for run in self.runs],
            "notes": list(self.notes),
            "plan": thaw(self.plan),
            "provenance": None if self.provenance is None else self.provenance.to_dict(),
            "file": self.path,
        }
