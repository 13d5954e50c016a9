"""The custom all-reduce gate: what people met (CASES R1 to R6, R16, R19), every reason at once, and SGLang's own code.

Invariant: the comparisons run on packages as released; where a line of them is altered, it is to show that it would be noticed.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from sglang_probe import _core
from sglang_probe._conform.custom import compare_custom
from sglang_probe._conform.gate import CALL_FACTS, DTYPES, FACTS
from sglang_probe._source import fetch as _fetch
from sglang_probe._source.lift import Tree

KIB, MIB = 1 << 10, 1 << 20
EAGER: tuple[str, ...] = ()
WARMUP, CAPTURE = ("in_graph_capture",), ("in_graph_capture", "stream_capturing")
RELEASES = tuple(row[0] for row in _core.releases())
COMMITS = ("bba2fc4", "0be30d4")
SETUP = {name for name, when, _ in _core.STOPS if when == "SETUP"}


def names(rows: object) -> tuple[str, ...]:
    return tuple(row if isinstance(row, str) else row[0] for row in rows)  # type: ignore[attr-defined] # names, or rows of names


class Answer(NamedTuple):
    state: str
    kernel: str
    backend: str
    exception: str
    stops: set[str]
    limit: int
    returns_new: bool
    reduces: bool
    assumed: bool


def ask(release: str, nbytes: int, context: tuple[str, ...] = CAPTURE, dtype: str = "bf16", **facts: int) -> Answer:
    call = {name: facts.pop(name) for name in list(facts) if name in CALL_FACTS}
    bits = sum(1 << names(_core.CONTEXTS).index(name) for name in context)
    values = {**FACTS, **facts}
    assert len(values) == len(FACTS), "a fact that the core does not know"
    asked = {**CALL_FACTS, **call, "dtype": DTYPES.index(dtype)}
    state, kernel, backend, exception, stops, limit, new, reduces, assumed = _core.gate(
        RELEASES.index(release), names(_core.GATES).index("custom"), tuple(values.values()), (nbytes, *asked.values()), bits
    )
    return Answer(
        names(_core.STATES)[state],
        names(_core.KERNELS)[kernel],
        names(_core.BACKENDS)[backend],
        names(_core.EXCEPTIONS)[exception],
        {n for i, n in enumerate(names(_core.STOPS)) if stops >> i & 1},
        limit,
        bool(new),
        bool(reduces),
        bool(assumed),
    )


# What people met.


def test_r1_r2_the_limit_became_inclusive_in_0_5_9() -> None:
    assert ask("0.5.9", 8 * MIB - 16).state == "accepts"
    before, after = ask("0.5.8", 8 * MIB), ask("0.5.9", 8 * MIB)
    assert (before.state, before.stops, before.limit) == ("declines", {"too_large"}, 8 * MIB - 16)
    assert (after.state, after.limit) == ("accepts", 8 * MIB)


def test_the_commit_before_0be30d4_already_has_the_inclusive_limit() -> None:
    assert ask("0.5.8.post1", 8 * MIB).state == "declines"
    assert ask("bba2fc4", 8 * MIB).state == ask("0be30d4", 8 * MIB).state == "accepts"


def test_r3_a_prefill_sized_tensor_is_declined() -> None:
    assert ask("0.5.9", 256 * 4096 * 2, world_size=4).state == "accepts"
    assert ask("0.5.9", 2048 * 4096 * 2, world_size=4).stops == {"too_large"}


@pytest.mark.parametrize("world_size", [3, 5, 7])
def test_r4_odd_world_sizes_need_v2(world_size: int) -> None:
    assert ask("0.5.9", 8 * KIB, world_size=world_size).stops == {"world_size"}
    assert ask("0.5.12", 8 * KIB, world_size=world_size)[:3] == ("accepts", "one_shot_push", "V2")


def test_r5_six_ranks_are_supported() -> None:
    assert ask("0.5.9", 8 * KIB, world_size=6)[:2] == ("accepts", "one_shot")


def test_r6_a_row_of_399_columns_is_no_multiple_of_16() -> None:
    assert ask("0.5.9", 3 * 399 * 2, dtype="fp16", world_size=2).stops == {"not_multiple"}
    assert ask("0.5.9", 2880 * 2, world_size=2).state == "accepts"


def test_r16_two_nodes_and_sixteen_ranks_are_two_reasons() -> None:
    assert ask("0.5.9", 8 * KIB, world_size=16, nodes=2).stops == {"world_size", "nodes"}


def test_r19_the_same_size_takes_another_kernel_in_graphs() -> None:
    assert ask("0.5.16", 300 * KIB, CAPTURE).kernel == "two_shot_pull"
    assert ask("0.5.16", 300 * KIB, EAGER).kernel == ask("0.5.16", 300 * KIB, WARMUP).kernel == "two_shot_multicast"
    assert ask("0.5.16", 300 * KIB, EAGER, multicast=0).kernel == "two_shot_pull"


def test_four_pcie_cards_hear_the_reason_of_the_constructor_and_that_of_each_call() -> None:
    answer = ask("0.5.9", 64 * KIB, world_size=4, full_nvlink=0)
    assert answer.state == "disabled" and answer.stops == {"no_full_nvlink", "no_full_nvlink_call"}


# Every reason at once.


def test_lifting_one_reason_shows_the_next() -> None:
    answer = ask(
        "0.5.9",
        9 * MIB + 8,
        own_custom=0,
        has_custom_ops=0,
        nodes=2,
        world_size=16,
        full_nvlink=0,
        p2p=0,
        p2p_check=1,
        contiguous=0,
        weak_contiguous=0,
    )
    assert answer.state == "absent"
    assert answer.stops == {
        "not_owned",
        "library",
        "nodes",
        "world_size",
        "no_full_nvlink",
        "no_peer_access",
        "not_multiple",
        "not_contiguous",
        "no_full_nvlink_call",
        "too_large",
    }


def test_missing_peer_access_stops_nothing_unless_it_is_checked() -> None:
    assert ask("0.5.9", 4096, p2p=0).state == ask("0.5.23", 4096, p2p=0).state == "accepts"
    assert ask("0.5.9", 4096, p2p=0, p2p_check=1).stops == {"no_peer_access"}


def test_a_fabric_that_is_not_joined_is_named_across_nodes() -> None:
    """GB300 over two nodes: v0.5.19 asks the fabric, and the answer must say so beside v1's own reason."""
    assert ask("0.5.19", 4096, arch=100, nodes=2, fabric_clique=1).stops == {"nodes", "no_fabric_clique"}
    joined = ask("0.5.19", 4096, arch=100, nodes=2, fabric_clique=1, vmm_allocator=1)
    assert (joined.state, joined.backend) == ("accepts", "V2")


# What runs.


def test_v1_warm_up_reduces_nothing_and_v2_does() -> None:
    dry = ask("0.5.9", 4096, WARMUP)
    assert (dry.state, dry.kernel, dry.reduces, dry.returns_new) == ("accepts", "dry", False, True)
    assert ask("0.5.12", 4096, WARMUP).reduces
    assert ask("0.5.9", 4096, (*WARMUP, "piecewise")).reduces, "a split op of the piecewise graph really reduces"
    assert not ask("0.5.8", 4096, (*WARMUP, "piecewise")).reduces


def test_a_group_that_graph_capture_does_not_enter_is_never_dry() -> None:
    assert ask("0.5.9", 4096, WARMUP, captured=0).reduces


def test_what_v2_raises_is_not_taken_for_an_acceptance() -> None:
    for release, change in itertools.product(("0.5.12", "0.5.16", "0.5.23"), ({"contiguous": 0}, {"aligned": 0})):
        assert ask(release, 4096, **change).exception == "RuntimeError"
    assert ask("0.5.12", 4096, dtype="fp64")[:4] == ("accepts", "one_shot_push", "V2", "KeyError")
    assert ask("0.5.9", 4096, dtype="int32").exception == "RuntimeError"


def test_v2_behind_its_variable_breaks_capture_where_it_disabled_itself() -> None:
    answer = ask("0.5.11", 4096, WARMUP, custom_v2=1, full_nvlink=0)
    assert (answer.state, answer.exception) == ("raises", "AttributeError") and "half_built" in answer.stops
    assert ask("0.5.11", 4096, EAGER, custom_v2=1, full_nvlink=0).state == "disabled"
    assert ask("0.5.12", 4096, WARMUP, full_nvlink=0).state == "disabled"


def test_v1_kernel_follows_size_link_and_variable() -> None:
    assert [ask("0.5.9", n, world_size=8).kernel for n in (256 * KIB - 16, 256 * KIB)] == ["one_shot", "two_shot"]
    assert [ask("0.5.9", n, world_size=4).kernel for n in (512 * KIB - 16, 512 * KIB)] == ["one_shot", "two_shot"]
    assert [ask("0.4.4.post2", n, world_size=4).kernel for n in (MIB - 16, MIB)] == ["one_shot", "two_shot"]
    assert ask("0.4.4.post2", MIB, world_size=4).backend == "v1-trt"
    # The variable needs the kernel library that v0.5.10rc0 pins.
    assert ask("0.5.9", 4096, v1_algo=2).kernel == "one_shot" and ask("0.5.10rc0", 4096, v1_algo=2).kernel == "two_shot"
    assert ask("0.5.9", 4096).assumed and not ask("0.5.16", 4096).assumed


def test_amd_answers_of_another_package_are_marked_as_assumed() -> None:
    answer = ask("0.5.9", 32 * MIB, device=1, has_aiter=1)
    assert (answer.state, answer.backend, answer.assumed, answer.limit) == ("accepts", "aiter", True, 64 * MIB)
    assert ask("0.5.9", 32 * MIB, device=1, has_aiter=1, one_stage=1).backend == "v1"


def test_one_stage_takes_every_size_on_amd_from_0_5_10() -> None:
    assert ask("0.5.9", 17 * MIB, device=1, one_stage=1).stops == {"too_large"}
    assert ask("0.5.10", 17 * MIB, device=1, one_stage=1)[:2] == ("accepts", "one_shot")


# Tables.


def test_releases_are_in_version_order_and_named_once() -> None:
    versions = [Version(name) for name in RELEASES if name not in COMMITS]
    assert versions == sorted(versions) and len(set(RELEASES)) == len(RELEASES)
    assert RELEASES.index("0.5.8.post1") < RELEASES.index("bba2fc4") < RELEASES.index("0be30d4") < RELEASES.index("0.5.9")
    assert (RELEASES[0], RELEASES[-1]) == ("0.4.1.post7", "0.5.23")


@given(
    st.sampled_from(RELEASES),
    st.integers(1, 64 * MIB),
    st.sampled_from([EAGER, WARMUP, CAPTURE]),
    st.sampled_from(DTYPES),
    st.fixed_dictionaries(
        {
            "world_size": st.integers(1, 20),
            "arch": st.sampled_from([80, 90, 100, 107, 120]),
            "full_nvlink": st.integers(0, 1),
            "nodes": st.integers(1, 2),
            "device": st.integers(0, 6),
            "own_custom": st.integers(0, 1),
            "multicast": st.integers(0, 1),
            "has_aiter": st.integers(0, 1),
            "v2_max_kb": st.integers(0, 2**31 - 1),
            "v2_force_push_kb": st.integers(-1, 2**31 - 1),
        }
    ),
)
def test_an_answer_never_contradicts_itself(
    release: str, nbytes: int, context: tuple[str, ...], dtype: str, facts: dict[str, int]
) -> None:
    answer = ask(release, nbytes, context, dtype, **facts)
    if answer.state == "accepts":
        assert not answer.stops and answer.kernel and answer.backend
        assert not answer.limit or nbytes <= answer.limit
    else:
        assert not answer.kernel and (answer.stops or answer.state == "raises" or facts["world_size"] == 1)
    if answer.state == "disabled":
        assert answer.stops & (SETUP | {"piecewise"})


# SGLang's own code.


@pytest.mark.network
@pytest.mark.parametrize(
    "release", ["0.4.3.post4", "0.4.4.post3", "0.5.4", "0.5.6.post2", "0.5.9", "0.5.11", "0.5.15", "0.5.18", "0.5.23"]
)
def test_every_answer_is_that_of_sglangs_own_classes(release: str) -> None:
    result = compare_custom(Tree(_fetch.fetch(release)), release)
    assert result.differences == []
    assert result.compared > 100_000


COMMUNICATORS = "srt/distributed/device_communicators/"
ALTERATIONS = [
    ("0.5.9", "custom_all_reduce.py", "inp_size <= self.max_size", "inp_size < self.max_size"),
    ("0.5.9", "custom_all_reduce.py", "if is_in_piecewise_cuda_graph():", "if False:"),
    ("0.5.9", "custom_all_reduce_utils.py", "inp.is_contiguous() or", "False or"),
    ("0.5.13", "custom_all_reduce.py", "if can_use_custom_all_reduce_v2(group=group, device=device):", "if True:"),
    ("0.5.15", "custom_all_reduce_v2.py", "8: ModeConfig(160 * KB, 160 * KB)", "8: ModeConfig(160 * KB, 161 * KB)"),
    ("0.5.16", "configs/custom_all_reduce_v2.py", "Range(512 * KB, 128 * MB)", "Range(511 * KB, 128 * MB)"),
    ("0.5.18", "custom_all_reduce_v2.py", "if world_size in range(2, 9):", "if world_size in range(2, 8):"),
    ("0.5.23", "configs/custom_all_reduce_v2.py", "two_shot_push=8 * MB", "two_shot_push=9 * MB"),
    ("0.5.23", "custom_all_reduce_v2.py", "not tms_cudagraph and not is_multinode", "not tms_cudagraph"),
]


class Altered(Tree):
    """A released package with one passage of one file replaced."""

    def __init__(self, root: Path, path: str, old: str, new: str) -> None:
        super().__init__(root)
        self._path, self._old, self._new = path, old, new

    def source(self, relpath: str) -> str:
        text = super().source(relpath)
        if relpath != self._path:
            return text
        assert self._old in text, "the passage to alter is not there"
        return text.replace(self._old, self._new)


@pytest.mark.network
@pytest.mark.parametrize(("release", "name", "old", "new"), ALTERATIONS, ids=[f"{a[0]} {a[2]}" for a in ALTERATIONS])
def test_a_changed_line_of_sglang_is_noticed(release: str, name: str, old: str, new: str) -> None:
    assert compare_custom(Altered(_fetch.fetch(release), COMMUNICATORS + name, old, new), release).differences
