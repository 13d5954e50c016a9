"""The calibration bench with few trials: that a verdict is wrong as seldom as it says, and that the bench would notice if it were not."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "bench"))
    return importlib.import_module("bench_verdict")


def hold(checks: list) -> None:
    assert checks
    wrong = [f"{check.what}: {check.rate:.4f}, limit {check.limit:.4f}" for check in checks if not check.holds]
    assert not wrong, "\n".join(wrong)


# A rate of 5 % of 1,000 trials has a standard error of 0.7 %. The seeds are fixed: what holds once holds always.
SLACK = 0.012


def test_identical_arms_are_faster_or_slower_no_more_often_than_said(bench: ModuleType) -> None:
    hold(bench.false_alarms(1000, SLACK)[1])


def test_what_differs_by_the_margin_is_the_same_no_more_often_than_said(bench: ModuleType) -> None:
    hold(bench.false_same(1000, SLACK)[1])


def test_all_looks_together_are_wrong_no_more_often_than_said(bench: ModuleType) -> None:
    hold(bench.stopping(1000, SLACK)[1])


def test_the_runs_that_are_asked_for_settle_it(bench: ModuleType) -> None:
    hold(bench.asked(150, 0.07)[1])


def test_a_drift_is_no_difference_where_one_arm_came_after_the_other(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("verdict_in_turn.SIZES", (5, 12))
    hold(bench.in_turn(100, 0.03)[1])


def test_one_mode_is_not_taken_for_two_nor_noise_for_outliers(bench: ModuleType) -> None:
    hold(bench.shapes(300, 0.012)[1])


def test_arms_that_are_not_alike_are_wrong_seldom_too(bench: ModuleType) -> None:
    hold(bench.unlike(200, 0.04)[1])


def test_a_processs_figure_is_what_the_bench_takes(bench: ModuleType) -> None:
    hold(bench.medians(200))


def test_the_bench_notices_a_test_that_is_wrong_too_often(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = bench.words
    monkeypatch.setattr(bench, "through", lambda *_: None)
    monkeypatch.setattr(bench, "words", lambda noise, a, b, alpha=0.1, margin=0.02: honest(noise, a, b, 0.1, margin))
    assert any(not check.holds for check in bench.false_alarms(500, SLACK)[1])
    assert any(not check.holds for check in bench.false_same(500, SLACK)[1])


def test_the_bench_notices_a_judge_that_says_more_than_its_intervals(bench: ModuleType) -> None:
    a, b = np.zeros((1, 5)) + np.arange(5) * 0.01, np.ones((1, 5)) + np.arange(5) * 0.01
    bench.through(bench.KINDS[0], a, b, np.array([1.0]), np.array([False]))
    with pytest.raises(AssertionError, match="judge says FASTER"):
        bench.through(bench.KINDS[0], a, b, np.array([0.0]), np.array([False]))


def test_power_is_near_the_t_tests_on_normal_noise_and_far_above_it_where_runs_are_disturbed(bench: ModuleType) -> None:
    normal, disturbed, drifting = bench.POWERS
    found = bench.simulate(normal, 12, 400, 0.05)
    assert found.rate("faster") > found.rate("welch") - 0.05
    found = bench.simulate(disturbed, 12, 400, 0.05)
    assert found.rate("faster") > found.rate("welch") + 0.3
    found = bench.simulate(drifting, 12, 400, 0.05)
    assert found.rate("faster") > found.rate("mann_whitney") + 0.4
