"""The custom all-reduce gate against SGLang's own choice of class, constructors, predicates and algorithms. Called by conform.

Every set of facts builds SGLang's communicator on stand-ins; every size around a threshold is then asked, and run, in each context.
Invariant: thresholds come from SGLang's objects and from powers of two, never from our tables, so a threshold of theirs that we lack
is met too.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .. import _core
from .._source.lift import LiftError, Tree
from .custom_lab import AITER, V1, V2, Lab
from .custom_stand_ins import Bytes
from .gate import CALL_FACTS, DEVICES, FACTS, MIB, around
from .types import Grouping, Result

Facts = Mapping[str, int]
DTYPES = tuple(name for name, _ in _core.DTYPES)
COMPILED = ("bf16", "fp16", "fp32")
CONTEXTS: tuple[tuple[str, ...], ...] = (
    (),
    ("in_graph_capture",),
    ("in_graph_capture", "stream_capturing"),
    ("piecewise",),
    ("in_graph_capture", "piecewise"),
    ("in_graph_capture", "stream_capturing", "piecewise"),
)
LAYOUTS = ((True, True), (True, False), (False, True), (False, False))  # contiguous; the rest of its storage
ARCHS = (90, 100, 103, 107, 120)
_CONTEXTS = tuple(row[0] for row in _core.CONTEXTS)

NOT_CONFORMED = (
    "custom: which kernel v1 runs for a size, and which types it takes (C++ of another package)",
    "custom: aiter's own limits and result (another package; SGLang's choice of it is compared)",
    "custom: that V2's kernels refuse other types, layouts and addresses, and reduce in place (C++ of the package)",
)


def _names(rows: Iterable[Any]) -> tuple[str, ...]:
    return tuple(row if isinstance(row, str) else row[0] for row in rows)


_STATES, _KERNELS, _EXCEPTIONS = _names(_core.STATES), _names(_core.KERNELS), _names(_core.EXCEPTIONS)
_BACKENDS, _GATE = _names(_core.BACKENDS), _names(_core.GATES).index("custom")


class Ours(NamedTuple):
    state: str
    kernel: str
    backend: str
    exception: str
    limit: int
    returns_new: bool
    reduces: bool


def compare_custom(tree: Tree, release_name: str) -> Result:
    """Every answer of the custom gate for one release against that tree."""
    result = Result("custom", not_conformed=list(NOT_CONFORMED))
    release = [row[0] for row in _core.releases()].index(release_name)
    lab = Lab(tree)
    group = Grouping(result, FACTS)
    for facts in _setups(tree.exists(V2), "is_musa" in tree.source(V1)):
        for point, what, theirs, ours in _compare_setup(lab, release, facts):
            group.check(what, facts, point, theirs, ours)
    group.close()
    return result


Point = Mapping[str, object]
Check = tuple[Point, str, object, object]


def _compare_setup(lab: Lab, release: int, facts: Facts) -> Iterator[Check]:
    communicator = lab.build(facts)
    first = _ask(release, facts, Bytes(16, "bf16", True, True), ())
    if communicator is None or communicator == AITER:
        yield {}, "class", AITER if communicator else "absent", first.backend if communicator else first.state
        return
    if communicator.disabled:
        yield {}, "class", _class(lab.backend(communicator)), _class(first.backend)
    else:
        yield {}, "backend", lab.backend(communicator), first.backend
    for context in CONTEXTS:
        yield from _compare_context(lab, release, facts, communicator, context)


def _class(backend: str) -> str:
    """V2, or v1 whatever its library: a disabled v1 does not show its library."""
    return backend.partition("-")[0]


def _compare_context(lab: Lab, release: int, facts: Facts, communicator: Any, context: tuple[str, ...]) -> Iterator[Check]:
    tensors = list(_tensors(communicator))
    name = {"context": "+".join(context) or "eager"}
    try:
        with lab.around(communicator, context):
            for tensor, weak in tensors:
                layout = "contiguous" if tensor.is_contiguous() else "weak" if weak else "strided"
                point = {**name, "nbytes": tensor.numel(), "dtype": tensor.dtype.name, "layout": layout}
                yield from _compare_tensor(lab, release, facts, communicator, context, tensor, weak, point)
            if not communicator.disabled:
                small = _ask(release, facts, Bytes(16, "bf16", True, True), context)
                for size in (small.limit, small.limit + 16) if small.limit and small.state == "accepts" else ():
                    fits = bool(communicator.should_custom_ar(Bytes(size, "bf16", True, True)))
                    yield {**name, "nbytes": size}, "fits", fits, size == small.limit
    except AttributeError as error:  # capture() of a half-built object: nothing can be asked inside
        ours = _ask(release, facts, tensors[0][0], context)
        yield name, f"entering it ({error})", ("raises", "AttributeError"), (ours.state, ours.exception)


def _compare_tensor(
    lab: Lab, release: int, facts: Facts, communicator: Any, context: tuple[str, ...], tensor: Bytes, weak: bool, point: Point
) -> Iterator[Check]:
    contiguous, dtype = tensor.is_contiguous(), tensor.dtype.name
    ours = _ask(release, facts, tensor, context, contiguous=int(contiguous), weak_contiguous=int(weak))
    if communicator.disabled:
        yield point, "state", "disabled", ours.state
        return
    if not communicator.should_custom_ar(tensor):
        yield point, "state", "declines", ours.state
        return
    # An eager question of V2 may already build the kernel, which for these types nothing here can try.
    built = ours.state == "raises" and dtype not in COMPILED
    yield point, "state", "accepts", "accepts" if built else ours.state
    lab.world.log.clear()
    try:
        out = communicator.custom_all_reduce(tensor)
    except LiftError:
        raise
    except Exception as error:
        yield point, "running", type(error).__name__, ours.exception
        return
    refused = ours.exception == "RuntimeError" and (dtype not in COMPILED or not contiguous)
    yield point, "running", "", "" if refused else ours.exception
    yield from _compare_run(ours, lab, out is not tensor, point)


def _compare_run(ours: Ours, lab: Lab, new: bool, point: Point) -> Iterator[Check]:
    log = lab.world.log
    yield point, "reduces", bool(log), ours.reduces
    if ours.backend != "V2":
        yield point, "new tensor", new, ours.returns_new
        yield point, "dry", not log, ours.kernel == "dry"
        return
    algo, graph, multicast = log[-1]
    yield point, "kernel", "two_shot_multicast" if multicast else algo, ours.kernel
    # Where the kernels write, as their C++ has it, of what Python hands them.
    in_place = algo == "two_shot_pull" and graph if lab.rewritten else not (algo == "one_shot_pull" and graph)
    yield point, "new tensor", not in_place, ours.returns_new


def _tensors(communicator: Any) -> Iterator[tuple[Bytes, bool]]:
    """Boundary sizes in bf16; a few sizes in every type and layout."""
    if communicator.disabled:
        yield Bytes(4096, "bf16", True, True), True
        yield Bytes(4100, "bf16", False, False), False
        return
    sizes = {16, 4096, *(1 << n for n in range(10, 29)), *_thresholds(communicator)}
    for size in sorted({*around(*sizes), *around(*sizes, step=1)}):
        yield Bytes(size, "bf16", True, True), True
    for dtype, (contiguous, weak), size in itertools.product(DTYPES, LAYOUTS, (16, 24, 8 * MIB, 8 * MIB + 16)):
        yield Bytes(size, dtype, contiguous, weak), weak


def _thresholds(value: Any) -> Iterator[int]:
    """Every number in an object of SGLang's that could be a size."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if 16 < value < 1 << 30:
            yield int(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _thresholds(item)
    elif hasattr(value, "__dict__"):
        for name, item in vars(value).items():
            if name.startswith(("max_", "config", "one_shot", "two_shot")):
                yield from _thresholds(item)


def _ask(release: int, facts: Facts, tensor: Bytes, context: tuple[str, ...], **call: int) -> Ours:
    values = tuple({**FACTS, **facts}.values())
    asked = {**CALL_FACTS, **call, "dtype": DTYPES.index(tensor.dtype.name)}
    bits = sum(1 << _CONTEXTS.index(name) for name in context)
    state, kernel, backend, exception, _, limit, new, reduces, _ = _core.gate(
        release, _GATE, values, (tensor.numel(), *asked.values()), bits
    )
    return Ours(_STATES[state], _KERNELS[kernel], _BACKENDS[backend], _EXCEPTIONS[exception], limit, bool(new), bool(reduces))


def _setups(has_v2: bool, has_musa: bool) -> Iterator[Facts]:
    """Sets of facts that differ from the defaults. World sizes 1 is no group: nothing is built for it."""
    for world_size, link, arch in itertools.product(range(2, 17), (1, 0), ARCHS if has_v2 else (90,)):
        yield {"world_size": world_size, "full_nvlink": link, "arch": arch}
    hip = DEVICES["hip"]
    for device, world_size, link in itertools.product((hip, DEVICES["musa"]) if has_musa else (hip,), range(2, 17), (1, 0)):
        yield {"device": device, "world_size": world_size, "full_nvlink": link, "use_aiter": 0}
    for device in (DEVICES["cpu"], 4, 5, 6):
        yield {"device": device}
    for world_size in (2, 4, 8):
        for one in _single():
            yield {"world_size": world_size, **one}
        for name, value in (
            ("rccl_msccl", 0),
            ("one_stage", 0),
            ("one_stage", 1),
            ("deterministic", 1),
            ("memory_saver_graph", 1),
            ("piecewise_server", 1),
            ("vllm_custom", 1),
        ):
            yield {"device": hip, "world_size": world_size, "use_aiter": 0, name: value}
            yield {"device": hip, "world_size": world_size, "has_aiter": 1, name: value}
        yield {"device": hip, "world_size": world_size, "full_nvlink": 0, "use_aiter": 0, "one_stage": 1}
        for other in (_across_nodes(world_size), _workspaces(world_size)) if has_v2 else ():
            yield from other
    for world_size in (16, 10) if has_v2 else ():
        yield from _across_nodes(world_size)


def _single() -> Iterator[Facts]:
    for name, value in (
        ("nodes", 2),
        ("has_custom_ops", 0),
        ("memory_saver_graph", 1),
        ("custom_v2", 0),
        ("custom_v2", 1),
        ("vllm_custom", 0),
        ("vllm_custom", 1),
        ("piecewise_server", 1),
        ("multicast", 0),
        ("captured", 0),
        ("deterministic", 1),
        ("one_stage", 1),
        ("p2p", 0),
    ):
        yield {name: value}
    yield {"p2p": 0, "p2p_check": 1}
    yield {"custom_v2": 1, "full_nvlink": 0}
    yield {"custom_v2": 1, "nodes": 2}
    yield {"custom_v2": 1, "p2p": 0, "p2p_check": 1}


def _across_nodes(world_size: int) -> Iterator[Facts]:
    for arch, clique, vmm, multinode in itertools.product((90, 100), (0, 1), (0, 1), (0, 1)):
        yield {
            "world_size": world_size,
            "nodes": 2,
            "arch": arch,
            "fabric_clique": clique,
            "vmm_allocator": vmm,
            "v2_multinode": multinode,
        }


def _workspaces(world_size: int) -> Iterator[Facts]:
    for arch, (name, value) in itertools.product(
        (90, 100, 107),
        (
            ("v2_max_kb", 0),
            ("v2_max_kb", 96),
            ("v2_max_kb", 200000),
            ("v2_force_pull_kb", 0),
            ("v2_force_pull_kb", 64),
            ("v2_force_pull_kb", 40000),
            ("v2_force_push_kb", 0),
            ("v2_force_push_kb", 3),
            ("v2_force_push_kb", 30000),
        ),
    ):
        yield {"world_size": world_size, "arch": arch, name: value}
    yield {"world_size": world_size, "v2_force_pull_kb": 1, "v2_force_push_kb": 5}
