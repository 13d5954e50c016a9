"""dispatch and route: conditions or a call into the core, a Decision out. Called by the public API, step, bands and the tests.

Invariant: nothing is decided here. The core answers in codes; this file names them and keeps the Decisions of states already asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from operator import index
from typing import Any, Literal

from . import _core
from ._decision import Blocked, Decision, Gate, Op, Stop
from ._facts import fact_value, pack_call, pack_facts
from ._releases import Release, resolve
from ._resting import blocked_in_table, facts_behind
from ._types import Call, FrozenMap, Group, InputError, Path

PATHS: tuple[Path, ...] = tuple(Path(name) for name, _ in _core.PATHS)
_core.register_paths(PATHS)

RULES: tuple[str, ...] = tuple(name for name, _ in _core.RULES)
RULE_TEXTS: Mapping[str, str] = FrozenMap(dict(_core.RULES))
_EXCEPTIONS = tuple(name for name, _ in _core.EXCEPTIONS)
_CONDITIONS = tuple(name for name, _, _ in _core.CONDITIONS)
_COMMUNICATOR = {name: communicator for name, communicator, _ in _core.CONDITIONS}
_BIT = {name: 1 << i for i, name in enumerate(_CONDITIONS)}
_OPS: tuple[Op | None, ...] = (None, "in_place", "out_of_place")
_NEW, _CLONE, _LOST = 2, 4, 8

Communicator = Literal["absent", "disabled", "declines", "accepts"]
PynCcl = Literal["absent", "disabled", "enabled"]
_LEVELS = ("_present", "_enabled", "_accepts")
_STATES = ("absent", "disabled", "declines", "accepts")
COMMUNICATORS = ("custom", "quick", "mscclpp", "torch_symm_mem", "pcie_ipc")
DEVICES: tuple[str, ...] = _core.DEVICES

_CONTEXT_BIT = {name: 1 << i for i, (name, _) in enumerate(_core.CONTEXTS)}
CONTEXTS: Mapping[str, tuple[str, ...]] = FrozenMap(
    {
        "eager": (),
        "warmup": ("in_graph_capture",),
        "capture": ("in_graph_capture", "stream_capturing"),
        "piecewise_compile": ("piecewise", "compiling", "compile_warmup"),
        "piecewise_capture": ("piecewise", "in_graph_capture", "stream_capturing", "piecewise_stream"),
        "piecewise_replay": ("piecewise",),
        "compile": ("compiling",),
        "compiled_capture": ("in_graph_capture", "stream_capturing", "compiling"),
    }
)
"""Presets: what surrounds a call, as the bits that the dispatch reads."""


def context_bits(context: str | Iterable[str]) -> int:
    """Bits of a preset, or of single names (``"in_graph_capture+piecewise"``, or a list of them)."""
    if not isinstance(context, str) and not (isinstance(context, Iterable) and all(isinstance(name, str) for name in context)):
        raise InputError(
            "context", context, f"give one of {', '.join(CONTEXTS)}, or bits of {', '.join(_CONTEXT_BIT)} joined by +"
        )
    if isinstance(context, str) and context in CONTEXTS:
        names: Iterable[str] = CONTEXTS[context]
    else:
        names = context.split("+") if isinstance(context, str) else context
    bits = 0
    for name in names:
        if name == "replay":
            raise InputError("context", name, "a replay runs no dispatch: it repeats what was captured; ask for 'capture'")
        if name in CONTEXTS:
            bits |= context_bits(name)
            continue
        if name not in _CONTEXT_BIT:
            raise InputError(
                "context", name, f"give one of {', '.join(CONTEXTS)}, or bits of {', '.join(_CONTEXT_BIT)} joined by +"
            )
        bits |= _CONTEXT_BIT[name]
    return bits


def word_of(conditions: Mapping[str, Any]) -> int:
    """The core's word of conditions for ``dispatch``'s keywords (see there); checks each of them."""
    world_size, device = conditions["world_size"], conditions["device"]
    if isinstance(world_size, bool) or not isinstance(world_size, int) or world_size < 1:
        raise InputError("world_size", world_size, "give the number of ranks, 1 or more")
    if device not in DEVICES:
        raise InputError("device", device, f"give one of {', '.join(DEVICES)}")
    word = _BIT["ranks"] if world_size > 1 else 0
    for name in (*COMMUNICATORS, "pynccl"):
        states = ("absent", "disabled", "enabled") if name == "pynccl" else _STATES
        state = conditions[name]
        if state not in states:
            raise InputError(name, state, f"give one of {', '.join(states)}")
        if state != "absent" and world_size == 1:
            raise InputError(name, state, "a group of one rank has no communicator: give 'absent', or world_size above 1")
        for level in _LEVELS[: states.index(state)]:
            word |= _BIT[name + level]
    for name in ("symmetric_memory", "piecewise", "compiling", "flashinfer", "custom_multinode", "amd_deterministic", "cpu_shm"):
        if not isinstance(conditions[name], (bool, int)):
            raise InputError(name, conditions[name], "give True or False")
        word |= _BIT[name] if conditions[name] else 0
    if device in _BIT:
        word |= _BIT[device]
    return word if world_size > 1 else 0


def dispatch(
    sglang: str | Release,
    *,
    world_size: int = 8,
    custom: Communicator = "absent",
    quick: Communicator = "absent",
    mscclpp: Communicator = "absent",
    torch_symm_mem: Communicator = "absent",
    pynccl: PynCcl = "absent",
    symmetric_memory: bool = False,
    piecewise: bool = False,
    compiling: bool = False,
    flashinfer: bool = False,
    pcie_ipc: Communicator = "absent",
    device: str = "cuda",
    cpu_shm: bool = False,
    amd_deterministic: bool = False,
    custom_multinode: bool = False,
) -> Decision:
    """The rules alone: conditions in, Decision out. No machine, no tensor.

    ``symmetric_memory`` is NCCL symmetric memory: the server's flag, or before v0.5.4.post3 the tensor's tag. ``compiling`` is Dynamo
    tracing the call; the method that it leaves open is then resolved in the same conditions. The nine conditions that every era can
    read make 12,289 states; ``pcie_ipc`` (v0.5.21+), ``device``, ``amd_deterministic`` and ``custom_multinode`` come beside them.

    Raises InputError for a value outside of its list, and for a communicator at world size 1.
    Source: SGLang's GroupCoordinator.all_reduce; ``conform`` holds the answers against it.
    """
    release = resolve(sglang)
    return decision_of(
        release,
        word_of(
            {
                "world_size": world_size,
                "custom": custom,
                "quick": quick,
                "mscclpp": mscclpp,
                "torch_symm_mem": torch_symm_mem,
                "pynccl": pynccl,
                "symmetric_memory": symmetric_memory,
                "piecewise": piecewise,
                "compiling": compiling,
                "flashinfer": flashinfer,
                "pcie_ipc": pcie_ipc,
                "device": device,
                "cpu_shm": cpu_shm,
                "amd_deterministic": amd_deterministic,
                "custom_multinode": custom_multinode,
            }
        ),
    )


def _names(word: int) -> tuple[str, ...]:
    return tuple(name for name, bit in _BIT.items() if word & bit)


def _state_gate(name: str, word: int) -> Gate:
    level = sum(1 for suffix in _LEVELS if word & _BIT.get(name + suffix, 0))
    return Gate(name, ("absent", "disabled", "enabled")[level] if name == "pynccl" else _STATES[level])


@lru_cache(maxsize=1 << 12)
def decision_of(release: Release, word: int) -> Decision:
    """The Decision of a word of conditions; states are few, so they are kept."""
    blocked: Mapping[str, Blocked]
    if release.derived is not None and _core.state_of(word) >= 0:
        decision, blocked, following = _core.decide_derived(release.derived, word), blocked_in_table(release, word), None
    else:
        decision, next_best, blocked_codes = _core.explain(release.ruleset_index, word)
        blocked = _blocked(blocked_codes, {})
        following = PATHS[next_best[0]] if next_best[1] else None
    path, rule, op, flags, exception = decision
    raises = PATHS[path] is Path.RAISES
    return Decision(
        path=PATHS[path],
        rule=RULES[rule],
        op=_OPS[op],
        returns=None if raises else "new" if flags & _NEW else "input",
        sglang=release.name,
        ruleset=release.rules,
        cloned=bool(flags & _CLONE),
        reduces=not (raises or flags & _LOST or PATHS[path] is Path.NONE),
        error=_EXCEPTIONS[exception],
        gates=FrozenMap({name: _state_gate(name, word) for name in (*COMMUNICATORS, "pynccl")}),
        blocked_by=blocked,
        next_best=following,
        conditions=_names(word),
        _source=partial(_find_source, release, RULES[rule]),
    )


def _blocked(codes: Iterable[tuple[int, int, int]], gates: Mapping[str, Gate]) -> Mapping[str, Blocked]:
    blocked = {}
    for rule, missing, against in codes:
        lacking = _names(missing)
        if "amd_deterministic" in lacking:  # a mode that nobody asked for is no better path
            continue
        stops: dict[Stop, None] = {}
        bare = []
        for name in lacking:
            communicator = _COMMUNICATOR[name] or ("flashinfer" if name == "flashinfer" else "")
            reasons = gates[communicator].stops if communicator in gates else ()
            stops |= dict.fromkeys(reasons)
            if not reasons:
                bare.append(name)
        blocked[RULES[rule]] = Blocked(RULES[rule], lacking, _names(against), tuple(stops), tuple(bare))
    return FrozenMap(blocked)


def _find_source(release: Release, rule: str) -> str | None:
    from ._source.lines import find_source

    return find_source(release, rule)


# ---------------------------------------------------------------------------------------------------------------- gates and rules

_WHEN: dict[str, Literal["setup", "call"]] = {"SETUP": "setup", "CALL": "call"}
_STOPS = tuple((name, _WHEN[when], text) for name, when, text in _core.STOPS)
_KERNELS = _core.KERNELS


def _gate(name: str, answer: tuple[int, ...], group: Group, call: Call) -> Gate:
    state, kernel, backend, _, stops, limit, *_ = answer
    state_name = _core.STATES[state]
    if name == "pynccl" and state_name == "accepts":
        state_name = "enabled"
    values = {
        "world_size": group.world_size,
        "nodes": fact_value(group, "nodes"),
        "arch": fact_value(group, "arch"),
        "nbytes": f"{call.nbytes:,}",
        "limit": f"{limit:,}",
        "dtype": call.dtype,
        "multiple": 4 if name == "torch_symm_mem" else 16,
    }
    reasons = tuple(Stop(stop, when, text.format(**values)) for i, (stop, when, text) in enumerate(_STOPS) if stops >> i & 1)
    return Gate(name, state_name, reasons, limit, _KERNELS[kernel][0], _core.BACKENDS[backend])


def route(
    call: Call | int,
    group: Group,
    *,
    context: str | Iterable[str] = "eager",
    sglang: str | Release,
    lift: Iterable[str] = (),
) -> Decision:
    """Gates and rules: where one tensor goes in one group.

    ``call`` is a Call, or a number of bytes (bf16, contiguous). ``context`` is a preset of CONTEXTS or single bits joined by ``+``.
    ``lift`` names reasons of gates (``Stop.name``) that are taken not to be there: what if this one were gone? The others keep their say.
    Raises InputError for sizes outside of 1 to 2^63 - 1 bytes, an unknown dtype, context or release, and contradictory groups.
    Source: the predicates of SGLang's communicators and GroupCoordinator.all_reduce.
    """
    release = resolve(sglang)
    if not isinstance(call, Call):
        call = Call(nbytes=_whole("call", call))
    check_group(group)
    return decide(release, group, call, context_bits(context), lifted=lifted_bits(lift))


def decide(
    release: Release, group: Group, call: Call, bits: int, *, lifted: int = 0, switches: tuple[int, int, int] = (0, 0, 0)
) -> Decision:
    """The Decision of one call. ``switches`` are the Coordinator's: bits of GATES whose ``disabled`` somebody set, those where somebody
    cleared it, and the kernel that custom all-reduce is told to run (0: its own choice).
    """
    facts, packed = pack_facts(group), pack_call(call)
    (word, raises), answers, codes, extra, (next_path, next_rule) = _core.route(
        release.index, facts, packed, bits, release.derived, lifted, *switches
    )
    path, rule, op, _, exception = codes
    backend, kernel, returns_new, cloned, reduces, assumed = extra
    gates = FrozenMap({name: _gate(name, answer, group, call) for name, answer in zip(_core.GATES, answers, strict=True)})
    outside = _core.state_of(word) < 0  # a device that a derived table does not know: the nearest ruleset answers
    if release.derived is None or outside:
        blocked = _blocked(_core.explain(release.ruleset_index, word, raises)[2], gates)
    else:
        blocked = blocked_in_table(release, word)
    following = PATHS[next_path] if next_rule else None
    failed = PATHS[path] is Path.RAISES
    return Decision(
        path=PATHS[path],
        rule=RULES[rule],
        op=_OPS[op],
        returns=None if failed else "new" if returns_new else "input",
        sglang=release.name,
        ruleset=release.rules,
        backend=_core.BACKENDS[backend],
        kernel=_KERNELS[kernel][0],
        cloned=bool(cloned),
        reduces=bool(reduces),
        error=_EXCEPTIONS[exception],
        gates=gates,
        blocked_by=blocked,
        next_best=following,
        conditions=_names(word),
        not_conformed=_not_conformed(release, gates, kernel, assumed, outside),
        _facts=partial(facts_behind, release, group, call, bits, path, switches),
        _source=partial(_find_source, release, RULES[rule]),
    )


def _whole(name: str, value: object) -> int:
    try:
        return index(value)  # type: ignore[arg-type] # what is no integer is refused here
    except TypeError:
        raise InputError(name, value, "give a Call, or a whole number of bytes") from None


def lifted_bits(lift: Iterable[str]) -> int:
    """Bits of the reasons that are taken not to be there."""
    names = {name: 1 << i for i, (name, _, _) in enumerate(_STOPS)}
    bits = 0
    for name in (lift,) if isinstance(lift, str) else lift:
        if name not in names:
            raise InputError("lift", name, f"not a reason of any gate; the reasons are {', '.join(names)}")
        bits |= names[name]
    return bits


OF_SERVER = "the server's arguments"
"""Source of the facts that a server's own arguments give to each of its groups."""


def check_group(group: Group) -> None:
    """Refuses groups whose facts contradict one another."""
    # a server's own arguments are given too, for every group: there they only ask for what one rank does not build
    given = {name: fact.value for name, fact in group.facts.items() if fact.origin == "given" and fact.source != OF_SERVER}
    world_size = group.world_size
    for name in ("own_custom", "own_mscclpp", "own_torch_symm_mem", "own_pcie_ipc", "fi_workspace"):
        if world_size == 1 and given.get(name):
            raise InputError(name, True, "a group of one rank has no communicator: leave it out, or give world_size above 1")
    nodes = fact_value(group, "nodes")
    if nodes > world_size:
        raise InputError("nodes", nodes, f"a group of {world_size} ranks cannot span {nodes} nodes")


def _not_conformed(release: Release, gates: Mapping[str, Gate], kernel: int, assumed: int, outside: bool) -> tuple[str, ...]:
    notes = []
    if release.derived is not None and outside:
        notes.append(f"the derived table does not know this device: {release.ruleset} answered, the nearest ruleset")
    name, conformed, _ = _KERNELS[kernel]
    if name and not conformed:
        notes.append(f"kernel {name}: its threshold is in CUDA sources or in another library, not in the package's Python")
    elif assumed:
        notes.append("rests on a library outside of the package, which decides for itself")
    notes += [f"gate {g}: this revision's code differs from every known one" for g in release.unknown_gates if g in gates]
    return tuple(notes)


def router(
    group: Group,
    *,
    context: str | Iterable[str] = "eager",
    dtype: str = "bf16",
    hidden: int = 0,
    sglang: str | Release,
) -> _core.Router:
    """A path a size, without a trace: ``router(...)(nbytes)`` gives a Path, ``router(...)(array)`` codes of PATHS (uint8).

    For millions of sizes, or for a call that must cost nanoseconds. Same answers as ``route``.
    """
    release = resolve(sglang)
    check_group(group)
    call = Call(nbytes=1, dtype=dtype, hidden=hidden)
    return _core.Router(release.index, pack_facts(group), pack_call(call), context_bits(context), release.derived)
