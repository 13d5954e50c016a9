"""Sources of one SGLang revision (`Tree`) and functions taken out of them (`lift`), for everything that asks SGLang's own code.

A tree is an unpacked package, a wheel (or any zip of the package), or a git repository at a revision. Lifting reads the syntax
tree, strips annotations, docstrings and decorators, and executes only what was named.
Invariant: nothing of SGLang is imported, and lifted code cannot import: an import inside it becomes a look-up in the namespace
that the caller gave. File names and line numbers are SGLang's own, so tracebacks and `Decision.source` point at real lines.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import dataclasses
import enum
import functools
import hashlib
import linecache
import math
import re
import subprocess
import typing
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .._types import InputError, ProbeError

_PREFIXES = ("", "sglang/", "python/sglang/")
_MARK = "srt/server_args.py"  # in every release since the first that has a dispatch
_KEPT_DECORATORS = (
    "staticmethod",
    "classmethod",
    "property",
    "contextmanager",
    "contextlib.contextmanager",
    "dataclass",
    "dataclasses.dataclass",
)
_STANDARD: dict[str, Any] = {
    "contextlib": contextlib,
    "contextmanager": contextlib.contextmanager,
    "dataclasses": dataclasses,
    "math": math,
    "dataclass": dataclasses.dataclass,
    "field": dataclasses.field,
    "enum": enum,
    "functools": functools,
    "typing": typing,
    "Enum": enum.Enum,
    "IntEnum": enum.IntEnum,
    "NamedTuple": typing.NamedTuple,
}
_REFUSED = ("__import__", "open", "exec", "eval", "compile", "input", "breakpoint")
_BUILTINS = {name: value for name, value in vars(builtins).items() if name not in _REFUSED}


class LiftError(ProbeError):
    """SGLang's code is not where it was, or needs a name that nobody gave: the text says which file and name."""


class Tree:
    """The sglang package of one revision. Paths are relative to the package: ``srt/distributed/parallel_state.py``."""

    def __init__(self, root: str | Path, revision: str | None = None) -> None:
        self.root, self.revision = Path(root), revision
        self._files: dict[str, str | None] = {}
        self._zip: zipfile.ZipFile | None = None
        if revision is None and self.root.is_file():
            try:
                self._zip = zipfile.ZipFile(self.root)
            except (zipfile.BadZipFile, OSError) as error:
                raise InputError("sglang", str(root), f"not a wheel ({error}); give a wheel, a package or a checkout") from None
        found = [p for p in _PREFIXES if self._read(p + _MARK) is not None]
        if not found:
            where = f"{root}@{revision}" if revision else str(root)
            raise InputError("sglang", where, f"no sglang package there (looked for {_MARK}); give the folder that holds it")
        self._prefix = found[0]

    def __repr__(self) -> str:
        return f"Tree({self.label!r})"

    @property
    def label(self) -> str:
        return f"{self.root}@{self.revision}" if self.revision else str(self.root)

    @functools.cached_property
    def version(self) -> str:
        """The version that the package states, else the revision, else ""."""
        for rel in ("_version.py", "version.py"):
            text = self._read(self._prefix + rel) or ""
            found = re.search(r"""^__version__ = (?:version = )?["']([^"']+)["']""", text, re.M)
            if found:
                return found[1]
        if self._zip is not None:
            names = (re.match(r"sglang-([^-/]+)\.dist-info/METADATA$", n) for n in self._zip.namelist())
            return next((n[1] for n in names if n), "")
        return self.revision or ""

    def exists(self, relpath: str) -> bool:
        return self._read(self._prefix + relpath) is not None

    def files(self, folder: str) -> list[str]:
        """Paths of the Python files that lie in a folder; [] where there is none."""
        at = self._prefix + folder.rstrip("/") + "/"
        if self._zip is not None:
            names = [n[len(at) :] for n in self._zip.namelist() if n.startswith(at)]
        elif self.revision is not None:
            run = subprocess.run(
                ["git", "-C", str(self.root), "ls-tree", "--name-only", f"{self.revision}:{at}"],
                capture_output=True,
                text=True,
                check=False,
            )
            names = run.stdout.split("\n") if run.returncode == 0 else []
        else:
            names = [p.name for p in (self.root / at).glob("*.py")]
        return sorted(f"{folder.rstrip('/')}/{n}" for n in names if n.endswith(".py") and "/" not in n)

    def source(self, relpath: str) -> str:
        """The text of one file; LiftError when this revision does not have it."""
        text = self._read(self._prefix + relpath)
        if text is None:
            raise LiftError(f"{relpath}: not in {self.label} (version {self.version or 'unknown'})")
        return text

    def filename(self, relpath: str) -> str:
        """What tracebacks call this file: the real file where there is one."""
        if self._zip is None and self.revision is None:
            return str(self.root / (self._prefix + relpath))
        return f"{self.label}/{self._prefix}{relpath}"

    def has(self, relpath: str, name: str) -> bool:
        """Whether the file exists and defines this name ("f", "Class", "Class.method")."""
        return self.exists(relpath) and bool(find(parse(self.source(relpath), self.filename(relpath)), name))

    def where(self, relpath: str, name: str) -> tuple[str, int]:
        """File and line of a definition."""
        filename = self.filename(relpath)
        found = find(parse(self.source(relpath), filename), name)
        if not found:
            raise LiftError(f"{relpath}: no {name} in {self.label}")
        return filename, found[-1].lineno

    def lift(
        self, relpath: str, names: Iterable[str], namespace: Mapping[str, Any], optional: Iterable[str] = ()
    ) -> dict[str, Any]:
        """`lift` on one of this tree's files; tracebacks show its lines."""
        text, filename = self.source(relpath), self.filename(relpath)
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        return lift(text, names, namespace, filename=filename, optional=optional)

    def fingerprint(self, relpath: str, names: Iterable[str] = ()) -> str:
        """`fingerprint` of one of this tree's files; "" where the file or a name is missing."""
        if not self.exists(relpath):
            return ""
        return fingerprint(self.source(relpath), tuple(names), self.filename(relpath))

    def _read(self, path: str) -> str | None:
        if path not in self._files:
            self._files[path] = self._load(path)
        return self._files[path]

    def _load(self, path: str) -> str | None:
        if self.revision is not None:
            run = subprocess.run(
                ["git", "-C", str(self.root), "cat-file", "blob", f"{self.revision}:{path}"], capture_output=True, check=False
            )
            return run.stdout.decode("utf-8", "replace") if run.returncode == 0 else None
        try:
            raw = self._zip.read(path) if self._zip is not None else (self.root / path).read_bytes()
        except (KeyError, OSError):
            return None
        except zipfile.BadZipFile as error:
            raise ProbeError(f"{self.root}: {path} is damaged ({error}); delete the file and ask again") from None
        return raw.decode("utf-8", "replace")


@functools.lru_cache(maxsize=64)
def parse(source: str, filename: str = "<lifted>") -> ast.Module:
    """The syntax tree of a file. Shared by callers: never change it, copy first."""
    try:
        return ast.parse(source, filename)
    except SyntaxError as error:
        raise LiftError(f"{filename}:{error.lineno}: this Python cannot read it ({error.msg}); try a newer one") from None


def find(module: ast.Module, name: str) -> list[ast.stmt]:
    """Every definition of "f", "CONSTANT", "Class" or "Class.member" at module level, those under `if` and `try` included."""
    head, _, member = name.partition(".")
    found = [node for node in _flat(module.body) if head in _defines(node)]
    if not member:
        return found
    classes = [node for node in found if isinstance(node, ast.ClassDef)]
    return [node for cls in classes for node in _flat(cls.body) if member in _defines(node)]


def lift(
    source: str, names: Iterable[str], namespace: Mapping[str, Any], *, filename: str = "<lifted>", optional: Iterable[str] = ()
) -> dict[str, Any]:
    """Execute only the named definitions of a source text; gives {name: object}.

    "Class.method" reduces a class to its named members; the class itself is then in the answer too, under its own name, and
    "Class" takes the class whole. Base classes that neither `namespace` nor the standard few names hold are dropped. Functions
    see `namespace` as their globals (copied), and look imports up there: ``from m import x`` takes ``namespace["m:x"]`` or
    ``namespace["x"]``. A name in `optional` may be missing; any other that is missing raises LiftError.
    """
    module, wanted, spare = parse(source, filename), list(names), list(optional)
    missing = [n for n in wanted if not find(module, n)]
    if missing:
        raise LiftError(f"{filename}: does not define {', '.join(missing)}")
    wanted += [n for n in spare if n not in wanted and find(module, n)]
    scope: dict[str, Any] = {**_STANDARD, **namespace, "__name__": "lifted", "__builtins__": _BUILTINS}
    scope["__lifted_import__"] = functools.partial(_look_up, scope, filename)
    heads = dict.fromkeys(n.partition(".")[0] for n in wanted)
    members = {h: {n.partition(".")[2] for n in wanted if n.partition(".")[0] == h} for h in heads}
    body = [_strip(node, members, scope) for node in _flat(module.body) if heads.keys() & _defines(node)]
    try:
        exec(compile(ast.Module(body=body, type_ignores=[]), filename, "exec"), scope)
    except NameError as error:
        raise LiftError(f"{filename}: lifting {', '.join(wanted)} needs a name that is not in the namespace: {error}") from error
    answer = {head: scope[head] for head in heads}
    for name in wanted:
        head, _, member = name.partition(".")
        if member:
            answer[name] = getattr(scope[head], member)
    return answer


def fingerprint(source: str, names: Iterable[str] = (), filename: str = "<lifted>") -> str:
    """Hash of the named definitions' code, or of the whole file; "" where a name is missing. Equal hashes mean equal code.

    Comments, docstrings, annotations, imports and log lines do not count, nor does the Python that computes it.
    """
    module = parse(source, filename)
    chosen = [find(module, name) for name in names] or [module.body]
    if not all(chosen):
        return ""
    stripper = _Stripper(rewrite_imports=False)
    kept = [stripper.visit(copy.deepcopy(node)) for found in chosen for node in found]
    return hashlib.sha256("\n".join(_dump(node) for node in kept if node is not None).encode()).hexdigest()[:16]


_LAYOUT = ("kind", "type_comment", "type_ignores", "type_params", "ctx")


def _dump(node: object) -> str:
    """A syntax tree as text, the same from every Python: ast.dump() changes with versions."""
    if isinstance(node, ast.JoinedStr):  # 3.12 leaves empty pieces in format strings
        return f"JoinedStr({_dump([v for v in node.values if not (isinstance(v, ast.Constant) and v.value == '')])})"
    if isinstance(node, ast.AST):
        fields = ((name, value) for name, value in ast.iter_fields(node) if name not in _LAYOUT)
        return f"{type(node).__name__}({','.join(f'{n}={_dump(v)}' for n, v in fields if v is not None and v != [])})"
    if isinstance(node, list):
        return f"[{','.join(map(_dump, node))}]"
    return repr(node)


def _flat(body: Iterable[ast.stmt]) -> list[ast.stmt]:
    flat: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If):
            flat += _flat(node.body) + _flat(node.orelse)
        elif isinstance(node, ast.Try):
            flat += _flat(node.body) + _flat(node.orelse) + _flat(node.finalbody)
        else:
            flat.append(node)
    return flat


def _defines(node: ast.stmt) -> set[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        targets = [node.target]
    return {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _strip(node: ast.stmt, members: Mapping[str, set[str]], scope: Mapping[str, Any]) -> ast.stmt:
    node = copy.deepcopy(node)
    if isinstance(node, ast.ClassDef):
        only = members[node.name]
        if "" not in only:
            node.body = [n for n in _flat(node.body) if _defines(n) & only] or [ast.Pass()]
        node.bases = [b for b in node.bases if ast.unparse(b).partition(".")[0] in scope]
        node.keywords = []
    stripped: ast.stmt = _Stripper(rewrite_imports=True).visit(node)
    return ast.fix_missing_locations(stripped)


class _Stripper(ast.NodeTransformer):
    """Takes away what changes no decision: annotations, docstrings, decorators. To run, imports become look-ups; to hash, they go."""

    def __init__(self, rewrite_imports: bool) -> None:
        self._rewrite = rewrite_imports

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> ast.AST:
        node.decorator_list = [d for d in node.decorator_list if self._keeps(d)]
        first = node.body[0]
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:] or [ast.copy_location(ast.Pass(), first)]
        if not isinstance(node, ast.ClassDef):
            node.returns = None
        return self.generic_visit(node)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _definition

    @staticmethod
    def _keeps(decorator: ast.expr) -> bool:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = ast.unparse(called)
        return name in _KEPT_DECORATORS or name.endswith((".setter", ".getter"))

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.copy_location(ast.Constant("object"), node)  # a dataclass still counts its fields
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> Any:
        if not self._rewrite and ast.unparse(node).startswith(("logger.", "logging.")):
            return None
        return self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> Any:
        if not self._rewrite:
            return None
        parts = [(a.name if a.asname else a.name.partition(".")[0], a.asname or a.name.partition(".")[0]) for a in node.names]
        return [self._assign(node, name, "", bound) for name, bound in parts]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> Any:
        if not self._rewrite:
            return None
        module = "." * node.level + (node.module or "")
        return [self._assign(node, module, a.name, a.asname or a.name) for a in node.names]

    @staticmethod
    def _assign(at: ast.stmt, module: str, name: str, bound: str) -> ast.stmt:
        call = ast.Call(ast.Name("__lifted_import__", ast.Load()), [ast.Constant(module), ast.Constant(name)], [])
        return ast.fix_missing_locations(ast.copy_location(ast.Assign([ast.Name(bound, ast.Store())], call), at))


def _look_up(scope: Mapping[str, Any], filename: str, module: str, name: str) -> Any:
    """An import of lifted code: only what the caller put into the namespace is there."""
    for key in (f"{module}:{name}", name) if name else (module,):
        if key in scope:
            return scope[key]
    head, *attributes = module.split(".")
    found = scope.get(head)
    for attribute in [*attributes, *([name] if name else [])]:
        found = getattr(found, attribute, None)
    if found is None:
        raise LiftError(f"{filename}: lifted code imports {name or module} from {module}; put it into the namespace")
    return found
