"""reach at the level of conditions: can this rule fire, can this path be taken? Called by reach_launch.py, people and the plug-in.

Invariant: "unreachable" is the outcome of a whole walk, and carries the number of states; a witness is a state that was walked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Any, Literal

from .. import _core
from .._decision import Decision
from .._releases import COMMITS, RELEASES, Release, resolve
from .._route import PATHS, RULES, decision_of
from .._shown import Shown
from .._types import FrozenMap, InputError
from .space import PLAIN, Region, call_text, conditions_of_word, conjunction_text, region_of

Kind = Literal["rule", "path"]
_PATH_NAMES = tuple(str(path) for path in PATHS)
_OF_DEVICE = {"cpu": "cpu", "hpu": "hpu", "xpu": "xpu", "npu": "npu", "amd_deterministic": "hip", "cpu_shm": "cpu"}


@dataclass(frozen=True)
class Witness(Shown):
    """A state, or a call, in which the target is reached: the most ordinary one."""

    code: str
    """Python that reproduces it."""
    decision: Decision

    def __str__(self) -> str:
        return f"{self.code}  ->  {self.decision}"


@dataclass(frozen=True)
class RuleReach:
    """One rule of one release that is the target, or that leads to it."""

    rule: str
    reachable: bool
    states: int
    """States (or classes of calls) in which it is reached."""
    reason: str = ""
    """Why not, where it is not."""
    witness: Witness | None = None


@dataclass(frozen=True)
class Reach:
    """The answer of ``reach``: a proof that nothing reaches the target, or a witness that something does."""

    target: str
    kind: Kind
    sglang: str
    ruleset: str
    level: Literal["conditions", "group", "launch", "releases"]
    reachable: bool
    walked: int
    """States walked: combinations of conditions, or of context, dtype and layout."""
    classes: int = 0
    """Size classes walked, each standing for all of its sizes; 0 at the level of conditions, where no size is asked."""
    fixed: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: FrozenMap({}))
    reason: str = ""
    """Unreachable: the smallest set of fixed conditions that already forbids it."""
    rules: tuple[RuleReach, ...] = ()
    """Asked for a path: every rule that leads there."""
    witness: Witness | None = None
    parts: tuple[Reach, ...] = ()
    """Asked for a range: one answer a release."""
    assumed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.reachable

    def __str__(self) -> str:
        from .._show.proof import reach_text

        return reach_text(self)

    def __repr__(self) -> str:
        return f"<Reach: {str(self).splitlines()[0]}>"

    def _repr_html_(self) -> str:
        from .._show.proof import reach_html

        return reach_html(self)

    def to_dict(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "kind": self.kind,
            "sglang": self.sglang,
            "ruleset": self.ruleset,
            "level": self.level,
            "reachable": self.reachable,
            "walked": self.walked,
            "classes": self.classes,
            "fixed": {name: list(values) for name, values in self.fixed.items()},
            "reason": self.reason,
            "rules": [
                {
                    "rule": r.rule,
                    "reachable": r.reachable,
                    "states": r.states,
                    "reason": r.reason,
                    "witness": r.witness and r.witness.code,
                }
                for r in self.rules
            ],
            "witness": self.witness and self.witness.code,
            "parts": [part.to_dict() for part in self.parts],
            "assumed": list(self.assumed),
        }


def target_kind(target: str, kind: Kind | None) -> Kind:
    """Whether a name is meant as a rule or as a path; names that are both (custom, quick, ...) mean the rule unless ``kind`` says else."""
    name = str(target)
    if kind not in (None, "rule", "path"):
        raise InputError("kind", kind, "give 'rule' or 'path'")
    if name in RULES[1:] and kind != "path":
        return "rule"
    if name in _PATH_NAMES and kind != "rule":
        return "path"
    raise InputError("target", name, f"give a rule ({', '.join(RULES[1:])}) or a path ({', '.join(_PATH_NAMES)})")


def releases_between(text: str) -> tuple[str, ...]:
    """Releases of ``"0.5.9..0.5.23"``, both ends included, in order."""
    first, _, last = text.partition("..")
    names = [name for name in RELEASES if name not in COMMITS]
    eras = {row[0]: row[1] for row in _core.releases() if row[0] in names}
    oldest = next((name for name in names if eras[name] == first.strip()), first)  # an era starts with its first release
    ends = [resolve(end).name for end in (oldest, last)]
    for end, name in zip((first, last), ends, strict=True):
        if name not in names:
            raise InputError("sglang", end, "a range runs between releases, not commits")
    low, high = (names.index(end) for end in ends)
    if low > high:
        raise InputError("sglang", text, f"an empty range: {ends[0]} is newer than {ends[1]}")
    return tuple(names[low : high + 1])


@lru_cache(maxsize=512)
def rules_of(release: Release) -> tuple[str, ...]:
    """The rules that a release's ruleset has at all (in a derived table: those that some state takes)."""
    if release.derived is not None:
        _, hits = _core.tally(release.ruleset_index, region_of(release, {}).code, release.derived)
        return tuple(dict.fromkeys(RULES[rule] for rule, *_ in hits))
    rows = [row for block in _core.rulesets()[release.ruleset_index][3].values() for row in block]
    return tuple(dict.fromkeys(RULES[row[0]] for row in rows if row[0]))


def reach_conditions(target: str, kind: Kind, release: Release, fixed: Mapping[str, object]) -> Reach:
    """The proof for one release, over every state that the fixed conditions leave."""
    asked = dict(fixed)
    if target in _OF_DEVICE and "device" not in asked:
        asked["device"] = _OF_DEVICE[target]
    region = region_of(release, asked)
    states, hits = _core.tally(release.ruleset_index, region.code, release.derived)
    found = [hit for hit in hits if (RULES[hit[0]] if kind == "rule" else _PATH_NAMES[hit[1]]) == target]
    by_rule: dict[str, list[tuple[int, int, int, int]]] = {}
    for hit in found:
        by_rule.setdefault(RULES[hit[0]], []).append(hit)
    rules = [_rule_reach(release, rule, by_rule[rule], region) for rule in by_rule]
    reason = "" if found else _reason(target, kind, release, region)
    if kind == "path":
        rules += [
            RuleReach(rule, False, 0, _reason(rule, "rule", release, region))
            for rule in leading_to(target, release)
            if rule not in by_rule
        ]
    witnesses = [rule.witness for rule in rules if rule.witness]
    return Reach(
        target=target,
        kind=kind,
        sglang=release.name,
        ruleset=release.ruleset,
        level="conditions",
        reachable=bool(found),
        walked=states,
        fixed=FrozenMap(dict(region.fixed)),
        reason=reason,
        rules=tuple(rules),
        witness=witnesses[0] if witnesses else None,
    )


def _rule_reach(release: Release, rule: str, hits: list[tuple[int, int, int, int]], region: Region) -> RuleReach:
    working = [hit for hit in hits if _PATH_NAMES[hit[1]] != "raises"] or hits
    best = min(working, key=lambda hit: (hit[3].bit_count() if hasattr(int, "bit_count") else bin(hit[3]).count("1"), hit[3]))
    fixed = {name: values[0] for name, values in region.fixed.items() if len(values) == 1 and values[0] != PLAIN.get(name)}
    conditions = {**fixed, **conditions_of_word(best[3])}
    witness = Witness(call_text(release.name, conditions), decision_of(release, best[3]))
    return RuleReach(rule, True, sum(hit[2] for hit in hits), witness=witness)


@lru_cache(maxsize=512)
def leading_to(path: str, release: Release) -> tuple[str, ...]:
    """Rules that lead to a path in some state, wherever: the whole space of the release and its devices."""
    leading: dict[str, None] = {}
    for device in ("cuda", "cpu", "hip", "npu", "xpu", "hpu") if release.derived is None else ("cuda",):
        _, hits = _core.tally(release.ruleset_index, region_of(release, {"device": device}).code, release.derived)
        leading |= dict.fromkeys(RULES[hit[0]] for hit in hits if _PATH_NAMES[hit[1]] == path)
    return tuple(leading)


def _reaches(target: str, kind: Kind, release: Release, fixed: Mapping[str, object]) -> bool:
    region = region_of(release, fixed)
    rule, path = (RULES.index(target), 0) if kind == "rule" else (0, _PATH_NAMES.index(target))
    return _core.reaches(release.ruleset_index, region.code, rule, path, release.derived)


def _reason(target: str, kind: Kind, release: Release, region: Region) -> str:
    """The smallest set of fixed conditions that already forbids the target."""
    if kind == "rule" and target not in rules_of(release):
        return f"{release.name} ({release.ruleset}) has no rule {target}"
    device = {name: values for name, values in region.fixed.items() if name == "device"}  # of the question, not a reason
    names = [name for name in region.fixed if name != "device"]
    for size in range(len(names) + 1):
        for chosen in combinations(names, size):
            part = {**device, **{name: region.fixed[name] for name in chosen}}
            try:  # all of them together are what was walked already
                forbidden = size == len(names) or not _reaches(target, kind, release, part)
            except InputError:  # a part of the fixed conditions that leaves nothing by itself
                continue
            if forbidden:
                if not chosen:
                    kind_of = region.fixed.get("device", ("cuda",))[0]
                    return f"no state of {release.name} ({release.ruleset}) takes it with device={kind_of}"
                return f"{conjunction_text({name: region.fixed[name] for name in chosen})} already forbids it"
    return ""


def reach_releases(parts: list[Reach], text: str) -> Reach:
    """One answer for a range of releases from the answers for each."""
    reachable = [part for part in parts if part.reachable]
    reasons = list(dict.fromkeys(part.reason for part in parts if part.reason))
    return Reach(
        target=parts[0].target,
        kind=parts[0].kind,
        sglang=text,
        ruleset="",
        level="releases",
        reachable=bool(reachable),
        walked=sum(part.walked for part in parts),
        classes=sum(part.classes for part in parts),
        fixed=parts[0].fixed,
        reason="" if reachable else "; ".join(reasons[:3]) + ("; ..." if len(reasons) > 3 else ""),
        witness=reachable[0].witness if reachable else None,
        parts=tuple(parts),
        assumed=tuple(dict.fromkeys(note for part in parts for note in part.assumed)),
    )
