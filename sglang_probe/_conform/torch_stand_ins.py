"""Small stand-ins for what SGLang's communicators ask of torch: a tensor, torch and its process groups. Used by others.py.

They hold what a predicate may read and compute nothing; the few operations that can fail (a view, a copy) fail as torch's do.
Invariant: torch is never imported, and an attribute that a stand-in lacks is a gap of ours, never an answer of SGLang's.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from .._source.lift import LiftError

# Our names of dtypes, and torch's names and sizes.
DTYPES: dict[str, tuple[tuple[str, ...], int]] = {
    "bf16": (("bfloat16",), 2),
    "fp16": (("float16", "half"), 2),
    "fp32": (("float32", "float"), 4),
    "fp64": (("float64", "double"), 8),
    "fp8": (("float8_e4m3fn",), 1),
    "int8": (("int8",), 1),
    "int32": (("int32", "int"), 4),
    "int64": (("int64", "long"), 8),
}


class Strict:
    """A missing attribute of a stand-in is a LiftError."""

    def __getattr__(self, name: str) -> Any:
        raise LiftError(f"SGLang asks {type(self).__name__} for {name!r}, which the stand-in does not know")


class Space(SimpleNamespace):
    """A module or an object with some attributes; any other is a LiftError."""

    def __getattr__(self, name: str) -> Any:
        raise LiftError(f"SGLang asks a stand-in for {name!r}; it has {', '.join(sorted(vars(self)))}")


class Dtype(Strict):
    def __init__(self, name: str, itemsize: int) -> None:
        self.name, self.itemsize = name, itemsize

    def __repr__(self) -> str:
        return self.name


class Device(Strict):
    def __init__(self, name: str) -> None:
        self.type, _, index = name.partition(":")
        self.index = int(index or 0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))


DTYPE = {name: Dtype(name, size) for name, (_, size) in DTYPES.items()}


class Storage(Strict):
    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes

    def nbytes(self) -> int:
        return self._nbytes


class Tensor(Strict):
    """Shape, dtype and layout. `weak`: the rest of its storage is exactly the tensor, though it may not be contiguous."""

    is_cpu = False

    def __init__(self, shape: Sequence[int], dtype: Dtype, contiguous: bool = True, weak: bool = True) -> None:
        self.shape, self.dtype, self._contiguous, self._weak = tuple(shape), dtype, contiguous, weak
        self.device, self.itemsize, self.ndim = Device("cuda:0"), dtype.itemsize, len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel() * self.itemsize

    def numel(self) -> int:
        count = 1
        for n in self.shape:
            count *= n
        return count

    def element_size(self) -> int:
        return self.dtype.itemsize

    def is_contiguous(self) -> bool:
        return self._contiguous

    def storage(self) -> Storage:
        return Storage(self.numel() * self.itemsize + (0 if self._weak else 64))

    def storage_offset(self) -> int:
        return 0

    def dim(self) -> int:
        return self.ndim

    def data_ptr(self) -> int:
        return 256

    def view(self, *shape: Any) -> Tensor:
        if not self._contiguous:
            raise RuntimeError("view size is not compatible with the tensor's size and stride")
        return Tensor((self.numel(),) if shape == (-1,) else shape[0], self.dtype)

    def copy_(self, other: Tensor) -> Tensor:
        if self.numel() != other.numel():
            raise RuntimeError("the sizes of the tensors do not match")
        return self

    def __getitem__(self, part: slice) -> Tensor:
        return Tensor((min(part.stop, self.numel()),), self.dtype)


def flat(nbytes: int, dtype: str, *, contiguous: bool = True, weak: bool = True, columns: int = 0, dims: int = 2) -> Tensor:
    """A tensor of that many bytes: [rows, columns], or [1, n] where no columns are given."""
    count = nbytes // DTYPE[dtype].itemsize
    width = columns or count
    shape = (count,) if dims == 1 else (1,) * (dims - 2) + (count // max(width, 1), width)
    return Tensor(shape, DTYPE[dtype], contiguous, weak)


class ReduceOp(enum.Enum):
    SUM = enum.auto()
    MAX = enum.auto()


@contextlib.contextmanager
def nothing(*_: object, **__: object) -> Iterator[None]:
    yield


def ignore(*_: object, **__: object) -> None:
    return None


def distributed(world_size: int, ranks: Sequence[int]) -> Space:
    """torch.distributed of rank 0 in one group."""

    def gather(into: list[Any], value: Any, **_: object) -> None:
        into[:] = [value] * len(into)

    def broadcast(_values: list[Any], **_: object) -> None:
        return None

    return Space(
        Backend=Space(NCCL="nccl"),
        ReduceOp=ReduceOp,
        get_backend=lambda _group: "gloo",
        get_rank=lambda group=None: 0,
        get_world_size=lambda group=None: world_size,
        get_process_group_ranks=lambda _group: list(ranks),
        is_initialized=lambda: True,
        all_gather=gather,
        all_gather_object=gather,
        broadcast_object_list=broadcast,
        broadcast=ignore,
        all_reduce=ignore,
        barrier=ignore,
    )


class Group(Strict):
    """A process group."""

    group_name = "tp"


def torch(
    *,
    world_size: int = 8,
    ranks: Sequence[int] = (),
    arch: tuple[int, int] = (9, 0),
    gcn: str = "",
    devices: int = 8,
    compiling: bool = False,
    record: Callable[[str], None] = ignore,
) -> Space:
    """torch, as far as the communicators ask it. `record` hears which symmetric-memory kernel runs."""
    dist = distributed(world_size, ranks or range(world_size))
    stream = Space(cuda_stream=0, synchronize=ignore, wait_stream=ignore)

    def full(*shape: Any, dtype: Dtype = DTYPE["fp32"], device: object = None) -> Tensor:
        first = shape[0] if shape else 1
        return Tensor(first if isinstance(first, (tuple, list)) else shape, dtype)

    def kernel(name: str) -> Callable[..., None]:
        return lambda *_args: record(name)

    cuda = Space(
        set_device=ignore,
        device=nothing,
        stream=nothing,
        Stream=lambda *_: stream,
        current_stream=lambda *_: stream,
        synchronize=ignore,
        device_count=lambda: devices,
        get_device_capability=lambda *_: arch,
        get_device_properties=lambda *_: Space(gcnArchName=gcn),
        is_current_stream_capturing=lambda: False,
    )
    space = Space(
        distributed=dist,
        cuda=cuda,
        device=Device,
        compiler=Space(is_compiling=lambda: compiling),
        uint8=Dtype("uint8", 1),
        uint32=Dtype("uint32", 4),
        ops=Space(symm_mem=Space(multimem_all_reduce_=kernel("multimem"), two_shot_all_reduce_=kernel("torch_two_shot"))),
        utils=Space(dlpack=Space(from_dlpack=lambda _buffer: Tensor((1 << 26,), DTYPE["fp16"]))),
        tensor=lambda values, **_: Space(item=lambda: values[0]),
        ByteTensor=lambda values: Space(tolist=lambda: list(values)),
        empty=full,
        zeros=full,
        ones=full,
        empty_like=lambda t: Tensor(t.shape, t.dtype),
        Tensor=Tensor,
    )
    for ours, (names, _) in DTYPES.items():
        for name in names:
            setattr(space, name, DTYPE[ours])
    return space


def logger() -> Space:
    return Space(debug=ignore, info=ignore, warning=ignore, error=ignore, exception=ignore)


def environment(**values: object) -> Space:
    """`envs` of sglang.srt.environ: the given values, by name."""
    return Space(
        **{
            name: Space(get=lambda value=value: value, is_set=lambda value=value: value is not None)
            for name, value in values.items()
        }
    )


def variables(values: dict[str, str]) -> Space:
    """`os`, with these environment variables and no other."""
    return Space(environ=values, getenv=values.get)
