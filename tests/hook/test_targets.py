"""The table of what is wrapped, held against the code of the last release of every era: there where it says so, and nowhere else.

Released packages come from the index. Invariant: a target's first argument and its tensor are where SGLang's own signature has them.
"""

from __future__ import annotations

import ast

import pytest

from sglang_probe._releases import COMMITS, RELEASES, known_release
from sglang_probe._source import fetch as _fetch
from sglang_probe._source.lift import Tree
from sglang_probe.hook.labels import RUNNERS
from sglang_probe.hook.targets import ESSENTIAL, TARGETS, Target

LAST = {known_release(n).ruleset: n for n in RELEASES if n not in COMMITS}
Signatures = dict[str, list[str]]


def signatures(text: str) -> Signatures:
    """Functions of a module and of its classes, wherever they are defined, with their arguments."""
    found: Signatures = {}

    def walk(body: list[ast.stmt], before: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                walk(node.body, f"{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                found[before + node.name] = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            elif isinstance(node, ast.If | ast.Try):
                walk(node.body, before)
                walk(node.orelse, before)

    walk(ast.parse(text).body, "")
    return found


def source(tree: Tree, target: Target) -> str:
    file = target.module.removeprefix("sglang.").replace(".", "/") + ".py"
    return tree.source(file) if tree.exists(file) else ""


@pytest.mark.network
@pytest.mark.parametrize("release", LAST.values(), ids=lambda r: f"{known_release(r).ruleset}-{r}")
def test_a_release_has_what_the_table_says_that_it_has(release: str) -> None:
    tree, wrong = Tree(_fetch.fetch(release)), []
    for target in TARGETS:
        arguments = signatures(source(tree, target)).get(".".join(target.attributes))
        if (arguments is not None) != target.within(release):
            wrong.append(f"{target}: {'there' if arguments else 'not there'}, and the table says otherwise")
        elif arguments and target.entry:
            assert arguments[target.argument] == target.keyword, target
            assert target.body or arguments[0] == "self", target
    assert not wrong


@pytest.mark.network
@pytest.mark.parametrize("release", LAST.values(), ids=lambda r: f"{known_release(r).ruleset}-{r}")
def test_a_releases_runners_are_there_and_are_handed_the_size_first(release: str) -> None:
    tree, wrong = Tree(_fetch.fetch(release)), []
    for runner in RUNNERS:
        arguments = signatures(source(tree, runner)).get(".".join(runner.attributes))
        if (arguments is not None) != runner.within(release):
            wrong.append(f"{runner}: {'there' if arguments else 'not there'}, and the table says otherwise")
        elif arguments:
            assert arguments[0] == "self" and arguments[1] in ("bs", "num_seqs", "num_tokens", "size"), (runner, arguments)
            assert (arguments[1] == "num_tokens") <= (runner.unit == "tokens"), runner
    assert not wrong


def test_inner_targets_open_nothing_and_outer_ones_say_where_their_group_is() -> None:
    for target in TARGETS:
        assert bool(target.entry) == bool(target.op) == bool(target.keyword), target
        assert target.entry == "" or target.group, target
    assert {target.attributes[-1] for target in ESSENTIAL} == {"_all_reduce_in_place", "_all_reduce_out_place"}


def test_nothing_that_dynamo_traces_is_a_target() -> None:
    """all_reduce, the predicates that it asks, and the norm around the fused operator."""
    traced = {
        "all_reduce",
        "should_custom_ar",
        "_can_use_flashinfer_allreduce",
        "forward_with_allreduce_fusion",
        "is_in_piecewise_cuda_graph",
    }
    names = {target.attributes[-1] for target in TARGETS if target.attributes[0] in ("GroupCoordinator", "RMSNorm")}
    assert not names & traced
    assert not {target.attributes[-1] for target in TARGETS} & (traced - {"all_reduce"})
