"""The prefill CUDA graph of a server: which kind a release starts, and what stops it. Called by launch.py.

BLOCKERS is a table: kind, from which release, to before which, the reason, when. Read from server_args.py, arg_groups/
cuda_graph_hook.py and configs/model_config.py. Invariant: a kind that a person names explicitly is not questioned, as in SGLang.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from .defaults import FIRST, grown
from .implied_graphs import graph_config
from .state import State

Kind = Literal["none", "tc_piecewise", "breakable", "full"]
_DEFAULT_KIND = ((FIRST, "none"), ("0.5.10rc0", "tc_piecewise"), ("0.5.15", "breakable"))

_PIECEWISE_REFUSED = grown(
    ("0.5.10rc0", "DeepseekV32ForCausalLM Qwen3NextForCausalLM GlmMoeDsaForCausalLM BailingMoeV2_5ForCausalLM LLaDAModelLM"),
    ("0.5.12", "DeepseekV4ForCausalLM DeepseekV4ForCausalLMNextN"),
    ("0.5.13", "-DeepseekV32ForCausalLM -GlmMoeDsaForCausalLM"),
    ("0.5.16", "DeepseekV4ForCausalLMDSpark"),
    ("0.5.20", "Glm5NextForConditionalGeneration"),
)
_PIECEWISE_MULTIMODAL = grown(
    ("0.5.14", "Cohere2VisionForConditionalGeneration"),
    ("0.5.16", "KimiK25ForConditionalGeneration MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration"),
    ("0.5.19", "-Cohere2VisionForConditionalGeneration"),
)
_BREAKABLE_MULTIMODAL = grown(
    ("0.5.16", "Qwen3_5ForConditionalGeneration Qwen3_5MoeForConditionalGeneration"),
    (
        "0.5.18",
        "InternS2MobiusForConditionalGeneration MuseGlimmerForConditionalGeneration KimiK3ForConditionalGeneration "
        "KimiK25ForConditionalGeneration",
    ),
    ("0.5.19", "Cohere2VisionForConditionalGeneration PaddleOCRVLForConditionalGeneration"),
    ("0.5.20", "Glm5NextForConditionalGeneration"),
    ("0.5.22", "Qwen4ExpForConditionalGeneration MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration"),
    ("0.5.23", "MuseSparkForConditionalGeneration"),
)
_INKLING = frozenset({"InklingForConditionalGeneration", "InklingForConditionalGenerationMTP"})
_LATENT_ARCHS = ("Deepseek", "Kimi", "MistralLarge3", "LongcatFlash", "GlmMoeDsa", "BailingMoeV2_5", "MiniCPM3")


def is_latent(state: State) -> bool:
    """Multi-head latent attention, by the config.json where there is one, else by the architecture's name."""
    if state.model is not None and state.model.config:
        return state.model.config.get("kv_lora_rank") is not None
    return state.arch.startswith(_LATENT_ARCHS)


def is_multimodal(state: State) -> bool:
    wanted = state.get("enable_multimodal")
    return state.arch.endswith("ForConditionalGeneration") and wanted is not False


def _sparse_attention(state: State) -> bool:
    """DeepSeek sparse attention."""
    return state.model is not None and state.model.config.get("index_topk") is not None


def prefill_attention(state: State) -> str | None:
    """The prefill attention backend, where a flag says it or Blackwell's default for DeepSeek does."""
    named = state.get("prefill_attention_backend") or state.get("attention_backend")
    if named is None and state.arch == "DeepseekV3ForCausalLM" and state.gpu.sm100 and not _sparse_attention(state):
        return "trtllm_mla"
    return cast("str | None", named)


def _lora(state: State) -> Any:
    return state.get("lora_paths") or state.get("enable_lora")


def _context(state: State) -> bool:
    return state.number("attn_cp_size") > 1


@dataclass(frozen=True)
class Blocker:
    kind: str
    since: str
    until: str | None
    reason: str
    when: Callable[[State], Any]


_TC, _CUT = "tc_piecewise", "breakable"
BLOCKERS: tuple[Blocker, ...] = (
    Blocker(_TC, FIRST, "0.5.10rc0", "torch.compile", lambda s: s.get("enable_torch_compile")),
    Blocker(_TC, FIRST, "0.5.10rc0", "pipeline parallelism", lambda s: s.number("pp_size") > 1),
    Blocker(_TC, FIRST, "0.5.10rc0", "its all-to-all backend", lambda s: s.a2a in ("deepep", "mooncake")),
    Blocker(_TC, "0.5.10rc0", None, "its architecture", lambda s: s.arch in s.at(_PIECEWISE_REFUSED)),
    Blocker(_TC, "0.5.10rc0", "0.5.13", "sparse attention", _sparse_attention),
    Blocker(_TC, "0.5.10rc0", "0.5.11", "speculation", lambda s: s.get("speculative_algorithm") is not None),
    Blocker(_TC, "0.5.10rc0", None, "data-parallel attention", lambda s: s.attn_dp_size > 1),
    Blocker(_TC, "0.5.10rc0", None, "torch.compile", lambda s: s.get("enable_torch_compile")),
    Blocker(_TC, "0.5.10rc0", None, "pipeline parallelism", lambda s: s.number("pp_size") > 1),
    Blocker(_TC, "0.5.10rc0", None, "ROCm", lambda s: s.hip),
    Blocker(_TC, "0.5.10rc0", None, "its all-to-all backend", lambda s: s.a2a != "none"),
    Blocker(_TC, "0.5.10rc0", None, "LoRA", _lora),
    Blocker(_TC, "0.5.10rc0", None, "a multimodal model", lambda s: is_multimodal(s) and not _allowed(s, _PIECEWISE_MULTIMODAL)),
    Blocker(_TC, "0.5.10rc0", None, "GGUF", lambda s: "gguf" in (s.get("load_format"), s.get("quantization"))),
    Blocker(_TC, "0.5.10rc0", None, "a diffusion language model", lambda s: s.get("dllm_algorithm") is not None),
    Blocker(
        _TC,
        "0.5.10rc0",
        None,
        "offload to the CPU",
        lambda s: s.number("cpu_offload_gb", 0) > 0 or s.get("enable_hierarchical_cache"),
    ),
    Blocker(_TC, "0.5.10rc0", None, "deterministic inference", lambda s: s.get("enable_deterministic_inference")),
    Blocker(_TC, "0.5.10rc0", None, "PD disaggregation", lambda s: s.get("disaggregation_mode", "null") != "null"),
    Blocker(_TC, "0.5.10rc0", None, "--enable-symm-mem", lambda s: s.get("enable_symm_mem")),
    Blocker(
        _TC,
        "0.5.10rc0",
        None,
        "expert load recording",
        lambda s: s.get("enable_eplb") or s.get("expert_distribution_recorder_mode") is not None,
    ),
    Blocker(_TC, "0.5.10", None, "context parallelism", _context),
    Blocker(_TC, "0.5.11", None, "--debug-cuda-graph", lambda s: s.get("debug_cuda_graph")),
    Blocker(_TC, "0.5.16", None, "decode context parallelism", lambda s: s.number("dcp_size") > 1),
    Blocker(_CUT, "0.5.14", "0.5.17", "latent attention", is_latent),
    Blocker(_CUT, "0.5.17", "0.5.18", "latent attention", lambda s: is_latent(s) and not _sparse_attention(s)),
    Blocker(_CUT, "0.5.15", "0.5.17", "LoRA", _lora),
    Blocker(_CUT, "0.5.15", "0.5.17", "its all-to-all backend", lambda s: s.a2a != "none"),
    Blocker(_CUT, "0.5.15", "0.5.17", "data-parallel attention", lambda s: s.attn_dp_size > 1),
    Blocker(_CUT, "0.5.15", None, "its architecture", lambda s: s.arch.startswith("DeepseekV4")),
    Blocker(_CUT, "0.5.15", None, "context parallelism", _context),
    Blocker(_CUT, "0.5.15", "0.5.16", "a multimodal model", is_multimodal),
    Blocker(_CUT, "0.5.16", None, "a multimodal model", lambda s: is_multimodal(s) and not _allowed(s, _BREAKABLE_MULTIMODAL)),
    Blocker(_CUT, "0.5.16", None, "decode context parallelism", lambda s: s.number("dcp_size") > 1),
    Blocker(_CUT, "0.5.17", "0.5.18", "its architecture", lambda s: s.arch.startswith("NemotronH")),
    Blocker(_CUT, "0.5.17", None, "two-batch overlap", lambda s: s.get("enable_two_batch_overlap")),
    Blocker(_CUT, "0.5.17", None, "its all-to-all backend", lambda s: s.a2a not in ("none", "deepep", "megamoe", "flashinfer")),
    Blocker(_CUT, "0.5.19", None, "pipeline parallelism", lambda s: s.number("pp_size") > 1),
    Blocker(_CUT, "0.5.20", None, "linear attention (KDA)", lambda s: s.arch.startswith(("KimiLinear", "KimiK3"))),
)


def _allowed(state: State, table: Any) -> bool:
    names = state.at(table)
    return isinstance(names, frozenset) and state.arch in names


def prefill_graph(state: State) -> tuple[Kind, str]:
    """The kind of the prefill graph, and why."""
    named = graph_config(state, "prefill", "backend")
    if state.resolved and named is not None:
        return _kind(named), "the server says so"
    if state.within("0.5.14"):
        return _from_backends(state, named)
    return _from_switches(state)


def _from_switches(state: State) -> tuple[Kind, str]:
    """To v0.5.13: one kind, with switches of its own."""
    if not state.within("0.5.10rc0"):
        if not state.get("enable_piecewise_cuda_graph", False):
            return "none", "off by default in this release"
        reason = _stop(state, _TC)
        return ("none", f"not with {reason}") if reason else ("tc_piecewise", "--enable-piecewise-cuda-graph")
    kind: Kind = "breakable" if state.get("enable_breakable_cuda_graph", False) else "tc_piecewise"
    if state.resolved:
        return (
            ("none", "the server says so") if state.get("disable_piecewise_cuda_graph", False) else (kind, "the server says so")
        )
    if state.get("enforce_piecewise_cuda_graph", False):
        return kind, "--enforce-piecewise-cuda-graph"
    if state.get("disable_piecewise_cuda_graph", False):
        return "none", "--disable-piecewise-cuda-graph"
    reason = _stop(state, _TC)
    return ("none", f"on by default, but not with {reason}") if reason else (kind, "on by default in this release")


def _from_backends(state: State, named: Any) -> tuple[Kind, str]:
    """From v0.5.14: --cuda-graph-config, --cuda-graph-backend-prefill, the switches, the default; the first that speaks."""
    named = named or state.get("cuda_graph_backend_prefill")
    if named is not None:
        return _kind(named), "asked for"
    if state.get("disable_prefill_cuda_graph", False):
        return "none", "--disable-prefill-cuda-graph"
    if state.get("disable_cuda_graph", False):
        return "none", "--disable-cuda-graph"
    if state.arch in _INKLING and state.within("0.5.16"):
        return "full", "the default of this architecture"
    if state.get("disaggregation_mode", "null") == "decode" and state.within("0.5.16"):
        return "none", "a decode server runs without prefill graphs"
    kind = _default_kind(state)
    reason = _stop(state, kind)
    if (
        not reason
        and prefill_attention(state) == "trtllm_mla"
        and state.arch == "DeepseekV3ForCausalLM"
        and state.within("0.5.15")
    ):
        reason = "the attention backend trtllm_mla"
    if kind == "none":
        return "none", "off by default on this device"
    return ("none", f"on by default, but not with {reason}") if reason else (kind, "on by default in this release")


def _default_kind(state: State) -> Kind:
    kind = cast(Kind, state.at(_DEFAULT_KIND))
    if kind != "breakable":
        return kind
    if state.gpu.device != "cuda":
        return "none" if state.within("0.5.22") else "tc_piecewise"
    if not state.within("0.5.16", "0.5.22") or not _allowed(state, _PIECEWISE_MULTIMODAL):
        return "breakable"
    if not state.within("0.5.18"):
        return "tc_piecewise"
    breakable = _allowed(state, _BREAKABLE_MULTIMODAL) or prefill_attention(state) == "trtllm_mla"
    return "breakable" if breakable else "tc_piecewise"


def _stop(state: State, kind: str) -> str:
    return next((b.reason for b in BLOCKERS if b.kind == kind and state.within(b.since, b.until) and b.when(state)), "")


def _kind(backend: object) -> Kind:
    text = str(backend)
    return cast(Kind, text) if text in ("tc_piecewise", "breakable", "full") else "none"
