"""Cell: one thing that was measured, with every sample. Made by a bench and by reader.py; files hold cells.

Invariant: a Cell that exists has passed every check, and cannot be changed; its samples are all that were taken.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .._show.sizes import human_bytes
from .._shown import Shown
from .._types import FrozenMap, InputError
from .format import check_mapping, check_text, members_of, thaw

Phase = Literal["eager", "captured"]
Pattern = Literal["back_to_back", "interleaved"]
Driver = Literal["native", "engine"]
Device = Literal["gpu", "host"]
Samples = NDArray[np.float64]
Key = tuple[str | int | float, ...]

_WORDS: Mapping[str, tuple[str, ...]] = FrozenMap(
    {"phase": get_args(Phase), "pattern": get_args(Pattern), "driver": get_args(Driver), "device": get_args(Device)}
)
SAMPLES = ("device_us", "host_us", "elapsed_us", "wait_us", "transfer_us")
"""The fields that hold samples."""
_NAMES = ("path", "release", "dtype")
"""Must not be empty. Kernel and backend may be: not every path has one."""


@dataclass(frozen=True, eq=False, repr=False)
class Cell(Shown):
    """One call, measured in one way by one set of processes: what it was, every sample, and whether its result was right.

    The five ``_us`` fields of samples are tuples of ``world_size`` arrays, one a rank in rank order. Each array is float64, of one
    dimension, read-only, and has that rank's samples in the order in which they were taken, in microseconds a call (a sample is a batch
    of calls, its time divided by their number). Ranks may have different numbers of samples; an empty array is a rank without any. No
    sample is NaN.
    """

    path: str
    """A name of `Path`; a plain text, so that a file of a later release, with a new path, can be read."""
    kernel: str
    """What ran; "" where the path has one kernel only, or does not tell."""
    backend: str
    release: str
    """SGLang's, whose dispatch and kernels these are."""
    phase: Phase
    """Launched by the host each time, or captured into a CUDA graph and replayed."""
    pattern: Pattern
    compute_us: float
    """Length of the compute kernel between two calls, in microseconds; 0 back to back."""
    driver: Driver
    """Our own C, or SGLang's real GroupCoordinator."""
    device: Device
    """CPU ranks are no GPUs: their figures are labelled so for ever."""
    dtype: str
    nbytes: int
    """Bytes of the tensor on each rank."""
    world_size: int
    """Ranks of the group."""
    device_us: tuple[Samples, ...]
    """By rank: every sample, in order; microseconds a call on the device's own clock, none of it spent waiting for the host. What the
    compute kernel takes alone is subtracted. Empty where none was taken."""
    host_us: tuple[Samples, ...]
    """By rank: the host's time inside the call, until it returns; of captured calls: of launching the graph, whatever is in it, a call."""
    checked: int
    """Results that were compared with the reference, all ranks together."""
    wrong: int
    """Those of them that were not the sum. Such a cell has no samples that anything is made of."""
    process: int = 0
    """Number from 0: which set of fresh processes: the process, not the sample, is what is replicated."""
    elapsed_us: tuple[Samples, ...] = ()
    """By rank: what the calls add, from the first to the end of the last on the host's clock, a call, as a running server has it: host or
    device, whichever is slower, and of eager calls never less than host_us. Empty where none was taken."""
    wait_us: tuple[Samples, ...] = ()
    """By rank: of each call, how long it waited for the last rank. Empty where calls were not split. These are single calls, with a
    synchronising call before each: other ones than those of device_us."""
    transfer_us: tuple[Samples, ...] = ()
    """By rank: of the same calls, the rest: moving the data."""
    before: Mapping[str, Any] = field(default_factory=lambda: FrozenMap({}))
    """`machine_state()` before the batch of cells that this one was measured in."""
    after: Mapping[str, Any] = field(default_factory=lambda: FrozenMap({}))
    split_error_us: float = 0.0
    """How far off waits may be, in microseconds: what the ranks' clocks were compared within, or, of paths that stamp themselves, how long
    a flag takes to cross, which is known both ways together alone. 0 where nothing was split."""
    note: str = ""
    """Why samples are missing, or what else must be known with them."""

    def __post_init__(self) -> None:
        for name in ("path", "kernel", "backend", "release", "phase", "pattern", "driver", "device", "dtype", "note"):
            self._set(name, check_text(getattr(self, name), name))
        for name in _NAMES:
            if not getattr(self, name):
                raise InputError(name, "", "give a name")
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise InputError(name, getattr(self, name), f"give one of {', '.join(words)}")
        for name, least in (("nbytes", 1), ("world_size", 1), ("checked", 0), ("wrong", 0), ("process", 0)):
            self._set(name, _whole(getattr(self, name), name, least))
        if self.wrong > self.checked:
            raise InputError("wrong", self.wrong, f"only {self.checked} results were checked")
        self._set("compute_us", _compute(self.compute_us, self.pattern))
        self._set("split_error_us", _error(self.split_error_us))
        for name in SAMPLES:
            given = getattr(self, name)
            self._set(
                name,
                _by_rank(((),) * self.world_size if isinstance(given, tuple) and not given else given, name, self.world_size),
            )
        for name in ("before", "after"):
            self._set(name, check_mapping(getattr(self, name), name))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def key(self) -> Key:
        """What is measured, and how: a file has one cell of each key."""
        return (
            *(self.path, self.kernel, self.backend, self.release, self.phase, self.pattern, self.compute_us),
            *(self.driver, self.device, self.dtype, self.nbytes, self.world_size, self.process),
        )

    @property
    def correct(self) -> bool | None:
        """Whether all checked results were right; None where none was checked here."""
        return self.wrong == 0 if self.checked else None

    @property
    def device_median_us(self) -> Samples:
        """By rank; NaN where nothing was timed."""
        return np.array([_median(samples) for samples in self.device_us])

    @property
    def host_median_us(self) -> Samples:
        """By rank; NaN where nothing was timed."""
        return np.array([_median(samples) for samples in self.host_us])

    def __repr__(self) -> str:
        *what, count, device, host, verdict = self.row()
        return f"<Cell: {', '.join(what)}: {count} samples, {device} us device, {host} us host, {verdict}>"

    def row(self) -> tuple[str, ...]:
        """Cells of a table; times are the largest over ranks of the rank's median."""
        kernel = f" ({self.kernel})" if self.kernel else ""
        beside = f" {self.compute_us:g} us" if self.pattern == "interleaved" else ""
        ranks = f"{self.world_size} {'GPU' if self.device == 'gpu' else 'CPU'} rank{'s' if self.world_size > 1 else ''}"
        count = max((len(samples) for name in SAMPLES for samples in getattr(self, name)), default=0)
        verdict = (
            "not checked in this process set"
            if not self.checked
            else f"WRONG: {self.wrong} of {self.checked}"
            if self.wrong
            else "correct"
        )
        return (
            *(f"{self.path}{kernel}", self.phase, f"{self.pattern}{beside}", self.driver, human_bytes(self.nbytes), self.dtype),
            *(ranks, f"{count:,}", _us(self.device_median_us), _us(self.host_median_us), verdict),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON, as a file has it: an infinite sample is "inf" or "-inf"."""
        plain = {one.name: thaw(getattr(self, one.name)) for one in fields(self)}
        return plain | {name: [_plain(samples) for samples in getattr(self, name)] for name in SAMPLES}

    @classmethod
    def from_dict(cls, plain: object) -> Cell:
        """What `to_dict` gave. Raises InputError."""
        members = members_of(cls, plain)
        for name in SAMPLES:
            members[name] = _from_plain(members[name], name)
        return cls(**members)


# ------------------------------------------------------------------------------------------------------------------------- checks


def _whole(value: object, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value < 1 << 63:
        shown = f"a number of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 64 else value
        raise InputError(name, shown, f"give a whole number from {least} to 2^63 - 1")
    return int(value)


def _compute(value: object, pattern: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise InputError("compute_us", value, "give microseconds")
    try:
        us = float(value)
    except OverflowError:
        us = float("inf")
    if pattern == "back_to_back" and us != 0:
        raise InputError("compute_us", us, "back to back, nothing is computed in between: give 0, or pattern='interleaved'")
    if pattern == "interleaved" and not 0 < us < float("inf"):
        raise InputError("compute_us", us, "give the length of the kernel between two calls, in microseconds")
    return us + 0.0  # -0.0 would be another key


def _error(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating) or not 0 <= value < float("inf"):
        raise InputError("split_error_us", value, "give microseconds, 0 or more")
    return float(value) + 0.0


def _by_rank(value: object, name: str, world_size: int) -> tuple[Samples, ...]:
    if not isinstance(value, list | tuple) and not (isinstance(value, np.ndarray) and value.ndim):
        raise InputError(name, reprlib.repr(value), "give one list of samples for each rank")
    if len(value) != world_size:
        raise InputError(
            name, f"{len(value)} lists", f"give one list of samples for each of {world_size} ranks, empty where none was taken"
        )
    return tuple(_samples(rank, f"{name}[{i}]") for i, rank in enumerate(value))


def _samples(value: object, name: str) -> Samples:
    """One rank's, as an array of its own that nobody can change."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise InputError(name, reprlib.repr(value), "give a list of numbers") from None
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iuf"):
        raise InputError(name, reprlib.repr(value), "give a list of numbers")
    samples = np.array(array, np.float64)
    if (bad := np.flatnonzero(np.isnan(samples))).size:
        raise InputError(
            f"{name}[{bad[0]}]", float("nan"), "a sample is a number: leave out what was not measured, and say why in note"
        )
    samples.setflags(write=False)
    return samples


_INFINITE = {"inf": float("inf"), "-inf": float("-inf")}


def _plain(samples: Samples) -> list[float | str]:
    return [value if -np.inf < value < np.inf else "inf" if value > 0 else "-inf" for value in samples.tolist()]


def _from_plain(value: object, name: str) -> list[list[float]]:
    if not isinstance(value, list) or not all(isinstance(rank, list) for rank in value):
        raise InputError(name, reprlib.repr(value), "give one list of samples for each rank")
    return [rank if _plain_floats(rank) else _each(rank, f"{name}[{i}]") for i, rank in enumerate(value)]


def _plain_floats(rank: list[Any]) -> bool:
    """Nearly every list of samples: it needs no second look."""
    return all(type(item) is float and -np.inf < item < np.inf for item in rank)


def _each(rank: list[Any], name: str) -> list[float]:
    return [_sample(item, f"{name}[{i}]") for i, item in enumerate(rank)]


def _sample(item: object, name: str) -> float:
    if isinstance(item, float) and -np.inf < item < np.inf:  # 1e999 would be read as infinite
        return item
    if isinstance(item, str) and item in _INFINITE:
        return _INFINITE[item]
    if isinstance(item, int) and not isinstance(item, bool) and abs(item) <= 1 << 53:
        return float(item)
    raise InputError(name, item, 'give a number, "inf" or "-inf"')


def _median(samples: Samples) -> float:
    if not len(samples):
        return float("nan")
    ordered = np.sort(samples)
    low, high = float(ordered[(len(ordered) - 1) // 2]), float(ordered[len(ordered) // 2])
    return low if low == high else (low + high) / 2  # two infinities of one sign have no difference


def _us(medians: Samples) -> str:
    """Three digits that count; the largest over ranks."""
    timed = medians[~np.isnan(medians)]
    if not timed.size:
        return "-"
    value = float(timed.max())
    return f"{value:,.0f}" if 100 <= value < float("inf") else f"{value:.3g}"
