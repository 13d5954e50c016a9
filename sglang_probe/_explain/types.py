"""Explanation: the answer of explain, and its parts. Made by explain.py; shown by page.py and the reports.

Invariant: every number has its origin beside it, and one that is not known is None with the reason, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from .._shown import Reported
from .._types import FrozenMap

if TYPE_CHECKING:
    from .._proof.changes import Diff
    from .._proof.reach import Reach
    from .._show.page import Block
    from .._verdict.arm import Arm
    from .._verdict.verdict import Verdict


class Word(str, Enum):
    """The answer in one word. A string: ``Word.COULD == "COULD"``."""

    INCONSISTENT = "INCONSISTENT"
    CANNOT_UNREACHABLE = "CANNOT_UNREACHABLE"
    NOTHING_TO_EXPLAIN = "NOTHING_TO_EXPLAIN"
    CANNOT_TOO_SMALL = "CANNOT_TOO_SMALL"
    COULD = "COULD"

    def __str__(self) -> str:
        return self.value

    def __format__(self, spec: str) -> str:
        return str.__format__(self.value, spec)  # the name, on every Python


WORDS: Mapping[Word, str] = FrozenMap(
    {
        Word.INCONSISTENT: "the figures cannot all be of one stream",
        Word.CANNOT_UNREACHABLE: "no call of this step takes another route: proved",
        Word.NOTHING_TO_EXPLAIN: "the difference is not established",
        Word.CANNOT_TOO_SMALL: "routes change, and that explains less than was seen",
        Word.COULD: "routes change, and what is known does not exclude that they are the cause",
    }
)
"""What each word means; the first that holds is the answer, in this order."""

Kind = Literal["routes", "ceiling", "not_taken", "eager", "captured"]


@dataclass(frozen=True)
class Range:
    """A figure with its interval at 95 %, or what stands for one."""

    value: float
    low: float | None = None
    high: float | None = None
    """None where there is no interval: one process, or a source that gives no spread."""

    def to_dict(self) -> dict[str, float | None]:
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Number:
    """One figure of the answer, and where it is from."""

    what: str
    range: Range | None
    """None: not measured, and `note` says why."""
    unit: str
    origin: str
    """given, counted, derived, assumed; or of a cost: measured, measured elsewhere, shipped, nccl-tests, published, not measured."""
    source: str = ""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        ends = dict.fromkeys(("value", "low", "high")) if self.range is None else self.range.to_dict()
        return {
            "what": self.what,
            **ends,
            "unit": self.unit,
            "origin": self.origin,
            "source": self.source,
            "note": self.note,
        }


@dataclass(frozen=True)
class Seen:
    """One difference that was given: the arms, whether they can be told apart, and what it is of one step."""

    what: str
    """"verify step", "decode step", "one call", "speculative decoding", "plain decoding"."""
    before: Arm
    after: Arm
    verdict: Verdict
    """Of after against before."""
    before_ms: float
    """Milliseconds of one step (of a whole cycle, where tok/s of a speculative stream were given); of one token where `per_token`."""
    after_ms: float
    change_ms: Range
    """After less before, with the verdict's interval; an end that so few runs do not give is None."""
    per_token: bool = False
    """The accepted length is missing: a step takes so many times this, and at least this."""
    calls: int = 1
    """One call was seen, so often in a step: its figures stand multiplied here."""

    @property
    def settled(self) -> bool:
        """FASTER or SLOWER."""
        return str(self.verdict.word) in ("FASTER", "SLOWER")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "what": self.what,
            "before_ms": self.before_ms,
            "after_ms": self.after_ms,
            "change_ms": self.change_ms.to_dict(),
            "per_token": self.per_token,
            "calls": self.calls,
            "verdict": self.verdict.to_dict(),
        }


@dataclass(frozen=True)
class RouteChange:
    """Calls of the step that go the same way, before and after. ``changes``: those two are not the same way."""

    site: str
    group: str
    count: int
    before: str
    """``123 x ...`` is not in it: path, kernel, result and phase alone; "" where the call is only made after."""
    after: str
    before_bytes: int
    after_bytes: int
    changes: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class Bound:
    """What something can explain at most: calls x the difference of two ways, in milliseconds a step, after less before."""

    kind: Kind
    """routes: this step's own calls between the two releases. not_taken: a rule that does not fire here, had it fired.
    eager: this step eager, less captured. ceiling: all all-reduces of the step, whatever way they take. captured: the same, were it
    captured."""
    what: str
    calls: int
    before: str
    after: str
    ms: Range | None
    """Positive: longer. None where it is not measured, and `why` says so."""
    quantity: str = ""
    """Which of the measured times: "first call to end", "device", ..."""
    origins: tuple[str, ...] = ()
    machine: str = ""
    """Whose figures these are."""
    why: str = ""
    assumed: str = ""
    """What stands for an interval where the source has none."""
    illustration: bool = False
    """Of another machine: it shows what is possible, and is not in the answer."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**vars(self), "ms": self.ms and self.ms.to_dict(), "origins": list(self.origins)}


@dataclass(frozen=True)
class Proof:
    """What was walked: the rules alone, then this launch's calls."""

    states: int
    """Combinations of conditions of both releases, all of them."""
    changed: int
    """Those whose route changes."""
    fixed: Mapping[str, Any]
    """Conditions that this server, or this step, never has, and that leave no changed state; empty where there are none."""
    fixed_by: str
    """"" where the server never has them; else that the step has not."""
    states_fixed: int
    changed_fixed: int
    diff: Diff
    """Of this launch: every size, dtype, layout and context that it sets."""
    rules: tuple[Reach, ...] = ()
    """Every rule that only one of the releases has: can it fire with this launch?"""

    @property
    def classes(self) -> int:
        """Size classes of this launch that were walked; each stands for all of its sizes."""
        return self.diff.walked

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "states": self.states,
            "changed": self.changed,
            "fixed": dict(self.fixed),
            "fixed_by": self.fixed_by,
            "states_fixed": self.states_fixed,
            "changed_fixed": self.changed_fixed,
            "classes": self.classes,
            "diff": self.diff.to_dict(),
            "rules": [rule.to_dict() for rule in self.rules],
        }


@dataclass(frozen=True)
class Waiting:
    """How long calls waited for the last rank, microseconds a call. No path's doing: it is in no bound."""

    where: str
    wait_us: Range
    transfer_us: Range
    origin: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        ends = {"wait_us": self.wait_us.to_dict(), "transfer_us": self.transfer_us.to_dict()}
        return {"where": self.where, "origin": self.origin, **ends}


@dataclass(frozen=True)
class Experiment:
    """A command line, and what it would show."""

    line: str
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dict(vars(self))


@dataclass(frozen=True, repr=False)
class Explanation(Reported):
    """Can this change explain that difference? ``explain`` gives it; ``str`` is the answer, the reason and the bounds, ``why()`` all."""

    word: Word
    sentence: str
    """The answer in one line."""
    reason: str
    sglang_before: str
    sglang_after: str
    launch: str
    """What was asked about: model, GPUs, kind of step, context."""
    calls: int
    """All-reduces of one step that are routed, after."""
    seen: tuple[Seen, ...]
    routes: tuple[RouteChange, ...]
    proof: Proof
    bounds: tuple[Bound, ...]
    """The answer's own first; illustrations last."""
    waiting: tuple[Waiting, ...]
    experiments: tuple[Experiment, ...] = ()
    """Command lines that would show more, the first one first; empty where a figure is missing, and no experiment."""
    numbers: tuple[Number, ...] = ()
    """Every number that the answer rests on."""
    findings: tuple[str, ...] = ()
    """What else the figures say."""
    missing: tuple[str, ...] = ()
    """What would have to be measured, or told, for a better answer."""
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    """What stands above all else: a log that says otherwise, calls that are not modelled, another environment."""

    @property
    def experiment(self) -> str:
        """The command line that would show most; "" where there is none."""
        return self.experiments[0].line if self.experiments else ""

    @property
    def experiment_why(self) -> str:
        return self.experiments[0].why if self.experiments else ""

    @property
    def verdicts(self) -> dict[str, Verdict]:
        """By what was seen."""
        return {one.what: one.verdict for one in self.seen}

    def bound(self, kind: Kind, *, illustration: bool = False) -> Bound | None:
        """The first of its kind."""
        return next((one for one in self.bounds if one.kind == kind and one.illustration == illustration), None)

    def __str__(self) -> str:
        from .._show.page import to_text

        return to_text(self.page())

    def __repr__(self) -> str:
        return f"<Explanation: {self.sentence}>"

    def why(self) -> str:
        """All figures as text, each with its origin."""
        from .._show.page import to_text

        return to_text(self.page(verbose=True))

    def page(self, verbose: bool = False) -> list[Block]:
        """What people see, as blocks. ``verbose``: every number with its origin, and what was assumed."""
        from .page import explanation_page

        return explanation_page(self, verbose)

    def markdown(self) -> str:
        """For a bug report."""
        from .. import _report

        return _report.markdown(self)

    def figure(self) -> Any:
        """What was seen beside what can be explained, as a matplotlib Figure."""
        from .. import _report

        return _report.figure(self)

    def _repr_html_(self) -> str:
        from .. import _report

        return _report.html(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        texts = ("findings", "missing", "sources", "notes", "assumed", "warnings")
        return {
            "word": str(self.word),
            "sentence": self.sentence,
            "reason": self.reason,
            "sglang_before": self.sglang_before,
            "sglang_after": self.sglang_after,
            "launch": self.launch,
            "calls": self.calls,
            "seen": [one.to_dict() for one in self.seen],
            "routes": [one.to_dict() for one in self.routes],
            "proof": self.proof.to_dict(),
            "bounds": [one.to_dict() for one in self.bounds],
            "waiting": [one.to_dict() for one in self.waiting],
            "experiments": [one.to_dict() for one in self.experiments],
            "numbers": [one.to_dict() for one in self.numbers],
            **{name: list(getattr(self, name)) for name in texts},
        }
