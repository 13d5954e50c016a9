"""What a person should know beside the counts of a step. Called by step.

Invariant: a note that comes from reading SGLang and not from running it says so.
"""

from __future__ import annotations

from collections.abc import Iterable

from .._facts import TEXTS
from .._types import Model, Server
from .._versions import at_least
from .calls import Plan
from .fusion import fuse_calls
from .types import StepCall

_FUSES = (90, 100, 103)


def model_notes(model: Model, server: Server, sglang: str) -> tuple[str, ...]:
    """Notes that rest on the model and the release."""
    eagle3 = (server.speculative_algorithm or "").upper() == "EAGLE3"
    if eagle3 and model.arch == "KimiK25ForConditionalGeneration" and not at_least(sglang, "0.5.10rc0"):
        return (
            "in this release kimi_k25.py does not capture layers for EAGLE-3 (that came in v0.5.10rc0): a stock server does not "
            "start with this launch, so the server was patched",
        )
    return ()


def fusion_elsewhere(plan: Plan, model: Model, other: Server, sglang: str, name: str) -> tuple[str, ...]:
    """What the same launch would fuse on other GPUs, where these fuse nothing."""
    count = fuse_calls(plan.calls, model, other, sglang).count
    return (f"the same launch on {name} would fuse {count} of the {plan.count}",) if count else ()


def may_fuse_elsewhere(plan: Plan, server: Server) -> bool:
    """Whether it is the GPU that keeps this server from fusing."""
    tp = server.groups["tp"]
    return bool(plan.calls) and not server.fusion.enabled and tp.value("device") == 0 and tp.value("arch") not in _FUSES


def call_notes(calls: Iterable[StepCall]) -> tuple[str, ...]:
    """Notes that rest on the routes: what raises, what is not reduced."""
    notes = []
    for item in calls:
        d, where = item.decision, f"{item.call.count} x {item.call.site}"
        if d.error:
            notes.append(f"{where}: SGLang raises {d.error} here")
        elif not d.reduces:
            notes.append(f"{where}: NOT REDUCED: SGLang loses the result or only pretends here")
    return tuple(notes)


def assumed_facts(calls: Iterable[StepCall]) -> tuple[str, ...]:
    """Facts that were left at their default, and without which a call would go elsewhere. What the launch reader assumed, it says."""
    texts: dict[str, None] = {}
    for item in calls:
        for name, fact in item.decision.facts.items():
            if fact.origin == "assumed" and fact.source in ("", "default"):
                texts[f"{name} = {fact.value} ({item.call.group} group): {TEXTS[name]}"] = None
    return tuple(texts)
