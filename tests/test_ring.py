"""Ring files from the outside: what is read back, what is refused and why, what a worker's end leaves, what a full disk does.

Invariant: files are made by the Recorder that a worker has, and damaged by ordinary means.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ring_writer import RingWriter

from sglang_probe import InputError, ProbeError, ProbeUnavailable, _core
from sglang_probe._record import dtype, folder
from sglang_probe._record import ring as ring_module
from sglang_probe._record.ring import Ring, rings

ELSEWHERE = Path(_core.__file__).parents[1]  # so that a new process finds the package that is tested
SMALL = {"slots": 64, "graphs": 4, "kinds": 64}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.fixture
def recorder(place: Path) -> Iterator[_core.Recorder]:
    made = _core.Recorder(place / folder.ring_name(os.getpid(), folder.started(os.getpid())), release="0.5.9", **SMALL)
    yield made
    made.close()


# ---- what is read back ----


@pytest.mark.parametrize(("mine", "theirs"), [("RECORD", "RING_RECORD"), ("GRAPH", "RING_GRAPH"), ("KIND", "RING_KIND")])
def test_a_reader_finds_each_field_where_the_writer_put_it(mine: str, theirs: str) -> None:
    found = getattr(dtype, mine)
    assert found.itemsize == 64
    assert [(name, found[name].str[1:], found.fields[name][1]) for name in found.names] == [f[:3] for f in getattr(_core, theirs)]


def test_a_record_says_what_was_put_into_it(recorder: _core.Recorder) -> None:
    seq = recorder.put("tp:0", "all_reduce", 1, 43008, 0, 3, 5, 2, "one_shot", 6, 2, "model.py:7 forward", 900, 2)
    recorder.set_rank(3, 8)
    with Ring.open(recorder.path) as ring:
        got, names = ring.records(), ring.tables().names
        assert (ring.pid, ring.rank, ring.world_size, ring.release, ring.alive) == (os.getpid(), 3, 8, "0.5.9", True)
        record = got.records[0]
        assert len(got.records) == 1 and got.next == seq == record["seq"] and not got.overwritten and not got.torn
        told = {
            name: int(record[name])
            for name in ("nbytes", "dtype", "rows", "context", "op", "path", "expected", "graph", "host_ns")
        }
        assert told == {
            "nbytes": 43008,
            "dtype": 0,
            "rows": 3,
            "context": 5,
            "op": 2,
            "path": 1,
            "expected": 6,
            "graph": 2,
            "host_ns": 900,
        }
        assert [names[kind][record[kind]] for kind in ("group", "entry", "kernel", "site")] == [
            "tp:0",
            "all_reduce",
            "one_shot",
            "model.py:7 forward",
        ]
        flags = [name for i, (name, _) in enumerate(_core.RING_FLAGS) if record["flags"] >> i & 1]
        assert flags == ["alarm", "dry", "by_hand"]  # 6 was expected, 1 ran
        assert _core.PHASES[record["phase"]][0] == "piecewise"
        assert abs(ring.wall_ns(int(record["time_ns"])) - int(ring.header["wall_ns"])) < 3600 * 10**9


def test_what_newer_records_replaced_is_counted_and_sums_stay(recorder: _core.Recorder) -> None:
    for _ in range(200):
        recorder.put("tp:0", "all_reduce", 1, 10)
    with Ring.open(recorder.path) as ring:
        got = ring.records(since=100)
        assert [len(got.records), got.overwritten, got.next] == [64, 36, 200]
        assert list(got.records["seq"]) == list(range(137, 201))
        assert list(got.records["call"]) == list(range(137, 201))
        (kind,) = ring.tables().kinds
        assert (kind["calls"], kind["nbytes"]) == (200, 2000)
        assert len(ring.records(since=200).records) == 0
    assert recorder.counts()["overwritten"] == 136


def test_captured_and_replayed_calls_can_be_added_up(recorder: _core.Recorder) -> None:
    graph = recorder.graph_begin("decode 8")
    recorder.put("tp:0", "all_reduce", 1, 10, context=3, graph=graph)
    recorder.put("tp:0", "all_reduce", 1, 10, context=3, graph=graph)
    recorder.graph_end()
    recorder.registered(0)
    never = recorder.graph_begin()
    recorder.graph_end(never)
    recorder.graph_replayed(graph, 9)
    with Ring.open(recorder.path) as ring:
        tables = ring.tables()
        first, second = tables.graphs
        assert tables.names["graph"][int(first["label"])] == "decode 8"
        assert (first["captured"], first["replays"], first["registered"], first["batch"]) == (2, 9, 1, 1)
        assert (second["captured"], second["replays"], second["registered"], second["batch"]) == (0, 0, 0, 2)
        assert first["ended_ns"] >= first["began_ns"] and first["state"] == second["state"] == 2


def test_more_graphs_than_there_is_room_for_are_counted(recorder: _core.Recorder) -> None:
    assert [recorder.graph_begin() for _ in range(6)] == [1, 2, 3, 4, 0, 0]
    assert recorder.counts()["graphs_lost"] == 2


def test_an_alarm_is_told_once_a_kind_with_its_first_time(recorder: _core.Recorder) -> None:
    assert not recorder.pending and recorder.alarms() == []
    recorder.put("tp:0", "all_reduce", 8, 10, expected=1)
    recorder.put("tp:0", "all_reduce", 8, 20, dtype=1, expected=1)  # another kind of call, the same alarm
    recorder.put("tp:0", "all_reduce", 1, 10, expected=1)
    recorder.put("tp:0", "all_reduce", 255, 10, expected=1)  # not seen is not another path
    assert recorder.pending
    (alarm,) = recorder.alarms()
    assert alarm[:5] == ("tp:0", "all_reduce", 8, 1, 2) and alarm[5] > 0
    recorder.put("tp:0", "all_reduce", 8, 30, dtype=2, expected=1)
    assert recorder.alarms() == []
    recorder.put("pp:0", "all_reduce", 8, 30, dtype=2, expected=1)
    assert [alarm[0] for alarm in recorder.alarms()] == ["pp:0"] and not recorder.pending
    assert recorder.counts()["alarms"] == 4


def test_an_alarm_whose_kind_found_no_row_is_told_all_the_same(place: Path) -> None:
    recorder = _core.Recorder(place / "a.ring", slots=64, graphs=1, kinds=1)
    recorder.put("tp:0", "all_reduce", 1, 64)
    for group in ("tp:0", "pp:0", "tp:0"):
        recorder.put(group, "all_reduce", 1, 64, expected=6)
    assert recorder.counts()["kinds_lost"] == 3 and recorder.pending
    assert [alarm[:5] for alarm in recorder.alarms()] == [("tp:0", "all_reduce", 1, 6, 2), ("pp:0", "all_reduce", 1, 6, 1)]
    recorder.put("tp:0", "all_reduce", 1, 64, expected=6)
    assert not recorder.pending and recorder.alarms() == []
    for path in range(2, 30):  # more than are kept
        recorder.put("tp:0", "all_reduce", path % 12, 64, expected=path % 11)
    assert recorder.pending and len(recorder.alarms()) == 14
    recorder.close()


def test_device_times_reach_the_record_and_its_sum(recorder: _core.Recorder) -> None:
    seq = recorder.put("tp:0", "all_reduce", 1, 10)
    assert recorder.timed(seq, 1234)
    for _ in range(64):
        recorder.put("tp:0", "all_reduce", 1, 10)
    assert not recorder.timed(seq, 1234) and not recorder.timed(seq + 1000, 1)
    with Ring.open(recorder.path) as ring:
        (kind,) = ring.tables().kinds
        assert (kind["device_ns"], kind["timed"], kind["calls"]) == (1234, 1, 65)


# ---- from outside: start, stop, alive, dead ----


def test_a_running_worker_is_started_and_stopped_from_outside(recorder: _core.Recorder) -> None:
    with Ring.open(recorder.path) as ring:
        assert not recorder.recording and not ring.recording
        ring.start()
        ring.start()
        assert recorder.recording and ring.recording
        ring.set("site_every", 100)
        ring.set("host_time", 1)
        assert recorder.site_every == 100 and recorder.host_time is True
        ring.stop()
        assert not recorder.recording
        with pytest.raises(InputError, match="site_every"):
            ring.set("closed", 1)


_WORKER = """
import os, sys
from sglang_probe import _core
recorder = _core.Recorder(sys.argv[1], slots=64, graphs=4, kinds=64)
print("ready", flush=True)
n = 0
while True:
    n += 1
    recorder.put("tp:0", "all_reduce", n % 12, n, dtype=n % 8, rows=n & 0xFFFFFFFF, context=n & 3, host_ns=(n * 7) & 0xFFFFFFFF)
"""


def _check(records: np.ndarray) -> None:
    n = records["nbytes"].astype(np.int64)
    for field, expected in (("path", n % 12), ("dtype", n % 8), ("rows", n), ("context", n & 3), ("host_ns", n * 7 & 0xFFFFFFFF)):
        assert np.array_equal(records[field], expected), field
    assert np.array_equal(records["seq"], n)


def test_a_worker_that_is_killed_leaves_whole_records_and_is_seen_to_be_gone(place: Path) -> None:
    read = 0
    for turn in range(10):
        path = place / f"{turn}.ring"
        worker = subprocess.Popen([sys.executable, "-c", _WORKER, path], stdout=subprocess.PIPE, text=True, cwd=ELSEWHERE)
        assert worker.stdout is not None and worker.stdout.readline() == "ready\n"
        with Ring.open(path) as ring:
            assert ring.alive and ring.pid == worker.pid
            since = 0
            while since < 100 + 37 * turn:
                assert worker.poll() is None
                got = ring.records(since)
                _check(got.records)
                since, read = got.next, read + len(got.records)
            worker.send_signal(signal.SIGKILL)
            worker.wait()
            ring.refresh()
            got = ring.records()
            _check(got.records)
            assert len(got.records) >= 62 and not ring.alive
            with pytest.raises(InputError, match="is gone"):
                ring.start()
        worker.stdout.close()
    assert read
    found, refused = rings(place, dead=True)
    assert len(found) == 10 and not refused and rings(place) == ([], [])
    for ring in found:
        ring.close()


def test_a_child_of_a_fork_leaves_its_parents_ring_alone(recorder: _core.Recorder) -> None:
    call = _core.Wrapper(len, recorder, "len", argument=0, group="tp:0")
    recorder.start()
    call([1])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            call([1])
            try:
                recorder.put("tp:0", "len", 1, 1)
            except ProbeError as error:
                status = 0 if "forked" in str(error) else 2
            recorder.close(remove=True)
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def fork(of: list[int]) -> int:
        return os.fork()

    inside = _core.Wrapper(fork, recorder, "len", argument=0, group="tp:0")([1])
    if inside == 0:
        os._exit(0)  # came back through the wrapper
    assert os.waitstatus_to_exitcode(os.waitpid(inside, 0)[1]) == 0
    with Ring.open(recorder.path) as ring:
        assert len(ring.records().records) == 2 and ring.alive and ring.recording


def test_a_copy_is_no_worker_and_nothing_is_asked_of_it(recorder: _core.Recorder, place: Path) -> None:
    (place / "copies").mkdir(0o700)
    copy = place / "copies" / Path(recorder.path).name
    shutil.copy(recorder.path, copy)
    with Ring.open(recorder.path) as ring, Ring.open(copy) as copied:
        assert ring.alive and not copied.alive and ring.alive
        with pytest.raises(InputError, match="nobody would see it"):
            copied.start()
        os.rename(copy, recorder.path)
        with pytest.raises(InputError, match="another file has this name"):
            ring.start()
        with Ring.open(recorder.path) as now:
            assert now.header["control"] == 0 == ring.refresh()["control"]


def test_without_proc_a_process_is_alive_while_its_number_is(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    rings_of = {}
    for pid, start in ((worker.pid, folder.started(worker.pid)), (os.getpid(), 0)):
        made = RingWriter(place, pid=pid, started=start)
        made.started = start  # 0: its writer had no /proc
        rings_of[pid] = Ring.open(made.write())
        assert rings_of[pid].alive
    monkeypatch.setattr(ring_module, "started", lambda pid: 0)
    assert all(ring.alive for ring in rings_of.values())
    worker.communicate()
    assert not rings_of[worker.pid].alive
    for ring in rings_of.values():
        ring.close()


# ---- what is refused ----


def test_a_file_that_cannot_be_read_is_refused_like_any_other(
    recorder: _core.Recorder, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ProbeError("reading: Input/output error")

    with Ring.open(recorder.path) as ring:
        for name in ("ring_look", "ring_records", "ring_tables", "ring_control"):
            monkeypatch.setattr(_core, name, broken)
        for look in (ring.refresh, ring.records, ring.tables):
            with pytest.raises(InputError, match="Input/output error"):
                look()
    found, (refused,) = rings(place)
    assert not found and refused.path == Path(recorder.path) and "Input/output error" in refused.reason


def test_other_peoples_and_odd_files_are_refused_with_a_reason(
    recorder: _core.Recorder, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = Path(recorder.path)
    cases: dict[str, str] = {}
    (place / "link.ring").symlink_to(good)
    cases["link.ring"] = "cannot be opened"
    os.mkfifo(place / "fifo.ring")
    cases["fifo.ring"] = "no plain file"
    (place / "folder.ring").mkdir()
    cases["folder.ring"] = "no plain file"
    (place / "empty.ring").touch(0o600)
    cases["empty.ring"] = "no ring file"
    (place / "text.ring").write_text("x" * 5000)
    cases["text.ring"] = "does not begin as one"
    shutil.copy(good, place / "open.ring")
    (place / "open.ring").chmod(0o666)
    cases["open.ring"] = "others may write"
    (place / "short.ring").write_bytes(good.read_bytes()[:-64])
    cases["short.ring"] = "damaged"
    newer = bytearray(good.read_bytes())
    newer[8] = 99
    (place / "newer.ring").write_bytes(newer)
    cases["newer.ring"] = "version 99"
    for name, reason in cases.items():
        with pytest.raises(InputError, match=reason):
            Ring.open(place / name)
    found, refused = rings(place)
    assert [ring.path for ring in found] == [good]
    assert sorted(refusal.path.name for refusal in refused) == sorted(cases)
    found[0].close()
    with pytest.raises(InputError, match="cannot be opened"):
        Ring.open(place / "missing.ring")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(InputError, match=r"belongs to user \d+, this is user \d+"):
        Ring.open(good)


def test_a_folder_that_others_can_reach_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(folder.VARIABLE, str(place))
    assert folder.make_folder() == place and folder.folders() == [place]
    place.chmod(0o755)
    assert folder.folders() == []
    with pytest.raises(InputError, match="chmod 700"):
        rings(place)
    with pytest.raises(ProbeUnavailable, match="chmod 700"):
        folder.make_folder()
    (place / "link").symlink_to(place)
    with pytest.raises(InputError, match="a link is not followed"):
        rings(place / "link")
    with pytest.raises(InputError, match="No such file"):
        rings(place / "nowhere")


def test_a_folder_that_others_could_replace_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = place / "mine"
    mine.mkdir(0o700)
    monkeypatch.setenv(folder.VARIABLE, str(mine))
    place.chmod(0o777)
    with pytest.raises(ProbeUnavailable, match="not sticky"):
        folder.make_folder()
    place.chmod(0o1777)
    assert folder.make_folder() == mine
    place.chmod(0o700)
    before = os.stat
    theirs = os.stat_result((0o40755, 0, 0, 1, os.geteuid() + 1, 0, 0, 0, 0, 0))
    monkeypatch.setattr(os, "stat", lambda path, **more: theirs if path == place else before(path, **more))
    assert "who could replace" in folder.refusal(mine)


def test_without_dev_shm_another_private_folder_is_found_or_the_reason_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(folder.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place / "nowhere"))
    monkeypatch.setattr(folder, "SHARED", place / "no_shm")
    (place / "tmp").mkdir()
    monkeypatch.setattr(folder.tempfile, "gettempdir", lambda: str(place / "tmp"))
    made = folder.make_folder()
    assert made.parent == place / "tmp" and stat.S_IMODE(made.stat().st_mode) == 0o700 and folder.make_folder() == made
    (place / "no_shm").mkdir()
    monkeypatch.setattr(folder, "ROOM", 1 << 60)  # what is there is NCCL's
    assert folder.make_folder() == made
    monkeypatch.setattr(folder, "ROOM", 1)
    assert folder.make_folder().parent == place / "no_shm" and folder.folders() == [folder.make_folder(), made]
    monkeypatch.setenv(folder.VARIABLE, str(place / "nowhere" / "deep"))
    with pytest.raises(ProbeUnavailable, match="No such file"):
        folder.make_folder()
    with pytest.raises(ProbeError, match="No such file"):
        _core.Recorder(place / "nowhere" / "a.ring")


def test_what_ended_processes_left_is_swept_but_for_the_newest(recorder: _core.Recorder, place: Path) -> None:
    pid = os.getpid()
    for n in range(1, 6):  # of processes that had this number before
        (place / folder.ring_name(pid, n)).touch()
        os.utime(place / folder.ring_name(pid, n), ns=(n * 10**9, n * 10**9))
    (place / (folder.ring_name(pid, 7) + ".new")).touch()
    for name in ("notes.txt", "a.b.ring"):
        (place / name).touch()
    folder.sweep(place, keep=2)
    kept = {Path(recorder.path).name, folder.ring_name(pid, 4), folder.ring_name(pid, 5), "notes.txt", "a.b.ring"}
    assert {path.name for path in place.iterdir()} == kept


def test_no_ring_is_swept_that_a_process_holds_which_is_not_seen_from_here(recorder: _core.Recorder, place: Path) -> None:
    """As one in another container is not: its number is nobody's here, or somebody else's."""
    held = _core.Recorder(place / folder.ring_name(os.getpid(), 7), **SMALL)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write)
        os.read(read, 1)  # until the parent closes its end
        os._exit(0)
    try:
        assert folder.sweep(place, keep=0) == []
        held.close()
        assert folder.sweep(place, keep=0) == []  # what it forked has it too
    finally:
        os.close(write)
        os.waitpid(child, 0)
        os.close(read)
    assert folder.sweep(place, keep=0) == [Path(held.path)] and Path(recorder.path).exists()


_FULL = """
import sys
from sglang_probe import _core
try:
    _core.Recorder(sys.argv[1] + "/a.ring")
except MemoryError as error:
    print(error)
"""


def test_a_full_disk_is_an_error_and_no_signal(place: Path) -> None:
    """On a file system of one megabyte, in a mount namespace of its own."""
    script = f"mount -t tmpfs -o size=1m none {place} && exec {sys.executable} -c '{_FULL}' {place}"
    command = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "sh", "-c", script]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command[:-1], f"mount -t tmpfs none {place}"], capture_output=True).returncode
    ):
        pytest.skip("this machine lets no test mount a file system")
    done = subprocess.run(command, capture_output=True, text=True, cwd=ELSEWHERE, timeout=60)
    assert done.returncode == 0 and "no room for" in done.stdout and "No space left on device" in done.stdout, (
        done.stderr + done.stdout
    )


def test_a_limit_on_files_is_an_error_and_no_signal(place: Path) -> None:
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))" + _FULL
    done = subprocess.run([sys.executable, "-c", code, place], capture_output=True, text=True, cwd=ELSEWHERE, timeout=60)
    assert done.returncode == 0 and "ulimit -f" in done.stdout, done.stderr
    assert list(place.iterdir()) == []


# ---- files that lie ----


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "a.ring"
    recorder = _core.Recorder(path, release="0.5.9", **SMALL)
    for n in range(100):
        recorder.put("tp:0", "all_reduce", n % 12, n, dtype=n % 8, site=f"model.py:{n % 5} forward", expected=n % 3)
    recorder.graph_begin("decode")
    recorder.close()
    return path.read_bytes()


@given(
    st.lists(st.tuples(st.integers(0, 1 << 16), st.binary(min_size=1, max_size=9)), max_size=6),
    st.none() | st.integers(0, 1 << 16),
)
def test_a_damaged_ring_is_refused_or_read_without_a_crash(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]], length: int | None
) -> None:
    data = bytearray(whole)
    for at, value in changes:
        data[at % len(data) : at % len(data) + len(value)] = value
    path = tmp_path_factory.getbasetemp() / "damaged.ring"
    path.touch(0o600)
    path.write_bytes(data[:length])
    try:
        with Ring.open(path) as ring:
            got, tables = ring.records(), ring.tables()
            assert ring.alive in (True, False) and repr(ring)
    except InputError as error:
        assert str(path) in str(error)
        return
    for rows in (got.records, tables.kinds):
        for field, count in (("path", len(_core.PATHS)), ("expected", len(_core.PATHS)), ("dtype", len(_core.DTYPES))):
            assert np.all((rows[field] < count) | (rows[field] == dtype.UNKNOWN))
        assert np.all(rows["phase"] < len(_core.PHASES)) and np.all(rows["op"] < len(_core.RING_OPS))
    assert set(tables.names) == {name for name, _ in _core.RING_NAMES}


def test_a_ring_that_shrinks_under_its_reader_is_an_error(recorder: _core.Recorder, place: Path) -> None:
    recorder.put("tp:0", "all_reduce", 1, 1)
    copy = place / "copy.ring"
    shutil.copy(recorder.path, copy)
    copy.chmod(0o600)
    with Ring.open(copy) as ring:
        os.truncate(copy, 8192)
        for look in (ring.refresh, ring.records, ring.tables):
            with pytest.raises(InputError, match="damaged|shorter"):
                look()


def test_the_stubs_atomic_words_are_the_headers(recorder: _core.Recorder) -> None:
    """The header's own fields lie where RING_HEADER says, in a file that any program can read."""
    data = Path(recorder.path).read_bytes()
    with Ring.open(recorder.path) as ring:
        for name, kind, at, _ in _core.RING_HEADER:
            size = {"u4": ctypes.c_uint32, "u8": ctypes.c_uint64}[kind]
            assert size.from_buffer_copy(data, at).value == ring.header[name], name
