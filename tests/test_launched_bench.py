"""bench under torchrun, mpirun and srun: the same table as by itself; and whatever ends its ranks, what was measured is kept.

Ranks are plain processes with a launcher's variables, and real launchers where they are there. Invariant: every figure in a file is of a
call whose sum was checked, under a launcher as without one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import launches
import pytest
from launches import LAUNCHERS, Said, launch

from sglang_probe import Measurement, ProbeError
from sglang_probe._bench.plan import Identity, key_of

BENCH = ("-m", "sglang_probe", "bench", "--device", "host")
SMALL = (*BENCH, "--quick", "--targets", "one_shot,pynccl_in_place,torch_distributed", "--sizes", "1K:4K", "--processes", "1")
LONG = (*BENCH, "--targets", "one_shot,torch_distributed", "--processes", "1")
"""Some seconds: time to do something to its ranks in the middle."""


def keys(path: Path) -> set[Identity]:
    return {key_of(cell) for cell in Measurement.read(path).cells}


def check_whole(path: Path, wanted: set[Identity]) -> None:
    measured = Measurement.read(path)
    assert not measured.partial and {key_of(cell) for cell in measured.cells} == wanted
    assert all(cell.checked > 0 and cell.wrong == 0 and len(cell.device_us) for cell in measured.cells)
    assert {cell.world_size for cell in measured.cells} == {2}


@pytest.fixture(scope="module")
def by_itself(tmp_path_factory: pytest.TempPathFactory) -> set[Identity]:
    """What the small bench measures without a launcher."""
    folder = tmp_path_factory.mktemp("by_itself")
    command = [sys.executable, *SMALL, "--world-size", "2", "--out", "out.jsonl"]
    done = launches.run(command, folder)
    assert done.returncode == 0, done
    found = keys(folder / "out.jsonl")
    check_whole(folder / "out.jsonl", found)
    assert len(found) == 3 * 2 * 2 * 2
    return found


@pytest.mark.parametrize("of", LAUNCHERS)
def test_bench_under_each_launchers_variables_gives_the_table_that_it_gives_by_itself(
    of: str, by_itself: set[Identity], tmp_path: Path
) -> None:
    with launch([*SMALL, "--out", "out.jsonl", "--json"], of, 2, "21", tmp_path) as ranks:
        said = ranks.said()
    assert [one.status for one in said] == [0, 0], said
    check_whole(tmp_path / "out.jsonl", by_itself)
    assert json.loads(said[0].out)["cells"] and said[1].out == said[1].err == "", said
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("name", ["torchrun", "openmpi", "mpich", "srun"])
def test_bench_under_the_real_launcher_gives_the_table_that_it_gives_by_itself(
    name: str, by_itself: set[Identity], tmp_path: Path
) -> None:
    command, why_not = launches.real(name, 2, [*SMALL, "--out", "out.jsonl"])
    if why_not:
        pytest.skip(why_not)
    done = launches.run(command, tmp_path)
    assert done.returncode == 0, done
    check_whole(tmp_path / "out.jsonl", by_itself)


def test_two_benches_at_once_do_not_meet(by_itself: set[Identity], tmp_path: Path) -> None:
    with (
        launch([*SMALL, "--out", "a.jsonl"], "srun", 2, "22", tmp_path) as one,
        launch([*SMALL, "--out", "b.jsonl"], "srun", 2, "23", tmp_path) as other,
    ):
        assert [said.status for said in (*one.said(), *other.said())] == [0] * 4
    for name in ("a.jsonl", "b.jsonl"):
        check_whole(tmp_path / name, by_itself)


def test_each_launch_is_one_process_set_and_the_next_adds_its_own(by_itself: set[Identity], tmp_path: Path) -> None:
    command = [*SMALL[:-1], "2", "--out", "out.jsonl"]
    for job, name in (("31", "out.jsonl.partial"), ("32", "out.jsonl")):
        with launch(command, "Open MPI", 2, job, tmp_path) as ranks:
            said = ranks.said()
        assert [one.status for one in said] == [0, 0], said
        assert [path.name for path in tmp_path.iterdir()] == [name]
    measured = Measurement.read(tmp_path / "out.jsonl")
    assert not measured.partial and sorted({cell.process for cell in measured.cells}) == [0, 1]
    assert len(measured.cells) == 2 * len(by_itself)


def test_a_script_that_benches_has_the_measurement_on_every_rank(tmp_path: Path) -> None:
    code = "import sglang_probe as p; m = p.bench('o.jsonl', device='host', quick=True, processes=1, targets='one_shot', sizes='1K:1K')"
    with launch(["-c", f"{code}; print(len(m.cells), m.partial)"], "MPICH", 2, "24", tmp_path) as ranks:
        said = ranks.said()
    assert [one.out for one in said] == ["4 False\n"] * 2, said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--world-size", "3"], "world_size=3: torchrun started 2 ranks: leave it out"),
        (["--device", "gpu"], "device='host' takes CPU ranks"),
        (["--out", "there.jsonl"], "never overwritten"),
        (["--out", "no/where.jsonl"], "there is no folder"),
    ],
)
def test_what_cannot_be_is_refused_and_no_rank_waits(options: list[str], words: str, tmp_path: Path) -> None:
    if "gpu" in options:
        from sglang_probe import gpu

        if gpu.available():
            pytest.skip("there is a GPU")
    (tmp_path / "there.jsonl").write_text("")
    with launch([*SMALL, "--out", "out.jsonl", *options], "torchrun", 2, "25", tmp_path) as ranks:
        said = ranks.said()
    assert all(one.status in (1, 2) and one.out == "" for one in said), said
    assert words in said[0].err, said


# ------------------------------------------------------------------------------------------------------------------- ended in the middle


def cells_of(path: Path) -> int:
    with contextlib.suppress(OSError, ProbeError):
        return len(Measurement.read(path).cells)
    return 0


def ended(folder: Path, signals: Sequence[int], job: str) -> list[Said]:
    """A bench whose ranks get these signals (0: none) when it has measured something."""
    with launch([*LONG, "--out", "out.jsonl"], "torchrun", len(signals), job, folder) as ranks:
        launches.until(lambda: cells_of(folder / "out.jsonl.partial") > 2, "nothing is measured")
        for process, number in zip(ranks.processes, signals, strict=True):
            if number:
                os.kill(process.pid, number)
        said = ranks.said()
    measured = Measurement.read(folder / "out.jsonl.partial")
    assert measured.partial and len(measured.cells) >= 2  # of three that could be read one may not have been on the disk
    assert all(cell.checked > 0 and cell.wrong == 0 for cell in measured.cells)
    return said


def test_a_rank_that_dies_is_named_what_was_measured_is_kept_and_the_next_launch_goes_on(tmp_path: Path) -> None:
    zero, one = ended(tmp_path, (0, signal.SIGKILL), "26")
    assert zero.status == 3 and one.status == -signal.SIGKILL, (zero, one)
    assert "its ranks are gone (ProbeError: " in zero.out and "rank 1 (pid " in zero.out, zero
    # rank 0 sees its end at the process, or first at the board, in the middle of a call
    assert "has ended during run(" in zero.out or "its process is gone" in zero.out, zero
    before = keys(tmp_path / "out.jsonl.partial")
    with launch([*LONG, "--out", "out.jsonl"], "torchrun", 2, "27", tmp_path) as ranks:
        assert [said.status for said in ranks.said()] == [0, 0]
    after = keys(tmp_path / "out.jsonl")
    assert before < after
    check_whole(tmp_path / "out.jsonl", after)


def test_without_rank_0_the_others_end_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    zero, one, two = ended(tmp_path, (signal.SIGKILL, 0, 0), "28")
    assert zero.status == -signal.SIGKILL
    assert all(each.status == 1 and "rank 0 (pid " in each.err and "is gone" in each.err for each in (one, two)), (one, two)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_a_launcher_sends_to_all_ends_all_and_what_was_measured_is_kept(number: int, tmp_path: Path) -> None:
    zero, one = ended(tmp_path, (number, number), f"29{number}")
    assert zero.status == 130 and "cells are in out.jsonl.partial; the same command goes on from there" in zero.err, zero
    assert one.status in (130, 1, -number), one  # by the signal, or because rank 0 had heard of it first


def test_an_interrupt_of_rank_0_alone_ends_the_others_too(tmp_path: Path) -> None:
    zero, one = ended(tmp_path, (signal.SIGINT, 0), "30")
    assert zero.status == 130 and one.status == 1 and "rank 0 ended with Interrupted" in one.err, (zero, one)
