"""How measuring ends where it cannot go on: ranks that are apart hear of it, a held stream is let go, and a closed Coordinator says so.

On CPU ranks, and on a device that only notes what it is asked to do. Invariant: groups have a minute, and nobody waits for its end.
"""

from __future__ import annotations

import re
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import run_ranks
from run_measuring import NEW, OLD, InPython, Recorder, of_package, on, said

from sglang_probe import Coordinator, LocalGroup, Path, ProbeError

# ---------------------------------------------------------------------------------------------------- what leaves ranks apart, and what not


def _roomless(c: Coordinator, fails_at: int, ranks: tuple[int, ...]) -> tuple[str, int, str]:
    """What enqueue raises, how many calls it told peers of, and what the next call says: the output of one call finds no memory."""
    made: list[Any] = []

    def empty_like(like: Any) -> Any:
        made.append(like)
        if c.rank in ranks and len(made) == fails_at:
            raise MemoryError("no room for this one")
        return np.empty_like(like.array)

    c.sglang, before = OLD, c.seq
    text = said(lambda: c.enqueue(of_package("roomless", empty_like), 4))
    told = c.seq - before
    return text, told, said(lambda: c.all_reduce(np.ones(64, np.float32)))


def test_no_memory_for_a_later_output_ends_the_call_that_the_peers_are_in() -> None:
    with LocalGroup(2, device="host", timeout_s=60) as group:
        zero, one = group.run(_roomless, 3, (1,))
    assert one[0] == "MemoryError: no room for this one" and one[1] == 2
    assert re.match(r"ProbeError: .*rank 1 \(pid \d+\) failed in .*: no room for this one", zero[0]) and zero[1] == 3, zero
    assert "broken" in one[2] and "broken" in zero[2]


def test_no_memory_for_the_first_output_is_as_if_nobody_had_called() -> None:
    with LocalGroup(2, device="host") as group:
        assert group.run(_roomless, 1, (0, 1)) == [("MemoryError: no room for this one", 0, "nothing")] * 2


def _failing_path(c: Coordinator) -> str:
    c.sglang = NEW
    c.set_facts(fi_workspace=True)
    c.register(Path.FLASHINFER, InPython(fails_at=2 if c.rank == 1 else 0))
    text = said(lambda: c.enqueue(run_ranks.Rank(c, "numpy").fill(), 3))
    return text if text != "nothing" else said(lambda: [c.barrier() for _ in range(2)])


def test_a_path_in_python_that_raises_in_the_middle_tells_the_peers() -> None:
    with LocalGroup(2, device="host", timeout_s=60) as group:
        zero, one = group.run(_failing_path)
    assert one == "KeyError: 'of the path in Python'", one
    assert re.match(r"ProbeError: .*rank 1 \(pid \d+\) failed in flashinfer, call 2: 'of the path in Python'", zero), zero


def _other_size(c: Coordinator) -> str:
    c.sglang = OLD
    return said(lambda: (c.enqueue(np.ones(64 * (1 + c.rank), np.float32), 3), c.wait()))


def test_ranks_that_enqueue_different_sizes_are_told_which() -> None:
    with LocalGroup(2, device="host", timeout_s=60) as group:
        for text in group.run(_other_size):
            assert text.startswith("ProbeError: ") and "256 bytes" in text and "512 bytes" in text, text


def _other_count(c: Coordinator) -> str:
    c.sglang = OLD
    c.timeout_s = 1.0 if c.rank == 1 else 60.0
    return said(lambda: (c.enqueue(np.ones(64, np.float32), 3 + c.rank), c.barrier()))


def test_a_rank_that_enqueues_more_calls_than_the_others_hears_who_did_not_come() -> None:
    with LocalGroup(2, device="host", timeout_s=60) as group:
        zero, one = group.run(_other_count)
    assert one.startswith("TimeoutError: ") and "rank 0" in one and "call 4" in one, one
    assert "rank 1" in zero, zero


def _interrupted(c: Coordinator) -> str:
    def rings(*_: object) -> None:
        raise InterruptedError("it rang")

    c.sglang = OLD
    c.custom.disabled = True  # in place: no Python code runs between two calls, which would look for signals
    if c.rank == 1:
        signal.signal(signal.SIGALRM, rings)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
    return said(lambda: c.enqueue(np.ones(64, np.float32), 10_000, 1000.0))


def test_a_signal_ends_a_long_batch_on_every_rank() -> None:
    with LocalGroup(2, device="host", timeout_s=60) as group:
        zero, one = group.run(_interrupted)
    assert one == "InterruptedError: it rang", one
    assert re.match(r"ProbeError: .*rank 1 \(pid \d+\) failed in .*: it rang", zero), zero


MEASURING: dict[str, Callable[[Coordinator], object]] = {
    "enqueue": lambda c: c.enqueue(np.ones(64, np.float32)),
    "spin": lambda c: c.spin(1.0),
    "hold": lambda c: c.hold(),
    "mark": lambda c: c.mark(0),
    "elapsed": lambda c: c.elapsed(),
    "stamp": lambda c: c.stamp(1),
    "stamps": lambda c: c.stamps(1, 1),
    "clear_stamps": lambda c: c.clear_stamps(1, 1),
    "clock": lambda c: c.clock(),
}


def test_in_a_group_of_one_there_is_nothing_to_time_and_stamps_work() -> None:
    def alone(c: Coordinator) -> tuple[str, list[bool]]:
        text = said(lambda: c.enqueue(np.ones(64, np.float32)))
        c.stamp(3)
        return text, [bool(ns) for ns in c.stamps(2, 3)]

    with LocalGroup(1, device="host") as group:
        ((text, stamps),) = group.run(alone)
    assert text.startswith("ValueError: tensor: there is nothing to time: SGLang makes no call here")
    assert stamps == [False, True, False]


# ------------------------------------------------------------------------------------------------------- held streams, and other threads


def test_a_held_stream_is_let_go_before_its_coordinator_closes() -> None:
    recorder = Recorder()
    c = on(recorder, 1)
    c.hold()
    with pytest.raises(ProbeError, match="holds a stream already"):
        c.hold()
    c.release()
    c.release()
    assert recorder.asked == ["hold", "release"], "a second hold reached the device, or a release of nothing"
    c.hold()
    c.close()
    assert recorder.asked[2:] == ["hold", "release", "leave"]
    c = on(recorder, 1)
    c.hold()
    del c
    assert recorder.asked[5:] == ["hold", "release", "leave"]


def test_a_held_stream_is_let_go_before_what_fails_is_aborted() -> None:
    recorder = Recorder()
    c = on(recorder, 2)
    c.hold()
    with pytest.raises((ProbeError, TimeoutError), match="on purpose"):
        c.wait()
    assert recorder.asked == ["hold", "wait", "release", "abort"]
    with pytest.raises(ProbeError, match="broken"):
        c.hold()
    c.release()
    c.close()
    assert recorder.asked[4:] == ["leave"]


def test_measuring_is_one_call_at_a_time_and_ends_with_close_but_release_is_always_allowed() -> None:
    recorder = Recorder()
    c = on(recorder, 1)
    c.hold()
    recorder.go_on.clear()
    waiting = threading.Thread(target=lambda: said(c.wait))
    waiting.start()
    recorder.inside.wait()
    for name, act in MEASURING.items():
        assert "in a call of another thread" in said(lambda act=act: act(c)), name  # type: ignore[misc] # bound early
    c.release()
    assert recorder.asked == ["hold", "wait", "release"], "the thread that waits for the stream needs its release"
    recorder.go_on.set()
    waiting.join()
    c.close()
    for name, act in MEASURING.items():
        assert "closed" in said(lambda act=act: act(c)), name  # type: ignore[misc] # bound early
    c.release()
    assert recorder.asked == ["hold", "wait", "release", "leave"]
