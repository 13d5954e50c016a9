"""What of a Coordinator can be switched, and what it is made of: its settings, its communicators, its captures, and paths in Python.

Used by coordinator.py. Invariant: a switch goes through Coordinator.apply, like every toggle.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from .. import _core
from .._releases import Release
from .._types import FrozenMap, Group, InputError

if TYPE_CHECKING:
    from .coordinator import Coordinator

GATES: Mapping[str, int] = FrozenMap({name: 1 << i for i, name in enumerate(_core.GATES)})
KERNELS: Mapping[str, int] = FrozenMap({name: i for i, (name, _, _) in enumerate(_core.KERNELS)})


@dataclass(frozen=True)
class Settings:
    """What a call is routed by, besides its tensor: kept with each Reduced, so that its Decision is that of the call."""

    release: Release
    group: Group
    bits: int = 0
    off: int = 0
    on: int = 0
    kernel: str = ""


class PythonPath(Protocol):
    """A path that stands in Python: torch's own."""

    def supports(self, nbytes: int, dtype: str) -> str:
        """``""``, or why not."""

    def enqueue(self, tensor: Any, out: Any, timeout_s: float) -> None:
        """Writes the sum into ``out``, which may be ``tensor``; on the current stream."""

    def finish(self, timeout_s: float) -> None:
        """Until what was enqueued is done; called where calls are timed."""


class Communicator:
    """One communicator of a Coordinator, to be switched: ``coordinator.custom.disabled = True``."""

    __slots__ = ("_coordinator", "name")  # so that a mistyped switch is an error

    def __init__(self, coordinator: Coordinator, name: str) -> None:
        self._coordinator, self.name = coordinator, name

    @property
    def disabled(self) -> bool | None:
        """What somebody set it to; None as built, where its constructor and graph_capture() decide (see ``state``)."""
        s, bit = self._coordinator.settings, GATES[self.name]
        return True if s.off & bit else False if s.on & bit else None

    @disabled.setter
    def disabled(self, value: bool | None) -> None:
        # False switches on what SGLang itself switches by graph_capture() (pynccl, mscclpp); of the others it undoes a True
        if value is not None and not isinstance(value, bool):
            raise InputError(f"{self.name}.disabled", value, "give True, False, or None for as built")
        s, bit = self._coordinator.settings, GATES[self.name]
        off = s.off | bit if value else s.off & ~bit
        on = s.on | bit if value is False else s.on & ~bit
        self._coordinator.apply(replace(s, off=off, on=on))

    def state(self, tensor: Any) -> str:
        """What its gate answers for this tensor now: ``absent``, ``disabled``, ``declines``, ``accepts``, ``enabled``, ``raises``."""
        return self._coordinator.decide(tensor).gates[self.name].state

    def __repr__(self) -> str:
        state = {None: "as built", True: "disabled", False: "enabled"}[self.disabled]
        return f"<{self.name} of rank {self._coordinator.rank}: {state}>"


class Custom(Communicator):
    """Custom all-reduce, whose kernel can be chosen."""

    __slots__ = ()

    @property
    def kernel(self) -> str:
        """``""``: SGLang's own choice. ``limit`` is ours: the fastest that we know for small sizes, which no release runs."""
        return self._coordinator.settings.kernel

    @kernel.setter
    def kernel(self, value: str) -> None:
        if value not in KERNELS:
            raise InputError(
                "custom.kernel", value, f"give one of {', '.join(k for k in KERNELS if k)}, or '' for SGLang's choice"
            )
        self._coordinator.apply(replace(self._coordinator.settings, kernel=value))


class Capture:
    """Captured calls of one rank."""

    def __repr__(self) -> str:
        done = self.graph is not None or self.torch_graph is not None
        return f"<Capture of rank {self._coordinator.rank}: {'refused' if self.refused else 'whole' if done else 'unfinished'}>"

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self.graph: _core.Graph | None = None
        self.torch_graph: Any = None
        self.refused = ""

    def replay(self, times: int = 1) -> None:
        """Runs what was captured; on GPUs it is enqueued on the current stream."""
        if isinstance(times, bool) or not isinstance(times, int) or times < 1:
            raise InputError("times", times, "give a whole number, 1 or more")
        if self.refused:
            raise InputError("replay", "a refused capture", f"its addresses were not exchanged ({self.refused}); capture anew")
        if self._coordinator._capture_depth:
            raise InputError(
                "replay", "inside graph_capture()", "leave graph_capture() first: peers' addresses are exchanged there"
            )
        if self.graph is not None:
            self.graph.replay(times)
        elif self.torch_graph is not None:
            for _ in range(times):
                self.torch_graph.replay()
        else:
            raise InputError("replay", "unfinished", "the capture has not ended: leave `with coordinator.graph()` first")
