"""reach, diff, history, bisect on the command line: the answer first, exit statuses, what fixes a condition, 80 columns."""

from __future__ import annotations

import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sglang_probe as probe
from sglang_probe import cli
from sglang_probe._proof.diff import SizeChange
from sglang_probe._proof.space import CONDITIONS, VALUES
from sglang_probe._show.changes import pair, sizes_blocks
from sglang_probe._show.page import Table
from sglang_probe._show.sizes import parse_bytes

Run = Callable[..., tuple[int, str, str]]
LAUNCH = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"
H200 = ("--launch", LAUNCH, "--gpu", "h200")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: str) -> tuple[int, str, str]:
        status = cli.main(argv)
        out, err = capsys.readouterr()
        return status, out, err

    return call


# ----------------------------------------------------------------------------------------------------------------------- reach


def test_a_proof_says_what_was_walked_and_why(run: Run) -> None:
    status, out, err = run("reach", "piecewise_pynccl", "--sglang", "0.5.9", "--no-piecewise")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "unreachable: rule piecewise_pynccl in SGLang 0.5.9 (E10) with piecewise=False; 6,145 states walked",
        "because piecewise=False already forbids it",
    ]


def test_a_witness_is_code_that_gives_what_the_next_line_says(run: Run) -> None:
    _, out, _ = run("reach", "piecewise_pynccl", "--sglang", "0.5.9")
    first, code, decision = out.splitlines()[:3]
    assert first.startswith("reachable: rule piecewise_pynccl in SGLang 0.5.9")
    again = eval(code.removeprefix("for instance "), {"probe": probe})  # noqa: S307 # our own output
    assert again.rule == "piecewise_pynccl" and decision.strip() == f"-> {again}"


def test_a_witness_for_a_launch_line_runs_as_it_is_printed(run: Run) -> None:
    _, out, _ = run("reach", "pynccl_in_place", "--kind", "path", "--sglang", "0.5.16", *H200)
    code = next(line for line in out.splitlines() if line.startswith("for instance ")).removeprefix("for instance ")
    assert str(eval(code, {"probe": probe}).path) == "pynccl_in_place"  # noqa: S307 # our own output


def test_asked_for_a_path_every_rule_that_leads_there_is_told(run: Run) -> None:
    _, out, _ = run("reach", "pynccl_out_of_place", "--sglang", "0.5.16", "--no-piecewise")
    assert out.startswith(
        "reachable: path pynccl_out_of_place in SGLang 0.5.16 (E15) with piecewise=False; 6,145 states walked\n"
    )
    assert "  - auto_pynccl: in 648 states\n" in out
    assert "  - piecewise_pynccl: never; piecewise=False already forbids it\n" in out


def test_a_path_that_no_rule_takes_has_a_reason_for_each_rule(run: Run) -> None:
    _, out, _ = run("reach", "pynccl_out_of_place", "--sglang", "0.5.16", *H200)
    assert out.splitlines()[1] == "because none of the 2 rules that lead there fires"
    assert "piecewise_pynccl: never; needs piecewise=True: the prefill graph of this server is 'none'" in out
    assert "auto_pynccl: never; needs compiling=True: --enable-torch-compile is off" in out


def test_releases_that_answer_alike_are_one_line_and_why_shows_each(run: Run) -> None:
    argv = ("reach", "pynccl_out_of_place", "--sglang", "0.5.15..0.5.17", "--no-piecewise")
    _, out, _ = run(*argv)
    assert out[out.index("By release\n") :].splitlines()[1:] == [
        "  - 0.5.15 to 0.5.15.post1: unreachable: piecewise=False already forbids it",
        "  - 0.5.16 to 0.5.17: reachable",
    ]
    _, out, _ = run(*argv, "--why")
    assert "  - 0.5.16 (E15): probe.dispatch('0.5.16', " in out and "  - 0.5.17 (" in out


def test_a_repeated_option_allows_each_of_its_values(run: Run) -> None:
    found = json.loads(run("reach", "quick", "--sglang", "0.5.9", "--custom", "absent", "--custom", "disabled", "--json")[1])
    assert found["fixed"] == {"custom": ["absent", "disabled"]} and found["walked"] == 12289 - 6144
    both = json.loads(run("reach", "quick", "--sglang", "0.5.9", "--piecewise", "--no-piecewise", "--json")[1])
    assert both["walked"] == 12289


@pytest.mark.parametrize("command", ["reach", "diff"])
def test_every_condition_can_be_fixed_to_every_value(command: str) -> None:
    commands = next(action for action in cli.build_parser()._actions if action.dest == "command").choices
    assert commands is not None
    actions = [action for action in commands[command]._actions if action.dest in CONDITIONS]
    assert {action.dest for action in actions} == set(CONDITIONS)
    for name in set(CONDITIONS) - {"world_size", "device"}:
        mine = [action for action in actions if action.dest == name]
        values = [action.const for action in mine] if VALUES[name] == (False, True) else list(mine[0].choices or ())
        assert set(values) == set(VALUES[name]), name


def test_a_script_can_insist_that_nothing_reaches_it(run: Run) -> None:
    argv = ("reach", "piecewise_pynccl", "--sglang", "0.5.9", "--assert-unreachable")
    assert run(*argv, "--no-piecewise")[0] == 0
    status, out, err = run(*argv)
    assert status == 1 and out.startswith("reachable: ") and err == ""


def test_a_fact_replaces_what_a_launch_line_assumes(run: Run) -> None:
    argv = ("reach", "custom", "--sglang", "0.5.16", *H200)
    assert run(*argv)[1].startswith("reachable: ")
    _, out, _ = run(*argv, "--fact", "own_custom=0")
    assert out.startswith("unreachable: rule custom ") and out.splitlines()[1].startswith("because it needs custom: ")


def test_a_gpu_alone_asks_a_group_over_all_sizes(run: Run) -> None:
    status, out, _ = run("reach", "custom", "--sglang", "0.5.9..0.5.16", "--gpu", "rtx-pro-6000", "--world-size", "8")
    first, reason = out.splitlines()[:2]
    assert status == 0 and re.search(r"unreachable: .*; 13 releases, [\d,]+ states, [\d,]+ size classes walked", first)
    assert reason == "because it needs custom: more than two GPUs that are not fully linked by NVLink"
    assert "  - pcie links, as rtx-pro-6000 usually has: no --link is given" in out


# ------------------------------------------------------------------------------------------------------------------------ diff


def test_the_motivating_commit_in_one_line(run: Run) -> None:
    status, out, _ = run("diff", "bba2fc4", "0be30d4")
    assert status == 0
    assert out.splitlines()[:3] == [
        "1,296 of 12,289 states change, all with piecewise=True: 648 go to pynccl_out_of_place, 648 raise",
        "SGLang bba2fc4 -> 0be30d4; the rules alone",
        "in each of them none of custom, quick, mscclpp, torch_symm_mem accepts",
    ]
    groups = re.findall(r"^([\d,]+) states?: ", out, re.MULTILINE)
    assert sum(int(count.replace(",", "")) for count in groups) == 1296


def test_the_example_of_a_group_is_answered_as_the_group_says(run: Run) -> None:
    _, out, _ = run("diff", "bba2fc4", "0be30d4")
    groups = re.findall(r"states: (\S+)[^\n]* -> (?:raises )?(\S+)[^\n]*\n(?:  - (?!for)[^\n]*\n)+  - for instance ([^\n]*)", out)
    assert len(groups) >= 5
    for before, after, code in groups:
        now = eval(code, {"probe": probe})  # noqa: S307 # our own output
        was = eval(code.replace("0be30d4", "bba2fc4"), {"probe": probe})  # noqa: S307 # our own output
        assert str(was.path) == before and (now.error or str(now.path)) == after


def test_no_change_is_said_with_what_was_walked(run: Run) -> None:
    status, out, _ = run("diff", "bba2fc4", "0be30d4", "--no-piecewise", "--exit-code")
    assert status == 0
    assert out == "no state changes: 6,145 states walked\nSGLang bba2fc4 -> 0be30d4; the rules alone with piecewise=False\n"
    status, out, _ = run("diff", "bba2fc4", "0be30d4", "--launch", LAUNCH, "--gpu", "h200", "--exit-code")
    assert status == 0 and re.match(
        r"no route changes: \d+ size classes, over every size, dtype, layout and context, walked\n", out
    )


def test_a_check_of_a_pull_request_can_fail_on_a_change(run: Run) -> None:
    assert run("diff", "bba2fc4", "0be30d4", "--exit-code")[0] == 1
    assert run("diff", "0.5.9", "0.5.16", *H200, "--exit-code")[0] == 1
    assert run("diff", "0.5.9", "0.5.16", *H200)[0] == 0


def test_what_a_page_leaves_out_is_counted(run: Run) -> None:
    _, out, _ = run("diff", "0.5.15", "0.5.16")
    total = int(out.split()[0].replace(",", ""))
    shown = sum(int(count.replace(",", "")) for count in re.findall(r"^([\d,]+) states?: ", out, re.MULTILINE))
    left = re.search(r"^and \d+ more groups of ([\d,]+) states: -v shows them$", out, re.MULTILINE)
    assert left and shown + int(left[1].replace(",", "")) == total
    _, out, _ = run("diff", "0.5.15", "0.5.16", "-v")
    assert sum(int(count.replace(",", "")) for count in re.findall(r"^([\d,]+) states?: ", out, re.MULTILINE)) == total


def test_the_sizes_printed_are_those_at_which_the_route_changes() -> None:
    found = probe.diff("0.5.9", "0.5.16", launch=LAUNCH, gpu="h200")
    servers = {name: probe.read_launch(LAUNCH, sglang=name, gpu="h200") for name in ("0.5.9", "0.5.16")}
    tables = [block for block in sizes_blocks(found, True) if isinstance(block, Table)]
    rows = [(table.title.split(", ")[1].split()[0], row) for table in tables for row in table.rows]
    assert len(rows) >= 10
    for context, (first, last, before, after) in rows:
        for size in (parse_bytes(first), (1 << 40) if last == "any" else parse_bytes(last)):
            call = probe.Call(size, hidden=7168)
            answers = [probe.route(call, server.groups["tp"], context=context, sglang=n) for n, server in servers.items()]
            for told, decision in zip((before, after), answers, strict=True):
                assert told.split()[0] == str(decision.path)
                assert not decision.kernel or decision.kernel in told


def test_touching_ranges_that_change_alike_are_one(run: Run) -> None:
    _, out, _ = run("diff", "0.4.6", "0.5.23", *H200)
    assert re.search(r"bf16, fp16 +8 MiB +28 MiB  pynccl_in_place", out)


def test_unusual_tensors_are_summarised_and_all_of_them_told_when_asked() -> None:
    found = probe.diff("0.5.9", "0.5.16", launch=LAUNCH, gpu="h200")
    short, full = ("\n".join(str(block) for block in sizes_blocks(found, verbose)) for verbose in (False, True))
    assert "weakly contiguous" not in short
    layouts = {text.partition(", ")[2] for change in found.sizes for text in change.tensors}
    assert all(layout in full for layout in layouts - {"contiguous, multiples of 16 bytes"}) and len(layouts) > 3


def test_what_tells_two_outcomes_apart_is_said_on_both_sides() -> None:
    found = probe.diff("0.5.9", "0.5.16", launch=LAUNCH, gpu="h200")
    told = {pair(change) for change in found.sizes if isinstance(change, SizeChange)}
    assert ("custom (v1 two_shot, new tensor)", "custom (V2 two_shot_pull, in place)") in told
    assert ("pynccl_in_place", "custom (V2 two_shot_multicast, new tensor)") in told
    assert all(before != after for before, after in told if "raises" not in before)


def test_what_was_assumed_and_not_compared_stands_below(run: Run) -> None:
    _, out, _ = run("diff", "0.5.9", "0.5.16", *H200)
    assert "Assumed\n  - link: nvlink assumed, the usual one of h200\n" in out


def test_what_one_side_alone_has_is_not_told_as_no_change() -> None:
    found = probe.Diff("a", "b", "launch", 300, 0, notes=("context compile: only b sets it",))
    first, *_, last = str(found).splitlines()
    assert found and first == "no common route changes, but one side alone has context compile; 300 size classes walked"
    assert last == "  - context compile: only b sets it"


def test_many_launch_lines_are_one_check(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "launches.txt"
    file.write_text(f"# ours\ngpu=h200 :: {LAUNCH}\n{LAUNCH} --disable-custom-all-reduce\n")
    argv = ("--matrix", str(file), "--gpu", "h200", "--exit-code")
    status, out, err = run("diff", "bba2fc4", "0be30d4", *argv)
    assert (status, err) == (0, "") and out.startswith("no route changes for 2 launches, SGLang bba2fc4 to 0be30d4")
    status, out, _ = run("diff", "0.5.8", "0.5.9", *argv)
    assert status == 1 and f"line 2: gpu=h200 :: {LAUNCH}\n" in out
    assert re.search(r"Ordinary tensors, capture.*\n +from +to  before +after\n +8 MiB  8 MiB  pynccl_in_place  custom", out)
    full = run("diff", "0.5.8", "0.5.9", *argv, "-v")[1]
    assert "weakly contiguous" in full and "weakly contiguous" not in out
    _, out, _ = run("diff", "0.5.8", "0.5.9", *argv, "--json")
    assert json.loads(out) == json.loads(json.dumps(probe.matrix("0.5.8", "0.5.9", file, gpu="h200").to_dict()))


@pytest.mark.parametrize("extra", [("--launch", LAUNCH), ("--piecewise",), ("--fact", "multicast=0")])
def test_a_matrix_holds_its_own_launch_lines(run: Run, extra: tuple[str, ...]) -> None:
    status, out, err = run("diff", "0.5.8", "0.5.9", "--matrix", "launches.txt", *extra)
    assert (status, out) == (2, "") and "goes without --matrix" in err


# ----------------------------------------------------------------------------------------------------------- history and bisect


def test_a_history_tells_each_change_and_why_shows_every_release(run: Run) -> None:
    argv = ("history", *H200, "--sglang", "0.5.6..0.5.9")
    status, out, err = run(*argv)
    assert (status, err) == (0, "")
    past = probe.history(LAUNCH, gpu="h200", releases="0.5.6..0.5.9")
    assert out == f"{past}\n" and "0.5.6.post1" not in out
    rows = [row.release for row in past.every]
    full = run(*argv, "-v")[1]
    assert all(f"\n  {release} " in full for release in rows)
    assert json.loads(run(*argv, "--json")[1]) == json.loads(json.dumps(past.to_dict()))


def test_a_history_of_a_larger_batch_has_its_bytes(run: Run) -> None:
    out = run("history", *H200, "--sglang", "0.5.9", "--batch", "8", "--prefill-tokens", "512")[1]
    assert "decode step: 8 tokens, 112 KiB" in out and "prefill chunk: 512 tokens, 7 MiB" in out


def test_a_gpu_alone_has_a_history_of_every_size(run: Run) -> None:
    status, out, _ = run("history", "--gpu", "h200", "--world-size", "4", "--sglang", "0.5.8..0.5.9")
    assert status == 0 and "up to 8 MiB" in out and "  - nvlink links, as h200 usually has: no --link is given" in out


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What bisect was asked; it answers with two commits, of which one changes a route."""
    from sglang_probe._proof import bisect as module

    calls: list[tuple[Any, ...]] = []
    change = probe.diff("0.5.8", "0.5.9", launch=LAUNCH, gpu="h200")

    def answer(checkout: str, commits: str, *, progress: object, **keywords: Any) -> module.Bisect:
        calls.append((checkout, commits, keywords))
        commit = module.Judged("a" * 40, "2026-01-28", "raise the limit", ("gate custom",), change, ())
        plain = module.Judged("b" * 40, "2026-01-29", "a comment", ("gate custom",), None, ())
        return module.Bisect(commits, LAUNCH, 9, (commit, plain), "0.5.8")

    monkeypatch.setattr(module, "bisect", answer)
    return calls


def test_bisect_shows_the_commits_that_change_something_and_why_the_others(run: Run, asked: list[tuple[Any, ...]]) -> None:
    argv = ("bisect", "clone", "v0.5.8..v0.5.9", *H200)
    status, out, err = run(*argv)
    assert (status, err) == (0, "") and asked == [("clone", "v0.5.8..v0.5.9", {"launch": LAUNCH, "gpu": "h200"})]
    assert out.startswith("2 commits: 1 change nothing under your flags; 1 do\n")
    assert "aaaaaaaaa 2026-01-28 raise the limit\n" in out and "a comment" not in out
    assert re.search(r"8 MiB  8 MiB  pynccl_in_place  custom \(v1 two_shot", out)
    assert "bbbbbbbbb 2026-01-29 a comment: nothing" in run(*argv, "-v")[1]
    assert json.loads(run(*argv, "--json")[1])["changing"] == 1


def test_bisect_takes_a_group_as_well(run: Run, asked: list[tuple[Any, ...]]) -> None:
    _, out, _ = run("bisect", "clone", "v0.5.8..v0.5.9", "--gpu", "h200", "--world-size", "4")
    assert asked[0][2]["group"].world_size == 4 and "  - nvlink links, as h200 usually has" in out


# ----------------------------------------------------------------------------------------------------------- errors, JSON, pages


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("reach nothing --sglang 0.5.9", ["target='nothing'", "piecewise_pynccl"]),
        ("reach quick --sglang 0.5.16..0.5.9", ["sglang='0.5.16..0.5.9'", "empty range"]),
        ("reach quick --sglang 0.5.9 --world-size 1 --custom accepts", ["world_size=", "empty"]),
        ("reach quick --sglang 0.5.9 --custom maybe", ["--custom", "maybe"]),
        ("reach quick --sglang 0.5.9 --gpu h200 --custom accepts", ["custom='accepts'", "follow from the group"]),
        ("reach quick --sglang 0.5.9 --launch x --piecewise", ["piecewise=True", "follow from the launch"]),
        ("reach quick --sglang 0.5.9 --launch x --log y", ["log='y'", "either launch or log"]),
        ("reach quick --sglang 0.5.9..0.5.16 --launch x --fact own_custom=0", ["fact='own_custom=0'", "one release"]),
        ("reach quick --sglang 0.5.9 --launch x --hidden 8", ["hidden=8", "model"]),
        ("reach quick --sglang 0.5.9 --fact nothing=1", ["fact='nothing'", "own_custom"]),
        ("diff 0.5.9 none", ["sglang='none'"]),
        ("diff 0.5.8 0.5.9 --matrix nowhere.txt", ["nowhere.txt", "cannot be read"]),
        ("history --launch x --fact multicast=0", ["fact='multicast=0'", "each release"]),
        ("history --launch x --world-size 4", ["world_size=4", "--tp"]),
        ("history", ["launch: ", "--gpu"]),
        ("bisect clone v0.5.8..v0.5.9", ["launch: ", "--gpu"]),
        ("history --gpu h200 --sglang 0.5.9..0.5.8", ["0.5.9..0.5.8", "empty range"]),
        ("bisect nowhere v0.5.8..v0.5.9 --gpu h200", ["nowhere"]),
        ("diff 0.5.9 0.5.16 --gpu h200 --piecewise", ["piecewise=True", "follow from the group"]),
    ],
)
def test_a_question_that_cannot_be_answered_says_what_to_do(run: Run, line: str, words: list[str]) -> None:
    status, out, err = run(*line.split())
    assert (status, out) == (2, "")
    assert err.startswith("sglang-probe: ") and err.count("\n") == 1
    assert all(word in err for word in words), err


def test_json_is_the_result_of_the_python_function_and_nothing_else(run: Run) -> None:
    status, out, err = run("reach", "quick", "--sglang", "0.5.9", "--custom", "absent", "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == probe.reach("quick", sglang="0.5.9", custom="absent").to_dict()
    _, out, _ = run("diff", "bba2fc4", "0be30d4", "--json")
    assert json.loads(out) == json.loads(json.dumps(probe.diff("bba2fc4", "0be30d4").to_dict()))
    _, out, _ = run("diff", "0.5.9", "0.5.16", *H200, "--json")
    assert json.loads(out) == json.loads(json.dumps(probe.diff("0.5.9", "0.5.16", launch=LAUNCH, gpu="h200").to_dict()))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "argv",
    [
        ("reach", "pynccl_out_of_place", "--sglang", "0.5.9..0.5.23", *H200),
        ("diff", "bba2fc4", "0be30d4"),
        ("diff", "0.5.9", "0.5.16", *H200),
        ("history", *H200, "--sglang", "0.5.6..0.5.23"),
    ],
    ids=["reach", "diff of states", "diff of sizes", "history"],
)
def test_eighty_columns_hold_every_word(argv: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"COLUMNS": "80", "TERM": "xterm-256color", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        monkeypatch.setattr(sys, "stdout", stream)
        assert cli.main(argv) == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert max(map(len, plain.splitlines())) <= 80
    # a long name may be broken behind an underscore
    assert Counter("".join(plain.split())) == Counter("".join(pipe.getvalue().split()))


def test_a_notebook_shows_the_same_words() -> None:
    for result in (probe.reach("quick", sglang="0.5.9"), probe.diff("bba2fc4", "0be30d4")):
        words = re.sub(r"<[^>]+>", " ", result._repr_html_()).replace("&#x27;", "'").replace("&gt;", ">").split()
        text = str(result).replace("  - ", " ").split()
        assert [word for word in text if word not in words] == []
