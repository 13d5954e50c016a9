"""What each release makes of a launch line: speculation, captured batches, prefill graph, fusion, groups and their communicators."""

from __future__ import annotations

import json

import pytest

from sglang_probe._releases import RELEASES
from sglang_probe._server.defaults import FIELDS, defaults
from sglang_probe._server.implied import speculative_defaults
from sglang_probe._types import Server
from sglang_probe.launch import read_launch

KIMI = "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8"
DEEPSEEK = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"
LLAMA = "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct --tp 8"
H200 = {"gpu": "h200", "link": "nvlink"}
RTX = {"gpu": "rtx-pro-6000", "link": "pcie"}


def read(line: str, sglang: str = "0.5.9", **machine: object) -> Server:
    return read_launch(line, sglang=sglang, **{**H200, **machine})  # type: ignore[arg-type] # one keyword each


def fact(server: Server, name: str, group: str = "tp") -> int:
    return server.groups[group].value(name)


def test_every_release_reads_a_plain_line() -> None:
    for release in RELEASES:
        server = read(LLAMA.replace("--tp 8", "--tp-size 8"), release)
        assert server.sglang == release and fact(server, "own_custom") and server.captured_batches[0] == 1


def test_a_default_is_only_there_where_the_release_has_the_argument() -> None:
    assert "enable_mscclpp" not in defaults("0.4.6.post5") and defaults("0.4.7")["enable_mscclpp"] is False
    assert (
        defaults("0.4.1.post7")["speculative_num_draft_tokens"] == 64
        and defaults("0.5.9")["speculative_num_draft_tokens"] is None
    )
    assert set(defaults("0.5.23")) <= set(FIELDS)


@pytest.mark.parametrize(
    ("sglang", "arch", "expected"),
    [
        ("0.4.6", "DeepseekV3ForCausalLM", (5, 4, 8)),
        ("0.4.7", "DeepseekV3ForCausalLM", (3, 1, 4)),
        ("0.4.7", "Qwen3MoeForCausalLM", (5, 4, 8)),
        ("0.5.7", "Qwen3MoeForCausalLM", (5, 4, 8)),
        ("0.5.8", "Qwen3MoeForCausalLM", (3, 1, 4)),
        ("0.5.23", "LlamaForCausalLM", (5, 4, 8)),
    ],
)
def test_speculative_defaults_follow_release_and_architecture(sglang: str, arch: str, expected: tuple[int, int, int]) -> None:
    assert speculative_defaults(sglang, arch, "EAGLE") == expected


def test_the_motivating_server_has_three_tokens_a_request_and_says_why() -> None:
    line = f"{KIMI} --speculative-algorithm EAGLE3 --speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 8"
    server = read(line, "0be30d4", **RTX)
    assert (server.draft_tokens, server.speculative_steps, server.speculative_topk) == (3, 2, 1)
    setting = server.args["speculative_num_draft_tokens"]
    assert (setting.value, setting.origin) == (3, "implied") and "steps + 1" in setting.reason
    assert server.captured_batches[-1] == 48 == server.args["max_running_requests"].value
    assert not server.fusion.enabled and "SM90 and SM100" in server.fusion.reason
    assert fact(server, "full_nvlink") == 0 and fact(server, "arch") == 120
    assert server.prefill_graph == "none"


@pytest.mark.parametrize(
    ("sglang", "sixty_four"),
    [("0.5.3rc2", False), ("0.5.4.post1", False), ("0.5.4.post2", True), ("0.5.9", True)],
)
def test_speculative_batches_hold_64_only_from_the_release_that_added_it(sglang: str, sixty_four: bool) -> None:
    server = read(f"{DEEPSEEK} --speculative-algorithm EAGLE --max-running-requests 256", sglang)
    assert (64 in server.captured_batches) is sixty_four and {1, 8, 10, 32, 40, 72, 256} <= set(server.captured_batches)


@pytest.mark.parametrize(
    ("sglang", "gpu", "largest"), [("0.5.9", "h200", 512), ("0.5.9", "rtx4090", 80), ("0.5.20", "rtx4090", 160)]
)
def test_the_largest_captured_batch_follows_the_gpus_memory(sglang: str, gpu: str, largest: int) -> None:
    assert read(LLAMA, sglang, gpu=gpu, link="pcie").captured_batches[-1] == largest


def test_a_request_limit_cuts_the_captured_batches_in_every_era() -> None:
    for sglang in ("0.4.1.post7", "0.4.6.post5", "0.5.3", "0.5.9", "0.5.12", "0.5.23"):
        assert read(f"{LLAMA} --max-running-requests 20", sglang).captured_batches[-1] == 20


@pytest.mark.parametrize(
    ("line", "sglang", "kind"),
    [
        (LLAMA, "0.5.9", "none"),
        (f"{LLAMA} --enable-piecewise-cuda-graph", "0.5.9", "tc_piecewise"),
        (LLAMA, "0.5.10rc0", "tc_piecewise"),
        (f"{LLAMA} --speculative-algorithm EAGLE", "0.5.10", "none"),
        (f"{LLAMA} --speculative-algorithm EAGLE", "0.5.11", "tc_piecewise"),
        (f"{LLAMA} --disable-piecewise-cuda-graph", "0.5.12", "none"),
        (f"{LLAMA} --enable-torch-compile --enforce-piecewise-cuda-graph", "0.5.12", "tc_piecewise"),
        (LLAMA, "0.5.14", "tc_piecewise"),
        (LLAMA, "0.5.15", "breakable"),
        (DEEPSEEK, "0.5.15", "none"),
        (KIMI, "0.5.15", "none"),
        (KIMI, "0.5.16", "tc_piecewise"),
        (KIMI, "0.5.18", "breakable"),
        (f"{LLAMA} --cuda-graph-backend-prefill tc_piecewise", "0.5.21", "tc_piecewise"),
        (f"{LLAMA} --pp-size 2", "0.5.19", "none"),
        (f"{LLAMA} --cuda-graph-config '{json.dumps({'prefill': {'backend': 'full'}})}'", "0.5.23", "full"),
    ],
)
def test_the_prefill_graph_is_the_one_that_the_release_starts(line: str, sglang: str, kind: str) -> None:
    server = read(line, sglang)
    assert server.prefill_graph == kind
    assert fact(server, "piecewise_server") == (kind == "tc_piecewise")


@pytest.mark.parametrize(
    ("flag", "sglang"),
    [
        ("--disable-cuda-graph", "0.5.9"),
        ("--disable-cuda-graph", "0.5.23"),
        ("--disable-decode-cuda-graph", "0.5.14"),
        ("--cuda-graph-backend-decode disabled", "0.5.16"),
        ("--attention-backend torch_native", "0.5.9"),
        ("--moe-a2a-backend deepep --deepep-mode normal", "0.5.9"),
        ("--disaggregation-mode prefill", "0.5.18"),
    ],
)
def test_decode_runs_eagerly_where_sglang_turns_graphs_off(flag: str, sglang: str) -> None:
    server = read(f"{DEEPSEEK} {flag}", sglang)
    assert not server.decode_graph and server.captured_batches == ()
    assert any("eagerly" in note for note in server.notes)


@pytest.mark.parametrize(
    ("line", "sglang", "machine", "enabled"),
    [
        (DEEPSEEK, "0.5.6.post2", H200, False),
        (DEEPSEEK, "0.5.7", H200, True),
        (DEEPSEEK, "0.5.9", {"gpu": "h20"}, False),
        (DEEPSEEK, "0.5.13", {"gpu": "h20"}, True),
        (KIMI, "0.5.8.post1", H200, False),
        (KIMI, "0.5.9", H200, True),
        (KIMI, "0.5.9", {"gpu": "h100-pcie", "link": "pcie"}, True),
        (LLAMA, "0.5.23", H200, False),
        (DEEPSEEK, "0.5.9", RTX, False),
        (f"{DEEPSEEK} --nnodes 2", "0.5.13", {"gpu": "b200"}, False),
        (f"{DEEPSEEK} --nnodes 2", "0.5.14", {"gpu": "b200"}, True),
        (f"{DEEPSEEK} --nnodes 2", "0.5.14", H200, False),
        (f"{DEEPSEEK} --enable-deterministic-inference", "0.5.11", H200, True),
        (f"{DEEPSEEK} --enable-deterministic-inference", "0.5.12", H200, False),
        (f"{DEEPSEEK} --dp 2 --enable-dp-attention", "0.5.18", H200, False),
        (f"{DEEPSEEK} --enforce-disable-flashinfer-allreduce-fusion", "0.5.10", H200, False),
        (f"{LLAMA} --enable-flashinfer-allreduce-fusion", "0.5.1", H200, False),
        (f"{LLAMA} --enable-flashinfer-allreduce-fusion", "0.5.2", H200, True),
    ],
)
def test_fusion_is_on_exactly_where_the_release_turns_it_on(
    line: str, sglang: str, machine: dict[str, object], enabled: bool
) -> None:
    server = read(line, sglang, **machine)
    assert server.fusion.enabled is enabled and server.fusion.reason
    assert bool(server.fusion.assumed) is enabled


def test_a_server_on_another_device_fuses_nothing_whatever_gpu_is_named() -> None:
    fusion = read(f"{DEEPSEEK} --device cpu").fusion
    assert read(DEEPSEEK).fusion.enabled and not fusion.enabled and "--device cpu" in fusion.reason


@pytest.mark.parametrize(
    ("sglang", "custom", "torch_symm_mem"),
    [("0.5.3rc2", 0, 1), ("0.5.17", 0, 1), ("0.5.18", 0, 0)],
)
def test_deterministic_inference_takes_communicators_away(sglang: str, custom: int, torch_symm_mem: int) -> None:
    server = read(f"{LLAMA} --enable-deterministic-inference --enable-torch-symm-mem", sglang)
    assert (fact(server, "own_custom"), fact(server, "own_torch_symm_mem")) == (custom, torch_symm_mem)
    setting = server.args["disable_custom_all_reduce"]
    assert setting.origin == "implied" and setting.reason


# ------------------------------------------------------------------------------------------------------------------------ groups


def test_plain_tensor_parallelism_has_one_group_under_every_name() -> None:
    server = read(DEEPSEEK)
    assert server.groups["attn_tp"] is server.groups["tp"] is server.groups["moe_tp"]
    assert server.groups["moe_ep"].world_size == 1
    # Before v0.5.9 the attention's group is one of its own, whatever its size.
    assert read(DEEPSEEK, "0.5.8").groups["attn_tp"] is not read(DEEPSEEK, "0.5.8").groups["tp"]


@pytest.mark.parametrize(
    ("sglang", "custom", "pynccl", "captured"),
    [("0.4.10", 0, 1, 0), ("0.5.2rc2", 1, 1, 0), ("0.5.10rc0", 1, 1, 1), ("0.5.11", 0, 0, 1)],
)
def test_expert_groups_own_what_the_release_gives_them(sglang: str, custom: int, pynccl: int, captured: int) -> None:
    group = read(f"{DEEPSEEK} --ep-size 4", sglang).groups["moe_ep"]
    assert group.world_size == 4 and not group.value("consecutive")
    assert (group.value("own_custom"), group.value("own_pynccl"), group.value("captured")) == (custom, pynccl, captured)


@pytest.mark.parametrize(
    ("sglang", "flag", "custom", "pynccl", "captured"),
    [
        ("0.5.9", "--dp 2 --enable-dp-attention", 0, 0, 0),
        ("0.5.11", "--dp 2 --enable-dp-attention --enable-symm-mem", 0, 1, 0),
        ("0.5.17", "--dp 2 --enable-dp-attention", 0, 0, 1),
        ("0.5.22", "--attn-dp-size 2", 1, 0, 1),
        ("0.5.23", "--dp 2 --enable-dp-attention", 1, 0, 1),
    ],
)
def test_attention_groups_own_what_the_release_gives_them(
    sglang: str, flag: str, custom: int, pynccl: int, captured: int
) -> None:
    group = read(f"{DEEPSEEK} {flag}", sglang).groups["attn_tp"]
    assert group.world_size == 4
    assert (group.value("own_custom"), group.value("own_pynccl"), group.value("captured")) == (custom, pynccl, captured)


def test_nodes_are_counted_from_the_ranks_of_each_group() -> None:
    server = read(f"{DEEPSEEK.replace('--tp 8', '--tp 16')} --nnodes 2 --ep-size 4", "0.5.9")
    assert (fact(server, "nodes"), fact(server, "nodes", "moe_tp"), fact(server, "nodes", "moe_ep")) == (2, 1, 2)
    assert fact(server, "full_nvlink") == 0 and fact(server, "full_nvlink", "moe_tp") == 1


def test_v2_stays_on_one_node_as_long_as_the_release_keeps_it_there() -> None:
    line = f"{DEEPSEEK} --nnodes 2"
    values = {sglang: fact(read(line, sglang), "custom_v2") for sglang in ("0.5.11", "0.5.12", "0.5.18", "0.5.19")}
    assert values == {"0.5.11": -1, "0.5.12": 0, "0.5.18": 0, "0.5.19": -1}
    fabric = read(line, "0.5.17", gpu="gb200")
    assert (fact(fabric, "v2_multinode"), fact(fabric, "custom_v2")) == (1, -1)


def test_pcie_ipc_belongs_to_the_tensor_parallel_group_alone_and_only_where_asked() -> None:
    line = f"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=1 {DEEPSEEK} --dp 2 --enable-dp-attention --max-running-requests 8"
    server = read(line, "0.5.22", **RTX)
    assert (fact(server, "own_pcie_ipc"), fact(server, "own_pcie_ipc", "attn_tp"), fact(server, "decode_rows")) == (1, 0, 8)
    assert any("pcie_ipc_comm" in text for text in server.assumed)
    assert fact(read(line, "0.5.20", **RTX), "own_pcie_ipc") == 0
    assert fact(read(f"{line} --enable-deterministic-inference", "0.5.22", **RTX), "own_pcie_ipc") == 0


def test_flashinfers_workspace_is_there_from_the_release_that_routes_to_it() -> None:
    assert fact(read(DEEPSEEK, "0.5.17"), "fi_workspace") == 0
    server = read(DEEPSEEK, "0.5.18")
    assert (fact(server, "fi_workspace"), fact(server, "fi_hidden"), fact(server, "fi_backend")) == (1, 7168, 0)
    assert fact(read(DEEPSEEK, "0.5.18", gpu="b200"), "fi_backend") == 1
    assert fact(read(LLAMA, "0.5.18"), "fi_workspace") == 0


def test_variables_that_change_a_route_become_facts() -> None:
    line = (
        "SGLANG_MSCCLPP_MAX_BYTES=2MB SGLANG_MEMORY_SAVER_CUDA_GRAPH=true ROCM_QUICK_REDUCE_QUANTIZATION=INT4 "
        f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True SGLANG_CUSTOM_ALLREDUCE_ALGO=2stage {DEEPSEEK} --enable-mscclpp"
    )
    server = read(line)
    names = (
        "mscclpp_max_bytes",
        "memory_saver_graph",
        "qr_quantization",
        "vmm_allocator",
        "v1_algo",
        "own_mscclpp",
        "has_mscclpp",
    )
    assert [fact(server, name) for name in names] == [2 << 20, 1, 4, 1, 2, 1, 1]
    assert server.groups["tp"].facts["has_mscclpp"].origin == "assumed"
    # Before v0.4.4 any text but the empty one is true.
    assert fact(read(f"USE_VLLM_CUSTOM_ALLREDUCE=0 {DEEPSEEK}", "0.4.3"), "vllm_custom") == 1
    assert fact(read(f"USE_VLLM_CUSTOM_ALLREDUCE=0 {DEEPSEEK}", "0.4.4"), "vllm_custom") == 0
