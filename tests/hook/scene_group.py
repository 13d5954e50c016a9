"""SGLang's own group on CPU ranks over gloo, with its own communicator objects where their constructors need a GPU. Used by the scenes.

What stands in for what a CPU cannot do, and nothing else: the kernels (an NCCL and a custom kernel that do nothing), a tensor that says it
is on a GPU, the stream of graph_capture(), the GPU's properties, and a registration of SGLang's own operator bodies for CPU tensors.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import SimpleNamespace
from typing import Any

import torch

from sglang_probe.hook.patches import function_of
from sglang_probe.hook.session import current

COMMUNICATORS = "sglang.srt.distributed.device_communicators."
STREAM = SimpleNamespace(cuda_stream=0, wait_stream=lambda _: None)
OPERATORS = {
    "sglang.srt.distributed.parallel_state": ("inplace_all_reduce", "outplace_all_reduce", "flashinfer_allreduce"),
    "sglang.srt.layers.flashinfer_comm_fusion": ("flashinfer_allreduce_residual_rmsnorm",),
}


class OnGpu(torch.Tensor):
    """A CPU tensor that says it is elsewhere."""

    is_cpu = False


def on_gpu(rows: int, columns: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.ones(rows, columns, dtype=dtype).as_subclass(OnGpu)


def state() -> Any:
    return importlib.import_module("sglang.srt.distributed.parallel_state")


def join(rank: int, world: int, store: str) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    state().init_distributed_environment(
        world_size=world, rank=rank, distributed_init_method="env://", local_rank=0, backend="gloo"
    )


def make_group(world: int, **flags: bool) -> Any:
    """By SGLang's own function."""
    return state().init_model_parallel_group(
        group_ranks=[list(range(world))],
        local_rank=0,
        backend="gloo",
        group_name="tp",
        **{"use_custom_allreduce": False, **flags},
    )


@contextlib.contextmanager
def serving(attention: Any, experts: Any) -> Any:
    """These groups where SGLang keeps those of attention and of the experts: in its module, and from v0.5.21 on in its runtime context."""
    names = {"_TP": attention, "_ATTN_TP": attention, "_MOE_EP": experts}
    before = {name: getattr(state(), name) for name in names}
    vars(state()).update(names)
    with contextlib.ExitStack() as stack:
        stack.callback(vars(state()).update, before)
        if hasattr(module_of_fusion(), "resolve_fusion_group"):
            size = attention.world_size
            sizes = {"tp_size": size, "attn_tp_size": size, "attn_tp_rank": attention.rank_in_group, "moe_ep_size": size}
            sizes |= {"moe_tp_size": 1, "attn_cp_size": 1, "attn_dp_size": 1}
            parallel = importlib.import_module("sglang.srt.runtime_context").get_parallel()
            stack.enter_context(parallel.override(**sizes, tp_group=attention, attn_tp_group=attention, moe_ep_group=experts))
        yield


def module_of_fusion() -> Any:
    return importlib.import_module("sglang.srt.layers.flashinfer_comm_fusion")


def operators_on_cpu() -> torch.library.Library:
    """SGLang registers its operators for GPUs alone: here their own bodies, as they are, for CPU tensors too."""
    library = torch.library.Library("sglang", "FRAGMENT")
    for module, names in OPERATORS.items():
        for name in names:
            body = function_of(importlib.import_module(module), name)
            if body is not None and hasattr(torch.ops.sglang, name):
                library.impl(name, body, "CPU")
    return library


def cpu_group() -> Any:
    return state().get_world_group().cpu_group


def module_of(name: str) -> Any:
    try:
        return importlib.import_module(COMMUNICATORS + name)
    except ModuleNotFoundError:
        return None


def pynccl(world: int, rank: int) -> Any:
    """SGLang's communicator over an NCCL that does nothing; disabled, as its constructor leaves it."""
    module = module_of("pynccl")
    comm = object.__new__(module.PyNcclCommunicator)
    nccl = SimpleNamespace(ncclAllReduce=lambda *_: None)
    comm.__dict__.update(available=True, disabled=True, device=torch.device("cpu"), comm=None, stream=STREAM, nccl=nccl)
    comm.__dict__.update(use_current_stream=True, world_size=world, rank=rank)
    return comm


def v1(world: int, rank: int) -> Any:
    """v1, with a kernel that does nothing but keep the inputs whose addresses are to be exchanged; its own method exchanges them."""
    module = module_of("custom_all_reduce")
    comm, kept = object.__new__(module.CustomAllreduce), []
    comm.close = lambda: None
    comm.__dict__.update(disabled=False, _IS_CAPTURING=False, world_size=world, rank=rank, full_nvlink=True, max_size=8 << 20)
    comm.__dict__.update(tms_cudagraph=False, _ptr=0, buffer_ptrs=[1] * world, use_amd_deterministic_impl=False)
    comm.group, comm.kept = cpu_group(), kept

    def all_reduce(_ptr: int, tensor: Any, _out: Any, buffer: int, _size: int) -> None:
        if not buffer:
            kept.append(tensor.data_ptr())

    def meta(_ptr: int) -> Any:
        given, kept[:] = kept[:], []
        return [0] * 8, given

    for name, does in (
        ("all_reduce", all_reduce),
        ("get_graph_buffer_ipc_meta", meta),
        ("register_graph_buffers", lambda *_: None),
    ):
        setattr(module.ops, name, does)
    session = current()
    if session is not None:  # what was looked for when the module came is there only now
        session.captures._meta(sys.modules[module.ops.__name__])
    return comm


def v2(world: int, rank: int) -> Any:
    """V2 with its release's own thresholds, no workspace, and a kernel that does nothing."""
    module = module_of("custom_all_reduce_v2")
    if module is None:
        return None
    comm = object.__new__(module.CustomAllReduceV2)
    comm.close = lambda: None
    comm.__dict__.update(disabled=False, world_size=world, rank=rank, override_algo=None, max_size=16 << 20, group=None)
    (_new_v2 if hasattr(module, "get_all_reduce_config") else _old_v2)(module, comm, world)
    return comm


def _old_v2(module: Any, comm: Any, world: int) -> None:
    """v0.5.10rc0 to v0.5.15."""
    module._init_config()
    comm.max_pull_size = comm.max_push_size = comm.max_size
    comm.override_shot(None)
    kept: list[Any] = []

    def all_reduce(tensor: Any, algo: Any) -> Any:
        if capturing[0] and torch.cuda.is_current_stream_capturing() and not algo.is_push():
            kept.append((0, [0] * 8))
        return tensor.as_subclass(torch.Tensor)

    capturing = [False]
    comm.obj = SimpleNamespace(
        set_cuda_graph_capture=lambda on: capturing.__setitem__(0, on),
        all_reduce=all_reduce,
        share_graph_inputs=lambda: [kept.pop() for _ in kept[:]],
        register_inputs=lambda _: None,
    )
    comm.group = cpu_group()


def _new_v2(module: Any, comm: Any, world: int) -> None:
    """v0.5.16 and later."""
    comm.__dict__.update(_graph_mode_allowed=False, _is_graph_mode_supported=True, _graph_inputs=[], _graph_counter=0)
    comm.__dict__.update(_eager_plans={}, _eager_plans_config=None, _capture_started=False, pull_enabled=True, obj=None)
    base = module.get_all_reduce_config(world)
    push, pull = min(base.max_push_bytes(world), comm.max_size), min(base.max_pull_bytes, comm.max_size)
    clipped = base.clip(max_push_bytes=push, max_pull_bytes=pull, world_size=world)
    comm.config = clipped._replace(num_mc_blocks=None)
    comm.graph_params = torch.zeros(1 << 16, 1, dtype=torch.uint8)
    comm._register_graph_inputs_ipc = comm._graph_inputs.clear
    module.is_vmm_pointer = lambda _: False
    module.custom_all_reduce = lambda _obj, tensor, *_args, **_kwargs: tensor
    module.get_all_reduce_module = lambda *_: SimpleNamespace(all_reduce=lambda _obj, tensor, *_: tensor)


def piecewise() -> Any:
    """SGLang's own context manager for its piecewise flag; None where the release has none."""
    asks = next((n for n in ("is_in_piecewise_cuda_graph", "is_in_tc_piecewise_cuda_graph") if hasattr(state(), n)), "")
    return (
        getattr(importlib.import_module(getattr(state(), asks).__module__), asks.replace("is_in_", "enable_")) if asks else None
    )


def graph(capturing: list[bool]) -> torch.cuda.CUDAGraph:
    """torch's own class, over a base that captures and replays nothing."""
    base = torch.cuda.CUDAGraph.__mro__[1]
    base.capture_begin = lambda _self, **_: capturing.append(True)
    base.capture_end = lambda _self: capturing.pop()
    base.replay = lambda _self: None
    made = object.__new__(torch.cuda.CUDAGraph)
    made._tracker = None
    return made


def launch_deduplicated(made: torch.cuda.CUDAGraph) -> None:
    """Twice, as SGLang launches a graph that shares its executable (v0.5.15 and later, on request)."""
    try:
        module = importlib.import_module("sglang.srt.model_executor.runner_backend.cuda_graph_dedup_mixin")
    except ModuleNotFoundError:
        return
    module.cuda_rt, module.checkCudaErrors = SimpleNamespace(cudaGraphLaunch=lambda *_: None), lambda _: None
    registry = module.DedupedCudaGraphRegistry()
    shared = module.DedupedCudaGraph(1, made, registry, SimpleNamespace(current_raw_graph=1, graph_exec=1))
    for _ in range(2):
        shared.replay(0)


@contextlib.contextmanager
def on_a_gpu(group: Any, capturing: list[bool]) -> Any:
    """What SGLang and the hook ask of CUDA: a Hopper GPU, and a stream that captures where the list says so."""
    cuda, kept = torch.cuda, []

    def put(owner: Any, name: str, value: Any) -> None:
        kept.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    put(cuda, "get_device_capability", lambda *_: (9, 0))
    put(cuda, "get_device_properties", lambda *_: SimpleNamespace(multi_processor_count=132))
    put(cuda, "is_current_stream_capturing", lambda: capturing[-1])
    put(cuda, "current_stream", lambda *_: STREAM)
    put(group, "device", torch.device("cuda", 0))
    put(group, "device_module", SimpleNamespace(Stream=lambda: STREAM, stream=lambda _: contextlib.nullcontext()))
    for name in (state().__name__, COMMUNICATORS + "pynccl"):
        module = importlib.import_module(name)
        if hasattr(module, "get_current_device_stream_fast"):
            put(module, "get_current_device_stream_fast", lambda: STREAM)
    try:
        yield
    finally:
        for owner, name, value in reversed(kept):
            setattr(owner, name, value)
