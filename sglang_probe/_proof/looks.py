"""What one forward of a server does in one release: its calls, their context, their paths. Called by history, and by its attribution.

    Server, release -> Inputs (plan) -> Look; `answer` takes rules and gates of other releases, which is how a change is told apart

Invariant: with its own release's rules and gates, a plan answers what ``step`` answers; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from .. import _core
from .._facts import DTYPE_BYTES, SIZE_MAX, pack_call, pack_facts
from .._releases import RELEASES, Release
from .._route import PATHS, RULES, context_bits
from .._server.implied_prefill import _LATENT_ARCHS
from .._step.calls import EMBEDDING, dtype_of, is_multimodal, plan_calls, setting
from .._step.context import _hip_flag, _ladder, find_context
from .._step.fusion import fuse_calls
from .._step.route import _SPLITS
from .._step.tags import tag_calls
from .._types import Call, Group, Model, Server
from .._versions import at_least
from .diff import Outcome

CHUNK_TOKENS = 8192
"""A prefill chunk where the server's own size is not known."""
_MLA_TOKENS = 2048
"""The largest prefill graph of a model with latent attention, where no flag says another."""
_OPS = ("direct", "in place", "out of place")
_EXCEPTIONS = tuple(name for name, _ in _core.EXCEPTIONS)
_IN_PLACE = _OPS.index("in place")
_NO_PATH = [str(path) for path in PATHS].index("none")
_FACT = {name: i for i, (name, _, _) in enumerate(_core.FACTS)}
_CALL = {name: 1 + i for i, (name, _, _) in enumerate(_core.CALL_FACTS)}
_READS_TAG = 1 << 63
_ROW_RULESET = tuple(row[1] for row in _core.releases())

Packed = tuple[int, ...]
Key = tuple[str, int, int]
"""``site@group``, first and last byte of what has one answer."""


def group_of(key: str) -> str:
    return key.rpartition("@")[2]


@dataclass(frozen=True)
class Inputs:
    """All that the dispatch is asked with, apart from rules and gates: what defaults and flags decide."""

    context: str
    calls: Mapping[str, Packed]
    """``site@group`` -> its call, packed."""
    facts: Mapping[str, Packed]
    """Group -> its facts, packed."""
    replayed: bool = False
    """What is in place runs anew between the pieces of a graph."""
    outside: frozenset[str] = frozenset()
    """Calls outside of the piecewise graph, which run in its replay."""
    whole: bool = False
    """No call of a model: all sizes of the group."""


@dataclass(frozen=True)
class Route:
    """Calls of one group, or a range of sizes, that go one way."""

    group: str
    count: int
    first_bytes: int
    last_bytes: int
    outcome: Outcome


@dataclass(frozen=True)
class Look:
    """What one kind of forward does in one release."""

    context: str
    tokens: int
    nbytes: int
    routes: tuple[Route, ...]
    all_reduces: int = 0
    fused: int = 0
    note: str = ""
    """Why there is no route, or why the context is what it is."""
    inputs: Inputs = field(default_factory=lambda: Inputs("eager", {}, {}), repr=False, compare=False)

    @property
    def key(self) -> tuple[object, ...]:
        """What counts as a change: not the size by itself, not a rule that was only renamed."""
        routes = tuple((r.group, r.count, r.first_bytes * self.inputs.whole, seen(r.outcome)) for r in self.routes)
        return self.context, self.fused, self.all_reduces, routes

    @property
    def paths(self) -> dict[str, int]:
        """Path -> how many calls; of a group by itself, how many ranges of sizes."""
        paths: dict[str, int] = {}
        for route in self.routes:
            paths[route.outcome.path] = paths.get(route.outcome.path, 0) + (route.count or 1)
        return paths

    def to_dict(self) -> dict[str, object]:
        return {
            "context": self.context,
            "tokens": self.tokens,
            "bytes": self.nbytes,
            "all_reduces": self.all_reduces,
            "fused": self.fused,
            "routes": [
                {
                    "group": r.group,
                    "count": r.count,
                    "first_bytes": r.first_bytes,
                    "last_bytes": r.last_bytes,
                    **vars(r.outcome),
                }
                for r in self.routes
            ],
            "note": self.note,
        }


def seen(outcome: Outcome) -> tuple[str, ...]:
    """An outcome as a caller can tell: without the rule's name."""
    return outcome.path, outcome.op, outcome.result, outcome.kernel, outcome.backend


# --------------------------------------------------------------------------------------------------------------------- the plans


def verify_look(server: Server, release: Release, batch: int) -> Look:
    """The verify step (a decode step without speculation) of ``batch`` requests."""
    how = find_context(server, server.model, None, batch, server.draft_tokens, RELEASES[release.index])
    return _model_look(server, release, how.name, how.tokens, "; ".join(how.notes), how.replayed)


def prefill_look(server: Server, release: Release, tokens: int | None) -> Look:
    """One chunk of prefill: the prefill graph's context where its graph holds so many tokens, else eager."""
    name = RELEASES[release.index]
    chunk = tokens or _chunk(server)
    most = _graph_tokens(server, chunk)
    kind = server.prefill_graph
    if kind != "none" and chunk <= most:
        why = f"{kind} prefill graph ({server.prefill_reason})"
        padded = next((size for size in _ladder(name, most) if size >= chunk), chunk)
        piecewise = kind == "tc_piecewise"
        return _model_look(server, release, "piecewise_capture" if piecewise else "capture", padded, why, piecewise)
    context = "piecewise_replay" if _hip_flag(server, name) else "eager"
    too_large = f"{chunk:,} tokens are more than the prefill graph's {most:,}"
    why = too_large if kind != "none" else f"no prefill graph ({server.prefill_reason})"
    return _model_look(server, release, context, chunk, why)


def _chunk(server: Server) -> int:
    value = setting(server, "chunked_prefill_size")
    return value if isinstance(value, int) and value > 0 else CHUNK_TOKENS


def is_latent(model: Model) -> bool:
    """Multi-head latent attention, by the config.json where there is one, else by the architecture's name."""
    return model.config.get("kv_lora_rank") is not None if model.config else model.arch.startswith(_LATENT_ARCHS)


def _graph_tokens(server: Server, chunk: int) -> int:
    """The most tokens that the prefill graph takes: its flags, else the chunk, less with latent attention."""
    config = setting(server, "cuda_graph_config", default={})
    named = config.get("prefill", {}) if isinstance(config, Mapping) else {}
    sizes = named.get("bs") or setting(server, "cuda_graph_bs_prefill", "piecewise_cuda_graph_tokens")
    most = named.get("max_bs") or setting(server, "cuda_graph_max_bs_prefill", "piecewise_cuda_graph_max_tokens")
    if isinstance(sizes, (list, tuple)) and sizes:
        return int(max(sizes))
    if isinstance(most, int):
        return most
    own = _chunk(server) if setting(server, "chunked_prefill_size") else max(chunk, CHUNK_TOKENS)
    return _MLA_TOKENS if server.model is not None and is_latent(server.model) else own


def _model_look(server: Server, release: Release, context: str, tokens: int, note: str, replayed: bool = False) -> Look:
    model = server.model
    assert model is not None
    name = RELEASES[release.index]
    plan = plan_calls(model, server, tokens, name)
    calls, _ = tag_calls(plan.calls, model, server, name)
    known = [call for call in calls if call.group in server.groups]
    parted = fuse_calls(calls, model, server, name)
    # A call that is fused is still asked, so that a change of its route is not taken for one of fusion.
    packed = {f"{call.site}@{call.group}": pack_call(call) for call in known}
    facts = {call.group: pack_facts(server.groups[call.group]) for call in known}
    splits = replayed and any(at_least(name, first) and not at_least(name, last) for first, last in _SPLITS)
    outside = frozenset(key for key in packed if key.startswith(EMBEDDING)) if replayed and is_multimodal(model) else frozenset()
    inputs = Inputs(context, packed, facts, splits, outside)
    routes: dict[tuple[str, tuple[str, ...]], Route] = {}
    left = {f"{call.site}@{call.group}": call.count for call in parted.left}
    for (key, first, last), outcome in answer(inputs, release, release):
        if key in left:
            whose = (group_of(key), seen(outcome))
            before = routes[whose].count if whose in routes else 0
            routes[whose] = Route(whose[0], before + left[key], first, last, outcome)
    nbytes = tokens * model.hidden * DTYPE_BYTES[dtype_of(model, server)]
    if plan.unmodelled and not plan.calls:
        note = "; ".join(plan.notes)
    return Look(context, tokens, nbytes, tuple(routes.values()), plan.count, parted.count, note, inputs)


def refused_look(why: str) -> Look:
    """Of a release that does not start with this launch line."""
    return Look("refused", 0, 0, (), note=f"refused: {why}")


def group_look(group: Group, release: Release, context: str, hidden: int = 0) -> Look:
    """A group by itself: every size of contiguous bf16."""
    call = pack_call(Call(nbytes=16, hidden=hidden))
    inputs = Inputs(context, {group.name: call}, {group.name: pack_facts(group)}, whole=True)
    found = answer(inputs, release, release)
    return Look(context, 0, 0, tuple(Route(key[0], 0, key[1], key[2], out) for key, out in found), inputs=inputs)


# ----------------------------------------------------------------------------------------------------------------------- answers


class Inseparable(Exception):
    """These rules cannot be asked with those gates: a condition lies beside the space of states, or a predicate raises."""


@lru_cache(maxsize=256)
def table_of(release: Release) -> bytes:
    """A release's rules as a table, to be asked with another release's gates."""
    return release.derived if release.derived is not None else _core.walk(release.ruleset_index).tobytes()


def _rules_with(rules: Release, gates: Release, facts: Packed, call: Packed) -> tuple[Packed, Packed, bytes | None]:
    """Facts and call as the rules read them, and the table. The tag of symmetric memory is the rules' question, not a gate's."""
    if rules is gates or (rules.derived is None and rules.ruleset == _ROW_RULESET[gates.index]):
        return facts, call, rules.derived
    tags = [bool(_core.rulesets()[release.ruleset_index][2] & _READS_TAG) for release in (rules, gates)]
    wanted = call[_CALL["registered"]] if tags[0] else facts[_FACT["symm_mem"]]
    if tags[1]:
        at = _CALL["registered"]
        call = (*call[:at], wanted, *call[at + 1 :])
    else:
        at = _FACT["symm_mem"]
        facts = (*facts[:at], wanted, *facts[at + 1 :])
    return facts, call, table_of(rules)


def ask(rules: Release, gates: Release, facts: Packed, call: Packed, bits: int) -> tuple[Outcome, tuple[Packed, ...]]:
    """One call: its outcome, and what every gate answers."""
    facts, call, table = _rules_with(rules, gates, facts, call)
    try:
        (_, raises), answers, codes, extra, *_ = _core.route(gates.index, facts, call, bits, table)
    except ValueError as error:
        raise Inseparable(str(error)) from None
    if raises and rules is not gates and table is not None:
        raise Inseparable("a predicate raises, which a table of states does not know")
    path, rule, op, _, exception = codes
    backend, kernel, new, cloned, reduces, *_ = extra
    result = _EXCEPTIONS[exception]
    if not result:
        lost = not reduces and path != _NO_PATH
        result = "not reduced" if lost else "clone" if cloned else "new tensor" if new else "input"
    kernel_name = _core.KERNELS[kernel][0]
    return Outcome(str(PATHS[path]), RULES[rule], _OPS[op], result, kernel_name, _core.BACKENDS[backend]), answers


def answer(inputs: Inputs, rules: Release, gates: Release) -> tuple[tuple[Key, Outcome], ...]:
    """Every group's (or every size's) outcome, with the rules of one release and the gates of another."""
    bits = context_bits(inputs.context)
    if inputs.whole:
        return tuple(_sizes(inputs, rules, gates, bits))
    found: list[tuple[Key, Outcome]] = []
    done: dict[tuple[str, Packed, bool], Outcome] = {}
    for key, call in inputs.calls.items():
        one = (group_of(key), call, key in inputs.outside)
        if one not in done:
            done[one] = _answer(inputs, rules, gates, *one, bits)
        found.append(((key, call[0], call[0]), done[one]))
    return tuple(found)


def _answer(inputs: Inputs, rules: Release, gates: Release, group: str, call: Packed, outside: bool, bits: int) -> Outcome:
    facts, replay = inputs.facts[group], context_bits("piecewise_replay")
    outcome, _ = ask(rules, gates, facts, call, replay if outside else bits)
    if inputs.replayed and not outside and outcome.op == _OPS[_IN_PLACE]:
        outcome, _ = ask(rules, gates, facts, call, replay)
    return outcome


def _sizes(inputs: Inputs, rules: Release, gates: Release, bits: int) -> Iterable[tuple[Key, Outcome]]:
    (group, call), facts = next(iter(inputs.calls.items())), next(iter(inputs.facts.values()))
    own_facts, own_call, table = _rules_with(rules, gates, facts, call)
    try:
        bands = _core.bands(gates.index, own_facts, own_call, bits, table)
    except ValueError as error:
        raise Inseparable(str(error)) from None
    merged: list[tuple[Key, Outcome]] = []
    lasts = [first - 1 for first, _ in bands[1:]] + [SIZE_MAX]
    for (first, (size, _, _)), last in zip(bands, lasts, strict=True):
        if not size:
            continue
        outcome, _ = ask(rules, gates, facts, (size, *call[1:]), bits)
        if merged and seen(merged[-1][1]) == seen(outcome):
            merged[-1] = ((group, merged[-1][0][1], last), merged[-1][1])
        else:
            merged.append(((group, first, last), outcome))
    return merged
