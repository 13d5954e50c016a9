"""What people see of sizes whose route changes: ordinary tensors in ranges, the rest in a few lines. Called by proof.py for Diff.

Invariant: a range ends at sizes that such tensors have (multiples of 16 bytes), and ranges that touch and change alike are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .._facts import SIZE_MAX
from .page import Block, Line, Table, items
from .sizes import human_bytes

if TYPE_CHECKING:
    from .._proof.diff import Diff, Outcome, SizeChange, StateChange

_RANGES, _OTHERS = 16, 4
"""Ranges of ordinary tensors, and lines of the rest, that a page shows unless all are asked for."""
_ORDINARY = ("bf16", "fp16", "fp32")
_PLAIN = "contiguous, multiples of 16 bytes"
_CONTEXTS = ("capture", "eager")
"""Contexts that a server spends its time in; the others come after."""
_RESULTS = {"input": "in place", "lost": "result lost", "not reduced": "NOT REDUCED", "clone": "a clone"}

_USUAL = {"pynccl_in_place": "input", "pynccl_out_of_place": "new tensor", "torch_distributed": "input"}
"""What comes back by these paths, as their names say."""


def pair(change: StateChange | SizeChange) -> tuple[str, str]:
    """Before and after, with what tells them apart."""
    before, after = change.before, change.after
    return _outcome(before, after), _outcome(after, before)


def _outcome(one: Outcome, other: Outcome) -> str:
    if one.path == "raises":
        return f"raises {one.result}"
    told = [one.backend] if one.backend not in ("", "torch", "nccl", one.path) else []
    told += [one.kernel] if one.kernel and one.kernel != one.path else []
    parts = [" ".join(told)] if told else []
    if one.result != other.result and one.result != _USUAL.get(one.path):
        parts.append(_RESULTS.get(one.result, one.result))
    return f"{one.path} ({', '.join(parts)})" if parts else one.path


def sizes_blocks(diff: Diff, verbose: bool) -> list[Block]:
    """The answer in one line, then ranges, then the rest."""
    rows = _ranges(diff.sizes)
    page: list[Block] = [Line(f"{_answer(diff, len(rows))}; {diff.walked:,} size classes walked", "answer")]
    page += _tables(rows, verbose)
    others = _others(diff.sizes, verbose)
    page += items("Other tensors", others if verbose else others[:_OTHERS], "dim")
    if len(others) > _OTHERS and not verbose:
        page.append(Line(f"and {len(others) - _OTHERS} more such lines: -v shows all, with layouts and sizes", "dim"))
    return page


def _answer(diff: Diff, ranges: int) -> str:
    """What changes, most telling first; what one side alone has can be all of it."""
    told = [f"the step's {text}" for text in diff.step]
    if ranges:
        told.append(f"ordinary tensors in {ranges} {'range' if ranges == 1 else 'ranges'} of sizes")
    elif diff.sizes:
        told.append("only tensors of unusual dtype, layout or size")
    if told:
        return f"routes change: {'; '.join(told)}"
    alone = ", ".join(note.partition(":")[0] for note in diff.notes if ": only " in note)
    return f"no common route changes, but one side alone has {alone}"


def _ordinary(change: SizeChange) -> tuple[str, ...]:
    """Dtypes in which an ordinary tensor is changed: contiguous, aligned, a multiple of 16 bytes."""
    return tuple(dtype for dtype in _ORDINARY if f"{dtype}, {_PLAIN}" in change.tensors)


@dataclass
class _Range:
    """Sizes of ordinary tensors that change alike, of some dtypes, in some groups."""

    context: str
    dtypes: tuple[str, ...]
    first: int
    last: int
    outcomes: tuple[str, str]
    groups: list[str] = field(default_factory=list)

    def cells(self) -> tuple[str, str, str, str]:
        end = "any" if self.last >= SIZE_MAX // 16 * 16 else human_bytes(self.last)
        return human_bytes(self.first), end, *self.outcomes


def _ranges(changes: Iterable[SizeChange]) -> list[_Range]:
    """Ranges in the order of a page; those that touch are joined, and groups that change alike share one."""
    found: list[_Range] = []
    ordinary = [(change, dtypes) for change in changes if (dtypes := _ordinary(change))]
    for change, dtypes in sorted(ordinary, key=lambda o: (_rank(o[0].context), o[1], o[0].group, o[0].first_bytes)):
        first, last = -(-change.first_bytes // 16) * 16, change.last_bytes // 16 * 16
        if first > last:
            continue
        one = _Range(change.context, dtypes, first, last, pair(change), [change.group])
        before = found[-1] if found else None
        if before and before.last + 16 == first and _same(before, one):
            before.last = last
        else:
            found.append(one)
    joined: dict[tuple[object, ...], _Range] = {}
    for one in found:
        kept = joined.setdefault((one.context, one.dtypes, one.first, one.last, one.outcomes), one)
        if kept is not one:
            kept.groups += one.groups
    return sorted(joined.values(), key=lambda one: (_rank(one.context), one.dtypes, one.first))


def _same(a: _Range, b: _Range) -> bool:
    return (a.context, a.dtypes, a.outcomes, a.groups) == (b.context, b.dtypes, b.outcomes, b.groups)


def _rank(context: str) -> tuple[int, str]:
    return (_CONTEXTS.index(context) if context in _CONTEXTS else len(_CONTEXTS), context)


def _tables(rows: Iterable[_Range], verbose: bool) -> list[Block]:
    """One table for contexts that change alike; a column of groups or dtypes only where rows differ in them."""
    rows = list(rows)
    groups, dtypes = {tuple(row.groups) for row in rows}, {row.dtypes for row in rows}
    columns = (*(["group"] * (len(groups) > 1)), *(["dtype"] * (len(dtypes) > 1)), "from", "to", "before", "after")
    bodies: dict[str, list[tuple[str, ...]]] = {}
    for row in rows:
        lead = [", ".join(row.groups)] * (len(groups) > 1) + [", ".join(row.dtypes)] * (len(dtypes) > 1)
        bodies.setdefault(row.context, []).append((*lead, *row.cells()))
    alike: dict[tuple[tuple[str, ...], ...], list[str]] = {}
    for context, body in bodies.items():
        alike.setdefault(tuple(body), []).append(context)
    every = f" ({', '.join(next(iter(groups)))})" if len(groups) == 1 else ""
    blocks: list[Block] = []
    shown = left = 0
    for cells, contexts in alike.items():
        if left or (shown and shown + len(cells) > _RANGES and not verbose):
            left += len(cells) * len(contexts)
            continue
        shown += len(cells)
        blocks.append(Table(f"Ordinary tensors, {', '.join(contexts)}{every}", columns, cells, frozenset({"from", "to"})))
    return [*blocks, Line(f"and {left} more ranges, in other contexts: -v shows them", "dim")] if left else blocks


def _others(changes: Iterable[SizeChange], verbose: bool) -> list[str]:
    """What happens to other dtypes, layouts and sizes: one line for each pair of paths."""
    found: dict[tuple[str, str], tuple[list[str], dict[str, list[str]]]] = {}
    for change in changes:
        for text in change.tensors:
            dtype, _, layout = text.partition(", ")
            if layout == _PLAIN and dtype in _ORDINARY:
                continue
            contexts, kinds = found.setdefault((change.before.path, change.after.path), ([], {}))
            contexts.append(change.context)
            kinds.setdefault(layout, []).append(dtype)
    return [_other(*paths, *what, verbose) for paths, what in found.items()]


def _other(before: str, after: str, contexts: list[str], kinds: Mapping[str, list[str]], verbose: bool) -> str:
    move = f"{before} -> {after}" if before != after else f"{after} before and after, with another kernel, backend or result"
    where = ", ".join(sorted(set(contexts), key=_rank))
    if not verbose:
        dtypes = sorted({dtype for some in kinds.values() for dtype in some})
        return f"{move}: {', '.join(dtypes)} in {len(kinds)} {'kind' if len(kinds) == 1 else 'kinds'} of layout and size; {where}"
    return f"{move}: " + "; ".join(f"{', '.join(sorted(set(some)))}: {layout}" for layout, some in kinds.items()) + f"; {where}"
