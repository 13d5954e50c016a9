"""Tensors of the device that a rank runs on, filled from and read back into NumPy: torch's on a GPU, NumPy's own on CPU ranks.

Called by job.py. Invariant: what is written and read are the dtype's bits (inputs.py); no number is converted here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .._types import ProbeUnavailable
from .inputs import element

Stored = NDArray[Any]


class Arrays(Protocol):
    """What job.py asks of either kind."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any: ...
    def fill(self, tensor: Any, stored: Stored) -> None: ...
    def read(self, tensor: Any) -> Stored: ...
    def address(self, tensor: Any) -> int: ...
    def timed(self, call: Callable[[], object]) -> float: ...


class HostArrays:
    """NumPy's."""

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        return np.empty(shape, element(dtype).storage)

    def fill(self, tensor: Any, stored: Stored) -> None:
        tensor.reshape(-1)[:] = stored

    def read(self, tensor: Any) -> Stored:
        flat: Stored = tensor.reshape(-1)
        return flat

    def address(self, tensor: Any) -> int:
        return int(tensor.__array_interface__["data"][0])

    def timed(self, call: Callable[[], object]) -> float:
        """Microseconds of a call that is done when it returns."""
        start = time.perf_counter_ns()
        call()
        return (time.perf_counter_ns() - start) / 1e3


_TORCH = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
"""Where torch's name of a dtype is another."""
_BITS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}


class TorchArrays:
    """torch's, on the current GPU (which the rank set when it joined)."""

    def __init__(self) -> None:
        self._torch = need_torch()
        self._device = self._torch.device("cuda", self._torch.cuda.current_device())

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self._torch.empty(shape, dtype=getattr(self._torch, _TORCH.get(dtype, dtype)), device=self._device)

    def fill(self, tensor: Any, stored: Stored) -> None:
        bits = self._torch.from_numpy(np.ascontiguousarray(stored).view(_BITS[stored.dtype.itemsize]))
        tensor.view(-1).copy_(bits.view(tensor.dtype))

    def read(self, tensor: Any) -> Stored:
        bits = getattr(self._torch, f"int{8 * tensor.element_size()}")
        flat: Stored = tensor.view(-1).view(bits).cpu().numpy()
        return flat

    def address(self, tensor: Any) -> int:
        return int(tensor.data_ptr())

    def timed(self, call: Callable[[], object]) -> float:
        """Microseconds on the current stream between two events around a call."""
        first, last = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        call()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) * 1e3


def need_torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise ProbeUnavailable(
            f"tensors on GPUs are torch's, and torch does not import here ({error}): install it, or ask for device='host'"
        ) from None
    return torch


def arrays_of(device: str) -> Arrays:
    return TorchArrays() if device == "gpu" else HostArrays()
