"""Target: one thing that a bench measures by name, and the switches that bring it about on a Coordinator. Read by plan.py.

Whether a target takes a size is asked of the dispatch itself, never written down here.
Invariant: path, kernel and release tell targets apart, as they tell a file's cells apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .._decision import Decision
from .._releases import Release, resolve
from .._route import context_bits, decide
from .._run.switches import GATES, KERNELS, Settings
from .._types import Call, FrozenMap, Group

_V1, _V2 = "0.5.9", "0.5.16"
"""A release that has v1's kernels, and one that has V2's."""


@dataclass(frozen=True)
class Target:
    """What must run, and what brings it about."""

    name: str
    text: str
    path: str
    kernel: str = ""
    told: str = ""
    """Kernel that custom all-reduce is told to run; "" where it chooses itself."""
    sglang: str = _V1
    on: tuple[str, ...] = ()
    """Communicators that are enabled; custom and pynccl are disabled where they are not named."""
    piecewise: bool = False
    facts: Mapping[str, int] = field(default_factory=lambda: FrozenMap({}))
    ours: bool = False
    """No release of SGLang runs it."""

    def settings(self, group: Group, release: Release | None = None) -> Settings:
        """Everything that routes its calls. ``release``: another one than its own, which then chooses its kernels itself."""
        on = sum(GATES[name] for name in self.on)
        off = sum(GATES[name] for name in ("custom", "pynccl") if name not in self.on)
        return Settings(
            release or resolve(self.sglang),
            group.with_facts("given", f"target {self.name}", **{"own_torch_symm_mem": 0, **self.facts}),
            context_bits("piecewise") if self.piecewise else 0,
            off,
            on,
            "" if release else self.told,
        )


def _custom(kernel: str, sglang: str, text: str, ours: bool = False) -> Target:
    return Target(kernel, text, "custom", kernel, told=kernel, sglang=sglang, on=("custom",), ours=ours)


_ALL = (
    Target("pynccl_in_place", "ncclAllReduce, send buffer = receive buffer", "pynccl_in_place", on=("pynccl",)),
    Target("pynccl_out_of_place", "ncclAllReduce into a new tensor", "pynccl_out_of_place", piecewise=True),
    _custom("one_shot", _V1, "custom all-reduce v1, one shot"),
    _custom("two_shot", _V1, "custom all-reduce v1, two shots"),
    _custom("one_shot_push", _V2, "custom all-reduce V2, one shot, pushing"),
    _custom("one_shot_pull", _V2, "custom all-reduce V2, one shot, pulling"),
    _custom("two_shot_pull", _V2, "custom all-reduce V2, two shots, pulling"),
    _custom("two_shot_push", _V2, "custom all-reduce V2, two shots, pushing"),
    _custom("limit", _V1, "ours: the fastest that we know for small sizes", ours=True),
    Target("torch_distributed", "torch.distributed.all_reduce", "torch_distributed"),
    Target(
        "torch_symm_mem",
        "torch symmetric memory, two shots",
        "torch_symm_mem",
        "torch_two_shot",
        sglang=_V2,
        facts=FrozenMap({"own_torch_symm_mem": 1}),
    ),
)
TARGETS: Mapping[str, Target] = FrozenMap({target.name: target for target in _ALL})
GROUPS: Mapping[str, tuple[str, ...]] = FrozenMap({"custom": tuple(one.name for one in _ALL if one.path == "custom")})
"""Names for several targets: what ``targets`` takes besides."""


def routed(settings: Settings, nbytes: int, columns: int, dtype: str, captured: bool) -> Decision:
    """Where a plain tensor of this size goes with these settings; as the Coordinator decides it."""
    call = Call(nbytes=nbytes, dtype=dtype, hidden=columns)
    bits = settings.bits | (context_bits("capture") if captured else 0)
    return decide(settings.release, settings.group, call, bits, switches=(settings.off, settings.on, KERNELS[settings.kernel]))


def why_not(target: Target, decision: Decision) -> str:
    """Nothing where this decision is the target; else what is taken instead, and what stops the target's own gate."""
    if (decision.path, decision.kernel) == (target.path, target.kernel):
        return "" if decision.reduces else "it would not be reduced: a dry run, or a lost result"
    gate = decision.gates.get(target.path)
    stops = "; ".join(str(stop) for stop in gate.stops) if gate is not None else ""
    if stops:
        return stops
    if decision.error:
        return f"SGLang {decision.sglang} raises {decision.error} here"
    kernel = f" ({decision.kernel})" if decision.kernel else ""
    return f"SGLang {decision.sglang} takes {decision.path}{kernel} here"
