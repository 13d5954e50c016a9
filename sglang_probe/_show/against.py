"""Two ways of the same call, size by size: in place against out of place, back to back against interleaved, our C against SGLang's Python.

Called in notebooks and by Measurement.picture; against_result.py tells what comes out, against_figure.py draws it. Only arithmetic here.
What is compared: within each process set b / a, and over the sets the geometric mean of that with its 95 % t interval. Both ways were taken
in the same fresh processes, so what those have in common cancels.
Invariant: nothing is compared that differs in anything else; a ratio of one process set has no interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from .._measure.summary import Summary, over_ranks
from .._types import FrozenMap, InputError
from . import sized
from .against_result import Against, Ratio, Row, What
from .sized import CLOCKS, PHASES, Clock

if TYPE_CHECKING:
    from .._measure.measurement import Measurement

MOST = 4
"""Targets times clocks that are compared at once: each is a column of the picture."""


class Ways(NamedTuple):
    """What is held against what: a field of Summary and its two values."""

    field: str
    values: tuple[str, str]
    names: tuple[str, str]
    free: tuple[str, ...]
    """Fields that differ because of it."""
    clocks: tuple[Clock, ...]
    targets: int
    """So many are compared, where nobody chose."""


WAYS: Mapping[str, Ways] = FrozenMap(
    {
        "buffers": Ways(
            "path", ("pynccl_in_place", "pynccl_out_of_place"), ("in place", "out of place"), (), ("device_us", "host_us"), 1
        ),
        "patterns": Ways(
            *("pattern", ("back_to_back", "interleaved"), ("back to back", "interleaved")),
            *(("compute_us",), ("device_us", "host_us"), 1),
        ),
        "drivers": Ways(
            *("driver", ("native", "engine"), ("our C", "SGLang's Python")),
            *(("release", "backend"), ("host_us",), MOST),
        ),
    }
)
_KEY = ("path", "kernel", "backend", "release", "phase", "pattern", "compute_us", "driver", "device", "dtype", "world_size")


def against(
    measurement: Measurement,
    what: What,
    *,
    targets: str | Iterable[str] | None = None,
    clocks: Sequence[Clock] | None = None,
    pattern: Literal["back_to_back", "interleaved"] = "back_to_back",
    driver: Literal["native", "engine"] = "native",
) -> Against:
    """Two ways of the same call, at every size where both were measured.

    ``what``: ``"buffers"``, pynccl in place and out of place; ``"patterns"``, back to back and interleaved with a compute kernel;
    ``"drivers"``, our C and SGLang's own Python. ``targets``: paths or kernels; by default the first, of drivers the first four.
    ``clocks``: by default device and host, of drivers the host's. ``pattern`` and ``driver``: of what is compared, where they are not the
    two ways themselves. Raises InputError where the file does not have both.
    """
    if what not in get_args(What):
        raise InputError("what", what, f"give one of {', '.join(get_args(What))}")
    ways = WAYS[what]
    clocks = ways.clocks if clocks is None else tuple(dict.fromkeys(clocks))
    if not clocks or not {*clocks} <= CLOCKS.keys():
        raise InputError("clocks", clocks, f"give some of {', '.join(CLOCKS)}")
    found = [one for one in sized.chosen(measurement.summary(), targets) if one.phase in PHASES]
    fixed = {name: value for name, value in (("pattern", pattern), ("driver", driver)) if name != ways.field}
    pairs = _pairs([one for one in found if all(getattr(one, name) == value for name, value in fixed.items())], ways)
    if not pairs:
        raise InputError("what", what, _lacking(found, ways, fixed))
    names = _target_names(pairs, ways)
    kept = list(dict.fromkeys(names))
    if targets is None:
        kept = kept[: max(1, min(ways.targets, MOST // len(clocks)))]
    if len(kept) * len(clocks) > MOST:
        raise InputError("targets", ", ".join(kept), f"give fewer: {MOST} columns (targets times clocks) at most")
    drawn = [(name, pair) for name, pair in zip(names, pairs, strict=True) if name in kept]
    rows = [
        Row(name, a.phase, clock, a.nbytes, a.spread(clock), b.spread(clock), ratio_of(a, b, clock))
        for target in kept
        for clock in clocks
        for phase in PHASES
        for name, (a, b) in sorted(drawn, key=lambda one: one[1][0].nbytes)
        if name == target and a.phase == phase
    ]
    both = [one for _, pair in drawn for one in pair]
    others = tuple(name for name in dict.fromkeys(names) if name not in kept)
    told = tuple(sized.origin_of(measurement, both))
    return Against(what, ways.names, tuple(rows), told, _conditions(both, ways, fixed), others)


def _conditions(both: Sequence[Summary], ways: Ways, fixed: Mapping[str, str]) -> str:
    """What is the same in all of it, and what differs with the two ways."""
    parts = [sized.WORDS[value] for value in fixed.values()]
    beside = sorted({one.compute_us for one in both if one.compute_us})
    if beside:
        parts.append(f"interleaved with a compute kernel of {' or '.join(f'{us:g}' for us in beside)} us, which is subtracted")
    if ways.field == "driver":
        releases = dict.fromkeys(one.release for one in both if one.driver == "engine")
        parts.append(f"SGLang {' and '.join(releases)}")
    return f"{', '.join(parts)}; {sized.once(both, 'dtype', 'ranks')}"


def _pairs(found: Sequence[Summary], ways: Ways) -> list[tuple[Summary, Summary]]:
    """Every two that differ in the field and in what must differ with it, and in nothing else."""
    fixed = [name for name in (*_KEY, "nbytes") if name != ways.field and name not in ways.free]
    groups: dict[tuple[object, ...], tuple[list[Summary], list[Summary]]] = {}
    for one in found:
        value = getattr(one, ways.field)
        if value in ways.values:
            both = groups.setdefault(tuple(getattr(one, name) for name in fixed), ([], []))
            both[ways.values.index(value)].append(one)
    return [(a, b) for first, second in groups.values() for a in first for b in second]


def _target_names(pairs: Sequence[tuple[Summary, Summary]], ways: Ways) -> list[str]:
    """Of each pair; what tells it from others of the same path is in the name."""
    names = sized.distinct_names([a for a, _ in pairs])
    beside = sized.distinct_names([b for _, b in pairs])
    told = []
    for a, b in pairs:
        name = "pynccl" if ways.field == "path" else sized.named(a)
        extra = {*names[sized.line_key(a)].split(", ")[1:], *beside[sized.line_key(b)].split(", ")[1:]}
        told.append(", ".join([name, *sorted(extra)]))
    return told


def _lacking(found: Sequence[Summary], ways: Ways, fixed: Mapping[str, str]) -> str:
    there = dict.fromkeys(value for one in found if (value := getattr(one, ways.field)) in ways.values)
    how = "".join(f", {value}" for value in fixed.values())
    why = "SGLang could not be imported where it was measured" if ways.field == "driver" else "measure both in one bench"
    return f"it needs {' and '.join(ways.values)} of the same call{how}; there is {', '.join(there) or 'neither'}: {why}"


def ratio_of(a: Summary, b: Summary, clock: str) -> Ratio | None:
    """Over the process sets that have a time above 0 of both."""
    first, second = _by_process(a, clock), _by_process(b, clock)
    both = [process for process in first if process in second]
    ratios = [second[process] / first[process] for process in both]
    if not ratios:
        return None
    logs = np.log(np.array(ratios))
    middle = float(logs.mean())
    if len(ratios) == 1:
        return Ratio(math.exp(middle), None, None, tuple(ratios))
    from .._costs.estimate import _quantile as quantile

    half = quantile(len(ratios) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(ratios))
    return Ratio(math.exp(middle), _exp(middle - half), _exp(middle + half), tuple(ratios))


def _exp(value: float) -> float:
    """Two process sets that disagree have an interval that no double holds."""
    return math.exp(value) if value < 700 else math.inf


def _by_process(one: Summary, clock: str) -> dict[int, float]:
    if one.wrong:
        return {}
    times = {cell.process: over_ranks(getattr(cell, clock)) for cell in one.cells}
    return {process: value for process, value in times.items() if value is not None and 0 < value < math.inf}
