"""The table of phases: adding one is adding a line here, and the function that it names. Read by runner.py.

A function is ``module:name``, with a dot in front for this folder: it gets a Report (inside.py) and what earlier phases told, and returns
its answer in one line. Invariant: the limits add up to what a preflight can take at the very most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .._types import InputError

_STUCK = (
    "the driver is stuck, and `nvidia-smi` will hang too: see the kernel's log (dmesg: NVRM, Xid), then reset the GPU or reboot"
)


@dataclass(frozen=True)
class Phase:
    """One question, in a process of its own."""

    name: str
    limit_s: float
    """From its start until its process is gone."""
    function: str
    what: str
    """In a few words, for help and lists."""
    needs_gpus: int = 0
    """GPUs that it needs, as phase `devices` counted them: with fewer it is skipped, and nothing is started."""
    hangs: str = "it was killed"
    """What a hang means here."""


# A driver that no process holds open (no persistence mode) takes a second or more for each GPU to start: that is no hang.
PHASES: tuple[Phase, ...] = (
    Phase(
        "paths",
        40.0,
        ".paths:ask",
        "one checked all-reduce by each path",
        hangs="an all-reduce, or the start of its ranks, hangs: the other phases may say why",
    ),
    Phase("devices", 10.0, ".devices:ask", "the GPUs that CUDA sees", hangs=_STUCK),
    Phase("driver", 10.0, ".driver:ask", "the driver's versions", hangs=_STUCK),
    Phase("links", 10.0, ".links:ask", "how the GPUs are linked", hangs=_STUCK),
    Phase(
        "peer",
        30.0,
        ".peer:ask",
        "peer access, by moving data",
        needs_gpus=2,
        hangs="a copy between GPUs hangs: PCIe access control (ACS) or an IOMMU in between does that, and so does a broken link",
    ),
    Phase("ipc", 20.0, ".ipc:ask", "GPU memory opened by another process", needs_gpus=2, hangs=_STUCK),
    Phase("nccl", 20.0, ".nccl:ask", "every NCCL, and who loads which", hangs="a library hangs where it is opened"),
    Phase("health", 10.0, ".health:ask", "ECC, clocks, power, temperature, throttling", hangs=_STUCK),
    Phase("environment", 5.0, ".environment:ask", "variables that are set, and what they do to an all-reduce"),
    Phase("system", 5.0, ".system:ask", "limits, containers, versions"),
)


def chosen(phases: Iterable[Phase], only: Iterable[str] | None) -> tuple[Phase, ...]:
    """The phases of these names (one text may hold several, between commas), in the table's order, with the one that counts GPUs where
    they need it. Raises InputError.
    """
    table = {phase.name: phase for phase in phases}
    if only is None:
        return tuple(table.values())
    if not isinstance(only, Iterable):
        raise InputError("only", only, f"give names of {', '.join(table)}")
    given = [only] if isinstance(only, str) else list(only)
    for name in given:
        if not isinstance(name, str):
            raise InputError("only", name, f"give names of {', '.join(table)}")
    names = [part.strip() for text in given for part in text.split(",")]
    for name in names:
        if name not in table:
            raise InputError("only", name, f"give names of {', '.join(table)}")
    if not names:
        raise InputError("only", "", f"give at least one of {', '.join(table)}")
    counts = ("devices",) if any(table[name].needs_gpus for name in names) and "devices" in table else ()
    return tuple(phase for phase in table.values() if phase.name in (*counts, *names))
