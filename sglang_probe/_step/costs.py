"""What the calls of a step cost: each by a table, and their sums. Called by step; shown with it.

A sum adds `count` times each call's figure. Its ends add the ends: calls of one size rest on one figure, whose error they share, so errors
are not taken to cancel. A call without a figure is in no sum, and is counted. Three sums stand side by side and are never made one number:
the device's time, the host's (of captured calls: launching the graph), and the time from the first call to the end as it was measured.
Invariant: only the step's own calls are summed: not those that a fused kernel took, and not the draft's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from .._costs.costs import CallCost, Costs, Wanted, phase_of, wanted_of
from .._costs.environment import differences
from .._costs.machine import target_of
from .._costs.table import QUANTITIES, Figure, Quantity
from .._show.sizes import human_bytes
from .._types import Call, FrozenMap, Group, Path
from .types import StepCall

_OTHERS = (Path.PYNCCL_IN_PLACE, Path.PYNCCL_OUT_OF_PLACE, Path.TORCH_DISTRIBUTED)
"""Paths that any group of GPUs has: what they would cost is told beside the path that is taken."""
_SHOWN: tuple[Quantity, ...] = ("device_us", "host_us")
"""Quantities whose absence is explained; few tables have the third."""


@dataclass(frozen=True)
class Total:
    """The sum of one quantity over the calls of a step."""

    us: float = 0.0
    low_us: float | None = None
    """95 %, from the figures' own; None where one of them has none."""
    high_us: float | None = None
    calls: int = 0
    """How many of the calls have a figure."""
    of: int = 0
    origins: tuple[str, ...] = ()

    @property
    def missing(self) -> int:
        return self.of - self.calls

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "us": self.us if self.calls else None,
            "low_us": self.low_us,
            "high_us": self.high_us,
            "calls": self.calls,
            "of": self.of,
            "origins": list(self.origins),
        }


Totals = Mapping[Quantity, Total]


@dataclass(frozen=True)
class StepCosts:
    """The sums, what the same calls would cost by other paths, and what all of it rests on."""

    totals: Totals = field(default_factory=lambda: FrozenMap({}))
    instead: Mapping[str, Totals] = field(default_factory=lambda: FrozenMap({}))
    """By path: all calls of the step by that one."""
    not_measured: tuple[str, ...] = ()
    """Reasons, each once."""
    sources: tuple[str, ...] = ()
    """The tables that the figures are from, each with its origin word."""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    """Why figures are not this server's: NCCL's variables were others where they were taken."""

    @property
    def device(self) -> Total:
        return self.totals.get("device_us", Total())

    @property
    def host(self) -> Total:
        return self.totals.get("host_us", Total())

    @property
    def elapsed(self) -> Total:
        return self.totals.get("elapsed_us", Total())

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            **_plain(self.totals),
            "instead": {path: _plain(totals) for path, totals in self.instead.items()},
            "not_measured": list(self.not_measured),
            "sources": list(self.sources),
            "notes": list(self.notes),
            "warnings": list(self.warnings),
        }


def _plain(totals: Totals) -> dict[str, Any]:
    return {name: totals.get(name, Total()).to_dict() for name in QUANTITIES}


@dataclass(frozen=True)
class _Priced:
    """One kind of call that is made, and what it costs."""

    count: int
    wanted: Wanted
    cost: CallCost


def cost_calls(
    calls: Sequence[StepCall],
    groups: Mapping[str, Group],
    context_of: Callable[[Call], str],
    costs: Costs,
    env: Mapping[str, str] | None = None,
) -> tuple[tuple[StepCall, ...], StepCosts]:
    """The calls of a step, each with its cost, and their sums. ``context_of`` says in which context a call is made, ``env`` the server's
    environment as far as it is told; None where nobody asks what differs in it.
    """
    priced: list[StepCall] = []
    made: list[_Priced] = []
    price = lru_cache(maxsize=None)(costs.call)  # many calls, few different ones
    for item in calls:
        call, phase = item.call, phase_of(context_of(item.call))
        wanted = wanted_of(item.decision, target_of(groups[call.group]), phase, call.dtype, call.nbytes)
        cost = CallCost() if wanted is None else price(wanted)
        made += [] if wanted is None else [_Priced(call.count, wanted, cost)]
        priced.append(replace(item, cost=cost))
    return tuple(priced), _sums_of(made, calls, price, env)


def _sums_of(
    made: Sequence[_Priced], calls: Sequence[StepCall], price: Callable[[Wanted], CallCost], env: Mapping[str, str] | None
) -> StepCosts:
    instead = _instead(made, price)
    own = [figure for one in made for figure in one.cost.figures.values()]
    others = [figure for priced in instead.values() for one in priced for figure in one.cost.figures.values()]
    clones = sum(item.call.count for item in calls if item.decision.cloned)
    notes = [f"{clones} calls clone their input first: the clone is not in these costs"] if clones else []
    return StepCosts(
        totals=_totals(made),
        instead=FrozenMap({path: _totals(priced) for path, priced in instead.items()}),
        not_measured=_unique(one.cost.missing[name] for one in made for name in _SHOWN if name in one.cost.missing),
        sources=_unique(_source(figure) for figure in (*own, *others)),
        notes=_unique((*notes, *(_basis(figure) for figure in own), *(note for figure in own for note in figure.notes))),
        warnings=() if env is None else _unique(text for figure in (*own, *others) for text in differences(figure, env)),
    )


def _instead(made: Sequence[_Priced], price: Callable[[Wanted], CallCost]) -> dict[str, list[_Priced]]:
    """The same calls by each path that any group has, where a table tells anything of it."""
    found = {}
    for path in map(str, _OTHERS):
        if all(one.wanted.path == path for one in made):
            continue
        wanted = [replace(one.wanted, path=path, kernel="") for one in made]
        priced = [_Priced(one.count, w, price(w)) for one, w in zip(made, wanted, strict=True)]
        if any(one.cost.figures for one in priced):
            found[path] = priced
    return found


def _totals(made: Sequence[_Priced]) -> Totals:
    return FrozenMap({name: _total(made, name) for name in QUANTITIES})


def _total(made: Sequence[_Priced], name: Quantity) -> Total:
    figures = [(one.count, one.cost.figures[name]) for one in made if name in one.cost.figures]
    ends = [(n, f.estimate.low_us, f.estimate.high_us) for n, f in figures]
    known = [(n * low, n * high) for n, low, high in ends if low is not None and high is not None]
    whole = bool(known) and len(known) == len(figures)
    return Total(
        us=sum(n * figure.us for n, figure in figures),
        low_us=sum(low for low, _ in known) if whole else None,
        high_us=sum(high for _, high in known) if whole else None,
        calls=sum(n for n, _ in figures),
        of=sum(one.count for one in made),
        origins=_unique(figure.origin for _, figure in figures),
    )


def _source(figure: Figure) -> str:
    """``measured elsewhere: 2x NVIDIA H200 over NVLink, FILE (2026-12-01, NCCL 2.28.9)``."""
    stamp = f" ({figure.table.stamp})" if figure.table.stamp else ""
    return f"{figure.origin}: {figure.machine}, {figure.table.source}{stamp}"


def _basis(figure: Figure) -> str:
    """How a figure was measured, and between which sizes it lies."""
    n = figure.estimate.processes
    behind = f"{n} processes" if n > 1 else "one process: no interval" if n else "no spread is given: no interval"
    if n == 0 and figure.estimate.low_us is not None:
        behind = "with the source's own interval"
    between = f"; between {human_bytes(figure.between[0])} and {human_bytes(figure.between[1])}" if figure.between else ""
    return f"{figure.series}: {behind}{between}"


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
