"""Phase `paths`: one all-reduce by each path, checked against its reference, with the path and the kernel that really ran.

Bench's targets (`_bench/targets.py`) are the list; ranks are on GPUs where there are enough of them, else on CPUs.
Invariant: a row says "correct" only where every rank's numbers are right, and what was asked for is what ran.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._bench.targets import TARGETS, Target, routed, why_not
from .._run.local_group import LocalGroup
from .._types import ProbeError, ProbeUnavailable
from .inside import Known, Report

if TYPE_CHECKING:
    from .._run.coordinator import Coordinator
    from .._run.switches import Settings

_NBYTES, _DTYPE, _ELEMENT = 64 << 10, "bf16", 2
_RANKS = (8, 6, 4, 2)
"""Sizes of a group that SGLang's communicators know."""
_START_S, _CALL_S = 25.0, 12.0
"""Shorter than the phase's limit: a group's own error says more than the end of this process. torch builds a communicator in a call."""
_GROUPS = 3
"""A group that breaks is replaced so often; from then on nothing is tried any more."""


def ask(report: Report, known: Known) -> str:
    report.doing("counting GPUs")
    names, why = _gpus()
    size = next((n for n in _RANKS if n <= len(names)), 2)
    report.doing(f"starting {size} ranks")
    group = _start(size)
    gpus = group.device == "gpu"
    where = f"{size} x {names[0]}" if gpus else f"{size} CPU ranks standing in"
    for name, value in (("device", group.device), ("where", where), ("why", group.why)):
        report.fact(name, value)
    if not gpus and len(names) > 1:
        report.finding(f"{len(names)} GPUs are here, and yet all-reduces run on CPU ranks: {group.why}")
    elif not gpus:
        report.note(
            "all-reduces ran on CPU ranks, which stand in for GPUs: no NCCL and no kernel of a GPU ran, so a path that is correct here "
            f"tells of the dispatch and of our own code, not of this machine's GPUs. Why no GPUs: {why}"
        )
    runs = {str(path): text for path, text in group.paths().items()}
    report.fact("runs", runs)
    correct = _targets(report, group, size)
    for path in (path for path in runs if path not in {target.path for target in TARGETS.values()}):
        result = runs[path] if runs[path].startswith("not here") else "not tried: it stands in for another library's"
        report.item("all_reduces", {"target": path, "path": path, "kernel": "", "result": result})
    if not correct:
        report.finding(f"no path gave a correct all-reduce on {where}")
    return f"{correct} paths correct on {where}{'' if gpus else '; no GPU was used, no NCCL ran'}"


def _gpus() -> tuple[list[str], str]:
    """(the names of the GPUs that can be used, why there are fewer than two)"""
    from .. import gpu

    available = gpu.available()
    if not available:
        return [], str(available)
    names = [device.name for device in gpu.devices()]
    return names, "" if len(names) > 1 else "there is one, and ranks do not share a GPU"


def _start(size: int) -> LocalGroup:
    return LocalGroup(size, timeout_s=_CALL_S, start_timeout_s=_START_S)


def _targets(report: Report, group: LocalGroup, size: int) -> int:
    """How many are correct. A group that breaks is replaced, so that the failure of one path hides no other's."""
    correct, groups = 0, 1
    try:
        for target in TARGETS.values():
            if group.closed and groups < _GROUPS:
                report.doing(f"starting {size} ranks anew")
                group, groups = _start(size), groups + 1
            report.doing(f"reducing by {target.name}")
            row = try_one(group, target) if not group.closed else _row(target, f"not tried: the group broke {groups} times")
            report.item("all_reduces", row)
            correct += row["result"] == "correct"
            if row["result"].startswith(("WRONG", "FAILED")):
                report.finding(f"{target.name}: {row['result']}")
    finally:
        group.close()
    return correct


def _row(target: Target, result: str, kernel: str = "") -> dict[str, Any]:
    return {"target": target.name, "path": target.path, "kernel": kernel, "result": result}


def try_one(group: LocalGroup, target: Target) -> dict[str, Any]:
    settings = target.settings(group.group)
    why = why_not(target, routed(settings, _NBYTES, _NBYTES // _ELEMENT, _DTYPE, captured=False))
    if why:
        return _row(target, f"not taken here: {why}")
    try:
        group.run(_apply, settings)
        outcome = group.all_reduce(_NBYTES, dtype=_DTYPE, timed=0)
    except ProbeUnavailable as error:
        return _row(target, f"not here: {_first(error)}")
    except (ProbeError, TimeoutError, MemoryError, ValueError, RuntimeError) as error:
        return _row(target, f"FAILED: {_first(error)}")
    ran = (str(outcome.path), outcome.kernel)
    if ran != (target.path, target.kernel):
        return _row(target, f"WRONG: {' '.join(filter(None, ran))} ran instead", outcome.kernel)
    return _row(target, "correct" if outcome.correct else f"WRONG: {'; '.join(outcome.wrong)}", outcome.kernel)


def _apply(coordinator: Coordinator, settings: Settings) -> None:
    coordinator.apply(settings)


def _first(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
