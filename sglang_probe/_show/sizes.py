"""Sizes in bytes as people write and read them: ``8 MiB - 16 B``. Called by the command line and by everything that prints a size.

Invariant: a size is printed exactly or with its unit's sign between two exact parts; nothing is rounded.
"""

from __future__ import annotations

import re
from fractions import Fraction

from .._facts import SIZE_MAX
from .._types import InputError

_UNITS = (("EiB", 1 << 60), ("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_BYTES = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30} | dict(_UNITS)
_TERM = re.compile(r"([0-9][0-9_,]*(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")
_DECIMALS = 10_000
_NEAR = 256
"""Bytes from a whole unit within which a size is told as that unit and a difference: the boundaries that people look for."""


def human_bytes(nbytes: int) -> str:
    """Exact and short: ``42 KiB``, ``256 KiB + 16 B``, ``8 MiB - 16 B``, ``32.8125 MiB``, ``1 MiB + 100 KiB``, ``798 B``."""
    if nbytes < 1 << 10:
        return f"{nbytes} B"
    for unit, size in _UNITS:
        near = round(nbytes / size)
        if near == 0:
            continue
        rest = nbytes - near * size
        if rest == 0:
            return f"{near} {unit}"
        if nbytes >= size and nbytes * _DECIMALS % size == 0:
            whole, part = divmod(nbytes * _DECIMALS // size, _DECIMALS)
            return f"{whole}.{part:04}".rstrip("0") + f" {unit}"
        if abs(rest) <= _NEAR:
            return f"{near} {unit} {'+' if rest > 0 else '-'} {abs(rest)} B"
        if nbytes >= size and size > 1 << 10:
            return f"{nbytes // size} {unit} + {human_bytes(nbytes % size)}"
    return f"{nbytes >> 10} KiB + {nbytes & 1023} B"


def both_bytes(nbytes: int) -> str:
    """``43,008 bytes (42 KiB)``."""
    return f"{nbytes:,} bytes ({human_bytes(nbytes)})" if nbytes >= 1 << 10 else f"{nbytes} bytes"


def parse_bytes(text: str, name: str = "bytes") -> int:
    """``43008``, ``42KiB``, ``8MiB-16``, ``256 KiB + 16 B``."""
    parts = re.split(r"([+-])", text.strip())
    total, sign = Fraction(0), 1
    for i, part in enumerate(parts):
        if i % 2:
            sign = -1 if part == "-" else 1
            continue
        found = _TERM.fullmatch(part.strip())
        unit = next((u for u in _BYTES if found and u.lower() == found[2].lower()), None)
        if not found or unit is None:
            raise InputError(name, text, "give a number of bytes: 43008, 42KiB, 8MiB-16")
        total += sign * Fraction(re.sub("[_,]", "", found[1])) * _BYTES[unit]
    if total.denominator != 1:
        raise InputError(name, text, "that is not a whole number of bytes")
    if not 1 <= total <= SIZE_MAX:
        raise InputError(name, text, "a tensor has 1 to 2^63 - 1 bytes")
    return int(total)
