"""What one call of SGLang really ran, seen by the interpreter's own profile hook: nothing of SGLang is wrapped or replaced for it.

Used by engine.py for a call that is not timed. Invariant: only what was entered is told; what C++ chooses by itself stays unknown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from .._types import Path

# (module's file, function) -> the path that this function communicates by
_PATHS: dict[tuple[str, str], Path] = {
    ("custom_all_reduce", "custom_all_reduce"): Path.CUSTOM,
    ("custom_all_reduce_v2", "custom_all_reduce"): Path.CUSTOM,
    ("quick_all_reduce", "quick_all_reduce"): Path.QUICK,
    ("pymscclpp", "all_reduce"): Path.MSCCLPP,
    ("torch_symm_mem", "all_reduce"): Path.TORCH_SYMM_MEM,
    ("flashinfer_comm_fusion", "flashinfer_allreduce"): Path.FLASHINFER,
    ("pcie_ipc_ar", "pcie_ipc_all_reduce"): Path.PCIE_IPC,
    ("pynccl", "all_reduce"): Path.PYNCCL_IN_PLACE,
    ("pynccl", "outplace_all_reduce"): Path.PYNCCL_OUT_OF_PLACE,
    ("distributed_c10d", "all_reduce"): Path.TORCH_DISTRIBUTED,
}
# operators of torch's library -> (path, kernel)
_OPS: dict[str, tuple[Path, str]] = {
    "sgl_kernel::shm_allreduce": (Path.CPU_SHM, ""),
    "symm_mem::multimem_all_reduce_": (Path.TORCH_SYMM_MEM, "multimem"),
    "symm_mem::two_shot_all_reduce_": (Path.TORCH_SYMM_MEM, "torch_two_shot"),
}
_V1, _V2 = "custom_all_reduce", "custom_all_reduce_v2"


@dataclass
class Seen:
    """One call, as it was seen."""

    result: Any = None
    paths: list[Path] = field(default_factory=list)
    """In the order in which they were entered; one, where all is as it should be."""
    kernel: str = ""
    """What was chosen in Python; "" where it was not."""
    backend: str = ""
    """v1 or V2, of custom all-reduce."""

    @property
    def path(self) -> str:
        return " then ".join(dict.fromkeys(map(str, self.paths))) or "none"

    def __str__(self) -> str:
        inner = ", ".join(filter(None, (self.backend, self.kernel)))
        return f"{self.path} ({inner})" if inner else self.path


def watch(call: Callable[[], Any]) -> Seen:
    """Makes the call, and tells what it went through. Slow: never for a time."""
    seen, before = Seen(), sys.getprofile()

    def hook(frame: FrameType, event: str, _argument: Any) -> None:
        if event not in ("call", "return"):
            return
        code = frame.f_code  # no key of a dict: two that do the same on the same line are equal, whatever their files
        name = code.co_filename.rpartition("/")[2].removesuffix(".py"), code.co_name
        if event == "call":
            _entered(seen, name, frame)
        elif name[0] == _V2:
            _chosen(seen, frame)

    sys.setprofile(hook)
    try:
        seen.result = call()
    finally:
        sys.setprofile(before)
    return seen


def _entered(seen: Seen, name: tuple[str, str], frame: FrameType) -> None:
    path = _PATHS.get(name)
    if path is not None:
        seen.paths.append(path)
        if path is Path.CUSTOM:
            seen.backend = "V2" if name[0] == _V2 else "v1"
    elif name == ("_ops", "__call__"):
        op = getattr(frame.f_locals.get("self"), "_qualified_op_name", "")
        if op in _OPS:
            found, seen.kernel = _OPS[op]
            if found not in seen.paths:
                seen.paths.append(found)


def _chosen(seen: Seen, frame: FrameType) -> None:
    """V2 chooses in Python: the variable that holds its choice, whatever the release does around it."""
    local = frame.f_locals
    algo = local.get("algo_name", getattr(local.get("algo"), "name", None))
    if not isinstance(algo, str):
        return
    kernel = algo.lower().replace("1shot", "one_shot").replace("2shot", "two_shot")
    multicast = local.get("use_multicast") is True or getattr(local.get("mode"), "name", "") == "MULTICAST"
    seen.kernel = "two_shot_multicast" if multicast else kernel
