"""What a bench checks a call with: exact inputs and their sum (inputs.py), laid out on the device itself. Called by sample.py.

So 256 MiB take milliseconds. A result that has the very bits of the sum is right; any other goes to inputs.check, whose verdict counts.
Invariant: what the device computes here is tiling and comparing of bits; the numbers come from NumPy.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._run import inputs
from .._run.arrays import Arrays

_BITS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


@lru_cache(maxsize=64)
def _periods(dtype: str, seed: int, world_size: int, count: int) -> tuple[list[NDArray[Any]], NDArray[Any]]:
    """One period of every rank's input, and of their sum, as stored."""
    made = [inputs.make(dtype, "exact", seed, rank, count) for rank in range(world_size)]
    total = np.sum([inputs.decode(one, dtype) for one in made], axis=0)
    return made, inputs.encode(total, dtype)


class Reference:
    """Inputs and sums of one call on one rank; ``seed`` is the turn's."""

    def __init__(self, arrays: Arrays, dtype: str, count: int, rank: int, world_size: int) -> None:
        self._arrays, self._dtype, self._count, self._rank, self._size = arrays, dtype, count, rank, world_size

    def _period(self, seed: int) -> tuple[list[NDArray[Any]], NDArray[Any]]:
        return _periods(self._dtype, seed, self._size, min(self._count, inputs.PERIOD))

    def fill(self, tensor: Any, seed: int) -> None:
        """This rank's input."""
        _tile(_bits(tensor), self._period(seed)[0][self._rank])

    def poison(self, tensor: Any) -> None:
        """What no sum is, in memory that a result goes to, or comes to be in."""
        _tile(_bits(tensor), inputs.poison(self._dtype, 1))

    def zero(self, tensor: Any) -> None:
        _tile(_bits(tensor), np.zeros(1, inputs.element(self._dtype).storage))

    def wrong(self, result: Any, seed: int) -> str:
        """Empty where it is the sum, else what is wrong with it."""
        if _same(_bits(result), self._period(seed)[1]):
            return ""
        verdict = inputs.check(self._arrays.read(result), self._dtype, "exact", seed, self._size)
        return "" if verdict.correct else str(verdict)


def _bits(tensor: Any) -> Any:
    """A flat view of whole numbers: NumPy's or torch's, which take the same slices below."""
    if isinstance(tensor, np.ndarray):
        return tensor.reshape(-1).view(_BITS[tensor.dtype.itemsize])
    torch: Any = __import__("torch")
    return tensor.view(-1).view(getattr(torch, f"int{8 * tensor.element_size()}"))


def _there(flat: Any, stored: NDArray[Any]) -> Any:
    """The period where the tensor is."""
    bits = np.ascontiguousarray(stored).view(_BITS[stored.dtype.itemsize])
    if isinstance(flat, np.ndarray):
        return bits
    torch: Any = __import__("torch")
    return torch.from_numpy(bits).to(flat.device)


def _tile(flat: Any, stored: NDArray[Any]) -> None:
    period, whole = _there(flat, stored), len(flat) // len(stored) * len(stored)
    flat[:whole].reshape(-1, len(period))[:] = period
    flat[whole:] = period[: len(flat) - whole]


def _same(flat: Any, stored: NDArray[Any]) -> bool:
    period, whole = _there(flat, stored), len(flat) // len(stored) * len(stored)
    return bool((flat[:whole].reshape(-1, len(period)) == period).all()) and bool(
        (flat[whole:] == period[: len(flat) - whole]).all()
    )
