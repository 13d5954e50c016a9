"""Fusion: which calls a fused kernel takes away, held against SGLang's own conditions from its released packages."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_probe._source.fetch import fetch
from sglang_probe._source.lift import Tree, lift
from sglang_probe._step.calls import plan_calls
from sglang_probe._step.fusion import fusable_sites, fuse_calls, token_limits
from sglang_probe._types import Fusion, Group, Server, Setting
from sglang_probe.models import load_model

# Releases at which a limit or the code that holds it changed, and the newest.
RELEASES = (
    "0.4.9", "0.4.10.post1", "0.5.0rc1", "0.5.1", "0.5.3.post1", "0.5.6.post2", "0.5.9", "0.5.14", "0.5.18", "0.5.20", "0.5.21", "0.5.23",
)  # fmt: skip


def serve(enabled: bool = True, backend: str = "auto", world_size: int = 8, algorithm: str | None = None, **args: Any) -> Server:
    return Server(
        sglang="0.5.9", source="test", args={name: Setting(value, "given") for name, value in args.items()}, env={},
        groups={"tp": Group.make(world_size=world_size)}, model=None, decode_graph=True, captured_batches=(), prefill_graph="none",
        fusion=Fusion(enabled, "test", backend=backend), draft_tokens=4, speculative_algorithm=algorithm,
    )  # fmt: skip


def parted(name: str, sglang: str, tokens: int = 4, **given: Any) -> tuple[int, int]:
    """(fused, left) of a preset's calls."""
    model, server = load_model(name), serve(**given)
    result = fuse_calls(plan_calls(model, server, tokens, sglang).calls, model, server, sglang)
    assert not set(result.left) & set(result.taken)
    return result.count, sum(call.count for call in result.left)


@pytest.mark.parametrize(
    ("name", "sglang", "fused", "left"),
    [
        ("DeepSeek-V3", "0.5.9", 121, 2),
        ("Kimi-K2.5", "0.5.9", 121, 2),
        ("Kimi-K2.5", "0.5.23", 121, 2),
        ("Qwen3-235B-A22B", "0.5.9", 187, 2),
        ("GPT-OSS-120B", "0.5.9", 71, 2),
        ("GPT-OSS-120B", "0.5.23", 71, 2),
        ("Qwen3-235B-A22B", "0.5.1", 94, 95),  # attention side only
        ("DeepSeek-V3", "0.4.9", 61, 62),  # attention side only
        ("DeepSeek-V3", "0.4.8", 0, 123),
        ("Llama-3-70B", "0.5.9", 0, 161),
        ("Llama-3-70B", "0.5.21", 0, 161),
        ("Llama-3-70B", "0.5.22", 159, 2),
    ],
)
def test_fusion_takes_the_calls_that_it_takes_in_that_release(name: str, sglang: str, fused: int, left: int) -> None:
    assert parted(name, sglang) == (fused, left)


def test_a_server_without_fusion_keeps_every_call() -> None:
    assert parted("DeepSeek-V3", "0.5.9", enabled=False) == (0, 123)


@pytest.mark.parametrize(("tokens", "fused"), [(2048, 121), (2049, 0)])
def test_the_token_limit_is_exact(tokens: int, fused: int) -> None:
    assert parted("DeepSeek-V3", "0.5.9", tokens)[0] == fused


def test_between_the_two_limits_only_the_attention_side_is_fused() -> None:
    assert parted("DeepSeek-V3", "0.5.3", 3000) == (61, 62)
    assert parted("DeepSeek-V3", "0.5.0rc1", 129) == (61, 62)


def test_limits_that_the_server_reports_win() -> None:
    model, server = load_model("DeepSeek-V3"), serve()
    tight = Server(**{**vars(server), "fusion": Fusion(True, "test", max_tokens=3, max_tokens_mlp=3)})
    assert fuse_calls(plan_calls(model, tight, 4, "0.5.9").calls, model, tight, "0.5.9").count == 0


@pytest.mark.parametrize(
    ("sglang", "tokens", "given", "fused"),
    [
        ("0.5.9", 4, {}, 0),  # aiter's fusion came in v0.5.10rc0
        ("0.5.10", 4, {}, 121),
        ("0.5.10", 4681, {}, 121),  # 67,106,816 bytes
        ("0.5.10", 4682, {}, 0),
        ("0.5.23", 4, {"world_size": 6}, 0),
    ],
)
def test_aiter_fuses_by_bytes_and_world_size(sglang: str, tokens: int, given: dict[str, Any], fused: int) -> None:
    assert parted("DeepSeek-V3", sglang, tokens, backend="aiter", **given)[0] == fused


def test_aiter_takes_exactly_64_mib_from_v0_5_11_on() -> None:
    # Llama-3-70B's width: 4096 tokens are exactly 64 MiB; its layers ask for fusion from v0.5.22 on, Qwen3's did before.
    tokens = (64 << 20) // (4096 * 2)
    assert parted("Qwen3-235B-A22B", "0.5.10", tokens, backend="aiter")[0] == 0
    assert parted("Qwen3-235B-A22B", "0.5.11", tokens, backend="aiter")[0] == 187


def test_an_unread_architecture_is_never_counted_as_fused() -> None:
    model, server = load_model("Llama-3-8B"), serve()
    novel = type(model)(**{**vars(model), "arch": "NovelForCausalLM"})
    result = fuse_calls(plan_calls(novel, server, 1, "0.5.23").calls, novel, server, "0.5.23")
    assert result.count == 0 and result.assumed


def test_known_dangers_are_named_where_they_apply_and_only_there() -> None:
    def notes(sglang: str, **given: Any) -> str:
        model, server = load_model("Kimi-K2.5"), serve(**given)
        return " ".join(fuse_calls(plan_calls(model, server, 4, sglang).calls, model, server, sglang).notes)

    assert "without any reduction" in notes("0.5.9") and "without any reduction" not in notes("0.5.21")
    assert "partial sum" in notes("0.5.13", algorithm="EAGLE3") and "partial sum" not in notes("0.5.14", algorithm="EAGLE3")
    assert "partial sum" not in notes("0.5.13")
    asked = {"enabled": False, "enable_flashinfer_allreduce_fusion": True}
    assert "does not look at the GPU" in notes("0.5.7", **asked) and notes("0.5.9", **asked) == ""


# SGLang's own conditions.


class _Norm:
    """Records which of the two ways SGLang took."""

    def __init__(self) -> None:
        self.fused = False

    def forward_with_allreduce_fusion(self, hidden: Any, residual: Any, **_: Any) -> tuple[Any, Any]:
        self.fused = True
        return hidden, residual

    def __call__(self, hidden: Any, residual: Any) -> tuple[Any, Any]:
        return hidden, residual


def _namespace(sm: int) -> dict[str, Any]:
    """What SGLang's conditions look up: FlashInfer there, fusion on, plain tensor parallelism over 8 GPUs."""
    comm = SimpleNamespace(
        flashinfer_allreduce_fusion_backend="auto", enable_quant_communications=False, enable_aiter_allreduce_fusion=True,
        disable_aiter_allreduce_fusion_in_prefill=False, disable_aiter_allreduce_fusion_in_decode=False,
    )  # fmt: skip
    args = SimpleNamespace(enable_flashinfer_allreduce_fusion=True, attn_cp_size=1, speculative_algorithm=None, **vars(comm))
    parallel = SimpleNamespace(tp_size=8, attn_tp_size=8, moe_ep_size=1, moe_tp_size=8)

    def no(*_: Any, **__: Any) -> bool:
        return False

    def same(x: Any, *_: Any, **__: Any) -> Any:
        return x

    scatter = SimpleNamespace(SCATTERED=1, TP_ATTN_FULL=2, FULL=3, MOE_FULL=4)
    return {
        "_is_sm90_supported": sm == 90, "_is_sm100_supported": sm == 100, "_is_flashinfer_available": True, "_use_aiter": False,
        "_is_npu": False, "global_server_args_dict": {"enable_flashinfer_allreduce_fusion": True}, "ScatterMode": scatter,
        "get_global_server_args": lambda: args, "get_server_args": lambda: args, "get_parallel": lambda: parallel,
        "get_exec": lambda: SimpleNamespace(comm=comm), "is_dp_attention_enabled": no, "is_flashinfer_allreduce_unavailable": no,
        "uses_cutedsl_ar_fusion": no, "is_enable_moe_cp_allgather": no, "get_tensor_model_parallel_world_size": lambda: 8,
        "get_attn_tp_context": lambda: SimpleNamespace(input_scattered=False), "tensor_model_parallel_all_reduce": same,
        "attention_tensor_model_parallel_all_reduce": same, "CommunicateContext": object, "ForwardBatch": object, "torch": None,
        "SpeculativeAlgorithm": SimpleNamespace(from_string=lambda _: None),
    }  # fmt: skip


@functools.cache
def _tree(sglang: str) -> Tree:
    return Tree(fetch(sglang))


def _tensor(tokens: int, hidden: int) -> Any:
    return SimpleNamespace(shape=(tokens, hidden), numel=lambda: tokens * hidden, element_size=lambda: 2)


def _own_answer(sglang: str, sm: int, tokens: int, tree: Tree) -> tuple[bool, bool]:
    """(attention side fused, MLP side left to the next layer), as the release's own code says."""
    names, boundary = _namespace(sm), "srt/layers/layer_boundary/residual/add_norm.py"
    if tree.exists(boundary):
        source = tree.source(boundary)
        name = (
            "flashinfer_ar_fusion_applies"
            if "def flashinfer_ar_fusion_applies" in source
            else "apply_flashinfer_allreduce_fusion"
        )
        applies = lift(source, [name, "FUSE_ALLREDUCE_MAX_BATCH_SIZE"], names)[name]
        return bool(applies(tokens)), bool(applies(tokens))
    source = tree.source("srt/layers/communicator.py")
    method = "CommunicateWithAllReduceAndLayerNormFn._gather_hidden_states_and_residual"
    mlp = "LayerCommunicator.should_fuse_mlp_allreduce_with_next_layer"
    helpers = ["FUSE_ALLREDUCE_MAX_BATCH_SIZE", "apply_flashinfer_allreduce_fusion", "apply_aiter_all_reduce_fusion", mlp]
    own = lift(source, [method], names, optional=helpers)
    context = SimpleNamespace(attn_dp_size=1, local_attn_dp_size=1, attn_tp_size=8, attn_tp_rank=0, tp_size=8, cache=None)
    norm, hidden = _Norm(), _tensor(tokens, 7168)
    batch = SimpleNamespace(
        input_ids=SimpleNamespace(shape=(tokens,)), forward_mode=SimpleNamespace(is_decode_or_idle=lambda: True)
    )
    own[method](hidden, hidden, batch, norm, context, residual_input_mode=2)
    layer = SimpleNamespace(
        is_last_layer=False, _context=context, _speculative_algo=None, layer_scatter_modes=SimpleNamespace(mlp_mode=3), layer_id=5,
        config=SimpleNamespace(num_hidden_layers=61),
    )  # fmt: skip
    if mlp in own:
        return norm.fused, bool(own[mlp](layer, batch))
    return norm.fused, _deepseek_answer(tree, names, layer, batch)


def _deepseek_answer(tree: Tree, names: dict[str, Any], layer: Any, batch: Any) -> bool:
    """Before v0.5.1 the model decided for its MLP side."""
    table = "DeepseekV2DecoderLayer._build_fuse_allreduce_lookup_table"
    asks = "DeepseekV2DecoderLayer._should_fuse_mlp_allreduce_with_next_layer"
    own = lift(tree.source("srt/models/deepseek_v2.py"), [], names, optional=[asks, table])
    if asks not in own:
        return False
    layer._fuse_allreduce_lookup_table = own[table](layer) if table in own else {}
    return bool(own[asks](layer, batch))


def compare(sglang: str, tree: Tree) -> int:
    """Ours against SGLang's own, on each limit and one step either side; gives the number of answers compared."""
    attention, mlp = token_limits(sglang)
    sites = fusable_sites(load_model("DeepSeek-V3"), sglang)
    compared = 0
    for tokens in sorted({1, *(n + d for n in (128, 1024, 2048, 4096) for d in (-1, 0, 1))}):
        own = _own_answer(sglang, 100, tokens, tree)
        ours = (tokens <= attention and "attention output" in sites, tokens <= mlp and "MoE output" in sites)
        assert own == ours, (sglang, tokens)
        compared += 2
    return compared


@pytest.mark.network
@pytest.mark.parametrize("sglang", RELEASES)
def test_limits_are_those_of_sglangs_own_code(sglang: str) -> None:
    assert compare(sglang, _tree(sglang)) == 26


def compare_aiter(sglang: str, tree: Tree) -> int:
    """AMD's condition: ours against SGLang's, around its limits of bytes, columns and world size."""
    boundary, names = "srt/layers/layer_boundary/residual/add_norm.py", {**_namespace(90), "_use_aiter": True}
    path = boundary if tree.exists(boundary) else "srt/layers/communicator.py"
    source = tree.source(path)
    name = "aiter_ar_fusion_applies" if "def aiter_ar_fusion_applies" in source else "apply_aiter_all_reduce_fusion"
    own = lift(source, [name], names, optional=["aiter_ar_fusion_enabled_for", "aiter_all_reduce_fusion_enabled_for"])[name]
    decode = SimpleNamespace(is_extend_or_draft_extend_or_mixed=lambda: False)
    extra = (SimpleNamespace(forward_mode=decode),) if own.__code__.co_argcount > 1 else ()
    compared = 0
    for hidden in (4096, 7168, 16384, 16392):
        edge = (64 << 20) // (2 * hidden)
        for tokens in (1, edge - 1, edge, edge + 1):
            model = type(load_model("Kimi-K2.5"))(**{**vars(load_model("Kimi-K2.5")), "hidden": hidden})
            server = serve(backend="aiter")
            ours = fuse_calls(plan_calls(model, server, tokens, sglang).calls, model, server, sglang).count > 0
            assert bool(own(_tensor(tokens, hidden), *extra)) == ours, (sglang, hidden, tokens)
            compared += 1
    return compared


@pytest.mark.network
@pytest.mark.parametrize("sglang", ["0.5.10", "0.5.14", "0.5.20", "0.5.23"])
def test_aiters_limits_are_those_of_sglangs_own_code(sglang: str) -> None:
    assert compare_aiter(sglang, _tree(sglang)) == 16


@pytest.mark.network
@pytest.mark.parametrize(("sglang", "first"), [("0.5.1", False), ("0.5.3.post1", True), ("0.5.23", True)])
def test_hopper_fuses_from_v0_5_2_on(sglang: str, first: bool) -> None:
    assert _own_answer(sglang, 90, 4, _tree(sglang))[0] is first


def compare_models(sglang: str, tree: Tree) -> int:
    """The table's releases against the sources: the model asks for fusion there, or it does not."""
    files = {"DeepseekV3ForCausalLM": "deepseek_v2", "Qwen3MoeForCausalLM": "qwen3_moe", "GptOssForCausalLM": "gpt_oss",
             "LlamaForCausalLM": "llama", "Glm4MoeForCausalLM": "glm4_moe", "Qwen3ForCausalLM": "qwen3", "Qwen2ForCausalLM": "qwen2",
             "Qwen2MoeForCausalLM": "qwen2_moe", "MixtralForCausalLM": "mixtral"}  # fmt: skip
    llama, compared = load_model("Llama-3-8B"), 0
    for arch, file in files.items():
        path = f"srt/models/{file}.py"
        if not tree.exists(path):
            continue
        source = tree.source(path)
        staged = "append_stages(" in source or "make_stages(" in source
        mlp = (
            staged or "_sglang_needs_allreduce_fusion = True" in source or "should_fuse_mlp_allreduce_with_next_layer(" in source
        )
        sites = fusable_sites(type(llama)(**{**vars(llama), "arch": arch}), sglang)
        assert ("MoE output" in sites) == mlp, (sglang, arch)
        assert ("attention output" in sites) == (staged or "self.layer_communicator = " in source), (sglang, arch)
        compared += 2
    return compared


@pytest.mark.network
def test_models_ask_for_fusion_in_the_releases_that_the_table_names() -> None:
    assert sum(compare_models(sglang, _tree(sglang)) for sglang in RELEASES) > 150
