"""Phase `health`: of each GPU the errors of its memory, why its clocks are not higher, and clocks, temperature and power.

Invariant: a state that every idle or busy GPU has is no finding; what was not told is said to be not known.
"""

from __future__ import annotations

from typing import Any

from .devices import driver_missing
from .inside import Known, Report

_SICK = {
    "hardware_slowdown": "the hardware slows it down (heat, or power)",
    "hardware_thermal": "the hardware slows it down because it is too hot",
    "hardware_power_brake": "an external power brake slows it down",
    "software_thermal": "the driver slows it down because it is too hot",
}
"""Throttle reasons that a healthy machine does not show."""
_PLAIN = ("idle",)


def ask(report: Report, known: Known) -> str:
    from .._measure.provenance import Monitor

    report.doing("opening NVML")
    with Monitor() as monitor:
        if monitor.gpus.why:
            report.skip("no NVIDIA driver here" if driver_missing() else f"no GPU's state is known: {monitor.gpus.why}")
        report.doing("asking NVML for the state of each GPU")
        described, state = monitor.gpus.describe()["gpus"], monitor.state()
        for i, (what, now) in enumerate(zip(described, state["gpus"], strict=True)):
            report.item("gpus", {**now, "name": what["name"], "ecc": what["ecc"]})
            _look(report, i, what, now)
        report.doing("asking NVML for rows of memory that are to be replaced")
        for i, rows in enumerate(_remapped(len(described))):
            report.item("remapped_rows", rows)
            if rows and (rows["pending"] or rows["failed"]):
                what = "could not be replaced" if rows["failed"] else "are replaced at the next reset"
                report.finding(f"GPU {i}: rows of its memory are broken and {what}: reset it, or have it exchanged")
    return _answer(state["gpus"])


def _look(report: Report, i: int, what: dict[str, Any], now: dict[str, Any]) -> None:
    if what["name"] is None and now["uuid"] is None:
        report.finding(f"GPU {i}: the driver tells nothing of it: it fell off the bus, or is lost (dmesg: Xid 79)")
        return
    if now["ecc_uncorrected"]:
        report.finding(f"GPU {i}: {now['ecc_uncorrected']} memory errors that could not be corrected since the driver was loaded")
    if now["ecc_corrected"]:
        report.note(f"GPU {i}: {now['ecc_corrected']} memory errors were corrected since the driver was loaded")
    if what["ecc"] is False:
        report.note(f"GPU {i}: ECC is off: an error in its memory goes unseen")
    for reason in now["throttle"] or ():
        if reason in _SICK:
            report.finding(f"GPU {i}: {_SICK[reason]} ({reason}); {_told(now)}")
        elif reason not in _PLAIN:
            report.note(f"GPU {i}: its clocks are held back: {reason}; {_told(now)}")


def _told(now: dict[str, Any]) -> str:
    parts = [(now["sm_mhz"], "MHz"), (now["temperature_c"], "C"), (now["power_w"], "W")]
    return ", ".join(f"{value:.0f} {unit}" for value, unit in parts if value is not None) or "nothing is told of it"


def _answer(states: list[dict[str, Any]]) -> str:
    def span(name: str, unit: str) -> str:
        values = [state[name] for state in states if state[name] is not None]
        low, high = (min(values), max(values)) if values else (0, 0)
        return "" if not values else f"{low:.0f} {unit}" if round(low) == round(high) else f"{low:.0f}-{high:.0f} {unit}"

    reasons = sorted({reason for state in states for reason in state["throttle"] or () if reason not in _PLAIN})
    errors = [state["ecc_uncorrected"] for state in states]
    ecc = "ECC not told" if all(e is None for e in errors) else f"{sum(e or 0 for e in errors)} uncorrected ECC errors"
    told = [span("sm_mhz", "MHz"), span("temperature_c", "C"), span("power_w", "W"), ecc, ", ".join(reasons) or "not throttled"]
    return ", ".join(filter(None, told))


def _remapped(count: int) -> list[dict[str, bool] | None]:
    """Of each GPU: are rows to be replaced at its next reset, did that fail? None where its kind or driver does not tell."""
    import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore] # the Monitor has it open

    found: list[dict[str, bool] | None] = []
    for i in range(count):
        try:
            _, _, pending, failed = pynvml.nvmlDeviceGetRemappedRows(pynvml.nvmlDeviceGetHandleByIndex(i))
        except (pynvml.NVMLError, AttributeError):
            found.append(None)
        else:
            found.append({"pending": bool(pending), "failed": bool(failed)})
    return found
