"""SGLang on disk: "path/to/sglang@revision", a plain path, or a wheel. Called by conform, the derived tables and `resolve`.

Invariant: a revision is resolved to its full commit before anything is read, so one tree is one commit even while branches move.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from .._types import InputError
from .lift import Tree


def is_checkout(text: str) -> bool:
    """Whether this names a place on disk and not a release, commit or era."""
    return "/" in text or "\\" in text or "@" in text or text.startswith(("~", ".")) or text.endswith(".whl")


def open_checkout(text: str) -> Tree:
    """The tree that "path@revision" or a path names. InputError says what is wrong with either."""
    path, revision = _split(text)
    if not path.exists():
        raise InputError("sglang", text, f"{path} does not exist; give the path of a checkout, a package or a wheel")
    if revision is None:
        return Tree(path)
    if not path.is_dir():
        raise InputError("sglang", text, f"{path} is a file; a revision needs a git checkout")
    return Tree(path, _commit(text, path, revision))


def _split(text: str) -> tuple[Path, str | None]:
    """Paths and revisions may both hold an @: the path is the shortest part before one that exists."""
    whole = Path(text).expanduser()
    if whole.exists() or "@" not in text:
        return whole, None
    cuts = [i for i, c in enumerate(text) if c == "@"]
    for cut in cuts:
        if text[:cut] and Path(text[:cut]).expanduser().exists():
            return Path(text[:cut]).expanduser(), text[cut + 1 :]
    return Path(text[: cuts[-1]] or ".").expanduser(), text[cuts[-1] + 1 :]


def _commit(text: str, path: Path, revision: str) -> str:
    if not revision:
        raise InputError("sglang", text, "nothing stands after the @; name a branch, tag or commit")
    git = shutil.which("git")
    if git is None:
        raise InputError("sglang", text, "git is not installed, so a revision cannot be read; give a plain path")
    inside = subprocess.run([git, "-C", str(path), "rev-parse", "--git-dir"], capture_output=True, text=True, check=False)
    if inside.returncode != 0:
        said = inside.stderr.strip().splitlines() or ["git gave no reason"]
        raise InputError("sglang", text, f"{path} is not a git checkout that git will read ({said[0]})")
    command = [git, "-C", str(path), "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    commit = found.stdout.strip().splitlines()[-1:]
    if found.returncode != 0 or not commit:
        raise InputError("sglang", text, f"{path} has no revision {revision}; fetch it first, or see git -C {path} tag")
    return commit[0]
