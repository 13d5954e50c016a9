"""LocalGroup on the host device: one cell toggles, calls, and reads path, numbers and times of every rank; and nothing is left behind.

What goes wrong on purpose is in test_faults.py; every rule of every era in test_coordinator.py.
"""

from __future__ import annotations

import builtins
import gc
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import Left

import sglang_probe as probe
from sglang_probe import CONTEXTS, Call, LocalGroup
from sglang_probe._run.outcome import Outcome


@pytest.fixture(scope="module")
def group() -> Iterator[LocalGroup]:
    with LocalGroup(2, device="host", sglang="0.5.9") as group:
        yield group


@pytest.fixture
def clean(tmp_path: Path) -> Iterator[None]:
    before = Left.now(tmp_path)
    yield
    assert Left.now(tmp_path) == before


# ------------------------------------------------------------------------------------------------------------------ calls and paths


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("nbytes", [16, 8192, 8 << 20, (8 << 20) + 16])
def test_the_path_taken_is_the_one_that_route_says_and_its_sum_is_right(group: LocalGroup, context: str, nbytes: int) -> None:
    said = probe.route(Call(nbytes=nbytes, hidden=nbytes // 2), group.group, context=context, sglang="0.5.9")
    r = group.all_reduce(nbytes, context=context, timed=2)
    assert (r.path, r.rule, r.kernel, r.returned, r.reduced) == (said.path, said.rule, said.kernel, said.returns, said.reduces)
    assert r.correct and r.agree and r.checked == 2, r.wrong
    assert r.reduced == (r.kernel != "dry")
    assert r.host_us.shape == r.device_us.shape == (2,) and r.host_us_max > 0 and r.device_us_max > 0
    assert [len(row.host_us) for row in r.rows] == [len(row.device_us) for row in r.rows] == [2, 2]


def test_a_toggle_changes_the_path_of_the_next_call_and_of_no_other(group: LocalGroup) -> None:
    size, before = (8 << 20) + 16, group.sglang  # more than custom takes

    seen = []
    for toggles in ({}, {"piecewise": True}, {"piecewise": False}, {"pynccl": True}, {"pynccl": "disabled"}, {"sglang": "0.5.8"}):
        seen.append(str(group.set(**toggles).all_reduce(size, timed=0, repeat=1).path))
    group.set(sglang=before)
    td = "torch_distributed"
    assert seen == [td, "pynccl_out_of_place", td, "pynccl_in_place", td, td]


def test_a_communicator_and_a_fact_can_be_switched_and_back(group: LocalGroup) -> None:
    assert group.set(custom=False).all_reduce(8192, timed=0).path == "torch_distributed"
    assert group.set(custom=True).all_reduce(8192, timed=0).path == "custom"
    assert group.set(symmetric_memory=True).all_reduce(8192, timed=0).rule == "symm_mem_bypass"
    assert group.set(symmetric_memory=False).all_reduce(8192, timed=0).rule == "custom"
    assert group.set(own_custom=False).all_reduce(8192, timed=0).decision.gates["custom"].state == "absent"
    assert group.set(own_custom=True).all_reduce(8192, timed=0).path == "custom"


def test_a_toggle_that_is_none_is_refused_before_any_rank_hears_of_it(group: LocalGroup) -> None:
    for toggles in (
        {"piecwise": True},
        {"piecewise": 1},
        {"custom": "gone"},
        {"custom": 2},
        {"sglang": "9.9.9"},
        {"world_size": 4},
        {"timeout_s": 0},
        {"timeout_s": float("inf")},
        {"arch": -1},
        {"nodes": 4},
    ):
        with pytest.raises(probe.InputError):
            group.set(**toggles)
    assert group.all_reduce(8192, timed=0).path == "custom" and group.group.value("nodes") == 1


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp64", "int8", "int32", "int64"])
def test_every_dtype_that_the_path_sums_is_right(group: LocalGroup, dtype: str) -> None:
    group.set(custom=False)
    try:
        r = group.all_reduce(shape=(3, 1000), dtype=dtype, timed=0)
    finally:
        group.set(custom=True)
    assert r.correct and r.path == "torch_distributed" and r.shape == (3, 1000) and r.bit_equal
    assert (r.max_error > 0) == (r.tolerance > 0) or dtype == "fp64"


def test_a_dry_warm_up_is_told_from_a_sum(group: LocalGroup) -> None:
    r = group.all_reduce(8192, context="warmup")
    assert not r.reduced and r.correct and r.kernel == "dry" and r.returned == "new" and r.max_error == 0
    assert "NOT REDUCED" in str(r) and "NOT REDUCED" in repr(r)


def test_a_lost_result_is_told_from_a_sum() -> None:
    """v0.5.3.post2 to v0.5.13.post1: torch symmetric memory in place writes elsewhere, and the input stays as it was."""
    with LocalGroup(2, device="host", sglang="0.5.9", own_custom=False, own_torch_symm_mem=True) as group:
        r = group.all_reduce(8192, dtype="fp32")
        assert (r.path, r.rule) == ("torch_symm_mem", "in_place_torch_symm_mem")
        assert r.correct and not r.reduced and r.returned == "input" and not r.bit_equal


def test_where_sglang_raises_all_ranks_do_and_so_does_the_group() -> None:
    """v0.5.9 calls pynccl in a piecewise graph although the group has none."""
    with LocalGroup(2, device="host", sglang="0.5.9", own_pynccl=False, own_custom=False) as group:
        for context in ("piecewise_replay", "piecewise_capture"):
            said = probe.route(8192, group.group, context=context, sglang="0.5.9").error
            kind = getattr(builtins, said)
            with pytest.raises(kind, match=rf"all 2 ranks: SGLang 0\.5\.9 raises {said} here"):
                group.all_reduce(8192, context=context)
        assert not group.closed and group.all_reduce(8192, timed=0).path == "torch_distributed"


def test_many_calls_and_many_replays_are_all_checked(group: LocalGroup) -> None:
    for context in ("eager", "capture"):
        r = group.all_reduce(2048, context=context, repeat=1100, timed=0)
        assert r.correct and r.checked == 1100 and r.bit_equal and r.rows[0].kinds == ("exact", "random")


def test_a_call_is_given_by_bytes_by_shape_or_as_a_call(group: LocalGroup) -> None:
    by_shape = group.all_reduce(shape=(4, 512), timed=0)
    by_call = group.all_reduce(Call(nbytes=4096, dtype="bf16", tokens=4, hidden=512), timed=0)
    assert by_shape.shape == by_call.shape == (4, 512) and by_shape.nbytes == by_call.nbytes == 4096
    for wrong in (
        {},
        {"call": 4096, "shape": (1, 2)},
        {"call": 3},
        {"call": 0},
        {"call": 4096.0},
        {"call": True},
        {"shape": ()},
        {"shape": (0, 4)},
        {"shape": (1 << 62, 4)},
        {"call": 4096, "dtype": "fp8"},
        {"call": 4096, "dtype": "fp7"},
        {"call": 4096, "context": "replay"},
        {"call": 4096, "context": "lunch"},
        {"call": 4096, "repeat": 0},
        {"call": 4096, "timed": -1},
        {"call": 4096, "inputs": "none"},
    ):
        with pytest.raises(probe.InputError):
            group.all_reduce(**wrong)


@pytest.mark.parametrize("world_size", [1, 3, 16])
def test_more_ranks_than_cores_are_normal_and_one_rank_needs_no_sum(world_size: int) -> None:
    with LocalGroup(world_size, device="host", sglang="0.5.9") as group:
        r = group.all_reduce(4096, repeat=4, timed=1)
        assert r.correct and r.world_size == len(group.pids) == world_size
        assert (r.path == "none") == (world_size == 1) == (not r.reduced)


# ----------------------------------------------------------------------------------------------------------------- wrong is wrong


def corrupt(c: Any, what: str) -> None:
    """From here on this rank's all_reduce is broken in one way."""
    usual = type(c).all_reduce

    def broken(tensor: Any) -> Any:
        reduced = usual(c, tensor)
        if what == "result" and c.rank == 1:
            reduced.tensor.reshape(-1)[5] += 1
        if what == "input":
            tensor.reshape(-1)[0] += 1
        return reduced

    c.all_reduce = broken


@pytest.mark.parametrize(
    ("what", "words"), [("result", r"rank 1: \d elements wrong: \[5\] is "), ("input", "and yet the input was changed")]
)
def test_a_wrong_result_is_called_wrong_and_has_no_time(what: str, words: str) -> None:
    with LocalGroup(2, device="host", sglang="0.5.9") as group:
        group.run(corrupt, what)
        r = group.all_reduce(4096)
        assert not r.correct and re.search(words, " ".join(r.wrong)), r.wrong
        assert np.isnan(r.host_us).all() and np.isnan(r.device_us_max)
        assert "WRONG" in repr(r) and "WRONG" in r._repr_html_() and not r.to_dict()["correct"]
        assert r.bit_equal == (what == "input")


def test_ranks_that_took_different_paths_are_said_loudly(group: LocalGroup) -> None:
    r = group.all_reduce(4096, timed=0)
    other = replace(r, rows=(r.rows[0], replace(r.rows[1], path=probe.Path.QUICK)))
    assert not other.agree and not other.correct and "RANKS DISAGREE" in str(other)
    swapped = replace(r, rows=tuple(replace(row, returned="input") for row in r.rows))
    assert not swapped.correct and "the input tensor came back, and 0.5.9 gives the new one" in str(swapped)


def test_an_outcome_is_one_line_a_table_a_page_and_plain_data(group: LocalGroup) -> None:
    r = group.all_reduce(8192, context="capture")
    assert isinstance(r, Outcome) and "\n" not in repr(r)
    assert repr(r).startswith("<Outcome: custom (one_shot) by rule custom, new tensor, correct, ")
    assert str(r).count("\n") >= 5 and "of this machine's CPU" in str(r) and "<table" in r._repr_html_()
    data = json.loads(json.dumps(r.to_dict()))
    assert data["path"] == "custom" and data["correct"] and len(data["ranks"]) == len(data["host_us"]) == 2
    assert data["decision"]["rule"] == "custom"


# ------------------------------------------------------------------------------------------------------------------------------- run


def test_any_function_runs_in_each_rank_and_its_results_come_by_rank(group: LocalGroup) -> None:
    factor = 3  # a closure, as a notebook's functions are
    assert group.run(lambda c, x: (c.rank * factor + x, c.world_size), 10) == [(10, 2), (13, 2)]
    mine = np.arange(1 << 20)
    first, second = group.run(lambda c, array: array + c.rank, mine)
    assert (first == mine).all() and (second == mine + 1).all()

    class Local:
        def __init__(self, rank: int) -> None:
            self.rank = rank

    assert [one.rank for one in group.run(lambda c: Local(c.rank))] == [0, 1]
    assert all(type(one) is Local for one in group.run(lambda c: Local(c.rank)))
    with pytest.raises(probe.InputError):
        group.run("no function")  # type: ignore[arg-type]


class UserError(Exception):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return UserError, (self.code, str(self))


def fails(c: Any, how: str) -> None:
    if how == "own type":
        raise UserError(7, "seven")
    if how == "input":
        c.set_facts(arch=-5)
    if how == "no text":
        raise KeyError
    if how == "unpackable":
        error = RuntimeError("holds a lock")
        error.lock = threading.Lock()  # type: ignore[attr-defined]
        raise error
    "é".encode("ascii")


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("own type", UserError, "seven"),
        ("input", probe.InputError, "arch=-5"),
        ("no text", KeyError, "all 2 ranks"),
        ("unpackable", RuntimeError, "all 2 ranks: holds a lock"),
        ("wants more", UnicodeEncodeError, "ascii"),
    ],
)
def test_what_all_ranks_raise_is_raised_here_with_their_traceback(
    group: LocalGroup, how: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        group.run(fails, how)
    assert "in fails" in str(caught.value.__cause__) and "rank 0 (pid" in str(caught.value.__cause__)
    assert not group.closed and group.run(lambda c: c.rank) == [0, 1]


def test_a_result_that_cannot_be_packed_is_an_error_and_no_hang(group: LocalGroup) -> None:
    with pytest.raises(TypeError, match="all 2 ranks"):
        group.run(lambda c: threading.Lock())
    with pytest.raises(TypeError):
        group.run(lambda c, lock: None, threading.Lock())
    assert group.run(lambda c: c.rank) == [0, 1]


def test_ranks_see_the_users_environment_and_what_they_print_is_kept() -> None:
    def says(c: Any) -> tuple[str | None, str | None, list[str]]:
        print("printed by", c.rank)
        print("warned by", c.rank, file=sys.stderr)
        return os.environ.get("PROBE_TEST"), os.environ.get("PYTHONPATH"), sys.path

    def floods(c: Any) -> None:
        for _ in range(300):
            print("x" * 10_000)

    with LocalGroup(2, device="host", env={"PROBE_TEST": "1"}) as group:
        assert group.run(says) == [("1", os.environ.get("PYTHONPATH"), sys.path)] * 2
        assert "printed by 1" in group.output[1] and "warned by 1" in group.output[1]
        group.run(floods)
        group.run(lambda c: print("last words"))
        assert all(len(text) <= 1 << 16 and text.endswith("last words\n") for text in group.output)


# ------------------------------------------------------------------------------------------------------------------- start and end


def test_a_group_says_in_one_line_what_it_is_and_what_runs_each_path(group: LocalGroup) -> None:
    line = str(group)
    assert line == f"2 CPU ranks over shared memory (pids {group.pids[0]}, {group.pids[1]}), SGLang 0.5.9" and "\n" not in repr(
        group
    )
    paths = group.paths()
    assert set(paths) >= {probe.Path.CUSTOM, probe.Path.PYNCCL_IN_PLACE, probe.Path.TORCH_DISTRIBUTED}
    assert "shared memory" in paths[probe.Path.CUSTOM]
    assert "full_nvlink" in group._repr_html_() and "assumed" in group._repr_html_()
    assert json.loads(json.dumps(group.to_dict()))["pids"] == list(group.pids)


def test_auto_says_which_device_it_took_and_why() -> None:
    from sglang_probe import gpu

    if gpu.available():
        pytest.skip("this machine has a GPU")
    with LocalGroup(2) as group:
        assert group.device == "host" and str(gpu.available()) in group.why
    with pytest.raises(probe.ProbeUnavailable, match="device='host'"):
        LocalGroup(2, device="gpu")


@pytest.mark.parametrize(
    "options",
    [
        {"world_size": 0},
        {"world_size": 17},
        {"world_size": 2.0},
        {"device": "tpu"},
        {"sglang": "9.9"},
        {"timeout_s": -1},
        {"start_timeout_s": 0},
        {"max_bytes": 0},
        {"max_bytes": 1 << 58},
        {"ordinals": [0, 1]},
        {"nccl": "/nowhere"},
        {"unheard_of": 1},
        {"group": probe.Group.make(world_size=4)},
        {"nodes": 3},
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_before_anything_starts(options: dict[str, Any], clean: None) -> None:
    with pytest.raises(probe.InputError):
        LocalGroup(**{"device": "host", **options})


def test_a_closed_group_leaves_nothing_and_says_that_it_is_closed(clean: None) -> None:
    group = LocalGroup(2, device="host")
    group.all_reduce(1024)
    group.close()
    group.close()
    assert group.closed == "it was closed" and str(group) == "closed: it was closed" and group.output == ()
    with pytest.raises(probe.ProbeError, match=r"closed \(it was closed\)"):
        group.all_reduce(1024)
    for use in (lambda: group.run(lambda c: None), group.paths, lambda: group.set(piecewise=True)):
        with pytest.raises(probe.ProbeError, match="closed"):
            use()


def test_a_group_that_nobody_holds_any_more_ends(clean: None) -> None:
    group = LocalGroup(2, device="host")
    pids = group.pids
    del group
    gc.collect()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_group_that_a_thread_started_outlives_the_thread(clean: None) -> None:
    made: list[LocalGroup] = []
    thread = threading.Thread(target=lambda: made.append(LocalGroup(2, device="host")))
    thread.start()
    thread.join()
    with made[0] as group:
        assert group.all_reduce(1024).correct


def test_a_second_thread_is_refused_and_not_mixed_in(clean: None, tmp_path: Path) -> None:
    def waits(c: Any, folder: str) -> int:
        open(f"{folder}/started", "w").close()
        with open(f"{folder}/go", "rb") as go:  # a pipe: opens when somebody writes
            return len(go.read())

    os.mkfifo(tmp_path / "go")
    with LocalGroup(1, device="host") as group:
        thread = threading.Thread(target=group.run, args=(waits, str(tmp_path)))
        thread.start()
        while not (tmp_path / "started").exists():
            threading.Event().wait(0.01)
        with pytest.raises(probe.ProbeError, match="one thread drives it"):
            group.run(lambda c: None)
        (tmp_path / "go").write_bytes(b"now")
        thread.join()
        assert group.all_reduce(1024).correct
    for name in ("go", "started"):
        (tmp_path / name).unlink()


FORKED = """
import os, sglang_probe as probe
with probe.LocalGroup(2, device="host") as group:
    pid = os.fork()
    if pid == 0:
        try:
            group.all_reduce(1024)
        except probe.ProbeError as error:
            assert "of which this one is a fork" in str(error)
            group.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert group.all_reduce(1024).correct
    print("goes on")
"""

ENDS = """
import sglang_probe as probe
group = probe.LocalGroup(2, device="host")
print(*group.pids)
"""


def _python(code: str, *options: str) -> str:
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return done.stdout


def test_a_forked_copy_of_the_parent_does_not_end_its_ranks() -> None:
    assert _python(FORKED) == "goes on\n"


def test_a_program_that_ends_without_closing_leaves_no_rank() -> None:
    pids = _python(ENDS, "-X", "dev").split()  # -X dev: a descriptor or a process that is not given back is told on stderr
    assert len(pids) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_ranks_run_this_very_package_wherever_the_user_is(tmp_path: Path) -> None:
    """A folder of the same name in the current one, such as a checkout that is not built, is not taken for it."""
    (tmp_path / "sglang_probe").mkdir()
    (tmp_path / "sglang_probe" / "__init__.py").write_text("raise ImportError('a decoy')\n")
    (tmp_path / "socket.py").write_text("raise ImportError('another')\n")
    (tmp_path / "away").mkdir()
    script = tmp_path / "away" / "script.py"
    script.write_text(HERE)
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "same\n", done.stderr


HERE = """
import sglang_probe as probe
with probe.LocalGroup(1, device="host") as group:
    print("same" if group.run(lambda c: probe.__file__) == [probe.__file__] else "other")
"""


def test_ranks_load_nothing_that_they_do_not_use(group: LocalGroup) -> None:
    heavy = {"rich", "torch", "matplotlib", "IPython", "ipywidgets", "pytest"}
    with LocalGroup(1, device="host") as fresh:
        fresh.all_reduce(1024)
        assert not heavy & set(fresh.run(lambda c: list(sys.modules))[0])
