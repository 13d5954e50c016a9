"""Device times by pairs of events, over a CUDA that is counted here. Invariant: an event is asked only where no stream captures."""

from __future__ import annotations

from typing import Any

import pytest

from sglang_probe.hook.timing import PAIRS, Timer


class Event:
    made = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        Event.made += 1
        self.at = 0.0
        self.done = False

    def record(self) -> None:
        Cuda.now += 1.5
        self.at, self.done = Cuda.now, False

    def query(self) -> bool:
        assert not Cuda.capturing
        return self.done

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


class Cuda:
    Event = Event
    capturing = False
    now = 0.0

    @classmethod
    def is_current_stream_capturing(cls) -> bool:
        return cls.capturing


class Told:
    def __init__(self) -> None:
        self.times: list[tuple[int, int]] = []

    def timed(self, seq: int, device_ns: int) -> bool:
        self.times.append((seq, device_ns))
        return True


@pytest.fixture
def timer() -> Any:
    Event.made, Cuda.capturing, Cuda.now = 0, False, 0.0
    made = Timer(Told(), Cuda)  # type: ignore[arg-type]
    made.told = made._recorder  # type: ignore[attr-defined]
    return made


def test_a_time_is_told_with_a_later_call_and_its_events_are_used_again(timer: Any) -> None:
    for seq in range(1, 101):
        token = timer(None)
        assert token is not None
        assert timer(token, seq) is None
        token[1].done = True
    assert timer.told.times == [(seq, 1_500_000) for seq in range(1, 100)]
    assert Event.made == 2


def test_what_is_not_done_is_waited_for_by_nobody(timer: Any) -> None:
    tokens = []
    for seq in range(PAIRS):
        tokens.append(timer(None))
        timer(tokens[-1], seq)
    assert timer(None) is None and timer.told.times == [] and Event.made == 2 * PAIRS
    tokens[0][1].done = tokens[2][1].done = True
    assert timer(None) is not None
    assert [seq for seq, _ in timer.told.times] == [0]  # in order: the second one is not done


def test_calls_that_raised_do_not_use_up_the_timer(timer: Any) -> None:
    for _ in range(2 * PAIRS):
        assert timer(None) is not None  # and nothing after it
    timer(timer(None), 1)
    timer._running[0][1][1].done = True
    assert timer(None) is not None and timer.told.times == [(1, 1_500_000)]


def test_nothing_is_asked_or_recorded_while_the_stream_captures(timer: Any) -> None:
    timer(timer(None), 1)
    Cuda.capturing = True
    assert timer(None) is None and timer.told.times == []
