"""Quick reduce, torch symmetric memory, PCIe-IPC and PyNccl: SGLang's communicators, built and asked, against our gates.

Called by others.py. Constructors run too, so what disables a communicator is compared, not only its predicate.
Invariant: each object is built from the facts of its case alone; a constructor that raises is an answer.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from .._source.lift import Tree
from . import torch_stand_ins as fake
from .gate import BYTES, COMMUNICATORS, DEVICES, MIB, Case, Gate, Theirs, around, attempt, compare, predicate_state
from .types import Result

_WORLDS = (*range(2, 17), 32)
_LEVELS = ("NONE", "FP", "INT8", "INT6", "INT4")


def compare_quick(tree: Tree, release: str) -> Result:
    """QuickAllReduce and the test of the architecture that stands before it."""
    result, path = Result("quick"), COMMUNICATORS + "quick_all_reduce.py"
    if not tree.exists(path):
        return result

    @functools.cache
    def build(facts: tuple[tuple[str, int], ...]) -> Any:
        case = Case(0, facts=dict(facts))
        world, hip = case.fact("world_size"), case.fact("device") == DEVICES["hip"]
        torch = fake.torch(world_size=world, gcn=f"gfx{case.fact('arch')}:sramecc+")
        library = hip and bool(case.fact("has_custom_ops"))
        ops = fake.Space(
            IS_QUICK_AR_AVAILABLE=library,
            init_custom_qr=lambda *_: 1,
            qr_max_size=lambda: 2048 * MIB,
            qr_get_handle=fake.ignore,
            qr_open_handles=fake.ignore,
            qr_destroy=fake.ignore,
            qr_all_reduce=fake.ignore,
        )
        given = {
            "ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16": ("qr_cast_bf16", str(case.fact("qr_cast_bf16"))),
            "ROCM_QUICK_REDUCE_QUANTIZATION": ("qr_quantization", _LEVELS[case.fact("qr_quantization")]),
            "ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB": ("qr_max_mb", str(case.fact("qr_max_mb"))),
        }
        utils = tree.lift(COMMUNICATORS + "custom_all_reduce_utils.py", ["is_weak_contiguous"], {"torch": torch})
        namespace = {
            **utils,
            "torch": torch,
            "dist": torch.distributed,
            "ops": ops,
            "quick_ar": library,
            "logger": fake.logger(),
            "os": fake.variables({name: value for name, (fact, value) in given.items() if fact in case.facts}),
            "_is_cuda": False,
            "_is_hip": hip,
            "is_full_nvlink": lambda *_: bool(case.fact("full_nvlink")),
            "in_the_same_node_as": lambda *_args, **_named: [case.fact("nodes") == 1] * world,
        }
        names = ["QuickReduceRegime", "MB", "QuickAllReduce", "qr_rocm_arch_available"]
        code = tree.lift(path, names, namespace)
        if not code["qr_rocm_arch_available"]():
            return None  # GroupCoordinator builds none then
        return code["QuickAllReduce"](group=fake.Group(), device="cuda:0")

    def ask(case: Case) -> Theirs:
        comm = build(tuple(sorted(case.facts.items())))
        if comm is None:
            return Theirs("absent")
        tensor = fake.flat(case.nbytes, case.dtype, contiguous=False, weak=bool(case.asked("weak_contiguous")))
        state = predicate_state(comm.disabled, lambda: comm.should_quick_allreduce(tensor))
        new = comm.quick_all_reduce(tensor) is not tensor if state == "accepts" else None
        return Theirs(state, returns_new=new)

    compare(result, Gate(release, "quick"), _quick_cases(), ask)
    result.not_conformed.append("quick: the library's own maximum size (taken as 2 GiB)")
    return result


def _quick_cases() -> Iterator[Case]:
    base = {"device": DEVICES["hip"], "arch": 942, "qr_quantization": 1}
    for arch in (90, 942, 950, 1100):
        yield Case(64 * MIB, facts={**base, "arch": arch})
    yield Case(64 * MIB, facts={"device": DEVICES["hip"], "arch": 942})
    yield Case(64 * MIB, facts={"device": DEVICES["cuda"], "arch": 94, "qr_quantization": 1})
    for name, value in (("nodes", 2), ("full_nvlink", 0), ("has_custom_ops", 0)):
        for world in (2, 8):
            yield Case(64 * MIB, facts={**base, name: value, "world_size": world})
    for world in _WORLDS:
        for level in range(1, len(_LEVELS)):
            for cast in ({}, {"qr_cast_bf16": 0}):
                facts = {**base, "world_size": world, "qr_quantization": level, **cast}
                powers = range(10, 33) if world in (2, 4, 8) else (20, 24, 31)
                for dtype in ("bf16", "fp16"):
                    for size in around(*(1 << k for k in powers)):
                        yield Case(size, dtype, facts=facts)
    facts = {**base, "qr_max_mb": 32}
    for dtype in BYTES:
        yield Case(32 * MIB, dtype, facts=facts)
    for size in around(32 * MIB, 16 * MIB, step=8):
        yield Case(size, facts=facts)
    yield Case(32 * MIB, facts=facts, call={"weak_contiguous": 0, "contiguous": 0})
    yield Case(32 * MIB, facts=facts, call={"contiguous": 0})


def compare_symm(tree: Tree, release: str) -> Result:
    """SymmMemCommunicator, later TorchSymmMemCommunicator: state, kernel, and what running it does."""
    result, heard = Result("torch_symm_mem"), list[str]()
    old, path = COMMUNICATORS + "symm_mem.py", COMMUNICATORS + "torch_symm_mem.py"
    prefix = "" if not tree.exists(path) else "TORCH_"
    if not tree.exists(path) and not tree.exists(old):
        return result
    path = path if tree.exists(path) else old
    name = "TorchSymmMemCommunicator" if prefix else "SymmMemCommunicator"
    asks = f"should_{prefix.lower()}symm_mem_allreduce"
    unasked = release_loses_results(tree)

    @functools.cache
    def build(facts: tuple[tuple[str, int], ...]) -> Any:
        case = Case(0, facts=dict(facts))
        torch = fake.torch(world_size=case.fact("world_size"), arch=divmod(case.fact("arch"), 10), record=heard.append)
        cuda = case.fact("device") == DEVICES["cuda"]
        memory = fake.Space(
            empty=lambda count, dtype, device: fake.Tensor((count,), dtype),
            rendezvous=lambda *_: fake.Space(multicast_ptr=case.fact("multicast")),
        )
        server = fake.Space(enable_scattered_sconv=False)
        limits = tree.lift(COMMUNICATORS + "all_reduce_utils.py", ["MiB", f"{prefix}SYMM_MEM_ALL_REDUCE_MAX_SIZES"], {})
        namespace = {
            **limits,
            "torch": torch,
            "dist": torch.distributed,
            "logger": fake.logger(),
            "torch_symm_mem": memory,
            "symm_mem_available": True,
            "torch_symm_mem_available": cuda,
            "get_server_args": lambda: server,
            "get_exec": lambda: fake.Space(comm=server),
            "envs": fake.environment(
                SGLANG_OPT_USE_INKLING_CUSTOM_AR=bool(case.fact("inkling")),
                SGLANG_OPT_USE_INKLING_FUSED_AR_SCONV=bool(case.fact("inkling_sconv")),
            ),
        }
        return tree.lift(path, [name], namespace)[name](group=fake.Group(), device="cuda:0")

    def ask(case: Case) -> Theirs:
        comm = build(tuple(sorted(case.facts.items())))
        tensor = fake.flat(case.nbytes, case.dtype, contiguous=bool(case.asked("contiguous")))
        state = predicate_state(comm.disabled, lambda: getattr(comm, asks)(tensor))
        if state == "disabled" or not (state == "accepts" or unasked):
            return Theirs(state)
        heard.clear()
        run = attempt(lambda: comm.all_reduce(tensor))
        return Theirs(
            state,
            run=run,
            kernel=heard[-1] if heard and state == "accepts" else None,
            returns_new=True if state == "accepts" else None,
        )

    compare(result, Gate(release, "torch_symm_mem"), _symm_cases(bool(prefix)), ask)
    result.not_conformed.append("torch_symm_mem: whether the rendezvous finds multicast, and what its kernels refuse")
    return result


def release_loses_results(tree: Tree) -> bool:
    """Whether the in-place fallback runs symmetric memory without asking its predicate."""
    body = tree.source("srt/distributed/parallel_state.py").partition("def _all_reduce_in_place")[2].partition("\n    def ")[0]
    return "symm_mem_comm.all_reduce(input_)" in body


def _symm_cases(cuda_only: bool) -> Iterator[Case]:
    base = {"own_torch_symm_mem": 1}
    for world in _WORLDS:
        for arch in (75, 80, 89, 90, 100, 103, 110, 120):
            yield Case(MIB, facts={**base, "world_size": world, "arch": arch})
    for world in (2, 4, 6, 8):
        for arch in (90, 100):
            for more in ({}, {"inkling": 0}, {"inkling_sconv": 0}, {"multicast": 0}):
                facts = {**base, "world_size": world, "arch": arch, **more}
                for size in around(*(1 << k for k in range(10, 31)), step=4):
                    yield Case(size, facts=facts)
                for size in (2, 4, 6, 8, 64 * MIB + 2):
                    yield Case(size, facts=facts)
                for dtype in BYTES:
                    yield Case(64 * MIB, dtype, facts=facts)
                    yield Case(256 * MIB, dtype, facts=facts)
                yield Case(MIB, facts=facts, call={"contiguous": 0})
                yield Case(MIB, "fp32", facts=facts, call={"contiguous": 0})
    if cuda_only:
        yield Case(MIB, facts={**base, "device": DEVICES["hip"], "arch": 942})


def compare_pcie(tree: Tree, release: str) -> Result:
    """PcieIpcCommunicator and the test of the group that stands before it."""
    result, path = Result("pcie_ipc"), COMMUNICATORS + "pcie_ipc_ar.py"
    if not tree.exists(path):
        return result

    @functools.cache
    def build(facts: tuple[tuple[str, int], ...]) -> tuple[dict[str, Any], bool]:
        case = Case(0, facts=dict(facts))
        torch = fake.torch(world_size=case.fact("world_size"))
        kernel = fake.Space(kernel=fake.Space(disable_flashinfer_autotune=True))
        workspace = fake.Space(supports=lambda _tensor: True)
        one_stage = case.fact("one_stage")
        switches = fake.environment(
            SGLANG_ENABLE_PCIE_IPC_ALLREDUCE=bool(case.fact("own_pcie_ipc")),
            SGLANG_PCIE_IPC_MAX_NUMEL=case.fact("pcie_max_numel"),
            SGLANG_USE_1STAGE_ALLREDUCE=None if one_stage < 0 else bool(one_stage),
            SGLANG_ENABLE_DETERMINISTIC_INFERENCE=bool(case.fact("deterministic")),
        )
        namespace = {
            "torch": torch,
            "dist": torch.distributed,
            "logger": fake.logger(),
            "envs": switches,
            "get_exec": lambda: kernel,
            "PcieIpcAllReduceWorkspace": lambda **_: workspace,
        }
        names = [
            "eligible_group",
            "_warn_deterministic_wins",
            "_ELIGIBLE_GROUP_NAMES",
            "_SUPPORTED_WORLD_SIZES",
            "_FALLBACK_DECODE_WIDTH",
            "_warn_untuned_dtype",
            "_autotune_disabled",
            "_decode_width",
            "_tune_cache_path",
            "_tune_batches",
            "PcieIpcCommunicator",
        ]
        # FlashInfer's cache path is asked for in a `try`, so its absence is an answer too.
        code = tree.lift(path, names, {**namespace, "default_cache_path": lambda world_size: ""})
        rule = "GroupCoordinator._deterministic_collectives_enabled"
        deterministic = tree.lift("srt/distributed/parallel_state.py", [rule], namespace)[rule]()
        return code, code["eligible_group"](group_name="tp", world_size=case.fact("world_size"), deterministic=deterministic)

    def ask(case: Case) -> Theirs:
        code, eligible = build(tuple(sorted(case.facts.items())))
        if not eligible:
            return Theirs("absent")
        cls = code["PcieIpcCommunicator"]
        if not case.fact("has_flashinfer_pcie"):
            cls.__init__.__globals__["__lifted_import__"] = _no_import
        comm = cls(group=fake.Group(), device=fake.Device("cuda:0"))
        hidden = case.fact("pcie_hidden")
        if hidden:
            comm.prepare(hidden=hidden, max_rows=case.fact("decode_rows"))
        else:
            comm._max_rows = case.fact("decode_rows")
        tensor = fake.flat(
            case.nbytes,
            case.dtype,
            contiguous=bool(case.asked("contiguous")),
            columns=case.asked("columns"),
            dims=case.asked("dims"),
        )
        return Theirs(predicate_state(comm.disabled, lambda: comm.should_pcie_ipc_ar(tensor)))

    compare(result, Gate(release, "pcie_ipc"), _pcie_cases(), ask)
    result.not_conformed.append("pcie_ipc: FlashInfer's own supports(), and whether its all-reduce returns a new tensor")
    return result


def _no_import(module: str, name: str) -> None:
    raise ImportError(f"{module}.{name}")


def _pcie_cases() -> Iterator[Case]:
    base, width = {"own_pcie_ipc": 1, "has_flashinfer_pcie": 1}, {"columns": 6144}
    row = 6144 * 2
    for world in _WORLDS:
        yield Case(row, facts={**base, "world_size": world}, call=width)
    for more in (
        {"own_pcie_ipc": 0},
        {"has_flashinfer_pcie": 0},
        {"deterministic": 1},
        {"deterministic": 1, "one_stage": 0},
        {"one_stage": 1},
    ):
        yield Case(row, facts={**base, **more}, call=width)
    for more in ({}, {"decode_rows": 192}, {"pcie_hidden": 7168}, {"pcie_max_numel": 6144 * 100}, {"decode_rows": 1}):
        for size in around(*(row * n for n in (1, 64, 100, 192)), 7168 * 2 * 64, step=row):
            yield Case(size, facts={**base, **more}, call=width)
    for dtype in BYTES:
        yield Case(row * 4, dtype, facts=base, call=width)
    for call in ({"contiguous": 0}, {"dims": 1}, {"dims": 3}):
        yield Case(row, facts={**base, "pcie_hidden": 6144}, call={**width, **call})


def compare_pynccl(tree: Tree, release: str) -> Result:
    """PyNcclCommunicator: off after its construction, on inside change_state, and what running it raises."""
    result, path = Result("pynccl"), COMMUNICATORS + "pynccl.py"
    wrapper = COMMUNICATORS + "pynccl_wrapper.py"

    @functools.cache
    def lifted(world_size: int, has_nccl: int) -> Any:
        torch = fake.torch(world_size=world_size)

        def library(_path: object = None) -> fake.Space:
            if not has_nccl:
                raise OSError("libnccl")
            return fake.Space(
                ncclGetVersion=lambda: "2",
                ncclGetRawVersion=lambda: 22000,
                ncclCommInitRank=lambda *_: 1,
                ncclCommInitRankConfig=lambda *_: 1,
                ncclAllReduce=fake.ignore,
                ncclGetUniqueId=lambda: fake.Space(internal=[0]),
            )

        types = tree.lift(wrapper, ["ncclDataTypeEnum", "ncclRedOpTypeEnum"], {"torch": torch, "ReduceOp": fake.ReduceOp})
        stream = fake.Space(cuda_stream=0)
        namespace = {
            **types,
            "torch": torch,
            "dist": torch.distributed,
            "ReduceOp": fake.ReduceOp,
            "logger": fake.logger(),
            "NCCLLibrary": library,
            "buffer_type": int,
            "cudaStream_t": int,
            "StatelessProcessGroup": fake.Tensor,
            "get_current_device_stream_fast": lambda: stream,
            "ncclConfig_t": fake.Space(create=lambda: fake.Space(graphUsageMode=0)),
        }
        return tree.lift(path, ["PyNcclCommunicator"], namespace)["PyNcclCommunicator"]

    def ask(case: Case) -> Theirs:
        comm = lifted(case.fact("world_size"), case.fact("has_nccl"))(fake.Group(), device="cuda:0")
        if case.fact("pdmux"):
            comm.disabled = False
        tensor = fake.flat(case.nbytes, case.dtype)

        def seen() -> Theirs:
            return Theirs("disabled" if comm.disabled else "accepts")

        if "in_graph_capture" in case.context and case.fact("captured"):
            with comm.change_state(enable=True):
                state = seen()
        else:
            state = seen()
        with comm.change_state(enable=True):
            return state._replace(run=attempt(lambda: comm.all_reduce(tensor)))

    cases = [
        Case(4096, dtype, facts={"world_size": world, **more}, context=context)
        for world in (2, 8)
        for dtype in BYTES
        for context in ((), ("in_graph_capture",), ("piecewise",))
        for more in ({}, {"captured": 0}, {"pdmux": 1}, {"has_nccl": 0})
    ]
    compare(result, Gate(release, "pynccl"), cases, ask)
    return result
