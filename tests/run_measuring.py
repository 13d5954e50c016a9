"""What the tests of measuring share: targets, tensors that are watched, packages and paths in Python, a device that only notes.

Used by test_coordinator_measure*.py, here and in rank processes. Invariant: nothing here knows what a test expects.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import run_ranks
from numpy.typing import NDArray

from sglang_probe import Coordinator, _core
from sglang_probe._route import PATHS

OLD, NEW = "0.5.9", "0.5.23"
"""Custom all-reduce is v1, and V2."""
SLOTS = 16384
BEFORE, ENTER, MET, LEFT, AFTER = range(5)

Target = dict[str, Any]
TARGETS: dict[str, Target] = {
    **{f"v1 {kernel or 'as it chooses'}": {"kernel": kernel} for kernel in ("", "one_shot", "two_shot", "limit")},
    **{
        f"v2 {kernel}": {"kernel": kernel, "sglang": "0.5.16"}
        for kernel in ("one_shot_push", "one_shot_pull", "two_shot_pull", "two_shot_push")
    },
    "pynccl_in_place": {"custom": False, "pynccl": True},
    "pynccl_out_of_place": {"custom": False, "piecewise": True},
    "torch_distributed": {"custom": False},
    "torch_symm_mem": {"custom": False, "sglang": "0.5.16", "facts": {"own_torch_symm_mem": True}},
}


@contextmanager
def routed(c: Coordinator, target: Target) -> Iterator[None]:
    with run_ranks.as_before(c):
        c.sglang = target.get("sglang", OLD)
        c.custom.kernel = target.get("kernel", "")
        c.custom.disabled = not target.get("custom", True)
        c.pynccl.disabled = False if target.get("pynccl") else None
        c.piecewise = target.get("piecewise", False)
        c.set_facts(**target.get("facts", {}))
        yield


class Watched:
    """Tensors whose every new one is remembered: what enqueue's outputs held when their call was done."""

    def __init__(self) -> None:
        self.made: list[NDArray[Any]] = []
        watch = self

        class Array(np.ndarray):
            def __array_finalize__(self, of: object) -> None:
                watch.made.append(self)

        self._type = Array

    def of(self, array: NDArray[Any]) -> Any:
        seen = array.view(self._type)
        self.made.clear()
        return seen


def of_package(name: str, empty_like: Callable[[Any], Any]) -> Any:
    """64 floats of a package that makes its tensors so."""
    package = types.ModuleType(name)
    package.empty_like = empty_like  # type: ignore[attr-defined] # that is what a module is for
    sys.modules[name] = package
    kind = type("Tensor", (), {"__module__": name, "__dlpack__": lambda self, **_: self.array.__dlpack__()})
    tensor: Any = kind()
    tensor.array = np.ones(64, np.float32)
    return tensor


class InPython:
    """A path in Python."""

    def __init__(self, why: str = "", fails_at: int = 0) -> None:
        self.why, self.fails_at = why, fails_at
        self.calls: list[tuple[Any, Any]] = []

    def supports(self, nbytes: int, dtype: str) -> str:
        return self.why

    def enqueue(self, tensor: Any, out: Any, timeout_s: float) -> None:
        self.calls.append((tensor, out))
        if len(self.calls) == self.fails_at:
            raise KeyError("of the path in Python")
        out[...] = 5

    def finish(self, timeout_s: float) -> None:
        raise AssertionError("nobody waits in enqueue")


def said(act: Callable[[], object]) -> str:
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def rows_of(c: Coordinator, calls: int, first: int = 1) -> NDArray[np.uint64]:
    return c.stamps(first, 5 * calls).reshape(calls, 5)


# ------------------------------------------------------------------------------------------------------------ a device that only notes

_STATUS = ctypes.c_int
_NAMES = (  # of sp_seam, after its paths
    "join leave abort capturing copy capture_begin capture_end registered replay graph_free mark elapsed wait ran window_alloc "
    "window_free style bare spin stamp stamps_read stamps_clear hold release clock"
).split()
_TOO_LATE = 5
"""What the device's wait answers."""


class _Seam(ctypes.Structure):
    _fields_ = (
        ("abi", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("name", ctypes.c_char_p),
        ("error", ctypes.c_void_p),
        ("memory", ctypes.c_void_p * 5),
        ("paths", ctypes.c_void_p * len(PATHS)),
        *((name, ctypes.c_void_p) for name in _NAMES),
    )


class Recorder:
    """A device that does nothing and notes what it is asked to do; its waits fail, once `go_on` is set."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        self._seam = _Seam(abi=2, bytes=ctypes.sizeof(_Seam), name=b"recorder")
        self._kept: list[Any] = []
        text = ctypes.create_string_buffer(b"the wait failed on purpose")
        self._put("error", ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.addressof(text)))
        self._put("join", ctypes.CFUNCTYPE(_STATUS, ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p))(self._join))
        for name in ("release", "abort"):
            self._put(name, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._noting(name)))
        self._put("leave", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_bool)(self._noting("leave")))
        self._put("hold", ctypes.CFUNCTYPE(_STATUS, ctypes.c_void_p, ctypes.c_void_p)(self._noting("hold", 0)))
        self._put(
            "capturing",
            ctypes.CFUNCTYPE(_STATUS, ctypes.c_void_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_bool))(lambda *_: 0),
        )
        self._put("wait", ctypes.CFUNCTYPE(_STATUS, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(self._wait))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        self._name = b"sglang_probe._gpu.seam"
        self.capsule = new(ctypes.addressof(self._seam), self._name, None)
        self._kept.append(text)

    def _put(self, name: str, function: Any) -> None:
        self._kept.append(function)
        setattr(self._seam, name, ctypes.cast(function, ctypes.c_void_p).value)

    def _noting(self, name: str, answer: int | None = None) -> Callable[..., int | None]:
        def note(*_: object) -> int | None:
            self.asked.append(name)
            return answer

        return note

    def _join(self, world: object, deadline: object, comm: Any) -> int:
        comm[0] = ctypes.c_void_p(1)
        return 0

    def _wait(self, *_: object) -> int:
        self.asked.append("wait")
        self.inside.set()
        self.go_on.wait()
        return _TOO_LATE


def on(recorder: Recorder, world_size: int) -> _core.Coordinator:
    board = _core.board_create(world_size, 1 << 20)
    try:
        return _core.Coordinator(recorder.capsule, board, 0)
    finally:
        os.close(board)
