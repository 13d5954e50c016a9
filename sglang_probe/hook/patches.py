"""Attributes set in place of others, and every one given back: on classes, in modules, and the body of a function that others hold already.

Called by session.py. Invariant: undo() leaves each class, module and function as it was found, however many times it is called; but where a
body was changed, one name stays in its module, under which a call that is on its way finds the original.
"""

from __future__ import annotations

import gc
import inspect
import types
from collections.abc import Callable
from typing import Any

_MISSING = object()
_HELD = "__sglang_probe_{}__"
_COPY = "__sglang_probe_copy__"


class Patches:
    """What was changed, in order."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """As ``setattr``; what was inherited is inherited again afterwards."""
        before = vars(owner).get(name, _MISSING)
        setattr(owner, name, value)

        def undo() -> None:
            if vars(owner).get(name, _MISSING) is not value:
                return  # somebody else's by now
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)

    def body(self, function: types.FunctionType, make: Callable[[types.FunctionType], Any]) -> None:
        """Whoever holds the function, a registered operator too, calls ``make(original)`` instead; ``original`` is a copy of it."""
        held = _HELD.format(function.__name__)
        code, space = function.__code__, function.__globals__
        original = types.FunctionType(code, space, function.__name__, function.__defaults__, function.__closure__)
        original.__kwdefaults__, original.__qualname__ = function.__kwdefaults__, function.__qualname__
        original.__module__, original.__doc__ = function.__module__, function.__doc__
        vars(original)[_COPY] = True
        signature = inspect.signature(function)
        space[held] = make(original)
        function.__signature__ = signature  # type: ignore[attr-defined] # the code's own is no longer it
        function.__code__ = _calls(held, code)

        def undo() -> None:
            function.__code__ = code
            vars(function).pop("__signature__", None)
            space[held] = original  # a call of another thread may be about to look for it

        self._undo.append(undo)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()


def _calls(held: str, code: types.CodeType) -> types.CodeType:
    """Code that passes everything on to what the module holds under this name."""
    scope: dict[str, Any] = {}
    exec(f"def {code.co_name}(*args, **kwargs):\n    return {held}(*args, **kwargs)", scope)
    made: types.CodeType = scope[code.co_name].__code__
    return made.replace(co_filename=code.co_filename, co_firstlineno=code.co_firstlineno)


def function_of(module: types.ModuleType, name: str) -> types.FunctionType | None:
    """The plain function that a module defines by this name, whatever a decorator made of it: torch alone may hold it."""
    space, found = vars(module), vars(module).get(name)
    while found is not None and not _defined(found, space, name):
        found = getattr(found, "__wrapped__", None)
    if found is None:
        found = next((one for one in gc.get_referrers(space) if _defined(one, space, name)), None)
    return found if isinstance(found, types.FunctionType) and not found.__code__.co_freevars else None


def _defined(one: object, space: dict[str, Any], name: str) -> bool:
    if not isinstance(one, types.FunctionType) or one.__globals__ is not space or _COPY in vars(one):
        return False
    return one.__code__.co_name == name
