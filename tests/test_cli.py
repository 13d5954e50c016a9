"""The command line as people and scripts use it: answers, exit statuses, what stands on stdout and what on stderr."""

from __future__ import annotations

import importlib
import inspect
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import measured
import pytest

import sglang_probe
from sglang_probe import cli
from sglang_probe._types import InputError, ProbeUnavailable

Run = Callable[..., tuple[int, str, str]]
LAUNCH = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"
PACKAGE_PARENT = str(Path(sglang_probe.__file__).parents[1])


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*argv: str) -> tuple[int, str, str]:
        status = cli.main(argv)
        out, err = capsys.readouterr()
        return status, out, err

    return call


def spawn(*argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": PACKAGE_PARENT, "PYTHONWARNINGS": "error", **more}
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, env=env, timeout=120, check=False)


# --------------------------------------------------------------------------------------------------------------------- answers


@pytest.mark.parametrize("commit", ["bba2fc4", "0be30d4"])
@pytest.mark.parametrize(("context", "path"), [("eager", "torch_distributed"), ("capture", "pynccl_in_place")])
def test_the_motivating_case_gives_123_calls_on_one_path(run: Run, commit: str, context: str, path: str) -> None:
    status, out, err = run("step", "--example", "--context", context, "--sglang", commit, "--json")
    step = json.loads(out)
    assert (status, err) == (0, "")
    assert step["sglang"] == commit and step["context"] == context and step["bytes"] == 43008
    assert step["all_reduces"] == 123 and step["paths"] == {path: 123}
    assert {call["rule"] for call in step["calls"]} == {"in_place_torch" if context == "eager" else "in_place_pynccl"}


def test_the_example_alone_shows_both_contexts_of_both_commits(run: Run) -> None:
    _, out, _ = run("step", "--example", "--json")
    step = json.loads(out)
    shown = {(s["sglang"], s["context"]): s["paths"] for s in (step, *step["alternatives"])}
    assert shown == {
        (commit, context): {path: 123}
        for commit in ("bba2fc4", "0be30d4")
        for context, path in (("eager", "torch_distributed"), ("capture", "pynccl_in_place"))
    }


def test_the_first_line_is_the_answer_and_the_second_reason_is_found_below_it(run: Run) -> None:
    status, out, _ = run("step", "--example")
    lines = out.splitlines()
    assert status == 0
    assert lines[0] == "eager: torch_distributed; capture: pynccl_in_place (the same at each commit)"
    assert "only 0be30d4 asks for piecewise_pynccl: it does not fire in any case shown" in lines
    blockers = out[out.index("What stops") : out.index("One change away")]
    custom = blockers[blockers.index("  custom ") :].splitlines()[:2]
    assert "start " in custom[0] and "not fully linked by NVLink" in custom[0]
    assert "each call " in custom[1] and "asked again for each call" in custom[1]


def test_fused_calls_are_told_apart_from_those_that_are_left(run: Run) -> None:
    status, out, _ = run("step", "--launch", LAUNCH, "--gpu", "h200", "--sglang", "0.5.9")
    assert status == 0
    assert out.startswith("2 x custom, 14,336 bytes (14 KiB) each; 121 more are fused away\n")
    assert "Assumed\n" in out


def test_what_a_log_contradicts_stands_above_the_answer_with_its_line(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-V3', tp_size=8, disable_custom_all_reduce=False)\n"
        "[TP0] Setup Custom allreduce failed with no peer access\n"
    )
    status, out, _ = run("step", "--log", str(log), "--sglang", "0.5.9", "--gpu", "h200")
    first, second = out.splitlines()[:2]
    assert status == 0
    assert first.startswith("! the log says otherwise: line 2: ") and "Setup Custom allreduce failed" in first
    assert second.startswith("123 x pynccl_in_place")


def test_what_is_not_modelled_stands_above_the_answer(run: Run) -> None:
    _, out, _ = run("step", "--launch", LAUNCH + " --enable-dp-attention --dp 8", "--gpu", "h200", "--sglang", "0.5.9")
    first, second = out.splitlines()[:2]
    assert first.startswith("! not modelled: about 123 calls of this step") and second.startswith("no all-reduce to route")


def test_a_route_names_every_gate_that_stops_a_better_path(run: Run) -> None:
    argv = ("route", "--bytes", "8MiB", "--gpu", "h200", "--sglang", "0.5.8", "--context", "capture")
    status, out, _ = run(*argv)
    assert status == 0 and out.startswith("pynccl_in_place: ")
    assert "8,388,608 bytes is over its limit of" in out
    _, out, _ = run(*argv, "--why")
    assert "Every gate" in out and "Rests on these facts" in out


def test_tokens_and_hidden_are_the_same_as_their_bytes(run: Run) -> None:
    common = ("--gpu", "h200", "--sglang", "0.5.9", "--context", "capture", "--json")
    by_shape = json.loads(run("route", "--tokens", "3", "--hidden", "7168", *common)[1])
    by_bytes = json.loads(run("route", "--bytes", "42KiB", *common)[1])
    assert by_shape["bytes"] == by_bytes["bytes"] == 43008 and by_shape["path"] == by_bytes["path"] == "custom"


def test_a_launch_line_gives_route_and_bands_the_group_of_that_server(run: Run) -> None:
    for command in (("route", "--bytes", "42KiB"), ("bands",)):
        argv = (*command, "--launch", LAUNCH + " --disable-custom-all-reduce", "--gpu", "h200", "--sglang", "0.5.9", "--json")
        data = json.loads(run(*argv, "--context", "capture")[1])
        assert data.get("path", data.get("bands", [{}])[0].get("path")) == "pynccl_in_place"
        assert data["assumed"]


def test_bands_print_the_exact_boundaries(run: Run) -> None:
    argv = ("bands", "--gpu", "h200", "--sglang", "0.5.16", "--context", "capture", "--fact", "own_torch_symm_mem=1")
    _, out, _ = run(*argv)
    assert out.startswith("custom up to 16 MiB, torch_symm_mem up to 512 MiB - 16 B, then pynccl_in_place\n")
    assert "128 KiB + 16 B  512 KiB - 16 B  custom" in out
    data = json.loads(run(*argv, "--json")[1])
    assert [band["last_bytes"] for band in data["bands"][:2]] == [131072, 524287]


def test_dispatch_has_every_condition_of_the_python_function_as_an_option(run: Run) -> None:
    parser = cli.build_parser()
    commands = next(a for a in parser._actions if a.dest == "command").choices
    options = {action.dest for action in commands["dispatch"]._actions}
    assert set(inspect.signature(sglang_probe.dispatch).parameters) <= options
    status, out, _ = run("dispatch", "--sglang", "0.5.9", "--custom", "declines", "--pynccl", "disabled", "--piecewise", "--json")
    assert status == 0 and json.loads(out)["path"] == "pynccl_out_of_place"


def test_releases_lists_every_release_with_its_era(run: Run) -> None:
    from sglang_probe._releases import RELEASES

    _, out, _ = run("releases", "--json")
    listed = [r["sglang"] for era in json.loads(out) for r in era["releases"]]
    assert sorted(listed) == sorted(RELEASES)
    first, last = RELEASES[0], RELEASES[-1]
    table = run("releases")[1]
    assert f"E1   {first}" in table and last in table


# ----------------------------------------------------------------------------------------------------------------------- errors

BAD = {
    "a release that nobody knows": ("route --bytes 42KiB --sglang 9.9.9", "nearest known release"),
    "a release before SGLang's own dispatch": ("route --bytes 42KiB --sglang 0.4.0", "vLLM"),
    "a commit that nobody knows": ("route --bytes 42KiB --sglang deadbee", "not a known release"),
    "a dtype": ("bands --dtype bf17", "give one of bf16"),
    "a context": ("bands --context replays", "give one of eager"),
    "a replay": ("bands --context replay", "capture"),
    "a size of zero": ("route --bytes 0", "1 to 2^63 - 1"),
    "a negative size": ("route --bytes=-16", "give a number of bytes"),
    "a size over 2^63": ("route --bytes 9223372036854775808", "1 to 2^63 - 1"),
    "a size in words": ("route --bytes many", "43008"),
    "no size": ("route --sglang 0.5.9", "--tokens and --hidden"),
    "a GPU": ("bands --gpu h2000", "did you mean h200"),
    "a link": ("bands --link infiniband", "nvlink"),
    "a fact": ("bands --fact own_custm=1", "did you mean own_custom"),
    "a fact without a value": ("bands --fact own_custom", "NAME=VALUE"),
    "a fact in words": ("bands --fact nodes=two", "whole numbers"),
    "a variable without a server": ("bands --env A=1", "goes with --launch"),
    "a custom communicator at world size 1": ("bands --world-size 1 --fact own_custom=1", "one rank"),
    "a world size of zero": ("bands --world-size 0", "1 or more"),
    "an option": ("bands --gpus 8 --nosuch", "--help"),
    "a command": ("bandz", "--help"),
    "broken quoting": ("step --launch 'python", "quoting"),
    "two sources": ("step --log a --url http://b", "give either"),
    "the example and something else": ("step --example --gpu h200", "leave --example out"),
    "a model": ("step --model Kimi-K3", "did you mean"),
    "a file that is no config.json": ("step --model tests/test_cli.py", "not JSON"),
    "a log that is not there": ("step --log nosuch.log", "nosuch.log"),
    "a batch of zero": ("step --example --batch 0", "1 or more"),
    "a state": ("dispatch --sglang 0.5.9 --custom maybe", "absent, disabled, declines, accepts"),
    "a communicator at world size 1": ("dispatch --sglang 0.5.9 --world-size 1 --custom accepts", "one rank"),
    "a release to conform": ("conform 0.4.0", "vLLM"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gives_one_message_that_says_what_to_do(
    run: Run, case: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    line, remedy = BAD[case]
    status, out, err = run(*line.split())
    assert (status, out) == (2, "")
    assert err.startswith("sglang-probe: ") and err.count("\n") == 1
    assert remedy in err


def test_a_log_without_arguments_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("hello\n")
    status, out, err = run("step", "--log", str(tmp_path / "a.log"))
    assert (status, out) == (2, "") and "ServerArgs" in err


def test_an_unreachable_server_is_an_error_and_no_answer(run: Run) -> None:
    for command in (("step",), ("bands",), ("route", "--bytes", "42KiB")):
        status, out, err = run(*command, "--url", "http://127.0.0.1:9")
        assert (status, out) == (2, "") and "url='http://127.0.0.1:9" in err and "--log" in err


def test_with_nothing_given_and_no_server_it_says_how_to_ask(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_probe import launch

    monkeypatch.setattr(launch, "find_running", lambda: None)
    status, out, err = run("step")
    assert (status, out) == (2, "")
    assert all(option in err for option in ("--example", "--launch", "--log", "--url", "--model"))


@pytest.mark.parametrize("name", ["launch", "log", "url", "model"])
def test_an_empty_option_is_an_error_and_never_taken_for_none(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_probe import launch

    monkeypatch.setattr(launch, "find_running", lambda: pytest.fail("it looked for a running server"))
    for command in (("step",), ("bands",)):
        status, out, err = run(*command, f"--{name}", "", "--sglang", "0.5.9")
        assert (status, out) == (2, "") and f"{name}=''" in err


def test_an_unknown_model_is_named_with_what_to_give(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("server_args=ServerArgs(model_path='/models/mine', tp_size=8)\n")
    for source, path in ((("--launch", LAUNCH.replace("deepseek-ai/DeepSeek-V3", "foo/unknown")), "foo/unknown"),
                         (("--log", str(log)), "/models/mine")):  # fmt: skip
        status, out, err = run("step", *source, "--sglang", "0.5.9")
        assert (status, out) == (2, "") and f"model='{path}'" in err
        assert "--model" in err and "config.json" in err and "Kimi-K2.5" in err


def test_the_installed_release_is_asked_where_none_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_probe import _releases

    def resolve(sglang: object) -> object:
        return _releases.known_release("0.5.9", "installed") if sglang == "installed" else known(sglang)

    known = _releases.resolve
    for module in ("sglang_probe._releases", "sglang_probe._route", "sglang_probe._bands"):
        monkeypatch.setattr(importlib.import_module(module), "resolve", resolve)
    for source in (), ("--launch", LAUNCH):
        status, out, _ = run("route", "--bytes", "42KiB", "--gpu", "h200", "--json", *source)
        answer = json.loads(out)
        assert status == 0 and answer["sglang"] == "0.5.9"
        assert "SGLang 0.5.9, which is installed here: no --sglang is given" in answer["assumed"]


def test_failures_of_ours_interrupts_and_missing_parts_have_their_own_status(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_probe._cli import releases as _cli_releases

    for error, status in ((ProbeUnavailable("no index: give a path"), 1), (KeyboardInterrupt(), 130)):

        def fail(_args: object, error: BaseException = error) -> int:
            raise error

        monkeypatch.setattr(_cli_releases, "run_releases", fail)
        found, out, err = run("releases")
        assert (found, out) == (status, "") and err.count("\n") == 1


def test_too_little_memory_is_one_message(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_probe._cli import releases as _cli_releases

    def fail(_args: object) -> int:
        raise MemoryError("Unable to allocate 1 TiB")

    monkeypatch.setattr(_cli_releases, "run_releases", fail)
    assert run("releases") == (
        1,
        "",
        "sglang-probe: out of memory (Unable to allocate 1 TiB): ask for less, or end what else takes it here\n",
    )


@pytest.mark.parametrize("module", ["sglang_probe._types", "sglang_probe._cli.bench", "sglang_probe._show.page", "numpy"])
def test_an_interrupt_while_modules_are_imported_is_one_message(module: str) -> None:
    code = f"""
import sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupts())
from sglang_probe.cli import main
sys.exit(main(["releases"]))
"""
    done = spawn("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "sglang-probe: interrupted\n")


def test_conform_fails_a_script_where_something_differs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("sglang_probe._conform.conform")
    from sglang_probe._conform.types import Result

    def report(sglang: str, *, progress: object = None) -> object:
        different = ["648 cases: SGLang 'custom', here 'quick'"] if sglang == "0.5.8" else []
        return module.Report(sglang, sglang, "E9", [Result("dispatch", 12289, different)])

    monkeypatch.setattr(module, "conform", report)
    status, out, _ = run("conform", "0.5.9")
    assert status == 0 and out.startswith("0.5.9: 12,289 answers of SGLang's own code compared with E9, 0 differences\n")
    status, out, _ = run("conform", "0.5.8")
    assert status == 1 and "648 cases" in out
    status, out, _ = run("conform", "0.5.8", "--json")
    assert status == 1 and json.loads(out)["differences"]


# ------------------------------------------------------------------------------------------------------- terminals, pipes, imports


@pytest.mark.parametrize(
    "line",
    [
        "step --example",
        "route --bytes 42KiB --sglang 0.5.9",
        "bands --sglang 0.5.9",
        "dispatch --sglang 0.5.9",
        "releases",
    ],
)
def test_json_is_all_that_stands_on_stdout(run: Run, line: str) -> None:
    status, out, err = run(*line.split(), "--json")
    assert (status, err) == (0, "")
    json.loads(out)


def test_a_pipe_gets_plain_text_and_no_rich(run: Run) -> None:
    done = spawn("-X", "importtime", "-m", "sglang_probe", "step", "--example")
    assert done.returncode == 0 and "\x1b" not in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "sglang_probe._step.step" in loaded
    assert not {"rich", "matplotlib", "ipywidgets", "torch", "sglang"} & loaded


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_gets_the_same_words_within_its_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        monkeypatch.setattr(sys, "stdout", stream)
        assert cli.main(["step", "--example"]) == 0
    import re

    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    assert max(map(len, plain.splitlines())) <= width
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", terminal.getvalue()), "a colour in spite of NO_COLOR"
    assert sorted(plain.split()) == sorted(pipe.getvalue().split())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("stpe --example", "invalid choice: 'stpe', did you mean step? (choose from "),
        ("step --lanch x", "unrecognized arguments: --lanch x, did you mean --launch? (see sglang-probe step --help)"),
        ("dump --format perfeto", "invalid choice: 'perfeto', did you mean perfetto? "),
        ("releases nothing-like-it", "unrecognized arguments: nothing-like-it (see sglang-probe releases --help)"),
        ("--nothing-like-it", "unrecognized arguments: --nothing-like-it (see sglang-probe --help)"),
    ],
)
def test_a_slip_of_the_pen_is_answered_by_the_command_that_it_was_meant_for(run: Run, line: str, said: str) -> None:
    status, out, err = run(*line.split())
    assert (status, out) == (2, "") and said in err and err.count("\n") == 1


def test_a_flag_that_the_server_does_not_have_stands_above_the_answer(run: Run) -> None:
    status, out, _ = run("step", "--launch", f"{LAUNCH} --disable-custom-all-redcue", "--gpu", "h200", "--sglang", "0.5.9")
    first, second = out.splitlines()[:2]
    assert status == 0 and second.startswith("2 x custom") and out.count("redcue") == 1
    assert first.startswith("! --disable-custom-all-redcue: unknown to SGLang 0.5.9, which does not start with it")
    assert first.endswith("(did you mean --disable-custom-all-reduce?)")


def test_such_a_flag_stands_above_an_explanation_too(run: Run) -> None:
    figures = ("--before", "19ms", "--after", "29ms", "--sglang-before", "0.5.9", "--sglang-after", "0.5.16")
    status, out, _ = run("explain", *figures, "--launch", f"{LAUNCH} --disable-custom-all-redcue", "--gpu", "h200")
    told = out.splitlines()
    assert status == 0 and told[2].startswith("NOTHING TO EXPLAIN yet") and out.count("redcue: unknown") == 2
    for line, release in zip(told, ("0.5.9", "0.5.16"), strict=False):
        assert line.startswith(f"! --disable-custom-all-redcue: unknown to SGLang {release}, which does not start with it")


def test_a_guessed_machine_or_release_stands_beside_the_answer(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("sglang_probe._step.step")
    known = module.resolve

    def resolve(sglang: object) -> object:
        if sglang == "installed":
            raise InputError("sglang", sglang, "there is none")
        return known(sglang)

    monkeypatch.setattr(module, "resolve", resolve)
    told = run("step", "--launch", LAUNCH)[1].splitlines()[:4]
    assert any(line.endswith("; h200 assumed; the newest release assumed") for line in told)
    assert "assumed" not in "".join(run("step", "--launch", LAUNCH, "--gpu", "h200", "--sglang", "0.5.9")[1].splitlines()[:4])


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_is_no_traceback(closed: int) -> None:
    words = ("step", "--example") if closed == 1 else ("step", "--log", "not-there.log")
    command = f"exec {closed}>&-; exec {shlex.join([sys.executable, '-m', 'sglang_probe', *words])}"
    env = {**os.environ, "PYTHONPATH": PACKAGE_PARENT}
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=env, timeout=120, check=False)
    said = "sglang-probe: the answer could not be written: stdout is closed\n" if closed == 1 else ""
    assert (ended.returncode, ended.stdout, ended.stderr) == (closed, "", said)


def test_a_reader_that_leaves_early_causes_no_noise() -> None:
    command = f"{sys.executable} -m sglang_probe releases --why --json | head -n 1"
    env = {**os.environ, "PYTHONPATH": PACKAGE_PARENT}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=env, timeout=60, check=False)
    assert done.stdout == "[\n" and done.stderr == ""


def test_version_and_help_work_without_a_command(run: Run) -> None:
    status, out, _ = run("--version")
    assert (status, out) == (0, f"sglang-probe {sglang_probe.__version__}\n")
    status, out, err = run()
    assert (status, out) == (2, "") and "usage" in err
    assert run("step", "--help")[0] == 0
    assert spawn("-m", "sglang_probe", "--version").stdout == f"sglang-probe {sglang_probe.__version__}\n"


def test_conform_shows_how_far_it_is_where_stderr_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_probe._cli import conform as _cli_conform
    from sglang_probe._releases import COMMITS, RELEASES

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for tty, stream in ((True, Terminal()), (False, io.StringIO())):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", "xterm")
        with _cli_conform._progress("all") as tell:
            assert (tell is not None) == tty
            if tell is not None:
                tell("0.5.8: dispatch")
                tell("0.5.9: dispatch")
        assert ("0.5.9: dispatch" in stream.getvalue()) == tty
        assert (f"1/{len(RELEASES) - len(COMMITS)}" in stream.getvalue()) == tty


# ------------------------------------------------------------------------------------------------------------------------------- show


def test_a_file_is_shown_again_also_while_it_is_written_and_damage_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = measured.write(tmp_path / "m.jsonl", 2)
    assert cli.main(["show", str(path)]) == 0
    assert "custom (one_shot)" in capsys.readouterr().out
    assert cli.main(["show", str(path), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["cells"]) == 2
    partial = measured.write(tmp_path / "p.jsonl", 1, finish=False)
    assert cli.main(["show", str(partial)]) == 0 and "PARTIAL" in capsys.readouterr().out
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))
    assert cli.main(["show", str(path)]) == 1
    assert "line " in capsys.readouterr().err
    assert cli.main(["show", str(path), "--rescue"]) == 0 and "PARTIAL" in capsys.readouterr().out
    assert cli.main(["show", str(measured.write(tmp_path / "w.jsonl", 1, wrong=2))]) == 1
