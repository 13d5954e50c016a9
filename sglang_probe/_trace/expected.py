"""A Step -> what a trace of it should hold: one slot for each call, in the order in which a forward makes them. Called by check.py.

The embedding first, then layer by layer attention and MLP or experts, as calls.py of _step counts them. Invariant: nothing is decided here;
where the step is not modelled whole, or a rank makes only a part of it, ``exact`` says so and counts are not held against anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .._step.calls import ATTENTION, EMBEDDING, LAST, MLP, MOE, setting
from .._step.context import COMPILED, PIECEWISE
from .._step.types import Step
from .._types import Path
from .calls import Way
from .kernels import Kind

FUSED = "fused"


@dataclass(frozen=True)
class Want:
    """Which way a call should go."""

    path: Path | None
    """None where it is fused."""
    backend: str = ""
    kernel: str = ""
    nbytes: int = 0

    @property
    def short(self) -> str:
        return FUSED if self.path is None else str(self.path)

    def __str__(self) -> str:
        told = ", ".join(filter(None, [self.backend if self.backend != self.short else "", self.kernel]))
        return f"{self.short} ({told})" if told else self.short

    def fits(self, way: Way) -> bool:
        """Whether a call that went this way is what was wanted, as far as the trace tells."""
        if self.path is None:
            return way.kind is Kind.FUSED
        if way.kind not in (Kind.ALL_REDUCE, Kind.UNKNOWN) or self.path not in way.paths:
            return False
        # The right path by another generation's or library's kernels is not what was expected either.
        return not (self.backend and way.backends) or self.backend in way.backends

    def other_kernel(self, way: Way) -> bool:
        """Another kernel of the same code: it picks by size."""
        return self.path is not None and bool(self.kernel and way.kernel) and self.kernel != way.kernel


@dataclass(frozen=True)
class Slot:
    """One call of a step."""

    site: str
    layer: int | None
    """None of the embedding."""
    want: Want
    group: str = "tp"

    @property
    def where(self) -> str:
        """``layer 0, attention output``; ``the embedding, before layer 0``."""
        if self.layer is None:
            return f"the {self.site}, before layer 0" if self.site == EMBEDDING else self.site
        group = "" if self.group == "tp" else f" over {self.group}"
        return f"layer {self.layer}, {self.site.removesuffix(LAST)}{group}"


@dataclass(frozen=True)
class Expected:
    """All calls of one step, in order."""

    slots: tuple[Slot, ...]
    captured: bool
    """The step is a replay of a graph."""
    exact: bool
    why_not: str = ""
    """Why counts are not held against the trace."""
    gathers: int = 1
    """All-gathers of the step's own logits."""

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def fused(self) -> int:
        return sum(slot.want.path is None for slot in self.slots)

    @property
    def counts(self) -> dict[str, int]:
        """``fused`` or a path -> calls of a step; fused first."""
        counts: dict[str, int] = {}
        for slot in sorted(self.slots, key=lambda slot: slot.want.path is not None):
            counts[slot.want.short] = counts.get(slot.want.short, 0) + 1
        return counts

    @property
    def full_counts(self) -> dict[str, int]:
        """The same, with code and kernel."""
        counts: dict[str, int] = {}
        for slot in self.slots:
            counts[str(slot.want)] = counts.get(str(slot.want), 0) + 1
        return counts

    def __str__(self) -> str:
        """``121 fused + 2 custom``."""
        return " + ".join(f"{count} {name}" for name, count in self.counts.items()) or "no all-reduce"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"counts": self.counts, "captured": self.captured, "exact": self.exact, "why_not": self.why_not}


def expected_of(step: Step) -> Expected:
    """The slots of a step."""
    sites = _sites(step)
    layers = step.server.model.layers if step.server and step.server.model else 0
    slots = tuple(_slots(sites, layers))
    why = _why_not_exact(step, len(slots))
    gathers = sum(part.count for part in step.cycle if part.name == "target logits")
    return Expected(slots, step.context in ("capture", COMPILED, PIECEWISE), not why, why, gathers)


def _sites(step: Step) -> dict[str, list[list[Any]]]:
    """Call site -> [want, group, how many are left], in SGLang's order of groups."""
    sites: dict[str, list[list[Any]]] = {}
    for call in step.fused_calls:
        sites.setdefault(call.site, []).append([Want(None, nbytes=call.nbytes), call.group, call.count])
    for item in step.calls:
        decision = item.decision
        if decision.path is not Path.NONE:
            want = Want(decision.path, decision.backend, decision.kernel, item.call.nbytes)
            sites.setdefault(item.call.site, []).append([want, item.call.group, item.call.count])
    return sites


def _slots(sites: dict[str, list[list[Any]]], layers: int) -> Iterator[Slot]:
    yield from _take(sites, EMBEDDING, None)
    for layer in range(layers):
        yield from _take(sites, ATTENTION, layer)
        last = LAST if layer == layers - 1 else ""
        # The dense layers come first.
        yield from _take(sites, MLP + last, layer) if _left(sites, MLP + last) else _take(sites, MOE + last, layer)


def _left(sites: dict[str, list[list[Any]]], site: str) -> bool:
    return any(entry[2] > 0 for entry in sites.get(site, ()))


def _take(sites: dict[str, list[list[Any]]], site: str, layer: int | None) -> Iterator[Slot]:
    """One call of this site: one for each group over which it is summed."""
    for entry in sites.get(site, ()):
        if entry[2] > 0:
            entry[2] -= 1
            yield Slot(site, layer, entry[0], entry[1])


def _why_not_exact(step: Step, slots: int) -> str:
    if step.not_modelled:
        return f"about {step.not_modelled} calls of this step are not modelled"
    stages = int(setting(step.server, "pp_size", default=1)) if step.server else 1
    if stages > 1:
        return f"{stages} pipeline stages: a rank makes only its own layers' calls"
    wanted = step.fused + sum(item.call.count for item in step.calls if item.decision.path is not Path.NONE)
    return "" if slots == wanted else f"{wanted - slots} calls of this step have no place in a layer"
