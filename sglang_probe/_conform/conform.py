"""conform: this model against SGLang's own code, state by state. The command `sglang-probe conform` and the tests call it.

It takes SGLang's dispatch, gates and defaults out of a package or checkout, runs them on stand-ins, and compares every answer.
Invariant: nothing passes by default: a part that could not be run is a difference, and what is not Python is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .._releases import COMMITS, FIRST, RELEASES, RULESETS, known_release, resolve
from .._source import fetch as _fetch
from .._source.checkout import is_checkout, open_checkout
from .._source.lift import LiftError, Tree
from .._types import InputError
from .._versions import version_key
from . import flags
from .derived import Derivation, check_first, derivation
from .fingerprints import GATE_CODE, gate_fingerprints, known
from .rules import compare_rules
from .types import Result, merge

_SHOWN = 12
_HASHES = "hashes of the gates' code"


@dataclass
class Report:
    """What was compared with one revision of SGLang, or with all releases (`parts`)."""

    sglang: str
    release: str
    """The known release whose tables were held against it."""
    ruleset: str
    results: list[Result] = field(default_factory=list)
    parts: list[Report] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def compared(self) -> int:
        return sum(r.compared for r in self.results) + sum(p.compared for p in self.parts)

    @property
    def differences(self) -> list[str]:
        own = [f"{r.name}: {d}" for r in self.results for d in r.differences]
        return own + [f"{p.sglang}: {d}" for p in self.parts for d in p.differences]

    @property
    def not_conformed(self) -> list[str]:
        """What could not be compared, because it is not Python in the package or is computed there."""
        every = [n for r in self.results for n in r.not_conformed] + [n for p in self.parts for n in p.not_conformed]
        return list(dict.fromkeys(every))

    @property
    def ok(self) -> bool:
        return self.compared > 0 and not self.differences

    def to_dict(self) -> dict[str, Any]:
        return {
            "sglang": self.sglang,
            "release": self.release,
            "ruleset": self.ruleset,
            "ok": self.ok,
            "compared": self.compared,
            "differences": self.differences,
            "not_conformed": self.not_conformed,
            "notes": list(self.notes),
            "results": [r.to_dict() for r in self.results],
            "parts": [p.to_dict() for p in self.parts],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        verdict = "no difference" if self.ok else f"{len(self.differences)} differences" if self.compared else "nothing compared"
        yield f"sglang {self.sglang} against {self.ruleset or 'every ruleset'}: {self.compared:,} answers compared, {verdict}"
        yield from (f"  note: {note}" for note in self.notes)
        for r in self.results:
            yield f"  {r.name}: {r.compared:,} compared, {len(r.differences)} differ"
            yield from (f"    {d}" for d in r.differences[:_SHOWN])
            if len(r.differences) > _SHOWN:
                yield f"    and {len(r.differences) - _SHOWN} more"
        for part in self.parts:
            yield f"  {part.sglang} ({part.ruleset}): {part.compared:,} compared, {len(part.differences)} differ"
            yield from (f"    {d}" for d in part.differences[:_SHOWN])
        if self.not_conformed:
            yield "  not conformed (not Python in the package, or computed there):"
            yield from (f"    {n}" for n in self.not_conformed)

    def _repr_html_(self) -> str:
        from .._show.page import to_html
        from .._show.render import conform_page

        return to_html(conform_page(self))


def conform(sglang_or_path: str, *, progress: Callable[[str], None] | None = None) -> Report:
    """Compare this model with SGLang's own code.

    ``sglang_or_path`` is a release (fetched from the package index once and cached), ``"installed"``, a checkout
    (``"path/to/sglang@revision"``), a package or wheel on disk, an era (its last release) or ``"all"``. A release that is not
    tabulated yet, and a checkout, are held against the ruleset that comes closest.

    Raises InputError for what is none of these, ProbeUnavailable where the index cannot be reached.
    """
    if not isinstance(sglang_or_path, str):
        raise InputError("sglang", sglang_or_path, 'give a release, a checkout, "installed" or "all"')
    text = sglang_or_path.strip()
    if text == "all":
        return _conform_all(progress)
    tell = progress or (lambda _text: None)
    tree, name = _open(text, tell)
    if name is not None:
        return conform_tree(tree, name, sglang=text, progress=tell)
    found = derivation(tree)
    report = conform_tree(tree, found.release, sglang=text, ruleset=found.ruleset, progress=tell)
    report.results = [r for r in report.results if r.name != _HASHES]  # the notes say which release each gate equals
    report.notes += _notes(found)
    return report


def conform_tree(
    tree: Tree, release: str, *, sglang: str = "", ruleset: str = "", progress: Callable[[str], None] = lambda _text: None
) -> Report:
    """Compare one tree with the tables of a known release."""
    ruleset = ruleset or known_release(release).ruleset
    report = Report(sglang or release, release, ruleset)
    for name, compare in _comparisons(ruleset).items():
        progress(f"{report.sglang}: {name}")
        try:
            found = compare(tree, release)
        except LiftError as error:  # code that cannot be run is not code that agrees
            found = Result(name, 0, [f"SGLang's code could not be run: {error}"])
        report.results += found if isinstance(found, list) else [found]
    return report


def _comparisons(ruleset: str) -> Mapping[str, Callable[[Tree, str], Result | list[Result]]]:
    from .custom import compare_custom
    from .others import compare_others

    return {
        "dispatch": lambda tree, _release: compare_rules(tree, ruleset),
        "custom all-reduce": compare_custom,
        "other communicators": compare_others,
        "defaults": flags.compare_flags,
        "code of the gates": compare_fingerprints,
    }


def compare_fingerprints(tree: Tree, release: str) -> Result:
    """The hashes of the gates' code that we hold for a release, against its package."""
    result, table = Result(_HASHES), known()
    for gate, digest in gate_fingerprints(tree).items():
        held = next((h for h, releases in table[gate].items() if release in releases), None)
        result.compared += 1
        if digest != held:
            same = table[gate].get(digest, ())
            result.differences.append(
                f"{gate}: " + (f"its code is that of {same[0]} to {same[-1]}" if same else "its code is unknown")
            )
    return result


def _open(text: str, progress: Callable[[str], None]) -> tuple[Tree, str | None]:
    """The tree that a text names, and its name where the tables hold that very release."""
    if text == "installed":
        tree = Tree(_fetch.installed())
        return tree, tree.version if tree.version in RELEASES else None
    if is_checkout(text):
        tree = open_checkout(text)
        check_first(tree, text)
        return tree, tree.version if tree.revision is None and tree.version in RELEASES else None
    version = text.removeprefix("v")
    if version in RULESETS:
        version = [n for n in RELEASES if known_release(n).ruleset == version and n not in COMMITS][-1]
    if version_key(version) < version_key(FIRST):
        resolve(version)  # refuses it, and says whose dispatch that was
    if any(version.lower().startswith(c) or c.startswith(version.lower()) for c in COMMITS if len(version) >= 7):
        raise InputError("sglang", text, f"a commit is not on the package index; give a checkout: path/to/sglang@{text}")
    tree = Tree(_fetch.fetch(version, progress))
    return tree, version if version in RELEASES else None


def _notes(found: Derivation) -> list[str]:
    notes = [
        f"held against {found.ruleset}, which "
        + ("is equal in every state" if found.differing == 0 else f"differs in {found.differing:,} states, fewer than any other")
        + f"; gates against {found.release}"
    ]
    for gate in GATE_CODE:
        same = found.gates[gate]
        text = f"the code of {_span(same)}" if same else "unknown: its code equals no known release's"
        notes.append(f"gate {gate}: " + ("not there" if same and same == known()[gate].get("") else text))
    return notes + [f"gate {name}: unknown here" for name in found.unknown if name not in GATE_CODE]


def _span(releases: tuple[str, ...]) -> str:
    return releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"


def _conform_all(progress: Callable[[str], None] | None) -> Report:
    """Every release of the tables; the named commits need a checkout and are left out, which the report says."""
    report = Report("all", "", "")
    for name in RELEASES:
        if name in COMMITS:
            report.notes.append(f"{name}: a commit, not on the package index; conform path/to/sglang@{name}")
            continue
        one = conform(name, progress=progress)
        one.results = [merge(name, one.results)]
        report.parts.append(one)
    return report
