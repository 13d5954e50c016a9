"""Facts by name: checked against the list of the core, and packed for it in its order. Called by Group and by the router.

Invariant: what reaches the core is a whole tuple in the order of ``_core.FACTS``; a name or a value outside of the list never does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from . import _core
from ._types import Call, InputError

if TYPE_CHECKING:
    from ._types import Group

DEFAULTS: dict[str, int] = {name: default for name, default, _ in _core.FACTS}
TEXTS: dict[str, str] = {name: text for name, _, text in _core.FACTS}
DTYPES: dict[str, int] = {name: i for i, (name, _) in enumerate(_core.DTYPES)}
DTYPE_BYTES: dict[str, int] = dict(_core.DTYPES)
_ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "float64": "fp64",
    "double": "fp64",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}
SIZE_MAX = 2**63 - 1
"""Largest tensor, bytes."""

# Facts with a smaller domain than an integer of 64 bits.
_RANGES: dict[str, tuple[int, int]] = {
    "device": (0, len(_core.DEVICES) - 1),
    "arch": (0, 10**6),
    "world_size": (1, 65536),
    "nodes": (1, 65536),
    "local_size": (0, 65536),
    "v1_algo": (0, 2),
    "qr_quantization": (0, 4),
    "custom_v2": (-1, 1),
    "vllm_custom": (-1, 1),
    "one_stage": (-1, 1),
    "fi_dtype": (0, len(_core.DTYPES) - 1),
}
_SIZES = {
    "fi_max_tokens",
    "fi_hidden",
    "v2_max_kb",
    "v2_force_pull_kb",
    "v2_force_push_kb",
    "mscclpp_max_bytes",
    "qr_max_mb",
    "pcie_max_numel",
    "pcie_hidden",
    "decode_rows",
}


def range_of(name: str) -> tuple[int, int]:
    """Smallest and largest value of a fact."""
    if name in _RANGES:
        return _RANGES[name]
    return (-1, 2**31 - 1) if name in _SIZES else (0, 1)


def check_facts(facts: Mapping[str, int | bool]) -> dict[str, int]:
    checked = {}
    for name, value in facts.items():
        if name not in DEFAULTS:
            raise InputError(name, value, f"not a fact; the facts are {', '.join(DEFAULTS)}")
        if not isinstance(value, int):
            raise InputError(name, value, "facts are integers or booleans")
        low, high = range_of(name)
        if not low <= value <= high:
            raise InputError(name, value, f"give {low} to {high} ({TEXTS[name]})")
        checked[name] = int(value)
    return checked


def fact_value(group: Group, name: str) -> int:
    if name not in DEFAULTS:
        raise InputError("fact", name, f"the facts are {', '.join(DEFAULTS)}")
    fact = group.facts.get(name)
    return DEFAULTS[name] if fact is None else fact.value


def pack_facts(group: Group) -> tuple[int, ...]:
    known = group.facts
    return tuple(known[name].value if name in known else default for name, default in DEFAULTS.items())


def check_dtype(dtype: str) -> str:
    """The core's name of a dtype: ``torch.bfloat16``, ``bfloat16`` and ``bf16`` are one."""
    name = str(dtype).removeprefix("torch.").lower()
    name = _ALIASES.get(name, name)
    if name not in DTYPES:
        raise InputError("dtype", dtype, f"give one of {', '.join(DTYPES)}")
    return name


def check_size(name: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(name, value, "give a whole number of bytes")
    if not 1 <= value <= SIZE_MAX:
        raise InputError(name, value, "a tensor has 1 to 2^63 - 1 bytes")
    return value


def pack_call(call: Call) -> tuple[int, ...]:
    """(nbytes, then CALL_FACTS in order)."""
    for name, value, least in (("hidden", call.hidden, 0), ("dims", call.dims, 0)):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise InputError(name, value, "give a whole number from 0 to 2^31 - 1")
    values = {
        "dtype": DTYPES[check_dtype(call.dtype)],
        "columns": call.hidden,
        "dims": call.dims,
        "contiguous": int(call.contiguous),
        "weak_contiguous": int(call.weak_contiguous or call.contiguous),
        "aligned": int(call.aligned),
        "registered": int(call.registered),
    }
    return (check_size("nbytes", call.nbytes), *(values[name] for name, _, _ in _core.CALL_FACTS))
