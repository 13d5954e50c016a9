"""The sentences of `explain`: each is English, says what its figures say, in the direction that was seen, and its reason proves it.

Without these a true answer would be read as its opposite.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from cost_files import cells, write
from test_explain import EIGHT, MIB, NCCL_US, by_process, example, runs

from sglang_probe._explain.explain import explain
from sglang_probe._explain.types import Explanation, Word

__all__ = ["example"]  # a fixture


def test_calls_that_are_fused_on_both_sides_are_counted_and_said_to_be_in_no_sum() -> None:
    launch = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"
    found = explain(runs(19), runs(29), launch=launch, gpu="h200", batch=8, sglang_before="0.5.9", sglang_after="0.5.16")
    assert found.word is Word.CANNOT_TOO_SMALL
    told = (
        "a fused kernel takes 121 of 123 all-reduces of a step, with the norm behind them: they have no route, and are in no sum"
    )
    assert told in found.findings and told in str(found)
    assert {bound.what for bound in found.bounds if bound.kind == "ceiling"} == {
        *("all all-reduces of the step that are not fused, before", "all all-reduces of the step that are not fused, after")
    }
    assert not any("fused" in text for text in explain(example=True).findings)


def test_what_goes_the_other_way_by_its_figures_is_told_in_the_direction_that_was_seen(tmp_path: Path) -> None:
    wide = (150.0, 300.0, 149.0, 150.0, 150.5)
    file = write(
        tmp_path / "a.jsonl",
        cells(8 * MIB, **by_process(NCCL_US)),
        cells(8 * MIB, path="custom", kernel="two_shot", **by_process(wide)),
        gpus=8,
    )
    found = explain(runs(20), runs(21), costs=file, **EIGHT)
    ms = found.bound("routes").ms  # type: ignore[union-attr]
    assert ms is not None and ms.value < 0 < 1 < (ms.high or 0)
    told = f"COULD: these routes make a step {-ms.value:.3g} ms shorter, but by the end of their interval {ms.high:.3g} ms longer"
    assert found.word is Word.COULD and found.sentence.startswith(told)


def test_the_reason_proves_what_the_sentence_says() -> None:
    launch = "python -m sglang.launch_server --model-path meta-llama/Meta-Llama-3-8B --tp 2 --disable-custom-all-reduce"
    asked: dict[str, Any] = {"launch": launch, "model": "Llama-3-8B", "gpu": "h200"}
    found = explain("19ms", "29ms", sglang_before="0.5.9", sglang_after="0.5.16", **asked)
    # States of the rules do change between these two: it is the walk over this server that says no.
    assert found.word is Word.CANNOT_UNREACHABLE and found.proof.changed and not found.proof.fixed
    assert re.match(
        r"0 of \d+ size classes of this server, .* change; [0-9,]+ of 12,289 states of the rules change, ", found.reason
    )
    assert found.reason.endswith("and this server comes to none of them")
    other = explain("19ms", "29ms", **{**EIGHT, "batch": 8})
    assert other.reason.startswith("routes of this server do change, but for no call of this step: in ")


@pytest.mark.parametrize("context", ["capture", "eager"])
def test_no_sentence_breaks_where_a_whole_is_not_measured(context: str) -> None:
    launch = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"
    question: dict[str, Any] = {"launch": launch, "gpu": "h200", "batch": 8, "context": context}
    found = explain(runs(19), runs(29), sglang_before="0.5.9", sglang_after="0.5.16", costs="none", **question)
    assert found.word is Word.COULD
    assert found.reason == (
        "nothing that is measured excludes that as the cause of the 10 ms (9.82 to 10.2) by which a step became longer: "
        "what all its all-reduces took together after the change is not measured on 8x h200 over NVLink"
    )


def test_what_only_one_of_the_two_steps_says_has_its_side() -> None:
    asked: dict[str, Any] = {"gpu": "h200", "model": "Llama-3-8B", "launch": EIGHT["launch"]}
    notes = explain("19ms", "29ms", sglang_before="0.5.9", sglang_after="0.5.16", **asked).notes
    assert "before: prefill graph: none (off by default in this release)" in notes
    assert "after: prefill graph: breakable (on by default in this release)" in notes
    assert sum("no speculation" in text for text in notes) == 1


def test_a_number_that_is_not_known_says_why_once(example: Explanation) -> None:
    why = example.why()
    assert "not measured (not measured)" not in why
    assert "all all-reduces of the step: 123 calls: not measured on 8x rtx-pro-6000 over PCIe: " in why
    assert "the change of routes: 0 calls: 0 ms a step (counted)" in why


def test_a_gpu_that_nobody_named_is_told_above_the_answer_and_the_machine_stands_with_it() -> None:
    asked: dict[str, Any] = {"launch": EIGHT["launch"], "model": "Llama-3-8B", "sglang_before": "0.5.9", "sglang_after": "0.5.16"}
    assumed, given = explain("19ms", "29ms", **asked), explain("19ms", "29ms", gpu="h200", link="nvlink", **asked)
    assert any(text.startswith("another machine may have another answer: GPU: h200 assumed") for text in assumed.warnings)
    assert str(assumed).startswith("! another machine may have another answer: GPU: h200 assumed")
    assert not given.warnings and "Llama-3-8B on 8 ranks (8x h200 over NVLink), decode step" in str(given)
    alone = explain("19ms", "29ms", **{**asked, "launch": EIGHT["launch"].replace("--tp 8", "--tp 1")}, gpu="h200")
    assert "on 1 rank (" in alone.launch


def test_calls_that_raised_before_the_change_are_told_as_such() -> None:
    launch = "python -m sglang.launch_server --model-path meta-llama/Meta-Llama-3-8B --tp 2 --disable-custom-all-reduce "
    asked: dict[str, Any] = {"launch": launch + "--enable-torch-symm-mem", "model": "Llama-3-8B", "gpu": "h200", "costs": "none"}
    for before, after, told, side in (
        ("0.5.3", "0.5.16", "65 calls that raised AssertionError before the change go by torch_symm_mem", "of another server"),
        ("0.5.16", "0.5.3", "65 calls that went by torch_symm_mem", "a server fails there, it is not slower"),
    ):
        found = explain(runs(19), runs(20), sglang_before=before, sglang_after=after, context="eager", **asked)
        assert found.word is Word.COULD and told in found.sentence and "raises" not in found.sentence
        assert any(text.startswith("65 calls raise an exception in 0.5.3: ") and side in text for text in found.findings)


def test_what_goes_the_other_way_explains_nothing_of_it(tmp_path: Path) -> None:
    file = write(
        tmp_path / "a.jsonl",
        cells(8 * MIB, **by_process(NCCL_US)),
        cells(8 * MIB, path="custom", kernel="two_shot", **by_process(tuple(us - 50 for us in NCCL_US))),
        gpus=8,
    )
    assert explain("20ms", "21ms", costs=file, **EIGHT).reason.endswith("these routes would explain nothing of it")
