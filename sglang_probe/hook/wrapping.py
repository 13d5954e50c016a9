"""From the table of targets to C callables in their places, each when its module is there. Called by session.py.

Invariant: a target that cannot be wrapped is left as it is, and told; the others are wrapped all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .. import _core
from .._types import Path
from .arming import WATCHER, when_imported
from .groups import fused_group
from .kernels import TABLES
from .patches import Patches, function_of
from .targets import FUSED, Target, targets_of
from .telling import Findings

PATHS: dict[Path, int] = {Path(name): i for i, (name, _) in enumerate(_core.PATHS)}


class Wrapping:
    """What is wrapped in this process, and by what."""

    def __init__(self, recorder: _core.Recorder, release: str | None, patches: Patches, findings: Findings) -> None:
        self._recorder, self.release = recorder, release
        self._patches, self._findings = patches, findings
        self._through: tuple[CodeType, ...] = ()
        self.done: list[Target] = []

    def everything(self, coordinator: type) -> None:
        """Targets of modules that are there now, and of the others as they come."""
        entered = getattr(vars(coordinator).get("all_reduce"), "__code__", None)
        self._through = (entered,) if isinstance(entered, CodeType) else ()
        by_module: dict[str, list[Target]] = {}
        for target in targets_of(self.release):
            by_module.setdefault(target.module, []).append(target)
        for name, targets in by_module.items():
            when_imported(name, partial(self._module, targets))

    def _module(self, targets: list[Target], module: ModuleType) -> None:
        for target in targets:
            self.guarded(target, partial(self._wrap, module, target))

    def guarded(self, what: object, step: Callable[[], Any]) -> None:
        """A step of ours inside of SGLang's import or call."""
        try:
            step()
        except Exception as error:  # whatever it was, SGLang goes on
            self._findings.tell("target", str(what), f"{what} is not wrapped: {type(error).__name__}: {error}")

    def _wrap(self, module: ModuleType, target: Target) -> None:
        *owners, name = target.attributes
        owner: Any = module
        for part in owners:
            owner = getattr(owner, part, None)
        if target.body:
            function = function_of(module, name)
            if function is None:
                self._missing(target)
                return
            self._patches.body(function, lambda original: self._wrapper(module, target, original))
        else:
            original = None if owner is None else vars(owner).get(name)
            if original is None:
                self._missing(target)
                return
            if isinstance(original, (staticmethod, classmethod, property)):
                raise TypeError(f"it is a {type(original).__name__} there, and a wrapper binds as a plain method does")
            self._patches.set(owner, name, self._wrapper(module, target, original))
        self.done.append(target)

    def _missing(self, target: Target) -> None:
        if self.release is not None:
            self._findings.tell(
                "target", str(target), f"this sglang {self.release} has no {target}, which that release has: it is not seen"
            )

    def _wrapper(self, module: ModuleType, target: Target, original: Any) -> _core.Wrapper:
        which = _position(original, target.which) if target.which else -1
        group: str | Callable[[bool], str] = fused_group(module, which >= 0) if target.entry == FUSED else target.group
        return _core.Wrapper(
            original,
            self._recorder,
            entry=target.entry,
            path=-1 if target.path is None else PATHS[target.path],
            op=target.op,
            argument=target.argument,
            keyword=target.keyword,
            group=group if target.entry else "",
            dry=target.dry,
            unless=target.unless,
            kernels=TABLES[target.kernels](module) if target.kernels else (),
            through=self._through if target.entry else (),
            which=which,
            which_keyword=target.which if which >= 0 else "",
        )

    def undo(self) -> None:
        WATCHER.forget()
        self._patches.undo()
        self.done.clear()


def _position(function: FunctionType, argument: str) -> int:
    """Of an argument of this name, -1 where the function has none."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    return names.index(argument) if argument in names else -1
