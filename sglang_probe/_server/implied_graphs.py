"""Which batches a server captures into CUDA graphs: decode and verify batches by size, and the kind of the prefill graph.

Called by launch.py after the rules of implied.py. Read from server_args.py, arg_groups/cuda_graph_hook.py and memory_hook.py, and
the runners' get_batch_sizes_to_capture. Invariant: what a server says that it captured replaces all of this.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .defaults import FIRST, Changes
from .state import State

# Largest captured batch by the GPU's memory: (below so many MiB, with fewer than 4 ranks, with 4 or more). None: no limit of its own.
Tiers = tuple[tuple[int, int | None, int | None], ...]
_NO_LIMIT = 1 << 62
_BY_MEMORY: Changes = (
    (FIRST, ((25000, 8, 80), (_NO_LIMIT, 160, 160))),
    ("0.4.5.post3", ((25000, 8, 80), (_NO_LIMIT, None, None))),
    ("0.4.7.post1", ((35 << 10, 8, 80), (_NO_LIMIT, None, None))),
    ("0.5.3rc2", ((20 << 10, 8, 8), (35 << 10, 16, 80), (60 << 10, 32, 160), (160 << 10, 256, 512), (_NO_LIMIT, 512, 512))),
    ("0.5.4.post1", ((20 << 10, 8, 8), (35 << 10, 24, 80), (60 << 10, 32, 160), (160 << 10, 256, 512), (_NO_LIMIT, 512, 512))),
    ("0.5.20", ((20 << 10, 8, 8), (35 << 10, 48, 160), (60 << 10, 32, 160), (160 << 10, 256, 512), (_NO_LIMIT, 512, 512))),
)

# Before v0.5.3rc2: (first release, without padding, without speculation, with speculation, added by memory: (more MiB than, sizes)).
Sizes = tuple[int, ...]


def _steps(*spans: int | tuple[int, int, int]) -> Sizes:
    """(1, 32, 1) is 1 to 32 in steps of 1, its end included."""
    sizes: list[int] = []
    for span in spans:
        sizes += [span] if isinstance(span, int) else range(span[0], span[1] + 1, span[2])
    return tuple(sizes)


_OLD_PLAIN = _steps(1, 2, 4, (8, 160, 8))
_OLD_EXACT = _steps((1, 32, 1), 64, 128)
_TO_256, _TO_512 = _steps((160, 256, 8)), _steps((256, 512, 16))
_LISTS: Changes = (
    (FIRST, (_OLD_EXACT, _OLD_PLAIN, _OLD_PLAIN, ())),
    ("0.4.3.post3", (_steps((1, 32, 1), 64, 96, 128, 160), _OLD_PLAIN, _steps((1, 32, 1)), ())),
    ("0.4.4.post2", (_steps((1, 32, 1), 64, 96, 128, 160), _OLD_PLAIN, _steps((1, 8, 1), (9, 32, 2), 64, 96, 128, 160), ())),
    (
        "0.4.4.post4",
        (_steps((1, 32, 1), (40, 160, 16)), _steps(1, 2, 4, 8, (16, 160, 8)), _steps((1, 8, 1), (10, 32, 2), (40, 160, 16)), ()),
    ),
    (
        "0.4.5.post3",
        (
            _steps((1, 32, 1), (40, 160, 16)),
            _steps(1, 2, 4, 8, (16, 160, 8)),
            _steps((1, 8, 1), (10, 32, 2), (40, 160, 16)),
            ((81920, _TO_256),),
        ),
    ),
    (
        "0.4.6.post2",
        (
            _steps((1, 32, 1), (40, 160, 16)),
            _steps(1, 2, 4, 8, (16, 160, 8)),
            _steps((1, 8, 1), (10, 32, 2), (40, 160, 16)),
            ((96 << 10, _TO_256),),
        ),
    ),
    (
        "0.4.7",
        (
            _steps((1, 32, 1), (48, 160, 16)),
            _steps(1, 2, 4, 8, (16, 160, 8)),
            _steps((1, 8, 1), (10, 32, 2), (40, 63, 8), (80, 160, 16)),
            ((96 << 10, _TO_256), (180000, _TO_512)),
        ),
    ),
    (
        "0.4.7.post1",
        (
            _steps((1, 32, 1), (48, 160, 16)),
            _steps(1, 2, 4, 8, (16, 160, 8)),
            _steps((1, 8, 1), (10, 32, 2), (40, 63, 8), (80, 160, 16)),
            ((90 << 10, _TO_256), (160000, _TO_512)),
        ),
    ),
)
# AMD had its own additions before memory decided.
_HIP_ADDS: Changes = (("0.4.3", _steps((168, 256, 8))), ("0.4.4.post4", _TO_256), ("0.4.5.post3", ()))


def graph_config(state: State, phase: str, key: str) -> Any:
    """What --cuda-graph-config (a JSON object) or a server's resolved configuration says of a phase; None where nothing."""
    config = state.get("cuda_graph_config")
    part = config.get(phase) if isinstance(config, dict) else None
    return part.get(key) if isinstance(part, dict) else None


def decode_graph(state: State) -> tuple[bool, str]:
    """Whether decode and verify batches are captured, and the reason where they are not."""
    backend = graph_config(state, "decode", "backend")
    if state.resolved and backend is not None:
        return backend != "disabled", "the server says so"
    if state.get("disable_cuda_graph", False):
        by_config = backend or state.get("cuda_graph_backend_decode")
        if by_config in (None, "disabled"):
            return False, "--disable-cuda-graph"
        return True, ""
    if state.resolved and not state.within("0.5.14"):
        return True, ""
    if "disabled" in (backend, state.get("cuda_graph_backend_decode") if backend is None else None):
        return False, "the decode graph's backend is disabled"
    if state.get("disable_decode_cuda_graph", False) and backend is None and state.get("cuda_graph_backend_decode") is None:
        return False, "--disable-decode-cuda-graph"
    reason = _decode_stop(state)
    return not reason, reason


def _decode_stop(state: State) -> str:
    attention = state.get("attention_backend")
    role = state.get("disaggregation_mode", "null")
    locked = graph_config(state, "decode", "backend") is not None or state.get("cuda_graph_backend_decode") is not None
    stops: tuple[tuple[str, str | None, Any, str], ...] = (
        (FIRST, None, attention == "torch_native", "the attention backend torch_native runs without CUDA graphs"),
        ("0.5.3rc2", None, attention == "flex_attention", "the attention backend flex_attention runs without CUDA graphs"),
        ("0.5.0rc0", "0.5.3rc2", attention == "dual_chunk_flash_attn", "dual chunk attention runs without CUDA graphs"),
        (
            "0.4.6.post3",
            None,
            (state.a2a == "deepep" or state.get("enable_deepep_moe")) and state.get("deepep_mode") == "normal",
            "DeepEP in normal mode runs without CUDA graphs",
        ),
        ("0.4.4.post2", "0.5.6", role == "prefill", "a prefill server runs without decode graphs"),
        (
            "0.5.6",
            "0.5.10rc0",
            role == "prefill" and not state.get("enable_piecewise_cuda_graph"),
            "a prefill server runs without decode graphs",
        ),
        ("0.5.10rc0", "0.5.11", role == "prefill", "a prefill server runs without decode graphs"),
        (
            "0.5.11",
            "0.5.13",
            role == "prefill" and state.get("disable_piecewise_cuda_graph"),
            "a prefill server runs without decode graphs",
        ),
        ("0.5.13", "0.5.16", role == "prefill", "a prefill server runs without decode graphs"),
        ("0.5.16", None, role == "prefill" and not locked, "a prefill server runs without decode graphs"),
        ("0.5.4.post2", None, state.get("debug_tensor_dump_output_folder"), "tensor dumps run without CUDA graphs"),
        ("0.5.11", None, state.get("msprobe_dump_config"), "msprobe dumps run without CUDA graphs"),
        ("0.5.17", None, state.number("dwdp_size") > 1, "distributed weight data parallelism runs without CUDA graphs"),
    )
    return next((reason for since, until, holds, reason in stops if holds and state.within(since, until)), "")


def largest_batch(state: State) -> int | None:
    """The largest batch to capture, by flag or by the GPU's memory; None where the release sets no limit."""
    if (explicit := _whole(_explicit(state))) and state.within("0.5.3rc2"):
        return max(explicit)
    for value in (graph_config(state, "decode", "max_bs"), state.get("cuda_graph_max_bs_decode"), state.get("cuda_graph_max_bs")):
        if value is not None:
            return int(value)
    tiers: Tiers = state.at(_BY_MEMORY)
    few = state.number("tp_size") < 4
    limit = next((low if few else high for below, low, high in tiers if state.gpu.memory_mib < below), None)
    requests = state.get("max_running_requests")
    if limit is not None and requests is not None and state.given("max_running_requests") and state.within("0.5.22"):
        return min(limit, int(requests))
    return limit


def captured_batches(state: State) -> Sizes:
    """Batch sizes (requests of one data-parallel group) for which a graph is captured."""
    explicit = _explicit(state)
    most = largest_batch(state)
    if state.within("0.5.3rc2"):
        sizes = _whole(explicit) if explicit else _sizes_by_limit(state, most or 160)
    else:
        sizes = _whole(explicit) if explicit else _sizes_by_list(state)
    return _fit(state, sizes, None if state.within("0.5.3rc2") else most)


def _explicit(state: State) -> Any:
    """Batch sizes that a person, or a running server, names."""
    return graph_config(state, "decode", "bs") or state.get("cuda_graph_bs_decode") or state.get("cuda_graph_bs")


def _whole(sizes: Any) -> list[int]:
    return [int(size) for size in sizes] if isinstance(sizes, Iterable) and not isinstance(sizes, str) else []


def _sizes_by_limit(state: State, most: int) -> list[int]:
    """v0.5.3rc2 on: one list, cut at the limit."""
    if state.get("disable_cuda_graph_padding", False):
        return list(range(1, most + 1))
    if state.get("speculative_algorithm") is None:
        sizes = [*_steps(1, 2, 4, 8, 12, (16, 256, 8), (272, 511, 16)), *range(512, most + 1, 32)]
    else:
        last = 64 if state.within("0.5.4.post2") else 60
        sizes = [*_steps((1, 8, 1), (10, 32, 2), (40, last, 4), (72, 256, 8)), *range(272, most + 1, 16)]
    sizes = [size for size in sizes if size <= most]
    return sizes if most in sizes or not state.within("0.5.10") else [*sizes, most]


def _sizes_by_list(state: State) -> list[int]:
    """To v0.5.3rc0: fixed lists."""
    exact, plain, speculative, by_memory = state.at(_LISTS)
    if state.get("speculative_algorithm") is not None and state.within("0.4.3.post3"):
        sizes = list(speculative)
    else:
        sizes = list(exact if state.get("disable_cuda_graph_padding", False) else plain)
    for above, more in by_memory:
        # v0.4.6 and v0.4.6.post1 add none where there are data-parallel groups.
        if state.gpu.memory_mib > above and not (state.within("0.4.6", "0.4.6.post2") and state.number("dp_size") > 1):
            sizes += more
    if state.hip and state.within("0.4.3"):
        sizes += state.at(_HIP_ADDS)
    return sizes


def pool_size(state: State) -> int | None:
    """Requests that one data-parallel group holds; None where memory decides (2048 at least)."""
    requests = state.get("max_running_requests")
    if requests is None:
        return None
    speculative = state.get("speculative_algorithm") is not None
    if state.attn_dp_size > 1 and (state.within("0.5.10rc0") or (speculative and state.within("0.5.8"))):
        return max(1, int(requests) // state.attn_dp_size)
    return int(requests)


def _multiple(state: State) -> int:
    """What a captured batch must be a multiple of."""
    base = 2 if state.get("enable_two_batch_overlap", False) else 1
    gathers = (
        state.attn_dp_size > 1 or (state.within("0.4.10.post2") and state.a2a != "none") or state.get("moe_dense_tp_size") == 1
    )
    if gathers and state.within("0.4.9.post4"):
        base *= state.attn_tp_size
    context = state.number("attn_cp_size")
    if state.within("0.5.9") and base % context:
        base *= context
    return base


def _fit(state: State, sizes: list[int], most: int | None) -> Sizes:
    """Cut to the request pool and to what the batch must divide by, as the runner does."""
    pool = pool_size(state)
    base = _multiple(state)
    width = 1 if state.get("enable_two_batch_overlap", False) or not state.within("0.5.8") else tokens_of_request(state)
    if pool is not None and state.within("0.5.10rc0"):
        pool = -(-pool // base) * base
    if pool is not None and sizes and max(sizes) > pool:
        sizes = [*sizes, pool] if state.within("0.4.7") else [*sizes, pool - 1, pool]
    if state.within("0.4.9.post4"):
        sizes = [size for size in sizes if size * width % base == 0]
    elif base > 1:
        sizes = [size for size in sizes if (size % 2 == 0 if state.within("0.4.9") else size >= 2)]
    if most is not None:
        sizes = [size for size in sizes if size <= most]
        if state.within("0.4.6.post4") and sizes and max(sizes) < most:
            sizes += range(max(sizes), most + 1, 16)
    return tuple(sorted({size for size in sizes if size > 0 and (pool is None or size <= pool)}))


def tokens_of_request(state: State) -> int:
    """Tokens of one request in a verify step; 1 without speculation."""
    if state.get("speculative_algorithm") is None:
        return 1
    return max(1, state.number("speculative_num_draft_tokens", 1))
