"""What one commit does to a launch's routes: rules, gates and settings before and after it. Called by bisect, commit after commit.

Only what the commit changes moves: the launch is read once, in the release nearest to GOOD, and each commit's rules, gates and
defaults are put in the place of the ones before. Invariant: code that nobody knows is named in ``may``; it is never taken for the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from .. import _core
from .._conform.derived import _COLUMNS, derive
from .._conform.dispatch import FILE, METHODS, MSCCLPP_FILE, OPTIONAL
from .._conform.fingerprints import GATE_CODE, known
from .._conform.flags import COMPUTED, VARIABLES
from .._facts import pack_call, pack_facts
from .._releases import RELEASES, Release
from .._route import context_bits
from .._server.defaults import ABSENT
from .._source.lift import LiftError, Tree, fingerprint
from .._types import Call, Fact, Group, InputError, Server
from .commits import Commit, FileChange, Range
from .diff import Diff, diff_workers
from .looks import table_of
from .settings import ARGUMENTS, ENVIRONMENT, Settings, changed_defaults, changed_setters, reducing_code, settings_of
from .worker import Worker, worker_of_group, worker_of_server

FUSION = (
    "srt/layers/flashinfer_comm_fusion.py",
    "srt/layers/communicator.py",
    "srt/layers/layernorm.py",
    "srt/layers/communication/",
    "srt/layers/layer_boundary",
)
PIECEWISE = (
    "srt/compilation/piecewise_context_manager.py",
    "srt/model_executor/runner_backend_utils/tc_piecewise_cuda_graph/context_manager.py",
)
_DISPATCH = ((FILE, METHODS), (FILE, OPTIONAL), (MSCCLPP_FILE, ()))
_ROWS = _core.releases()
_ABSENT = _core.STATES.index("absent")
_FIXED_STOPS = sum(1 << i for i, (name, _, _) in enumerate(_core.STOPS) if name in ("not_owned", "device"))
_BUILT = ("own_custom", "own_pynccl", "own_mscclpp", "own_torch_symm_mem", "own_pcie_ipc", "captured")


def watched(cpu: bool) -> tuple[str, ...]:
    """Files and folders that decide routes. Helpers that only CPU servers ask are left out for others: they lie in large files."""
    gates = (file for gate, code in GATE_CODE.items() if cpu or gate != "cpu" for file, _ in code)
    return tuple(dict.fromkeys((FILE, *gates, *ARGUMENTS, ENVIRONMENT, *FUSION, *PIECEWISE)))


@dataclass(frozen=True)
class Judgement:
    """What a commit does to the routes."""

    diff: Diff | None
    """None where nothing that decides a route is another."""
    may: tuple[str, ...]
    """What it may change, as far as nobody can say."""
    touched: tuple[str, ...]
    """Which parts it changes in their code: dispatch, gate custom, ..."""


@dataclass
class Judge:
    """The state of the routes, moved on by each commit."""

    span: Range
    release: Release
    server: Server | None
    group: Group | None
    reread: Callable[[list[str]], Server] | None = None
    """The launch with some flags more."""

    def __post_init__(self) -> None:
        self.flags: list[str] = []
        self.rules = self.release
        self.unknown = dict.fromkeys(self.release.unknown_gates, "GOOD")

    # ---------------------------------------------------------------------------------------------------------------- a commit

    def commit(self, commit: Commit) -> Judgement:
        """Move on by one commit, and say what it changes."""
        may: list[str] = []
        touched: list[str] = []
        before = self._worker()
        name = commit.sha[:9]
        gates = [gate for gate in GATE_CODE if self._changes(commit, GATE_CODE[gate])]
        moved = False
        if self._changes(commit, _DISPATCH):
            touched.append("dispatch")
            moved |= self._dispatch(commit, may)
        for gate in gates:
            touched.append("how groups are built" if gate == "group" else f"gate {gate}")
            moved |= self._gate(commit, gate, set(gates), may)
        for file in commit.files:
            if file.path == ENVIRONMENT or file.path.startswith(ARGUMENTS):
                moved |= self._settings(file, touched, may)
        self._layers(commit, before, touched, may)
        self.release = self._compose(name)
        if not moved:
            return Judgement(None, tuple(may), tuple(dict.fromkeys(touched)))
        try:
            found = diff_workers(before, self._worker(), None)
        except ValueError as error:  # a state that a table of an unknown dispatch does not hold
            return Judgement(None, (*may, f"its rules cannot be asked: {error}"), tuple(dict.fromkeys(touched)))
        return Judgement(replace(found, level="launch" if self.server else "group"), tuple(may), tuple(dict.fromkeys(touched)))

    def _worker(self) -> Worker:
        if self.group is not None:
            return worker_of_group(self.group, self.release)
        assert self.server is not None
        return worker_of_server(self.server, self.release)

    def _compose(self, name: str) -> Release:
        """These rules with those gates."""
        same = self.rules.derived is None and _ROWS[self.release.index][1] == self.rules.ruleset
        table = None if same else table_of(self.rules)
        return Release(name, self.rules.ruleset, self.release.index, "checkout", None, table, tuple(sorted(self.unknown)))

    def _changes(self, commit: Commit, code: tuple[tuple[str, tuple[str, ...]], ...]) -> bool:
        """Whether a commit changes this code, comments and the like apart."""
        files = {file.path: file for file in commit.files}
        return any(file in files and self._differ(files[file], names) for file, names in code)

    def _differ(self, file: FileChange, names: tuple[str, ...]) -> bool:
        return self._print(file.old, names) != self._print(file.new, names)

    def _print(self, blob: str, names: tuple[str, ...]) -> str:
        try:
            return fingerprint(self.span.text(blob), names, blob) if blob else ""
        except LiftError as error:  # this Python cannot read it
            return str(error)

    # ------------------------------------------------------------------------------------------------------------------- rules

    def _dispatch(self, commit: Commit, may: list[str]) -> bool:
        try:
            found = derive(f"{self.span.checkout}@{commit.sha}")
        except (LiftError, InputError) as error:
            may.append(f"the dispatch, which cannot be run here: {error}")
            return False
        own = sorted(set(found.unknown_gates) - set(GATE_CODE))
        if own:
            may.append(f"the dispatch asks {', '.join(own)}, which nobody knows")
        self.rules = found
        return True

    # ------------------------------------------------------------------------------------------------------------------- gates

    def _gate(self, commit: Commit, gate: str, changed: set[str], may: list[str]) -> bool:
        if self._idle(gate):
            return False
        equal = self._equal(commit, gate)
        name = "how groups are built" if gate == "group" else f"gate {gate}"
        if not equal:
            self.unknown.setdefault(gate, commit.sha[:9])
            may.append(f"{name} has code nobody knows")
            return False
        if gate == "group":
            return self._built(equal, may)
        since = self.unknown.pop(gate, "")
        if not _COLUMNS.get(gate):
            return False

        def generation(row: tuple[Any, ...], of: str) -> tuple[Any, ...]:
            return tuple(row[column] for column in _COLUMNS.get(of, ()))

        wanted = {generation(_ROWS[RELEASES.index(release)], gate) for release in equal}
        here = _ROWS[self.release.index]
        if generation(here, gate) in wanted:
            return False
        others = [other for other in _COLUMNS if other not in changed]
        fits = [
            i
            for i, row in enumerate(_ROWS)
            if generation(row, gate) in wanted and all(generation(row, other) == generation(here, other) for other in others)
        ]
        if not fits:
            may.append(f"{name} is as in {_span(equal)}, which no known release has together with the other gates of this commit")
            return False
        self.release = replace(self.release, index=min(fits, key=lambda i: abs(i - self.release.index)))
        if since:
            may.append(
                f"{name} was unknown since {since}: what is told here as this commit's may be that one's, or one's in between"
            )
        return True

    def _equal(self, commit: Commit, gate: str) -> tuple[str, ...]:
        tree = self.span.tree(commit.sha)
        try:
            digest = "+".join(filter(None, (tree.fingerprint(file, names) for file, names in GATE_CODE[gate])))
        except LiftError:
            return ()
        return known().get(gate, {}).get(digest, ())

    def _idle(self, gate: str) -> bool:
        """Whether no group has it, whatever its code says: the flags or the kind of device keep it away."""
        if gate not in _core.GATES:
            return False
        code = _core.GATES.index(gate)
        call = pack_call(Call(nbytes=16384))
        for group in self._groups().values():
            state, *_, stops = _core.gate(self.release.index, code, pack_facts(group), call, context_bits("eager"))[:5]
            if state != _ABSENT or not stops & _FIXED_STOPS:
                return False
        return True

    def _groups(self) -> Mapping[str, Group]:
        if self.group is not None:
            return {self.group.name: self.group}
        assert self.server is not None
        return self.server.groups

    def _built(self, equal: tuple[str, ...], may: list[str]) -> bool:
        """Groups are built as in other releases: with what those build them."""
        if self.server is None or self.reread is None:
            return False
        if self.server.sglang in equal:
            return False
        may.append(
            f"how groups are built is as in {_span(equal)}, not as in {self.server.sglang}, whose defaults the launch was read with"
        )
        return False

    # ---------------------------------------------------------------------------------------------------------------- settings

    def _settings(self, file: FileChange, touched: list[str], may: list[str]) -> bool:
        arch = self.server.model.arch if self.server is not None and self.server.model is not None else ""
        old, new = (settings_of(file.path, self.span.text(blob), arch) for blob in (file.old, file.new))
        moved = False
        for name, (was, now) in changed_defaults(old, new).items():
            touched.append(f"default of {name}")
            moved |= self._default(file.path, name, was, now, may)
        for name in changed_setters(old, new) if file.old else ():
            touched.append(f"what sets {name}")
            if self.server is not None:
                may.append(f"what sets --{name.replace('_', '-')} has code nobody knows ({file.path})")
        if not file.old:
            moved |= self._new_file(file, new, may)
        return moved

    def _new_file(self, file: FileChange, new: Settings, may: list[str]) -> bool:
        if new.setters and self.server is not None:
            may.append(f"{file.path} is new, and sets {', '.join(sorted(new.setters))}")
        return False

    def _default(self, path: str, name: str, was: Any, now: Any, may: list[str]) -> bool:
        if path == ENVIRONMENT:
            return self._variable(name, now, may)
        if self.server is None:
            return False
        setting = self.server.args.get(name)
        if setting is not None and setting.origin in ("given", "found"):
            return False
        flag = "--" + name.replace("_", "-")
        told = f"the default of {flag}, {was!r} -> {now!r}"
        words = _as_flags(flag, now)
        if words is None or self.reread is None:
            may.append(told)
            return False
        try:
            server = self.reread([*self.flags, *words])
        except InputError:
            may.append(told)
            return False
        if any(note.startswith(f"{flag}: unknown") for note in server.notes):
            may.append(f"{told}, an argument that SGLang {server.sglang} does not have")
            return False
        self.flags += words
        self.server = server
        return True

    def _variable(self, name: str, now: Any, may: list[str]) -> bool:
        fact = VARIABLES[name]
        value = -1 if now is None else now
        if now is COMPUTED or not isinstance(value, (bool, int)):
            may.append(f"the default of {name}, which is computed")
            return False
        moved = False

        def changed(group: Group) -> Group:
            nonlocal moved
            known_fact = group.facts.get(fact)
            if known_fact is not None and known_fact.origin == "given" and name in known_fact.source:
                return group
            moved = moved or group.value(fact) != int(value)
            facts = {**group.facts, fact: Fact(int(value), "given", f"the default of {name}")}
            return replace(group, facts=MappingProxyType(facts))

        if self.group is not None:
            self.group = changed(self.group)
        elif self.server is not None:
            self.server = replace(
                self.server, groups=MappingProxyType({key: changed(group) for key, group in self.server.groups.items()})
            )
        return moved

    # ------------------------------------------------------------------------------------------------------------------ layers

    def _layers(self, commit: Commit, worker: Worker, touched: list[str], may: list[str]) -> None:
        """Fusion and the piecewise flag: read by people, not walked. Where the server uses neither, their code does not matter."""
        fuses = self.server is not None and self.server.fusion.enabled
        piecewise = any("piecewise" in context for context in worker.contexts)
        for file in commit.files:
            for what, places, matters in (("fusion", FUSION, fuses), ("the piecewise flag", PIECEWISE, piecewise)):
                if file.path.startswith(places) and self._reduces_otherwise(file, what):
                    touched.append(what)
                    if matters:
                        may.append(f"{what} has code nobody knows ({file.path})")

    def _reduces_otherwise(self, file: FileChange, what: str) -> bool:
        """Whether a file of layers changes in what speaks of all-reduce; a file of the flag, in anything."""
        if what != "fusion":
            return self._differ(file, ())
        try:
            return reducing_code(self.span.text(file.old)) != reducing_code(self.span.text(file.new))
        except LiftError:
            return True


def _as_flags(flag: str, value: Any) -> list[str] | None:
    """A default as if it were given; None where no flag says it."""
    if value is True:
        return [flag]
    if value is COMPUTED or value is ABSENT or value is None or value is False or not isinstance(value, (str, int, float)):
        return None
    return [flag, str(value)]


def _span(releases: tuple[str, ...]) -> str:
    return releases[0] if len(releases) == 1 else f"{releases[0]} to {releases[-1]}"


def trees(span: Range) -> Iterator[Tree]:
    """Both ends, read: a revision without the package is refused before anything is walked."""
    yield span.tree(span.good)
    yield span.tree(span.bad)
