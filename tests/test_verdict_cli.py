"""`sglang-probe verdict` as people and scripts use it: the answer first, JSON alone on request, errors as options, reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang_probe import cli

Run = Callable[..., tuple[int, str, str]]
A, B = "4023.5,4019.9,3380.1,4002,4090", "4384.6,4466.1,4471.0"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: str) -> tuple[int, str, str]:
        status = cli.main(["verdict", *argv])
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_the_sentence_is_the_first_line_the_reason_the_second_the_figures_on_request(run: Run) -> None:
    status, out, err = run(A, B, "--unit", "tok/s")
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[0].startswith("FASTER: b is 11.1 % higher than a (tok/s, 95 % interval ")
    assert lines[1].startswith("every run of b is above every run of a: p = 0.036")
    assert "3380.1" in out and "Both arms" not in out
    assert "Both arms" in run(A, B, "--unit", "tok/s", "--why")[1]


@pytest.mark.parametrize(("a", "b"), [("89", "82"), ("8.1,8.2,8.3,8.4", "8.1,8.2,8.3,8.4"), ("1,1.1,1.2,1.3", "3,3.1,3.2,3.3")])
def test_every_word_is_an_answer(run: Run, a: str, b: str) -> None:
    assert run(a, b, "--unit", "ms")[0] == 0


def test_json_is_json_alone(run: Run) -> None:
    status, out, _ = run("89tok/s", "82tok/s", "--json")
    plain = json.loads(out)
    assert status == 0 and plain["word"] == "UNDECIDED" and plain["a"]["processes"] == [[89.0]] and plain["low"] is None


def test_margin_and_confidence_may_be_percent(run: Run) -> None:
    close = "100,100.1,99.9,100.05,99.95"
    assert run(close, close, "--unit", "us", "--margin", "1%")[1].startswith("SAME: b is within 1 % of a")
    plain = json.loads(run(close, close, "--unit", "us", "--margin", "0.001", "--confidence", "99%", "--json")[1])
    assert (plain["margin"], plain["confidence"]) == (0.001, 0.99)


def test_one_csv_file_with_a_column_of_arms_is_enough(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    rows = [f"{version},{ms}" for version, ms in zip("xyxyxyxy", (9, 5, 9.1, 5.1, 9.2, 5.2, 9.3, 5.3), strict=True)]
    path.write_text("\n".join(["version,time_ms", *rows]) + "\n")
    assert run(str(path), "--arm-column", "version")[1].startswith("FASTER: y is ")
    assert run(str(path), "--arm-column", "version", "--arms", "y,x")[1].startswith("SLOWER: x is ")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["89", "82"], "better: figures without a unit"),
        (["89"], "give both arms, or one CSV file"),
        (["89", "82", "--unit", "ms", "--margin", "3"], "give a fraction"),
        (["89", "nan", "--unit", "ms"], "not a number"),
        (["89ms", "82tok/s"], "cannot be compared"),
        (["89ms", "missing.csv"], "cannot be read"),
        (["89ms", "82ms", "--cell", "custom"], "goes with a Measurement"),
        (["a.csv", "b.csv", "--arm-column", "x"], "both arms are in one CSV file"),
        (["89ms", "82ms", "--cell", "x", "--cell", "y", "--cell", "z"], "once for both arms, or twice"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_status_2_and_one_line_on_stderr(run: Run, argv: list[str], said: str) -> None:
    status, out, err = run(*argv)
    assert status == 2 and out == "" and said in err and err.count("\n") == 1 and err.startswith("sglang-probe: ")


def test_blanks_between_figures_are_told_as_such(run: Run) -> None:
    status, out, err = run("89,", "90", "82,", "83", "--unit", "tok/s")
    assert (status, out) == (2, "") and err.startswith("sglang-probe: b='90 82, 83': ") and "commas between and no blanks" in err


def test_a_report_has_the_line_that_made_it_and_a_name_that_cannot_be_is_refused_first(run: Run, tmp_path: Path) -> None:
    assert run(A, B, "--unit", "tok/s", "--report", str(tmp_path / "x.html"))[0] == 0
    assert f"sglang-probe verdict {A} {B} --unit tok/s --report x.html" in (tmp_path / "x.html").read_text()
    assert f"sglang-probe verdict {A} {B} --unit tok/s --markdown" in run(A, B, "--unit", "tok/s", "--markdown")[1]
    for name in ("x.txt", "no/folder/x.html"):
        status, out, err = run(A, B, "--unit", "tok/s", "--report", str(tmp_path / name))
        assert (status, out) == (2, "") and "report='" in err


def test_a_report_is_a_file_that_holds_everything_and_markdown_is_for_a_bug_report(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "verdict.html"
    status, out, _ = run(A, B, "--unit", "tok/s", "--report", str(path), "--markdown")
    assert status == 0 and "FASTER" in out and "3380.1" in out
    page = path.read_text()
    assert "FASTER: b is 11.1 % higher than a" in page and "3380.1" in page
