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
