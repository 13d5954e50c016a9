"""SGLang in this process: imported, its distributed state made over our ranks, its groups built as its server does. Used by engine.py.

What a release calls its arguments and switches is looked up in it, and what it lacks is told; nothing of it is copied or replaced.
Invariant: every step is collective, and agreed (engine_ranks.py): what fails on one rank is refused on all of them alike.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import inspect
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from .._run.arrays import need_torch
from .._run.switches import GATES, Settings
from .._source.fetch import installed
from .._source.lift import Tree
from .._types import InputError, ProbeUnavailable
from .engine_ranks import agree, torch_group

if TYPE_CHECKING:
    from .._run.coordinator import Coordinator

_V2_SWITCHES = ("SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2", "SGLANG_USE_JIT_ALL_REDUCE")
_MODEL = "dummy"
"""What SGLang's own tests give its server arguments where there is no model."""


def installed_version() -> str:
    """Of the sglang that this Python would import, found without importing it. Raises ProbeUnavailable."""
    try:
        found = Tree(installed()).version
    except InputError as error:
        raise ProbeUnavailable(error.remedy) from None
    if not found:
        with contextlib.suppress(PackageNotFoundError):
            found = version("sglang")
    if not found:
        raise ProbeUnavailable(f"the sglang in {installed()} does not say its version")
    return found


@dataclass(frozen=True)
class Built:
    """What a group is built with; one GroupCoordinator each."""

    pynccl: bool = False
    custom: bool = False
    mscclpp: bool = False
    torch_symm_mem: bool = False
    v2: int = -1
    """Custom all-reduce V2: 1 or 0 by its switch in the environment, -1 as the environment is."""

    def __str__(self) -> str:
        names = [name for name in ("pynccl", "custom", "mscclpp", "torch_symm_mem") if getattr(self, name)]
        return f"a group with {', '.join(names) or 'no communicator'}"


class Engine:
    """One rank's SGLang; made once, by the first call that needs it."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._c, self._on_gpu = coordinator, coordinator.device == "gpu"
        self._groups: dict[Built, Any] = {}
        self._refused: dict[Built, str] = {}
        self._heard = _Heard()
        self.version = installed_version()
        self.state: Any = agree(coordinator, f"sglang {self.version} does not import here", self._import)
        self.backend = "nccl" if self._on_gpu else "gloo"
        group = torch_group(coordinator, self.backend)
        agree(coordinator, "torch's process group", lambda: group.make(coordinator.timeout_s))
        agree(coordinator, f"sglang {self.version}'s distributed environment", self._begin)
        atexit.register(self._end)

    def _import(self) -> Any:
        need_torch()
        with self._heard:
            return importlib.import_module("sglang.srt.distributed.parallel_state")

    def _begin(self) -> None:
        """As SGLang's model runner does it, over the process group that is there."""
        with self._heard:
            if self._on_gpu:
                self._publish()
            patch = getattr(importlib.import_module("sglang.srt.utils"), "monkey_patch_p2p_access_check", None)
            if patch is not None and self._on_gpu and not self._c.settings.group.value("p2p_check"):
                patch()  # SGLang's own, which it calls without --enable-p2p-check
            self.state.init_distributed_environment(
                world_size=self._c.world_size,
                rank=self._c.rank,
                distributed_init_method="env://",  # not used: the default group is there
                local_rank=self._local_rank(),
                backend=self.backend,
            )

    def _publish(self) -> None:
        """The server's arguments, which each call on a GPU asks. Where there are none it is told so by an exception, which costs more."""
        module = importlib.import_module("sglang.srt.server_args")
        module.set_global_server_args_for_scheduler(module.ServerArgs(model_path=_MODEL))

    def _local_rank(self) -> int:
        return int(need_torch().cuda.current_device()) if self._on_gpu else 0

    def group(self, built: Built) -> Any:
        """The GroupCoordinator that is built so, by SGLang's own function; the same one each time. Collective."""
        if built in self._refused:
            raise ProbeUnavailable(self._refused[built])
        if built not in self._groups:
            try:
                self._groups[built] = agree(self._c, f"sglang {self.version} does not build {built}", lambda: self._build(built))
            except ProbeUnavailable as error:
                self._refused[built] = str(error)
                raise
        return self._groups[built]

    def _build(self, built: Built) -> Any:
        make = self.state.init_model_parallel_group
        known = inspect.signature(make).parameters
        mscclpp = next((name for name in ("use_mscclpp_allreduce", "use_mscclpp") if name in known), "")
        if not mscclpp and built.mscclpp:
            raise ProbeUnavailable(f"sglang {self.version} has no MSCCL++ switch for a group")
        asked = {
            "group_ranks": [list(range(self._c.world_size))],
            "local_rank": self._local_rank(),
            "backend": self.backend,
            "use_pynccl": built.pynccl,
            "use_custom_allreduce": built.custom,
            "use_torch_symm_mem_allreduce": built.torch_symm_mem,
            "group_name": "tp",
            **({mscclpp: built.mscclpp} if mscclpp else {}),
        }
        with self._heard, _environment(built.v2):
            group = make(**asked)
        missing = _missing(group, built)
        if missing:
            raise ProbeUnavailable(f"sglang {self.version} has no working {missing} on this machine{self._heard.because()}")
        return group

    @contextlib.contextmanager
    def surroundings(self, group: Any, settings: Settings, captured: bool) -> Iterator[None]:
        """What a server sets around calls that take this route, by SGLang's own switches; the gradient mode of its forward."""
        torch = need_torch()
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.no_grad())
            for gate, name in (("pynccl", "pynccl_comm"), ("mscclpp", "pymscclpp_comm")):
                if settings.on & GATES[gate] and not captured:  # graph_capture() does it by itself
                    stack.enter_context(_enabled(getattr(group, name), torch.cuda.current_stream))
            if settings.bits:
                stack.enter_context(self._piecewise())
            yield

    @contextlib.contextmanager
    def _piecewise(self) -> Iterator[None]:
        asks = next((n for n in ("is_in_piecewise_cuda_graph", "is_in_tc_piecewise_cuda_graph") if hasattr(self.state, n)), "")
        module = importlib.import_module(getattr(self.state, asks).__module__) if asks else None
        enable = getattr(module, asks.replace("is_in_", "enable_"), None)
        if enable is None:
            raise ProbeUnavailable(f"sglang {self.version} has no piecewise CUDA graph flag that is known here")
        try:
            with enable():
                yield
        finally:
            if getattr(module, asks)():  # what it raised went past SGLang's own reset: setting it again resets it
                with enable():
                    pass

    def _end(self) -> None:
        """The process ends: what communicators would do in their destructors needs groups that are gone by then."""
        for group in self._groups.values():
            if getattr(group, "ca_comm", None) is not None:
                group.ca_comm.disabled = True


def engine_of(coordinator: Coordinator) -> Engine:
    """The rank's own. What kept it from being made is kept too, and told again: half an SGLang cannot be tried twice. Collective."""
    kept = vars(coordinator).setdefault("engine", {})
    if "why" in kept:
        raise ProbeUnavailable(kept["why"])
    if "engine" not in kept:
        try:
            kept["engine"] = Engine(coordinator)
        except ProbeUnavailable as error:
            kept["why"] = str(error)
            raise
    engine: Engine = kept["engine"]
    return engine


def _missing(group: Any, built: Built) -> str:
    """A communicator that was asked for and is not to be used; "" where all are. pynccl is disabled as built."""
    asked = (
        ("ca_comm", built.custom, "disabled", False),
        ("torch_symm_mem_comm", built.torch_symm_mem, "disabled", False),
        ("pynccl_comm", built.pynccl, "available", True),
    )
    for name, wanted, attribute, usable in asked:
        if wanted and getattr(getattr(group, name, None), attribute, not usable) is not usable:
            return name
    return ""


# ----------------------------------------------------------------------------------------------------------------------- its switches


@contextlib.contextmanager
def _enabled(communicator: Any, stream: Callable[[], Any]) -> Iterator[None]:
    """``change_state(enable=True)``; before v0.5.10 pynccl's takes the stream too, and forgets what was before where a call raises."""
    known = inspect.signature(communicator.change_state).parameters
    before = {name: getattr(communicator, name) for name in ("disabled", "stream") if hasattr(communicator, name)}
    try:
        with communicator.change_state(enable=True, **({"stream": stream()} if "stream" in known else {})):
            yield
    finally:
        for name, value in before.items():
            setattr(communicator, name, value)


@contextlib.contextmanager
def _environment(v2: int) -> Iterator[None]:
    """V2's switch, while a group is built; both names that it has had."""
    if v2 < 0:
        yield
        return
    before = {name: os.environ.get(name) for name in _V2_SWITCHES}
    os.environ.update(dict.fromkeys(_V2_SWITCHES, str(v2)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _Heard(logging.Handler):
    """SGLang says in its log why a communicator is not there. Within the block it is listened to."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):  # a log record that does not format is no reason to fail
            self._said.append(" ".join(record.getMessage().split()))

    def because(self) -> str:
        said = "; ".join(list(dict.fromkeys(self._said))[-3:])
        return f": it says {said!r}" if said else ", and it does not say why"

    def __enter__(self) -> _Heard:
        logging.getLogger("sglang").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("sglang").removeHandler(self)
