"""Costs as numbers: intervals over processes, and lines between measured sizes. A user who lost these would be told times that nobody took.

Invariant: intervals are held against tables of the t distribution and against scipy's own function, not against ours.
"""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sglang_probe._costs.estimate import Estimate, Point, at_size, over_processes

# Two-sided 95 %, as printed in tables of Student's t.
T_TABLE = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 10: 2.262, 30: 2.045}
TIMES = st.floats(0.01, 1e5)


def points(*pairs: tuple[int, float]) -> list[Point]:
    return [Point(nbytes, Estimate(us)) for nbytes, us in pairs]


@pytest.mark.parametrize("n", T_TABLE)
def test_an_interval_is_the_t_interval_of_the_tables(n: int) -> None:
    values = [10.0 + 0.1 * ((7 * i) % n) for i in range(n)]
    found = over_processes(values)
    assert found is not None and found.low_us is not None and found.high_us is not None
    half = T_TABLE[n] * statistics.stdev(values) / math.sqrt(n)
    assert found.us == pytest.approx(statistics.mean(values))
    assert (found.high_us - found.us, found.us - found.low_us) == pytest.approx((half, half), rel=1e-3)
    assert found.processes == n


@given(st.lists(st.floats(5, 50), min_size=2, max_size=12))
def test_an_interval_is_scipys_own(values: list[float]) -> None:
    found = over_processes(values)
    assert found is not None and found.low_us is not None and found.high_us is not None
    scale = stats.sem(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=scale) if scale > 0 else (values[0], values[0])
    assert found.low_us == pytest.approx(max(0.0, low), rel=1e-6, abs=1e-6)
    assert found.high_us == pytest.approx(high, rel=1e-6)


def test_the_interval_holds_the_truth_in_ninety_five_of_a_hundred_measurements() -> None:
    random, truth, held, tries = np.random.default_rng(20260101), 20.0, 0, 4000
    for _ in range(tries):
        found = over_processes(random.normal(truth, 2.0, 5))
        assert found is not None and found.low_us is not None and found.high_us is not None
        held += found.low_us <= truth <= found.high_us
    # Four standard deviations of the count.
    assert abs(held / tries - 0.95) < 4 * math.sqrt(0.95 * 0.05 / tries)


def test_one_process_has_no_interval_and_none_has_no_figure() -> None:
    assert over_processes([7.5]) == Estimate(7.5, None, None, 1)
    assert over_processes([]) is None and over_processes([math.nan]) is None
    assert over_processes([7.5, math.inf]) is None, "an infinite time is no cost"
    assert over_processes([3.0, math.nan, 3.0]) == Estimate(3.0, 3.0, 3.0, 2)


@given(st.lists(st.tuples(st.integers(1, 1 << 40), TIMES), min_size=1, max_size=8, unique_by=lambda pair: pair[0]))
def test_a_measured_size_costs_exactly_what_was_measured(pairs: list[tuple[int, float]]) -> None:
    table = points(*sorted(pairs))
    for nbytes, us in pairs:
        found = at_size(table, nbytes)
        assert found is not None and found.estimate.us == us and found.sizes == ()


@given(
    st.lists(st.tuples(st.integers(1, 1 << 40), TIMES), min_size=2, max_size=8, unique_by=lambda pair: pair[0]),
    st.lists(st.integers(1, 1 << 40), min_size=2, max_size=20),
)
def test_where_more_bytes_cost_more_the_answers_do_too(pairs: list[tuple[int, float]], sizes: list[int]) -> None:
    table = points(*zip(sorted(n for n, _ in pairs), sorted(us for _, us in pairs), strict=True))
    found = [between.estimate.us for size in sorted(sizes) if (between := at_size(table, size))]
    assert found == sorted(found)


def test_nothing_is_said_outside_of_what_was_measured() -> None:
    table = points((1024, 5.0), (4096, 9.0))
    assert [at_size(table, n) is None for n in (1, 1023, 1024, 4096, 4097, 1 << 50)] == [True, True, False, False, True, True]
    assert at_size([], 1024) is None


def test_between_two_sizes_lies_a_line_of_logarithms() -> None:
    found = at_size(points((1024, 4.0), (4096, 16.0)), 2048)
    assert found is not None and found.sizes == (1024, 4096)
    assert found.estimate.us == pytest.approx(8.0)  # time grows as bytes do
    flat = at_size(points((1024, 4.0), (16384, 4.0)), 5000)
    assert flat is not None and flat.estimate == Estimate(4.0)


def test_between_two_sizes_the_wider_interval_and_the_doubt_of_the_line_are_carried() -> None:
    table = [Point(1000, Estimate(10.0, 9.0, 11.0, 5)), Point(100000, Estimate(40.0, 39.0, 42.0, 3))]
    found = at_size(table, 10000)
    assert found is not None
    us = math.sqrt(10.0 * 40.0)
    linear = 10.0 + 30.0 * 9000 / 99000
    bound = abs(us - linear) / 2
    assert found.estimate.us == pytest.approx(us)
    assert found.estimate.low_us == pytest.approx(us * (1 - 0.1) - bound)  # a tenth below: the left one's
    assert found.estimate.high_us == pytest.approx(us * (1 + 0.1) + bound)
    assert found.estimate.processes == 3
    without = at_size([table[0], Point(100000, Estimate(40.0))], 10000)
    assert without is not None and without.estimate.low_us is None, "a neighbour without an interval gives none"


@given(st.floats(1, 100), st.floats(1, 100), st.floats(0, 0.5), st.floats(0, 0.5), st.integers(1001, 99999))
def test_an_interval_between_two_sizes_is_never_narrower_than_theirs(a: float, b: float, x: float, y: float, n: int) -> None:
    table = [Point(1000, Estimate(a, a * (1 - x), a * (1 + x), 2)), Point(100000, Estimate(b, b * (1 - y), b * (1 + y), 2))]
    found = at_size(table, n)
    assert found is not None and found.estimate.low_us is not None and found.estimate.high_us is not None
    e = found.estimate
    assert e.low_us is not None and e.high_us is not None
    assert e.low_us <= e.us * (1 - max(x, y)) + 1e-9 and e.high_us >= e.us * (1 + max(x, y)) - 1e-9
