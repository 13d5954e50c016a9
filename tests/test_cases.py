"""The routing cases that people met, R1 to R20: what the release really does in each. R17 and R18 as whole steps are in test_step.py.

NVL is full NVLink on Hopper; unless a release is named it is v0.5.9 with v1 custom all-reduce.
"""

from __future__ import annotations

import pytest

from sglang_probe import Call, Decision, Group, bands, route

MIB, KIB = 1 << 20, 1 << 10


def nvl(world_size: int, **facts: int | bool) -> Group:
    return Group.make(world_size=world_size, arch=90, full_nvlink=True, **facts)


def at(nbytes: int, group: Group, sglang: str = "0.5.9", context: str = "capture", dtype: str = "bf16") -> Decision:
    return route(Call(nbytes=nbytes, dtype=dtype, hidden=4096), group, context=context, sglang=sglang)


def test_r1_just_under_8_mib_is_custom() -> None:
    assert at(8 * MIB - 16, nvl(8)).path == "custom"


def test_r2_exactly_8_mib_turned_custom_in_0_5_9() -> None:
    assert at(8 * MIB, nvl(8), "0.5.8").path == "pynccl_in_place"
    assert at(8 * MIB, nvl(8), "0.5.9").path == "custom"


def test_r3_prefill_sized_tensor_leaves_custom() -> None:
    assert at(256 * 4096 * 2, nvl(4)).path == "custom"
    assert at(2048 * 4096 * 2, nvl(4)).path == "pynccl_in_place"


@pytest.mark.parametrize("world_size", [3, 5, 7])
def test_r4_odd_world_sizes_are_custom_only_with_v2(world_size: int) -> None:
    before = at(8 * KIB, nvl(world_size))
    assert before.path == "pynccl_in_place"
    assert [stop.name for stop in before.blocked_by["custom"].stops] == ["world_size"]
    after = at(8 * KIB, nvl(world_size), "0.5.12")
    assert (after.path, after.backend) == ("custom", "V2")


def test_r5_six_ranks_are_custom() -> None:
    assert at(8 * KIB, nvl(6)).path == "custom"


def test_r6_rows_of_798_bytes_break_the_multiple_of_16() -> None:
    for rows in (1, 3, 5, 7):
        decision = at(rows * 798, nvl(2), dtype="fp16")
        assert decision.path == "pynccl_in_place"
        assert [stop.name for stop in decision.blocked_by["custom"].stops] == ["not_multiple"]


def test_r7_rows_of_5760_bytes_are_custom() -> None:
    assert all(at(rows * 5760, nvl(2)).path == "custom" for rows in (1, 2, 3, 7))


def test_r8_torch_symmetric_memory_takes_bf16_only() -> None:
    decision = at(MIB, nvl(4, own_custom=False, own_torch_symm_mem=True), dtype="fp32")
    assert decision.path == "pynccl_in_place"
    assert [stop.name for stop in decision.blocked_by["torch_symm_mem"].stops] == ["dtype"]


def test_r9_half_built_mscclpp_raises_once_custom_is_off() -> None:
    assert at(32 * KIB, nvl(4, own_mscclpp=True)).path == "custom"
    decision = at(32 * KIB, nvl(4, own_mscclpp=True, own_custom=False))
    assert (decision.path, decision.error) == ("raises", "AttributeError")


def test_r10_mscclpp_beats_custom_from_0_5_14_where_its_package_imports() -> None:
    assert at(32 * KIB, nvl(8, own_mscclpp=True)).path == "custom"
    assert at(32 * KIB, nvl(8, own_mscclpp=True, has_mscclpp=True), "0.5.14").path == "mscclpp"
    assert at(32 * KIB, nvl(8, own_mscclpp=True, has_mscclpp=False), "0.5.14").path == "custom"


def test_r11_eager_without_custom_is_torch_distributed() -> None:
    decision = at(32 * KIB, nvl(4, own_custom=False), context="eager")
    assert (decision.path, decision.rule) == ("torch_distributed", "in_place_torch")


def test_r12_captured_without_custom_is_pynccl() -> None:
    assert at(32 * KIB, nvl(4, own_custom=False)).path == "pynccl_in_place"


@pytest.mark.parametrize(
    ("context", "path"),
    [
        ("piecewise_compile", "torch_distributed"),
        ("piecewise_replay", "torch_distributed"),
        ("piecewise_capture", "pynccl_in_place"),
    ],
)
def test_r13_piecewise_graph_goes_out_of_place_only_from_0_5_9(context: str, path: str) -> None:
    group = nvl(4, own_custom=False)
    assert at(32 * KIB, group, "0.5.8", context).path == path
    assert at(32 * KIB, group, "0.5.9", context).path == "pynccl_out_of_place"


def test_r14_symmetric_memory_bypass_yields_to_custom_in_e18() -> None:
    group = nvl(4, symm_mem=True)
    assert at(32 * KIB, group).path == "pynccl_in_place"
    assert at(32 * KIB, group).rule == "symm_mem_bypass"
    assert at(32 * KIB, group, "E18").path == "custom"


def test_r15_v1_only_pretends_in_graph_warm_up() -> None:
    dry = at(32 * KIB, nvl(4), context="warmup")
    assert (dry.path, dry.reduces) == ("custom", False)
    assert at(32 * KIB, nvl(4), "0.5.16", "warmup").reduces


def test_r16_two_nodes_have_two_reasons() -> None:
    decision = at(8 * KIB, Group.make(world_size=16, nodes=2, full_nvlink=True))
    assert decision.path == "pynccl_in_place"
    assert {"world_size", "nodes"} <= {stop.name for stop in decision.blocked_by["custom"].stops}


def test_r17_one_rank_does_nothing() -> None:
    decision = route(8 * KIB, Group.make(world_size=1), sglang="0.5.9")
    assert (decision.path, decision.rule, decision.blocked_by) == ("none", "world_of_one", {})


@pytest.mark.parametrize("sglang", ["bba2fc4", "0be30d4"])
@pytest.mark.parametrize(("context", "path"), [("eager", "torch_distributed"), ("capture", "pynccl_in_place")])
def test_r18_the_motivating_call_is_the_same_at_both_commits(sglang: str, context: str, path: str) -> None:
    group = Group.make(world_size=8, arch=120, full_nvlink=False)
    decision = at(3 * 7168 * 2, group, sglang, context)
    assert decision.path == path
    assert "piecewise" not in decision.conditions


def test_r18_four_pcie_gpus_have_two_gates_and_lifting_one_names_the_other() -> None:
    group = Group.make(world_size=4, arch=120, full_nvlink=False)
    stops = at(8 * KIB, group).gates["custom"].stops
    assert [(stop.name, stop.when) for stop in stops] == [("no_full_nvlink", "setup"), ("no_full_nvlink_call", "call")]


@pytest.mark.parametrize(
    ("context", "multicast", "kernel"),
    [("capture", True, "two_shot_pull"), ("eager", True, "two_shot_multicast"), ("eager", False, "two_shot_pull")],
)
def test_r19_v2_picks_another_kernel_when_captured(context: str, multicast: bool, kernel: str) -> None:
    decision = at(300 * KIB, nvl(8, multicast=multicast), "0.5.16", context)
    assert (decision.path, decision.backend, decision.kernel) == ("custom", "V2", kernel)


def test_r20_the_assertion_that_forgets_torch_symmetric_memory() -> None:
    decision = at(MIB, nvl(4, own_custom=False, own_torch_symm_mem=True), "0.5.4", "eager")
    assert (decision.path, decision.error, decision.rule) == ("raises", "AssertionError", "torch_symm_mem")


def test_bands_put_the_8_mib_boundary_on_the_right_side() -> None:
    for sglang, first in (("0.5.8", 8 * MIB), ("0.5.9", 8 * MIB + 1)):
        found = bands(nvl(8), context="capture", sglang=sglang)
        assert [band.first_bytes for band in found if band.path == "pynccl_in_place"] == [first]
