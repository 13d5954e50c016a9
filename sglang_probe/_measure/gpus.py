"""NVIDIA's GPUs as their driver tells of them through nvidia-ml-py: what they are, their links, their state. Called by provenance.py.

Invariant: a question that the driver does not answer is None; no answer ever raises, and without nvidia-ml-py all is told as missing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

_THROTTLE = {
    0x1: "idle",
    0x2: "applications_clocks",
    0x4: "software_power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "hardware_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of the driver's word; one that is not named here is told by its number."""
_ANCESTORS = {0: "same board", 10: "one switch", 20: "switches", 30: "host bridge", 40: "NUMA node", 50: "system"}
"""NVML's levels of the nearest thing that two GPUs share over PCIe."""
_DIGITS = 16


class Gpus:
    """The driver, opened once; `close` gives it back. Without it, `state` is empty and `describe` says why."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        self._uuids: list[str | None] = []
        self.why = ""
        """Why there is nothing to tell; "" where there is."""
        try:
            import pynvml  # type: ignore[import-not-found, import-untyped, unused-ignore] # optional
        except ImportError:
            self.why = "nvidia-ml-py is not installed"
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self.why = f"NVIDIA's driver does not answer: {error}"
            return
        self._nvml = pynvml
        count = self._ask("nvmlDeviceGetCount")
        self._handles = [self._ask("nvmlDeviceGetHandleByIndex", i) for i in range(count or 0)]
        self._uuids = [_text(self._ask("nvmlDeviceGetUUID", handle)) for handle in self._handles]
        if not self._handles:
            self.why = "NVIDIA's driver shows no GPU"

    def close(self) -> None:
        if self._nvml is not None:
            self._ask("nvmlShutdown")
        self._nvml, self._handles, self._uuids = None, [], []

    def _ask(self, name: str, *arguments: Any) -> Any:
        """One question; None where this driver, this GPU or this nvidia-ml-py does not know it."""
        nvml = self._nvml
        call: Callable[..., Any] | None = getattr(nvml, name, None)
        if call is None or any(argument is None for argument in arguments):
            return None
        try:
            return call(*arguments)
        except nvml.NVMLError:
            return None

    # ------------------------------------------------------------------------------------------------------------------ what they are

    def describe(self) -> dict[str, Any]:
        """The fields of Provenance that are about GPUs; under "missing" what is not known."""
        if self.why:
            return {"driver": self._driver(), "cuda": self._cuda(), "missing": {"gpus": self.why}}
        links = self._links()
        return {
            "driver": self._driver(),
            "cuda": self._cuda(),
            "gpus": [self._gpu(i) for i in range(len(self._handles))],
            "links": links,
            "topology": hashlib.sha256(json.dumps(links).encode()).hexdigest()[:_DIGITS],
            "missing": {},
        }

    def _driver(self) -> str:
        return _text(self._ask("nvmlSystemGetDriverVersion")) or ""

    def _cuda(self) -> str:
        number = self._ask("nvmlSystemGetCudaDriverVersion")
        return f"{number // 1000}.{number % 1000 // 10}" if number else ""

    def _gpu(self, i: int) -> dict[str, Any]:
        """What does not change from one run to the next."""
        handle, n = self._handles[i], self._nvml
        memory, ecc = self._ask("nvmlDeviceGetMemoryInfo", handle), self._ask("nvmlDeviceGetEccMode", handle)
        limit = self._ask("nvmlDeviceGetEnforcedPowerLimit", handle)
        return {
            "name": _text(self._ask("nvmlDeviceGetName", handle)),
            "uuid": self._uuids[i],
            "pci": _text(getattr(self._ask("nvmlDeviceGetPciInfo", handle), "busId", None)),
            "memory_bytes": None if memory is None else int(memory.total),
            "power_limit_w": None if limit is None else limit / 1000,
            "sm_mhz_max": self._ask("nvmlDeviceGetMaxClockInfo", handle, n.NVML_CLOCK_SM),
            "memory_mhz_max": self._ask("nvmlDeviceGetMaxClockInfo", handle, n.NVML_CLOCK_MEM),
            "ecc": None if ecc is None else bool(ecc[0]),
            "vbios": _text(self._ask("nvmlDeviceGetVbiosVersion", handle)),
        }

    # ------------------------------------------------------------------------------------------------------------- how they are linked

    def _links(self) -> list[list[str]]:
        """From each GPU to each: ``NVLink x18``, else the nearest thing they share; and where one cannot read the other's memory."""
        lanes = [self._lanes(handle) for handle in self._handles]
        return [[self._link(i, j, lanes) for j in range(len(lanes))] for i in range(len(lanes))]

    def _lanes(self, handle: Any) -> list[str | None]:
        """By active NVLink, the PCI address at its other end."""
        most = getattr(self._nvml, "NVML_NVLINK_MAX_LINKS", 0)
        active = [i for i in range(most) if self._ask("nvmlDeviceGetNvLinkState", handle, i)]
        return [_text(getattr(self._ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, i), "busId", None)) for i in active]

    def _link(self, i: int, j: int, lanes: list[list[str | None]]) -> str:
        if i == j:
            return "self"
        one, other, n = self._handles[i], self._handles[j], self._nvml
        if self._ask("nvmlDeviceGetP2PStatus", one, other, n.NVML_P2P_CAPS_INDEX_NVLINK) == n.NVML_P2P_STATUS_OK:
            address = _text(getattr(self._ask("nvmlDeviceGetPciInfo", other), "busId", None))
            direct = sum(end is not None and end == address for end in lanes[i])
            # Through a switch, none of them ends at the other GPU.
            kind = f"NVLink x{direct or min(len(lanes[i]), len(lanes[j]))}{'' if direct else ', switched'}"
        else:
            level = self._ask("nvmlDeviceGetTopologyCommonAncestor", one, other)
            kind = "PCIe, not told" if level is None else f"PCIe, {_ANCESTORS.get(int(level), str(level))}"
        reads = self._ask("nvmlDeviceGetP2PStatus", one, other, self._index(n.NVML_P2P_CAPS_INDEX_READ))
        return (
            kind if reads == n.NVML_P2P_STATUS_OK else f"{kind}; {'peer access not told' if reads is None else 'no peer access'}"
        )

    @staticmethod
    def _index(value: Any) -> Any:
        """Some versions of nvidia-ml-py have a comma behind this number, which makes a tuple of it."""
        return value[0] if isinstance(value, tuple) else value

    # ------------------------------------------------------------------------------------------------------------------ how they fare

    def state(self) -> list[dict[str, Any]]:
        """Each GPU now."""
        return [self._state(i) for i in range(len(self._handles))]

    def _state(self, i: int) -> dict[str, Any]:
        handle, n = self._handles[i], self._nvml
        power = self._ask("nvmlDeviceGetPowerUsage", handle)
        return {
            "uuid": self._uuids[i],
            "sm_mhz": self._ask("nvmlDeviceGetClockInfo", handle, n.NVML_CLOCK_SM),
            "memory_mhz": self._ask("nvmlDeviceGetClockInfo", handle, n.NVML_CLOCK_MEM),
            "power_w": None if power is None else power / 1000,
            "temperature_c": self._temperature(handle),
            "throttle": self._throttle(handle),
            "ecc_corrected": self._ecc(handle, n.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            "ecc_uncorrected": self._ecc(handle, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        }

    def _temperature(self, handle: Any) -> Any:
        """The older question is on its way out, and older drivers do not know the newer one."""
        asked = (
            self._ask(name, handle, self._nvml.NVML_TEMPERATURE_GPU)
            for name in ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV")
        )
        return next((value for value in asked if value is not None), None)

    def _ecc(self, handle: Any, kind: int) -> Any:
        """Errors since the driver was loaded."""
        return self._ask("nvmlDeviceGetTotalEccErrors", handle, kind, self._nvml.NVML_VOLATILE_ECC)

    def _throttle(self, handle: Any) -> list[str] | None:
        """Why the clocks are not higher; the older name of the question is the one that every version has."""
        word = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        if word is None:
            return None
        bits = [1 << i for i in range(int(word).bit_length()) if int(word) >> i & 1]
        return [_THROTTLE.get(bit, f"{bit:#x}") for bit in bits]


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
