"""Order of SGLang's releases, for what changes at a release outside the dispatch. Called by the call counter, fusion and the cycle.

Invariant: a name that is no release (a checkout) counts as newer than all: what was true of the newest release is assumed of it.
"""

from __future__ import annotations

import re
from functools import lru_cache

_RELEASE = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?(?:\.post(\d+))?$")
_FINAL = 1 << 30
_NEWEST = (_FINAL,) * 5
# The two commits that have a name of their own: models, layers and fusion are v0.5.9's there, word for word.
_COMMITS = {"bba2fc4": "0.5.9", "0be30d4": "0.5.9"}

Key = tuple[int, int, int, int, int]


@lru_cache(maxsize=512)
def version_key(name: str) -> Key:
    """A key that sorts releases: 0.5.9rc1 < 0.5.9 < 0.5.9.post1 < 0.5.10."""
    found = _RELEASE.match(next((base for prefix, base in _COMMITS.items() if name.startswith(prefix)), name))
    if found is None:
        return _NEWEST
    major, minor, patch, candidate, post = found.groups()
    return int(major), int(minor), int(patch), _FINAL if candidate is None else int(candidate), int(post or 0)


def at_least(name: str, release: str) -> bool:
    """Whether ``name`` is ``release`` or later."""
    return version_key(name) >= version_key(release)
