"""assert_route, assert_same_routing, assert_constant_over as plain functions: what passes, what fails, what is refused.

Invariant: what a failure offers as code is run, and gives the answer that stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from failures import run_witness

import sglang_probe as probe
from sglang_probe import Decision, InputError
from sglang_probe._proof.asserting import Misrouted, NotConstant, Rerouted
from sglang_probe._releases import COMMITS, RELEASES, newest
from sglang_probe.launch import read_launch

LLAMA = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-70B-Instruct --tp 8"
NVLINK = probe.Group.make(world_size=8, arch=90, full_nvlink=True)


def test_a_routing_that_is_constant_is_so_for_every_size_that_was_named() -> None:
    """The boundary that it names is the one that bands finds on its own."""
    found = probe.bands(NVLINK, sglang="0.5.16", hidden=7168).bands
    inner = [(band.last_bytes // 14336, band.decision.kernel) for band in found[:-1]]
    first = 1
    for last, kernel in inner:
        said = probe.assert_constant_over(tokens=range(first, last + 1), group=NVLINK, hidden=7168, sglang="0.5.16")
        assert kernel in str(said)
        with pytest.raises(NotConstant) as error:
            probe.assert_constant_over(tokens=range(first, last + 2), group=NVLINK, hidden=7168, sglang="0.5.16")
        assert (error.value.first, error.value.then) == (last, last + 1)
        assert len(run_witness(str(error.value)).splitlines()) == 2
        first = last + 1
    assert len(inner) >= 2


def test_a_batch_that_leaves_the_fused_kernel_is_a_change_of_routing() -> None:
    launch = LLAMA.replace("meta-llama/Llama-3.1-70B-Instruct", "deepseek-ai/DeepSeek-V3") + " --disable-custom-all-reduce"
    with pytest.raises(NotConstant, match="between tokens 2048 and 2049") as error:
        probe.assert_constant_over(tokens=(1, 2048, 2049), launch=launch, gpu="h200", sglang="0.5.9")
    assert "1 to 2048: fused" in str(error.value) and "2049: torch_distributed" in str(error.value)
    lines = run_witness(str(error.value)).splitlines()
    assert ["fused away" in line for line in lines] == [True, False]


@pytest.mark.parametrize("sglang", ["0.5.9", newest()])
def test_requests_are_padded_and_captured_as_the_server_does_it(sglang: str) -> None:
    flag = "--cuda-graph-max-bs" if sglang == "0.5.9" else "--cuda-graph-max-bs-decode"
    launch = f"{LLAMA} --disable-custom-all-reduce {flag} 8"
    server = read_launch(launch, sglang=sglang, gpu="a100", link="pcie")
    said = probe.assert_constant_over(batch=range(1, 9), server=server, sglang=sglang)
    assert set(said.values()) == {"pynccl_in_place, in place"}
    with pytest.raises(NotConstant, match="between batch 8 and 9") as error:  # above the largest graph: eager
        probe.assert_constant_over(batch=range(1, 33), launch=launch, gpu="a100", link="pcie", sglang=sglang)
    lines = run_witness(str(error.value)).splitlines()
    assert [line.split()[0] for line in lines] == ["pynccl_in_place", "torch_distributed"]


def test_a_launch_whose_sizes_change_is_shown_by_a_call_of_its_model() -> None:
    with pytest.raises(Rerouted) as error:
        probe.assert_same_routing("0.5.9", "0.5.16", launch=f"{LLAMA} --disable-piecewise-cuda-graph", gpu="h200")
    lines = run_witness(str(error.value)).splitlines()
    assert ["v1" in lines[0], "V2" in lines[1]] == [True, True], str(error.value)
    assert "hidden=8192" in str(error.value)


def test_a_context_that_only_one_release_sets_is_not_called_the_same_routing() -> None:
    line = f"{LLAMA} --disable-custom-all-reduce --disable-flashinfer-allreduce-fusion"
    with pytest.raises(Rerouted, match="no counterpart: context piecewise_capture: only 0.5.10"):
        probe.assert_same_routing("0.5.9", "0.5.10", launch=line, gpu="a100", link="pcie")


def test_every_release_keeps_the_piecewise_rule_dead_when_it_is_disabled() -> None:
    for name in (*(name for name in RELEASES), *COMMITS):
        assert probe.assert_unreachable("piecewise_pynccl", sglang=name, piecewise=False).walked >= 6145


def test_a_group_without_default_values_is_written_out_in_the_witness() -> None:
    group = probe.Group.make("moe_ep", world_size=4, arch=120, full_nvlink=False, symm_mem=True)
    call = probe.Call(nbytes=4096, dtype="fp16", group="moe_ep")
    with pytest.raises(Misrouted) as error:
        probe.assert_route(call, group, path="custom", context=["in_graph_capture"], sglang="0.5.16")
    assert run_witness(str(error.value)).strip() == str(error.value.decision)


def test_rule_and_kernel_can_be_asserted_beside_the_path() -> None:
    found = probe.assert_route(16384, NVLINK, path="custom", rule="custom", kernel="one_shot_push", sglang="0.5.16")
    assert found.kernel == "one_shot_push"
    with pytest.raises(Misrouted, match="not kernel two_shot_pull but one_shot_push"):
        probe.assert_route(16384, NVLINK, path="custom", kernel="two_shot_pull", sglang="0.5.16")


BAD: dict[str, Callable[[Any], object]] = {
    "an unknown path": lambda p: p.assert_route(16, NVLINK, path="costum", sglang="0.5.9"),
    "nothing expected": lambda p: p.assert_route(16, NVLINK, path=None, sglang="0.5.9"),
    "an unknown kernel": lambda p: p.assert_route(16, NVLINK, path="custom", kernel="three_shot", sglang="0.5.9"),
    "no group of that name": lambda p: p.assert_route(p.Call(16, group="ep"), NVLINK, path="custom", sglang="0.5.9"),
    "no group at all": lambda p: p.assert_route(16, 8, path="custom", sglang="0.5.9"),
    "a machine beside a group": lambda p: p.assert_route(16, NVLINK, path="custom", gpu="h200", sglang="0.5.9"),
    "one size": lambda p: p.assert_constant_over(tokens=[4], group=NVLINK, hidden=8, sglang="0.5.9"),
    "no size": lambda p: p.assert_constant_over(tokens=[], group=NVLINK, hidden=8, sglang="0.5.9"),
    "a number": lambda p: p.assert_constant_over(tokens=4, group=NVLINK, hidden=8, sglang="0.5.9"),
    "a size of nothing": lambda p: p.assert_constant_over(tokens=[0, 1], group=NVLINK, hidden=8, sglang="0.5.9"),
    "batch and tokens": lambda p: p.assert_constant_over(batch=[1, 2], tokens=[1, 2], launch=LLAMA, sglang="0.5.9"),
    "neither": lambda p: p.assert_constant_over(launch=LLAMA, sglang="0.5.9"),
    "nothing asked": lambda p: p.assert_constant_over(batch=[1, 2], sglang="0.5.9"),
    "two things asked": lambda p: p.assert_constant_over(batch=[1, 2], launch=LLAMA, group=NVLINK, sglang="0.5.9"),
    "requests of a group": lambda p: p.assert_constant_over(batch=[1, 2], group=NVLINK, hidden=8, sglang="0.5.9"),
    "no columns": lambda p: p.assert_constant_over(tokens=[1, 2], group=NVLINK, sglang="0.5.9"),
    "one rank": lambda p: p.assert_constant_over(batch=[1, 2], launch=LLAMA.replace("--tp 8", "--tp 1"), sglang="0.5.9"),
    "a model whose calls are guessed": lambda p: p.assert_constant_over(
        batch=[1, 2],
        launch=LLAMA.replace("meta-llama/Llama-3.1-70B-Instruct", "some/thing"),
        model=p.Model("thing", "ThingForCausalLM", 32, 4096, 32000),
        gpu="a100",
        sglang="0.5.9",
    ),
    "calls that are not modelled": lambda p: p.assert_constant_over(
        batch=[1, 2], launch=LLAMA + " --dp 8 --enable-dp-attention", sglang="0.5.9"
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_asked_is_refused_and_never_passes(what: str) -> None:
    with pytest.raises(InputError):
        BAD[what](probe)


# ------------------------------------------------------------------------------------------------ what a review of reach found


DEEPSEEK = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"


def _executed(code: str) -> Decision:
    found = eval(code, {"probe": probe})
    assert isinstance(found, Decision)
    return found


def test_the_witness_of_a_log_holds_the_machine_that_was_asked(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-V3', tp_size=8, enable_piecewise_cuda_graph=False)\n")
    found = probe.reach("torch_distributed", kind="path", sglang="0.5.16", log=str(log), gpu="h200", link="pcie")
    assert found.witness is not None
    assert _executed(found.witness.code).path == "torch_distributed"


def test_a_server_of_one_rank_is_a_question_too() -> None:
    one = DEEPSEEK.replace("--tp 8", "--tp 1")
    assert not probe.reach("custom", sglang="0.5.9", launch=one, gpu="h200")
    assert probe.reach("world_of_one", sglang="0.5.9", launch=one, gpu="h200")


@pytest.mark.parametrize(
    ("target", "fixed", "reason"),
    [
        ("hpu", {"world_size": 1}, "world_size=1"),
        ("cpu_shm", {"device": "cpu", "cpu_shm": False}, "cpu_shm=False"),
        ("amd_deterministic", {"amd_deterministic": False}, "amd_deterministic=False"),
        ("amd_deterministic", {"device": "hip", "custom": "absent"}, "custom=absent"),
    ],
)
def test_the_reason_is_what_was_fixed_not_the_device(target: str, fixed: dict[str, object], reason: str) -> None:
    assert probe.reach(target, sglang="0.5.9", **fixed).reason == f"{reason} already forbids it"  # type: ignore[arg-type] # conditions


def test_a_range_of_eras_starts_with_its_first_release() -> None:
    found = probe.reach("custom", sglang="E10..E12")
    assert (found.parts[0].sglang, found.parts[-1].sglang) == ("0.5.9", "0.5.13.post1")


def test_a_row_that_only_asks_is_no_reason() -> None:
    found = probe.reach("custom", sglang="0.5.17", launch=f"{DEEPSEEK} --disable-custom-all-reduce", gpu="h200")
    assert found.reason.startswith("needs custom") and "custom_multinode" not in found.reason


def test_a_launch_witness_is_a_tensor_of_whole_rows() -> None:
    found = probe.reach("in_place_pynccl", sglang="0.5.9", launch=DEEPSEEK, gpu="h200")
    assert found.witness is not None
    nbytes = int(found.witness.code.split("nbytes=")[1].split(",")[0].split(")")[0])
    assert nbytes % (7168 * 2) == 0
    assert _executed(found.witness.code).rule == "in_place_pynccl"


def test_a_flag_that_sglang_does_not_know_stands_beside_the_proof() -> None:
    found = probe.reach("custom", sglang="0.5.16", launch=f"{DEEPSEEK} --nosuchflag", gpu="h200")
    assert any("--nosuchflag" in note for note in found.assumed)


def test_a_context_in_a_list_is_the_preset() -> None:
    assert probe.route(4096, probe.Group.make(world_size=8), context=["capture"], sglang="0.5.9").rule == "custom"
