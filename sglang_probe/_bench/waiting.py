"""Wait apart from transfer: of each call, how long a rank waited for the last one, and how long it then moved data. For benches.

On every rank, with its toggles set:  mine = stamp_calls(coordinator, tensor, calls=1000)      as after native.prepare(coordinator, wanted)
Where all answers are, by rank:       told = split(answers)                                    Cell(..., **told.of_cell()); print(told)

The native driver's calls alone. Paths that look inside their call say it themselves: both ends of a wait are on one clock, and how long a
flag takes to cross, which is in every meeting, is known from calls that nobody was late for. Others (NCCL, torch) are stamped from outside,
and the ranks' clocks are compared before and after every part.
Invariant: a wait never comes without how far off it may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._measure.cell import Samples
from .._types import InputError, ProbeError, ProbeUnavailable
from .native import stream_of

if TYPE_CHECKING:
    from .._run.coordinator import Coordinator

BEFORE, ENTER, MET, LEFT, AFTER = range(5)
"""Stamps of a call: by the stream before it, three by the path itself (0 where it cannot), by the stream after it."""
_STAMPS = 5
_BATCH = 48
"""Calls under one hold. A stream takes about a thousand launches before the next one blocks the host, which could then release nothing;
a call has up to ten: three of the synchronising call, three of its own (copies in and out), the planted delay, a clearing, two stamps."""
_PART = 4 * _BATCH
"""Calls between two comparisons of the clocks: a fraction of a second even where each is late by a millisecond."""
_MARK = 16_383
"""The last two slots: when the clocks were compared."""
_ALONE = 64
"""Stamps with nothing between them, which say what one costs."""
_SURE = 0.95
_CALLS_MAX = 1_000_000


# --------------------------------------------------------------------------------------------------------------------- on every rank


@dataclass(frozen=True)
class Alignment:
    """One comparison of the ranks' clocks, as one rank knows it."""

    at_ns: int
    """On this rank's clock."""
    offset_us: tuple[float, ...]
    """By rank: its clock minus this is rank 0's,"""
    error_us: tuple[float, ...]
    """within this much either way."""


@dataclass(frozen=True, eq=False)
class Stamped:
    """One rank's stamps of its calls. Travels to where all ranks' are."""

    rank: int
    ns: NDArray[np.uint64]
    """[call, BEFORE to AFTER], on this rank's clock."""
    alignments: tuple[Alignment, ...]
    """At least three, the first before and the last after all calls; none where the clocks cannot be compared,"""
    unaligned: str
    """and why."""
    stamp_us: float
    """From one stamp to the next with nothing between: a call that is stamped from outside seems longer by this."""
    even_ns: NDArray[np.uint64]
    """As ``ns``, of calls before which nobody was delayed and all had just met."""


def stamp_calls(
    coordinator: Coordinator,
    tensor: Any,
    *,
    calls: int = 1000,
    planted_us: float | None = None,
    planted_on: int = 0,
    synchronise: bool = True,
    held: bool = True,
    captured: bool = False,
) -> Stamped:
    """Stamps ``calls`` calls of ``tensor``, by the path that ``all_reduce`` would take now. Collective: alike on every rank.

    Before each comes a synchronising call of the same tensor, not stamped (``synchronise``), and a delay on rank ``planted_on``
    (``planted_us``; the others have one of no length in its place, so that launches are the same; None: nowhere). All of it is held back
    until every rank has queued it, so that no host delays a call; without ``held``, and on CPU ranks, each runs when its host comes to
    it, as in a server. ``captured``: in a graph that is replayed. The tensor should hold zeros, which stay zeros in place.

    Raises InputError for bad values; whatever the calls raise.
    """
    _check(coordinator, calls, planted_us, planted_on)
    c = coordinator

    def body(count: int) -> None:
        stream = stream_of(c)
        for i in range(count):
            if synchronise:
                c.enqueue(tensor)
            if planted_us is not None:
                c.spin(planted_us if c.rank == planted_on else 0.0, stream)
            c.enqueue(tensor, 1, 0.0, 1 + _STAMPS * i)

    def even(count: int) -> None:
        for i in range(count):
            c.enqueue(tensor)
            c.enqueue(tensor, 1, 0.0, 1 + _STAMPS * i)

    def stamps(count: int) -> None:
        stream = stream_of(c)
        for i in range(count):
            c.stamp(1 + i, stream)

    _warm(c, body, stamps)
    alone = _recorded(c, stamps, _ALONE, 1, held, captured)(_ALONE)
    stamp_us = float(np.median(np.diff(alone.astype(np.int64), axis=0))) / 1e3
    even_ns = _recorded(c, even, _BATCH, _STAMPS, held, captured)(_BATCH)
    batch = _recorded(c, body, min(_BATCH, calls), _STAMPS, held, captured)
    alignments, unaligned = _aligned(c)
    rows = []
    for part in np.array_split(np.arange(calls), max(2, -(-calls // _PART))):
        rows += [batch(min(_BATCH, len(part) - first)) for first in range(0, len(part), _BATCH)]
        if alignments:
            alignments += _aligned(c)[0]
    return Stamped(c.rank, np.concatenate(rows), tuple(alignments), unaligned, stamp_us, even_ns)


def _check(c: Coordinator, calls: int, planted_us: float | None, planted_on: int) -> None:
    if isinstance(calls, bool) or not isinstance(calls, int) or not 1 <= calls <= _CALLS_MAX:
        raise InputError("calls", calls, f"give a whole number from 1 to {_CALLS_MAX:,}")
    most_us = 4e6 / _BATCH  # a hold has a limit, and so has the wait for what it held back
    number = not isinstance(planted_us, bool) and isinstance(planted_us, int | float)
    if planted_us is not None and not (number and 0 <= planted_us <= most_us):
        raise InputError("planted_us", planted_us, f"give microseconds from 0 to {most_us:,.0f}, or None for no delay")
    if isinstance(planted_on, bool) or not isinstance(planted_on, int) or not 0 <= planted_on < c.world_size:
        raise InputError("planted_on", planted_on, f"give a rank, 0 to {c.world_size - 1}")


def _warm(c: Coordinator, *bodies: Callable[[int], None]) -> None:
    """Everything once outside of a hold: what a first call loads or builds may wait for the stream that is held."""
    c.spin(0.0, stream_of(c))
    for body in bodies:
        body(2)
    c.wait(stream_of(c))


@contextmanager
def _held_back(c: Coordinator, stream: int, held: bool) -> Iterator[None]:
    """What is enqueued within begins on all ranks together, and has ended when this returns."""
    if held:
        c.hold(stream)
    else:
        c.barrier()
    try:
        yield
        if held:
            c.barrier()
    finally:
        if held:
            c.release()
    c.wait(stream)


def _recorded(
    c: Coordinator, body: Callable[[int], None], most: int, each: int, held: bool, captured: bool
) -> Callable[[int], NDArray[np.uint64]]:
    """What runs ``body`` with a count up to ``most``, eagerly or from a graph that is captured here: rows of ``each`` stamps."""
    graph = None
    if captured:
        with c.graph_capture(), c.graph() as graph:
            body(most)
        graph.replay()  # its first launch loads it, which could wait for a held stream
        c.wait(stream_of(c))

    def run(count: int) -> NDArray[np.uint64]:
        stream = stream_of(c)
        c.clear_stamps(1, each * most, stream)
        with _held_back(c, stream, held):
            if graph is None:
                body(count)
            else:
                graph.replay()
        return np.array(c.stamps(1, each * count)).reshape(count, each)

    return run


def _aligned(c: Coordinator) -> tuple[list[Alignment], str]:
    """The clocks now; nothing, and why, where they cannot be compared."""
    stream = stream_of(c)
    c.clear_stamps(_MARK, 2, stream)
    c.stamp(_MARK, stream)
    c.wait(stream)
    try:
        offset_us, error_us = c.clock()
    except ProbeUnavailable as error:
        return [], str(error)
    c.stamp(_MARK + 1, stream)
    c.wait(stream)
    first, last = (int(ns) for ns in c.stamps(_MARK, 2))
    return [Alignment((first + last) // 2, offset_us, error_us)], ""


# -------------------------------------------------------------------------------------------------------------- where all ranks' are


@dataclass(frozen=True, eq=False)
class Split:
    """Calls of all ranks, each cut into waiting for the last rank and moving data. ``split`` makes it."""

    wait_us: tuple[Samples, ...]
    """By rank, of each call."""
    transfer_us: tuple[Samples, ...]
    """By rank, of the same calls: the rest."""
    error_us: float
    """How far off a wait may be: by as much as clocks of several ranks were compared within, or, where the path itself stamped both of its
    ends, by the time that a flag takes to cross (``crossing_us``), which is known both ways together alone."""
    own_clock: bool
    """The path stamped its waits itself."""
    last: NDArray[np.int64]
    """Of each call, the rank that the others waited for."""
    crossing_us: float
    """From one rank's telling that it is there to another's seeing it, in the mean of both ways: part of the transfer, not of the wait; 0
    where clocks were compared."""
    stamp_us: float
    """What was taken off transfers because the stamps of a stream cost it that much, at most; 0 on the path's own stamps."""
    tick_us: float
    """The largest step in which a rank's clock counts: no time is finer."""
    drift_us_s: tuple[float, ...]
    """By rank, how fast its clock runs away from rank 0's, in microseconds a second; empty where clocks were not compared."""

    def of_cell(self) -> dict[str, Any]:
        """The fields of a Cell that this fills."""
        return {"wait_us": self.wait_us, "transfer_us": self.transfer_us, "split_error_us": self.error_us}

    def __str__(self) -> str:
        return said(self.wait_us, self.transfer_us, self.error_us, self.last)

    def __repr__(self) -> str:
        return f"<Split: {len(self.last):,} calls: {self}>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        samples = {name: [one.tolist() for one in getattr(self, name)] for name in ("wait_us", "transfer_us")}
        plain = {name: getattr(self, name) for name in ("error_us", "own_clock", "crossing_us", "stamp_us", "tick_us")}
        return {**samples, **plain, "last": self.last.tolist(), "drift_us_s": list(self.drift_us_s)}


def said(wait_us: Sequence[Samples], transfer_us: Sequence[Samples], error_us: float, last: NDArray[np.int64]) -> str:
    """``rank 0 waits 48.9 us of 57.1 for rank 1``: the rank that waits longest, in the median. ``last``: of each call, who came last."""
    waits = [float(np.median(one)) for one in wait_us]
    if len(waits) == 1:
        return "one rank waits for nobody"
    rank = int(np.argmax(waits))
    if waits[rank] <= error_us:
        return f"no rank is seen to wait: at most {_us(waits[rank])} us, and that may be {_us(error_us)} us off"
    whole = float(np.median(wait_us[rank] + transfer_us[rank]))
    by_rank = np.bincount(last, minlength=len(waits)) / len(last)
    by_rank[rank] = 0
    other = int(np.argmax(by_rank))
    often = "" if by_rank[other] >= _SURE else f" (the last in {by_rank[other]:.0%} of calls)"
    within = f", within {_us(error_us)} us" if error_us else ""
    return f"rank {rank} waits {_us(waits[rank])} us of {_us(whole)} for rank {other}{often}{within}"


def _us(value: float) -> str:
    """Three digits that count, and no powers of ten."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def split(by_rank: Sequence[Stamped], *, own_clock: bool | None = None) -> Split:
    """Wait and transfer of calls whose stamps all ranks gave, in rank order; nothing is measured here.

    With the path's own stamps a rank waits from ENTER to MET, less the time that a flag takes to cross, and the rest until LEFT is
    transfer; what it did before anybody could know of it (launching, staging a copy) is in neither. Else it waits from its own BEFORE to
    the latest rank's, on rank 0's clock, and the rest is
    from then to its AFTER, less what a stamp costs: launch and copies are in it. ``own_clock``: None takes the first where every call has
    it; True or False asks for one of them, as where both are to be compared.

    Raises InputError for stamps that do not fit together, ProbeUnavailable where clocks would be needed and cannot be compared.
    """
    ns = _stamps_of(by_rank)
    told = [one.ns[:, [ENTER, MET, LEFT]] != 0 for one in by_rank]
    inside = all(one.all() for one in told)
    if not inside and any(one.any() for one in told):
        raise ProbeError("some calls were stamped by their path and some were not: the path changed in between")
    if own_clock and not inside:
        raise ProbeUnavailable("this path does not look inside its calls: only its ends on the stream are stamped")
    drift = tuple(_drift(by_rank, rank) for rank in range(len(by_rank))) if by_rank[0].alignments else ()
    tick = max(int(np.gcd.reduce(one[one != 0] - one[0, BEFORE])) for one in ns) / 1e3
    if inside if own_clock is None else own_clock:
        met = np.stack([one[:, MET] - one[:, ENTER] for one in ns]) / 1e3
        whole = np.stack([one[:, LEFT] - one[:, ENTER] for one in ns]) / 1e3
        if min(met.min(), (whole - met).min()) < 0:
            raise ProbeError("a call left before it entered: its stamps are not its own")
        crossing = _crossing_us(by_rank)
        wait = np.maximum(met - crossing, 0.0)
        return Split(_frozen(wait), _frozen(whole - wait), crossing, True, met.argmin(axis=0), crossing, 0.0, tick, drift)
    before = np.stack([_on_rank_0(by_rank, rank, ns[rank][:, BEFORE]) for rank in range(len(ns))])
    wait = before.max(axis=0) - before
    stamp_us = np.array([[one.stamp_us] for one in by_rank])
    moved = np.stack([one[:, AFTER] - one[:, BEFORE] for one in ns]) / 1e3 - wait - stamp_us
    error = sum(sorted(_error_us(by_rank, rank) for rank in range(len(ns)))[-2:])
    return Split(_frozen(wait), _frozen(moved), error, False, before.argmax(axis=0), 0.0, float(stamp_us.max()), tick, drift)


def _crossing_us(by_rank: Sequence[Stamped]) -> float:
    """How long a flag takes to cross, by calls to which all ranks came at about the same time, on no clock but each rank's own.

    Of two ranks, one comes d earlier: it waits x + d and the other x - d, where x is what a flag takes; so half of both together is x,
    whoever came first. Where d exceeds x the late one finds the flag there, and half of both is more than x: the least of many calls is
    taken, and of several ranks the two that waited least, the last to come and the one before it. Ways of unlike lengths give their mean.
    """
    if len(by_rank) == 1:
        return 0.0
    rows = [one.even_ns.astype(np.int64) for one in by_rank]
    met = np.sort(np.stack([one[:, MET] - one[:, ENTER] for one in rows]), axis=0)
    return max(0.0, float((met[0] + met[1]).min()) / 2e3)


def _frozen(rows: NDArray[np.float64]) -> tuple[Samples, ...]:
    rows.setflags(write=False)
    return tuple(rows)


def _stamps_of(by_rank: Sequence[Stamped]) -> list[NDArray[np.int64]]:
    """By rank, in int64, where differences are exact and may be negative."""
    if [one.rank for one in by_rank] != list(range(len(by_rank))) or not by_rank:
        raise InputError("by_rank", [one.rank for one in by_rank], "give what stamp_calls gave on every rank, in rank order")
    if len({one.ns.shape for one in by_rank}) > 1 or by_rank[0].ns.shape[1:] != (_STAMPS,) or not len(by_rank[0].ns):
        raise InputError("by_rank", [one.ns.shape for one in by_rank], "ranks made different numbers of calls, or none")
    for one in by_rank:
        lost = np.flatnonzero((one.ns[:, [BEFORE, AFTER]] == 0).any(axis=1))
        if lost.size:
            raise ProbeError(f"rank {one.rank}: call {lost[0]} left no stamp; {lost.size} of {len(one.ns)} calls did not")
    return [one.ns.astype(np.int64) for one in by_rank]


# ------------------------------------------------------------------------------------------------------------------------------ clocks


def _lines(by_rank: Sequence[Stamped], rank: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When one rank's clock was compared (us since the first time, on its own), and how far it was from rank 0's then."""
    ats = by_rank[rank].alignments
    if len(ats) < 3:
        why = by_rank[rank].unaligned or f"{len(ats)} comparisons, and it takes three to see how straight a clock runs"
        raise ProbeUnavailable(f"the clocks of the ranks are not known together: {why}")
    return np.array([(at.at_ns - ats[0].at_ns) / 1e3 for at in ats]), np.array([at.offset_us[rank] for at in ats])


def _on_rank_0(by_rank: Sequence[Stamped], rank: int, ns: NDArray[np.int64]) -> NDArray[np.float64]:
    """Stamps of one rank in us on rank 0's clock, since rank 0's first comparison. Between two comparisons a clock is taken as straight."""
    at, offset = _lines(by_rank, rank)
    first, zero = by_rank[rank].alignments[0].at_ns, by_rank[0].alignments[0].at_ns
    own: NDArray[np.float64] = (ns - first) / 1e3  # whole clocks have more digits than a float
    return own + ((first - zero) / 1e3 - float(offset[0])) - (np.interp(own, at, offset) - float(offset[0]))


def _error_us(by_rank: Sequence[Stamped], rank: int) -> float:
    """How far off one rank's clock may be at any time between the first comparison and the last: as far as the worst of them, and as far as
    one of three in a row is from the line through the other two: no jump between two comparisons is larger than that."""
    at, offset = _lines(by_rank, rank)
    astray = 0.0
    for i in range(len(at) - 2):
        for far, near, other in ((i + 2, i + 1, i), (i, i + 1, i + 2)):
            slope = (offset[near] - offset[other]) / (at[near] - at[other])
            astray = max(astray, abs(float(offset[far] - offset[near] - slope * (at[far] - at[near]))))
    return max(one.error_us[rank] for one in by_rank[rank].alignments) + astray


def _drift(by_rank: Sequence[Stamped], rank: int) -> float:
    at, offset = _lines(by_rank, rank)
    return float((offset[-1] - offset[0]) / (at[-1] - at[0])) * 1e6
