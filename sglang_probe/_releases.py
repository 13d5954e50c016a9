"""From what people write for a release to what the core knows: ``resolve("v0.5.9")``. Called by every public function.

Invariant: an unknown release is refused with the nearest known one named; it is never guessed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from . import _core
from ._shown import Shown
from ._types import InputError

RULESETS: tuple[str, ...] = tuple(row[0] for row in _core.rulesets())
RELEASES: tuple[str, ...] = tuple(row[0] for row in _core.releases())
_RULESET_OF: dict[str, str] = {row[0]: row[1] for row in _core.releases()}
_INDEX: dict[str, int] = {name: i for i, name in enumerate(RELEASES)}
COMMITS: tuple[str, ...] = tuple(name for name in RELEASES if re.fullmatch(r"[0-9a-f]{7,40}", name))
FIRST = "0.4.1.post7"
"""First release whose dispatch is SGLang's own."""


@dataclass(frozen=True)
class Release(Shown):
    """A revision of SGLang that the router can answer for."""

    name: str
    ruleset: str
    index: int
    """Row of the core's release table: which gates."""
    kind: Literal["release", "commit", "era", "installed", "checkout"] = "release"
    root: str | None = None
    """Where its source is, if it is at hand."""
    derived: bytes | None = field(default=None, repr=False)
    """Answers of its own dispatch over all states, where nobody tabulated it."""
    unknown_gates: tuple[str, ...] = ()
    """Gates whose code differs from every known one: their answers are those of the nearest release, and not to be trusted."""

    @property
    def rules(self) -> str:
        """Whose rules answer: the ruleset's name, or that it is the revision's own walk."""
        return f"derived, near {self.ruleset}" if self.derived is not None else self.ruleset

    @property
    def ruleset_index(self) -> int:
        return RULESETS.index(self.ruleset)


def newest() -> str:
    """The newest release that the tables hold."""
    return next(name for name in reversed(RELEASES) if name not in COMMITS)


def known_release(
    name: str, kind: Literal["release", "commit", "era", "installed"] = "release", root: str | None = None
) -> Release:
    return Release(name, _RULESET_OF[name], _INDEX[name], kind, root)


def nearest(version: str) -> str:
    """The known release that comes closest to a version: the last one that is not newer, or the first."""
    from packaging.version import InvalidVersion, Version

    try:
        wanted = Version(version)
    except InvalidVersion:
        return newest()
    older = [name for name in RELEASES if name not in COMMITS and Version(name) <= wanted]
    return max(older, key=Version) if older else FIRST


def _unknown(text: str, version: str) -> InputError:
    from packaging.version import InvalidVersion, Version

    try:
        before = Version(version) < Version(FIRST)
    except InvalidVersion:
        forms = f"a release ({FIRST} to {newest()}), a commit ({', '.join(COMMITS)}), an era (E1 to {RULESETS[-1]})"
        return InputError("sglang", text, f"not a known release: give {forms}, 'installed', or a checkout 'path@revision'")
    if before:
        whose = f"before {FIRST} SGLang had no all-reduce dispatch of its own in use: it ran vLLM's (E0)"
        return InputError("sglang", text, f"{whose}. The first release to ask for is {FIRST}")
    near = f"the nearest known release is {nearest(version)}"
    return InputError(
        "sglang", text, f"not a known release: {near}; `sglang-probe conform {version}` compares its own code with ours"
    )


def _era(text: str) -> Release | None:
    if text not in RULESETS:
        return None
    last = [name for name in RELEASES if _RULESET_OF[name] == text and name not in COMMITS]
    return known_release(last[-1], "era") if last else None


def _commit(text: str) -> Release | None:
    if not re.fullmatch(r"[0-9a-f]{7,40}", text):
        return None
    return next((known_release(c, "commit") for c in COMMITS if c.startswith(text) or text.startswith(c)), None)


@lru_cache(maxsize=256)
def _named(text: str) -> Release:
    version = text[1:] if text[:1] in ("v", "V") and text[1:2].isdigit() else text
    if version in _INDEX and version not in COMMITS:
        return known_release(version)
    found = _era(text) or _commit(text.lower())
    if found:
        return found
    raise _unknown(text, version)


def resolve(sglang: str | Release) -> Release:
    """A release (``"0.5.9"``, ``"v0.5.9"``), a known commit, an era (``"E10"``: its last release), ``"installed"`` or a checkout.

    Raises InputError, with the nearest known release named, for anything else.
    """
    if isinstance(sglang, Release):
        return sglang
    if not isinstance(sglang, str) or not sglang.strip():
        raise InputError("sglang", sglang, f"give a release, for instance {newest()!r}")
    text = sglang.strip()
    if text == "installed":
        from ._conform.derived import derive_installed

        return derive_installed()
    if os.sep in text or "@" in text or os.path.isdir(text):  # never kept: a checkout moves; what it costs is kept by its code
        from ._conform.derived import derive

        return derive(text)
    return _named(text)
