"""The native driver (Coordinator.enqueue) and what surrounds it: stamps, marks, compute that is only time, a held stream, clocks.

On CPU ranks, whose stamps are all of one clock: a stamp is held against other stamps, and never a time against a limit. Invariant: what
enqueue calls is what all_reduce calls, by the same path, and it fails as all_reduce does.
"""

# ruff: noqa: F401, F811 -- fixtures are imported, and then asked for by name

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import core_calls
import numpy as np
import pytest
import run_ranks
from numpy.typing import NDArray
from run_cases import IN_CAPTURE, Case, cases_of
from run_fixtures import Groups, device, group_of, package, ranks_max
from run_measuring import (
    AFTER,
    BEFORE,
    ENTER,
    LEFT,
    MET,
    NEW,
    OLD,
    SLOTS,
    TARGETS,
    InPython,
    Target,
    Watched,
    of_package,
    routed,
    rows_of,
)

from sglang_probe import Coordinator, Path, ProbeError, ProbeUnavailable
from sglang_probe._route import PATHS


def _calls(c: Coordinator, target: Target) -> tuple[str, str, bool]:
    """Path, kernel and whether it is in place; everything else is asserted here."""
    mine, watched = run_ranks.Rank(c, "numpy"), Watched()
    with routed(c, target):
        reduced = c.all_reduce(mine.fill(1))
        assert mine.is_sum(reduced.tensor, 1)
        index, new = PATHS.index(reduced.path), reduced.tensor is not mine.tensor
        ran, seq, tensor = c.ran(index), c.seq, watched.of(mine.fill(2))
        us = c.enqueue(tensor, calls=3)
        assert us > 0 and (c.ran(index), c.seq) == (ran + 3, seq + 3)
        if new:
            assert len(watched.made) == 3 and mine.tensors.address(tensor) == mine.tensors.address(mine.tensor)
            assert all(mine.is_sum(np.asarray(made), 2) for made in watched.made)
            assert np.array_equal(
                mine.tensors.read(mine.tensor), run_ranks.stored(run_ranks.numbers(2, c.rank), mine.dtype, mine.count)
            )
        else:
            assert not watched.made and mine.is_sum(mine.tensor, 2, times=3)
        # it goes on as if nothing had been
        assert mine.is_sum(c.all_reduce(mine.fill(3)).tensor, 3)
        return str(reduced.path), reduced.kernel, not new


@pytest.mark.parametrize("name", TARGETS)
def test_the_native_driver_takes_the_path_of_all_reduce_and_its_sums_are_right(name: str, group_of: Groups) -> None:
    ((path, kernel, in_place), other) = group_of(2).run(_calls, TARGETS[name])
    assert (path, kernel, in_place) == other
    expected = TARGETS[name].get("kernel") or ("one_shot" if name.startswith("v1") else kernel)
    assert kernel == expected and (path == "custom") == name.startswith("v")
    if name in ("pynccl_in_place", "pynccl_out_of_place", "torch_distributed", "torch_symm_mem"):
        assert path == name and in_place == (name in ("pynccl_in_place", "torch_distributed"))


def _outcome(c: Coordinator, act: Callable[[], Any]) -> tuple[Any, str]:
    """What it gave, or what it raised."""
    try:
        return act(), ""
    except (AssertionError, AttributeError, KeyError, IndexError, ValueError, RuntimeError, ProbeUnavailable) as error:
        return None, f"{type(error).__name__}: {error}"


def _as_all_reduce(c: Coordinator, case: Case) -> list[str]:
    """What enqueue does otherwise than all_reduce in one case."""
    tensors, watched = run_ranks.NumpyTensors(), Watched()
    tensor = tensors.make(case.shape, case.dtype, case.layout)
    count, wrong = case.shape[0] * case.shape[1], []
    values = [run_ranks.stored(one, case.dtype, count) for one in (run_ranks.numbers(1, c.rank), run_ranks.total(1, 2))]
    with contextlib.ExitStack() as inside:
        inside.enter_context(run_ranks.as_before(c))
        run_ranks.set_up(c, case)
        graph = None
        if case.context & IN_CAPTURE:
            inside.enter_context(c.graph_capture())
        if case.captured:
            _outcome(c, lambda: c.all_reduce(tensor))
            graph = inside.enter_context(c.graph())
        reduced, raised = _outcome(c, lambda: c.all_reduce(tensor))
        index = 0 if reduced is None else PATHS.index(reduced.path)
        tensors.write(tensor, values[0])
        ran, seq, seen = c.ran(index), c.seq, watched.of(tensor)
        us, refused = _outcome(c, lambda: c.enqueue(seen, 2, 1.0))
        made = [np.asarray(one) for one in watched.made]
    timeable = reduced is not None and reduced.kernel != "dry" and reduced.path != "none"
    if reduced is None and refused != raised:
        wrong.append(f"raised {refused or 'nothing'}, and all_reduce {raised}")
    if reduced is not None and not timeable and "nothing to time" not in refused:
        wrong.append(f"{reduced} runs nothing, and enqueue said {refused or us}")
    if timeable and refused:
        wrong.append(f"raised {refused}, and all_reduce gave {reduced}")
    if c.seq != seq + 2 * timeable:
        wrong.append(f"{c.seq - seq} calls were told to peers")
    if not timeable:
        return wrong
    if graph is not None:
        if c.ran(index) != ran:
            wrong.append("a captured call ran at once")
        tensors.write(tensor, values[0])  # the replay runs all_reduce's call too, before the two
        graph.replay()
    calls = 2 + case.captured
    if c.ran(index) != ran + calls:
        wrong.append(f"{reduced.path} ran {c.ran(index) - ran} times")
    if reduced.tensor is tensor and reduced.reduces:  # each call sums what the one before it left
        final = run_ranks.stored(2 ** (calls - 1) * run_ranks.total(1, 2), case.dtype, count)
        same = np.array_equal(tensors.read(tensor), final)
    else:
        same = np.array_equal(tensors.read(tensor), values[0]) and len(made) == 2
        same = same and all(np.array_equal(tensors.read(one), values[1]) for one in made)
    return wrong if same else [*wrong, "another sum"]


def _all_cases(c: Coordinator, cases: Sequence[Case]) -> list[str]:
    return [f"rank {c.rank}: {case}: {text}" for case in cases for text in _as_all_reduce(c, case)]


@pytest.mark.parametrize("sglang", ["0.4.3.post2", OLD, "0.5.10", "0.5.13.post1", "0.5.16", NEW])
def test_whatever_all_reduce_does_the_native_driver_does_or_says_that_there_is_nothing_to_time(
    sglang: str, group_of: Groups
) -> None:
    cases = cases_of(sglang, 2)
    assert len(cases) > 10
    assert [text for texts in group_of(2).run(_all_cases, cases, timeout_s=120) for text in texts] == []


# ------------------------------------------------------------------------------------------------------------------------- what is timed


@contextlib.contextmanager
def _alone() -> Iterator[core_calls.Alone]:
    """A rank that waits for nobody, and yet takes a path: its facts say eight ranks."""
    c = core_calls.new_alone()
    try:
        yield c
    finally:
        c.close()


def test_what_is_timed_is_the_output_and_the_path_and_not_the_compute() -> None:
    outputs = 0

    def empty_like(like: Any) -> Any:
        nonlocal outputs
        start = time.monotonic_ns()
        while time.monotonic_ns() - start < 1_000_000:
            pass
        made = np.empty_like(like.array)
        outputs += time.monotonic_ns() - start
        return made

    with _alone() as c:
        start = time.monotonic_ns()
        us = c.enqueue(of_package("slow", empty_like), 3, 3000.0, 1)
        most = time.monotonic_ns() - start - 3 * 3_000_000
    assert us * 3000 > outputs, "an output was not counted"
    assert us * 3000 < most, "the compute was counted"


# -------------------------------------------------------------------------------------------------------------------------------- stamps


def _stamped(c: Coordinator, target: Target, count: int, first: int) -> NDArray[np.uint64]:
    """Stamps of four calls, after stamps of another path in the same slots."""
    mine = run_ranks.Rank(c, "numpy", "bf16", count)
    with routed(c, {}):
        c.enqueue(mine.fill(), 4, stamp=first)
    with routed(c, target):
        c.barrier()
        c.enqueue(mine.fill(), 4, 0.0, first)
    return rows_of(c, 4, first)


def in_order(by_rank: list[NDArray[np.uint64]]) -> None:
    for rows in by_rank:
        assert rows.all() and (np.diff(rows.reshape(-1).astype(np.int64)) >= 0).all(), rows
    entered = np.max([rows[:, ENTER] for rows in by_rank], axis=0)
    for rows in by_rank:  # nobody has met whoever was not there
        assert (rows[:, MET] >= entered).all()


@pytest.mark.parametrize("count", [64, 1 << 18])
@pytest.mark.parametrize("name", TARGETS)
def test_stamps_of_each_kernel_are_in_the_order_of_what_happened(name: str, count: int, group_of: Groups) -> None:
    for first in (1, SLOTS - 19):
        in_order(group_of(2).run(_stamped, TARGETS[name], count, first))


def test_stamps_of_more_ranks_tell_who_came_last(group_of: Groups) -> None:
    for name in ("v1 two_shot", "v1 limit", "pynccl_in_place", "torch_distributed"):
        in_order(group_of(3).run(_stamped, TARGETS[name], 4096, 1))


LATE_US = 2000.0


def _late(c: Coordinator, target: Target) -> NDArray[np.uint64]:
    mine = run_ranks.Rank(c, "numpy")
    with routed(c, target):
        c.barrier()
        c.enqueue(mine.fill(), 20, LATE_US if c.rank == 1 else 0.0, 1)
    return rows_of(c, 20)


@pytest.mark.parametrize("name", ["v1 one_shot", "v1 limit", "v2 two_shot_push", "pynccl_in_place", "torch_distributed"])
def test_a_rank_that_is_late_shows_as_waiting_on_the_other_and_not_as_transfer(name: str, group_of: Groups) -> None:
    zero, one = (rows.astype(np.int64) for rows in group_of(2).run(_late, TARGETS[name]))
    assert (one[1:, BEFORE] - one[:-1, AFTER] >= LATE_US * 1000).all(), "rank 1 did not compute before each call"
    late = one[:, ENTER] - zero[:, ENTER]
    assert (late > 0).any(), "rank 1 computed 2 ms before each call, and rank 0 was later each time"
    assert (zero[:, MET] - zero[:, ENTER] >= late).all()
    assert (zero[:, MET] >= one[:, ENTER]).all(), "a transfer began before the last rank was there"


def _by_hand(c: Coordinator) -> None:
    c.clear_stamps(1, SLOTS)
    assert not c.stamps(1, SLOTS).any() and c.stamps(7, 2).dtype == np.uint64
    c.stamp(7)
    c.spin(300)
    c.stamp(8, stream=0)
    stamps = c.stamps(6, 4)
    assert stamps[0] == stamps[3] == 0 and stamps[2] - stamps[1] >= 300_000
    c.clear_stamps(first=8, count=1)
    assert list(c.stamps(7, 2) > 0) == [True, False]
    c.mark(0)
    c.spin(us=250)
    c.mark(1, stream=0)
    assert c.elapsed() >= 250
    c.hold()
    c.release()
    c.release()
    offsets, errors = c.clock()
    assert offsets == errors == (0.0,) * c.world_size and all(isinstance(us, float) for us in offsets)


def test_stamps_marks_and_compute_are_there_without_a_call_too(group_of: Groups) -> None:
    group_of(2).run(_by_hand)


# ------------------------------------------------------------------------------------------------------------------------------ captures


def _captured(c: Coordinator, target: Target) -> tuple[list[NDArray[np.uint64]], int]:
    mine, watched = run_ranks.Rank(c, "numpy"), Watched()
    with routed(c, target):
        c.clear_stamps(1, 11)
        with c.graph_capture():
            c.all_reduce(mine.fill())
            with c.graph() as graph:
                tensor = watched.of(mine.tensor)
                path = PATHS.index(c.decide(tensor).path)
                ran = c.ran(path)
                c.clear_stamps(1, 12)
                c.stamp(11)
                c.enqueue(tensor, 2, 200.0, 1)
                outputs = list(watched.made)
            assert not c.stamps(1, 10).any() and c.ran(path) == ran, "a captured call ran while it was captured"
        addresses = c.captured_addresses
        del watched, tensor
        rows = []
        for seed in (4, 5):
            mine.fill(seed)
            for made in outputs:
                mine.tensors.write(made, run_ranks.stored(run_ranks.POISON, mine.dtype, mine.count))
            c.stamp(12)
            graph.replay()
            rows.append(rows_of(c, 2))
            assert [bool(ns) for ns in c.stamps(11, 2)] == [True, False]
            assert rows[-1][1, BEFORE] - rows[-1][0, AFTER] >= 200_000
            assert all(mine.is_sum(np.asarray(made), seed) for made in outputs)
            assert outputs or mine.is_sum(mine.tensor, seed, times=2)
        assert c.ran(path) == ran + 4 and rows[1][0, BEFORE] > rows[0][1, AFTER]
        return rows, addresses


@pytest.mark.parametrize("name", TARGETS)
def test_captured_the_driver_records_and_each_replay_runs_and_stamps(name: str, group_of: Groups) -> None:
    by_rank = group_of(2).run(_captured, TARGETS[name])
    for replay in range(2):
        in_order([rows[replay] for rows, _ in by_rank])
    reads = name.startswith("v1") and name != "v1 limit"  # inputs that peers read where they lie
    assert not reads or [addresses for _, addresses in by_rank] == [2, 2]


def _nobody_kept(c: Coordinator) -> None:
    with routed(c, {}):
        with c.graph_capture():
            c.all_reduce(np.ones(1 << 15, np.float32))
            with c.graph() as graph:
                c.enqueue(np.full(1 << 15, c.rank + 1, np.float32), 3)  # nobody else holds it, nor the outputs
        others = [np.full(1 << 15, 77, np.float32) for _ in range(8)]
        graph.replay(2)
        assert all((other == 77).all() for other in others)


def test_a_graph_keeps_the_tensors_of_enqueued_calls_alive(group_of: Groups) -> None:
    group_of(2).run(_nobody_kept)


# --------------------------------------------------------------------------------------------------------------------------------- errors

REFUSED: dict[str, tuple[Callable[[Coordinator, Any], object], type[Exception], str]] = {
    "no calls": (lambda c, x: c.enqueue(x, 0), ValueError, "calls=0: give 1 to 10000"),
    "too many calls": (lambda c, x: c.enqueue(x, 10_001), ValueError, "calls=10001"),
    "negative compute": (lambda c, x: c.enqueue(x, 1, -1.0), ValueError, "compute_us"),
    "compute that is no number": (lambda c, x: c.enqueue(x, 1, float("nan")), ValueError, "compute_us"),
    "compute of more than a second": (lambda c, x: c.enqueue(x, 1, 1e6 + 1), ValueError, "compute_us"),
    "a negative slot": (lambda c, x: c.enqueue(x, stamp=-1), ValueError, "stamp=-1"),
    "slots that do not fit": (
        lambda c, x: c.enqueue(x, 2, stamp=SLOTS - 8),
        ValueError,
        "stamp=16376: 2 calls take 5 slots each",
    ),
    "no tensor": (lambda c, x: c.enqueue("x"), TypeError, "a str is none"),
    "gaps": (lambda c, x: c.enqueue(x[::2]), ValueError, "contiguous"),
    "a dtype that is not summed here": (lambda c, x: _odd(c, "custom", x.view(np.uint8)), ValueError, "dtype uint8"),
    "a dry run": (lambda c, x: _in_capture(c, x), ValueError, "nothing to time: it is v1's dry run"),
    "a path that says no": (
        lambda c, x: _odd(c, "no", x.view(np.uint16).reshape(4, -1)),
        ProbeUnavailable,
        "flashinfer.*not today",
    ),
    "slot 0": (lambda c, x: c.stamp(0), ValueError, "slots are 1 to 16384"),
    "stamps past the end": (lambda c, x: c.stamps(SLOTS, 2), ValueError, "2 stamps from slot 16384"),
    "no stamps": (lambda c, x: c.stamps(1, 0), ValueError, "0 stamps"),
    "clearing past the end": (lambda c, x: c.clear_stamps(2, SLOTS), ValueError, "1 to 16384"),
    "a third mark": (lambda c, x: c.mark(2), ValueError, "which=2"),
    "a long spin": (lambda c, x: c.spin(2e6), ValueError, "us: give"),
    "a second hold": (lambda c, x: _twice(c), ProbeError, "already; release"),
    "a mark in a capture": (lambda c, x: _while_captured(c, lambda: c.mark(0)), ValueError, "a mark while .* captured"),
    "a hold in a capture": (lambda c, x: _while_captured(c, lambda: c.hold()), ValueError, "a hold while .* captured"),
}


def _in_capture(c: Coordinator, x: Any) -> None:
    with routed(c, {}), c.graph_capture():
        c.enqueue(x, 2)


def _odd(c: Coordinator, what: str, x: Any) -> None:
    with run_ranks.as_before(c):
        c.sglang = NEW
        if what == "no":
            c.set_facts(fi_workspace=True)
            c.register(Path.FLASHINFER, InPython("not today"))
        try:
            c.enqueue(x, 2)
        finally:
            c.register(Path.FLASHINFER, None)


def _twice(c: Coordinator) -> None:
    try:
        c.hold()
        c.hold()
    finally:
        c.release()


def _while_captured(c: Coordinator, act: Callable[[], object]) -> None:
    with c.graph_capture(), c.graph():
        act()


def _refused(c: Coordinator, name: str) -> None:
    act, error, text = REFUSED[name]
    before, tensor = c.seq, np.ones(1024, np.float32)
    with pytest.raises(error, match=text):
        act(c, tensor)
    assert c.seq == before, "peers were told of a call that was refused"
    mine = run_ranks.Rank(c, "numpy")
    assert mine.is_sum(c.all_reduce(mine.fill()).tensor)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_before_a_peer_hears_of_it(name: str, group_of: Groups) -> None:
    group_of(2).run(_refused, name)


def _python_path(c: Coordinator) -> None:
    mine, path, watched = run_ranks.Rank(c, "numpy"), InPython(), Watched()
    with run_ranks.as_before(c):
        c.sglang = NEW
        c.set_facts(fi_workspace=True)
        c.register(Path.FLASHINFER, path)
        try:
            tensor = watched.of(mine.fill())
            assert c.decide(tensor).path == "flashinfer"
            seq = c.seq
            assert c.enqueue(tensor, 3, 100.0, 1) > 0 and c.seq == seq + 3
        finally:
            c.register(Path.FLASHINFER, None)
        assert [given is tensor for given, _ in path.calls] == [True] * 3
        assert all(out is made for (_, out), made in zip(path.calls, watched.made, strict=True))
        assert all((np.asarray(out) == 5).all() for _, out in path.calls)
        rows = rows_of(c, 3)
        assert rows[:, (BEFORE, AFTER)].all() and not rows[:, ENTER:AFTER].any(), (
            "a path in Python cannot stamp, and its slots hold something"
        )
        assert (rows[:, AFTER] >= rows[:, BEFORE]).all() and (rows[1:, BEFORE] - rows[:-1, AFTER] >= 100_000).all()


def test_a_path_in_python_is_called_as_often_and_its_own_stamps_are_0(group_of: Groups) -> None:
    group_of(2).run(_python_path)
