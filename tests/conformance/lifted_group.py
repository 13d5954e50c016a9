"""SGLang's own groups: GroupCoordinator.__init__ lifted and run, with the communicators that it builds. Called by lifted_route.py.

Communicators are built as conform's comparisons build them, from the facts of the moment. Invariant: which of them a group has, and
in which state, is SGLang's own constructors' answer; a name that nobody gave is a LiftError.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sglang_probe._conform import communicators, others
from sglang_probe._conform import torch_stand_ins as fake
from sglang_probe._conform.custom_lab import AITER, Lab
from sglang_probe._conform.dispatch import FILE, METHODS, OPTIONAL, Dispatch
from sglang_probe._conform.gate import DEVICES, FACTS, Case
from sglang_probe._conform.mscclpp import FILE as MSCCLPP
from sglang_probe._conform.mscclpp import Communicators
from sglang_probe._source.lift import LiftError, Tree

_GROUP = ("GroupCoordinator.__init__", "GroupCoordinator.graph_capture")
_SPARE = ("GroupCoordinator._deterministic_collectives_enabled", "_group_coordinator_device")
_FACTS_OF = {  # what each constructor reads; equal facts share one communicator
    "quick": ("device arch world_size nodes full_nvlink has_custom_ops qr_cast_bf16 qr_quantization qr_max_mb".split()),
    "torch_symm_mem": "device arch world_size multicast inkling inkling_sconv".split(),
    "mscclpp": (
        "device world_size nodes fabric_clique consecutive has_custom_ops has_mscclpp multicast symm_mem mscclpp_max_bytes".split()
    ),
    "pynccl": "world_size has_nccl".split(),
    "pcie_ipc": "own_pcie_ipc world_size one_stage deterministic pcie_max_numel".split(),
}


@dataclass(frozen=True)
class Built:
    """One group: its facts, and each communicator with the state that its constructor left."""

    facts: Mapping[str, int]
    group: Any
    disabled: tuple[tuple[Any, bool], ...]

    def restore(self) -> None:
        """As the constructors left it: what a call leaves behind is not part of the next one."""
        for communicator, disabled in self.disabled:
            communicator.disabled = disabled
            kernels = vars(communicator).get("obj")
            if kernels is not None and "graph" in vars(kernels):
                kernels.graph = False  # V2's first form leaves it on after a call under the piecewise flag


class Unseen(Exception):
    """A group that cannot be asked: another package's class decides, or SGLang's constructor raises."""


class LiftedGroup(Dispatch):
    """One revision's group construction, communicators and dispatch, lifted."""

    def __post_init__(self) -> None:
        self._trace: list[str] = []
        self._compiling = self._piecewise = self._deterministic = self._shm = False
        self._new = self._input = None  # type: ignore[assignment] # set by each call
        self.facts: Mapping[str, int] = FACTS
        self.lab, self._asks = Lab(self.tree), _asks(self.tree)
        self._context: frozenset[str] = frozenset()
        self._mscclpp = Communicators(self.tree) if self.tree.exists(MSCCLPP) else None
        self._pcie: dict[str, Any] = {}
        lifted = self.tree.lift(
            FILE, (*METHODS, *_GROUP), {**self._namespace(), **self._constructor_names()}, (*OPTIONAL, *_SPARE)
        )
        self._scope = lifted["GroupCoordinator"].all_reduce.__globals__
        self._class = lifted["GroupCoordinator"]
        self._stage = SimpleNamespace(stream=lambda *_: fake.nothing())

    def fact(self, name: str) -> int:
        return self.facts.get(name, FACTS[name])

    def _constructor_names(self) -> dict[str, Any]:
        """What GroupCoordinator.__init__ and graph_capture look up, read from the facts of the moment."""
        stream = fake.Space(cuda_stream=0, wait_stream=fake.ignore)
        module = fake.Space(Stream=lambda *_: stream, current_stream=lambda *_: stream, stream=fake.nothing)
        torch = self._namespace()["torch"]
        torch.device, torch.get_device_module, torch.cuda = fake.Device, lambda *_: module, module
        torch.int32, torch.ones = fake.DTYPE["int32"], lambda *_, **__: None
        torch.distributed.get_rank = lambda: 0
        torch.distributed.new_group = lambda *_, **__: fake.Group()
        off = lambda **_: SimpleNamespace(disabled=True)  # noqa: E731 # the HPU's, XPU's and NPU's: not on these devices
        setting = {
            "SGLANG_USE_1STAGE_ALLREDUCE": lambda: None if self.fact("one_stage") < 0 else bool(self.fact("one_stage")),
            "SGLANG_ENABLE_DETERMINISTIC_INFERENCE": lambda: bool(self.fact("deterministic")),
            "SGLANG_ONE_VISIBLE_DEVICE_PER_PROCESS": lambda: False,
        }
        envs = SimpleNamespace(
            **{name: SimpleNamespace(get=get, is_set=lambda get=get: get() is not None) for name, get in setting.items()}
        )
        is_device = lambda *names: lambda: self.fact("device") in [DEVICES[n] for n in names]  # noqa: E731 # one line each, for the scope
        return {
            "torch": torch,
            "envs": envs,
            "logger": fake.logger(),
            "timedelta": timedelta,
            "nullcontext": contextlib.nullcontext,
            "GraphCaptureContext": lambda stream: fake.Space(stream=stream),
            "get_current_device_stream_fast": lambda: stream,
            "_get_unique_name": lambda name: f"{name}:0",
            "_register_group": fake.ignore,
            "_MODEL_PARALLEL_GROUP_TIMEOUT": None,
            "get_torch_distributed_pg_options": fake.ignore,
            "get_int_env_var": lambda name, default=0: self.fact("local_size"),
            "platforms": fake.Space(current_platform=fake.Space(is_out_of_tree=lambda: False)),
            "is_shm_available": self._shm_available,
            "is_cuda_alike": is_device("cuda", "hip"),
            "is_hip": is_device("hip"),
            "IS_ONE_DEVICE_PER_PROCESS": False,
            "_is_npu": False,
            "_is_xpu": False,
            "is_symmetric_memory_enabled": lambda: bool(self.fact("symm_mem")),
            "use_symmetric_memory": fake.nothing,
            "is_allocation_symmetric": lambda: True,
            "debug_check_symmetric_mempool": fake.ignore,
            "HpuCommunicator": off,
            "XpuCommunicator": off,
            "NpuCommunicator": off,
            "MessageQueue": fake.ignore,
            "PyNcclCommunicator": self._make_pynccl,
            "PyMscclppCommunicator": self._make_mscclpp,
            "CustomAllreduce": self._make_custom,
            "dispatch_custom_allreduce": lambda *_, **__: self._make_custom,
            "QuickAllReduce": self._make_quick,
            "qr_rocm_arch_available": lambda: self._quick() is not None,
            "TorchSymmMemCommunicator": self._make_symm,
            "SymmMemCommunicator": self._make_symm,
            "PcieIpcCommunicator": self._make_pcie,
            "eligible_group": self._eligible,
        }

    def build(self, facts: Mapping[str, int]) -> Built:
        """SGLang's own constructor for these facts. Raises Unseen where another package's communicator would be chosen."""
        self.facts = facts
        self.reset_facts()
        world, init = self.fact("world_size"), self._class.__init__
        flags = {
            "use_pynccl": bool(self.fact("own_pynccl")),
            "use_pymscclpp": bool(self.fact("own_mscclpp")),
            "use_mscclpp": bool(self.fact("own_mscclpp")),
            "use_custom_allreduce": bool(self.fact("own_custom")),
            "use_torch_symm_mem_all_reduce": bool(self.fact("own_torch_symm_mem")),
            "use_torch_symm_mem": bool(self.fact("own_torch_symm_mem")),
        }
        takes = inspect.signature(init).parameters
        given = {name: flags.get(name, True) for name in takes if name.startswith("use_")} | {
            "use_message_queue_broadcaster": False
        }
        group = object.__new__(self._coordinator_class())
        ranks = list(range(world)) if self.fact("consecutive") else [2 * r for r in range(world)]
        try:
            init(group, group_ranks=[ranks], local_rank=0, torch_distributed_backend="nccl", group_name="tp", **given)
        except (LiftError, Unseen, NameError):
            raise
        except Exception as error:  # SGLang's own: such a server does not start
            raise Unseen(f"the constructor raises {type(error).__name__}") from error
        group.debug_check_symmetric_mempool = fake.ignore
        group._can_use_flashinfer_allreduce = self._flashinfer_fits
        self.group = group
        self.observe(group)
        if self.fact("pdmux") and group.pynccl_comm is not None:
            group.pynccl_comm.disabled = False  # as the multiplexed runner does after the construction
        owned = [c for name, c in vars(group).items() if name.endswith("_comm") and c is not None]
        return Built(facts, group, tuple((c, c.disabled) for c in owned if hasattr(c, "disabled")))

    def reset_facts(self) -> None:
        self.lab.world.facts = {**FACTS, **self.facts}
        self._scope["_CA_V2_MULTINODE"] = bool(self.fact("v2_multinode"))  # both read when the module is imported
        self._scope["_is_musa"] = self.fact("device") == DEVICES["musa"]

    def _coordinator_class(self) -> type:
        if not hasattr(self, "_known_class"):
            unknown, lifted = self.unknown, self._class

            class Coordinator(lifted):  # type: ignore[misc,valid-type] # known at run time alone
                def __getattr__(self, name: str) -> Any:
                    if name.endswith(("_comm", "_communicator")):
                        unknown.add(name)
                        return None
                    raise LiftError(f"the group uses self.{name}, which the stand-in does not know")

            self._known_class = Coordinator
            resolve = getattr(lifted, OPTIONAL[0].partition(".")[2], None)
            if resolve is not None:

                def resolved(group: Any, *args: Any, **named: Any) -> Any:
                    method = resolve(group, *args, **named)
                    self._trace.append(f"resolved {method}")
                    return method

                Coordinator._resolve_outplace_all_reduce_method = resolved  # type: ignore[attr-defined] # as above
        return self._known_class

    def _case(self, name: str) -> Case:
        facts = {f: self.facts[f] for f in _FACTS_OF[name] if f in self.facts}
        return Case(0, facts=facts)

    def _built(self, name: str) -> Any:
        """The communicator that conform's comparison builds for these facts."""
        build = inspect.getclosurevars(self._asks[name]).nonlocals["build"]
        return build(tuple(sorted(self._case(name).facts.items())))

    def _quick(self) -> Any:
        return self._built("quick")

    def _make_quick(self, **_: object) -> Any:
        return self._quick()

    def _make_symm(self, **_: object) -> Any:
        return self._built("torch_symm_mem")

    def _make_custom(self, **_: object) -> Any:
        communicator = self.lab.build(self.facts)
        if communicator == AITER:
            raise Unseen("aiter")
        return communicator

    def _make_mscclpp(self, **_: object) -> Any:
        assert self._mscclpp is not None
        return self._mscclpp._built(tuple(sorted(self._case("mscclpp").facts.items())))

    def _make_pynccl(self, **_: object) -> Any:
        lifted = inspect.getclosurevars(self._asks["pynccl"]).nonlocals["lifted"]
        return lifted(self.fact("world_size"), self.fact("has_nccl"))(fake.Group(), device="cuda:0")

    def _eligible(self, **_: object) -> bool:
        self._pcie, eligible = self._built("pcie_ipc")
        return bool(eligible)

    def _make_pcie(self, device: Any, **_: object) -> Any:
        cls = self._pcie["PcieIpcCommunicator"]
        scope = cls.__init__.__globals__
        before = scope["__lifted_import__"]
        if not self.fact("has_flashinfer_pcie"):
            scope["__lifted_import__"] = communicators._no_import
        try:
            comm = cls(group=fake.Group(), device=device)
        finally:
            scope["__lifted_import__"] = before
        if self.fact("pcie_hidden"):
            comm.prepare(hidden=self.fact("pcie_hidden"), max_rows=self.fact("decode_rows"))
        else:
            comm._max_rows = self.fact("decode_rows")
        comm.pcie_ipc_all_reduce = self._pcie_run  # FlashInfer's own, in another package
        return comm

    def _pcie_run(self, _tensor: Any, **_: object) -> Any:
        self._trace.append("pcie_ipc")
        return self._new

    def _shm_available(self, dtype: Any, world: int, local: int) -> bool:
        case = Case(4096, facts={k: v for k, v in self.facts.items() if k in ("cpu_amx", "cpu_arm64")})
        path = "srt/utils/common.py" if self.tree.exists("srt/utils/common.py") else "srt/utils.py"
        namespace = {
            "torch": fake.torch(),
            "cpu_has_amx_support": lambda: bool(case.fact("cpu_amx")),
            "is_host_cpu_arm64": lambda: bool(case.fact("cpu_arm64")),
        }
        return bool(self.tree.lift(path, ["is_shm_available"], namespace)["is_shm_available"](dtype, world, local))

    def _flashinfer_fits(self, tensor: Any) -> bool:
        if not self.fact("fi_workspace") or "flashinfer" not in self._asks:
            return False
        found = inspect.getclosurevars(self._asks["flashinfer"]).nonlocals
        context = ("compiling",) if self._compiling else ()
        found["now"][0] = Case(0, facts=self.facts, context=context)
        key = ("tp", "tp")
        return bool(
            found["can_use"](tensor, use_attn_tp_group=True, expected_world_size=self.fact("world_size"), expected_group_key=key)
        )

    def observe(self, group: Any) -> None:
        """What is to be watched in a group that was just built."""


def _asks(tree: Tree) -> dict[str, Callable[[Case], Any]]:
    """How conform asks each communicator: taken from its comparisons before they compare anything."""
    found: dict[str, Callable[[Case], Any]] = {}

    def take(result: Any, _gate: Any, _cases: Any, ask: Callable[[Case], Any]) -> None:
        found[result.name] = ask

    with mock.patch.object(communicators, "compare", take), mock.patch.object(others, "compare", take):
        for compare in (
            communicators.compare_quick,
            communicators.compare_symm,
            communicators.compare_pcie,
            communicators.compare_pynccl,
            others.compare_flashinfer,
        ):
            compare(tree, tree.version)
    return found
