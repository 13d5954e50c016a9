"""Launch-level answers against SGLang's own group construction, gates and dispatch: 100,000 random calls, and proofs about workers.

Each random group is built by SGLang's own GroupCoordinator, each call goes through its own all_reduce; the same call through ours must
agree in path, rule, op, exception, clone, buffer and kernel. Invariant: what only C++ knows is counted apart, and stays rare.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from conformance.lifted_route import Built, LiftedRoute, Seen, Unseen
from conformance.random_groups import draw_call, draw_context, draw_facts

import sglang_probe as probe
from sglang_probe import _core
from sglang_probe._facts import DEFAULTS, pack_call
from sglang_probe._proof.reach import Reach, rules_of
from sglang_probe._proof.worker import COLUMN, classes_of, worker_of_group
from sglang_probe._releases import COMMITS, RELEASES, resolve
from sglang_probe._route import CONTEXTS, context_bits
from sglang_probe._source import fetch as _fetch
from sglang_probe._source.lift import Tree
from sglang_probe._types import Call, Group

pytestmark = [pytest.mark.network, pytest.mark.slow]

NEWEST = [name for name in RELEASES if name not in COMMITS][-1]
ROUTED = ("0.4.9.post4", "0.5.7", "0.5.9", "0.5.12", "0.5.16", "0.5.18", "0.5.20", NEWEST)
GROUPS, CONTEXTS_EACH, CALLS = 50, 5, 50  # 12,500 calls a release, 100,000 in all
PROVED = 6  # groups a release whose proofs are held against what its calls reached
_OPS = (None, "in_place", "out_of_place")
MET = Counter[str]()


def ours(release: int, facts: tuple[int, ...], call: Call, context: tuple[str, ...]) -> Seen:
    codes, extra = _core.route(release, facts, pack_call(call), context_bits(context))[2:4]
    path, rule, op, _, exception = codes
    _, kernel, new, cloned, reduces, _ = extra
    return Seen(
        _core.PATHS[path][0],
        _core.RULES[rule][0],
        _OPS[op],
        _core.EXCEPTIONS[exception][0],
        bool(cloned),
        bool(reduces),
        bool(new),
        _core.KERNELS[kernel][0],
    )


def differs(theirs: Seen, here: Seen) -> bool:
    """What SGLang's Python cannot say (None) is not compared; nor is a buffer where nothing was returned."""
    shown = ("path", "rule", "op", "error") if theirs.path == "raises" else Seen._fields
    return any(getattr(theirs, name) not in (None, getattr(here, name)) for name in shown)


def groups(route: LiftedRoute, source: random.Random, count: int) -> Iterator[tuple[dict[str, int], Built]]:
    refused = 0
    while count:
        facts = draw_facts(source)
        try:
            built = route.build(facts)
        except Unseen:
            refused += 1
            assert refused < 40, "too many groups cannot be asked"
            continue
        count -= 1
        yield facts, built


@pytest.mark.parametrize("release", ROUTED)
def test_random_calls_go_where_sglangs_own_group_gates_and_dispatch_send_them(release: str) -> None:
    route, source = LiftedRoute(Tree(_fetch.fetch(release))), random.Random(f"routes {release}")
    index, asked, unseen = resolve(release).index, 0, 0
    differences = Counter[str]()
    for facts, built in groups(route, source, GROUPS):
        values = tuple({**DEFAULTS, **facts}.values())
        for _ in range(CONTEXTS_EACH):
            context = draw_context(source)
            with route.around(built, context):
                for _ in range(CALLS):
                    call = draw_call(source)
                    theirs, asked = route.ask(built, call), asked + 1
                    if theirs is None:
                        unseen += 1
                        continue
                    here = ours(index, values, call, context)
                    MET[here.rule or ""] += 1
                    if differs(theirs, here):
                        differences[f"SGLang {theirs}, here {here}: {call} in {context} of {facts}"] += 1
    assert asked == GROUPS * CONTEXTS_EACH * CALLS
    assert not differences, f"{sum(differences.values())} differences, for instance {next(iter(differences))}"
    assert unseen < 0.15 * asked
    assert not route.unknown


def test_the_random_calls_met_every_rule_of_a_gpu_or_a_cpu() -> None:
    """Runs after the routes above: a rule that no call met was not tested."""
    if len(MET) == 0:
        pytest.skip("the routes above were not run in this process")
    assert len(ROUTED) * GROUPS * CONTEXTS_EACH * CALLS >= 100_000
    assert {name for name, _ in _core.RULES if name} - set(MET) <= {"world_of_one", "hpu", "xpu", "npu"}, MET


def call_of_witness(code: str) -> tuple[Call, Any, str]:
    """The call, group and context of a printed route."""
    caught: list[tuple[Call, Any, str]] = []
    fake = SimpleNamespace(
        Call=Call,
        Group=Group,
        read_launch=probe.read_launch,
        route=lambda call, group, *, context, sglang: caught.append((call, group, context)),
    )
    eval(code, {"probe": fake})
    return caught[0]


def confirm(route: LiftedRoute, answer: Reach, kind: str, target: str) -> bool:
    """A witness runs to the target by ours and by SGLang's own code; False where only C++ would know."""
    assert answer.witness is not None
    call, group, context = call_of_witness(answer.witness.code)
    decision = eval(answer.witness.code, {"probe": probe})
    assert target == (decision.rule if kind == "rule" else str(decision.path)), str(answer)
    facts = {name: fact.value for name, fact in group.facts.items()}
    built = route.build(facts)
    width = call.hidden * dict(_core.DTYPES)[call.dtype]
    if width and call.nbytes % width:  # a witness of any length has no whole rows: SGLang is asked one row of that length
        call = Call(**{**vars(call), "hidden": call.nbytes // dict(_core.DTYPES)[call.dtype]})
    with route.around(built, CONTEXTS[context]):
        theirs = route.ask(built, call)
    if theirs is None:
        return False
    here = ours(resolve(answer.sglang).index, tuple({**DEFAULTS, **facts}.values()), call, CONTEXTS[context])
    assert not differs(theirs, here), f"{answer}: SGLang {theirs}, here {here}"
    if theirs.rule is not None:
        assert target == (theirs.rule if kind == "rule" else theirs.path), f"{answer}: SGLang {theirs}"
    return True


@pytest.mark.parametrize("release", ROUTED)
def test_what_random_calls_of_a_worker_reach_is_within_its_proof_and_its_witnesses_are_real(release: str) -> None:
    route, source, known = LiftedRoute(Tree(_fetch.fetch(release))), random.Random(f"proofs {release}"), resolve(release)
    confirmed = unseen = unreachable = 0
    for facts, built in groups(route, source, PROVED):
        group = Group.make(**facts)
        reached = set()
        for name, bits in CONTEXTS.items():
            with route.around(built, bits):
                for _ in range(150):
                    theirs = route.ask(built, draw_call(source))
                    if theirs is not None and theirs.rule is not None:
                        reached.add((name, theirs.rule, theirs.path))
        assert reached <= proved(group, release), f"{facts}: SGLang reaches what the classes do not"
        for kind, targets in (("rule", rules_of(known)), ("path", tuple(name for name, _ in _core.PATHS))):
            for target in targets:
                answer = probe.reach(target, kind=kind, sglang=release, group=group)
                theirs_too = any(target == (rule if kind == "rule" else path) for _, rule, path in reached)
                assert answer or not theirs_too, f"{answer}, and yet SGLang reaches it"
                if not answer:
                    unreachable += 1
                    continue
                sure = confirm(route, answer, kind, target)
                confirmed, unseen = confirmed + sure, unseen + (not sure)
    assert confirmed > 15 and unreachable > 20
    assert unseen < confirmed / 4


def proved(group: Group, release: str) -> set[tuple[str, str, str]]:
    """(context, rule, path) of every class of calls."""
    worker = worker_of_group(group, resolve(release), hidden=7168)
    names = {context_bits(name): name for name in CONTEXTS}
    return {
        (names[int(row[COLUMN["context"]])], _core.RULES[int(row[COLUMN["rule"]])][0], _core.PATHS[int(row[COLUMN["path"]])][0])
        for classes in classes_of(worker, group)
        for row in classes.rows
    }


LAUNCHES = {
    "0.5.9": ("--model-path moonshotai/Kimi-K2.5 --tp 8", "h200"),
    "0.5.12": ("--model-path Qwen/Qwen3-8B --tp 4 --enable-torch-symm-mem", "h100"),
    "0.5.16": ("--model-path Qwen/Qwen3-8B --tp 4 --enable-mscclpp --disable-custom-all-reduce", "h100"),
    NEWEST: ("--model-path moonshotai/Kimi-K2.5 --tp 8 --enable-symm-mem", "b200"),
}


@pytest.mark.parametrize("release", LAUNCHES)
def test_a_proof_about_a_launch_line_holds_for_its_group_as_sglang_builds_it(release: str) -> None:
    flags, gpu = LAUNCHES[release]
    line = f"python -m sglang.launch_server {flags}"
    route, source = LiftedRoute(Tree(_fetch.fetch(release))), random.Random(f"launch {release}")
    server = probe.read_launch(line, sglang=release, gpu=gpu)
    built = route.build({name: fact.value for name, fact in server.groups["tp"].facts.items()})
    answers = {rule: probe.reach(rule, kind="rule", sglang=release, launch=line, gpu=gpu) for rule in rules_of(resolve(release))}
    for context in ("eager", "warmup", "capture"):
        with route.around(built, CONTEXTS[context]):
            for _ in range(500):
                theirs = route.ask(built, draw_call(source))
                assert theirs is None or theirs.rule is None or answers[theirs.rule], f"{answers[theirs.rule]}"
    confirmed = [confirm(route, answer, "rule", rule) for rule, answer in answers.items() if answer]
    assert sum(confirmed) >= 2 and not all(answers.values())
