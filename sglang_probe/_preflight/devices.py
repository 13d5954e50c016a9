"""Phase `devices`: the GPUs that CUDA shows to this process. Its count decides which later phases have anything to ask.

Invariant: nothing here makes a context on a GPU; where there is none, the phase answers 0 and says why.
"""

from __future__ import annotations

import os
from pathlib import Path

from .inside import Known, Report

PROC = Path("/proc/driver/nvidia")
"""NVIDIA's kernel module tells of itself here, without a call into the driver."""


def driver_missing() -> bool:
    """No NVIDIA driver serves this machine: told by files, without a call into it."""
    return not any(path.exists() for path in (PROC / "version", Path("/dev/nvidiactl"), Path("/dev/dxg")))


def ask(report: Report, known: Known) -> str:
    from .. import gpu

    here = sorted(path.name for path in (PROC / "gpus").glob("*"))
    report.fact("in_machine", here)
    report.doing("asking CUDA for its GPUs")
    available = gpu.available()
    if not available:
        report.fact("count", 0)
        report.fact("why", str(available))
        if here:
            report.finding(f"{_gpus(len(here))} in this machine, and none can be used: {available}")
        return "no GPU: no NVIDIA driver here" if driver_missing() else f"no GPU: {short(str(available))}"
    found = gpu.devices()
    report.fact("count", len(found))
    for device in found:
        report.item("gpus", device.to_dict())
    if len(here) > len(found):
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        report.note(f"{_gpus(len(here))} in this machine, {len(found)} of them visible here (CUDA_VISIBLE_DEVICES={visible})")
    kinds: dict[str, int] = {}
    for device in found:
        kind = f"{device.name} (sm_{device.arch}, {device.memory_bytes / 2**30:.0f} GiB)"
        kinds[kind] = kinds.get(kind, 0) + 1
    if len(kinds) > 1:
        report.note("the GPUs are not all of one kind: SGLang and NCCL go by the slowest")
    return ", ".join(f"{count} x {kind}" for kind, count in kinds.items())


def short(reason: str) -> str:
    """The reason without what to do about it."""
    return reason.partition(";")[0]


def _gpus(count: int) -> str:
    return f"{count} GPU{'s are' if count != 1 else ' is'}"
