"""The space of conditions and the classes of calls: regions, differences and size classes against plain loops over what they stand for.

Invariant: what is expected is made with itertools and NumPy from the names of the conditions and from single calls of the router.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conformance.random_groups import DTYPES, draw_context, draw_facts
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import sglang_probe as probe
from sglang_probe import _core
from sglang_probe._facts import DTYPE_BYTES, SIZE_MAX, pack_call, pack_facts
from sglang_probe._proof.diff import Diff, diff
from sglang_probe._proof.reach import Reach
from sglang_probe._proof.space import AXES, VALUES, region_of
from sglang_probe._proof.worker import COLUMN, Classes, classes_of, worker_of_group
from sglang_probe._releases import COMMITS, RELEASES, RULESETS, known_release, resolve
from sglang_probe._types import Call, Group, InputError

LAST = {known_release(n).ruleset: n for n in RELEASES if n not in COMMITS}
BIT = {name: 1 << i for i, (name, _, _) in enumerate(_core.CONDITIONS)}
SPACE = AXES[AXES.index("pcie_ipc") :]
"""The axes of a walk, in its order: the 12,288 states of the nine last, times the states of pcie_ipc where an era reads it."""
PAIRS = [*itertools.pairwise(RULESETS), (RULESETS[0], RULESETS[-1]), (RULESETS[-1], RULESETS[0])]


SOURCES = st.integers(0, 2**32 - 1).map(random.Random)


def word_of(state: Mapping[str, Any]) -> int:
    """The word of one state, from the names of the conditions."""
    word = BIT["ranks"]
    for name, value in state.items():
        if isinstance(value, bool):
            word |= BIT[name] * value
        else:
            suffixes = ("_present", "_enabled", "_accepts")[: VALUES[name].index(value)]
            word |= sum(BIT[name + suffix] for suffix in suffixes)
    return word


def some(source: random.Random, values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(source.sample(values, source.randint(1, len(values))))


@given(SOURCES, st.sampled_from(RULESETS))
def test_a_region_is_walked_as_itertools_product_would(source: random.Random, era: str) -> None:
    chosen = {name: some(source, VALUES[name]) if name in SPACE and source.random() < 0.8 else VALUES[name][:1] for name in AXES}
    one, ranks = source.choice(((True, True), (False, True), (True, False)))
    masks = [sum(1 << VALUES[name].index(value) for value in chosen[name]) for name in AXES]
    code, index = bytes([*masks, one, ranks]), RULESETS.index(era)
    words = [0] * one
    if ranks:
        words += [word_of(dict(zip(AXES, values, strict=True))) for values in itertools.product(*chosen.values())]
    assert _core.region_count(code) == len(words)
    states, hits = _core.tally(index, code)
    decisions = [_core.decide(index, word) for word in words]
    assert states == len(words)
    assert {(rule, path): count for rule, path, count, _ in hits} == Counter((d[1], d[0]) for d in decisions)
    for rule, path, _, witness in hits:
        assert witness in words and _core.decide(index, witness)[:2] == (path, rule)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("world_size", {"world_size": 1, "custom": "accepts"}),
    ("world_size", {"world_size": [1], "pynccl": ["disabled", "enabled"]}),
    ("custom", {"custom": []}),
    ("custom", {"custom": "perhaps"}),
    ("colour", {"colour": "red"}),
    ("piecewise", {"piecewise": 1}),
    ("world_size", {"world_size": 0}),
    ("device", {"device": ["cuda", "hip"]}),
    ("sglang", {"sglang": "0.5.23..0.5.9"}),
    ("sglang", {"sglang": "..0.5.9"}),
    ("sglang", {"sglang": "0be30d4..0.5.23"}),
    ("kind", {"kind": "branch"}),
    ("target", {"target": "piecewise"}),
    ("target", {"target": "pynccl_in_place", "kind": "rule"}),
    ("custom", {"custom": "accepts", "group": Group.make()}),
    ("gpu", {"gpu": "h200"}),
    ("launch", {"launch": "python -m sglang.launch_server --tp 2 --model-path x", "group": Group.make()}),
    ("nodes", {"group": Group.make(world_size=2, nodes=4)}),
]


@pytest.mark.parametrize(("field", "question"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_question_without_an_answer_is_refused_by_name_and_never_proved(field: str, question: dict[str, Any]) -> None:
    asked = {"target": "custom", "sglang": "0.5.9", **question}
    for ask in (probe.reach, probe.assert_unreachable):
        with pytest.raises(InputError) as refused:
            ask(asked["target"], **{name: value for name, value in asked.items() if name != "target"})
        assert refused.value.field == field
        assert len(str(refused.value)) > len(field) + 10, "says what to do instead"


def test_an_empty_space_is_refused_by_diff_too() -> None:
    for fixed in ({"world_size": 1, "custom": "accepts"}, {"quick": []}, {"colour": 1}):
        with pytest.raises(InputError):
            diff("0.5.9", "0.5.10", **fixed)


@pytest.mark.parametrize("release", [name for name in RELEASES if name not in COMMITS])
def test_the_piecewise_rule_is_unreachable_with_the_flag_off_and_has_a_witness_where_it_exists(release: str) -> None:
    off = probe.reach("piecewise_pynccl", sglang=release, piecewise=False)
    assert not off and off.walked >= 6145 and off.reason
    on: Reach = probe.reach("piecewise_pynccl", sglang=release)
    if on:
        assert off.reason == "piecewise=False already forbids it"
        assert on.witness is not None and eval(on.witness.code, {"probe": probe}).rule == "piecewise_pynccl"


# ------------------------------------------------------------------------------------------------------------- differences


def walk(era: str, wide: bool) -> NDArray[np.uint8]:
    """All answers of an era; of one that does not read pcie_ipc, once for each of its states where `wide`."""
    codes = np.asarray(_core.walk(RULESETS.index(era)), dtype=np.uint8)
    return np.concatenate([codes[:1], np.tile(codes[1:], (4, 1))]) if wide and len(codes) == 12289 else codes


def columns(wide: bool) -> dict[str, NDArray[Any]]:
    """The value of every condition, one entry a state above world size 1."""
    axes = {name: VALUES[name] if wide or name != "pcie_ipc" else ("absent",) for name in SPACE}
    digits = np.indices([len(values) for values in axes.values()]).reshape(len(axes), -1)
    return {name: np.array(axes[name], dtype=object)[digit] for name, digit in zip(axes, digits, strict=True)}


def holds(when: Mapping[str, tuple[Any, ...]], states: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    mask = np.ones(len(states["custom"]), dtype=bool)
    for name, values in when.items():
        mask &= np.isin(states[name], list(values))
    return mask


def draw_fixed(source: random.Random) -> dict[str, Any]:
    names = source.sample([name for name in SPACE if name != "pcie_ipc"], source.randint(0, 3))
    return {name: list(some(source, VALUES[name])) for name in names}


def conditions_in(code: str) -> dict[str, Any]:
    """The conditions of a printed call of dispatch."""
    caught: list[dict[str, Any]] = []
    eval(code, {"probe": SimpleNamespace(dispatch=lambda sglang, **conditions: caught.append(conditions))})
    return caught[0]


def compare(a: str, b: str, fixed: Mapping[str, Any]) -> Diff:
    """One difference against the two walks: exactly the changed states, by what they change to, and no needless conjunction."""
    found = diff(LAST[a], LAST[b], **fixed)
    wide = max(len(walk(era, False)) for era in (a, b)) > 12289
    before, after, states = walk(a, wide), walk(b, wide), columns(wide)
    assert (before[0] == after[0]).all(), "a group of one rank returns its input in every era"
    before, after = before[1:], after[1:]
    inside = holds({name: tuple(values) for name, values in fixed.items()}, states)
    changed = inside & (before[:, [0, 2, 3, 4]] != after[:, [0, 2, 3, 4]]).any(axis=1)
    alone = all("absent" in values for name, values in fixed.items() if "absent" in VALUES[name])
    assert (found.walked, found.changed) == (inside.sum() + alone, changed.sum())
    assert bool(found) == bool(changed.any())
    keys = np.hstack([before, after])
    groups = {tuple(key): np.flatnonzero(changed & (keys == key).all(axis=1)) for key in np.unique(keys[changed], axis=0)}
    assert sorted(len(group) for group in groups.values()) == sorted(change.states for change in found.changes)
    left = [set(group.tolist()) for group in groups.values()]
    for change in found.changes:
        parts = [set(np.flatnonzero(inside & holds(when, states)).tolist()) for when in change.when]
        whole = set().union(*parts)
        assert whole in left, f"{a} -> {b}: the conjunctions of {change.before} -> {change.after} are not a group of states"
        left.remove(whole)
        for i, part in enumerate(parts):
            assert part - set().union(*parts[:i], *parts[i + 1 :]), f"{a} -> {b}: {change.when[i]} is needless"
        conditions = conditions_in(change.example)
        answers = [probe.dispatch(LAST[era], **conditions) for era in (a, b)]
        assert [str(answer.path) for answer in answers] == [change.before.path, change.after.path], change.example
    assert not left
    return found


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_a_difference_is_exactly_the_changed_states_in_conjunctions_of_which_none_is_needless(a: str, b: str) -> None:
    compare(a, b, {})
    source = random.Random(f"{a} {b}")
    for _ in range(6):
        compare(a, b, draw_fixed(source))


@given(SOURCES, st.sampled_from(RULESETS), st.sampled_from(RULESETS))
def test_a_difference_of_any_two_eras_is_exact_under_any_fixed_conditions(source: random.Random, a: str, b: str) -> None:
    found = compare(a, b, draw_fixed(source))
    assert a != b or not found


def test_the_commit_of_the_hunt_changes_1296_states_and_all_have_the_piecewise_flag() -> None:
    found = diff("bba2fc4", "0be30d4")
    assert (found.walked, found.changed) == (12289, 1296)
    assert found.common["piecewise"] == (True,)
    by_path = Counter[str]()
    for change in found.changes:
        by_path[change.after.path] += change.states
    assert by_path == {"pynccl_out_of_place": 648, "raises": 648}
    assert not diff("bba2fc4", "0be30d4", piecewise=False)


def test_a_table_of_a_revision_that_nobody_tabulated_differs_as_its_ruleset_does() -> None:
    for a, b in PAIRS:
        i, k = RULESETS.index(a), RULESETS.index(b)
        wider = max((known_release(LAST[era]) for era in (a, b)), key=lambda r: _core.region_count(region_of(r, {}).code))
        region = region_of(wider, {}).code
        tables = (np.asarray(_core.walk(i)).tobytes(), np.asarray(_core.walk(k)).tobytes())
        assert _core.changes(i, k, region, *tables) == _core.changes(i, k, region), f"{a} -> {b}"


# ----------------------------------------------------------------------------------------------------------------- classes

ROUTED = ("path", "rule", "op", "exception", "kernel", "backend", "returns_new", "cloned", "reduces", "word")


def routed(release: int, facts: tuple[int, ...], call: Call, context: int) -> tuple[int, ...]:
    (word, _), _, (path, rule, op, _, exception), extra = _core.route(release, facts, pack_call(call), context)[:4]
    backend, kernel, new, cloned, reduces, _ = extra
    return path, rule, op, exception, kernel, backend, new, cloned, reduces, word


def call_in(classes: Classes, row: NDArray[np.uint64], nbytes: int) -> Call:
    """A member of a class: its dtype, layout and shape, another size."""
    layout = _core.LAYOUTS[int(row[COLUMN["layout"]])]
    return Call(
        nbytes=nbytes,
        dtype=_core.DTYPES[int(row[COLUMN["dtype"]])][0],
        hidden=classes.hidden,
        dims=classes.dims,
        contiguous=layout.startswith("contiguous"),
        weak_contiguous=layout != "not contiguous",
        aligned="misaligned" not in layout,
        registered="symmetric" in layout,
    )


def residue(nbytes: int) -> int:
    return 0 if nbytes % 16 == 0 else 1 if nbytes % 4 == 0 else 2


def is_member(row: NDArray[np.uint64], nbytes: int) -> bool:
    first, last = int(row[COLUMN["first"]]), int(row[COLUMN["last"]])
    return first <= nbytes <= last and residue(nbytes) == int(row[COLUMN["residue"]])


def members(source: random.Random, row: NDArray[np.uint64], count: int) -> Iterable[int]:
    """Random sizes of a class, its ends among them: small and large ones alike."""
    width = DTYPE_BYTES[_core.DTYPES[int(row[COLUMN["dtype"]])][0]]
    first, last = int(row[COLUMN["first"]]), int(row[COLUMN["last"]])
    spread = (last - first).bit_length()
    starts = [first, max(first, last - 40)] + [
        first + min(last - first, source.getrandbits(source.randint(0, spread))) for _ in range(count)
    ]
    for start in starts:
        near = range(-(-start // width) * width, min(last, start + 64) + 1, width)
        yield from [size for size in near if is_member(row, size)][:1]


def draw_worker(source: random.Random) -> tuple[int, Group, list[Classes]]:
    release = known_release(source.choice(RELEASES))
    group = Group.make(**draw_facts(source))
    worker = worker_of_group(group, release, hidden=source.choice((0, 1, 2880, 4096, 7168)))
    contexts = tuple({"+".join(draw_context(source)) or "eager" for _ in range(2)})
    return release.index, group, classes_of(worker, group, contexts=contexts)


@given(SOURCES)
def test_a_random_member_of_a_size_class_routes_as_its_representative_does(source: random.Random) -> None:
    index, group, every = draw_worker(source)
    facts, columns_of = pack_facts(group), [COLUMN[name] for name in ROUTED]
    for classes in every:
        for row in source.sample(list(classes.rows), min(12, len(classes.rows))):
            expected, context = tuple(map(int, row[columns_of])), int(row[COLUMN["context"]])
            assert is_member(row, int(row[COLUMN["sample"]]))
            for nbytes in (int(row[COLUMN["sample"]]), *members(source, row, 4)):
                assert routed(index, facts, call_in(classes, row, nbytes), context) == expected, f"{nbytes} bytes, {group}"


@given(SOURCES)
def test_every_size_from_one_byte_to_2_to_the_63_is_in_exactly_one_class(source: random.Random) -> None:
    index, group, every = draw_worker(source)
    assert index >= 0 and group
    classes = source.choice(every)
    keys = classes.rows[:, [COLUMN[name] for name in ("context", "dtype", "layout")]]
    for key in {tuple(map(int, key)) for key in keys}:
        rows = classes.rows[(keys == key).all(axis=1)]
        width = DTYPES[_core.DTYPES[key[1]][0]]
        edges = {int(edge) + delta for edge in rows[:, [0, 1]].ravel() for delta in (-16, -8, -4, -2, -1, 0, 1, 2, 4, 8, 16)}
        sizes = {*range(1, 65), *edges, SIZE_MAX, *(source.getrandbits(source.randint(1, 62)) for _ in range(20))}
        for nbytes in {size // width * width for size in sizes}:
            if 1 <= nbytes <= SIZE_MAX:
                assert sum(is_member(row, nbytes) for row in rows) == 1, f"{nbytes} bytes in {key}"


def test_the_classes_of_a_group_are_few_though_they_stand_for_all_sizes() -> None:
    group = Group.make(world_size=8, own_mscclpp=1, has_mscclpp=1, own_torch_symm_mem=1)
    for classes in classes_of(worker_of_group(group, resolve("0.5.23"), hidden=7168), group):
        assert 100 < len(classes.rows) < 10_000
