"""What surrounds a call, read where SGLang keeps it: sources for the Recorder. Called by session.py, and by groups.py as groups come.

The piecewise flag and the groups' switched communicators are looked at in each call; graph_capture() and captures say themselves when they
begin and end (graphs.py).
Invariant: a source is an object that is there for good, a module's dictionary, or an attribute of the call's group, so that reading it
cannot fail.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .._route import context_bits
from .arming import when_imported

if TYPE_CHECKING:
    from .. import _core
    from .expected import Expected

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


def set_sources(recorder: _core.Recorder, expected: Expected) -> None:
    """All that are known now."""
    recorder.set_sources((*context_sources(), *expected.switches()))


def follow_flags(recorder: _core.Recorder, expected: Expected) -> None:
    """Sources, and anew when a module of theirs comes."""
    set_sources(recorder, expected)
    for module in dict.fromkeys(module for module, _, _ in FLAGS):
        if module not in sys.modules:
            when_imported(module, lambda _: set_sources(recorder, expected))
