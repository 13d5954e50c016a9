"""What people see: exact sizes, the same words everywhere, HTML for dark and light pages, single changes that are true."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sglang_probe import Call, Decision, Group, InputError, Path, cli
from sglang_probe._bands import bands
from sglang_probe._route import dispatch, route
from sglang_probe._show import page as _page
from sglang_probe._show import render
from sglang_probe._show.bands import bands_page
from sglang_probe._show.sizes import human_bytes, parse_bytes
from sglang_probe._show.step import step_page
from sglang_probe._step.changes import earlier_by_one_change
from sglang_probe._step.step import Step, step

PCIE = Group.make(world_size=8, arch=120, full_nvlink=False, multicast=False)
NVLINK = Group.make(world_size=8)
CALL = Call(43008, tokens=3, hidden=7168)


# ----------------------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (16, "16 B"),
        (798, "798 B"),
        (1024, "1 KiB"),
        (43008, "42 KiB"),
        (262128, "256 KiB - 16 B"),
        (262160, "256 KiB + 16 B"),
        (307200, "300 KiB"),
        (1572864, "1.5 MiB"),
        (8388592, "8 MiB - 16 B"),
        (16777216, "16 MiB"),
        (33600 << 10, "32.8125 MiB"),
        (1124 << 10, "1 MiB + 100 KiB"),
        ((33601 << 10) + 5, "32 MiB + 833 KiB + 5 B"),
        (2**63 - 16, "8 EiB - 16 B"),
    ],
)
def test_a_boundary_is_told_exactly_and_short(nbytes: int, text: str) -> None:
    assert human_bytes(nbytes) == text


@given(st.integers(1, 2**63 - 1) | st.integers(1, 1 << 24))
def test_a_printed_size_can_be_given_back_and_is_the_same_size(nbytes: int) -> None:
    assert parse_bytes(human_bytes(nbytes)) == nbytes


@pytest.mark.parametrize("text", ["", "-", "16 XB", "0", "-16", "1.3", "9223372036854775808", "16-16", "1e6", "8MiB-", "٣"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="bytes="):
        parse_bytes(text)


# ----------------------------------------------------------------------------------------------------------------------- pages


def pages() -> dict[str, _page.Page]:
    decision = route(CALL, PCIE, context="eager", sglang="0be30d4")
    server = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"
    return {
        "decision": render.decision_page(decision, CALL, PCIE, "eager", verbose=True),
        "dispatch": render.decision_page(dispatch("0.5.9", custom="declines", pynccl="enabled")),
        "bands": bands_page(bands(NVLINK, context="capture", sglang="0.5.16"), verbose=True),
        "example": step_page(step(example=True)),
        "step": step_page(step(server, gpu="h200", sglang="0.5.9"), verbose=True),
    }


PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_terminal_pipe_and_notebook_show_the_same_words(name: str) -> None:
    page = PAGES[name]
    plain = _page.to_text(page)
    console = Console(file=io.StringIO(), width=90, force_terminal=True, color_system=None, highlight=False)
    _page.print_rich(page, console)
    assert isinstance(console.file, io.StringIO)
    terminal = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())
    assert "…" not in terminal
    # A name that is longer than its column is folded, not cut: compare without spaces.
    assert sorted(re.sub(r"\s", "", terminal)) == sorted(re.sub(r"\s", "", plain))
    from html import unescape

    shown = unescape(re.sub("<[^>]*>", "", _page.to_html(page))).replace("⚠", "!")
    marks = plain.count("\n  - ")
    assert sorted(re.sub(r"\s", "", shown) + "-" * marks) == sorted(re.sub(r"\s", "", plain))


@pytest.mark.parametrize("name", PAGES)
def test_html_fixes_no_colour_so_that_it_reads_on_dark_and_light_pages(name: str) -> None:
    html = _page.to_html(PAGES[name])
    assert not re.search(r"(?<![-\w])color\s*:", html)
    assert set(re.findall(r"background[^;\"]*", html)) <= {"background:transparent"}
    assert "<script" not in html


def test_html_escapes_what_a_launch_line_or_a_log_may_hold() -> None:
    page: _page.Page = [_page.Line("<b>x</b>", "warn"), _page.Items("<i>", ("<u>",)), _page.Table("t<", ("a<",), (("<td>",),))]
    html = _page.to_html(page)
    assert not re.search(r"<(b|i|u)>", html) and "<td>" not in html.replace('<td style="', "")


def test_a_logs_escape_sequences_are_told_and_not_obeyed() -> None:
    page: _page.Page = [
        _page.Line("\x1b[31mred\x07", "warn"),
        _page.Items("a\rb", ("\x9b2J",)),
        _page.Table("t", ("c",), (("\u202ex\ny",),)),
    ]
    console = Console(file=io.StringIO(), width=90, force_terminal=True, color_system=None, highlight=False)
    _page.print_rich(page, console)
    assert isinstance(console.file, io.StringIO)
    for shown in (_page.to_text(page), _page.to_html(page), console.file.getvalue()):
        assert "\\x1b[31mred\\x07" in shown and "\\x9b2J" in shown and "\\u202ex\\ny" in shown
        assert not set(shown) & set("\x07\x9b\r\u202e") and "\x1b[31m" not in shown


@pytest.mark.parametrize("width", [30, 45, 60, 80])
def test_a_narrow_terminal_breaks_names_behind_an_underscore_and_drops_nothing(width: int) -> None:
    page = PAGES["bands"]
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None, highlight=False)
    _page.print_rich(page, console)
    assert isinstance(console.file, io.StringIO)
    terminal = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())
    assert sorted(re.sub(r"\s", "", terminal)) == sorted(re.sub(r"\s", "", _page.to_text(page)))
    if width >= 60:
        assert "two_shot_multicast" in terminal and "pynccl_in_place" in terminal


def test_a_narrow_terminal_cuts_headings_and_words_before_it_cuts_a_number() -> None:
    columns = ("rank", "pid", "state", "calls", "executed", "per s", "graphs", "replays", "alarms", "last call")
    row = ("0", "13652", "ended", "261", "3,015", "-", "4", "170", "0", "-")
    table = _page.Table("Workers", columns, (row,), frozenset(columns) - {"state"}, "state")
    console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None, highlight=False)
    _page.print_rich([table], console)
    assert isinstance(console.file, io.StringIO)
    assert re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue()).splitlines()[-1].split() == [*row]


def test_a_notebook_shows_every_result_by_itself() -> None:
    decision = route(CALL, PCIE, context="eager", sglang="0be30d4")
    for result in (decision, bands(PCIE, sglang="0.5.9"), step(example=True)):
        html = result._repr_html_()
        assert html.startswith("<div") and "torch_distributed" in html


# --------------------------------------------------------------------------------------------------------------------- reasons


def test_on_pcie_both_reasons_against_custom_are_told_each_at_its_time() -> None:
    page = render.decision_page(route(CALL, PCIE, context="eager", sglang="0be30d4"))
    table = next(block for block in page if isinstance(block, _page.Table) and "stops" in block.title)
    i = next(i for i, row in enumerate(table.rows) if row[0] == "custom")
    assert [row[1] for row in table.rows[i : i + 2]] == ["start", "each call"]
    assert table.rows[i + 1][0] == ""


@pytest.mark.parametrize("sglang", ["0.4.9", "0.5.4", "0be30d4", "0.5.16", "0.5.23"])
@pytest.mark.parametrize("context", ["eager", "capture", "piecewise_replay"])
@pytest.mark.parametrize("group", [PCIE, NVLINK, NVLINK.with_facts(own_custom=0), PCIE.with_facts(world_size=3)])
def test_a_change_that_is_named_moves_the_call_to_an_earlier_rule_and_never_breaks_it(
    sglang: str, context: str, group: Group
) -> None:
    before = route(CALL, group, context=context, sglang=sglang)
    for change in earlier_by_one_change(before, CALL, group, context=context, sglang=sglang):
        assert change.rule in before.blocked_by and change.path not in (before.path, Path.RAISES, Path.NONE)


def test_the_changes_of_the_motivating_case_are_the_known_ones() -> None:
    eager = route(CALL, PCIE, context="eager", sglang="0be30d4")
    found = {str(change) for change in earlier_by_one_change(eager, CALL, PCIE, context="eager", sglang="0be30d4")}
    assert "captured into a CUDA graph instead of eager: pynccl_in_place" in found
    assert "on GPUs that are all linked by NVLink (another machine): custom" in found
    assert "with a group of 2 ranks: custom" in found
    assert not any("torch_symm_mem" in text for text in found), "compute capability 120 is not in its table"


def test_a_lost_sum_and_an_exception_are_loud() -> None:
    dry = route(32768, Group.make(world_size=4), context="warmup", sglang="0.5.9")
    assert not dry.reduces and "! no reduction happens here" in render.decision_text(dry)
    lost = dispatch("0.5.9", torch_symm_mem="declines")
    assert not lost.reduces and "! SGLang loses the result" in render.decision_text(lost)
    group = Group.make(world_size=4, own_custom=False, own_torch_symm_mem=True)
    raises = route(1 << 20, group, context="eager", sglang="0.5.4")
    text = render.decision_text(raises)
    assert raises.path is Path.RAISES and text.startswith("raises AssertionError: ") and "! the server fails" in text


def test_a_gap_between_two_ranges_of_a_better_path_is_flagged_where_people_look() -> None:
    found = bands(NVLINK, context="capture", sglang="0.5.16")
    odd = [replace(band, gap=i == 1) for i, band in enumerate(found.bands)]
    text = render.bands_text(replace(found, bands=tuple(odd)))
    assert "! gap: 128 KiB + 16 B to 512 KiB - 16 B" in text and "GAP" in text
    assert "GAP" not in render.bands_text(found) and "gap" not in render.bands_text(found)


def test_rules_that_no_flag_of_this_server_brings_take_one_line() -> None:
    text = _page.to_text(render.decision_page(route(CALL, PCIE, context="eager", sglang="0be30d4")))
    assert "not for this device or release: quick" in text
    verbose = _page.to_text(render.decision_page(route(CALL, PCIE, context="eager", sglang="0be30d4"), verbose=True))
    assert "ROCM_QUICK_REDUCE_QUANTIZATION is NONE" in verbose


def test_facts_are_shown_with_where_they_come_from() -> None:
    text = render.decision_text(route(CALL, PCIE, context="eager", sglang="0be30d4"))
    assert "full_nvlink=0" in text and "(given)" in text and "(assumed, default)" in text


def test_a_difference_between_revisions_is_the_answer_where_there_is_one() -> None:
    one = step(example=True, context="eager", sglang="0be30d4")
    other = replace(one, sglang="bba2fc4", calls=tuple(replace(c, decision=_elsewhere(c.decision)) for c in one.calls))
    first = _page.to_text(step_page(replace(one, alternatives=(other,)))).splitlines()[0]
    assert first == "eager: torch_distributed at 0be30d4, custom at bba2fc4"


def _elsewhere(decision: Decision) -> Decision:
    return replace(decision, path=Path.CUSTOM, rule="custom", sglang="bba2fc4")


def test_what_only_one_revision_asks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Step = step(example=True)
    assert "only 0be30d4 asks for piecewise_pynccl: it does not fire in any case shown" in render.step_text(found)
    piecewise = step(example=True, context="piecewise_replay")
    assert "only 0be30d4 asks for piecewise_pynccl: it fires here" in render.step_text(piecewise)


# ------------------------------------------------------------------------------------------------------------------ the way out


def test_a_full_disk_is_a_message_and_no_traceback() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "sglang_probe", "releases"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [done.stderr.strip()] and "could not be written: No space left" in done.stderr


def test_a_remedy_is_spelt_as_it_is_typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise InputError("sglang", None, "\x1b[2Jgive it, for example sglang='0.5.9' or draft_tokens=4")

    monkeypatch.setattr("sglang_probe._step.step.step", refuse)
    assert cli.main(["step", "--example"]) == 2
    assert capsys.readouterr().err == "sglang-probe: sglang: \\x1b[2Jgive it, for example --sglang 0.5.9 or --draft-tokens 4\n"


def test_a_wrong_result_is_red_on_a_terminal_and_plain_in_a_pipe() -> None:
    page = [_page.Line("1 cell WRONG", "answer"), _page.Table("", ("path", "result"), (("custom", "WRONG: 1 of 4"),))]
    out = io.StringIO()
    _page.print_rich(page, Console(file=out, force_terminal=True, width=80, color_system="standard"))
    assert out.getvalue().count("\x1b[1;31mWRONG") == 2
    assert "\x1b" not in _page.to_text(page)
