"""Which of many samples are drawn. Called by arms.py, which says under the picture what was left out of it.

Invariant: the least and the largest are always drawn, the drawn ones are spread over all in order of size, and the data loses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def kept(values: Sequence[float], most: int) -> list[int]:
    """Places of at most so many of the values, in their own order: evenly spaced order statistics, both ends with them."""
    if len(values) <= most:
        return list(range(len(values)))
    by_size = np.argsort(np.asarray(values), kind="stable")
    chosen = by_size[np.linspace(0, len(values) - 1, most).round().astype(int)]
    return sorted({int(place) for place in chosen})


def jitter(count: int) -> list[float]:
    """So many offsets in (-0.5, 0.5), the same each time; neighbours are never near each other: multiples of the golden ratio."""
    return [((i + 1) * 0.6180339887498949) % 1.0 - 0.5 for i in range(count)]
