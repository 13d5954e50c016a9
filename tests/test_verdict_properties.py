"""What holds of every verdict: it does not depend on the unit, on who is called a, or on luck; its word and its interval agree."""

from __future__ import annotations

import math
import pickle

from hypothesis import given
from hypothesis import strategies as st

from sglang_probe._verdict.arm import Arm
from sglang_probe._verdict.verdict import Verdict, Word, verdict

OTHER = {Word.FASTER: Word.SLOWER, Word.SLOWER: Word.FASTER, Word.SAME: Word.SAME, Word.UNDECIDED: Word.UNDECIDED}
figures = st.floats(0.5, 2.0).map(lambda value: round(value, 4))
close = st.floats(0.995, 1.005)
values = st.lists(figures, min_size=1, max_size=14) | st.lists(close, min_size=4, max_size=14)
shifts = st.sampled_from((1.0, 1.003, 1.02, 1.2, 3.0))


@st.composite
def arms(draw: st.DrawFn) -> tuple[Arm, Arm]:
    """Two arms, in blocks or not, with iterations or not."""
    a, b, shift = draw(values), draw(values), draw(shifts)
    count = draw(st.sampled_from((1, 1, 9, 20)))
    blocks = draw(st.booleans())
    made = []
    for label, arm, by in (("a", a, 1.0), ("b", b, shift)):
        processes = tuple(tuple(value * by * (1 + 0.001 * (i * 7 % 5)) for i in range(count)) for value in arm)
        made.append(Arm(label, processes, "us", blocks=tuple(range(len(arm))) if blocks else ()))
    return made[0], made[1]


def agrees(found: Verdict) -> bool:
    """The word is what its interval says."""
    below, above, limit = found.high < 0, found.low > 0, found.margin
    if found.word is Word.FASTER:
        return below
    if found.word is Word.SLOWER:
        return above
    if found.word is Word.SAME:
        return 1 / (1 + limit) - 1 < found.low and found.high < limit and math.isclose(found.level, 2 * found.confidence - 1)
    return True


@given(arms())
def test_word_interval_and_effect_agree(pair: tuple[Arm, Arm]) -> None:
    found = verdict(*pair)
    assert agrees(found)
    assert found.low <= found.effect <= found.high and 0 <= found.p <= 1
    assert found.sentence.startswith(f"{found.word}: ") and found.reason
    assert (found.runs_needed is None) or (found.word is Word.UNDECIDED and found.runs_needed > max(len(found.a), len(found.b)))
    if found.word in (Word.FASTER, Word.SLOWER):
        assert found.p <= 0.05 and min(len(found.a), len(found.b)) >= 2
    assert str(found) and found.why()


@given(arms())
def test_swapping_the_arms_swaps_the_word(pair: tuple[Arm, Arm]) -> None:
    one, other = verdict(*pair), verdict(Arm("a", *_rest(pair[1])), Arm("b", *_rest(pair[0])))
    assert other.word is OTHER[one.word]
    assert math.isclose((1 + one.effect) * (1 + other.effect), 1, rel_tol=1e-9)
    assert math.isclose(one.p, other.p, rel_tol=1e-9)
    if math.isfinite(one.high):
        assert math.isclose((1 + one.high) * (1 + other.low), 1, rel_tol=1e-9)
    if one.runs_needed is None or other.runs_needed is None:
        assert one.runs_needed is other.runs_needed
    else:  # simulated intervals are not quite symmetric
        assert abs(one.runs_needed - other.runs_needed) <= max(2, one.runs_needed // 4)


def _rest(arm: Arm) -> tuple[tuple[tuple[float, ...], ...], str, str, tuple[int, ...], tuple[int, ...]]:
    return arm.processes, arm.unit, arm.origin, arm.order, arm.blocks


@given(arms(), st.sampled_from((1e-3, 0.1, 7.0, 1e6)))
def test_another_scale_is_the_same_verdict(pair: tuple[Arm, Arm], scale: float) -> None:
    def scaled(arm: Arm) -> Arm:
        return Arm(arm.label, tuple(tuple(v * scale for v in p) for p in arm.processes), "us", blocks=arm.blocks)

    one, other = verdict(*pair), verdict(*map(scaled, pair))
    rounded = any(
        finding.kind == "ties" for finding in (*one.findings, *other.findings)
    )  # told by digits, which a scale may change
    assert one.word is other.word or rounded
    assert math.isclose(one.effect, other.effect, rel_tol=1e-7, abs_tol=1e-9)
    assert math.isclose(one.low, other.low, rel_tol=1e-7, abs_tol=1e-9)


@given(arms())
def test_higher_for_lower_swaps_the_word_alone(pair: tuple[Arm, Arm]) -> None:
    one, other = verdict(*pair, better="lower"), verdict(*pair, better="higher")
    assert other.word is OTHER[one.word] and (one.effect, one.low, one.high, one.p) == (
        other.effect,
        other.low,
        other.high,
        other.p,
    )


@given(arms())
def test_the_same_arms_get_the_same_verdict_again_and_it_travels(pair: tuple[Arm, Arm]) -> None:
    found = verdict(*pair)
    assert verdict(*pair) == found
    assert pickle.loads(pickle.dumps(found)) == found


@given(arms(), st.integers(0, 3))
def test_the_order_of_runs_that_are_independent_is_nothing(pair: tuple[Arm, Arm], turn: int) -> None:
    def turned(arm: Arm) -> Arm:
        processes = arm.processes[turn:] + arm.processes[:turn]
        return Arm(arm.label, processes, "us", blocks=arm.blocks[turn:] + arm.blocks[:turn])

    one, other = verdict(*pair), verdict(*map(turned, pair))
    assert (one.word, one.p) == (other.word, other.p) and math.isclose(one.effect, other.effect, abs_tol=1e-12)


@given(st.lists(figures, min_size=1, max_size=12))
def test_an_arm_against_itself_is_never_a_difference(one: list[float]) -> None:
    found = verdict(one, one, unit="us")
    assert found.word in (Word.SAME, Word.UNDECIDED) and found.effect == 0
