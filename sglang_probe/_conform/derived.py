"""A revision that nobody tabulated: its dispatch walked once into a table that the core reads. Called by `resolve` and by conform.

The table is kept in the cache under the hash of the code that made it. Where it equals a ruleset in every state and in every
condition beside the space, the ruleset answers instead, because rules can explain themselves.
Invariant: a gate whose code differs from every known one is named in `unknown_gates`; its answers are the nearest release's.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .. import _core
from .._releases import FIRST, RELEASES, RULESETS, Release
from .._source.checkout import open_checkout
from .._source.fetch import cache_dir, installed
from .._source.lift import Tree
from .._types import InputError
from .._versions import version_key
from .dispatch import FILE, METHODS, MSCCLPP_FILE, OPTIONAL, Dispatch
from .fingerprints import equal_releases
from .rules import Codes, compare_beside, derive_codes

_RULESET_OF = {row[0]: row[1] for row in _core.releases()}
_COLUMNS: Mapping[str, tuple[int, ...]] = {  # gate -> columns of the core's release table that say which generation it is
    "custom": (2, 3),
    "quick": (4,),
    "mscclpp": (5,),
    "torch_symm_mem": (6,),
    "flashinfer": (7,),
    "pcie_ipc": (8,),
    "cpu": (9,),
}
_ROWS = {row[0]: row for row in _core.releases()}


@dataclass(frozen=True)
class Derivation:
    """What a tree's code turned out to be."""

    table: bytes
    """Answers of every state, five bytes each, in the core's order."""
    ruleset: str
    """The ruleset that is equal, or the one that differs in the fewest states."""
    differing: int
    """States in which it differs; 0 where it is equal."""
    equal: bool
    """Equal in the whole space and beside it (kinds of device, the multi-node variable)."""
    gates: Mapping[str, tuple[str, ...]]
    """For each gate, the known releases whose code is the same; () where its code is unknown."""
    release: str
    """The known release whose gates come closest: it answers for the gates."""
    unknown: tuple[str, ...]
    """Gates that are not to be trusted: their code is unknown, or of another generation than the release that answers."""


def derive(text: str) -> Release:
    """The Release that ``"path/to/sglang@revision"``, a package on disk or a wheel is."""
    tree = open_checkout(text)
    check_first(tree, text)
    return _release(tree, text, "checkout")


def derive_installed() -> Release:
    """The Release that is installed for this Python. A known version is checked too: it may have been patched."""
    tree = Tree(installed())
    return _release(tree, tree.version or "installed", "installed")


def check_first(tree: Tree, text: str) -> None:
    """Refuse what is older than SGLang's own dispatch: its file was there before anything used it."""
    if tree.version and version_key(tree.version) < version_key(FIRST):
        raise InputError("sglang", text, f"version {tree.version} ran vLLM's dispatch; the first with its own is {FIRST}")


def _release(tree: Tree, name: str, kind: str) -> Release:
    found = derivation(tree)
    rules_answer = found.equal and _RULESET_OF[found.release] == found.ruleset
    # A tuple of rows cannot hold a table of its own: the core takes the derived one beside the release that answers for the gates.
    return Release(
        name,
        found.ruleset,
        RELEASES.index(found.release),
        "installed" if kind == "installed" else "checkout",
        tree.label,
        None if rules_answer else found.table,
        found.unknown,
    )


def derivation(tree: Tree) -> Derivation:
    """Walk a tree's dispatch, or take the walk of the same code from the cache, and say what it is like."""
    dispatch = Dispatch(tree)
    table = _cached(tree, dispatch)
    distance = {name: _distance(table, np.asarray(_core.walk(i), dtype=np.uint8)) for i, name in enumerate(RULESETS)}
    least = min(distance.values())
    near = [name for name in RULESETS if distance[name] == least]
    equal = [] if least else [n for n in near if not any(r.differences for r in compare_beside(dispatch, RULESETS.index(n)))]
    gates = equal_releases(tree)
    ruleset, release = _choose(equal or near, gates)
    strangers = tuple(sorted(dispatch.unknown))
    return Derivation(
        table.tobytes(), ruleset, least, bool(equal) and not strangers, gates, release, (*_untrusted(gates, release), *strangers)
    )


def _cached(tree: Tree, dispatch: Dispatch) -> Codes:
    code = "|".join(
        (tree.fingerprint(FILE, METHODS), tree.fingerprint(FILE, OPTIONAL), tree.fingerprint(MSCCLPP_FILE), *_lists())
    )
    path = cache_dir() / f"derived-{hashlib.sha256(code.encode()).hexdigest()[:24]}.bin"
    width = np.asarray(_core.walk(0)).shape[1]
    with contextlib.suppress(OSError, ValueError):
        held = path.read_bytes()
        _core.decide_derived(held, 0)  # refuses a table that is cut short or holds foreign codes
        # A stranger among the communicators is only found by walking.
        if not _asks_strangers(dispatch):
            return np.frombuffer(held, dtype=np.uint8).reshape(-1, width)
    table = derive_codes(dispatch)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs a walk, nothing else
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".derived-", delete=False) as part:
            part.write(table.tobytes())
        os.replace(part.name, path)
    return table


def _asks_strangers(dispatch: Dispatch) -> bool:
    """One state in which nobody takes the tensor asks every communicator that there is."""
    dispatch.device("cuda")
    return bool(dispatch.unknown)


def _lists() -> tuple[str, ...]:
    """What else a table depends on: our codes, and our reading of SGLang's code."""
    readers = (Path(__file__).with_name(name).read_text() for name in ("dispatch.py", "rules.py", "stand_ins.py"))
    return (*(repr([row[0] for row in rows]) for rows in (_core.PATHS, _core.RULES, _core.EXCEPTIONS)), *readers)


def _distance(theirs: Codes, ours: Codes) -> int:
    """States that differ; states that only one of the two has all do."""
    shared = min(len(theirs), len(ours))
    differing = int((theirs[:shared] != ours[:shared]).any(axis=1).sum())
    return differing + max(len(theirs), len(ours)) - shared


def _choose(rulesets: list[str], gates: Mapping[str, tuple[str, ...]]) -> tuple[str, str]:
    """The release whose gates are most alike; among equals one of these rulesets, then the newest."""

    def likeness(release: str) -> tuple[int, bool, int]:
        same = sum(release in equal for equal in gates.values())
        return same, _RULESET_OF[release] in rulesets, RELEASES.index(release)

    release = max(RELEASES, key=likeness)
    ruleset = _RULESET_OF[release] if _RULESET_OF[release] in rulesets else rulesets[-1]
    return ruleset, release


def _untrusted(gates: Mapping[str, tuple[str, ...]], release: str) -> tuple[str, ...]:
    def generation(gate: str, name: str) -> tuple[object, ...]:
        return tuple(_ROWS[name][column] for column in _COLUMNS.get(gate, ()))

    return tuple(g for g, equal in gates.items() if all(generation(g, e) != generation(g, release) for e in equal))
