"""The nouns of the public API: facts, groups, calls, models, servers. Every other module imports them; they import only the core, whose
exceptions are the package's, and what shows a noun in a notebook.

Invariant: a fact never travels without its origin (given, found or assumed), so an answer can always print what it rests on.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from ._core import ProbeError, ProbeUnavailable
from ._shown import Shown

__all__ = [  # the two exceptions too: they are made by the core, and belong to the nouns
    "Call",
    "Fact",
    "FrozenMap",
    "Fusion",
    "Group",
    "InputError",
    "Model",
    "Origin",
    "Path",
    "ProbeError",
    "ProbeUnavailable",
    "Server",
    "Setting",
]

Origin = Literal["given", "found", "assumed"]


class InputError(ProbeError, ValueError):
    """Bad input. Names the field, the value and the remedy; the command line ends with status 2."""

    def __init__(self, name: str, value: object, remedy: str) -> None:
        super().__init__(f"{name}={value!r}: {remedy}")
        self.field, self.value, self.remedy = name, value, remedy

    def __reduce__(self) -> tuple[Any, ...]:
        # an exception is pickled by its text alone, which is not what makes this one
        return type(self), (self.field, self.value, self.remedy)


InputError.__module__ = "sglang_probe"  # where people find it, as the two that the core makes


class Path(str, enum.Enum):
    """What executes an all-reduce. A string: ``Path.CUSTOM == "custom"``."""

    NONE = "none"
    CUSTOM = "custom"
    QUICK = "quick"
    MSCCLPP = "mscclpp"
    TORCH_SYMM_MEM = "torch_symm_mem"
    FLASHINFER = "flashinfer"
    PYNCCL_IN_PLACE = "pynccl_in_place"
    PYNCCL_OUT_OF_PLACE = "pynccl_out_of_place"
    TORCH_DISTRIBUTED = "torch_distributed"
    CPU_SHM = "cpu_shm"
    RAISES = "raises"
    PCIE_IPC = "pcie_ipc"

    def __str__(self) -> str:
        return self.value

    def __format__(self, spec: str) -> str:
        return str.__format__(self.value, spec)  # the name, on every Python


K = TypeVar("K")
V_co = TypeVar("V_co", covariant=True)


class FrozenMap(Mapping[K, V_co]):
    """A mapping that does not change: hashable, comparable and picklable, so that what holds it is."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[K, V_co] | None = None) -> None:
        self._items: dict[K, V_co] = dict(items or {})

    def __getitem__(self, key: K) -> V_co:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


@dataclass(frozen=True)
class Fact(Shown):
    """One thing that a gate may ask: its value, and where it comes from."""

    value: int
    origin: Origin
    source: str = ""


@dataclass(frozen=True)
class Group(Shown):
    """A process group as SGLang's GroupCoordinator sees it. ``facts`` holds what is known; all else is a default, printed as assumed.

    Made by ``Group.make(world_size=8, arch=90, full_nvlink=True, ...)``; field names are those of ``_core.FACTS``.
    """

    name: str = "tp"
    facts: Mapping[str, Fact] = field(default_factory=lambda: FrozenMap({}))

    def __post_init__(self) -> None:
        from ._facts import check_facts

        check_facts({name: fact.value for name, fact in self.facts.items()})

    @classmethod
    def make(cls, name: str = "tp", origin: Origin = "given", **facts: int | bool) -> Group:
        return cls(name).with_facts(origin, "", **facts)

    def with_facts(self, origin: Origin = "given", source: str = "", **facts: int | bool) -> Group:
        """This group with some facts set, all with the same origin."""
        from ._facts import check_facts

        new = {k: Fact(v, origin, source) for k, v in check_facts(facts).items()}
        return replace(self, facts=FrozenMap({**self.facts, **new}))

    def value(self, name: str) -> int:
        """The value of a fact, its default where nothing is known."""
        from ._facts import fact_value

        return fact_value(self, name)

    @property
    def world_size(self) -> int:
        return self.value("world_size")


@dataclass(frozen=True)
class Call(Shown):
    """One all-reduce: where it is made, on which group, and its tensor ([tokens, hidden], or plain ``nbytes``)."""

    nbytes: int
    dtype: str = "bf16"
    site: str = ""
    group: str = "tp"
    tokens: int = 0
    hidden: int = 0
    dims: int = 2
    contiguous: bool = True
    weak_contiguous: bool = True
    aligned: bool = True
    registered: bool = False
    count: int = 1
    """How many times the step makes this very call (one record a layer keeps them apart; 61 layers may be one record)."""


@dataclass(frozen=True)
class Model(Shown):
    """What of a model decides its all-reduces. From a preset or a Hugging Face config.json."""

    name: str
    arch: str
    layers: int
    hidden: int
    vocab: int
    dtype: str = "bf16"
    dense_layers: int = 0
    experts: int = 0
    experts_per_token: int = 0
    source: str = ""
    """Where the numbers come from: a config.json's path, or the preset's citation."""
    config: Mapping[str, Any] = field(default_factory=lambda: FrozenMap({}), repr=False)


@dataclass(frozen=True)
class Setting(Shown):
    """One server argument after SGLang's own defaults and implied settings were applied."""

    value: Any
    origin: Literal["given", "found", "default", "implied"]
    reason: str = ""
    """Why it is so, where it was implied: the rule of that release in our words."""


@dataclass(frozen=True)
class Fusion(Shown):
    """Whether all-reduce + residual + norm are fused in this server, and up to how many tokens."""

    enabled: bool
    reason: str
    max_tokens: int = 0
    max_tokens_mlp: int = 0
    backend: str = ""
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Server(Shown):
    """A server as its launch line, log or URL describes it, resolved for one release."""

    sglang: str
    source: str
    args: Mapping[str, Setting]
    env: Mapping[str, str]
    groups: Mapping[str, Group]
    model: Model | None
    decode_graph: bool
    """Decode and verify batches are captured into CUDA graphs."""
    captured_batches: tuple[int, ...]
    """Batch sizes (requests) for which a graph is captured; a batch is padded up to the next one."""
    prefill_graph: Literal["none", "tc_piecewise", "breakable", "full"]
    fusion: Fusion
    draft_tokens: int
    """Tokens that one request has in a verify step; 1 without speculation."""
    speculative_steps: int = 0
    speculative_topk: int = 0
    speculative_algorithm: str | None = None
    notes: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    """Lines of a log that say something else than the flags, each with its line number."""
    prefill_reason: str = ""
    """Why the prefill graph is what it is: the setting that says so."""

    def __repr__(self) -> str:
        """Not its fields: a notebook keeps this text beside the page, and a key may be among them."""
        model = self.model.name if self.model else "an unknown model"
        return f"<Server: {model}, {len(self.groups)} groups, SGLang {self.sglang}; read from {self.source}>"
