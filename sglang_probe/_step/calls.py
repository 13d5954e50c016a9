"""From a model and a server to the all-reduces of one target forward: call site, group, tensor, count. Called by step.

A decoder layer under plain tensor parallelism makes two (after attention, after the MLP or the experts), the embedding one: 2 L + 1.
ARCHITECTURES lists the models whose code was read for this, with the releases from which their calls can be fused.
Invariant: what is not modelled is never counted as if it were; it is in ``Plan.unmodelled`` and in a note that says so loudly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .._facts import DTYPE_BYTES
from .._types import Call, Model, Server
from .._versions import at_least

EMBEDDING, ATTENTION, MLP, MOE = "embedding", "attention output", "MLP output", "MoE output"
LAST = ", last layer"


@dataclass(frozen=True)
class Architecture:
    """Releases from which a model's calls can be fused with residual and norm; "" never."""

    attention: str = ""
    """Its attention output goes through LayerCommunicator, which asks for fusion."""
    mlp: str = ""
    """Its MLP output may be left to the next layer."""
    boundary: str = "0.5.21"
    """Its layers are stages of layer_boundary: both outputs may be left to the next stage."""
    since: str = ""
    """The first release that has the model; "" all that we know."""
    deepseek: bool = False
    """It is, or wraps, deepseek_v2.py."""


_DEEPSEEK = Architecture("0.4.9", "0.4.9.post2", deepseek=True)
_LLAMA = Architecture(boundary="0.5.22")

ARCHITECTURES: dict[str, Architecture] = {
    "DeepseekV2ForCausalLM": _DEEPSEEK,
    "DeepseekV3ForCausalLM": _DEEPSEEK,
    "DeepseekV32ForCausalLM": replace(_DEEPSEEK, since="0.5.3rc2"),
    "KimiVLForConditionalGeneration": replace(_DEEPSEEK, since="0.4.6.post2"),
    "KimiK25ForConditionalGeneration": replace(_DEEPSEEK, since="0.5.9"),
    "MistralLarge3ForCausalLM": replace(_DEEPSEEK, since="0.5.6.post1"),
    "Qwen3MoeForCausalLM": Architecture("0.4.9", "0.5.2rc2", since="0.4.5.post2"),
    "Qwen2MoeForCausalLM": Architecture("0.4.9"),
    "Qwen3ForCausalLM": Architecture("0.4.9", since="0.4.5.post2"),
    "GptOssForCausalLM": Architecture("0.5.0rc0", "0.5.0rc1", since="0.5.0rc0"),
    "Glm4MoeForCausalLM": Architecture("0.4.9.post5", "0.5.5", since="0.4.9.post5"),
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Phi3ForCausalLM": _LLAMA,
    "InternLM3ForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _LLAMA,
    "MixtralForCausalLM": _LLAMA,
}

# Keys of a config.json that say that layers are not all attention + MLP, or that there is more than a decoder.
_HYBRID_KEYS = (
    "linear_attn_config", "full_attention_interval", "hybrid_override_pattern", "attn_type_list", "attn_layer_period",
    "mamba_d_state", "ssm_state_size", "mamba_num_heads", "linear_num_value_heads", "is_encoder_decoder", "encoder_layers",
)  # fmt: skip
_PLAIN_LAYER_TYPES = frozenset({"full_attention", "sliding_attention", "chunked_attention", "attention", "dense", "sparse"})


# Server arguments that put other collectives in the place of these all-reduces.
_OTHER_SIZES = {
    "attn_cp_size": "context parallelism over attention",
    "dcp_size": "decode context parallelism",
    "moe_dp_size": "data-parallel experts",
    "dwdp_size": "experts' weights are gathered instead",
}
_OTHER_SWITCHES = {
    "enable_two_batch_overlap": "the batch runs as two halves, each with its own calls",
    "enable_layernorm_sp": "norms run on slices of the tokens, between a reduce-scatter and an all-gather",
}


@dataclass(frozen=True)
class Plan:
    """The calls of one forward, before fusion."""

    calls: tuple[Call, ...]
    unmodelled: int = 0
    """About how many calls of the step are not modelled; 0 where the count is exact."""
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return sum(call.count for call in self.calls)


def setting(server: Server, *names: str, default: Any = None) -> Any:
    """The value of a server argument under the first of its names that the release has; ``default`` where it has none."""
    for name in names:
        found = server.args.get(name)
        if found is not None and found.value is not None:
            return found.value
    return default


def is_deepseek_family(model: Model) -> bool:
    row = ARCHITECTURES.get(model.arch)
    return row is not None and row.deepseek


def is_multimodal(model: Model) -> bool:
    """Its embedding is made outside of the language model, which is all that a piecewise graph holds."""
    return model.arch.endswith("ForConditionalGeneration")


def dtype_of(model: Model, server: Server) -> str:
    """The dtype that activations have: the server's --dtype, else the model's; SGLang turns fp32 into fp16 by itself."""
    given = {"bfloat16": "bf16", "half": "fp16", "float16": "fp16", "float": "fp32", "float32": "fp32"}.get(
        str(setting(server, "dtype", default="auto"))
    )
    return given or ("fp16" if model.dtype == "fp32" else model.dtype)


def plan_calls(model: Model, server: Server, tokens: int, sglang: str) -> Plan:
    """Every all-reduce of one target forward of ``tokens`` tokens, before fusion."""
    about = 2 * model.layers + 1
    world = server.groups["tp"].world_size
    if world == 1:
        return Plan((), notes=("one rank: SGLang makes no all-reduce at all",))
    obstacle = _obstacle(server, model)
    if obstacle:
        return Plan((), about, (f"not modelled: about {about} calls of this step ({obstacle})",))
    unmodelled, notes, assumed = _doubts(model, about)
    row = ARCHITECTURES.get(model.arch)
    if row is not None and row.since and not at_least(sglang, row.since):
        notes += (f"{model.arch} came in v{row.since}: a stock {sglang} cannot load this model; counted as later releases do",)
    stages = int(setting(server, "pp_size", default=1))
    if stages > 1:
        notes += (
            f"{stages} pipeline stages: the count is over all of them; each makes its own layers' calls, the first the embedding's",
        )
    return Plan(_calls(model, server, tokens, sglang), unmodelled, notes, assumed)


def _obstacle(server: Server, model: Model) -> str:
    """What in this server makes other collectives than those that we count; "" where nothing does."""
    dp = int(setting(server, "dp_size", default=1)) if setting(server, "enable_dp_attention", default=False) else 1
    if max(dp, int(setting(server, "attn_dp_size", default=1))) > 1:
        return "data-parallel attention: gathers and reduce-scatters between attention groups take the place of most all-reduces"
    backend = str(setting(server, "moe_a2a_backend", default="none")).lower()
    if backend == "none" and setting(server, "enable_deepep_moe", default=False):
        backend = "deepep"
    if backend != "none" and model.experts:
        return f"--moe-a2a-backend {backend}: experts exchange tokens all-to-all, attention outputs are reduce-scattered"
    for name, text in _OTHER_SIZES.items():
        if int(setting(server, name, default=1)) > 1:
            return f"--{name.replace('_', '-')} {setting(server, name)}: {text}"
    for name, text in _OTHER_SWITCHES.items():
        if setting(server, name, default=False):
            return f"--{name.replace('_', '-')}: {text}"
    return ""


def _doubts(model: Model, about: int) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """How many calls are in doubt because of the model, the notes and the assumptions that say so."""
    hybrid = _hybrid_key(model)
    if hybrid:
        text = f"its config.json has {hybrid}: a hybrid or encoder layout, counted as 2 L + 1, assumed"
        return about, (f"not modelled: about {about} calls of this step ({model.arch}; {text})",), (text,)
    if model.arch not in ARCHITECTURES:
        text = f"unknown architecture {model.arch}: counted as 2 L + 1, assumed"
        return about, (text,), (text,)
    return 0, (), ()


def _hybrid_key(model: Model) -> str:
    for key in _HYBRID_KEYS:
        if model.config.get(key) not in (None, False, 0, [], {}):
            return key
    types = model.config.get("layer_types")
    if isinstance(types, (list, tuple)):
        return next((f"layer_types {kind!r}" for kind in types if str(kind) not in _PLAIN_LAYER_TYPES), "")
    return ""


def _calls(model: Model, server: Server, tokens: int, sglang: str) -> tuple[Call, ...]:
    dtype = dtype_of(model, server)
    nbytes = tokens * model.hidden * DTYPE_BYTES[dtype]
    base = Call(nbytes, dtype, tokens=tokens, hidden=model.hidden)

    def at(site: str, count: int, group: str = "tp") -> Call:
        return replace(base, site=site, count=count, group=group)

    layers = model.layers
    sparse = layers - min(model.dense_layers, layers) if model.experts else 0
    calls = [at(EMBEDDING, 1), at(ATTENTION, layers)]
    if sparse == 0:
        calls += [at(MLP, layers - 1), at(MLP + LAST, 1)]
    else:
        # The dense layers come first in every family that has both kinds.
        calls.append(at(MLP, layers - sparse))
        for group in _expert_groups(model, server, sglang):
            calls += [at(MOE, sparse - 1, group), at(MOE + LAST, 1, group)]
    return tuple(call for call in calls if call.count > 0)


def _expert_groups(model: Model, server: Server, sglang: str) -> tuple[str, ...]:
    """The groups over which a layer of experts is summed, in SGLang's order.

    Nearly always the whole TP group, once. Qwen3's experts were summed over the expert-parallel and then over the tensor-parallel
    experts group while both existed apart (v0.5.10rc0 to v0.5.20); where expert parallelism spans TP, its group is TP's.
    """
    tp, ep = server.groups["tp"].world_size, int(setting(server, "ep_size", default=1))
    split = model.arch == "Qwen3MoeForCausalLM" and at_least(sglang, "0.5.10rc0") and not at_least(sglang, "0.5.21")
    return ("moe_ep", "moe_tp") if split and 1 < ep < tp else ("tp",)
