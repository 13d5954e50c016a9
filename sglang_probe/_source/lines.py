"""SGLang's file and line behind a rule, where its source is at hand: a checkout, an installed package, or a release already fetched.

Called by Decision.source. Invariant: never fetches and never guesses; no source, or no such line, is None.
"""

from __future__ import annotations

import ast
from functools import lru_cache

from .._releases import Release
from .._types import ProbeError
from .lift import Tree, find, parse

_FILE = "srt/distributed/parallel_state.py"
_CHOOSE = ("GroupCoordinator._resolve_outplace_all_reduce_method", "GroupCoordinator.all_reduce")
_OUT = ("GroupCoordinator._all_reduce_out_place",)
_IN = ("GroupCoordinator._all_reduce_in_place",)

# rule -> (methods to search, names of which one stands in the test of the branch)
_MARKS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "world_of_one": (_CHOOSE, ("world_size",)),
    "cpu": (_CHOOSE, ("is_cpu",)),
    "hpu": (_CHOOSE, ("hpu_communicator",)),
    "xpu": (_CHOOSE, ("xpu_communicator",)),
    "npu": (_CHOOSE, ("npu_communicator",)),
    "amd_deterministic": (_CHOOSE, ("use_deterministic_ar",)),
    "symm_mem_bypass": (_CHOOSE, ("is_symmetric_memory_enabled", "symmetric_memory")),
    "flashinfer": (_CHOOSE, ("_can_use_flashinfer_allreduce",)),
    "custom": (_CHOOSE, ("should_custom_ar",)),
    "pcie_ipc": (_CHOOSE, ("should_pcie_ipc_ar",)),
    "quick": (_CHOOSE, ("should_quick_allreduce",)),
    "mscclpp": (_CHOOSE, ("pymscclpp_comm",)),
    "torch_symm_mem": (_CHOOSE, ("should_torch_symm_mem_allreduce", "should_symm_mem_allreduce")),
    "piecewise_pynccl": (_CHOOSE, ("is_in_piecewise_cuda_graph", "is_in_tc_piecewise_cuda_graph")),
    "auto_pynccl": (_OUT, ("pynccl_comm",)),
    "auto_clone": (_OUT, ("pynccl_comm",)),
    "in_place_pynccl": (_IN, ("pynccl_comm",)),
    "in_place_torch_symm_mem": (_IN, ("torch_symm_mem_comm", "symm_mem_comm")),
    "in_place_torch": (_IN, ("distributed",)),
}


def _tests(method: ast.AST) -> list[ast.If]:
    return sorted((node for node in ast.walk(method) if isinstance(node, ast.If)), key=lambda node: node.lineno)


def _names(node: ast.AST) -> set[str]:
    return {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)} | {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name)
    }


def _last_call(method: ast.AST, marks: tuple[str, ...]) -> int | None:
    """Line of the last call that names a mark: the branch without a test."""
    lines = [node.lineno for node in ast.walk(method) if isinstance(node, ast.Call) and _names(node.func) & set(marks)]
    return max(lines, default=None)


def _line(module: ast.Module, rule: str) -> int | None:
    methods, marks = _MARKS[rule]
    for name in methods:
        for method in find(module, name):
            if rule == "in_place_torch":
                return _last_call(method, marks)
            for branch in _tests(method):
                names = _names(branch.test)
                # a test that names custom too is that of all being absent, or another rule's; E2 alone asks both in one
                if names & set(marks) and not names & ({"qr_comm"} if rule in ("custom", "mscclpp") else {"ca_comm"}):
                    return branch.test.lineno
    return None


@lru_cache(maxsize=64)
def _tree(root: str) -> Tree:
    path, _, revision = root.partition("@")
    return Tree(path, revision or None)


@lru_cache(maxsize=1024)
def find_source(release: Release, rule: str) -> str | None:
    """``file:line`` behind a rule of a release, or None."""
    if rule not in _MARKS:
        return None
    root = release.root
    if root is None:
        from .fetch import cached

        kept = cached(release.name)
        if not kept.is_file():
            return None
        root = str(kept)
    try:
        tree = _tree(root)
        line = _line(parse(tree.source(_FILE), tree.filename(_FILE)), rule)
    except ProbeError:
        return None
    return f"{tree.filename(_FILE)}:{line}" if line else None
