"""Labels of graphs: what SGLang's runners hand to the method that captures one size.

Invariant: the runners are made here, as SGLang's are.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sglang_probe import _core
from sglang_probe._record.ring import Ring
from sglang_probe.hook.expected import Expected
from sglang_probe.hook.graphs import Captures
from sglang_probe.hook.patches import Patches
from sglang_probe.hook.telling import Findings
from sglang_probe.hook.wrapping import Wrapping

OLD, NEW = "sglang.srt.model_executor.cuda_graph_runner", "sglang.srt.model_executor.runner.decode_cuda_graph_runner"
PIECEWISE = "sglang.srt.model_executor.piecewise_cuda_graph_runner"


class Graph:
    def capture_begin(self) -> None: ...

    def capture_end(self) -> None: ...

    def replay(self) -> None: ...


def captured(times: int = 1) -> None:
    for _ in range(times):
        graph = Graph()
        graph.capture_begin()
        graph.capture_end()


class CudaGraphRunner:
    def __init__(self, mode: str = "DECODE") -> None:
        self.capture_forward_mode = SimpleNamespace(name=mode)

    def capture_one_batch_size(self, bs: int, forward: Any, stream_idx: int | None = None) -> int:
        captured()
        if forward is None:
            raise RuntimeError("out of memory")
        return bs


class PiecewiseCudaGraphRunner:
    def capture_one_batch_size(self, num_tokens: int) -> None:
        captured(3)


class DecodeCudaGraphRunner(CudaGraphRunner):
    def capture_one_shape(self, size: int, forward: Any, stream_idx: int | None = None, variant_label: str | None = None) -> int:
        return self.capture_one_batch_size(size, forward)


class UnoDecodeCudaGraphRunner(DecodeCudaGraphRunner):
    def capture_one_shape(self, size: int, *args: Any, **kwargs: Any) -> int:
        return super().capture_one_shape(size, *args, **kwargs)


class Hooked:
    def __init__(self, folder: Path, release: str | None) -> None:
        self.recorder = _core.Recorder(str(folder / "1.1.ring"), slots=64, graphs=32, kinds=64)
        self.patches, self.findings = Patches(), Findings()
        wrapping = Wrapping(self.recorder, release, self.patches, self.findings)
        Captures(self.recorder, Expected(None), self.patches, self.findings).follow(type("Coordinator", (), {}), wrapping)

    def labels(self) -> list[str]:
        with Ring(self.recorder.path) as ring:
            tables = ring.tables()
        return [tables.names["graph"].get(int(one["label"]), "") for one in tables.graphs]


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(CUDAGraph=Graph)))  # type: ignore[arg-type]
    for name, kind in ((OLD, CudaGraphRunner), (PIECEWISE, PiecewiseCudaGraphRunner), (NEW, DecodeCudaGraphRunner)):
        module = ModuleType(name)
        vars(module)[kind.__name__] = kind
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture
def made(tmp_path: Path, runners: None, request: pytest.FixtureRequest) -> Iterator[Hooked]:
    hooked = Hooked(tmp_path, getattr(request, "param", "0.5.9"))
    yield hooked
    hooked.patches.undo()
    assert [finding.text for finding in hooked.findings.all()] == []
    hooked.recorder.close()


def test_a_graph_carries_the_size_that_its_runner_was_handed(made: Hooked) -> None:
    decode, verify = CudaGraphRunner(), CudaGraphRunner("TARGET_VERIFY")
    assert decode.capture_one_batch_size(8, len) == 8 and verify.capture_one_batch_size(bs=4, forward=len) == 4
    PiecewiseCudaGraphRunner().capture_one_batch_size(512)
    captured()
    assert made.labels() == ["decode bs 8", "verify bs 4", *["piecewise tokens 512"] * 3, ""]
    assert list(inspect.signature(CudaGraphRunner.capture_one_batch_size).parameters) == ["self", "bs", "forward", "stream_idx"]


def test_a_capture_that_fails_leaves_no_label_behind(made: Hooked) -> None:
    with pytest.raises(RuntimeError, match="out of memory"):
        CudaGraphRunner().capture_one_batch_size(16, None)
    captured()
    assert made.labels() == ["decode bs 16", ""]


def test_a_recorder_that_is_gone_is_no_reason_not_to_capture(made: Hooked) -> None:
    made.recorder.close()
    assert CudaGraphRunner().capture_one_batch_size(8, len) == 8
    assert CudaGraphRunner.capture_one_batch_size(None, 8, len) == 8  # type: ignore[arg-type] # of no runner at all


@pytest.mark.parametrize("made", ["0.5.23"], indirect=True)
def test_later_runners_share_one_method_and_its_variants_have_names(made: Hooked) -> None:
    UnoDecodeCudaGraphRunner("TARGET_VERIFY").capture_one_shape(8, len, variant_label="lora")
    CudaGraphRunner().capture_one_batch_size(8, len)  # which that release does not have
    assert made.labels() == ["verify bs 8 lora", ""]


@pytest.mark.parametrize("made", [None], indirect=True)
def test_of_a_release_that_is_not_known_whatever_is_there_is_asked(made: Hooked) -> None:
    CudaGraphRunner().capture_one_batch_size(8, len)
    assert made.labels() == ["decode bs 8"]


def test_everything_is_given_back(tmp_path: Path, runners: None) -> None:
    before = dict(vars(CudaGraphRunner))
    hooked = Hooked(tmp_path, "0.5.9")
    assert vars(CudaGraphRunner)["capture_one_batch_size"] is not before["capture_one_batch_size"]
    hooked.patches.undo()
    hooked.recorder.close()
    assert dict(vars(CudaGraphRunner)) == before
