"""Exports of a recording, each read back by its own library: JSON, NumPy, Chrome trace events, Prometheus, Measurement files."""

from __future__ import annotations

import gzip
import json
import os
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cost_files
import jsonschema
import numpy as np
import pytest
from live_rings import Live, live_workers, ring_folder, server  # noqa: F401 # two fixtures
from prometheus_client.parser import text_string_to_metric_families
from ring_writer import RingWriter

import sglang_probe as probe
from sglang_probe import InputError, Measurement, ProbeError
from sglang_probe._live import files
from sglang_probe._live import measured as recorded
from sglang_probe._live.prometheus import serve
from sglang_probe._live.recording import Recording, read_recording
from sglang_probe._live.top import Watch

FORMATS = ("json", "npz", "perfetto", "prometheus", "measurement")
SITE = "models/deepseek_v2.py:512 forward"
_TIME = {"type": "number"}


def _event(kind: str, required: tuple[str, ...], **fields: Any) -> dict[str, Any]:
    return {"properties": {"ph": {"const": kind}, **fields}, "required": list(required)}


# What chrome://tracing and Perfetto need of each kind of event: the Chrome trace event format.
EVENTS: dict[str, Any] = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["ph", "name", "pid"],
                "properties": {
                    "name": {"type": "string", "minLength": 1},
                    "pid": {"type": "integer"},
                    "tid": {"type": "integer", "minimum": 0, "maximum": (1 << 32) - 1},
                    "args": {"type": "object"},
                },
                "oneOf": [
                    _event("X", ("ts", "dur", "tid"), ts=_TIME, dur={"type": "number", "minimum": 0}),
                    _event("i", ("ts", "s", "tid"), ts=_TIME, s={"enum": ["t", "p", "g"]}),
                    _event("C", ("ts", "args"), ts=_TIME, args={"additionalProperties": {"type": "number"}}),
                    _event("M", ("args",), name={"pattern": "^(process|thread)_(name|sort_index)$"}),
                ],
            },
        },
    },
}


def fill(ring: RingWriter, rank: int) -> None:
    """Eager calls, some timed; a captured graph with its replays; one alarm on rank 1."""
    ring.now += rank * 3_000
    for i in range(20):
        ring.put(
            1,
            nbytes=1024,
            path="pynccl_in_place",
            host_ns=20_000 + 100 * i,
            device_ns=9_000 + rank * 500 if i % 4 == 0 else 0,
            site=SITE,
        )
        ring.put(1, nbytes=65536, path="pynccl_in_place", host_ns=21_000, device_ns=12_000 if i % 4 == 0 else 0)
    graph = ring.graph("bs 4", replays=50, registered=12)
    ring.put(12, phase="captured", graph=graph, kernel="one_shot_push")
    ring.put(1, path="quick" if rank == 1 else "custom", expected="custom")


@pytest.fixture
def recording(folder: Path) -> Recording:
    server(folder, 2, fill, slots=128, now=time.monotonic_ns())  # both begin at once, however busy the machine is
    return read_recording()


def written(recording: Recording, tmp_path: Path, format: str, **more: Any) -> Path:
    return Path(recording.write(tmp_path / f"out.{format}", format, **more))


# --------------------------------------------------------------------------------------------------------------------------- JSON


def test_json_has_every_record_with_its_names(recording: Recording, tmp_path: Path) -> None:
    plain = json.loads(written(recording, tmp_path, "json").read_text())
    records = plain["records"]
    assert len(records) == 2 * 53
    first = records[0]
    assert (first["rank"], first["seq"], first["group"], first["call"]) == (0, 1, "tp:0", 1)
    assert (first["path"], first["dtype"], first["bytes"], first["phase"], first["site"]) == (
        "pynccl_in_place",
        "bf16",
        1024,
        "eager",
        SITE,
    )
    assert (first["host_us"], first["device_us"]) == (20.0, 9.0) and records[2]["device_us"] is None
    assert [record["flags"] for record in records if record["path"] == "quick"] == [["alarm"]]
    assert plain["agreement"]["agrees"] is False


def test_the_newest_records_alone_are_the_newest_of_each_process(recording: Recording, tmp_path: Path) -> None:
    records = json.loads(written(recording, tmp_path, "json", last=2).read_text())["records"]
    assert [(record["rank"], record["seq"]) for record in records] == [(0, 52), (0, 53), (1, 52), (1, 53)]
    with np.load(written(recording, tmp_path, "npz", last=2)) as arrays:
        assert arrays["records"]["seq"].tolist() == [52, 53, 52, 53]
    with pytest.raises(InputError, match="give a number of records"):
        written(recording, tmp_path, "json", last=-1)


# -------------------------------------------------------------------------------------------------------------------------- NumPy


def test_numpy_reads_arrays_whose_names_are_the_same_for_all_processes(folder: Path, tmp_path: Path) -> None:
    def swapped(ring: RingWriter, rank: int) -> None:
        for group in ("moe:0", "tp:0") if rank else ("tp:0", "moe:0"):  # each process numbers names as it meets them
            ring.put(2, group=group, site=f"{group}.py:1 f")
        ring.put(1, phase="captured", graph=ring.graph("bs 4", replays=3))

    server(folder, 2, swapped)
    path = read_recording().write(tmp_path / "r.npz", "npz")
    with np.load(path, allow_pickle=False) as arrays:
        records, groups, sites = arrays["records"], arrays["names_group"], arrays["names_site"]
        assert groups[0] == "" and sites[0] == ""
        by_rank = {rank: groups[records["group"][records["rank"] == rank]].tolist() for rank in (0, 1)}
        assert by_rank == {0: ["tp:0"] * 2 + ["moe:0"] * 2 + ["tp:0"], 1: ["moe:0"] * 2 + ["tp:0"] * 2 + ["tp:0"]}
        named = records["site"] > 0
        assert all(
            sites[site].startswith(groups[group])
            for site, group in zip(records["site"][named], records["group"][named], strict=True)
        )
        assert arrays["paths"][records["path"]].tolist() == ["custom"] * 10
        assert (
            arrays["graphs"]["replays"].tolist() == [3, 3]
            and arrays["names_graph"][arrays["graphs"]["name"]].tolist() == ["bs 4"] * 2
        )
        assert arrays["kinds"]["calls"].sum() == 10
        assert arrays["workers"]["rank"].tolist() == [0, 1] and arrays["workers"]["alive"].all()


# ---------------------------------------------------------------------------------------------------------------------- Perfetto


def events(path: Path) -> list[dict[str, Any]]:
    trace = json.loads(path.read_text())
    jsonschema.validate(trace, EVENTS)
    found: list[dict[str, Any]] = trace["traceEvents"]
    return found


def test_a_trace_holds_to_the_chrome_trace_event_format(recording: Recording, tmp_path: Path) -> None:
    events(written(recording, tmp_path, "perfetto"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1}]}, EVENTS)


def test_timed_calls_have_their_length_and_all_others_none(recording: Recording, tmp_path: Path) -> None:
    found = events(written(recording, tmp_path, "perfetto"))
    calls = [event for event in found if event.get("cat") in ("eager", "captured")]
    host = [event for event in calls if event["ph"] == "X" and event["tid"] == 77]
    assert len(host) == 80 and host[0]["dur"] == 20.0
    on_device = [event for event in calls if event["ph"] == "X" and event["tid"] != 77]
    assert len(on_device) == 20 and {event["dur"] for event in on_device} == {9.0, 9.5, 12.0}
    instants = [event for event in calls if event["ph"] == "i"]
    assert sorted(event["cat"] for event in instants) == ["captured"] * 24 + ["eager"] * 2
    assert host[0]["args"]["site"] == SITE and min(event["ts"] for event in calls) == 0.0


def test_captured_calls_stand_on_their_graphs_track_and_replays_apart(recording: Recording, tmp_path: Path) -> None:
    found = events(written(recording, tmp_path, "perfetto"))
    tracks = {(event["pid"], event["tid"]): event["args"]["name"] for event in found if event["name"] == "thread_name"}
    captured = [event for event in found if event.get("cat") == "captured"]
    assert {tracks[event["pid"], event["tid"]] for event in captured} == {"graph 1 bs 4, as captured"}
    assert {tracks[event["pid"], event["tid"]] for event in found if event.get("cat") == "eager"} == {
        "thread 77",
        "on the device (sampled; drawn from the host's call on, or from the end of the one before)",
    }
    (capture,) = {event["name"] for event in found if event.get("cat") == "graph" and event["ph"] == "X"}
    assert capture == "capture of bs 4"
    replays = [event for event in found if event["ph"] == "C"]
    assert [event["args"] for event in replays] == [{"replays": 50}] * 2
    assert all(event["ts"] >= max(one["ts"] for one in captured if one["pid"] == event["pid"]) for event in replays)


def overlapping(found: list[dict[str, Any]]) -> list[str]:
    """Slices that begin in another one of their track and end behind it: Perfetto shows none of them."""
    tracks: dict[tuple[int, int], list[tuple[float, float, str]]] = {}
    for event in found:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"], event["name"]))
    wrong = []
    for slices in tracks.values():
        open_ends: list[float] = []
        for start, end, name in sorted(slices, key=lambda one: (one[0], -one[1])):
            while open_ends and open_ends[-1] <= start + 1e-4:
                open_ends.pop()
            wrong += [name] if open_ends and end > open_ends[-1] + 1e-4 else []
            open_ends.append(end)
    return wrong


def test_no_slice_of_a_track_overlaps_another_since_perfetto_would_drop_it(folder: Path, tmp_path: Path) -> None:
    def busy(ring: RingWriter, rank: int) -> None:
        for _ in range(30):  # the host is far ahead of the device
            ring.put(1, path="custom", host_ns=4_000, device_ns=90_000 + rank)

    server(folder, 1, busy)
    found = events(written(read_recording(), tmp_path, "perfetto"))
    on_device = [event for event in found if event["ph"] == "X" and event["tid"] != 77]
    assert len(on_device) == 30 and {event["dur"] for event in on_device} == {90.0}
    assert not overlapping(found)
    assert not overlapping(events(written(probe.read_recording(example=True), tmp_path, "perfetto", replace=True)))
    early = [event | {"ts": event["ts"] - 1} if event is on_device[1] else event for event in found]
    assert overlapping(early) == ["custom"], "the check sees what Perfetto would drop"


def test_ranks_share_one_time_axis(recording: Recording, tmp_path: Path) -> None:
    starts: dict[str, float] = {}
    found = events(written(recording, tmp_path, "perfetto"))
    for event in found:
        if event.get("cat") == "eager" and event["args"]["call"] == 1:
            starts.setdefault(str(event["args"]["seq"]) + str(len(starts)), event["ts"])
    gaps = sorted(starts.values())
    expected = [int(worker.recent["time_ns"][0]) for worker in recording.workers]
    assert gaps[-1] - gaps[0] == pytest.approx((max(expected) - min(expected)) / 1e3, abs=0.01)


def test_a_trace_of_a_name_that_ends_in_gz_is_packed(recording: Recording, tmp_path: Path) -> None:
    path = recording.write(tmp_path / "trace.json.gz", "perfetto")
    jsonschema.validate(json.loads(gzip.decompress(Path(path).read_bytes())), EVENTS)


# -------------------------------------------------------------------------------------------------------------------- Prometheus


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """By name and labels; each once."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation and family.name.startswith("sglang_probe_")
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, "a series twice"
            found[key] = sample.value
    return found


def total(found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, **labels: str) -> float:
    values = [value for (one, of), value in found.items() if one == name and labels.items() <= dict(of).items()]
    assert values, name
    return sum(values)


def test_prometheus_reads_the_counters(recording: Recording, tmp_path: Path) -> None:
    found = samples(written(recording, tmp_path, "prometheus").read_text())
    assert total(found, "sglang_probe_calls_total", rank="0") == 53
    assert total(found, "sglang_probe_calls_total", rank="0", path="custom", phase="captured", group="tp:0") == 12
    assert total(found, "sglang_probe_executed_calls_total", path="custom", phase="captured") == 2 * 600
    assert total(found, "sglang_probe_calls_total", path="quick", expected="custom") == 1
    assert total(found, "sglang_probe_alarms_total", rank="1") == 1 and total(found, "sglang_probe_alarms_total", rank="0") == 0
    assert total(found, "sglang_probe_graph_replays_total", label="bs 4") == 100
    assert total(found, "sglang_probe_device_seconds_total", rank="0") == pytest.approx(5 * 9e-6 + 5 * 12e-6)
    assert total(found, "sglang_probe_device_timed_calls_total", rank="0") == 10
    assert total(found, "sglang_probe_worker_up") == total(found, "sglang_probe_recording") == 2
    assert total(found, "sglang_probe_ranks_agree", group="tp:0") == 0


def test_kinds_that_differ_in_no_label_are_one_series(folder: Path) -> None:
    ring = RingWriter(folder)
    for flags in ((), ("many",), ("direct",), ("no_tensor",)):
        ring.put(2, flags=flags)
    ring.put(3, flags=("dry",))
    ring.write()
    found = samples(b"".join(read_recording().export("prometheus")).decode())
    assert (
        total(found, "sglang_probe_calls_total", result="done") == 8
        and total(found, "sglang_probe_calls_total", result="dry") == 3
    )


def test_label_values_of_a_hostile_ring_are_escaped(folder: Path) -> None:
    ring = RingWriter(folder)
    ring.put(1, group='tp"} 1\nevil 2\\')
    ring.write()
    found = samples(b"".join(read_recording().export("prometheus")).decode())
    assert total(found, "sglang_probe_calls_total", group='tp"} 1\nevil 2\\') == 1


def test_each_scrape_looks_anew(live: Callable[..., Live]) -> None:
    worker = live(0, 1)
    with Watch() as watch:
        end = serve(watch.look, port := free_port())
        try:
            for calls in (5, 12):
                worker.call(calls)
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                    found = samples(answer.read().decode())
                assert total(found, "sglang_probe_calls_total", rank="0") == (5 if calls == 5 else 17)
        finally:
            end()


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_without_prometheus_client_it_says_what_to_install(recording: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == "prometheus_client"]:
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type] # as if it were not installed
    with pytest.raises(probe.ProbeUnavailable, match="pip install prometheus_client"):
        recording.export("prometheus")


# -------------------------------------------------------------------------------------------------------------------- Measurement


def test_a_measurement_has_the_times_of_eager_calls_by_rank_and_size(recording: Recording, tmp_path: Path) -> None:
    found = Measurement.read(written(recording, tmp_path, "measurement"))
    assert [(cell.path, cell.nbytes, cell.phase, cell.world_size) for cell in found.cells] == [
        ("pynccl_in_place", 1024, "eager", 2),
        ("pynccl_in_place", 65536, "eager", 2),
    ]
    cell = found.cells[0]
    assert cell.host_us[0].tolist() == pytest.approx([20 + 0.1 * i for i in range(20)])
    assert [rank.tolist() for rank in cell.device_us] == [[9.0] * 5, [9.5] * 5]
    assert (cell.driver, cell.pattern, cell.release, cell.checked) == ("engine", "interleaved", "0.5.9", 0)
    assert cell.compute_us > 0 and "waiting for the last rank" in cell.note
    assert found.plan["what"] == "times of eager all-reduces, recorded in a server at work" and not found.partial


def test_verdict_compares_two_recordings(folder: Path, tmp_path: Path, recording: Recording) -> None:
    path = written(recording, tmp_path, "measurement")
    found = probe.verdict(str(path), str(path), cell=("1024", "65536"), column="device_us")
    assert found.word == "UNDECIDED"  # one run an arm shows nothing, whatever its samples are
    assert found.a.processes == ((9.5,) * 5,) and found.b.processes == ((12.0,) * 5,)  # of the slower rank


def test_step_takes_its_costs_from_a_recording(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the provenance of a machine with two GPUs, which this one need not have: all else is as recorded."""

    def some(ring: RingWriter, rank: int) -> None:
        ring.put(20, path="torch_distributed", nbytes=14336, host_ns=30_000, device_ns=25_000 + 1000 * rank)

    server(folder, 2, some)
    monkeypatch.setattr(recorded, "_provenance", lambda workers: cost_files.provenance())
    costs = read_recording().write(tmp_path / "live.jsonl", "measurement")
    launch = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 2 --disable-custom-all-reduce"
    step = probe.step(launch, gpu="h200", sglang="0.5.9", context="eager", costs=costs)
    (cost,) = [call["cost"] for call in step.to_dict()["calls"][:1]]
    assert (cost["device_us"]["us"], cost["host_us"]["us"]) == (26.0, 30.0)
    assert (cost["device_us"]["pattern"], cost["device_us"]["driver"]) == ("interleaved", "engine")


@pytest.mark.parametrize("flags", [("derived",), ()])
def test_a_kernel_that_was_not_seen_is_found_by_its_name_and_told_for_what_it_is(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]
) -> None:
    def some(ring: RingWriter, rank: int) -> None:
        for path, kernel in (("custom", "one_shot"), ("torch_distributed", "")):
            ring.put(
                9, path=path, kernel=kernel, nbytes=14336, host_ns=11_000, device_ns=7_000 + 500 * rank,
                flags=flags if kernel else (),
            )  # fmt: skip

    server(folder, 2, some)
    monkeypatch.setattr(recorded, "_provenance", lambda workers: cost_files.provenance())
    costs = read_recording().write(tmp_path / "live.jsonl", "measurement")
    notes = {cell.kernel: cell.note for cell in Measurement.read(costs).cells}
    assert {kernel: "nobody saw it" in note for kernel, note in notes.items()} == {"one_shot": bool(flags), "": False}
    launch = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 2"
    step = probe.step(launch, gpu="h200", sglang="0.5.9", context="eager", costs=costs)
    (cost,) = [call["cost"] for call in step.to_dict()["calls"] if call["path"] == "custom"][:1]
    assert (cost["device_us"]["us"], cost["host_us"]["us"]) == (7.5, 11.0)


def test_a_rank_without_times_gives_no_figure_and_the_reason(folder: Path) -> None:
    server(folder, 2, lambda ring, rank: ring.put(5, host_ns=9000 if rank == 0 else 0))
    with pytest.raises(InputError, match=r"was not timed on every rank: record them: sglang-probe record start --host-time"):
        read_recording().export("measurement")


def test_a_rank_whose_file_is_not_here_gives_no_figure_and_the_reason(folder: Path) -> None:
    ring = RingWriter(folder, rank=0, world_size=4)
    ring.put(5, host_ns=9000)
    ring.write()
    with pytest.raises(InputError, match="of ranks 1-3 there is no file"):
        read_recording().export("measurement")


def test_calls_that_reduced_nothing_are_in_no_figure(folder: Path) -> None:
    def some(ring: RingWriter, rank: int) -> None:
        ring.put(5, host_ns=1000, flags=("nothing",))
        ring.put(5, host_ns=9000)
        ring.put(5, host_ns=2000, phase="captured", graph=ring.graph("g"))

    server(folder, 2, some)
    (data,) = read_recording().export("measurement")
    assert b"9.0,9.0,9.0,9.0,9.0" in data and b"[1.0" not in data and b"[2.0" not in data


# ----------------------------------------------------------------------------------------------------------- whole or not at all


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_is_there_is_not_overwritten_unless_asked(recording: Recording, tmp_path: Path, format: str) -> None:
    path = written(recording, tmp_path, format)
    before = path.read_bytes()
    with pytest.raises(InputError, match="is not overwritten"):
        written(recording, tmp_path, format)
    assert path.read_bytes() == before
    written(recording, tmp_path, format, replace=True)
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "rings"]


@pytest.mark.parametrize("replace", [False, True])
def test_a_disk_that_gets_full_leaves_nothing_behind(
    recording: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    path = written(recording, tmp_path, "perfetto")
    before = path.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    target = path if replace else tmp_path / "other.json"
    with pytest.raises(ProbeError, match="No space left on device; nothing was left behind"):
        recording.write(target, "perfetto", replace=replace)
    assert path.read_bytes() == before and sorted(tmp_path.iterdir()) == [path, tmp_path / "rings"]


def test_a_name_that_appears_meanwhile_is_not_overwritten(recording: Recording, tmp_path: Path) -> None:
    path = tmp_path / "out"

    def parts() -> Any:
        yield b"ours"
        path.write_bytes(b"theirs")

    with pytest.raises(InputError, match="is not overwritten"):
        files.write_whole(path, parts())
    assert path.read_bytes() == b"theirs" and sorted(tmp_path.iterdir()) == [path, tmp_path / "rings"]


def test_where_it_cannot_go_is_said_before_anything_is_written(recording: Recording, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no folder"):
        recording.write(tmp_path / "no" / "out.json", "json")
    with pytest.raises(InputError, match="give one of json"):
        recording.write(tmp_path / "out.xml", "xml")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(InputError, match="no plain file"):
        recording.write(tmp_path / "link", "json", replace=True)


# ------------------------------------------------------------------------------------------------------------------------ damage


def test_a_damaged_ring_gives_a_reason_or_fewer_records_and_never_another_error(folder: Path) -> None:
    """Bytes of everything but the slots' words are changed at random, the same each time."""
    ring = RingWriter(folder, slots=64)
    fill(ring, 0)
    ring.name("note", "ranks of tp:0: 0,1")
    good, random = ring.tobytes(), np.random.default_rng(7)
    used = [
        (0, 200),
        (1024, 1064),
        (2048, 2160),
        (4096, 4500),
        (20480, 20480 + 64),
        (24576, 24576 + 600),
        (len(good) - 4096, len(good)),
    ]
    refused = 0
    for _ in range(150):
        data = bytearray(good)
        for _ in range(int(random.integers(1, 12))):
            low, high = used[int(random.integers(len(used)))]
            data[int(random.integers(low, high))] = int(random.choice((0, 1, 127, 128, 255)))
        ring.path.write_bytes(data)
        os.chmod(ring.path, 0o600)
        found = read_recording()
        refused += not found.workers
        str(found), found._repr_html_(), found.agreement.to_dict()
        for format in FORMATS:
            try:
                b"".join(found.export(format))
            except InputError:
                continue
    assert 0 < refused < 150
