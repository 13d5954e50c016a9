"""Ask: one call as every rank is to make it, from what people write for it. Made by LocalGroup, carried out by job.py.

Invariant: an Ask is whole: a shape, a dtype whose sum can be checked, bits of a context that exists.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .._facts import DTYPE_BYTES, check_dtype
from .._route import context_bits
from .._types import Call, FrozenMap, InputError
from .inputs import KINDS, Kind, element

IN_CAPTURE, STREAM = context_bits("in_graph_capture"), context_bits("stream_capturing")
_INPUTS: Mapping[str, tuple[Kind, ...]] = FrozenMap({"both": KINDS, "exact": ("exact",), "random": ("random",)})


@dataclass(frozen=True)
class Ask:
    """One call, the same for all ranks."""

    shape: tuple[int, ...]
    dtype: str
    context: int
    """Bits of CONTEXTS."""
    seed: int
    kinds: tuple[Kind, ...] = KINDS
    times: int = 1
    """Calls, or replays where the stream is captured."""
    first: int = 0
    """Number of the first of them: what the inputs are made from, besides the seed."""

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * DTYPE_BYTES[self.dtype]

    def part(self, first: int, times: int) -> Ask:
        return replace(self, first=first, times=times)

    @property
    def captured(self) -> bool:
        return bool(self.context & STREAM)


def ask_of(call: int | Call | None, shape: Sequence[int] | None, dtype: str, context: int, seed: int, inputs: str) -> Ask:
    """What people write for a call, checked. Raises InputError."""
    if inputs not in _INPUTS:
        raise InputError("inputs", inputs, f"give one of {', '.join(_INPUTS)}")
    if (call is None) == (shape is None):
        raise InputError("call", call, "give bytes or a Call, or shape=(tokens, hidden), one of the two")
    if isinstance(call, Call):
        dtype = call.dtype
        shape = (call.tokens, call.hidden) if call.tokens and call.hidden else None
    name = check_dtype(dtype)
    element(name)
    size = DTYPE_BYTES[name]
    if shape is None:
        nbytes = call.nbytes if isinstance(call, Call) else call
        whole("call", nbytes)
        assert isinstance(nbytes, int)
        if nbytes % size:
            raise InputError("call", nbytes, f"give a multiple of {size}: that is one element of {name}")
        shape = (1, nbytes // size)
    given: object = shape
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InputError("shape", shape, "give dimensions, as (tokens, hidden)")
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise InputError("seed", seed, "give a whole number")
    for dimension in shape:
        whole("shape", dimension)
    if not shape or math.prod(shape) * size >= 1 << 63:
        raise InputError("shape", tuple(shape), "give one dimension or more, below 2^63 bytes")
    return Ask(tuple(shape), name, context, seed, _INPUTS[inputs])


def whole(name: str, value: object, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(name, value, f"give a whole number, {least} or more")
