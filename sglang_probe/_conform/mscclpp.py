"""MSCCL++: SGLang's communicator, built and asked, against our gate. Called by others.py.

The mscclpp packages are stand-ins that record algorithms; SGLang's own code chooses among them and fills its table of sizes.
Invariant: the stand-ins' tuning times are all equal, so the first algorithm that SGLang registers for a size wins; the gate
assumes the same, and both say so.
"""

from __future__ import annotations

import ast
import bisect
import functools
import inspect
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from .._source.lift import Tree, parse
from . import torch_stand_ins as fake
from .gate import BYTES, COMMUNICATORS, DEVICES, MIB, Case, Gate, Theirs, around, attempt, compare, predicate_state
from .types import Result

FILE = COMMUNICATORS + "pymscclpp.py"
_NATIVE = ("nvls_packet", "packet", "rsag_zero_copy", "nvls_zero_copy")
_WORLDS = (*range(2, 17), 32, 64)
_PIECEWISE = ("piecewise", "compile_warmup", "piecewise_stream")


class Struct:
    """msgspec.Struct, as far as SGLang uses it: fields from the class, defaults, __post_init__."""

    def __init__(self, *values: Any, **named: Any) -> None:
        fields = [name for cls in reversed(type(self).__mro__) for name in inspect.get_annotations(cls)]
        for name, value in {**dict(zip(fields, values, strict=False)), **named}.items():
            setattr(self, name, value)
        for name in fields:
            default = getattr(self, name, None)
            if isinstance(default, _Factory):
                setattr(self, name, default.make())
        after = getattr(self, "__post_init__", None)
        if after:
            after()


class _Factory:
    def __init__(self, make: Any) -> None:
        self.make = make


def _replace(struct: Any, **named: Any) -> Any:
    return type(struct)(**{**vars(struct), **named})


class Algorithm(fake.Strict):
    """An algorithm of MSCCL++: a name, and the sizes that it is registered for."""

    def __init__(self, name: str, low: int = 0, high: int = 0) -> None:
        self.name, self.message_size_range = name, (low, high)

    def set_message_size_range(self, low: int, high: int) -> None:
        self.message_size_range = (low, high)

    def reset(self) -> None:
        pass

    def execute(self, **_: object) -> int:
        return 0


class Collective(fake.Strict):
    name = ""

    def __init__(self, world_size: int, chunk_factor: int, in_place: bool) -> None:
        self.world_size, self.chunk_factor, self.in_place = world_size, chunk_factor, in_place


def _collective(name: str) -> type[Collective]:
    return type(name, (Collective,), {"name": name})


def _packages(case: Case) -> fake.Space:
    """`importlib`, with or without the mscclpp packages."""
    domains = 1 if case.fact("fabric_clique") else case.fact("nodes")

    def compiled(_builder: object, spec: Any, _rank: int, **_: object) -> Algorithm:
        known = vars(spec)
        return Algorithm(spec.name, known.get("min_message_size", 0), known.get("max_message_size", 0))

    language = fake.Space(
        AlgoSpec=SimpleNamespace,
        ReplicationPolicy=fake.Space(interleaved=0),
        collectives=fake.Space(
            AllReduce=_collective("allreduce"), AllGather=_collective("allgather"), ReduceScatter=_collective("reducescatter")
        ),
    )
    main = fake.Space(
        language=language,
        compile=compiled,
        CommGroup=lambda **_: fake.Space(communicator=0, nranks_per_ipc_domain=max(case.fact("world_size") // domains, 1)),
        Executor=lambda _: fake.Space(reset=fake.ignore),
        RawGpuBuffer=lambda _size: fake.Space(to_dlpack=lambda data_type: 0),
        DataType=fake.Space(float16=0, float32=1, int32=2, bfloat16=3),
        ReduceOp=fake.Space(SUM=0, NOP=1),
        is_nvls_supported=lambda: bool(case.fact("multicast")),
    )
    algorithms = [Algorithm(f"default_allreduce_{name}") for name in _NATIVE]
    builder = fake.Space(build_default_algorithms=lambda **_: algorithms)
    multi = {f"{name}_multi_nodes": 0 for name in ("allreduce", "allgather", "reducescatter")}
    modules = {
        "mscclpp": main,
        "mscclpp.ext": fake.Space(AlgorithmCollectionBuilder=lambda: builder),
        "mscclpp.default_algos": fake.Space(**multi),
    }

    def import_module(name: str) -> fake.Space:
        if not case.fact("has_mscclpp"):
            raise ImportError(name)
        return modules[name]

    return fake.Space(import_module=import_module)


def _names(tree: Tree) -> list[str]:
    """Every definition of the file but its logger and its aliases of types."""
    names = []
    for node in parse(tree.source(FILE), tree.filename(FILE)).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names.append(node.targets[0].id)
    return [n for n in names if n not in ("logger", "_ParameterAdapter", "mscclpp_is_available") and not n.startswith("_is_")]


class Communicators:
    """SGLang's communicator for a case, built once for equal facts."""

    def __init__(self, tree: Tree) -> None:
        self._tree, self._names, self._context = tree, _names(tree), frozenset[str]()
        self._built = functools.lru_cache(maxsize=None)(self._build)

    def _build(self, facts: tuple[tuple[str, int], ...]) -> Any:
        case = Case(0, facts=dict(facts))
        world, cuda = case.fact("world_size"), case.fact("device") == DEVICES["cuda"]
        ranks = list(range(world)) if case.fact("consecutive") else [2 * r for r in range(world)]
        torch = fake.torch(world_size=world, ranks=ranks, devices=max(world // case.fact("nodes"), 1))
        library = cuda and bool(case.fact("has_custom_ops"))
        ops = fake.Space(
            IS_MSCCLPP_AR_AVAILABLE=library,
            mscclpp_generate_unique_id=lambda: 0,
            mscclpp_allreduce=fake.ignore,
            mscclpp_init_context=lambda *_: 1,
        )
        server = fake.Space(enable_symm_mem=bool(case.fact("symm_mem")))
        args = {"SGLANG_MSCCLPP_MAX_BYTES": f"{case.fact('mscclpp_max_bytes')}b"} if "mscclpp_max_bytes" in case.facts else {}
        bases = ("_AlgorithmConfig", "_DslAlgorithmConfig", "_NativeAlgorithmConfig", "_CompositeAlgorithmConfig")
        namespace = {
            **dict.fromkeys(bases),
            "torch": torch,
            "dist": torch.distributed,
            "ReduceOp": fake.ReduceOp,
            "logger": fake.logger(),
            "os": fake.variables(args),
            "bisect": bisect,
            "ops": ops,
            "mscclpp_is_available": library,
            "_is_hip": not cuda,
            "_is_cuda": cuda,
            "importlib": _packages(case),
            "product": itertools.product,
            "dataclass_replace": _replace,
            "msgspec": fake.Space(
                Struct=Struct, structs=fake.Space(replace=_replace), field=lambda default_factory: _Factory(default_factory)
            ),
            "get_global_server_args": lambda: server,
            "get_server_args": lambda: server,
            "get_exec": lambda: fake.Space(comm=server),
            "is_in_tc_piecewise_cuda_graph": lambda: "piecewise" in self._context,
            "is_in_torch_compile_warmup": lambda: "compile_warmup" in self._context,
            "get_pcg_capture_stream": lambda: 1 if "piecewise_stream" in self._context else None,
        }
        cls = self._tree.lift(FILE, self._names, namespace)["PyMscclppCommunicator"]
        cls._get_time = lambda _self, *_args, **_named: 1.0
        if hasattr(cls, "pre_tune_config"):
            cls.pre_tune_config = lambda one: one.msg_size2best_config.update(dict.fromkeys(one.msg_size_for_finetune, (256, 21)))
        return cls(group=fake.Group(), device="cuda:0")

    def ask(self, case: Case) -> Theirs:
        comm = self._built(tuple(sorted(case.facts.items())))
        self._context = frozenset(case.context)
        comm.disabled = True  # where the predicate raises, SGLang's own change_state does not restore it
        weak = bool(case.asked("weak_contiguous"))
        tensor = fake.flat(case.nbytes, case.dtype, contiguous=weak, weak=weak)
        if not ("in_graph_capture" in case.context and case.fact("captured")):
            return Theirs(predicate_state(comm.disabled, lambda: comm.should_mscclpp_allreduce(tensor)))
        with comm.change_state(enable=True):
            state = predicate_state(comm.disabled, lambda: comm.should_mscclpp_allreduce(tensor))
            if state != "accepts":
                return Theirs(state)
            out: list[Any] = []
            run = attempt(lambda: out.append(comm.all_reduce(tensor)))
            return Theirs(state, run=run, returns_new=out[0] is not tensor if out else None)


def _setups(generation: int) -> Iterator[dict[str, int]]:
    """Facts of groups: each world size, then each thing that a constructor asks, one at a time."""
    base = {"own_mscclpp": 1, "has_mscclpp": 1, "world_size": 8}
    for world in _WORLDS:
        nodes = {8: 1, 16: 2, 32: 4}.get(world, 1)
        yield {**base, "world_size": world, "nodes": nodes}
        if generation >= 2:
            for other in (1, 2, 3, 4, 8, 16):
                if world % other == 0 and other != nodes and not (generation == 2 and world not in (16, 32)):
                    yield {**base, "world_size": world, "nodes": other}
    for world in (8, 5):
        for name, value in (
            ("consecutive", 0),
            ("captured", 0),
            ("has_mscclpp", 0),
            ("has_custom_ops", 0),
            ("symm_mem", 1),
            ("multicast", 0),
        ):
            yield {**base, "world_size": world, name: value}
    if generation == 1:
        yield {**base, "device": DEVICES["hip"]}
        for size in (MIB // 2, 3 * MIB, 4 * MIB, MIB + 1000):
            yield {**base, "mscclpp_max_bytes": size}
    if generation == 3:
        yield {**base, "world_size": 8, "nodes": 2, "fabric_clique": 1}
        yield {**base, "world_size": 64, "nodes": 16, "fabric_clique": 1}


def _cases(generation: int) -> Iterator[Case]:
    capture = ("in_graph_capture",)
    for facts in _setups(generation):
        limit = facts.get("mscclpp_max_bytes", MIB)
        domains = 1 if facts.get("fabric_clique") else facts.get("nodes", 1)
        powers = range(9, 29) if facts["world_size"] in (4, 8, 16, 32, 64) else (9, 20, 23)
        sizes = around(*(1 << k for k in powers), domains * MIB, limit, step=8)
        for size in sorted({2, *sizes}):
            yield Case(size, facts=facts, context=capture)
        yield Case(4096, facts=facts)
        for dtype in BYTES:
            yield Case(4096, dtype, facts=facts, context=capture)
        yield Case(4096, facts=facts, call={"weak_contiguous": 0, "contiguous": 0}, context=capture)
        for flag in _PIECEWISE:
            yield Case(4096, facts=facts, context=(*capture, flag))
            yield Case(4096, facts=facts, context=(flag,))


def compare_mscclpp(tree: Tree, release: str) -> Result:
    result = Result("mscclpp")
    if not tree.exists(FILE):
        return result
    source = tree.source(FILE)
    generation = 3 if "msgspec" in source else 2 if "_get_tuned_config" in source else 1
    compare(result, Gate(release, "mscclpp"), _cases(generation), Communicators(tree).ask)
    if generation > 1:
        result.not_conformed.append("mscclpp: which algorithms the tuning at start finds, and whether the packages run here")
    return result
