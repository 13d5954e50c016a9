"""A derived table routes as the ruleset it was walked from: conditions, predicates that raise, devices that it does not know."""

from __future__ import annotations

import dataclasses

import pytest

from sglang_probe import Call, Group, _core, route
from sglang_probe._releases import Release, resolve


def derived(sglang: str) -> Release:
    """The release, its rules replaced by their own walk."""
    release = resolve(sglang)
    return dataclasses.replace(release, kind="checkout", derived=_core.walk(release.ruleset_index).tobytes())


@pytest.mark.parametrize("sglang", ["0.5.9", "0.5.12", "0.5.14", "0.5.18", "0.5.23"])
@pytest.mark.parametrize("context", ["eager", "capture", "piecewise_compile", "compile"])
@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"own_custom": False},
        {"full_nvlink": False, "arch": 120},
        {"own_custom": False, "own_torch_symm_mem": True},
        {"own_mscclpp": True, "own_custom": False, "world_size": 4},
        {"v2_multinode": True},
        {"symm_mem": True},
        {"device": 3},
        {"device": 1, "arch": 942, "deterministic": True},
    ],
)
def test_a_table_answers_as_its_ruleset(sglang: str, context: str, facts: dict[str, int]) -> None:
    group = Group.make(**{"world_size": 8, **facts})
    for nbytes in (16, 24, 43008, 32 << 20):
        call = Call(nbytes=nbytes, hidden=7168)
        ours, table = (route(call, group, context=context, sglang=release) for release in (sglang, derived(sglang)))
        assert (table.path, table.op, table.returns, table.reduces) == (ours.path, ours.op, ours.returns, ours.reduces)
        assert table.error == ours.error
        assert table.facts is not None and table.to_dict()["path"] == table.path


def test_what_blocks_a_better_rule_is_named_without_rows() -> None:
    decision = route(43008, Group.make(world_size=8, own_custom=False), context="capture", sglang=derived("0.5.9"))
    assert decision.path == "pynccl_in_place"
    assert decision.blocked_by["custom"].missing == ("custom_present", "custom_enabled", "custom_accepts")
    better = route(43008, Group.make(world_size=8), context="capture", sglang=derived("0.5.9"))
    assert "in_place_pynccl" not in better.blocked_by
