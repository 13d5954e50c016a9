"""What run.sh counts the hook's instructions of: `hook_calls_counted.py TABLE.so CASE CALLS` makes CALLS wrapped calls.

Counted is what runs inside of the wrapper (sp_hook_call); the original is one of Python's own that does next to nothing. Invariant: what
prepares the calls stands outside of a wrapper.
"""

from __future__ import annotations

import ctypes
import operator
import sys
import tempfile
from pathlib import Path

from sglang_probe import _core

NAME = b"dlpack_exchange_api"  # the capsule keeps the pointer


def exchange_table(library: str) -> object:
    """The library's table, as a producer of tensors shows it."""
    table = ctypes.c_char.in_dll(ctypes.CDLL(library), "sp_exchange_table")
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(ctypes.addressof(table), NAME, None)


class Tensor:
    pass


class Communicator:
    def __init__(self) -> None:
        self.disabled = True


class Group:
    unique_name = "tp:0"

    def __init__(self) -> None:
        self.unique_name = "tp:0"
        self.pynccl_comm, self.ca_comm = Communicator(), Communicator()


def main(library: str, case: str, calls: int) -> None:
    Tensor.__dlpack_c_exchange_api__ = exchange_table(library)  # type: ignore[attr-defined] # as torch's type has it
    group, tensor, flags = Group(), Tensor(), {"_in_piecewise_cuda_graph": False}
    with tempfile.TemporaryDirectory() as folder:
        recorder = _core.Recorder(Path(folder) / "counted.ring", release="0.5.9")
        call = _core.Wrapper(operator.is_, recorder, "all_reduce", 8, "in_place")
        if case != "stopped":
            recorder.start()
        flag = (4, flags, "_in_piecewise_cuda_graph", 0)
        switches = ((1 << 16, None, "ca_comm.disabled", 0), (1 << 17, None, "pynccl_comm.disabled", 0))
        if case in ("expected", "switches", "site"):
            recorder.set_sources((flag, *(switches if case == "switches" else ())))
            recorder.set_expect(lambda *key: (8, "one_shot"))
        if case == "site":
            recorder.site_every = 1
        for _ in range(calls):
            call(group, tensor)
        counts = recorder.counts()
        recorder.close()
    assert counts["head"] == (0 if case == "stopped" else calls) and not counts["failures"], counts


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
