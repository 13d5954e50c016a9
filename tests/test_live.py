"""top: what running workers do, read from outside: counts, rates, sizes, sites, findings; live, dead, damaged and others' files."""

from __future__ import annotations

import gzip
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_rings import Live, live_workers, ring_folder, server  # noqa: F401 # two fixtures
from ring_writer import RingWriter, gone

from sglang_probe import InputError
from sglang_probe._live.counts import Kind
from sglang_probe._live.findings import Finding
from sglang_probe._live.recording import read_recording
from sglang_probe._live.top import Top, Watch, top
from sglang_probe._live.worker import Worker
from sglang_probe._record.ring import Ring
from sglang_probe._show.page import to_text

SITE = "models/deepseek_v2.py:512 forward"


def look(*sources: Any, **more: Any) -> Top:
    return top(list(sources) or None, seconds=0, **more)


def only(found: Top) -> Worker:
    (worker,) = found.workers
    return worker


def kind(worker: Worker, **wanted: Any) -> Kind:
    (found,) = [one for one in worker.kinds if all(getattr(one, name) == value for name, value in wanted.items())]
    return found


# ------------------------------------------------------------------------------------------------------------------ what is counted


def test_captured_calls_count_as_often_as_their_graph_was_replayed(folder: Path) -> None:
    ring = RingWriter(folder)
    small, large = ring.graph("bs 1", replays=1000), ring.graph("bs 8", replays=30)
    ring.put(5)
    ring.put(7, phase="captured", graph=small)
    ring.put(11, phase="captured", graph=large, nbytes=8 * 43008)
    ring.write()
    worker = only(look())
    assert kind(worker, phase="eager").executed == 5
    captured = kind(worker, phase="captured")
    assert (captured.calls, captured.executed) == (18, 7 * 1000 + 11 * 30)
    assert captured.executed_bytes == 43008 * (7 * 1000 + 8 * 11 * 30)
    assert (worker.calls, worker.executed, worker.replays) == (23, 5 + 7330, 1030)


def test_what_launched_nothing_is_not_counted_as_executed(folder: Path) -> None:
    ring = RingWriter(folder)
    ring.put(3, phase="warmup", flags=("dry",))
    ring.put(4, op="fused", path="flashinfer", flags=("nothing",))
    ring.put(2, path="raises", flags=("raised",))
    ring.put(6, path="none")
    ring.put(1, phase="captured")  # of no known graph
    ring.put(10, phase="warmup")
    ring.write()
    worker = only(look())
    assert worker.calls == 26 and worker.executed == 10


def test_counts_are_whole_though_the_ring_has_gone_around_many_times(folder: Path) -> None:
    ring = RingWriter(folder, slots=64)
    ring.put(1000, host_ns=12_000)
    ring.write()
    worker = only(look())
    assert worker.calls == worker.records == 1000
    assert (len(worker.recent), worker.overwritten, worker.torn) == (64, 936, 0)
    assert sum(size.calls for size in worker.sizes) == 64


def test_a_slot_that_a_killed_writer_left_is_no_record(folder: Path) -> None:
    pid, start = gone()
    ring = RingWriter(folder, pid=pid, started=start)
    ring.put(10)
    ring.tear(4)
    ring.write()
    worker = only(look())
    assert worker.state == "killed" and worker.torn == 1
    assert worker.recent["seq"].tolist() == [1, 2, 3, 5, 6, 7, 8, 9, 10]


def test_a_look_reads_each_record_once_and_still_knows_the_older_ones(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ring = RingWriter(folder, slots=1024)
    asked: list[int] = []
    read = Ring.records

    def watched(self: Ring, since: int = 0) -> Any:
        asked.append(since)
        return read(self, since)

    monkeypatch.setattr(Ring, "records", watched)
    ring.put(100, site=SITE)
    ring.write()
    with Watch() as watch:
        for more in (7, 0, 20):
            watch.look()
            ring.put(more, nbytes=1024)
            ring.write()
        worker = only(watch.look())
    assert asked == [0, 100, 107, 107]
    assert {size.nbytes: size.calls for size in worker.sizes} == {43008: 100, 1024: 27}
    assert worker.recent["seq"].tolist() == list(range(1, 128))


def test_rates_are_what_ran_between_two_looks(folder: Path) -> None:
    ring = RingWriter(folder)
    graph = ring.graph("bs 1", replays=10)
    ring.put(100, phase="captured", graph=graph)
    ring.write()
    with Watch() as watch:
        first = watch.look()
        assert first.rate(only(first)) is None
        ring.graphs[0]["replays"] += 50
        ring.write()
        second = watch.look()
    worker, seconds = only(second), second.seconds
    assert seconds is not None and seconds > 0
    assert second.rate(worker) == pytest.approx(5000 / seconds)
    assert second.rate(worker, kind(worker, phase="captured").key) == pytest.approx(5000 / seconds)


def test_a_file_that_was_replaced_is_another_ring(folder: Path) -> None:
    ring = RingWriter(folder)
    ring.put(5)
    path = ring.write()
    with Watch() as watch:
        assert only(watch.look()).calls == 5
        path.unlink()
        again = RingWriter(folder)
        again.put(2, nbytes=512)
        again.write()
        worker = only(watch.look())
    assert worker.calls == 2 and [size.nbytes for size in worker.sizes] == [512]


# ------------------------------------------------------------------------------------------------------------------ what is shown


def test_ranks_that_did_the_same_share_a_row_and_the_odd_one_has_its_own(folder: Path) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        ring.put(50, site=SITE)
        ring.put(3, nbytes=1 << 20, path="pynccl_in_place", expected="custom" if rank == 2 else None)

    server(folder, 4, fill)
    found = look()
    text = str(found)
    assert found.alarms == 3 and "3 ALARMs" in found.answer
    rows = [line.split() for line in text.splitlines()]
    assert ["2", "tp:0", "eager", "pynccl_in_place", "custom", "ALARM", "3", "3", "1", "MiB"] in rows
    assert ["0-3", "tp:0", "eager", "custom", "=", "50", "50", "42", "KiB"] in rows
    assert any(row[:4] == ["0-3", "tp:0", SITE.split()[0], "forward"] for row in rows)
    assert "rank 2: tp:0: custom was expected and pynccl_in_place ran in 3 calls (out_place)" in text


def test_everything_is_plain_data_and_html_too(folder: Path) -> None:
    def fill(ring: RingWriter, rank: int) -> None:
        ring.put(4, phase="captured", graph=ring.graph("<bs 1>", replays=2, registered=4), site="a<b>.py:1 f")

    server(folder, 2, fill)
    found = look()
    plain = json.loads(json.dumps(found.to_dict()))
    assert [worker["executed"] for worker in plain["workers"]] == [8, 8]
    assert plain["workers"][0]["graphs"][0]["label"] == "<bs 1>" and plain["agreement"]["agrees"] is True
    assert "a&lt;b&gt;.py:1 f" in found._repr_html_() and "a<b>" not in found._repr_html_()
    assert pickle.loads(pickle.dumps(found.findings)) == found.findings


def test_names_in_a_ring_cannot_steer_a_terminal(folder: Path) -> None:
    ring = RingWriter(folder)
    ring.put(3, site="evil\x1b[2J.py:1 f")
    ring.name("note", "note\x1b]0;title\x07")
    ring.write()
    assert "\x1b" not in str(look()) and "\\x1b[2J" in str(look())


# ---------------------------------------------------------------------------------------------------------------------- findings


def findings(found: Top, name: str) -> list[Finding]:
    return [one for one in found.findings if one.kind == name]


def test_graphs_that_never_ran_are_told_and_those_that_ran_are_not(folder: Path) -> None:
    ring = RingWriter(folder)
    ring.put(123, phase="captured", graph=ring.graph("bs 1", replays=4))
    ring.put(123, phase="captured", graph=ring.graph("bs 512"))
    ring.graph("being captured", state=1)
    ring.write()
    (told,) = findings(look(), "never_replayed")
    assert told.text == "1 graph of 3 never replayed: bs 512 captured 123 calls and never ran"


def test_pieces_of_one_piecewise_graph_are_told_as_many_of_one_label(folder: Path) -> None:
    def pieces(ring: RingWriter, rank: int) -> None:
        for label, count in (("piecewise tokens 512", 3), ("decode bs 8", 1)):
            for _ in range(count):
                ring.put(2, phase="captured", graph=ring.graph(label, replays=0))

    server(folder, 2, pieces)
    found = look()
    (told,) = findings(found, "never_replayed")
    assert "piecewise tokens 512, decode bs 8 captured 8 calls" in told.text
    text = to_text(found.page(verbose=True))
    assert "piecewise tokens 512 (3 graphs)" in text and "decode bs 8 (" not in text


def test_a_capture_that_registered_no_address_is_told_where_its_kernel_needs_them(folder: Path) -> None:
    ring = RingWriter(folder)
    for batch, kernel in ((1, ""), (2, "two_shot_pull"), (3, "one_shot_push")):
        ring.put(10, phase="captured", kernel=kernel, graph=ring.graph(f"batch {batch}", replays=1, registered=0, batch=batch))
    ring.put(10, phase="captured", path="pynccl_in_place", graph=ring.graph("nccl", replays=1, registered=0, batch=4))
    ring.put(10, phase="captured", graph=ring.graph("good", replays=1, registered=10, batch=5))
    ring.put(10, phase="captured", graph=ring.graph("not told", replays=1, batch=6))
    ring.write()
    told = [one.text for one in findings(look(), "unregistered")]
    assert told == [f"batch {n} captured 10 calls of custom all-reduce and registered 0 addresses" for n in (1, 2)]


def test_one_registration_of_several_graphs_is_held_against_all_of_their_calls(folder: Path) -> None:
    ring = RingWriter(folder)
    for label in ("bs 1", "bs 2"):
        ring.put(10, phase="captured", graph=ring.graph(label, replays=1, registered=0, batch=1))
    ring.write()
    (told,) = findings(look(), "unregistered")
    assert told.text == "bs 1, bs 2 captured 20 calls of custom all-reduce and registered 0 addresses"


def test_a_fused_op_that_reduced_nothing_a_path_nobody_saw_and_losses_are_told(folder: Path) -> None:
    ring = RingWriter(folder)
    ring.put(9, op="fused", path="flashinfer", flags=("nothing",))
    ring.put(2, path="", entry="in_place")
    ring.put(1, path="raises", flags=("raised",))
    ring.name("note", "custom all-reduce is on by flag; 0 of 1,230 calls took it: no peer access")
    ring.counts |= {"kinds_lost": 3, "failures": 1}
    ring.write()
    told = {one.kind: one.text for one in look().findings}
    assert told["nothing"] == "tp:0: the fused op was chosen 9 times and gave nothing back: it reduced none"
    assert told["unseen"] == "tp:0: in 2 calls of in_place no path was seen"
    assert told["raised"] == "tp:0: 1 call ended in an exception"
    assert told["note"].startswith("custom all-reduce is on by flag")
    assert [one.text for one in findings(look(), "lost")] == [
        "the hook failed 1 time and stood aside",
        "3 calls found no room in the table of kinds: counts are too small",
    ]


def test_the_same_finding_of_several_ranks_is_told_once(folder: Path) -> None:
    server(folder, 4, lambda ring, rank: ring.put(3, flags=("nothing",)))
    (told,) = findings(look(), "nothing")
    assert told.ranks == (0, 1, 2, 3) and str(told).startswith("ranks 0-3: tp:0: ")


# ------------------------------------------------------------------------------------------------------------- whose, and which files


def test_dead_writers_are_marked_and_shown_with_those_that_live(folder: Path) -> None:
    pid, start = gone()
    server(folder, 3, lambda ring, rank: ring.put(4))
    dead = RingWriter(folder, pid=pid, started=start, rank=3, world_size=4)
    dead.put(2)
    dead.write()
    lone = RingWriter(folder, pid=pid, started=start, rank=0, world_size=1, other=9)
    lone.header["release"] = b"0.4.9"
    lone.write()
    found = look()
    assert [(worker.rank, worker.state) for worker in found.workers] == [(0, "recording"), (1, "recording"), (2, "recording")]
    assert found.hidden == 2
    every = look(dead=True)
    assert sorted((worker.rank, worker.state) for worker in every.workers)[-1] == (3, "killed") and len(every.workers) == 5
    assert "GONE" in every.answer and "KILLED" in str(every)


def test_a_rank_that_was_killed_stays_with_its_server(folder: Path) -> None:
    pid, start = gone()
    for rank in range(4):
        ring = RingWriter(folder, rank=rank, world_size=4, other=rank, **({"pid": pid, "started": start} if rank == 2 else {}))
        ring.put(5 if rank != 2 else 3)
        ring.write()
    found = look()
    (world,) = found.worlds
    assert [worker.state for worker in world.workers] == ["recording", "recording", "killed", "recording"]
    assert world.missing == () and not found.agreement.agrees
    assert "rank 2 is 2 calls behind: its process was killed" in found.agreement.answer
    assert "ranks DIFFER: rank 2 of tp:0 behind" in found.answer


def test_where_nobody_lives_the_last_server_is_shown(folder: Path) -> None:
    pid, start = gone()
    for n, hour in ((0, 5), (1, 1)):
        ring = RingWriter(folder, pid=pid, started=start, world_size=1, other=n)
        ring.header["wall_ns"] -= hour * 3600 * 10**9
        ring.put(n + 1)
        ring.write()
    found = look()
    assert only(found).calls == 2 and found.hidden == 1 and "nobody records" in found.answer


def test_a_process_that_said_goodbye_has_ended_and_was_not_killed(folder: Path) -> None:
    ring = RingWriter(folder)
    ring.control |= {"closed": 1, "control": 0}
    ring.write()
    assert only(look()).state == "ended"


def test_another_process_with_the_number_of_a_dead_one_does_not_revive_it(folder: Path) -> None:
    ring = RingWriter(folder, started=12345)
    ring.write()
    assert only(look()).state == "killed"


def test_two_servers_on_one_machine_are_told_apart(folder: Path) -> None:
    for server_number in range(2):
        for rank in range(2):
            ring = RingWriter(folder, rank=rank, world_size=2, other=10 * server_number + rank)
            ring.put(10 + server_number)
            ring.write()
    found = look()
    assert [world.ranks for world in found.worlds] == [(0, 1), (0, 1)]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: data[:100], "100 bytes: this is no ring file"),
        (lambda data: data[:-64], "it is damaged"),
        (lambda data: b"\0" * len(data), "this is no ring file: it does not begin as one"),
        (lambda data: data[:8] + b"\2" + data[9:], "version 2"),
    ],
)
def test_damaged_files_are_named_and_skipped(folder: Path, damage: Callable[[bytes], bytes], reason: str) -> None:
    good = RingWriter(folder)
    good.put(3)
    good.write()
    bad = folder / "1.2.ring"
    bad.write_bytes(damage(good.tobytes()))
    bad.chmod(0o600)
    found = look()
    assert only(found).calls == 3
    (refused,) = found.refused
    assert refused.path == bad and reason in refused.reason
    assert str(bad) in str(found) and reason in str(found)
    with pytest.raises(InputError, match=reason):
        look(bad)


def test_a_file_that_gets_shorter_while_it_is_watched_is_refused_and_not_trusted(folder: Path) -> None:
    ring = RingWriter(folder)
    ring.put(3)
    path = ring.write()
    with Watch() as watch:
        assert len(watch.look().workers) == 1
        os.truncate(path, 5000)
        found = watch.look()
        assert not found.workers and found.refused[0].path == path


def test_what_is_no_plain_file_of_this_user_is_refused_with_the_reason(folder: Path, tmp_path: Path) -> None:
    ring = RingWriter(folder)
    real = ring.write()
    (folder / "1.1.ring").symlink_to(real)
    os.mkfifo(folder / "2.2.ring")
    loose = folder / "3.3.ring"
    loose.write_bytes(real.read_bytes())
    loose.chmod(0o666)
    reasons = {one.path.name: one.reason for one in look().refused}
    assert set(reasons) == {"1.1.ring", "2.2.ring", "3.3.ring"}
    assert "plain file" in reasons["2.2.ring"] and "others may write" in reasons["3.3.ring"]


def test_another_users_ring_is_refused_with_the_reason(folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    ring = RingWriter(folder)
    path = ring.write()
    os.chown(path, 12345, -1)
    found = look()
    assert not found.workers and "belongs to user 12345" in found.refused[0].reason
    assert "belongs to user 12345" in found.answer
    with pytest.raises(InputError, match="belongs to user 12345"):
        look(path)


def test_another_users_folder_is_named_where_ours_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    from sglang_probe._live import find
    from sglang_probe._record import folder as places

    monkeypatch.delenv("SGLANG_PROBE_DIR", raising=False)
    ours, theirs = tmp_path / f"sglang_probe-{os.geteuid()}", tmp_path / "sglang_probe-12345"
    theirs.mkdir(0o700)
    os.chown(theirs, 12345, -1)
    for module in (find, places):
        monkeypatch.setattr(module, "candidates", lambda: [ours])
    found = look()
    assert not found.workers and [one.path for one in found.refused] == [theirs]
    assert "belongs to user 12345" in found.answer


def test_nobody_there_says_what_to_do(folder: Path) -> None:
    found = look()
    assert not found.workers and str(folder) in found.answer and "SGLANG_PROBE=1" in found.answer


def test_a_named_process_without_a_ring_is_an_error_that_names_those_there_are(folder: Path) -> None:
    ring = RingWriter(folder)
    ring.write()
    with pytest.raises(InputError, match=f"there are {ring.pid}"):
        look(1)
    with pytest.raises(InputError, match="give a process's number"):
        look(True)


def test_a_ring_that_was_packed_to_be_sent_is_read_as_it_was_left(folder: Path, tmp_path: Path) -> None:
    ring = RingWriter(folder)
    ring.put(5, site=SITE)
    packed = tmp_path / "1.2.ring.gz"
    packed.write_bytes(gzip.compress(ring.write().read_bytes()))
    worker = only(look(packed))
    assert (worker.path, worker.calls) == (str(packed), 5) and worker.sizes[0].site == SITE
    assert sorted(tmp_path.iterdir()) == [packed, folder]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-20], lambda data: b"no gzip at all", lambda data: gzip.compress(b"x" * 5000)]
)
def test_a_packed_ring_that_is_damaged_is_refused_with_the_reason(
    folder: Path, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    packed = tmp_path / "1.2.ring.gz"
    packed.write_bytes(damage(gzip.compress(RingWriter(folder).tobytes())))
    with pytest.raises(InputError, match="cannot be unpacked|this is no ring file"):
        look(packed)


def test_a_packed_file_that_grows_without_end_is_not_unpacked_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_probe._live import find

    monkeypatch.setattr(find, "_LARGEST", 3 << 20)
    packed = tmp_path / "1.2.ring.gz"
    packed.write_bytes(gzip.compress(bytes(64 << 20)))
    with pytest.raises(InputError, match="more than 3 MiB unpacked"):
        look(packed)


# ---------------------------------------------------------------------------------------------------------------- while it is written


def test_a_live_writer_is_read_while_it_writes(live: Callable[..., Live]) -> None:
    worker = live(0, 1)
    worker.start(200_000)
    seen: list[Worker] = []
    with Watch() as watch:
        while not seen or seen[-1].records < 200_000:
            seen.append(only(watch.look()))
    for one in seen:
        assert one.state == "recording"
        assert set(one.recent["nbytes"].tolist()) <= {43008} and (np.diff(one.recent["seq"].astype(np.int64)) > 0).all()
        assert (one.recent["call"] <= 200_000).all()
    assert only(look()).calls == 200_000


def test_a_killed_writers_ring_is_read_as_it_was_left(live: Callable[..., Live]) -> None:
    worker = live(0, 1)
    worker.call(1000)
    worker.start(10_000_000)
    worker.kill()
    found = only(look())
    assert found.state == "killed" and found.calls >= 1000
    assert set(found.recent["nbytes"].tolist()) == {43008}
    assert len(found.recent) + found.torn == 256


def test_a_writer_that_says_goodbye_has_ended(live: Callable[..., Live]) -> None:
    worker = live(0, 1, goodbye=True)
    worker.call(10)
    worker.end()
    assert only(look()).state == "ended"


# ------------------------------------------------------------------------------------------------------------------------- clocks


def test_workers_of_one_start_of_the_machine_share_a_clock_though_the_wall_clock_was_set(folder: Path) -> None:
    """The clock was put forward by a second between the two files: their order is that of the clock that nobody sets."""
    early, late = RingWriter(folder, rank=0), RingWriter(folder, rank=1, other=1)
    late.header["wall_ns"] += 10**9
    early.now = late.now = early.header["mono_ns"]
    for step in range(4):
        (early if step % 2 == 0 else late).put(1, time_ns=early.header["mono_ns"] + step * 1000)
    for ring in (early, late):
        ring.write()
    records = read_recording().records
    assert records["rank"].tolist() == [0, 1, 0, 1]
    assert np.diff(records["wall_ns"]).tolist() == [1000, 1000, 1000]


def test_files_of_two_machines_are_put_on_the_wall_clock(folder: Path) -> None:
    here, there = RingWriter(folder, rank=0), RingWriter(folder, rank=1, other=1)
    there.header["mono_ns"] += 10**15
    there.now = there.header["mono_ns"]
    here.put(1)
    there.put(1)
    for ring in (here, there):
        ring.write()
    recording = read_recording()
    stamps = recording.records["wall_ns"]
    assert abs(int(stamps[1]) - int(stamps[0])) < 10**9


def test_times_of_another_machine_are_not_held_against_this_ones_clock(folder: Path) -> None:
    pid, start = gone()
    ring = RingWriter(folder, pid=pid, started=start)
    ring.header["mono_ns"] += 10**15
    ring.now = ring.header["mono_ns"]
    ring.put(3)
    ring.write()
    assert only(look()).idle_s is None
