"""ab with real commands: how a figure is read, and what becomes of one that hangs, fails, prints nothing, or leaves processes behind.

Invariant: the commands are short Python programs; no test asserts a time, but that what was to end did end.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sglang_probe import InputError
from sglang_probe._ab.ab import ab
from sglang_probe._ab.commands import Command, CommandSide
from sglang_probe._ab.figure import Figure, NoFigure, figure_of
from sglang_probe._ab.process import run
from sglang_probe._ab.result import AbResult
from sglang_probe._ab.sides import Outcome
from sglang_probe._verdict.verdict import Word

ENV = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")}


@pytest.fixture(autouse=True, scope="module")
def _without_git() -> Iterator[None]:
    """Who edits this checkout while tests run has another revision from one call to the next, and the file is not continued."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        yield


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-I", "-S", "-c", code


def once(code: str, *, limit_s: float = 30.0, **more: Any) -> Outcome:
    return CommandSide(Command(python(code), **more), "a").run(0, limit_s, lambda now: None)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


# ------------------------------------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("figure", "out", "values"),
    [
        ("wall", "whatever", (2.5,)),
        ("last", "took 3 runs\nmean 89.25 tok/s\n", (89.25,)),
        ("last", "1,234.5", (1234.5,)),
        ("last", "3e-2 s", (0.03,)),
        ("last", "v0.5.9 done in 12", (12.0,)),
        ("json:a.b", '{"a": {"b": 3}}', (3.0,)),
        ("json:runs", '{"runs": [1, 2.5, 3]}', (1.0, 2.5, 3.0)),
        ("json:0.us", 'starting\n{"x": 1}\n[{"us": 7}]\nbye', (7.0,)),
        ("json:us", '{\n "us": 4\n}', (4.0,)),
        (r"took ([0-9.]+) ms", "took 1.5 ms\ntook 2.5 ms\n", (2.5,)),
        (r"^[0-9]+$", "7\n8\n", (8.0,)),
    ],
)
def test_a_figure_is_read_as_it_was_asked_for(figure: str, out: str, values: tuple[float, ...]) -> None:
    assert figure_of(figure).read(out, 2.5) == values


def test_all_matches_are_iterations_where_that_is_said() -> None:
    assert figure_of(r"took ([0-9.]+)", every=True).read("took 1\ntook 2\ntook 4\n", 9.0) == (1.0, 2.0, 4.0)


@pytest.mark.parametrize(
    ("figure", "out", "why"),
    [
        ("last", "", "it printed nothing"),
        ("last", "no digits", "it printed no number"),
        ("last", "speed 3\nspeed nan\n", "its figure is nan"),
        ("last", "0", "its figure is 0, and a ratio needs numbers above 0"),
        ("json:a.c", '{"a": {"b": 3}}', "its JSON has no a.c: at 'c' there is b"),
        ("json:a", '{"a": "fast"}', "is no number"),
        ("json:a", "hello", "it printed no JSON; its last line is 'hello'"),
        (r"took ([0-9.]+) ms", "took long", "nothing that it printed matches"),
        (r"took (\w+)", "took long", "what matches is no number: 'long'"),
    ],
)
def test_a_figure_that_is_not_there_is_told_and_not_guessed(figure: str, out: str, why: str) -> None:
    with pytest.raises(NoFigure, match=r"^.*") as error:
        figure_of(figure).read(out, 1.0)
    assert why in str(error.value)


@pytest.mark.parametrize("given", ["", None, 3, "json:", "([0-9]", "throughput"])
def test_a_figure_that_cannot_be_one_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match="figure"):
        figure_of(given)


def test_iterations_go_with_an_expression_alone() -> None:
    with pytest.raises(InputError, match="regular expression"):
        figure_of("last", every=True)
    assert figure_of(Figure("wall")) == Figure("wall")


# -------------------------------------------------------------------------------------------------------------------- command lines


def test_a_text_is_cut_as_a_shell_would_and_variables_in_front_are_declared() -> None:
    command = Command("NCCL_ALGO=Ring X='a b' prog --name 'two words'")
    assert command.argv == ("prog", "--name", "two words") and dict(command.env) == {"NCCL_ALGO": "Ring", "X": "a b"}
    assert str(command) == "NCCL_ALGO=Ring X='a b' prog --name 'two words'"


@pytest.mark.parametrize("text", ["a | b", "a > b", "a && b", "a; b", "(a)"])
def test_what_only_a_shell_understands_is_refused_with_the_way_to_write_it(text: str) -> None:
    with pytest.raises(InputError, match="no shell runs it: give sh -c"):
        Command(text)
    assert Command(f"sh -c {shlex.quote(text)}").argv == ("sh", "-c", text)


@pytest.mark.parametrize("given", ["", "A=1", [], 3, ["prog", 3], "'open"])
def test_what_is_no_command_is_refused(given: Any) -> None:
    with pytest.raises(InputError, match="argv"):
        Command(given)


def test_a_program_that_is_not_there_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such program"):
        ab("no-such-program", "no-such-program", out=tmp_path / "x.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_key_among_a_commands_words_is_not_kept() -> None:
    command = Command([sys.executable, "--api-key", "hunter2", "--tokens", "64"])
    side = CommandSide(command, "a")
    assert side.to_dict()["argv"] == [sys.executable, "--api-key", "(withheld)", "--tokens", "64"]
    assert "hunter2" not in str(command) + side.text and "--tokens 64" in str(command)
    assert command.argv[2] == "hunter2", "it runs with it"


def test_secrets_of_the_environment_are_not_kept() -> None:
    side = CommandSide(Command(python("pass"), env={"HF_TOKEN": "hf_abc", "NCCL_ALGO": "Ring"}), "a")
    assert "hf_abc" not in str(side.to_dict()) + side.text and side.to_dict()["env"]["NCCL_ALGO"] == "Ring"


def test_a_library_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no")
    for path in (tmp_path / "text.so", tmp_path / "none.so"):
        with pytest.raises(InputError, match="libnccl"):
            Command("prog", nccl=path)


# --------------------------------------------------------------------------------------------------------------------------- runs


def test_a_command_gets_its_environment_and_folder(tmp_path: Path) -> None:
    code = "import os; print(len(os.environ['SGL_X']), os.getcwd()); print(7)"
    side = CommandSide(Command(python(code), env={"SGL_X": "12345"}, figure="last", cwd=tmp_path), "a")
    assert side.run(0, 30.0, lambda now: None).figures == (7.0,)


def test_the_wall_clock_is_that_of_the_command() -> None:
    outcome = once("from time import sleep; sleep(0.2)")
    assert outcome.figures == (outcome.wall_s,) and outcome.wall_s >= 0.2


@pytest.mark.parametrize(
    ("code", "figure", "why"),
    [
        ("import sys; print(3); sys.exit(3)", "last", "it ended with exit status 3"),
        ("import os; os.kill(os.getpid(), 11)", "wall", "it was killed by signal 11 (SIGSEGV)"),
        ("print('nothing')", "last", "it printed no number"),
    ],
)
def test_a_run_that_fails_says_how(code: str, figure: str, why: str) -> None:
    outcome = once(code, figure=figure)
    assert outcome.failed == why and not outcome.figures


def test_the_end_of_what_a_failing_run_printed_is_kept() -> None:
    outcome = once("import sys; print('step 1'); sys.stderr.write('cannot open x\\n'); sys.exit(1)")
    assert outcome.output.splitlines() == ["stdout: step 1", "stderr: cannot open x"]


def test_a_run_that_hangs_is_ended_at_its_limit_with_all_that_it_started() -> None:
    code = """
import os, signal
from time import sleep
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
os.write(1, b"%d\\n" % os.getpid())
sleep(600)
"""
    outcome = once(code, limit_s=0.5)
    assert outcome.failed.startswith("it had not ended after 0.5")
    pids = [int(line.split()[-1]) for line in outcome.output.splitlines()]
    assert len(pids) == 2 and not any(map(alive, pids))


def test_what_a_command_leaves_behind_is_ended_and_told(tmp_path: Path) -> None:
    code = f"""
import os
from time import sleep
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open({str(tmp_path / "pid")!r}, "w") as file:
            file.write(str(os.getpid()))
        os.close(1)
        sleep(600)
    os._exit(0)
while not os.path.exists({str(tmp_path / "pid")!r}) or not os.path.getsize({str(tmp_path / "pid")!r}):
    sleep(0.01)
print(5)
"""
    outcome = once(code, figure="last")
    assert outcome.figures == (5.0,) and outcome.note == "it left 1 process behind, which was ended"
    assert not alive(int((tmp_path / "pid").read_text()))


def test_output_without_end_does_not_fill_the_memory() -> None:
    ran = run(python("for i in range(40): print('x' * (1 << 20))\nprint(42)"), ENV, None, 60.0)
    assert not ran.failed and len(ran.out) == 8 << 20 and ran.out.endswith("x\n42\n")


def test_variables_libraries_and_cores_are_those_that_the_processes_really_had() -> None:
    code = "from time import sleep; sleep(0.3)"
    wrapped = ("/usr/bin/env", "NCCL_ALGO=Ring", "MY_TOKEN=abc", *python(code))
    outcome = CommandSide(Command(wrapped), "a").run(0, 30.0, lambda now: None)
    assert outcome.seen.looks and dict(outcome.seen.env)["NCCL_ALGO"] == ("Ring",) and "abc" not in str(outcome.seen)
    assert any(path.startswith("/") and "libc.so" in path for path in outcome.seen.libraries) and outcome.seen.cores


def test_a_command_loads_the_nccl_that_it_was_given(tmp_path: Path) -> None:
    """Any library will do: what matters is that the program has it, by this path and no other."""
    import _ctypes

    library = tmp_path / "libnccl.so.2"
    library.write_bytes(Path(_ctypes.__file__).read_bytes())
    code = python("import os; from time import sleep; sleep(0.2); print(os.environ['SGLANG_NCCL_SO_PATH'])")
    result = ab(
        code[:-1] + ("from time import sleep; sleep(0.2)",), Command(code, nccl=library), out=tmp_path / "x.jsonl", runs=2
    )
    assert result.stopped_by == "runs" and not result.refused, result.sentence
    assert {run.arm for run in result.runs if str(library) in run.seen.libraries} == {"b"}


# ----------------------------------------------------------------------------------------------------------------------------- whole


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> AbResult:
    """Figures that are far apart and need no clock."""
    figures = [f"import os; print({base} + os.getpid() % 7 / 10)" for base in (100, 200)]
    a, b = (Command(python(code), figure="last") for code in figures)
    return ab(a, b, unit="tok/s", out=tmp_path_factory.mktemp("ab") / "x.jsonl", runs=20, progress=False)


def test_the_answer_comes_first_and_everything_is_in_the_file(decided: AbResult) -> None:
    assert decided.word is Word.FASTER and decided.stopped_by == "decided" and decided.whole
    assert str(decided).startswith("FASTER: b is ") and decided.path.endswith("x.jsonl") and os.path.exists(decided.path)
    again = AbResult.read(decided.path)
    assert again.verdict == decided.verdict and again.runs == decided.runs and again.stopped == decided.stopped
    assert again.to_dict() | {"seconds": 0} == decided.to_dict() | {"seconds": 0}
    assert "seed 0" in decided.why() and "Looks that could have ended it" in decided.why()


def test_the_machine_is_looked_at_before_and_after_each_run(decided: AbResult) -> None:
    for one in decided.runs:
        assert one.before["at"] <= one.after["at"] and one.before["load"] and one.before["cpu"]["cores"]
    assert any(row.name == "load average before a run" for row in decided.states)


def test_commands_have_no_cells(decided: AbResult) -> None:
    with pytest.raises(InputError, match="no cells"):
        decided.measurement("a")


def test_a_finished_experiment_is_never_written_again(decided: AbResult) -> None:
    with pytest.raises(InputError, match="it exists already, and is never overwritten"):
        ab(python("print(1)"), python("print(1)"), out=decided.path)


def test_a_command_that_fails_ends_it_with_the_arm_and_the_run_named(tmp_path: Path) -> None:
    result = ab(python("pass"), python("raise SystemExit(9)"), out=tmp_path / "x.jsonl", progress=False)
    assert result.word is Word.UNDECIDED and result.stopped_by == "failures" and not result.whole
    assert result.sentence == "UNDECIDED: b failed 2 times, the last time in run 3 (warming up): it ended with exit status 9"
    assert [run.arm for run in result.failed] == ["b", "b"] and result.path.endswith(".partial")


def test_a_variable_that_a_command_sets_itself_refuses_a_verdict_until_it_is_declared(tmp_path: Path) -> None:
    code = python("from time import sleep; sleep(0.15)")
    wrapped = ("/usr/bin/env", "NCCL_ALGO=Ring", *code)
    result = ab(code, wrapped, out=tmp_path / "x.jsonl", runs=3, progress=False)
    assert result.word is Word.UNDECIDED and result.stopped_by == "states"
    assert result.sentence.startswith(
        "UNDECIDED: a and b did not run under the same conditions: NCCL_ALGO is not set in a, and Ring in b"
    )
    assert "--b-env NCCL_ALGO=Ring" in result.reason and result.verdict is not None
    assert [one.kind for one in result.verdict.findings][:1] == ["states"]
    for number, more in enumerate(({"allow": ["NCCL_ALGO"]}, {"b": Command(wrapped, env={"NCCL_ALGO": "Ring"})})):
        arms = {"a": code, "b": wrapped} | {name: one for name, one in more.items() if name == "b"}
        allow = more.get("allow", ())
        result = ab(**arms, out=tmp_path / f"{number}.jsonl", runs=2, allow=allow, warm_up=0, progress=False)
        assert result.stopped_by == "runs" and not result.refused


def test_arms_that_cannot_be_compared_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two figures are not compared"):
        ab(Command("true", figure="last"), Command("true"), out=tmp_path / "x")
    with pytest.raises(InputError, match="no unit says which figures are better"):
        ab(Command(python("print(1)"), figure="last"), Command(python("print(1)"), figure="last"), out=tmp_path / "x")
    with pytest.raises(InputError, match="these figures are in s"):
        ab(python("pass"), python("pass"), unit="ms", out=tmp_path / "x")
    for name, value in {
        "runs": 1,
        "margin": 0,
        "confidence": 1.0,
        "seed": "x",
        "warm_up": -1,
        "failures": 0,
        "better": "more",
    }.items():
        with pytest.raises(InputError, match=name):
            ab(python("pass"), python("pass"), out=tmp_path / "x", **{name: value})
    assert not list(tmp_path.iterdir())
