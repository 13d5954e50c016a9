"""Seen: the variables, libraries and cores that a run's processes really had. Made of what a guard, or a rank, looked at.

Invariant: a library is told by its content, so that one file in two places is no difference and two files of one name are; no secret
and no host's name is kept.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._measure.provenance import environment
from .._types import FrozenMap
from .process import Looked

_ENDS = 1 << 16
_DIGITS = 16
_LOADER = re.compile(r"(?:^|/)ld-linux|(?:^|/)linux-vdso")
_HASHED = re.compile(r"-[0-9a-f]{6,}$")


@dataclass(frozen=True)
class Seen:
    """What one run's processes had, all together."""

    looks: int = 0
    """How often somebody looked; 0: it was over before the first look, and nothing is known."""
    env: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: FrozenMap({}))
    """Values of each variable that matters, over all processes that have it."""
    libraries: Mapping[str, str] = field(default_factory=lambda: FrozenMap({}))
    """By path: what tells its content, "" where the file is not to be read."""
    cores: tuple[str, ...] = ()
    """Sets of cores that processes were allowed to run on, as ``0-3,8``."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        env = {name: list(values) for name, values in self.env.items()}
        return {"looks": self.looks, "env": env, "libraries": dict(self.libraries), "cores": list(self.cores)}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Seen:
        """What `to_dict` gave, as JSON has it."""
        env = FrozenMap({str(name): tuple(map(str, values)) for name, values in plain["env"].items()})
        libraries = FrozenMap({str(path): str(text) for path, text in plain["libraries"].items()})
        return cls(int(plain["looks"]), env, libraries, tuple(map(str, plain["cores"])))

    def by_stem(self) -> dict[str, dict[str, str]]:
        """Of each library, whatever its version is called, content and path of those that were there: ``{"libnccl": {digest: path}}``."""
        found: dict[str, dict[str, str]] = {}
        for path, digest in self.libraries.items():
            if digest:
                found.setdefault(stem(path), {})[digest] = path
        return found


def stem(path: str) -> str:
    """``libnccl`` of ``/x/libnccl.so.2.28.9``, and ``libgomp`` of ``libgomp-a34b3233.so.1``."""
    name = os.path.basename(path).partition(".so")[0]
    return _HASHED.sub("", name)


def seen_of_command(looked: Looked) -> Seen:
    """Of what a guard saw."""
    host = socket.gethostname()
    env: dict[str, set[str]] = {}
    for name, values in looked.env.items():
        for value in values:
            env.setdefault(name, set()).update(environment({name: value}, host).values())
    libraries = {path: content(path, identity) for path, identity in looked.libraries.items() if _counts(path)}
    return _seen(looked.looks, env, libraries, looked.cores)


def seen_here(_coordinator: Any = None) -> Seen:
    """In a rank: its own."""
    libraries: dict[str, str] = {}
    with open("/proc/self/maps", errors="backslashreplace") as file:
        for line in file:
            parts = line.split(None, 5)
            if len(parts) == 6 and "x" in parts[1] and ".so" in parts[5] and _counts(path := parts[5].rstrip("\n")):
                libraries[path] = content(path, _identity(path))
    env = {name: {value} for name, value in environment(os.environ, socket.gethostname()).items()}
    return _seen(1, env, libraries, [_ranges(os.sched_getaffinity(0))])


def merged(all_of: Iterable[Seen]) -> Seen:
    """Several processes of one run as one."""
    env: dict[str, set[str]] = {}
    libraries: dict[str, str] = {}
    cores: set[str] = set()
    looks = 0
    for one in all_of:
        looks = max(looks, one.looks)
        for name, values in one.env.items():
            env.setdefault(name, set()).update(values)
        libraries |= one.libraries
        cores |= set(one.cores)
    return _seen(looks, env, libraries, cores)


def _seen(looks: int, env: Mapping[str, set[str]], libraries: Mapping[str, str], cores: Iterable[str]) -> Seen:
    return Seen(
        looks,
        FrozenMap({name: tuple(sorted(values)) for name, values in sorted(env.items())}),
        FrozenMap(dict(sorted(libraries.items()))),
        tuple(sorted(set(cores))),
    )


def _counts(path: str) -> bool:
    """Libraries proper: not a language's extension modules, not the loader."""
    return os.path.basename(path).startswith("lib") and not _LOADER.search(path)


def _identity(path: str) -> tuple[int, ...]:
    try:
        one = os.stat(path)
    except OSError:  # replaced since it was loaded
        return (0, 0, 0)
    return one.st_size, one.st_mtime_ns, one.st_ino


def content_of(path: str) -> str:
    """Of a library as it is now; "" where it cannot be read."""
    return content(path, _identity(path))


@functools.lru_cache(maxsize=4096)
def content(path: str, identity: tuple[int, ...]) -> str:
    """Of a file: its size and both its ends, hashed; the linker's build ID stands in the first."""
    if not any(identity):
        return ""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.sha256(f"{size} ".encode() + file.read(_ENDS))
            file.seek(max(0, size - _ENDS))
            digest.update(file.read(_ENDS))
    except OSError:
        return ""
    return digest.hexdigest()[:_DIGITS]


def _ranges(cores: Iterable[int]) -> str:
    """``0-3,8``"""
    found: list[list[int]] = []
    for core in sorted(cores):
        if found and core == found[-1][1] + 1:
            found[-1][1] = core
        else:
            found.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in found)
