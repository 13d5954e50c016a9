"""SGLang's own dispatch, run over every combination of its conditions. Called by conform.py and derived.py.

`GroupCoordinator.all_reduce` and the methods that it calls are lifted out of a tree and run on one coordinator whose communicators
are recording stand-ins; what they record is read into an `Outcome`. Stand-ins exist once per state, so a walk only sets fields.
Invariant: an exception counts as SGLang's only when SGLang's own code raises it (its assertions, or a use of a communicator that is
None); a name that the stand-ins do not offer is a LiftError, never an answer.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._source.lift import LiftError, Tree, find, parse
from .stand_ins import Communicator, Device, Pynccl, Strict, Tensor

FILE = "srt/distributed/parallel_state.py"
MSCCLPP_FILE = "srt/distributed/device_communicators/pymscclpp.py"
METHODS = ("GroupCoordinator.all_reduce", "GroupCoordinator._all_reduce_out_place", "GroupCoordinator._all_reduce_in_place")
OPTIONAL = ("GroupCoordinator._resolve_outplace_all_reduce_method",)

_COMMUNICATOR = ("absent", "disabled", "declines", "accepts")
# The canonical order of states: most significant first; state 0 is the group of one rank.
DOMAIN: dict[str, tuple[Any, ...]] = {
    "custom": _COMMUNICATOR,
    "quick": _COMMUNICATOR,
    "mscclpp": _COMMUNICATOR,
    "torch_symm_mem": _COMMUNICATOR,
    "pynccl": ("absent", "disabled", "enabled"),
    "symmetric_memory": (False, True),
    "piecewise": (False, True),
    "compiling": (False, True),
    "flashinfer": (False, True),
}
STATE_COUNT = 1 + int(np.prod([len(v) for v in DOMAIN.values()]))


class Outcome(NamedTuple):
    """What SGLang did with one tensor. `rule` is our name for the way it went; all else was observed."""

    path: str
    rule: str
    op: str | None = None
    new: bool = False
    cloned: bool = False
    lost: bool = False
    error: str = ""


@dataclass
class Walk:
    """Outcomes over the states in canonical order: `outcomes[ids[i]]` is that of state i."""

    ids: npt.NDArray[np.uint8]
    outcomes: list[Outcome]


def state(i: int) -> dict[str, Any]:
    """The conditions of state i, as `dispatch` takes them."""
    if i == 0:
        return {"world_size": 1}
    i -= 1
    digits: dict[str, Any] = {}
    for name, values in reversed(DOMAIN.items()):
        i, digit = divmod(i, len(values))
        digits[name] = values[digit]
    return {name: digits[name] for name in DOMAIN}


_ATTRIBUTES = {  # condition -> fields of the coordinator, by any name they have had
    "custom": ("ca_comm",),
    "quick": ("qr_comm",),
    "mscclpp": ("pymscclpp_comm",),
    "torch_symm_mem": ("symm_mem_comm", "torch_symm_mem_comm"),
    "pcie_ipc": ("pcie_ipc_comm",),
    "pynccl": ("pynccl_comm",),
}
DEVICES = ("cpu", "cpu_shm", "hpu", "xpu", "npu", "amd_deterministic")


@dataclass
class Dispatch:
    """One tree's dispatch, lifted and ready to run. `unknown` names communicators that it asks for and we do not know."""

    tree: Tree
    unknown: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._trace: list[str] = []
        self._compiling = self._piecewise = self._deterministic = self._shm = False
        self._input, self._new, self._copy = (Tensor(self._trace, kind) for kind in ("input", "new", "copy"))
        self._input.copy = self._copy
        lifted = self.tree.lift(FILE, METHODS, self._namespace(), OPTIONAL)
        self._scope: dict[str, Any] = lifted[METHODS[0]].__globals__
        self.group = self._coordinator(lifted["GroupCoordinator"])
        self._stand_ins = self._build()
        self._known: dict[tuple[object, ...], int] = {}
        self.outcomes: list[Outcome] = []
        self.reads_multinode = "_CA_V2_MULTINODE" in _names_read(self.tree)
        self.reads_pcie_ipc = "pcie_ipc_comm" in _names_read(self.tree)
        self.reset()

    def _namespace(self) -> dict[str, Any]:
        def note(event: str) -> Callable[..., None]:
            return lambda *_, **__: self._trace.append(event)

        def is_compiling() -> bool:
            return self._compiling

        def piecewise() -> bool:
            return self._piecewise

        stream = SimpleNamespace(current_stream=lambda: None)
        distributed = SimpleNamespace(all_reduce=note("torch"), ReduceOp=SimpleNamespace(SUM="sum"))
        ops = SimpleNamespace(
            sglang=SimpleNamespace(inplace_all_reduce=self._in_place, outplace_all_reduce=self._out_of_place),
            sgl_kernel=SimpleNamespace(shm_allreduce=note("shm")),
        )
        torch = SimpleNamespace(
            compiler=SimpleNamespace(is_compiling=is_compiling),
            distributed=distributed,
            ops=ops,
            cuda=stream,
            get_device_module=lambda: stream,
        )
        setting = SimpleNamespace(is_set=lambda: True, get=lambda: self._deterministic)
        return {
            "torch": torch,
            "inplace_all_reduce": self._in_place,
            "outplace_all_reduce": self._out_of_place,
            "flashinfer_allreduce": self._flashinfer,
            "is_in_piecewise_cuda_graph": piecewise,
            "is_in_tc_piecewise_cuda_graph": piecewise,
            "supports_custom_op": lambda: True,
            "_supports_custom_op": True,
            "is_shm_available": lambda *_: self._shm,
            "REDUCE_OP_SUM": "sum",
            "is_hip": lambda: self._deterministic,
            "_is_hip": False,
            "get_current_device_stream_fast": lambda: None,
            "_CA_V2_MULTINODE": False,
            "logger": Strict(),
            "envs": SimpleNamespace(SGLANG_USE_1STAGE_ALLREDUCE=setting, SGLANG_ENABLE_DETERMINISTIC_INFERENCE=setting),
            "intel_extension_for_pytorch": SimpleNamespace(distributed=SimpleNamespace(all_reduce=note("ipex"))),
        }

    def _coordinator(self, lifted: type) -> Any:
        unknown = self.unknown

        class Coordinator(lifted):  # type: ignore[misc] # a class that is known at run time alone
            def __getattr__(self, name: str) -> Any:
                if name.endswith(("_comm", "_communicator")):
                    unknown.add(name)
                    return None
                raise LiftError(f"the dispatch uses self.{name}, which the stand-in group does not know")

        group = Coordinator()
        resolve = getattr(lifted, "_resolve_outplace_all_reduce_method", None)
        if resolve is not None:

            def resolved(*args: Any, **named: Any) -> Any:
                method = resolve(group, *args, **named)
                self._trace.append(f"resolved {method}")
                return method

            group._resolve_outplace_all_reduce_method = resolved
        group.debug_check_symmetric_mempool = lambda *_, **__: None
        return group

    def _build(self) -> dict[str, dict[str, Any]]:
        in_place = _mscclpp_in_place(self.tree)
        built: dict[str, dict[str, Any]] = {}
        for name in ("custom", "quick", "mscclpp", "torch_symm_mem", "pcie_ipc"):
            built[name] = {
                s: Communicator(self._trace, self._new, name, s, in_place and name == "mscclpp") for s in _COMMUNICATOR[1:]
            } | {"absent": None}
        built["pynccl"] = {"absent": None} | {s: Pynccl(self._trace, self._new, s == "enabled") for s in ("disabled", "enabled")}
        return built

    # The registered ops: they look the group up by name and call its bound method; Dynamo does not look inside.
    def _in_place(self, tensor: Tensor, group_name: str = "") -> None:
        self._trace.append("in_place")
        self.group._all_reduce_in_place(tensor)

    def _out_of_place(self, tensor: Tensor, group_name: str = "", **method: str) -> Any:
        self._trace.append(f"out {method.get('outplace_all_reduce_method', '')}")
        compiling, self._compiling = self._compiling, False  # the op's body runs later, outside the trace
        try:
            return self.group._all_reduce_out_place(tensor, **method)
        finally:
            self._compiling = compiling

    def _flashinfer(self, _tensor: Tensor, group_name: str = "", **_: object) -> Tensor:
        self._trace.append("flashinfer")
        return self._new

    def reset(self) -> None:
        """An eight-rank CUDA group that owns nothing, outside any graph."""
        group = self.group
        self._compiling = self._piecewise = self._deterministic = self._shm = False
        self._input.is_cpu = False
        self._scope["_CA_V2_MULTINODE"] = False
        group.world_size, group.local_size, group.unique_name, group.device_group = 8, 8, "tp:0", None
        group.hpu_communicator = group.xpu_communicator = group.npu_communicator = None
        for condition in _ATTRIBUTES:
            self._set(condition, "absent")
        for condition in ("symmetric_memory", "piecewise", "compiling", "flashinfer"):
            self._set(condition, False)

    def _set(self, condition: str, value: Any) -> None:
        if condition in _ATTRIBUTES:
            for attribute in _ATTRIBUTES[condition]:
                self.group.__dict__[attribute] = self._stand_ins[condition][value]
        elif condition == "symmetric_memory":  # the flag, or the tag of the old eras: a release reads one of them
            self.group.is_symmetric_memory_enabled = lambda: value
            self._input.symmetric_memory = value
        elif condition == "piecewise":
            self._piecewise = value
        elif condition == "compiling":
            self._compiling = value
        else:
            self.group._can_use_flashinfer_allreduce = lambda _input: value

    def walk(self, pcie_ipc: str = "absent", custom_multinode: bool = False) -> Walk:
        """All 12,289 states. The two further conditions of newer eras are fixed for one walk."""
        self.reset()
        self._set("pcie_ipc", pcie_ipc)
        self._scope["_CA_V2_MULTINODE"] = custom_multinode
        ids = np.empty(STATE_COUNT, dtype=np.uint8)
        self.group.world_size = 1
        ids[0] = self._run()
        self.group.world_size = 8
        names, before, run, put = list(DOMAIN), [None] * len(DOMAIN), self._run, self._set
        for i, values in enumerate(itertools.product(*DOMAIN.values()), 1):
            for k in range(len(names) - 1, -1, -1):  # only the digits that changed: the last ones
                if values[k] == before[k]:
                    break
                put(names[k], values[k])
            before = list(values)
            ids[i] = run()
        return Walk(ids, self.outcomes)

    def device(self, device: str, **conditions: Any) -> Outcome:
        """One state of a group that is not plain CUDA: an item of DEVICES, and any conditions of `DOMAIN`."""
        self.reset()
        for name, value in conditions.items():
            self._set(name, value)
        if device.startswith("cpu"):
            self._input.is_cpu, self._shm = True, device == "cpu_shm"
        elif device == "amd_deterministic":
            self._deterministic = True
        elif device in ("hpu", "xpu", "npu"):
            setattr(self.group, f"{device}_communicator", Device(self._trace, device, self._new))
        outcome = self.outcomes[self._run()]
        if device == "xpu" and outcome.op == "in_place":
            # Which rule sent it to the in-place op shows when something better is there to be passed over.
            self._set("custom", "accepts")
            if self.outcomes[self._run()] == outcome:
                outcome = outcome._replace(rule="xpu")
        self.reset()
        return outcome

    def _run(self) -> int:
        trace = self._trace
        trace.clear()
        error: BaseException | None = None
        result = None
        try:
            result = self.group.all_reduce(self._input)
        except LiftError:
            raise
        except NameError as found:
            raise LiftError(f"{self.tree.filename(FILE)}: the dispatch uses a name that the stand-ins lack: {found}") from found
        except Exception as found:
            if isinstance(found, AttributeError) and "'NoneType'" not in str(found):
                raise LiftError(f"{self.tree.filename(FILE)}: a stand-in is incomplete: {found}") from found
            error = found
        kind = getattr(result, "kind", None) if error is None else type(error).__name__
        key = (kind, *trace)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = len(self.outcomes)
            self.outcomes.append(_read(trace, kind, "" if error is None else type(error).__name__, self.group.world_size))
        return known


_RUN = {  # what ran -> path, rule
    "custom": ("custom", "custom"),
    "quick": ("quick", "quick"),
    "mscclpp": ("mscclpp", "mscclpp"),
    "torch_symm_mem": ("torch_symm_mem", "torch_symm_mem"),
    "torch_symm_mem_out": ("torch_symm_mem", "torch_symm_mem"),
    "pcie_ipc": ("pcie_ipc", "pcie_ipc"),
    "flashinfer": ("flashinfer", "flashinfer"),
    "amd": ("custom", "amd_deterministic"),
    "pynccl": ("pynccl_in_place", "symm_mem_bypass"),
    "pynccl_off": ("pynccl_in_place", "symm_mem_bypass"),
    "pynccl_out": ("pynccl_out_of_place", "piecewise_pynccl"),
    "torch": ("torch_distributed", "cpu"),
    "shm": ("cpu_shm", "cpu"),
    "ipex": ("torch_distributed", "cpu"),
    "hpu": ("torch_distributed", "hpu"),
    "xpu": ("torch_distributed", "xpu"),
    "npu": ("torch_distributed", "npu"),
}
_IN_PLACE_RULE = {
    "pynccl": "in_place_pynccl",
    "pynccl_off": "in_place_pynccl",
    "torch": "in_place_torch",
    "torch_symm_mem": "in_place_torch_symm_mem",
    "torch_symm_mem_out": "in_place_torch_symm_mem",
}
_METHOD_RULE = {
    "qr": "quick",
    "ca": "custom",
    "pymscclpp": "mscclpp",
    "symm_mem": "torch_symm_mem",
    "pynccl": "piecewise_pynccl",
    "torch_symm_mem": "torch_symm_mem",
    "pcie_ipc": "pcie_ipc",
}


def _read(trace: list[str], kind: str | None, error: str, world_size: int) -> Outcome:
    """A recorded trace as an outcome."""
    if world_size == 1 and not trace and kind == "input":
        return Outcome("none", "world_of_one")
    out = next((e for e in trace if e.startswith("out ")), None)
    op = "out_of_place" if out is not None or "flashinfer" in trace else "in_place" if "in_place" in trace else None
    ran = [e for e in trace if e in _RUN]
    if len(ran) > 1 or (not ran and not error):
        raise LiftError(f"the dispatch ran {' and '.join(ran) or 'nothing'} for one tensor: {' > '.join(trace)}")
    path, rule = _RUN[ran[0]] if ran else ("raises", "")
    resolved = [e.removeprefix("resolved ") for e in trace if e.startswith("resolved ")]
    if op == "in_place":
        rule = _IN_PLACE_RULE.get(ran[0] if ran else "", rule)
    elif out is not None:
        method = out.removeprefix("out ")
        if method == "auto":
            none = bool(resolved) and resolved[-1] == "None"
            rule = ("auto_clone" if "clone" in trace else "auto_pynccl") if none else _METHOD_RULE.get(resolved[-1], rule)
        else:
            # Before the method had a name the op decided again: only MSCCL++ can have sent a tensor that custom then declines.
            rule = _METHOD_RULE.get(method, rule or "mscclpp")
    if error:
        return Outcome("raises", rule, op, error=error)
    lost = ran[0] == "pynccl_off" or (ran[0] == "torch_symm_mem" and op == "in_place")
    return Outcome(path, rule, op, kind != "input", "clone" in trace, lost)


def _mscclpp_in_place(tree: Tree) -> bool:
    """Whether this tree's MSCCL++ reduces in place: its `all_reduce` then allocates no output."""
    if not tree.exists(MSCCLPP_FILE):
        return False
    found = find(parse(tree.source(MSCCLPP_FILE), tree.filename(MSCCLPP_FILE)), "PyMscclppCommunicator.all_reduce")
    return bool(found) and "empty_like" not in _words(found)


def _names_read(tree: Tree) -> set[str]:
    module = parse(tree.source(FILE), tree.filename(FILE))
    return _words(node for name in (*METHODS, *OPTIONAL) for node in find(module, name))


def _words(nodes: Iterable[ast.AST]) -> set[str]:
    found = [n for root in nodes for n in ast.walk(root)]
    return {n.attr for n in found if isinstance(n, ast.Attribute)} | {n.id for n in found if isinstance(n, ast.Name)}


def describe(outcome: Outcome) -> str:
    """One outcome in words, for differences."""
    if outcome.error:
        return f"raises {outcome.error} ({outcome.rule})"
    notes = [outcome.op or "direct", "new tensor" if outcome.new else "input"]
    notes += ["cloned"] * outcome.cloned + ["result lost"] * outcome.lost
    return f"{outcome.path} by {outcome.rule} ({', '.join(notes)})"
