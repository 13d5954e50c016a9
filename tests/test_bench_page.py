"""What people see of measurements: a bench's last page and a file that is looked at again; figures that do not mislead.

Invariant: the cells are invented, so that each figure is known beforehand.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import measured
import numpy as np
import pytest

from sglang_probe import Measurement
from sglang_probe._bench import page
from sglang_probe._bench.bench import Done
from sglang_probe._bench.runner import Report
from sglang_probe._measure.cell import Cell
from sglang_probe._measure.summary import Spread, Summary, summaries
from sglang_probe._show.page import Items, Line, Table


def _cell(process: int = 0, us: float = 10.0, **changes: Any) -> Cell:
    """Device times alone; checked in the first process set, as a bench does."""
    values: dict[str, Any] = {
        "device_us": [[us], [us / 2]],
        "host_us": [[1.0], [2.0]],
        "process": process,
        "checked": 0 if process else 4,
    }
    return measured.cell(**(values | changes))


def _split(waits: list[list[float]], **changes: Any) -> Cell:
    moved = [[10.0] * len(one) for one in waits]
    return _cell(wait_us=waits, transfer_us=moved, **changes)


def _tables(found: list[Any]) -> list[Table]:
    return [block for block in found if isinstance(block, Table)]


def _rows(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def _blocks(cells: list[Cell], verbose: bool = False) -> list[Any]:
    return page.summary_blocks(page.ordered(summaries(cells)), Measurement(tuple(cells), None), verbose)


def _legend(found: list[Any]) -> str:
    assert isinstance(found[-1], Line)
    return found[-1].text


# ------------------------------------------------------------------------------------------------------------------------- waiting


def test_waits_are_told_to_be_other_calls_and_how_far_off_they_may_be() -> None:
    legend = _legend(_blocks([_split([[5.0, 6.0], [0.0, 0.0]], split_error_us=1.25)]))
    assert "wait and transfer are of other calls than device us, each with a synchronising call before it" in legend
    assert "each column is the largest over ranks by itself: they add up to nothing in the row" in legend
    assert "waits are within 1.25 us (clocks that were compared, or how long a flag takes to cross)" in legend
    assert "waits are taken on one clock" in _legend(_blocks([_split([[5.0], [0.0]])]))
    assert "wait" not in _legend(_blocks([_cell()])).replace("waits for", "")


def test_who_waits_for_whom_is_said_of_the_process_set_in_the_middle() -> None:
    cells = [
        _split([[0.0] * 4, [90.0] * 4], process=0),  # another rank is late
        _split([[50.0] * 4, [0.0] * 4], process=1, split_error_us=1.5),
        _split([[40.0] * 4, [0.0] * 4], process=2),
    ]
    (told,) = (block for block in _blocks(cells) if isinstance(block, Items))
    assert told.title == "Who waits for whom"
    assert told.items == (
        "custom (one_shot), captured, 1 KiB: rank 0 waits 50 us of 60 for rank 1, within 1.5 us "
        "(the middle one of 3 process sets; in 1, other ranks)",
    )
    assert page.waiting(summaries([_cell()])[0]) == ""


def test_a_wait_within_the_clocks_error_is_not_called_one() -> None:
    (one,) = summaries([_split([[0.5, 0.4], [0.0, 0.1]], split_error_us=2.0)])
    assert page.waiting(one).endswith("no rank is seen to wait: at most 0.45 us, and that may be 2 us off")


# -------------------------------------------------------------------------------------------------------------------- each rank's


def test_each_ranks_median_is_there_and_the_figure_is_the_largest_of_them() -> None:
    cells = [_cell(0, device_us=[[1.0, 2.0, 9.0], [4.0]]), _cell(1, device_us=[[8.0], [6.0]]), _cell(2, device_us=[[3.0], []])]
    (one,) = summaries(cells)
    assert one.by_rank("device_us").tolist() == [[2.0, 4.0], [8.0, 6.0]]  # a set in which a rank has none is in no figure
    assert one.device_us.tolist() == one.by_rank("device_us").max(axis=1).tolist()
    assert one.by_rank("wait_us").shape == (0, 2)
    plain = json.loads(json.dumps(one.to_dict()))
    assert plain["device_us"]["by_rank"] == [5.0, 5.0] and plain["device_us"]["by_process"] == [4.0, 8.0]
    assert one.cells == tuple(cells)


def test_the_evidence_has_a_table_of_ranks_for_every_time_that_was_taken() -> None:
    cells = [_cell(0, 10.0), _cell(0, 20.0, nbytes=4096), _cell(0, 1.0, world_size=1, device_us=[[1.0]], host_us=[[]])]
    assert len(_tables(_blocks(cells))) == 1
    _, device, host = _tables(_blocks(cells, verbose=True))
    assert device.title.startswith("device us, by rank") and host.title.startswith("host us, by rank")
    assert [(row["ranks"], row["size"], row["rank 0"], row["rank 1"]) for row in _rows(device)] == [
        ("1 CPU", "1 KiB", "1", "-"),
        ("2 CPU", "1 KiB", "10", "5"),
        ("2 CPU", "4 KiB", "20", "10"),
    ]
    assert [row["rank 1"] for row in _rows(host)] == ["2", "2"]


# ---------------------------------------------------------------------------------------------------------------------- figures


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Spread(4.31, 4.27, 4.35, 5), "4.31 +-1%"),
        (Spread(10.0, 8.0, 12.0, 3), "10 +-20%"),
        (Spread(10.0, 8.0, 12.1, 3), "10 [8, 12.1]"),  # too far for a percentage to say where
        (Spread(1.1, 1.0, 35.0, 5), "1.1 [1, 35]"),
        (Spread(10.0, 9.99, 10.01, 2), "10 [9.99, 10]"),  # two sets that agree would read +-0%
        (Spread(10.0, 10.0, 10.0, 1), "10"),
        (Spread(0.0, -1.0, 1.0, 5), "0 [-1, 1]"),
        (Spread(float("nan"), float("nan"), float("nan"), 0), "-"),
    ],
)
def test_a_spread_is_a_percentage_only_where_that_tells_the_truth(figure: Spread, text: str) -> None:
    assert page._figure(figure, False) == text
    assert " %" not in text  # a terminal would break the line there


def test_bandwidths_are_those_of_nccl_tests() -> None:
    (one,) = summaries([_cell(us=100.0, nbytes=1 << 20, world_size=4, device_us=[[100.0]] * 4, host_us=[[]] * 4)])
    assert one.algbw_gb_s == pytest.approx(10.48576) and one.busbw_gb_s == pytest.approx(10.48576 * 1.5)
    (row,) = _rows(_tables(_blocks(list(one.cells)))[0])
    assert row["busbw GB/s"] == "15.7"
    (alone,) = summaries([_cell(world_size=1, device_us=[[1.0]], host_us=[[1.0]])])
    assert _rows(_tables(_blocks(list(alone.cells)))[0])[0]["busbw GB/s"] == "-"
    (untimed,) = summaries([_cell(device_us=[[], []])])
    assert untimed.to_dict()["busbw_gb_s"] is None


# ------------------------------------------------------------------------------------------------------------------------- rows


def _paths(cells: list[Cell]) -> list[tuple[str, str, str]]:
    return [(one.path, one.phase, str(one.nbytes)) for one in page.ordered(summaries(cells))]


def test_what_is_compared_stands_together_at_each_size() -> None:
    cells = [
        _cell(path=path, kernel="", phase=phase, nbytes=size)
        for path in ("torch_distributed", "pynccl_in_place", "a_later_path")
        for phase in ("captured", "eager")
        for size in (4096, 1024)
    ]
    at_a_size = [(p, phase) for phase in ("eager", "captured") for p in ("pynccl_in_place", "torch_distributed", "a_later_path")]
    assert _paths(cells) == [(path, phase, size) for size in ("1024", "4096") for path, phase in at_a_size]
    alone = [cell for cell in cells if cell.path == "a_later_path"]
    assert [found[1:] for found in _paths(alone)] == [
        *(("eager", "1024"), ("eager", "4096")),
        *(("captured", "1024"), ("captured", "4096")),
    ]


def test_rows_that_would_read_the_same_are_told_apart_and_nothing_else_takes_room() -> None:
    (table,) = _tables(_blocks([_cell(), _cell(release="0.5.16"), _cell(dtype="fp32")]))
    assert table.columns[:6] == ("path", "phase", "compute", "size", "dtype", "release")
    (table,) = _tables(_blocks([_cell(), _cell(release="0.5.16", path="quick")]))
    assert "release" not in table.columns and "dtype" not in table.columns


@pytest.mark.parametrize(
    ("columns", "split", "gone"), [(200, False, ""), (75, False, "busbw GB/s"), (75, True, "busbw GB/s, wait us, transfer us")]
)
def test_a_narrow_terminal_does_without_what_is_told_elsewhere(
    columns: int, split: bool, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_: os.terminal_size((columns, 24)))
    waits: dict[str, Any] = {"wait_us": [[50.0], [0.0]], "transfer_us": [[10.0], [10.0]]} if split else {}
    times: dict[str, Any] = {"device_us": [[0.594], [0.5]], "host_us": [[0.453], [0.4]], "elapsed_us": [[0.591], [0.5]]}
    found = _blocks([_cell(i, **times, **waits) for i in range(3)])
    (table,) = _tables(found)
    missing = [
        name for name in ("busbw GB/s", "wait us", "transfer us") if name not in table.columns and (split or "bus" in name)
    ]
    assert ", ".join(missing) == gone
    assert (f"left out to save room: {gone} (" in _legend(found)) == bool(gone)


def test_ranks_that_outnumber_cores_are_warned_of() -> None:
    def warned(usable: Any, cells: list[Cell], started: str = "local processes") -> list[str]:
        provenance = dataclasses.replace(measured.PROVENANCE, cpu={"model": "x", "cores": 64, "usable": usable})
        found = Measurement(tuple(cells), provenance, {"started": started}).page()
        return [block.text for block in found if isinstance(block, Line) and block.tone == "warn"]

    (text,) = warned(1, [_cell()])
    assert text.startswith("2 CPU ranks on 1 core: ")
    assert not warned(2, [_cell()]) and not warned(None, [_cell()]) and not warned(1, [_cell(device="gpu")])
    assert not warned(1, [_cell()], started="Open MPI")  # each of its ranks may have cores of its own


# -------------------------------------------------------------------------------------------------------------- a bench, and its file


def _done(measurement: Measurement, **report: Any) -> Done:
    class Plan:
        device, world_size = "host", 2

        def left_out_texts(self) -> list[str]:
            return []

        to_dict = dict

    told = Report()
    for name, value in report.items():
        setattr(told, name, value)
    return Done(measurement, told, Plan(), 1.0, measurement.path)  # type: ignore[arg-type]


@pytest.fixture
def file(tmp_path: Path) -> Measurement:
    from sglang_probe._measure.writer import Writer

    with Writer(tmp_path / "m.jsonl", plan={}, provenance=measured.PROVENANCE) as writer:
        for process in (0, 1, 2):
            for size in range(1, 31):
                for path in ("custom", "pynccl_in_place"):
                    kernel = "one_shot" if path == "custom" else ""
                    writer.append(_cell(process, 10.0 + process, path=path, kernel=kernel, nbytes=1024 * size))
        return Measurement.read(writer.finish())


def test_a_file_that_is_looked_at_again_shows_the_table_that_the_bench_ended_with(file: Measurement) -> None:
    bench, again = page.bench_page(_done(file)), file.page()
    assert _tables(bench) == _tables(again) and len(_tables(again)[0].rows) == 60
    assert [block for block in bench if isinstance(block, Line) and "us a call" in block.text] == [
        block for block in again if isinstance(block, Line) and "us a call" in block.text
    ]
    text = str(file)
    assert "180 cells, 3 process sets" in text and "3 process sets, all correct, checked in set 1, " in text
    assert "not checked" not in text and "more;" not in text
    assert "11 +-9%" in text and "custom (one_shot)" in file._repr_html_()
    assert len(_tables(file.page(verbose=True))) == 3


def test_summaries_are_public_in_the_order_in_which_they_are_shown(file: Measurement) -> None:
    found = file.summary()
    assert all(isinstance(one, Summary) for one in found) and len(found) == 60
    assert [(one.path, one.nbytes) for one in found[:3]] == [
        ("pynccl_in_place", 1024),
        ("custom", 1024),
        ("pynccl_in_place", 2048),
    ]
    assert found[1].checked_in == (0,) and found[1].correct and np.array_equal(found[1].device_us, [10.0, 11.0, 12.0])
    assert repr(found[1]) == (
        "<Summary: custom (one_shot), captured, back_to_back, native, 1 KiB of bf16, 2 CPU ranks: 11 us device, 3 process sets, correct>"
    )


def test_what_was_tried_again_is_told_above_the_table_and_in_json(file: Measurement) -> None:
    done = _done(file, retried=("one_shot, native, eager, 1 KiB: rank 1 died",))
    found = page.bench_page(done)
    told = next(i for i, block in enumerate(found) if isinstance(block, Items) and block.title.startswith("Failed once"))
    assert found[told] == Items(
        "Failed once, and asked for again in fresh processes", ("one_shot, native, eager, 1 KiB: rank 1 died",), "warn"
    )
    assert told < next(i for i, block in enumerate(found) if isinstance(block, Table))
    assert page.to_dict(done)["retried"] == ["one_shot, native, eager, 1 KiB: rank 1 died"]
    assert not any(isinstance(block, Items) for block in page.bench_page(_done(file)))
