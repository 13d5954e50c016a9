"""What each rank reduces, what must come out, and whether it did. Called in each rank by worker.py; NumPy alone, on every device.

Inputs come from (seed, rank, index) alone, so every rank can make everybody's. Two kinds: ``exact``, small whole numbers whose sum is
exact in the dtype by whatever order (compared bit for bit), and ``random``, whose sum may differ from the float64 reference by the
rounding of one addition a rank. Both repeat with a period that is prime: no chunk of a kernel is a multiple of it, so a chunk in the
wrong place is a wrong value.
Invariant: nothing here looks at what the code under test computes but through ``check``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from .._types import InputError

Kind = Literal["exact", "random"]
KINDS: tuple[Kind, ...] = ("exact", "random")
PERIOD = 1_048_573
"""The largest prime below 2^20."""


@dataclass(frozen=True)
class Element:
    """How a dtype lies in memory, and how exact it is."""

    storage: type[np.generic]
    """NumPy's type of the same bits."""
    whole: int
    """Inputs are whole numbers from -whole to whole: 16 of them add up exactly."""
    unit: float
    """Largest relative error of one rounding; 0 where addition is exact."""
    least: float
    """Smallest number above zero: the error of rounding where numbers are that small."""


ELEMENTS: dict[str, Element] = {
    "bf16": Element(np.uint16, 15, 2.0**-8, 2.0**-133),
    "fp16": Element(np.float16, 63, 2.0**-11, 2.0**-24),
    "fp32": Element(np.float32, 1 << 16, 2.0**-24, 2.0**-149),
    "fp64": Element(np.float64, 1 << 16, 2.0**-53, 2.0**-1074),
    "int8": Element(np.int8, 7, 0.0, 0.0),
    "int32": Element(np.int32, 1 << 16, 0.0, 0.0),
    "int64": Element(np.int64, 1 << 16, 0.0, 0.0),
}


@dataclass(frozen=True)
class Verdict:
    """One rank's result against the reference."""

    correct: bool
    max_error: float
    """Largest difference from the float64 reference; infinite where a result is no number."""
    tolerance: float
    """What the element that came closest to its limit, or went furthest beyond it, was allowed; 0: bit for bit."""
    first_wrong: int = -1
    """Index of the first wrong element."""
    got: float = 0.0
    wanted: float = 0.0
    wrong: int = 0
    """How many elements are wrong."""
    said: str = ""
    """What is wrong, where it is no element."""

    def __str__(self) -> str:
        if self.correct:
            return f"correct, largest error {self.max_error:g}"
        if self.said:
            return self.said
        return f"{self.wrong:,} elements wrong: [{self.first_wrong:,}] is {self.got:g}, not {self.wanted:g}"


def element(dtype: str) -> Element:
    if dtype not in ELEMENTS:
        raise InputError("dtype", dtype, f"inputs with a checkable sum are made for {', '.join(ELEMENTS)}")
    return ELEMENTS[dtype]


def _noise(seed: int, rank: int, count: int) -> NDArray[np.uint32]:
    """Well mixed 32 bits for each index."""
    key = (seed * 0x9E3779B1 + rank * 0x85EBCA77 + 0x165667B1) & 0xFFFFFFFF
    x = np.arange(count, dtype=np.uint32)
    x += np.uint32(key)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x ^= x >> np.uint32(shift)
        x *= np.uint32(factor)
    x ^= x >> np.uint32(16)
    x ^= np.uint32((key * 0xC2B2AE3D) & 0xFFFFFFFF)  # ranks whose keys are neighbours do not become shifted copies
    x *= np.uint32(0x27D4EB2F)
    x ^= x >> np.uint32(15)
    return x


def _period(dtype: str, kind: Kind, seed: int, rank: int, count: int) -> NDArray[Any]:
    """One period of a rank's input, as stored."""
    kept, noise = element(dtype), _noise(seed, rank, min(count, PERIOD))
    if kind == "exact" or not kept.unit:
        return encode((noise % np.uint32(2 * kept.whole + 1)).astype(np.float64) - kept.whole, dtype)
    return encode(noise.astype(np.float64) * 2.0**-31 - 1.0, dtype)


def make(dtype: str, kind: Kind, seed: int, rank: int, count: int) -> NDArray[Any]:
    """A rank's whole input, as stored (bf16: its bits as uint16)."""
    return _repeated(_period(dtype, kind, seed, rank, count), count)


def _repeated(period: NDArray[Any], count: int) -> NDArray[Any]:
    if len(period) >= count:
        return period[:count]
    return np.resize(period, count)


def encode(values: NDArray[np.float64], dtype: str) -> NDArray[Any]:
    """Numbers to the dtype's bits, rounded to nearest, ties to even."""
    if dtype != "bf16":
        return values.astype(element(dtype).storage)
    bits = values.astype(np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (np.where(np.isnan(values), np.uint32(0x7FC00000), rounded) >> np.uint32(16)).astype(np.uint16)


def decode(stored: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """The dtype's bits to float64."""
    if dtype != "bf16":
        return stored.astype(np.float64)
    return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def poison(dtype: str, count: int) -> NDArray[Any]:
    """What no sum is: not a number; the least number where the dtype has only whole ones."""
    kept = element(dtype)
    if not kept.unit:
        return np.full(count, np.iinfo(np.dtype(kept.storage)).min, dtype=kept.storage)
    return np.full(count, encode(np.array([math.nan]), dtype)[0])


def check(result: NDArray[Any], dtype: str, kind: Kind, seed: int, ranks: int) -> Verdict:
    """A whole result, as stored, against the sum of all ranks' inputs."""
    kept, count = element(dtype), len(result)
    inputs = [decode(_period(dtype, kind, seed, rank, count), dtype) for rank in range(ranks)]
    total = np.sum(inputs, axis=0)
    if kind == "exact" or not kept.unit:
        allowed = np.zeros_like(total)
        expected = _repeated(encode(total, dtype), count)
        if same_bits(result, expected):
            return Verdict(True, 0.0, 0.0)
    else:
        allowed = ranks * (kept.unit * np.sum(np.abs(inputs), axis=0) + kept.least)
    return _compare(result, dtype, total, allowed)


def check_same(result: NDArray[Any], expected: NDArray[Any], dtype: str) -> Verdict:
    """A result that must be these very bits: zeros of a dry run, an input that was left alone."""
    if same_bits(result, expected):
        return Verdict(True, 0.0, 0.0)
    first = int(np.flatnonzero(_bits(result) != _bits(expected))[0])
    wrong = int(np.count_nonzero(_bits(result) != _bits(expected)))
    got, wanted = (float(decode(a[first : first + 1], dtype)[0]) for a in (result, expected))
    return Verdict(False, abs(got - wanted), 0.0, first, got, wanted, wrong)


def worse(one: Verdict, other: Verdict) -> Verdict:
    """The verdict on both: a wrong one first, then the larger error."""
    first, second = (one, other) if (one.correct, -one.max_error) <= (other.correct, -other.max_error) else (other, one)
    if not first.correct and not second.correct:
        return replace(first, wrong=first.wrong + second.wrong, max_error=max(first.max_error, second.max_error))
    return replace(first, max_error=max(first.max_error, second.max_error), tolerance=max(first.tolerance, second.tolerance))


def _bits(stored: NDArray[Any]) -> NDArray[Any]:
    """Each element's bits as a whole number: NaNs are equal to themselves, -0 is not 0."""
    return stored if stored.dtype.kind == "u" else stored.view(f"u{stored.dtype.itemsize}")


def same_bits(one: NDArray[Any], other: NDArray[Any]) -> bool:
    return bool(np.array_equal(_bits(one), _bits(other)))


def _compare(result: NDArray[Any], dtype: str, total: NDArray[np.float64], allowed: NDArray[np.float64]) -> Verdict:
    """Period by period, so that a large tensor needs little memory."""
    worst, tolerance, closest, wrong, first = 0.0, 0.0, -1.0, 0, -1
    got = wanted = 0.0
    for start in range(0, len(result), PERIOD):
        values = decode(result[start : start + PERIOD], dtype)
        reference, limit = total[: len(values)], allowed[: len(values)]
        with np.errstate(invalid="ignore"):
            error = np.abs(values - reference)
        error[~np.isfinite(values)] = math.inf
        worst = max(worst, float(error.max(initial=0.0)))
        if not len(values):
            continue
        share = np.divide(error, limit, out=np.where(error > 0, math.inf, 0.0), where=limit > 0)
        nearest = int(share.argmax())
        if share[nearest] > closest:
            closest, tolerance = float(share[nearest]), float(limit[nearest])
        bad = np.flatnonzero(error > limit)
        wrong += len(bad)
        if first < 0 and len(bad):
            first = start + int(bad[0])
            got, wanted = float(values[bad[0]]), float(reference[bad[0]])
    return Verdict(wrong == 0, worst, tolerance, first, got, wanted, wrong)
