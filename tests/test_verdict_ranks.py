"""The exact tests against SciPy's, and against every order there is; large arms against small ones. The word rests on nothing else."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from sglang_probe._verdict import ranks
from sglang_probe._verdict.drift import drift_of
from sglang_probe._verdict.within import effective_size


@pytest.mark.parametrize(("a", "b"), [(2, 3), (4, 4), (5, 3), (7, 9), (20, 20), (8, 30), (60, 60)])
def test_the_two_sample_p_is_scipys_exact_one(a: int, b: int) -> None:
    random = np.random.default_rng([a, b])
    for shift in (0.0, 0.4, 1.0):
        x, y = random.standard_normal(a), random.standard_normal(b) + shift
        found = ranks.of_two_samples(x, y)
        assert found.design.p(*found.counts()) == pytest.approx(stats.mannwhitneyu(x, y, method="exact").pvalue, rel=1e-9)


@pytest.mark.parametrize("blocks", [4, 6, 12, 36, 50])
def test_the_p_of_pairs_is_scipys_exact_one(blocks: int) -> None:
    random = np.random.default_rng(blocks)
    for shift in (0.0, 0.3, 0.6):
        differences = random.standard_normal(blocks) + shift
        found = ranks.of_pairs(differences)
        assert found.design.p(*found.counts()) == pytest.approx(stats.wilcoxon(differences, method="exact").pvalue, rel=1e-9)


def test_the_p_within_blocks_is_that_of_every_order_there_is() -> None:
    random = np.random.default_rng(4)
    blocks_a, blocks_b = np.array([0, 0, 1, 2]), np.array([0, 0, 1, 1, 2])
    a, b = random.standard_normal(4), random.standard_normal(5) + 0.5
    found = ranks.of_strata(a, b, blocks_a, blocks_b)
    below, above = found.counts()
    counts = []
    each = []
    for number in range(3):
        values = np.concatenate([a[blocks_a == number], b[blocks_b == number]])
        size = int((blocks_a == number).sum())
        each.append((values, list(itertools.combinations(range(len(values)), size))))
    for chosen in itertools.product(*(orders for _, orders in each)):
        count = 0
        for (values, _), mine in zip(each, chosen, strict=True):
            one, other = values[list(mine)], np.delete(values, mine)
            count += int((other[:, None] <= one[None, :]).sum())
        counts.append(count)
    expected = min(1.0, 2 * float(np.mean(np.array(counts) <= min(below, above))))
    assert found.design.p(below, above) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("size", [3, 4, 6, 9, 25, 90])
def test_the_interval_leaves_0_out_exactly_where_the_test_rejects(size: int) -> None:
    random = np.random.default_rng(size)
    for shift in np.linspace(-2, 2, 21):
        a, b = random.standard_normal(size), random.standard_normal(size) + shift
        for found in (ranks.of_two_samples(a, b), ranks.of_pairs(b - a)):
            interval = found.interval(0.025)
            rejects = found.design.p(*found.counts()) <= 0.05
            fully = 0 in found.counts()
            assert bool(interval.low > 0 or interval.high < 0) == (rejects and (fully or not found.design.full_only))
            assert interval.low <= interval.middle <= interval.high


def test_ties_count_against_a_difference() -> None:
    a, b = np.array([1.0, 1, 1, 2, 1]), np.array([2.0, 2, 3, 2, 2])
    found = ranks.of_two_samples(a, b)
    below, above = found.counts()
    assert (below, above) == (4, 25)
    assert found.design.p(below, above) > stats.mannwhitneyu(a, b, method="asymptotic").pvalue


@pytest.mark.parametrize("digits", [1, 12])
def test_large_arms_are_searched_as_small_ones_are_sorted(monkeypatch: pytest.MonkeyPatch, digits: int) -> None:
    random = np.random.default_rng(8)
    a, b = np.round(random.normal(5, 1, 60), digits), np.round(random.normal(5.5, 1, 45), digits)
    both = [(ranks.of_two_samples(a, b), ranks.of_pairs(b - a[:45]))]
    monkeypatch.setattr(ranks, "_SMALL", 1)
    both.append((ranks.of_two_samples(a, b), ranks.of_pairs(b - a[:45])))
    for small, large in zip(*both, strict=True):
        assert small.counts() == large.counts()
        one, other = small.interval(0.025), large.interval(0.025)
        for end in ("low", "middle", "high"):
            assert float(getattr(one, end)) == pytest.approx(float(getattr(other, end)), abs=1e-12)


@pytest.mark.parametrize(("a", "b"), [(100, 1000), (90, 400)])
def test_where_the_exact_distribution_ends_the_normal_one_is_as_good(a: int, b: int) -> None:
    exact = ranks.two_samples(a, b)
    assert exact.cumulative is not None
    normal = ranks.Design("", exact.total, exact.mean, exact.variance, None, False)
    for tail in (0.025, 0.05):
        k = exact.rank(tail)
        assert normal.rank(tail) == pytest.approx(k, rel=1e-3)
        assert normal.tail(k - 1) == pytest.approx(exact.tail(k - 1), rel=0.01)
    assert ranks.two_samples(5000, 5000).cumulative is None


def test_every_interval_covers_at_least_as_often_as_it_says() -> None:
    for a, b in itertools.product((2, 3, 4, 5, 8, 20), repeat=2):
        design = ranks.two_samples(a, b)
        for tail in (0.005, 0.025, 0.05):
            k = design.rank(tail)
            assert k == 0 or design.tail(k - 1) <= tail * (1 + 1e-9)
            assert design.full_only or design.tail(k) > tail


def test_the_score_of_a_drift_has_kendalls_p() -> None:
    random = np.random.default_rng(3)
    for n in (5, 12, 30):
        values = random.standard_normal(n) + np.linspace(0, 1, n)
        found = drift_of(values, np.zeros(1), list(range(n)), [n])
        assert found.p == pytest.approx(stats.kendalltau(np.arange(n), values, method="exact").pvalue, rel=1e-9)
        assert found.slope == pytest.approx(stats.theilslopes(values).slope)


def test_the_effective_size_of_a_known_process_is_what_theory_says() -> None:
    random = np.random.default_rng(5)
    for correlation in (0.0, 0.5, 0.9):
        sizes = []
        for _ in range(20):
            values = random.standard_normal(2000)
            for i in range(1, 2000):
                values[i] += correlation * values[i - 1]
            sizes.append(effective_size(values))
        assert np.median(sizes) == pytest.approx(2000 * (1 - correlation) / (1 + correlation), rel=0.2)


def test_a_spread_of_nothing_is_no_error() -> None:
    found = ranks.of_two_samples(np.zeros(5), np.full(5, math.log(2)))
    interval = found.interval(0.025)
    assert float(interval.low) == float(interval.high) == math.log(2)
