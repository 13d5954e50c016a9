"""tok/s, a step's time and the draft's width of one stream: V5 of the cases, what makes it hold, and what never can.

Without these two figures of different runs would be taken for one stream's, and explained.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_explain import R18, SERVER, runs

from sglang_probe import InputError
from sglang_probe._explain.explain import explain
from sglang_probe._explain.given import read_given
from sglang_probe._explain.stream import Stream, check_stream
from sglang_probe._explain.types import Explanation, Word

V5: dict[str, Any] = {"before": ["19ms", "89tok/s"], "after": ["29ms", "82tok/s"], "launch": R18}


def ask(**changes: Any) -> Explanation:
    return explain(**(V5 | SERVER | changes))


def test_v5_is_named_as_inconsistent_and_the_accepted_length_is_asked_for() -> None:
    found = ask()
    assert found.word is Word.INCONSISTENT
    assert found.sentence == (
        "INCONSISTENT: 89 tok/s with a step of 19 ms before, and 82 tok/s with a step of 29 ms after, cannot be of one stream of 3 "
        "draft tokens unless the accepted length rose"
    )
    assert "1.69 tokens a step before and 2.38 after" in found.reason and "--accepted" in found.reason
    assert found.experiment == "" and any("--accepted" in text for text in found.missing)


def test_v5_holds_where_the_accepted_length_rose_and_only_then() -> None:
    rose = ask(accepted=(1.8, 2.6))
    assert rose.word is Word.CANNOT_UNREACHABLE
    assert "beside the verify step a cycle took 1.23 ms before and 2.71 ms after" in rose.findings
    for accepted in (2.5, (2.6, 2.5)):
        stayed = ask(accepted=accepted)
        assert stayed.word is Word.INCONSISTENT and "unless the accepted length rose" in stayed.sentence


def test_an_accepted_length_that_one_side_cannot_have_had_is_named_with_its_side() -> None:
    found = ask(accepted=(1.2, 2.6))
    assert found.word is Word.INCONSISTENT and "(before)" in found.sentence and "accepted length of 1.2" in found.sentence


def test_without_speculation_89_and_82_are_of_another_stream_and_nothing_is_wrong() -> None:
    found = explain("19ms", "29ms", plain_before="89tok/s", plain_after="82tok/s", launch=R18, **SERVER)
    assert found.word is Word.CANNOT_UNREACHABLE
    # The hunt's own speculative rates do fit its steps.
    fits = ask(before=["19ms", "94tok/s"], after=["29ms", "59tok/s", "61tok/s"])
    assert fits.word is Word.CANNOT_UNREACHABLE and any(
        "1.79 tokens a step before and 1.74 after" in text for text in fits.findings
    )


def test_more_tokens_than_a_step_has_are_never_of_one_stream() -> None:
    found = ask(before=["19ms", "200tok/s"], after=["29ms", "100tok/s"])
    assert found.word is Word.INCONSISTENT and "200 tok/s with a step of 19 ms (before)" in found.sentence
    wider = ask(
        before=["19ms", "200tok/s"], after=["29ms", "131tok/s"], draft_tokens=4, launch=R18.replace("num-steps 2", "num-steps 3")
    )
    assert wider.word is not Word.INCONSISTENT
    plain = ask(before=None, after=None, plain_before=V5["before"], plain_after=V5["after"])
    assert plain.word is Word.INCONSISTENT and "one token (no speculation)" in plain.sentence


def test_a_tree_of_drafts_accepts_no_more_than_its_depth() -> None:
    launch = R18.replace("--speculative-num-draft-tokens 3", "--speculative-num-draft-tokens 8").replace("topk 1", "topk 4")
    with pytest.raises(InputError, match="accepts at most 3"):
        ask(launch=launch, accepted=4)


def test_the_mirror_of_v5_asks_whether_the_accepted_length_fell() -> None:
    found = ask(before=V5["after"], after=V5["before"])
    assert found.word is Word.INCONSISTENT and "unless the accepted length fell" in found.sentence


@pytest.mark.parametrize("accepted", [0.5, True, "2", (1, 2, 3), (2, None)])
def test_what_is_no_accepted_length_is_refused_by_name(accepted: Any) -> None:
    with pytest.raises(InputError) as caught:
        ask(accepted=accepted)
    assert caught.value.field == "accepted"


# ------------------------------------------------------------------------------------------------------------------------- any stream


def checked(rates: tuple[float, float], steps: tuple[float, float], width: int, accepted: Any = (None, None)) -> Stream:
    sides = [read_given([f"{rate:.9f}tok/s", f"{ms:.9f}ms"], "before") for rate, ms in zip(rates, steps, strict=True)]
    return check_stream((sides[0]["rate"], sides[1]["rate"]), (sides[0]["step"], sides[1]["step"]), width, 1, accepted)


STEPS = st.floats(1, 100)
RESTS = st.floats(0, 50)


@given(STEPS, STEPS, RESTS, st.integers(1, 8), st.floats(0, 1))
def test_what_one_stream_really_gave_is_never_called_inconsistent(
    was: float, now: float, rest: float, width: int, share: float
) -> None:
    length = 1 + share * (width - 1)
    rates = (1e3 * length / (was + rest), 1e3 * length / (now + rest))
    assert not checked(rates, (was, now), width).problem
    assert not checked(rates, (was, now), width, (length, length)).problem


@given(STEPS, st.floats(1.1, 3), st.integers(1, 8))
def test_more_than_the_width_in_no_time_beside_the_step_is_always_named(step: float, more: float, width: int) -> None:
    rate = 1e3 * width * more / step
    assert checked((rate, rate), (step, step), width).problem


@given(STEPS, st.floats(0.3, 3), st.floats(0.3, 3), RESTS, RESTS)
def test_a_length_that_a_stream_really_had_is_never_called_too_short_for_it(
    was: float, more: float, length: float, one: float, other: float
) -> None:
    now, lengths = was * more, (1 + length, 1 + length * more)
    rates = (1e3 * lengths[0] / (was + one), 1e3 * lengths[1] / (now + other))
    found = checked(rates, (was, now), 16, lengths)
    assert not found.problem or "unless the accepted length" in found.problem


def test_measured_runs_count_with_all_of_their_spread() -> None:
    sides = [read_given([*runs(19), "89tok/s"], "before"), read_given([*runs(29), "82tok/s"], "after")]
    low, high = sides[0]["step"].ends
    assert (low, high) == pytest.approx((18.895, 19.105)), "the least and the most, and their rounding"
    assert sides[0]["rate"].ends == (88.5, 89.5)
