"""The rules alone: the contract of ``dispatch`` and the space of its states. That they are SGLang's own is shown in tests/conformance."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import sglang_probe as probe
from sglang_probe import _core
from sglang_probe._releases import COMMITS, RELEASES, RULESETS
from sglang_probe._route import RULES

COMMUNICATOR = ("absent", "disabled", "declines", "accepts")


def test_the_space_has_12289_states_and_names_each_once() -> None:
    words = {_core.state_word(i) for i in range(12289)}
    assert len(words) == 12289
    assert [_core.state_of(_core.state_word(i)) for i in range(49153)] == list(range(49153))


def test_every_walk_is_what_dispatch_answers() -> None:
    axes = [COMMUNICATOR] * 4 + [("absent", "disabled", "enabled")] + [(False, True)] * 4
    names = ("custom", "quick", "mscclpp", "torch_symm_mem", "pynccl", "symmetric_memory", "piecewise", "compiling", "flashinfer")
    for ruleset in ("E10", "E18"):
        walk = _core.walk(RULESETS.index(ruleset))
        for i, values in enumerate(itertools.product(*axes), start=1):
            if i % 97 == 0:
                decision = probe.dispatch(ruleset, **dict(zip(names, values, strict=True)))  # type: ignore[arg-type] # one literal an axis
                assert RULES[walk[i][1]] == decision.rule
                assert _core.PATHS[walk[i][0]][0] == decision.path


def test_the_motivating_commit_changes_1296_states_all_inside_a_piecewise_graph() -> None:
    before, after = (_core.walk(RULESETS.index(era)) for era in ("E9", "E10"))
    changed = np.flatnonzero((before != after).any(axis=1))
    piecewise = 1 << [name for name, _, _ in _core.CONDITIONS].index("piecewise")
    assert len(changed) == 1296
    assert all(_core.state_word(int(i)) & piecewise for i in changed)
    paths = [_core.PATHS[code][0] for code in after[changed][:, 0]]
    assert (paths.count("pynccl_out_of_place"), paths.count("raises")) == (648, 648)


def test_one_rank_does_nothing_in_every_release() -> None:
    for release in RELEASES:
        decision = probe.dispatch(release, world_size=1)
        assert (decision.path, decision.rule, decision.returns) == ("none", "world_of_one", "input")


def test_a_decision_names_every_condition_that_stops_a_better_rule() -> None:
    decision = probe.dispatch("0.5.9", custom="declines", pynccl="enabled")
    assert decision.path == "pynccl_in_place"
    assert decision.blocked_by["custom"].missing == ("custom_accepts",)
    assert decision.blocked_by["piecewise_pynccl"].missing == ("piecewise",)
    assert decision.next_best == "torch_distributed"


def test_the_lost_result_of_in_place_torch_symmetric_memory_is_told() -> None:
    lossy = probe.dispatch("0.5.13", torch_symm_mem="declines")
    assert (lossy.rule, lossy.reduces) == ("in_place_torch_symm_mem", False)
    fixed = probe.dispatch("0.5.14", torch_symm_mem="declines")
    assert (fixed.rule, fixed.reduces) == ("in_place_torch", True)


def test_auto_reaches_pynccl_out_of_place_with_the_piecewise_flag_off() -> None:
    decision = probe.dispatch("0.5.16", compiling=True, pynccl="disabled")
    assert (decision.path, decision.rule, decision.returns) == ("pynccl_out_of_place", "auto_pynccl", "new")
    clone = probe.dispatch("0.5.16", compiling=True, torch_symm_mem="declines")
    assert (clone.rule, clone.cloned, clone.returns) == ("auto_clone", True, "new")


def test_devices_take_their_early_returns() -> None:
    assert probe.dispatch("0.5.9", device="cpu", cpu_shm=True).path == "cpu_shm"
    assert probe.dispatch("0.5.9", device="cpu").path == "torch_distributed"
    assert probe.dispatch("0.5.22", device="npu").rule == "npu"
    assert probe.dispatch("0.5.23", device="npu").rule == "in_place_torch"
    assert probe.dispatch("0.5.15", device="xpu").op == "in_place"
    assert probe.dispatch("0.5.9", device="hip", amd_deterministic=True, custom="disabled").rule == "amd_deterministic"


def test_pcie_ipc_alone_trips_the_assertion_that_forgets_it() -> None:
    decision = probe.dispatch("0.5.23", pcie_ipc="accepts")
    assert (decision.path, decision.error) == ("raises", "AssertionError")
    assert probe.dispatch("0.5.23", pcie_ipc="accepts", pynccl="disabled").path == "pcie_ipc"
    assert probe.dispatch("0.5.20", pcie_ipc="accepts", pynccl="disabled").path == "torch_distributed"


@pytest.mark.parametrize(
    ("arguments", "field", "remedy"),
    [
        ({"world_size": 0}, "world_size", "1 or more"),
        ({"world_size": True}, "world_size", "1 or more"),
        ({"world_size": 1, "custom": "accepts"}, "custom", "world_size above 1"),
        ({"custom": "maybe"}, "custom", "absent, disabled, declines, accepts"),
        ({"pynccl": "accepts"}, "pynccl", "absent, disabled, enabled"),
        ({"device": "tpu"}, "device", "cuda"),
        ({"piecewise": "no"}, "piecewise", "True or False"),
    ],
)
def test_bad_conditions_are_named_with_a_remedy(arguments: dict[str, object], field: str, remedy: str) -> None:
    with pytest.raises(probe.InputError, match=remedy) as caught:
        probe.dispatch("0.5.9", **arguments)  # type: ignore[arg-type] # bad on purpose
    assert caught.value.field == field


@pytest.mark.parametrize("text", ["0.5.9", "v0.5.9", " 0.5.9 ", "E10", "0be30d4", "0be30d4b0"])
def test_a_release_may_be_written_in_every_usual_way(text: str) -> None:
    assert probe.resolve(text).ruleset == "E10"


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("0.5.99", "nearest known release is 0.5.23.*conform"),
        ("0.4.0", "vLLM"),
        ("0.4.1.post6", "vLLM"),
        ("deadbee", "give a release"),
        ("", "give a release"),
        ("banana", "give a release"),
    ],
)
def test_an_unknown_release_is_refused_never_guessed(text: str, remedy: str) -> None:
    with pytest.raises(probe.InputError, match=remedy):
        probe.resolve(text)


def test_both_commits_of_the_story_are_known() -> None:
    assert set(COMMITS) == {"bba2fc4", "0be30d4"}
    assert (probe.resolve("bba2fc4").ruleset, probe.resolve("0be30d4").ruleset) == ("E9", "E10")
