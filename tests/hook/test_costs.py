"""From a wrapped call of v1, whose kernel nobody sees, to a figure that `step --costs` finds: rings of two ranks, by the Recorder itself.

Invariant: the group is made here and has no GPU; times are invented, and whose kernel a call ran is the router's own answer.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cost_files
import pytest

import sglang_probe as probe
from sglang_probe import _core
from sglang_probe._live import measured
from sglang_probe._live.recording import read_recording
from sglang_probe._measure.measurement import Measurement
from sglang_probe._record.folder import ring_name, started
from sglang_probe.hook.expected import Expected
from sglang_probe.hook.wrapping import PATHS

US = {14336: 7.0, 28672: 7.5}
LAUNCH = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 2"


class Bf16:
    def __str__(self) -> str:
        return "torch.bfloat16"


class Tensor:
    """As the wrapped calls read one that has no exchange table."""

    dtype = Bf16()

    def __init__(self, rows: int) -> None:
        self.shape, self.nbytes = (rows, 7168), rows * 14336

    def is_contiguous(self) -> bool:
        return True

    def data_ptr(self) -> int:
        return 4096


class CustomAllreduce:
    disabled, full_nvlink, max_size, tms_cudagraph = False, True, 8 << 20, False

    def custom_all_reduce(self, tensor: Any) -> Any:
        return tensor


class Coordinator:
    world_size, ranks, local_size, unique_name = 2, [0, 1], 0, "tp:0"
    device = SimpleNamespace(type="cuda", index=0)

    def __init__(self) -> None:
        self.ca_comm, self.pynccl_comm = CustomAllreduce(), SimpleNamespace(available=True, disabled=True)

    def _all_reduce_out_place(self, tensor: Any) -> Any:
        return self.ca_comm.custom_all_reduce(tensor)


def record(path: Path, rank: int) -> None:
    """A rank that makes some calls, each of them timed."""
    group, recorder = Coordinator(), _core.Recorder(str(path), slots=64, graphs=1, kinds=64, release="0.5.9")
    expected = Expected(probe.resolve("0.5.9"))
    inner = _core.Wrapper(CustomAllreduce.custom_all_reduce, recorder, path=PATHS[probe.Path.CUSTOM])
    group.ca_comm.custom_all_reduce = inner.__get__(group.ca_comm)  # type: ignore[method-assign] # as a patched class has it
    call = _core.Wrapper(Coordinator._all_reduce_out_place, recorder, "out_place", op="out_of_place")
    expected.add(group)
    recorder.set_rank(rank, 2)
    recorder.set_expect(expected)
    recorder.set_sources(tuple(expected.switches()))
    recorder.intern("note", "ranks of tp:0: 0, 1")

    def timer(token: Any, seq: int = 0) -> Any:
        if token is not None:
            recorder.timed(seq, int(1000 * (US[token[0]] + 0.5 * rank)))
        return (tensor.nbytes,)

    recorder.timer, recorder.timer_every, recorder.host_time = timer, 1, True
    recorder.start()
    for tensor in [Tensor(1), Tensor(2)] * 9:
        call(group, tensor)
    assert recorder.counts()["failures"] == 0 and not recorder.pending
    recorder.close()


@pytest.fixture
def rings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch = SimpleNamespace(version=SimpleNamespace(hip=None), cuda=SimpleNamespace(get_device_capability=lambda *_: (9, 0)))
    monkeypatch.setitem(sys.modules, "torch", torch)  # type: ignore[arg-type] # a Hopper GPU, for the facts
    folder = tmp_path / "rings"
    folder.mkdir(0o700)
    monkeypatch.setenv("SGLANG_PROBE_DIR", str(folder))
    for rank in range(2):
        record(folder / ring_name(os.getpid(), started(os.getpid()) + rank), rank)
    monkeypatch.undo()
    monkeypatch.setenv("SGLANG_PROBE_DIR", str(folder))
    monkeypatch.setattr(measured, "_provenance", lambda workers: cost_files.provenance())  # of two GPUs
    return folder


def test_a_timed_call_of_v1_is_a_figure_that_step_finds(rings: Path, tmp_path: Path) -> None:
    recording = read_recording(str(rings), dead=True)
    costs = recording.write(tmp_path / "live.jsonl", "measurement")
    cells = Measurement.read(costs).cells
    assert [(cell.path, cell.kernel, cell.nbytes) for cell in cells] == [
        ("custom", "one_shot", 14336),
        ("custom", "one_shot", 28672),
    ]
    assert all("nobody saw it" in cell.note for cell in cells)
    for tokens, nbytes in ((1, 14336), (2, 28672)):
        step = probe.step(LAUNCH, gpu="h200", sglang="0.5.9", context="eager", batch=tokens, costs=costs)
        calls = [call for call in step.to_dict()["calls"] if call["path"] == "custom" and call["bytes"] == nbytes]
        assert calls and {call["cost"]["device_us"]["us"] for call in calls} == {US[nbytes] + 0.5}
