"""Row: what one rank says of its calls. Made in the rank by job.py; put together with the other ranks' by outcome.py.

Invariant: a row of several parts is as wrong as its worst part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .._types import Path
from .inputs import Verdict, worse

Samples = NDArray[np.float64]


def _none() -> Samples:
    return np.empty(0)


@dataclass(frozen=True, eq=False)
class Row:
    """One rank's part."""

    rank: int
    path: Path
    rule: str
    kernel: str
    returned: Literal["input", "new"]
    """Whether the tensor that came back is the input, looked up by its address."""
    verdict: Verdict
    """The worst of the checked calls."""
    kept: bool
    """Where a new tensor came back: the input is as it was."""
    checked: int
    """Results that were compared with the reference."""
    digest: bytes
    """Of the bits of all checked results: ranks with the same bits have the same one."""
    kinds: tuple[str, ...] = ()
    host_us: Samples = field(default_factory=_none)
    """Host time of each timed call."""
    device_us: Samples = field(default_factory=_none)
    """Device time of each timed call; of a captured one: of each replay."""


def merged(parts: Sequence[Row]) -> Row:
    """One rank's calls that were sent in parts, as one row; a part that went another way is wrong."""
    first, *rest = parts
    for part in rest:
        verdict = worse(first.verdict, part.verdict)
        if (part.path, part.rule, part.kernel, part.returned) != (first.path, first.rule, first.kernel, first.returned):
            verdict = Verdict(
                False, math.inf, 0.0, said=f"some calls took {first.path}{by_kernel(first.kernel)}, some {part.path}"
            )
        first = replace(
            first,
            verdict=verdict,
            kept=first.kept and part.kept,
            checked=first.checked + part.checked,
            digest=first.digest + part.digest,
            kinds=tuple(dict.fromkeys((*first.kinds, *part.kinds))),
        )
    return first


def by_kernel(kernel: str) -> str:
    return f" ({kernel})" if kernel else ""
