"""What is put in place of SGLang's attributes, and what is there afterwards. Invariant: after undo() nobody can tell by what is called."""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

import pytest

from sglang_probe.hook.patches import Patches, function_of

CODE = """
import functools
def double(x: int, by: int = 2, *, plus: int = 0) -> int:
    "Doubles."
    return x * by + plus
def registered(function):
    @functools.wraps(function)
    def call(*args, **kwargs):
        return function(*args, **kwargs)
    return call
held = [double]
@registered
def wrapped(x):
    return x + 1
def closure(y):
    def inner(x):
        return x + y
    return inner
inner = closure(1)
"""


@pytest.fixture
def module() -> types.ModuleType:
    made = types.ModuleType("made")
    exec(compile(CODE, "made.py", "exec"), vars(made))
    return made


def test_an_attribute_and_what_was_inherited_come_back() -> None:
    class Base:
        def a(self) -> int:
            return 1

    class Child(Base):
        def b(self) -> int:
            return 2

    before = dict(vars(Child))
    patches = Patches()
    patches.set(Child, "a", lambda self: 10)
    patches.set(Child, "b", lambda self: 20)
    patches.set(Child, "b", lambda self: 200)
    patches.set(Child, "new", 5)
    assert (Child().a(), Child().b(), Child.new) == (10, 200, 5)  # type: ignore[attr-defined]
    patches.undo()
    patches.undo()
    assert dict(vars(Child)) == before and Child().a() == 1


def test_what_somebody_else_has_put_there_since_is_left_to_them() -> None:
    class Kind:
        x = 1

    patches = Patches()
    patches.set(Kind, "x", 2)
    Kind.x = 3
    patches.undo()
    assert Kind.x == 3


def test_a_body_changes_for_everybody_who_holds_the_function(module: types.ModuleType) -> None:
    calls: list[Any] = []

    def make(original: Any) -> Any:
        def instead(*args: Any, **kwargs: Any) -> Any:
            calls.append((args, kwargs))
            return original(*args, **kwargs)

        return instead

    held, names = module.held[0], set(vars(module))
    code, signature = held.__code__, inspect.signature(held)
    patches = Patches()
    patches.body(held, make)
    assert held(3) == 6 and held(3, 3, plus=1) == 10 and module.double(x=1) == 2
    assert calls == [((3,), {}), ((3, 3), {"plus": 1}), ((), {"x": 1})]
    assert inspect.signature(held) == signature and held.__doc__ == "Doubles." and held.__name__ == "double"
    with pytest.raises(TypeError):
        held()
    assert function_of(module, "double") is held  # and not the copy that does its work
    patches.undo()
    patches.undo()
    assert held.__code__ is code and held(3) == 6 and len(calls) == 4
    (left,) = set(vars(module)) - names
    assert vars(module)[left](3) == 6 and len(calls) == 4
    assert "__signature__" not in vars(held)


def test_a_call_that_is_on_its_way_when_its_body_comes_back_finds_the_original(module: types.ModuleType) -> None:
    patches = Patches()
    patches.body(module.double, lambda original: original)
    on_its_way = types.FunctionType(module.double.__code__, vars(module))  # as a frame of it, before its first instruction
    patches.undo()
    assert on_its_way(3) == 6
    patches.body(module.double, lambda original: lambda x: -original(x))
    assert on_its_way(3) == -6 and module.double(3) == -6
    patches.undo()
    assert module.double(3) == 6


def test_a_function_is_found_behind_its_decorator_and_where_only_others_hold_it(module: types.ModuleType) -> None:
    assert function_of(module, "wrapped") is module.wrapped.__wrapped__
    del module.double
    assert function_of(module, "double") is module.held[0]  # as torch holds an operator's
    vars(module)["double"] = "an operator"
    assert function_of(module, "double") is module.held[0]
    assert function_of(module, "nowhere") is None
    assert function_of(module, "inner") is None  # it has cells, which another body would not have


def test_no_copy_of_ours_is_taken_for_the_original(module: types.ModuleType) -> None:
    kept: list[Any] = []
    patches = Patches()
    patches.body(module.double, lambda original: kept.append(original) or original)
    patches.undo()
    del module.double
    assert function_of(module, "double") is module.held[0] is not kept[0]
    assert sys.getrefcount(kept[0]) > 1
