"""Which all-reduces never reach the dispatch, because a kernel fuses them with residual and norm. Called by step.

Whether a server fuses at all is the launch reader's answer (``Server.fusion``); here: which call sites, up to how many tokens, in
which release and model. Read from layers/communicator.py (to v0.5.20), layers/layer_boundary (from v0.5.21), layers/layernorm.py
and the models. Invariant: the embedding's call and the last layer's MLP are never fused, in any release.
"""

from __future__ import annotations

from dataclasses import dataclass

from .._types import Call, Model, Server
from .._versions import at_least
from .calls import ARCHITECTURES, ATTENTION, MLP, MOE, is_deepseek_family, setting

# (first release, most tokens on the attention side, on the MLP side), of FlashInfer's fusion. Newest first.
_LIMITS = (
    ("0.5.5.post2", 2048, 2048),
    ("0.5.2rc2", 4096, 2048),
    ("0.5.1", 2048, 2048),
    ("0.5.0rc1", 2048, 128),
    ("0.4.9.post2", 128, 128),
    ("0.4.9.post1", 128, 0),
    ("0.4.9", 1024, 0),
)
_ATTENTION_SITES = frozenset({ATTENTION})
_MLP_SITES = frozenset({MLP, MOE})

# AMD's aiter (v0.5.10rc0 on): bytes (strictly fewer in the first three releases), columns, and a world size that it never takes.
_AITER_BYTES, _AITER_COLUMNS, _AITER_NOT_WORLD = 64 << 20, 16384, 6


@dataclass(frozen=True)
class Fused:
    """A forward's calls, parted by fusion."""

    left: tuple[Call, ...]
    taken: tuple[Call, ...] = ()
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return sum(call.count for call in self.taken)


def token_limits(sglang: str) -> tuple[int, int]:
    """The most tokens that FlashInfer's fusion takes on the attention side and on the MLP side; 0 where that side has none."""
    for release, attention, mlp in _LIMITS:
        if at_least(sglang, release):
            return attention, mlp
    return 0, 0


def fusable_sites(model: Model, sglang: str) -> frozenset[str]:
    """The call sites of this model that a fused kernel can take in this release, whatever the server's flags."""
    row = ARCHITECTURES.get(model.arch)
    if row is None:
        return frozenset()
    if at_least(sglang, row.boundary):
        return _ATTENTION_SITES | _MLP_SITES
    sites: frozenset[str] = frozenset()
    if row.attention and at_least(sglang, row.attention):
        sites |= _ATTENTION_SITES
    if row.mlp and at_least(sglang, row.mlp):
        sites |= _MLP_SITES
    return sites


def fuse_calls(calls: tuple[Call, ...], model: Model, server: Server, sglang: str) -> Fused:
    """Part the calls of one target forward into those that reach the dispatch and those that a fused kernel takes away."""
    if not calls:
        return Fused(())
    if not server.fusion.enabled:
        return Fused(calls, notes=_notes_without(server, sglang))
    if model.arch not in ARCHITECTURES:
        text = f"fusion is on, but whether {model.arch} asks for it was not checked: no call is counted as fused, assumed"
        return Fused(calls, notes=(text,), assumed=(text,))
    aiter = server.fusion.backend == "aiter"
    takes = _aiter_takes if aiter else _flashinfer_takes
    taken = tuple(call for call in calls if takes(call, model, server, sglang))
    left = tuple(call for call in calls if call not in taken)
    if not taken:
        # From v0.5.18 on these calls may go through FlashInfer's workspace all the same: that it is there stays assumed.
        return Fused(left, (), _notes_none(model, sglang), server.fusion.assumed)
    return Fused(left, taken, _notes_with(taken, model, server, sglang), server.fusion.assumed)


def _flashinfer_takes(call: Call, model: Model, server: Server, sglang: str) -> bool:
    attention, mlp = token_limits(sglang)
    # The launch reader may know better (a log's value); 0 means that it does not say.
    attention = server.fusion.max_tokens or attention
    mlp = server.fusion.max_tokens_mlp or mlp
    if call.site not in fusable_sites(model, sglang):
        return False
    if call.site in _ATTENTION_SITES:
        return 0 < call.tokens <= attention
    # From v0.5.18 two groups for one sum are left alone; from v0.5.21 they merge into one.
    split = call.group in ("moe_ep", "moe_tp") and at_least(sglang, "0.5.18")
    return 0 < call.tokens <= mlp and not split


def _aiter_takes(call: Call, model: Model, server: Server, sglang: str) -> bool:
    if call.site not in fusable_sites(model, sglang) or not at_least(sglang, "0.5.10rc0"):
        return False
    group = server.groups["tp"]
    most = _AITER_BYTES if at_least(sglang, "0.5.11") else _AITER_BYTES - 1
    if call.nbytes > most or call.hidden > _AITER_COLUMNS or group.world_size == _AITER_NOT_WORLD:
        return False
    # Without custom all-reduce the fused op gives nothing back, and SGLang reduces before it normalises.
    return group.value("own_custom") == 1


def _notes_without(server: Server, sglang: str) -> tuple[str, ...]:
    asked = setting(server, "enable_flashinfer_allreduce_fusion", default=False)
    if asked and at_least(sglang, "0.5.1") and not at_least(sglang, "0.5.8"):
        return (
            "the fusion flag is on though fusion cannot run here: in v0.5.1 to v0.5.7 the MLP side does not look at the GPU and hands "
            "its sum to FlashInfer all the same (by reading); counted as not fused",
        )
    return ()


def _notes_none(model: Model, sglang: str) -> tuple[str, ...]:
    if fusable_sites(model, sglang):
        return ("fusion is on, but these calls are too large for it",)
    return (f"fusion is on, but {model.arch} does not ask for it in {sglang}: its calls all reach the dispatch",)


def _notes_with(taken: tuple[Call, ...], model: Model, server: Server, sglang: str) -> tuple[str, ...]:
    notes = []
    if any(call.group == "moe_ep" for call in taken):
        notes.append("experts over two groups: to v0.5.17 the fused op sums over the first of the two alone (by reading)")
    if server.fusion.backend == "cutedsl":
        notes.append("fusion backend cutedsl: which layers it takes was not read; counted as the other backends, assumed")
    elif server.fusion.backend != "aiter" and not at_least(sglang, "0.5.21"):
        notes.append(
            "fused calls rest on FlashInfer's workspace being there: to v0.5.20, where the fused op gives nothing back, the layer "
            "normalises without any reduction (by reading; v0.5.21 reduces first)"
        )
    if taken[0].tokens > 2048 and server.fusion.backend != "aiter":
        notes.append("more tokens than the 2048 of the fused op's workspace: what FlashInfer does then was not traced")
    eagle3 = (server.speculative_algorithm or "").upper() == "EAGLE3"
    if eagle3 and is_deepseek_family(model) and not at_least(sglang, "0.5.14"):
        notes.append(
            "EAGLE-3 with fused calls: to v0.5.13 the hidden states for the draft are taken before the deferred MLP sum is done, so "
            "each rank hands its own partial sum on (by reading; v0.5.14 takes them afterwards)"
        )
    return tuple(notes)
