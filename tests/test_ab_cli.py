"""`sglang-probe ab` and `noise`: options, exit statuses, JSON, and what stands on which stream.

Invariant: commands are short Python programs, targets run on CPU ranks.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sglang_probe import cli
from sglang_probe._ab.targets import Target
from sglang_probe._cli.ab import arm_of, time_of
from sglang_probe._types import InputError

PRINT = shlex.join([sys.executable, "-I", "-S", "-c", "import os, sys; print(int(sys.argv[1]) + os.getpid() % 7 / 10)"])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")


def asked(*argv: str) -> Any:
    return cli.build_parser().parse_args(argv)


def test_the_answer_is_the_first_line_and_the_status_is_0(capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["ab", "-a", f"{PRINT} 100", "-b", f"{PRINT} 200", "--figure", "last", "--unit", "tok/s", "--runs", "12"])
    out, err = capsys.readouterr()
    assert status == 0 and out.startswith("FASTER: b is ") and "ab.jsonl" in out and not err
    assert os.path.exists("ab.jsonl") and not os.path.exists("ab.jsonl.partial")


def test_json_holds_everything_and_nothing_else_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    line = [*shlex.split(PRINT), "100"]
    status = cli.main(["ab", "--b-env", "SGL_X=1", "--figure", "last", "--better", "lower", "--runs", "2", "--json", "--", *line])
    plain = json.loads(capsys.readouterr().out)
    assert status == 0 and plain["word"] == "UNDECIDED" and plain["stopped_by"] == "runs" and len(plain["runs"]) == 6
    assert plain["plan"]["b"]["env"] == {"SGL_X": "1"} and plain["seed"] == 0 and plain["provenance"]["version"]


def test_an_arm_that_fails_is_status_1_and_time_that_is_over_at_once_is_3(capsys: pytest.CaptureFixture[str]) -> None:
    bad = shlex.join([sys.executable, "-c", "raise SystemExit(3)"])
    assert cli.main(["ab", "-a", f"{PRINT} 1", "-b", bad, "--figure", "last", "--unit", "s", "--out", "one.jsonl"]) == 1
    out, err = capsys.readouterr()
    assert "b failed 2 times" in out and "run 2 (b, warming up) failed: it ended with exit status 3" in err
    asked = [
        "ab",
        "-a",
        f"{PRINT} 1",
        "-b",
        f"{PRINT} 2",
        "--figure",
        "last",
        "--unit",
        "s",
        "--time",
        "0.0001",
        "--warm-up",
        "0",
    ]
    assert cli.main(asked) == 3


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["ab"], "give -a COMMAND"),
        (["ab", "-a", "true"], "give -b COMMAND"),
        (["ab", "-a", "true", "--", "true"], "give either -a, or one command for both"),
        (["ab", "--a-target", "one_shot", "--size", "4K"], "give -b COMMAND"),
        (["ab", "--target", "one_shot", "--b-env", "X", "--size", "4K"], "give NAME=VALUE"),
        (["ab", "-a", "true", "-b", "true", "--time", "soon"], "give seconds, as 90"),
        (["ab", "-a", "/none", "-b", "/none"], "there is no such program; for a shell's own words"),
        (["noise", "--", "sleep 0.01"], "there is no such program; the quotes make it one word: leave them out"),
        (["noise"], "give a command behind --, or --target"),
    ],
)
def test_bad_input_is_status_2_with_the_field_and_the_remedy(
    argv: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert text in err and not out and not os.listdir()


def test_options_of_an_arm_count_more_than_those_of_both() -> None:
    args = asked("ab", "--target", "one_shot", "--size", "4K", "--device", "host", "--b-target", "two_shot", "--b-phase", "eager")
    a, b = arm_of(args, "a"), arm_of(args, "b")
    assert isinstance(a, Target) and isinstance(b, Target)
    assert (a.name, a.phase, b.name, b.phase) == ("one_shot", "captured", "two_shot", "eager")
    args = asked("ab", "--sglang", "0.5.8", "--size", "4K", "--toggle", "custom=disabled", "--b-target", "one_shot")
    a = arm_of(args, "a")
    assert isinstance(a, Target) and a.sglang == "0.5.8" and dict(a.toggles) == {"custom": "disabled"}
    args = asked("ab", "--target", "one_shot", "--size", "4K", "--a-sglang", "0.5.9", "--a-toggle", "piecewise=1")
    a = arm_of(args, "a")
    assert isinstance(a, Target) and (a.name, a.sglang, dict(a.toggles)) == ("", "0.5.9", {"piecewise": True})


def test_times_are_seconds_minutes_or_hours() -> None:
    assert [time_of("time", text) for text in ("90", "1.5m", "2h", "5 s")] == [90, 90, 7200, 5]
    with pytest.raises(InputError):
        time_of("time", "-3")


def test_paths_of_the_bench_are_arms_too(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["ab", "--a-target", "one_shot", "--b-target", "pynccl_in_place", "--size", "4K", "--device", "host", "--runs", "2"]
    assert cli.main([*argv, "--warm-up", "0", "-v"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("UNDECIDED: ") and "one_shot, 4 KiB, bf16, captured" in out and "Runs, in the order" in out


def test_noise_says_what_can_be_resolved(capsys: pytest.CaptureFixture[str]) -> None:
    line = [*shlex.split(PRINT), "100"]
    assert cli.main(["noise", "--figure", "last", "--runs", "6", "--", *line]) == 0
    out = capsys.readouterr().out
    assert (
        out.startswith("NOISE: ")
        and "fresh processes of this differ by " in out.splitlines()[0]
        and os.path.exists("noise.jsonl")
    )
    assert cli.main(["noise", "--figure", "last", "--runs", "6", "--json", "--out", "n.jsonl", "--", *line]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == 6


def test_a_report_is_one_file_and_markdown_begins_with_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["-a", f"{PRINT} 100", "-b", f"{PRINT} 200", "--figure", "last", "--unit", "us", "--runs", "8"]
    assert cli.main(["ab", *argv, "--report", "ab.html", "--markdown"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("**SLOWER: b is ") and "| arm |" in out
    text = Path("ab.html").read_text()
    assert text.lstrip().lower().startswith("<!doctype html>") and "SLOWER" in text
    line = [*shlex.split(PRINT), "100"]
    assert cli.main(["noise", "--figure", "last", "--runs", "4", "--report", "n.html", "--markdown", "--", *line]) == 0
    assert capsys.readouterr().out.startswith("**NOISE: ") and os.path.getsize("n.html") > 1000


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, mark = tmp_path / "q.jsonl", tmp_path / "ran"
    command = f"touch {mark}"
    for name in ("q.pdf", "no/folder/q.html"):
        argv = ["ab", "-a", command, "-b", command, "--out", str(out), "--report", str(tmp_path / name), "--runs", "1"]
        assert cli.main(argv) == 2
        printed = capsys.readouterr()
        assert printed.out == "" and "report='" in printed.err
    assert not out.exists() and not mark.exists()


def test_a_signal_ends_it_with_its_status_and_the_same_command_goes_on(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[1]
    script = "import os, sys\nfrom time import sleep\nopen('begun', 'a').write('x')\nsleep(0 if os.path.getsize('begun') < 4 or "
    (tmp_path / "command.py").write_text(script + "os.path.exists('go') else 600)\nprint(3 + os.getpid() % 5)\n")
    line = f"{sys.executable} -I -S command.py"
    argv = ["-m", "sglang_probe", "ab", "-a", line, "-b", line, "--figure", "last", "--unit", "us", "--runs", "3"]
    env = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen([sys.executable, *argv], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "begun").exists() or (tmp_path / "begun").stat().st_size < 4:
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert process.returncode == 143 and "interrupted: 3 runs are in ab.jsonl.partial; the same command goes on" in err
    assert out.startswith("UNDECIDED: ")
    (tmp_path / "go").write_text("")
    again = subprocess.run([sys.executable, *argv], env=env, capture_output=True, text=True, check=False)
    assert again.returncode == 0 and "all 3 runs of each arm are done" in again.stdout
