"""What is left of an experiment when something ends it: Ctrl-C, SIGTERM, kill -9, a damaged file; and that the same call goes on.

Invariant: no test waits for a time: a signal is sent when the command that is running has said that it runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ab_sides import Side, noisy

from sglang_probe import InputError, MeasurementError
from sglang_probe._ab.ab import ab
from sglang_probe._ab.commands import Command
from sglang_probe._ab.journal import read
from sglang_probe._ab.order import order_of
from sglang_probe._ab.result import AbResult
from sglang_probe._ab.runs import WARM_UP, judged
from sglang_probe._verdict.verdict import Word

# Appends its pid to PIDS; from run HANG_AT on, it then stands still.
COMMAND = """
import os, sys
from time import sleep
pids, hang_at, base = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with open(pids, "a+") as file:
    file.write(f"{os.getpid()}\\n")
    file.flush()
    file.seek(0)
    count = len(file.readlines())
if count > hang_at:
    if os.fork() == 0:
        os.setsid()
        with open(pids, "a") as file:
            file.write(f"{os.getpid()}\\n")
    sleep(600)
print(base + count % 5)
"""
# What the child of a test runs: the same experiment as `run` below.
SCRIPT = """
import sys
from test_ab_ends import run
run(sys.argv[1], hang_at=int(sys.argv[2]))
"""
RUNS = 5
WALL = {"kind": "wall", "text": "", "every": False}


@pytest.fixture(autouse=True)
def _without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who edits this checkout while tests run has another revision from one call to the next, and the file is not continued."""
    monkeypatch.setenv("PATH", "")


def arms(folder: str | Path, hang_at: int) -> tuple[Command, Command]:
    script = Path(folder) / "command.py"
    if not script.exists():
        script.write_text(COMMAND)
    (Path(folder) / "hang").write_text(str(hang_at))
    # The same words whether it hangs or not, so that it is the same experiment.
    code = "import sys; sys.argv[1:] = ['pids', open('hang').read(), sys.argv[1]]; exec(open('command.py').read())"
    a, b = (Command((sys.executable, "-I", "-S", "-c", code, base), figure="last", cwd=folder) for base in ("100", "103"))
    return a, b


def run(folder: str | Path, hang_at: int = 1_000_000, **more: Any) -> AbResult:
    a, b = arms(folder, hang_at)
    asked: dict[str, Any] = {"unit": "tok/s", "runs": RUNS, "warm_up": 1, "seed": 5, "progress": False} | more
    return ab(a, b, out=Path(folder) / "x.jsonl", **asked)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[int], subprocess.Popen[str]]]:
    """A process in the middle of an experiment whose command stands still after so many runs, with a child of its own."""
    begun: list[subprocess.Popen[str]] = []

    def start(hang_at: int) -> subprocess.Popen[str]:
        here = os.path.dirname(__file__)
        root = os.path.dirname(here)
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([here, root])}
        command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(hang_at)]
        process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
        begun.append(process)
        while len(_pids(tmp_path)) < hang_at + 2:
            assert process.poll() is None, process.communicate()[1]
        return process

    yield start
    for process in begun:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def _pids(folder: Path) -> list[int]:
    try:
        return [int(line) for line in (folder / "pids").read_text().splitlines()]
    except (FileNotFoundError, ValueError):
        return []


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def _await_end(pids: list[int]) -> None:
    while any(map(_alive, pids)):
        pass


# ------------------------------------------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("hang_at", [2, 5])
def test_an_interrupt_leaves_what_was_measured_and_the_same_call_goes_on(
    tmp_path: Path, started: Callable[[int], subprocess.Popen[str]], hang_at: int
) -> None:
    process = started(hang_at)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate()
    assert process.returncode != 0 and f"interrupted: {hang_at} runs are in " in error and "the same command goes on" in error
    assert not any(map(_alive, _pids(tmp_path)))
    before = read(tmp_path / "x.jsonl.partial")
    assert len(before.runs) == hang_at
    _whole(run(tmp_path), hang_at)


def test_kill_9_ends_the_command_too_and_the_same_call_goes_on(
    tmp_path: Path, started: Callable[[int], subprocess.Popen[str]]
) -> None:
    process = started(5)
    process.kill()
    process.wait()
    _await_end(_pids(tmp_path))
    _whole(run(tmp_path), 5)


def _whole(result: AbResult, before: int) -> None:
    """All runs are there, in the order that an undisturbed experiment has, each made once."""
    assert result.stopped_by == "runs" and result.blocks == RUNS and len(result.runs) == 2 * RUNS + 2
    assert [run.arm for run in judged(result.runs)] == [arm for block in range(RUNS) for arm in order_of(block, 5)]
    assert [run.number for run in result.runs] == list(range(2 * RUNS + 2))
    assert sum(run.block == WARM_UP for run in result.runs) == 2 and before < len(result.runs)
    assert result.path.endswith("x.jsonl") and AbResult.read(result.path).verdict == result.verdict


def test_the_result_of_an_interrupt_is_undecided_and_says_how_it_stands(tmp_path: Path) -> None:
    calls = iter(range(100))

    from sglang_probe._ab import experiment as module
    from sglang_probe._ab.ab import Interrupted

    def one(self: Any, name: Any, block: int, real: Any = module.Experiment._one) -> Any:
        if next(calls) == 9:
            raise KeyboardInterrupt
        return real(self, name, block)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Experiment, "_one", one)
        with pytest.raises(Interrupted, match="interrupted: 9 runs are in ") as stop:
            run(tmp_path)
    result = stop.value.result
    assert result is not None and result.word is Word.UNDECIDED and result.stopped_by == "interrupted" and result.blocks == 3
    assert not result.whole and result.verdict is not None and result.path.endswith(".partial")


@pytest.mark.parametrize("stopped_by", ["decided", "time"])
def test_what_ended_just_before_a_crash_is_not_run_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_by: str) -> None:
    """Its last look is in the file, and the line that ends it is not: another look would be one that nobody accounted for."""
    from sglang_probe._ab import ab as module
    from sglang_probe._ab.experiment import Experiment

    sides = {arm: Side(arm, noisy(center, 0.01, seed)) for arm, center, seed in (("a", 100, 1), ("b", 150, 2))}
    for side in sides.values():
        monkeypatch.setattr(side, "to_dict", lambda: {"kind": "command", "label": "x", "figure": WALL}, raising=False)
    monkeypatch.setattr(module, "sides_of", lambda a, b: sides)
    if stopped_by == "time":
        blocks = iter([False] * 6 + [True] * 9)
        monkeypatch.setattr(Experiment, "_time_is_over", lambda self: next(blocks))
    out = tmp_path / "x.jsonl"
    ended = ab("a", "b", out=out, runs=100, unit="us", progress=False)
    assert ended.stopped_by == stopped_by and ended.word is Word.SLOWER and ended.whole
    data = out.read_bytes()
    out.rename(tmp_path / "x.jsonl.partial")
    (tmp_path / "x.jsonl.partial").write_bytes(b"\n".join(data.split(b"\n")[:-2]) + b"\n")
    again = ab("a", "b", out=out, runs=100, unit="us", progress=False)
    assert again.runs == ended.runs and again.verdict == ended.verdict and again.stopped_by == stopped_by
    assert out.read_bytes() == data


def test_what_was_refused_can_be_allowed_without_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_probe._ab import ab as module

    running = ["a"]

    def side(arm: str, center: float) -> Side:
        good = noisy(center, 0.01, ord(arm))

        def make(number: int) -> Any:
            running[0] = arm
            return good(number)

        return Side(arm, make)

    class Hot:
        def __enter__(self) -> Hot:
            return self

        def __exit__(self, *_: object) -> None: ...

        def state(self) -> dict[str, Any]:
            return {"gpus": [{"throttle": ["software_thermal"] if running[0] == "b" else []}]}

    sides = {"a": side("a", 100), "b": side("b", 150)}
    for name, one in sides.items():
        plain = {"kind": "command", "label": name, "figure": WALL}
        monkeypatch.setattr(one, "to_dict", lambda plain=plain: plain, raising=False)
    monkeypatch.setattr(module, "sides_of", lambda a, b: sides)
    monkeypatch.setattr(module, "Machine", Hot)
    out = tmp_path / "x.jsonl"
    refused = ab("a", "b", out=out, runs=20, unit="us", progress=False)
    assert refused.word is Word.UNDECIDED and refused.stopped_by == "decided" and refused.path.endswith(".partial")
    assert refused.sentence.startswith(
        "UNDECIDED: a and b did not run under the same conditions: GPUs were held down by software_thermal"
    )
    assert (
        AbResult.read(refused.path, allow=["throttle"]).word is Word.UNDECIDED
    )  # whoever reads cannot know that nothing follows
    allowed = ab("a", "b", out=out, runs=20, unit="us", allow=["throttle"], progress=False)
    assert allowed.word is Word.SLOWER and allowed.runs == refused.runs and allowed.path == str(out)
    assert AbResult.read(out).word is Word.UNDECIDED and AbResult.read(out, allow=["throttle"]).word is Word.SLOWER


# ---------------------------------------------------------------------------------------------------------------------------- file


def test_another_experiment_is_not_continued(tmp_path: Path) -> None:
    result = run(tmp_path, time_s=1e-9, warm_up=0)
    assert result.stopped_by == "time" and result.verdict is None and result.word is Word.UNDECIDED and not result.whole
    with pytest.raises(InputError, match=r"is of another experiment, and is not continued \(plan.seed: 6 here, 5 in the file"):
        run(tmp_path, seed=6, warm_up=0)
    assert run(tmp_path, warm_up=0).whole


def test_a_line_that_was_being_written_is_dropped_and_its_run_made_again(tmp_path: Path) -> None:
    whole = run(tmp_path)
    data = Path(whole.path).read_bytes()
    lines = data.split(b"\n")[:-1]
    os.unlink(whole.path)
    kept = b"\n".join(lines[:6]) + b"\n" + lines[6][:40]
    (tmp_path / "x.jsonl.partial").write_bytes(kept)
    again = run(tmp_path)
    assert again.stopped_by == "runs" and len(again.runs) == len(whole.runs)
    assert any("was dropped: it was being written" in note for note in again.notes)


def test_every_flipped_byte_of_a_file_is_found(tmp_path: Path) -> None:
    whole = run(tmp_path, runs=2)
    data = Path(whole.path).read_bytes()
    assert AbResult.read(whole.path).blocks == 2
    bad = tmp_path / "bad.jsonl"
    for place in range(0, len(data), 97):
        bad.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(MeasurementError):
            read(bad)
    for lines in (data.split(b"\n")[:-2], data.split(b"\n")[1:], data.split(b"\n")[:2] + data.split(b"\n")[3:]):
        bad.write_bytes(b"\n".join(lines) + (b"" if lines[-1:] == [b""] else b"\n"))
        with pytest.raises(MeasurementError):
            read(bad)


def test_the_file_can_be_read_without_this_package(tmp_path: Path) -> None:
    import zlib

    result = run(tmp_path, runs=2)
    kinds = []
    for line in Path(result.path).read_bytes().split(b"\n")[:-1]:
        assert zlib.crc32(line[:-20] + b"}") == int(line[-10:-2], 16)
        kinds.append(json.loads(line)["kind"])
    assert kinds[0] == "experiment" and kinds[-1] == "whole" and kinds.count("run") == 6


def test_a_measurement_file_is_no_experiment_and_the_other_way_round(tmp_path: Path) -> None:
    from sglang_probe import Measurement

    result = run(tmp_path, runs=2)
    with pytest.raises(MeasurementError, match="not a measurement file"):
        Measurement.read(result.path)
    (tmp_path / "text").write_text("hello\n")
    with pytest.raises(MeasurementError, match="not an experiment's file"):
        AbResult.read(tmp_path / "text")
    with pytest.raises(InputError, match="there is no such file"):
        AbResult.read(tmp_path / "nothing")


def test_two_at_once_do_not_write_one_file(tmp_path: Path, started: Callable[[int], subprocess.Popen[str]]) -> None:
    started(3)
    with pytest.raises(MeasurementError, match="another writer has it open"):
        run(tmp_path, hang_at=3)
