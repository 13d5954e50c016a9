"""Phase `ipc`: can one process open another's GPU memory? Custom all-reduce rests on it, so its correct sum in phase `paths` shows it.

Where phase `paths` did not get so far, two ranks try it alone. Invariant: "works" is said only of a sum that was right.
"""

from __future__ import annotations

from typing import Any

from .inside import Known, Report

_HINTS = (
    "ranks must share the PID and IPC namespaces (docker: --ipc=host, and one container), and the allocator must be "
    "one that CUDA IPC can share (no expandable_segments, no cudaMallocAsync)"
)


def ask(report: Report, known: Known) -> str:
    paths = known.get("paths", {})
    rows: list[dict[str, Any]] = [row for row in paths.get("all_reduces", ()) if row["path"] == "custom"]
    text = str(paths.get("runs", {}).get("custom", ""))
    if paths.get("device") == "gpu" and any(row["result"] == "correct" for row in rows):
        report.fact("shown_by", "paths")
        return f"works: custom all-reduce was correct on {paths['where']}, each rank a process"
    if paths.get("device") == "gpu" and text.startswith("not here"):
        report.fact("shown_by", "paths")
        return _broken(report, known, text.partition(": ")[2])
    if paths.get("device") == "host":
        report.skip(f"the ranks of phase 'paths' were CPU ranks: {paths.get('why', 'not told')}")
    return _alone(report, known)


def _alone(report: Report, known: Known) -> str:
    """Two GPU ranks that do nothing else."""
    from .._bench.targets import TARGETS
    from .._run.local_group import LocalGroup
    from .._types import Path, ProbeError, ProbeUnavailable
    from .paths import try_one

    report.fact("shown_by", "ipc")
    report.doing("starting two GPU ranks")
    try:
        with LocalGroup(2, device="gpu", timeout_s=3.0, start_timeout_s=10.0) as group:
            text = group.paths()[Path.CUSTOM]
            if text.startswith("not here"):
                return _broken(report, known, text.partition(": ")[2])
            report.doing("reducing by memory of the other rank")
            result = try_one(group, TARGETS["one_shot"])["result"]
    except ProbeUnavailable as error:
        report.skip(str(error))
    except (ProbeError, TimeoutError) as error:
        return _broken(report, known, str(error).splitlines()[0])
    if result != "correct":
        return _broken(report, known, result)
    return "works: custom all-reduce was correct between two processes"


def _broken(report: Report, known: Known, why: str) -> str:
    report.fact("why", why)
    if known.get("peer", {}).get("denied") and not known["peer"].get("copies"):
        report.note(f"GPU memory is not opened by another process: no pair of GPUs has peer access ({why})")
        return f"not tried: no peer access ({why})"
    report.finding(f"one process cannot use another's GPU memory: {why}; {_HINTS}")
    return f"does not work: {why}"
