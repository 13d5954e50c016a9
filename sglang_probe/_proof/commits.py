"""The commits of a checkout that touch what decides a route, with the files that each of them changes. Called by bisect.

Invariant: a commit is held against its first parent, both by full hash; nothing is checked out, nothing in the repository is written.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .._source.checkout import _commit as commit_of
from .._source.lift import Tree
from .._types import InputError

_NO_FILE = "0" * 40


@dataclass(frozen=True)
class FileChange:
    """One file that a commit changes: blob before and after, "" where there is none."""

    path: str
    """Relative to the package."""
    old: str
    new: str


@dataclass(frozen=True)
class Commit:
    sha: str
    parent: str
    date: str
    subject: str
    files: tuple[FileChange, ...]


@dataclass(frozen=True)
class Range:
    """GOOD..BAD of one checkout, resolved."""

    checkout: Path
    good: str
    """GOOD itself, or where its branch left BAD's."""
    bad: str
    prefix: str
    """Where the package lies: ``python/sglang/``."""
    note: str = ""
    """Where GOOD is no ancestor of BAD: what is walked instead."""

    def tree(self, sha: str) -> Tree:
        return Tree(self.checkout, sha)

    def text(self, blob: str) -> str:
        return blob_text(self.checkout, blob) if blob else ""


@lru_cache(maxsize=64)
def blob_text(checkout: Path, blob: str) -> str:
    """The text of a blob; a few are kept, because what one commit leaves the next one finds."""
    return git(checkout, "cat-file", "blob", blob)


def git(checkout: Path, *arguments: str) -> str:
    """What git says; ProbeError's InputError with its own words where it refuses."""
    run = subprocess.run(["git", "-C", str(checkout), *arguments], capture_output=True, check=False)
    if run.returncode != 0:
        said = run.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason"]
        raise InputError("checkout", str(checkout), f"git {arguments[0]} failed: {said[-1][:200]}")
    return run.stdout.decode("utf-8", "replace")


def open_range(checkout: str | Path, text: str) -> Range:
    """``"GOOD..BAD"`` of a git checkout. InputError says what is wrong with either."""
    path = Path(checkout).expanduser()
    good, dots, bad = text.partition("..")
    if not dots or not good.strip() or bad.startswith("."):
        raise InputError("range", text, 'give two revisions as "GOOD..BAD"')
    if shutil.which("git") is None:
        raise InputError("checkout", str(checkout), "git is not installed, so commits cannot be walked")
    if not path.is_dir():
        raise InputError("checkout", str(checkout), f"{path} is no folder; give the path of a git checkout of SGLang")
    ends = [commit_of(f"{path}@{end}", path, end.strip()) for end in (good, bad or "HEAD")]
    if ends[0] == ends[1]:
        raise InputError("range", text, "an empty range: both name the same commit")
    merge_base = ["git", "-C", str(path), "merge-base", *ends]
    base = subprocess.run(merge_base, capture_output=True, text=True, check=False).stdout.strip()
    if not base:
        raise InputError("range", text, f"{good} and {bad or 'HEAD'} have no commit in common")
    if base == ends[1]:
        raise InputError("range", text, f"{bad or 'HEAD'} is older than {good}; give the older revision first")
    note = ""
    if base != ends[0]:  # release tags lie on branches of their own
        own = git(path, "rev-list", "--count", f"{base}..{ends[0]}").strip()
        if int(own) > int(git(path, "rev-list", "--count", f"{base}..{ends[1]}")):
            raise InputError(
                "range", text, f"{good} has more commits of its own than {bad or 'HEAD'}: give the older revision first"
            )
        note = f"{good} is on a branch: walked from {base[:9]}, where it left; its own {own} commits are not looked at"
    tree = Tree(path, base)
    return Range(path, base, ends[1], tree._prefix, note)


def commits_between(span: Range, paths: Iterable[str]) -> tuple[int, tuple[Commit, ...]]:
    """How many commits lie between, and those that touch any of these files or folders, oldest first; along first parents."""
    between = f"{span.good}..{span.bad}"
    count = int(git(span.checkout, "rev-list", "--first-parent", "--count", between))
    specs = [f":(top,literal){span.prefix}{path}" for path in paths]
    raw = ["--first-parent", "-m", "--reverse", "--raw", "--no-abbrev", "--no-renames", "-z"]
    # \x01 starts a commit; with -z every field of a file ends with \0
    text = git(span.checkout, "log", *raw, "--format=%x01%H%x02%P%x02%cs%x02%s%x02", between, "--", *specs)
    return count, tuple(_parse(block, span.prefix) for block in text.split("\x01") if block.strip("\0\n "))


def _parse(block: str, prefix: str) -> Commit:
    sha, parents, date, subject, rest = block.split("\x02", 4)
    files = []
    fields = rest.strip("\0\n").split("\0")
    for head, path in zip(fields[::2], fields[1::2], strict=False):
        parts = head.strip().lstrip(":").split(" ")
        old, new = ("" if blob == _NO_FILE else blob for blob in parts[2:4])
        files.append(FileChange(path.removeprefix(prefix), old, new))
    return Commit(sha, parents.split(" ")[0], date, subject, tuple(files))
