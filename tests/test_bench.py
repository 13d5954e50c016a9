"""A bench on CPU ranks, from its arguments to its file: what it measures, and what is left of it when something ends it.

Invariant: no test asserts a time. Interrupts come when the bench itself has said how far it is; dead and hung ranks when it asks them.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sglang_probe as probe
from sglang_probe import InputError, LocalGroup, Measurement, cli, gpu
from sglang_probe._bench import bench as bench_module
from sglang_probe._bench import page
from sglang_probe._bench.bench import Done, ending, run_bench, to_come
from sglang_probe._bench.local import Local
from sglang_probe._bench.plan import key_of
from sglang_probe._bench.progress import Progress
from sglang_probe._bench.targets import GROUPS, TARGETS
from sglang_probe._measure.summary import summaries
from sglang_probe._show.page import Table

SMALL: dict[str, Any] = {
    "targets": "one_shot,pynccl_in_place",
    "sizes": "1K,4K",
    "phases": "eager,captured",
    "patterns": "back_to_back,interleaved",
    "compute_us": 5.0,
    "dtype": "bf16",
    "processes": 2,
    "quick": True,
    "split": 0,
}
CELLS = 2 * 2 * 2 * 2  # of a process set
_REST: dict[str, Any] = {
    **dict.fromkeys(("tokens", "hidden", "drivers", "nccl", "ordinals", "world_size")),
    "seed": 0,
    "timeout_s": 30.0,
    "device": "host",
    "facts": {},
}


@pytest.fixture(autouse=True, scope="module")
def _without_git() -> Iterator[None]:
    """Who edits this checkout while tests run has another revision from one call to the next, and the file is not continued."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        yield


def run(out: Path, *, provider: Any = None, time_limit_s: float | None = None, **changes: Any) -> Done:
    return run_bench(out, provider=provider, time_limit_s=time_limit_s, **(_REST | SMALL | changes))


def keys(measurement: Measurement) -> set[Any]:
    return {key_of(cell) for cell in measurement.cells}


# ------------------------------------------------------------------------------------------------------------------------- whole


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return run(tmp_path_factory.mktemp("bench") / "whole.jsonl")


def test_every_cell_of_the_plan_is_in_the_file_with_samples_of_every_rank(whole: Done) -> None:
    found = Measurement.read(whole.path)
    assert whole.report.whole and not found.partial and len(found.cells) == 2 * CELLS == found.plan["cells"]
    assert keys(found) == {task.key for process in (0, 1) for task in whole.plan.tasks(process)}
    for cell in found.cells:
        assert cell.world_size == 2 and cell.device == "host"
        for samples in (cell.device_us, cell.host_us, cell.elapsed_us):
            assert len(samples) == 2 and all(3 <= len(rank) <= 5 for rank in samples)
        assert cell.before["at"] <= cell.after["at"] and "calls a sample" in cell.note


def test_each_call_is_checked_in_one_process_set_before_it_is_timed(whole: Done) -> None:
    assert {(cell.process, cell.checked, cell.wrong) for cell in whole.measurement.cells} == {(0, 4, 0), (1, 0, 0)}
    assert all(one.correct and one.n_processes == 2 for one in summaries(whole.measurement))


def test_cells_say_what_ran(whole: Done) -> None:
    ran = {(cell.path, cell.kernel, cell.backend, cell.release, cell.driver) for cell in whole.measurement.cells}
    assert ran == {("custom", "one_shot", "v1", "0.5.9", "native"), ("pynccl_in_place", "", "nccl", "0.5.9", "native")}
    assert {(cell.pattern, cell.compute_us) for cell in whole.measurement.cells} == {("back_to_back", 0), ("interleaved", 5)}


def test_what_ran_is_what_the_file_says_it_ran_on(whole: Done) -> None:
    found = whole.measurement
    assert found.provenance is not None and found.provenance.version == probe.__version__
    assert found.plan["targets"] == ("pynccl_in_place", "one_shot") and found.plan["started"] == "local processes"


def test_the_page_begins_with_the_answer_and_has_a_row_a_call_and_size(whole: Done) -> None:
    text = page.bench_page(whole)
    assert text[0].text.startswith(f"32 cells on 2 CPU ranks, 2 process sets, in {whole.seconds:.1f} s, written to {whole.path}")
    (table,) = (block for block in text if isinstance(block, Table))
    assert len(table.rows) == CELLS and table.columns[:4] == ("path", "phase", "compute", "size")
    assert text[-1].text.startswith("driver native, 2 process sets, all correct, ")  # what no row needs to repeat
    assert any("CPU's times" in block.text for block in text if hasattr(block, "text"))


def test_a_finished_file_is_never_written_again(whole: Done) -> None:
    before = Path(whole.path).read_bytes()
    with pytest.raises(InputError, match="never overwritten: give another name"):
        run(Path(whole.path))
    assert Path(whole.path).read_bytes() == before


def test_tokens_are_rows_of_so_many_columns(tmp_path: Path) -> None:
    done = run(tmp_path / "a", sizes=None, tokens="1,4", hidden=96, targets="one_shot", phases="eager", patterns="back_to_back")
    assert [cell.nbytes for cell in sorted(done.measurement.cells, key=lambda cell: cell.nbytes)] == [192, 192, 768, 768]
    assert done.plan.shapes == ((1, 96), (4, 96))


def test_calls_are_cut_into_waiting_and_moving_where_that_is_asked_for(tmp_path: Path) -> None:
    done = run(tmp_path / "a", targets="one_shot", sizes="1K", split=10, processes=1)
    by_pattern = {(cell.phase, cell.pattern): cell for cell in done.measurement.cells}
    for (_, pattern), cell in by_pattern.items():
        counts = {len(rank) for samples in (cell.wait_us, cell.transfer_us) for rank in samples}
        assert counts == ({10} if pattern == "back_to_back" else {0}), cell.note
    (table,) = (block for block in page.bench_page(done) if isinstance(block, Table))
    assert table.columns == ("path", "phase", "compute", "size", "device us", "host us", "elapsed us", "wait us", "transfer us")
    assert len(by_pattern) == 4 and all((row[-1] == "-") == (row[2] == "5 us") for row in table.rows)


def test_the_python_function_gives_the_measurement(tmp_path: Path) -> None:
    found = probe.bench(
        tmp_path / "a.jsonl", device="host", targets="limit", sizes=[1024, 16 << 20], phases="eager", quick=True, processes=1
    )
    assert isinstance(found, Measurement) and not found.partial and len(found.cells) == 2
    assert any(text.startswith("left out: limit (native, eager), 16 MiB: ") for text in found.notes)


# -------------------------------------------------------------------------------------------------------------------------- input


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"targets": "one_shoot"}, "targets"),
        ({"sizes": "3"}, "sizes"),
        ({"tokens": "1"}, "tokens"),
        ({"dtype": "fp8"}, "dtype"),
        ({"phases": ""}, "phases"),
        ({"patterns": "slow"}, "patterns"),
        ({"compute_us": 0}, "compute_us"),
        ({"compute_us": float("nan")}, "compute_us"),
        ({"processes": 0}, "processes"),
        ({"quick": 1}, "quick"),
        ({"split": -1}, "split"),
        ({"split": 1_000_000_000}, "split"),
        ({"seed": 1.5}, "seed"),
        ({"drivers": "mine"}, "drivers"),
        ({"world_size": 0}, "world_size"),
        ({"world_size": 1}, "world_size"),
        ({"ordinals": 3}, "ordinals"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"hidden": 0}, "hidden"),
        ({"hidden": 64}, "hidden"),
        ({"sizes": 1024}, "sizes"),
        ({"sizes": "100G"}, "sizes"),
        ({"sizes": None, "tokens": 4}, "tokens"),
        ({"targets": 5}, "targets"),
        ({"phases": None}, "phases"),
        ({"nccl": 5}, "nccl"),
        ({"progress": "yes"}, "progress"),
        ({"drivers": "native", "out": None}, "out"),
        ({"facts": {"full_nvlinc": 1}}, "full_nvlinc"),
        ({"time_limit_s": -1}, "time_limit_s"),
    ],
)
def test_bad_values_are_refused_before_anything_starts(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        run(**({"out": tmp_path / "a.jsonl"} | changes))
    assert caught.value.field == field and not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_or_cannot_be_written_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="there is no folder .*: make it, or give another name"):
        run(tmp_path / "no" / "a.jsonl")
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    with pytest.raises(InputError, match="out=.*nothing can be written to .*: give a name in another folder"):
        run(tmp_path / "a.jsonl")


@pytest.mark.parametrize("name", ["", "folder/", "a.jsonl.partial", "a\0b", b"a.jsonl", 5])
def test_what_is_no_name_of_a_file_is_refused_before_anything_starts(
    name: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        run(name, provider=object())
    assert (caught.value.field, caught.value.value) == ("out", name) and "give " in caught.value.remedy
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"sizes": "1K:"}, "sizes='1K:': give FROM:TO"),
        ({"sizes": "1K:8Q"}, "sizes='1K:8Q': '8Q' in it: give a number of bytes"),
        ({"sizes": "100G"}, "sizes='100G': 100 GiB is too large: give at most 4,294,967,294 bytes"),
        ({"sizes": "1K,"}, "sizes='1K,': give bytes"),
        ({"sizes": None, "tokens": "1,"}, "tokens='1,': give rows"),
        ({"world_size": 1}, "world_size=1: give 2 or more"),
        (
            {"dtype": "int32", "targets": "one_shot"},
            "raises RuntimeError here; one_shot takes bf16, fp16, fp32, and this is int32",
        ),
        ({"hidden": 64}, "hidden=64: .*give tokens too, or leave it out"),
        ({"facts": {"time_limit": 5}}, "time_limit=5: did you mean time_limit_s"),
        ({"facts": {"full_nvlinc": 1}}, "full_nvlinc=1: did you mean full_nvlink"),
        ({"targets": "custon"}, "did you mean custom.*or custom, which is one_shot, two_shot, .*limit"),
    ],
)
def test_a_refusal_has_what_was_typed_and_what_to_do(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        run(tmp_path / "a.jsonl", **changes)


@pytest.mark.skipif(importlib.util.find_spec("sglang") is not None, reason="sglang is installed here")
def test_without_sglang_its_driver_is_refused_as_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--device", "host", "--drivers", "engine", "--out", str(tmp_path / "a.jsonl")]) == 2
    assert capsys.readouterr().err == "sglang-probe: drivers='engine': install sglang, or leave it out\n"


def test_where_there_is_one_gpu_alone_nobody_who_did_not_ask_for_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "available", lambda: True)
    monkeypatch.setattr(gpu, "devices", lambda: ("one",))
    found = Local(None, "auto")
    assert (found.device, found.world_size) == ("host", 2) and "there are 1" in found.why
    with pytest.raises(InputError, match=r"here is one GPU: device='host' takes CPU ranks, ordinals=\[0, 0\] shares it"):
        Local(None, "gpu")
    for ordinals in ([], [0]):
        with pytest.raises(InputError, match="nothing to reduce between fewer$"):
            Local(None, "gpu", ordinals=ordinals)


@pytest.mark.parametrize("given", ["0,x", "", "0,-1"])
def test_what_names_no_gpus_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--ordinals", given]) == 2
    assert f"{given!r}: give the number of each rank's GPU, from 0, as 0,1" in capsys.readouterr().err


def test_cpu_ranks_have_no_gpus_to_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--device", "host", "--ordinals", "0,0", "--out", str(tmp_path / "a.jsonl")]) == 2
    assert "ordinals=[0, 0]: CPU ranks have no GPUs" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_custom_stands_for_every_kernel_of_custom_all_reduce(tmp_path: Path) -> None:
    done = run(tmp_path / "a", targets="custom,pynccl_in_place", sizes="1K", phases="eager", patterns="back_to_back", processes=1)
    wanted = {target.name for target in TARGETS.values() if target.path == "custom"}
    assert {task.wanted.target for task in done.plan.cells} == wanted | {"pynccl_in_place"} and "limit" in wanted


def test_where_the_name_is_taken_a_free_one_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("bench.jsonl", "bench-2.jsonl", "bench-3.jsonl.partial"):
        Path(name).touch()
    assert cli.main(["bench", "--device", "host"]) == 2
    assert capsys.readouterr().err.endswith("never overwritten: give another name, as bench-4.jsonl\n")


def test_what_a_bench_leaves_is_not_taken_into_a_repository(root: Path) -> None:
    ignored = (root / ".gitignore").read_text().split()
    assert {"*.partial", "bench*.jsonl"} <= set(ignored)


# ------------------------------------------------------------------------------------------------------------------- ended, resumed


def test_a_time_limit_leaves_a_valid_file_and_the_same_call_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    done = run(out, time_limit_s=1e-3)
    assert done.report.stopped == "its time limit is over" and done.measurement.partial and not out.exists()
    assert done.path == f"{out}.partial" and any("the same command goes on" in text for text in ending(done))
    again = run(out)
    assert again.report.whole and len(keys(again.measurement)) == len(again.measurement.cells) == 2 * CELLS
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_an_unfinished_file_of_another_plan_is_refused_and_kept(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    run(out, time_limit_s=1e-3)
    before = Path(f"{out}.partial").read_bytes()
    told = r"of another run.*plan\.shapes.*give another name, or move it away \(.*a-2\.jsonl is free\)"
    with pytest.raises(InputError, match=told) as caught:
        run(out, sizes="1K")
    assert (caught.value.field, caught.value.value) == ("out", str(out))
    assert Path(f"{out}.partial").read_bytes() == before


def test_a_name_that_is_taken_meanwhile_is_told_as_out_and_the_same_call_gives_it_the_file(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"

    def happens(_group: LocalGroup, asked: int) -> None:
        if asked == 2:
            out.touch()

    small = {"targets": "one_shot", "sizes": "1K", "processes": 1}
    with pytest.raises(InputError, match="appeared meanwhile.*: move it away, and the same command goes on") as caught:
        run(out, provider=Troubled(happens), **small)
    assert caught.value.field == "out"
    out.unlink()
    assert run(out, **small).report.measured == 0 and not Measurement.read(out).partial


_CHILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test may run where it is ignored
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from sglang_probe.cli import main
sys.exit(main(sys.argv[1:]))
"""
OPTIONS = [
    *("bench", "--device", "host", "--targets", "one_shot,pynccl_in_place", "--sizes", "1K,4K", "--quick", "--processes", "4"),
    "--out",
]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_what_was_measured_before_a_signal_is_kept_and_no_cell_is_measured_twice(
    root: Path, tmp_path: Path, number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.jsonl"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, *OPTIONS, str(out)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    )
    assert child.stderr is not None
    assert child.stderr.readline() == "sglang-probe: 64 cells to measure\n"
    line = child.stderr.readline()
    assert line.startswith("sglang-probe: process set 1 of 4: 16 cells in "), line
    child.send_signal(number)
    output, errors = child.communicate(timeout=60)
    kept = Measurement.read(f"{out}.partial")
    assert kept.partial and len(kept.cells) >= CELLS and not out.exists()
    if number != signal.SIGKILL:
        assert child.returncode == 128 + number
        assert f"{len(kept.cells)} cells on 2 CPU ranks" in output and output.count("\n  custom (one_shot) ") >= 8
        assert "stopped: it was interrupted" in output
        said = f"interrupted: {len(kept.cells)} of 64 cells are in {out}.partial; the same command goes on from there"
        assert errors.splitlines()[-1] == f"sglang-probe: {said}"
    else:
        assert child.returncode == -signal.SIGKILL
    assert cli.main([*OPTIONS, str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["measured"] == 64 - len(kept.cells) and told["cells"] == 64
    found = Measurement.read(out)
    assert len(keys(found)) == len(found.cells) == 64 and not found.partial
    assert [cell.to_dict() for cell in found.cells[: len(kept.cells)]] == [cell.to_dict() for cell in kept.cells]


class Troubled(Local):
    """Fresh CPU ranks to whom something happens when the bench asks them."""

    def __init__(self, happens: Callable[[LocalGroup, int], None], fresh: bool = True, **options: Any) -> None:
        super().__init__(2, "host", **options)
        self.happens, self.fresh = happens, fresh
        self.asked = self.started = 0

    def start(self) -> Any:
        self.started += 1
        return _Group(self, super().start())


class _Group:
    def __init__(self, provider: Troubled, group: LocalGroup) -> None:
        self._provider, self._group = provider, group

    @property
    def closed(self) -> str:
        return self._group.closed

    def run(self, function: Any, /, *args: Any, timeout_s: float | None = None) -> list[Any]:
        self._provider.asked += 1
        self._provider.happens(self._group, self._provider.asked)
        return self._group.run(function, *args, timeout_s=timeout_s)

    def close(self) -> None:
        self._group.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["dead", "hung"])
def test_a_rank_that_dies_or_hangs_once_costs_nothing_but_time(tmp_path: Path, number: signal.Signals) -> None:
    def happens(group: LocalGroup, asked: int) -> None:
        if asked == 4:  # 1: who are you; 2, 3: the first batch
            os.kill(group.pids[1], number)

    provider = Troubled(happens, timeout_s=1.0)
    done = run(tmp_path / "a.jsonl", provider=provider)
    assert done.report.whole and not done.report.failed and provider.started == 3
    assert len(keys(done.measurement)) == len(done.measurement.cells) == 2 * CELLS


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["dead", "hung"])
def test_that_a_rank_died_or_hung_once_is_said_at_once_and_stays_with_the_cells(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def happens(group: LocalGroup, asked: int) -> None:
        if asked == 3:
            os.kill(group.pids[1], number)

    monkeypatch.setattr(bench_module, "Local", lambda *_, **__: Troubled(happens, timeout_s=1.0))
    options = ["--targets", "one_shot", "--sizes", "1K,4K", "--phases", "eager", "--patterns", "back_to_back", "--quick"]
    out = tmp_path / "a.jsonl"
    assert cli.main(["bench", "--device", "host", *options, "--out", str(out), "--json"]) == 0
    shown, said = capsys.readouterr()
    first = said.splitlines()[1]
    assert first.startswith("sglang-probe: process set 1 of 2: ") and "rank 1" in first
    assert first.endswith("; 2 cells asked for again"), first
    assert json.loads(shown)["retried"] == [first.removeprefix("sglang-probe: ")]
    notes = {cell.process: cell.note for cell in Measurement.read(out).cells}
    assert "; asked for again after " in notes[0] and "rank 1" in notes[0] and "again" not in notes[1]


def test_the_python_function_notes_what_failed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def happens(group: LocalGroup, asked: int) -> None:
        if asked == 2:
            os.kill(group.pids[0], signal.SIGKILL)

    monkeypatch.setattr(bench_module, "Local", lambda *_, **__: Troubled(happens))
    found = probe.bench(tmp_path / "a", targets="one_shot", sizes="1K", phases="eager", quick=True, processes=1)
    (told,) = (text for text in found.notes if text.startswith("failed once: "))
    assert "rank 0" in told and not found.partial


def test_an_interrupt_of_the_python_function_says_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def happens(_group: LocalGroup, asked: int) -> None:
        if asked == 4:
            raise KeyboardInterrupt

    out = tmp_path / "a.jsonl"
    monkeypatch.setattr(bench_module, "Local", lambda *_, **__: Troubled(happens))
    with pytest.raises(
        KeyboardInterrupt, match=r"interrupted: \d+ of \d+ cells are in .*a.jsonl.partial; the same command goes on"
    ):
        probe.bench(out, targets="one_shot", sizes="1K", quick=True)
    assert Measurement.read(f"{out}.partial").cells


def test_a_cell_that_always_ends_its_ranks_is_listed_and_all_others_are_measured(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    provider = Troubled(lambda group, asked: _plant(group, _Kills) if asked > 1 else None)
    done = run(out, provider=provider, targets="one_shot,torch_distributed", sizes="1K", phases="eager", patterns="back_to_back")
    ((task, why),) = done.report.failed
    assert task.wanted.target == "torch_distributed" and "SIGKILL" in why
    assert {cell.path for cell in done.measurement.cells} == {"custom"} and len(done.measurement.cells) == 2
    assert done.measurement.partial and not out.exists() and not done.report.stopped
    assert any("failed twice: torch_distributed" in text for text in ending(done))
    # what failed is tried again by the same call
    again = run(out, targets="one_shot,torch_distributed", sizes="1K", phases="eager", patterns="back_to_back")
    assert again.report.whole and again.report.measured == 2 and len(again.measurement.cells) == 4


def test_where_nothing_comes_up_any_more_it_stops_and_says_why(tmp_path: Path) -> None:
    def happens(group: LocalGroup, asked: int) -> None:
        if asked > 1:
            os.kill(group.pids[0], signal.SIGKILL)

    done = run(tmp_path / "a.jsonl", provider=Troubled(happens), processes=1)
    assert done.report.stopped.startswith("3 groups in a row failed (ProbeError: rank 0") and not done.measurement.cells
    assert done.measurement.partial


def test_ranks_that_somebody_else_started_are_one_process_set_a_launch(tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    first = run(out, provider=Troubled(lambda *_: None, fresh=False))
    assert first.report.launches == 1 and not first.report.stopped and first.measurement.partial
    assert not first.report.unfinished and not ending(first)
    assert to_come(first) == "set 1 of 2 is done; the same command adds the next (a launch is one set of fresh processes)"
    assert {cell.process for cell in first.measurement.cells} == {0} and len(first.measurement.cells) == CELLS
    second = run(out, provider=Troubled(lambda *_: None, fresh=False))
    assert second.report.whole and second.report.measured == CELLS and {c.process for c in second.measurement.cells} == {0, 1}


# ---------------------------------------------------------------------------------------------------------------- wrong, not here


class _Path:
    """torch.distributed's place, taken by a test; ranks get it by its code."""

    def supports(self, nbytes: int, dtype: str) -> str:
        return ""

    def enqueue(self, tensor: Any, out: Any, timeout_s: float) -> None:
        out[...] = tensor

    def finish(self, timeout_s: float) -> None:
        return None


class _Forgets(_Path):
    """Gives every rank its own input back: what an all-reduce that does nothing gives."""


class _Kills(_Path):
    def enqueue(self, tensor: Any, out: Any, timeout_s: float) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class _Declines(_Path):
    def supports(self, nbytes: int, dtype: str) -> str:
        return "not today"


def _plant(group: LocalGroup, kind: type[_Path]) -> None:
    group.run(lambda c: c.register(probe.Path.TORCH_DISTRIBUTED, kind()))


def _planted(tmp_path: Path, kind: type[_Path]) -> Done:
    provider = Troubled(lambda group, asked: _plant(group, kind) if asked > 1 else None)
    changes = {"targets": "one_shot,torch_distributed", "phases": "eager", "patterns": "back_to_back"}
    return run(tmp_path / "a.jsonl", provider=provider, **changes)


def test_a_wrong_result_is_kept_as_wrong_and_has_no_time(tmp_path: Path) -> None:
    done = _planted(tmp_path, _Forgets)
    wrong = [cell for cell in done.measurement.cells if cell.path == "torch_distributed"]
    assert [(cell.process, cell.checked, cell.wrong) for cell in wrong] == [(0, 4, 4)] * 2
    for cell in wrong:
        assert not any(len(rank) for samples in (cell.device_us, cell.host_us, cell.elapsed_us) for rank in samples)
        assert cell.note.startswith("WRONG, and therefore not timed: rank 0: ") and "elements wrong" in cell.note
    assert done.report.whole and len(done.measurement.cells) == 2 + 2 * 2
    text = "\n".join(str(block) for block in page.bench_page(done))
    assert text.index("2 WRONG") < text.index("torch_distributed, native, eager, back_to_back, 1 KiB: WRONG: 4 of 4 results")
    assert "WRONG: 4 of 4" in text and page.to_dict(done)["wrong"] == 2
    assert all(one["device_us"] is None for one in page.to_dict(done)["summaries"] if one["wrong"])


def test_what_does_not_run_here_is_told_once_and_is_no_failure(tmp_path: Path) -> None:
    done = _planted(tmp_path, _Declines)
    assert done.report.whole and not done.report.failed and {cell.path for cell in done.measurement.cells} == {"custom"}
    (told,) = done.report.refused_texts()
    assert told.startswith("torch_distributed (native, eager), 1 KiB and 4 KiB: ") and "not today" in told
    assert ending(done) == [f"does not run here: {told}"]
    assert len(done.report.refused) == 2


# -------------------------------------------------------------------------------------------------------------------- command line


def test_the_command_prints_the_table_and_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a.jsonl"
    options = ["--targets", "one_shot", "--sizes", "1K", "--phases", "eager", "--quick", "--fact", "full_nvlink=1"]
    assert cli.main(["bench", "--device", "host", *options, "--out", str(out)]) == 0
    shown, said = capsys.readouterr()
    lines = shown.splitlines()
    assert lines[0].startswith("4 cells on 2 CPU ranks, 2 process sets, in ") and lines[0].endswith(f" s, written to {out}")
    assert len([line for line in lines if line.startswith("  custom (one_shot)  eager ")]) == 2
    sets = ["process set 1 of 2", "process set 2 of 2"]
    assert [line.split(": ")[1] for line in said.splitlines()] == ["4 cells to measure", *sets]
    assert cli.main(["bench", "--device", "host", *options, "--out", str(out)]) == 2
    shown, said = capsys.readouterr()
    assert not shown and "give another name" in said


def test_of_a_launch_the_command_says_which_set_is_done_and_how_to_add_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_module, "Local", lambda *_, **__: Troubled(lambda *_: None, fresh=False))
    options = ["--targets", "one_shot", "--sizes", "1K", "--quick", "--processes", "3", "--out", str(tmp_path / "a.jsonl")]
    for told in (
        "set 1 of 3 is done; the same command adds the next",
        "sets 1 to 2 of 3 are done; the same command adds the next",
    ):
        assert cli.main(["bench", "--device", "host", *options]) == 0
        shown, _ = capsys.readouterr()
        assert shown.splitlines()[1].startswith(told) and "Not all of the plan" not in shown
    assert cli.main(["bench", "--device", "host", *options]) == 0
    assert "adds the next" not in capsys.readouterr().out


def test_the_help_tells_every_target_and_what_v_adds_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(name in text.split("options:")[0].replace(",", " ").split() for name in (*TARGETS, *GROUPS))
    assert "least and most of each figure" in text and "every gate, rule" not in text
    assert "by default native, and on GPUs also engine, where SGLang can be imported" in text
    doc = " ".join((probe.bench.__doc__ or "").split())
    assert all(f"``{name}``" in doc for name in inspect.signature(probe.bench).parameters)
    assert "By default native, and on GPUs also engine, where SGLang can be imported" in doc


def test_json_is_all_that_the_command_prints_to_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--targets", "one_shot", "--sizes", "1K", "--phases", "eager", "--patterns", "back_to_back", "--quick"]
    command = ["bench", "--device", "host", *options, "--out", str(tmp_path / "a.jsonl"), "--json"]
    assert cli.main([*command, "--time-limit", "0.001"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert (told["whole"], told["stopped"], told["cells"]) == (False, "its time limit is over", 0)
    assert cli.main(command) == 0
    told = json.loads(capsys.readouterr().out)
    (one,) = told["summaries"]
    assert (one["path"], one["kernel"], one["nbytes"], one["processes"]) == ("custom", "one_shot", 1024, [0, 1])
    assert len(one["device_us"]["by_process"]) == 2 and one["correct"] is True
    assert told["plan"]["processes"] == 2 and told["provenance"]["version"] == probe.__version__


def test_a_bar_is_shown_where_somebody_looks_and_lines_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for show in (True, False):
        lines: list[str] = []
        with Progress(10, 2, show, lines.append) as progress:
            progress.begin(0, 2)
            progress.advance(3, fewer=1)
            progress.tell("told")
            progress.begin(1, 2)
            progress.advance(4)
        out, _ = capsys.readouterr()
        assert show or lines.pop(0) == "8 cells to measure"  # at once: the first process set may take minutes
        assert not out and lines.pop(0) == "told" and len(lines) == (0 if show else 2)
    with Progress(10, 2, True) as progress:
        progress.tell("[a] told")
    assert "sglang-probe: [a] told" in capsys.readouterr().err
    assert lines[0].startswith("process set 1 of 2: 3 cells in ") and lines[0].endswith(" s, 5 of 9 are there")
    assert lines[1].endswith(" s, 9 of 9 are there")
    monkeypatch.setattr("sglang_probe._bench.progress._SILENT_S", 0.0)
    with Progress(2, 0, False, lines.append) as progress:
        progress.begin(0, 1)
        progress.advance(1)
        assert lines[-1].startswith("process set 1 of 1: 1 cells in ")  # a long set is no silence


def test_what_a_bench_came_to_travels_to_the_other_ranks_of_a_launch(whole: Done) -> None:
    there = pickle.loads(pickle.dumps(whole))
    assert page.to_dict(there) == page.to_dict(whole)
