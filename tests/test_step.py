"""step: the motivating case and the worked cases, counted and routed; padding, contexts, the cycle, and what is said about them."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from sglang_probe._step.step import Step, step
from sglang_probe._types import Group, InputError

KEYS = {"sglang", "ruleset", "model", "world_size", "tokens", "bytes", "context", "all_reduces", "fused", "calls", "paths", "cycle",
        "assumed", "notes"}  # fmt: skip
CALL_KEYS = {"call_site", "group", "tokens", "bytes", "path", "rule", "backend", "kernel", "count"}
H200 = {"gpu": "h200", "link": "nvlink", "nodes": 1, "gpus": 8}
EAGLE3 = "--speculative-algorithm EAGLE3 --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"


def run(*args: Any, **kwargs: Any) -> Step:
    """step, with the invariants of its answer checked."""
    answer = step(*args, **kwargs)
    data = json.loads(json.dumps(answer.to_dict()))
    assert data.keys() >= KEYS
    assert all(call.keys() >= CALL_KEYS for call in data["calls"])
    assert sum(call["count"] for call in data["calls"]) == sum(data["paths"].values())
    if not answer.not_modelled:
        assert data["all_reduces"] == data["fused"] + sum(data["paths"].values())
    assert all((part["path"] is not None) == (part["collective"] == "all_reduce") for part in data["cycle"])
    return answer


def serve(model: str, *flags: str, **kwargs: Any) -> Step:
    return run(" ".join(["python -m sglang.launch_server --model-path", model, "--tp 8", *flags]), **{**H200, **kwargs})


# CASES.md R17, R18


@pytest.mark.parametrize("commit", ["bba2fc4", "0be30d4"])
@pytest.mark.parametrize(("context", "path"), [("eager", "torch_distributed"), ("capture", "pynccl_in_place")])
def test_the_motivating_case_takes_one_path_at_both_commits(commit: str, context: str, path: str) -> None:
    answer = run(example=True, sglang=commit, context=context)
    assert answer.all_reduces == 123 and answer.fused == 0
    assert answer.paths == {path: 123}
    assert answer.nbytes == 3 * 7168 * 2
    assert {item.decision.rule for item in answer.calls} == {"in_place_torch" if context == "eager" else "in_place_pynccl"}
    assert any("EAGLE-3" in note and "v0.5.10rc0" in note for note in answer.notes)
    assert "the same launch on SM90 PCIe cards would fuse 121 of the 123" in answer.notes


def test_the_example_shows_both_commits_and_both_contexts() -> None:
    answer = run(example=True)
    seen = {(s.sglang, s.context): s.paths for s in (answer, *answer.alternatives)}
    assert seen == {
        ("0be30d4", "eager"): {"torch_distributed": 123},
        ("bba2fc4", "eager"): {"torch_distributed": 123},
        ("0be30d4", "capture"): {"pynccl_in_place": 123},
        ("bba2fc4", "capture"): {"pynccl_in_place": 123},
    }
    assert len(answer.to_dict()["alternatives"]) == 3


def test_the_branch_of_the_suspected_commit_is_reached_in_neither_context() -> None:
    for context in ("eager", "capture"):
        for item in run(example=True, sglang="0be30d4", context=context).calls:
            assert item.decision.blocked_by["piecewise_pynccl"].missing == ("piecewise",)


def test_one_gpu_makes_no_call_and_no_warning() -> None:
    answer = run("python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct", sglang="0.5.9", gpu="h200")
    assert answer.world_size == 1 and answer.all_reduces == 0 and answer.paths == {} and answer.not_modelled == 0


# Presets and fusion


@pytest.mark.parametrize(
    ("model", "sglang", "all_reduces", "fused", "paths"),
    [
        ("deepseek-ai/DeepSeek-V3", "0.5.9", 123, 121, {"custom": 2}),
        ("moonshotai/Kimi-K2.5", "0.5.9", 123, 121, {"custom": 2}),
        ("moonshotai/Kimi-K2-Instruct", "0.5.7", 123, 121, {"custom": 2}),
        ("Qwen/Qwen3-235B-A22B", "0.5.9", 189, 187, {"custom": 2}),
        ("openai/gpt-oss-120b", "0.5.9", 73, 71, {"custom": 2}),
        ("meta-llama/Meta-Llama-3-70B", "0.5.9", 161, 0, {"custom": 161}),
        ("meta-llama/Meta-Llama-3-8B", "0.5.23", 65, 0, {"custom": 65}),
        ("deepseek-ai/DeepSeek-V3", "0.5.6", 123, 0, {"custom": 123}),  # not on Hopper by default yet
        ("deepseek-ai/DeepSeek-V3", "0.5.18", 123, 121, {"flashinfer": 2}),
        ("deepseek-ai/DeepSeek-V3", "0.4.1.post7", 123, 0, {"custom": 123}),
    ],
)
def test_a_server_on_eight_h200s_fuses_and_routes_as_its_release(
    model: str, sglang: str, all_reduces: int, fused: int, paths: dict[str, int]
) -> None:
    answer = serve(model, sglang=sglang)
    assert (answer.all_reduces, answer.fused, answer.paths) == (all_reduces, fused, paths)


def test_a_model_alone_is_served_by_plain_tensor_parallelism() -> None:
    answer = run(model="DeepSeek-V3", sglang="0.5.9", **H200)
    assert (answer.world_size, answer.fused, answer.paths) == (8, 121, {"custom": 2})


def test_calls_keep_their_site_and_group() -> None:
    answer = serve("deepseek-ai/DeepSeek-V3", sglang="0.5.6")
    assert [(i.call.site, i.call.count, i.call.group) for i in answer.calls] == [
        ("embedding", 1, "tp"), ("attention output", 61, "tp"), ("MLP output", 3, "tp"), ("MoE output", 57, "tp"),
        ("MoE output, last layer", 1, "tp"),
    ]  # fmt: skip


def test_facts_of_a_given_group_win_over_the_servers() -> None:
    group = Group.make(world_size=8, full_nvlink=False)
    answer = run(model="Llama-3-8B", group=group, context="capture", sglang="0.5.9", **{**H200, "link": None})
    assert answer.paths == {"pynccl_in_place": 65}


def test_a_config_on_disk_is_counted(tmp_path: pathlib.Path) -> None:
    config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 3, "hidden_size": 64, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run(model=tmp_path, sglang="0.5.9", **H200).all_reduces == 7


def test_a_log_is_as_good_as_the_launch_line(tmp_path: pathlib.Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "[2026-02-20 10:00:00] server_args=ServerArgs(model_path='deepseek-ai/DeepSeek-V3', tp_size=8, nnodes=1, dtype='auto', "
        "disable_custom_all_reduce=True, disable_cuda_graph=False, enable_flashinfer_allreduce_fusion=False, cuda_graph_max_bs=512, "
        "cuda_graph_bs=[1, 2, 4, 8], speculative_algorithm=None)\n"
    )
    answer = run(log=log, sglang="0.5.9", batch=3, **H200)
    assert (answer.all_reduces, answer.fused, answer.padded_batch, answer.paths) == (123, 0, 4, {"pynccl_in_place": 123})
    assert str(log) in answer.source


def test_amds_fusion_takes_the_calls_of_an_mi300x() -> None:
    answer = serve("deepseek-ai/DeepSeek-V3", "--enable-aiter-allreduce-fusion", sglang="0.5.10", gpu="mi300x", link="xgmi")
    assert (answer.all_reduces, answer.fused) == (123, 121)


def test_a_group_alone_says_what_kind_of_gpu_the_server_has() -> None:
    group = Group.make(world_size=8, arch=120, full_nvlink=False)
    answer = run(model="Kimi-K2.5", group=group, sglang="0.5.9")
    assert (answer.fused, answer.paths) == (0, {"pynccl_in_place": 123})
    assert any("rtx-pro-6000 stands for" in text for text in answer.assumed)


def test_two_nodes_of_eight_are_one_group_of_sixteen() -> None:
    answer = run(model="Llama-3-8B", sglang="0.5.9", **{**H200, "nodes": 2})
    assert (answer.world_size, answer.paths) == (16, {"pynccl_in_place": 65})


# Contexts, padding, tokens


def test_a_batch_is_padded_up_to_the_captured_size_and_multiplied_by_its_draft_tokens() -> None:
    answer = serve("meta-llama/Meta-Llama-3-8B", EAGLE3, sglang="0.5.9", batch=9)
    assert (answer.context, answer.padded_batch, answer.draft_tokens, answer.tokens) == ("capture", 10, 4, 40)
    assert answer.nbytes == 40 * 4096 * 2


def test_an_eager_batch_is_not_padded() -> None:
    answer = serve("meta-llama/Meta-Llama-3-8B", EAGLE3, sglang="0.5.9", batch=9, context="eager")
    assert (answer.padded_batch, answer.tokens) == (9, 36)


def test_a_batch_beyond_the_largest_graph_runs_eagerly_and_says_so() -> None:
    answer = serve("meta-llama/Meta-Llama-3-8B", sglang="0.5.9", batch=100_000)
    assert answer.context == "eager" and any("no graph is captured for 100000 requests" in note for note in answer.notes)


def test_a_server_without_graphs_runs_eagerly_and_says_so() -> None:
    answer = serve("meta-llama/Meta-Llama-3-8B", "--disable-cuda-graph", "--disable-custom-all-reduce", sglang="0.5.9")
    assert answer.context == "eager" and answer.paths == {"torch_distributed": 65}
    assert any("captures no graph" in note for note in answer.notes)


def test_a_replay_repeats_the_capture() -> None:
    replay = serve("meta-llama/Meta-Llama-3-8B", sglang="0.5.9", context="replay")
    assert replay.context == "capture" and any("replay runs no dispatch" in note for note in replay.notes)


def test_sizes_beyond_custom_all_reduce_fall_back() -> None:
    at_limit = serve("meta-llama/Meta-Llama-3-8B", sglang="0.5.9", batch=256, draft_tokens=4, context="eager")
    beyond = serve("meta-llama/Meta-Llama-3-8B", sglang="0.5.9", batch=257, draft_tokens=4, context="eager")
    assert at_limit.nbytes == 8 << 20 and at_limit.paths == {"custom": 65}
    assert beyond.paths == {"torch_distributed": 65}


def test_other_draft_tokens_than_the_servers_are_named() -> None:
    answer = serve("meta-llama/Meta-Llama-3-8B", EAGLE3, sglang="0.5.9", draft_tokens=8)
    assert answer.tokens == 8 and any("8 draft tokens asked for; the server's own number is 4" in note for note in answer.notes)


def test_a_server_without_speculation_is_said_to_decode() -> None:
    assert any("no speculation" in note for note in serve("meta-llama/Meta-Llama-3-8B", sglang="0.5.9").notes)


def test_a_call_that_raises_or_is_not_reduced_is_said_to() -> None:
    warm = serve("meta-llama/Meta-Llama-3-8B", sglang="0.5.9", context="warmup")
    assert any("NOT REDUCED" in note for note in warm.notes)
    lost = serve(
        "meta-llama/Meta-Llama-3-8B",
        "--disable-custom-all-reduce --enable-torch-symm-mem",
        sglang="0.5.4",
        context="eager",
        batch=64,
    )
    assert lost.paths == {"raises": 65} and any("SGLang raises AssertionError" in note for note in lost.notes)


# What a release does with a batch

PCIE = {"gpu": "rtx-pro-6000", "link": "pcie"}
COMPILED = "compiled_capture"
OVERSIZE = f"{EAGLE3} --max-running-requests 400 --cuda-graph-max-bs 64"
LLAMA_70B = "meta-llama/Meta-Llama-3-70B"


@pytest.mark.parametrize("commit", ["0be30d4", "0.5.9"])
def test_a_verify_without_decode_graphs_enters_the_piecewise_graph_that_this_commit_was_made_for(commit: str) -> None:
    flags = EAGLE3.replace("steps 3", "steps 2").replace("tokens 4", "tokens 3") + " --disable-cuda-graph"
    answer = serve("moonshotai/Kimi-K2.5", flags, "--enable-piecewise-cuda-graph", sglang=commit, **PCIE)
    assert (answer.context, answer.paths) == ("piecewise_capture", {"pynccl_out_of_place": 123})
    assert {item.decision.rule for item in answer.calls} == {"piecewise_pynccl"}
    assert (answer.tokens, answer.nbytes, answer.padded_batch) == (4, 4 * 14336, 1)
    assert any("3 tokens padded to 4" in note and "by reading" in note for note in answer.notes)
    assert {str(part.decision.path) for part in answer.cycle if part.decision} == {"torch_distributed"}, "the draft runs eagerly"
    without = serve("moonshotai/Kimi-K2.5", flags, sglang=commit, **PCIE)
    assert (without.context, without.paths, without.tokens) == ("eager", {"torch_distributed": 123}, 3)


@pytest.mark.parametrize(
    ("sglang", "flag", "context", "path"),
    [
        ("0.5.3.post2", "--enable-piecewise-cuda-graph", "piecewise_capture", "pynccl_in_place"),
        ("0.5.5", "--enable-piecewise-cuda-graph", "piecewise_capture", "torch_distributed"),  # split: run at each replay
        ("0.5.6", "--enable-piecewise-cuda-graph", "piecewise_capture", "pynccl_in_place"),  # captured
        ("0.5.7", "--enable-piecewise-cuda-graph", "piecewise_capture", "torch_distributed"),
        ("0.5.9", "--enable-piecewise-cuda-graph", "piecewise_capture", "pynccl_out_of_place"),
        ("0.5.10", "--enforce-piecewise-cuda-graph", "piecewise_capture", "pynccl_out_of_place"),
        ("0.5.10", "", "eager", "torch_distributed"),  # speculation keeps it from starting
        ("0.5.11", "--enforce-piecewise-cuda-graph", "eager", "torch_distributed"),  # can_run refuses a verify
        ("0.5.13", "", "eager", "torch_distributed"),
    ],
)
def test_a_verify_beyond_the_decode_graphs_goes_where_its_release_sends_it(
    sglang: str, flag: str, context: str, path: str
) -> None:
    answer = serve(LLAMA_70B, OVERSIZE, flag, sglang=sglang, batch=100, **PCIE)
    assert (answer.context, answer.paths) == (context, {path: 161})
    assert answer.tokens == (416 if context == "piecewise_capture" else 400)


def test_what_the_piecewise_graph_does_not_hold_runs_eagerly_and_says_so() -> None:
    flags = f"{OVERSIZE} --enable-piecewise-cuda-graph"
    for more in ("--piecewise-cuda-graph-max-tokens 256", "--chunked-prefill-size 256"):
        answer = serve(LLAMA_70B, flags, more, sglang="0.5.9", batch=100)
        assert answer.context == "eager" and any("largest piecewise graph (256)" in note for note in answer.notes)
    decode = run(
        f"sglang serve --model-path {LLAMA_70B} --tp 8 --disable-cuda-graph --enable-piecewise-cuda-graph", sglang="0.5.9", **H200
    )
    assert decode.context == "eager", "a decode step is no extend"
    assert serve("deepseek-ai/DeepSeek-V3", flags, sglang="0.5.4", batch=100).context == "eager", (
        "its layers were not known there"
    )


def test_the_embedding_of_a_multimodal_model_is_not_in_the_piecewise_graph() -> None:
    flags = f"{OVERSIZE} --enable-piecewise-cuda-graph --enable-mscclpp"
    answer = serve("moonshotai/Kimi-K2.5", flags, sglang="0.5.9", batch=100, **PCIE)
    conditions = {item.call.site: item.decision.gates["mscclpp"].stops for item in answer.calls}
    assert conditions["embedding"] != conditions["attention output"]


def test_an_amd_server_runs_eager_verifies_under_the_piecewise_flag() -> None:
    flags = f"{OVERSIZE} --disable-custom-all-reduce --cuda-graph-backend-prefill"
    amd = {"gpu": "mi300x", "link": "xgmi", "batch": 100}
    assert serve(LLAMA_70B, flags, "tc_piecewise", sglang="0.5.14", **amd).context == "piecewise_replay"
    assert serve(LLAMA_70B, flags, "disabled", sglang="0.5.14", **amd).context == "eager"


@pytest.mark.parametrize(
    ("flags", "sglang", "path"),
    [
        ("--disable-custom-all-reduce --enable-torch-compile", "0.5.16", "pynccl_out_of_place"),  # auto_pynccl
        ("--enable-symm-mem --enable-torch-compile", "0.5.16", "custom"),  # the bypass is skipped under Dynamo
        ("--enable-symm-mem", "0.5.16", "pynccl_in_place"),
        ("--disable-custom-all-reduce --enable-torch-compile", "0.5.15", "pynccl_in_place"),
    ],
)
def test_torch_compile_routes_as_dynamo_traces(flags: str, sglang: str, path: str) -> None:
    answer = serve(LLAMA_70B, flags, sglang=sglang)
    assert answer.paths == {path: 161}
    assert answer.context == (COMPILED if "compile" in flags else "capture")


def test_torch_compile_ends_at_its_largest_batch() -> None:
    flags = "--disable-custom-all-reduce --enable-torch-compile --torch-compile-max-bs 8"
    at, beyond = (serve(LLAMA_70B, flags, sglang="0.5.16", batch=batch) for batch in (8, 9))
    assert (at.context, at.paths) == (COMPILED, {"pynccl_out_of_place": 161})
    assert (beyond.context, beyond.paths) == ("capture", {"pynccl_in_place": 161})
    assert any("without torch.compile" in note for note in beyond.notes)
    assert serve(LLAMA_70B, flags, sglang="0.5.16", context="replay").context == COMPILED
    plain = serve(LLAMA_70B, flags, sglang="0.5.16", context="capture")
    assert plain.context == "capture" and any(COMPILED in note for note in plain.notes)


@pytest.mark.parametrize(
    ("model", "sglang", "paths"),
    [
        (LLAMA_70B, "0.5.4", {"pynccl_in_place": 161}),
        (LLAMA_70B, "0.4.10.post2", {"pynccl_in_place": 161}),
        (LLAMA_70B, "0.4.10", {"custom": 161}),  # no such flag yet
        ("moonshotai/Kimi-K2-Instruct", "0.5.4", {"pynccl_in_place": 123}),
        ("deepseek-ai/DeepSeek-V3", "0.4.10.post2", {"pynccl_in_place": 123}),
        ("deepseek-ai/DeepSeek-V3", "0.5.4", {"pynccl_in_place": 65, "custom": 58}),  # shared experts are fused: no tagged sum
        ("deepseek-ai/DeepSeek-V3 --disable-shared-experts-fusion", "0.5.4", {"pynccl_in_place": 123}),
        ("Qwen/Qwen3-235B-A22B", "0.4.10.post2", {"pynccl_in_place": 189}),
        ("Qwen/Qwen3-235B-A22B", "0.5.1", {"pynccl_in_place": 95, "custom": 94}),  # a slice carries no tag
        ("deepseek-ai/DeepSeek-V3", "0.5.4.post3", {"pynccl_in_place": 123}),  # the flag alone decides
    ],
)
def test_symmetric_memory_takes_the_calls_whose_tensors_that_release_tags(model: str, sglang: str, paths: dict[str, int]) -> None:
    answer = serve(model, "--enable-symm-mem", sglang=sglang)
    assert answer.paths == paths
    assert any("are not tagged" in note for note in answer.notes) == (len(paths) > 1)


def test_symmetric_memory_is_offered_where_tags_decide() -> None:
    from sglang_probe._step.changes import earlier_by_one_change

    answer = serve(LLAMA_70B, sglang="0.5.4")
    item, group = answer.calls[0], Group.make(world_size=8)
    found = map(str, earlier_by_one_change(item.decision, item.call, group, context="capture", sglang="0.5.4"))
    assert "with --enable-symm-mem: pynccl_in_place" in found


# What is assumed, and what is told first


def test_a_model_alone_says_that_nobody_named_a_server_or_its_gpus() -> None:
    answer = run(model="Llama-3-8B", sglang="0.5.9", gpu="h200")
    assert "model alone" in answer.source and any(text.startswith("8 GPUs") for text in answer.assumed)
    assert not any("8 GPUs" in text for text in run(model="Llama-3-8B", sglang="0.5.9", gpu="h200", gpus=8).assumed)


def test_an_unknown_architecture_is_told_above_the_answer(tmp_path: pathlib.Path) -> None:
    from sglang_probe._show.render import step_text

    config = {"architectures": ["BertModel"], "num_hidden_layers": 3, "hidden_size": 64, "vocab_size": 1000}
    (tmp_path / "config.json").write_text(json.dumps(config))
    first = step_text(run(model=tmp_path, sglang="0.5.9", **H200)).splitlines()[0]
    assert first.startswith("! unknown architecture BertModel: counted as 2 L + 1, assumed")


def test_pipeline_stages_count_among_the_gpus() -> None:
    from sglang_probe._show.render import step_text

    answer = run(f"sglang serve --model-path {LLAMA_70B} --tp 4 --pp-size 2", sglang="0.5.9", gpu="h100")
    assert answer.world_size == 4 and "on 8 GPUs (2 pipeline stages of 4)" in step_text(answer)


def test_a_model_without_a_vocabulary_leaves_the_bytes_of_its_logits_unknown(tmp_path: pathlib.Path) -> None:
    from sglang_probe._show.render import step_text

    (tmp_path / "config.json").write_text(
        json.dumps({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 3, "hidden_size": 64})
    )
    answer = run(model=tmp_path, sglang="0.5.9", **H200)
    assert answer.paths == {"custom": 7} and parts(answer)["target logits"][3] == 0
    assert "bytes unknown: its config.json has no vocab_size" in step_text(answer)


# Parallelism that is not counted


def test_data_parallel_attention_is_loudly_not_modelled() -> None:
    answer = serve("deepseek-ai/DeepSeek-V3", "--enable-dp-attention --dp 8", sglang="0.5.9")
    assert answer.calls == () and answer.not_modelled == 123
    assert any(note.startswith("not modelled: about 123 calls of this step") for note in answer.notes)


def test_expert_parallel_groups_are_counted_each() -> None:
    answer = serve("Qwen/Qwen3-235B-A22B", "--ep 2", sglang="0.5.16")
    counts: dict[str, int] = {}
    for item in answer.calls:
        counts[item.call.group] = counts.get(item.call.group, 0) + item.call.count
    for call in answer.fused_calls:
        counts[call.group] = counts.get(call.group, 0) + call.count
    assert sum(counts.values()) + answer.not_modelled == 283


# The cycle


def parts(answer: Step) -> dict[str, tuple[str, int, int, int]]:
    return {part.name: (part.collective, part.count, part.tokens, part.nbytes) for part in answer.cycle}


def test_the_cycle_of_eagle3_lists_draft_passes_draft_extend_and_logits() -> None:
    answer = serve("moonshotai/Kimi-K2.5", EAGLE3, sglang="0.5.10", batch=2)
    assert parts(answer) == {
        "draft pass": ("all_reduce", 6, 2, 2 * 14336),  # two passes of three: embedding, attention, MLP
        "draft pass logits": ("all_gather", 2, 2, 2 * 163840 * 2),
        "draft extend": ("all_reduce", 3, 8, 8 * 14336),
        "draft extend logits": ("all_gather", 1, 2, 2 * 163840 * 2),
        "target logits": ("all_gather", 1, 8, 8 * 163840 * 2),
    }
    assert {str(p.decision.path) for p in answer.cycle if p.decision} == {"custom"}
    assert any("draft model" in text for text in answer.assumed)


def test_the_drafts_own_config_gives_its_vocabulary_and_layers(tmp_path: pathlib.Path) -> None:
    config = {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "hidden_size": 7168, "vocab_size": 163840,
              "draft_vocab_size": 32000}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    answer = serve("moonshotai/Kimi-K2.5", EAGLE3, f"--speculative-draft-model-path {tmp_path}", sglang="0.5.10")
    assert parts(answer)["draft pass logits"][3] == 32000 * 2
    assert not any("draft model" in text for text in answer.assumed)


def test_deepseeks_own_prediction_layer_fuses_its_attention_output() -> None:
    flags = EAGLE3.replace("EAGLE3", "EAGLE")
    assert parts(serve("deepseek-ai/DeepSeek-V3", flags, sglang="0.5.9"))["draft pass"][1] == 4
    assert parts(serve("deepseek-ai/DeepSeek-V3", flags, sglang="0.5.9", gpu="l40s", link="pcie"))["draft pass"][1] == 6


def test_the_draft_extend_is_as_wide_as_the_release_makes_it() -> None:
    tree = "--speculative-algorithm EAGLE3 --speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"
    widths = {v: parts(serve("meta-llama/Meta-Llama-3-8B", tree, sglang=v))["draft extend"][2] for v in ("0.5.12", "0.5.13")}
    assert widths == {"0.5.12": 6, "0.5.13": 8}


def test_a_plain_server_gathers_logits_and_nothing_else() -> None:
    assert parts(serve("meta-llama/Meta-Llama-3-8B", sglang="0.5.9")) == {"target logits": ("all_gather", 1, 1, 128256 * 2)}


def test_sampled_tokens_are_broadcast_from_v0_5_11_on() -> None:
    assert "sampled tokens" not in parts(serve("meta-llama/Meta-Llama-3-8B", EAGLE3, sglang="0.5.10"))
    assert parts(serve("meta-llama/Meta-Llama-3-8B", EAGLE3, sglang="0.5.11"))["sampled tokens"][:2] == ("broadcast", 3)


# Bad input


@pytest.mark.parametrize(
    ("kwargs", "field"),
    [
        ({}, "launch"),
        ({"example": True, "batch": 0}, "batch"),
        ({"example": True, "batch": -1}, "batch"),
        ({"example": True, "batch": 2**63}, "batch"),
        ({"example": True, "batch": True}, "batch"),
        ({"example": True, "draft_tokens": 0}, "draft_tokens"),
        ({"example": True, "context": "sideways"}, "context"),
        ({"example": True, "sglang": "0.5.999"}, "sglang"),
        ({"model": "no such model"}, "model"),
        ({"launch": "python -m sglang.launch_server --model-path unknown/model --tp 8", "sglang": "0.5.9"}, "model"),
        ({"launch": "python -m sglang.launch_server --model-path x --tp 8", "log": "server.log"}, "log"),
        ({"log": 5}, "log"),
        ({"launch": 5}, "launch"),
        ({"url": b"http://127.0.0.1"}, "url"),
        ({"example": True, "context": 5}, "context"),
        ({"model": "Llama-3-8B", "gpu": 5}, "gpu"),
        ({"model": "Llama-3-8B", "env": {"NCCL_DEBUG": 1}}, "env"),
        ({"model": "Llama-3-8B", "env": "NCCL_DEBUG=1"}, "env"),
        ({"model": "Llama-3-8B", "group": 8}, "group"),
    ],
)
def test_bad_input_names_the_field_and_the_remedy(kwargs: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        step(**kwargs)
    assert error.value.field == field and error.value.remedy


def test_progress_is_reported_while_it_works() -> None:
    texts: list[str] = []
    step(example=True, progress=texts.append)
    assert len(texts) == 4
