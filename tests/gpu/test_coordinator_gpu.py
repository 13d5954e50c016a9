"""The Coordinator's own tests on GPUs: the same cases, one rank a GPU, torch tensors; what needs another vendor's device is left out.

Calls whose path does not run here must say so by name; they are counted and printed. Invariant: no expectation of its own: a test that
differs from the one on CPU ranks would prove nothing about either.
"""

# ruff: noqa: F401, F811 -- fixtures and tests are imported; fixtures are then asked for by name

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from run_fixtures import Groups, group_of, not_here, package, ranks_max
from test_coordinator import (
    test_a_bad_toggle_names_itself_and_changes_nothing,
    test_a_result_keeps_the_decision_of_its_call_whatever_is_toggled_later,
    test_a_toggle_takes_effect_on_the_next_call,
    test_each_communicator_can_be_switched_off_and_on_again,
    test_every_call_takes_the_path_that_route_says_and_sums_right,
    test_what_a_rank_raises_comes_back_and_the_group_lives_on,
    test_what_does_not_run_on_this_device_says_so,
)
from test_coordinator_calls import (
    test_a_path_in_python_stands_behind_the_same_three_calls,
    test_captured_inputs_that_peers_can_map_are_read_where_they_lie,
    test_every_custom_kernel_sums_random_numbers_to_the_same_bits_on_all_ranks,
    test_every_path_takes_the_dtypes_that_sglang_lets_through,
    test_paths_say_what_runs_each_of_them_or_why_it_is_not_here,
    test_the_fastest_kernel_that_we_know_can_be_asked_for_and_sums_right,
)
from test_coordinator_captures import (
    test_a_graph_of_several_calls_runs_them_in_order_and_again,
    test_a_graph_that_is_misused_says_how_and_leaves_the_coordinator_usable,
    test_a_replay_writes_nothing_that_was_freed_since,
    test_change_state_enables_pynccl_within_and_no_longer,
    test_graph_capture_means_what_it_means_in_sglang,
    test_times_are_there_when_they_are_asked_for_and_only_then,
)

from sglang_probe import Coordinator


@pytest.fixture(scope="session")
def device() -> Literal["host", "gpu"]:
    return "gpu"


def _elsewhere(c: Coordinator) -> list[str]:
    """A tensor on the CPU, and one on another rank's GPU."""
    import torch

    others = [torch.ones(8), np.ones(8, np.float32)]
    others += [torch.ones(8, device=f"cuda:{1 - c.rank}")] if torch.cuda.device_count() > 1 else []
    texts = []
    for other in others:
        with pytest.raises(ValueError) as refused:
            c.all_reduce(other)
        texts.append(str(refused.value))
    mine = torch.full((8,), float(c.rank + 1), device="cuda")
    reduced = c.all_reduce(mine)
    c.wait()
    assert reduced.tensor.tolist() == [3.0] * 8
    return texts


def test_a_tensor_elsewhere_is_refused_by_name_and_the_next_call_works(group_of: Groups) -> None:
    for texts in group_of(2).run(_elsewhere):
        assert len(texts) >= 2 and all(text.startswith("tensor: it is on") for text in texts), texts
