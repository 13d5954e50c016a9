"""route, bands and router: three ways to one answer, over all sizes."""

from __future__ import annotations

import dataclasses

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


def test_lifting_one_of_two_gates_names_the_other() -> None:
    both = Group.make(world_size=4, arch=120, full_nvlink=False, own_custom=False)
    one = both.with_facts(own_custom=True)
    for group, names in (
        (both, {"not_owned", "no_full_nvlink", "no_full_nvlink_call"}),
        (one, {"no_full_nvlink", "no_full_nvlink_call"}),
    ):
        decision = route(8192, group, context="capture", sglang="0.5.9")
        assert decision.path == "pynccl_in_place"
        assert {stop.name for stop in decision.blocked_by["custom"].stops} == names


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
