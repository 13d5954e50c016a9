"""Words for numbers of a ring: names of paths and phases, ranks, ages, rates. Called by everything in _live that has a text to make.

Invariant: an index that this version does not know is "?" and not an error; nothing known is rounded to 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from functools import lru_cache

from .. import _core
from .._record.dtype import UNKNOWN

PATHS: tuple[str, ...] = tuple(name for name, _ in _core.PATHS)
DTYPES: tuple[str, ...] = tuple(name for name, _ in _core.DTYPES)
PHASES: tuple[str, ...] = tuple(name for name, _ in _core.PHASES)
OPS: tuple[str, ...] = tuple(name for name, _ in _core.RING_OPS)
FLAGS: tuple[str, ...] = tuple(name for name, _ in _core.RING_FLAGS)
BIT = {name: 1 << i for i, name in enumerate(FLAGS)}
CAPTURED = PHASES.index("captured")
EAGER = PHASES.index("eager")
CUSTOM = PATHS.index("custom")
NO_PATH = PATHS.index("none")


def name_of(names: Sequence[str], index: int) -> str:
    """ "" where it is not known to whoever wrote it, "?" where it is not known to us."""
    return names[index] if index < len(names) else "" if index == UNKNOWN else "?"


@lru_cache(4096)
def flag_names(bits: int) -> tuple[str, ...]:
    return tuple(name for name, bit in BIT.items() if bits & bit)


@lru_cache(4096)
def context_names(bits: int) -> tuple[str, ...]:
    """Without those of the hook's own sources."""
    return tuple(name for i, (name, _) in enumerate(_core.CONTEXTS) if bits >> i & 1)


def ranks_text(ranks: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0-2, 5``; a rank that is not known is ``a rank that is not known``."""
    known = sorted({rank for rank in ranks if rank >= 0})
    if not known:
        return "a rank that is not known"
    runs: list[list[int]] = []
    for rank in known:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    told = ", ".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
    return f"rank{'s' * (len(known) > 1)} {told}"


def ranks_short(ranks: Iterable[int]) -> str:
    """``0-2, 5``, for a table's cell."""
    text = ranks_text(ranks)
    return text.split(" ", 1)[1] if text.startswith("rank") else "?"


def seconds_text(seconds: float) -> str:
    """``0.2 s``, ``8 s``, ``3 min``, ``2.5 h``."""
    if seconds < 1:
        return f"{max(seconds, 0.0):.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def rate_text(rate: float | None) -> str:
    """A number a second; "-" where it was not looked at twice."""
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 100 or rate == 0 else f"{rate:.3g}"


def us_text(ns: float) -> str:
    """Nanoseconds as microseconds, three digits that count."""
    us = ns / 1e3
    return f"{us:,.0f} us" if us >= 100 else f"{us:.3g} us"


def many(count: int, word: str, plural: str = "") -> str:
    """``1 call``, ``2,304 calls``."""
    return f"{count:,} {word if count == 1 else plural or word + 's'}"


def utc(wall_ns: int) -> str:
    """ "?" for a moment that no calendar has: a damaged file may say anything."""
    try:
        return datetime.fromtimestamp(wall_ns / 1e9, timezone.utc).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return "?"
