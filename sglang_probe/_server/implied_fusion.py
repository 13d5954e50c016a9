"""Whether a server fuses all-reduce, residual and norm: the flag, the release's own default, and what the GPU allows. Called by launch.py.

How many calls of which model that takes away is _step/fusion.py's. Read from server_args.py, arg_groups/overrides.py,
layers/communicator.py and layers/flashinfer_comm_fusion.py.
Invariant: off is always with a reason, and what FlashInfer itself does is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from .._step.fusion import token_limits
from .._types import Fusion
from .defaults import grown
from .state import State

# Architectures for which a release turns the fusion on by itself.
_ARCHS = grown(
    ("0.5.0rc2", "GptOssForCausalLM"),
    ("0.5.3.post2", "DeepseekV3ForCausalLM"),
    ("0.5.6.post1", "MistralLarge3ForCausalLM PixtralForConditionalGeneration"),
    ("0.5.7", "Glm4MoeForCausalLM Qwen3MoeForCausalLM -MistralLarge3ForCausalLM -PixtralForConditionalGeneration"),
    ("0.5.8", "Glm4MoeLiteForCausalLM"),
    ("0.5.9", "KimiK25ForConditionalGeneration"),
    ("0.5.10rc0", "Qwen3_5MoeForConditionalGeneration Qwen3_5ForConditionalGeneration"),
    ("0.5.11", "DeepseekV32ForCausalLM GlmMoeDsaForCausalLM Qwen3NextForCausalLM"),
    ("0.5.12", "InternS2PreviewForConditionalGeneration"),
    ("0.5.13", "MistralLarge3ForCausalLM"),
    ("0.5.14", "Qwen3VLMoeForConditionalGeneration NemotronHForCausalLM NemotronHPuzzleForCausalLM"),
    ("0.5.18", "DeepseekV4ForCausalLM"),
    ("0.5.20", "Qwen4ExpForConditionalGeneration NemotronH_Omni_Reasoning_V3"),
)
_DP, _NODES = "with data-parallel attention", "across nodes"
_MIMO = frozenset({"MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM"})
_CUTEDSL_WORLDS = (2, 4, 8, 16)


@dataclass(frozen=True)
class _Wish:
    backend: str | None
    reason: str


def resolve_fusion(state: State) -> Fusion:
    """Fusion as this server runs it."""
    if state.device != state.gpu.device:
        return Fusion(False, f"--device {state.device} has no fused all-reduce")
    limits = token_limits(state.sglang)
    wish = _wish(state)
    if wish.backend is None:
        return Fusion(False, wish.reason)
    if wish.backend == "aiter":
        return Fusion(
            True, wish.reason, backend="aiter", assumed=("aiter's fused all-reduce takes every call that its size test admits",)
        )
    stop = _stop(state)
    if stop:
        return Fusion(False, f"{wish.reason}, but {stop}", backend=wish.backend)
    backend = _backend(state, wish.backend)
    return Fusion(True, wish.reason, *limits, backend, ("FlashInfer is installed and its all-reduce workspace sets itself up",))


def _wish(state: State) -> _Wish:
    """What the flags, or the release's own default, ask for."""
    if state.get("enable_aiter_allreduce_fusion", False):
        world = state.number("tp_size")
        if state.hip and world not in (1, 6) and state.attn_dp_size == 1:
            return _Wish("aiter", "--enable-aiter-allreduce-fusion")
        return _Wish(None, "--enable-aiter-allreduce-fusion acts on ROCm only, not on 6 ranks, nor with data-parallel attention")
    if not state.within("0.4.9"):
        return _Wish(None, "this release has no fused all-reduce")
    if state.get("enforce_disable_flashinfer_allreduce_fusion", False):
        setting = state.args["enforce_disable_flashinfer_allreduce_fusion"]
        return _Wish(None, setting.reason or "--enforce-disable-flashinfer-allreduce-fusion")
    backend = state.get("flashinfer_allreduce_fusion_backend")
    if backend is not None:
        return _Wish(str(backend), _origin(state, "flashinfer_allreduce_fusion_backend"))
    if state.get("enable_flashinfer_allreduce_fusion", False) and (not state.resolved or not state.within("0.5.14")):
        return _Wish("auto" if state.within("0.5.14") else "trtllm", _origin(state, "enable_flashinfer_allreduce_fusion"))
    if state.resolved:
        return _Wish(None, "off in the server's own settings")
    return _automatic(state)


def _origin(state: State, name: str) -> str:
    return "on in the server's own settings" if state.resolved else f"--{name.replace('_', '-')}"


def _automatic(state: State) -> _Wish:
    if state.within("0.5.23") and state.arch in _MIMO:
        return _automatic_cutedsl(state)
    if not state.within("0.5.0rc2"):
        return _Wish(None, "off by default in this release")
    if state.model is None:
        return _Wish(None, "the model is not known, and on by default only for some architectures")
    if state.arch not in state.at(_ARCHS):
        return _Wish(None, f"off by default for {state.arch} in this release")
    stop = _automatic_stop(state)
    if stop:
        return _Wish(None, f"on by default for {state.arch} in this release, but not {stop}")
    return _Wish("auto" if state.within("0.5.14") else "trtllm", f"on by default for {state.arch} in this release")


def _automatic_cutedsl(state: State) -> _Wish:
    fits = state.gpu.sm100 and state.number("tp_size") in _CUTEDSL_WORLDS and state.attn_dp_size == 1 and state.a2a == "none"
    if fits and state.number("attn_cp_size") == 1 and not state.get("enable_pdmux", False):
        return _Wish("cutedsl", f"on by default for {state.arch} on SM100 in this release")
    return _Wish(None, f"on by default for {state.arch} only on SM100, over 2, 4, 8 or 16 ranks")


def _automatic_stop(state: State) -> str:
    """Why a release does not turn it on here although the architecture is on its list; "" where it does."""
    gpu, hopper = state.gpu, state.within("0.5.7")
    deepseek = state.arch in ("DeepseekV3ForCausalLM", "MistralLarge3ForCausalLM", "PixtralForConditionalGeneration")
    # SM120 counted as Blackwell for GPT-OSS in v0.5.4.post2 to v0.5.6.post2, and for all in v0.5.7; the layers never fuse there.
    consumer = gpu.sm120 and (state.within("0.5.7", "0.5.8") or (state.within("0.5.4.post2", "0.5.7") and not deepseek))
    if state.within("0.5.10rc0", "0.5.10") and state.arch == "GptOssForCausalLM" and (gpu.sm100 or gpu.sm120):
        # One release had a second rule for this architecture, which did not look at the all-to-all backend.
        return next((text for holds, text in ((state.attn_dp_size > 1, _DP), (state.number("nnodes") > 1, _NODES)) if holds), "")
    checks: tuple[tuple[bool, str], ...] = (
        (not (gpu.sm100 or consumer or (hopper and gpu.sm90)), f"on this GPU ({'SM90 and SM100' if hopper else 'SM100'} only)"),
        (state.within("0.5.1") and state.attn_dp_size > 1, _DP),
        (state.within("0.5.3.post2", "0.5.6") and deepseek and _sparse(state), "with sparse attention"),
        (state.within("0.5.5.post1", "0.5.14") and state.number("nnodes") > 1, _NODES),
        (state.within("0.5.14") and state.number("nnodes") > 1 and not gpu.sm100, "across nodes but on SM100"),
        (state.within("0.5.7", "0.5.13") and gpu.name == "h20", "on H20"),
        (state.within("0.5.7") and state.a2a != "none", "with an all-to-all backend"),
        (state.within("0.5.10rc0", "0.5.11") and state.number("attn_cp_size") > 1, "with context parallelism"),
        (state.within("0.5.10") and state.number("tp_size") == 1, "on one rank"),
    )
    return next((text for holds, text in checks if holds), "")


def _sparse(state: State) -> bool:
    return state.model is not None and state.model.config.get("index_topk") is not None


def _stop(state: State) -> str:
    """Why the layers do not fuse although the flag is on; "" where they do."""
    hopper = state.within("0.5.2rc2")
    fits = state.gpu.sm100 or (hopper and state.gpu.sm90)
    checks: tuple[tuple[bool, str], ...] = (
        (not fits, f"the layers fuse on {'SM90 and SM100' if hopper else 'SM100'} only"),
        (state.number("tp_size") == 1, "one rank has nothing to reduce"),
        (state.attn_dp_size > 1, "not with data-parallel attention"),
        (state.within("0.5.10rc0", "0.5.11") and state.number("attn_cp_size") > 1, "not with context parallelism"),
        (
            state.within("0.5.14") and state.number("nnodes") > 1 and not state.gpu.sm100,
            "FlashInfer's workspace is refused across nodes here",
        ),
    )
    return next((text for holds, text in checks if holds), "")


def _backend(state: State, wish: str) -> str:
    if wish != "auto":
        return wish
    return "mnnvl" if state.gpu.sm100 else "trtllm"
