"""What people see of history, bisect and matrix: the count in one line, then only what changed. Called by those results.

Invariant: the first line says how much was asked and how much of it changes; what a page leaves out, it counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._report.text import counted
from .changes import sizes_blocks
from .page import Block, Line, Page, Table, items, to_html, to_text
from .sizes import human_bytes

if TYPE_CHECKING:
    from .._proof.bisect import Bisect
    from .._proof.diff import Diff
    from .._proof.history import History, Row
    from .._proof.looks import Look, Route
    from .._proof.matrix import Matrix


# --------------------------------------------------------------------------------------------------------------------- history


def history_text(history: History) -> str:
    return to_text(history_page(history))


def history_html(history: History) -> str:
    return to_html(history_page(history))


def history_page(history: History, every: bool = False) -> Page:
    """The changes, oldest first; ``every``: a row for each release."""
    count = sum(1 for row in history.every if row.change)
    first, last = history.every[0].release, history.every[-1].release
    over = f"over {len(history.every)} releases ({first} to {last})"
    page: list[Block] = [Line(f"{_changes(count)} {over}: {history.subject}", "answer")]
    shown = history.every if every else history.rows
    rows = []
    for i, row in enumerate(shown):
        until = last if i + 1 == len(shown) else _before(history, shown[i + 1])
        span = row.release if row.release == until else f"{row.release} to {until}"
        rows.append((span, look_text(row.verify), look_text(row.prefill)))
    page.append(Table("", ("SGLang", *history.names), tuple(rows)))
    page += items("What did it", (text for row in history.rows for text in _reasons(history, row)))
    if history.level == "launch":
        row = history.every[-1]
        told = [
            f"{name}: {counted(look.tokens, 'token')}, {human_bytes(look.nbytes)}, {look.context} ({look.note})".replace(
                " ()", ""
            )
            for name, look in zip(history.names, (row.verify, row.prefill), strict=True)
        ]
        page += items(f"In {row.release}", told, "dim")
    page += items("Flags", history.notes, "warn")
    page += items("Assumed", history.assumed, "dim")
    return page


def _reasons(history: History, row: Row) -> list[str]:
    """``0.5.7, decode step: fusion ...``: one line for what changed by the same causes."""
    reasons: dict[str, list[str]] = {}
    for change in row.change:
        reasons.setdefault(change.because, []).append(history.names[change.what == "prefill"])
    return [f"{row.release}, {' and '.join(names)}: {why}" for why, names in reasons.items()]


def _changes(count: int) -> str:
    return "no change" if not count else "1 change" if count == 1 else f"{count} changes"


def _before(history: History, row: Row) -> str:
    names = [each.release for each in history.every]
    return names[names.index(row.release) - 1]


def look_text(look: Look) -> str:
    """``121 fused, 2 x custom (V2, one_shot_push), capture``."""
    if look.inputs.whole:
        return ", ".join(_range(route) for route in look.routes)
    parts = [f"{look.fused} fused"] if look.fused else []
    groups = len({route.group for route in look.routes}) > 1
    parts += [f"{r.count} x {r.outcome}" + (f" over {r.group}" if groups else "") for r in look.routes]
    if not parts:
        return look.note or "no all-reduce"
    return f"{', '.join(parts)}, {look.context}"


def _range(route: Route) -> str:
    if route.last_bytes >= 1 << 62:
        return f"then {route.outcome}" if route.first_bytes > 1 else f"{route.outcome} for every size"
    return f"{route.outcome} up to {human_bytes(route.last_bytes // 16 * 16)}"


# ---------------------------------------------------------------------------------------------------------------------- matrix


def matrix_text(matrix: Matrix) -> str:
    return to_text(matrix_page(matrix))


def matrix_html(matrix: Matrix) -> str:
    return to_html(matrix_page(matrix))


def matrix_page(matrix: Matrix, verbose: bool = False) -> Page:
    """How many launches change; each of them with its sizes, before and after."""
    count, where = len(matrix.entries), f"SGLang {matrix.a} to {matrix.b}"
    launches = "1 launch" if count == 1 else f"{count} launches"
    if not matrix:
        page: list[Block] = [Line(f"no route changes for {launches}, {where}", "answer")]
    else:
        page = [Line(f"{len(matrix.changed)} of {launches} change routes, {where}", "answer")]
    page += [Line(f"not judged: gate {gate}, whose code nobody knows", "warn") for gate in matrix.unknown]
    for entry in matrix.changed:
        machine = "".join(f"{name}={value} " for name, value in entry.machine.items())
        page.append(Line(f"line {entry.number}: {machine + ':: ' if machine else ''}{entry.launch}", "answer"))
        page += diff_blocks(entry.diff, verbose)
    return page


def diff_blocks(diff: Diff, verbose: bool = False) -> list[Block]:
    """What changes for one launch: its step, then sizes, ordinary tensors first."""
    return [*items("Each step", diff.step), *sizes_blocks(diff, verbose)[1:], *items("Not compared", diff.notes, "dim")]


# ---------------------------------------------------------------------------------------------------------------------- bisect


def bisect_text(bisect: Bisect) -> str:
    return to_text(bisect_page(bisect))


def bisect_html(bisect: Bisect) -> str:
    return to_html(bisect_page(bisect))


def bisect_page(bisect: Bisect, verbose: bool = False) -> Page:
    """The count, the commits that change something with what, and those that nobody can judge."""
    count, changing, unjudged = len(bisect.commits), len(bisect.changes), len(bisect.unjudged)
    parts = [f"{count - changing - unjudged} change nothing under your flags", f"{changing} do"]
    parts += [f"{unjudged} may, by code that nobody knows"] if unjudged else []
    commits = "1 commit" if count == 1 else f"{count} commits"
    page: list[Block] = [Line(f"{commits}: {'; '.join(parts)}", "answer")]
    text = f"of {bisect.total:,} in {bisect.range}, those that touch the dispatch, its gates or its defaults; {bisect.subject}"
    page.append(Line(f"{text}; read as SGLang {bisect.base} reads it", "dim"))
    page += [Line(note, "warn") for note in bisect.notes]
    page += [
        Line(f"gate {gate} was unknown from the start: its answers are those of {bisect.base}", "warn") for gate in bisect.unknown
    ]
    for commit in bisect.changes:
        page.append(Line(f"{commit.sha[:9]} {commit.date} {commit.subject}", "answer"))
        page.append(Line(f"by {', '.join(commit.touched)}", "dim"))
        if commit.diff is not None:
            page += diff_blocks(commit.diff, verbose)
        page += items("It may change, too", commit.may, "warn")
    may = [f"{commit.sha[:9]} {commit.date} {commit.subject}: may change: {'; '.join(commit.may)}" for commit in bisect.unjudged]
    page += items("Not judged", may, "warn")
    if verbose:
        page += items("Nothing changes", (str(commit) for commit in bisect.commits if commit.verdict == "nothing"), "dim")
    return page
