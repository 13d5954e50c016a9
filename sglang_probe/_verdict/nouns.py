"""The nouns of a verdict: Word, Finding, Verdict. Made by judge.py; verdict.py gives them out.

Invariant: word and interval agree. FASTER and SLOWER have an interval on one side of 0, SAME one inside the margin.
"""

from __future__ import annotations

import enum
import math
import os
from dataclasses import dataclass
from typing import Any, Literal

from .._show.page import Block, Line, items, to_text
from .._shown import Shown
from .arm import Arm

Better = Literal["higher", "lower"]


class Word(str, enum.Enum):
    """The answer, of b against a. A string: ``Word.FASTER == "FASTER"``."""

    FASTER = "FASTER"
    """b is better: higher or lower, whichever is better in this unit."""
    SLOWER = "SLOWER"
    SAME = "SAME"
    """Within the margin, shown by an equivalence test: not the absence of a difference that shows."""
    UNDECIDED = "UNDECIDED"

    def __str__(self) -> str:
        return self.value

    def __format__(self, spec: str) -> str:
        return str.__format__(self.value, spec)


@dataclass(frozen=True)
class Finding(Shown):
    """Something that must be known with the answer."""

    kind: str
    """outlier, modes, drift, warm_up, autocorrelation, few_runs, spread, twice, units, ties, states, blocks."""
    arm: str
    """The label of the arm that it is about; "" where it is about both."""
    text: str

    @property
    def line(self) -> str:
        """The text, behind the arm's label where it does not begin with it."""
        return f"{self.arm}: {self.text}" if self.arm and not self.text.startswith(f"{self.arm} ") else self.text


@dataclass(frozen=True, repr=False)
class Verdict:
    """What `verdict` says. Effects are relative: 0.11 is b 11 % above a, whichever is better."""

    word: Word
    effect: float
    """b / a - 1, the Hodges-Lehmann estimate on logarithms of the processes' figures."""
    low: float
    """The interval of the effect. -1 where so few runs give no lower end."""
    high: float
    """inf where so few runs give no upper end."""
    level: float
    """Confidence of low to high. `confidence`; of SAME 1 - 2 (1 - confidence), the interval of the two one-sided tests."""
    confidence: float
    margin: float
    """SAME is a ratio between 1 / (1 + margin) and 1 + margin."""
    p: float
    """Of the test of no difference, two-sided."""
    method: str
    runs_needed: int | None
    """Runs an arm, in all, that would settle it with a chance of 80 %, where the difference is as large as it looks and where there is
    none; None where it is settled, or where more of the same would not. Of arms measured one after the other, interleaved runs."""
    runs_as_seen: int | None
    """The same, where the difference is as large as it looks; less than `runs_needed` where it may as well be nothing."""
    spread: float | None
    """Between processes of one arm: standard deviation of the logarithms of their figures, outliers drawn in; of pairs that of their
    differences by the root of 2. None where no arm has two."""
    sentence: str
    reason: str
    findings: tuple[Finding, ...]
    a: Arm
    b: Arm
    better: Better

    # ------------------------------------------------------------------------------------------------------------------ for people

    def __str__(self) -> str:
        return to_text(self.page())

    def __repr__(self) -> str:
        return f"<Verdict: {self.sentence}>"

    def why(self) -> str:
        """Every figure, as text."""
        return to_text(self.page(verbose=True))

    def page(self, verbose: bool = False) -> list[Block]:
        """The sentence, the reason, what was found; ``verbose``: the figures of both arms, and how many runs show how much."""
        from .figures import figure_blocks

        blocks: list[Block] = [Line(self.sentence, "answer"), Line(self.reason)]
        blocks += items("Found", (one.line for one in self.findings))
        return [*blocks, *figure_blocks(self)] if verbose else blocks

    def _repr_html_(self) -> str:
        from .._report import html

        return html(self)

    # ---------------------------------------------------------------------------------------------------------------- for machines

    def to_dict(self) -> dict[str, Any]:
        """All of it, as plain data for JSON: an end that is not there is None."""
        plain: dict[str, Any] = {
            "word": str(self.word),
            "sentence": self.sentence,
            "reason": self.reason,
            "effect": self.effect,
            "low": _plain(self.low, -1.0),
            "high": _plain(self.high, math.inf),
            "level": self.level,
            "confidence": self.confidence,
            "margin": self.margin,
            "p": self.p,
            "method": self.method,
            "runs_needed": self.runs_needed,
            "runs_as_seen": self.runs_as_seen,
            "spread": self.spread,
            "better": self.better,
            "findings": [{"kind": one.kind, "arm": one.arm, "text": one.text} for one in self.findings],
        }
        return plain | {"a": self.a.to_dict(), "b": self.b.to_dict()}

    def write(self, path: str | os.PathLike[str]) -> str:
        """One HTML file that holds everything, to attach to an issue; its name comes back. A report of that name is replaced."""
        from .._report import write

        return write(self, path)

    def markdown(self) -> str:
        """For a bug report."""
        from .._report import markdown

        return markdown(self)

    def figure(self) -> Any:
        """A matplotlib Figure: both arms' samples, modes, interval. It needs the extra ``notebook``."""
        from .._report import figure

        return figure(self)


def _plain(value: float, nothing: float) -> float | None:
    return None if value == nothing else value
