"""What one rank does with the cases of run_cases.py: sets what surrounds each call, makes it, and says what it saw.

Called in the rank processes by LocalGroup.run; test_coordinator.py judges what comes back. Sums are small whole numbers, so that every
dtype holds them exactly. Invariant: every rank makes the same calls in the same order, whatever one of them finds wrong.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from run_cases import IN_CAPTURE, STREAM, Case, Layout, names_of

from sglang_probe import Coordinator, Decision, Path, ProbeUnavailable, resolve
from sglang_probe._route import PATHS
from sglang_probe._run.coordinator import Settings

Stored = NDArray[Any]
"""A tensor's elements in reading order; bf16 as its bits."""
PERIOD = 1009
"""Of the inputs: a prime, so that a chunk in the wrong place is a wrong value."""
REPLAYS = 2
STORED_AS = {"bf16": "uint16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


def stored(values: NDArray[np.float64], dtype: str, count: int) -> Stored:
    """Whole numbers below 256 as the dtype keeps them, over and over."""
    kept = np.dtype(STORED_AS.get(dtype, dtype))
    period = (values.astype(np.float32).view(np.uint32) >> 16).astype(kept) if dtype == "bf16" else values.astype(kept)
    return np.tile(period, -(-count // len(period)))[:count]


def rounded(values: NDArray[np.float64], dtype: str) -> Stored:
    """Any numbers as the dtype keeps them, near enough: where bf16 cuts off, the input is what is left."""
    if dtype == "bf16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(STORED_AS[dtype])


def values_of(kept: Stored, dtype: str) -> NDArray[np.float64]:
    if dtype == "bf16":
        return (kept.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return kept.astype(np.float64)


def numbers(seed: int, rank: int) -> NDArray[np.float64]:
    """One period of a rank's input: -8 to 8; the first is never 0, so that a result that was not written shows."""
    drawn = np.random.default_rng([seed, rank]).integers(-8, 9, PERIOD).astype(np.float64)
    drawn[0] = 1 + rank
    return drawn


def total(seed: int, world_size: int) -> NDArray[np.float64]:
    """One period of the sum: the reference, in float64."""
    return np.sum([numbers(seed, rank) for rank in range(world_size)], axis=0)


POISON = np.array([77.0])


# ----------------------------------------------------------------------------------------------------------------------------- tensors


class Tensors(Protocol):
    """Tensors of one package on one device."""

    def make(self, shape: Sequence[int], dtype: str, layout: Layout = "plain") -> Any: ...
    def write(self, tensor: Any, values: Stored) -> None: ...
    def read(self, tensor: Any) -> Stored: ...
    def address(self, tensor: Any) -> int: ...


class NumpyTensors:
    """NumPy's."""

    def make(self, shape: Sequence[int], dtype: str, layout: Layout = "plain") -> Any:
        kept = np.dtype(STORED_AS.get(dtype, dtype))
        if layout == "dense":
            return np.empty(tuple(shape)[::-1], kept).T
        count = int(np.prod(shape))
        flat = np.empty(count + 32, kept)
        first = -flat.__array_interface__["data"][0] % 16 // kept.itemsize + (layout == "odd")
        return flat[first : first + count].reshape(tuple(shape))

    def write(self, tensor: Any, values: Stored) -> None:
        tensor[...] = values.reshape(tensor.shape)

    def read(self, tensor: Any) -> Stored:
        return np.ascontiguousarray(tensor).reshape(-1)

    def address(self, tensor: Any) -> int:
        return int(tensor.__array_interface__["data"][0])


class TorchTensors:
    """torch's, on the CPU or on this rank's GPU."""

    _TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self._device = torch.device("cuda", torch.cuda.current_device()) if device == "gpu" else torch.device("cpu")

    def make(self, shape: Sequence[int], dtype: str, layout: Layout = "plain") -> Any:
        kept = getattr(self._torch, self._TYPES.get(dtype, dtype))
        if layout == "dense":
            return self._torch.empty(tuple(shape)[::-1], dtype=kept, device=self._device).t()
        odd, count = int(layout == "odd"), int(np.prod(shape))
        return self._torch.empty(count + odd, dtype=kept, device=self._device)[odd:].view(tuple(shape))

    def write(self, tensor: Any, values: Stored) -> None:
        bits = self._torch.from_numpy(values.view(f"int{8 * values.itemsize}").copy())
        tensor.copy_(bits.view(tensor.dtype).view(tensor.shape))

    def read(self, tensor: Any) -> Stored:
        kept = next((STORED_AS[name] for name, theirs in self._TYPES.items() if str(tensor.dtype) == f"torch.{theirs}"), None)
        bits = tensor.contiguous().view(-1).view(getattr(self._torch, f"int{8 * tensor.element_size()}")).cpu().numpy()
        values: Stored = bits.view(kept) if kept else bits
        return values

    def address(self, tensor: Any) -> int:
        return int(tensor.data_ptr())


def tensors_of(coordinator: Coordinator, package: str) -> Tensors:
    if package == "numpy":
        return NumpyTensors()
    return TorchTensors(coordinator.device)


class Rank:
    """A tensor of one rank, filled and summed."""

    def __init__(self, c: Coordinator, package: str, dtype: str = "bf16", count: int = 2048) -> None:
        self.c, self.dtype, self.count = c, dtype, count
        self.tensors = tensors_of(c, package)
        self.tensor = self.tensors.make((4, count // 4), dtype)

    def fill(self, seed: int = 0) -> Any:
        mine = numbers(seed, self.c.rank)
        self.tensors.write(self.tensor, stored(mine, self.dtype, self.count))
        return self.tensor

    def is_sum(self, tensor: Any, seed: int = 0, times: int = 1) -> bool:
        wanted = total(seed, self.c.world_size) * self.c.world_size ** (times - 1)
        self.c.wait()
        return np.array_equal(self.tensors.read(tensor), stored(wanted, self.dtype, self.count))

    def is_zero(self, tensor: Any) -> bool:
        self.c.wait()
        return not self.tensors.read(tensor).any()


# ------------------------------------------------------------------------------------------------------------------------------- calls

Key = tuple[str, str, str, str | None, bool, bool, str]


def key_of(decision: Decision) -> Key:
    """What of a decision a call shows."""
    d = decision
    return (str(d.path), d.rule, d.kernel, d.returns, d.cloned, d.reduces, d.error)


@dataclass
class Seen:
    """What one rank saw of one call."""

    decided: Key | None = None
    """By Coordinator.decide, just before."""
    took: tuple[str, str, str, str, bool] | None = None
    """Path, rule, kernel, returned tensor, reduces, of the Reduced; None where it raised."""
    error: str = ""
    text: str = ""
    unavailable: bool = False
    wrong: list[str] = field(default_factory=list)
    """Everything that is not as it must be."""
    digest: str = ""
    """Of all results."""


def set_up(c: Coordinator, case: Case) -> None:
    """Everything that surrounds the case, but for graph_capture() and the capturing stream: by the toggles that people use."""
    c.apply(Settings(resolve(case.sglang), case.group))
    c.set_context(names_of(case.context & ~(IN_CAPTURE | STREAM)))
    for name in case.setting.off:
        getattr(c, name).disabled = True
    for name in case.setting.on:
        getattr(c, name).disabled = False


class OneCase:
    """One case on one rank."""

    def __init__(self, c: Coordinator, case: Case, tensors: Tensors) -> None:
        self.c, self.case, self.tensors = c, case, tensors
        self.count = case.shape[0] * case.shape[1]
        self.tensor = tensors.make(case.shape, case.dtype, case.layout)
        self.warm, self.seen = Seen(), Seen()
        self._hash = hashlib.blake2b(digest_size=8)

    def run(self) -> tuple[Seen, Seen]:
        """The warm-up before a captured call, and the call."""
        set_up(self.c, self.case)
        inside = self.c.graph_capture() if self.case.context & IN_CAPTURE else contextlib.nullcontext()
        if not self.case.captured:
            with inside:
                self.eager(self.seen, 0)
        else:
            self.captured(inside)
        self.seen.digest = self._hash.hexdigest()
        return self.warm, self.seen

    def eager(self, seen: Seen, turn: int) -> None:
        mine = self._fill(turn)
        self._spoil()
        ran = {path: self._ran(path) for path in PATHS}
        reduced = self._call(seen)
        self.c.wait()
        if reduced is None:
            self._unchanged(seen, mine, "the call raised, and yet the input was changed")
            return
        self._check(seen, reduced, mine, turn)
        self._counted(seen, reduced, ran[reduced.path], 1)

    def captured(self, inside: contextlib.AbstractContextManager[Any]) -> None:
        with inside:
            self.eager(self.warm, 0)
            mine = self._fill(1)
            with self.c.graph() as graph:
                reduced = self._call(self.seen)
            self.c.wait()
            self._unchanged(self.seen, mine, "a captured call ran while it was captured")
        if reduced is None:
            return
        ran = self._ran(reduced.path)
        for turn in range(2, 2 + REPLAYS):  # other inputs each time, and an output that holds no sum
            mine = self._fill(turn)
            if reduced.tensor is not self.tensor:
                self.tensors.write(reduced.tensor, self._stored(POISON))
            graph.replay()
            self.c.wait()
            self._check(self.seen, reduced, mine, turn)
        self._counted(self.seen, reduced, ran, REPLAYS)

    def _call(self, seen: Seen) -> Any:
        try:
            decision = self.c.decide(self.tensor)
            seen.decided = key_of(decision)
            reduced = self.c.all_reduce(self.tensor)
        except (AssertionError, AttributeError, KeyError, IndexError, ValueError, RuntimeError, ProbeUnavailable) as error:
            seen.error, seen.text = type(error).__name__, str(error)
            seen.unavailable = isinstance(error, ProbeUnavailable)
            return None
        returned = "input" if reduced.tensor is self.tensor else "new"
        seen.took = (str(reduced.path), reduced.rule, reduced.kernel, returned, reduced.reduces)
        if reduced.decision != decision:
            seen.wrong.append(f"decided {decision}, and its result says {reduced.decision}")
        if (reduced.host_us, reduced.device_us) != (None, None):
            seen.wrong.append("it has times, and nobody asked for any")
        return reduced

    def _fill(self, turn: int) -> Stored:
        mine = self._stored(numbers(self._seed(turn), self.c.rank))
        self.tensors.write(self.tensor, mine)
        return mine

    def _seed(self, turn: int) -> int:
        return self.case.seed + 1000 * turn

    def _stored(self, values: NDArray[np.float64]) -> Stored:
        return stored(values, self.case.dtype, self.count)

    def _spoil(self) -> None:
        """What an allocator gives out next for an output of this size holds no sum."""
        self.tensors.write(self.tensors.make(self.case.shape, self.case.dtype, self.case.layout), self._stored(POISON))

    def _ran(self, path: Path) -> int:
        return self.c.ran(PATHS.index(path))

    def _counted(self, seen: Seen, reduced: Any, before: int, times: int) -> None:
        """On CPU ranks what runs a call counts it; on GPUs our own kernels do, a launch at least, and libraries do not."""
        ran = self._ran(reduced.path) - before
        if reduced.kernel == "dry" or (self.c.device == "gpu" and (reduced.path != "custom" or ran >= times)):
            return
        if ran != times:
            seen.wrong.append(f"the device counted {ran} runs of {reduced.path}, not {times}")

    def _unchanged(self, seen: Seen, mine: Stored, text: str) -> None:
        if not np.array_equal(self.tensors.read(self.tensor), mine):
            seen.wrong.append(text)

    def _check(self, seen: Seen, reduced: Any, mine: Stored, turn: int) -> None:
        result = self.tensors.read(reduced.tensor)
        new = reduced.tensor is not self.tensor
        if reduced.reduces:
            self._hash.update(result.tobytes())
            wanted, what = self._stored(total(self._seed(turn), self.c.world_size)), "the sum"
        elif new:
            wanted, what = np.zeros_like(mine), "the zeros of a dry run"
        else:
            wanted, what = mine, "the input, whose sum this release loses"
        if not np.array_equal(result, wanted):
            first = int(np.flatnonzero(result != wanted)[0])
            bad = int(np.count_nonzero(result != wanted))
            seen.wrong.append(f"turn {turn}: {bad} elements are not {what}: [{first}] is {result[first]}, not {wanted[first]}")
        if new:
            if self.tensors.address(reduced.tensor) == self.tensors.address(self.tensor):
                seen.wrong.append("a new tensor that lies where the input does")
            self._unchanged(seen, mine, f"turn {turn}: a new tensor came back, and yet the input was changed")


@contextlib.contextmanager
def as_before(c: Coordinator) -> Iterator[None]:
    settings = c.settings
    try:
        yield
    finally:
        c.apply(settings)


def once_more(cases: Sequence[Case]) -> list[Case]:
    """A case that does not raise, for the end: no error before it left anything behind."""
    return [case for case in cases if not case.decision().error][:1]


def run_all(c: Coordinator, cases: Sequence[Case], package: str) -> list[tuple[Seen, Seen]]:
    """All cases on this rank, in order."""
    tensors = tensors_of(c, package)
    with as_before(c):
        return [OneCase(c, case, tensors).run() for case in cases]
