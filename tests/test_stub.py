"""The stub of the C extension against the module: what an editor or a type checker promises is there, and nothing else is."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import sglang_probe
from sglang_probe import _core

STUB = ast.parse((Path(sglang_probe.__file__).parent / "_core.pyi").read_text())


def _public(namespace: object) -> set[str]:
    return {name for name in vars(namespace) if not name.startswith("_")}


def _stub_names(body: list[ast.stmt]) -> set[str]:
    names = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def _stub_signature(node: ast.FunctionDef, drop_self: bool) -> list[tuple[str, str, object]]:
    arguments = node.args
    assert not arguments.vararg and not arguments.kwarg and not arguments.kwonlyargs, node.name
    every = [*((a, "positional") for a in arguments.posonlyargs), *((a, "either") for a in arguments.args)]
    defaults: list[object] = [inspect.Parameter.empty] * (len(every) - len(arguments.defaults))
    defaults += [ast.literal_eval(d) for d in arguments.defaults]
    signature = [(a.arg, kind, default) for (a, kind), default in zip(every, defaults, strict=True)]
    return signature[1:] if drop_self else signature


def _module_signature(function: object) -> list[tuple[str, str, object]]:
    kinds = {inspect.Parameter.POSITIONAL_ONLY: "positional", inspect.Parameter.POSITIONAL_OR_KEYWORD: "either"}
    return [(p.name, kinds[p.kind], p.default) for p in inspect.signature(function).parameters.values()]  # type: ignore[arg-type] # any callable


def test_a_type_checker_sees_every_name_of_the_module_and_no_other() -> None:
    assert _stub_names(STUB.body) == _public(_core)


def test_a_call_that_type_checks_has_the_arguments_that_the_module_takes() -> None:
    functions = [node for node in STUB.body if isinstance(node, ast.FunctionDef)]
    assert functions
    for node in functions:
        function = getattr(_core, node.name)
        assert function.__doc__, f"{node.name} has no docstring"
        assert _stub_signature(node, drop_self=False) == _module_signature(function), node.name


def test_classes_have_the_members_that_the_stub_says() -> None:
    for node in [node for node in STUB.body if isinstance(node, ast.ClassDef)]:
        kind = getattr(_core, node.name)
        assert _stub_names(node.body) == _public(kind), node.name
        constructors = [m for m in node.body if isinstance(m, ast.FunctionDef) and m.name in ("__new__", "__init__")]
        if constructors:
            assert [_stub_signature(m, drop_self=True) for m in constructors] == [_module_signature(kind)], node.name
        elif not issubclass(kind, Exception):  # made by another's method
            with pytest.raises(TypeError, match="cannot create"):
                kind()
        for member in [member for member in node.body if isinstance(member, ast.FunctionDef)]:
            # before Python 3.12 the buffer protocol is a slot without a name
            assert hasattr(kind, member.name) or member.name == "__buffer__", f"{node.name}.{member.name}"
            if not member.name.startswith("_") and not member.decorator_list:
                name, signature = f"{node.name}.{member.name}", _module_signature(getattr(kind, member.name))
                assert _stub_signature(member, drop_self=True) == signature[1:], name


def test_constants_have_the_columns_that_the_stub_says() -> None:
    for node in STUB.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name) or node.target.id.startswith("_"):
            continue
        value = getattr(_core, node.target.id)
        assert isinstance(value, tuple) and value, node.target.id
        text = ast.unparse(node.annotation)
        for row in value:
            columns = row if isinstance(row, tuple) else (row,)
            expected = ", ".join(type(column).__name__ for column in columns)
            expected = f"tuple[{expected}]" if isinstance(row, tuple) else expected
            assert text == f"Final[tuple[{expected}, ...]]", node.target.id
