"""Every libnccl file of this machine and who would find it there: the environment, the loader's cache, packages. Called by nccl.py.

Invariant: a file is told once, by what it is (device and inode), with every way that leads to it, in the order in which loaders look.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

NAME = "libnccl.so*"
_CACHE = re.compile(r"^\s*libnccl\.so\S*\s.*=>\s*(\S.*)$", re.M)
_HOMES = ("NCCL_HOME", "CUDA_HOME", "CUDA_PATH")


@dataclass
class Library:
    """One file."""

    path: str
    identity: tuple[int, int]
    found_by: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Wheel:
    """An installed package nvidia-nccl-..., and its file."""

    name: str
    version: str
    path: str
    identity: tuple[int, int]


def find(loaded: Iterable[str]) -> list[Library]:
    """All of them; `loaded`: what the calling process has loaded already."""
    found: dict[tuple[int, int], Library] = {}
    for by, path in _places(loaded):
        real = os.path.realpath(path)
        identity = identity_of(real)
        if identity is None or not os.path.isfile(real):
            continue
        library = found.setdefault(identity, Library(real, identity))
        if by not in library.found_by:
            library.found_by.append(by)
    return list(found.values())


def identity_of(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _places(loaded: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(how it is found, file)"""
    yield from (("already loaded in the calling process", path) for path in loaded)
    if os.environ.get("SGLANG_NCCL_SO_PATH"):
        yield "SGLANG_NCCL_SO_PATH", os.environ["SGLANG_NCCL_SO_PATH"]
    preloads = re.split(r"[:\s]+", os.environ.get("LD_PRELOAD", ""))
    yield from (("LD_PRELOAD", path) for path in preloads if os.path.basename(path).startswith("libnccl.so"))
    for folder in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        yield from (("LD_LIBRARY_PATH", path) for path in _in(folder))
    for folder in filter(None, dict.fromkeys(sys.path)):
        for pattern, by in (
            ("nvidia/nccl/lib", "nvidia-nccl package"),
            ("nvidia/cu*/lib", "nvidia package"),
            ("torch/lib", "torch's own"),
        ):
            yield from ((by, str(path)) for home in sorted(Path(folder).glob(pattern)) for path in _in(home))
    yield from (("this Python's own lib", path) for path in _in(Path(sys.prefix) / "lib"))
    yield from (("the loader's cache", path) for path in _cached())
    for name in _HOMES:
        if os.environ.get(name):
            yield from ((name, path) for part in ("lib", "lib64") for path in _in(Path(os.environ[name]) / part))


def _in(folder: str | Path) -> list[str]:
    try:
        return sorted(map(str, Path(folder).glob(NAME)))
    except OSError:
        return []


def _cached() -> list[str]:
    """What `dlopen` of the plain name finds where nothing in the environment says otherwise."""
    ldconfig = shutil.which("ldconfig") or shutil.which("ldconfig", path="/sbin:/usr/sbin")
    if ldconfig is None:
        return []
    try:
        done = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, errors="replace", timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return _CACHE.findall(done.stdout)


def wheels() -> list[Wheel]:
    """Installed packages that own a libnccl."""
    found: dict[tuple[str, str, tuple[int, int]], Wheel] = {}
    for one in importlib.metadata.distributions():
        name = (one.metadata["Name"] or "").lower().replace("_", "-")
        if not name.startswith("nvidia-nccl-"):
            continue
        for file in one.files or ():
            if not file.name.startswith("libnccl.so"):
                continue
            path = os.path.realpath(str(one.locate_file(file)))
            identity = identity_of(path)
            if identity is not None:
                found.setdefault((name, one.version, identity), Wheel(name, one.version, path, identity))
    return list(found.values())
