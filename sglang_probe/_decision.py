"""Decision: one answer with its reasons. Made by dispatch and route; shown by people's terminals and notebooks.

Invariant: everything but ``facts`` and ``source`` is fixed when it is made; those two are looked up when first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ._shown import Shown
from ._types import Fact, FrozenMap, Path

Op = Literal["in_place", "out_of_place"]


@dataclass(frozen=True)
class Stop(Shown):
    """One reason for which a communicator does not take a tensor."""

    name: str
    when: Literal["setup", "call"]
    """``setup``: fixed when the server started; ``call``: asked for every tensor."""
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Gate(Shown):
    """What one communicator answers for this tensor."""

    name: str
    state: str
    """``absent``, ``disabled``, ``declines``, ``accepts`` (pynccl: ``enabled``) or ``raises``."""
    stops: tuple[Stop, ...] = ()
    limit_bytes: int = 0
    """Largest tensor that it takes here; 0 where size is not asked."""
    kernel: str = ""
    backend: str = ""

    @property
    def setup_stops(self) -> tuple[Stop, ...]:
        return tuple(stop for stop in self.stops if stop.when == "setup")

    @property
    def call_stops(self) -> tuple[Stop, ...]:
        return tuple(stop for stop in self.stops if stop.when == "call")


@dataclass(frozen=True)
class Blocked(Shown):
    """A better rule that did not fire, and all that stops it."""

    rule: str
    missing: tuple[str, ...]
    """Conditions that it needs and that do not hold."""
    against: tuple[str, ...]
    """Conditions that hold and that it must not meet."""
    stops: tuple[Stop, ...] = ()
    """Behind the missing conditions: the gate's own reasons, constructor's and call's."""
    bare: tuple[str, ...] = ()
    """Missing conditions without a gate's reason behind them."""

    def __str__(self) -> str:
        reasons = [str(stop) for stop in self.stops] + [f"needs {name}" for name in self.bare]
        return "; ".join([*reasons, *(f"yields to {name}" for name in self.against)])


@dataclass(frozen=True, repr=False)
class Decision:
    """Where one all-reduce goes, and why. ``str(decision)`` is the answer in one line."""

    path: Path
    rule: str
    """The rule that fired; stable name."""
    op: Op | None
    """SGLang's registered op, or None where it calls the communicator directly."""
    returns: Literal["input", "new"] | None
    """Whether the result is the input tensor or a new one; None where it raises."""
    sglang: str
    ruleset: str
    backend: str = ""
    """Whose code runs: v1, V2, aiter, nccl, torch, ..."""
    kernel: str = ""
    """The communicator's own choice, where it is known."""
    cloned: bool = False
    """The input is cloned first."""
    reduces: bool = True
    """False where SGLang loses the result, or only pretends (v1 in graph warm-up)."""
    error: str = ""
    """The exception's name where ``path`` is ``raises``."""
    gates: Mapping[str, Gate] = field(default_factory=lambda: FrozenMap({}))
    blocked_by: Mapping[str, Blocked] = field(default_factory=lambda: FrozenMap({}))
    """Better rules, best first, with everything that stops each."""
    next_best: Path | None = None
    """The path without the rule that fired."""
    conditions: tuple[str, ...] = ()
    """Conditions that hold."""
    not_conformed: tuple[str, ...] = ()
    """What this answer rests on that conform cannot compare (kernel thresholds in CUDA sources, AMD's library, an unknown gate)."""
    _facts: Callable[[], Mapping[str, Fact]] | None = field(default=None, repr=False, compare=False)
    _source: Callable[[], str | None] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def facts(self) -> Mapping[str, Fact]:
        """The facts on which the path rests: changing one of them alone changes it. Each with its origin."""
        return self._facts() if self._facts else FrozenMap({})

    @cached_property
    def source(self) -> str | None:
        """SGLang's file and line behind the rule, where its source is at hand."""
        return self._source() if self._source else None

    def __str__(self) -> str:
        what = f"raises {self.error}" if self.error else str(self.path)
        detail = ", ".join(filter(None, [self.backend if self.backend != self.path else "", self.kernel]))
        parts = [f"{what}{f' ({detail})' if detail else ''} by rule {self.rule}"]
        if self.returns:
            parts.append("in place" if self.returns == "input" else "new tensor")
        if not (self.reduces or self.error or self.path == "none"):
            parts.append("NOT REDUCED")
        return f"{', '.join(parts)} [{self.sglang}, {self.ruleset}]"

    def __repr__(self) -> str:
        return f"<Decision: {self}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "path": str(self.path),
            "rule": self.rule,
            "op": self.op,
            "returns": self.returns,
            "backend": self.backend,
            "kernel": self.kernel,
            "cloned": self.cloned,
            "reduces": self.reduces,
            "error": self.error,
            "sglang": self.sglang,
            "ruleset": self.ruleset,
            "next_best": None if self.next_best is None else str(self.next_best),
            "gates": {
                name: {"state": g.state, "limit_bytes": g.limit_bytes, "kernel": g.kernel, "stops": [_stop(s) for s in g.stops]}
                for name, g in self.gates.items()
            },
            "blocked_by": {
                rule: {"missing": list(b.missing), "against": list(b.against), "stops": [_stop(s) for s in b.stops]}
                for rule, b in self.blocked_by.items()
            },
            "facts": {name: {"value": f.value, "origin": f.origin, "source": f.source} for name, f in self.facts.items()},
            "not_conformed": list(self.not_conformed),
            "source": self.source,
        }

    def _repr_html_(self) -> str:
        from ._show.render import decision_html

        return decision_html(self)


def _stop(stop: Stop) -> dict[str, str]:
    return {"name": stop.name, "when": stop.when, "text": stop.text}
