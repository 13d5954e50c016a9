"""Variables that are known to change the path or the speed of an all-reduce, each with what it means. Read by environment.py.

A row is a variable, what it does, and values with which it does nothing. Variables of SGLang that change a route are not here: they are
facts of a group (`_server/environment.py`). Invariant: `wrong` marks only what no measurement should be made with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .._types import FrozenMap

_OFF = ("0", "")


@dataclass(frozen=True)
class Variable:
    """One that does something."""

    name: str
    text: str
    idle: tuple[str, ...] = ("",)
    """Values with which it does nothing."""
    wrong: bool = False
    """While it is set so, times are not those of the machine."""


_ALL = (
    # which way NCCL goes
    Variable("NCCL_ALGO", "NCCL takes this algorithm and no other: what it would choose by size does not run"),
    Variable("NCCL_PROTO", "NCCL takes these protocols alone: without LL and LL128 small all-reduces take longer"),
    Variable(
        "NCCL_P2P_DISABLE",
        "NCCL uses no peer access: NVLink and PCIe between GPUs are left out, all goes through the host",
        _OFF,
        True,
    ),
    Variable("NCCL_P2P_LEVEL", "how far apart GPUs may be for NCCL to use peer access"),
    Variable("NCCL_P2P_DIRECT_DISABLE", "NCCL copies between GPUs of one process instead of reading directly", _OFF),
    Variable("NCCL_SHM_DISABLE", "NCCL uses no shared memory: GPUs without peer access talk by the network", _OFF, True),
    Variable("NCCL_NVLS_ENABLE", "whether NCCL reduces in the NVLink switch (0: never)", ("2", "")),
    Variable("NCCL_CUMEM_ENABLE", "whether NCCL's memory is virtual (cuMem); SGLang sets it itself, by --enable-symm-mem"),
    Variable("NCCL_MNNVL_ENABLE", "whether NVLink between nodes is used", ("2", "")),
    Variable("NCCL_NET", "the network that NCCL takes"),
    Variable("NCCL_NET_PLUGIN", "the network plug-in that NCCL loads"),
    Variable("NCCL_IB_DISABLE", "no InfiniBand or RoCE: between nodes NCCL uses plain sockets", _OFF),
    Variable("NCCL_IB_HCA", "the network cards that NCCL may use"),
    Variable("NCCL_SOCKET_IFNAME", "the network interface of NCCL's start: a name that is not there fails, a wrong one hangs"),
    Variable("NCCL_TOPO_FILE", "NCCL reads the topology from a file, not from this machine"),
    Variable("NCCL_GRAPH_FILE", "NCCL reads its rings and trees from a file"),
    Variable("NCCL_TUNER_PLUGIN", "another library tells NCCL what to choose"),
    Variable("NCCL_TUNER_CONFIG_FILE", "a file tells NCCL what to choose"),
    Variable("NCCL_CONF_FILE", "NCCL reads further settings from a file"),
    Variable("NCCL_COMM_ID", "ranks meet at this address: it is for one job, and jobs that share it wait for each other"),
    # how much of the GPU it takes, and how
    Variable("NCCL_MIN_NCHANNELS", "NCCL takes at least so many channels (blocks)"),
    Variable("NCCL_MAX_NCHANNELS", "NCCL takes at most so many channels (blocks): fewer are slower for large sizes"),
    Variable("NCCL_MIN_CTAS", "NCCL takes at least so many blocks"),
    Variable("NCCL_MAX_CTAS", "NCCL takes at most so many blocks: fewer are slower for large sizes"),
    Variable("NCCL_NTHREADS", "threads of each of NCCL's blocks"),
    Variable("NCCL_BUFFSIZE", "bytes of NCCL's buffers between two GPUs"),
    Variable(
        "NCCL_GRAPH_MIXING_SUPPORT",
        "0: captured calls need not wait for calls of other graphs, which takes time off each",
        ("1", ""),
    ),
    Variable("NCCL_GRAPH_REGISTER", "0: buffers of captured calls are not registered, so each call copies", ("1", "")),
    Variable("NCCL_LOCAL_REGISTER", "whether buffers that the user registers are used", ("1", "")),
    Variable("NCCL_WIN_ENABLE", "whether symmetric windows are used", ("1", "")),
    Variable("NCCL_LAUNCH_MODE", "how kernels of several GPUs of one process are launched"),
    Variable("NCCL_DEBUG", "NCCL prints: at TRACE each call, which takes time", ("WARN", "VERSION", "")),
    # torch
    Variable("TORCH_NCCL_BLOCKING_WAIT", "torch's collectives block the host until they are done", _OFF, True),
    Variable("TORCH_NCCL_ENABLE_TIMING", "torch records two events around each collective", _OFF),
    Variable("TORCH_NCCL_DESYNC_DEBUG", "torch writes down each collective to find ranks that differ", _OFF),
    Variable(
        "TORCH_DISTRIBUTED_DEBUG", "DETAIL: torch compares each collective over all ranks before it runs", ("OFF", "INFO", "")
    ),
    Variable(
        "TORCH_SYMM_MEM_DISABLE_MULTICAST",
        "torch symmetric memory goes without NVLink multicast: two-shot instead of multimem",
        _OFF,
    ),
    Variable(
        "PYTORCH_CUDA_ALLOC_CONF",
        "torch's allocator: with expandable_segments or cudaMallocAsync CUDA IPC cannot share its memory",
    ),
    Variable(
        "PYTORCH_ALLOC_CONF", "torch's allocator: with expandable_segments or cudaMallocAsync CUDA IPC cannot share its memory"
    ),
    Variable("PYTORCH_NO_CUDA_MEMORY_CACHING", "each tensor is a cudaMalloc: every new output waits for the device", ("",), True),
    # CUDA
    Variable(
        "CUDA_LAUNCH_BLOCKING",
        "the host waits for every kernel: nothing overlaps, and eager times are not the machine's",
        _OFF,
        True,
    ),
    Variable("CUDA_VISIBLE_DEVICES", "which GPUs there are, and their numbers"),
    Variable("CUDA_DEVICE_ORDER", "how GPUs are numbered: by speed, or by PCI address"),
    Variable("CUDA_DEVICE_MAX_CONNECTIONS", "hardware queues: with 1 streams wait for one another; SGLang sets it itself"),
    Variable("CUDA_MODULE_LOADING", "EAGER: every kernel is loaded at the start, which takes longer", ("LAZY", "")),
    Variable("CUDA_MPS_PIPE_DIRECTORY", "processes share a GPU through MPS, where its server runs"),
    Variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "this process gets a part of the GPU's multiprocessors"),
    Variable("CUDA_INJECTION64_PATH", "a tool is loaded into every CUDA process: times are the tool's too", ("",), True),
    Variable("CUDA_FORCE_PTX_JIT", "kernels are compiled anew when they are loaded", _OFF),
    Variable("CUDA_DISABLE_PERF_BOOST", "clocks are not raised for CUDA", _OFF),
    # the loader
    Variable("SGLANG_NCCL_SO_PATH", "the libnccl that SGLang's pynccl opens (see phase nccl)"),
    Variable("SGLANG_SKIP_P2P_CHECK", "SGLang believes the driver about peer access, and moves no data to see", _OFF),
    Variable("LD_PRELOAD", "libraries that are loaded into every process, before all others"),
    Variable(
        "LD_LIBRARY_PATH", "where libraries are looked for first: another libnccl there may come before torch's (see phase nccl)"
    ),
)
VARIABLES: Mapping[str, Variable] = FrozenMap({variable.name: variable for variable in _ALL})
