"""In which context a release runs a step's forward: a replayed decode graph, a piecewise graph, or eagerly. Called by step.

Read from model_runner.py (``_forward_raw``, ``forward_extend``) and the runners' ``can_run``, release by release: the decode graph is
asked first; else a verify is an extend, which until v0.5.10.post1 may enter the piecewise graph (from v0.5.11 ``can_run`` refuses it).
Invariant: a replay runs no dispatch, so the context is always that in which the replayed route was chosen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .._route import context_bits
from .._types import Model, Server
from .._versions import at_least
from .calls import is_deepseek_family, setting

COMPILED = "compiled_capture"
"""A decode graph of a model under torch.compile: Dynamo traces the dispatch, then the graph is captured."""
PIECEWISE = "piecewise_capture"

_PIECEWISE_SINCE, _VERIFY_REFUSED = "0.5.3.post2", "0.5.11"
_HIP_FLAG = ("0.5.13", "0.5.22")
"""Releases in which an AMD server that has a prefill graph runs its eager extends under the piecewise flag too."""
_LEAST_PREFILL, _USUAL_PREFILL = 2048, 8192
"""What --chunked-prefill-size is at least by default, and on GPUs of 60 to 160 GB."""


@dataclass(frozen=True)
class StepContext:
    """How the forward runs."""

    name: str
    """A preset, or bits joined by +, as ``route`` takes them."""
    batch: int
    """Requests, padded as a decode graph pads them."""
    tokens: int
    """Tokens of the forward, padded as its graph pads them."""
    replayed: bool = False
    """A piecewise graph that is replayed: calls outside of its pieces run in the replay."""
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()

    @property
    def captured(self) -> bool:
        """In a decode graph."""
        return self.name in ("capture", COMPILED)

    @property
    def draft(self) -> str:
        """The context of the draft's passes: they have decode graphs of their own, never compiled, and no piecewise one."""
        return "capture" if self.captured else "eager" if self.name.startswith("piecewise") else self.name


def find_context(server: Server, model: Model | None, asked: str | None, batch: int, width: int, sglang: str) -> StepContext:
    """The context that was asked for; where none was, what this server does with this batch."""
    fits = next((size for size in sorted(server.captured_batches) if size >= batch), None)
    captured = server.decode_graph and (fits is not None or not server.captured_batches)
    padded = fits or batch
    if asked is None:
        if captured:
            return _decode_graph(server, padded, width)
        return _without_decode_graph(server, model, batch, width, sglang)
    if asked != "replay":
        context_bits(asked)  # refuses what is none
    if asked not in ("capture", "replay", "warmup", COMPILED):
        return StepContext(asked, batch, batch * width)
    notes: tuple[str, ...] = ()
    name = asked
    if asked == "replay":
        notes += ("a replay runs no dispatch: it repeats the routes of the capture",)
        name = COMPILED if _is_compiled(server, padded) else "capture"
    elif asked == "capture" and captured and _is_compiled(server, padded):
        notes += (f"this server captures this batch under torch.compile: its own context is {COMPILED}",)
    if not captured:
        notes += (f"this server would run a batch of {batch} eagerly: no graph is captured for it",)
    return StepContext(name, padded, padded * width, notes=notes)


def _is_compiled(server: Server, batch: int) -> bool:
    most = int(setting(server, "torch_compile_max_bs", default=32))
    return bool(setting(server, "enable_torch_compile", default=False)) and batch <= most


def _decode_graph(server: Server, padded: int, width: int) -> StepContext:
    if _is_compiled(server, padded):
        note = (
            f"torch.compile: batches of up to {setting(server, 'torch_compile_max_bs', default=32)} are compiled, then captured"
        )
        assumed = (
            "torch.compile: every call is assumed to be traced; code behind a break of its graph dispatches as in a plain capture"
        )
        return StepContext(COMPILED, padded, padded * width, notes=(note,), assumed=(assumed,))
    if setting(server, "enable_torch_compile", default=False):
        note = f"a batch of {padded} is captured without torch.compile: it is larger than --torch-compile-max-bs"
        return StepContext("capture", padded, padded * width, notes=(note,))
    return StepContext("capture", padded, padded * width)


def _without_decode_graph(server: Server, model: Model | None, batch: int, width: int, sglang: str) -> StepContext:
    why = f"no graph is captured for {batch} requests" if server.decode_graph else "the server captures no graph"
    tokens = batch * width
    verify = width > 1 or server.speculative_algorithm is not None
    if verify and _enters_piecewise(server, model, sglang):
        sizes, assumed = _piecewise_sizes(server, model, sglang, tokens)
        fits = next((size for size in sizes if size >= tokens), None)
        if fits is not None:
            note = (
                f"piecewise: {why}, and in {sglang} a verify is an extend that the piecewise graph takes (by reading; v0.5.11 refuses "
                f"it), so the routes captured in that graph are replayed; {tokens} tokens padded to {fits}"
            )
            return StepContext(PIECEWISE, batch, fits, replayed=True, notes=(note,), assumed=assumed)
        why += f", and {tokens} tokens are more than the largest piecewise graph ({max(sizes, default=0)})"
    if verify and _hip_flag(server, sglang):
        note = (
            f"piecewise_replay: {why}; on AMD {sglang} runs eager extends under the piecewise flag where it has a prefill graph"
        )
        return StepContext("piecewise_replay", batch, tokens, notes=(note,))
    return StepContext("eager", batch, tokens, notes=(f"eager: {why}",))


def _enters_piecewise(server: Server, model: Model | None, sglang: str) -> bool:
    if server.prefill_graph != "tc_piecewise" or not at_least(sglang, _PIECEWISE_SINCE) or at_least(sglang, _VERIFY_REFUSED):
        return False
    if setting(server, "disable_cuda_graph", default=False) and not at_least(sglang, "0.5.6"):
        return False  # the one switch was for both kinds of graph
    # To v0.5.5 only layers with a plain `attn` counted, and a model that lacks one in some layer has no piecewise graph.
    return model is None or not is_deepseek_family(model) or at_least(sglang, "0.5.5.post1")


def _hip_flag(server: Server, sglang: str) -> bool:
    first, last = _HIP_FLAG
    hip = server.groups["tp"].value("device") == 1
    return hip and server.prefill_graph != "none" and at_least(sglang, first) and not at_least(sglang, last)


def _piecewise_sizes(server: Server, model: Model | None, sglang: str, tokens: int) -> tuple[list[int], tuple[str, ...]]:
    """Numbers of tokens for which a piecewise graph is captured, and what was assumed of the largest."""
    given = setting(server, "piecewise_cuda_graph_tokens")
    if isinstance(given, Iterable) and not isinstance(given, str):
        return sorted(int(size) for size in given), ()
    most = setting(server, "piecewise_cuda_graph_max_tokens")
    assumed: tuple[str, ...] = ()
    latent = model is not None and (is_deepseek_family(model) or model.config.get("kv_lora_rank") is not None)
    if most is None and latent and at_least(sglang, "0.5.9"):
        most = 2048
    if most is None:
        most = setting(server, "chunked_prefill_size")
    if most is None:
        most = _LEAST_PREFILL
        if tokens > most:
            most = _USUAL_PREFILL
            assumed = (f"--chunked-prefill-size {most}, up to which the piecewise graph is captured: GPU memory decides it",)
    return [size for size in _ladder(sglang, int(most)) if size <= int(most)], assumed


def _ladder(sglang: str, most: int) -> list[int]:
    sizes = [*range(4, 33, 4), *range(48, 257, 16), *range(288, 513, 32)]
    if not at_least(sglang, "0.5.8"):
        return [*sizes, *range(640, 4097, 128), *range(4352, most + 1, 256)]
    first = 576 if at_least(sglang, "0.5.9") else 640
    return [*sizes, *range(first, 1025, 64), *range(1280, 4097, 256), *range(4608, most + 1, 512)]
