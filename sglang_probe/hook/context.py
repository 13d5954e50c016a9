"""What surrounds a call, read where SGLang keeps it: sources for the Recorder. Called by session.py.

The piecewise flag is looked at in each call; graph_capture() and captures say themselves when they begin and end (graphs.py).
Invariant: a source is an object that is there for good, a module's dictionary, so that reading it cannot fail.
"""

from __future__ import annotations

import sys
from typing import Any

from .._route import context_bits
from .arming import when_imported

Source = tuple[int, Any, str, int]
_OLD = "sglang.srt.compilation.piecewise_context_manager"  # v0.5.5.post3 to v0.5.13.post1
_NEW = "sglang.srt.model_executor.runner_backend_utils.tc_piecewise_cuda_graph.context_manager"  # v0.5.14 on
_PHASE = "sglang.srt.compilation.compile_phase"  # v0.5.14 on
# (module, its global, the bit that is set while it is true)
FLAGS = (
    (_OLD, "_in_piecewise_cuda_graph", "piecewise"),
    (_OLD, "_in_pcg_torch_compile", "compile_warmup"),
    (_OLD, "_pcg_capture_stream", "piecewise_stream"),
    (_NEW, "_in_tc_piecewise_cuda_graph", "piecewise"),
    (_PHASE, "_in_torch_compile_warmup", "compile_warmup"),
    (_PHASE, "_pcg_capture_stream", "piecewise_stream"),
)


def context_sources() -> tuple[Source, ...]:
    """Those of the modules that are imported."""
    found: list[Source] = []
    for module, name, bit in FLAGS:
        space = vars(sys.modules[module]) if module in sys.modules else {}
        if name in space:
            found.append((context_bits(bit), space, name, 0))
    return tuple(found)


def is_piecewise() -> bool:
    """Whether SGLang's piecewise flag is set now."""
    return any(
        getattr(sys.modules[module], name, False) for module, name, bit in FLAGS if bit == "piecewise" and module in sys.modules
    )


def follow_flags(recorder: Any) -> None:
    """Sources anew when a module of theirs comes."""
    for module in dict.fromkeys(module for module, _, _ in FLAGS):
        if module not in sys.modules:
            when_imported(module, lambda _: recorder.set_sources(context_sources()))
