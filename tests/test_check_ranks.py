"""check over several ranks: files, folders and one file of all; ranks that differ are named; what says which rank it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from check_cases import FUSED, H200, LLAMA, recorded, run
from trace_files import Recording, write_chrome, write_nsys

from sglang_probe._trace.types import Seen
from sglang_probe._types import InputError


def folder(path: Path, ways: list[list[str]], steps: list[int] | None = None) -> Path:
    path.mkdir()
    for rank, own in enumerate(ways):
        recorded(own, steps[rank] if steps else 3, rank=rank).chrome(path / f"17-TP-{rank}.trace.json.gz", said=False)
    return path


def test_all_ranks_of_a_folder_are_held_against_the_launch_line(tmp_path: Path) -> None:
    found = run(folder(tmp_path / "t", [["v1"] * 65] * 4), launch=LLAMA, **H200)
    assert found.agrees and found.sentence.endswith("in 12 steps of 4 ranks")
    assert [(rank.label, rank.told_by) for rank in found.ranks] == [(f"rank {n}", "the file's name") for n in range(4)]


def test_the_rank_that_took_another_path_is_named(tmp_path: Path) -> None:
    odd = [*["v1"] * 9, "nccl", *["v1"] * 55]
    ways = [["v1"] * 65, ["v1"] * 65, odd, ["v1"] * 65]
    found = run(folder(tmp_path / "t", ways), launch=LLAMA, **H200)
    assert found.word is Seen.DIFFERS and "on rank 2" in found.sentence
    assert [one.label for one in found.apart] == ["rank 2"]
    assert "layer 4, attention output: ncclDevKernel_AllReduce" in str(found.apart[0])
    alone = run(tmp_path / "t")
    assert alone.word is Seen.DIFFERS
    assert alone.sentence.startswith("DIFFERS: rank 2 went another way than rank 0, rank 1 and rank 3: call 9 of the step")
    assert alone.status == 1
    assert run(tmp_path / "t", rank=1, launch=LLAMA, **H200).agrees


def test_of_two_ranks_the_one_that_is_not_as_expected_is_named(tmp_path: Path) -> None:
    for odd in (0, 1):
        ways = [["v1"] * 65, ["v1"] * 65]
        ways[odd] = ["nccl"] * 65
        found = run(folder(tmp_path / str(odd), ways), launch=LLAMA, **H200)
        assert [one.label for one in found.apart] == [f"rank {odd}"]


def test_a_single_step_that_differs_between_ranks_is_found(tmp_path: Path) -> None:
    one, other = recorded(["v1"] * 65, 5), recorded(["v1"] * 65, 2, rank=1)
    other.forward([*["v1"] * 64, "v1_two"], graph=True)
    for _ in range(2):
        other.forward(["v1"] * 65, graph=True)
    files = [one.chrome(tmp_path / "a.json"), other.chrome(tmp_path / "b.json")]
    found = run(files)
    assert found.word is Seen.DIFFERS and "step 2, call 64 of the step" in found.sentence


def test_ranks_whose_recordings_are_not_of_one_length_agree_and_it_is_said(tmp_path: Path) -> None:
    found = run(folder(tmp_path / "t", [["v1"] * 65] * 3, [3, 4, 3]), launch=LLAMA, **H200)
    assert found.agrees and found.findings == ("ranks saw 3 to 4 steps: their recordings do not cover the same time",)


def test_stages_of_a_pipeline_are_not_held_against_one_another(tmp_path: Path) -> None:
    recorded(["v1"] * 33).chrome(tmp_path / "1-TP-0-PP-0.trace.json", said=False)
    recorded(["v1"] * 32).chrome(tmp_path / "1-TP-0-PP-1.trace.json", said=False)
    found = run(tmp_path, launch=f"{LLAMA} --pp-size 2", **H200)
    assert found.agrees and [rank.label for rank in found.ranks] == ["rank 0 PP0", "rank 0 PP1"]


def test_a_merged_file_of_sglang_holds_all_ranks(tmp_path: Path) -> None:
    events = [event for rank in range(3) for event in recorded(FUSED, 2, rank=rank).events(f"[TP{rank:02d}]")]
    found = run(write_chrome(tmp_path / "merged-1.trace.json.gz", events))
    assert [rank.label for rank in found.ranks] == ["rank 0", "rank 1", "rank 2"]
    assert {rank.calls for rank in found.ranks} == {246} and not found.apart


def test_a_merged_file_is_left_out_where_its_parts_lie_beside_it(tmp_path: Path) -> None:
    place = folder(tmp_path / "t", [["v1"] * 65] * 2)
    write_chrome(place / "merged-17.trace.json.gz", recorded(["nccl"] * 65).events("[TP00]"))
    assert len(run(place).files) == 2


@pytest.mark.parametrize("schema", ["2023", "2025"])
def test_one_export_of_nsys_holds_all_ranks(tmp_path: Path, schema: str) -> None:
    ranks = [recorded(["v1"] * 65, rank=rank) for rank in range(3)] + [recorded(["nccl"] * 65, rank=3)]
    found = run(write_nsys(tmp_path / "x.sqlite", ranks, schema), launch=LLAMA, **H200)
    assert found.word is Seen.DIFFERS and "on GPU 3 of process 5003" in found.sentence
    assert [rank.calls for rank in found.ranks] == [260] * 4


def test_two_recordings_of_one_rank_are_told_apart_by_their_files(tmp_path: Path) -> None:
    files = [recorded(["v1"] * 9).chrome(tmp_path / name) for name in ("a.json", "b.json")]
    assert [rank.label for rank in run(files).ranks] == ["rank 0 (a.json)", "rank 0 (b.json)"]


@pytest.mark.parametrize(
    ("name", "label"),
    [("1-TP-3.trace.json", "rank 3"), ("pre-1-TP-3-DP-1-EP-3-DECODE.trace.json", "rank 3 DP1"), ("rank_12.json", "rank 12"),
     ("x-global-rank5.trace.json", "rank 5"), ("frank7.json", "GPU 0"), ("trace.json", "GPU 0")],
)  # fmt: skip
def test_a_files_name_says_the_rank_where_nothing_else_does(tmp_path: Path, name: str, label: str) -> None:
    assert run(recorded(["v1"] * 3).chrome(tmp_path / name, said=False)).ranks[0].label == label


def test_the_trace_itself_is_believed_before_its_name(tmp_path: Path) -> None:
    found = run(recorded(["v1"] * 3, rank=6).chrome(tmp_path / "1-TP-3.trace.json"))
    assert (found.ranks[0].label, found.ranks[0].told_by) == ("rank 6", "the trace's distributedInfo")


def test_folders_and_paths_that_hold_nothing_are_refused(tmp_path: Path) -> None:
    for given in (tmp_path, tmp_path / "no", [], [7], ""):
        with pytest.raises(InputError) as caught:
            run(given)
        assert caught.value.field == "trace"


def test_an_empty_recording_of_one_rank_does_not_hide_the_other(tmp_path: Path) -> None:
    files = [recorded(["v1"] * 65).chrome(tmp_path / "a.json"), Recording(1).chrome(tmp_path / "b.json")]
    found = run(files, launch=LLAMA, **H200)
    assert found.agrees and len(found.ranks) == 1
