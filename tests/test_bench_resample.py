"""The resampling bench on invented measurement files: what it must find, what it must refuse, and that it notices what is wrong."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import measured
import numpy as np
import pytest

from sglang_probe._measure.measurement import Measurement


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "bench"))
    return importlib.import_module("bench_resample")


def file_of(
    path: Path,
    count: int,
    cv: float,
    *,
    eager: bool = False,
    seed: int = 0,
    plan: object = (),
    provenance: Any = None,
    **changes: object,
) -> str:
    """Process sets of one call, each with a figure of its own."""
    random = np.random.default_rng(seed)
    column = "elapsed_us" if eager else "device_us"
    cells = []
    for process, level in enumerate(20 * np.exp(cv * random.standard_normal(count))):
        samples = (level * (1 + 0.001 * random.random((2, 9)))).tolist()
        given = {"process": process, "phase": "eager" if eager else "captured", "nbytes": 16384, column: samples}
        cells.append(measured.cell(0, **(given | changes)))
    return Measurement(tuple(cells), provenance or measured.PROVENANCE, measured.PLAN | dict(plan)).write(path)


def test_alike_is_seldom_different_and_what_is_planted_is_found(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    captured = file_of(tmp_path / "c.jsonl", 64, 0.01)
    eager = [file_of(tmp_path / f"e{i}.jsonl", 32, 0.1, eager=True, seed=i) for i in (1, 2)]
    out = tmp_path / "out.json"
    status = bench.main(["--captured", captured, "--eager", *eager, "--splits", "150", "--out", str(out)])
    told = json.loads(out.read_text())
    assert status == 0 and all(check["holds"] for check in told["checks"]), capsys.readouterr().out
    assert [len(pool["figures"]) for pool in told["pools"]] == [64, 64]
    assert {(one["pool"], one["planted"]) for one in told["planted"]} == {("captured", 0.02), ("captured", 0.1), ("eager", 0.2)}
    assert all(one["found"] >= 0.8 and one["wrong"] <= 0.05 for one in told["planted"])
    assert {split["runs"] for split in told["splits"]} == {5, 10, 32} and all(
        split["different"] < 0.09 for split in told["splits"]
    )
    shown = capsys.readouterr().out
    assert "Planted slow-downs" in shown and "checks hold" in shown


def test_too_few_processes_are_told(bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--captured", file_of(tmp_path / "c.jsonl", 20, 0.01), "--splits", "20"]) == 1
    assert "UNDER ITS LIMIT: captured: processes: 20, limit 60" in capsys.readouterr().out


def test_files_of_different_calls_are_refused(bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [file_of(tmp_path / "a.jsonl", 4, 0.01), file_of(tmp_path / "b.jsonl", 4, 0.01, nbytes=65536)]
    with pytest.raises(SystemExit):
        bench.main(["--captured", *files])
    assert "different calls" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        bench.main([])


def test_it_notices_a_verdict_that_finds_differences_in_nothing(
    bench: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = bench.pool_of("captured", [file_of(tmp_path / "c.jsonl", 60, 0.05)], None, "device_us")
    monkeypatch.setattr(bench, "ALPHA", 0.3)
    splits = bench.splits_of(pool, 100)
    monkeypatch.setattr(bench, "ALPHA", 0.05)
    assert not all(check.holds for check in bench.checks_of([pool], splits, []))


def test_runs_that_nobody_makes_are_not_found(bench: ModuleType) -> None:
    loud = np.exp(2.0 * np.random.default_rng(1).standard_normal(60))
    word, runs = bench._by_noise(np.random.default_rng(2), loud, 0.02, 10)
    assert str(word) == "UNDECIDED" and runs > bench.MOST


def test_one_kind_alone_will_do_and_ranks_that_shared_a_gpu_are_told(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eager = file_of(tmp_path / "e.jsonl", 60, 0.1, eager=True, plan={"ordinals": (0, 0)}, device="gpu")
    assert bench.main(["--eager", eager, "--splits", "60"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 GPU ranks, sharing GPUs: a trial, which says nothing of a cost" in shown
    assert "eager: custom (one_shot), eager, " in shown and "captured" not in shown and "20%" in shown


def test_files_of_different_machines_are_no_pool(bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = replace(measured.PROVENANCE, gpus=(), cpu={"model": "another one"})
    files = [file_of(tmp_path / "a.jsonl", 4, 0.01), file_of(tmp_path / "b.jsonl", 4, 0.01, provenance=other)]
    with pytest.raises(SystemExit):
        bench.main(["--captured", *files])
    assert "they are of different machines: " in capsys.readouterr().err


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("effect", [0.0, 0.02, 0.1])
def test_many_runs_get_the_word_that_a_verdict_gives_them(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, effect: float, paired: bool
) -> None:
    """Counted, where the intervals of a verdict are made of all differences."""
    figures = np.exp(0.05 * np.random.default_rng(1).standard_normal(60))
    told = {}
    for whole in (0, 10_000):
        monkeypatch.setattr(bench, "WHOLE", whole)
        told[whole] = [str(bench._word(np.random.default_rng(seed), figures, effect, 40, paired)) for seed in range(40)]
    assert told[0] == told[10_000] and len(set(told[0])) > (effect < 0.1)


def test_runs_that_were_not_drawn_are_named_where_the_rest_is_too_little(bench: ModuleType) -> None:
    loud = bench.Pool("captured", "x", "y", "device_us", (), np.exp(2.0 * np.random.default_rng(1).standard_normal(60)))
    found = bench.planted_in(loud, 0.02, 20)
    assert all(one.undrawn > 0.7 and one.found <= 1 - one.undrawn for one in found)
    told = [check.what for check in bench.checks_of([loud], [], found) if not check.holds]
    assert len(told) == 2 and all("found (over 50,000 runs were asked for, and not drawn, in" in what for what in told)
