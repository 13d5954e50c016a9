"""route, bands and router: three ways to one answer, over all sizes."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sglang_probe as probe
from sglang_probe import Call, Group, _core, bands, route, router
from sglang_probe._releases import RELEASES
from sglang_probe._route import CONTEXTS

SIZES = st.one_of(
    st.integers(1, 1 << 26),
    st.integers(1, 2**63 - 1),
    st.sampled_from([1 << k for k in range(63)]).flatmap(lambda p: st.integers(max(1, p - 17), p + 17)),
)
GROUPS = st.builds(
    lambda **facts: Group.make(**facts),
    world_size=st.sampled_from([2, 3, 4, 6, 8, 16]),
    arch=st.sampled_from([80, 90, 100, 103, 107, 120]),
    full_nvlink=st.booleans(),
    multicast=st.booleans(),
    own_custom=st.booleans(),
    own_pynccl=st.booleans(),
    own_mscclpp=st.booleans(),
    has_mscclpp=st.booleans(),
    own_torch_symm_mem=st.booleans(),
    own_pcie_ipc=st.booleans(),
    has_flashinfer_pcie=st.booleans(),
    fi_workspace=st.booleans(),
    fi_hidden=st.just(7168),
    symm_mem=st.booleans(),
    pdmux=st.booleans(),
    v2_max_kb=st.sampled_from([1024, 16384, 65536]),
)
CASES = st.tuples(GROUPS, st.sampled_from(RELEASES), st.sampled_from(sorted(CONTEXTS)), st.sampled_from(["bf16", "fp32"]))


@settings(max_examples=300, deadline=None)
@given(CASES, st.lists(SIZES, min_size=1, max_size=8))
def test_a_size_routes_as_its_band_says(case: tuple[Group, str, str, str], sizes: list[int]) -> None:
    group, sglang, context, dtype = case
    width = dict(_core.DTYPES)[dtype]
    whole = bands(group, context=context, dtype=dtype, hidden=7168, sglang=sglang)
    fast = router(group, context=context, dtype=dtype, hidden=7168, sglang=sglang)
    for size in sizes:
        nbytes = min(size * width, 2**63 - 16)
        nbytes -= nbytes % width
        decision = route(Call(nbytes=nbytes, dtype=dtype, hidden=7168), group, context=context, sglang=sglang)
        assert whole.path_at(nbytes) == decision.path
        assert fast(nbytes) == decision.path


@settings(max_examples=200, deadline=None)
@given(CASES, st.lists(SIZES, min_size=1, max_size=5000))
def test_a_million_sizes_at_once_are_one_size_at_a_time(case: tuple[Group, str, str, str], sizes: list[int]) -> None:
    group, sglang, context, dtype = case
    fast = router(group, context=context, dtype=dtype, sglang=sglang)
    codes = fast(np.array(sizes, dtype=np.int64))
    assert [_core.PATHS[code][0] for code in codes] == [fast(size) for size in sizes]


def test_a_routers_array_crosses_its_blocks() -> None:
    fast = router(Group.make(world_size=8), context="capture", sglang="0.5.9")
    sizes = np.arange(1, 100_000, dtype=np.int64) * 97
    codes = fast(sizes)
    assert codes.shape == sizes.shape
    assert [_core.PATHS[code][0] for code in codes[::1009]] == [fast(int(size)) for size in sizes[::1009]]


@pytest.mark.parametrize(
    ("lift", "left"),
    [
        ((), ["no_full_nvlink", "no_full_nvlink_call"]),
        (("no_full_nvlink",), ["no_full_nvlink_call"]),
        (("no_full_nvlink_call",), ["no_full_nvlink"]),
    ],
)
def test_lifting_one_of_two_gates_still_answers_nccl_and_names_the_other(lift: tuple[str, ...], left: list[str]) -> None:
    four_pcie = Group.make(world_size=4, arch=120, full_nvlink=False)
    decision = route(8192, four_pcie, context="capture", sglang="0.5.9", lift=lift)
    assert decision.path == "pynccl_in_place"
    assert [stop.name for stop in decision.blocked_by["custom"].stops] == left


def test_lifting_both_gates_is_custom() -> None:
    four_pcie = Group.make(world_size=4, arch=120, full_nvlink=False)
    both = ("no_full_nvlink", "no_full_nvlink_call")
    assert route(8192, four_pcie, context="capture", sglang="0.5.9", lift=both).path == "custom"
    with pytest.raises(probe.InputError, match="not a reason"):
        route(8192, four_pcie, sglang="0.5.9", lift=("gravity",))


def test_two_pcie_gpus_are_told_what_v2_needs() -> None:
    two_pcie = Group.make(world_size=2, full_nvlink=False)
    texts = [str(stop) for stop in route(8192, two_pcie, context="capture", sglang="0.5.12").blocked_by["custom"].stops]
    assert texts == ["the GPUs are not fully linked by NVLink, which V2 needs for two as well"]


@pytest.mark.parametrize("call", [1.5, "16", None])
def test_what_is_no_call_is_refused(call: object) -> None:
    with pytest.raises(probe.InputError, match="whole number of bytes"):
        route(call, GOOD, sglang="0.5.9")  # type: ignore[arg-type] # bad on purpose


def test_a_decision_names_the_facts_that_it_rests_on() -> None:
    decision = route(8192, Group.make(world_size=8), context="capture", sglang="0.5.9")
    assert decision.facts["full_nvlink"].origin == "assumed"
    assert decision.facts["world_size"].origin == "given"
    assert "qr_quantization" not in decision.facts


def test_kernel_thresholds_of_cuda_sources_are_marked() -> None:
    v1 = route(8192, Group.make(world_size=8), context="capture", sglang="0.5.9")
    assert v1.kernel == "one_shot" and "CUDA sources" in v1.not_conformed[0]
    v2 = route(8192, Group.make(world_size=8), context="capture", sglang="0.5.16")
    assert v2.kernel == "one_shot_push" and not v2.not_conformed


def test_decisions_are_plain_data() -> None:
    decision = route(8192, Group.make(world_size=8), sglang="0.5.9")
    data = decision.to_dict()
    assert data["path"] == "custom" and data["gates"]["custom"]["state"] == "accepts"
    assert dataclasses.replace(decision, path=probe.Path.NONE).path == "none"


GOOD = Group.make(world_size=8)


@pytest.mark.parametrize(
    ("call", "group", "context", "field"),
    [
        (0, GOOD, "eager", "nbytes"),
        (-16, GOOD, "eager", "nbytes"),
        (2**63, GOOD, "eager", "nbytes"),
        (Call(nbytes=16, dtype="complex"), GOOD, "eager", "dtype"),
        (16, GOOD, "sideways", "context"),
        (16, GOOD, "replay", "context"),
        (16, Group.make(world_size=1, own_custom=True), "eager", "own_custom"),
        (16, Group.make(world_size=2, nodes=4), "eager", "nodes"),
    ],
)
def test_bad_calls_name_field_value_and_remedy(call: Call | int, group: Group, context: str, field: str) -> None:
    with pytest.raises(probe.InputError) as caught:
        route(call, group, context=context, sglang="0.5.9")
    assert caught.value.field == field
    assert repr(caught.value.value) in str(caught.value)


@pytest.mark.parametrize(
    ("fact", "value"), [("world_size", 0), ("full_nvlink", 2), ("bandwidth", 1), ("arch", -90), ("p2p", "yes")]
)
def test_bad_facts_are_refused_when_the_group_is_made(fact: str, value: object) -> None:
    with pytest.raises(probe.InputError, match=fact):
        Group.make(**{fact: value})  # type: ignore[arg-type] # bad on purpose


@pytest.mark.parametrize("sizes", [[16, 0], [-1], [2**62, -(2**62)]])
def test_bad_sizes_in_an_array_are_named(sizes: list[int]) -> None:
    fast = router(GOOD, sglang="0.5.9")
    with pytest.raises(ValueError, match="tensor has 1 to"):
        fast(np.array(sizes))
    with pytest.raises(ValueError, match="nbytes=0"):
        fast(0)


def test_a_predicate_that_raises_is_asked_before_the_bypass_and_flashinfer() -> None:
    """v0.5.19 asks custom first; v0.5.23's eager predicate builds the kernel, and so raises for a dtype that has none."""
    group = Group.make(world_size=8, fi_workspace=True, fi_hidden=7168, fi_dtype=4, symm_mem=True)
    decision = route(Call(nbytes=14336, dtype="fp8", hidden=7168), group, context="eager", sglang="0.5.23")
    assert decision.gates["custom"].state == "raises"
    assert (decision.path, decision.rule) == ("raises", "custom") and decision.error
    assert list(decision.blocked_by) == ["flashinfer"]  # the one under Dynamo, which is asked before everything


def test_rules_after_the_one_that_raised_are_no_better_ones() -> None:
    group = Group.make(world_size=4, own_mscclpp=True, own_custom=False)
    decision = route(32768, group, context="capture", sglang="0.5.12")
    assert (decision.path, decision.rule, decision.error) == ("raises", "mscclpp", "AttributeError")
    assert list(decision.blocked_by) == ["symm_mem_bypass", "custom", "quick"]
    assert decision.next_best == "pynccl_in_place"


def test_the_next_best_path_knows_what_running_it_raises() -> None:
    decision = route(Call(nbytes=14336, dtype="fp8"), Group.make(world_size=8), context="capture", sglang="0.5.9")
    assert (decision.path, decision.next_best) == ("raises", "raises")
    assert route(14336, Group.make(world_size=8), context="capture", sglang="0.5.9").next_best == "pynccl_in_place"


def test_traced_without_any_communicator_every_better_rule_is_still_named() -> None:
    decision = route(14336, Group.make(world_size=8, own_custom=False, own_pynccl=False), context="compile", sglang="0.5.16")
    assert decision.rule == "in_place_torch"
    assert {"custom", "quick", "mscclpp", "torch_symm_mem"} <= set(decision.blocked_by)


@pytest.mark.parametrize(
    ("group", "call", "context", "sglang", "fact"),
    [
        (Group.make(world_size=8, device=3, local_size=0), 4096, "eager", "0.5.9", "local_size"),
        (GOOD, 12 << 20, "capture", "0.5.16", "v2_max_kb"),
        (Group.make(world_size=8, own_mscclpp=True, own_custom=False), 2 << 20, "capture", "0.5.9", "mscclpp_max_bytes"),
    ],
)
def test_facts_that_matter_are_among_those_it_rests_on(group: Group, call: int, context: str, sglang: str, fact: str) -> None:
    assert fact in route(call, group, context=context, sglang=sglang).facts


def test_bands_of_eight_byte_types_have_their_sizes_between_multiples_of_16() -> None:
    found = bands(GOOD, context="capture", dtype="fp64", sglang="0.5.9")
    for nbytes in (8, 24, 40, 1 << 20, (1 << 20) + 8):
        assert found.path_at(nbytes) == route(Call(nbytes=nbytes, dtype="fp64"), GOOD, context="capture", sglang="0.5.9").path


def test_a_context_may_be_any_iterable_of_bits() -> None:
    bits = (name for name in ("in_graph_capture", "stream_capturing"))
    assert bands(GOOD, context=bits, sglang="0.5.9").bands[-1].path == "pynccl_in_place"


def test_numpys_integers_are_sizes_and_booleans_are_none() -> None:
    fast = router(GOOD, context="capture", sglang="0.5.9")
    assert fast(np.int64(4096)) == "custom"
    assert route(np.int64(4096), GOOD, sglang="0.5.9").path == "custom"  # type: ignore[arg-type] # anything with __index__
    with pytest.raises(TypeError):
        fast(True)


def test_groups_and_decisions_can_be_keys_and_travel_between_processes() -> None:
    decision = route(4096, GOOD, sglang="0.5.9")
    for value in (GOOD, decision):
        assert pickle.loads(pickle.dumps(value)) == value
        assert hash(copy.deepcopy(value)) == hash(value)


def test_a_fact_that_nobody_knows_is_refused_however_the_group_is_made() -> None:
    with pytest.raises(probe.InputError, match="wrold_size"):
        Group("tp", {"wrold_size": probe.Fact(8, "given")})


@pytest.mark.parametrize(("field", "value"), [("hidden", -5), ("dims", -1), ("hidden", 2**40)])
def test_bad_shapes_are_named(field: str, value: int) -> None:
    with pytest.raises(probe.InputError) as caught:
        route(Call(nbytes=16, **{field: value}), GOOD, sglang="0.5.9")  # type: ignore[arg-type] # bad on purpose
    assert caught.value.field == field
