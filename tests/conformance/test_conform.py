"""conform: our tables and gates answer as SGLang's own code does, in every state; and conform would notice if they did not.

An index that does not answer fails these tests; it never skips them.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_probe import _core
from sglang_probe._conform.conform import Report, conform, conform_tree
from sglang_probe._conform.custom import compare_custom
from sglang_probe._conform.dispatch import DOMAIN, FILE, STATE_COUNT, Dispatch, describe, state
from sglang_probe._conform.flags import ARGUMENTS, COMPUTED, compare_flags, read_flags
from sglang_probe._conform.rules import codes_of, compare_rules, decode
from sglang_probe._conform.types import Grouping, Result, group_cases
from sglang_probe._releases import COMMITS, RELEASES, RULESETS, known_release
from sglang_probe._source import fetch as _fetch
from sglang_probe._source.lift import Tree
from sglang_probe._types import InputError, ProbeUnavailable

conform_module = importlib.import_module("sglang_probe._conform.conform")  # the package's attribute of that name is the function
LAST = {known_release(n).ruleset: n for n in RELEASES if n not in COMMITS}  # the last release of every era


class Edited(Tree):
    """A released tree with one text of one file replaced: a difference that conform has to find."""

    def __init__(self, release: str, old: str, new: str, relpath: str = FILE) -> None:
        super().__init__(_fetch.fetch(release))
        text = self.source(relpath)
        assert old in text, "the release no longer has the text that this test edits"
        self._edited = (relpath, text.replace(old, new))

    def source(self, relpath: str) -> str:
        edited = getattr(self, "_edited", (None, ""))
        return edited[1] if relpath == edited[0] else super().source(relpath)


def test_every_era_and_the_newest_release_are_compared() -> None:
    assert set(LAST) == set(RULESETS)
    assert [n for n in RELEASES if n not in COMMITS][-1] in LAST.values()


@pytest.mark.network
@pytest.mark.slow
@pytest.mark.parametrize("release", LAST.values(), ids=lambda r: f"{known_release(r).ruleset}-{r}")
def test_every_answer_of_an_era_is_what_sglang_answers(release: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = conform(release)
    with capsys.disabled():
        print(f"\n{release} ({report.ruleset}): " + ", ".join(f"{r.name} {r.compared:,}" for r in report.results if r.compared))
    assert not report.differences, str(report)
    dispatch = report.results[0]
    assert dispatch.compared == _core.state_count(RULESETS.index(report.ruleset)) and dispatch.compared >= STATE_COUNT == 12_289
    assert {r.name for r in report.results if r.compared} >= {"custom", "pynccl", "server argument defaults"}


@pytest.mark.network
def test_where_sglang_raises_the_states_are_counted_by_exception() -> None:
    dispatch = Dispatch(Tree(_fetch.fetch("0.5.9")))
    walk = dispatch.walk()
    errors = Counter(walk.outcomes[i].error for i in walk.ids)
    assert errors == {"": 12_289 - 648, "AttributeError": 640, "AssertionError": 8}
    lost = sum(walk.outcomes[i].lost for i in walk.ids)
    assert lost == 324, "the in-place branch of torch symmetric memory loses its result"


# Edits of released code, and what the report has to say: a word of every condition that the edit depends on.
PLANTED = {
    "two branches swapped": (
        "0.5.9",
        'outplace_all_reduce_method = "qr"',
        'outplace_all_reduce_method = "ca"',
        ["raises AssertionError (custom), here quick by quick", "quick=accepts", "custom in (disabled, declines)"],
    ),
    "a rule gone": (
        "0.5.9",
        "elif is_in_piecewise_cuda_graph():",
        "elif False:",
        ["SGLang torch_distributed by in_place_torch", "piecewise=True", "piecewise_pynccl"],
    ),
    "a condition gone": (
        "0.5.19",
        "and not should_use_custom_allreduce",
        "",
        ["SGLang pynccl_in_place by symm_mem_bypass", "custom=accepts", "symmetric_memory=True"],
    ),
    "an assertion gone": (
        "0.5.4",
        "assert any([qr_comm, ca_comm, pymscclpp_comm])",
        "pass",
        ["here raises AssertionError (torch_symm_mem)", "torch_symm_mem=accepts"],
    ),
    "a result that is not lost": (
        "0.5.9",
        "torch_symm_mem_comm.all_reduce(input_)\n        else",
        "torch_symm_mem_comm.all_reduce(input_, out=input_)\n        else",
        ["result lost", "torch_symm_mem"],
    ),
    "a clone gone": ("0.5.23", "out = input_.clone()", "out = input_", ["auto_clone", "compiling=True", "pynccl=absent"]),
}


@pytest.mark.network
@pytest.mark.parametrize(("release", "old", "new", "said"), PLANTED.values(), ids=PLANTED)
def test_a_planted_difference_is_found_and_named(release: str, old: str, new: str, said: list[str]) -> None:
    ruleset = known_release(release).ruleset
    clean = {d for r in compare_rules(Tree(_fetch.fetch(release)), ruleset) for d in r.differences}
    found = [d for r in compare_rules(Edited(release, old, new), ruleset) for d in r.differences if d not in clean]
    text = "\n".join(found)
    assert found and all(word in text for word in said), text
    assert len(found) <= 24, "differences are grouped, not listed"


@pytest.mark.network
def test_grouped_differences_count_every_differing_state() -> None:
    tree = Edited("0.5.9", "elif is_in_piecewise_cuda_graph():", "elif False:")
    theirs, ours = codes_of(Dispatch(tree).walk()), np.asarray(_core.walk(RULESETS.index("E10")), dtype=np.uint8)
    differing = int((theirs != ours).any(axis=1).sum())
    lines = compare_rules(tree, "E10")[0].differences
    assert sum(int(line.split()[0]) for line in lines) == differing == 1296


@pytest.mark.network
def test_code_that_cannot_be_run_is_a_difference_and_not_a_success() -> None:
    report = conform_tree(Edited("0.5.9", "elif is_in_piecewise_cuda_graph():", "elif a_new_question():"), "0.5.9")
    assert not report.ok
    assert any("could not be run" in d and "a_new_question" in d for d in report.differences)


@pytest.mark.network
def test_a_changed_default_is_found_and_a_computed_one_is_listed() -> None:
    flipped = Edited("0.5.9", "enable_mscclpp: bool = False", "enable_mscclpp: bool = True", ARGUMENTS)
    assert compare_flags(flipped, "0.5.9")[0].differences == ["enable_mscclpp: SGLang True, here False"]
    computed = Edited("0.5.9", "enable_mscclpp: bool = False", "enable_mscclpp: bool = guess()", ARGUMENTS)
    assert compare_flags(computed, "0.5.9")[0].not_conformed == ["enable_mscclpp: SGLang computes its default"]
    assert read_flags(computed)["enable_mscclpp"] is COMPUTED


@pytest.mark.network
def test_changed_code_of_a_gate_is_found_by_its_hash() -> None:
    tree = Edited(
        "0.5.9",
        "_SUPPORTED_WORLD_SIZES = [2, 4, 6, 8]",
        "_SUPPORTED_WORLD_SIZES = [2, 4, 6, 8, 9]",
        "srt/distributed/device_communicators/custom_all_reduce.py",
    )
    assert conform_module.compare_fingerprints(tree, "0.5.9").differences == ["custom: its code is unknown"]


@pytest.mark.network
def test_a_release_that_is_not_tabulated_is_held_against_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conform_module, "RELEASES", tuple(r for r in RELEASES if r != "0.5.8"))
    monkeypatch.setattr(
        conform_module, "_comparisons", lambda ruleset: {"dispatch": lambda tree, _: compare_rules(tree, ruleset)}
    )
    report = conform("0.5.8")
    assert report.ok and report.ruleset == "E9"
    assert any("equal in every state" in note for note in report.notes)
    assert any(note.startswith("gate custom: the code of 0.5.7 to 0.5.8.post1") for note in report.notes)


@pytest.mark.network
def test_a_gates_differences_of_one_cause_are_one_line_that_names_it() -> None:
    tree = Edited(
        "0.5.9",
        "_SUPPORTED_WORLD_SIZES = [2, 4, 6, 8]",
        "_SUPPORTED_WORLD_SIZES = [2, 4, 6, 8, 9]",
        "srt/distributed/device_communicators/custom_all_reduce.py",
    )
    (line,) = compare_custom(tree, "0.5.9").differences
    assert re.match(r"\d{2,} cases where world_size=9: ", line) and "state: SGLang 'accepts', here 'disabled'" in line


def test_two_causes_are_two_lines_and_count_every_case() -> None:
    result = Result("gate")
    group = Grouping(result, {"world_size": 8, "arch": 90, "nodes": 1})
    for world_size in range(2, 17):
        for arch in (90, 100):
            for nbytes in (16, 32, 48):
                wrong = world_size == 9 or arch == 100 and world_size == 4 and nbytes > 16
                group.check(
                    "state",
                    {"world_size": world_size, "arch": arch},
                    {"nbytes": nbytes},
                    "accepts",
                    "declines" if wrong else "accepts",
                )
    group.close()
    assert result.compared == 90
    assert result.differences == [
        "6 cases where world_size=9: state: SGLang 'accepts', here 'declines'",
        "2 cases where world_size=4 and arch=100: state: SGLang 'accepts', here 'declines' (nbytes in (32, 48))",
    ]


@pytest.mark.parametrize("text", [5, None, b"0.5.9"])
def test_what_is_no_text_is_refused(text: Any) -> None:
    with pytest.raises(InputError, match="sglang="):
        conform(text)


def test_an_index_that_does_not_answer_fails_and_never_skips(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SGLANG_PROBE_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    with pytest.raises(ProbeUnavailable, match="did not answer"):
        conform("0.5.9")


@pytest.mark.parametrize(
    ("text", "said"), [("0.3.6", "vLLM"), ("0be30d4", "path/to/sglang@0be30d4"), ("nonsense", "not a released")]
)
def test_what_cannot_be_compared_is_refused_with_a_remedy(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        conform(text)


def test_a_report_says_what_was_compared_and_what_was_not() -> None:
    results = [Result("dispatch", 3), Result("custom", 5, [f"difference {i}" for i in range(20)], ["a CUDA kernel's threshold"])]
    report = Report("0.5.9", "0.5.9", "E10", results)
    text, page, data = str(report), report._repr_html_(), report.to_dict()
    assert "8 answers compared, 20 differences" in text and "and 8 more" in text and "a CUDA kernel's threshold" in text
    assert "difference 0" in page and "a CUDA kernel&#x27;s threshold" in page
    assert (data["compared"], len(data["differences"]), data["ok"]) == (8, 20, False)
    assert not Report("x", "x", "E1").ok, "nothing compared is no success"


def test_the_states_of_the_walk_are_those_of_the_core() -> None:
    bits = {row[0]: 1 << i for i, row in enumerate(_core.CONDITIONS)}
    levels = {"disabled": ("_present",), "declines": ("_present", "_enabled"), "accepts": ("_present", "_enabled", "_accepts")}

    def word(i: int) -> int:
        found = bits["ranks"] if i else 0
        for name, value in state(i).items():
            if name == "pynccl":
                found |= sum(
                    bits[name + s] for s in {"disabled": ("_present",), "enabled": ("_present", "_enabled")}.get(value, ())
                )
            elif isinstance(value, str):
                found |= sum(bits[name + s] for s in levels.get(value, ()))
            elif name != "world_size":
                found |= bits[name] * value
        return found

    assert [word(i) for i in range(STATE_COUNT)] == [_core.state_word(i) for i in range(STATE_COUNT)]


def test_every_code_of_the_core_can_be_said_in_words() -> None:
    said = {describe(decode(row)) for i in range(len(RULESETS)) for row in np.unique(np.asarray(_core.walk(i)), axis=0)}
    assert len(said) > 20 and all(said)


Rows = list[dict[str, Any]]


@given(st.sets(st.integers(0, STATE_COUNT - 2), min_size=1, max_size=200))
def test_grouping_covers_each_case_once_and_no_other(chosen: set[int]) -> None:
    rows: Rows = [state(i + 1) for i in sorted(chosen)]
    lines = group_cases([(row, "differs") for row in rows], DOMAIN)
    assert sum(int(line.split()[0]) for line in lines) == len(rows)
    for line in lines:
        terms = dict(_term(t) for t in line.split(" where ")[1].split(" and ")) if " where " in line else {}
        matching = [r for r in rows if all(str(r[name]) in values for name, values in terms.items())]
        size = int(np.prod([len(terms.get(name, values)) for name, values in DOMAIN.items()]))
        assert len(matching) == size == int(line.split()[0])


def _term(text: str) -> tuple[str, list[str]]:
    name, _, values = text.partition(" in (") if " in (" in text else text.partition("=")
    return name, values.rstrip(")").split(", ")
