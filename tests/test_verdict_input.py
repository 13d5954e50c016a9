"""What is read into arms, and what is refused: numbers, texts, arrays, CSV files, Measurement files.

Bad input is named with its place, never averaged away.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import measured
import numpy as np
import pytest

from sglang_probe._measure.format import MeasurementError
from sglang_probe._measure.measurement import Measurement
from sglang_probe._measure.writer import Writer
from sglang_probe._types import InputError
from sglang_probe._verdict.arm import Arm, arm
from sglang_probe._verdict.reading import arms
from sglang_probe._verdict.verdict import Word, verdict

GOOD = [10.0, 10.1, 10.2, 10.3]


# ------------------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        ([], "at least one run"),
        ([[]], "no iterations"),
        ([1.0, math.nan], "not a number"),
        ([1.0, math.inf], "not finite"),
        ([1.0, 0.0], "not above 0"),
        ([1.0, -2.0], "not above 0"),
        ([[1.0, 2.0], [3.0, math.nan]], "not a number"),
        (["1.0", 2.0], "it is a text"),
        ([True, 2.0], "no number"),
        ([None, 2.0], "no number|numbers beside lists|give numbers"),
        ([1.0, [2.0]], "numbers beside lists"),
        ({"a": 1.0}, "has no order"),
        ({1.0, 2.0}, "has no order"),
        (b"1,2", "give numbers"),
        (..., "give numbers"),
        ([1.0, 10**400], "float can hold"),
        (np.zeros((2, 2, 2)), "no number|give numbers"),
        ("1.0, x", "no number"),
        ("19ms, 20us", "one arm has one unit"),
        ("no/such/file.csv", "cannot be read"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("side", ["a", "b"])
def test_a_bad_figure_is_named_and_refused(bad: Any, named: str, side: str) -> None:
    pair = (bad, GOOD) if side == "a" else (GOOD, bad)
    with pytest.raises(InputError, match=named) as caught:
        verdict(*pair, better="lower")
    assert caught.value.field.startswith(side) and caught.value.remedy


def test_the_place_of_a_bad_figure_is_named() -> None:
    with pytest.raises(InputError) as caught:
        verdict([1.0, 2.0, math.nan], GOOD, better="lower")
    assert caught.value.field == "a[2]"
    with pytest.raises(InputError) as caught:
        verdict(GOOD, [[1.0], [2.0, -1.0]], better="lower")
    assert caught.value.field == "b[1][1]"


@pytest.mark.parametrize(
    ("name", "value"), [("margin", 0.0), ("margin", 2), ("confidence", 95), ("confidence", 0.5), ("margin", math.nan)]
)
def test_margins_and_confidences_that_are_no_fractions_are_refused(name: str, value: float) -> None:
    with pytest.raises(InputError, match="give a fraction"):
        verdict(GOOD, GOOD, better="lower", **{name: value})


def test_figures_without_a_unit_need_to_say_what_is_better() -> None:
    with pytest.raises(InputError, match=r"better='higher' or better='lower'"):
        verdict(GOOD, GOOD)
    with pytest.raises(InputError, match="more widgets is better"):
        verdict(GOOD, GOOD, unit="widgets")
    with pytest.raises(InputError, match="give 'higher' or 'lower'"):
        verdict(GOOD, GOOD, better="faster")


# ---------------------------------------------------------------------------------------------------------------------------- units


def test_one_kind_of_unit_is_turned_exactly_and_said() -> None:
    found = verdict("19, 19.1, 19.2, 19.3 ms", "0.0190, 0.0191, 0.0192, 0.0193 s", margin=0.05)
    assert found.word is Word.SAME and found.effect == 0 and found.b.unit == "ms"
    assert [one.text for one in found.findings if one.kind == "units"] == ["b is in s, and was turned into ms"]
    assert [v for (v,) in found.b.processes] == pytest.approx([19, 19.1, 19.2, 19.3])


@pytest.mark.parametrize(
    ("a", "b", "named"),
    [("19ms", "89tok/s", "cannot be compared"), ("19ms", "89", "say the unit of b"), ("89", "19ms", "say the unit of a")],
)
def test_units_that_differ_are_refused(a: str, b: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        verdict(a, b)


def test_a_unit_that_is_given_goes_to_figures_that_bring_none() -> None:
    found = verdict("19ms", [20000.0], unit="us")
    assert (found.a.unit, found.b.unit, found.a.processes) == ("us", "us", ((19000.0,),))
    assert verdict("89 tps", "82 tokens/s").a.unit == "tok/s"


# ------------------------------------------------------------------------------------------------------------------- numbers, arrays


@pytest.mark.parametrize(
    ("source", "processes"),
    [
        (89, ((89.0,),)),
        ([89, 82.5], ((89.0,), (82.5,))),
        ((np.float32(2), np.int64(3)), ((2.0,), (3.0,))),
        (np.array([[1.0, 2.0], [3.0, 4.0]]), ((1.0, 2.0), (3.0, 4.0))),
        ([[1.0, 2.0], [3.0]], ((1.0, 2.0), (3.0,))),
        (range(1, 3), ((1.0,), (2.0,))),
        ("89.2, 94.1", ((89.2,), (94.1,))),
        ("89.2 94.1 tok/s", ((89.2,), (94.1,))),
        ("1e2;2_000", ((100.0,), (2000.0,))),
    ],
    ids=repr,
)
def test_numbers_are_processes_and_lists_are_iterations(source: Any, processes: Any) -> None:
    assert arm(source, label="a").processes == processes


def test_an_arm_comes_back_as_it_is_and_two_of_one_name_are_told_apart() -> None:
    one = Arm("now", ((1.0,),), "s")
    assert arm(one, label="b") is one
    found = verdict(one, Arm("now", ((2.0,),), "s"))
    assert (found.a.label, found.b.label) == ("now (a)", "now (b)")


@pytest.mark.parametrize("name", ["order", "blocks"])
def test_an_arm_needs_a_place_for_every_process(name: str) -> None:
    with pytest.raises(InputError, match="one for each of 2 processes"):
        Arm("a", ((1.0,), (2.0,)), **{name: (0,)})


# ------------------------------------------------------------------------------------------------------------------------------ CSV


def write(folder: Path, text: str, name: str = "runs.csv") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_file_of_bare_numbers_is_one_process_a_row(tmp_path: Path) -> None:
    found = arm(write(tmp_path, "# tok/s, five servers\n89.2\n94.1\n\n83.2\n"), label="a", unit="tok/s")
    assert found.processes == ((89.2,), (94.1,), (83.2,)) and found.unit == "tok/s" and found.origin.endswith("runs.csv")


def test_headings_tell_processes_order_blocks_and_the_unit(tmp_path: Path) -> None:
    text = "process;order;block;host;device_us\n0;3;1;x;10.0\n0;3;1;x;10.2\n1;0;0;x;11.0\n"
    found = arm(write(tmp_path, text), label="a")
    assert found.processes == ((10.0, 10.2), (11.0,)) and found.unit == "us"
    assert found.order == (3, 0) and found.blocks == (1, 0)


@pytest.mark.parametrize(
    ("heading", "unit"), [("tok/s", "tok/s"), ("time (ms)", "ms"), ("step_ms", "ms"), ("latency [us]", "us"), ("x", "")]
)
def test_a_heading_tells_its_unit(tmp_path: Path, heading: str, unit: str) -> None:
    assert arm(write(tmp_path, f"{heading}\n1\n2\n"), label="a").unit == unit


def test_both_arms_of_one_file_are_told_apart_by_a_column(tmp_path: Path) -> None:
    rows = "\n".join(
        f"{version},{value}" for version, value in zip("aabbaabb", (10.0, 10.1, 8.0, 8.1, 10.2, 10.3, 8.2, 8.3), strict=True)
    )
    path = write(tmp_path, f"version,ms\n{rows}\n")
    one, other = arms(path, arm_column="version")
    assert (one.label, other.label, len(one), len(other)) == ("a", "b", 4, 4)
    assert verdict(one, other).word is Word.FASTER
    back = verdict(*arms(path, arm_column="version", arms=["b", "a"]))
    assert back.word is Word.SLOWER and back.a.label == "b"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no figures"),
        ("ms\n", "no figures below"),
        ("ms\n1\nx\n", "line 3.*no number"),
        ("ms\n1\nnan\n", "line 3.*not a number"),
        ("ms\n1\n-1\n", "line 3.*not above 0"),
        ("ms\n1\n\n0\n", "line 4.*not above 0"),
        ("a,b\n1,2\n", "a, b could"),
        ("1,2\n3,4\n", "2 columns and no headings"),
        ("a,ms\n1\n", "1 cells where there are 2"),
        ("a,A\n1,2\n", "two columns of one name"),
        ("name,host\nx,y\n", "none could"),
        ("order,ms\nsoon,1\n", "whole numbers"),
        ("time_us\n1ms\n", "say ms"),
        ('ms\n"1\n', "no CSV file"),
    ],
    ids=repr,
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(InputError, match=named) as caught:
        arm(write(tmp_path, text), label="a")
    assert "runs.csv" in str(caught.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(b"\xff\xfe\x00\x01\n\x80")
    with pytest.raises(InputError, match="no text"):
        arm(path, label="a")
    with pytest.raises(InputError, match="cannot be read"):
        arm(tmp_path, label="a")


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"arm_column": "arm"}, "has the columns version, ms"),
        ({"arm_column": "version"}, "3 arms"),
        ({"arm_column": "version", "arms": ["x", "q"]}, "has x, y, z"),
        ({"arm_column": "version", "arms": ["x", "x"]}, "two different names"),
    ],
)
def test_arms_that_are_not_in_the_file_are_named(tmp_path: Path, keywords: Any, named: str) -> None:
    path = write(tmp_path, "version,ms\nx,1\ny,2\nz,3\n")
    with pytest.raises(InputError, match=named):
        arms(path, **keywords)


def test_cells_are_for_measurements_alone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="goes with a Measurement"):
        arm([1.0], label="a", cell="custom")
    with pytest.raises(InputError, match="goes with a Measurement"):
        arm(write(tmp_path, "ms\n1\n"), label="a", cell="custom")
    with pytest.raises(InputError, match="goes with a Measurement or a CSV file"):
        arm([1.0], label="a", column="ms")


# --------------------------------------------------------------------------------------------------------------------- Measurements


def cells(level: float, sets: int, path: str = "custom", minute: int = 0, **changes: Any) -> list[Any]:
    """Of two ranks, the second 1 us slower; each set 0.1 us slower than the one before."""
    made = []
    for process in range(sets):
        one = [level + 0.1 * process + 0.01 * i for i in range(5)]
        at = {"at": f"2026-01-01T00:{minute + process:02}:00Z"}
        made.append(measured.cell(path=path, device_us=[one, [v + 1 for v in one]], process=process, before=at, **changes))
    return made


def file_of(path: Path, *groups: list[Any]) -> Path:
    with Writer(path, plan=measured.PLAN, provenance=measured.PROVENANCE) as writer:
        for group in groups:
            for cell in group:
                writer.append(cell)
        return Path(writer.finish())


def test_a_measurements_process_sets_are_the_runs_and_the_slowest_rank_is_the_figure(tmp_path: Path) -> None:
    path = file_of(tmp_path / "one.jsonl", cells(10.0, 4))
    found = arm(path, label="a")
    summary = Measurement.read(path).summary()[0]
    assert found.unit == "us" and len(found) == 4 and found.origin.startswith("one.jsonl: custom (one_shot), captured")
    assert [float(np.median(process)) for process in found.processes] == pytest.approx(list(summary.device_us))
    assert list(found.order) == sorted(found.order) and found.blocks == (0, 1, 2, 3)
    assert arm(path, label="a", column="host_us").processes[0] == pytest.approx((0.3, 0.6, 0.9))


def test_two_measurements_are_compared_and_their_order_is_known(tmp_path: Path) -> None:
    before, after = file_of(tmp_path / "a.jsonl", cells(10.0, 6)), file_of(tmp_path / "b.jsonl", cells(5.0, 6, minute=30))
    found = verdict(before, after)
    assert found.word is Word.FASTER and found.method.startswith("Mann-Whitney")
    assert any(one.text.startswith("a was measured 25 min before b: ") for one in found.findings), found.findings
    assert found.reason.endswith(
        "; a was measured 25 min before b, and the interval allows for a drift, not for a jump about then"
    )


def test_a_sample_that_is_not_above_0_leaves_its_process_set_the_median_and_a_median_that_is_not_is_named(tmp_path: Path) -> None:
    samples = [[9.0, -5.0, 10.0, 11.0, 10.5], [1.0] * 5]
    made = [measured.cell(device_us=samples if process == 1 else [[10.0] * 5] * 2, process=process) for process in range(4)]
    path = file_of(tmp_path / "one.jsonl", made)
    found = arm(path, label="a")
    assert found.processes == ((10.0,) * 5, (10.0,), (10.0,) * 5, (10.0,) * 5)
    assert "of 1 of 4 process sets the median alone: single samples are not above 0" in found.origin
    assert "of 1 of 4 process sets" in verdict(path, path).why()
    nothing = file_of(tmp_path / "two.jsonl", [*made, measured.cell(device_us=[[-1.0] * 5] * 2, process=4)])
    with pytest.raises(InputError, match="process set 4='-1 us': device_us of custom.*no time is left.*measure back_to_back"):
        arm(nothing, label="a")


def test_two_cells_of_one_file_are_pairs_of_their_process_sets(tmp_path: Path) -> None:
    path = file_of(tmp_path / "one.jsonl", cells(10.0, 8), cells(11.0, 8, path="pynccl_in_place", kernel=""))
    found = verdict(path, path, cell=("custom", "pynccl_in_place"))
    assert found.word is Word.SLOWER and found.method.startswith("signed rank") and "8 interleaved pairs" in found.reason


def test_a_cell_must_be_named_where_there_are_several_and_the_choices_are_told(tmp_path: Path) -> None:
    path = file_of(tmp_path / "one.jsonl", cells(10.0, 2), cells(11.0, 2, nbytes=16384), cells(12.0, 2, path="pynccl_in_place"))
    with pytest.raises(InputError, match="has 3 of them; name one.*16 KiB") as caught:
        arm(path, label="a")
    assert "pynccl_in_place" in caught.value.remedy
    with pytest.raises(InputError, match="has 2 of these"):
        arm(path, label="a", cell="custom")
    with pytest.raises(InputError, match="none like that"):
        arm(path, label="a", cell="eager")
    with pytest.raises(InputError, match="a cell has path"):
        arm(path, label="a", cell="colour=red")
    for cell in ("custom 16KiB", "16384", "nbytes=16KiB", {"path": "custom", "nbytes": 16384}):
        assert arm(path, label="a", cell=cell).processes[0][0] == 12.0


def test_wrong_results_and_missing_times_have_no_figure(tmp_path: Path) -> None:
    wrong = file_of(tmp_path / "wrong.jsonl", cells(10.0, 2, wrong=1))
    with pytest.raises(InputError, match="WRONG"):
        arm(wrong, label="a")
    right = file_of(tmp_path / "right.jsonl", cells(10.0, 2))
    with pytest.raises(InputError, match="has device_us, host_us"):
        arm(right, label="a", column="wait_us")
    with pytest.raises(InputError, match="give one of device_us"):
        arm(right, label="a", column="speed")


def test_what_two_files_were_not_measured_alike_on_is_told(tmp_path: Path) -> None:
    from dataclasses import replace

    one = Measurement.read(file_of(tmp_path / "a.jsonl", cells(10.0, 4)))
    other = replace(one, provenance=replace(measured.PROVENANCE, env={"NCCL_ALGO": "Tree"}), path="b.jsonl")
    told = [finding.text for finding in verdict(one, other).findings if finding.kind == "states"]
    assert len(told) == 1 and "env.NCCL_ALGO: 'Ring' in a, 'Tree' in b" in told[0]
    assert not [finding for finding in verdict(one, one).findings if finding.kind == "states"]


# --------------------------------------------------------------------------------------------------------------- what readers stumbled on

SHIPPED = Path(__file__).parents[1] / "sglang_probe" / "_costs" / "data" / "2x_h200.jsonl.gz"


def test_a_measurement_that_gzip_packed_is_one_and_brings_its_machine() -> None:
    cells = [f"{name} captured native back_to_back 16KiB" for name in ("pynccl_in_place", "one_shot")]
    found = verdict(SHIPPED, SHIPPED, cell=cells, column="device_us")
    assert found.word is Word.FASTER and len(found.a) == len(found.b) == 5
    assert found.a.provenance is not None and found.to_dict()["a"]["provenance"]["gpus"][0]["name"] == "NVIDIA H200"
    page = found.markdown()
    assert "2x NVIDIA H200" in page and "2.28.9" in page


def test_a_damaged_gzip_file_is_said_to_be_damaged(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl.gz").write_bytes(SHIPPED.read_bytes()[:1000])
    with pytest.raises(MeasurementError, match="damaged"):
        verdict(tmp_path / "m.jsonl.gz", "1,2,3us")


@pytest.mark.parametrize("name", ["tok_s", "tokens_per_s", "output tok_s"])
def test_a_column_of_tokens_a_second_is_better_higher(name: str, tmp_path: Path) -> None:
    for side, least in (("a", 80), ("b", 90)):
        (tmp_path / f"{side}.csv").write_text("\n".join([name, *(str(least + i) for i in range(4))]))
    found = verdict(tmp_path / "a.csv", tmp_path / "b.csv")
    assert (found.word, found.a.unit, found.better) == (Word.FASTER, "tok/s", "higher")


def test_a_figure_that_is_missing_between_commas_is_not_dropped() -> None:
    with pytest.raises(InputError, match="missing between two commas"):
        verdict("19.1,,19.0ms", "18,18.2ms")
