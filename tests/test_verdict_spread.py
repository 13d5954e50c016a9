"""Arms that spread unlike: the interval reaches as far as Welch's, whatever the rank test believes; and modes in unlike shares."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sglang_probe._types import InputError
from sglang_probe._verdict.arm import Arm
from sglang_probe._verdict.spread import of_arms
from sglang_probe._verdict.verdict import Word, verdict
from sglang_probe._verdict.words import about

WIDE = np.exp(np.array([-0.04, -0.03, 0.05, 0.06]) + 0.05)
NARROW = np.exp(0.003 * np.sort(np.random.default_rng(1).standard_normal(30)))


def test_the_mean_and_its_error_are_those_of_welch() -> None:
    random = np.random.default_rng(3)
    a, b = 0.05 * random.standard_normal(7), 0.01 * random.standard_normal(22) + 0.01
    found = of_arms(a, b, (0,) * 7, (0,) * 22).unlike
    known = stats.ttest_ind(b, a, equal_var=False)
    assert found is not None and math.isclose(found.p, known.pvalue) and math.isclose(found.free, known.df)
    ends = known.confidence_interval(0.95)
    assert np.allclose(found.reach(1.0, -1.0, 0.025), (ends.low, ends.high))


def test_few_runs_that_spread_wide_are_no_difference_from_many_that_do_not() -> None:
    # all four lie on one side of all thirty, which 1 in 8 of such arms do where there is nothing between them
    a = np.exp(np.array([0.012, 0.03, 0.09, 0.16]))
    found = verdict(a, NARROW, unit="us")
    assert stats.mannwhitneyu(a, NARROW).pvalue < 0.001
    assert found.word is Word.UNDECIDED and found.p > 0.05 and found.low < 0 < found.high
    assert "Welch" in found.method and "Welch" not in verdict(NARROW, 1.1 * NARROW, unit="us").method


def test_a_difference_that_is_large_beside_the_wider_spread_is_told() -> None:
    found = verdict(2 * WIDE, NARROW, unit="us")
    assert found.word is Word.FASTER and found.low < found.effect < found.high < 0 and found.p < 0.05


def test_runs_are_asked_for_by_both_spreads_and_not_by_the_many_runs_of_the_narrow_arm() -> None:
    found = verdict(WIDE, NARROW, unit="us")
    deviation = math.sqrt((np.log(WIDE).var(ddof=1) + np.log(NARROW).var(ddof=1)) / 2)
    assert found.word is Word.UNDECIDED and found.spread is not None and math.isclose(found.spread, deviation)


def test_an_outlier_does_not_make_the_spreads_differ() -> None:
    quiet = 10 * np.exp(0.01 * np.random.default_rng(4).standard_normal((2, 10)))
    quiet[0, 3] = 15
    found = verdict(quiet[0], quiet[1], unit="us")
    assert "Welch" not in found.method and any(one.kind == "outlier" for one in found.findings)


def test_two_modes_in_unlike_shares_are_not_the_same_whatever_the_middle_says() -> None:
    random = np.random.default_rng(5)
    a, b = 10 * np.exp(0.003 * random.standard_normal((2, 40)))
    a[:10] *= 1.3
    b[:16] *= 1.3
    found = verdict(random.permutation(a), random.permutation(b), unit="us")
    assert found.word is Word.UNDECIDED
    assert "as often" in found.reason and found.runs_needed is not None and found.runs_needed > 100
    many = verdict(random.permutation(np.tile(a, 40)), random.permutation(np.tile(a, 40)), unit="us")
    assert many.word is Word.SAME  # 1,600 runs with the mode as often


def test_a_mode_that_no_number_of_runs_would_settle_asks_for_none() -> None:
    a = [10.0, 10.02, 10.04, 10.06, 10.08, 10.1, 10.12, 10.14]
    b = [13.0, 13.01, 9.99, 10.03, 10.05, 10.07, 10.01, 9.98]
    found = verdict(a, b, unit="us")
    assert found.word is Word.UNDECIDED and "new slow mode in 2 of 8" in found.sentence
    assert found.runs_needed is None or found.runs_needed < 1_000_000


@pytest.mark.parametrize("count, text", [(4, "4"), (85, "85"), (100, "100"), (101, "110"), (1049, "1,100"), (87_001, "88,000")])
def test_runs_asked_for_are_told_with_two_digits_and_never_fewer(count: int, text: str) -> None:
    assert about(count) == text


class Table:
    """What a data frame does: going through it gives the names of its columns."""

    def __iter__(self) -> object:
        return iter([1, 2])

    def __len__(self) -> int:
        return 2

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
        return np.array([[10.0, 11.0], [12.0, 13.0], [14.0, 15.0]])


def test_a_table_is_its_rows_and_not_the_names_of_its_columns() -> None:
    assert verdict(Table(), [10.0, 11.0], unit="us").a.processes == ((10.0, 11.0), (12.0, 13.0), (14.0, 15.0))


@pytest.mark.parametrize(
    "bad, text",
    [
        (np.ma.array([1.0, 2.0], mask=[False, True]), "a\\[1\\]=nan: is not a number"),
        ([1.0, None], "a\\[1\\].*this is no number"),
        ([1j, 2.0], "a\\[0\\].*this is no number"),
        ("", "no figures"),
        (" ", "no figures"),
        ([1e308, 1.0], "so small or so large"),
        ([5e-324, 1.0], "so small or so large"),
    ],
)
def test_what_is_no_figure_is_named_by_its_place(bad: object, text: str) -> None:
    with pytest.raises(InputError, match=text):
        verdict(bad, [1.0, 2.0], unit="us")


def test_one_thing_given_twice_is_told() -> None:
    assert "twice" in [one.kind for one in verdict(NARROW, NARROW, unit="us").findings]
    assert "twice" not in [one.kind for one in verdict(NARROW, NARROW * 1.0001, unit="us").findings]
    assert "twice" not in [one.kind for one in verdict([10.0] * 4, [10.0] * 4, unit="us").findings]


def test_a_unit_is_a_text() -> None:
    with pytest.raises(InputError, match="unit"):
        verdict([1.0], [2.0], unit=5)  # type: ignore[arg-type]


def test_five_pairs_decide_where_all_runs_of_one_arm_lie_beyond_all_of_the_other() -> None:
    def pairs(a: list[float], b: list[float]) -> tuple[Arm, Arm]:
        made = [
            Arm(label, tuple((v,) for v in values), "us", blocks=tuple(range(len(values))))
            for label, values in zip("ab", (a, b), strict=True)
        ]
        return made[0], made[1]

    apart = verdict(*pairs([6.91, 6.76, 6.89, 6.79, 6.86], [4.18, 4.16, 4.17, 4.17, 4.17]))
    assert apart.word is Word.FASTER and apart.low < apart.effect < apart.high < 0 and math.isclose(apart.p, 2 / 252)
    assert "every run of b is below every run of a" in apart.reason
    # every pair has the same sign, which 1 in 16 have by chance; the arms overlap
    drifting = verdict(*pairs([10, 11, 12, 13, 14], [9.5, 10.5, 11.5, 12.5, 13.5]))
    assert drifting.word is Word.UNDECIDED and math.isclose(drifting.p, 1 / 16) and drifting.low < 0 < drifting.high
    assert verdict(*pairs([10, 11, 12, 13], [1, 2, 3, 4])).word is Word.UNDECIDED


def test_a_spread_that_is_much_wider_is_told() -> None:
    (told,) = [one.text for one in verdict(WIDE, NARROW, unit="us").findings if one.kind == "spread"]
    assert told.startswith("runs of a spread ") and told.endswith("those of b: the interval allows for it")


def test_an_outlier_among_five_pairs_is_reckoned_with_in_the_runs_that_are_asked_for() -> None:
    # host_us of five process sets on two H200s: six pairs decide only where all six have one sign, and one of five had the other
    native, engine = [12.7115, 17.6007, 10.0721, 14.0352, 38.6127], [27.5783, 32.1310, 20.4042, 28.3728, 33.9024]
    a, b = (
        Arm(label, tuple((v,) for v in given), "us", blocks=tuple(range(5)))
        for label, given in zip("ab", (native, engine), strict=True)
    )
    found = verdict(a, b)
    assert found.word is Word.UNDECIDED and found.runs_needed is not None and 10 <= found.runs_needed <= 30
