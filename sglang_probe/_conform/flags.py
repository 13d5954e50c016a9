"""Defaults of flags and environment variables as a release's own files state them, against ours. Called by conform.py.

They are read from the syntax trees of server_args.py (later also arg_groups/fields) and environ.py; nothing is executed.
Invariant: only plain literals are compared; a default that is computed is listed as not conformed, never guessed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from .. import _core
from .._server.defaults import ABSENT, FIELDS, defaults
from .._source.lift import Tree, parse
from .types import Result

ARGUMENTS = "srt/server_args.py"
ARGUMENT_FOLDER = "srt/arg_groups/fields"
ENVIRONMENT = "srt/environ.py"
# Facts whose default is an environment variable's own. -1 in a fact stands for "unset", None in SGLang.
VARIABLES = {
    "SGLANG_CUSTOM_ALL_REDUCE_V2_MAX_SIZE_KB": "v2_max_kb",
    "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PULL_SIZE_KB": "v2_force_pull_kb",
    "SGLANG_FORCE_CUSTOM_ALL_REDUCE_V2_PUSH_SIZE_KB": "v2_force_push_kb",
    "SGLANG_MEMORY_SAVER_CUDA_GRAPH": "memory_saver_graph",
    "SGLANG_ENABLE_CUSTOM_ALL_REDUCE_V2_MULTINODE": "v2_multinode",
    "SGLANG_ENABLE_DETERMINISTIC_INFERENCE": "deterministic",
    "SGLANG_MSCCLPP_MAX_BYTES": "mscclpp_max_bytes",
    "SGLANG_USE_AITER_AR": "use_aiter",
    "SGLANG_PCIE_IPC_MAX_NUMEL": "pcie_max_numel",
    "SGLANG_OPT_USE_INKLING_CUSTOM_AR": "inkling",
    "SGLANG_OPT_USE_INKLING_FUSED_AR_SCONV": "inkling_sconv",
    "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": "own_pcie_ipc",
    "ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16": "qr_cast_bf16",
}


class _Computed:
    """A default that is no literal."""

    def __repr__(self) -> str:
        return "<computed>"


COMPUTED = _Computed()


def read_flags(tree: Tree) -> dict[str, Any]:
    """Default of every server argument that has one, COMPUTED where it is not a literal."""
    found: dict[str, Any] = {}
    for relpath in (ARGUMENTS, *tree.files(ARGUMENT_FOLDER)):
        for node in parse(tree.source(relpath), tree.filename(relpath)).body:
            if not isinstance(node, ast.ClassDef) or (relpath == ARGUMENTS and node.name != "ServerArgs"):
                continue
            for line in node.body:
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None:
                    found[line.target.id] = _literal(line.value)
    return found


def read_environment(tree: Tree) -> dict[str, Any]:
    """Default of every variable that environ.py declares, by its name; {} before that file existed."""
    if not tree.exists(ENVIRONMENT):
        return {}
    found: dict[str, Any] = {}
    for node in parse(tree.source(ENVIRONMENT), tree.filename(ENVIRONMENT)).body:
        for line in node.body if isinstance(node, ast.ClassDef) and node.name == "Envs" else ():
            if isinstance(line, ast.Assign) and isinstance(line.value, ast.Call) and isinstance(line.targets[0], ast.Name):
                arguments = [*line.value.args, *(k.value for k in line.value.keywords if k.arg == "default")]
                if arguments:
                    found[line.targets[0].id] = _literal(arguments[0])
    return found


def compare_flags(tree: Tree, release: str) -> list[Result]:
    """Our defaults for a release against those of its files: arguments, then variables."""
    arguments, theirs, ours = Result("server argument defaults"), read_flags(tree), defaults(release)
    for name in FIELDS:
        _compare(arguments, name, theirs.get(name, ABSENT), ours.get(name, ABSENT))
    variables, declared = Result("environment variable defaults"), read_environment(tree)
    facts = {row[0]: row[1] for row in _core.FACTS}
    for name, fact in VARIABLES.items():
        if name in declared:
            value = declared[name]
            _compare(variables, name, -1 if value is None else value, facts[fact])
    return [arguments, variables] if variables.compared or variables.not_conformed else [arguments]


def _compare(result: Result, name: str, theirs: Any, ours: Any) -> None:
    if theirs is COMPUTED:
        result.not_conformed.append(f"{name}: SGLang computes its default")
    else:
        result.check(name, theirs, ours)


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}


def _literal(node: ast.expr) -> Any:
    """A constant, or arithmetic of constants; COMPUTED for all else."""
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left, right = _literal(node.left), _literal(node.right)
        if isinstance(left, (int, float)) and isinstance(right, (int, float)):
            return _ARITHMETIC[type(node.op)](left, right)
        return COMPUTED
    try:
        return ast.literal_eval(node)
    except ValueError:
        return COMPUTED
