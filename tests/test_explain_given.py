"""What `explain` takes as seen: figures with units, runs, numbers, files; and what it refuses, by name.

Without these a figure in another unit, a missing side or a file of something else would be compared in silence.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cost_files import cells, write
from test_explain import CUSTOM_US, EIGHT, MIB, NCCL_US, R18, SERVER, by_process, runs

from sglang_probe import InputError, Measurement
from sglang_probe._explain.explain import explain
from sglang_probe._explain.given import read_given
from sglang_probe._explain.types import Explanation, Word
from sglang_probe._measure.format import MeasurementError


def ask(before: Any, after: Any, **changes: Any) -> Explanation:
    return explain(before, after, **(EIGHT | {"costs": "none"} | changes))


@pytest.mark.parametrize(
    ("given", "kind", "unit", "values", "half"),
    [
        ("19ms", "step", "ms", (19.0,), 0.5),
        ("19.25 ms", "step", "ms", (19.25,), 0.005),
        ("1.9e4us", "step", "us", (19000.0,), 500.0),
        ("19000µs", "step", "us", (19000.0,), 0.5),
        ("0.019s", "step", "s", (0.019,), 0.0005),
        ("89tok/s", "rate", "tok/s", (89.0,), 0.5),
        ("89 tokens/s", "rate", "tok/s", (89.0,), 0.5),
        ("89.2, 94.1 tok/s", "rate", "tok/s", (89.2, 94.1), 0.05),
        ("19ms 20ms", "step", "ms", (19.0, 20.0), 0.5),
        (["19ms", "0.0200s"], "step", "ms", (19.0, 20.0), 0.5),
    ],
)
def test_figures_are_read_with_their_unit_and_their_rounding(given: Any, kind: Any, unit: str, values: Any, half: float) -> None:
    (found,) = read_given(given, "before").items()
    assert found[0] == kind and found[1].arm.unit == unit and found[1].half == pytest.approx(half)
    assert [process[0] for process in found[1].arm.processes] == pytest.approx(values)
    assert found[1].arm.label == "before" and found[1].arm.origin == "given"


def test_both_kinds_at_once_are_two_arms() -> None:
    found = read_given(["19ms", "89tok/s", "20ms"], "after")
    assert {kind: len(one.arm) for kind, one in found.items()} == {"step": 2, "rate": 1}
    assert {one.arm.label for one in found.values()} == {"after"}


@pytest.mark.parametrize(
    ("before", "after", "more", "field", "told"),
    [
        ("19", "29ms", {}, "before", "give its unit"),
        ("19ms", "29kg", {}, "after", "'kg' is none that explain knows"),
        ("0ms", "1ms", {}, "before", "above 0"),
        ("-3ms", "1ms", {}, "before", "above 0"),
        (float("nan"), 3.0, {"unit": "ms"}, "before", "above 0"),
        ([1.0, float("nan")], [1.0, 2.0], {"unit": "ms"}, "before[1]", "not a number"),
        ([1.0, 2.0], [3.0, 4.0], {}, "unit", "has no unit"),
        ([1, "2ms"], "3ms", {"unit": "ms"}, "before", "not both in one list"),
        (True, "1ms", {}, "before", "give a figure with its unit"),
        ("19ms", "82tok/s", {}, "after", "the other side has the time of a step"),
        ("19ms", None, {}, "after", "the other side has the time of a step"),
        (None, "82tok/s", {}, "before", "the other side has tok/s"),
        (None, None, {}, "before", "give what was seen"),
        ("19ms", "29ms", {"unit": "furlongs"}, "unit", "give us, ms or s"),
        ("nowhere.csv", "29ms", {}, "before", "No such file"),
        ("19ms", "29ms", {"pattern": "sideways"}, "pattern", "interleaved, back_to_back"),
        ("19ms", "29ms", {"sglang_after": None}, "sglang_after", "give both releases"),
        ("19ms", "29ms", {"sglang_after": "0.5.99"}, "sglang_after", "not a known release"),
        ("19ms", "29ms", {"margin": 0}, "margin", "give a fraction"),
        ("19ms", "29ms", {"batch": 0}, "batch", "whole number"),
        ("19ms", "29ms", {"launch": None, "model": None}, "launch", "give a launch line"),
        ("19ms", "29ms", {"log": "server.log"}, "launch", "give either log or launch"),
    ],
)
def test_bad_input_is_named_with_its_field_its_value_and_what_to_do(
    before: Any, after: Any, more: dict[str, Any], field: str, told: str
) -> None:
    with pytest.raises(InputError) as caught:
        ask(before, after, **more)
    assert caught.value.field == field and told in caught.value.remedy


def test_the_example_takes_no_server_of_ones_own_and_other_figures() -> None:
    with pytest.raises(InputError, match="its own server"):
        explain(example=True, launch=R18)
    assert [one.what for one in explain("20ms", "21ms", example=True).seen] == ["verify step"]


def test_times_in_different_units_are_compared_in_one() -> None:
    seen = ask("20ms", "21000us").seen[0]
    assert seen.before.unit == seen.after.unit == "ms"
    assert (seen.before_ms, seen.after_ms, seen.change_ms.value) == pytest.approx((20, 21, 1))


def test_numbers_and_arrays_are_runs_of_the_unit_that_is_given() -> None:
    by_hand, arrays = (ask(one([20.0, 20.1, 19.9, 20.2]), one([16.0, 16.1, 15.9, 16.2]), unit="ms") for one in (list, np.array))
    assert by_hand.seen[0].settled and by_hand.seen[0].change_ms == arrays.seen[0].change_ms
    seconds = ask([0.02, 0.0201, 0.0199, 0.0202], [0.016, 0.0161, 0.0159, 0.0162], unit="s").seen[0]
    assert seconds.change_ms.value == pytest.approx(by_hand.seen[0].change_ms.value)


# ------------------------------------------------------------------------------------------------------------------------ milliseconds


def test_a_rate_is_the_time_of_a_step_by_the_tokens_that_a_step_gives() -> None:
    rates = [f"{rate}tok/s" for rate in (90, 91, 92, 91.5)], [f"{rate}tok/s" for rate in (80, 81, 82, 81.5)]
    plain = explain(plain_before=rates[0], plain_after=rates[1], launch=R18, **SERVER).seen[0]
    assert (plain.what, plain.before_ms) == ("plain decoding", pytest.approx(1e3 / 91.25))
    without = explain(*rates, launch=R18, **SERVER)
    assert without.seen[0].per_token and without.seen[0].what == "speculative decoding"
    with_length = explain(*rates, accepted=2.0, launch=R18, **SERVER).seen[0]
    assert not with_length.per_token and with_length.before_ms == pytest.approx(2 * plain.before_ms)
    assert with_length.change_ms.value == pytest.approx(2 * plain.change_ms.value)
    batch = explain(*rates, accepted=2.0, batch=4, launch=R18, **SERVER).seen[0]
    assert batch.before_ms == pytest.approx(4 * with_length.before_ms), "tok/s are those of all requests"


def test_the_interval_of_a_change_is_the_verdicts_turned_into_time() -> None:
    found = ask(runs(20), runs(16)).seen[0]
    v, c = found.verdict, found.change_ms
    assert (c.low, c.high) == pytest.approx((20 * v.low, 20 * v.high))
    rates = ask(["1000tok/s", "1010tok/s", "1005tok/s", "1002tok/s"], ["1250tok/s", "1260tok/s", "1255tok/s", "1252tok/s"]).seen[
        0
    ]
    was = 1024 * 1e3 / 1003.5
    assert rates.change_ms.low == pytest.approx(was * (1 / (1 + rates.verdict.high) - 1))
    assert rates.change_ms.high == pytest.approx(was * (1 / (1 + rates.verdict.low) - 1))
    assert rates.change_ms.low < rates.change_ms.value < rates.change_ms.high < 0, "faster is shorter"


def test_one_run_an_arm_has_no_interval() -> None:
    change = ask("20ms", "16ms").seen[0].change_ms
    assert (change.value, change.low, change.high) == (-4, None, None)


def test_rates_without_the_accepted_length_exclude_only_what_even_one_token_a_step_would(tmp_path: Path) -> None:
    launch = R18 + " --enable-piecewise-cuda-graph --disable-cuda-graph"
    rates = [f"{rate}tok/s" for rate in (90, 91, 92, 91.5)], [f"{rate}tok/s" for rate in (80, 81, 82, 81.5)]
    found = explain(*rates, launch=launch, **SERVER)
    assert found.word is Word.COULD and any(text.startswith("--accepted") for text in found.missing)
    assert "by which a token became longer" in found.reason


# ------------------------------------------------------------------------------------------------------------------------------- files


def test_an_accepted_length_without_speculation_is_refused_in_words_that_fit() -> None:
    with pytest.raises(InputError) as caught:
        ask("19ms", "29ms", accepted=2)
    assert caught.value.field == "accepted" and caught.value.remedy.startswith("without speculation a step gives one token")


def test_a_csv_is_an_arm_of_one_run_a_line(tmp_path: Path) -> None:
    for name, values in (("b", (20.0, 20.1, 19.9, 20.05)), ("a", (16.0, 16.1, 15.9, 16.05))):
        (tmp_path / f"{name}.csv").write_text("\n".join(["ms", *map(str, values)]) + "\n")
    found = ask(str(tmp_path / "b.csv"), tmp_path / "a.csv")
    assert found.seen[0].what == "decode step" and found.seen[0].settled and len(found.seen[0].before) == 4
    assert "b.csv" in found.seen[0].before.origin


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("benches")
    before = write(folder / "before.jsonl", cells(8 * MIB, **by_process(NCCL_US)), gpus=8)
    return before, write(
        folder / "after.jsonl", cells(8 * MIB, path="custom", kernel="two_shot", **by_process(CUSTOM_US)), gpus=8
    )


@pytest.mark.parametrize("read", [str, Path, Measurement.read])
def test_a_measurement_is_the_time_of_one_call_and_a_step_makes_it_so_often(benches: tuple[Path, Path], read: Any) -> None:
    found = ask(*map(read, benches), costs=list(benches))
    seen = found.seen[0]
    assert (seen.what, seen.calls, seen.before.unit) == ("one call", 65, "us")
    assert (seen.before_ms, seen.after_ms) == pytest.approx((65 * 0.2, 65 * 0.15))
    bound = found.bound("routes")
    assert bound is not None and bound.ms is not None and found.word is Word.COULD
    assert seen.change_ms.value == pytest.approx(bound.ms.value, rel=0.01)


def test_a_packed_measurement_is_one_too_and_each_side_may_have_its_cell(benches: tuple[Path, Path], tmp_path: Path) -> None:
    packed = []
    for file in benches:
        packed.append(tmp_path / f"{file.name}.gz")
        packed[-1].write_bytes(gzip.compress(file.read_bytes()))
    plain, same = ask(*benches), ask(*packed, cell=("captured", "captured"))
    assert same.seen[0].what == "one call" and same.seen[0].change_ms == plain.seen[0].change_ms
    given = [number for number in same.numbers if number.what.startswith("one call, ")]
    assert {number.origin for number in given} == {"given"}
    assert [number.source.partition(":")[0] for number in given] == [file.name for file in packed]
    packed[1].write_bytes(packed[1].read_bytes()[:-40])
    with pytest.raises(MeasurementError, match="damaged"):
        ask(*packed)


def test_the_time_of_a_call_stands_by_itself(benches: tuple[Path, Path]) -> None:
    with pytest.raises(InputError, match="ask about the step in another question"):
        ask([str(benches[0]), "20ms"], [str(benches[1]), "16ms"])


def test_two_files_of_one_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ms\n20\n21\n")
    with pytest.raises(InputError, match="give one file, or several single figures"):
        ask([str(tmp_path / "a.csv")] * 2, "16ms")


def test_a_server_may_be_told_by_its_log_and_is_taken_for_both_releases(tmp_path: Path) -> None:
    args = "model_path='meta-llama/Meta-Llama-3-8B', tp_size=8, cuda_graph_max_bs=1024, disable_cuda_graph=False"
    (tmp_path / "server.log").write_text(f"sglang version 0.5.9\n[2026-03-01 10:00:00] server_args=ServerArgs({args})\n")
    found = explain("20ms", "16ms", **(EIGHT | {"launch": None, "log": str(tmp_path / "server.log")}))
    assert found.word is Word.NOTHING_TO_EXPLAIN and found.sglang_before == "0.5.8"
    assert {(r.before, r.after) for r in found.routes} == {
        ("pynccl_in_place, captured", "custom (v1, two_shot, new tensor), captured")
    }
    assert any("its settings are taken for 0.5.8 too" in note for note in found.notes)
    assert "YOUR_BENCHMARK" in found.experiment


def test_a_model_alone_is_asked_about_as_step_does() -> None:
    found = explain("20ms", "16ms", **{**EIGHT, "launch": None, "batch": 1, "context": None})
    assert found.launch.startswith("Llama-3-8B on 8 ranks (8x h200 over NVLink), decode step") and found.calls == 65
