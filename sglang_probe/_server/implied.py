"""What SGLang makes of its arguments before it builds anything: its own settings that follow from others. Called by launch.py.

RULES is a table: from which release, to before which, when, what is set, why. Order is SGLang's own.
Invariant: a rule never touches arguments that a running server already resolved (a log, /server_info): those are as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from .._versions import version_key
from .defaults import FIRST, at, grown
from .state import Rule, State


def _tp(state: State) -> int:
    return state.number("tp_size")


def _draft_of_steps(state: State) -> int:
    return state.number("speculative_num_steps") + 1


# Experts over these all-to-all backends span the whole tensor-parallel group.
_A2A_SPANS = grown(
    ("0.4.10.post2", "deepep"),
    ("0.5.3.post2", "mooncake"),
    ("0.5.6", "ascend_fuseep"),
    ("0.5.9", "flashinfer mori"),
    ("0.5.10rc0", "nixl"),
    ("0.5.12", "megamoe"),
    ("0.5.17", "pplx"),
    ("0.5.19", "deepep_v2"),
    ("0.5.20", "flashinfer_megamoe"),
)

# (steps, top-k, draft tokens) where --speculative-num-steps is not given.
_WIDE, _NARROW = (5, 4, 8), (3, 1, 4)
_NARROW_ARCHS = grown(
    ("0.4.4.post4", ""),
    ("0.4.7", "DeepseekV3ForCausalLM DeepseekV2ForCausalLM"),
    ("0.5.1", "GptOssForCausalLM"),
    ("0.5.3rc0", "BailingMoeForCausalLM BailingMoeV2ForCausalLM"),
    ("0.5.3rc2", "DeepseekV32ForCausalLM"),
    ("0.5.6.post1", "Glm4MoeForCausalLM MistralLarge3ForCausalLM PixtralForConditionalGeneration"),
    ("0.5.7", "MiMoV2FlashForCausalLM"),
)
_ALWAYS_WIDE = frozenset({"LlamaForCausalLM", "Grok1ForCausalLM", "Grok1VForCausalLM"})


def speculative_defaults(sglang: str, arch: str, algorithm: str) -> tuple[int, int, int]:
    """(steps, top-k, draft tokens) that a release picks for EAGLE and its kin. From v0.5.8 all but Llama and Grok are narrow."""
    key = version_key(sglang)
    if algorithm == "STANDALONE" and key >= version_key("0.5.2"):
        return _NARROW
    if key >= version_key("0.5.8"):
        return _WIDE if arch in _ALWAYS_WIDE else _NARROW
    return _NARROW if arch in at(_NARROW_ARCHS, sglang) else _WIDE


_EAGLE = frozenset({"EAGLE", "EAGLE3", "STANDALONE"})
_ONE_STEP = frozenset({"DFLASH", "DSPARK"})
_SPECULATIVE_48 = _EAGLE | _ONE_STEP | {"NGRAM", "FROZEN_KV_MTP", "UNO"}


def _eagle(state: State) -> bool:
    return state.algorithm in _EAGLE


def _steps_open(state: State) -> bool:
    return _eagle(state) and state.get("speculative_num_steps") is None


def _defaults_of(index: int) -> Callable[[State], int]:
    return lambda state: speculative_defaults(state.sglang, state.arch, state.algorithm)[index]


_SPANS = "experts span the whole tensor-parallel group"
_DWDP = "distributed weight data parallelism is built on data-parallel attention"
_TREE = "deterministic inference over several ranks uses NCCL's tree"
_UNFUSED = "deterministic inference turns the fused all-reduce off"
_EXACT = "speculation in this release captures exact batch sizes only"

RULES: tuple[Rule, ...] = (
    # parallelism
    Rule(FIRST, "0.4.10", lambda s: s.get("enable_ep_moe"), {"ep_size": _tp}, _SPANS),
    Rule("0.4.10.post2", "0.5.3rc2", lambda s: s.get("enable_ep_moe"), {"ep_size": _tp}, _SPANS),
    Rule(
        "0.4.4.post2",
        "0.4.4.post3",
        lambda s: s.get("enable_deepep_moe") and s.get("enable_dp_attention"),
        {"ep_size": lambda s: s.number("dp_size")},
        "DeepEP spans the data-parallel ranks",
    ),
    Rule("0.4.4.post3", "0.4.10.post2", lambda s: s.get("enable_deepep_moe"), {"ep_size": _tp}, _SPANS),
    Rule(
        "0.4.10.post2",
        "0.5.3rc2",
        lambda s: s.get("enable_deepep_moe"),
        {"moe_a2a_backend": "deepep"},
        "--enable-deepep-moe is its old name",
    ),
    Rule(
        FIRST,
        "0.4.4.post1",
        lambda s: s.get("enable_dp_attention"),
        {"dp_size": _tp},
        "data-parallel attention has one group a rank in this release",
    ),
    Rule(
        "0.5.2",
        "0.5.22",
        lambda s: s.get("enable_dp_attention") and s.number("dp_size") == 1,
        {"enable_dp_attention": False},
        "one data-parallel group is none",
    ),
    Rule(
        "0.5.22",
        None,
        lambda s: s.get("enable_dp_attention") and s.number("attn_dp_size") == 1,
        {"attn_dp_size": lambda s: s.number("dp_size"), "dp_size": 1},
        "--enable-dp-attention is the old name of --attn-dp-size",
    ),
    Rule("0.5.22", None, lambda s: s.get("enable_dp_attention"), {"enable_dp_attention": False}, "replaced by attn_dp_size"),
    Rule(
        "0.5.17",
        "0.5.22",
        lambda s: s.number("dwdp_size") > 1,
        {
            "dp_size": lambda s: s.number("dwdp_size"),
            "enable_dp_attention": True,
            "ep_size": lambda s: s.number("dwdp_size"),
            "moe_dense_tp_size": 1,
        },
        _DWDP,
    ),
    Rule(
        "0.5.22",
        None,
        lambda s: s.number("dwdp_size") > 1,
        {
            "attn_dp_size": lambda s: s.number("dwdp_size"),
            "dp_size": 1,
            "ep_size": lambda s: s.number("dwdp_size"),
            "moe_dense_tp_size": 1,
        },
        _DWDP,
    ),
    Rule("0.4.10.post2", None, lambda s: s.a2a in s.at(_A2A_SPANS), {"ep_size": _tp}, _SPANS),
    # determinism
    Rule(
        "0.5.4.post1",
        None,
        lambda s: s.get("rl_on_policy_target") is not None,
        {"enable_deterministic_inference": True},
        "--rl-on-policy-target asks for deterministic inference",
    ),
    Rule(
        "0.5.3rc2",
        "0.5.7",
        lambda s: s.get("enable_deterministic_inference") and _tp(s) > 1,
        {"disable_custom_all_reduce": True},
        _TREE,
    ),
    Rule(
        "0.5.7",
        None,
        lambda s: s.get("enable_deterministic_inference") and _tp(s) > 1 and not s.hip,
        {"disable_custom_all_reduce": True},
        _TREE,
    ),
    Rule(
        "0.5.18",
        None,
        lambda s: s.get("enable_deterministic_inference") and _tp(s) > 1 and not s.hip,
        {"enable_torch_symm_mem": False},
        _TREE,
    ),
    Rule(
        "0.5.12",
        None,
        lambda s: s.get("enable_deterministic_inference"),
        {"enforce_disable_flashinfer_allreduce_fusion": True},
        _UNFUSED,
    ),
    Rule(
        "0.5.10rc0", None, lambda s: s.get("enable_deterministic_inference"), {"enable_aiter_allreduce_fusion": False}, _UNFUSED
    ),
    # communicators
    Rule(
        "0.5.17",
        "0.5.19",
        lambda s: s.arch.startswith("KimiK3") and not s.get("disable_cuda_graph"),
        {"enable_symm_mem": False},
        "Kimi-K3 with CUDA graphs runs without NCCL symmetric memory",
    ),
    Rule(
        "0.5.17",
        None,
        lambda s: s.arch.startswith("KimiK3") and s.number("dcp_size") > 1,
        {"enable_symm_mem": False},
        "Kimi-K3 with decode context parallelism runs without NCCL symmetric memory",
    ),
    Rule(
        "0.5.16",
        None,
        lambda s: (
            s.hip
            and s.arch.startswith("MiniMaxM3")
            and not s.get("enable_aiter_allreduce_fusion")
            and not s.flag("SGLANG_M3_ALLOW_CUSTOM_AR")
        ),
        {"disable_custom_all_reduce": True},
        "MiniMax-M3 on ROCm without aiter's fusion",
    ),
    Rule(
        "0.5.21",
        None,
        lambda s: s.hip and s.arch == "GlmMoeDsaForCausalLM" and s.attn_dp_size == 1 and s.number("nnodes") == 1,
        {"enable_aiter_allreduce_fusion": True},
        "on by default for this architecture on ROCm, one node",
    ),
    # speculation
    Rule(
        "0.5.12",
        None,
        lambda s: s.get("speculative_algorithm") is not None,
        {"speculative_algorithm": lambda s: s.algorithm},
        "in capitals",
    ),
    Rule(
        "0.4.3.post3",
        None,
        lambda s: s.algorithm == "NEXTN",
        {"speculative_algorithm": "EAGLE"},
        "NEXTN is another name of EAGLE",
    ),
    Rule(
        "0.4.3.post3",
        "0.4.4.post4",
        lambda s: s.algorithm in ("EAGLE", "EAGLE3") and s.get("max_running_requests") is None,
        {"max_running_requests": 32},
        "the default with speculation",
    ),
    Rule(
        "0.4.4.post4",
        None,
        lambda s: s.algorithm in _SPECULATIVE_48 and s.get("max_running_requests") is None,
        {"max_running_requests": 48},
        "the default with speculation",
    ),
    Rule(FIRST, "0.4.4.post2", lambda s: s.algorithm in ("EAGLE", "NEXTN"), {"disable_cuda_graph_padding": True}, _EXACT),
    Rule(
        "0.4.4.post4",
        None,
        _steps_open,
        {
            "speculative_eagle_topk": _defaults_of(1),
            "speculative_num_draft_tokens": _defaults_of(2),
            "speculative_num_steps": _defaults_of(0),
        },
        "the release's default for this architecture",
    ),
    Rule(
        "0.4.4.post4",
        "0.4.9",
        lambda s: _eagle(s) and s.number("page_size") > 1 and s.number("speculative_eagle_topk") > 1,
        {"speculative_eagle_topk": 1},
        "pages of several tokens take one candidate a step in this release",
    ),
    Rule(
        "0.4.5.post3",
        None,
        lambda s: _eagle(s) and s.number("speculative_eagle_topk", 0) == 1,
        {"speculative_num_draft_tokens": _draft_of_steps},
        "with top-k 1 a request has steps + 1 tokens",
    ),
    Rule(
        "0.5.3rc2",
        None,
        lambda s: s.algorithm == "NGRAM",
        {"speculative_eagle_topk": lambda s: s.number("speculative_ngram_max_bfs_breadth", 10)},
        "n-gram speculation takes its breadth for top-k",
    ),
    Rule(
        "0.5.3rc2",
        "0.5.10",
        lambda s: s.algorithm == "NGRAM" and s.get("speculative_num_draft_tokens") is None,
        {"speculative_num_draft_tokens": lambda s: s.number("speculative_ngram_max_match_window_size", 12)},
        "n-gram speculation takes its window",
    ),
    Rule(
        "0.5.10",
        None,
        lambda s: s.algorithm == "NGRAM" and s.get("speculative_num_draft_tokens") is None,
        {"speculative_num_draft_tokens": 12},
        "the default of n-gram speculation",
    ),
    Rule(
        "0.5.14",
        None,
        lambda s: s.algorithm == "NGRAM" and s.get("speculative_num_steps") is None,
        {
            "speculative_num_steps": lambda s: (
                s.number("speculative_num_draft_tokens", 12) // s.number("speculative_eagle_topk", 10)
            )
        },
        "draft tokens by breadth",
    ),
    Rule(
        "0.5.11",
        None,
        lambda s: s.algorithm in _ONE_STEP,
        {"speculative_num_steps": 1, "speculative_eagle_topk": 1},
        "one block a step",
    ),
    Rule(
        "0.5.11",
        None,
        lambda s: s.algorithm == "DFLASH" and s.get("speculative_dflash_block_size") is not None,
        {"speculative_num_draft_tokens": lambda s: s.number("speculative_dflash_block_size")},
        "the block is verified whole",
    ),
    Rule(
        "0.5.11",
        None,
        lambda s: s.algorithm == "DFLASH" and s.get("speculative_num_draft_tokens") is None,
        {"speculative_num_draft_tokens": 16},
        "the default where the draft's config.json names no block size",
    ),
)


def apply_rules(state: State) -> None:
    """Apply every rule of the release, in order. Arguments that a server already resolved stay."""
    if state.resolved:
        return
    for rule in RULES:
        if state.within(rule.since, rule.until) and rule.when(state):
            values = {name: value(state) if callable(value) else value for name, value in rule.effects.items()}
            for name, value in values.items():
                state.imply(name, value, rule.reason)


def note_environment(state: State) -> None:
    """Say which variables SGLang sets itself because of these arguments: they change what NCCL does, not the route."""
    if state.get("enable_symm_mem", False):
        state.notes.append("--enable-symm-mem: SGLang itself sets NCCL_CUMEM_ENABLE=1 and NCCL_NVLS_ENABLE=1")
    elif state.get("enable_nccl_nvls", False):
        state.notes.append("--enable-nccl-nvls: SGLang itself sets NCCL_NVLS_ENABLE=1 (NCCL's algorithm, not the route)")
    if state.get("enable_deterministic_inference", False) and state.number("tp_size") > 1 and not state.hip:
        state.notes.append("--enable-deterministic-inference: SGLang itself sets NCCL_ALGO=allreduce:tree")
