"""models: presets, hub ids and config.json files; and how many all-reduces a forward of each model makes."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_probe import models
from sglang_probe._step.calls import ARCHITECTURES, plan_calls
from sglang_probe._types import Fusion, Group, InputError, Model, Server, Setting
from sglang_probe._versions import at_least, version_key

KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {
        "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61, "hidden_size": 7168, "vocab_size": 163840,
        "first_k_dense_replace": 1, "n_routed_experts": 384, "num_experts_per_tok": 8, "torch_dtype": "bfloat16",
    },
}  # fmt: skip
LLAMA = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 4, "hidden_size": 64, "vocab_size": 1000}


def serve(world_size: int = 8, model: Model | None = None, **args: Any) -> Server:
    """A server of plain tensor parallelism, with some arguments."""
    settings = {name: Setting(value, "given") for name, value in args.items()}
    return Server(
        sglang="0.5.9", source="test", args=settings, env={}, groups={"tp": Group.make(world_size=world_size)}, model=model,
        decode_graph=True, captured_batches=(1, 2, 4, 8), prefill_graph="none", fusion=Fusion(False, ""), draft_tokens=1,
    )  # fmt: skip


def write(folder: pathlib.Path, config: object) -> pathlib.Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "layers", "hidden", "all_reduces", "token_bytes"),
    [
        ("Kimi-K2.5", 61, 7168, 123, 14336),
        ("Kimi-K2", 61, 7168, 123, 14336),
        ("DeepSeek-V3", 61, 7168, 123, 14336),
        ("Llama-3-70B", 80, 8192, 161, 16384),
        ("Llama-3-8B", 32, 4096, 65, 8192),
        ("Qwen3-235B-A22B", 94, 4096, 189, 8192),
        ("GPT-OSS-120B", 36, 2880, 73, 5760),
    ],
)
def test_every_preset_makes_the_all_reduces_of_its_layers(
    name: str, layers: int, hidden: int, all_reduces: int, token_bytes: int
) -> None:
    model = models.load_model(name)
    plan = plan_calls(model, serve(), 1, "0.5.9")
    assert (model.layers, model.hidden, plan.count) == (layers, hidden, all_reduces)
    assert {call.nbytes for call in plan.calls} == {token_bytes}
    assert plan.unmodelled == 0 and not plan.assumed


def test_every_preset_is_of_an_architecture_whose_code_was_read() -> None:
    assert {model.arch for model in models.presets()} <= set(ARCHITECTURES)
    assert len(models.presets()) == 7


@pytest.mark.parametrize(
    ("alias", "preset"),
    [
        ("moonshotai/Kimi-K2.5", "Kimi-K2.5"),
        ("nvidia/Kimi-K2.5-NVFP4", "Kimi-K2.5"),
        ("KIMI-K2.5", "Kimi-K2.5"),
        ("moonshotai/Kimi-K2-Instruct-0905", "Kimi-K2"),
        ("moonshotai/Kimi-K2-Thinking", "Kimi-K2"),
        ("deepseek-ai/DeepSeek-V3-0324", "DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-R1-0528", "DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-V3.1", "DeepSeek-V3"),
        ("meta-llama/Meta-Llama-3-70B-Instruct", "Llama-3-70B"),
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3-70B"),
        ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3-8B"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "Qwen3-235B-A22B"),
        ("openai/gpt-oss-120b", "GPT-OSS-120B"),
    ],
)
def test_a_hub_id_finds_its_preset(alias: str, preset: str) -> None:
    assert models.load_model(alias).name == preset


@pytest.mark.parametrize(
    "other",
    [
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B", "deepseek-ai/DeepSeek-V3.2", "meta-llama/Llama-3.2-1B", "openai/gpt-oss-20b",
        "Qwen/Qwen3-30B-A3B", "lmsys/Kimi-K2.5-eagle3", "meta-llama/Llama-3.1-405B", "no such model", "a" * 5000, "x\0y",
    ],
)  # fmt: skip
def test_another_model_is_never_taken_for_a_preset(other: str) -> None:
    with pytest.raises(InputError, match="config.json"):
        models.load_model(other)


def test_a_typing_error_is_answered_with_the_name_that_was_meant() -> None:
    with pytest.raises(InputError, match="did you mean DeepSeek-V3"):
        models.load_model("DeepSek-V3")


def test_a_multimodal_config_gives_the_language_model_inside(tmp_path: pathlib.Path) -> None:
    model = models.load_model(write(tmp_path, KIMI))
    preset = models.load_model("Kimi-K2.5")
    fields = ("arch", "layers", "hidden", "vocab", "dtype", "dense_layers", "experts", "experts_per_token")
    assert [getattr(model, f) for f in fields] == [getattr(preset, f) for f in fields]


def test_the_folder_of_a_model_is_as_good_as_its_file_and_wins_over_a_name(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "Kimi-K2.5"
    folder.mkdir()
    write(folder, LLAMA)
    assert models.load_model(folder) == models.load_model(folder / "config.json")
    assert models.load_model(str(folder)).layers == 4


def test_a_config_without_a_vocabulary_is_counted_since_no_all_reduce_depends_on_it(tmp_path: pathlib.Path) -> None:
    text = {key: value for key, value in KIMI["text_config"].items() if key != "vocab_size"}  # type: ignore[attr-defined] # a dict of dicts
    assert models.load_model(write(tmp_path, {**KIMI, "text_config": text})).vocab == 0
    assert models.load_model(write(tmp_path, {**KIMI, "text_config": text, "vocab_size": 163840})).vocab == 163840
    assert plan_calls(models.load_model(write(tmp_path, {**KIMI, "text_config": text})), serve(), 1, "0.5.9").count == 123


@pytest.mark.parametrize("value", ["many", -1, 0, True, 1.5, [], {}])
def test_a_vocabulary_that_is_no_number_is_refused(tmp_path: pathlib.Path, value: object) -> None:
    with pytest.raises(InputError, match="vocab_size"):
        models.load_model(write(tmp_path, {**LLAMA, "vocab_size": value}))


@pytest.mark.parametrize("key", ["architectures", "num_hidden_layers", "hidden_size"])
@pytest.mark.parametrize("value", [None, "many", -1, 0, True, 1.5, [], {}])
def test_a_config_with_a_missing_or_foreign_value_is_refused_by_that_key(tmp_path: pathlib.Path, key: str, value: object) -> None:
    config: dict[str, object] = {**LLAMA, key: value}
    for broken in (config, {k: v for k, v in config.items() if k != key}):
        with pytest.raises(InputError) as error:
            models.load_model(write(tmp_path, broken))
        assert error.value.field == key and error.value.remedy


@pytest.mark.parametrize("text", ["", "{", "[]", '"a"', "null", "[" * 100_000, "\ufeff"])
def test_a_file_that_is_no_config_is_refused_and_never_crashes(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError):
        models.load_model(path)
    path.write_bytes(b"\xff\xfe\x00bytes")
    with pytest.raises(InputError, match="not JSON"):
        models.load_model(path)


def test_a_folder_without_a_config_says_so(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="config.json"):
        models.load_model(tmp_path)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_KEYS = st.sampled_from(
    ["architectures", "num_hidden_layers", "hidden_size", "vocab_size", "text_config", "num_experts", "torch_dtype", "mlp_only_layers",
     "first_k_dense_replace", "layer_types", "_name_or_path"]
)  # fmt: skip


@given(st.dictionaries(_KEYS, _JSON), st.booleans())
def test_any_json_is_either_a_whole_model_or_an_input_error(config: dict[str, Any], complete: bool) -> None:
    if complete:
        config = {**config, **LLAMA}
    try:
        model = models.model_from_config(config, "test")
    except InputError as error:
        assert error.remedy
        return
    assert model.layers >= 1 and model.hidden >= 1 and model.vocab >= 0 and 0 <= model.dense_layers <= model.layers
    assert plan_calls(model, serve(model=model), 3, "0.5.9").count == 2 * model.layers + 1


def test_an_architecture_that_nobody_read_is_counted_but_never_silently(tmp_path: pathlib.Path) -> None:
    plan = plan_calls(models.load_model(write(tmp_path, {**LLAMA, "architectures": ["NovelForCausalLM"]})), serve(), 1, "0.5.9")
    assert plan.count == 9
    assert any("unknown architecture NovelForCausalLM: counted as 2 L + 1, assumed" in note for note in plan.notes)
    assert plan.assumed


@pytest.mark.parametrize(
    "extra",
    [{"full_attention_interval": 4}, {"layer_types": ["linear_attention", "full_attention"] * 2}, {"mamba_d_state": 16},
     {"is_encoder_decoder": True}],
)  # fmt: skip
def test_a_hybrid_layout_is_loudly_not_modelled(tmp_path: pathlib.Path, extra: dict[str, object]) -> None:
    plan = plan_calls(models.load_model(write(tmp_path, {**LLAMA, **extra})), serve(), 1, "0.5.9")
    assert plan.unmodelled == 9
    assert any(note.startswith("not modelled: about 9 calls of this step") for note in plan.notes)


def test_sliding_window_layers_are_plain_layers(tmp_path: pathlib.Path) -> None:
    layers = {"layer_types": ["sliding_attention", "full_attention"] * 2}
    assert plan_calls(models.load_model(write(tmp_path, {**LLAMA, **layers})), serve(), 1, "0.5.9").unmodelled == 0


@pytest.mark.parametrize(
    "args",
    [{"enable_dp_attention": True, "dp_size": 8}, {"attn_dp_size": 2}, {"moe_a2a_backend": "deepep"}, {"enable_deepep_moe": True},
     {"attn_cp_size": 2}, {"enable_two_batch_overlap": True}, {"enable_layernorm_sp": True}],
)  # fmt: skip
def test_parallelism_that_we_do_not_count_gives_no_calls_and_says_about_how_many(args: dict[str, Any]) -> None:
    plan = plan_calls(models.load_model("DeepSeek-V3"), serve(**args), 1, "0.5.23")
    assert plan.calls == () and plan.unmodelled == 123
    assert plan.notes[0].startswith("not modelled: about 123 calls of this step")


def test_data_parallel_replicas_without_dp_attention_are_plain_servers() -> None:
    assert plan_calls(models.load_model("DeepSeek-V3"), serve(dp_size=8), 1, "0.5.9").count == 123


@pytest.mark.parametrize(
    ("sglang", "ep", "groups"),
    [
        ("0.5.9", 2, {"tp": 189}),
        ("0.5.10rc0", 2, {"tp": 95, "moe_ep": 94, "moe_tp": 94}),
        ("0.5.20", 2, {"tp": 95, "moe_ep": 94, "moe_tp": 94}),
        ("0.5.21", 2, {"tp": 189}),
        ("0.5.16", 8, {"tp": 189}),
    ],
)
def test_expert_parallel_calls_are_counted_over_their_own_groups(sglang: str, ep: int, groups: dict[str, int]) -> None:
    plan = plan_calls(models.load_model("Qwen3-235B-A22B"), serve(ep_size=ep), 1, sglang)
    counts: dict[str, int] = {}
    for call in plan.calls:
        counts[call.group] = counts.get(call.group, 0) + call.count
    assert counts == groups


def test_deepseek_sums_its_experts_over_the_whole_group_whatever_the_expert_parallelism() -> None:
    for sglang in ("0.5.9", "0.5.16", "0.5.23"):
        calls = plan_calls(models.load_model("DeepSeek-V3"), serve(ep_size=4), 1, sglang).calls
        assert {call.group for call in calls} == {"tp"}


def test_one_rank_makes_no_all_reduce() -> None:
    assert plan_calls(models.load_model("Llama-3-8B"), serve(world_size=1), 1, "0.5.9").count == 0


def test_the_servers_dtype_wins_over_the_models() -> None:
    model = models.load_model("Llama-3-8B")
    call = plan_calls(model, serve(dtype="float32"), 2, "0.5.9").calls[0]
    assert (call.dtype, call.nbytes) == ("fp32", 2 * 4096 * 4)


def test_a_model_older_than_its_support_is_named() -> None:
    notes = plan_calls(models.load_model("Kimi-K2.5"), serve(), 1, "0.5.8").notes
    assert any("came in v0.5.9" in note for note in notes)


def test_releases_sort_as_released() -> None:
    order = [
        "0.4.1.post7",
        "0.4.9",
        "0.4.9.post1",
        "0.4.10",
        "0.5.0rc0",
        "0.5.0rc2",
        "0.5.1",
        "0.5.9",
        "0.5.10rc0",
        "0.5.10",
        "0.5.23",
    ]
    keys = [version_key(name) for name in order]
    assert keys == sorted(set(keys))
    assert at_least("0be30d4", "0.5.9") and not at_least("bba2fc4", "0.5.10rc0") and at_least("path/to/sglang@main", "0.5.23")
