"""The machine's state around a run: GPUs (clocks, power, temperature, throttle reasons), load, frequency governor, cores, CPU quota.

Called by experiment.py before, while and after each run; judged by compare.py. Invariant: what this machine does not tell is None, and a
state takes no more than reading a few files and asking the driver once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .._measure.provenance import Monitor
from .seen import _ranges

_CPUS = Path("/sys/devices/system/cpu")
_QUOTA = (Path("/sys/fs/cgroup/cpu.stat"), Path("/sys/fs/cgroup/cpu/cpu.stat"))
"""Of the second version of control groups, and of the first: in a container its own."""

State = Mapping[str, Any]


class Machine:
    """Keeps the driver open between states. ``with Machine() as machine: machine.state()``."""

    def __init__(self) -> None:
        self._monitor = Monitor()

    def state(self) -> dict[str, Any]:
        """Plain data: ``at`` (UTC), ``load``, ``gpus`` as Cell.before has them, and ``cpu``."""
        return {**self._monitor.state(), "cpu": _cpu()}

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *_: object) -> None:
        self._monitor.close()


def _cpu() -> dict[str, Any]:
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    return {
        "cores": _ranges(allowed),
        "governors": _words(_CPUS / f"cpu{i}/cpufreq/scaling_governor" for i in allowed),
        "throttled": _sum(_CPUS / f"cpu{i}/thermal_throttle/core_throttle_count" for i in allowed),
        "quota_throttled_us": _quota(),
    }


def _words(paths: Iterable[Path]) -> list[str] | None:
    """What stands in them, each once; None where none is there."""
    found = {text for path in paths if (text := _read(path)) is not None}
    return sorted(found) or None


def _sum(paths: Iterable[Path]) -> int | None:
    counts = [int(text) for path in paths if (text := _read(path)) is not None and text.isdigit()]
    return sum(counts) if counts else None


def _quota() -> int | None:
    """Microseconds for which this container's processes were held, because its share of the CPU was used up; since it began."""
    for path in _QUOTA:
        for line in (_read(path) or "").splitlines():
            name, _, value = line.partition(" ")
            if name in ("throttled_usec", "throttled_time") and value.strip().isdigit():
                return int(value) // (1 if name == "throttled_usec" else 1000)
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
