"""Regions of the space of conditions: from ``dispatch``'s keywords to the core's regions and back. Called by reach and diff.

Invariant: a region is never empty. What cannot hold together is refused with the names of the conditions, so that no proof is given
for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import _core
from .._releases import Release
from .._route import COMMUNICATORS, DEVICES
from .._types import InputError

AXES: tuple[str, ...] = tuple(name for name, _ in _core.AXES)
_STATES = ("absent", "disabled", "declines", "accepts")
_SWITCH = (False, True)
VALUES: dict[str, tuple[Any, ...]] = {
    name: _STATES if name in COMMUNICATORS else ("absent", "disabled", "enabled") if name == "pynccl" else _SWITCH
    for name in AXES
}
_DEVICE_AXES = ("cpu", "hpu", "xpu", "npu")
_BESIDE = ("cpu_shm", "amd_deterministic", "custom_multinode")
"""Axes beside the 12,289 states: off unless they are asked for, or the device brings them."""
CONDITIONS: tuple[str, ...] = ("world_size", "device", *(name for name in AXES if name not in _DEVICE_AXES))
PLAIN: dict[str, Any] = {**{name: values[0] for name, values in VALUES.items()}, "device": "cuda"}
"""What ``dispatch`` takes where nothing is said."""


@dataclass(frozen=True)
class Region:
    """A part of the space of conditions of one release."""

    fixed: Mapping[str, tuple[Any, ...]]
    """What was fixed, each with the values that it may take."""
    code: bytes
    """As the core reads it."""

    @property
    def states(self) -> int:
        return _core.region_count(self.code)


def _values(name: str, value: object) -> tuple[Any, ...]:
    """One value, or several in a list, tuple or set; each checked."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        values = tuple(dict.fromkeys(value))
        if not values:
            raise InputError(name, value, "no value is left: an empty space proves nothing")
    else:
        values = (value,)
    for one in values:
        if name == "world_size":
            if isinstance(one, bool) or not isinstance(one, int) or one < 1:
                raise InputError(name, one, "give the number of ranks, 1 or more")
        elif name == "device":
            if one not in DEVICES:
                raise InputError(name, one, f"give one of {', '.join(DEVICES)}")
        elif one not in VALUES[name] or (VALUES[name] == _SWITCH and not isinstance(one, bool)):
            raise InputError(name, one, f"give one of {', '.join(map(str, VALUES[name]))}")
    return values


def _mask(name: str, values: Iterable[Any]) -> int:
    return sum(1 << VALUES[name].index(value) for value in set(values))


def region_of(release: Release, fixed: Mapping[str, object]) -> Region:
    """The region that is left when some conditions are fixed, each to a value or to a collection of values.

    Raises InputError for an unknown condition or value, and where nothing is left.
    """
    for name in fixed:
        if name not in CONDITIONS:
            raise InputError(name, fixed[name], f"not a condition; the conditions are {', '.join(CONDITIONS)}")
    checked = {name: _values(name, value) for name, value in fixed.items()}
    masks = {name: (1 << len(VALUES[name])) - 1 for name in AXES}
    for name in (*_DEVICE_AXES, *_BESIDE):
        masks[name] = 1
    reads_pcie = bool(_core.rulesets()[release.ruleset_index][2] & _PCIE_BIT)
    if not reads_pcie:
        masks["pcie_ipc"] = 1
    device = checked.get("device", ("cuda",))
    if len(device) > 1:
        raise InputError("device", device, "ask for one device at a time")
    if device[0] in _DEVICE_AXES:
        masks[device[0]] = 2
    masks["cpu_shm"] = 3 if device[0] == "cpu" else 1
    masks["amd_deterministic"] = 3 if device[0] == "hip" else 1
    for name, values in checked.items():
        if name in masks:
            masks[name] = _mask(name, values)
    for name, needed in (("cpu_shm", "cpu"), ("amd_deterministic", "hip")):
        if True in checked.get(name, ()) and device[0] != needed:
            raise InputError(name, True, f"it is asked for device={needed!r} alone; the device here is {device[0]!r}")
    sizes = checked.get("world_size", (1, 2))
    one, many = 1 in sizes, any(size > 1 for size in sizes)
    # a group of one rank has no communicator and asks for nothing: what is fixed otherwise excludes it
    one = one and all(PLAIN[name] in values for name, values in checked.items() if name in COMMUNICATORS or name == "pynccl")
    if not (one or many):
        raise InputError("world_size", sizes, "a group of one rank has no communicator, but one is fixed: the space is empty")
    code = bytes([*(masks[name] for name in AXES), one, many])
    return Region(checked, code)


_PCIE_BIT = 1 << [name for name, _, _ in _core.CONDITIONS].index("pcie_ipc_present")


def conditions_of_word(word: int) -> dict[str, Any]:
    """``dispatch``'s keywords for a word of conditions: only what departs from the defaults."""
    if word == 0:
        return {"world_size": 1}
    names = {name for i, (name, _, _) in enumerate(_core.CONDITIONS) if word >> i & 1}
    found: dict[str, Any] = {}
    for name in AXES:
        if name in COMMUNICATORS or name == "pynccl":
            level = sum(f"{name}_{suffix}" in names for suffix in ("present", "enabled", "accepts"))
            if level:
                found[name] = VALUES[name][level]
        elif name in names:
            found["device" if name in _DEVICE_AXES else name] = name if name in _DEVICE_AXES else True
    if found.get("amd_deterministic"):
        found["device"] = "hip"
    return found


def keywords(values: Mapping[str, Any]) -> dict[str, Any]:
    """``dispatch``'s keywords for values of axes: an axis of a device is the keyword ``device``."""
    found = {name: value for name, value in values.items() if name not in _DEVICE_AXES}
    device = next((name for name in _DEVICE_AXES if values.get(name)), "hip" if values.get("amd_deterministic") else "")
    return {**found, "device": device} if device else found


def call_text(sglang: str, conditions: Mapping[str, Any]) -> str:
    """The call that a person would write."""
    arguments = ", ".join([repr(sglang), *(f"{name}={value!r}" for name, value in conditions.items())])
    return f"probe.dispatch({arguments})"


def conjunction(allowed: bytes, region: Region) -> dict[str, tuple[Any, ...]]:
    """The conditions of a cube, where it does not cover all that the region has."""
    found = {}
    for i, name in enumerate(AXES):
        if allowed[i] != region.code[i]:
            found[name] = tuple(value for k, value in enumerate(VALUES[name]) if allowed[i] >> k & 1)
    return found


def conjunction_text(conditions: Mapping[str, tuple[Any, ...]]) -> str:
    """A conjunction in words: ``piecewise=True, custom=absent|disabled``."""
    if not conditions:
        return "always"
    return ", ".join(f"{name}={'|'.join(map(str, values))}" for name, values in conditions.items())
