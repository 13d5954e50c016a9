"""Reports of what was routed: a command's page in one file, its picture, nothing loaded, and nothing written where something else stands.

Invariant: a report is held against what the same command prints, and its picture against the router.
"""

from __future__ import annotations

import json
import re
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from test_report import HOSTILE, Reader, check_harmless
from test_report_picture import contrast

import sglang_probe as probe
from sglang_probe import _report, cli
from sglang_probe._conform.conform import Report
from sglang_probe._report.paged import KINDS
from sglang_probe._report.theme import DARK, LIGHT
from sglang_probe._show import paths, strips
from sglang_probe._show.render import conform_page

pytest.importorskip("matplotlib", reason="the pictures' tests need what draws them: the extra report")

LAUNCH = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"
SERVER = ("--launch", LAUNCH, "--gpu", "h200")
COMMANDS: dict[str, tuple[str, ...]] = {
    "step": ("step", *SERVER, "--sglang", "0.5.9"),
    "route": ("route", "--bytes", "8MiB", "--gpu", "h200", "--world-size", "8", "--sglang", "0.5.9"),
    "bands": ("bands", "--gpu", "h200", "--world-size", "8", "--context", "capture", "--sglang", "0.5.16"),
    "dispatch": ("dispatch", "--sglang", "0be30d4", "--piecewise"),
    "reach": ("reach", "piecewise_pynccl", "--sglang", "0be30d4", "--no-piecewise"),
    "diff": ("diff", "bba2fc4", "0be30d4"),
    "history": ("history", *SERVER, "--sglang", "0.5.8..0.5.18"),
}
DRAWN = {"step", "bands", "history"}


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


@pytest.fixture(params=COMMANDS)
def made(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, str, Path]:
    """A command's name, what it printed, and the report that it wrote."""
    path = tmp_path / "report.html"
    assert cli.main([*COMMANDS[request.param], "--report", str(path)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return request.param, out, path


def test_every_command_that_can_write_a_report_has_a_name_for_it() -> None:
    own = {"verdict", "ab", "noise", "explain"}
    assert set(KINDS) == cli.REPORTED - own and set(COMMANDS) == set(KINDS) - {"conform", "bisect", "check"}
    commands = next(action for action in cli.build_parser()._actions if action.dest == "command").choices
    assert commands is not None
    with_report = {name for name, one in commands.items() if any("--report" in a.option_strings for a in one._actions)}  # type: ignore[index,attr-defined,unused-ignore]
    assert with_report == cli.REPORTED


def test_a_report_says_what_the_command_printed_and_loads_nothing(made: tuple[str, str, Path]) -> None:
    name, out, path = made
    found = check_harmless(path.read_text(encoding="utf-8"))
    held = " ".join(words(found.text))
    for line in out.splitlines():
        for cell in re.split(r"\s{2,}", line.strip()):
            assert " ".join(words(cell)) in held, cell
    heading = re.search(r"<h1>(.*?)</h1>", path.read_text(encoding="utf-8"))
    assert heading and unescape(heading[1]) == out.splitlines()[0]
    assert len(found.all("svg")) == (name in DRAWN)
    command = dict(_report.read(path)["commands"])["this report"]
    assert command.startswith(f"sglang-probe {name} ") and str(path.parent) not in command


def test_the_answer_reads_back_from_the_report_as_json_prints_it(
    made: tuple[str, str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    name, _, path = made
    assert cli.main([*COMMANDS[name], "--json", "--report", str(path)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert probe.read_report(path)["result"] == printed and printed


@pytest.mark.parametrize("verbose", [False, True])
def test_the_answer_stands_first_then_the_reason_then_the_picture_then_calls_costs_and_what_was_assumed(
    tmp_path: Path, verbose: bool
) -> None:
    path = tmp_path / "x.html"
    assert cli.main([*COMMANDS["step"], "--report", str(path), *(["--why"] * verbose)]) == 0
    page = path.read_text(encoding="utf-8")
    marks = [
        "2 x custom, 14,336 bytes",
        "because of rule custom",
        "<svg",
        "Calls</h2>",
        "Costs are</h2>",
        "Assumed</h2>",
        "Commands</h2>",
    ]
    places = [page.index(mark) for mark in marks]
    assert places == sorted(places)
    assert ("Server arguments that are not defaults" in page) == verbose


def test_a_key_of_the_launch_line_stands_nowhere_in_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, secret = tmp_path / "x.html", "hush0123456789"
    launch = f"HF_TOKEN={secret} {LAUNCH} --api-key {secret}"
    for argv in (("step", "--sglang", "0.5.9"), ("history", "--sglang", "0.5.9..0.5.10")):
        assert cli.main([*argv, "--launch", launch, "--gpu", "h200", "--report", str(path), "--why"]) == 0
        assert secret not in path.read_text(encoding="utf-8") + capsys.readouterr().out


@pytest.mark.parametrize("evil", HOSTILE, ids=range(len(HOSTILE)))
def test_no_word_of_a_user_becomes_markup(evil: str, tmp_path: Path) -> None:
    report = Report(evil, None, None, notes=[evil])
    _report.write_page("conform", conform_page(report), report.to_dict(), tmp_path / "x.html", command=f"sglang-probe {evil}")
    found = check_harmless((tmp_path / "x.html").read_text(encoding="utf-8"))
    assert found.text.count(_report.text.shown(evil)) >= 3


def test_a_result_of_python_writes_the_same_report(tmp_path: Path) -> None:
    found = probe.step(LAUNCH, gpu="h200", sglang="0.5.9")
    assert found.write(tmp_path / "a.html") == str(tmp_path / "a.html")
    assert cli.main([*COMMANDS["step"], "--report", str(tmp_path / "b.html")]) == 0
    ours, theirs = (probe.read_report(tmp_path / name) for name in ("a.html", "b.html"))
    assert ours["result"] == theirs["result"] and ours["kind"] == "step" and not ours["commands"]
    group = probe.Group.make(world_size=8, arch=90, full_nvlink=True)
    probe.bands(group, sglang="0.5.9").write(tmp_path / "bands.html")
    probe.history(group=group, releases="0.5.9..0.5.16").write(tmp_path / "history.html")
    assert all("<svg" in (tmp_path / f"{name}.html").read_text() for name in ("a", "bands", "history"))
    assert "| embedding |" in _report.markdown(found)


def test_without_matplotlib_everything_but_the_picture_comes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name == "matplotlib" or name.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main([*COMMANDS["step"], "--report", str(tmp_path / "x.html")]) == 0
    found = Reader((tmp_path / "x.html").read_text(encoding="utf-8"))
    assert "no matplotlib here: pip install 'sglang_probe[report]'" in found.text and not found.all("svg")
    assert "asked for: 2 calls of 14 KiB (121 more fused)" in found.text, "the picture in words"


# ------------------------------------------------------------------------------------------------------------------------ the file


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("answer.txt", "ends in .html"),
        ("no/such/answer.html", "no folder"),
        ("mine.html", "not overwritten"),
        ("folder.html", "no file"),
    ],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_what_cannot_be_a_report_is_refused_before_anything_is_asked(
    name: str, why: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.html").write_text("<html>mine</html>")
    (tmp_path / "folder.html").mkdir()
    monkeypatch.setattr(f"sglang_probe._cli.{_module(command)}.run_{command}", lambda args: pytest.fail("it was asked"))
    assert cli.main([*COMMANDS[command], "--report", str(tmp_path / name)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "report=" in err and why in err
    assert (tmp_path / "mine.html").read_text() == "<html>mine</html>" and len([*tmp_path.iterdir()]) == 2


def _module(command: str) -> str:
    return {"bands": "route"}.get(command, command)


def test_a_full_disk_is_named_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert cli.main([*COMMANDS["dispatch"], "--report", str(tmp_path / "x.html")]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "x.html: it cannot be written: No space left on device" in err and not [*tmp_path.iterdir()]


# --------------------------------------------------------------------------------------------------------------------- the picture


@pytest.fixture(scope="module", params=["0.5.9", "0.5.16", "0.5.23"])
def step(request: pytest.FixtureRequest) -> probe.Step:
    return probe.step(LAUNCH, gpu="h200", sglang=request.param)


def test_a_strip_is_what_the_router_says_of_every_size(step: probe.Step) -> None:
    assert step.server is not None
    _, found = strips.step_strips(step)
    assert [strip.label.split("\n")[0] for strip in found] == ["decode step", "prefill chunk"]
    for strip in found:
        context = strip.label.split("\n")[1]
        edges = {size for span in strip.spans for size in (span.first_bytes, span.last_bytes)}
        sizes = {s + d for s in edges for d in (-16, 0, 16)} | {1 << power for power in range(4, 34)}
        for size in {max(s // 16 * 16, 16) for s in sizes if s < 1 << 40}:
            call = probe.Call(size, hidden=7168)
            decision = probe.route(call, step.server.groups["tp"], context=context, sglang=step.sglang)
            (span,) = [span for span in strip.spans if span.first_bytes <= size <= span.last_bytes]
            assert (span.path, span.name) == (decision.path, decision.kernel or span.name), size


def test_the_marks_are_the_calls_of_the_step_and_of_a_chunk(step: probe.Step) -> None:
    _, (own, chunk) = strips.step_strips(step)
    assert [(mark.nbytes, mark.calls, mark.fused, mark.path) for mark in own.marks] == [(step.nbytes, 2, 121, "")]
    (mark,) = chunk.marks
    past = probe.history(LAUNCH, gpu="h200", releases=step.sglang).every[0].prefill
    assert (mark.nbytes, mark.calls, mark.fused) == (past.nbytes, past.all_reduces - past.fused, past.fused)


def test_the_example_has_a_strip_for_each_commit_and_context() -> None:
    title, found = strips.step_strips(probe.step(example=True))
    assert title.endswith("Kimi-K2.5 on 8 GPUs") and len(found) == 4
    assert found[0].label == "SGLang 0be30d4\neager" and str(found[0].marks[0]) == "123 calls of 42 KiB"


def test_a_call_that_goes_another_way_than_its_size_says_which() -> None:
    span = paths.Span(1, 1 << 62, probe.Path.CUSTOM, "one_shot", False)
    mark = strips.Mark(1 << 20, 3, 0, "pynccl_out_of_place")
    assert str(mark) == "3 calls of 1 MiB: pynccl_out_of_place" and str(strips.Mark(8, 0, 5)) == "8 B (5 fused)"
    assert "asked for: 3 calls of 1 MiB: pynccl_out_of_place" in strips.alt_of("x", [strips.Strip("a", (span,), (mark,))])


def test_a_step_without_an_all_reduce_has_its_strip_all_the_same() -> None:
    launch = (
        "python -m sglang.launch_server --model-path meta-llama/Meta-Llama-3-70B-Instruct --tp 4 --enable-dp-attention --dp 2"
    )
    found = probe.step(launch, gpu="rtx-pro-6000", model="Llama-3-70B", sglang="0.5.16")
    assert not found.calls
    _, (strip, *_) = strips.step_strips(found)
    assert strip.spans and not strip.marks


@pytest.mark.parametrize("dark", [False, True])
def test_the_figure_has_units_words_and_the_origin_in_its_legend(step: probe.Step, dark: bool) -> None:
    figure = step.picture(dark=dark)
    (axes,) = figure.axes
    assert "bytes of one all-reduce" in axes.get_xlabel() and axes.get_xscale() == "log"
    assert [tick.get_text().split("\n")[0] for tick in axes.get_yticklabels()] == ["decode step", "prefill chunk"]
    legend = figure.legends[0]
    assert legend.get_title().get_text() == paths.CAPTION == "routing of SGLang's code as modelled, no measurement"
    drawn = {text.get_text() for text in legend.get_texts()}
    _, found = strips.step_strips(step)
    assert {str(span.path) for strip in found for span in strip.spans if span.first_bytes < paths.HIGHEST} <= drawn
    told = [text.get_text() for text in axes.texts]
    assert all(str(mark) in told for strip in found for mark in strip.marks)
    data, meta = figure._repr_png_()
    assert data.startswith(b"\x89PNG") and len(data) < 40_000 and "asked for" in meta["alt"]
    assert figure.get_facecolor()[:3] == pytest.approx(
        [int((DARK if dark else LIGHT).ground[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    )


def test_what_stands_on_a_path_reads_on_it_and_what_stands_beside_it_on_both_grounds() -> None:
    for path, (colour, _) in paths.STYLES.items():
        assert contrast(colour, {"white": "#ffffff", "black": "#000000"}[paths.ink_on(path)]) >= 4.5, path
    for theme in (LIGHT, DARK):
        assert contrast(theme.ink, theme.ground) >= 7


def test_in_a_page_a_path_keeps_its_colour_and_all_else_is_the_page_s(tmp_path: Path) -> None:
    assert cli.main([*COMMANDS["step"], "--report", str(tmp_path / "x.html")]) == 0
    svg = re.search(r"<svg.*</svg>", (tmp_path / "x.html").read_text(encoding="utf-8"), re.S)
    assert svg is not None
    assert set(re.findall(r"var\(--sp-(\w+)", svg[0])) <= {"faint"} and "currentColor" in svg[0]
    colours = set(re.findall(r"#[0-9a-f]{6}\b", re.sub(r"var\([^)]*\)", "", svg[0]).lower()))
    own = {colour.lower() for colour, _ in paths.STYLES.values()}
    assert colours <= own | {"#ffffff", "#000000"} and {"#0072b2", "#d55e00", "#bbbbbb"} <= colours


def test_a_title_with_a_dollar_is_no_formula() -> None:
    found: Any = probe.step(LAUNCH, gpu="h200", sglang="0.5.9")
    import dataclasses

    dataclasses.replace(found, model="$x_{").picture().canvas.draw()
