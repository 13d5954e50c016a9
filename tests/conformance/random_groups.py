"""Random groups and calls, as a seed gives them: what a server could be started as, and sizes around every threshold.

Called by test_reach.py, test_space.py and bench_proof.py. Invariant: a group or call is a function of the random source alone, so a
failure can be repeated; contradictory facts (more nodes than ranks) are not drawn.
"""

from __future__ import annotations

import random
from typing import Any

from sglang_probe import _core
from sglang_probe._route import CONTEXTS
from sglang_probe._types import Call

DTYPES: dict[str, int] = dict(_core.DTYPES)
MIB = 1 << 20
_DEVICES = {name: i for i, name in enumerate(_core.DEVICES)}
_BITS = tuple(name for name, _ in _core.CONTEXTS)
_WIDTHS = (1, 3, 8, 64, 1000, 2880, 4096, 5120, 6144, 7168, 8192, 16384)


def _some(source: random.Random, chance: float, **choices: tuple[Any, ...]) -> dict[str, Any]:
    """Each fact with this chance, one of its values."""
    return {name: source.choice(values) for name, values in choices.items() if source.random() < chance}


def draw_facts(source: random.Random, cuda_alike: bool = False) -> dict[str, int]:
    """Facts that depart from the defaults: a machine, flags and environment variables."""
    device = source.choices(("cuda", "hip", "musa", "cpu"), (16, 5, 1, 0 if cuda_alike else 1))[0]
    world = source.choice((2, 2, 3, 4, 4, 4, 5, 6, 7, 8, 8, 8, 8, 10, 12, 16, 16, 32, 64))
    facts: dict[str, int] = {"device": _DEVICES[device], "world_size": world}
    facts["arch"] = source.choice((942, 950, 90, 1100) if device == "hip" else (75, 80, 86, 89, 90, 90, 100, 103, 107, 120))
    facts["nodes"] = source.choice([n for n in (1, 1, 1, 1, 2, 4, 8, 16) if world % n == 0])
    facts |= _some(source, 0.5, full_nvlink=(0, 1), multicast=(0, 1), own_mscclpp=(0, 1), own_torch_symm_mem=(0, 1))
    facts |= _some(source, 0.3, fabric_clique=(0, 1), vmm_allocator=(0, 1), has_mscclpp=(1,), own_custom=(0,), captured=(0,))
    facts |= _some(source, 0.2, has_flashinfer_pcie=(1,), symm_mem=(1,))
    facts |= _some(source, 0.15, p2p=(0,), p2p_check=(1,), own_pynccl=(0,), pdmux=(1,), deterministic=(1,), piecewise_server=(1,))
    facts |= _some(source, 0.1, has_nccl=(0,), has_custom_ops=(0,), consecutive=(0,), memory_saver_graph=(1,), inkling=(0,))
    facts |= _some(source, 0.1, inkling_sconv=(0,), custom_v2=(0, 1), one_stage=(0, 1), vllm_custom=(0, 1), v2_multinode=(1,))
    facts |= _some(source, 0.1, v2_max_kb=(0, 96, 200000), v2_force_pull_kb=(0, 64, 40000), v2_force_push_kb=(0, 3, 30000))
    facts |= _some(
        source, 0.1, mscclpp_max_bytes=(MIB // 2, 3 * MIB, MIB + 1000), pcie_max_numel=(6144 * 100,), decode_rows=(1, 192)
    )
    if device == "hip" and source.random() < 0.5:
        facts |= {"full_nvlink": 1, "nodes": 1, "world_size": source.choice((2, 4, 8))}
    if facts.get("own_torch_symm_mem") and device == "cuda" and source.random() < 0.7:
        facts |= {"arch": source.choice((90, 100)), "world_size": source.choice((4, 6, 8)), "nodes": 1}
    if source.random() < 0.2:
        # its workspace has the width of the model; without one it would take that of the first call, and depend on history
        facts |= {"own_pcie_ipc": 1, "has_flashinfer_pcie": 1, "full_nvlink": 0, "pcie_hidden": source.choice((6144, 7168))}
    if facts.get("own_mscclpp"):
        facts.setdefault("has_mscclpp", source.choice((0, 1, 1, 1)))
    if device == "hip":
        facts |= {"use_aiter": 0, "qr_quantization": source.choice((0, 1, 1, 2, 3, 4))}
        facts |= _some(source, 0.3, qr_max_mb=(32, 512), qr_cast_bf16=(0,), rccl_msccl=(0,))
    if source.random() < 0.3:
        facts |= {"fi_workspace": 1, "fi_hidden": source.choice((4096, 7168)), "fi_max_tokens": source.choice((128, 2048))}
        facts |= _some(source, 0.3, fi_dtype=(1, 2))
    if device == "cpu":
        facts |= _some(source, 0.5, cpu_amx=(0,), cpu_arm64=(1,), local_size=(world,))
    return facts


def draw_context(source: random.Random) -> tuple[str, ...]:
    """Nearly always a preset; sometimes any bits, with a stream that captures only inside of graph_capture()."""
    if source.random() < 0.9:
        return CONTEXTS[source.choice(tuple(CONTEXTS))]
    bits = [name for name in _BITS if source.random() < 0.4]
    return tuple(bits) if "in_graph_capture" in bits else tuple(b for b in bits if b != "stream_capturing")


def draw_bytes(source: random.Random) -> int:
    """A size: near a power of two or a multiple of a megabyte, or of any length up to 2 GiB."""
    kind = source.random()
    if kind < 0.4:
        return max(1, (1 << source.randrange(4, 32)) + source.choice((-16, -8, -4, 0, 0, 4, 8, 16)))
    if kind < 0.5:
        return source.choice((40, 96, 160, 512, 576, 640, 1000)) << source.choice((10, 10, 12, 20))
    return int(2 ** source.uniform(*((9, 24) if kind < 0.9 else (0, 31))))


def draw_call(source: random.Random) -> Call:
    """A tensor of whole rows, in any dtype and layout; mostly bf16 and contiguous."""
    dtype = source.choice(("bf16",) * 8 + tuple(DTYPES))
    width = source.choice(_WIDTHS)
    row = width * DTYPES[dtype]
    tokens = max(1, draw_bytes(source) // row + source.choice((0, 0, 1)))
    layout = source.choices(("plain", "weak", "strided", "misaligned", "tagged"), (20, 2, 2, 2, 2))[0]
    dims = source.choice((2,) * 12 + (1, 3))
    if width * tokens >= 1 << 31:  # more columns than a call may have
        dims = 2
    return Call(
        nbytes=tokens * row,
        dtype=dtype,
        hidden=width * tokens if dims == 1 else width,
        dims=dims,
        contiguous=layout not in ("weak", "strided"),
        weak_contiguous=layout != "strided",
        aligned=layout != "misaligned",
        registered=layout == "tagged",
    )
