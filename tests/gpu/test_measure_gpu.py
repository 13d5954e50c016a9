"""What measurements on GPUs are made of: a spin takes its time, a hold holds, stamps are in their order and change no sum, clocks can be
compared, and a delay that was planted comes back as waiting.

Stamps are read beside what they must agree with: CUDA's events, other ranks' stamps, a planted delay. Invariant: what is asserted of a time
follows from what was planted (a bound), or is a ratio in one run; every figure that depends on the machine is printed.
"""

# ruff: noqa: E402 -- what imports torch comes after pytest.importorskip
# ruff: noqa: F401, F811 -- fixtures are imported, and then asked for by name

from __future__ import annotations

import statistics
import time
from typing import Any, Literal

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="GPU ranks hold torch's tensors")

from gpu import ranks
from gpu.test_many_gpu import KIB, MIB, Many, run_child
from run_fixtures import Groups, group_of, ranks_max

from sglang_probe import Coordinator, LocalGroup, ProbeError, _core

KERNELS = {name: i for i, (name, _, _) in enumerate(_core.KERNELS) if name}
BF16 = [name for name, _ in _core.DTYPES].index("bf16")
STAMPS = 16384
DELAYS_US = (0.0, 50.0, 250.0, 1000.0)
ALIGNED_US = 2.0
"""How well a planted delay must come back, or as well as clocks can be compared, where that is worse."""
RUN_S = 120.0


@pytest.fixture(scope="session")
def device() -> Literal["host", "gpu"]:
    return "gpu"


def stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)


def release_together(c: Coordinator) -> None:
    c.barrier()
    c.release()
    c.wait(stream())


# ------------------------------------------------------------------------------------------------------------------------- spin and hold


def spun(c: Coordinator, us: float) -> list[float]:
    """A spin's length by CUDA's events, which the host does not disturb: all three are enqueued under a hold."""
    lengths = []
    for _ in range(9):
        c.hold(stream())
        c.mark(0, stream())
        c.spin(us, stream())
        c.mark(1, stream())
        c.release()
        c.wait(stream())
        lengths.append(c.elapsed())
    return lengths


@pytest.mark.parametrize("us", [5.0, 100.0, 3000.0])
def test_a_spin_takes_as_long_as_it_was_told_by_the_events_of_cuda(us: float, group_of: Groups) -> None:
    for lengths in group_of(2).run(spun, us):
        median = statistics.median(lengths)
        print(f"a spin of {us:g} us: {median:.2f} us between events ({min(lengths):.2f} to {max(lengths):.2f})")
        assert us - 1 <= median <= 1.05 * us + 10  # events count half microseconds, and the launch is between them too


def held(c: Coordinator, calls: int) -> dict[str, Any]:
    """Stamps of calls that the host enqueues slowly, under a hold: what a reader sees of them before and after the release."""
    c.clear_stamps(1, calls, stream())
    c.wait(stream())
    c.hold(stream())
    began = time.perf_counter_ns()
    for slot in range(1, calls + 1):
        c.stamp(slot, stream())
        time.sleep(0.002)
    enqueued_us = (time.perf_counter_ns() - began) / 1000
    before = c.stamps(1, calls)
    second = ""
    try:
        c.hold(stream())
    except ProbeError as error:
        second = str(error)
    release_together(c)
    after = c.stamps(1, calls).astype(np.int64)
    return {
        "before": int(before.any()),
        "missing": int((after == 0).sum()),
        "ordered": bool((np.diff(after) >= 0).all()),
        "span_us": float(after[-1] - after[0]) / 1000,
        "enqueued_us": enqueued_us,
        "second": second,
    }


def test_nothing_runs_under_a_hold_and_then_all_of_it_without_the_host(group_of: Groups) -> None:
    for seen in group_of(2).run(held, 50):
        print(f"50 stamps: {seen['enqueued_us']:.0f} us to enqueue, {seen['span_us']:.1f} us to run")
        assert seen["before"] == 0 and seen["missing"] == 0 and seen["ordered"], seen
        assert seen["span_us"] < seen["enqueued_us"] / 10  # slept between on the host; gaps of it would be as long
        assert "held" in seen["second"] or "holds" in seen["second"], seen


def held_too_long(c: Coordinator) -> tuple[str, bool, float]:
    """(what the wait says that comes after a hold that nobody released, whether all ran, how long close() took under another hold)"""
    c.clear_stamps(1, 2, stream())
    c.hold(stream())
    c.stamp(1, stream())
    said = ""
    try:
        c.wait(stream())
    except TimeoutError as error:
        said = str(error)
    c.release()
    c.wait(stream())  # told once
    c.hold(stream())
    c.stamp(2, stream())
    c.release()
    c.wait(stream())
    ran = bool(c.stamps(1, 2).all())
    c.hold(stream())
    began = time.perf_counter()
    c.close()
    return said, ran, time.perf_counter() - began


def test_a_hold_that_nobody_releases_ends_after_five_seconds_and_the_next_wait_says_so() -> None:
    with LocalGroup(1, device="gpu") as group:  # alone, so that the failed wait leaves no peer behind
        ((said, ran, close_s),) = group.run(held_too_long)
    assert "held for 5.0 s" in said and "release()" in said and ran
    assert close_s < 4  # it does not wait for the hold's own end


# -------------------------------------------------------------------------------------------------------------------------------- stamps


def stamped_in_graph(c: Coordinator) -> list[list[int]]:
    """A graph of [clear, stamp, spin of 30 us, stamp], replayed three times."""
    with c.graph_capture(), c.graph() as graph:
        c.clear_stamps(1, 3, stream())
        c.stamp(1, stream())
        c.spin(30, stream())
        c.stamp(2, stream())
    seen = []
    for _ in range(3):
        graph.replay()
        c.wait(stream())
        seen.append([int(ns) for ns in c.stamps(1, 3)])
    return seen


def test_stamps_and_spins_are_captured_and_taken_anew_by_each_replay(group_of: Groups) -> None:
    for rows in group_of(2).run(stamped_in_graph):
        assert all(first and 30_000 <= second - first and third == 0 for first, second, third in rows), rows
        assert all(earlier[1] < later[0] for earlier, later in zip(rows, rows[1:], strict=False)), rows


def step_of(c: Coordinator) -> tuple[int, int]:
    """(greatest common divisor of differences of stamps: the clock's step, ns; the largest slot's stamp)"""
    c.clear_stamps(1, STAMPS, stream())
    for slot in range(1, 1001):
        c.stamp(slot, stream())
    c.stamp(STAMPS, stream())
    c.wait(stream())
    ns = c.stamps(1, STAMPS).astype(np.int64)
    return int(np.gcd.reduce(ns[:1000] - ns[0])), int(ns[-1] - ns[0])


def test_the_clock_moves_in_steps_that_a_microsecond_can_be_told_by(group_of: Groups) -> None:
    for rank, (step, span) in enumerate(group_of(2).run(step_of)):
        print(f"rank {rank}: the clock moves by {step} ns; 1000 stamps take {span / 1000:.0f} us")
        assert 0 < step <= 2000 and span > 0


def bad_slots(c: Coordinator) -> list[str]:
    from sglang_probe import _gpu

    x = torch.zeros(64, dtype=torch.bfloat16, device="cuda")
    refused = []
    for call in (
        lambda: c.stamp(0, stream()),
        lambda: c.stamps(STAMPS, 2),
        lambda: _gpu.reduce(c.comm(), KERNELS["one_shot"], BF16, 128, x.data_ptr(), x.data_ptr(), stream(), STAMPS - 1),
    ):
        try:
            call()
            refused.append("")
        except ValueError as error:
            refused.append(str(error))
    return refused


def test_slots_that_are_not_there_are_refused(group_of: Groups) -> None:
    for refused in group_of(2).run(bad_slots):
        assert len(refused) == 3 and all("16384" in text for text in refused), refused


# ------------------------------------------------------------------------------------------------------------------------ traced kernels


def traced(c: Coordinator, name: str, sizes: list[int], captured: bool) -> list[dict[str, Any]]:
    """Each size by a traced kernel and by the plain one: sums, bits and stamps."""
    from sglang_probe import _gpu

    rows = []
    with ranks.as_before(c):
        ranks.configure(c, ranks.options_of(name))  # the release: how its kernels are launched
        for nbytes in sizes:
            mine, total = ranks.exact_input(c, nbytes // 2, "bf16", 3)
            source, plain, target = mine.clone(), torch.empty_like(mine), torch.full_like(mine, float("nan"))
            where = (c.comm(), KERNELS[name], BF16, nbytes)
            _gpu.reduce(*where, source.data_ptr(), plain.data_ptr(), stream())
            if captured:
                with c.graph_capture(), c.graph() as graph:
                    c.clear_stamps(1, 3, stream())
                    _gpu.reduce(*where, source.data_ptr(), target.data_ptr(), stream(), 1)
                for _ in range(2):
                    target.fill_(float("nan"))
                    graph.replay()
            else:
                c.clear_stamps(1, 3, stream())
                _gpu.reduce(*where, source.data_ptr(), target.data_ptr(), stream(), 1)
            c.wait(stream())
            rows.append(
                {
                    "nbytes": nbytes,
                    "wrong": int((target.double() != total).sum()),
                    "as_plain": bool((target.view(torch.int16) == plain.view(torch.int16)).all()),
                    "stamps": [int(ns) for ns in c.stamps(1, 3)],
                }
            )
    return rows


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("name", ranks.CUSTOM)
def test_a_traced_kernel_sums_right_and_enters_meets_and_leaves_in_this_order(
    name: str, captured: bool, group_of: Groups
) -> None:
    sizes = [16, 48, KIB, 64 * KIB, 64 * KIB + 16, 512 * KIB, MIB, 8 * MIB]
    for rows in group_of(2).run(traced, name, sizes, captured, timeout_s=RUN_S):
        assert len(rows) == len(sizes)
        for row in rows:
            enter, met, left = row["stamps"]
            assert row["wrong"] == 0 and row["as_plain"] and 0 < enter <= met <= left, (name, row)


def test_traced_kernels_of_up_to_eight_ranks_sum_right_and_nobody_meets_before_everybody_has_entered() -> None:
    """On one GPU all ranks have one clock: so their stamps can be held against one another."""
    cases = []
    for world in (2, 3, 4, 8):
        for kernel in [*(ranks.V1_KERNELS if world % 2 == 0 else ()), *ranks.V2_KERNELS, "limit"]:
            for nbytes in (16, 37 * 16, 64 * KIB + 16):
                captured = {"captured": True, "registered": True, "in_place": kernel == "two_shot_pull"}
                cases += [Many(world, kernel, "bf16", nbytes, {"traced": True, "gpus": 1, **more}) for more in ({}, captured)]
        if world > 2:
            cases += [
                Many(world, kernel, "fp32", 4 * KIB + 16, {"traced": True, "gpus": 1, "style": 0})
                for kernel in ("one_shot_pull",)
            ]
    wrong = [
        f"{case}: {answer}"
        for case, answer in zip(cases, run_child(cases), strict=True)
        if answer.get("wrong") != 0 or not answer["bit_equal"] or answer["stamped"] != answer["launched"] * case.world
    ]
    assert not wrong, "\n".join(wrong)


def cost_of_stamps(c: Coordinator, name: str, nbytes: int, calls: int) -> tuple[float, float]:
    """Device microseconds of a call, plain and traced, in one run."""
    from sglang_probe import _gpu

    source = torch.zeros(nbytes // 2, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    medians = []
    with ranks.as_before(c):
        ranks.configure(c, ranks.options_of(name))
        for stamp in (0, 1):
            samples = []
            for _ in range(9):
                c.hold(stream())
                c.mark(0, stream())
                for _ in range(calls):
                    _gpu.reduce(c.comm(), KERNELS[name], BF16, nbytes, source.data_ptr(), target.data_ptr(), stream(), stamp)
                c.mark(1, stream())
                release_together(c)
                samples.append(c.elapsed() / calls)
            medians.append(statistics.median(samples))
    return medians[0], medians[1]


@pytest.mark.parametrize("nbytes", [KIB, MIB])
@pytest.mark.parametrize("name", ranks.CUSTOM)
def test_what_stamps_cost_a_kernel_is_told(name: str, nbytes: int, group_of: Groups) -> None:
    for plain, with_stamps in group_of(2).run(cost_of_stamps, name, nbytes, 50):
        print(f"{name}, {nbytes} bytes: {plain:.2f} us a call, {with_stamps:.2f} us with stamps")
        assert 0 < plain and 0 < with_stamps < 2 * plain + 5


# -------------------------------------------------------------------------------------------------------------------------------- clocks


Clock = tuple[tuple[float, ...], tuple[float, ...]]


def clocks(c: Coordinator, pause_s: float) -> tuple[Clock, Clock, float]:
    first, began = c.clock(), time.perf_counter()
    time.sleep(pause_s)
    c.barrier()
    return first, c.clock(), time.perf_counter() - began


def test_clocks_are_compared_within_microseconds_and_twice_alike(group_of: Groups) -> None:
    by_rank = group_of(2).run(clocks, 0.2)
    assert all((first, second) == by_rank[0][:2] for first, second, _ in by_rank), "ranks have different answers"
    (offset, error), (again, error_again), apart_s = by_rank[0]
    assert (offset[0], error[0]) == (0, 0)
    for rank in range(1, len(offset)):
        moved = again[rank] - offset[rank]
        print(f"rank {rank}: {offset[rank]:.3f} us +- {error[rank]:.3f}, then {moved:+.3f} us in {apart_s:.2f} s")
        assert 0 < error[rank] < 5 and 0 < error_again[rank] < 5
        assert abs(moved) <= error[rank] + error_again[rank] + 100 * apart_s  # 100 ppm: no quartz is that far off


def aligned(between: tuple[Clock, Clock], rank: int) -> tuple[float, float]:
    """(offset halfway between two comparisons, how far it may be from the truth), in us."""
    (first, error), (second, error_again) = between
    return (first[rank] + second[rank]) / 2, max(error[rank], error_again[rank]) + abs(second[rank] - first[rank]) / 2


def met_and_entered(c: Coordinator, name: str, calls: int) -> tuple[list[list[int]], tuple[Clock, Clock]]:
    from sglang_probe import _gpu

    source = torch.zeros(512, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    with ranks.as_before(c):
        ranks.configure(c, ranks.options_of(name))
        first = c.clock()
        c.clear_stamps(1, 3 * calls, stream())
        for i in range(calls):
            where = (c.comm(), KERNELS[name], BF16, KIB, source.data_ptr(), target.data_ptr(), stream())
            _gpu.reduce(*where, 1 + 3 * i)
        c.wait(stream())
        second = c.clock()
    return c.stamps(1, 3 * calls).reshape(calls, 3).tolist(), (first, second)


@pytest.mark.parametrize("name", ["one_shot", "one_shot_push", "two_shot_pull", "two_shot_push", "limit"])
def test_by_compared_clocks_nobody_meets_before_everybody_has_entered(name: str, group_of: Groups) -> None:
    by_rank = group_of(2).run(met_and_entered, name, 200)
    between = by_rank[0][1]
    offsets = [aligned(between, rank) for rank in range(2)]
    margins = []
    for mine, theirs in ((0, 1), (1, 0)):
        slack = offsets[mine][1] + offsets[theirs][1]
        for (_, met, _), (enter, _, _) in zip(by_rank[mine][0], by_rank[theirs][0], strict=True):
            apart = (met - enter) / 1000 - (offsets[mine][0] - offsets[theirs][0])
            margins.append(apart + slack)
    print(f"{name}: the closest meeting is {min(margins):.2f} us after the last entry, with {slack:.2f} us of slack")
    assert min(margins) >= 0


# ---------------------------------------------------------------------------------------------------------------------- planted delays


def planted(c: Coordinator, name: str, nbytes: int, delay_us: float, calls: int) -> list[list[int]]:
    """ENTER, MET, LEFT of calls before which rank 1 computes for so long; a call before that makes the ranks even."""
    from sglang_probe import _gpu

    source = torch.zeros(nbytes // 2, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    with ranks.as_before(c):
        ranks.configure(c, ranks.options_of(name))
        where = (c.comm(), KERNELS[name], BF16, nbytes, source.data_ptr(), target.data_ptr(), stream())
        c.clear_stamps(1, 3 * calls, stream())
        c.hold(stream())
        for i in range(calls):
            _gpu.reduce(*where)
            c.spin(delay_us if c.rank == 1 else 0, stream())
            _gpu.reduce(*where, 1 + 3 * i)
        release_together(c)
    return c.stamps(1, 3 * calls).reshape(calls, 3).tolist()


@pytest.mark.parametrize("nbytes", [KIB, 256 * KIB])
@pytest.mark.parametrize("name", ranks.CUSTOM)
def test_a_planted_delay_is_the_other_ranks_wait_and_no_part_of_moving_data(name: str, nbytes: int, group_of: Groups) -> None:
    """A meeting takes as long as a flag needs to cross, too: half of what both wait where nobody is late, as `split` has it."""
    moving, crossing = [], None
    for delay_us in DELAYS_US:
        early, late = (np.array(rows, np.int64) for rows in group_of(2).run(planted, name, nbytes, delay_us, 40, timeout_s=RUN_S))
        # of whole nanoseconds: as a float, the clock has steps of a quarter microsecond
        waits, moves = np.diff(early, axis=1).T / 1000
        if crossing is None:
            assert delay_us == 0
            crossing = float((np.diff(early, axis=1)[:, 0] + np.diff(late, axis=1)[:, 0]).min()) / 2000
        waits = np.maximum(waits - crossing, 0)
        error = float(np.median(np.abs(waits - delay_us)))
        late_wait = max(0.0, float(np.median(late[:, 1] - late[:, 0])) / 1000 - crossing)
        moving.append(float(np.median(moves)))
        print(
            f"{name}, {nbytes} bytes: planted {delay_us:g} us, waited {np.median(waits):.2f} us (median error {error:.2f}), the late "
            f"rank {late_wait:.2f}; a flag crosses in {crossing:.2f}; moved data for {moving[-1]:.2f} us"
        )
        assert error <= ALIGNED_US
        assert late_wait <= ALIGNED_US
    assert max(moving) - min(moving) <= ALIGNED_US, moving


def planted_nccl(c: Coordinator, name: str, delay_us: float, calls: int) -> tuple[list[list[int]], tuple[Clock, Clock]]:
    """Stamps before and after NCCL's calls, and comparisons of the clocks around all of it."""
    x = torch.zeros(32 * KIB, dtype=torch.bfloat16, device="cuda")
    with ranks.as_before(c):
        ranks.configure(c, ranks.options_of(name))
        c.all_reduce(x)  # NCCL loads what it needs before the hold
        c.wait(stream())
        first = c.clock()
        c.clear_stamps(1, 2 * calls, stream())
        c.hold(stream())
        for i in range(calls):
            c.all_reduce(x)
            c.spin(delay_us if c.rank == 1 else 0, stream())
            c.stamp(1 + 2 * i, stream())
            c.all_reduce(x)
            c.stamp(2 + 2 * i, stream())
        release_together(c)
        second = c.clock()
    return c.stamps(1, 2 * calls).reshape(calls, 2).tolist(), (first, second)


@pytest.mark.parametrize("name", ["pynccl_in_place", "pynccl_out_of_place"])
def test_a_delay_before_nccl_is_recovered_by_compared_clocks(name: str, group_of: Groups) -> None:
    for delay_us in DELAYS_US:
        by_rank = group_of(2).run(planted_nccl, name, delay_us, 25, timeout_s=RUN_S)
        offset, error = aligned(by_rank[0][1], 1)
        early, late = (np.array(rows, dtype=np.int64) for rows, _ in by_rank)
        apart = (late[:, 0] - early[:, 0]) / 1000 - offset
        waits = np.maximum(apart, 0)
        off = float(np.median(np.abs(waits - delay_us)))
        print(f"{name}: planted {delay_us:g} us, waited {np.median(waits):.2f} us (median error {off:.2f}; clocks {error:.2f})")
        assert off <= max(ALIGNED_US, error)
