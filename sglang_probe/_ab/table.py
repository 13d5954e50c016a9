"""The machine's state of both arms side by side, for people: clocks, power, temperature, throttling, load. Called by ab.py.

Invariant: a row is of runs that are judged, and says least, middle and most; what this machine does not tell has no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .runs import Run


@dataclass(frozen=True)
class StateRow:
    """One quantity."""

    name: str
    a: str
    b: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def state_rows(runs: Sequence[Run]) -> tuple[StateRow, ...]:
    """Of these runs."""
    rows = []
    for name, tell in _ROWS.items():
        a, b = (tell([run for run in runs if run.arm == arm]) for arm in ("a", "b"))
        if a or b:
            rows.append(StateRow(name, a or "-", b or "-"))
    return tuple(rows)


def _numbers(values: Iterable[Any]) -> str:
    """``1,980``, or ``1,965 (1,905 to 1,980)``: the middle, and the range where there is one."""
    found = sorted(float(value) for value in values if value is not None)
    if not found:
        return ""
    low, middle, high = (
        f"{one:,.0f}" if abs(one) >= 100 else f"{one:.3g}" for one in (found[0], found[len(found) // 2], found[-1])
    )
    return middle if low == high else f"{middle} ({low} to {high})"


def _gpu(name: str, busy: bool = False) -> Callable[[Sequence[Run]], str]:
    def tell(runs: Sequence[Run]) -> str:
        gpus = (gpu for run in runs for state in run.states for gpu in state.get("gpus", ()))
        return _numbers(gpu.get(name) for gpu in gpus if not busy or "idle" not in (gpu.get("throttle") or ()))

    return tell


def _throttle(runs: Sequence[Run]) -> str:
    asked = [run for run in runs if any(state.get("gpus") for state in run.states)]
    reasons: dict[str, int] = {}
    for run in asked:
        for reason in {str(one) for state in run.states for gpu in state.get("gpus", ()) for one in gpu.get("throttle") or ()}:
            reasons[reason] = reasons.get(reason, 0) + 1
    if not asked:
        return ""
    return (
        ", ".join(f"{reason} in {count} of {len(asked)}" for reason, count in sorted(reasons.items())) or f"none in {len(asked)}"
    )


def _load(runs: Sequence[Run]) -> str:
    return _numbers(load[0] for run in runs if (load := run.before.get("load")))


def _cpu(name: str) -> Callable[[Sequence[Run]], str]:
    def tell(runs: Sequence[Run]) -> str:
        found: set[str] = set()
        for run in runs:
            cpu = run.before.get("cpu")
            value = cpu.get(name) if isinstance(cpu, Mapping) else None
            found |= {str(one) for one in value} if isinstance(value, tuple) else {str(value)} if value else set()
        return ", ".join(sorted(found))

    return tell


def _cores(runs: Sequence[Run]) -> str:
    return " and ".join(sorted({cores for run in runs for cores in run.seen.cores}))


_ROWS: Mapping[str, Callable[[Sequence[Run]], str]] = {
    "SM clock of busy GPUs, MHz": _gpu("sm_mhz", busy=True),
    "memory clock of busy GPUs, MHz": _gpu("memory_mhz", busy=True),
    "power of a GPU, W": _gpu("power_w"),
    "temperature of a GPU, C": _gpu("temperature_c"),
    "throttle reasons, runs": _throttle,
    "load average before a run": _load,
    "frequency governor": _cpu("governors"),
    "cores": _cores,
    "seconds of a run": lambda runs: _numbers(run.wall_s for run in runs),
}
