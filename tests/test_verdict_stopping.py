"""Looks at a growing experiment: fixed beforehand, their error accounted for, refused where they are not due."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_probe._types import InputError
from sglang_probe._verdict.arm import Arm
from sglang_probe._verdict.stopping import Plan
from sglang_probe._verdict.verdict import Word, verdict


def arms(blocks: int, effect: float = 0.0, seed: int = 1, size: int = 1, spread: float = 0.02) -> tuple[Arm, Arm]:
    random = np.random.default_rng(seed)
    numbers = tuple(i // size for i in range(blocks * size))
    machine = np.linspace(0, 0.3, blocks).repeat(size)
    made = []
    for label, more in (("a", 0.0), ("b", effect)):
        logs = machine + more + spread * random.standard_normal(blocks * size)
        made.append(Arm(label, tuple((float(v),) for v in 10 * np.exp(logs)), "us", blocks=numbers))
    return made[0], made[1]


@given(st.integers(1, 300), st.integers(1, 10), st.floats(0.6, 0.999), st.integers(1, 3))
def test_the_looks_spend_no_more_than_there_is(blocks: int, looks: int, confidence: float, size: int) -> None:
    plan = Plan(blocks, looks, confidence, size=size)
    assert plan.schedule[-1] == blocks and list(plan.schedule) == sorted(set(plan.schedule)) and len(plan.schedule) <= looks
    spent = [plan.alpha(look) for look in range(len(plan.schedule))]
    assert sum(spent) == pytest.approx(1 - confidence) and min(spent) > 0
    assert [n for n in range(1, blocks + 1) if plan.due(n)] == list(plan.schedule)
    if len(plan.schedule) > 1:  # an early look that could say nothing would have been paid for nothing
        assert plan.schedule[0] >= plan.least(spent[0])


def test_a_large_effect_ends_at_the_first_look_and_a_small_one_later() -> None:
    plan = Plan(60)
    first = plan.schedule[0]
    found = plan.look(*arms(first, 0.2))
    assert found.word is Word.SLOWER and found.confidence == 0.95 and found.level == pytest.approx(1 - plan.alpha(0))
    assert f"95 % interval over {len(plan.schedule)} looks" in found.sentence
    assert plan.look(*arms(first, 0.01)).word is Word.UNDECIDED
    assert plan.look(*arms(60, 0.02)).word is Word.SLOWER


def test_same_is_found_over_looks_too() -> None:
    plan = Plan(60)
    found = plan.look(*arms(23, spread=0.005))
    assert found.word is Word.SAME and f"90 % interval over {len(plan.schedule)} looks" in found.sentence


def test_a_look_is_stricter_than_a_verdict_that_is_asked_once() -> None:
    plan = Plan(60)
    a, b = arms(9, 0.0)
    once, look = verdict(a, b), plan.look(a, b)
    assert look.low < once.low <= once.high < look.high


def test_what_is_no_look_is_refused_with_those_that_are() -> None:
    plan = Plan(60)
    with pytest.raises(InputError, match="the looks are after 9, 14, 23, 37, 60 blocks"):
        plan.look(*arms(10))
    with pytest.raises(InputError, match="nothing is left to spend"):
        plan.look(*arms(61), last=True)
    a, b = arms(9)
    with pytest.raises(InputError, match="no block has both arms"):
        plan.look(a, Arm("b", b.processes, "us"))
    with pytest.raises(InputError, match="give both in one"):
        plan.look(a, Arm("b", b.processes, "ms", blocks=b.blocks))


def test_a_budget_that_ends_early_spends_what_later_looks_would_have() -> None:
    plan = Plan(60)
    found = plan.look(*arms(20, 0.05), last=True)
    assert found.level == pytest.approx(1 - sum(plan.alpha(look) for look in range(2, 5)))
    assert found.word is Word.SLOWER
    too_few = plan.look(*arms(3, 0.5), last=True)
    assert too_few.word is Word.UNDECIDED and too_few.runs_needed is not None


def test_blocks_of_two_runs_of_each_are_compared_within_blocks() -> None:
    plan = Plan(12, size=2)
    found = plan.look(*arms(12, 0.06, size=2))
    assert found.word is Word.SLOWER and found.method.startswith("Mann-Whitney within blocks")


@pytest.mark.parametrize(
    ("name", "value"), [("max_blocks", 0), ("looks", 0), ("looks", 2.5), ("size", 0), ("confidence", 1), ("margin", 0)]
)
def test_a_plan_that_makes_no_sense_is_refused(name: str, value: float) -> None:
    with pytest.raises(InputError):
        Plan(**{"max_blocks": 10, name: value})  # type: ignore[arg-type]
