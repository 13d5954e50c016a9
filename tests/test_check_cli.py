"""`sglang-probe check`: the answer on the first line, the exit status, JSON, and errors that name the option."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from check_cases import DEEPSEEK, FUSED, LLAMA, recorded

from sglang_probe import cli

GOOD = ["--launch", DEEPSEEK, "--gpu", "h200", "--sglang", "0.5.9"]


def run(*words: object) -> int:
    return cli.main(["check", *map(str, words)])


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return recorded(FUSED).chrome(tmp_path / "1-TP-0.trace.json.gz")


def test_a_job_of_ci_passes_where_the_trace_agrees(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(trace, *GOOD) == 0
    out = capsys.readouterr()
    assert out.out.splitlines()[0] == "AGREES: 121 fused + 2 custom a step, as expected, in 4 steps of 1 rank"
    assert out.err == ""


def test_a_job_of_ci_fails_where_it_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = recorded(["nccl"] * 123).chrome(tmp_path / "a.json")
    assert run(path, *GOOD) == 1
    assert capsys.readouterr().out.startswith(
        "DIFFERS: expected 121 fused + 2 custom a step; saw 0 fused, 123 ncclDevKernel_AllReduce; first difference: "
    )


def test_a_job_of_ci_does_not_pass_where_nothing_could_be_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(recorded(["norm"]).chrome(tmp_path / "a.json"), *GOOD) == 2
    assert capsys.readouterr().out.startswith("CANNOT TELL: ")


def test_a_damaged_trace_is_bad_input_unless_asked_for(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace.write_bytes(trace.read_bytes()[:-900])
    assert run(trace) == 2
    out = capsys.readouterr()
    assert out.out == "" and "gzip stream is cut off" in out.err and "--partial" in out.err
    assert run(trace, "--partial") == 0
    assert capsys.readouterr().out.startswith("! DAMAGED: ")


def test_json_holds_the_whole_answer(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(trace, *GOOD, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["word"], data["status"], data["expected"]["counts"]) == ("AGREES", 0, {"fused": 121, "custom": 2})
    assert data["ranks"][0]["kinds"][0]["counts"] == {"fused": 121, "custom": 2}


def test_why_shows_where_names_are_read(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(trace, *GOOD, "--why") == 0
    assert "Where kernels' names are read" in capsys.readouterr().out


def test_options_choose_what_is_held_against_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        recorded(["v1"] * 65 if rank else ["nccl"] * 65, rank=rank).chrome(tmp_path / f"1-TP-{rank}.trace.json")
    llama = ["--launch", LLAMA, "--gpu", "h200", "--sglang", "0.5.9"]
    assert run(tmp_path, *llama) == 1
    assert run(tmp_path, *llama, "--rank", 1) == 0
    assert run(tmp_path / "1-TP-1.trace.json", *llama, "--steps", "1:3", "--phase", "replayed") == 0
    assert "in 2 steps of 1 rank" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [(["--steps", "3"], "5:20"), (["--rank", "7"], "no such rank"), (["--batch", "2"], "goes with one of launch"),
     (["--mark", "("], "regular"), (["--launch", "x", "--log", "y"], "either launch or log")],
)  # fmt: skip
def test_bad_options_are_named(trace: Path, words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(trace, *words) == 2
    out = capsys.readouterr()
    assert out.out == "" and told in out.err


def test_no_file_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "none.json") == 2
    assert "No such file" in capsys.readouterr().err
