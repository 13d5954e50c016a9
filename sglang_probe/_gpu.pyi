# Types of the GPU extension; tests/test_gpu_build.py holds every name and signature against the module, where it is built.
from typing import TypedDict

class _Device(TypedDict):
    ordinal: int
    name: str
    uuid: str
    pci_bus_id: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int

class _Link(TypedDict):
    peer_access: bool
    native_atomics: bool
    rank: int

def seam() -> object: ...
def available() -> str: ...
def devices() -> list[_Device]: ...
def link(a: int, b: int, /) -> _Link: ...
def peer_copy(source: int, target: int, nbytes: int, seed: int, /) -> tuple[int, int] | None: ...
def nccl(path: str | None = None, /) -> tuple[str, str]: ...
def nccl_wheel(path: str | None, /) -> None: ...
def exchange(rank: int, size: int, ordinal: int = 0, nccl: str | None = None, timeout_s: float = 30.0, /) -> object: ...
def exchange_all_gather(exchange: object, data: bytes, timeout_s: float = 30.0, /) -> list[bytes]: ...
def exchange_check(exchange: object, /) -> None: ...

class _Many(TypedDict):
    checked: int
    wrong: int
    max_error: float
    bit_equal: bool
    launched: int
    ran: int
    stamped: int
    us: float
    gpus: int
    blocks: int
    threads: int

def reduce(
    comm: object, kernel: int, dtype: int, nbytes: int, source: int, target: int, stream: int = 0, stamp: int = 0, /
) -> None: ...
def tune(comm: object, style: int, overlap: bool = True, blocks_max: int = 0, /) -> None: ...
def shape(comm: object, kernel: int, dtype: int, nbytes: int, /) -> tuple[int, int, int]: ...
def empty(comm: object, kernel: int, dtype: int, nbytes: int, stream: int = 0, /) -> None: ...
def ping_pong(comm: object, trips: int, stream: int = 0, timeout_s: float = 10.0, /) -> None: ...
def many_check(
    world: int,
    kernel: int,
    dtype: int,
    nbytes: int,
    *,
    gpus: int = 0,
    style: int = 2,
    captured: bool = False,
    registered: bool = False,
    in_place: bool = False,
    traced: bool = False,
    iterations: int = 1,
    seed: int = 1,
    seconds: float = 60.0,
) -> _Many: ...
