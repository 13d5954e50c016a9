"""All gates but custom all-reduce: their answers in the cases that people met, what holds for every gate, and SGLang's own code.

Invariant: the comparisons with SGLang's released code run on packages as released; where a line of them is altered here, it is to
show that the comparison would notice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_probe import _core
from sglang_probe._conform.communicators import compare_pcie, compare_pynccl, compare_quick, compare_symm
from sglang_probe._conform.gate import MIB, Answer, Case, Gate
from sglang_probe._conform.mscclpp import compare_mscclpp
from sglang_probe._conform.others import compare_capture, compare_cpu, compare_flashinfer, compare_others
from sglang_probe._conform.types import Result
from sglang_probe._source import fetch as _fetch
from sglang_probe._source.lift import Tree

RELEASES = tuple(row[0] for row in _core.releases())
OTHERS = ("quick", "mscclpp", "torch_symm_mem", "pcie_ipc", "pynccl", "flashinfer", "cpu")
SETUP = {name for name, when, _ in _core.STOPS if when == "SETUP"}
CAPTURE = ("in_graph_capture",)
MSCCLPP = {"own_mscclpp": 1, "has_mscclpp": 1}
SYMM = {"own_torch_symm_mem": 1}


def ask(
    gate: str,
    release: str,
    nbytes: int,
    dtype: str = "bf16",
    context: tuple[str, ...] = (),
    call: Mapping[str, int] | None = None,
    **facts: int,
) -> Answer:
    return Gate(release, gate).ask(Case(nbytes, dtype, facts, call or {}, context))


def test_half_built_mscclpp_is_not_reported_as_declining() -> None:
    """v0.5.9 at four ranks: the server dies in capture, where a plain table of world sizes would say "not mscclpp"."""
    answer = ask("mscclpp", "0.5.9", 32768, context=CAPTURE, world_size=4, **MSCCLPP)
    assert (answer.state, answer.exception) == ("raises", "AttributeError")
    assert {"world_size", "half_built"} <= set(answer.stops)
    eager = ask("mscclpp", "0.5.9", 32768, world_size=4, **MSCCLPP)
    assert (eager.state, set(eager.stops)) == ("disabled", {"world_size", "context_off"})


@pytest.mark.parametrize(("release", "state"), [("0.5.13.post1", "raises"), ("0.5.20", "raises"), ("0.5.21", "disabled")])
def test_the_release_that_stopped_raising_at_five_ranks_is_known(release: str, state: str) -> None:
    assert ask("mscclpp", release, 32768, context=CAPTURE, world_size=5, **MSCCLPP).state == state


def test_a_missing_mscclpp_package_only_disables_from_0_5_14() -> None:
    assert ask("mscclpp", "0.5.14", 32768, context=CAPTURE, own_mscclpp=1, has_mscclpp=0).state == "disabled"
    assert ask("mscclpp", "0.5.13", 32768, context=CAPTURE, own_mscclpp=1, has_custom_ops=0).state == "raises"


def test_who_counts_on_mscclpp_returning_a_new_tensor_is_warned() -> None:
    before, after = (ask("mscclpp", r, 32768, context=CAPTURE, **MSCCLPP) for r in ("0.5.13", "0.5.14"))
    assert (before.state, before.returns_new) == ("accepts", True)
    assert (after.state, after.returns_new) == ("accepts", False)


def test_mscclpp_never_runs_in_a_piecewise_graph_from_0_5_14() -> None:
    context = (*CAPTURE, "piecewise")
    assert ask("mscclpp", "0.5.13", 32768, context=context, **MSCCLPP).state == "accepts"
    late = ask("mscclpp", "0.5.14", 32768, context=context, **MSCCLPP)
    assert (late.state, late.stops) == ("declines", ("piecewise",))


def test_a_crooked_mscclpp_maximum_raises_past_its_last_power_of_two() -> None:
    facts = {**MSCCLPP, "mscclpp_max_bytes": 3 * MIB}
    assert ask("mscclpp", "0.5.9", 2 * MIB, context=CAPTURE, **facts).exception == ""
    assert ask("mscclpp", "0.5.9", 2 * MIB + 16, context=CAPTURE, **facts).exception == "IndexError"


def test_symmetric_memory_takes_bf16_below_its_maximum_and_nothing_else() -> None:
    assert ask("torch_symm_mem", "0.5.9", MIB, "fp32", world_size=4, **SYMM).stops == ("dtype",)
    assert ask("torch_symm_mem", "0.5.9", 64 * MIB - 4, world_size=4, **SYMM).state == "accepts"
    full = ask("torch_symm_mem", "0.5.9", 64 * MIB, world_size=4, **SYMM)
    assert (full.state, full.stops, full.limit) == ("declines", ("too_large",), 64 * MIB - 4)


def test_the_first_symmetric_memory_table_is_not_the_later_one() -> None:
    assert ask("torch_symm_mem", "0.5.3", 48 * MIB, world_size=4, **SYMM).state == "declines"
    assert ask("torch_symm_mem", "0.5.3.post2", 48 * MIB, world_size=4, **SYMM).state == "accepts"


def test_the_lost_result_of_the_in_place_use_is_told_from_the_one_that_raises() -> None:
    """v0.5.3.post2 - v0.5.13.post1 reduce in a buffer and drop it; a larger tensor than the buffer raises instead."""
    assert ask("torch_symm_mem", "0.5.9", MIB, "fp32", world_size=4, **SYMM).exception == ""
    assert ask("torch_symm_mem", "0.5.9", 65 * MIB, world_size=4, **SYMM).exception == "RuntimeError"
    assert ask("torch_symm_mem", "0.5.9", 65 * MIB, "fp32", world_size=4, **SYMM).exception == ""  # half the elements
    assert ask("torch_symm_mem", "0.5.14", 65 * MIB, world_size=4, **SYMM).exception == ""


def test_a_consumer_blackwell_server_with_symmetric_memory_does_not_start_before_0_5_14() -> None:
    old, new = (ask("torch_symm_mem", r, MIB, arch=120, **SYMM) for r in ("0.5.13", "0.5.14"))
    assert (old.state, old.exception, old.stops) == ("raises", "KeyError", ("arch",))
    assert (new.state, new.exception) == ("disabled", "")


def test_symmetric_memory_holds_512_mib_by_default_from_0_5_16() -> None:
    assert ask("torch_symm_mem", "0.5.15", 200 * MIB, **SYMM).state == "declines"
    assert ask("torch_symm_mem", "0.5.16", 511 * MIB, **SYMM).state == "accepts"
    assert ask("torch_symm_mem", "0.5.16", 300 * MIB, inkling_sconv=0, **SYMM).state == "declines"


def test_quick_reduce_is_off_until_a_quantization_is_chosen() -> None:
    amd = {"device": 1, "arch": 942}
    assert ask("quick", "0.5.9", 64 * MIB, **amd).stops == ("quantization_none",)
    assert ask("quick", "0.5.9", 16 * MIB, qr_quantization=1, **amd).state == "accepts"
    assert ask("quick", "0.5.9", 16 * MIB - 16, qr_quantization=1, **amd).stops == ("too_small",)
    assert ask("quick", "0.5.9", 16 * MIB, **{**amd, "arch": 1100, "qr_quantization": 1}).state == "absent"


def test_pcie_ipc_serves_the_decode_rows_and_leaves_prefill_to_nccl() -> None:
    facts = {"own_pcie_ipc": 1, "has_flashinfer_pcie": 1, "decode_rows": 192}
    columns = {"columns": 7168}
    assert ask("pcie_ipc", "0.5.21", 192 * 14336, call=columns, **facts).state == "accepts"
    assert ask("pcie_ipc", "0.5.21", 193 * 14336, call=columns, **facts).stops == ("too_large",)
    assert ask("pcie_ipc", "0.5.20", 14336, call=columns, **facts).stops == ("release",)
    assert ask("pcie_ipc", "0.5.21", 14336, **facts).stops == ("unknown_width",)


def test_pynccl_is_off_in_eager_and_on_where_capture_enters_its_group() -> None:
    assert ask("pynccl", "0.5.9", 32768).state == "disabled"
    assert ask("pynccl", "0.5.9", 32768, context=CAPTURE).state == "accepts"
    assert ask("pynccl", "0.5.9", 32768, context=CAPTURE, captured=0).state == "disabled"
    assert ask("pynccl", "0.5.9", 32768, pdmux=1).state == "accepts"
    assert ask("pynccl", "0.5.9", 32768, "fp8", context=CAPTURE).exception == "ValueError"


def test_cpu_ranks_reduce_fp16_through_shared_memory_from_0_5_4() -> None:
    facts = {"device": 3, "world_size": 2, "local_size": 2}
    assert ask("cpu", "0.5.3.post3", 4096, "fp16", **facts).state == "declines"
    assert ask("cpu", "0.5.4", 4096, "fp16", **facts).state == "accepts"
    assert ask("cpu", "0.5.4", 4096, **{**facts, "local_size": 0}).stops == ("local_size",)


def cases() -> st.SearchStrategy[Case]:
    flag = st.integers(0, 1)
    facts = st.fixed_dictionaries(
        {
            "device": st.sampled_from([0, 0, 1, 3]),
            "arch": st.sampled_from([80, 90, 100, 120, 942]),
            "world_size": st.sampled_from([1, 2, 3, 4, 6, 8, 16, 32, 64]),
            "nodes": st.sampled_from([1, 2, 3, 4]),
            "own_mscclpp": flag,
            "own_torch_symm_mem": flag,
            "own_pcie_ipc": flag,
            "own_pynccl": flag,
            "own_custom": flag,
            "has_mscclpp": flag,
            "has_flashinfer_pcie": flag,
            "has_nccl": flag,
            "consecutive": flag,
            "captured": flag,
            "multicast": flag,
            "full_nvlink": flag,
            "qr_quantization": st.integers(0, 4),
            "fi_workspace": flag,
            "fi_hidden": st.sampled_from([0, 4096]),
            "fi_backend": flag,
            "local_size": st.sampled_from([0, 2, 8]),
            "inkling": flag,
            "fabric_clique": flag,
            "mscclpp_max_bytes": st.sampled_from([MIB, 3 * MIB]),
        }
    )
    call = st.fixed_dictionaries(
        {"columns": st.sampled_from([0, 4096]), "dims": st.integers(1, 3), "contiguous": flag, "weak_contiguous": flag}
    )
    contexts = st.lists(st.sampled_from([name for name, _ in _core.CONTEXTS]), unique=True).map(tuple)
    sizes = st.integers(1, 1 << 32) | st.integers(1, 1 << 20).map(lambda n: n * 4096)
    return st.builds(Case, sizes, st.sampled_from([name for name, _ in _core.DTYPES]), facts, call, contexts)


@given(st.sampled_from(RELEASES), st.sampled_from(OTHERS), cases())
def test_a_gate_gives_a_reason_exactly_when_it_does_not_accept(release: str, gate: str, case: Case) -> None:
    answer = Gate(release, gate).ask(case)
    if answer.state == "accepts" and not answer.exception:
        assert answer.stops == () and (not answer.limit or case.nbytes <= answer.limit)
    if answer.state != "accepts":
        assert answer.stops
    if answer.state == "raises":
        assert answer.exception
    if answer.state == "declines":
        assert not SETUP & set(answer.stops) or gate == "mscclpp"  # built, with nothing in its table


@given(st.sampled_from(RELEASES), st.sampled_from(OTHERS), cases(), cases())
def test_what_the_constructor_decided_does_not_hang_on_the_tensor(release: str, gate: str, case: Case, other: Case) -> None:
    moved = Case(other.nbytes, other.dtype, case.facts, other.call, other.context)
    asked = (Gate(release, gate).ask(one) for one in (case, moved))
    here, there = (SETUP & set(answer.stops) for answer in asked)
    assert here == there


class Altered(Tree):
    """A released package with one passage of one file replaced."""

    def __init__(self, root: Path, path: str, old: str, new: str) -> None:
        super().__init__(root)
        self._path, self._old, self._new = path, old, new

    def source(self, relpath: str) -> str:
        text = super().source(relpath)
        if relpath != self._path:
            return text
        assert self._old in text, f"{relpath} no longer has {self._old!r}"
        return text.replace(self._old, self._new)


@pytest.mark.network
@pytest.mark.parametrize("release", ["0.4.9", "0.5.3", "0.5.9", "0.5.16", "0.5.23"])
def test_every_threshold_is_sglangs_own(release: str) -> None:
    results = compare_others(Tree(_fetch.fetch(release)), release)
    assert [d for result in results for d in result.differences] == []
    assert sum(result.compared for result in results) > 2000


Comparison = Callable[[Tree, str], Result]
COMMUNICATORS = "srt/distributed/device_communicators/"
ALTERATIONS: list[tuple[str, Comparison, str, str, str]] = [
    ("0.5.9", compare_quick, "quick_all_reduce.py", "[2, 4, 8]", "[2, 4]"),
    ("0.5.9", compare_quick, "quick_all_reduce.py", "inp_size <= self.qr_max_size", "inp_size < self.qr_max_size"),
    ("0.5.9", compare_mscclpp, "pymscclpp.py", "> self.max_bytes", ">= self.max_bytes"),
    ("0.5.23", compare_mscclpp, "pymscclpp.py", "(4, 8, 16, 32, 64)", "(8, 16, 32, 64)"),
    ("0.5.9", compare_symm, "torch_symm_mem.py", "inp_size < self.max_size", "inp_size <= self.max_size"),
    ("0.5.9", compare_symm, "all_reduce_utils.py", "6: 128 * MiB", "6: 64 * MiB"),
    ("0.5.23", compare_pcie, "pcie_ipc_ar.py", "> self.max_numel", ">= self.max_numel"),
    ("0.5.9", compare_pynccl, "pynccl.py", "self.disabled = not enable", "self.disabled = enable"),
    ("0.5.23", compare_flashinfer, "../../layers/flashinfer_comm_fusion.py", "hidden_dim % (16 //", "hidden_dim % (8 //"),
    ("0.5.9", compare_cpu, "../../utils/common.py", "world_size == local_size", "world_size >= local_size"),
    (
        "0.5.9",
        lambda tree, _: compare_capture(tree),
        "../parallel_state.py",
        "pymscclpp_comm.change_state(enable=True)",
        "nullcontext()",
    ),
]


@pytest.mark.network
@pytest.mark.parametrize(("release", "compare", "name", "old", "new"), ALTERATIONS, ids=[f"{a[2]}: {a[3]}" for a in ALTERATIONS])
def test_a_changed_line_of_sglang_is_noticed(release: str, compare: Comparison, name: str, old: str, new: str) -> None:
    path = _resolved(COMMUNICATORS + name)
    assert compare(Altered(_fetch.fetch(release), path, old, new), release).differences


def _resolved(path: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "/".join(parts)


@pytest.fixture
def lying_tree(tmp_path: Path) -> Iterator[Tree]:
    """A package of one function that takes every dtype."""
    (tmp_path / "srt/utils").mkdir(parents=True)
    (tmp_path / "srt/server_args.py").write_text("")
    (tmp_path / "srt/utils/common.py").write_text(
        "def is_shm_available(dtype, world_size, local_size):\n    return cpu_has_amx_support() and world_size == local_size\n"
    )
    yield Tree(tmp_path)


def test_a_difference_names_the_case_and_both_answers(lying_tree: Tree) -> None:
    result = compare_cpu(lying_tree, "0.5.9")
    assert not result.ok and "fp64" in result.differences[0] and "SGLang ('accepts', '')" in result.differences[0]
