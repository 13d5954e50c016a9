"""`top`, `record` and `dump` as people and scripts use them: answers, exit statuses, what stands on stdout and what on stderr."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_rings import Live, live_workers, ring_folder, server  # noqa: F401 # two fixtures
from prometheus_client.parser import text_string_to_metric_families
from ring_writer import RingWriter, gone

import sglang_probe
from sglang_probe import cli
from sglang_probe._live import screen
from sglang_probe._live.control import record_clean, record_start, record_status, record_stop
from sglang_probe._live.top import Top, Watch, top

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: str) -> tuple[int, str, str]:
        status = cli.main(argv)
        out, err = capsys.readouterr()
        return status, out, err

    return call


def spawn(*argv: str, folder: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "SGLANG_PROBE_DIR": str(folder), "PYTHONPATH": str(Path(sglang_probe.__file__).parents[1])}
    return subprocess.Popen([sys.executable, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True)


# ----------------------------------------------------------------------------------------------------------------------------- top


def test_top_once_shows_a_live_server_while_it_writes(run: Run, live: Callable[..., Live]) -> None:
    workers = [live(rank, 2) for rank in range(2)]
    for worker in workers:
        worker.start(100_000)
    status, out, err = run("top", "--once", "--interval", "0.2", "--json")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert [worker["state"] for worker in found["workers"]] == ["recording"] * 2
    assert all(worker["kinds"][0]["path"] == "torch_distributed" for worker in found["workers"])
    assert all(0 < worker["calls"] <= 100_000 for worker in found["workers"]) and found["seconds"] >= 0.2
    status, out, _ = run("top", "--once", "--interval", "0")
    assert status == 0 and out.splitlines()[0].startswith("2 ranks, SGLang 0.5.9; ")


def test_top_says_what_to_do_where_nobody_records(run: Run, folder: Path) -> None:
    status, out, err = run("top", "--once")
    assert (status, err) == (1, "") and "SGLANG_PROBE=1" in out


def test_top_of_a_process_without_a_ring_is_bad_input(run: Run, folder: Path) -> None:
    status, out, err = run("top", "--once", "--pid", "1")
    assert (status, out) == (2, "") and "pid=1: this process has no ring file" in err


def test_top_refuses_another_users_ring_with_the_reason(run: Run, folder: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(RingWriter(folder).write(), 12345, -1)
    status, out, _ = run("top", "--once")
    assert status == 1 and "belongs to user 12345" in out


@pytest.mark.parametrize(
    "option", [("--interval", "-1"), ("--interval", "x"), ("--serve", "0"), ("--serve", "http"), ("--pid", "x")]
)
def test_options_that_make_no_sense_are_refused_in_one_line(run: Run, option: tuple[str, str]) -> None:
    status, out, err = run("top", *option)
    assert (status, out) == (2, "") and len(err.splitlines()) == 1


def test_top_prints_blocks_of_lines_where_nobody_sees_a_screen_and_ends_with_ctrl_c(
    live: Callable[..., Live], folder: Path
) -> None:
    live(0, 1).call(7)
    process = spawn("-m", "sglang_probe", "top", "--interval", "0.1", folder=folder)
    assert process.stdout is not None
    seen = ""
    while seen.count("1 rank, SGLang 0.5.9") < 3:
        seen += process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "") and "\x1b" not in seen + out


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


class Enough(Exception):
    """Ends what would go on until Ctrl-C."""


def test_top_draws_a_screen_on_a_terminal_and_leaves_it_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server(folder, 2, lambda ring, rank: ring.put(3))
    monkeypatch.setenv("TERM", "xterm-256color")
    looks: list[Top] = []

    class Twice(Watch):
        def look(self) -> Top:
            if len(looks) == 2:
                raise Enough
            looks.append(super().look())
            return looks[-1]

    out = Terminal()
    with Twice() as watch, pytest.raises(Enough):
        screen.run(watch, 0.01, False, out)
    shown = out.getvalue()
    assert shown.startswith("\x1b[?1049h") and "2 ranks, SGLang 0.5.9" in shown
    assert shown.rstrip().endswith("\x1b[?25h\x1b[?1049l") or "\x1b[?1049l" in shown


def test_top_serves_prometheus(live: Callable[..., Live], folder: Path) -> None:
    import socket
    import urllib.request

    live(0, 1).call(9)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    process = spawn("-m", "sglang_probe", "top", "--serve", str(port), folder=folder)
    assert process.stderr is not None and f"127.0.0.1:{port}/metrics" in process.stderr.readline()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    assert "sglang_probe_calls_total{" in text and list(text_string_to_metric_families(text))
    second = spawn("-m", "sglang_probe", "top", "--serve", str(port), folder=folder)
    out, err = second.communicate(timeout=60)
    assert (second.returncode, out) == (1, "") and "cannot be listened on" in err
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    for stream in (process.stdout, process.stderr):
        assert stream is not None
        stream.close()


# -------------------------------------------------------------------------------------------------------------------------- record


def words(path: Path) -> dict[str, int]:
    """The control words of a file."""
    data = np.frombuffer(path.read_bytes()[1024:1040], "<u4").tolist()
    return dict(zip(("control", "site_every", "timer_every", "host_time"), data, strict=True))


def test_record_writes_the_control_word_of_each_worker_and_nothing_else(run: Run, folder: Path) -> None:
    writers = server(folder, 2, lambda ring, rank: ring.put(3))
    before = [writer.path.read_bytes() for writer in writers]
    status, out, _ = run("record", "start", "--site-every", "64", "--timer-every", "100", "--host-time")
    assert status == 0 and "started 0 of 2 workers (2 did record before); 2 of 2 workers record" in out
    assert all(words(writer.path) == {"control": 1, "site_every": 64, "timer_every": 100, "host_time": 1} for writer in writers)
    status, out, _ = run("record", "stop", "--pid", str(writers[0].pid))
    assert status == 0 and "stopped 2 of 2 workers; 0 of 2 workers record" in out
    assert [words(writer.path)["control"] for writer in writers] == [2, 2]
    run("record", "start", "--site-every", "0", "--timer-every", "0", "--no-host-time")
    assert all(words(writer.path) == {"control": 3, "site_every": 0, "timer_every": 0, "host_time": 0} for writer in writers)
    for data, writer in zip(before, writers, strict=True):
        now = writer.path.read_bytes()
        assert now[:1024] == data[:1024] and now[1040:] == data[1040:]


def test_a_worker_that_was_stopped_and_started_records_no_call_in_between(folder: Path, tmp_path: Path) -> None:
    """With the package's own wrapper around a function: the hook looks at the control word before each call."""
    from sglang_probe import _core
    from sglang_probe._record.folder import ring_name, started

    recorder = _core.Recorder(str(folder / ring_name(os.getpid(), started(os.getpid()))), slots=64)
    recorder.start()
    wrapped = _core.Wrapper(lambda group, tensor: None, recorder, "in_place", 8, group="tp:0")
    tensor = np.zeros(8, np.float32)
    calls = []
    for change in (None, record_stop, record_start):
        if change is not None:
            change(os.getpid())
        for _ in range(5):
            wrapped(None, tensor)
        (worker,) = top(seconds=0).workers
        calls.append((worker.calls, worker.state))
    recorder.close()
    assert calls == [(5, "recording"), (5, "stopped"), (10, "recording")]


def test_record_status_tells_how_each_worker_is_set(run: Run, folder: Path) -> None:
    server(folder, 2, lambda ring, rank: ring.put(3))
    record_start(site_every=64, host_time=True)
    record_stop()
    status, out, _ = run("record", "status")
    assert status == 0 and out.splitlines()[0] == "0 of 2 workers record" and "every 64th" in out and "stopped" in out
    status, out, _ = run("record", "status", "--json")
    plain = json.loads(out)["workers"][0]
    assert (plain["rank"], plain["state"], plain["site_every"], plain["timer_every"], plain["host_time"]) == (
        0,
        "stopped",
        64,
        0,
        True,
    )


def test_a_worker_that_is_gone_is_not_told_anything(run: Run, folder: Path) -> None:
    pid, start = gone()
    ring = RingWriter(folder, pid=pid, started=start)
    before = ring.write().read_bytes()
    status, out, err = run("record", "start", "--pid", str(pid))
    assert (status, out) == (2, "") and f"process {pid} is gone" in err
    status, _, err = run("record", "stop")
    assert status == 2 and "no worker of this user records" in err
    assert ring.path.read_bytes() == before
    assert run("record", "status")[0] == 1 and record_status(dead=True).workers[0].state == "killed"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ((), "give one of start, stop, status, clean"),
        (("stop", "--site-every", "3"), "goes with start"),
        (("start", "--site-every", "-1"), "give n: every n-th call"),
        (("clean", "--pid", "3"), "clean removes the files of all"),
        (("--pid", "3", "--", "python", "-V"), "goes with start"),
        (("--", "no-such-program-of-ours", "x"), "cannot be run"),
    ],
)
def test_record_refuses_what_makes_no_sense(run: Run, folder: Path, line: tuple[str, ...], said: str) -> None:
    status, out, err = run("record", *line)
    assert (status, out) == (2, "") and said in err and len(err.splitlines()) == 1


def test_record_runs_a_command_with_the_hook_in_its_environment_and_has_its_exit_status(folder: Path) -> None:
    code = "import os, sys; print(os.environ['SGLANG_PROBE'], sys.argv[1:]); sys.exit(7)"
    process = spawn("-m", "sglang_probe", "record", "--", sys.executable, "-c", code, "--tp", "8", folder=folder)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 7 and out.strip() == "1 ['--tp', '8']"


def test_clean_removes_files_of_the_dead_alone(run: Run, folder: Path) -> None:
    pid, start = gone()
    living = RingWriter(folder).write()
    old = RingWriter(folder, pid=pid, started=start, rank=0)
    old.now -= 3600 * 10**9
    old.put(3)
    fresh = RingWriter(folder, pid=pid, started=start, other=1)
    fresh.put(3)
    ended = RingWriter(folder, pid=pid, started=start, other=2)
    ended.put(3)
    ended.control["closed"] = 1
    for ring in (old, fresh, ended):
        ring.write()
    status, out, _ = run("record", "clean")
    assert status == 0 and "removed 2 files of processes that have ended" in out and "left 1 file" in out
    assert sorted(folder.iterdir()) == sorted([living, fresh.path])
    assert record_clean() == (0, 0, 1)


# ---------------------------------------------------------------------------------------------------------------------------- dump


def fill(ring: RingWriter, rank: int) -> None:
    ring.put(20, path="pynccl_in_place", host_ns=20_000, device_ns=9_000)
    ring.put(3, path="quick" if rank == 3 else "custom", expected="custom")


def test_dump_shows_records_and_what_is_odd(run: Run, folder: Path) -> None:
    server(folder, 4, fill)
    status, out, err = run("dump")
    assert (status, err) == (0, "")
    assert out.splitlines()[0].startswith(
        "92 records of 4 processes; 4 ranks, SGLang 0.5.9; 3 ALARMs; ranks DIFFER: tp:0 at call 21"
    )
    assert "The newest records (UTC)" in out and "rank 3: tp:0: custom was expected and quick ran in 3 calls" in out


@pytest.mark.parametrize("format", ["json", "perfetto", "prometheus", "measurement"])
def test_dump_prints_what_it_would_write(run: Run, folder: Path, tmp_path: Path, format: str) -> None:
    server(folder, 4, fill)
    status, out, err = run("dump", "--format", format)
    assert (status, err) == (0, "") and out
    path = tmp_path / "out"
    status, told, err = run("dump", "--format", format, "--out", str(path))
    assert (status, told) == (0, "") and err.startswith(f"{path}: 92 records of 4 processes")
    if format == "perfetto":
        assert json.loads(path.read_text())["traceEvents"] == json.loads(out)["traceEvents"]
    status, told, err = run("dump", "--format", format, "--out", str(path))
    assert (status, told) == (2, "") and "is not overwritten: give another name, or --force" in err
    assert run("dump", "--format", format, "--out", str(path), "--force")[0] == 0


def test_dump_of_named_files_and_folders_reads_those_alone(
    run: Run, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = server(folder, 4, fill)
    monkeypatch.setenv("SGLANG_PROBE_DIR", str(tmp_path))
    status, out, _ = run("dump", str(writers[2].path), "--json")
    assert status == 0 and {record["rank"] for record in json.loads(out)["records"]} == {2}
    status, out, _ = run("dump", str(folder), "--json", "--last", "1")
    assert status == 0 and [record["rank"] for record in json.loads(out)["records"]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("--format", "npz"), "npz is no text: give --out FILE"),
        (("--format", "npz", "--json"), "--json is --format json"),
        (("--format", "table", "--out", "x"), "with --out give another format"),
        (("--agree", "--format", "json"), "it has no --format"),
        (("--force",), "goes with --out"),
        (("no-such-file.ring",), "cannot be opened: No such file"),
        (("--format", "measurement"), "no eager call was timed"),
    ],
)
def test_dump_refuses_what_makes_no_sense(run: Run, folder: Path, line: tuple[str, ...], said: str) -> None:
    server(folder, 2, lambda ring, rank: ring.put(3))
    status, out, err = run("dump", *line)
    assert (status, out) == (2, "") and said in err


def test_dump_agree_has_an_exit_status_for_scripts(run: Run, folder: Path) -> None:
    writers = server(folder, 4, lambda ring, rank: ring.put(9))
    status, out, _ = run("dump", "--agree")
    assert status == 0 and out.splitlines()[0] == "all ranks agree: 9 calls of 1 group"
    for rank, writer in enumerate(writers):
        fill(writer, rank)
        writer.write()
    status, out, err = run("dump", "--agree", "--json")
    found: dict[str, Any] = json.loads(out)
    assert (status, err) == (1, "") and found["groups"][0]["differs_at"] == 30
    assert found["groups"][0]["differ"][1]["ranks"] == [3]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_dump_agree_does_not_pass_where_nobody_is_on_record(run: Run, folder: Path, more: tuple[str, ...]) -> None:
    status, out, err = run("dump", "--agree", *more)
    assert (status, err) == (1, "") and "no worker of this user records: looked in" in out


def test_two_who_watch_do_not_disturb_each_other(live: Callable[..., Live]) -> None:
    worker = live(0, 1)
    worker.start(300_000)
    seen: list[int] = []

    def look() -> None:
        with Watch() as watch:
            for _ in range(20):
                seen.append(watch.look().workers[0].calls)

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(seen) == 40 and min(seen) >= 0
