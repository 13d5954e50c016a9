"""bisect: the commits of a checkout that touch the dispatch, its gates or its defaults, and those that change a launch's routes. Public.

    git log -> commits -> Judge (rules, gates, settings) -> diff of the worker before and after -> Bisect

Invariant: a commit that nobody can judge is counted as such, with what it changes; "nothing" is said only of what was compared.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .. import _core
from .._conform.derived import derive
from .._releases import RELEASES
from .._report.text import without_secrets
from .._types import Group, InputError, Model, Server
from .commits import Commit, commits_between, open_range
from .diff import Diff
from .judge import Judge, Judgement, trees, watched

Verdict = Literal["nothing", "changes", "may change"]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Judged:
    """One commit, and what it does to the routes."""

    sha: str
    date: str
    subject: str
    touched: tuple[str, ...]
    diff: Diff | None
    may: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        if self.diff:
            return "changes"
        return "may change" if self.may else "nothing"

    def __str__(self) -> str:
        return f"{self.sha[:9]} {self.date} {self.subject}: {self.verdict}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "commit": self.sha,
            "date": self.date,
            "subject": self.subject,
            "verdict": self.verdict,
            "touched": list(self.touched),
            "may": list(self.may),
            "diff": self.diff.to_dict() if self.diff is not None else None,
        }


@dataclass(frozen=True)
class Bisect:
    """The commits between two revisions; true where one changes a route, or may."""

    range: str
    subject: str
    total: int
    """All commits between, along first parents."""
    commits: tuple[Judged, ...]
    """Those that touch a file which decides routes, oldest first."""
    base: str
    """The known release that the launch was read with: the nearest to GOOD."""
    unknown: tuple[str, ...] = ()
    """Gates of GOOD whose code nobody knows."""
    notes: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[Judged, ...]:
        return tuple(commit for commit in self.commits if commit.verdict == "changes")

    @property
    def unjudged(self) -> tuple[Judged, ...]:
        return tuple(commit for commit in self.commits if commit.verdict == "may change")

    def __bool__(self) -> bool:
        return bool(self.changes or self.unjudged)

    def __len__(self) -> int:
        return len(self.commits)

    def __iter__(self) -> Iterator[Judged]:
        return iter(self.commits)

    def __str__(self) -> str:
        from .._show.history import bisect_text

        return bisect_text(self)

    def __repr__(self) -> str:
        return f"<Bisect: {len(self.commits)} commits, {len(self.changes)} change routes, {len(self.unjudged)} may>"

    def _repr_html_(self) -> str:
        from .._show.history import bisect_html

        return bisect_html(self)

    def to_dict(self) -> dict[str, Any]:
        return {
            "range": self.range,
            "subject": self.subject,
            "total": self.total,
            "touching": len(self.commits),
            "changing": len(self.changes),
            "unjudged": len(self.unjudged),
            "base": self.base,
            "unknown_gates": list(self.unknown),
            "notes": list(self.notes),
            "commits": [commit.to_dict() for commit in self.commits if commit.verdict != "nothing"],
        }


def bisect(
    checkout: str | os.PathLike[str],
    commits: str,
    *,
    launch: str | None = None,
    group: Group | None = None,
    gpu: str | None = None,
    link: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    env: Mapping[str, str] | None = None,
    model: str | Model | None = None,
    progress: Progress | None = None,
) -> Bisect:
    """Which commits of ``"GOOD..BAD"`` change the routes of a launch line, or of a group?

    Every commit that touches the dispatch, its gates or its defaults is held against its parent: the dispatch by running it over all
    states, gates by the hash of their code, defaults by what the files declare. Where code is known to no release, the commit *may*
    change something, and is listed so. Merges are one commit each. ``progress`` is called with a text for each commit.

    Raises InputError for a folder that is no git checkout, a bad or empty range, and a launch that no server starts from.
    """
    if (launch is None) == (group is None):
        raise InputError("launch", launch, "give a launch line or a group" + (", not both" if group is not None else ""))
    report = progress or (lambda _text: None)
    span = open_range(os.fspath(checkout), commits)
    for _tree in trees(span):
        pass
    base = derive(f"{span.checkout}@{span.good}")
    name = RELEASES[base.index]
    machine = {"gpu": gpu, "link": link, "nodes": nodes, "gpus": gpus, "env": env, "model": model}
    server: Server | None = None
    reread: Callable[[list[str]], Server] | None = None
    if launch is not None:
        from ..launch import read_launch

        line = launch

        def read_again(flags: list[str]) -> Server:
            return read_launch(" ".join([line, *map(shlex.quote, flags)]), sglang=name, **machine)  # type: ignore[arg-type] # one keyword each

        reread = read_again
        server = read_again([])
    else:
        stray = next((key for key, value in machine.items() if value is not None), None)
        if stray:
            raise InputError(stray, machine[stray], "a group holds its own facts; this belongs to a launch line")
    judge = Judge(span, base, server, group, reread)
    cpu = any(one.value("device") == _core.DEVICES.index("cpu") for one in judge._groups().values())
    total, touching = commits_between(span, watched(cpu))
    judged = []
    for i, commit in enumerate(touching):
        report(f"{i + 1} of {len(touching)}: {commit.sha[:9]} {commit.subject}")
        judged.append(_judged(commit, judge.commit(commit)))
    subject = without_secrets(launch) if launch is not None else "the group"
    return Bisect(commits, subject, total, tuple(judged), name, base.unknown_gates, (span.note,) if span.note else ())


def _judged(commit: Commit, judgement: Judgement) -> Judged:
    return Judged(commit.sha, commit.date, commit.subject, judgement.touched, judgement.diff, judgement.may)


__all__ = ["Bisect", "Judged", "bisect"]
