"""ab over our own bench, on CPU ranks: paths, phases, releases and variables as arms; and noise.

Invariant: no test asserts a time: a CPU's figures say nothing here, only that they are there, checked, and kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measured
import pytest

from sglang_probe import InputError, Measurement, ProbeUnavailable
from sglang_probe._ab import targets as module
from sglang_probe._ab.ab import ab, sides_of
from sglang_probe._ab.result import AbResult
from sglang_probe._ab.runs import WARM_UP
from sglang_probe._ab.targets import Target, TargetSide
from sglang_probe._measure.summary import summaries
from sglang_probe._verdict.verdict import Word

HOST: dict[str, Any] = {"device": "host", "world_size": 2}


@pytest.fixture(autouse=True, scope="module")
def _without_git() -> Iterator[None]:
    """Who edits this checkout while tests run has another revision from one call to the next, and the file is not continued."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        yield


def target(name: str = "one_shot", **more: Any) -> Target:
    return Target(name, **({"size": "4K"} | HOST | more))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> AbResult:
    out = tmp_path_factory.mktemp("ab") / "x.jsonl"
    return ab(target(), target("pynccl_in_place"), out=out, runs=3, progress=False)


def test_each_run_is_a_fresh_set_of_ranks_whose_sums_were_checked(whole: AbResult) -> None:
    assert whole.stopped_by == "runs" and whole.blocks == 3 and len(whole.runs) == 8
    for run in whole.runs:
        cell = run.cell
        assert cell is not None and cell["checked"] == 4 and cell["wrong"] == 0 and cell["process"] == run.number
        assert 5 <= len(run.figures) <= 9 and run.seen.looks and run.seen.libraries and run.seen.cores
        assert cell["path"] == ("custom" if run.arm == "a" else "pynccl_in_place")


def test_the_figures_of_a_run_are_those_of_its_slowest_rank(whole: AbResult) -> None:
    for arm, label in zip("ab", whole.labels, strict=True):
        measured = whole.measurement(arm)  # type: ignore[arg-type]
        (summary,) = summaries(measured)
        verdict = whole.verdict
        assert verdict is not None
        medians = [sorted(process)[(len(process) - 1) // 2] for process in (verdict.a if arm == "a" else verdict.b).processes]
        uppers = [sorted(process)[len(process) // 2] for process in (verdict.a if arm == "a" else verdict.b).processes]
        assert list(summary.device_us) == [(low + high) / 2 for low, high in zip(medians, uppers, strict=True)]
        assert summary.path == ("custom" if label == "one_shot" else "pynccl_in_place")


def test_what_was_measured_can_be_written_as_a_measurement_file(whole: AbResult, tmp_path: Path) -> None:
    path = whole.measurement("a").write(tmp_path / "a.jsonl")
    again = Measurement.read(path)
    assert len(again.cells) == 3 and not again.partial and again.provenance is not None
    assert again.plan["arm"] == "a" and {cell.process for cell in again.cells} == {
        run.number for run in whole.runs if run.arm == "a" and run.block != WARM_UP
    }


def test_the_arms_are_called_by_what_they_are(whole: AbResult) -> None:
    assert whole.labels == ("one_shot", "pynccl_in_place") and "4 KiB, bf16, captured, back_to_back" in whole.texts[0]
    assert whole.unit == "us" and whole.measured == "device_us" and "one_shot" in whole.sentence


def test_a_file_gives_the_same_result_again(whole: AbResult) -> None:
    again = AbResult.read(whole.path)
    assert again.verdict == whole.verdict and again.runs == whole.runs


def test_where_not_both_are_captured_the_host_is_counted() -> None:
    sides = sides_of(target(phase="eager"), target(phase="captured"))
    assert [side.to_dict()["column"] for side in sides.values()] == ["elapsed_us"] * 2 and sides["a"].label == "a"
    assert sides_of(target(column="host_us"), target())["b"].to_dict()["column"] == "host_us"
    with pytest.raises(InputError, match="a is judged by host_us"):
        sides_of(target(column="host_us"), target(column="device_us"))
    with pytest.raises(InputError, match="give two commands or two targets"):
        sides_of(target(), "true")


def test_a_release_takes_the_path_that_it_takes() -> None:
    sides = sides_of(
        Target(sglang="0.5.8", size="8MiB", facts={"world_size": 8}, device="host", world_size=8),
        Target(sglang="0.5.9", size="8MiB", device="host", world_size=8),
    )
    assert [side.to_dict()["takes"] for side in sides.values()] == ["pynccl_in_place", "custom (two_shot)"]
    assert [side.label for side in sides.values()] == ["SGLang 0.5.8", "SGLang 0.5.9"]
    assert "takes pynccl_in_place" in sides["a"].text


@pytest.mark.parametrize(
    ("toggles", "takes"),
    [
        ({}, "custom (one_shot)"),
        ({"custom": "disabled"}, "pynccl_in_place"),
        ({"custom": "disabled", "piecewise": True}, "pynccl_out_of_place"),
        ({"symmetric_memory": True}, "pynccl_in_place"),
        ({"full_nvlink": False, "world_size": 2}, None),
    ],
)
def test_toggles_change_what_a_release_takes(toggles: dict[str, Any], takes: str | None) -> None:
    if takes is None:
        with pytest.raises(InputError):
            Target(sglang="0.5.9", size="4K", toggles=toggles, **HOST)
        return
    side = TargetSide(Target(sglang="0.5.9", size="4K", toggles=toggles, **HOST), "a", "device_us")
    assert side.to_dict()["takes"] == takes


def test_two_releases_are_run_and_compared(tmp_path: Path) -> None:
    arms = (Target(sglang=name, size="8MiB", phase="eager", **HOST) for name in ("0.5.8", "0.5.9"))
    result = ab(*arms, out=tmp_path / "x.jsonl", runs=2, warm_up=0, progress=False)
    assert result.stopped_by == "runs" and {run.cell["release"] for run in result.runs if run.cell} == {"0.5.8", "0.5.9"}


def test_a_declared_variable_reaches_the_ranks_and_is_no_finding(tmp_path: Path) -> None:
    result = ab(target(), target(env={"NCCL_ALGO": "Ring"}), out=tmp_path / "x.jsonl", runs=2, warm_up=0, progress=False)
    assert not result.differences and {run.arm for run in result.runs if run.seen.env.get("NCCL_ALGO") == ("Ring",)} == {"b"}


def test_a_wrong_sum_gives_no_figure_and_ends_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = module.look

    def wrong(coordinator: Any, tasks: Any) -> Any:
        from dataclasses import replace

        return [replace(one, wrong=1, said="element 0 is 1, not 3") for one in real(coordinator, tasks)]

    monkeypatch.setattr(module, "look", wrong)
    result = ab(target(), target(), out=tmp_path / "x.jsonl", runs=2, progress=False)
    assert result.stopped_by == "failures" and "results are WRONG" in result.stopped and "element 0 is 1, not 3" in result.stopped
    assert all(run.cell and run.cell["wrong"] and not run.cell["device_us"][0] for run in result.runs)


@pytest.mark.parametrize("whole", [True, False])
def test_a_compute_kernel_that_took_longer_alone_costs_a_sample_and_not_the_run(
    whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is subtracted, and a busy CPU may hold it up for milliseconds: runs that failed then would be left out by their figures."""
    real = module.measure

    def disturbed(coordinator: Any, tasks: Any) -> Any:
        found = real(coordinator, tasks)
        for one in found:
            one.elapsed_us[: None if whole else 1] = -200.0
        return found

    monkeypatch.setattr(module, "measure", disturbed)
    arms = (target(pattern="interleaved", phase=phase) for phase in ("eager", "captured"))
    result = ab(*arms, out=tmp_path / "x.jsonl", runs=2, warm_up=0, progress=False)
    if whole:
        assert result.stopped_by == "failures"
        assert "elapsed_us is -200 us: no time is left when that of the compute kernels" in result.stopped
        return
    assert result.stopped_by == "runs" and not result.failed and len(result.runs) == 4
    for run in result.runs:
        assert run.cell is not None
        medians = [sorted(rank)[(len(rank) - 1) // 2] for rank in run.cell["elapsed_us"] if len(rank) % 2]
        assert len(run.figures) == 1 and (len(medians) < 2 or run.figures == (max(medians),)) and run.figures[0] > 0
        assert run.note.endswith(
            "the median alone: single samples are not above 0, since what compute kernels take alone is subtracted"
        )


def test_a_sample_that_is_not_finite_fails_its_run_and_not_the_experiment() -> None:
    cell = measured.cell(device_us=[[9.0, float("inf"), 10.0], [1.0] * 3])
    assert module._figures(cell, "device_us") == ((), "device_us has samples that are not finite: no ratio is made of them")


def test_what_does_not_run_here_ends_it_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="nothing is left to measure: one_shot"):  # 6 bytes are no multiple of 16
        ab(target(size=6), target(), out=tmp_path / "x.jsonl", runs=2, progress=False)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(module, "look", lambda coordinator, tasks: [module.Checked("there is no such kernel here")])
    with pytest.raises(ProbeUnavailable, match="this arm does not run here: there is no such kernel here"):
        ab(target(), target(), out=tmp_path / "x.jsonl", runs=2, progress=False)


def test_a_rank_that_dies_is_a_run_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(coordinator: Any, tasks: Any) -> Any:
        os._exit(7)

    monkeypatch.setattr(module, "measure", dies)
    result = ab(target(), target(), out=tmp_path / "x.jsonl", runs=2, progress=False)
    assert result.word is Word.UNDECIDED and result.stopped_by == "failures" and "exit status 7" in result.stopped


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"name": ""}, "sglang, whose dispatch chooses"),
        ({"sglang": "0.5.9"}, "sglang, whose dispatch chooses"),
        ({"name": "one_short"}, "did you mean one_shot"),
        ({"size": None}, "give the bytes of the tensor"),
        ({"tokens": 3}, "give the bytes of the tensor"),
        ({"size": "1K,4K"}, "give one size"),
        ({"phase": "warm"}, "captured"),
        ({"column": "us"}, "device_us"),
        ({"toggles": {"custom": "disabled"}}, "go with sglang"),
        ({"dtype": "fp3"}, "dtype"),
        ({"driver": "java"}, "driver"),
    ],
)
def test_what_is_no_target_is_refused_with_the_field_and_the_remedy(given: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as error:
        Target(**({"name": "one_shot", "size": "4K"} | HOST | given))
    assert text in str(error.value)
