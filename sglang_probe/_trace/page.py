"""What people see of a Checked: the answer first, then what was expected and seen by call site, each rank, and times. Called by types.py.

Invariant: what the answer does not hold for stands above it; times say that they are of this trace.
"""

from __future__ import annotations

from collections.abc import Sequence

from .._report.text import counted
from .._show.page import Block, Line, Table, items
from .compare import Compared
from .kernels import kernel_table
from .types import Checked, RankSeen

_RIGHT = frozenset({"calls", "steps", "sum ms", "median us", "least", "most", "calls a step", "all-reduces", "all-gathers"})
_MOST_ROWS = 12


def checked_page(checked: Checked, verbose: bool = False) -> list[Block]:
    """``verbose``: every kind of step, every rank, the sources of kernels' names, and what was assumed."""
    page: list[Block] = [Line(text, "warn") for text in checked.warnings]
    page += [Line(checked.sentence, "answer"), *_where(checked), *_about(checked)]
    page += _sites(checked)
    page += items("Ranks that went another way", (text for one in checked.apart if (text := str(one)) not in checked.sentence))
    page += items("Found besides", checked.findings)
    page += _ranks(checked, verbose)
    page += _kinds(checked, verbose)
    page += _times(checked, verbose)
    notes = [f"{rank.label}: {note}" if len(checked.ranks) > 1 else note for rank in checked.ranks for note in rank.notes]
    page += items("Notes", [note for note in dict.fromkeys([*notes, *checked.notes]) if note not in checked.warnings])
    page += items("Assumed", checked.assumed, "dim")
    if verbose:
        page += _sources(checked)
    return page


def _where(checked: Checked) -> list[Block]:
    """The first place at which a step parts from what is expected."""
    for rank in checked.ranks:
        kind = rank.worst
        if kind is not None and kind.first is not None:
            return [Line(f"{rank.label}, {kind.first}")]
    return []


def _about(checked: Checked) -> list[Block]:
    lines = []
    step = checked.step
    if step is not None:
        what = "verify" if step.draft_tokens > 1 else "decode"
        lines.append(
            f"expected of {step.model} on {step.world_size} ranks: {what} step, {counted(step.tokens, 'token')}, {step.context}, "
            f"SGLang {step.sglang} ({step.ruleset})"
        )
    ways = dict.fromkeys(f"{rank.found_by}" for rank in checked.ranks)
    if ways:
        lines.append(f"{', '.join(checked.written_by)}; steps found by {', '.join(ways)}")
    return [Line(text, "dim") for text in lines]


def _sites(checked: Checked) -> list[Block]:
    """By call site, where one kind of step differs and has as many calls."""
    if checked.expected is None:
        return []
    rank = next((rank for rank in checked.ranks if rank.differing), None)
    kind = rank.worst if rank is not None else None
    if kind is None:
        return []
    rows = tuple((site, str(count), want, saw) for site, want, saw, count in kind.sites(checked.expected))
    return [Table("By call site", ("call site", "calls", "expected", "seen"), rows[:_MOST_ROWS], _RIGHT, "seen")] if rows else []


def _ranks(checked: Checked, verbose: bool) -> list[Block]:
    rows = tuple(
        (
            rank.label,
            f"{rank.calls:,}",
            f"{rank.replayed:,}",
            str(rank.steps),
            str(rank.differing) if checked.expected is not None else "-",
            f"{rank.gathers:,}",
            f"{rank.reduce_scatters:,}",
            _others(rank),
        )
        for rank in checked.ranks
    )
    shown = rows if verbose else rows[:_MOST_ROWS]
    columns = ("rank", "all-reduces", "replayed", "steps", "differ", "all-gathers", "reduce-scatters", "other steps")
    right = frozenset(columns[1:-1])
    more = [Line(f"{len(rows) - len(shown)} more ranks: --why shows them", "dim")] if len(shown) < len(rows) else []
    return [Table("What the trace holds", columns, shown, right), *more] if rows else []


def _others(rank: RankSeen) -> str:
    told = [f"{count} {name}" for name, count in rank.others.items()]
    if rank.outside:
        told.append(f"{rank.outside:,} all-reduces in no step")
    if rank.other_collectives:
        told.append(f"{rank.other_collectives:,} other collectives")
    return "; ".join(told) or "-"


def _kinds(checked: Checked, verbose: bool) -> list[Block]:
    """Kinds of step: all that were seen, where nothing was expected or all is asked for."""
    if checked.expected is not None and not verbose:
        return []
    rows = [
        (rank.label, str(kind.count), kind.phase, str(len(kind.ways)), _counts(kind))
        for rank in checked.ranks
        for kind in rank.kinds
    ]
    shown = rows if verbose else rows[:_MOST_ROWS]
    columns = ("rank", "steps", "phase", "calls a step", "ways")
    more = [Line(f"{len(rows) - len(shown)} more kinds of step: --why shows them", "dim")] if len(shown) < len(rows) else []
    return [Table("Kinds of step", columns, tuple(shown), _RIGHT, "ways"), *more] if rows else []


def _counts(kind: Compared) -> str:
    return ", ".join(f"{count} x {name}" for name, count in kind.full_counts.items())


def _times(checked: Checked, verbose: bool) -> list[Block]:
    rows: list[Sequence[str]] = [
        (
            row.way,
            row.phase,
            f"{row.calls:,}",
            f"{row.sum_us / 1000:.3g}",
            f"{row.median_us:.3g}",
            f"{row.least_us:.3g}",
            f"{row.most_us:.3g}",
        )
        for row in checked.times
    ]
    shown = rows if verbose else rows[:_MOST_ROWS]
    columns = ("way", "phase", "calls", "sum ms", "median us", "least", "most")
    title = "Kernels' times, measured in this trace (waiting for the last rank is in them, and what the profiler adds)"
    return [Table(title, columns, tuple(tuple(row) for row in shown), _RIGHT)] if rows else []


def _sources(checked: Checked) -> list[Block]:
    seen = {way for rank in checked.ranks for kind in rank.kinds for way in kind.ways}
    rows = sorted({(way.label, str(way.kind), way.source) for way in seen})
    page: list[Block] = [Table("Where kernels' names are read", ("kernel", "kind", "source"), tuple(rows))] if rows else []
    return [*page, Line(f"the table has {len(kernel_table())} rows; a name that none has is not counted", "dim")]
