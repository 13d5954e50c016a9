"""Verdicts as people need them: the cases that they met (V1 to V4), and each kind behind them.

Without these a difference that is none is believed, or one that is there is averaged away. What is read: test_verdict_input.py.
"""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from sglang_probe._verdict.arm import Arm
from sglang_probe._verdict.runs import chance, runs_for
from sglang_probe._verdict.verdict import Verdict, Word, verdict
from sglang_probe._verdict.words import about

V1 = (78.4, 83.2, 89.2, 94.1, 97.3)
V2 = ([4023.5, 4019.9, 3380.1, 4002.0, 4090.0], [4384.6, 4466.1, 4471.0])
CV = 0.087


def draw(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def kinds(found: Verdict) -> set[str]:
    return {one.kind for one in found.findings}


def text_of(found: Verdict, kind: str) -> str:
    return "\n".join(f"{one.arm}: {one.text}" for one in found.findings if one.kind == kind)


# ------------------------------------------------------------------------------------------------------------------- V1 to V4


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_v1_no_split_of_five_repeats_of_one_thing_is_a_difference(size: int) -> None:
    for chosen in itertools.combinations(range(5), size):
        a = [V1[i] for i in chosen]
        b = [V1[i] for i in range(5) if i not in chosen]
        found = verdict(a, b, unit="tok/s")
        assert found.word is Word.UNDECIDED, (a, b)
        assert found.runs_needed is not None and found.runs_needed > 5
        assert f"about {about(found.runs_needed)}" in found.sentence and "runs an arm in all would settle it" in found.sentence


def test_v1_89_against_82_takes_about_twenty_runs_an_arm_at_the_spread_of_those_repeats() -> None:
    assert np.std(V1, ddof=1) / np.mean(V1) == pytest.approx(CV, abs=5e-4)
    runs = runs_for(89 / 82 - 1, CV)
    assert 18 <= runs <= 22
    # and it is so: that many decide four times in five, half as many do not
    assert chance(runs, math.log(89 / 82), CV, margin=None) >= 0.8 > chance(runs // 2, math.log(89 / 82), CV, margin=None) + 0.2


def test_v2_three_runs_above_all_five_are_faster_and_the_outlier_is_kept_and_told() -> None:
    found = verdict(*V2, unit="tok/s")
    assert found.word is Word.FASTER and found.effect == pytest.approx(0.11, abs=0.005)
    assert found.low > 0 and found.p == pytest.approx(2 / 56)
    assert found.sentence.startswith("FASTER: b is 11.1 % higher than a (tok/s, 95 % interval ")
    assert "a: run 3: 3380.1 tok/s" in text_of(found, "outlier") and text_of(found, "outlier").endswith("Kept")
    assert (3380.1,) in found.a.processes and "3380.1" in found.why()
    back = verdict(V2[1], V2[0], unit="tok/s")
    assert back.word is Word.SLOWER and back.effect == pytest.approx(1 / (1 + found.effect) - 1)


def test_v3_one_run_an_arm_shows_nothing() -> None:
    found = verdict([89], [82], unit="tok/s")
    assert found.word is Word.UNDECIDED and found.runs_needed is None
    assert found.sentence.startswith("UNDECIDED: one run an arm shows nothing (b is 7.9 % lower than a, tok/s)")
    assert "at least 4 fresh processes of each" in found.sentence
    assert (found.low, found.high) == (-1.0, math.inf)


def test_v4_36_interleaved_pairs_of_37_percent_are_faster() -> None:
    random = draw(36)
    a, b = 100 * np.exp(0.025 * random.standard_normal(36)), 137 * np.exp(0.025 * random.standard_normal(36))
    assert max(np.std(arm, ddof=1) / np.mean(arm) for arm in (a, b)) < 0.03
    blocks = tuple(range(36))
    found = verdict(*(Arm(name, tuple((v,) for v in arm), "tok/s", blocks=blocks) for name, arm in (("a", a), ("b", b))))
    assert found.word is Word.FASTER and found.low < 0.37 < found.high and found.high - found.low < 0.05
    assert "36 interleaved pairs" in found.reason and found.method.startswith("signed rank")


# --------------------------------------------------------------------------------------------------------------------- few of them


@pytest.mark.parametrize(("a", "b"), [(1, 5), (2, 3), (2, 7), (3, 3)])
def test_so_few_runs_are_undecided_however_far_apart(a: int, b: int) -> None:
    found = verdict([10 + 0.01 * i for i in range(a)], [20 + 0.01 * i for i in range(b)], unit="us")
    assert found.word is Word.UNDECIDED and "few_runs" in kinds(found)


@pytest.mark.parametrize(("a", "b"), [(2, 8), (3, 5), (4, 4)])
def test_few_runs_that_are_fully_apart_are_a_difference(a: int, b: int) -> None:
    found = verdict([10 + 0.01 * i for i in range(a)], [11 + 0.01 * i for i in range(b)], unit="us")
    assert found.word is Word.SLOWER and found.low > 0


def test_three_runs_that_are_nearly_apart_are_undecided() -> None:
    # by the test alone this would be p = 0.048
    found = verdict([10.0, 10.1, 10.25], [10.2, 10.3, 10.4, 10.5, 10.6, 10.7], unit="us")
    assert found.p < 0.05 and found.word is Word.UNDECIDED
    assert "fewer than 4 of an arm decide only where they are fully apart" in found.reason


def test_same_needs_four_runs_of_each() -> None:
    close = [100.0, 100.1, 99.9, 100.05, 99.95, 100.02, 99.98, 100.07]
    assert verdict(close[:4], close[4:], unit="us").word is Word.SAME
    three = verdict(close[:3], close[3:], unit="us")
    assert three.word is Word.UNDECIDED and "never show SAME" in three.reason


# ------------------------------------------------------------------------------------------------------------------------ one word


def test_same_is_a_proof_and_not_the_lack_of_one() -> None:
    random = draw(1)
    quiet = verdict(*np.exp(0.005 * random.standard_normal((2, 12))), unit="us")
    noisy = verdict(*np.exp(0.05 * random.standard_normal((2, 12))), unit="us")
    assert quiet.word is Word.SAME and quiet.level == pytest.approx(0.9)
    assert -0.02 < quiet.low <= quiet.effect <= quiet.high < 0.02 and "90 % interval" in quiet.sentence
    assert noisy.word is Word.UNDECIDED and noisy.runs_needed is not None and noisy.runs_needed > 12


def test_a_difference_that_is_smaller_than_the_margin_is_told_and_still_the_same() -> None:
    random = draw(2)
    a, b = np.exp(0.001 * random.standard_normal(20)), 1.008 * np.exp(0.001 * random.standard_normal(20))
    found = verdict(a, b, unit="us")
    assert found.word is Word.SAME and found.low > 0 and "smaller than what counts" in found.reason
    assert verdict(a, b, unit="us", margin=0.005).word is Word.SLOWER


def test_the_unit_tells_what_is_better_and_the_reader_can_say_it() -> None:
    a, b = [10.0, 10.1, 10.2, 10.3], [8.0, 8.1, 8.2, 8.3]
    assert verdict(a, b, unit="ms").word is Word.FASTER
    assert verdict(a, b, unit="tok/s").word is Word.SLOWER
    assert verdict(a, b, better="higher").word is Word.SLOWER
    assert verdict(a, b, unit="ms", better="higher").word is Word.SLOWER
    found = verdict(a, b, unit="ms")  # of four runs each the interval holds all ratios: 8.3 / 10.0 to 8.0 / 10.3
    assert "b is 19.7 % lower than a (ms, 95 % interval 17.0 to 22.3 %)" in found.sentence


def test_undecided_says_how_many_would_settle_it_and_what_if_it_is_as_it_looks() -> None:
    random = draw(5)
    found = verdict(89 * np.exp(CV * random.standard_normal(5)), 86 * np.exp(CV * random.standard_normal(5)), unit="tok/s")
    assert found.word is Word.UNDECIDED and found.runs_needed is not None and found.runs_as_seen is not None
    assert 5 < found.runs_as_seen <= found.runs_needed
    assert found.spread is not None and 0.03 < found.spread < 0.2
    assert "none, to show SAME within 2 %" in found.why()


def test_a_verdict_goes_to_json_with_everything_that_it_was_made_of() -> None:
    found = verdict([89], [82], unit="tok/s")
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["word"] == "UNDECIDED" and plain["low"] is None and plain["high"] is None
    assert plain["a"]["processes"] == [[89.0]] and plain["b"]["unit"] == "tok/s"
    assert str(found).splitlines()[0] == found.sentence and str(found).splitlines()[1] == found.reason


# ------------------------------------------------------------------------------------------------------------------- what is found


def test_a_heavy_outlier_changes_neither_word_nor_effect() -> None:
    random = draw(7)
    a, b = 100 * np.exp(0.01 * random.standard_normal(8)), 106 * np.exp(0.01 * random.standard_normal(8))
    plain = verdict(a, b, unit="us")
    b[3] = 900
    disturbed = verdict(a, b, unit="us")
    assert plain.word is disturbed.word is Word.SLOWER
    assert disturbed.effect == pytest.approx(plain.effect, abs=0.01)
    assert "run 4: 900 us" in text_of(disturbed, "outlier") and "outlier" not in kinds(plain)


def test_one_run_off_in_an_arm_does_not_ask_for_hundreds_more() -> None:
    random = draw(8)
    a, b = 100 * np.exp(0.01 * random.standard_normal(6)), 101.5 * np.exp(0.01 * random.standard_normal(6))
    a[2] = 160
    found = verdict(a, b, unit="us")
    assert found.word is Word.UNDECIDED and found.runs_needed is not None and found.runs_needed < 60


def test_a_new_slow_mode_is_a_finding_and_not_a_mean() -> None:
    found = verdict([10.0, 10.1, 9.9, 10.05, 10.02], [10.0, 10.1, 9.9, 14.9, 15.1], unit="us")
    assert found.word is Word.UNDECIDED
    assert "b has a new slow mode in 2 of 5 runs (about 15 us, 50.0 % above its other 3)" in found.sentence
    assert "a has none in 5" in text_of(found, "modes")
    fast = verdict([89.0, 89.4, 88.8, 89.1], [89.2, 88.9, 120.0, 120.6], unit="tok/s")
    assert "new fast mode in 2 of 4" in fast.sentence


def test_a_new_mode_is_never_called_the_same() -> None:
    # most runs agree to 0.1 %, so the middle's interval is well inside the margin
    random = draw(9)
    a, b = np.exp(0.0005 * random.standard_normal((2, 40)))
    b[:4] *= 1.3
    assert verdict(a, b[4:], unit="us").word is Word.SAME
    found = verdict(a, b, unit="us")
    assert found.word is Word.UNDECIDED and "new slow mode in 4 of 40" in found.sentence


def test_a_mode_that_half_the_runs_take_is_slower_and_told_as_a_mode() -> None:
    random = draw(10)
    a, b = 10 * np.exp(0.005 * random.standard_normal((2, 20)))
    b[::2] *= 1.5
    found = verdict(a, b, unit="us")
    assert found.word is Word.SLOWER and "SLOWER: b has a new slow mode in 10 of 20 runs" in found.sentence


def test_modes_that_both_arms_have_are_told_of_both_and_are_not_new() -> None:
    random = draw(11)
    a, b = 10 * np.exp(0.005 * random.standard_normal((2, 20)))
    a[:6] *= 1.5
    b[:7] *= 1.5
    found = verdict(a, b, unit="us")
    assert text_of(found, "modes").count("slow mode") == 2 and "new" not in text_of(found, "modes")


def test_ties_count_against_a_difference_and_coarse_figures_are_not_the_same() -> None:
    rounded = verdict([10, 10, 10, 11, 10], [11, 11, 12, 11, 11], unit="ms")
    assert rounded.word is Word.UNDECIDED and "ties" in kinds(rounded)
    coarse = verdict([8] * 6, [8] * 6, unit="us")
    assert coarse.word is Word.UNDECIDED and coarse.runs_needed is None and "more digits" in coarse.reason
    assert verdict([4023.5] * 6, [4023.5] * 6, unit="tok/s").word is Word.SAME
    assert verdict([8.0] * 6, [9.0] * 6, unit="us").word is Word.SLOWER


def test_five_thousand_runs_of_each_get_a_word() -> None:
    random = draw(12)
    a, b = random.lognormal(3, 0.1, 5000), random.lognormal(3.05, 0.1, 5000)
    found = verdict(a, b, unit="us")
    assert found.word is Word.SLOWER and found.low < math.expm1(0.05) < found.high
    assert "5,000 numbers were taken for as many fresh processes" in text_of(found, "few_runs")


# --------------------------------------------------------------------------------------------------------------- inside a process


def correlated(random: np.random.Generator, level: float, count: int = 200) -> list[float]:
    steps = 0.02 * random.standard_normal(count)
    for i in range(1, count):
        steps[i] += 0.95 * steps[i - 1]
    return [float(v) for v in level * np.exp(steps)]


def test_thousands_of_iterations_in_one_process_each_are_one_run_each() -> None:
    random = draw(13)
    found = verdict([correlated(random, 10, 3000)], [correlated(random, 11, 3000)], unit="us")
    assert found.word is Word.UNDECIDED and "one run an arm shows nothing" in found.sentence
    assert "3,000 iterations of one process are one run" in text_of(found, "few_runs")


def test_correlated_iterations_inside_few_processes_are_told_and_each_process_counts_once() -> None:
    random = draw(14)
    a, b = ([correlated(random, 10 * math.exp(0.05 * random.standard_normal())) for _ in range(4)] for _ in "ab")
    found = verdict(a, b, unit="us")
    assert found.word is Word.UNDECIDED and "4 runs of b against 4 of a" in found.reason
    assert "iterations resemble their neighbours" in text_of(found, "autocorrelation")
    # the same figures as if each were a run: refused for what they are, not called a difference
    flat = verdict(sum(a, []), sum(b, []), unit="us")
    assert flat.word is Word.UNDECIDED and "iterations of one process belong into one list" in flat.reason


def test_iterations_of_a_warm_up_count_no_more_and_are_told() -> None:
    random = draw(15)

    def process() -> list[float]:
        iterations = 10 * math.exp(0.002 * random.standard_normal()) * np.exp(0.005 * random.standard_normal(40))
        iterations[:12] *= np.linspace(3, 1.2, 12)
        return [float(v) for v in iterations]

    found = verdict([process() for _ in range(8)], [process() for _ in range(8)], unit="us")
    assert found.word is Word.SAME and "warmed up: up to 1" in text_of(found, "warm_up")
    assert len(found.a.processes[0]) == 40


def test_processes_that_were_still_moving_are_not_settled() -> None:
    random = draw(16)
    falling = np.linspace(1.3, 1.0, 60)

    def process(level: float) -> list[float]:
        return [float(v) for v in level * falling * np.exp(0.002 * random.standard_normal(60))]

    found = verdict([process(10) for _ in range(6)], [process(10.3) for _ in range(6)], unit="us")
    assert found.word is Word.UNDECIDED and found.sentence.startswith("UNDECIDED: not settled")
    assert "not settled" in text_of(found, "warm_up")
    assert verdict([process(10) for _ in range(6)], [process(20) for _ in range(6)], unit="us").word is Word.SLOWER


# ------------------------------------------------------------------------------------------------------------------------- in time


def in_time(a: np.ndarray, b: np.ndarray, order_a: list[int], order_b: list[int], blocks: bool = False) -> tuple[Arm, Arm]:
    made = []
    for label, values, order in (("a", a, order_a), ("b", b, order_b)):
        numbers = tuple(range(len(values))) if blocks else ()
        made.append(Arm(label, tuple((float(v),) for v in values), "us", order=tuple(order), blocks=numbers))
    return made[0], made[1]


def test_a_drift_is_not_a_difference_where_one_arm_was_measured_after_the_other() -> None:
    machine = np.linspace(10, 11, 16) * np.exp(0.003 * draw(17).standard_normal(16))
    found = verdict(*in_time(machine[:8], machine[8:], [*range(8)], [*range(8, 16)]))
    assert found.word is Word.UNDECIDED and found.sentence.startswith("UNDECIDED: not settled")
    assert "interleave them" in found.reason and found.runs_needed is None
    # without their order nobody can tell
    machine *= np.exp(0.004 * draw(18).standard_normal(16))
    bare = verdict(machine[:8], machine[8:], unit="us")
    assert bare.word is Word.SLOWER and "if the figures are in the order that they were measured in" in text_of(bare, "drift")
    assert "drift" not in kinds(
        verdict(np.sort(machine[:8]), np.sort(machine[8:]), unit="us")
    )  # sorted lists say nothing of time


def test_an_effect_that_no_such_drift_can_make_is_told_all_the_same() -> None:
    machine = np.linspace(10, 10.3, 16) * np.exp(0.001 * draw(18).standard_normal(16))
    found = verdict(*in_time(machine[:8], 2 * machine[8:], [*range(8)], [*range(8, 16)]))
    assert found.word is Word.SLOWER and "drift" in kinds(found)


def test_interleaved_blocks_take_a_drift_out() -> None:
    random = draw(19)
    machine = np.repeat(np.linspace(10, 14, 12), 2) * np.exp(0.004 * random.standard_normal(24))
    first = random.random(12) < 0.5
    order_a = [2 * i + (not f) for i, f in enumerate(first)]
    order_b = [2 * i + bool(f) for i, f in enumerate(first)]
    same = verdict(*in_time(machine[order_a], machine[order_b], order_a, order_b, blocks=True))
    slower = verdict(*in_time(machine[order_a], 1.03 * machine[order_b], order_a, order_b, blocks=True))
    assert same.word is Word.SAME and slower.word is Word.SLOWER
    assert "the blocks take it out" in text_of(slower, "drift")
    # a test that does not know the blocks sees 40 % of noise, and nothing
    assert verdict(machine[order_a], 1.03 * machine[order_b], unit="us").word is Word.UNDECIDED


def test_one_arm_after_the_other_is_told_without_a_drift_too() -> None:
    random = draw(20)
    a, b = 10 * np.exp(0.01 * random.standard_normal((2, 6)))
    found = verdict(*in_time(a, 1.2 * b, [*range(6)], [*range(6, 12)]))
    assert found.word is Word.SLOWER and "a was measured before b" in text_of(found, "drift")


def test_runs_that_resemble_the_next_one_are_no_independent_runs() -> None:
    random = draw(21)
    found = verdict(correlated(random, 10, 300), correlated(random, 11, 300), unit="us")
    assert found.word is Word.UNDECIDED and "not independent" in text_of(found, "autocorrelation")


def test_a_sorted_list_says_nothing_of_time() -> None:
    random = draw(22)
    a, b = np.sort(10 * np.exp(0.02 * random.standard_normal((2, 40))))
    assert verdict(a, 1.1 * b, unit="us").word is Word.SLOWER


def test_a_run_whose_block_lacks_the_other_arm_is_kept_out_of_the_test_and_told() -> None:
    random = draw(23)
    a, b = 10 * np.exp(0.01 * random.standard_normal((2, 9)))
    one = Arm("a", tuple((float(v),) for v in a), "us", blocks=tuple(range(9)))
    other = Arm("b", tuple((float(1.1 * v),) for v in b[:8]), "us", blocks=tuple(range(8)))
    found = verdict(one, other)
    assert (
        found.word is Word.SLOWER
        and "8 interleaved pairs" in found.reason
        and "1 run whose block lacks" in text_of(found, "blocks")
    )


def test_blocks_of_two_experiments_are_not_the_same_blocks() -> None:
    random = draw(24)
    a, b = 10 * np.exp(0.01 * random.standard_normal((2, 8)))
    numbers = tuple(range(8))
    one = Arm("x", tuple((float(v),) for v in a), "us", blocks=numbers, experiment="Monday")
    other = Arm("y", tuple((float(v),) for v in b), "us", blocks=numbers, experiment="Tuesday")
    assert verdict(one, other).method.startswith("Mann-Whitney")
