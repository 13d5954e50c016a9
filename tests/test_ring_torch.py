"""Wrapped calls with torch's tensors: what the record says of them by DLPack's exchange table, and by attributes where a torch has none.

Invariant: the layouts that the router's gates tell apart are told apart here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_probe import _core
from sglang_probe._record.ring import Ring

torch = pytest.importorskip("torch", reason="torch is not installed")
LAYOUT = {name: 1 << i for i, (name, _) in enumerate(_core.RING_LAYOUTS)}


class Group:
    unique_name = "tp:0"

    def all_reduce(self, tensor: Any) -> Any:
        return tensor


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_core.Recorder]:
    made = _core.Recorder(tmp_path / "a.ring", slots=64, graphs=1, kinds=64)
    monkeypatch.setattr(Group, "all_reduce", _core.Wrapper(Group.all_reduce, made, "all_reduce", 8, "in_place"))
    made.start()
    yield made
    assert made.counts()["failures"] == 0
    made.close()


def last(recorder: _core.Recorder) -> Any:
    with Ring.open(recorder.path) as ring:
        return ring.records().records[-1]


def words(layout: int) -> set[str]:
    return {name for name, bit in LAYOUT.items() if layout & bit}


@pytest.mark.parametrize(
    ("dtype", "name", "size"),
    [("bfloat16", "bf16", 2), ("float16", "fp16", 2), ("float32", "fp32", 4), ("float64", "fp64", 8)]
    + [("float8_e4m3fn", "fp8", 1), ("int8", "int8", 1), ("int32", "int32", 4), ("int64", "int64", 8), ("bool", None, 1)],
)
def test_bytes_rows_and_dtype_are_the_tensors(recorder: _core.Recorder, dtype: str, name: str | None, size: int) -> None:
    Group().all_reduce(torch.zeros(3, 7168, dtype=getattr(torch, dtype)))
    got = last(recorder)
    assert (got["nbytes"], got["rows"], got["layout"] >> 5) == (3 * 7168 * size, 3, 2)
    assert (None if got["dtype"] == 255 else _core.DTYPES[got["dtype"]][0]) == name


def test_layouts_that_gates_tell_apart_are_told_apart(recorder: _core.Recorder) -> None:
    base = torch.zeros(8, 6, 64, dtype=torch.bfloat16)
    cases = [
        (base, {"contiguous", "dense", "aligned"}, 3, 48),
        (base.permute(2, 0, 1), {"dense", "aligned"}, 3, 64 * 8),
        (base[:, ::2], {"aligned"}, 3, 24),
        (base.view(-1)[1:], {"contiguous", "dense"}, 1, 1),
        (torch.nn.Parameter(torch.zeros(4, 4)), {"contiguous", "dense", "aligned"}, 2, 4),
        (torch.zeros(()), {"contiguous", "dense", "aligned"}, 0, 0),
    ]
    for tensor, layout, dims, rows in cases:
        Group().all_reduce(tensor)
        got = last(recorder)
        assert (words(got["layout"]), got["layout"] >> 5, got["rows"]) == (layout, dims, rows), tensor.shape
        assert got["nbytes"] == tensor.numel() * tensor.element_size()
    Group().all_reduce(torch.zeros(0, 4))
    assert (last(recorder)["nbytes"], last(recorder)["rows"]) == (0, 0)


def test_a_torch_without_the_exchange_table_is_read_by_attributes(recorder: _core.Recorder) -> None:
    class Older:
        """A tensor of a torch that has no exchange table."""

        def __init__(self, tensor: Any) -> None:
            self.nbytes, self.dtype, self.shape = tensor.nbytes, tensor.dtype, tensor.shape
            self.is_contiguous, self.data_ptr = tensor.is_contiguous, tensor.data_ptr

    for tensor in (torch.zeros(3, 16, dtype=torch.bfloat16), torch.zeros(16, 3, dtype=torch.float8_e5m2).t()):
        Group().all_reduce(tensor)
        by_table = last(recorder)
        Group().all_reduce(Older(tensor))
        got = last(recorder)
        assert [got[f] for f in ("nbytes", "rows", "dtype")] == [by_table[f] for f in ("nbytes", "rows", "dtype")]
        assert words(got["layout"]) - {"elsewhere"} == words(by_table["layout"]) - (
            set() if tensor.is_contiguous() else {"dense"}
        )
        assert got["layout"] >> 5 == 2 and "elsewhere" in words(got["layout"])


def test_nothing_is_kept_of_a_tensor(recorder: _core.Recorder) -> None:
    import gc
    import weakref

    tensor = torch.zeros(3, 16)
    gone = weakref.ref(tensor)
    Group().all_reduce(tensor)
    del tensor
    gc.collect()
    assert gone() is None
