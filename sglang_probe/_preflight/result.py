"""PhaseResult and Preflight: what came out, as plain frozen data, and as people see it. Made by runner.py.

Invariant: the first line of a page is the answer; whatever is not as it should be stands in it or right below it, never only in a table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .._measure.format import freeze, thaw
from .._show.page import Block, Line, Table, items, to_html, to_text
from .._types import FrozenMap

State = Literal["ok", "finding", "skipped", "hung", "died", "failed"]
_LOUD = {"ok": "ok", "skipped": "skipped", "finding": "FINDING", "hung": "HUNG", "died": "DIED", "failed": "FAILED"}

_BROKEN = ("hung", "died", "failed")
"""States without an answer."""


@dataclass(frozen=True)
class PhaseResult:
    """What one phase found. `facts` are kept whatever became of it."""

    name: str
    state: State
    """ok; finding: it answered, and something is wrong; skipped: it was not needed or not possible; hung: no answer within its limit;
    died: its process ended without one; failed: it raised."""
    seconds: float
    limit_s: float
    facts: Mapping[str, Any] = field(default_factory=lambda: FrozenMap({}))
    findings: tuple[str, ...] = ()
    """What is wrong."""
    text: str = ""
    """The answer in one line."""
    notes: tuple[str, ...] = ()
    """What is worth knowing, and not wrong."""
    output: str = ""
    """Last lines that its process printed, where it gave no answer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "facts", freeze(self.facts, f"facts of {self.name}"))

    @property
    def problems(self) -> tuple[str, ...]:
        """All that is wrong here, a missing answer first."""
        return (*((self.text,) if self.state in _BROKEN else ()), *self.findings)

    @property
    def row(self) -> tuple[str, str, str, str]:
        """(state, phase, time, answer); what is wrong comes before what was found."""
        more = f" (and {len(self.findings) - 1} more)" if len(self.findings) > 1 else ""
        told = [f"{self.findings[0]}{more}"] if self.state == "finding" and self.findings else []
        return _LOUD[self.state], self.name, f"{self.seconds:.1f} s", "; ".join(filter(None, [*told, self.text]))

    def __str__(self) -> str:
        """One line, whose columns are those of the other phases' lines."""
        state, name, time, text = self.row
        return f"{state:<7}  {name:<11}  {time:>6}  {text}"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "name": self.name,
            "state": self.state,
            "seconds": round(self.seconds, 3),
            "limit_s": self.limit_s,
            "text": self.text,
            "findings": list(self.findings),
            "notes": list(self.notes),
            "facts": thaw(self.facts),
            "output": self.output,
        }


@dataclass(frozen=True, repr=False)
class Preflight:
    """Every phase's answer. ``print(result)`` is what people see; ``result["nccl"].facts`` is what one phase found."""

    phases: tuple[PhaseResult, ...]
    interrupted: bool = False
    """Ctrl-C ended it early: what was known by then is here."""

    def __getitem__(self, name: str) -> PhaseResult:
        for phase in self.phases:
            if phase.name == name:
                return phase
        raise KeyError(f"{name}: not a phase of this preflight; it has {', '.join(phase.name for phase in self.phases)}")

    @property
    def healthy(self) -> bool | None:
        """Every phase that was asked answered (or had nothing to ask about), and nothing is wrong. None: nothing is known to be wrong, and
        it was interrupted before all had answered."""
        return False if self.problems else None if self.interrupted else True

    @property
    def problems(self) -> tuple[str, ...]:
        """All that is wrong, in the order of the phases."""
        return tuple(problem for phase in self.phases for problem in phase.problems)

    @property
    def notes(self) -> tuple[str, ...]:
        """All that is worth knowing, and not wrong."""
        return tuple(note for phase in self.phases for note in phase.notes)

    @property
    def seconds(self) -> float:
        return sum(phase.seconds for phase in self.phases)

    @property
    def limit_s(self) -> float:
        """What it could have taken at most."""
        return sum(phase.limit_s for phase in self.phases)

    @property
    def answer(self) -> str:
        """In one line, the verdict first."""
        problems, short = self.problems, f" ({self.seconds:.0f} s)" if self.seconds >= 1 else ""
        if problems:
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            return f"SICK: {problems[0]}{more}{'; interrupted' if self.interrupted else ''}"
        asked = [phase for phase in self.phases if phase.state != "skipped"]
        if self.interrupted:
            return f"interrupted: nothing is wrong in the {len(asked)} of {len(self.phases)} phases that answered"
        paths = next((phase.text for phase in asked if phase.name == "paths"), "")
        others = (
            f" of {len(self.phases)} phases, the others had nothing to ask"
            if len(asked) < len(self.phases)
            else f" phase{'s' if len(asked) > 1 else ''}"
        )
        return f"healthy: {paths or f'nothing is wrong in {len(asked)}{others}'}{short}"

    # ----------------------------------------------------------------------------------------------------------------------- shown

    def page(self, verbose: bool = False, phases: bool = True) -> list[Block]:
        """What people see. `verbose`: every fact; `phases`: with the line of each phase, which a terminal has shown already."""
        page: list[Block] = [Line(self.answer, "answer")]
        # one problem stands in the answer, whole
        page += items("Wrong", self.problems if len(self.problems) > 1 else (), "warn")
        for phase in self.phases:
            if phase.state in _BROKEN:
                page += items(f"Last lines of phase '{phase.name}'", phase.output.splitlines()[-8:], "dim")
                page += items(f"What phase '{phase.name}' had learned", _told(thaw(phase.facts)) if phase.facts else (), "dim")
        if phases:
            rows = tuple(phase.row for phase in self.phases)
            page.append(Table("Phases", ("state", "phase", "time", "answer"), rows, frozenset({"time"}), "state"))
        page += self._paths()
        page += self._nccl()
        page += items("Worth knowing", self.notes, "dim")
        if verbose:
            for phase in self.phases:
                page += items(f"Facts of phase '{phase.name}'", _told(thaw(phase.facts)), "dim")
        return page

    def _facts(self, name: str) -> Mapping[str, Any]:
        return next((phase.facts for phase in self.phases if phase.name == name), FrozenMap({}))

    def _paths(self) -> list[Block]:
        columns = ("target", "path", "kernel", "result")
        rows: Sequence[Mapping[str, Any]] = self._facts("paths").get("all_reduces", ())
        found = tuple(tuple(str(row.get(column, "")) for column in columns) for row in rows)
        title = "All-reduces" + (" (CPU ranks standing in; no NCCL ran)" if self._facts("paths").get("device") == "host" else "")
        return [Table(title, columns, found, strong="result")] if found else []

    def _nccl(self) -> list[Block]:
        facts, blocks = self._facts("nccl"), []
        users = tuple(
            (row["user"], row["version"] or "-", row["path"] or row["why"].partition(";")[0]) for row in facts.get("users", ())
        )
        if users:
            blocks.append(Table("NCCL that is loaded", ("by", "version", "file"), users, strong="version"))
        files = tuple(
            (row["version"] or row["why"], row["path"], ", ".join(row["found_by"])) for row in facts.get("libraries", ())
        )
        if files:
            blocks.append(Table("NCCL on this machine", ("version", "file", "found by"), files, strong="version"))
        return [*blocks]

    def __str__(self) -> str:
        return to_text(self.page())

    def __repr__(self) -> str:
        return f"<Preflight: {self.answer}>"

    def _repr_html_(self) -> str:
        return to_html(self.page())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "healthy": self.healthy,
            "answer": self.answer,
            "interrupted": self.interrupted,
            "problems": list(self.problems),
            "notes": list(self.notes),
            "seconds": round(self.seconds, 3),
            "limit_s": self.limit_s,
            "phases": [phase.to_dict() for phase in self.phases],
        }


def _told(value: Any, name: str = "") -> list[str]:
    """Nested plain data as lines: ``gpus[0].name: NVIDIA H200``."""
    if isinstance(value, Mapping):
        return [line for key, item in value.items() for line in _told(item, f"{name}.{key}" if name else str(key))]
    if isinstance(value, list) and any(isinstance(item, (Mapping, list)) for item in value):
        return [line for i, item in enumerate(value) for line in _told(item, f"{name}[{i}]")]
    text = ", ".join(map(str, value)) if isinstance(value, list) else "not known" if value is None else str(value)
    return [f"{name}: {text or 'none'}"]
