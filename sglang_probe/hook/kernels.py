"""What V2's own pickers return, as our names of kernels: tables of (result, name) for a Wrapper, which compares by identity.

Called by wrapping.py with the module that defines the picker. Source: custom_all_reduce_v2.py of each release.
Invariant: a choice that is not known here is left out, so that its kernel is unknown and not wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from .. import _core

Table = tuple[tuple[Any, str], ...]
_KNOWN = frozenset(name for name, _, _ in _core.KERNELS)


def _algorithms(module: ModuleType) -> Table:
    """Members of the release's own enumeration."""
    members = getattr(module, "AllReduceAlgo", None) or ()
    named = ((member, str(member.name).lower()) for member in members)
    return tuple((member, name) for member, name in named if name in _KNOWN)


def _begins(module: ModuleType, of: Callable[[Any], tuple[Any, ...]], multicast: tuple[Any, ...]) -> Table:
    """By how the tuple begins; first the pull that goes through multicast, which ``multicast`` goes on to say."""
    table = _algorithms(module)
    first = (((*of(member), *multicast), "two_shot_multicast") for member, name in table if name == "two_shot_pull" and multicast)
    return (*first, *((of(member), name) for member, name in table))


def _algorithm_and_mode(module: ModuleType) -> Table:
    mode = getattr(getattr(module, "_PullMode", None), "MULTICAST", None)
    return _begins(module, lambda member: (member,), () if mode is None else (mode,))


def _config(module: ModuleType) -> Table:
    return _begins(module, lambda member: (member,), (..., True))


def _plan(module: ModuleType) -> Table:
    """A plan holds the algorithm's name, which is one object in all of them."""
    return _begins(module, lambda member: (..., member.algo_name), (True,))


TABLES: dict[str, Callable[[ModuleType], Table]] = {
    "algorithm": _algorithms,
    "algorithm_and_mode": _algorithm_and_mode,
    "config": _config,
    "plan": _plan,
}
