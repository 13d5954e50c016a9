"""graph_capture(), graphs, change_state() and times: what surrounds calls of the Coordinator is what it is in SGLang.

On CPU ranks here; gpu/test_coordinator_gpu.py runs the same on GPUs. Invariant: each expected path stands in the test, as people know it.
"""

# ruff: noqa: F401, F811 -- fixtures are imported, and then asked for by name

from __future__ import annotations

import gc

import pytest
import run_ranks
from run_fixtures import Groups, device, group_of, package, ranks_max

from sglang_probe import Coordinator, InputError, ProbeError

OLD = "0.5.9"
"""Custom all-reduce is v1: a dry warm-up, a new tensor."""


# ---------------------------------------------------------------------------------------------------------------------------- captures


def _captures(c: Coordinator, package: str) -> None:
    mine = run_ranks.Rank(c, package)

    def path() -> str:
        return str(c.all_reduce(mine.fill()).path)

    with run_ranks.as_before(c):
        c.sglang = OLD
        c.custom.disabled = True
        assert path() == "torch_distributed"
        with c.graph_capture():
            assert path() == "pynccl_in_place"
            with c.graph_capture():
                assert path() == "pynccl_in_place"
            assert path() == "pynccl_in_place"
        assert path() == "torch_distributed"
        c.custom.disabled = False
        with c.graph_capture():
            warm = c.all_reduce(mine.fill())
            assert (warm.path, warm.kernel, warm.reduces) == ("custom", "dry", False) and mine.is_zero(warm.tensor)
            with c.graph() as graph:
                captured = c.all_reduce(mine.tensor)
        assert (captured.path, captured.kernel, captured.reduces) == ("custom", "one_shot", True)
        assert c.captured_addresses == 1
        c.custom.disabled = True  # a replay runs no dispatch
        for seed in (3, 4):
            mine.fill(seed)
            graph.replay()
            assert mine.is_sum(captured.tensor, seed)


def test_graph_capture_means_what_it_means_in_sglang(group_of: Groups, package: str) -> None:
    group_of(2).run(_captures, package)


def _change_state(c: Coordinator, package: str) -> None:
    mine = run_ranks.Rank(c, package)
    with run_ranks.as_before(c):
        c.sglang = OLD
        c.custom.disabled = True
        before = c.settings
        with c.change_state(enable=True):
            assert c.all_reduce(mine.fill()).path == "pynccl_in_place"
            with c.change_state(enable=False):
                assert c.all_reduce(mine.fill()).path == "torch_distributed"
            assert c.all_reduce(mine.fill()).path == "pynccl_in_place"
        assert c.settings == before
        with pytest.raises(KeyError), c.change_state(enable=True):
            raise KeyError
        assert c.settings == before and c.all_reduce(mine.fill()).path == "torch_distributed"
        with c.graph_capture(), c.change_state(enable=False):
            assert c.all_reduce(mine.fill()).path == "torch_distributed"


def test_change_state_enables_pynccl_within_and_no_longer(group_of: Groups, package: str) -> None:
    group_of(2).run(_change_state, package)


def _whole_step(c: Coordinator, package: str) -> None:
    """Two calls, the second on the first one's result, in one graph; the last in place, replayed often."""
    mine = run_ranks.Rank(c, package, "fp32")
    with run_ranks.as_before(c):
        c.sglang = OLD
        with c.graph_capture():
            c.all_reduce(mine.fill())
            with c.graph() as graph:
                first = c.all_reduce(mine.tensor)
                second = c.all_reduce(first.tensor)
        mine.fill(5)
        graph.replay()
        assert mine.is_sum(first.tensor, 5) and mine.is_sum(second.tensor, 5, times=2)
        c.custom.disabled = True
        with c.graph_capture():
            c.all_reduce(mine.fill())
            with c.graph() as graph:
                assert c.all_reduce(mine.tensor).tensor is mine.tensor
        mine.fill(6)
        graph.replay(5)
        assert mine.is_sum(mine.tensor, 6, times=5)


def test_a_graph_of_several_calls_runs_them_in_order_and_again(group_of: Groups, package: str) -> None:
    group_of(2).run(_whole_step, package)


def _nobody_kept(c: Coordinator, package: str) -> None:
    mine = run_ranks.Rank(c, package, "fp32", 1 << 15)
    with run_ranks.as_before(c):
        c.sglang = OLD
        tensor = mine.fill()
        with c.graph_capture(), c.graph() as graph:
            c.all_reduce(tensor)  # its result is dropped
        gc.collect()
        others = [mine.tensors.make((4, 1 << 13), "fp32") for _ in range(8)]
        for other in others:
            mine.tensors.write(other, run_ranks.stored(run_ranks.POISON, "fp32", 1 << 15))
        graph.replay(3)
        c.wait()
        for other in others:  # on GPUs the memory is of torch's pool for that graph, which keeps it
            assert (mine.tensors.read(other) == run_ranks.POISON).all()


def test_a_replay_writes_nothing_that_was_freed_since(group_of: Groups, package: str) -> None:
    group_of(2).run(_nobody_kept, package)


def _misused(c: Coordinator, package: str) -> None:
    mine = run_ranks.Rank(c, package)
    with run_ranks.as_before(c):
        c.sglang, c.custom.disabled = OLD, True
        with c.graph_capture():
            c.all_reduce(mine.fill())
            with c.graph() as graph:
                c.all_reduce(mine.tensor)
                if c.device == "host":
                    with pytest.raises(ProbeError, match="already"):
                        c.begin_graph()
                with pytest.raises(InputError, match="graph_capture"):
                    graph.replay()
            with pytest.raises(InputError, match="graph_capture"):
                graph.replay()
        with pytest.raises(KeyError), c.graph_capture(), c.graph():
            raise KeyError  # while nothing is captured
        with pytest.raises(InputError, match="not ended"), c.graph() as graph:
            graph.replay()
        for times in (-1, "often"):
            with pytest.raises((ValueError, TypeError)):
                graph.replay(times)
        if c.device == "host":
            with pytest.raises(ProbeError, match="begin one"):
                c.end_graph()
        assert mine.is_sum(c.all_reduce(mine.fill()).tensor)


def test_a_graph_that_is_misused_says_how_and_leaves_the_coordinator_usable(group_of: Groups, package: str) -> None:
    group_of(2).run(_misused, package)


# ------------------------------------------------------------------------------------------------------------------------------- times


def _timed(c: Coordinator, package: str) -> None:
    mine = run_ranks.Rank(c, package)
    with run_ranks.as_before(c):
        c.sglang = OLD
        c.timing = True
        try:
            timed = c.all_reduce(mine.fill())
            seq = timed.seq
            with c.graph_capture():
                dry = c.all_reduce(mine.tensor)
                with c.graph():
                    captured = c.all_reduce(mine.tensor)
        finally:
            c.timing = False
        assert mine.is_sum(timed.tensor)
        assert timed.host_us > 0 and timed.device_us >= 0 and isinstance(timed.device_us, float)
        assert dry.device_us is None and captured.device_us is None and captured.host_us > 0
        assert f"host_us {timed.host_us!r}" in repr(timed)
        untimed = c.all_reduce(mine.fill())
        assert (untimed.host_us, untimed.device_us) == (None, None) and untimed.seq > seq


def test_times_are_there_when_they_are_asked_for_and_only_then(group_of: Groups, package: str) -> None:
    group_of(2).run(_timed, package)
