"""An experiment without processes: its order, its looks, what ends it, and how often it says that equal arms differ.

Invariant: sides are simulated, so that thousands of runs take seconds; what real ones do is tested in test_ab_commands.py and others.
"""

from __future__ import annotations

from collections import Counter
from time import monotonic
from typing import Any

import pytest
from ab_sides import Machine, experiment, gave, noisy

from sglang_probe._ab.experiment import FINAL
from sglang_probe._ab.order import order_of
from sglang_probe._ab.rule import Fixed, Sequential
from sglang_probe._ab.runs import WARM_UP, judged
from sglang_probe._ab.seen import Seen
from sglang_probe._ab.sides import Outcome

# ------------------------------------------------------------------------------------------------------------------------- order


@pytest.mark.parametrize("seed", range(20))
def test_each_arm_is_as_often_first_as_second(seed: int) -> None:
    for group in range(10):
        firsts = Counter(order_of(4 * group + i, seed)[0] for i in range(4))
        assert firsts == {"a": 2, "b": 2}
    assert all(sorted(order_of(block, seed)) == ["a", "b"] for block in range(40))


def test_the_order_is_drawn_and_not_a_pattern() -> None:
    groups = Counter("".join(order_of(4 * group + i, seed)[0] for i in range(4)) for seed in range(50) for group in range(12))
    assert len(groups) == 6  # all that are balanced
    assert min(groups.values()) > 600 / 6 / 2 and max(groups.values()) < 600 / 6 * 2
    following = Counter((order_of(3, seed)[0], order_of(4, seed)[0]) for seed in range(400))
    assert min(following.values()) > 60  # no group follows from the one before


def test_the_order_is_that_of_the_seed_and_another_seed_has_another() -> None:
    orders = {seed: "".join(order_of(block, seed)[0] for block in range(40)) for seed in range(10)}
    assert orders == {seed: "".join(order_of(block, seed)[0] for block in range(40)) for seed in range(10)}
    assert len(set(orders.values())) == 10


def test_runs_are_made_in_that_order_and_judged_with_their_block_and_place() -> None:
    found, book, view = experiment(noisy(100, 0.1, 1), noisy(100, 0.1, 2), runs=8, seed=3)
    assert found.run() in ("runs", "decided")
    assert [run.arm for run in book.found.runs[:2]] == ["a", "b"] and {run.block for run in book.found.runs[:2]} == {WARM_UP}
    runs = judged(book.found.runs)
    assert [run.arm for run in runs[:16]] == [arm for block in range(8) for arm in order_of(block, 3)]
    a, b = found.arms()
    assert a.blocks == b.blocks == tuple(range(8)) and sorted((*a.order, *b.order)) == list(range(16))
    assert a.clock == b.clock != "" and a.experiment == b.experiment != ""
    assert view.begun[:3] == ["warming up, a", "warming up, b", f"block 1, {order_of(0, 3)[0]}"] and view.blocks == 8


# -------------------------------------------------------------------------------------------------------------------------- ends


def test_a_large_difference_ends_it_long_before_the_budget() -> None:
    found, book, _ = experiment(noisy(100, 0.01, 1), noisy(150, 0.01, 2), runs=200)
    assert found.run() == "decided"
    looks = book.found.looks
    assert looks[-1]["word"] == "SLOWER" and all(look["word"] == "UNDECIDED" for look in looks[:-1])
    assert len(judged(book.found.runs)) // 2 == looks[-1]["blocks"] < 20


def test_equal_arms_are_shown_to_be_the_same_where_their_noise_allows() -> None:
    found, book, _ = experiment(noisy(100, 0.002, 1), noisy(100, 0.002, 2), runs=200)
    assert found.run() == "decided" and book.found.looks[-1]["word"] == "SAME"


def test_it_is_looked_at_where_the_rule_said_and_nowhere_else() -> None:
    rule = Sequential(40, 0.95, 0.02, "lower")
    found, book, _ = experiment(noisy(100, 0.3, 1), noisy(100, 0.3, 101), rule=rule, runs=40)
    assert found.run() == "runs"
    assert [look["blocks"] for look in book.found.looks] == list(rule.plan.schedule)


def test_a_rule_that_never_looks_makes_all_runs() -> None:
    found, book, _ = experiment(noisy(100, 0.01, 1), noisy(200, 0.01, 2), rule=Fixed(9, 0.95, 0.02, "lower"), runs=9)
    assert found.run() == "runs" and len(judged(book.found.runs)) == 18 and not book.found.looks


def test_a_budget_of_time_ends_it_with_one_last_look() -> None:
    found, book, _ = experiment(noisy(100, 0.01, 1), noisy(150, 0.01, 2), runs=10_000)
    for _ in range(7):  # before the first look of so many runs
        found._one_block()
    found._deadline = 0.0
    assert found.run() == "time" and [look["blocks"] for look in book.found.looks] == [7]
    assert book.found.looks[0]["word"] == "SLOWER" and "time" in FINAL


def test_a_budget_of_time_that_is_over_at_once_says_so() -> None:
    found, book, _ = experiment(noisy(100, 0.01, 1), noisy(150, 0.01, 2), deadline=0.0, warm_up=0)
    assert found.run() == "time" and not book.found.runs and "after 0 runs" in found.stopped


def test_a_block_that_would_not_fit_into_the_time_is_not_begun() -> None:
    slow = 1e6
    arms = (lambda number, figure=figure: Outcome((figure,), wall_s=slow) for figure in (1.0, 2.0))
    found, book, _ = experiment(*arms, deadline=monotonic() + 3600)
    assert found.run() == "time" and len(book.found.runs) == 2  # those that warmed up


# ---------------------------------------------------------------------------------------------------------------------- failures


def broken(every: int) -> Any:
    good = noisy(100, 0.1, 7)
    return lambda number: Outcome(failed="it broke") if number % every == 0 else good(number)


def test_a_run_that_fails_is_kept_and_told_and_its_block_is_not_judged() -> None:
    calls = iter(range(1000))
    good = noisy(100, 0.1, 8)
    b = lambda number: Outcome(failed="it broke") if next(calls) == 3 else good(number)  # noqa: E731
    found, book, view = experiment(noisy(100, 0.1, 9), b, runs=10)
    assert found.run() == "runs"
    (failed,) = [run for run in book.found.runs if run.failed]
    assert failed.arm == "b" and view.told == [f"run {failed.number + 1} (b, block {failed.block + 1}) failed: it broke"]
    runs = judged(book.found.runs)
    assert len(runs) == 20 and failed.block not in {run.block for run in runs}
    kept = [run for run in book.found.runs if run.block == failed.block and run.figures]
    assert len(kept) == (
        order_of(failed.block, 0)[0] == "a"
    )  # what came before it in its block is kept, and nothing is run after it


def test_too_many_failures_end_it_with_the_arm_and_the_run_named() -> None:
    found, book, _ = experiment(noisy(100, 0.1, 1), broken(3), runs=50)
    assert found.run() == "failures"
    failed = [run for run in book.found.runs if run.failed]
    assert len(failed) == 3 and {run.arm for run in failed} == {"b"}
    assert found.stopped.startswith("b failed 3 times, the last time in run ") and found.stopped.endswith(": it broke")


def test_an_arm_that_never_succeeds_ends_it_at_once() -> None:
    found, book, _ = experiment(noisy(100, 0.1, 1), lambda number: Outcome(failed="no such file"), failures=9)
    assert found.run() == "failures" and len(book.found.runs) == 3 and "b failed 2 times" in found.stopped


def test_what_failed_in_an_earlier_call_does_not_end_this_one() -> None:
    found, book, view = experiment(noisy(100, 0.1, 1), broken(3), runs=50)
    assert found.run() == "failures"
    again, _, _ = experiment(noisy(100, 0.1, 1), noisy(100, 0.1, 3), runs=12)
    again._book = book
    again._block = again._next_block()
    assert again.run() in ("runs", "decided")


# ------------------------------------------------------------------------------------------------------------------------ states


def test_an_undeclared_variable_ends_it_before_the_budget_is_spent() -> None:
    def with_env(**env: str) -> Any:
        seen = Seen(1, {name: (value,) for name, value in env.items()})
        return lambda number: gave(100.0 + number % 3, seen=seen)

    found, book, _ = experiment(with_env(NCCL_ALGO="Ring"), with_env(), runs=50)
    assert found.run() == "states" and "NCCL_ALGO is Ring in a, and not set in b" in found.stopped
    assert len(book.found.runs) == 4  # those that warmed up, and one block
    allowed, _, _ = experiment(with_env(NCCL_ALGO="Ring"), with_env(), runs=12)
    allowed._allow = ("NCCL_ALGO",)
    assert allowed.run() in FINAL


# --------------------------------------------------------------------------------------------------------------------- false words


def test_equal_arms_are_told_apart_less_often_than_the_rule_allows() -> None:
    """Of 300 experiments of at most 24 runs an arm, 5 % are 15; over 26 would come by chance in one of 500."""
    words: Counter[str] = Counter()
    for trial in range(300):
        found, book, _ = experiment(
            noisy(100, 0.05, 2 * trial), noisy(100, 0.05, 2 * trial + 1), runs=24, seed=trial, machine=Machine(), warm_up=0
        )
        found.run()
        words[str(book.found.looks[-1]["word"])] += 1
    assert words["FASTER"] + words["SLOWER"] <= 26, words
    assert words["UNDECIDED"] > 200


def test_what_drifts_is_no_difference_of_equal_arms() -> None:
    """Each run is 1 % slower than the one before: the order puts that on both arms."""
    words: Counter[str] = Counter()
    for trial in range(200):
        a, b = noisy(1, 0.02, 2 * trial), noisy(1, 0.02, 2 * trial + 1)
        drift = [lambda number, side=side: gave(side(number).figures[0] * 1.01**number) for side in (a, b)]
        found, book, _ = experiment(drift[0], drift[1], runs=16, seed=trial, warm_up=0)
        found.run()
        words[str(book.found.looks[-1]["word"])] += 1
    assert words["FASTER"] + words["SLOWER"] <= 18, words  # 5 % are 10


def test_a_difference_is_found_in_most_experiments() -> None:
    found_it = 0
    for trial in range(60):
        found, book, _ = experiment(noisy(100, 0.02, 2 * trial), noisy(95, 0.02, 2 * trial + 1), runs=24, seed=trial, warm_up=0)
        found.run()
        found_it += book.found.looks[-1]["word"] == "FASTER"
    assert found_it >= 54
