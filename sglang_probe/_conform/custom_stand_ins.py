"""Stand-ins for what SGLang's custom all-reduce classes talk to: tensors, torch, environment variables and kernels.

They read the facts of the moment from a `World`; what a kernel would do is written into its log. Used by _custom_lab.
Invariant: nothing is computed, and an attribute that a stand-in lacks is a gap of ours, never an answer of SGLang's.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping
from typing import Any

from .._source.lift import LiftError
from . import torch_stand_ins as stand
from .gate import DEVICES, FACTS

_SWITCHES = {  # environment variable: the fact behind it; -1, or SGLang's own default, leaves it unset
    "SGLANG_MEMORY_SAVER_CUDA_GRAPH": "memory_saver_graph",
    "SGLANG_USE_1STAGE_ALLREDUCE": "one_stage",
    "SGLANG_ENABLE_DETERMINISTIC_INFERENCE": "deterministic",
    "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2": "custom_v2",
    "SGLANG_USE_JIT_ALL_REDUCE": "custom_v2",
    "SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB": "v2_max_kb",
    "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PULL_SIZE_KB": "v2_force_pull_kb",
    "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PUSH_SIZE_KB": "v2_force_push_kb",
    "SGLANG_ENABLE_CUSTOM_ALL_REDUCE_V2_MULTINODE": "v2_multinode",
    "SGLANG_USE_AITER_AR": "use_aiter",
    "RCCL_MSCCL_ENABLE": "rccl_msccl",
    "USE_VLLM_CUSTOM_ALLREDUCE": "vllm_custom",
}
_ON_BY_DEFAULT = ("use_aiter", "rccl_msccl", "v2_max_kb")


class Bytes(stand.Tensor):
    """A tensor of any number of bytes, whatever its type's size."""

    def __init__(self, nbytes: int, dtype: str, contiguous: bool, weak: bool) -> None:
        super().__init__((nbytes,), stand.DTYPE[dtype], contiguous, weak)
        self._nbytes = nbytes

    def numel(self) -> int:
        return self._nbytes

    def element_size(self) -> int:
        return 1

    def storage(self) -> stand.Storage:
        return stand.Storage(self._nbytes + (0 if self._weak else 64))

    def as_strided(self, *_: object) -> Bytes:
        return self

    def __getitem__(self, part: slice) -> Bytes:
        return self


class Memory(stand.Strict):
    """Device memory: any view of it is itself. Also a one-element CPU tensor."""

    nbytes = 0
    multicast_ptr = 0

    def __init__(self, value: int = 0) -> None:
        self._value = value

    def _same(self, *_: object, **__: object) -> Memory:
        return self

    view = zero_ = get_buffer = _same

    def __getitem__(self, _part: object) -> Memory:
        return self

    def __int__(self) -> int:
        return self._value

    def item(self) -> int:
        return self._value

    def numel(self) -> int:
        return self._value

    def tolist(self) -> list[int]:
        return [self._value]

    def data_ptr(self) -> int:
        return 256


class World:
    """The facts of the moment, what surrounds the call, and the log of kernels that would have run."""

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        self.facts: Mapping[str, int] = FACTS
        self.stream = self.piecewise = False
        self.log: list[tuple[str, bool, bool]] = []  # kernel, input registered for a graph, multicast
        self.defaults, self.by_server = defaults, dict[str, int]()

    def value(self, name: str) -> int | None:
        """What a variable is set to, None where it is unset."""
        if name in self.by_server:
            return self.by_server[name]
        fact = _SWITCHES[name]
        value = self.facts[fact]
        return None if value == FACTS[fact] and (value in (-1, 0) or fact in _ON_BY_DEFAULT) else value

    def variable(self, name: str) -> stand.Space:
        def get() -> Any:
            value = self.value(name)
            return self.defaults.get(name) if value is None else value

        def put(value: str) -> None:
            self.by_server[name] = int(value)

        return stand.Space(get=get, is_set=lambda: self.value(name) is not None, set=put)


class Envs:
    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        if name not in _SWITCHES:
            raise LiftError(f"SGLang asks for the variable {name}, which the stand-in does not know")
        return self._world.variable(name)


class Variables(dict[str, str]):
    """os.environ: get() takes its default by keyword too."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def get(self, name: str, default: Any = None) -> Any:
        value = self._world.value(name) if name in _SWITCHES else None
        return default if value is None else str(value)


class Ops:
    """The kernel library of v1: every call is logged."""

    def __init__(self, world: World, constants: Mapping[str, Any]) -> None:
        self._world = world
        vars(self).update(constants)

    def meta_size(self) -> int:
        return 0

    def init_custom_ar(self, *_: object) -> int:
        return 1

    def get_meta_buffer_ipc_handle(self, *_: object) -> bytes:
        return b""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *_: self._world.log.append((name, False, False)) if "all_reduce" in name else Memory()


def _torch(world: World) -> stand.Space:
    torch = stand.torch()
    for name in ("float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int16", "uint8", "uint16", "uint32", "uint64", "bool"):
        setattr(torch, name, stand.Dtype(name, 1))
    torch.distributed.get_world_size = lambda group=None: world.facts["world_size"]
    torch.distributed.get_process_group_ranks = lambda group=None: list(range(world.facts["world_size"]))
    torch.distributed.get_rank = lambda group=None: 0
    torch.cuda.is_current_stream_capturing = lambda: world.stream
    torch.cuda.get_device_capability = lambda *_: divmod(world.facts["arch"], 10)
    torch.cuda.get_device_properties = lambda *_: stand.Space(multi_processor_count=132)
    torch.cuda.can_device_access_peer = lambda *_: bool(world.facts["p2p"])
    torch.cuda.device_count = lambda: 16
    torch.tensor = lambda values, **_: Memory(values[0])
    torch.empty = torch.zeros = lambda *_, **__: Memory(1)
    torch.empty_like = torch.zeros_like = lambda like: (
        Bytes(like.numel(), like.dtype.name, True, True) if isinstance(like, Bytes) else Memory()
    )
    torch.version = stand.Space(cuda="12.8", hip=None)
    torch.from_dlpack = lambda result: result
    torch.dtype = stand.Dtype
    torch.__version__ = "2.11.0"
    return torch


def base_names(world: World) -> dict[str, Any]:
    torch, device = _torch(world), world.facts["device"]
    cuda, hip, musa = (device == DEVICES[name] for name in ("cuda", "hip", "musa"))
    return {
        "torch": torch,
        "dist": torch.distributed,
        "logger": stand.logger(),
        "envs": Envs(world),
        "partial": functools.partial,
        "lru_cache": functools.lru_cache,
        "cache": functools.cache,
        "os": stand.Space(environ=Variables(world), getenv=Variables(world).get),
        "is_cuda": lambda: cuda,
        "is_hip": lambda: hip,
        "is_musa": lambda: musa,
        "_is_cuda": cuda,
        "_is_hip": hip,
        "is_hip_": hip,
        "_is_musa": musa,
        "cuda_device_count_stateless": lambda: 16,
        "log_info_on_rank0": stand.ignore,
        "replace": dataclasses.replace,
        "in_the_same_node_as": lambda _group, source_rank=0: [True, world.facts["nodes"] <= 1],
        "INF": 1 << 60,
        "is_full_nvlink": lambda *_: bool(world.facts["full_nvlink"]),
        "gpu_p2p_access_check": lambda *_: bool(world.facts["p2p"]) if world.facts["p2p_check"] else True,
        "is_in_piecewise_cuda_graph": lambda: world.piecewise,
        "is_in_tc_piecewise_cuda_graph": lambda: world.piecewise,
        "_gpu_fabric_clique": lambda _device: ("clique", 0) if world.facts["fabric_clique"] else None,
        "is_vmm_pointer": lambda _pointer: bool(world.facts["vmm_allocator"]),
    }


def v2_kernels(world: World, cpp_args: Callable[..., Any]) -> dict[str, Any]:
    """What V2 hands a tensor to. Each notes algorithm, graph input and multicast, after the real rendering of the C++ arguments."""

    def note(tensor: Any, algo: str, graph: bool, multicast: bool) -> Any:
        cpp_args(tensor.dtype, world.facts["world_size"], True)
        world.log.append((algo.lower().replace("1shot", "one_shot").replace("2shot", "two_shot"), graph, multicast))
        return tensor

    class First(stand.Strict):
        """The C++ object of v0.5.10rc0 to v0.5.15; it knows by itself whether the stream captures."""

        def __init__(self, **_: object) -> None:
            self.graph = False

        def set_cuda_graph_capture(self, on: bool) -> None:
            self.graph = on

        def all_reduce(self, tensor: Any, algo: enum.Enum) -> Any:
            return note(tensor, algo.name, self.graph, False)

        def share_graph_inputs(self) -> list[Any]:
            return []

        get_graph_capture_ptrs = share_graph_inputs
        register_inputs = stand.ignore

    def run(
        _comm: Any, tensor: Any, algo: enum.Enum, pull_arg: Any = False, graph_params: Any = None, use_multicast: bool = False
    ) -> Any:
        graph = isinstance(pull_arg, Memory) or graph_params is not None
        return note(tensor, algo.name, graph, use_multicast or pull_arg is True)

    def module(dtype: Any, world_size: int) -> stand.Space:
        cpp_args(dtype, world_size, True)
        return stand.Space(all_reduce=lambda _comm, tensor, name, graph, mc: note(tensor, name, graph is not None, mc))

    def allocate(*_: object, **__: object) -> tuple[Memory, Memory]:
        memory = Memory()
        memory.multicast_ptr = 4096 if world.facts["multicast"] else 0
        return memory, memory

    def anything(*_: object, **__: object) -> stand.Space:
        return stand.Space(
            register_graph_inputs=stand.ignore,
            close=stand.ignore,
            config=stand.ignore,
            destroy=stand.ignore,
            set_pull_multicast_blocks=stand.ignore,
        )

    return {
        "get_custom_all_reduce_cls": lambda: First,
        "custom_all_reduce": run,
        "get_all_reduce_module": module,
        "_allocate_symmetric_memory": allocate,
        "_KERNEL_API_LOG_LEVEL": 0,
        "Communicator": anything,
        "IPCManager": anything,
        "VmmGraphInputManager": anything,
        "PushPlane": anything,
        "PullPlane": anything,
    }
