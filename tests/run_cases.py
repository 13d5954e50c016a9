"""Cases of the Coordinator: for every release that differs from the one before, and every outcome that its dispatch can have in a group
of that size, one concrete call (facts, context, toggles, tensor) that has it.

Called by test_coordinator.py and gpu/test_coordinator_gpu.py; run_ranks.py makes the calls. Invariant: a case is found by asking the
router about a grid of ordinary calls; nothing about any release stands here, so a release that is added brings its own cases.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal

from sglang_probe import Call, Decision, Group, _core
from sglang_probe._facts import DTYPE_BYTES, DTYPES, pack_call, pack_facts
from sglang_probe._proof.reach import rules_of
from sglang_probe._releases import RELEASES, resolve
from sglang_probe._route import PATHS, RULES, context_bits, decide, route

WORLD_SIZES = (2, 3, 4)
IN_CAPTURE, STREAM = context_bits("in_graph_capture"), context_bits("stream_capturing")
CAPTURE, COMPILE = context_bits("capture"), context_bits("compile")
_GATES = {name: 1 << i for i, name in enumerate(_core.GATES)}
_DEVICES = {name: i for i, name in enumerate(_core.DEVICES)}
Layout = Literal["plain", "dense", "odd"]
"""plain: contiguous, at a multiple of 16 bytes; dense: transposed, no gaps; odd: contiguous, at no multiple of 16 bytes."""


@dataclass(frozen=True)
class Setting:
    """What surrounds a call: facts of the group besides its size, and communicators whose ``disabled`` was set or cleared."""

    facts: tuple[tuple[str, int], ...] = ()
    off: tuple[str, ...] = ()
    on: tuple[str, ...] = ()

    def group(self, world_size: int) -> Group:
        facts = {name: world_size if value == _EVERY_RANK else value for name, value in self.facts}
        return Group.make(world_size=world_size, origin="assumed", **{"full_nvlink": 1, **facts})


@dataclass(frozen=True)
class Case:
    """One call of every rank of a group, and what surrounds it."""

    sglang: str
    world_size: int
    setting: Setting
    context: int
    """Bits of CONTEXTS."""
    nbytes: int
    dtype: str = "bf16"
    layout: Layout = "plain"
    seed: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Four rows where they come out even: [tokens, hidden]."""
        count = self.nbytes // DTYPE_BYTES[self.dtype]
        return (4, count // 4) if count % 4 == 0 else (1, count)

    @property
    def call(self) -> Call:
        plain = self.layout != "dense" or 1 in self.shape
        columns = self.shape[1]
        tagged = bool(self.group.value("symm_mem"))  # before v0.5.4.post3 the flag tags tensors
        return Call(self.nbytes, self.dtype, hidden=columns, contiguous=plain, aligned=self.layout != "odd", registered=tagged)

    @cached_property
    def group(self) -> Group:
        return self.setting.group(self.world_size)

    def decision(self, context: int | None = None) -> Decision:
        """What the router says, with the toggles of the case; another context where one is given."""
        bits = self.context if context is None else context
        if not self.setting.off and not self.setting.on:
            return route(self.call, self.group, context=names_of(bits), sglang=self.sglang)
        off, on = (sum(_GATES[name] for name in names) for names in (self.setting.off, self.setting.on))
        return decide(resolve(self.sglang), self.group, self.call, bits, switches=(off, on, 0))

    @property
    def captured(self) -> bool:
        return bool(self.context & STREAM)

    @property
    def warm_context(self) -> int | None:
        """Of the warm-up before a captured call."""
        return self.context & ~STREAM if self.captured else None

    @property
    def on_cuda(self) -> bool:
        return self.group.value("device") == _DEVICES["cuda"]

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value}" for name, value in self.setting.facts)
        toggles = [f"{name} off" for name in self.setting.off] + [f"{name} on" for name in self.setting.on]
        context = "+".join(names_of(self.context)) or "eager"
        parts = [
            f"{self.sglang} x{self.world_size}",
            context,
            facts,
            *toggles,
            f"{self.nbytes} B of {self.dtype} ({self.layout})",
        ]
        return ", ".join(filter(None, parts))


def names_of(bits: int) -> tuple[str, ...]:
    return tuple(name for i, (name, _) in enumerate(_core.CONTEXTS) if bits >> i & 1)


# --------------------------------------------------------------------------------------------------------------------------- the grid

_EVERY_RANK = -9
"""Stands for the world size."""


def _setting(off: str = "", on: str = "", **facts: int) -> Setting:
    return Setting(tuple(facts.items()), tuple(off.split()), tuple(on.split()))


_HIP, _MSCCLPP = {"device": _DEVICES["hip"], "arch": 942}, {"own_mscclpp": 1, "has_mscclpp": 1}
_PCIE = {"own_pcie_ipc": 1, "has_flashinfer_pcie": 1}
GRID: tuple[Setting, ...] = (  # the most ordinary first: the first call with an outcome becomes its case
    _setting(),
    _setting("custom"),
    _setting("custom", "pynccl"),
    _setting("pynccl"),
    _setting(own_custom=0),
    _setting(own_pynccl=0),
    _setting("custom", own_pynccl=0),
    _setting(own_custom=0, own_pynccl=0),
    _setting(symm_mem=1),
    _setting("custom", symm_mem=1),
    _setting(symm_mem=1, v2_multinode=1),
    _setting("custom", own_torch_symm_mem=1),
    _setting(own_torch_symm_mem=1, own_custom=0),
    _setting(own_torch_symm_mem=1, own_custom=0, own_pynccl=0),
    _setting("custom torch_symm_mem", own_torch_symm_mem=1),
    _setting(**_MSCCLPP),
    _setting("custom", **_MSCCLPP),
    _setting("custom", "mscclpp", **_MSCCLPP),
    _setting("mscclpp", **_MSCCLPP),
    _setting(**_MSCCLPP, own_custom=0, own_pynccl=0),
    _setting("custom", **_PCIE),
    _setting("custom pcie_ipc", **_PCIE),
    _setting(**_PCIE, own_custom=0, own_pynccl=0),
    _setting(fi_workspace=1),
    _setting(fi_workspace=1, fi_backend=1),
    _setting("flashinfer", fi_workspace=1),
    _setting(full_nvlink=0),
    _setting(custom_v2=1),
    _setting(custom_v2=0),
    _setting(v1_algo=2, custom_v2=0),
    _setting(v2_force_push_kb=64),
    _setting(v2_max_kb=64),
    _setting(multicast=0),
    _setting(arch=100),
    _setting(memory_saver_graph=1),
    _setting(vllm_custom=1),
    _setting(vllm_custom=0),
    _setting("custom", has_nccl=0),
    _setting(captured=0),
    _setting("custom", pdmux=1),
    _setting(has_custom_ops=0, custom_v2=0),
    _setting(**_HIP),
    _setting(**_HIP, qr_quantization=1),
    _setting("custom", **_HIP, qr_quantization=1),
    _setting("custom quick", **_HIP, qr_quantization=1),
    _setting(**_HIP, one_stage=1),
    _setting(**_HIP, one_stage=1, full_nvlink=0),
    _setting(**_HIP, has_aiter=1),
    _setting(device=_DEVICES["musa"]),
    _setting(device=_DEVICES["cpu"]),
    _setting(device=_DEVICES["cpu"], local_size=_EVERY_RANK),
    _setting(device=_DEVICES["hpu"]),
    _setting(device=_DEVICES["xpu"]),
    _setting(device=_DEVICES["npu"]),
)
CONTEXT_GRID = tuple(
    context_bits(name)
    for name in (
        "eager",
        "capture",
        "warmup",
        "piecewise_replay",
        "piecewise_capture",
        "piecewise_compile",
        "compile",
        "compiled_capture",
        "stream_capturing",  # a graph outside of graph_capture()
    )
)
SIZES = (16, 20, 4096, 300 << 10, (1 << 20) + 16, (2 << 20) + 16)
_TENSORS: tuple[tuple[int, str, Layout], ...] = tuple(
    (nbytes, dtype, layout)
    for nbytes in SIZES
    for dtype, layout in (
        ("bf16", "plain"),
        ("fp16", "plain"),
        ("fp32", "plain"),
        ("fp64", "plain"),
        ("bf16", "dense"),
        ("bf16", "odd"),
    )
    if nbytes % DTYPE_BYTES[dtype] == 0 and (layout == "plain" or nbytes >= 4096)
)

Outcome = tuple[str, str, str, str, bool, bool, bool, str, str]
"""What makes two calls different: rule, path, kernel, returned tensor, cloned, reduces, really captured; where it raises: what, and of
which kind of tensor."""
_CALL = ("nbytes", *(name for name, _, _ in _core.CALL_FACTS))
_Packed = tuple[tuple[int, ...], tuple[int, ...], int, int, int]
"""Facts, call, context, off and on, as the core takes them."""


def _pack(case: Case) -> _Packed:
    off, on = (sum(_GATES[name] for name in names) for names in (case.setting.off, case.setting.on))
    return pack_facts(case.group), pack_call(case.call), case.context, off, on


def _outcome(release: int, packed: _Packed) -> Outcome:
    facts, call, context, off, on = packed
    _, _, codes, described, _ = _core.route(release, facts, call, context, None, 0, off, on)
    path, rule, _, _, error = codes
    _, kernel, new, cloned, reduces, _ = described
    texts = (RULES[rule], str(PATHS[path]), _core.KERNELS[kernel][0], "new" if new else "input")
    tensor = dict(zip(_CALL, call, strict=True)) if error else {}
    kinds = [name for name, usual in (("contiguous", 1), ("aligned", 1)) if tensor.get(name, usual) != usual]
    kinds += ["fp64"] if tensor.get("dtype") == DTYPES["fp64"] else []
    return (*texts, bool(cloned), bool(reduces), bool(context & STREAM), _core.EXCEPTIONS[error][0], " ".join(kinds))


@lru_cache(maxsize=len(WORLD_SIZES))
def _points(world_size: int) -> tuple[tuple[_Packed, Case], ...]:
    """The grid for one world size, of no release yet."""
    every = [
        Case("", world_size, setting, context, nbytes, dtype, layout)
        for setting in GRID
        for context in CONTEXT_GRID
        for nbytes, dtype, layout in _TENSORS
    ]
    return tuple((_pack(case), case) for case in every)


def _varied(case: Case, outcome: Outcome, number: int) -> Case:
    """Another size, dtype and layout, in turn, where that changes nothing in the outcome: so all of them are called everywhere."""
    release, case = resolve(case.sglang).index, replace(case, seed=number)
    for other in (
        {"nbytes": (16, 4096 + 16, 48 << 10, 20)[number % 4]},
        {"dtype": ("bf16", "fp16", "fp32")[number % 3]},
        {"layout": ("plain", "dense", "odd")[number // 3 % 3]},
    ):
        changed = replace(case, **other)  # type: ignore[arg-type] # each by its own name
        if _outcome(release, _pack(changed)) == outcome:
            case = changed
    return case


@lru_cache(maxsize=256)
def cases_of(sglang: str, world_size: int) -> tuple[Case, ...]:
    """A case for each outcome that a release has at a world size."""
    found: dict[Outcome, Case] = {}
    release = resolve(sglang).index
    for packed, case in _points(world_size):
        found.setdefault(_outcome(release, packed), case)
    cases = [(replace(case, sglang=sglang), outcome) for outcome, case in found.items()]
    return tuple(_varied(case, outcome, number) for number, (case, outcome) in enumerate(cases))


# ------------------------------------------------------------------------------------------------------------------ releases and rules


def _representatives() -> dict[str, str]:
    """The last release of each run of releases with the same rules and the same gates, and its era."""
    last = {tuple(row[1:]): row[0] for row in _core.releases()}
    return {name: str(row[0]) for row, name in last.items()}


REPRESENTATIVES: dict[str, str] = _representatives()
ERAS: tuple[str, ...] = tuple(row[0] for row in _core.rulesets())


def unreached(sglang: str, world_size: int) -> tuple[set[str], set[str]]:
    """Rules of a release that no call of the grid takes, and those that every call of the grid only raises by."""
    cases = cases_of(sglang, world_size)
    decisions = [case.decision() for case in cases]
    reached, working = {d.rule for d in decisions}, {d.rule for d in decisions if not d.error}
    return set(rules_of(resolve(sglang))) - reached, reached - working


def releases_from_to(first: str, last: str) -> set[str]:
    """Representatives between two releases, both included."""
    return {name for name in REPRESENTATIVES if RELEASES.index(first) <= RELEASES.index(name) <= RELEASES.index(last)}
