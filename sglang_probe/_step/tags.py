"""Which tensors SGLang tags as symmetric memory under --enable-symm-mem, before v0.5.4.post3 dropped the tags. Called by step.

In those releases the dispatch asks the tensor, not the server. Read from vocab_parallel_embedding.py, linear.py (RowParallelLinear),
fused_moe_triton/layer.py and the models. Invariant: a tag is an attribute of one tensor object, so a sum or a slice of it has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .._types import Call, Model, Server
from .._versions import at_least
from .calls import MOE, is_deepseek_family, setting

_FIRST, _UNTIL = "0.4.10.post2", "0.5.4.post3"
_SLICED = "0.5.0rc0"
"""From here FusedMoE hands on a slice of what it tagged; v0.5.2 dropped the tag there."""
_FROM_FUSED_MOE = ("Qwen3MoeForCausalLM", "Glm4MoeForCausalLM", "MixtralForCausalLM")
"""Models that reduce the very tensor that FusedMoE gives (or add to it in place); Qwen2's sum with the shared expert is a new one."""


def reads_tags(sglang: str) -> bool:
    """Whether a release decides by the tensor's tag."""
    return at_least(sglang, _FIRST) and not at_least(sglang, _UNTIL)


def tags_outputs(server: Server, sglang: str) -> bool:
    """Whether this server tags the outputs of its embedding and of row-parallel layers."""
    return reads_tags(sglang) and bool(setting(server, "enable_symm_mem", default=False))


def tag_calls(calls: Sequence[Call], model: Model, server: Server, sglang: str) -> tuple[tuple[Call, ...], tuple[str, ...]]:
    """The calls, each registered where SGLang tags its tensor, and a note about those that it does not."""
    if not tags_outputs(server, sglang):
        return tuple(calls), ()
    experts = tags_experts(model, server, sglang)
    tagged = tuple(replace(call, registered=experts or not call.site.startswith(MOE)) for call in calls)
    left = sum(call.count for call in tagged if not call.registered)
    if not left:
        return tagged, ()
    why = "its shared experts are fused into the others" if is_deepseek_family(model) else "what its experts give carries no tag"
    return tagged, (f"--enable-symm-mem: {left} MoE outputs are not tagged as symmetric memory in {sglang} ({why}; by reading)",)


def tags_experts(model: Model, server: Server, sglang: str) -> bool:
    """Whether the output of a layer of experts is tagged when it is reduced."""
    if is_deepseek_family(model):
        return not at_least(sglang, _SLICED) or not _fuses_shared_experts(model, server)
    if model.arch == "Glm4MoeForCausalLM" and at_least(sglang, "0.5.4.post2"):
        return True
    return model.arch in _FROM_FUSED_MOE and not at_least(sglang, _SLICED)


def _fuses_shared_experts(model: Model, server: Server) -> bool:
    """The shared expert is one more routed expert: then no sum with it is made, and none is tagged."""
    group = server.groups["tp"]
    return (
        model.arch == "DeepseekV3ForCausalLM"
        and model.experts == 256
        and model.config.get("n_shared_experts", 1) == 1
        and group.value("device") == 0
        and group.value("arch") >= 80
        and int(setting(server, "ep_size", default=1)) == 1
        and not setting(server, "disable_shared_experts_fusion", default=False)
        and setting(server, "quantization") != "w4afp8"
    )
