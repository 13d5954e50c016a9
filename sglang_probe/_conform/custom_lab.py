"""SGLang's custom all-reduce classes of one revision, lifted and built on stand-ins. Called by custom.py.

`Lab.build` runs SGLang's own choice of class and constructor for a set of facts, `Lab.around` its own capture().
Invariant: facts are read when SGLang asks; values of import time are lifted again when the facts behind them change.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .._source.lift import LiftError, Tree, parse
from . import torch_stand_ins as stand
from .custom_stand_ins import Envs, Ops, World, base_names, v2_kernels
from .flags import read_environment
from .gate import COMMUNICATORS, DEVICES, FACTS

V1, V2, UTILS = (
    COMMUNICATORS + name for name in ("custom_all_reduce.py", "custom_all_reduce_v2.py", "custom_all_reduce_utils.py")
)
CONFIGS, COORDINATOR, SERVER = (
    COMMUNICATORS + "configs/custom_all_reduce_v2.py",
    "srt/distributed/parallel_state.py",
    "srt/server_args.py",
)
_OPS = ("srt/_custom_ops.py", COMMUNICATORS + "custom_all_reduce_ops.py")
_COMMON = ("srt/utils/common.py", "srt/utils.py")
_KERNELS = ("jit_kernel/all_reduce.py", "kernels/ops/communication/all_reduce.py")
_CPP = (
    "jit_kernel/utils.py",
    "jit_kernel/utils/compile.py",
    "kernels/jit/utils/compile.py",
    "kernels/jit/utils/compile/cpp_args.py",
)
_PIECEWISE = "srt/model_executor/piecewise_cuda_graph_runner.py"
AITER = "aiter"
# Facts that SGLang's modules read once, when they are imported or when they are first asked.
_AT_IMPORT = ("device", "arch", "has_custom_ops", "vllm_custom", "v2_max_kb", "v2_force_pull_kb", "v2_force_push_kb")
AITER_CLASS = type("AiterCustomAllreduce", (), {})


class Lab:
    """One revision of SGLang. `build` gives a group's communicator: an object of SGLang's class, the word "aiter", or None."""

    def __init__(self, tree: Tree) -> None:
        self.tree, self.world = tree, World(read_environment(tree))
        self._modules: dict[tuple[int, ...], dict[str, Any]] = {}
        self._swallows, self._max_size = _coordinator(tree)
        self._piecewise_off = tree.exists(_PIECEWISE) and "ca_comm.disabled = True" in tree.source(_PIECEWISE)
        self.rewritten = tree.exists(CONFIGS)  # V2's second form: one kernel, told by Python whether its input is registered
        text = tree.source(SERVER)
        self._server_off = 'SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2.set("0")' in text
        self._server_asks = _server_method(tree, self.world)

    def build(self, facts: Mapping[str, int]) -> Any:
        world = self.world
        world.facts, world.by_server = {**FACTS, **facts}, {}
        modules = self._lifted()
        self._apply_server()
        device, group = stand.Device("cuda:0"), stand.Group()
        try:
            cls = modules["CustomAllreduce"]
            if "dispatch_custom_allreduce" in modules:
                ask = modules["dispatch_custom_allreduce"]
                cls = ask(group=group, device=device) if ask.__code__.co_argcount else ask()
            if (cls.func if isinstance(cls, functools.partial) else cls) is AITER_CLASS:
                return AITER
            return cls(group=group, device=device, **self._max_size(bool(world.facts["piecewise_server"])))
        except LiftError:
            raise
        except Exception:
            if self._swallows:
                return None
            raise

    def backend(self, communicator: Any) -> str:
        """Whose code an enabled communicator runs."""
        if communicator == AITER:
            return AITER
        if type(communicator).__name__ == "CustomAllReduceV2":
            return "V2"
        if hasattr(communicator, "max_required_workspace_size"):
            return "v1-trt"
        vllm = self._lifted()["ops"].__dict__.get("use_vllm_custom_allreduce") and self.world.facts["device"] != DEVICES["hip"]
        return "v1-vllm" if vllm else "v1"

    @contextmanager
    def around(self, communicator: Any, context: tuple[str, ...]) -> Iterator[None]:
        """The context of a call: SGLang's own capture(), the piecewise flag, and what its runner does to the communicator."""
        world = self.world
        inside = "in_graph_capture" in context and world.facts["captured"]
        world.piecewise = "piecewise" in context
        before = communicator.disabled
        with communicator.capture() if inside else stand.nothing():
            world.stream = "stream_capturing" in context
            if world.piecewise and self._piecewise_off:
                communicator.disabled = True
            try:
                yield
            finally:
                world.stream, communicator.disabled = False, before
        world.piecewise = False

    def _apply_server(self) -> None:
        """server_args may turn V2 off for its workers."""
        if self._server_asks:
            self._server_asks(stand.Space(nnodes=self.world.facts["nodes"], tp_size=self.world.facts["world_size"]))
        elif self._server_off and self.world.facts["nodes"] > 1:
            self.world.by_server["SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2"] = 0

    def _lifted(self) -> dict[str, Any]:
        key = tuple(self.world.facts[name] for name in _AT_IMPORT)
        if key not in self._modules:
            self._modules[key] = _lift_all(self.tree, self.world)
        return self._modules[key]


def _coordinator(tree: Tree) -> tuple[bool, Callable[[bool], dict[str, int]]]:
    """From GroupCoordinator's constructor: does it swallow exceptions, and which max_size does it pass?"""
    init = next(
        n
        for c in parse(tree.source(COORDINATOR), tree.filename(COORDINATOR)).body
        if isinstance(c, ast.ClassDef) and c.name == "GroupCoordinator"
        for n in c.body
        if isinstance(n, ast.FunctionDef) and n.name == "__init__"
    )
    tried = [ast.unparse(n) for n in ast.walk(init) if isinstance(n, ast.Try)]
    swallows = any("self.ca_comm = " in text for text in tried)
    sizes = [
        n
        for n in ast.walk(init)
        if isinstance(n, ast.If) and any(isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == "ca_max_size" for s in n.body)
    ]
    if not sizes:
        return swallows, lambda _piecewise: {}
    code = compile(ast.Module(body=[sizes[0]], type_ignores=[]), tree.filename(COORDINATOR), "exec")

    def max_size(piecewise: bool) -> dict[str, int]:
        scope: dict[str, Any] = {"torch_compile": piecewise}
        exec(code, scope)
        return {"max_size": scope["ca_max_size"]}

    return swallows, max_size


def _server_method(tree: Tree, world: World) -> Callable[[Any], None] | None:
    """What v0.5.17 and v0.5.18 do in server_args; the fabric's own detection is a fact (v2_multinode) here."""
    name = "ServerArgs._handle_custom_all_reduce_v2_multinode"
    if not tree.has(SERVER, name):
        return None
    found: Callable[[Any], None] = tree.lift(
        SERVER, [name], {"envs": Envs(world), "logger": stand.logger(), "is_mnnvl_fabric_device": lambda: False}
    )[name]
    return found


def _path(tree: Tree, paths: tuple[str, ...], name: str) -> str | None:
    return next((p for p in paths if tree.has(p, name)), None)


def _lift_all(tree: Tree, world: World) -> dict[str, Any]:
    """The files of custom all-reduce, in the order in which they import one another."""
    base = base_names(world)
    common = _path(tree, _COMMON, "get_bool_env_var")
    if common:
        base |= tree.lift(common, ["get_bool_env_var"], base, optional=["_warned_bool_env_var_keys"])
    base |= tree.lift(
        UTILS,
        [],
        base,
        optional=["is_weak_contiguous", "can_p2p", "can_use_custom_all_reduce_with_nvlink", "is_one_nvlink_clique"],
    )
    if tree.exists(V2):
        base |= _lift_v2(tree, world, base)
    constants: dict[str, Any] = {}
    for path in _OPS:
        if tree.exists(path):
            constants |= tree.lift(path, [], base, optional=["use_vllm_custom_allreduce", "IS_CUSTOM_AR_AVAILABLE"])
    gpu = world.facts["device"] in (DEVICES["cuda"], DEVICES["hip"], DEVICES["musa"])
    # An import that fails: neither vLLM's nor SGLang's first kernel libraries had one for ROCm.
    library = (
        bool(world.facts["has_custom_ops"]) and gpu and (world.facts["device"] == DEVICES["cuda"] or "is_hip" in tree.source(V1))
    )
    if not library:
        constants["IS_CUSTOM_AR_AVAILABLE"] = False
    base |= {
        "ops": Ops(world, constants),
        "custom_ar": library,
        "aiter.dist.device_communicators.custom_all_reduce:CustomAllreduce": AITER_CLASS,
    }
    lifted = tree.lift(
        V1,
        ["CustomAllreduce"],
        base,
        optional=["_can_p2p", "is_weak_contiguous", "dispatch_custom_allreduce", "_use_amd_deterministic_impl"],
    )
    cls = lifted["CustomAllreduce"]
    for name in ("close", "__del__", "register_graph_buffers"):
        setattr(cls, name, stand.ignore)
    cls.create_shared_buffer = cls.free_shared_buffer = staticmethod(lambda *_, **__: [0] * 16)
    cls._gather_ipc_meta = lambda _self, _data: ([], [])
    return {**base, **lifted}


def _lift_v2(tree: Tree, world: World, base: Mapping[str, Any]) -> dict[str, Any]:
    kernels, cpp = _path(tree, _KERNELS, "AllReduceAlgo"), _path(tree, _CPP, "make_cpp_args")
    common = _path(tree, _COMMON, "is_sm100_supported")
    if kernels is None or cpp is None or common is None:
        raise LiftError(f"{tree.label}: V2 is there, its kernels' Python is not")
    space = dict(base)
    space |= tree.lift(kernels, ["AllReduceAlgo"], space, optional=["_ALGO_NAMES"])
    arguments = tree.lift(cpp, ["make_cpp_args", "CPP_DTYPE_MAP"], {**space, "CPPArgList": list})["make_cpp_args"]
    space |= tree.lift(common, ["is_sm100_supported", "_check_cuda_device_version"], space)
    if tree.exists(CONFIGS):
        names = ["Range", "Heuristic", "AllReduceConfig", "KB", "MB", "_pack_heuristic", "get_all_reduce_config"]
        space |= tree.lift(
            CONFIGS,
            names,
            space,
            optional=[
                "_sm90_config",
                "_sm100_config",
                "_sm90_configs",
                "_sm100_configs",
                "_sm107_configs",
                "_get_all_reduce_configs",
                "get_supported_world_sizes",
                "two_shot_push_slot_bytes",
                "two_shot_push_max_bytes",
            ],
        )
    space |= v2_kernels(world, arguments)
    lifted = tree.lift(
        V2,
        ["CustomAllReduceV2"],
        space,
        optional=[
            "ModeConfig",
            "_init_config",
            "_maybe_init_config",
            "THRESHOLD_2_SHOT_MAP",
            "can_use_custom_all_reduce_v2",
            "_PullMode",
            "_ceil_align",
            "_DEFAULT_MAX_SIZE",
            "_FORCE_PULL_SIZE_KB",
            "_FORCE_PUSH_SIZE_KB",
            "_is_vmm_backed_allocator",
            "AllReduceConfig",
            "MB",
            "_ALIGN_BYTES",
            "_SEMAPHORE_BYTES",
            "_MAX_GRAPH_INPUTS",
        ],
    )
    cls = lifted["CustomAllReduceV2"]
    for name in ("close", "__del__", "_register_graph_inputs", "_register_graph_inputs_ipc", "_post_init_obj"):
        setattr(cls, name, stand.ignore)
    cls._share_list = lambda _self, values: [values]
    return {name: lifted[name] for name in ("CustomAllReduceV2", "can_use_custom_all_reduce_v2") if name in lifted}
