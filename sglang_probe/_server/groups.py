"""The process groups of a server: their ranks, which communicators each is built with, which are captured. Called by launch.py.

OWNS and CAPTURED are tables of changes. Read from distributed/parallel_state.py and layers/dp_attention.py of every release.
Invariant: a fact that only a running machine could tell is marked as assumed, with a sentence that says what was assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import _core
from .._facts import DTYPES, check_dtype
from .._route import OF_SERVER
from .._types import Fusion, Group
from .defaults import FIRST, Changes
from .environment import environment_facts
from .refused import unreadable_devices
from .state import State


@dataclass(frozen=True)
class _Own:
    """How a group is built; None is the server's flag, "sync" and "symm" stand for conditions of pynccl alone."""

    custom: bool | None = None
    mscclpp: bool | None = None
    torch_symm_mem: bool | None = None
    pynccl: str = "flag"


_FLAGS = _Own()
_ATTENTION = _Own(custom=False, mscclpp=False, torch_symm_mem=False, pynccl="off")
_EXPERTS = _Own(custom=False, pynccl="off")
OWNS: dict[str, Changes] = {
    "tp": ((FIRST, _FLAGS),),
    "pp": ((FIRST, _Own(custom=False)),),
    "attn_tp": (
        (FIRST, _ATTENTION),
        ("0.4.2", _Own(False, False, False, "sync")),
        ("0.5.11", _Own(False, False, False, "sync or symm")),
        ("0.5.17", _Own(False, None, False, "sync or symm")),
        ("0.5.22", _Own(None, None, False, "sync or symm")),
    ),
    "moe_ep": (("0.4.10", _Own(custom=False)), ("0.5.2rc2", _FLAGS), ("0.5.11", _EXPERTS)),
    "moe_tp": (("0.4.10", _Own(custom=False)), ("0.5.2rc2", _FLAGS), ("0.5.11", _EXPERTS)),
    "attn_cp": (("0.5.9", _FLAGS),),
    "moe_dp": (("0.5.9", _FLAGS),),
    "dcp": (("0.5.15", _FLAGS),),
}
# The first release whose graph_capture() enters the group; tp and pp always.
CAPTURED = {"tp": FIRST, "pp": FIRST, "moe_ep": "0.5.10rc0", "moe_tp": "0.5.10", "dcp": "0.5.15", "attn_tp": "0.5.17"}

# From when a kind that spans the tensor-parallel group is that very group; before, it is a group of its own.
SHARED = {"attn_tp": "0.5.9", "attn_cp": "0.5.9", "moe_dp": "0.5.9", "moe_ep": "0.5.2rc2", "moe_tp": "0.5.2rc2"}
_ALWAYS = frozenset({"tp", "attn_tp", "moe_ep", "moe_tp"})


def group_ranks(state: State) -> dict[str, range]:
    """The ranks of the first group of each kind that the release has; of the rarer kinds only where they have several ranks."""
    tp = state.number("tp_size")
    attention, context = state.attn_tp_size, state.number("attn_cp_size")
    ep = max(1, min(state.number("ep_size"), tp))
    moe_dp = state.number("moe_dp_size")
    moe_tp = max(1, tp // (ep * moe_dp))
    kinds = {
        "tp": range(tp),
        "attn_tp": range(attention),
        "attn_cp": range(0, attention * context, attention),
        "moe_ep": range(0, ep * moe_tp, moe_tp),
        "moe_tp": range(moe_tp),
        "moe_dp": range(0, tp, moe_tp * ep) if moe_dp > 1 else range(1),
        "dcp": range(state.number("dcp_size")),
        "pp": range(0, tp * state.number("pp_size"), tp),
    }
    there = {name: ranks for name, ranks in kinds.items() if state.within(OWNS[name][0][0])}
    return {name: ranks for name, ranks in there.items() if name in _ALWAYS or len(ranks) > 1}


def build_groups(state: State, fusion: Fusion, piecewise: bool, decode_rows: int) -> dict[str, Group]:
    """Groups by kind. Where SGLang uses the tensor-parallel group for another kind, so does this."""
    ranks = group_ranks(state)
    common = _common(state, piecewise, decode_rows)
    tp = _group(state, "tp", ranks["tp"], common, fusion)
    groups = {"tp": tp}
    for name, members in ranks.items():
        if name == "tp":
            continue
        shared = name in SHARED and state.within(SHARED[name]) and len(members) == len(ranks["tp"])
        groups[name] = tp if shared else _group(state, name, members, common, fusion)
    return groups


def _common(state: State, piecewise: bool, decode_rows: int) -> Group:
    """What all groups of a server share: the machine, the flags, the environment."""
    gpu = state.gpu
    flags = {name: int(bool(state.get(flag, False))) for name, flag in _FACT_FLAGS.items()}
    group = Group().with_facts("given", OF_SERVER, **flags, piecewise_server=piecewise, decode_rows=decode_rows)
    group = group.with_facts("given", gpu.name, device=_core.DEVICES.index(state.device), arch=gpu.arch)
    return environment_facts(state, group)


_FACT_FLAGS = {
    "symm_mem": "enable_symm_mem",
    "pdmux": "enable_pdmux",
    "p2p_check": "enable_p2p_check",
    "deterministic": "enable_deterministic_inference",
}


def _group(state: State, name: str, ranks: range, common: Group, fusion: Fusion) -> Group:
    size = len(ranks)
    per_node = max(1, state.number("tp_size") * state.number("pp_size") // max(1, state.number("nnodes")))
    nodes = len({rank // per_node for rank in ranks})
    group = Group(name, common.facts).with_facts(
        "given",
        OF_SERVER,
        world_size=size,
        nodes=nodes,
        consecutive=ranks.step == 1 or size == 1,
        captured=name in CAPTURED and state.within(CAPTURED[name]),
        tp_group=name == "tp",
        **_owned(state, name),
        **_workspace(state, name, fusion),
    )
    if unreadable_devices(state):
        group = group.with_facts("given", "CUDA_VISIBLE_DEVICES", device_ids_ok=0)
    return _machine(state, group, nodes)


def _owned(state: State, name: str) -> dict[str, int]:
    own: _Own = state.at(OWNS[name])
    custom = not state.get("disable_custom_all_reduce", False) if own.custom is None else own.custom
    mscclpp = bool(state.get("enable_mscclpp", False)) if own.mscclpp is None else own.mscclpp
    symm = bool(state.get("enable_torch_symm_mem", False)) if own.torch_symm_mem is None else own.torch_symm_mem
    pynccl = {
        "flag": not (state.within("0.5.8") and state.get("elastic_ep_backend") == "mooncake"),
        "off": False,
        "sync": state.flag("SYNC_TOKEN_IDS_ACROSS_TP"),
        "sync or symm": state.flag("SYNC_TOKEN_IDS_ACROSS_TP") or bool(state.get("enable_symm_mem", False)),
    }[own.pynccl]
    asked = state.within("0.5.21") and state.flag("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE")
    pcie = name == "tp" and asked and not state.get("enable_deterministic_inference", False)
    return {
        "own_custom": int(custom),
        "own_mscclpp": int(mscclpp),
        "own_torch_symm_mem": int(symm),
        "own_pynccl": int(pynccl),
        "own_pcie_ipc": int(pcie),
    }


def _workspace(state: State, name: str, fusion: Fusion) -> dict[str, int]:
    """FlashInfer's workspace for all-reduce alone: from v0.5.18, for the experts' and the attention's group. With plain TP both are TP."""
    if not state.within("0.5.18") or not fusion.enabled or fusion.backend in ("aiter", "cutedsl"):
        return {"fi_workspace": 0}
    sizes = {kind: len(ranks) for kind, ranks in group_ranks(state).items()}
    experts = "moe_ep" if sizes["moe_ep"] > 1 else "moe_tp"
    holders = {experts, "attn_tp"} | ({"tp"} if sizes["tp"] in (sizes[experts], sizes["attn_tp"]) else set())
    facts = {"fi_workspace": int(name in holders), "fi_backend": int(fusion.backend == "mnnvl")}
    if state.model is not None:
        facts |= {"fi_hidden": state.model.hidden, "fi_dtype": DTYPES[check_dtype(dtype_of(state))]}
    return facts


def dtype_of(state: State) -> str:
    """The dtype of activations: --dtype, else the model's."""
    named = str(state.get("dtype", "auto"))
    return named if named != "auto" or state.model is None else state.model.dtype


def _machine(state: State, group: Group, nodes: int) -> Group:
    """Facts of the machine that arguments do not say: assumed from the GPU's kind and link."""
    gpu = state.gpu
    linked = state.link in ("nvlink", "xgmi")
    facts = {
        "full_nvlink": int(linked and (nodes == 1 or gpu.fabric)),
        "multicast": int(gpu.multicast and state.link == "nvlink"),
        "p2p": int(linked or gpu.peer),
        "fabric_clique": int(gpu.fabric and nodes > 1),
        "has_mscclpp": group.value("own_mscclpp"),
        "has_flashinfer_pcie": group.value("own_pcie_ipc"),
        "has_aiter": int(gpu.device == "hip"),
    }
    unknown = {name: value for name, value in facts.items() if name not in group.facts or group.facts[name].origin == "assumed"}
    group = group.with_facts("assumed", f"{gpu.name}, {state.link}", **unknown)
    return group.with_facts("given", f"link {state.link}", full_nvlink=facts["full_nvlink"]) if state.link_known else group


def assumptions(state: State, groups: dict[str, Group]) -> list[str]:
    """One sentence for each thing about the machine that was assumed for the tensor-parallel group."""
    tp = groups["tp"]
    if tp.world_size == 1:
        return []
    gpu, link = state.gpu.name, state.link
    said = {
        "full_nvlink": f"links: every pair of GPUs assumed {'linked' if tp.value('full_nvlink') else 'not linked'} directly ({link})",
        "multicast": f"multicast: assumed {'available' if tp.value('multicast') else 'not available'} on {gpu} over {link}",
        "p2p": f"peer access: assumed to {'work' if tp.value('p2p') else 'be missing'} between the GPUs ({gpu}, {link})",
        "fabric_clique": "fabric: all GPUs of the group are assumed to be in one NVLink clique across nodes",
        "has_mscclpp": "mscclpp: its packages are assumed to import",
        "has_flashinfer_pcie": "FlashInfer: assumed to have pcie_ipc_comm",
        "has_aiter": "aiter: assumed to import",
    }
    shown = ["full_nvlink", "multicast", "p2p"]
    shown += [name for name in ("fabric_clique", "has_mscclpp", "has_flashinfer_pcie", "has_aiter") if tp.value(name)]
    return [said[name] for name in shown if name not in tp.facts or tp.facts[name].origin == "assumed"]
