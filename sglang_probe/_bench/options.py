"""What people write for a bench, checked: sizes, names out of lists, how many and how long. Called by bench.py and the command line.

Invariant: what comes out can be planned; what cannot is refused with the field, the value and the remedy, before anything starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from .._facts import DTYPE_BYTES, check_dtype
from .._run.inputs import element
from .._show.sizes import parse_bytes
from .._types import InputError

FACTOR = 4
SIZES = {"gpu": "1K:256M", "host": "1K:4M"}
QUICK_SIZES = {"gpu": "1K:4M:16", "host": "1K:256K:16"}
HIDDEN = 7168
SAMPLES, QUICK_SAMPLES = (5, 9), (3, 5)
CELL_MS, QUICK_CELL_MS = 60.0, 15.0
PROCESSES, QUICK_PROCESSES = 5, 2

Texts = str | Sequence[str]
Sizes = str | Sequence[int | str]


def names(field: str, given: Texts, known: Sequence[str]) -> tuple[str, ...]:
    """``"a,b"`` or a list, each once, in the order of ``known``."""
    parts = given.split(",") if isinstance(given, str) else list(given)
    clean = [part.strip() if isinstance(part, str) else part for part in parts]
    for name in clean:
        if name not in known:
            near = get_close_matches(str(name), known, 1)
            raise InputError(field, name, f"{f'did you mean {near[0]}? ' if near else ''}give some of {', '.join(known)}")
    if not clean:
        raise InputError(field, given, f"give some of {', '.join(known)}")
    return tuple(name for name in known if name in clean)


def sizes_of(given: Sizes, dtype: str) -> tuple[int, ...]:
    """``1K:256M`` (by a factor of 4), ``1K:256M:2``, ``1K,42KiB``, or a list of bytes: smallest first, each once."""
    if isinstance(given, str) and ":" in given:
        found = _range(given)
    else:
        parts = given.split(",") if isinstance(given, str) else list(given)
        found = [parse_bytes(part, "sizes") if isinstance(part, str) else whole("sizes", part) for part in parts]
    if not found:
        raise InputError("sizes", given, "give bytes, as 1K:256M or 1K,42KiB")
    for size in found:
        if size % DTYPE_BYTES[dtype]:
            raise InputError("sizes", size, f"give multiples of {DTYPE_BYTES[dtype]}: that is one element of {dtype}")
    return tuple(sorted(set(found)))


def _range(given: str) -> list[int]:
    parts = given.split(":")
    if len(parts) not in (2, 3):
        raise InputError("sizes", given, "give FROM:TO or FROM:TO:FACTOR, as 1K:256M:4")
    low, high = (parse_bytes(part, "sizes") for part in parts[:2])
    factor = number("sizes", parts[2]) if len(parts) == 3 else FACTOR
    if factor < 2 or low > high:
        raise InputError("sizes", given, "give FROM:TO or FROM:TO:FACTOR with FROM the smaller and a factor of 2 or more")
    found = [low]
    while found[-1] * factor <= high:
        found.append(found[-1] * factor)
    return found


def tokens_of(given: str | Sequence[int]) -> tuple[int, ...]:
    parts = given.split(",") if isinstance(given, str) else list(given)
    found = [number("tokens", part) if isinstance(part, str) else whole("tokens", part) for part in parts]
    if not found:
        raise InputError("tokens", given, "give rows of the tensor, as 1,4,64,512")
    return tuple(sorted(set(found)))


def number(field: str, text: str) -> int:
    try:
        return whole(field, int(text))
    except ValueError:
        raise InputError(field, text, "give whole numbers, 1 or more") from None


def whole(field: str, value: object, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(field, value, f"give a whole number, {least} or more")
    return value


def dtype_of(given: str) -> str:
    """A dtype whose sum can be checked."""
    name = check_dtype(given)
    element(name)
    return name


def compute_of(given: object) -> float:
    most = 10_000.0
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= most:
        raise InputError("compute_us", given, f"give microseconds above 0, at most {most:g}: the kernel between two calls")
    return float(given)
