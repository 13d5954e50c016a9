"""Which change did it: a route's change between two releases, told apart by substitution. Called by history.

Rules, gates and defaults of the newer release are put in the place of the older one's, one or more at a time; the cause is the
smallest set that already gives the newer answer. Fusion is told by its counts.
Invariant: a cause is named only where the substitution was run and gave the newer answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

from .. import _core
from .._facts import DTYPE_BYTES, TEXTS
from .._releases import Release
from .._route import context_bits
from .._show.sizes import human_bytes
from .._types import Server
from .looks import Inputs, Inseparable, Key, Look, Packed, answer, ask, group_of, seen

Kind = Literal["dispatch", "gate", "threshold", "default", "fusion", "calls"]
_Part = Literal["dispatch", "gate", "default"]
_Told = tuple[tuple[Any, ...], ...]
_PARTS: tuple[_Part, ...] = ("dispatch", "gate", "default")
_SIZE_STOPS = sum(1 << i for i, (name, _, _) in enumerate(_core.STOPS) if name in ("too_large", "too_small"))
_GATE_OF = {"pynccl_in_place": "pynccl", "pynccl_out_of_place": "pynccl", "cpu_shm": "cpu"}
_FACTS = tuple(name for name, _, _ in _core.FACTS)
_DTYPES = tuple(DTYPE_BYTES)


@dataclass(frozen=True)
class Cause:
    """One thing that changed, and did it."""

    kind: Kind
    text: str
    either: bool = False
    """Another cause beside it would have been enough by itself."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(frozen=True)
class Side:
    """One release's answer, and where it comes from."""

    release: Release
    look: Look
    server: Server | None


def causes_of(old: Side, new: Side) -> tuple[Cause, ...]:
    """Why two releases' looks differ; () where they do not."""
    if old.look.key == new.look.key:
        return ()
    if "refused" in (old.look.context, new.look.context):
        why = new.look.note if new.look.context == "refused" else f"no longer {old.look.note}"
        return (Cause("default", f"the launch line: {why}"),)
    found: list[Cause] = []
    if old.look.fused != new.look.fused:
        found.append(_fusion(old, new))
    if old.look.all_reduces != new.look.all_reduces or _groups(old.look) != _groups(new.look):
        found.append(_calls(old, new))
    found += _Substitution(old, new).causes()
    if old.look.context != new.look.context and not any(cause.kind == "default" for cause in found):
        found.append(Cause("default", _context_text(old, new)))
    return tuple(found)


def _fusion(old: Side, new: Side) -> Cause:
    """How many calls are fused, and whether the setting or the code decides otherwise."""
    text = f"{old.look.fused} -> {new.look.fused} of {new.look.all_reduces} calls fused"
    was, now = (side.server.fusion if side.server else None for side in (old, new))
    if was and now and was.enabled != now.enabled:
        return Cause("fusion", f"{text} ({now.reason})")
    return Cause("fusion", f"{text} (the setting is as before; which calls are fused, and up to how many tokens, is not)")


def _groups(look: Look) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(group_of, look.inputs.calls)))


def _calls(old: Side, new: Side) -> Cause:
    def told(look: Look) -> str:
        return f"{look.all_reduces} over {', '.join(_groups(look)) or 'no group'}"

    note = new.look.note if not new.look.all_reduces else old.look.note if not old.look.all_reduces else ""
    return Cause("calls", f"the model's all-reduces: {told(old.look)} -> {told(new.look)}" + (f" ({note})" if note else ""))


def _context_text(old: Side, new: Side) -> str:
    why = f" ({new.look.note})" if new.look.note else f" ({old.look.note} before)" if old.look.note else ""
    return f"context {old.look.context} -> {new.look.context}{why}"


class _Substitution:
    """The routes of two sides with parts of the newer in the place of the older one's."""

    def __init__(self, old: Side, new: Side) -> None:
        self.old, self.new = old, new
        kept = old.look.inputs.calls.keys() & new.look.inputs.calls.keys()
        self.before, self.after = (
            replace(inputs, calls={key: call for key, call in inputs.calls.items() if key in kept})
            for inputs in (old.look.inputs, new.look.inputs)
        )
        self.goal = self._told(answer(self.after, new.release, new.release))

    def _told(self, answers: Iterable[tuple[Key, Any]]) -> _Told:
        """What is compared: calls, or ranges of sizes, with what a caller can tell."""
        return tuple(sorted((key if self.after.whole else (key[0], 0, 0), seen(outcome)) for key, outcome in answers))

    def _with(self, parts: tuple[_Part, ...], inputs: Inputs | None = None) -> _Told | None:
        rules = self.new.release if "dispatch" in parts else self.old.release
        gates = self.new.release if "gate" in parts else self.old.release
        inputs = inputs or (self.after if "default" in parts else self.before)
        try:
            return self._told(answer(inputs, rules, gates))
        except Inseparable:
            return None

    def causes(self) -> list[Cause]:
        self.start = self._with(())
        if self.start == self.goal:
            return []
        for size in range(1, len(_PARTS) + 1):
            hits = [parts for parts in combinations(_PARTS, size) if self._with(parts) == self.goal]
            if hits:
                break
        told: dict[_Part, Cause] = {}
        for parts in hits:
            for part in parts:
                told.setdefault(part, replace(self._cause(part, parts), either=len(hits) > 1))
        return list(told.values())

    def _cause(self, part: _Part, parts: tuple[_Part, ...]) -> Cause:
        if part == "dispatch":
            return Cause("dispatch", _eras(self.old.release, self.new.release))
        if part == "default":
            return Cause("default", self._defaults(parts))
        return self._gate(parts)

    # ------------------------------------------------------------------------------------------------------------------ gates

    def _example(self, parts: tuple[_Part, ...]) -> tuple[Packed, Packed, int]:
        """Facts, call and context of something that changes."""
        inputs = self.after if "default" in parts else self.before
        was: dict[Key, Any] = dict(self.start or ())
        name, call = next(iter(inputs.calls.items()))
        for key, outcome in self.goal:
            if was.get(key) == outcome:
                continue
            name, first, last = key
            call = inputs.calls[name]
            if inputs.whole:
                low = max((k[1] for k, o in was.items() if o != outcome and k[1] <= last and k[2] >= first), default=first)
                call = (-(-max(first, low) // 16) * 16, *call[1:])
            break
        return inputs.facts[group_of(name)], call, context_bits(inputs.context)

    def _gate(self, parts: tuple[_Part, ...]) -> Cause:
        facts, call, bits = self._example(parts)
        rules = self.new.release if "dispatch" in parts else self.old.release
        try:
            (was, before), (now, after) = (ask(rules, side.release, facts, call, bits) for side in (self.old, self.new))
        except Inseparable as error:
            return Cause("gate", f"which one cannot be told apart ({error})")
        differ = [name for name, old, new in zip(_core.GATES, before, after, strict=True) if old[:8] != new[:8]]
        asked = {_GATE_OF.get(outcome.path, outcome.path) for outcome in (was, now)}
        named = [name for name in differ if name in asked] or differ
        texts, kinds = [], set()
        for name in named:
            i = _core.GATES.index(name)
            texts.append(f"{name}: {_gate_text(before[i], after[i], facts, call)}")
            kinds.add(_is_threshold(before[i], after[i]))
        return Cause("threshold" if kinds == {True} else "gate", "; ".join(texts) or "its answer for this call")

    # --------------------------------------------------------------------------------------------------------------- defaults

    def _defaults(self, parts: tuple[_Part, ...]) -> str:
        """The facts, the context or the size that are needed for the newer answer, of all that differ."""
        items = self._differing()
        for item in list(items):
            rest = [one for one in items if one != item]
            if rest and self._with(parts, self._apply(rest)) == self.goal:
                items = rest
        return "; ".join(dict.fromkeys(self._item_text(item) for item in items)) or "several together"

    def _differing(self) -> list[tuple[str, str, str]]:
        """(what, call or group, fact) of everything that differs."""
        surround = [(inputs.context, inputs.replayed, inputs.outside) for inputs in (self.before, self.after)]
        found = [("context", "", "")] if surround[0] != surround[1] else []
        found += [("call", key, "") for key, call in self.before.calls.items() if call != self.after.calls[key]]
        for group, facts in self.before.facts.items():
            pairs = zip(_FACTS, facts, self.after.facts.get(group, facts), strict=True)
            found += [("fact", group, name) for name, old, new in pairs if old != new]
        return found

    def _apply(self, items: list[tuple[str, str, str]]) -> Inputs:
        """The older inputs with some items of the newer."""
        mixed = self.before
        calls, facts = dict(self.before.calls), {group: list(values) for group, values in self.before.facts.items()}
        for what, key, name in items:
            if what == "context":
                after = self.after
                mixed = replace(mixed, context=after.context, replayed=after.replayed, outside=after.outside)
            elif what == "call":
                calls[key] = self.after.calls[key]
            else:
                facts[key][_FACTS.index(name)] = self.after.facts[key][_FACTS.index(name)]
        return replace(mixed, calls=calls, facts={group: tuple(values) for group, values in facts.items()})

    def _item_text(self, item: tuple[str, str, str]) -> str:
        what, key, name = item
        if what == "context" and self.before.context == self.after.context:
            anew = "runs anew between the pieces of the prefill graph"
            return f"what is in place {'now' if self.after.replayed else 'no longer'} {anew}"
        if what == "context":
            return _context_text(self.old, self.new)
        if what == "call":
            if self.before.calls[key][0] == self.after.calls[key][0]:
                return f"the tensor of {key.partition('@')[0]} is tagged as symmetric memory or not"
            return f"{self.old.look.tokens:,} -> {self.new.look.tokens:,} tokens"
        i = _FACTS.index(name)
        old, new = self.before.facts[key][i], self.after.facts[key][i]
        server = self.new.server
        why = f"; {server.fusion.reason}" if name.startswith("fi_") and server else ""
        return f"{name} {old} -> {new} ({TEXTS[name]}{why})"


def _eras(old: Release, new: Release) -> str:
    """What changed in the rules, era by era."""
    if old.derived is not None or new.derived is not None or old.ruleset_index >= new.ruleset_index:
        return f"{old.name} ({old.ruleset}) -> {new.name} ({new.ruleset})"
    texts = _core.rulesets()[old.ruleset_index + 1 : new.ruleset_index + 1]
    return f"{old.ruleset} -> {new.ruleset}: " + "; ".join(
        f"{name}: {text}" if len(texts) > 1 else text for name, text, *_ in texts
    )


def _is_threshold(before: Packed, after: Packed) -> bool:
    """Whether only the size that a gate takes is another: same code, other limit, or a stop that is about size."""
    same = before[2] == after[2] and before[3] == after[3]
    limits = bool(before[5] and after[5] and before[5] != after[5])
    stops = before[4] ^ after[4]
    return same and not stops & ~_SIZE_STOPS and (limits or bool(stops))


def _gate_text(before: Packed, after: Packed, facts: Packed, call: Packed) -> str:
    value = dict(zip(_FACTS, facts, strict=True))
    parts = []
    if before[2] != after[2] and before[2] and after[2]:
        parts.append(f"{_core.BACKENDS[before[2]]} -> {_core.BACKENDS[after[2]]}")
    if before[0] != after[0]:
        parts.append(f"{_core.STATES[before[0]]} -> {_core.STATES[after[0]]}")
    if before[1] != after[1]:
        parts.append(f"kernel {_core.KERNELS[before[1]][0] or 'none'} -> {_core.KERNELS[after[1]][0] or 'none'}")
    if before[5] != after[5] and before[5] and after[5]:
        parts.append(f"limit {human_bytes(before[5])} -> {human_bytes(after[5])}")
    told = _SIZE_STOPS if before[5] != after[5] else 0  # the limits say it already
    for answer_, other, word in ((before, after, "no longer: "), (after, before, "")):
        values = {
            **{name: value[name] for name in ("world_size", "nodes", "arch")},
            "nbytes": f"{call[0]:,}",
            "limit": f"{answer_[5]:,}",
            "dtype": _DTYPES[call[1]],
            "multiple": 16,
        }
        parts += [
            word + text.format(**values)
            for i, (_, _, text) in enumerate(_core.STOPS)
            if (answer_[4] & ~other[4] & ~told) >> i & 1 and before[0] != after[0]
        ]
    for i, text in ((6, "gives a new tensor"), (7, "reduces")):
        if before[i] != after[i] and before[0] == after[0]:
            parts.append(text if after[i] else f"no longer {text}")
    return ", ".join(parts) or "another answer"


__all__ = ["Cause", "Kind", "Side", "causes_of"]
