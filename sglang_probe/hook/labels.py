"""What a graph is captured for: the batch or token size that SGLang's runner hands to its own method for one capture. Called by graphs.py.

Such a method runs when a server starts, once a size, and ends in captures; Dynamo traces none of them. One that SGLang is not known to have
is not looked for, and a graph that is captured outside of them has no label: readers tell it by its number.
Invariant: a runner's method runs as it did; what cannot be told of it is not told.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

from .._releases import FIRST
from .facts import attribute
from .targets import Target

if TYPE_CHECKING:
    from .. import _core

_VERIFY = "target_verify"
_EXECUTOR, _SPECULATIVE = "model_executor.", "speculative."
_NEW = "0.5.14"
"""From here on all runners share the names of their methods."""


@dataclass(frozen=True)
class Runner(Target):
    """A method that captures one size, which is its first argument after self."""

    what: str = ""
    """Of the label; "": the runner's forward mode."""
    unit: str = "bs"


def _rows(module: str, kind: str, since: str, what: str) -> tuple[Runner, Runner]:
    """Of a class that is in one module throughout."""
    where = f"{_SPECULATIVE}{module}:{kind}."
    return Runner(where + "capture_one_batch_size", since, _NEW, what=what), Runner(where + "capture_one_shape", _NEW, what=what)


RUNNERS: tuple[Runner, ...] = (
    Runner(_EXECUTOR + "cuda_graph_runner:CudaGraphRunner.capture_one_batch_size", FIRST, _NEW),
    Runner(_EXECUTOR + "runner.decode_cuda_graph_runner:DecodeCudaGraphRunner.capture_one_shape", _NEW),
    Runner(
        _EXECUTOR + "piecewise_cuda_graph_runner:PiecewiseCudaGraphRunner.capture_one_batch_size", "0.5.3.post2", _NEW,
        what="piecewise", unit="tokens",
    ),
    Runner(
        _EXECUTOR + "breakable_cuda_graph_runner:BreakableCudaGraphRunner._capture_one", "0.5.11", _NEW,
        what="breakable", unit="tokens",
    ),
    Runner(
        _EXECUTOR + "runner.prefill_cuda_graph_runner:PrefillCudaGraphRunner.capture_one_shape", _NEW, what="prefill", unit="tokens"
    ),
    *_rows("eagle_draft_cuda_graph_runner", "EAGLEDraftCudaGraphRunner", "0.4.2.post2", "draft"),
    *_rows("eagle_draft_extend_cuda_graph_runner", "EAGLEDraftExtendCudaGraphRunner", "0.4.7", "draft extend"),
    *_rows(
        "multi_layer_eagle_draft_extend_cuda_graph_runner", "MultiLayerEagleDraftExtendCudaGraphRunner", "0.5.7", "draft extend"
    ),
    Runner(
        _SPECULATIVE + "multi_layer_eagle_draft_extend_cuda_graph_runner:OneGraphMultiLayerEagleMultiStepDraftExtendCudaGraphRunner."
        "_capture_one_graph", "0.5.16", what="draft extend, all layers",
    ),
    *_rows("frozen_kv_mtp_cuda_graph_runner", "FrozenKVMTPCudaGraphRunner", "0.5.12", "draft"),
)  # fmt: skip


def runners_of(release: str | None) -> Iterable[Runner]:
    """Those that a release should have; all, of one that is not known."""
    return (runner for runner in RUNNERS if release is None or runner.within(release))


def label_of(runner: Runner, owner: Any, size: Any, variants: Iterable[Any] = ()) -> str:
    """``verify bs 8``, ``piecewise tokens 512``; with the names of what else tells the capture apart."""
    mode = str(attribute(owner, "capture_forward_mode.name", "decode")).lower()
    what = runner.what or ("verify" if mode == _VERIFY else mode)
    return " ".join((what, runner.unit, str(size), *(one for one in variants if isinstance(one, str) and one)))


def labelled(original: Any, runner: Runner, recorder: _core.Recorder) -> Any:
    """The method, during which graphs have this label."""

    def capture(owner: Any, *args: Any, **kwargs: Any) -> Any:
        before = None
        with suppress(Exception):
            size = args[0] if args else next(iter(kwargs.values()))
            before, recorder.label = recorder.label, label_of(runner, owner, size, (*args[1:], *kwargs.values()))
        try:
            return original(owner, *args, **kwargs)
        finally:
            if before is not None:
                with suppress(Exception):
                    recorder.label = before

    update_wrapper(capture, original, (), ())  # its signature
    return capture
