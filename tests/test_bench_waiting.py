"""Wait apart from transfer: what a planted delay gives, clocks that are apart and drift, and what is refused.

The arithmetic is tested with stamps that are made of known times; CPU ranks then stamp real calls, and their own stamps say what must come
out: no time is asserted. Invariant: an error that is stated is never smaller than the error that was made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sglang_probe import Coordinator, InputError, LocalGroup, ProbeError, ProbeUnavailable
from sglang_probe._bench.targets import TARGETS
from sglang_probe._bench.waiting import AFTER, BEFORE, ENTER, LEFT, MET, Alignment, Stamped, split, stamp_calls
from sglang_probe._measure.cell import Cell

# ----------------------------------------------------------------------------------------------------------------- stamps of known times


@dataclass(frozen=True)
class Clock:
    """What a rank's clock shows, of true microseconds: ahead by `ahead_us`, gaining `gain` of a second a second, one jump."""

    ahead_us: int = 0
    gain: float = 0.0
    jumps_at_us: float = 0.0
    jump_us: float = 0.0

    def offset_us(self, us: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.ahead_us + us * self.gain + self.jump_us * (us >= self.jumps_at_us)

    def ns(self, us: NDArray[np.float64]) -> NDArray[np.uint64]:
        """Its count starts at some whole number, as that of a device that is set to the time of day."""
        shown = np.rint((us * (1 + self.gain) + self.jump_us * (us >= self.jumps_at_us)) * 1e3).astype(np.int64)
        return (shown + 1_790_000_000_000_000_000 + self.ahead_us * 1000).astype(np.uint64)


@dataclass(frozen=True)
class Known:
    """True times of calls, in us: [rank, call] when a rank came to it, and when it left."""

    came: NDArray[np.float64]
    left: NDArray[np.float64]

    def stamped(
        self,
        clocks: list[Clock],
        *,
        inside: bool,
        wrong_us: NDArray[np.float64] | float = 0.0,
        error_us: float = 0.0,
        stamp_us: float = 0.0,
        crossing_us: float = 0.0,
    ) -> list[Stamped]:
        """By clocks that are compared at five times around and between the calls; `wrong_us` [rank, time] is how wrong they were. A flag
        takes `crossing_us` to be seen, and calls that nobody is late for come a quarter of that apart."""
        at = np.linspace(self.came.min() - 1000, self.left.max() + 1000, 5)
        met = self.met(self.came, crossing_us)
        even = np.arange(8) * 100.0 + np.arange(len(clocks))[:, None] * crossing_us / 4
        even_met = self.met(even, crossing_us)
        offsets = np.array([clock.offset_us(at) - clocks[0].offset_us(at) for clock in clocks]) + wrong_us
        errors = (0.0, *(error_us,) * (len(clocks) - 1))
        answers = []
        for rank, clock in enumerate(clocks):
            ns = np.zeros((self.came.shape[1], 5), np.uint64)
            ns[:, BEFORE], ns[:, AFTER] = clock.ns(self.came[rank]), clock.ns(self.left[rank] + stamp_us)
            even_ns = np.zeros((even.shape[1], 5), np.uint64)
            if inside:
                ns[:, ENTER], ns[:, MET], ns[:, LEFT] = (clock.ns(one) for one in (self.came[rank], met[rank], self.left[rank]))
                even_ns[:, ENTER], even_ns[:, MET] = clock.ns(even[rank]), clock.ns(even_met[rank])
            times = [int(one) for one in clock.ns(at)]
            alignments = tuple(
                Alignment(time, tuple(column), errors) for time, column in zip(times, offsets.T.tolist(), strict=True)
            )
            answers.append(Stamped(rank, ns, alignments, "", stamp_us, even_ns))
        return answers

    @staticmethod
    def met(came: NDArray[np.float64], crossing_us: float) -> NDArray[np.float64]:
        """[rank, call]: when a rank has seen all others' flags; its own is there at once."""
        seen = came[:, None, :] + crossing_us * (1 - np.eye(len(came)))[:, :, None]
        return np.array(seen.max(axis=0))


def known(late_us: tuple[float, ...], calls: int = 20, moves_us: float = 8.0, every_us: float = 2000.0) -> Known:
    """Each rank comes late by as much; all leave together."""
    start = np.arange(calls) * every_us
    came = start + np.array(late_us)[:, None]
    return Known(came, np.broadcast_to(came.max(axis=0) + moves_us, came.shape).copy())


def test_a_planted_delay_is_told_as_waiting_and_the_rest_as_transfer() -> None:
    for inside in (True, False):
        told = split(known((0.0, 48.9)).stamped([Clock()] * 2, inside=inside))
        assert told.own_clock is inside
        assert np.allclose(told.wait_us[0], 48.9, atol=2e-3) and np.allclose(told.wait_us[1], 0, atol=2e-3)
        assert np.allclose(told.transfer_us[0], 8, atol=2e-3) and np.allclose(told.transfer_us[1], 8, atol=2e-3)
        assert told.error_us == 0 and set(told.last) == {1}
        assert str(told) == "rank 0 waits 48.9 us of 56.9 for rank 1"


@given(late=st.lists(st.floats(0, 1000), min_size=2, max_size=4), crossing=st.floats(0.05, 6), ahead=st.integers(0, 1 << 40))
def test_what_a_flag_takes_to_cross_is_transfer_and_no_wait(late: list[float], crossing: float, ahead: int) -> None:
    times = known(tuple(late), moves_us=20.0)
    told = split(times.stamped([Clock(ahead * rank) for rank in range(len(late))], inside=True, crossing_us=crossing))
    assert told.crossing_us == pytest.approx(crossing, abs=3e-3) and told.error_us == told.crossing_us
    for rank, one in enumerate(late):
        assert np.abs(told.wait_us[rank] - (max(late) - one)).max() <= 0.01
        assert np.abs(told.transfer_us[rank] - 20).max() <= 0.01


def test_ranks_that_are_never_even_have_too_long_a_crossing_and_say_how_far_off_that_may_be() -> None:
    answers = known((0.0, 48.9)).stamped([Clock()] * 2, inside=True, crossing_us=1.0)
    late = answers[1].even_ns.copy()
    late[:, ENTER] += np.uint64(10_000)
    late[:, MET] = late[:, ENTER]
    early = answers[0].even_ns.copy()
    early[:, MET] = late[:, ENTER] + np.uint64(1_000)
    told = split([replace(answers[0], even_ns=early), replace(answers[1], even_ns=late)])
    assert told.crossing_us > 1 and np.abs(told.wait_us[0] - 48.9).max() <= told.error_us


def test_what_stamps_cost_is_no_transfer() -> None:
    answers = known((0.0, 5.0)).stamped([Clock()] * 2, inside=False, stamp_us=1.5)
    told = split(answers)
    assert np.allclose(told.transfer_us[0], 8, atol=2e-3) and told.stamp_us == 1.5
    assert split(known((0.0, 5.0)).stamped([Clock()] * 2, inside=True, stamp_us=1.5)).stamp_us == 0


def test_clocks_hours_apart_that_drift_give_the_same_waits() -> None:
    clocks = [Clock(gain=3e-6), Clock(-7_200_000_000, gain=-2e-5), Clock(3_600_000_000, gain=8e-6)]
    told = split(known((0.0, 48.9, 10.0)).stamped(clocks, inside=False, error_us=0.25))
    for rank, late in enumerate((0.0, 48.9, 10.0)):
        assert np.allclose(told.wait_us[rank], 48.9 - late, atol=0.01)
    assert told.error_us == pytest.approx(0.5, abs=0.01), "two clocks, each within a quarter of a microsecond of rank 0's"
    assert told.drift_us_s == pytest.approx((0, -23, 5), abs=0.1)
    assert str(told) == "rank 0 waits 48.9 us of 56.9 for rank 1, within 0.5 us"


LATE = st.lists(st.floats(0, 1000), min_size=2, max_size=4)
GAINS = st.lists(st.floats(-1e-4, 1e-4), min_size=4, max_size=4)
AHEAD = st.lists(st.integers(-1 << 40, 1 << 40), min_size=4, max_size=4)


@given(late=LATE, gain=GAINS, ahead=AHEAD, error=st.floats(0, 3), seed=st.integers(0, 1 << 32))
def test_clocks_that_drift_and_are_compared_within_an_error_give_waits_within_it(
    late: list[float], gain: list[float], ahead: list[int], error: float, seed: int
) -> None:
    clocks = [Clock(ahead[rank], gain[rank] * bool(rank)) for rank in range(len(late))]  # waits are rank 0's microseconds
    wrong = np.random.default_rng(seed).uniform(-error, error, (len(late), 5))
    wrong[0] = 0
    told = split(known(tuple(late)).stamped(clocks, inside=False, wrong_us=wrong, error_us=error))
    for rank, one in enumerate(late):
        assert np.abs(told.wait_us[rank] - (max(late) - one)).max() <= told.error_us + 0.01


@given(late=LATE, gain=GAINS, ahead=AHEAD, jump=st.floats(-50, 50), when=st.floats(0.0, 1.0))
def test_a_clock_that_jumps_makes_the_stated_error_as_large_as_the_jump(
    late: list[float], gain: list[float], ahead: list[int], jump: float, when: float
) -> None:
    times = known(tuple(late))
    clocks = [Clock(ahead[rank], gain[rank] * bool(rank)) for rank in range(len(late))]  # waits are rank 0's microseconds
    clocks[1] = replace(clocks[1], jumps_at_us=when * float(times.left.max()), jump_us=jump)
    told = split(times.stamped(clocks, inside=False))
    for rank, one in enumerate(late):
        assert np.abs(told.wait_us[rank] - (max(late) - one)).max() <= told.error_us + 0.01


def test_waits_on_a_paths_own_clock_do_not_need_the_clocks_to_be_compared() -> None:
    clocks = [Clock(), Clock(5_000_000, gain=1e-4, jumps_at_us=1.0, jump_us=300.0)]
    answers = [
        replace(one, alignments=(), unaligned="no way from GPU to GPU") for one in known((0.0, 48.9)).stamped(clocks, inside=True)
    ]
    told = split(answers)
    assert told.own_clock and told.error_us == told.crossing_us == 0 and told.drift_us_s == ()
    assert np.allclose(told.wait_us[0], 48.9, atol=2e-3)
    with pytest.raises(ProbeUnavailable, match="no way from GPU to GPU"):
        split(answers, own_clock=False)


def test_both_ways_can_be_asked_for_where_a_path_stamps_itself() -> None:
    answers = known((0.0, 48.9)).stamped([Clock(), Clock(1000)], inside=True, error_us=0.3)
    assert split(answers, own_clock=True).error_us == 0
    assert split(answers, own_clock=False).error_us == pytest.approx(0.3, abs=0.01)
    with pytest.raises(ProbeUnavailable, match="does not look inside"):
        split(known((0.0, 1.0)).stamped([Clock()] * 2, inside=False), own_clock=True)


def test_a_wait_that_is_smaller_than_its_error_is_not_told_as_one() -> None:
    told = split(known((0.0, 0.2)).stamped([Clock()] * 2, inside=False, error_us=0.5))
    assert str(told) == "no rank is seen to wait: at most 0.2 us, and that may be 0.5 us off"


def test_ranks_that_take_turns_in_being_late_are_told_with_how_often() -> None:
    came = np.array([[0.0, 0, 0, 0], [30, 30, 30, 10], [5, 5, 5, 30]]) + np.arange(4.0) * 1000
    told = split(Known(came, np.broadcast_to(came.max(axis=0) + 8, came.shape).copy()).stamped([Clock()] * 3, inside=False))
    assert told.last.tolist() == [1, 1, 1, 2]
    assert str(told) == "rank 0 waits 30 us of 38 for rank 1 (the last in 75% of calls)"


def test_the_step_of_a_clock_is_told() -> None:
    random, answers = np.random.default_rng(1), []
    for one in known((0.0, 64.0)).stamped([Clock()] * 2, inside=False):
        steps = random.integers(0, 50, one.ns.shape).astype(np.uint64) * np.uint64(32)
        answers.append(replace(one, ns=np.where(one.ns, one.ns + steps, 0)))
    assert split(answers).tick_us == 0.032


def test_what_comes_out_is_what_a_cell_takes_and_json() -> None:
    told = split(known((0.0, 48.9)).stamped([Clock()] * 2, inside=False, error_us=0.3))
    cell = Cell(
        *("pynccl_in_place", "", "", "0.5.9", "eager", "back_to_back", 0.0, "native", "host", "bf16", 1024, 2),
        device_us=(),
        host_us=(),
        checked=0,
        wrong=0,
        **told.of_cell(),
    )
    assert cell.split_error_us == told.error_us and np.array_equal(cell.wait_us[0], told.wait_us[0])
    assert json.loads(json.dumps(told.to_dict()))["last"] == [1] * 20
    assert "20 calls" in repr(told)


# ----------------------------------------------------------------------------------------------------------------------------- refused


def test_stamps_that_do_not_belong_together_are_refused() -> None:
    answers = known((0.0, 1.0)).stamped([Clock()] * 2, inside=True)
    for wrong in ([], answers[::-1], [answers[0], replace(answers[1], ns=answers[1].ns[:3])]):
        with pytest.raises(InputError, match="by_rank"):
            split(wrong)


def test_a_stamp_that_is_missing_is_no_time() -> None:
    answers = known((0.0, 1.0)).stamped([Clock()] * 2, inside=False)
    ns = answers[1].ns.copy()
    ns[4, AFTER] = 0
    with pytest.raises(ProbeError, match="rank 1: call 4 left no stamp; 1 of 20"):
        split([answers[0], replace(answers[1], ns=ns)])


def test_a_path_that_changed_in_between_is_refused() -> None:
    answers = known((0.0, 1.0)).stamped([Clock()] * 2, inside=True)
    ns = answers[1].ns.copy()
    ns[4, MET] = 0
    with pytest.raises(ProbeError, match="the path changed"):
        split([answers[0], replace(answers[1], ns=ns)])
    ns[4, MET] = ns[4, ENTER] - np.uint64(1)
    with pytest.raises(ProbeError, match="left before it entered"):
        split([answers[0], replace(answers[1], ns=ns)])


def test_two_comparisons_are_too_few_to_tell_a_straight_clock() -> None:
    answers = [replace(one, alignments=one.alignments[:2]) for one in known((0.0, 1.0)).stamped([Clock()] * 2, inside=False)]
    with pytest.raises(ProbeUnavailable, match="it takes three"):
        split(answers)


# ---------------------------------------------------------------------------------------------------------- calls of real (CPU) ranks

LATE_US = 3000.0


def stamped(
    coordinator: Coordinator, target: str, calls: int, planted_us: float | None, held: bool, captured: bool
) -> tuple[Stamped, bool]:
    """In a rank: a target's calls, and whether the tensor is still what it was."""
    coordinator.apply(TARGETS[target].settings(coordinator.settings.group))
    tensor = np.zeros(2048, np.uint16)
    mine = stamp_calls(
        coordinator, tensor, calls=calls, planted_us=planted_us, planted_on=1, synchronise=held, held=held, captured=captured
    )
    return mine, not tensor.any()


@pytest.fixture(scope="module")
def group() -> Iterator[LocalGroup]:
    with LocalGroup(2, device="host", timeout_s=60) as made:
        yield made


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("target", ["one_shot", "one_shot_push", "limit", "pynccl_in_place", "torch_distributed"])
def test_ranks_tell_a_planted_delay_as_their_own_stamps_have_it(group: LocalGroup, target: str, captured: bool) -> None:
    """On one clock for all, so what must come out is known of every single call, however busy the machine."""
    answers = group.run(stamped, target, 20, LATE_US, True, captured)
    assert all(zeros for _, zeros in answers)
    stamps = [mine for mine, _ in answers]
    ns = np.stack([one.ns for one in stamps]).astype(np.int64)
    before, after = ns[:, :, BEFORE], ns[:, :, AFTER]
    assert ns.shape == (2, 20, 5) and (np.diff(ns, axis=2) >= 0).all(), "a call's stamps are in order"
    assert ((before[1, 1:] - after[1, :-1]) / 1e3 >= LATE_US).all(), "rank 1 spun before each call"
    assert (ns[:, :, MET] >= ns[:, :, ENTER].max(axis=0)).all(), "nobody meets a rank that has not entered"

    inside, outside = split(stamps), split(stamps, own_clock=False)
    assert inside.own_clock and inside.error_us == inside.crossing_us > 0
    came_late = (ns[1, :, ENTER] - ns[0, :, ENTER]) / 1e3
    assert (inside.wait_us[0] >= came_late - inside.error_us).all()
    assert np.allclose(outside.wait_us[0], np.maximum(0, before[1] - before[0]) / 1e3, atol=1e-3)
    assert np.array_equal(outside.last, np.where(before[1] > before[0], 1, 0))
    assert outside.error_us == 0 and not any(outside.drift_us_s), "CPU ranks share a clock"
    for told in (inside, outside):
        total = told.wait_us[0] + told.transfer_us[0]
        assert (total <= (after[0] - before[0]) / 1e3 + 1e-6).all(), "the parts are no longer than the whole"


def test_ranks_can_be_stamped_as_a_server_launches_them(group: LocalGroup) -> None:
    stamps = [mine for mine, _ in group.run(stamped, "one_shot", 7, None, False, False)]
    told = split(stamps)
    assert len(told.last) == 7 and all((one >= 0).all() for one in told.wait_us)
    ns = np.stack([one.ns for one in stamps]).astype(np.int64)
    assert (np.diff(ns.reshape(2, -1), axis=1) >= 0).all(), "calls are stamped in their order"


def test_a_thousand_calls_are_stamped_in_parts(group: LocalGroup) -> None:
    stamps = [mine for mine, _ in group.run(stamped, "limit", 1000, 0.0, True, False)]
    assert all(one.ns.shape == (1000, 5) and one.ns.all() for one in stamps)
    assert all(len(one.alignments) == 7 for one in stamps), "clocks are compared before and after every part"


def wrong_values(coordinator: Coordinator) -> list[str]:
    """In a rank: the field of each InputError."""
    fields, tensor = [], np.zeros(16, np.uint16)
    for wrong in (
        {"calls": 0},
        {"calls": True},
        {"planted_us": -1.0},
        {"planted_us": 1e9},
        {"planted_us": True},
        {"planted_on": 2},
    ):
        with pytest.raises(InputError) as error:
            stamp_calls(coordinator, tensor, **wrong)
        fields.append(error.value.field)
    return fields


def test_bad_values_are_refused_before_any_call(group: LocalGroup) -> None:
    fields = group.run(wrong_values)[0]
    assert fields == ["calls", "calls", "planted_us", "planted_us", "planted_us", "planted_on"]
