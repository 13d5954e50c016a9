"""What time may have made of a difference, where the order of runs is known: held against plain matrices, and machines that drift."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from sglang_probe._verdict import walk
from sglang_probe._verdict.arm import Arm
from sglang_probe._verdict.judge import Error, judge
from sglang_probe._verdict.nouns import Verdict
from sglang_probe._verdict.walk import Floats, step_of


def arms(a: Floats, b: Floats, order_a: Sequence[int], order_b: Sequence[int]) -> tuple[Arm, Arm]:
    """Of logarithms."""
    one, other = (
        Arm(label, tuple((math.exp(v),) for v in logs), "us", order=tuple(order))
        for label, logs, order in (("a", a, order_a), ("b", b, order_b))
    )
    return one, other


def in_turn(logs: Floats) -> Verdict:
    """The first half is a's, the second b's."""
    n = len(logs) // 2
    return judge(*arms(logs[:n], logs[n:], range(n), range(n, 2 * n)), "lower", 0.02, Error(0.95, 0.05))


@pytest.mark.parametrize("share", walk._WALKS)
def test_one_walk_gives_what_generalised_least_squares_give(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(4)
    monkeypatch.setattr(walk, "_WALKS", (share,))
    n = 11
    of_b = draw.permutation([0.0] * 5 + [1.0] * 6)
    figures = draw.standard_normal(n)
    place = np.arange(n)
    covariance = np.eye(n) + share * np.minimum.outer(place, place)
    design = np.column_stack([np.ones(n), place, of_b])
    inverse = np.linalg.inv(covariance)
    inside = np.linalg.inv(design.T @ inverse @ design)
    estimate = inside @ design.T @ inverse @ figures
    left = figures - design @ estimate
    error = math.sqrt(inside[2, 2] * (left @ inverse @ left) / (n - 3))
    found = step_of(figures[of_b == 0], figures[of_b == 1], place[of_b == 0].tolist(), place[of_b == 1].tolist())
    assert found.effects == pytest.approx([estimate[2]], rel=1e-6) and found.errors == pytest.approx([error], rel=1e-6)
    far = stats.t.ppf(0.975, n - 3) * error
    low, high = found.reach(math.inf, -math.inf, 0.025)
    assert (low, high) == pytest.approx((estimate[2] - far, estimate[2] + far), rel=1e-6)
    assert found.p(estimate[2]) == pytest.approx(2 * stats.t.sf(abs(estimate[2]) / error, n - 3), rel=1e-6)


def test_a_walk_that_shows_is_allowed_for_and_none_where_there_is_none() -> None:
    draw = np.random.default_rng(1)
    still, walking = draw.standard_normal(80), np.cumsum(draw.standard_normal(80))
    steps = [step_of(one[:40], one[40:], range(40), range(40, 80)) for one in (still, walking)]
    assert steps[0].errors.max() < 0.5  # two means beside a line: 0.44
    assert steps[1].errors.min() > 0.8  # two neighbours of a walk: 1


@pytest.mark.parametrize("step", [0.5, 1.0, 3.0])
def test_a_machine_that_walks_is_taken_for_a_difference_no_more_often_than_said(step: float) -> None:
    draw = np.random.default_rng(round(10 * step))
    words = [
        str(in_turn(0.03 * (draw.standard_normal(24) + step * np.cumsum(draw.standard_normal(24)))).word) for _ in range(150)
    ]
    assert words.count("FASTER") + words.count("SLOWER") <= 12  # of the figures alone it is about half


def test_a_drift_that_hides_a_difference_of_the_other_sign_is_undecided() -> None:
    draw = np.random.default_rng(3)
    logs = np.linspace(0, 0.4, 24) + 0.001 * draw.standard_normal(24)
    logs[12:] -= 0.05  # above a all the same
    found = in_turn(logs)
    assert found.word == "UNDECIDED" and found.low < -0.03 and found.high > 0.1 and "not settled" in found.sentence
    assert found.p > 0.05  # of each sign there is one that tells; together they tell nothing
    assert "a was measured before b: interleave them" in found.reason and found.runs_needed is None


def test_what_is_larger_than_any_drift_of_these_runs_is_told_and_the_interval_allows_for_it() -> None:
    logs = 0.01 * np.random.default_rng(5).standard_normal(16)
    logs[8:] += 0.2
    found = in_turn(logs)
    bare = judge(*arms(logs[:8], logs[8:], (), ()), "lower", 0.02, Error(0.95, 0.05))
    assert found.word == bare.word == "SLOWER" and found.effect == bare.effect
    assert found.low < bare.low and found.high > bare.high and found.p >= bare.p
    assert found.reason.endswith("; a was measured before b, and the interval allows for a drift, not for a jump about then")
    assert "random walk" in found.method and "random walk" not in bare.method
    assert bare.reason.endswith("; their order in time is not known, and a drift would look the same")


def test_a_pause_between_the_arms_widens_by_what_a_walk_does_in_it_and_a_week_is_no_more_than_all_runs() -> None:
    logs = np.random.default_rng(6).standard_normal(16)
    ends = {}
    for pause in (1, 4, 16, 1_000_000):
        low, high = step_of(logs[:8], logs[8:], range(8), [7 + pause + i for i in range(8)]).reach(0.0, 0.0, 0.025)
        ends[pause] = high - low
    assert ends[1] < ends[4] < ends[16] == ends[1_000_000]


def test_arms_the_other_way_round_have_the_mirrored_interval() -> None:
    logs = np.random.default_rng(7).standard_normal(13)
    there, back = step_of(logs[:6], logs[6:], range(6), range(6, 13)), step_of(logs[6:], logs[:6], range(6, 13), range(6))
    low, high = there.reach(0.0, 0.0, 0.025)
    assert back.reach(0.0, 0.0, 0.025) == pytest.approx((-high, -low))


@pytest.mark.parametrize("counts", [(1, 1), (1, 2), (2, 1)])
def test_three_runs_say_nothing_of_time(counts: tuple[int, int]) -> None:
    a, b = counts
    step = step_of(np.zeros(a), np.ones(b), range(a), range(a, a + b))
    assert step.reach(0.5, 1.5, 0.025) == (-math.inf, math.inf) and step.p(1.0) == 1.0


def test_figures_that_never_move_are_told_apart_to_the_last_digit() -> None:
    found = in_turn(np.array([0.0] * 8 + [0.05] * 8))
    assert found.word == "SLOWER" and found.low == pytest.approx(math.expm1(0.05)) and found.high == pytest.approx(found.low)
    same = in_turn(np.full(16, 0.1))
    assert same.word == "SAME" and same.low == same.high == 0.0


@pytest.mark.parametrize("late", [-2, -1, 1, 2])
def test_a_jump_just_before_or_after_the_change_of_arms_is_no_difference_of_them(late: int) -> None:
    logs = 0.01 * np.random.default_rng(8).standard_normal(40)
    logs[20 + late :] += 0.2
    assert in_turn(logs).word == "UNDECIDED"


@pytest.mark.parametrize("place", [0, 19, 20, 30])
def test_a_disturbed_run_hides_no_difference_wherever_it_is(place: int) -> None:
    logs = 0.01 * np.random.default_rng(9).standard_normal(40)
    logs[20:] += 0.1
    logs[place] += 0.5
    assert in_turn(logs).word == "SLOWER"
