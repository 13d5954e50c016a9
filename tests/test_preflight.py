"""preflight: phases that hang, die, fail or flood cost their own answer and their own time, never another's and never more.

Invariant: the sick phases are functions of a module that stands in a temporary folder; nothing in the package knows them. Most of them
run at the same time, each in a thread of its own, as a notebook's background thread would run one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import sglang_probe as probe
from sglang_probe import cli
from sglang_probe._preflight import child, live, phases
from sglang_probe._preflight.devices import driver_missing
from sglang_probe._preflight.phases import PHASES, Phase, chosen
from sglang_probe._preflight.result import PhaseResult, Preflight
from sglang_probe._preflight.runner import Nobody, run
from sglang_probe._preflight.variables import VARIABLES
from sglang_probe._types import InputError

PACKAGE_PARENT = str(Path(probe.__file__).parents[1])
LIMIT_S = 10.0
"""Of a phase that hangs: Python starts in less, many at once on two cores."""
MARGIN_S = 20.0

SICK = """
import ctypes, os, signal, sys, threading


def for_ever():
    threading.Event().wait()


def answers(report, known):
    report.fact("known", sorted(known))
    report.note("a note")
    return "an answer"


def finds(report, known):
    report.finding("something is wrong")
    return "an answer"


def skips(report, known):
    report.skip("nothing to ask")


def sleeps(report, known):
    report.fact("before", [1, {"two": None}])
    report.doing("asking the driver")
    report.fact("pid", os.getpid())
    for_ever()


def ignores_sigterm(report, known):
    for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN)
    sleeps(report, known)


def holds_the_lock(report, known):
    report.fact("before", 1)
    ctypes.PyDLL(None).pause()


def stops_itself(report, known):
    report.fact("before", 1)
    os.kill(os.getpid(), signal.SIGSTOP)


def closes_its_end(report, known):
    os.close(report._fd)
    for_ever()


def floods_its_output(report, known):
    report.fact("before", 1)
    while True:
        os.write(1, b"flood " * 1000)


def prints_much_and_answers(report, known):
    for _ in range(500):
        os.write(2, b"x" * 65535 + b"\\n")
    return "an answer"


def says_too_much(report, known):
    report.fact("before", 1)
    while True:
        report.note("y" * 60000)


def says_nonsense(report, known):
    report.fact("before", 1)
    os.write(report._fd, b'["surprise"]\\n')
    for_ever()


def segfaults(report, known):
    report.fact("before", 1)
    report.doing("reading address 0")
    ctypes.string_at(0)


def is_killed(report, known):
    report.finding("wrong before")
    os.kill(os.getpid(), signal.SIGKILL)


def exits(report, known):
    print("last words", flush=True)
    os._exit(3)


def raises(report, known):
    report.fact("before", 1)
    raise ValueError("no good\\nat all")


def leaves_by_exit(report, known):
    sys.exit(4)


def leaves_a_grandchild(report, known):
    _grandchild(report)
    return "an answer"


def dies_and_leaves_a_grandchild(report, known):
    _grandchild(report)
    os._exit(3)


def _grandchild(report):
    ready, tell = os.pipe()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(tell, str(os.getpid()).encode())
        while True:
            signal.pause()
    report.fact("grandchild", int(os.read(ready, 20)))


def odd_facts(report, known):
    report.fact("odd", {"surrogate \\udcff": "a\\udcffb", "large": 1 << 70, "nan": float("nan"), "inf": float("-inf")})
    return "two\\nlines \\udcff"
"""


@pytest.fixture(scope="module")
def sick_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("sick")
    (folder / "sick_phases.py").write_text(SICK)
    sys.path.insert(0, str(folder))  # a phase's process has the path of its parent
    yield folder
    sys.path.remove(str(folder))


def phase(name: str, limit_s: float = LIMIT_S, **more: object) -> Phase:
    return replace(Phase(name, limit_s, f"sick_phases:{name}", "a test's", hangs="it is stuck"), **more)  # type: ignore[arg-type]


NAMES = [line[4:].partition("(")[0] for line in SICK.splitlines() if line.startswith("def ") and "(report, known)" in line]


@pytest.fixture(scope="module")
def found(sick_folder: Path) -> dict[str, tuple[Preflight, float]]:
    """Each sick phase, with a healthy one behind it: what came out, and how long that took."""

    def one(name: str) -> tuple[Preflight, float]:
        since = time.monotonic()
        return run([phase(name), phase("answers", 60.0)], Nobody()), time.monotonic() - since

    with ThreadPoolExecutor(len(NAMES)) as threads:
        return dict(zip(NAMES, threads.map(one, NAMES), strict=True))


def gone(pid: int) -> bool:
    """Ended, and be it unreaped: an orphan is reaped by somebody else, whenever that one gets to it."""
    for _ in range(500):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        threading.Event().wait(0.01)
    return False


# ------------------------------------------------------------------------------------------------------------------------------ sick


@pytest.mark.parametrize("name", NAMES)
def test_no_phase_takes_longer_than_its_limit_or_takes_the_next_ones_answer(
    found: dict[str, tuple[Preflight, float]], name: str
) -> None:
    result, seconds = found[name]
    assert [one.name for one in result.phases] == [name, "answers"]
    assert (result.phases[1].state, result.phases[1].text) == ("ok", "an answer")
    assert seconds <= result.limit_s + MARGIN_S
    json.dumps(result.to_dict(), allow_nan=False)


STATES = {
    "answers": "ok",
    "finds": "finding",
    "skips": "skipped",
    "sleeps": "hung",
    "ignores_sigterm": "hung",
    "holds_the_lock": "hung",
    "stops_itself": "hung",
    "closes_its_end": "hung",
    "floods_its_output": "hung",
    "prints_much_and_answers": "ok",
    "says_too_much": "failed",
    "says_nonsense": "failed",
    "segfaults": "died",
    "is_killed": "died",
    "exits": "died",
    "raises": "failed",
    "leaves_by_exit": "failed",
    "leaves_a_grandchild": "ok",
    "dies_and_leaves_a_grandchild": "died",
    "odd_facts": "ok",
}


def test_every_sickness_has_its_state(found: dict[str, tuple[Preflight, float]]) -> None:
    assert {name: result.phases[0].state for name, (result, _) in found.items()} == STATES
    for name, (result, _) in found.items():
        assert result.healthy == (STATES[name] in ("ok", "skipped")), name
        assert result.answer.startswith("healthy: " if result.healthy else "SICK: ")


def test_what_hung_is_named_and_what_was_known_is_kept(found: dict[str, tuple[Preflight, float]]) -> None:
    for name in ("sleeps", "ignores_sigterm"):
        result = found[name][0]
        hung = result.phases[0]
        assert hung.text == (
            f"phase '{name}' did not answer in 10 s, while asking the driver: it is stuck; what was learned before is kept"
        )
        assert hung.facts["before"] == (1, {"two": None})
        assert gone(hung.facts["pid"])
        assert result.answer == f"SICK: {hung.text}" and "before[0]: 1" in str(result)
    for name in ("holds_the_lock", "stops_itself", "floods_its_output", "says_too_much", "says_nonsense", "segfaults", "raises"):
        assert found[name][0].phases[0].facts["before"] == 1, name


def test_how_it_died_is_told_with_its_last_lines(found: dict[str, tuple[Preflight, float]]) -> None:
    texts = {name: result.phases[0].text for name, (result, _) in found.items()}
    assert texts["segfaults"] == "phase 'segfaults': its process was killed by signal 11 (SIGSEGV), while reading address 0"
    assert "sick_phases.py" in found["segfaults"][0].phases[0].output  # the fault handler's traceback
    assert texts["exits"] == "phase 'exits': its process ended with exit status 3"
    assert found["exits"][0].phases[0].output == "last words" and "last words" in str(found["exits"][0])
    assert texts["raises"] == "phase 'raises' failed: ValueError: no good"
    assert "at all" in found["raises"][0].phases[0].output
    assert texts["leaves_by_exit"] == "phase 'leaves_by_exit' failed: SystemExit: 4"
    assert texts["says_too_much"] == "phase 'says_too_much': it said more than 8 MiB"
    assert "cannot be understood" in texts["says_nonsense"]
    killed = found["is_killed"][0].phases[0]
    assert killed.problems == (killed.text, "wrong before") and "SIGKILL" in killed.text
    assert "(and 1 more)" in found["is_killed"][0].answer


def test_a_flood_is_kept_small(found: dict[str, tuple[Preflight, float]]) -> None:
    assert found["floods_its_output"][0].phases[0].output.startswith(("flood", "lood", "ood", "od", "d ", " f"))
    assert len(found["floods_its_output"][0].phases[0].output) <= child._PRINTED_BYTES
    assert found["prints_much_and_answers"][0].phases[0].text == "an answer"


def test_a_grandchild_that_holds_the_pipe_is_not_waited_for_and_does_not_live_on(
    found: dict[str, tuple[Preflight, float]],
) -> None:
    assert found["leaves_a_grandchild"][0].phases[0].text == "an answer"
    for name in ("leaves_a_grandchild", "dies_and_leaves_a_grandchild"):
        assert gone(found[name][0].phases[0].facts["grandchild"]), name
        assert found[name][0].phases[0].seconds < LIMIT_S


def test_facts_that_json_cannot_hold_are_told_all_the_same(found: dict[str, tuple[Preflight, float]]) -> None:
    odd = found["odd_facts"][0].phases[0]
    assert odd.text == "two lines \\udcff"
    assert odd.facts["odd"] == {"surrogate \\udcff": "a\\udcffb", "large": str(1 << 70), "nan": "NaN", "inf": "-Infinity"}


def test_a_process_that_cannot_be_killed_is_left_behind_and_said_so(sick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(child.Child, "_kill", lambda self: None)  # as if it sat in the kernel
        since = time.monotonic()
        result = run([phase("sleeps", 3.0), phase("answers", 60.0)], Nobody())
        seconds = time.monotonic() - since
    left = result.phases[0]
    assert seconds <= result.limit_s + MARGIN_S
    assert left.state == "hung" and "has not ended, though SIGKILL was sent (state " in left.text and "left behind" in left.text
    # its own pid is not told where its start took the whole limit
    pids = [int(word) for word in left.text.split() if word.isdigit() and int(word) > 3]
    assert len(pids) == 1 and left.facts.get("pid", pids[0]) == pids[0]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pids[0], signal.SIGKILL)
    for thread in threading.enumerate():
        if thread.name == f"sglang_probe reaps {pids[0]}":
            thread.join(30)
            assert not thread.is_alive()
    assert not Path(f"/proc/{pids[0]}").exists()
    assert (result.phases[1].state, result.phases[1].notes) == ("ok", ("a note",))


def test_a_machine_that_starts_no_process_is_told(sick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(sick_folder / "no python"))
    result = run([phase("answers")], Nobody())
    assert result.phases[0].state == "failed" and "no process could be started" in result.answer
    monkeypatch.setattr(sys, "executable", "")
    assert "sys.executable is empty" in run([phase("answers")], Nobody()).answer


def test_nothing_is_left_open(sick_folder: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    run([phase("answers", 60.0), phase("exits", 60.0)], Nobody())
    assert sorted(os.listdir("/proc/self/fd")) == before


# ----------------------------------------------------------------------------------------------------------------------------- order


def test_phases_that_need_gpus_are_not_started_where_there_are_too_few(sick_folder: Path) -> None:
    def with_devices(devices: Phase) -> PhaseResult:
        return run([replace(devices, name="devices"), phase("answers", needs_gpus=2)], Nobody()).phases[1]

    assert with_devices(phase("answers", 60.0)).text == "it needs 2 GPUs, and there are 0"
    assert with_devices(phase("exits", 60.0)).text == "it asks the same driver as phase 'devices', which died"
    assert with_devices(phase("sleeps", 0.5)).text == "it asks the same driver as phase 'devices', which hung"
    assert run([phase("answers", 60.0, needs_gpus=2)], Nobody()).phases[0].state == "ok"


def test_a_phase_is_told_what_earlier_ones_found(sick_folder: Path) -> None:
    result = run([phase("sleeps", 0.5), phase("answers", 60.0)], Nobody())
    assert result["answers"].facts["known"] == ("caller", "sleeps")
    with pytest.raises(KeyError, match="it has sleeps, answers"):
        result["nccl"]


def test_the_table_is_whole() -> None:
    import importlib

    assert len({one.name for one in PHASES}) == len(PHASES)
    for one in PHASES:
        module, _, name = one.function.partition(":")
        assert callable(getattr(importlib.import_module(module, phases.__package__), name)), one.name
    assert PHASES[0].name == "paths"
    assert [one.name for one in chosen(PHASES, ["nccl"])] == ["nccl"]
    assert [one.name for one in chosen(PHASES, "peer")] == ["devices", "peer"]
    assert [one.name for one in chosen(PHASES, "nccl, system")] == ["nccl", "system"]
    assert [one.name for one in chosen(PHASES, ["system,devices", "nccl"])] == ["devices", "nccl", "system"]
    for only in (["nonsense"], [], "", "nccl,", "nccl,nonsense", 3, True, 2.5, b"nccl", [3], [["nccl"]], [None]):
        with pytest.raises(InputError, match="only="):
            probe.preflight(only=only)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="show="):
        probe.preflight(only="system", show=1)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------------------- interrupted


class Interrupts(Nobody):
    """Ctrl-C while this phase runs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def doing(self, phase: Phase, text: str, seconds: float) -> None:
        if phase.name == self.name and text == "asking the driver":
            raise KeyboardInterrupt


def test_ctrl_c_leaves_what_is_known(sick_folder: Path) -> None:
    result = run([phase("answers", 60.0), phase("sleeps", 60.0), phase("finds", 60.0)], Interrupts("sleeps"))
    assert result.interrupted and result.healthy is None and result.problems == ()
    assert result.to_dict()["healthy"] is None
    sick = run([phase("finds", 60.0), phase("sleeps", 60.0)], Interrupts("sleeps"))
    assert sick.interrupted and sick.healthy is False, "what is wrong is wrong, whatever the rest would have said"
    assert [one.state for one in result.phases] == ["ok", "skipped", "skipped"]
    assert result["sleeps"].facts["before"] == (1, {"two": None}) and "while asking the driver" in result["sleeps"].text
    assert result.answer == "interrupted: nothing is wrong in the 1 of 3 phases that answered"
    assert "pid" not in result["sleeps"].facts or gone(result["sleeps"].facts["pid"])


def test_a_real_signal_ends_the_phase_that_runs_and_its_process(sick_folder: Path) -> None:
    script = (
        "import json, os, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from sglang_probe._preflight.phases import Phase\n"
        "from sglang_probe._preflight.runner import Nobody, run\n"
        "class Tells(Nobody):\n"
        "    def doing(self, phase, text, seconds):\n"
        "        if text == 'asking the driver': print(text, flush=True)\n"
        "found = run([Phase('sleeps', 100.0, 'sick_phases:sleeps', '')], Tells())\n"
        "print(json.dumps(found.to_dict()), flush=True)\n"
    )
    env = {**os.environ, "PYTHONPATH": PACKAGE_PARENT}
    with subprocess.Popen([sys.executable, "-c", script, str(sick_folder)], stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "asking the driver\n"
        parent.send_signal(signal.SIGINT)
        last = parent.stdout.read().splitlines()[-1]
        assert parent.wait(60) == 0
    told = json.loads(last)
    assert told["interrupted"] and gone(told["phases"][0]["facts"].get("pid", 0))


def test_a_phase_ends_with_a_parent_that_is_killed(sick_folder: Path) -> None:
    script = (
        "import sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from sglang_probe._preflight.phases import Phase\n"
        "from sglang_probe._preflight import child\n"
        "one = child.Child('sick_phases:sleeps', {}, {})\n"
        "one.listen(1e12, lambda: print(one.pid, flush=True) if one.heard.doing == 'asking the driver' else None)\n"
    )
    env = {**os.environ, "PYTHONPATH": PACKAGE_PARENT}
    with subprocess.Popen([sys.executable, "-c", script, str(sick_folder)], stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    assert gone(pid)


# ------------------------------------------------------------------------------------------------------------------------------ shown


README_BLOCK = re.compile(r"```console\n\$ sglang-probe preflight +# each.*?\n(.*?)```", re.DOTALL)


def test_the_preflight_that_readme_shows_is_one_that_could_be_printed() -> None:
    """It is of one machine and one run: what can be held against the code is its form, its phases and its words."""
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    block = README_BLOCK.search(text)
    assert block and "An example from one machine" in text[block.end() :][:200]
    *lines, last, _ = block[1].splitlines()
    rows = [row for line in lines if (row := re.fullmatch(r"(\w+) +(\w+) +(\d+\.\d s)  (\S.*)", line))]
    assert len(rows) == len(lines) - lines.count("...") >= 3
    names = [one.name for one in PHASES]
    assert [names.index(row[2]) for row in rows] == sorted(names.index(row[2]) for row in rows)
    finding = f"NCCL_P2P_DISABLE=1: {VARIABLES['NCCL_P2P_DISABLE'].text}"
    assert last == f"SICK: {finding}"
    for row in rows:
        state = "finding" if row[1] == "FINDING" else row[1]
        answer = row[4].removeprefix(f"{finding}; ") if state == "finding" else row[4]
        one = PhaseResult(row[2], state, float(row[3][:-2]), 9.0, {}, (finding,) * (state == "finding"), answer)  # type: ignore[arg-type]
        assert str(one) == row[0]
    assert rows[0][4].startswith("11 paths correct on 2 CPU ranks standing in; no GPU was used, no NCCL ran")


def made(**states: str) -> Preflight:
    findings = {"finding": ("it moved wrong data",)}
    return Preflight(
        tuple(
            PhaseResult(
                name,
                state,  # type: ignore[arg-type]
                1.26,
                5.0,
                {"all_reduces": [{"target": "one_shot", "path": "custom", "kernel": "one_shot", "result": "correct"}]}
                if name == "paths"
                else {"a": {"b": [1, 2]}},
                findings.get(state, ()),
                f"text of {name}",
                ("a note \x1b[31m",),
                "its last line" if state == "died" else "",
            )
            for name, state in states.items()
        )
    )


def test_the_first_line_is_the_answer_and_the_page_says_all() -> None:
    assert made(paths="ok", system="ok").answer == "healthy: text of paths (3 s)"
    result = made(paths="finding", driver="died", links="skipped")
    text = str(result)
    assert text.splitlines()[0] == "SICK: it moved wrong data (and 1 more)"
    assert str(result.phases[0]).endswith("it moved wrong data; text of paths"), "the line of a finding shows it"
    several = replace(result.phases[0], findings=("it moved wrong data", "and more"))
    assert several.row[3] == "it moved wrong data (and 1 more); text of paths"
    for words in ("FINDING  paths", "DIED     driver", "skipped  links", "1.3 s", "one_shot", "its last line", "a.b: 1, 2"):
        assert words in text, words
    assert "\x1b" not in text and "\\x1b[31m" in text
    assert result._repr_html_().startswith("<div") and "SICK: it moved wrong data" in result._repr_html_()
    assert repr(result) == "<Preflight: SICK: it moved wrong data (and 1 more)>"
    assert str(result.phases[1]).split()[:4] == ["DIED", "driver", "1.3", "s"]
    assert "Facts of phase 'links'" in "\n".join(str(block) for block in result.page(verbose=True))


SCHEMA = {
    "": {"healthy": bool, "answer": str, "interrupted": bool, "problems": list, "notes": list, "seconds": float, "limit_s": float}
    | {"phases": list},
    "phase": {"name": str, "state": str, "seconds": float, "limit_s": float, "text": str, "findings": list, "notes": list}
    | {"facts": dict, "output": str},
}


def fits(data: dict[str, object]) -> None:
    assert {name: type(value) for name, value in data.items()} == SCHEMA[""]  # healthy is null where it was interrupted
    for one in data["phases"]:  # type: ignore[attr-defined]
        assert {name: type(value) for name, value in one.items()} == SCHEMA["phase"]
        assert one["state"] in ("ok", "finding", "skipped", "hung", "died", "failed")


@pytest.fixture
def few(sick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "PHASES", (phase("answers", 60.0), phase("finds", 60.0), phase("sleeps", 60.0)))


def test_the_command_prints_each_answer_as_it_is_known_and_the_verdict_last(
    few: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["preflight", "--only", "answers"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["ok", "answers", *lines[0].split()[2:4], "an", "answer"] and err == ""
    assert lines[-1].startswith("healthy: nothing is wrong in 1 phase")
    assert cli.main(["preflight", "--only", "answers", "--only", "finds"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[1].startswith("FINDING  finds") and out.splitlines()[-1] == "SICK: something is wrong"
    assert out.splitlines()[1].endswith("something is wrong; an answer")
    assert cli.main(["preflight", "--only", "answers,finds"]) == 1
    assert capsys.readouterr()[0].splitlines()[1].startswith("FINDING  finds")


def test_json_is_all_that_stands_on_stdout(few: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["preflight", "--only", "finds", "--json"]) == 1
    out, err = capsys.readouterr()
    data = json.loads(out)
    fits(data)
    assert data["problems"] == ["something is wrong"] and err == ""


def test_bad_input_and_ctrl_c_have_their_own_statuses(
    few: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["preflight", "--only", "nonsense"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "give names of answers, finds, sleeps" in err
    monkeypatch.setattr(live.Lines, "doing", Interrupts("sleeps").doing)
    assert cli.main(["preflight", "--only", "answers", "--only", "sleeps"]) == 130
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == "interrupted: nothing is wrong in the 1 of 2 phases that answered"
    assert "an answer" in out.splitlines()[0]


def test_a_terminal_sees_what_is_being_done(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    with live.watch(None, screen) as look:
        assert isinstance(look, live.Rich)
        run([phase("answers", 60.0), phase("sleeps", 1.0)], look)
    assert "an answer" in screen.getvalue() and "did not answer in 1 s" in screen.getvalue()
    with live.watch(None, io.StringIO()) as look:
        assert isinstance(look, Nobody)


# ------------------------------------------------------------------------------------------------------------------------ this machine


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without GPUs, and without what a user may have set."""
    for name in list(os.environ):
        if name.startswith(("NCCL_", "CUDA_", "TORCH_", "PYTORCH_", "SGLANG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_a_machine_without_gpus_reduces_on_its_cpus_and_is_healthy(plain: None) -> None:
    result = probe.preflight(show=False)
    fits(result.to_dict())
    assert [one.name for one in result.phases] == [one.name for one in PHASES]
    assert not [one.text for one in result.phases if one.state in ("hung", "died", "failed")]
    paths = result["paths"]
    assert paths.state == "ok" and paths.facts["device"] == "host" and paths.text.endswith("; no GPU was used, no NCCL ran")
    assert "paths correct on 2 CPU ranks standing in" in paths.text, "nobody takes this for a check of GPUs or NCCL"
    assert "All-reduces (CPU ranks standing in; no NCCL ran)" in str(result)
    assert any("no NCCL and no kernel of a GPU ran" in note for note in paths.notes)
    rows = {row["target"]: row for row in paths.facts["all_reduces"]}
    assert rows["one_shot"] == {"target": "one_shot", "path": "custom", "kernel": "one_shot", "result": "correct"}
    assert sum(row["result"] == "correct" for row in rows.values()) == int(paths.text.split()[0]) >= 11
    assert set(rows) >= {"quick", "flashinfer", "torch_distributed", "two_shot_push", "limit"}
    assert result["devices"].facts["count"] == 0
    assert {"peer", "ipc"} <= {one.name for one in result.phases if one.state == "skipped"}
    assert result["system"].facts["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    if driver_missing():
        assert result.healthy and result.answer.startswith("healthy: 11 paths correct on 2 CPU ranks"), result.problems
        assert {"driver", "links", "health"} <= {one.name for one in result.phases if one.state == "skipped"}


@pytest.mark.parametrize("how", ["stdin", "-c", "a script that is gone"])
def test_it_works_where_the_main_module_cannot_be_imported(tmp_path: Path, how: str) -> None:
    code = "import os, sys\nif os.path.isfile(sys.argv[0]): os.unlink(sys.argv[0])\nimport sglang_probe as probe\n"
    code += "print(probe.preflight(only=['environment', 'system'], show=False)['system'].state)\n"
    script = tmp_path / "script.py"
    script.write_text(code)
    argv = {"stdin": ["-"], "-c": ["-c", code], "a script that is gone": [str(script)]}[how]
    env = {**os.environ, "PYTHONPATH": PACKAGE_PARENT}
    done = subprocess.run(
        [sys.executable, *argv],
        input=code if how == "stdin" else "",
        capture_output=True,
        text=True,
        env=env,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.stdout == "ok\n", done.stderr
