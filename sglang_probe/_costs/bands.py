"""What the ends of a band cost. Called by bands.

Invariant: a size that is told is one of the band, and was measured or lies between two that were; where the band's own end was not, the
measured size nearest to it inside of the band is taken, and named.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .costs import Costs, Wanted, at_bytes
from .table import Figure


@dataclass(frozen=True)
class BandCost:
    """Device time at both ends of a band; a crossover is the end of one band beside the start of the next."""

    first: tuple[int, Figure] | None = None
    """The smallest size of the band that a table tells of, and its figure."""
    last: tuple[int, Figure] | None = None
    why: str = ""
    """Why there is none; "" where there is."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"first": _plain(self.first), "last": _plain(self.last), "not_measured": self.why}


def _plain(end: tuple[int, Figure] | None) -> dict[str, Any] | None:
    return None if end is None else {"bytes": end[0], **end[1].to_dict()}


def cost_band(costs: Costs, wanted: Wanted, first: int, last: int) -> BandCost:
    """`wanted` is the call of any size of the band; `first` and `last` are sizes that a tensor can have."""
    sizes = sorted({first, last, *(size for size in costs.sizes(wanted) if first <= size <= last)})
    smallest = _nearest(costs, wanted, sizes)
    if smallest is None:
        return BandCost(why=str(costs.figure(at_bytes(wanted, first), "device_us")))
    return BandCost(smallest, _nearest(costs, wanted, sizes[::-1]))


def _nearest(costs: Costs, wanted: Wanted, sizes: Iterable[int]) -> tuple[int, Figure] | None:
    """The first of these sizes that has a figure."""
    for size in sizes:
        if isinstance(figure := costs.figure(at_bytes(wanted, size), "device_us"), Figure):
            return size, figure
    return None
