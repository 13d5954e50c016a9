"""The task of an arm that is a release of SGLang: what its dispatch takes for a call, with these toggles. Called by targets.py.

Invariant: what is measured is what that release takes here; a release that takes none, or raises, is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._bench.driver import Wanted
from .._bench.plan import Plan, Task
from .._bench.targets import routed
from .._facts import DTYPE_BYTES
from .._releases import Release, resolve
from .._route import context_bits
from .._run.switches import GATES, Settings
from .._run.toggles import COMMUNICATORS, FLAGS, checked
from .._types import InputError

_NOT_HERE = ("sglang", "timeout_s")
_BITS = ("piecewise", "compiling")
"""Flags that are bits of the context; the third is a fact of the server."""


def release_task(plan: Plan, sglang: str, toggles: Mapping[str, Any]) -> Task:
    """One cell of this plan, by the dispatch of this release. Raises InputError."""
    release = resolve(sglang)
    driver, own = next(iter(plan.drivers.items()))
    if own and resolve(own).name != release.name:
        raise InputError(
            "sglang", sglang, f"the engine that is installed here is SGLang {own}: its dispatch is the only one that it has"
        )
    settings = _settings(plan, release, toggles)
    phase, pattern, shape = plan.phases[0], plan.patterns[0], plan.shapes[0]
    nbytes = shape[0] * shape[1] * DTYPE_BYTES[plan.dtype]
    decision = routed(settings, nbytes, shape[1], plan.dtype, phase == "captured")
    if decision.error:
        raise InputError("sglang", sglang, f"it raises {decision.error} for this call: there is nothing to measure")
    if not decision.reduces:
        raise InputError("sglang", sglang, f"it takes {decision.path}, and reduces nothing (a dry run, or a lost result)")
    wanted = Wanted(
        f"SGLang {release.name}", str(decision.path), decision.kernel, settings, phase == "captured", shape, plan.dtype, nbytes
    )
    compute_us = plan.compute_us if pattern == "interleaved" else 0.0
    return Task(wanted, phase, pattern, compute_us, driver, plan.calls_of(nbytes, phase), 0)


def _settings(plan: Plan, release: Release, toggles: Mapping[str, Any]) -> Settings:
    for name in _NOT_HERE:
        if name in toggles:
            raise InputError("toggles", {name: toggles[name]}, "this is said by the arm itself")
    clean = checked(toggles)
    flags = [name for name in _BITS if clean.get(name)]
    off = sum(GATES[name] for name in COMMUNICATORS if clean.get(name) is False)
    on = sum(GATES[name] for name in COMMUNICATORS if clean.get(name) is True)
    facts = {name: value for name, value in clean.items() if name not in FLAGS and name not in COMMUNICATORS}
    if "symmetric_memory" in clean:
        facts["symm_mem"] = clean["symmetric_memory"]
    group = plan.group.with_facts("given", "toggles", **facts) if facts else plan.group
    return Settings(release, group, context_bits(flags) if flags else 0, off, on)
