"""A server on its way from arguments to what they mean. Written by the rules of implied*.py, read by launch.py.

Invariant: a setting's reason says who set it; what a person gave is only replaced where SGLang replaces it too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._types import Model, Setting
from .._versions import version_key
from .defaults import Changes, at
from .hardware import Gpu


@dataclass
class State:
    """A server on its way from arguments to what they mean; rules write to it."""

    sglang: str
    args: dict[str, Setting]
    env: Mapping[str, str]
    model: Model | None
    gpu: Gpu
    link: str
    link_known: bool = False
    """A person, or the driver, said how the GPUs are linked."""
    resolved: bool = False
    """The arguments come from a running server, which applied its own rules already."""
    assumed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def get(self, name: str, default: Any = None) -> Any:
        setting = self.args.get(name)
        return default if setting is None or setting.value is None else setting.value

    def number(self, name: str, default: int = 1) -> int:
        return int(self.get(name, default))

    def given(self, name: str) -> bool:
        setting = self.args.get(name)
        return setting is not None and setting.origin in ("given", "found")

    def imply(self, name: str, value: Any, reason: str) -> None:
        old = self.args.get(name)
        if old is None or old.value != value:
            self.args[name] = Setting(value, "implied", reason)

    def within(self, since: str, until: str | None = None) -> bool:
        """Whether the release is ``since`` or later, and before ``until``."""
        key = version_key(self.sglang)
        return version_key(since) <= key and (until is None or key < version_key(until))

    def at(self, changes: Changes) -> Any:
        return at(changes, self.sglang)

    def flag(self, name: str, default: bool = False) -> bool:
        """An environment variable as SGLang reads a boolean."""
        text = self.env.get(name)
        return default if text is None else text.strip().lower() in ("1", "true", "yes", "y", "t", "on")

    @property
    def arch(self) -> str:
        return self.model.arch if self.model else ""

    @property
    def hip(self) -> bool:
        return self.gpu.device == "hip"

    @property
    def device(self) -> str:
        """Kind of device as facts know it: --device where that is no GPU of ours, else the GPU's."""
        named = str(self.get("device", "cuda")).partition(":")[0]
        return self.gpu.device if named == "cuda" else named

    @property
    def attn_dp_size(self) -> int:
        """Groups of data-parallel attention; 1 without it."""
        if self.within("0.5.22") and self.number("attn_dp_size") > 1:
            return self.number("attn_dp_size")
        return self.number("dp_size") if self.get("enable_dp_attention", False) else 1

    @property
    def attn_tp_size(self) -> int:
        return max(1, self.number("tp_size") // (self.attn_dp_size * self.number("attn_cp_size")))

    @property
    def a2a(self) -> str:
        return str(self.get("moe_a2a_backend", "none"))

    @property
    def algorithm(self) -> str:
        return str(self.get("speculative_algorithm", "")).upper()


Value = Any  # a value, or a function of the state that gives it


@dataclass(frozen=True)
class Rule:
    since: str
    until: str | None
    when: Callable[[State], Any]
    effects: Mapping[str, Value]
    reason: str
