"""Graphs: what each captured and for what, its replays, which groups graph_capture() enters, and the addresses that it registers.

Called by session.py.
Every runner of every release captures and replays by torch.cuda.CUDAGraph, a Python class: three of its methods are wrapped.
A call that was captured with registered buffers reads its peers' inputs where they lie: their addresses are exchanged when
graph_capture() ends. v1 and V2 log how many those are; here the same numbers are taken where SGLang has them.
Invariant: SGLang's context manager is entered and left as it was, and what it raises goes on.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from functools import partial, update_wrapper
from types import FunctionType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

from .. import _core
from .._record.ring import Ring
from .._route import context_bits
from .arming import when_imported
from .context import is_piecewise
from .facts import saves_memory
from .forking import Lock
from .labels import Runner, labelled, runners_of
from .promises import registering

if TYPE_CHECKING:
    from .expected import Expected
    from .patches import Patches
    from .telling import Findings
    from .wrapping import Wrapping

_CAPTURING = context_bits("in_graph_capture")
_COMMUNICATORS = "sglang.srt.distributed.device_communicators."
# v1: the C++ function whose second result is the list of offsets, where the release has it
_META = (_COMMUNICATORS + "custom_all_reduce_ops", "sglang.srt._custom_ops")
_META_NAME = "get_graph_buffer_ipc_meta"
_V2 = _COMMUNICATORS + "custom_all_reduce_v2"
_DEDUP = "sglang.srt.model_executor.runner_backend.cuda_graph_dedup_mixin"  # v0.5.15 on
_WORKSPACE = "sglang.srt.layers.flashinfer_comm_fusion"


class Captures:
    """What is captured in this process, by group."""

    def __init__(self, recorder: _core.Recorder, expected: Expected, patches: Patches, findings: Findings) -> None:
        self._recorder, self._expected = recorder, expected
        self._patches, self._findings = patches, findings
        self._lock = Lock()
        self._inside: list[str] = []
        self._registered: int | None = None
        self._piecewise, self._first = False, 1
        self._sharing: set[int] = set()

    def follow(self, coordinator: type, wrapping: Wrapping) -> None:
        original = vars(coordinator).get("graph_capture")
        if original is not None:

            def graph_capture(group: Any, *args: Any, **kwargs: Any) -> _Entered:
                return _Entered(self, group, original(group, *args, **kwargs))

            update_wrapper(graph_capture, original, (), ())  # its signature
            self._patches.set(coordinator, "graph_capture", graph_capture)
        wrapping.guarded("torch.cuda.CUDAGraph", self._methods)
        for runner in runners_of(wrapping.release):
            when_imported(runner.module, partial(self._label, wrapping, runner))
        for name in _META:
            when_imported(name, lambda module: wrapping.guarded(_META_NAME, lambda: self._meta(module)))
        when_imported(_DEDUP, lambda module: wrapping.guarded("DedupedCudaGraphRegistry", lambda: self._deduplicated(module)))
        when_imported(_V2, lambda module: wrapping.guarded("CustomAllReduceV2", lambda: self._v2(module)))
        when_imported(_WORKSPACE, lambda module: wrapping.guarded("FlashInferWorkspaceManager", lambda: self._workspace(module)))

    def _label(self, wrapping: Wrapping, runner: Runner, module: ModuleType) -> None:
        def wrap() -> None:
            kind, name = getattr(module, runner.attributes[0], None), runner.attributes[1]
            original = None if kind is None else vars(kind).get(name)
            if isinstance(original, FunctionType):
                self._patches.set(kind, name, labelled(original, runner, self._recorder))

        wrapping.guarded(runner, wrap)

    def _surround(self, bits: int, on: bool) -> None:
        with suppress(Exception):
            context = self._recorder.context
            self._recorder.context = context | bits if on else context & ~bits

    def _methods(self) -> None:
        import torch

        recorder, kind = self._recorder, torch.cuda.CUDAGraph
        began, ended, replayed = (
            _core.GraphWrapper(vars(kind)[name], recorder, event)
            for name, event in (("capture_begin", "begin"), ("capture_end", "end"), ("replay", "replay"))
        )

        def capture_end(graph: Any, *args: Any, **kwargs: Any) -> Any:
            with suppress(Exception):
                self._piecewise |= is_piecewise()
            return ended(graph, *args, **kwargs)

        update_wrapper(capture_end, ended.__wrapped__, (), ())  # its signature
        for name, method in (("capture_begin", began), ("capture_end", capture_end), ("replay", replayed)):
            self._patches.set(kind, name, method)

    def _deduplicated(self, module: ModuleType) -> None:
        """With SGLANG_ENABLE_CUDA_GRAPH_DEDUP segments are launched by SGLang itself: torch's method never runs."""
        kind = module.DedupedCudaGraphRegistry
        original = vars(kind)["replay"]
        count = _core.GraphWrapper(lambda _graph: None, self._recorder, "replay")

        def replay(registry: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(registry, graph, *args, **kwargs)
            with suppress(Exception):
                count(graph.original_graph)
            return result

        self._patches.set(kind, "replay", replay)

    # ------------------------------------------------------------------------------------------------- addresses

    def _meta(self, module: ModuleType) -> None:
        original = vars(module).get(_META_NAME)
        if original is None:
            return

        def get_graph_buffer_ipc_meta(*args: Any, **kwargs: Any) -> Any:
            found = original(*args, **kwargs)
            with suppress(Exception):
                self.register(len(found[1]))
            return found

        self._patches.set(module, _META_NAME, get_graph_buffer_ipc_meta)

    def _v2(self, module: ModuleType) -> None:
        """v0.5.16 on: a list that its registration empties. Before: two lists of the same length, shared one after the other."""
        kind = module.CustomAllReduceV2
        register, share = vars(kind).get("_register_graph_inputs"), vars(kind).get("_share_list")
        if register is not None:

            def _register_graph_inputs(comm: Any, *args: Any, **kwargs: Any) -> Any:
                with suppress(Exception):
                    self.register(len(comm._graph_inputs))
                return register(comm, *args, **kwargs)

            self._patches.set(kind, "_register_graph_inputs", _register_graph_inputs)
        elif share is not None:

            def _share_list(comm: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
                with suppress(Exception):
                    if not comm.disabled:  # its constructor shares too, before it is enabled
                        self._share(id(comm), len(given))
                return share(comm, given, *args, **kwargs)

            self._patches.set(kind, "_share_list", _share_list)

    def _share(self, comm: int, addresses: int) -> None:
        if comm in self._sharing:
            self._sharing.discard(comm)
        else:
            self._sharing.add(comm)
            self.register(addresses)

    def register(self, addresses: int) -> None:
        """Of one communicator; all groups that one graph_capture() entered are one registration of the same graphs."""
        with self._lock:
            if self._inside:
                self._registered = (self._registered or 0) + addresses
                return
        self._recorder.registered(addresses)

    # --------------------------------------------------------------------------------------------- FlashInfer's

    def _workspace(self, module: ModuleType) -> None:
        """A workspace that comes or goes changes what is expected."""
        kind = module.FlashInferWorkspaceManager
        for name in ("initialize", "cleanup"):
            original = vars(kind).get(name)
            if original is not None:
                self._patches.set(kind, name, self._changing(original))

    def _changing(self, original: Any) -> Any:
        def changes(manager: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(manager, *args, **kwargs)
            finally:
                with suppress(Exception):
                    self._expected.forget()
                    self._recorder.forget()

        update_wrapper(changes, original, (), ())  # its signature
        return changes

    # ------------------------------------------------------------------------------------------- graph_capture()

    def entered(self, group: Any) -> None:
        name = str(group.unique_name)
        with self._lock:
            if not self._inside:
                self._registered, self._piecewise = None, is_piecewise()
                self._first = self._recorder.counts()["graphs_used"] + 1
            self._inside.append(name)
        self._expected.captured(name)
        self._recorder.forget()
        self._surround(_CAPTURING, True)

    def left(self, group: Any) -> None:
        with self._lock:
            if self._inside:
                self._inside.remove(str(group.unique_name))
            outermost, registered = not self._inside, self._registered
        if outermost:
            self._surround(_CAPTURING, False)
            if registered or (registered is not None and self._waiting()):
                self._recorder.registered(registered)

    def _waiting(self) -> int:
        """Calls of these graphs that read their peers' inputs where they lie: of 0 addresses nothing is said where none were needed."""
        with Ring(self._recorder.path) as ring:
            return registering(ring.tables(), self._first, self._piecewise, saves_memory(self._expected))


class _Entered(AbstractContextManager[Any]):
    """SGLang's own context manager, and that it was entered."""

    def __init__(self, captures: Captures, group: Any, inner: Any) -> None:
        self._captures, self._group, self._inner = captures, group, inner

    def __enter__(self) -> Any:
        result = self._inner.__enter__()
        with suppress(Exception):
            self._captures.entered(self._group)
        return result

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> Any:
        try:
            return self._inner.__exit__(kind, error, trace)
        finally:
            with suppress(Exception):
                self._captures.left(self._group)
