"""Who would load which libnccl, by doing as they do: torch is imported; SGLang's pynccl opens a file or a name; our communicators look.

Called by nccl.py, in a process that does nothing else. Invariant: torch comes first, as in SGLang's workers and in our GPU ranks, and
nobody's answer changes what the next one finds.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from .._run.packing import start_path
from .inside import Report

SONAME = "libnccl.so.2"
_MAPPED = re.compile(r"^([0-9a-f]+)-([0-9a-f]+)\s.*?\s(/\S.*/libnccl\.so[^\n/]*)$", re.M)
_OURS_S = 10.0
_OURS = """
import json, sys
sys.path[:] = sys.argv[1:]
from sglang_probe import gpu
try:
    print(json.dumps(gpu.nccl().to_dict()))
except Exception as error:
    print(json.dumps({"why": str(error)}))
"""


@dataclass(frozen=True)
class User:
    """One that opens NCCL, and what it opens."""

    name: str
    path: str = ""
    version: str = ""
    why: str = ""
    """Why it loads none."""
    wrong: bool = False
    """It should load one, and cannot."""

    def to_dict(self) -> dict[str, Any]:
        return {"user": self.name, "path": self.path, "version": self.version, "why": self.why}


def users(report: Report) -> Iterator[User]:
    """torch, SGLang's pynccl, our communicators; each as soon as it is known."""
    report.doing("importing torch, to see which NCCL it loads")
    torch, why = _import_torch()
    own = _torchs(torch, why)
    yield own
    report.doing("asking which NCCL our communicators open")
    yield _ours(bool(mapped()))
    report.doing("opening NCCL as SGLang's pynccl does")
    yield _pynccl(torch, why)


def _import_torch() -> tuple[Any, str]:
    if importlib.util.find_spec("torch") is None:
        return None, "torch is not installed"
    try:
        return importlib.import_module("torch"), ""
    except Exception as error:
        told = str(error).splitlines()
        return None, f"torch does not import: {told[0] if told else type(error).__name__}"


def mapped() -> dict[str, tuple[int, int]]:
    """The libnccl files that this process has mapped, with the first address and the one behind the last."""
    with open("/proc/self/maps", errors="surrogateescape") as maps:
        found: dict[str, tuple[int, int]] = {}
        for first, last, path in _MAPPED.findall(maps.read()):
            low, high = found.get(path, (int(first, 16), 0))
            found[path] = min(low, int(first, 16)), max(high, int(last, 16))
    return found


def _torchs(torch: Any, why: str) -> User:
    if torch is None:
        return User("torch", why=why, wrong="not import" in why)
    files = mapped()
    if files:
        path = next(iter(files))
        return _named("torch", ctypes.CDLL(path))
    if torch.version.cuda is None:
        return User("torch", why=f"torch {torch.__version__} is built without CUDA")
    try:
        version = ".".join(map(str, torch.cuda.nccl.version()))
    except Exception as error:  # a torch without NCCL has no such function, or one that raises
        return User("torch", why=f"torch {torch.__version__} has no NCCL ({error})")
    return User("torch", f"inside {os.path.dirname(str(torch.__file__))}", version)


def _ours(loaded: bool) -> User:
    """Our GPU ranks import torch first: where that has loaded one, it is theirs."""
    name = "our communicators"
    if loaded:
        from .. import gpu

        try:
            found = gpu.nccl().to_dict()
        except Exception as error:  # no _gpu, or one that does not load: told as it is
            found = {"why": str(error)}
    else:
        command = [sys.executable, "-c", _OURS, *start_path()]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_OURS_S, check=False)
            found = json.loads(done.stdout)
        except (subprocess.TimeoutExpired, ValueError) as error:
            found = {"why": f"asking for it failed: {error}"}
    path = str(found.get("path", ""))  # as the loader found it, which may go by way of ".."
    return User(name, os.path.realpath(path) if path else "", str(found.get("version", "")), str(found.get("why", "")))


def _pynccl(torch: Any, why: str) -> User:
    """Its order: SGLANG_NCCL_SO_PATH, else by the plain name, which is torch's where torch has loaded one."""
    name = "SGLang's pynccl"
    if torch is None:
        return User(name, why=f"SGLang needs torch: {why}")
    wish = os.environ.get("SGLANG_NCCL_SO_PATH")
    if not wish and torch.version.cuda is None:
        return User(name, why=f"it refuses a torch without CUDA ({torch.__version__})")
    try:
        library = ctypes.CDLL(wish or SONAME)
        return _named(name, library)
    except (OSError, AttributeError) as error:
        return User(name, why=str(error), wrong=True)


def _named(name: str, library: ctypes.CDLL) -> User:
    """The file in which its functions lie, and the version that they tell."""
    from .nccl import version_text

    number = ctypes.c_int()
    result = library.ncclGetVersion(ctypes.byref(number))
    if result:
        return User(name, why=f"ncclGetVersion answers {result}", wrong=True)
    at = ctypes.cast(library.ncclGetVersion, ctypes.c_void_p).value or 0
    path = next((file for file, (low, high) in mapped().items() if low <= at < high), str(library._name))
    return User(name, os.path.realpath(path), version_text(number.value))
