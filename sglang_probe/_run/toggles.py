"""What can be switched on a live Coordinator, by the names that people use. Checked by LocalGroup in the parent, applied in each rank.

Invariant: a name or value that ``apply`` would refuse is refused by ``checked`` in the parent, before any rank hears of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from .._facts import DEFAULTS, check_facts
from .._releases import Release, resolve
from .._types import InputError

if TYPE_CHECKING:
    from .coordinator import Coordinator

COMMUNICATORS = ("custom", "quick", "mscclpp", "torch_symm_mem", "pcie_ipc", "pynccl", "flashinfer")
FLAGS = ("piecewise", "compiling", "symmetric_memory")
_DAY_S = 86_400
_WORDS = {"enabled": True, "disabled": False, True: True, False: False}


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The toggles as ranks take them: releases resolved, communicators as booleans (True: enabled)."""
    clean: dict[str, Any] = {}
    for name, value in given.items():
        if name == "sglang":
            clean[name] = resolve(value) if not isinstance(value, Release) else value
        elif name in COMMUNICATORS:
            if not isinstance(value, (bool, str)) or value not in _WORDS:
                raise InputError(name, value, "give 'enabled' or 'disabled' (True or False)")
            clean[name] = _WORDS[value]
        elif name in FLAGS:
            if not isinstance(value, bool):
                raise InputError(name, value, "give True or False")
            clean[name] = value
        elif name == "timeout_s":
            clean[name] = seconds(name, value)
        elif name in DEFAULTS and name != "world_size":
            clean.update(check_facts({name: value}))
        else:
            names = ", ".join(("sglang", *FLAGS, *COMMUNICATORS, "timeout_s"))
            near = get_close_matches(name, ("sglang", *FLAGS, *COMMUNICATORS, "timeout_s", *DEFAULTS), 1)
            meant = f"not a toggle; did you mean {near[0]}?" if near else "not a toggle"
            reason = "a group's size is fixed when it starts" if name == "world_size" else meant
            raise InputError(name, value, f"{reason}; give one of {names}, or a fact: {', '.join(DEFAULTS)}")
    return clean


def apply(coordinator: Coordinator, toggles: Mapping[str, Any]) -> None:
    """Sets them on a rank's Coordinator."""
    facts = {name: value for name, value in toggles.items() if name in DEFAULTS}
    for name, value in toggles.items():
        if name in COMMUNICATORS:
            getattr(coordinator, name).disabled = not value
        elif name not in facts:
            setattr(coordinator, name, value)
    if facts:
        coordinator.set_facts(**facts)


def seconds(name: str, value: object) -> float:
    """A limit of waits."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _DAY_S:
        raise InputError(name, value, f"give seconds above 0, at most {_DAY_S}: every wait ends")
    return float(value)
