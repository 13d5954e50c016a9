"""Environment variables that change a route, as facts of a group. Called by groups.py and server.py.

VARIABLES is a table: variable, fact, how its text is read, from which release to before which.
Invariant: a variable that SGLang would refuse is an InputError; one that the release does not read is not a fact.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from .._types import Group, InputError
from .defaults import FIRST
from .refused import DEVICES, unreadable_devices
from .state import State

_TRUE = ("1", "true", "yes", "y", "t", "on")
_FALSE = ("0", "false", "no", "n", "f", "off", "")
_UNITS = {"": 1, "b": 1, "kb": 1 << 10, "k": 1 << 10, "mb": 1 << 20, "m": 1 << 20, "gb": 1 << 30, "g": 1 << 30}
_QUANTIZATION = {"NONE": 0, "FP": 1, "INT8": 2, "INT6": 3, "INT4": 4}
_STAGES = {"": 0, "1stage": 1, "oneshot": 1, "2stage": 2, "twoshot": 2}


def _boolean(text: str) -> int:
    lower = text.strip().lower()
    if lower in _TRUE:
        return 1
    if lower in _FALSE:
        return 0
    raise ValueError("give 1 or 0")


def _integer(text: str) -> int:
    number = int(text.strip())
    if not 0 <= number < 1 << 40:
        raise ValueError("give a whole number from 0")
    return number


def _bytes(text: str) -> int:
    lower = text.strip().lower()
    digits = lower.rstrip("bkmg")
    unit = lower[len(digits) :]
    if not digits.strip().isascii() or not digits.strip().isdigit() or unit not in _UNITS:
        raise ValueError("give a size such as 1MB")
    return min(int(digits) * _UNITS[unit], 1 << 40)


def _any_text(text: str) -> int:
    """Any text but the empty one is true, "0" too."""
    return int(bool(text))


def _choice(choices: dict[str, int]) -> Callable[[str], int]:
    def read(text: str) -> int:
        if text.strip() not in choices:
            raise ValueError(f"give one of {', '.join(name for name in choices if name)}")
        return choices[text.strip()]

    return read


@dataclass(frozen=True)
class Variable:
    name: str
    fact: str
    read: Callable[[str], int]
    since: str = FIRST
    until: str | None = None


VARIABLES: tuple[Variable, ...] = (
    Variable("USE_VLLM_CUSTOM_ALLREDUCE", "vllm_custom", _any_text, FIRST, "0.4.4"),
    Variable("USE_VLLM_CUSTOM_ALLREDUCE", "vllm_custom", _boolean, "0.4.4", "0.5.5"),
    Variable("RCCL_MSCCL_ENABLE", "rccl_msccl", _boolean, "0.4.3.post3", "0.4.6.post3"),
    Variable("SGLANG_MSCCLPP_MAX_BYTES", "mscclpp_max_bytes", _bytes, "0.4.7", "0.5.14"),
    Variable("ROCM_QUICK_REDUCE_QUANTIZATION", "qr_quantization", _choice(_QUANTIZATION), "0.4.9.post4"),
    Variable("ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB", "qr_max_mb", _integer, "0.4.9.post4"),
    Variable("ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16", "qr_cast_bf16", _boolean, "0.4.9.post4"),
    Variable("SGLANG_MEMORY_SAVER_CUDA_GRAPH", "memory_saver_graph", _boolean, "0.5.4.post2"),
    Variable("SGLANG_USE_AITER_AR", "use_aiter", _boolean, "0.5.5.post3"),
    Variable("SGLANG_ENABLE_DETERMINISTIC_INFERENCE", "deterministic", _boolean, "0.5.7"),
    Variable("SGLANG_USE_1STAGE_ALLREDUCE", "one_stage", _boolean, "0.5.7"),
    Variable("SGLANG_CUSTOM_ALLREDUCE_ALGO", "v1_algo", _choice(_STAGES), "0.5.9"),
    Variable("SGLANG_USE_JIT_ALL_REDUCE", "custom_v2", _boolean, "0.5.10rc0"),
    Variable("SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2", "custom_v2", _boolean, "0.5.12"),
    Variable("SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB", "v2_max_kb", _integer, "0.5.16"),
    Variable("SGLANG_OPT_USE_INKLING_CUSTOM_AR", "inkling", _boolean, "0.5.16"),
    Variable("SGLANG_OPT_USE_INKLING_FUSED_AR_SCONV", "inkling_sconv", _boolean, "0.5.16"),
    Variable("SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PULL_SIZE_KB", "v2_force_pull_kb", _integer, "0.5.17"),
    Variable("SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PUSH_SIZE_KB", "v2_force_push_kb", _integer, "0.5.17"),
    Variable("SGLANG_ENABLE_CUSTOM_ALL_REDUCE_V2_MULTINODE", "v2_multinode", _boolean, "0.5.17", "0.5.19"),
    Variable("SGLANG_PCIE_IPC_MAX_NUMEL", "pcie_max_numel", _integer, "0.5.21"),
    Variable("LOCAL_SIZE", "local_size", _integer),
)
# Read elsewhere, or without an effect on a fact; known all the same.
OTHERS = (
    "SYNC_TOKEN_IDS_ACROSS_TP",
    "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    DEVICES,
)
# SGLang's own too, of no concern to a route, but spelt nearly as one that is.
_NEIGHBOURS = frozenset(
    {
        "SGLANG_OPT_USE_INKLING_FUSED_AR_SCONV_NORM",
        "SGLANG_OPT_USE_INKLING_FUSED_AR_SHARED",
        "SGLANG_SYNC_TOKEN_IDS_ACROSS_TP",
        "SGLANG_USE_AITER",
        "SGLANG_USE_AITER_AG",
    }
)


def environment_notes(state: State) -> list[str]:
    """Variables that say nothing here: misspelt, or not read by this release."""
    names = {variable.name for variable in VARIABLES} | set(OTHERS)
    notes = []
    if unreadable_devices(state):
        notes.append(
            f"{DEVICES} holds no numbers: custom all-reduce of a group within a node fails to set up, SGLang goes on without"
        )
    for name in state.env:
        spans = [(variable.since, variable.until) for variable in VARIABLES if variable.name == name]
        if spans and not any(state.within(*span) for span in spans):
            notes.append(f"{name}: not read by SGLang {state.sglang}")
        elif name not in names and name not in _NEIGHBOURS:
            near = difflib.get_close_matches(name.upper(), names, n=1, cutoff=0.85)
            notes += [f"{name}: no variable that changes a route; did you mean {near[0]}?"] if near else []
    return notes


def environment_facts(state: State, group: Group) -> Group:
    """The group with the facts that the environment sets, and those that SGLang sets in its place."""
    for variable in VARIABLES:
        text = state.env.get(variable.name)
        if text is not None and state.within(variable.since, variable.until):
            group = group.with_facts("given", variable.name, **{variable.fact: _read(variable, text)})
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if "expandable_segments:true" in state.env.get(name, "").lower().replace(" ", ""):
            group = group.with_facts("given", name, vmm_allocator=1)
    return _across_nodes(state, group)


def _across_nodes(state: State, group: Group) -> Group:
    """v0.5.12 to v0.5.18 keep V2 to one node by themselves, but for v0.5.17 and v0.5.18 on a fabric that reaches across nodes."""
    if state.number("nnodes") <= 1 or not state.within("0.5.12", "0.5.19") or group.value("custom_v2") == 0:
        return group
    told = "SGLANG_ENABLE_CUSTOM_ALL_REDUCE_V2_MULTINODE" in state.env
    if state.within("0.5.17") and not told and state.gpu.fabric and state.number("tp_size") <= 8:
        return group.with_facts("assumed", "several nodes of one NVLink fabric", v2_multinode=1)
    if state.within("0.5.17") and group.value("v2_multinode"):
        return group
    return group.with_facts("given", "several nodes: SGLang turns V2 off", custom_v2=0)


def _read(variable: Variable, text: str) -> int:
    try:
        return variable.read(text)
    except ValueError as error:
        message = str(error) if str(error).startswith("give") else "give a whole number"
        raise InputError(variable.name, text, message) from None
