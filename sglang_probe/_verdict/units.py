"""Units of figures: which is better, and what can be turned into what. Called by verdict.py and by readers of figures.

Invariant: a figure is never taken into another unit but by an exact power of ten between two units of time, or of one kind of rate.
"""

from __future__ import annotations

import re
from dataclasses import replace

from .._types import InputError
from .arm import Arm

_TIMES = {"ns": -9, "us": -6, "ms": -3, "s": 0}
_BYTES = {"B/s": 0, "KB/s": 3, "MB/s": 6, "GB/s": 9, "TB/s": 12}
_KINDS = (_TIMES, _BYTES)
_ALSO = {
    "µs": "us",
    "μs": "us",
    "usec": "us",
    "msec": "ms",
    "nsec": "ns",
    "sec": "s",
    "seconds": "s",
    "second": "s",
    "milliseconds": "ms",
    "microseconds": "us",
    "nanoseconds": "ns",
    "tps": "tok/s",
    "tokens/s": "tok/s",
    "toks/s": "tok/s",
    "tok/sec": "tok/s",
    "tokens/sec": "tok/s",
    "token/s": "tok/s",
    "reqs/s": "req/s",
    "requests/s": "req/s",
    "rps": "req/s",
}
_NUMBER = re.compile(
    r"([-+]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?(?:nan|inf|infinity))\s*([A-Za-zµμ][\w/µμ]*)?", re.I
)


def known(unit: str) -> str:
    """As it is written here: ``usec`` is ``us``. What we do not know stays as it is."""
    unit = unit.strip()
    return _ALSO.get(unit.lower(), next((name for kind in _KINDS for name in kind if name.lower() == unit.lower()), unit))


def better_of(unit: str) -> str:
    """``higher``, ``lower``, or "" where the unit does not tell."""
    if unit in _TIMES or re.fullmatch(r"(?:ns|us|ms|s)/\w+", unit):
        return "lower"
    return "higher" if unit.endswith("/s") else ""


def split(text: str) -> tuple[float, str] | None:
    """``19ms`` as 19.0 and "ms"; None where that is no number."""
    found = _NUMBER.fullmatch(text.strip())
    return None if found is None else (float(found[1].replace("_", "")), known(found[2] or ""))


def unit_of_name(name: str) -> str:
    """What a column's name says: ``device_us``, ``time (ms)``, ``tok/s``; "" where it says nothing."""
    if found := re.search(r"[(\[]\s*([^)\]]+?)\s*[)\]]\s*$", name):
        return known(found[1])
    unit = known(name)
    if unit in (*_TIMES, *_BYTES) or "/s" in unit:
        return unit
    if found := re.search(r"(?:^|[_ ])(tok|toks|token|tokens|req|reqs|requests)_(?:per_)?(?:s|sec|second)$", name.strip(), re.I):
        return known(f"{found[1]}/s")
    last = re.split(r"[_ ]", name.strip())[-1]
    unit = known(last)
    return unit if unit in (*_TIMES, *_BYTES) or unit.endswith("/s") else ""


def in_one_unit(a: Arm, b: Arm, unit: str | None) -> tuple[Arm, Arm, str]:
    """Both in one unit, ``unit`` where it is given, else a's; and what was turned, "" where nothing was. Raises InputError."""
    wanted = None if unit is None else known(unit)
    told = []
    arms = []
    for one in (a, b):
        if not one.unit and wanted is not None:
            one = replace(one, unit=wanted)
        arms.append(one)
    target = wanted if wanted is not None else arms[0].unit
    for place, one in enumerate(arms):
        if one.unit == target:
            continue
        if not one.unit or not target:
            bare, other = (one, arms[0]) if not one.unit else (arms[0], one)
            remedy = f"{other.label} is in {other.unit}: say the unit of {bare.label}, such as unit={other.unit!r}"
            raise InputError("unit", "", remedy)
        power = _power(one.unit, target)
        if power is None:
            raise InputError("unit", one.unit, f"{one.label} is in {one.unit}, not in {target}: these cannot be compared")
        told.append(f"{one.label} is in {one.unit}, and was turned into {target}")
        turned = tuple(tuple(v * 10.0**power if power >= 0 else v / 10.0**-power for v in process) for process in one.processes)
        arms[place] = replace(one, processes=turned, unit=target)
    return arms[0], arms[1], "; ".join(told)


def _power(old: str, new: str) -> int | None:
    """What to multiply by, as a power of ten; None where they are of different kinds."""
    return next((kind[old] - kind[new] for kind in _KINDS if old in kind and new in kind), None)
