"""`sglang-probe explain` as people and scripts use it: the answer first, JSON alone on request, a report, errors as options.

Without these an option would not reach the question that it belongs to.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_explain import EIGHT, R18, runs

from sglang_probe import InputError, cli
from sglang_probe._explain.explain import explain

Run = Callable[..., tuple[int, str]]
ARGUMENTS = [
    *("--launch", EIGHT["launch"], "--model", "Llama-3-8B", "--gpu", "h200", "--link", "nvlink", "--batch", "1024"),
    *("--context", "capture", "--sglang-before", "0.5.8", "--sglang-after", "0.5.9"),
]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: str) -> tuple[int, str]:
        status = cli.main(["explain", *argv])
        out, err = capsys.readouterr()
        assert err == ""
        return status, out

    return call


def test_the_example_answers_in_one_line_then_the_reason_then_what_was_seen(run: Run) -> None:
    status, out = run("--example")
    lines = out.splitlines()
    assert status == 0 and lines[0].startswith("CANNOT (unreachable): no all-reduce of this server changes its route")
    assert lines[1].startswith("because rule piecewise_pynccl") and lines[2].startswith("SGLang bba2fc4 -> 0be30d4; Kimi-K2.5")
    assert "Every number, with its origin" not in out
    assert "Every number, with its origin" in run("--example", "--why")[1]


def test_json_is_json_alone_and_the_same_answer(run: Run) -> None:
    status, out = run("--example", "--json")
    assert status == 0 and json.loads(out) == json.loads(json.dumps(explain(example=True).to_dict()))


def test_figures_of_several_runs_and_kinds_are_given_behind_one_option_or_several(run: Run) -> None:
    together = json.loads(run("--before", *runs(20), "--after", *runs(16.7), *ARGUMENTS, "--json")[1])
    apart: list[str] = []
    for name, ms in (("--before", 20.0), ("--after", 16.7)):
        for figure in runs(ms):
            apart += [name, figure]
    assert json.loads(run(*apart, *ARGUMENTS, "--json")[1]) == together
    assert [one["what"] for one in together["seen"]] == ["decode step"] and len(
        together["seen"][0]["verdict"]["a"]["processes"]
    ) == 5
    both = json.loads(run("--before", "20ms", "1000tok/s", "--after", "16ms", "1100tok/s", *ARGUMENTS, "--json")[1])
    assert {one["what"] for one in both["seen"]} == {"decode step", "plain decoding"}


def test_every_option_reaches_its_keyword(monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def listen(**keywords: Any) -> Any:
        asked.update(keywords)
        return explain(example=True)

    monkeypatch.setattr("sglang_probe._explain.explain.explain", listen)
    run(
        *("--before", "b.csv", "--after", "a.csv", "--plain-before", "1ms", "2ms", "--plain-after", "3ms", "--unit", "ms"),
        *(
            "--cell",
            "custom 8MiB",
            "--column",
            "host_us",
            "--accepted",
            "1.8,2.4",
            "--sglang-before",
            "0.5.8",
            "--sglang-after",
            "0.5.9",
        ),
        *(
            "--launch",
            "x",
            "--log",
            "y",
            "--url",
            "z",
            "--model",
            "m",
            "--env",
            "A=1",
            "--gpu",
            "h200",
            "--link",
            "pcie",
            "--nodes",
            "2",
        ),
        *("--gpus", "16", "--batch", "3", "--draft-tokens", "4", "--context", "eager", "--costs", "f", "--costs", "shipped"),
        *("--pattern", "interleaved", "--margin", "0.05", "--confidence", "0.9", "--example"),
    )
    assert asked.pop("progress") is None
    assert asked == {
        "before": "b.csv", "after": "a.csv", "plain_before": ["1ms", "2ms"], "plain_after": "3ms", "unit": "ms",
        "cell": "custom 8MiB", "column": "host_us", "accepted": (1.8, 2.4), "sglang_before": "0.5.8", "sglang_after": "0.5.9",
        "launch": "x", "log": "y", "url": "z", "model": "m", "env": {"A": "1"}, "gpu": "h200", "link": "pcie", "nodes": 2,
        "gpus": 16, "batch": 3, "draft_tokens": 4, "context": "eager", "costs": ["f", "shipped"],
        "pattern": "interleaved", "margin": 0.05, "confidence": 0.9, "example": True,
    }  # fmt: skip


def test_the_two_sides_may_have_cells_of_their_own_and_margins_may_be_percent(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    asked: dict[str, Any] = {}

    def listen(**keywords: Any) -> Any:
        asked.update(keywords)
        return explain(example=True)

    monkeypatch.setattr("sglang_probe._explain.explain.explain", listen)
    run("--cell", "one_shot captured", "--cell", "two_shot captured", "--margin", "5%", "--confidence", "90%", "--example")
    assert (asked["cell"], asked["margin"], asked["confidence"]) == (("one_shot captured", "two_shot captured"), 0.05, 0.9)


def test_a_report_has_the_line_that_made_it_without_keys_and_folders(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from sglang_probe import _report

    for name, ms in (("old", 19.0), ("new", 29.0)):
        (tmp_path / f"{name}.csv").write_text("\n".join(["ms", *(f"{ms + more:.2f}" for more in (0.0, 0.1, -0.1, 0.05))]) + "\n")
    launch = f"HF_TOKEN=hf_0123456789abcdefghij {EIGHT['launch']} --api-key sk-0123456789abcdefghij --host 0.0.0.0"
    arguments = [launch if word == EIGHT["launch"] else word for word in ARGUMENTS]
    argv = ["explain", "--before", str(tmp_path / "old.csv"), "--after", str(tmp_path / "new.csv"), *arguments]
    assert cli.main([*argv, "--report", str(tmp_path / "a.html"), "--markdown"]) == 0
    told, page = capsys.readouterr().out, (tmp_path / "a.html").read_text()
    commands = dict(_report.read(tmp_path / "a.html")["commands"])
    assert commands["this report"].startswith("sglang-probe explain --before old.csv --after new.csv --launch ")
    for text in (told, page):
        assert "sglang-probe explain --before old.csv" in text
        assert str(tmp_path) not in text and "0123456789abcdefghij" not in text
    assert cli.main(argv) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "BEFORE/bin/python" in line]
    assert all("0123456789abcdefghij" not in line and "--api-key" not in line and "HF_TOKEN" not in line for line in lines)


def test_every_keyword_of_the_function_has_an_option() -> None:
    import inspect

    args = cli.build_parser().parse_args(["explain"])
    assert set(inspect.signature(explain).parameters) - {"progress"} <= set(vars(args))


def test_a_report_holds_everything_and_markdown_is_for_a_bug_report(run: Run, tmp_path: Path) -> None:
    from sglang_probe import _report

    file = tmp_path / "answer.html"
    status, out = run("--example", "--report", str(file), "--markdown")
    assert status == 0 and out.startswith("**CANNOT") and "| verify step |" in out
    held = _report.read(file)
    assert held["result"]["word"] == "CANNOT_UNREACHABLE" and held["result"]["proof"]["states_fixed"] == 6145


@pytest.mark.parametrize(
    ("argv", "field"),
    [
        (("--example", "--accepted", "two"), "accepted"),
        (("--example", "--cell", "a", "--cell", "b", "--cell", "c"), "cell"),
        (("--example", "--launch", R18), "launch"),
        (("--example", "--before", "19", "--after", "29"), "before"),
        (("--before", "19ms", "--after", "29ms"), "sglang_before"),
        (("--before", "19ms", "--after", "29ms", "--sglang-before", "0.5.8", "--sglang-after", "0.5.9"), "launch"),
    ],
)
def test_bad_options_are_named(argv: tuple[str, ...], field: str) -> None:
    args = cli.build_parser().parse_args(["explain", *argv])
    with pytest.raises(InputError) as caught:
        args.run(args)
    assert caught.value.field == field


def test_help_names_the_five_answers() -> None:
    command = next(action for action in cli.build_parser()._actions if isinstance(action, argparse._SubParsersAction)).choices[
        "explain"
    ]
    text = " ".join(command.format_help().split())
    for word in ("CANNOT (unreachable", "too small", "COULD", "NOTHING TO EXPLAIN yet", "INCONSISTENT"):
        assert word in text
