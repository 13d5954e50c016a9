"""Two ways of a call: the two differ in nothing else, ratios are taken within a process set, and sentences are no surer than that.

The times are those of test_latency.py and the shipped ones.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from test_latency import GPUS, caption, cells, measurement

from sglang_probe import Cell, InputError, Measurement
from sglang_probe.notebook import Against, against

SETS = (0.5, 1.0, 2.0)


@pytest.fixture(scope="module")
def shipped() -> Measurement:
    return Measurement.shipped()


def scaled(found: list[Cell], times: tuple[float, ...], **changes: Any) -> list[Cell]:
    """The same cells with the device's times multiplied, a factor a process set."""
    return [replace(cell, device_us=tuple(rank * times[cell.process] for rank in cell.device_us), **changes) for cell in found]


def rows(found: Against, clock: str, phase: str) -> list[Any]:
    (lines,) = [rows for (_, at, when), rows in found.lines.items() if (at, when) == (clock, phase)]
    return lines


def test_out_of_place_is_held_against_in_place_within_each_process_set() -> None:
    found = against(measurement(), "buffers")
    assert found.names == ("in place", "out of place")
    for row in rows(found, "device_us", "captured"):
        assert row.ratio.by_process == pytest.approx((1.2, 1.2, 1.2)) and row.ratio.times == pytest.approx(1.2)
        assert (row.ratio.low, row.ratio.high) == pytest.approx((1.2, 1.2)), "what all sets have in common cancels"
        assert row.b.low / row.b.high == pytest.approx(0.25), "though they are a factor of four apart"
    assert [row.nbytes for row in rows(found, "device_us", "eager")] == [1024, 4096, 16384]


def test_the_ratio_s_interval_is_the_t_interval_of_logarithms() -> None:
    times = (1.0, 1.1, 1.3)
    both = [*cells(), *scaled(cells(driver="engine", release="0.5.11"), times)]
    row = rows(against(measurement(*both), "drivers", targets="one_shot", clocks=("device_us",)), "device_us", "eager")[0]
    logs = np.log(times)
    half = stats.t.ppf(0.975, 2) * logs.std(ddof=1) / math.sqrt(3)
    assert row.ratio.times == pytest.approx(math.exp(logs.mean()))
    assert (row.ratio.low, row.ratio.high) == pytest.approx((math.exp(logs.mean() - half), math.exp(logs.mean() + half)))
    assert row.ratio.side == 0, "three sets that differ so are not sure of a side"


def test_process_sets_that_lack_one_of_the_two_are_not_in_the_ratio() -> None:
    some = [cell for cell in cells() if not (cell.path == "pynccl_out_of_place" and cell.process == 0)]
    row = rows(against(measurement(*some), "buffers"), "device_us", "eager")[0]
    assert len(row.ratio.by_process) == 2 and row.a.processes == 3 and row.b.processes == 2


def test_one_process_set_has_no_interval_and_its_sentence_says_so() -> None:
    found = against(measurement(*[cell for cell in cells() if cell.process == 1]), "buffers")
    assert {row.ratio.low for row in found.rows} == {None}
    assert all(text.endswith("one process set, so nothing tells this from chance") for text in found.sentences)
    figure = found.picture()
    assert "no interval: a single process set" in caption(figure).replace("\n", " ")
    assert "one set" in str(found)


def test_nothing_is_compared_that_differs_in_anything_else() -> None:
    mixed = [cell if cell.path != "pynccl_out_of_place" else replace(cell, dtype="fp32") for cell in cells()]
    with pytest.raises(InputError, match="of the same call, back_to_back, native; there is pynccl_in_place, pynccl_out_of_place"):
        against(measurement(*mixed), "buffers")


def test_interleaved_calls_are_held_against_back_to_back_ones_of_the_same_path() -> None:
    beside = scaled(cells(pattern="interleaved", compute_us=5.0), (1.5,) * 3)
    found = against(measurement(*cells(), *beside), "patterns")
    assert {row.target for row in found.rows} == {"pynccl_in_place"} and found.others == (
        "pynccl_out_of_place",
        "custom (one_shot)",
    )
    assert rows(found, "device_us", "eager")[0].ratio.times == pytest.approx(1.5)
    assert "interleaved with a compute kernel of 5 us, which is subtracted" in found.conditions
    two = against(measurement(*cells(), *beside), "patterns", targets="one_shot,pynccl_in_place")
    assert [axes.get_title(loc="left") for axes in two.picture().axes[:4]] == [
        "pynccl_in_place, device",
        "pynccl_in_place, host",
        "custom (one_shot), device",
        "custom (one_shot), host",
    ]


def test_lengths_of_the_compute_kernel_are_lines_of_their_own() -> None:
    beside = [one for us in (5.0, 50.0) for one in cells(pattern="interleaved", compute_us=us)]
    found = against(measurement(*cells(), *beside), "patterns", targets="one_shot")
    assert {row.target for row in found.rows} == {"custom (one_shot), beside 5 us", "custom (one_shot), beside 50 us"}


def test_the_engine_s_python_costs_the_host_of_eager_calls_and_captured_ones_not(shipped: Measurement) -> None:
    found = against(shipped, "drivers")
    assert {row.clock for row in found.rows} == {"host_us"} and "SGLang 0.5.11" in found.conditions
    nccl = {phase: lines for (target, _, phase), lines in found.lines.items() if target == "pynccl_in_place"}
    assert all(row.ratio.side == 1 for row in nccl["eager"])
    assert sum(row.ratio.side != 0 for row in nccl["captured"]) <= 2
    (told,) = [text for text in found.sentences if text.startswith("pynccl_in_place, host, eager")]
    assert "of 10 sizes, 10 longer and 0 shorter by 95 % intervals, where chance alone would give about 0.5" in told


def test_a_sentence_names_the_least_and_the_most_and_where(shipped: Measurement) -> None:
    found = against(shipped, "buffers")
    lines = rows(found, "device_us", "captured")
    least, most = min(lines, key=lambda row: row.ratio.times), max(lines, key=lambda row: row.ratio.times)
    (told,) = [text for text in found.sentences if text.startswith("pynccl, device, captured")]
    assert f"takes {least.ratio.times:.3f} (256 KiB) to {most.ratio.times:.3f} (16 MiB) times as long as in place" in told
    assert (least.nbytes, most.nbytes) == (256 << 10, 16 << 20)


def test_the_picture_draws_the_ratios_with_one_and_each_process_set_in_it() -> None:
    both = [*cells(), *scaled(cells(driver="engine"), (1.0, 1.1, 1.3))]
    found = against(measurement(*both), "drivers", targets="one_shot", clocks=("device_us",))
    upper, lower = found.picture().axes
    low, high = lower.get_ylim()
    assert low < 1 < high and lower.get_ylabel() == "SGLang's Python /\nour C" and upper.get_ylabel() == "us a call"
    drawn = [line for line in lower.lines if line.get_marker() == "o"]
    assert [list(line.get_ydata()) for line in drawn] == [pytest.approx([math.exp(np.log([1, 1.1, 1.3]).mean())] * 3)] * 2
    dots = np.concatenate([points.get_offsets()[:, 1] for points in lower.collections if hasattr(points, "get_offsets")])
    for value in (1.0, 1.1, 1.3):
        assert np.isclose(dots, value).sum() >= 6, "three sizes, eager and captured"
    names = [text.get_text() for text in upper.figure.legends[0].get_texts()]
    assert names[:2] == ["our C, eager", "our C, captured"] and names[-2:] == ["ratio, eager", "ratio, captured"]


def test_the_two_ways_and_the_two_phases_differ_in_more_than_colour() -> None:
    for axes in against(measurement(), "buffers").picture().axes[:2]:
        seen = {(line.get_marker(), line.get_markerfacecolor() == "#ffffff") for line in axes.lines}
        assert len(axes.lines) == len(seen) == 4


def test_a_clock_has_a_ratio_axis_of_its_own_so_that_the_host_does_not_flatten_the_device(shipped: Measurement) -> None:
    device, host = shipped.picture("buffers").axes[2:]
    ends = [axes.get_ylim()[1] / axes.get_ylim()[0] for axes in (device, host)]
    assert ends[0] < 1.2 and ends[1] > 2


def test_a_result_is_whole_as_text_page_and_json() -> None:
    found = against(measurement(), "buffers")
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert len(plain["rows"]) == 12 and plain["rows"][0]["ratio"]["times"] == pytest.approx(1.2)
    assert "measured elsewhere: 2x NVIDIA H200" in str(found) and "1.200" in str(found)
    assert found._repr_html_().count("<tr>") == 13 and "1.200" in found._repr_html_()


def test_what_cannot_be_compared_is_refused_with_what_to_do(shipped: Measurement) -> None:
    with pytest.raises(InputError, match="buffers, patterns, drivers"):
        against(shipped, "paths")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="SGLang could not be imported where it was measured"):
        measurement().picture("drivers")
    with pytest.raises(InputError, match="give fewer: 4 columns"):
        against(shipped, "patterns", targets="custom")
    wrong = [replace(cell, wrong=1) for cell in cells()]
    found = against(Measurement(tuple(wrong), GPUS), "buffers")
    assert {row.ratio for row in found.rows} == {None} and all("no times to compare" in text for text in found.sentences)
    assert found.picture().axes, "and it is drawn all the same, with the reason below"
    assert "WRONG results" in caption(found.picture())
