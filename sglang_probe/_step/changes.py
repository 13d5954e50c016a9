"""One change away: the single facts and flags that would bring a path which SGLang asks for earlier. Called by render.

Every row of CHANGES is tried by routing the very call again, so what is printed is what the rules and gates answer, not advice.
Invariant: "earlier" is the order in which SGLang asks; it says nothing about speed. A change that raises or loses the result is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from .._decision import Decision
from .._facts import check_dtype, fact_value
from .._releases import Release, resolve
from .._route import context_bits, route
from .._types import Call, Group, InputError, Path
from .calls import MOE
from .tags import reads_tags

# (fact, value, what a person would do or have). The order is that of printing.
_CHANGES: tuple[tuple[str, int, str], ...] = (
    ("own_custom", 1, "with custom all-reduce in the group (no --disable-custom-all-reduce)"),
    ("full_nvlink", 1, "on GPUs that are all linked by NVLink (another machine)"),
    ("p2p", 1, "with peer access between the GPUs"),
    ("nodes", 1, "with all ranks of the group on one node"),
    ("consecutive", 1, "with ranks that are consecutive"),
    ("own_torch_symm_mem", 1, "with --enable-torch-symm-mem"),
    ("multicast", 1, "with multicast (NVSwitch)"),
    ("symm_mem", 1, "with --enable-symm-mem"),
    ("own_mscclpp", 1, "with --enable-mscclpp"),
    ("has_mscclpp", 1, "with the mscclpp package installed"),
    ("own_pcie_ipc", 1, "with FlashInfer's PCIe-IPC all-reduce asked for"),
    ("has_flashinfer_pcie", 1, "with a FlashInfer that has pcie_ipc_comm"),
    ("fi_workspace", 1, "with a FlashInfer all-reduce workspace"),
    ("own_pynccl", 1, "with pynccl in the group"),
    ("has_nccl", 1, "with a libnccl that loads"),
    ("pdmux", 1, "with --enable-pdmux"),
    ("deterministic", 0, "without --enable-deterministic-inference"),
    ("memory_saver_graph", 0, "without SGLANG_MEMORY_SAVER_CUDA_GRAPH"),
    ("custom_v2", 1, "with SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2=1 (SGLANG_USE_JIT_ALL_REDUCE before v0.5.12)"),
    ("custom_v2", 0, "with SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2=0 (SGLANG_USE_JIT_ALL_REDUCE before v0.5.12)"),
    ("v2_multinode", 1, "with SGLANG_ENABLE_CUSTOM_ALL_REDUCE_V2_MULTINODE=1"),
    ("qr_quantization", 1, "with ROCM_QUICK_REDUCE_QUANTIZATION=FP"),
    ("rccl_msccl", 0, "with RCCL_MSCCL_ENABLE=0"),
    ("use_aiter", 0, "with SGLANG_USE_AITER_AR=0"),
    ("cpu_amx", 1, "on a CPU with AMX"),
)
_WORLD_SIZES = (8, 6, 4, 2)


@dataclass(frozen=True)
class Change:
    """What would be different, and the path that it brings."""

    what: str
    path: Path
    rule: str

    def __str__(self) -> str:
        return f"{self.what}: {self.path}"


def earlier_by_one_change(
    decision: Decision, call: Call, group: Group, *, context: str | Iterable[str], sglang: str | Release
) -> tuple[Change, ...]:
    """Single changes of a fact, of the context or of the call that bring another path by a rule that is asked earlier."""
    release = resolve(sglang)
    found: dict[str, Change] = {}
    for what, other_call, other_group, other_context in _variants(call, group, context, release):
        try:
            other = route(other_call, other_group, context=other_context, sglang=release)
        except InputError:  # a fact that contradicts another one of this group
            continue
        better = other.rule in decision.blocked_by or decision.path is Path.RAISES
        if better and other.path not in (decision.path, Path.RAISES, Path.NONE) and other.reduces:
            found.setdefault(what, Change(what, other.path, other.rule))
    return tuple(found.values())


def _variants(
    call: Call, group: Group, context: str | Iterable[str], release: Release
) -> Iterator[tuple[str, Call, Group, str | Iterable[str]]]:
    if context_bits(context) == 0:
        yield "captured into a CUDA graph instead of eager", call, group, "capture"
    if reads_tags(release.name) and not call.registered and not call.site.startswith(MOE):
        where = "" if call.site else ", for a tensor that SGLang tags (embedding, attention and MLP outputs)"
        yield f"with --enable-symm-mem{where}", replace(call, registered=True), group, context
    for fact, value, what in _CHANGES:
        if fact_value(group, fact) != value:
            yield what, call, group.with_facts("given", "", **{fact: value}), context
    fewer = [size for size in _WORLD_SIZES if size < group.world_size]
    for size in fewer:
        smaller = group.with_facts(world_size=size)
        if fact_value(group, "nodes") <= size:
            yield f"with a group of {size} ranks", call, smaller, context
    if check_dtype(call.dtype) != "bf16":
        yield "with bf16 tensors (of the same bytes)", replace(call, dtype="bf16"), group, context
    if call.nbytes % 16:
        yield "with bytes that are a multiple of 16", replace(call, nbytes=call.nbytes + 16 - call.nbytes % 16), group, context
    if not call.contiguous:
        yield "with a contiguous tensor", replace(call, contiguous=True, weak_contiguous=True), group, context
