"""All gates but custom all-reduce against SGLang's own code, for one release. Called by conform.py.

Here are the comparisons that need no communicator object: FlashInfer's test, the CPU's test, what graph_capture() switches on,
and the defaults of the environment variables that our facts mirror. The others: communicators.py and mscclpp.py.
Invariant: what a release does not have is not compared, and says nothing; what cannot be compared is named in `not_conformed`.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from typing import Any

from .._source.lift import LiftError, Tree, parse
from . import torch_stand_ins as fake
from .communicators import compare_pcie, compare_pynccl, compare_quick, compare_symm
from .gate import BYTES, COMMUNICATORS, DEVICES, DTYPES, FACTS, Case, Gate, Theirs, around, compare
from .mscclpp import compare_mscclpp
from .types import Result

PARALLEL_STATE = "srt/distributed/parallel_state.py"
_FUSION = "srt/layers/flashinfer_comm_fusion.py"
_ENVIRON = "srt/environ.py"

# A fact, and the variable in SGLang's environ.py whose default it has. None: unset there, -1 here.
_VARIABLES = {
    "inkling": "SGLANG_OPT_USE_INKLING_CUSTOM_AR",
    "inkling_sconv": "SGLANG_OPT_USE_INKLING_FUSED_AR_SCONV",
    "own_pcie_ipc": "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE",
    "pcie_max_numel": "SGLANG_PCIE_IPC_MAX_NUMEL",
    "memory_saver_graph": "SGLANG_MEMORY_SAVER_CUDA_GRAPH",
    "deterministic": "SGLANG_ENABLE_DETERMINISTIC_INFERENCE",
    "v2_max_kb": "SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB",
    "v2_force_pull_kb": "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PULL_SIZE_KB",
    "v2_force_push_kb": "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PUSH_SIZE_KB",
    "v2_multinode": "SGLANG_ENABLE_CUSTOM_ALL_REDUCE_V2_MULTINODE",
}
_FIELDS = dict.fromkeys(("EnvBool", "EnvInt", "EnvStr"), lambda default, *_: default)


def compare_others(tree: Tree, release_name: str) -> list[Result]:
    """Every gate but custom's, at every threshold, against the code of this tree."""
    return [
        compare_quick(tree, release_name),
        compare_mscclpp(tree, release_name),
        compare_symm(tree, release_name),
        compare_pcie(tree, release_name),
        compare_pynccl(tree, release_name),
        compare_flashinfer(tree, release_name),
        compare_cpu(tree, release_name),
        compare_capture(tree),
        compare_defaults(tree),
    ]


def compare_flashinfer(tree: Tree, release: str) -> Result:
    """can_use_flashinfer_allreduce over a workspace of the case's facts."""
    result, name = Result("flashinfer"), "can_use_flashinfer_allreduce"
    if not tree.has(_FUSION, name):
        return result
    now = [Case(0)]
    torch = fake.torch()
    torch.compiler = fake.Space(is_compiling=lambda: "compiling" in now[0].context)

    def manager(_attention: bool) -> fake.Space:
        case = now[0]
        dtype, there = DTYPES[case.fact("fi_dtype")], bool(case.fact("fi_workspace"))
        return fake.Space(
            initialized=there,
            workspace=1 if there else None,
            world_size=case.fact("world_size"),
            group=("tp", "tp"),
            max_token_num=case.fact("fi_max_tokens"),
            hidden_dim=case.fact("fi_hidden"),
            dtype=fake.DTYPE[dtype],
            backend=("trtllm", "mnnvl")[case.fact("fi_backend")],
            use_fp32_lamport=dtype == "fp32",
            is_buffer_size_sufficient=lambda **_: True,
        )

    namespace = {
        "torch": torch,
        "_flashinfer_allreduce_unavailable": False,
        "_flashinfer_comm": 1,
        "_get_workspace_manager": manager,
    }
    can_use = tree.lift(_FUSION, [name], namespace)[name]

    def ask(case: Case) -> Theirs:
        now[0] = case
        if not case.fact("fi_workspace"):
            return Theirs("absent")
        tensor = fake.flat(
            case.nbytes,
            case.dtype,
            contiguous=bool(case.asked("contiguous")),
            columns=case.asked("columns"),
            dims=case.asked("dims"),
        )
        fits = can_use(
            tensor, use_attn_tp_group=True, expected_world_size=case.fact("world_size"), expected_group_key=("tp", "tp")
        )
        return Theirs("accepts" if fits else "declines")

    compare(result, Gate(release, "flashinfer"), _flashinfer_cases(), ask)
    result.not_conformed.append("flashinfer: FlashInfer's own is_buffer_size_sufficient(), and which groups have a workspace")
    return result


def _flashinfer_cases() -> Iterator[Case]:
    for hidden in (4096, 7168):
        base = {"fi_workspace": 1, "fi_hidden": hidden}
        for more in ({}, {"fi_backend": 1}, {"fi_dtype": DTYPES.index("fp32")}, {"fi_max_tokens": 128}, {"fi_workspace": 0}):
            facts = {**base, **more}
            limit = facts.get("fi_max_tokens", FACTS["fi_max_tokens"])
            for context in ((), ("compiling",), ("in_graph_capture",)):
                for columns in (hidden // 2, hidden - 2, hidden - 8, hidden, hidden + 8, 2 * hidden):
                    for dtype in BYTES:
                        row = columns * BYTES[dtype]
                        # mnnvl's size is FlashInfer's own: there only tensors that surely fit
                        widest = (1,) if more.get("fi_backend") and not context == ("compiling",) else (1, limit, limit // 2)
                        for tokens in widest:
                            sizes = around(row * tokens, step=row) if tokens > 1 else [row]
                            for size in sizes:
                                yield Case(size, dtype, facts=facts, call={"columns": columns}, context=context)
                for call in ({"contiguous": 0}, {"dims": 1}, {"dims": 3}):
                    yield Case(hidden * 2, facts=facts, call={"columns": hidden, **call}, context=context)


def compare_cpu(tree: Tree, release: str) -> Result:
    """is_shm_available, where the release has it."""
    result, name = Result("cpu"), "is_shm_available"
    path = "srt/utils/common.py" if tree.exists("srt/utils/common.py") else "srt/utils.py"
    if not tree.has(path, name):
        return result

    def ask(case: Case) -> Theirs:
        namespace = {
            "torch": fake.torch(),
            "cpu_has_amx_support": lambda: bool(case.fact("cpu_amx")),
            "is_host_cpu_arm64": lambda: bool(case.fact("cpu_arm64")),
        }
        there = tree.lift(path, [name], namespace)[name]
        world, local = case.fact("world_size"), case.fact("local_size")
        if there(fake.DTYPE[case.dtype], world, local):
            return Theirs("accepts")
        # Ours tells apart what the group can never do from what this dtype cannot.
        return Theirs("declines" if any(there(d, world, local) for d in fake.DTYPE.values()) else "disabled")

    cases = [
        Case(4096, dtype, facts={"device": DEVICES["cpu"], "world_size": world, "local_size": local, **more})
        for world in (2, 3, 8, 16)
        for local in (0, world, world // 2)
        for more in ({}, {"cpu_amx": 0}, {"cpu_amx": 0, "cpu_arm64": 1}, {"cpu_arm64": 1})
        for dtype in BYTES
    ]
    compare(result, Gate(release, "cpu"), cases, ask)
    return result


class _Switch(fake.Strict):
    """A communicator that is off until something enables it."""

    def __init__(self) -> None:
        self.disabled = True

    @contextlib.contextmanager
    def change_state(self, enable: bool | None = None, stream: object = None) -> Iterator[None]:
        before, self.disabled = self.disabled, not enable
        yield
        self.disabled = before

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        yield


def compare_capture(tree: Tree) -> Result:
    """GroupCoordinator.graph_capture: which communicators it switches on, which is what `in_graph_capture` means to our gates."""
    result, stream = Result("graph_capture"), fake.Space(cuda_stream=0, wait_stream=fake.ignore)
    module = fake.Space(Stream=lambda *_: stream, current_stream=lambda *_: stream, stream=fake.nothing)
    torch = fake.torch()
    torch.cuda, torch.get_device_module = module, lambda *_: module
    namespace = {
        "torch": torch,
        "nullcontext": contextlib.nullcontext,
        "GraphCaptureContext": lambda s: fake.Space(stream=s),
        "get_current_device_stream_fast": lambda: stream,
    }
    group = tree.lift(PARALLEL_STATE, ["GroupCoordinator.graph_capture"], namespace)["GroupCoordinator"]()
    group.device_module = module
    names = ("ca_comm", "pynccl_comm", "pymscclpp_comm", "qr_comm", "symm_mem_comm", "torch_symm_mem_comm", "pcie_ipc_comm")
    for name in names:
        setattr(group, name, _Switch())
    with group.graph_capture():
        inside = {name: not getattr(group, name).disabled for name in names}
    mscclpp = tree.exists(COMMUNICATORS + "pymscclpp.py")
    for name in names:
        switched = name == "pynccl_comm" or (name == "pymscclpp_comm" and mscclpp)
        result.check(f"graph_capture() switches {name} on", inside[name], switched)
        result.check(f"after graph_capture() {name} is on", not getattr(group, name).disabled, False)
    return result


def compare_defaults(tree: Tree) -> Result:
    """Defaults of environment variables in SGLang, and of the facts that mirror them."""
    result = Result("defaults")
    for fact, variable in _VARIABLES.items():
        if tree.has(_ENVIRON, f"Envs.{variable}"):
            value = tree.lift(_ENVIRON, [f"Envs.{variable}"], _FIELDS)[f"Envs.{variable}"]
            result.check(f"{variable}, fact {fact}", -1 if value is None else int(value), FACTS[fact])
    path = COMMUNICATORS + "pymscclpp.py"
    if tree.has(path, "mscclpp_convert_to_bytes"):
        torch = fake.torch()
        names = ["mscclpp_convert_to_bytes", "PyMscclppCommunicator._MAX_BYTES"]
        code = tree.lift(path, names, {"os": fake.variables({}), "torch": torch})
        result.check(
            "SGLANG_MSCCLPP_MAX_BYTES, fact mscclpp_max_bytes",
            code["PyMscclppCommunicator"]._MAX_BYTES,
            FACTS["mscclpp_max_bytes"],
        )
    path = COMMUNICATORS + "quick_all_reduce.py"
    if tree.exists(path):
        quantization = {"NONE": 0}
        for variable, fact, read in (
            ("ROCM_QUICK_REDUCE_QUANTIZATION", "qr_quantization", quantization.get),
            ("ROCM_QUICK_REDUCE_MAX_SIZE_BYTES_MB", "qr_max_mb", int),
            ("ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16", "qr_cast_bf16", int),
        ):
            result.check(f"{variable}, fact {fact}", read(_get_default(tree, path, variable)), FACTS[fact])
    return result


def _get_default(tree: Tree, path: str, variable: str) -> Any:
    """The second argument of ``os.environ.get(variable, default)`` in a file."""
    for node in ast.walk(parse(tree.source(path), tree.filename(path))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("os.environ.get", "os.getenv") and len(node.args) == 2:
            if ast.literal_eval(node.args[0]) == variable:
                return ast.literal_eval(node.args[1])
    raise LiftError(f"{path}: {variable} has no default there")
