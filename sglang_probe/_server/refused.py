"""What SGLang itself refuses to start with: values outside of a flag's choices, speculation given by halves, GPUs that are not there.

Called by server.py for a launch line, never for a server that runs. CHOICES is a table of changes; read from server_args.py and
arg_groups/ of every release. Invariant: a line that no server starts with gives an InputError, not an answer.
"""

from __future__ import annotations

from typing import Any

from .._types import InputError
from .defaults import FIRST, Changes, grown
from .implied_graphs import graph_config
from .state import State

# fmt: off
_ATTENTION = (
    ("0.5.0rc1", "aiter ascend dual_chunk_flash_attn intel_amx trtllm_mha trtllm_mla wave"),
    ("0.5.2", "hybrid_linear_attn"),
    ("0.5.3rc2", "fa4 flex_attention nsa -hybrid_linear_attn"),
    ("0.5.4", "intel_xpu"),
    ("0.5.12", "compressed dsv4 tokenspeed_mla"),
    ("0.5.13", "cutedsl_mla dsa"),
    ("0.5.17", "hpc_ops"),
    ("0.5.19", "minicpm_flashattn minicpm_flashinfer"),
    ("0.5.20", "qsa -cutlass_mla -dual_chunk_flash_attn"),
    ("0.5.22", "llada2_cfg_flashinfer"),
)
_ATTENTION_PHASE = grown(("0.4.9.post5", "cutlass_mla fa3 flashinfer flashmla torch_native triton"), *_ATTENTION)
CHOICES: dict[str, Changes] = {
    "dtype": grown((FIRST, "auto bfloat16 float float16 float32 half")),
    "speculative_algorithm": grown(
        (FIRST, "EAGLE"),
        ("0.4.3.post1", "NEXTN"),
        ("0.4.4.post2", "EAGLE3"),
        ("0.5.2", "STANDALONE"),
        ("0.5.3rc2", "NGRAM"),
        ("0.5.11", "DFLASH"),
        ("0.5.12", "FROZEN_KV_MTP NONE"),
        ("0.5.16", "DSPARK"),
        ("0.5.20", "UNO"),
    ),
    "moe_a2a_backend": grown(
        ("0.4.10.post2", "deepep"),
        ("0.5.1", "none"),
        ("0.5.3.post2", "mooncake"),
        ("0.5.6", "ascend_fuseep"),
        ("bba2fc4", "flashinfer mori"),
        ("0.5.10rc0", "nixl"),
        ("0.5.12", "megamoe"),
        ("0.5.16", "ascend_tp"),
        ("0.5.17", "pplx"),
        ("0.5.19", "deepep_v2"),
        ("0.5.20", "flashinfer_megamoe"),
    ),
    "deepep_mode": grown(("0.4.4.post4", "auto low_latency normal")),
    "elastic_ep_backend": grown(("0.5.3.post2", "mooncake none"), ("0.5.10rc0", "nixl")),
    "disaggregation_mode": grown(("0.4.4.post2", "decode null prefill")),
    "flashinfer_allreduce_fusion_backend": grown(("0.5.14", "auto mnnvl trtllm"), ("0.5.21", "cutedsl")),
    "boundary_reduction": grown(("0.5.21", "ar auto rs rs+rsv rsv")),
    "rl_on_policy_target": grown(("0.5.4.post1", "fsdp")),
    "cuda_graph_backend_decode": grown(("0.5.14", "breakable disabled full tc_piecewise"), ("0.5.22", "-tc_piecewise")),
    "cuda_graph_backend_prefill": grown(
        ("0.5.14", "breakable disabled tc_piecewise"), ("0.5.15", "full"), ("0.5.22", "-tc_piecewise")
    ),
    "attention_backend": grown(
        (FIRST, "flashinfer torch_native triton"),
        ("0.4.4.post2", "fa3"),
        ("0.4.5.post2", "flashmla"),
        ("0.4.6.post1", "cutlass_mla"),
        ("0.4.6.post5", "aiter"),
        ("0.4.7", "intel_amx"),
        ("0.4.9", "ascend"),
        ("0.4.10.post1", "trtllm_mla"),
        ("0.5.0rc0", "dual_chunk_flash_attn trtllm_mha"),
        *_ATTENTION,
    ),
    "decode_attention_backend": _ATTENTION_PHASE,
    "prefill_attention_backend": _ATTENTION_PHASE,
}
"""What argparse, or SGLang's own check behind it, admits; only of arguments that can change a route."""
# fmt: on

_EAGLE = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")


def check_refused(state: State) -> None:
    """Refuse what the release refuses. Before the rules are applied: what is asked is what a person gave."""
    for name in CHOICES:
        _check_choice(state, name, _flag(name), state.get(name))
    for phase in ("decode", "prefill"):
        name = f"cuda_graph_backend_{phase}"
        _check_choice(state, name, f"--cuda-graph-config {phase}.backend", graph_config(state, phase, "backend"))
    if state.within("0.4.4.post4") and state.algorithm in _EAGLE:
        _check_speculation(state)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_choice(state: State, name: str, flag: str, value: Any) -> None:
    if value is None or (not state.given(name) and flag == _flag(name)) or not state.within(CHOICES[name][0][0]):
        return
    choices: frozenset[str] = state.at(CHOICES[name])
    # From v0.5.12 on SGLang looks the algorithm up in capitals.
    found = str(value).upper() if name == "speculative_algorithm" and state.within("0.5.12") else value
    if found not in choices:
        raise InputError(flag, value, f"give one of {', '.join(sorted(choices))}: SGLang {state.sglang} refuses all else")


def _check_speculation(state: State) -> None:
    """Steps, top-k and draft tokens: none of them, or steps with top-k, and for a top-k above 1 with draft tokens."""
    steps, topk, tokens = (state.get(f"speculative_{name}") for name in ("num_steps", "eagle_topk", "num_draft_tokens"))
    if state.get("speculative_adaptive", False) and state.within("0.5.14"):
        return  # picks its own
    whole = "--speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens"
    if steps is None:
        for name in ("speculative_eagle_topk", "speculative_num_draft_tokens"):
            if state.get(name) is not None:
                raise InputError(
                    _flag(name),
                    state.get(name),
                    f"SGLang {state.sglang} does not start with it alone: give {whole}, or none of them",
                )
        return
    if topk is None:
        raise InputError(
            "--speculative-eagle-topk",
            None,
            f"SGLang {state.sglang} does not start with steps alone: give {whole}, or none of them",
        )
    if tokens is None and (topk > 1 or not state.within("0.4.5.post3")):
        raise InputError(
            "--speculative-num-draft-tokens", None, f"SGLang {state.sglang} does not start without it here: give {whole}"
        )


# ---------------------------------------------------------------------------------------------------------------- visible devices

DEVICES = "CUDA_VISIBLE_DEVICES"


def unreadable_devices(state: State) -> bool:
    """CUDA_VISIBLE_DEVICES names its GPUs by something else than numbers, which custom all-reduce's constructor does not survive."""
    text = state.env.get(DEVICES)
    try:
        for part in text.split(",") if text else ():
            int(part)
    except ValueError:
        return True
    return False


def check_devices(state: State, per_node: int) -> None:
    """Refuse too few visible GPUs; and names of GPUs in releases that do not survive them. A server that runs has passed both."""
    text = state.env.get(DEVICES)
    if text is None or state.resolved or state.device not in ("cuda", "hip"):
        return
    names = [part.strip() for part in text.split(",")]
    shown = names.index("-1") if "-1" in names else len([name for name in names if name])
    if shown < per_node:
        raise InputError(
            DEVICES, text, f"shows {shown} GPUs, and this server takes {per_node} a node: name as many, or leave it out"
        )
    if unreadable_devices(state) and not state.within("0.4.4.post3") and _has_custom(state):
        raise InputError(
            DEVICES,
            text,
            f"SGLang {state.sglang} does not start with names of GPUs: give numbers, or --disable-custom-all-reduce",
        )


def _has_custom(state: State) -> bool:
    one_node = state.number("nnodes") == 1
    return one_node and state.number("tp_size") in (2, 4, 6, 8) and not state.get("disable_custom_all_reduce", False)
