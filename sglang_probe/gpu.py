"""GPUs of this machine: can one be used, which are there, how are they linked, and which NCCL would be opened.

``Coordinator(device="gpu")`` and ``LocalGroup`` ask here. Everything imports and answers without a driver, a GPU, NCCL or the
extension ``_gpu``: `available()` gives the reason. Invariant: an extension that is there and does not load raises its own error; it is
never taken for one that is absent.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ._types import ProbeUnavailable

_BUILD = (
    "the extension _gpu is not built; install a CUDA toolkit (13.0) and nvidia-nccl-cu13, or the packages "
    "cuda-toolkit[nvcc,nvvm,crt,cudart,cccl]==13.0.* and nvidia-nccl-cu13, and build this package again: in its sources, "
    "SP_GPU=1 pip install --no-build-isolation ."
)


@dataclass(frozen=True)
class Availability:
    """True where a GPU can be used; its text is the reason where none can."""

    reason: str = ""

    def __bool__(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        return self.reason or "a GPU can be used"


@dataclass(frozen=True)
class Device:
    """One GPU that this process sees. `memory_bytes` is all of it, free or not."""

    ordinal: int
    name: str
    uuid: str
    pci_bus_id: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int

    @property
    def arch(self) -> int:
        """The capability as one number: 90 is (9, 0)."""
        return 10 * self.capability[0] + self.capability[1]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Link:
    """Between two GPUs, as CUDA sees it. `rank` is CUDA's performance rank: 0 is the fastest link of this machine."""

    peer_access: bool
    native_atomics: bool
    rank: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Nccl:
    """A libnccl: the file, and the version that it says it has."""

    path: str
    version: str

    def __str__(self) -> str:
        return f"NCCL {self.version} ({self.path})"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def available() -> Availability:
    """Can a GPU be used here? Falsy with the reason: no extension, no driver, a driver that is too old, no GPU.

    Asks the driver without making a context on any GPU. Raises what a broken extension raises.
    """
    module = _module()
    return Availability(_BUILD if module is None else module.available())


def devices() -> tuple[Device, ...]:
    """The GPUs that this process sees (CUDA_VISIBLE_DEVICES), by ordinal. ProbeUnavailable with the reason where there is none."""
    return tuple(Device(**device) for device in _need().devices())


def link(a: int, b: int) -> Link:
    """Peer access, native atomics and speed class between the GPUs of two ordinals."""
    return Link(**_need().link(a, b))


def nccl(path: str | os.PathLike[str] | None = None) -> Nccl:
    """The libnccl that a communicator would open, which needs no GPU.

    In this order: `path`; the one already in this process, which is what SGLang and PyTorch use; SGLANG_NCCL_SO_PATH; the wheel
    nvidia-nccl-cu13; the loader's own search. It stays open. ProbeUnavailable names the file and what is wrong with it.
    """
    return Nccl(*_need().nccl(None if path is None else os.fspath(path)))


def find_nccl() -> str | None:
    """`nccl().path`, or None where there is none: a group then says why its NCCL paths cannot run, and runs the others."""
    try:
        return nccl().path
    except ProbeUnavailable:
        return None


def seam() -> object:
    """What _core's Coordinator takes as its device."""
    return _need().seam()


def _need() -> Any:
    module = _module()
    if module is None:
        raise ProbeUnavailable(_BUILD)
    return module


def _module() -> ModuleType | None:
    """The extension, told where the wheel's libnccl lies; None where it is not built."""
    if importlib.util.find_spec("sglang_probe._gpu") is None:
        return None
    from . import _gpu

    _gpu.nccl_wheel(_wheel())
    return _gpu


def _wheel() -> str | None:
    """libnccl of the wheel that PyTorch depends on, found without importing torch."""
    spec = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    folders = (spec.submodule_search_locations or []) if spec else []
    files = [Path(folder) / "lib" / "libnccl.so.2" for folder in folders]
    return next((str(file) for file in files if file.is_file()), None)
