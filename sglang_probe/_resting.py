"""What an answer rests on: the facts of which one alone would change it, and what blocks a better rule in a derived table.

Called by _route.py, for Decision.facts and Decision.blocked_by. Invariant: found by asking the core again, never by reasoning about it.
"""

from __future__ import annotations

from collections.abc import Iterable

from . import _core
from ._decision import Blocked
from ._facts import DEFAULTS, fact_value, pack_call, pack_facts, range_of
from ._releases import Release
from ._types import Call, Fact, FrozenMap, Group

_RULES = tuple(name for name, _ in _core.RULES)
_LEVELS = ("present", "enabled", "accepts")


def _alternatives(name: str, value: int, group: Group) -> Iterable[int]:
    """Other values of a fact that a machine or a server can have."""
    low, high = range_of(name)
    if name == "device":
        return []  # another kind of device is another server
    if name == "world_size":
        tried = [2, 3, 4, 6, 8, 16]
    elif name == "nodes":
        tried = [1, 2]
    elif name == "arch":
        tried = [80, 90, 100, 103, 107, 120]
    elif name == "local_size":
        tried = [0, group.world_size]
    elif high - low < 8:
        tried = list(range(low, high + 1))
    else:
        tried = [low, 0, value // 2, value * 2 or 1, high]
    return [other for other in dict.fromkeys(tried) if other != value and low <= other <= high]


def facts_behind(
    release: Release, group: Group, call: Call, bits: int, path: int, switches: tuple[int, int, int] = (0, 0, 0)
) -> FrozenMap[str, Fact]:
    """Facts of which a change alone changes the path. Facts that matter only together (a package and the flag that asks for it) are not
    among them: the gates' stops name those.
    """
    packed, call_fields = pack_facts(group), pack_call(call)
    found: dict[str, Fact] = {}
    for i, (name, default) in enumerate(DEFAULTS.items()):
        fact = group.facts.get(name, Fact(default, "assumed", "default"))
        for other in _alternatives(name, fact.value, group):
            if name == "nodes" and other > group.world_size or name == "world_size" and other < fact_value(group, "nodes"):
                continue
            facts = (*packed[:i], other, *packed[i + 1 :])
            if _core.route(release.index, facts, call_fields, bits, release.derived, 0, *switches)[2][0] != path:
                found[name] = fact
                break
    return FrozenMap(found)


def blocked_in_table(release: Release, word: int) -> FrozenMap[str, Blocked]:
    """A derived table has answers, no rows: what blocks a better rule are the single conditions, or communicators, that would bring it.

    "Better" is what the nearest ruleset asks earlier: the table itself does not tell.
    """
    assert release.derived is not None
    order = [row[0] for block in _core.rulesets()[release.ruleset_index][3].values() for row in block]
    rank = {rule: i for i, rule in reversed(list(enumerate(order)))}
    fired = rank.get(_core.decide_derived(release.derived, word)[1], len(order))
    blocked: dict[str, Blocked] = {}
    for names, other in _changes(word):
        try:
            rule = _core.decide_derived(release.derived, other)[1]
        except ValueError:  # a word that no state has
            continue
        if rank.get(rule, len(order)) < fired and _RULES[rule] not in blocked:
            gained = tuple(name for name, bit in names if not word & bit)
            lost = tuple(name for name, bit in names if word & bit)
            blocked[_RULES[rule]] = Blocked(_RULES[rule], gained, lost, (), gained)
    return FrozenMap(blocked)


def _changes(word: int) -> Iterable[tuple[list[tuple[str, int]], int]]:
    """Each communicator raised to "accepts", then each other condition flipped."""
    bits = {name: 1 << i for i, (name, _, _) in enumerate(_core.CONDITIONS)}
    for communicator in dict.fromkeys(c for _, c, _ in _core.CONDITIONS if c):
        names = [(f"{communicator}_{level}", bits.get(f"{communicator}_{level}", 0)) for level in _LEVELS]
        wanted = [(name, bit) for name, bit in names if bit and not word & bit]
        if wanted:
            yield wanted, word | sum(bit for _, bit in wanted)
    for name, communicator, _ in _core.CONDITIONS:
        if not communicator and name != "ranks":
            yield [(name, bits[name])], word ^ bits[name]
