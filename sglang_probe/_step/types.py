"""Step: the answer of ``step``, with its calls, each with its Decision. Shown by the terminal, notebooks and JSON.

Invariant: ``all_reduces`` = ``fused`` + the counts of ``calls`` + the calls over groups that nothing is known of (in ``not_modelled``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._decision import Decision
from .._shown import Reported
from .._types import Call, Server

if TYPE_CHECKING:
    from .._costs.costs import CallCost
    from .costs import StepCosts

_CALL_KEYS = (
    "path",
    "rule",
    "backend",
    "kernel",
    "op",
    "returns",
    "reduces",
    "error",
    "next_best",
    "blocked_by",
    "not_conformed",
)


@dataclass(frozen=True)
class StepCall:
    """One kind of call of the step, and where it goes."""

    call: Call
    decision: Decision
    cost: CallCost | None = None
    """Of one call; None where no costs were asked for."""

    def to_dict(self) -> dict[str, Any]:
        c, d = self.call, self.decision
        return {
            "call_site": c.site,
            "group": c.group,
            "tokens": c.tokens,
            "bytes": c.nbytes,
            "dtype": c.dtype,
            "count": c.count,
            **{name: value for name, value in d.to_dict().items() if name in _CALL_KEYS},
            "cost": None if self.cost is None else self.cost.to_dict(),
        }


@dataclass(frozen=True)
class CyclePart:
    """One kind of collective of the speculative cycle beside the step's own all-reduces."""

    name: str
    collective: str
    group: str
    count: int
    tokens: int
    nbytes: int
    decision: Decision | None = None
    """Only of an all-reduce."""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        d = self.decision
        return {
            "name": self.name,
            "collective": self.collective,
            "group": self.group,
            "count": self.count,
            "tokens": self.tokens,
            "bytes": self.nbytes,
            "path": None if d is None else str(d.path),
            "rule": None if d is None else d.rule,
            "backend": None if d is None else d.backend,
            "note": self.note,
        }


@dataclass(frozen=True, repr=False)
class Step(Reported):
    """The all-reduces of one verify step (a decode step without speculation): what, how many, and by which path."""

    sglang: str
    ruleset: str
    model: str
    source: str
    world_size: int
    batch: int
    padded_batch: int
    draft_tokens: int
    tokens: int
    nbytes: int
    """Of one call: tokens x hidden x dtype."""
    context: str
    all_reduces: int
    """Before fusion."""
    fused: int
    calls: tuple[StepCall, ...]
    fused_calls: tuple[Call, ...]
    cycle: tuple[CyclePart, ...]
    not_modelled: int
    """About how many calls are not modelled, or modelled on an assumption that a note names; 0 where the count is exact."""
    assumed: tuple[str, ...]
    notes: tuple[str, ...]
    alternatives: tuple[Step, ...] = ()
    """The same step in another context or commit, where one was asked for (the example)."""
    server: Server | None = field(default=None, repr=False, compare=False)
    costs: StepCosts | None = None
    """What its calls cost, by tables; None where no costs were asked for."""

    @property
    def paths(self) -> dict[str, int]:
        """Path -> how many of the step's calls take it; fused calls take none."""
        paths: dict[str, int] = {}
        for item in self.calls:
            name = str(item.decision.path)
            paths[name] = paths.get(name, 0) + item.call.count
        return paths

    def __repr__(self) -> str:
        paths = ", ".join(f"{count} x {path}" for path, count in self.paths.items())
        return f"<Step: {self.sglang}, {self.context}: {paths or 'no all-reduce'}; {self.fused} fused>"

    def __str__(self) -> str:
        paths = ", ".join(f"{count} by {name}" for name, count in self.paths.items()) or "none"
        fused = f", {self.fused} fused away" if self.fused else ""
        return (
            f"{self.all_reduces} all-reduces of {self.nbytes:,} bytes{fused}: {paths} "
            f"[{self.model}, {self.world_size} ranks, {self.tokens} tokens, {self.context}, {self.sglang} ({self.ruleset})]"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "sglang": self.sglang,
            "ruleset": self.ruleset,
            "model": self.model,
            "source": self.source,
            "world_size": self.world_size,
            "batch": self.batch,
            "padded_batch": self.padded_batch,
            "draft_tokens": self.draft_tokens,
            "tokens": self.tokens,
            "bytes": self.nbytes,
            "context": self.context,
            "all_reduces": self.all_reduces,
            "fused": self.fused,
            "fused_calls": [{"call_site": c.site, "group": c.group, "bytes": c.nbytes, "count": c.count} for c in self.fused_calls],
            "calls": [item.to_dict() for item in self.calls],
            "paths": self.paths,
            "cycle": [part.to_dict() for part in self.cycle],
            "not_modelled": self.not_modelled,
            "assumed": list(self.assumed),
            "notes": list(self.notes),
            "costs": None if self.costs is None else self.costs.to_dict(),
            "alternatives": [
                {"sglang": s.sglang, "ruleset": s.ruleset, "context": s.context, "all_reduces": s.all_reduces, "fused": s.fused,
                 "paths": s.paths, "costs": None if s.costs is None else s.costs.to_dict()}
                for s in self.alternatives
            ],
        }  # fmt: skip

    def _repr_html_(self) -> str:
        from .._show.render import step_html

        return step_html(self)

    def picture(self, *, dark: bool = False) -> Any:
        """A matplotlib Figure: where each size (bytes) goes in this step's contexts and in a prefill chunk, its own calls marked.

        Raises InputError where nothing is asked of a group that is known, ProbeUnavailable without matplotlib.
        """
        from .._show.strips import picture

        return picture(self, dark)
