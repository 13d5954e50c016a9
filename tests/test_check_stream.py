"""Traces as files: cut at any length, damaged, wrong JSON, larger than any memory, events in any order, and one of the real profiler."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from check_cases import FUSED, H200, LLAMA, recorded, run
from hypothesis import given
from hypothesis import strategies as st
from trace_files import NAMES, Recording, write_chrome

from sglang_probe._trace import stream
from sglang_probe._trace.check import check
from sglang_probe._trace.files import read_trace
from sglang_probe._trace.stream import Broken, Events, Source
from sglang_probe._trace.types import Seen
from sglang_probe._types import InputError

SMALL = ["v1", *["fused"] * 3, "v1"]


def refused(path: Path, **keywords: Any) -> str:
    with pytest.raises(InputError) as caught:
        check(path, **keywords)
    assert caught.value.field == "trace" and caught.value.value == str(path)
    return caught.value.remedy


def events_of(path: Path) -> list[Any]:
    with path.open("rb") as file:
        return list(Events(Source(file)))


# ------------------------------------------------------------------------------------------------------------------------ cut, damaged


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return recorded(SMALL, 2).chrome(tmp_path_factory.mktemp("whole") / "a.json").read_bytes()


def _lengths(size: int) -> Iterator[int]:
    """Every length near the ends, and some of all others."""
    chosen = {*range(1, 60), *range(size - 60, size - 1), *random.Random(5).sample(range(60, size - 60), 120)}
    return iter(sorted(chosen))


def test_a_trace_cut_anywhere_is_refused_with_where_it_breaks(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "cut.json"
    stripped = whole.rstrip()
    for length in _lengths(len(stripped)):
        path.write_bytes(stripped[:length])
        told = refused(path)
        assert "byte" in told or "is empty" in told, (length, told)
        assert "whole events stand before that" in told or length < 3


def test_a_gzip_cut_anywhere_is_refused(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "cut.json.gz"
    packed = gzip.compress(whole, mtime=0)
    for length in _lengths(len(packed)):
        path.write_bytes(packed[:length])
        assert "byte" in refused(path) or length == 1, length


def test_a_gzip_with_a_flipped_bit_is_refused(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "flip.json.gz"
    packed = gzip.compress(whole, mtime=0)
    for at in random.Random(6).sample(range(12, len(packed)), 60):
        path.write_bytes(packed[:at] + bytes([packed[at] ^ 4]) + packed[at + 1 :])
        assert "gzip" in (told := refused(path)) or "byte" in told, at


def test_what_is_whole_before_a_cut_can_be_asked_for_and_is_told_loudly(tmp_path: Path) -> None:
    path = recorded(FUSED, 4).chrome(tmp_path / "a.json")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 9 // 10])
    refused(path)
    found = run(path, partial=True)
    assert found.word is Seen.SEEN and found.warnings[0].startswith(f"DAMAGED: {path}: byte ")
    assert 0 < found.ranks[0].calls < 4 * 123
    assert str(found).startswith("! DAMAGED")
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(data)[:-2000])
    assert "gzip stream is cut off" in run(packed, partial=True).warnings[0]


def test_a_gzip_of_several_members_and_padding_is_whole(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(b"".join(gzip.compress(whole[i : i + 999]) for i in range(0, len(whole), 999)) + bytes(512))
    assert run(path).ranks[0].calls == 10


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "it is empty"),
        (b"   \n", "ends before anything"),
        (b"{}", "holds no traceEvents"),
        (b'{"traceEvents": 7}', "holds no traceEvents"),
        (b'{"a": 1', "ends within an object"),
        (b'{"a" 1}', "is no JSON object"),
        (b'{"traceEvents": [{"a": 1} {"b": 2}]}', "is no JSON array"),
        (b'{"traceEvents": [{"a": 1}, {"b": tru}]}', "is no JSON"),
        (b'{"traceEvents": []} and more', "something after its end"),
        (b'{"traceEvents": [' + b"[" * 100_000, "nested too deeply"),
        (b'{"traceEvents": [' + b"1" * 10_000 + b"]}", "is no JSON"),
        (b"not a trace", "neither JSON nor SQLite"),
        (b"PK\x03\x04....", "ZIP archive"),
        (b"\x28\xb5\x2f\xfd....", "zstd"),
        (b"\x0a\x8f\x01perfetto", "neither JSON nor SQLite"),
    ],
)
def test_what_is_no_trace_is_refused_by_name(tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    assert told in refused(path)


@pytest.mark.parametrize("name", ["a.nsys-rep", "a.qdrep", "a.ncu-rep"])
def test_a_report_is_told_what_to_give_instead(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"NVIDIA")
    assert "give" in refused(path)


def test_a_list_without_its_bracket_is_taken_and_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    text = json.dumps(recorded(SMALL, 2).events())
    for ending, noted in ((text, False), (text[:-1], True), (text[:-1] + ",\n", True)):
        path.write_text(ending)
        found = run(path)
        assert found.ranks[0].calls == 10
        assert any("closing bracket" in note for note in found.notes) is noted


def test_one_value_without_an_end_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "LONGEST", 1 << 16)
    monkeypatch.setattr(stream, "CHUNK", 1 << 12)
    path = tmp_path / "long.json"
    path.write_bytes(b'{"traceEvents": [{"name": "' + b"x" * (1 << 20) + b'"}]}')
    assert "one value of over" in refused(path)


def test_events_that_are_not_as_the_profiler_writes_them_are_counted(tmp_path: Path) -> None:
    events = recorded(SMALL, 2).events()
    broken: list[Any] = [
        7, None, [], {"cat": "kernel", "name": 3}, {"cat": "kernel", "name": NAMES["v1"], "args": 5},
        {"cat": "kernel", "name": NAMES["v1"], "ts": "soon"}, {"cat": "kernel", "name": NAMES["v1"], "ts": 1e300},
        {"cat": "kernel", "name": NAMES["v1"], "ts": 1, "dur": None}, {"cat": "user_annotation", "name": "step[DECODE bs=1]", "ts": {}},
    ]  # fmt: skip
    found = run(write_chrome(tmp_path / "a.json", [*broken, *events]))
    assert found.ranks[0].calls == 10
    assert f"{len(broken)} events are not as the profiler writes them, and were left out" in found.notes


def test_times_and_numbers_written_as_text_are_read(tmp_path: Path) -> None:
    events = recorded(SMALL, 2).events()
    for event in events:
        event["ts"] = str(event["ts"])
        if "correlation" in event.get("args", {}):
            event["args"]["correlation"] = str(event["args"]["correlation"])
    assert run(write_chrome(tmp_path / "a.json", events)).ranks[0].replayed == 10


def test_names_in_any_alphabet_and_with_control_characters_are_read(tmp_path: Path) -> None:
    recording = Recording()
    recording.forward(["v1"] * 3, graph=False, mark="step[DECODE bs=1] \u8bd5\u9a8c")
    path = write_chrome(tmp_path / "a.json", recording.events())
    path.write_bytes(path.read_bytes().replace(b"\\u8bd5\\u9a8c", "\u8bd5\u9a8c\x07".encode()))
    (mark,) = read_trace(path).tracks[0].marks
    assert mark.name == "step[DECODE bs=1] \u8bd5\u9a8c\x07"


# ----------------------------------------------------------------------------------------------------------------- order, windows, memory


@given(st.randoms(use_true_random=False))
def test_the_order_of_events_in_a_file_changes_nothing(tmp_path_factory: pytest.TempPathFactory, chance: random.Random) -> None:
    folder = tmp_path_factory.mktemp("order")
    recording = Recording()
    for batch in (1, 1, 2):
        recording.forward(SMALL, graph=True, mark=f"step[DECODE bs={batch}]").forward(["nccl"] * 4, graph=False)
    events = recording.events()
    first = run(write_chrome(folder / "a.json", events)).to_dict()
    chance.shuffle(events)
    second = run(write_chrome(folder / "a.json", events)).to_dict()
    assert first == second


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
                    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4), max_leaves=12),
       st.integers(1, 7), st.integers(0, 3))  # fmt: skip
def test_any_json_is_read_whatever_the_windows_edges(
    tmp_path_factory: pytest.TempPathFactory, value: Any, chunk: int, indent: int
) -> None:
    """Against the standard library's own reading of the whole."""
    path = tmp_path_factory.mktemp("json") / "x.json"
    events = [{"v": value}, value, {"w": [value, value]}]
    path.write_text(
        json.dumps({"before": value, "traceEvents": events, "behind": value}, indent=indent or None, ensure_ascii=True)
    )
    before, stream.CHUNK = stream.CHUNK, chunk
    try:
        assert events_of(path) == events
    finally:
        stream.CHUNK = before


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_fail_in_another_way_than_it_says(tmp_path_factory: pytest.TempPathFactory, tail: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "x.json"
    path.write_bytes(b'{"traceEvents": [{"a": 1},' + tail)
    try:
        events_of(path)
    except Broken as broken:
        assert broken.reason and broken.events >= 1


def test_memory_does_not_grow_with_the_length_of_a_trace(tmp_path: Path) -> None:
    """100,000 events of all kinds, 60 MB of JSON, with 2,000 all-reduces among them: a fraction of the file, whatever its length."""
    path = tmp_path / "big.json.gz"
    filler = {
        "ph": "X",
        "cat": "python_function",
        "name": "sglang/srt/models/deepseek_v2.py(2711): forward " + "x" * 500,
        "ts": 1.0,
        "dur": 2.0,
    }
    with gzip.open(path, "wt", compresslevel=1) as out:
        out.write('{"traceEvents": [\n')
        line, number = json.dumps(filler), 0
        for i in range(100_000):
            if i % 50 == 0:
                number += 1
                args = {"correlation": number, "device": 0}
                event = {"ph": "X", "cat": "kernel", "name": NAMES["nccl"], "pid": 0, "ts": float(i), "dur": 5.0, "args": args}
                out.write(json.dumps(event) + ",\n")
            else:
                out.write(line + ",\n")
        out.write('{"ph": "i", "name": "end", "ts": 1.0}]}')
    read_trace(path)  # what is loaded once is not counted
    tracemalloc.start()
    try:
        trace = read_trace(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert trace.events == 100_001 and len(trace.tracks[0].kernels) == 2000
    assert peak < 8 * stream.CHUNK


def test_what_newer_profilers_say_beside_of_each_kernel_changes_nothing(tmp_path: Path) -> None:
    """Since 2026 libkineto writes the graph's and the node's number, 0 where there is none, and the occupancy as an object in an object."""
    recording = Recording()
    recording.forward(["v1"] * 5, graph=True).forward(["nccl"] * 5, graph=False)
    replays = {number for name, _, number in recording.launches if name == "cudaGraphLaunch"}
    events = recording.events()
    before = read_trace(write_chrome(tmp_path / "before.json", events)).tracks[0].kernels
    for i, event in enumerate(event for event in events if event.get("cat") == "kernel"):
        number = i + 1 if event["args"]["correlation"] in replays else 0
        event["args"] |= {
            "blocks per SM": "inf", "warps per SM": 0.5, "est. achieved occupancy %": 3, "graph id": 7 if number else 0,
            "graph node id": number, "occupancy": {"limitingFactors": "WARPS|REGS", "blockLimitWarps": 4}, "priority": -5,
            "channel": 1, "channel_type": 2,
        }  # fmt: skip
    after = read_trace(write_chrome(tmp_path / "after.json", events)).tracks[0].kernels
    assert np.array_equal(before, after) and len(after) == 12
    assert (after["flags"] == 1).sum() == 6  # of the replay, with its gather


# ---------------------------------------------------------------------------------------------------------------------- the real profiler

_PROFILE = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, record_function
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
with profile(activities=[ProfilerActivity.CPU]) as profiler:
    for batch in (1, 2):
        with record_function(f"step[DECODE bs={batch}]"):
            torch.distributed.all_reduce(torch.ones(8, 8) @ torch.ones(8, 8))
profiler.export_chrome_trace(sys.argv[1])
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed here: its profiler cannot write a trace")
    path = tmp_path_factory.mktemp("real") / "real.json.gz"
    subprocess.run([sys.executable, "-c", _PROFILE, str(path)], check=True, capture_output=True, timeout=300)
    return path


def test_a_trace_of_torchs_own_profiler_is_read_and_is_of_the_cpu_alone(real: Path) -> None:
    found = run(real, launch=LLAMA, **H200)
    assert found.word is Seen.CANNOT_TELL and "of the CPU alone" in found.sentence
    assert len(events_of(real)) > 10


def test_ranges_and_kernels_in_a_file_that_torch_laid_out_are_read(real: Path, tmp_path: Path) -> None:
    """The real file, and in it the kernels that a GPU would have added."""
    recording = Recording()
    recording.forward(["v1"] * 65, graph=True).forward(["v1"] * 65, graph=True)
    text = gzip.decompress(real.read_bytes()).decode()
    head, marker, rest = text.partition('"traceEvents": [')
    assert marker
    path = tmp_path / "spliced.json"
    path.write_text(head + marker + ", ".join(json.dumps(event) for event in recording.events()) + "," + rest)
    trace = read_trace(path)
    assert [mark.name for mark in trace.tracks[0].marks] == ["step[DECODE bs=1]", "step[DECODE bs=2]"]
    assert (trace.tracks[0].rank, trace.tracks[0].told_by) == (0, "the trace's distributedInfo")
    assert run(path, launch=LLAMA, **H200).agrees
