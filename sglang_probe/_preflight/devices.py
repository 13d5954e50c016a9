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
        hidden = _hidden(0)
        if here:
            because = f"{hidden} ({available})" if hidden else str(available)
            report.finding(f"{_gpus(len(here))} in this machine, and none can be used: {because}")
        elif hidden and not driver_missing():
            report.finding(f"no GPU can be used: {hidden} ({available})")
        elif hidden:
            report.note(f"{hidden}; there is no NVIDIA driver here either")
        return "no GPU: no NVIDIA driver here" if driver_missing() else f"no GPU: {short(str(available))}"
    found = gpu.devices()
    report.fact("count", len(found))
    if unknown := _unknown(len(found)):
        report.finding(unknown)
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


def _visible() -> list[str] | None:
    """What CUDA_VISIBLE_DEVICES names; None where it is not set."""
    wish = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if wish is None else [name.strip() for name in wish.split(",")] if wish.strip() else []


def _hidden(count: int) -> str:
    """That the variable alone may be why there is no GPU."""
    names = _visible()
    if names is None or count:
        return ""
    value = os.environ["CUDA_VISIBLE_DEVICES"]
    on_purpose = not names or names[0].startswith("-")
    return f"CUDA_VISIBLE_DEVICES={value!r} {'hides every GPU' if on_purpose else 'may name none that is here'}: unset it to see them"


def _unknown(count: int) -> str:
    """CUDA stops at the first name that it does not know, and says nothing; -1 ends a list on purpose, and of MIG's parts it shows one."""
    names = [] if any(name.upper().startswith("MIG") for name in _visible() or ()) else _visible() or []
    meant = next((i for i, name in enumerate(names) if name.startswith("-")), len(names))
    if meant <= count:
        return ""
    return (
        f"CUDA_VISIBLE_DEVICES={','.join(names)} names {meant} GPUs, and CUDA shows {count}: it stops at the first that is not here "
        f"({names[count]}) or stands there twice"
    )


def short(reason: str) -> str:
    """The reason without what to do about it."""
    return reason.partition(";")[0]


def _gpus(count: int) -> str:
    return f"{count} GPU{'s are' if count != 1 else ' is'}"
