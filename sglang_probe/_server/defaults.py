"""SGLang's flags and the defaults of its server arguments, release by release. Called by the launch, log and URL readers and by conform.

FIELDS holds what can change a route, as changes: (first release with this default, default). flags.txt holds the names of all flags.
Invariant: a default is what the release's own ServerArgs declares, before any implied setting.
"""

from __future__ import annotations

import functools
import pathlib
from dataclasses import dataclass
from typing import Any, Final

from .._versions import version_key


class _Absent:
    """Marks a release that has no such argument."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = _Absent()
FIRST = "0.4.1.post7"
"""The first release that has a dispatch of its own."""

Changes = tuple[tuple[str, Any], ...]


def _since(release: str, default: Any = None, *more: tuple[str, Any]) -> Changes:
    return ((release, default), *more)


# fmt: off
FIELDS: dict[str, Changes] = {
    # parallelism
    "tp_size": _since(FIRST, 1),
    "pp_size": _since("0.4.6.post2", 1),
    "dp_size": _since(FIRST, 1),
    "attn_dp_size": _since("0.5.22", 1),
    "ep_size": _since(FIRST, 1),
    "attn_cp_size": _since("0.5.9", 1),
    "moe_dp_size": _since("0.5.9", 1),
    "dcp_size": _since("0.5.15", 1),
    "dwdp_size": _since("0.5.17", 1),
    "moe_dense_tp_size": _since("0.4.5.post2"),
    "nnodes": _since(FIRST, 1),
    "enable_dp_attention": _since(FIRST, False),
    "enable_dp_lm_head": _since("0.4.6.post4", False),
    "enable_prefill_cp": _since("0.5.14", False),
    # experts
    "enable_ep_moe": _since(FIRST, False, ("0.5.3rc2", ABSENT)),
    "enable_deepep_moe": _since("0.4.4.post2", False, ("0.5.3rc2", ABSENT)),
    "moe_a2a_backend": _since("0.4.10.post2", None, ("0.5.1", "none")),
    "deepep_mode": _since("0.4.4.post4", "auto"),
    "elastic_ep_backend": _since("0.5.3.post2"),
    "enable_two_batch_overlap": _since("0.4.7", False),
    "enable_eplb": _since("0.4.6.post5", False),
    "expert_distribution_recorder_mode": _since("0.4.6.post5"),
    # all-reduce
    "disable_custom_all_reduce": _since(FIRST, False),
    "enable_mscclpp": _since("0.4.7", False),
    "enable_torch_symm_mem": _since("0.5.3rc2", False),
    "enable_symm_mem": _since("0.4.10.post2", False),
    "enable_nccl_nvls": _since("0.4.3", False),
    "enable_p2p_check": _since(FIRST, False),
    "enable_deterministic_inference": _since("0.5.3rc2", False),
    "rl_on_policy_target": _since("0.5.4.post1"),
    "enable_pdmux": _since("0.4.9.post3", False),
    "enable_quant_communications": _since("0.5.11", False),
    # fusion
    "enable_flashinfer_allreduce_fusion": _since("0.4.9", False),
    "flashinfer_allreduce_fusion_backend": _since("0.5.14"),
    "enforce_disable_flashinfer_allreduce_fusion": _since("0.5.10", False),
    "enable_aiter_allreduce_fusion": _since("0.5.10rc0", False),
    "enable_attn_tp_input_scattered": _since("0.5.5.post3", False),
    "boundary_reduction": _since("0.5.21", "auto"),
    "enable_layernorm_sp": _since("0.5.19", False),
    # CUDA graphs
    "enable_torch_compile": _since(FIRST, False),
    "torch_compile_max_bs": _since(FIRST, 32),
    "disable_cuda_graph": _since(FIRST, False),
    "disable_cuda_graph_padding": _since(FIRST, False),
    "debug_cuda_graph": _since("0.5.11", False),
    "cuda_graph_bs": _since(FIRST, None, ("0.5.14", ABSENT)),
    "cuda_graph_max_bs": _since(FIRST, None, ("0.5.14", ABSENT)),
    "cuda_graph_config": _since("0.5.14"),
    "cuda_graph_backend_decode": _since("0.5.14"),
    "cuda_graph_backend_prefill": _since("0.5.14"),
    "cuda_graph_bs_decode": _since("0.5.14"),
    "cuda_graph_bs_prefill": _since("0.5.14"),
    "cuda_graph_max_bs_decode": _since("0.5.14"),
    "cuda_graph_max_bs_prefill": _since("0.5.14"),
    "disable_decode_cuda_graph": _since("0.5.14", False),
    "disable_prefill_cuda_graph": _since("0.5.14", False),
    "enable_piecewise_cuda_graph": _since("0.5.3.post2", False, ("0.5.10rc0", ABSENT)),
    "disable_piecewise_cuda_graph": _since("0.5.10rc0", False, ("0.5.14", ABSENT)),
    "enforce_piecewise_cuda_graph": _since("0.5.10rc0", False, ("0.5.14", ABSENT)),
    "enable_breakable_cuda_graph": _since("0.5.11", False, ("0.5.14", ABSENT)),
    "piecewise_cuda_graph_max_tokens": _since("0.5.3.post2", 4096, ("0.5.7", None), ("0.5.14", ABSENT)),
    "piecewise_cuda_graph_tokens": _since("0.5.3.post2", None, ("0.5.14", ABSENT)),
    # speculation
    "speculative_algorithm": _since(FIRST),
    "speculative_num_steps": _since(FIRST, 5, ("0.4.4.post4", None)),
    "speculative_eagle_topk": _since(FIRST, 8, ("0.4.3.post3", 4), ("0.4.4.post4", None)),
    "speculative_num_draft_tokens": _since(FIRST, 64, ("0.4.3.post3", 8), ("0.4.4.post4", None)),
    "speculative_draft_model_path": _since(FIRST),
    "speculative_ngram_max_match_window_size": _since("0.5.3rc2", 12, ("0.5.10", ABSENT)),
    "speculative_ngram_max_bfs_breadth": _since("0.5.3rc2", 10),
    "speculative_dflash_block_size": _since("0.5.11"),
    "speculative_adaptive": _since("0.5.11", False),
    # model and scheduling
    "dtype": _since(FIRST, "auto"),
    "quantization": _since(FIRST),
    "load_format": _since(FIRST, "auto"),
    "device": _since(FIRST, "cuda", ("0.4.4.post2", None)),
    "attention_backend": _since(FIRST),
    "decode_attention_backend": _since("0.4.9.post5"),
    "prefill_attention_backend": _since("0.4.9.post5"),
    "chunked_prefill_size": _since(FIRST),
    "max_running_requests": _since(FIRST),
    "page_size": _since("0.4.4", 1, ("0.4.9.post4", None)),
    "enable_lora": _since("0.4.9.post3"),
    "lora_paths": _since(FIRST),
    "disaggregation_mode": _since("0.4.4.post2", "null"),
    "dllm_algorithm": _since("0.5.6"),
    "cpu_offload_gb": _since(FIRST, 0),
    "enable_hierarchical_cache": _since("0.4.2.post1", False),
    "enable_multimodal": _since("0.4.6"),
    "debug_tensor_dump_output_folder": _since("0.4.3.post3"),
    "msprobe_dump_config": _since("0.5.11"),
}
# fmt: on


def at(changes: Changes, sglang: str) -> Any:
    """The value that a table of changes has at a release; ABSENT before its first line."""
    key, value = version_key(sglang), ABSENT
    for since, changed in changes:
        if version_key(since) > key:
            break
        value = changed
    return value


def grown(*additions: tuple[str, str]) -> Changes:
    """Changes of a set of names that only grows (but for names with a minus): each line adds to the one before."""
    names: frozenset[str] = frozenset()
    lines = []
    for since, added in additions:
        words = added.split()
        names = (names | {word for word in words if word[0] != "-"}) - {word[1:] for word in words if word[0] == "-"}
        lines.append((since, names))
    return tuple(lines)


@functools.cache
def _defaults(sglang: str) -> tuple[tuple[str, Any], ...]:
    found = ((name, at(changes, sglang)) for name, changes in FIELDS.items())
    return tuple((name, value) for name, value in found if value is not ABSENT)


def defaults(sglang: str) -> dict[str, object]:
    """Defaults of the arguments that we read, for a release; an argument that it has not is not in the result."""
    return dict(_defaults(sglang))


@dataclass(frozen=True)
class Flag:
    """A flag of a release: its spelling, the argument that it sets, and what it takes (the kinds stand at the top of flags.txt)."""

    name: str
    dest: str
    kind: str


@functools.cache
def _flag_rows() -> tuple[tuple[Flag, str, str], ...]:
    text = pathlib.Path(__file__).with_name("flags.txt").read_text(encoding="ascii")
    rows = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return tuple((Flag(name, dest, kind), since, until) for name, dest, kind, since, until in rows)


@functools.cache
def flags(sglang: str) -> tuple[Flag, ...]:
    """Every flag of a release, whether it matters to a route or not."""
    key = version_key(sglang)
    return tuple(
        flag for flag, since, until in _flag_rows() if version_key(since) <= key and (until == "-" or key < version_key(until))
    )
