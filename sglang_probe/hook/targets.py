"""What of SGLang is wrapped, from which release on: one table. Read by wrapping.py; a test holds it against every release's own code.

Outer targets open a record: the methods in which SGLang's operators end, so that direct callers of an operator are seen too. Inner ones
say what ran. Left alone is whatever Dynamo traces, where a C callable is an error under fullgraph: ``all_reduce`` itself, the predicates,
the norm that calls the fused operator. So some is not seen: what ``all_reduce`` does without an operator on CPU, and on AMD (deterministic
kernels, aiter's fused norm). ``auto`` is told by its result: the operator is entered, and what it resolved to is the path that ran.

Invariant: a target that its release should have and does not is told once; one that it has runs as before, with a record of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .._releases import FIRST
from .._types import Path
from .._versions import at_least

GROUP_NAME = "_sglang_probe_group"
"""Attribute of a pynccl communicator: the name of the group that owns it, which it does not know."""
FUSED = "fused"
"""Entry and operation of the fused operator; and its group, where SGLang does not say which it is."""

_STATE = "distributed.parallel_state:GroupCoordinator."
_COMMUNICATORS = "distributed.device_communicators."
_V1 = _COMMUNICATORS + "custom_all_reduce:CustomAllreduce."
_V2 = _COMMUNICATORS + "custom_all_reduce_v2:CustomAllReduceV2."
_PYNCCL = _COMMUNICATORS + "pynccl:PyNcclCommunicator."
_FUSION = "layers.flashinfer_comm_fusion:"


@dataclass(frozen=True)
class Target:
    """One function of SGLang's, and what it means that it was entered."""

    where: str
    """``module:attribute.attribute``, in ``sglang.srt``."""
    since: str = FIRST
    until: str = ""
    """The first release that does not have it; ``""``: all that are known have it."""
    entry: str = ""
    """The record's; ``""``: an inner one, which opens none."""
    path: Path | None = None
    """What runs: of an outer one, unless an inner one says otherwise."""
    op: str = ""
    argument: int = 1
    keyword: str = ""
    group: str = ".unique_name"
    which: str = ""
    """The argument that the group of a fused call depends on, in releases that have it."""
    dry: int = -1
    unless: str = ""
    kernels: str = ""
    """The table in kernels.py by which its result names a kernel."""
    body: bool = False
    """torch holds the function as an operator, and others by their own names: its body is what changes."""

    @property
    def module(self) -> str:
        return "sglang.srt." + self.where.partition(":")[0]

    @property
    def attributes(self) -> tuple[str, ...]:
        return tuple(self.where.partition(":")[2].split("."))

    def within(self, release: str) -> bool:
        """Whether this release should have it."""
        return at_least(release, self.since) and not (self.until and at_least(release, self.until))

    def __str__(self) -> str:
        return f"{self.module}.{'.'.join(self.attributes)}"


def _fused(name: str, since: str, until: str = "") -> Target:
    where, which = _FUSION + name, "use_attn_tp_group"
    return Target(where, since, until, FUSED, Path.FLASHINFER, FUSED, 0, "input_tensor", FUSED, which, body=True)


TARGETS: tuple[Target, ...] = (
    # where SGLang's operators end
    Target(_STATE + "_all_reduce_out_place", entry="out_place", op="out_of_place", keyword="input_"),
    Target(_STATE + "_all_reduce_in_place", entry="in_place", op="in_place", keyword="input_", path=Path.TORCH_DISTRIBUTED),
    Target(
        _STATE + "_flashinfer_allreduce", "0.5.18", entry="flashinfer", op="out_of_place", keyword="input_", path=Path.FLASHINFER
    ),
    _fused("flashinfer_allreduce_add_rmsnorm", "0.4.9", "0.4.9.post1"),
    _fused("flashinfer_allreduce_residual_rmsnorm", "0.4.9.post1"),
    # NCCL's symmetric memory goes past the operators, straight to pynccl; elsewhere this one is inside of an operator
    Target(
        _PYNCCL + "all_reduce",
        entry="symm_mem_bypass",
        path=Path.PYNCCL_IN_PLACE,
        op="in_place",
        keyword="tensor",
        group="." + GROUP_NAME,
        unless="disabled",
    ),
    # what runs inside
    Target(_PYNCCL + "outplace_all_reduce", "0.5.9", path=Path.PYNCCL_OUT_OF_PLACE, unless="disabled"),
    Target(_V1 + "custom_all_reduce", path=Path.CUSTOM, dry=1),
    Target(_V1 + "all_reduce", until="0.5.10", dry=0),
    Target(_V1 + "all_reduce_reg", "0.4.3.post3", "0.5.10", dry=0),
    Target(_V1 + "all_reduce_unreg", "0.4.3.post3", "0.5.10", dry=0),
    Target(_V1 + "_all_reduce_impl", "0.5.10", dry=0),
    Target(_V2 + "custom_all_reduce", "0.5.10rc0", path=Path.CUSTOM),
    Target(_V2 + "_determine_algo", "0.5.10rc0", "0.5.16", kernels="algorithm"),
    Target(_V2 + "_pick_algo", "0.5.16", "0.5.19", kernels="algorithm_and_mode"),
    Target(_V2 + "_pick_config", "0.5.19", kernels="config"),
    Target(_V2 + "_eager_plan", "0.5.23", kernels="plan"),
    Target(_COMMUNICATORS + "quick_all_reduce:QuickAllReduce.quick_all_reduce", "0.4.9.post4", path=Path.QUICK),
    Target(_COMMUNICATORS + "pymscclpp:PyMscclppCommunicator.all_reduce", "0.4.7", path=Path.MSCCLPP),
    Target(_COMMUNICATORS + "symm_mem:SymmMemCommunicator.all_reduce", "0.5.3rc2", "0.5.4.post3", path=Path.TORCH_SYMM_MEM),
    Target(_COMMUNICATORS + "torch_symm_mem:TorchSymmMemCommunicator.all_reduce", "0.5.4.post3", path=Path.TORCH_SYMM_MEM),
    Target(_COMMUNICATORS + "pcie_ipc_ar:PcieIpcCommunicator.pcie_ipc_all_reduce", "0.5.21", path=Path.PCIE_IPC),
)
ESSENTIAL = TARGETS[:2]
"""Without these nothing can be said about a release."""


def targets_of(release: str | None) -> Iterable[Target]:
    """Those that a release should have; all, of one that is not known: what it has of them is wrapped, what it lacks is nobody's fault."""
    return (target for target in TARGETS if release is None or target.within(release))
