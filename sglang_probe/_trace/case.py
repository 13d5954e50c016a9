"""One question and what was read for it; what else is to be said beside the answer. Called by check.py and answer.py.

Invariant: a finding is something that the trace shows; a warning is something that the answer does not hold for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .._server.command import UNKNOWN
from .._show.sizes import human_bytes
from .calls import Calls
from .compare import Compared
from .events import Trace, joined
from .expected import Expected
from .kernels import Kind
from .steps import SeenStep
from .target import Asked
from .types import RankSeen

if TYPE_CHECKING:
    from .._step.types import Step


@dataclass(frozen=True)
class Case:
    """All that an answer is made of."""

    traces: tuple[Trace, ...]
    calls: tuple[Calls, ...]
    expected: Expected | None
    step: Step | None
    mark: re.Pattern[str] | None
    phase: str
    steps: tuple[int, int] | None
    rank: int | None
    notes: tuple[str, ...]
    batch_told: bool = True
    """Somebody, or the trace, says how many requests a step has."""

    @property
    def asked(self) -> Asked:
        step = self.step
        batch, padded = (step.batch, step.padded_batch) if step else (0, 0)
        return Asked(self.expected, batch, padded, step is not None and step.draft_tokens > 1, self.phase, self.steps)


def whole_graphs(count: int) -> str:
    """What nsys leaves out, and how it would not."""
    return f"{count:,} graphs were recorded whole, without their kernels: record with nsys --cuda-graph-trace=node"


def findings_of(case: Case, ranks: Sequence[RankSeen], steps: Sequence[SeenStep]) -> list[str]:
    expected = case.expected
    found = _lengths(ranks)
    kernels = Counter(kind.other_kernel for rank in ranks for kind in rank.kinds if kind.other_kernel)
    found += [f"the right path by another of its kernels: {text}; it picks by size" for text, _ in kernels.most_common(2)]
    if expected is None:
        return found
    lost = [rank for rank in ranks for kind in rank.kinds if _fused_calls_lost(kind, expected)]
    if lost:
        found.append(
            f"{expected.fused} calls a step are in the trace neither fused nor as all-reduces: either their kernels are not known here, or "
            "these layers went on without a sum (to v0.5.20, where the fused op gives nothing back)"
        )
    if any(rank.wrong_phase == "eager" for rank in ranks):
        told = "the steps ran eagerly, where this server should replay a graph: no graph for this batch, or --disable-cuda-graph"
        named = any(step.stage for step in steps)
        found.append(
            told
            if named
            else f"{told}; or the trace holds prefills alone, which nothing in it tells (SGLang does from v0.5.12 on)"
        )
    if not case.batch_told and any(rank.differs for rank in ranks):
        found.append("batch 1 was assumed: give --batch, if the recording is of another")
    found += _sizes(expected, steps)
    return found


def _lengths(ranks: Sequence[RankSeen]) -> list[str]:
    steps = {rank.steps for rank in ranks if rank.steps}
    return (
        [f"ranks saw {min(steps)} to {max(steps)} steps: their recordings do not cover the same time"] if len(steps) > 1 else []
    )


def _fused_calls_lost(kind: Compared, expected: Expected) -> bool:
    plain = len(expected) - expected.fused
    return bool(expected.fused) and len(kind.ways) == plain and "fused" not in kind.counts


def _sizes(expected: Expected, steps: Sequence[SeenStep]) -> list[str]:
    """Where the trace says the bytes of its tensors."""
    wanted = {slot.want.nbytes for slot in expected.slots}
    parts = [step.calls.kernels["nbytes"][step.at] for step in steps]
    seen = set(np.unique(np.concatenate(parts)).tolist()) - {0} if parts else set()
    if not seen or seen & wanted:
        return []
    told = joined(human_bytes(size) for size in sorted(seen)[:4])
    return [
        f"the tensors have {told}, where {joined(human_bytes(size) for size in sorted(wanted))} were expected: another batch?"
    ]


def notes_of(case: Case) -> list[str]:
    notes = [f"{trace.path}: {note}" if len(case.traces) > 1 else note for trace in case.traces for note in trace.notes]
    expected = case.expected
    ways = {way for calls in case.calls for way in calls.ways if way.called and len(way.paths) > 1}
    if expected is not None and ways:
        notes.append(
            "NCCL's kernel does not say who called it: pynccl, in place or out of place, and torch.distributed look alike in a graph"
        )
    if any(way.kind is Kind.UNKNOWN for way in ways):
        notes.append("RCCL's generic kernel does not say its collective: it was counted as an all-reduce")
    return notes


def warnings_of(case: Case) -> list[str]:
    warnings = [
        f"DAMAGED: {trace.path}: {trace.damage}; only what is whole before that was used" for trace in case.traces if trace.damage
    ]
    if case.expected is not None and case.expected.why_not and len(case.expected):
        warnings.append(f"counts were not held against the trace: {case.expected.why_not}")
    whole = sum(trace.whole_graphs for trace in case.traces)
    if whole and any(len(calls.kernels) for calls in case.calls):
        warnings.append(whole_graphs(whole))
    step = case.step
    if step is not None and step.server is not None:
        warnings += [f"the log says otherwise: {text}" for text in step.server.contradictions]
        warnings += [note for note in step.notes if UNKNOWN in note]
    return warnings
