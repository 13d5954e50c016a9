"""Process groups as they are made: who they are, which rank this is, and what their constructor warned about. Called by session.py.

Invariant: a constructor runs as it did; what is looked at afterwards cannot fail it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import update_wrapper
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .arming import STATE, when_imported
from .context import set_sources
from .targets import FUSED, GROUP_NAME
from .telling import cut

if TYPE_CHECKING:
    from .. import _core
    from .expected import Expected
    from .patches import Patches

_KEPT = 20
_PYNCCL = "sglang.srt.distributed.device_communicators.pynccl"


class Warned(logging.Handler):
    """SGLang says in its log why a communicator is not there."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # a record that does not format is no reason to fail
            if len(self.texts) < _KEPT:
                self.texts.append(" ".join(record.getMessage().split()))


class Groups:
    """Those of this process."""

    def __init__(self, recorder: _core.Recorder, expected: Expected, patches: Patches) -> None:
        self._recorder, self._expected, self._patches = recorder, expected, patches
        self._ranked = False
        self.warnings: dict[str, list[str]] = {}
        """By the group's name: what was logged while it was made."""

    def follow(self, state: ModuleType, coordinator: type) -> None:
        for found in list(getattr(state, "_groups", {}).values()):
            with suppress(Exception):
                group = found()
                if group is not None:
                    self.made(group)
        when_imported(_PYNCCL, self._pynccl)
        original = vars(coordinator).get("__init__")
        if original is None:
            return

        def __init__(group: Any, *args: Any, **kwargs: Any) -> None:
            self.construct(original, group, *args, **kwargs)

        update_wrapper(__init__, original, (), ())  # its signature
        self._patches.set(coordinator, "__init__", __init__)

    def construct(self, constructor: Any, group: Any, *args: Any, **kwargs: Any) -> None:
        warned, logger = Warned(), logging.getLogger("sglang")
        logger.addHandler(warned)
        try:
            constructor(group, *args, **kwargs)
        finally:
            logger.removeHandler(warned)
        with suppress(Exception):
            self.made(group, warned.texts)

    def _pynccl(self, module: ModuleType) -> None:
        """Until its group is known, which is after its constructor and the all-reduce in it, it is not seen."""
        kind = getattr(module, "PyNcclCommunicator", None)
        if kind is not None:
            self._patches.set(kind, GROUP_NAME, "")

    def made(self, group: Any, warnings: list[str] | None = None) -> None:
        name = str(group.unique_name)
        self.warnings[name] = warnings or []
        self._expected.add(group)
        self._recorder.intern("note", cut(f"ranks of {name}: {', '.join(map(str, group.ranks))}"))
        pynccl = getattr(group, "pynccl_comm", None)
        if pynccl is not None:
            setattr(pynccl, GROUP_NAME, name)
        if not self._ranked:
            import torch.distributed

            self._recorder.set_rank(torch.distributed.get_rank(), torch.distributed.get_world_size())
            self._ranked = True
        set_sources(self._recorder, self._expected)
        self._recorder.forget()


def fused_group(module: ModuleType, chooses: bool) -> Callable[[bool], str]:
    """Who reduces in the fused operator of this module, by the functions that its own workspace is made by. ``chooses``: it is told for
    which of two groups."""

    def name(attention: bool) -> str:
        with suppress(Exception):  # a server that has not made them yet, or an SGLang that is not known
            return str(_reducing(module, chooses, attention).unique_name)
        return FUSED

    return name


def _reducing(module: ModuleType, chooses: bool, attention: bool) -> Any:
    names = {**vars(sys.modules[STATE]), **vars(module)}
    if not chooses:  # before v0.5.10rc0
        return names["get_tp_group"]()
    if "resolve_fusion_group" in names:  # v0.5.21 on
        return names["resolve_fusion_group"](use_attn_tp_group=attention)[2]
    if attention:
        return names["get_attn_tp_group"]()
    experts = names["get_moe_ep_group"]()
    return experts if experts.world_size > 1 else names["get_moe_tp_group"]()
