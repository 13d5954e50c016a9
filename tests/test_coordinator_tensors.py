"""What a Coordinator takes as a tensor, and what it says of everything else: NumPy arrays, torch's, anything with __dlpack__.

On CPU ranks alone: two of them, and one in this process. Invariant: whatever is refused names the field, and the next call works.
"""

# ruff: noqa: F401, F811 -- fixtures are imported, and then asked for by name

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import run_ranks
from run_cases import cases_of
from run_fixtures import Groups, device, group_of, judge_all, package, ranks_max

from sglang_probe import Coordinator, Group, InputError, ProbeError, ProbeUnavailable, _core

OLD, NEW = "0.5.9", "0.5.23"


@contextmanager
def _alone(sglang: str = OLD) -> Iterator[Coordinator]:
    """A Coordinator in this process: a group of one rank."""
    board = _core.board_create(1, 1 << 22)
    c = Coordinator(board=board, rank=0, world_size=1, sglang=sglang, max_bytes=1 << 16)
    try:
        yield c
    finally:
        c.close()
        os.close(board)


# --------------------------------------------------------------------------------------------------------------------- one rank, closed


def test_a_group_of_one_rank_gives_the_input_back_untouched() -> None:
    with _alone() as c:
        x = np.arange(8, dtype=np.float32)
        reduced = c.all_reduce(x)
        assert (reduced.path, reduced.rule, reduced.reduces, reduced.returns_new) == ("none", "world_of_one", False, False)
        assert reduced.tensor is x and np.array_equal(x, np.arange(8)) and reduced.decision == c.decide(x)


def test_a_closed_coordinator_says_so_whatever_is_asked_of_it() -> None:
    with _alone() as c:
        x = np.ones(8, np.float32)
        c.begin_graph()
        graph = c.end_graph()
        c.close()
        c.close()
        assert c.device == "closed"
        calls: list[Callable[[], object]] = [
            lambda: c.all_reduce(x),
            lambda: c.decide(x),
            c.wait,
            c.barrier,
            c.begin_graph,
            graph.replay,
            lambda: c.buffer(16),
            c.enter_capture,
        ]
        for call in calls:
            with pytest.raises(ProbeError, match="closed"):
                call()
        with pytest.raises(ProbeError, match="closed"), c.graph_capture():
            pass


_AFTER_CLOSE = """
import gc, sys
sys.path.insert(0, sys.argv[1])
from sglang_probe import Coordinator, _core
c = Coordinator(board=_core.board_create(1, 1 << 22), rank=0, world_size=1, max_bytes=1 << 16)
x = c.empty(8, "fp32")
x[:] = 3
c.close()
del c
gc.collect()
print(float(x.sum()))
"""


def test_an_array_of_a_closed_coordinator_can_still_be_read() -> None:
    root = str(Path(_core.__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", _AFTER_CLOSE, root], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "24.0\n"), f"status {done.returncode}: {done.stderr[-2000:]}"


def test_a_coordinator_that_cannot_be_made_says_why() -> None:
    with pytest.raises(InputError, match="rank=2"):
        Coordinator(board=0, rank=2, world_size=2)
    with pytest.raises(InputError, match="device='tpu'"):
        Coordinator(board=0, rank=0, world_size=2, device="tpu")
    with pytest.raises(InputError, match="timeout_s=0"):
        Coordinator(board=0, rank=0, world_size=2, timeout_s=0)
    with pytest.raises(InputError, match="group=4"):
        Coordinator(Group.make(world_size=4), board=0, rank=0, world_size=2)
    with pytest.raises(InputError, match="nccl"):
        Coordinator(board=0, rank=0, world_size=2, nccl="libnccl.so.2")
    with open("/dev/null", "rb") as not_a_board, pytest.raises(ValueError, match="no board"):
        Coordinator(board=not_a_board.fileno(), rank=0, world_size=2)


# ------------------------------------------------------------------------------------------------------------------------------ tensors


class Bare:
    """Nothing but __dlpack__ and __dlpack_device__, of an array that it holds."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.array.__dlpack_device__()
        return device


class _OnGpu:
    """A DLPack capsule of the old kind that says it is on GPU 3."""

    class Tensor(ctypes.Structure):
        _fields_ = [
            ("data", ctypes.c_void_p),
            ("device", ctypes.c_int32 * 2),
            ("ndim", ctypes.c_int32),
            ("dtype", ctypes.c_uint32),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.c_void_p),
            ("byte_offset", ctypes.c_uint64),
            ("context", ctypes.c_void_p),
            ("deleter", ctypes.c_void_p),
        ]

    def __init__(self) -> None:
        self.shape = (ctypes.c_int64 * 1)(4)
        fp32 = 2 | 32 << 8 | 1 << 16
        self.tensor = self.Tensor(64, (2, 3), 1, fp32, self.shape, None, 0, None, None)

    def __dlpack__(self, **kwargs: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


def _refusals() -> dict[str, tuple[Any, type[Exception], str]]:
    read_only = np.ones(8, np.float32)
    read_only.flags.writeable = False
    swapped = np.ones(8, np.dtype(np.float32).newbyteorder())
    return {
        "read-only": (read_only, ValueError, "tensor.*read-only"),
        "a read-only array's capsule": (Bare(read_only), (BufferError, ValueError), "read-?only"),
        "gaps": (np.ones((8, 8), np.float32)[:, ::2], ValueError, "tensor.*one piece"),
        "broadcast": (np.broadcast_to(np.ones(1, np.float32), (8,)).copy()[::-1], ValueError, "tensor"),
        "no element": (np.ones((0, 8), np.float32), ValueError, "tensor.*element"),
        "byte order": (swapped, ValueError, "tensor.*byte order"),
        "complex": (np.ones(8, np.complex64), ValueError, "tensor.*dtype complex64"),
        "bool": (np.ones(8, np.bool_), ValueError, "tensor.*dtype bool"),
        "objects": (np.array([{}, {}]), ValueError, "tensor.*dtype object"),
        "no tensor": ([1.0, 2.0], TypeError, "tensor.*list"),
        "None": (None, TypeError, "tensor.*NoneType"),
        "on a GPU": (_OnGpu(), ValueError, "tensor.*DLPack device 2.*CPU ranks"),
    }


@pytest.mark.parametrize("what", list(_refusals()))
def test_what_is_no_tensor_for_this_device_is_refused_by_name_and_the_next_call_works(what: str) -> None:
    tensor, kind, text = _refusals()[what]
    with _alone() as c:
        for _ in range(2):
            with pytest.raises(kind, match=text):
                c.all_reduce(tensor)
        x = np.ones(8, np.float32)
        assert c.all_reduce(x).tensor is x and c.seq == 0


def _fp8(c: Coordinator) -> tuple[str, str, str]:
    import ml_dtypes

    tensor = np.ones(64, ml_dtypes.float8_e4m3fn)
    with run_ranks.as_before(c):
        c.sglang = OLD
        with pytest.raises(RuntimeError) as of_custom:  # SGLang's kernels know three types
            c.all_reduce(tensor)
        with c.change_state(enable=True):
            c.custom.disabled = True
            with pytest.raises(ValueError, match="SGLang") as of_nccl:
                c.all_reduce(tensor)
        with pytest.raises(ProbeUnavailable) as of_torch:
            c.custom.disabled = True
            c.all_reduce(tensor)
        c.custom.disabled = False
        mine = run_ranks.Rank(c, "numpy")
        assert mine.is_sum(c.all_reduce(mine.fill()).tensor)
    return str(of_custom.value), str(of_nccl.value), str(of_torch.value)


def test_fp8_raises_as_in_sglang_or_is_said_to_be_unavailable(group_of: Groups) -> None:
    pytest.importorskip("ml_dtypes", reason="NumPy has no fp8 of its own")
    for of_custom, of_nccl, of_torch in group_of(2).run(_fp8):
        assert "RuntimeError" in of_custom and "ValueError" in of_nccl
        assert "torch_distributed" in of_torch and "fp8" in of_torch


def _shapes(c: Coordinator, package: str) -> list[str]:
    """In place and out of place: no dimension, one, three, and dense ones in any order of their strides."""
    tensors = run_ranks.tensors_of(c, package)
    wrong = []
    with run_ranks.as_before(c):
        for release, off in ((OLD, False), (OLD, True)):
            c.sglang, c.custom.disabled = release, off
            for shape in ((), (1,), (24,), (2, 3, 4), (4, 6)):
                for layout in ("plain", "dense") if len(shape) == 2 else ("plain",):
                    tensor = tensors.make(shape, "fp32", layout)  # type: ignore[arg-type] # of the tuple above
                    count = int(np.prod(shape))
                    tensors.write(tensor, run_ranks.stored(run_ranks.numbers(1, c.rank), "fp32", count))
                    decision, reduced = c.decide(tensor), c.all_reduce(tensor)
                    wanted = run_ranks.stored(run_ranks.total(1, c.world_size), "fp32", count)
                    good = np.array_equal(tensors.read(reduced.tensor), wanted) and tuple(reduced.tensor.shape) == shape
                    if not good or reduced.path != decision.path or (reduced.tensor is tensor) != (decision.returns == "input"):
                        wrong.append(f"{release}, {shape}, {layout}: {reduced!r} gave {reduced.tensor}")
    return wrong


@pytest.mark.parametrize("of", ["numpy", "torch"])
def test_tensors_of_any_shape_and_dense_layout_are_summed(of: str, group_of: Groups) -> None:
    if of == "torch":
        pytest.importorskip("torch", reason="torch is not installed: its tensors cannot be made")
    assert group_of(2).run(_shapes, of) == [[], []]


@pytest.mark.parametrize("sglang", [OLD, NEW])
def test_torch_tensors_on_the_cpu_are_taken_as_numpys(sglang: str, group_of: Groups) -> None:
    pytest.importorskip("torch", reason="torch is not installed: its tensors cannot be made")
    cases = cases_of(sglang, 2)
    assert judge_all(cases, group_of(2).run(run_ranks.run_all, cases, "torch", timeout_s=60), Counter()) == []


def _bits(c: Coordinator, with_ml_dtypes: bool) -> tuple[list[float], str, str]:
    """bf16 as ml_dtypes has it, and as its bits."""
    dtype: Any = np.uint16
    if with_ml_dtypes:
        import ml_dtypes

        dtype = ml_dtypes.bfloat16
    values = np.array([1.5, -2.0, 100.0, 0.25, 3.0, 5.0, 7.0, 9.0], np.float32) * (c.rank + 1)
    tensor = (values.view(np.uint32) >> 16).astype(np.uint16).view(dtype)
    reduced = c.all_reduce(tensor)
    kept = reduced.tensor.view(np.uint16)
    values = (kept.astype(np.uint32) << 16).view(np.float32)
    return values.tolist(), str(reduced.tensor.dtype), str(c.empty(4, "bf16").dtype)


@pytest.mark.parametrize("with_ml_dtypes", [False, True])
def test_bf16_comes_as_ml_dtypes_has_it_or_as_its_bits(with_ml_dtypes: bool, group_of: Groups) -> None:
    if with_ml_dtypes:
        pytest.importorskip("ml_dtypes", reason="NumPy has no bf16 of its own")
    for values, dtype, of_empty in group_of(2).run(_bits, with_ml_dtypes):
        assert values == [4.5, -6.0, 300.0, 0.75, 9.0, 15.0, 21.0, 27.0]
        assert dtype == ("bfloat16" if with_ml_dtypes else "uint16") and of_empty in ("bfloat16", "uint16")


def _bare(c: Coordinator) -> str:
    tensor = np.arange(8, dtype=np.float32) + c.rank
    with run_ranks.as_before(c):
        c.sglang, c.custom.disabled = OLD, True
        bare = Bare(tensor)
        reduced = c.all_reduce(bare)  # in place: torch.distributed
        assert reduced.tensor is bare and np.array_equal(tensor, 2 * np.arange(8) + 1)
        c.custom.disabled = False
        with pytest.raises((TypeError, AttributeError)) as refused:  # a new one: nobody knows how to make it
            c.all_reduce(bare)
        mine = run_ranks.Rank(c, "numpy")
        assert mine.is_sum(c.all_reduce(mine.fill()).tensor)
    return f"{type(refused.value).__name__}: {refused.value}"


def test_anything_with_dlpack_is_reduced_in_place_and_a_new_tensor_of_it_is_refused(group_of: Groups) -> None:
    for text in group_of(2).run(_bare):
        assert text.startswith("TypeError: tensor") and "Bare" in text and "empty_like" in text


def test_memory_of_the_device_is_a_buffer_and_a_tensor_while_its_coordinator_is_open() -> None:
    with _alone() as c:
        buffer = c.buffer(64)
        view = np.frombuffer(memoryview(buffer), np.float32)
        view[:] = 3
        assert len(buffer) == 64 and np.from_dlpack(buffer).view(np.float32)[15] == 3 and buffer.address % 64 == 0
        assert buffer.__dlpack_device__() == (1, 0)
        with pytest.raises(ValueError, match="nbytes=0"):
            c.buffer(0)
        with pytest.raises(ProbeUnavailable, match="window"):
            c.empty(4, "fp32", window=True)
        with pytest.raises(MemoryError):
            c.buffer(1 << 40)
        assert c.all_reduce(view).tensor is view
        other = c.buffer(64)
    with pytest.raises(ValueError, match="closed"):
        memoryview(other)
    with pytest.raises(ValueError, match="closed"):
        other.__dlpack__()
