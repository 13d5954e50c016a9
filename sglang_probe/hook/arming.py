"""Waiting for what is to be wrapped: modules that are not imported yet, and this process's first process group.

Called by _plugin.py and the bootstrap (arm), and by session.py (when_imported). A launcher, a tokenizer or a compile worker makes
no process group: there nothing is wrapped and no file is made.
Invariant: what is waited for is found by Python's own finders, and is theirs again before its code runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import update_wrapper
from types import ModuleType
from typing import Any

from .._plugin import aside

STATE = "sglang.srt.distributed.parallel_state"
COORDINATOR = "GroupCoordinator"
Done = Callable[[ModuleType], None]


class Watcher:
    """A finder that finds nothing itself: it asks the others, and has their module's code followed by what was asked for."""

    def __init__(self) -> None:
        self._wanted: dict[str, list[Done]] = {}

    def want(self, name: str, done: Done) -> None:
        self._wanted.setdefault(name, []).append(done)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def forget(self) -> None:
        self._wanted.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        if name not in self._wanted:
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Followed(spec.loader, self, name)
                return spec
        return None

    def came(self, name: str, module: ModuleType) -> None:
        for done in self._wanted.pop(name, ()):
            try:
                done(module)
            except Exception as error:  # ours, in the middle of an import of theirs
                aside(f"{name}: {type(error).__name__}: {error}")


class _Followed:
    """A module's own loader, and what comes after it."""

    def __init__(self, loader: Any, watcher: Watcher, name: str) -> None:
        self._loader, self._watcher, self._name = loader, watcher, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._watcher.came(self._name, module)


WATCHER = Watcher()


def when_imported(name: str, done: Done) -> None:
    """Calls it with the module: now where it is imported, else right after."""
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        done(module)
    else:
        WATCHER.want(name, done)


_ARMED = False


def arm() -> None:
    """The hook begins when this process makes its first group, or now where it has one. Again, it does nothing."""
    global _ARMED
    if not _ARMED:
        _ARMED = True
        when_imported(STATE, _await_group)


def _await_group(module: ModuleType) -> None:
    """Right before the constructor of the first group; from then on it is as it was, whoever has wrapped it meanwhile."""
    coordinator = getattr(module, COORDINATOR, None)
    given = None if coordinator is None else vars(coordinator).get("__init__")
    if coordinator is None or given is None or getattr(module, "_groups", None):
        _begin()
        return
    waits = [True]

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if not waits:
            given(self, *args, **kwargs)
            return
        waits.clear()
        if vars(coordinator).get("__init__") is __init__:
            coordinator.__init__ = given
        _begin()
        _construct(given, self, *args, **kwargs)

    update_wrapper(__init__, given, (), ())  # its signature
    coordinator.__init__ = __init__


def _begin() -> None:
    from .session import begin  # NumPy and the rest come with it: only where there is something to record

    begin()


def _construct(constructor: Any, group: Any, *args: Any, **kwargs: Any) -> None:
    from .session import current

    session = current()
    if session is None:
        constructor(group, *args, **kwargs)
    else:
        session.groups.construct(constructor, group, *args, **kwargs)
