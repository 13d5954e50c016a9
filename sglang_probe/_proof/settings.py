"""What a file of server arguments or environment variables says about the settings that we read: defaults, and code that sets them.

Called by bisect, for the file before and after a commit. The code that sets an argument is compared statement by statement, with the
conditions around it; branches of other architectures than the server's are left out; what is called is not followed.
Invariant: nothing is executed, and only settings that can change a route (``FIELDS``, ``VARIABLES``) count.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from .._conform.flags import COMPUTED, VARIABLES, _literal
from .._server.defaults import ABSENT, FIELDS
from .._source.lift import _dump, fingerprint, parse

ARGUMENTS = ("srt/server_args.py", "srt/arg_groups/")
ENVIRONMENT = "srt/environ.py"
_SILENT = ("logger.", "logging.", "print(", "warnings.")
_PARSERS = ("add_cli_args", "from_cli_args")
_ARCHITECTURE = re.compile(r"[A-Z]\w*(For\w+|LMHeadModel|LM|Model)$")
_REDUCES = re.compile(r"all_?reduce", re.I)


@dataclass(frozen=True)
class Settings:
    """Of one version of one file."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Argument or variable -> its default; COMPUTED where it is no literal."""
    setters: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Argument -> the statements that set it, as text of their syntax."""


@lru_cache(maxsize=128)
def settings_of(path: str, source: str, arch: str = "") -> Settings:
    """The settings that one version of a file declares and sets, for a model of this architecture ("" for any)."""
    if not source:
        return Settings()
    try:
        module = ast.parse(source)
    except SyntaxError:
        return Settings({}, {name: frozenset({"not readable"}) for name in FIELDS})
    if path == ENVIRONMENT:
        return Settings(dict(_variables(module)))
    setters: dict[str, set[str]] = {}
    for name, text in _setters(module.body, "", arch):
        setters.setdefault(name, set()).add(text)
    return Settings(dict(_arguments(module)), {name: frozenset(texts) for name, texts in setters.items()})


def _arguments(module: ast.Module) -> Iterator[tuple[str, Any]]:
    for node in module.body:
        for line in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.target.id in FIELDS:
                yield line.target.id, ABSENT if line.value is None else _literal(line.value)


def _variables(module: ast.Module) -> Iterator[tuple[str, Any]]:
    for node in module.body:
        for line in node.body if isinstance(node, ast.ClassDef) and node.name == "Envs" else ():
            if not (isinstance(line, ast.Assign) and isinstance(line.value, ast.Call) and isinstance(line.targets[0], ast.Name)):
                continue
            arguments = [*line.value.args, *(k.value for k in line.value.keywords if k.arg == "default")]
            if line.targets[0].id in VARIABLES and arguments:
                yield line.targets[0].id, _literal(arguments[0])


def _setters(body: list[ast.stmt], around: str, arch: str) -> Iterator[tuple[str, str]]:
    """(argument, statement with the conditions around it) of everything in functions that sets an argument."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _setters([n for n in node.body if not isinstance(n, (ast.Assign, ast.AnnAssign))], around, arch)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name not in _PARSERS:
                yield from _setters(node.body, around, arch)
        elif isinstance(node, ast.If):
            foreign = _foreign(node.test, arch)
            test = _dump(_Known(arch).visit(ast.parse(ast.unparse(node.test), mode="eval")))
            if not foreign:
                yield from _setters(node.body, f"{around}/{test}", arch)
            yield from _setters(node.orelse, around if foreign else f"{around}/not {test}", arch)
        elif isinstance(node, (ast.While, ast.For, ast.With, ast.Try)):
            what = f"{around}/{type(node).__name__}"
            handlers = [line for handler in getattr(node, "handlers", []) for line in handler.body]
            for part in (node.body, getattr(node, "orelse", []), getattr(node, "finalbody", []), handlers):
                yield from _setters(part, what, arch)
        elif not isinstance(node, (ast.Raise, ast.Assert)):
            text = ""
            for name in dict.fromkeys(_set_by(node)):
                text = text or f"{around}/{_dump(node)}"
                yield name, text


def _foreign(test: ast.expr, arch: str) -> bool:
    """Whether a condition names other architectures only, so that it never holds for this one."""
    if not arch:
        return False
    if isinstance(test, ast.BoolOp):
        parts = [_foreign(value, arch) for value in test.values]
        return all(parts) if isinstance(test.op, ast.Or) else any(parts)
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.In, ast.Eq)):
        right = test.comparators[0]
        named = [n.value for n in ast.walk(right) if isinstance(n, ast.Constant)]
        plain = isinstance(right, (ast.Constant, ast.List, ast.Tuple, ast.Set))
        return plain and bool(named) and all(isinstance(n, str) and _ARCHITECTURE.match(n) and n != arch for n in named)
    return False


class _Known(ast.NodeTransformer):
    """Takes other architectures out of lists, so that one more of them is no change."""

    def __init__(self, arch: str) -> None:
        self._arch = arch

    def _list(self, node: ast.List | ast.Tuple | ast.Set) -> ast.AST:
        if self._arch:
            node.elts = [e for e in node.elts if not self._other(e)]
        return self.generic_visit(node)

    visit_List = visit_Tuple = visit_Set = _list

    def _other(self, node: ast.expr) -> bool:
        value = node.value if isinstance(node, ast.Constant) else None
        return isinstance(value, str) and bool(_ARCHITECTURE.match(value)) and value != self._arch


def _set_by(node: ast.stmt) -> Iterator[str]:
    """Arguments that a statement sets: ``x.name = ...``, ``setattr(x, "name", ...)``, a table's ``"name": value`` or ``name=value``."""
    if isinstance(node, ast.Expr) and ast.unparse(node).startswith(_SILENT):
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and part.attr in FIELDS:
            yield part.attr
        elif isinstance(part, ast.Call):
            first = [a.value for a in part.args[:2] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            yield from (name for name in first if name in FIELDS and _writes(part))
            yield from (k.arg for k in part.keywords if k.arg in FIELDS)
        elif isinstance(part, ast.Dict):
            yield from (k.value for k in part.keys if isinstance(k, ast.Constant) and k.value in FIELDS)


def _writes(call: ast.Call) -> bool:
    """Whether a call with an argument's name writes it: getattr and the like only read."""
    name = ast.unparse(call.func).rpartition(".")[2]
    return not name.startswith(("getattr", "hasattr", "get", "is_", "has_", "add_argument"))


def changed_defaults(old: Settings, new: Settings) -> dict[str, tuple[Any, Any]]:
    """Name -> default before and after, where both files declare it and it differs."""
    return {
        name: (old.defaults[name], value)
        for name, value in new.defaults.items()
        if name in old.defaults and not _same(old.defaults[name], value)
    }


def _same(old: Any, new: Any) -> bool:
    return old is new if old is COMPUTED or new is COMPUTED else bool(type(old) is type(new) and old == new)


def changed_setters(old: Settings, new: Settings) -> tuple[str, ...]:
    """Arguments that other statements set than before."""
    names = old.setters.keys() | new.setters.keys()
    return tuple(sorted(n for n in names if old.setters.get(n, frozenset()) != new.setters.get(n, frozenset())))


@lru_cache(maxsize=128)
def reducing_code(source: str) -> frozenset[tuple[str, str]]:
    """(name, hash) of every function of a file that speaks of all-reduce."""
    found = set()
    for node in parse(source).body:
        inner = [(f"{node.name}.", part) for part in node.body] if isinstance(node, ast.ClassDef) else [("", node)]
        for prefix, part in inner:
            if isinstance(part, ast.FunctionDef) and _REDUCES.search(ast.unparse(part)):
                found.add((prefix + part.name, fingerprint(source, (prefix + part.name,))))
    return frozenset(found)
