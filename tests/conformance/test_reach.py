"""reach at the level of conditions against brute force through SGLang's own dispatch: every era, every rule and path, every state.

SGLang's own lifted functions are walked once per era; each proof is then held against what that walk says about the same states.
Invariant: the expected set of states is made here, with NumPy, from the names of the conditions; nothing of `_proof` makes it.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import sglang_probe as probe
from sglang_probe import _core
from sglang_probe._conform.dispatch import DEVICES, DOMAIN, Dispatch
from sglang_probe._conform.rules import PCIE_STATES, codes_of, derive_codes, encode
from sglang_probe._proof.reach import Reach
from sglang_probe._proof.space import conjunction_text
from sglang_probe._releases import COMMITS, RELEASES, RULESETS, known_release
from sglang_probe._source import fetch as _fetch
from sglang_probe._source.lift import Tree
from sglang_probe._types import InputError

pytestmark = [pytest.mark.network, pytest.mark.slow]

LAST = {known_release(n).ruleset: n for n in RELEASES if n not in COMMITS}  # the last release of every era
RULES = tuple(name for name, _ in _core.RULES if name)
PATHS = tuple(name for name, _ in _core.PATHS)
COMMUNICATORS = ("pcie_ipc", "custom", "quick", "mscclpp", "torch_symm_mem", "pynccl")
TARGETS = [("rule", name) for name in RULES] + [("path", name) for name in PATHS]
QUESTIONS = 8  # random sets of fixed conditions an era, each asked of every target

Fixed = Mapping[str, tuple[Any, ...]]


class Walked:
    """SGLang's own answers over the space of one era, and its conditions as arrays: one row a state."""

    def __init__(self, release: str) -> None:
        self.release = release
        self.dispatch = Dispatch(Tree(_fetch.fetch(release)))
        self.codes: NDArray[np.uint8] = derive_codes(self.dispatch)
        self.domain = {**({"pcie_ipc": PCIE_STATES} if self.dispatch.reads_pcie_ipc else {}), **DOMAIN}
        digits = np.indices([len(values) for values in self.domain.values()]).reshape(len(self.domain), -1)
        assert digits.shape[1] + 1 == len(self.codes)
        self.digits = dict(zip(self.domain, digits, strict=True))

    def states(self, fixed: Fixed) -> NDArray[np.bool_]:
        """Which states these conditions leave; state 0 is the group of one rank, which has no communicator and asks nothing."""
        sizes = fixed.get("world_size", (1, 2))
        alone = 1 in sizes and all("absent" in values for name, values in fixed.items() if name in COMMUNICATORS)
        mask = np.full(len(self.codes) - 1, any(size > 1 for size in sizes))
        for name, values in fixed.items():
            if name != "world_size":
                mask &= np.isin(self.digits[name], [self.domain[name].index(value) for value in values])
        return np.concatenate([[alone], mask])

    def hits(self, kind: str, target: str, fixed: Fixed) -> int:
        column, names = (1, [row[0] for row in _core.RULES]) if kind == "rule" else (0, list(PATHS))
        return int((self.codes[self.states(fixed), column] == names.index(target)).sum())


@functools.lru_cache(maxsize=2)
def walked(era: str) -> Walked:
    return Walked(LAST[era])


def draw_fixed(source: random.Random, domain: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Up to four conditions, each with one or several of its values."""
    fixed = {}
    for name in source.sample([*domain, "world_size"], source.randint(1, 4)):
        values = (1, 2, 8) if name == "world_size" else domain[name]
        fixed[name] = tuple(source.sample(values, source.choice((1, 1, len(values) - 1, len(values)))))
    return fixed


def ask(kind: str, target: str, release: str, fixed: Fixed) -> Reach:
    given = {name: values[0] if len(values) == 1 else list(values) for name, values in fixed.items()}
    return probe.reach(target, kind=kind, sglang=release, **given)


# Devices have conditions of their own, and rules that only they reach: compared below.
OF_DEVICES = {"cpu", "hpu", "xpu", "npu", "amd_deterministic", "cpu_shm"}


def compare(space: Walked, kind: str, target: str, fixed: Fixed) -> Reach | None:
    """One proof against the walk; None where the question has no state, and is refused."""
    states = space.states(fixed)
    if not states.any():
        with pytest.raises(InputError):
            ask(kind, target, space.release, fixed)
        return None
    answer = ask(kind, target, space.release, fixed)
    theirs = space.hits(kind, target, fixed)
    said = f"{space.release} {kind} {target} {dict(fixed)}: {answer}"
    assert answer.walked == states.sum(), said
    assert answer.reachable == (theirs > 0), said
    assert sum(rule.states for rule in answer.rules if rule.reachable) == theirs, said
    return answer


@pytest.mark.parametrize("era", RULESETS)
def test_a_proof_says_what_every_state_of_sglangs_own_dispatch_says(era: str) -> None:
    space, source = walked(era), random.Random(era)
    asked = reached = 0
    for fixed in [{}, *(draw_fixed(source, space.domain) for _ in range(QUESTIONS))]:
        for kind, target in TARGETS:
            if target in OF_DEVICES:
                continue
            answer = compare(space, kind, target, fixed)
            asked += answer is not None
            reached += bool(answer)
            if answer is not None and not answer:
                assert_smallest_reason(space, answer, kind, target, fixed)
    assert asked > 100 and 0 < reached < asked


def assert_smallest_reason(space: Walked, answer: Reach, kind: str, target: str, fixed: Fixed) -> None:
    """The named conditions already forbid it by themselves, and no smaller set of them does."""
    if "has no rule" in answer.reason or answer.reason.startswith("no state of"):
        assert space.hits(kind, target, {}) == 0, str(answer)
        return
    for size in range(len(fixed) + 1):
        parts = [{name: fixed[name] for name in chosen} for chosen in itertools.combinations(fixed, size)]
        forbidding = [part for part in parts if space.states(part).any() and space.hits(kind, target, part) == 0]
        if forbidding:
            assert answer.reason in {f"{conjunction_text(part)} already forbids it" for part in forbidding}, str(answer)
            return
    raise AssertionError(f"nothing forbids it, and yet: {answer}")


def call_of_witness(answer: Reach, code: str) -> tuple[str, dict[str, Any]]:
    """The release and conditions of a printed call."""
    caught: list[tuple[str, dict[str, Any]]] = []
    eval(code, {"probe": SimpleNamespace(dispatch=lambda sglang, **conditions: caught.append((sglang, conditions)))})
    assert len(caught) == 1, f"{answer}: {code}"
    return caught[0]


def sglang_answers(dispatch: Dispatch, conditions: Mapping[str, Any]) -> tuple[int, ...]:
    """SGLang's own lifted function in that state."""
    given = dict(conditions)
    if given.get("world_size") == 1:
        return tuple(int(code) for code in codes_of(dispatch.walk())[0])
    device = given.pop("device", "cuda")
    if device == "cpu" and given.pop("cpu_shm", False):
        device = "cpu_shm"
    if given.pop("amd_deterministic", False):
        device = "amd_deterministic"
    return encode(dispatch.device(device, **given))


@pytest.mark.parametrize("era", RULESETS)
def test_a_printed_witness_is_confirmed_by_dispatch_and_by_sglang_in_that_state(era: str) -> None:
    space, source = walked(era), random.Random(f"witness {era}")
    confirmed = 0
    for fixed in [{}, *(draw_fixed(source, space.domain) for _ in range(4))]:
        for kind, target in TARGETS:
            if target in OF_DEVICES or not space.states(fixed).any():
                continue
            for rule in ask(kind, target, space.release, fixed).rules:
                if rule.witness is None:
                    continue
                confirm(space, rule.witness.code, rule.rule, target if kind == "path" else None, fixed)
                confirmed += 1
    assert confirmed > 20


def confirm(space: Walked, code: str, rule: str, path: str | None, fixed: Fixed) -> None:
    sglang, conditions = call_of_witness(ask("rule", rule, space.release, {}), code)
    assert sglang == space.release
    for name, values in fixed.items():
        if conditions.get("world_size") == 1 and name not in COMMUNICATORS:
            continue  # a group of one rank reads no switch
        usual: Any = 8 if name == "world_size" else space.domain[name][0]
        value = conditions.get(name, usual)
        assert value in values or (name == "world_size" and value > 1 and max(values) > 1), f"{code} leaves {name}={values}"
    ours = probe.dispatch(sglang, **conditions)
    theirs = sglang_answers(space.dispatch, conditions)
    assert ours.rule == rule == _core.RULES[theirs[1]][0], code
    assert str(ours.path) == PATHS[theirs[0]] and path in (None, str(ours.path)), code


def devices(source: random.Random, space: Walked) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """A device, the conditions of one state on it, and the keywords that name that state."""
    for device in DEVICES:
        for _ in range(4):
            state = {name: source.choice(values) for name, values in space.domain.items()}
            if device in ("cpu", "cpu_shm"):
                extra: dict[str, Any] = {"device": "cpu", "cpu_shm": device == "cpu_shm"}
            elif device == "amd_deterministic":
                extra = {"device": "hip", "amd_deterministic": True}
            else:
                extra = {"device": device}
            yield device, state, {**state, **extra}


@pytest.mark.parametrize("era", RULESETS)
def test_a_proof_on_another_device_says_what_sglang_says_there(era: str) -> None:
    space, source = walked(era), random.Random(f"devices {era}")
    for device, state, keywords in devices(source, space):
        theirs = encode(space.dispatch.device(device, **state))
        if _core.RULES[theirs[1]][0] == "" or (device == "xpu" and theirs[2] == 1):
            continue  # which rule sent a tensor to the in-place op is not to be seen from outside
        for kind, names, code in (("rule", RULES, theirs[1] - 1), ("path", PATHS, theirs[0])):
            for i, target in enumerate(names):
                answer = probe.reach(target, kind=kind, sglang=space.release, world_size=8, **keywords)
                assert (answer.walked, answer.reachable) == (1, i == code), f"{device} {state}: {answer}"


def test_a_multi_node_variable_is_walked_where_an_era_reads_it() -> None:
    reading = [era for era in RULESETS if walked(era).dispatch.reads_multinode]
    assert reading
    for era in reading:
        space = walked(era)
        codes = codes_of(space.dispatch.walk(custom_multinode=True))
        for i, rule in enumerate(RULES, 1):
            if rule in OF_DEVICES:
                continue
            fixed = {"pcie_ipc": "absent"} if "pcie_ipc" in space.domain else {}
            answer = probe.reach(rule, sglang=space.release, custom_multinode=True, **fixed)
            assert answer.walked == len(codes)
            assert sum(r.states for r in answer.rules if r.reachable) == int((codes[:, 1] == i).sum()), str(answer)
