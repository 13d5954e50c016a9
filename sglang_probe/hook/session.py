"""The hook of this process: begun once, whoever asks, and ended. Called by hook/__init__.py and, before the first group, by arming.py.

    begin()  ->  which sglang  ->  ring file  ->  wrapping  ->  sources, expected path  ->  recording
    a group is made            ->  its name for pynccl, its constructor's warnings, this process's rank
    graph_capture()            ->  graphs.py
    every few seconds          ->  watch.py: new alarms, promises

Invariant: begin() raises nothing. What fails on the way is undone, said once in the log, and SGLang runs as if this package were not there.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from types import ModuleType

from .. import _core
from .._record.folder import make_folder, ring_name, started, sweep
from .._releases import Release, resolve
from .._types import InputError, ProbeUnavailable
from .arming import COORDINATOR, STATE
from .context import follow_flags
from .expected import Expected
from .forking import Lock
from .graphs import Captures
from .groups import Groups
from .patches import Patches
from .targets import ESSENTIAL
from .telling import Finding, Findings
from .timing import use_timer
from .watching import Watch
from .wrapping import Wrapping

_LOCK = Lock(again=True)
_SESSION: Session | None = None
_TOLD = Findings()
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Session:
    """What is there while the hook is installed."""

    def __init__(self, state: ModuleType) -> None:
        self.findings = _TOLD
        self.version = sglang_version()
        self.release = known(self.version)
        coordinator = _coordinator(state, self.release)
        folder = make_folder()
        with suppress(OSError):
            sweep(folder)
        path = str(folder / ring_name(os.getpid(), started(os.getpid())))
        self.recorder = _core.Recorder(path, release=self.version or "")
        self.findings.note = lambda text: self.recorder.intern("note", text)
        self.patches = Patches()
        self.expected = Expected(self.release)
        self.wrapping = Wrapping(self.recorder, None if self.release is None else self.release.name, self.patches, self.findings)
        self.groups = Groups(self.recorder, self.expected, self.patches)
        self.captures = Captures(self.recorder, self.expected, self.patches, self.findings)
        self.watch = Watch(self.recorder, self.expected, self.groups, self.findings)
        try:
            self._wrap(state, coordinator)
        except BaseException:
            self.end(remove=True)
            raise

    def _wrap(self, state: ModuleType, coordinator: type) -> None:
        follow_flags(self.recorder, self.expected)
        self.recorder.set_expect(self.expected)
        self.recorder.set_skipped((_HERE, os.sep + "torch" + os.sep, "parallel_state.py", "custom_op.py", "communication_op.py"))
        self.groups.follow(state, coordinator)
        self.wrapping.everything(coordinator)
        self.captures.follow(coordinator, self.wrapping)
        self.wrapping.guarded("timing", lambda: use_timer(self.recorder))
        self.recorder.start()
        self.watch.start()

    def end(self, remove: bool = False) -> None:
        self.watch.stop()
        with suppress(Exception):
            self.watch.look(last=True)
        self.wrapping.undo()
        self.findings.note = None
        self.recorder.close(remove)


def sglang_version() -> str | None:
    """Of the sglang that this process has imported."""
    for name in ("sglang.version", "sglang"):
        found = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(found, str) and found:
            return found
    from importlib.metadata import PackageNotFoundError, version

    with suppress(PackageNotFoundError):
        return version("sglang")
    return None


def known(version: str | None) -> Release | None:
    """The release whose tables answer; None where there are none for it: what runs is recorded, what should run is nobody's guess."""
    try:
        return None if version is None else resolve(version)
    except InputError as error:
        _TOLD.tell("aside", "release", f"{error}: calls are recorded, and no path is expected of them")
        return None


def _coordinator(state: ModuleType, release: Release | None) -> type:
    """SGLang's GroupCoordinator; ProbeUnavailable where it is nothing that is known here."""
    coordinator = getattr(state, COORDINATOR, None)
    if not isinstance(coordinator, type):
        raise ProbeUnavailable(f"{STATE} has no class {COORDINATOR}")
    missing = [target.attributes[-1] for target in ESSENTIAL if target.attributes[-1] not in vars(coordinator)]
    if missing:
        raise ProbeUnavailable(f"this sglang's {COORDINATOR} has no {', '.join(missing)}")
    return coordinator


def begin() -> str:
    """The ring file's path; "" where the hook stands aside. Again, it does nothing."""
    global _SESSION
    with _LOCK:
        if _SESSION is None:
            try:
                _SESSION = Session(_state())
                atexit.register(end)
            except Exception as error:  # of any kind: a full disk, no folder, an SGLang that nobody knows
                _TOLD.tell("aside", "begin", f"stands aside, nothing is recorded: {type(error).__name__}: {error}")
                return ""
        return _SESSION.recorder.path


def _state() -> ModuleType:
    module = sys.modules.get(STATE)
    if module is None:
        import importlib

        module = importlib.import_module(STATE)
    return module


def end() -> None:
    global _SESSION
    with _LOCK:
        if _SESSION is not None:
            session, _SESSION = _SESSION, None
            atexit.unregister(end)
            session.end()


def path() -> str:
    with _LOCK:
        return "" if _SESSION is None else _SESSION.recorder.path


def current() -> Session | None:
    return _SESSION


def told() -> tuple[Finding, ...]:
    """After a look at what is new."""
    session = _SESSION
    if session is not None:
        session.watch.look()
    return _TOLD.all()
