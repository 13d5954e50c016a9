"""`explain`: every word, each with a case in which one changed input gives another word; the motivating case as it must be printed.

Without these a change that cannot be reached would be blamed, or one that can would be let off.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cost_files import cells, write
from scipy import stats

from sglang_probe._explain.explain import explain
from sglang_probe._explain.sides import EXAMPLE
from sglang_probe._explain.types import WORDS, Explanation, Word
from sglang_probe._releases import resolve

R18 = str(EXAMPLE["launch"])
SERVER: dict[str, Any] = {"gpu": "rtx-pro-6000", "link": "pcie", "sglang_before": "bba2fc4", "sglang_after": "0be30d4"}
MIB = 1 << 20
# 1024 rows of 4096 bf16 are exactly 8 MiB, where v0.5.8 takes NCCL and v0.5.9 its own kernel: 65 calls a step.
EIGHT: dict[str, Any] = {
    "launch": "python -m sglang.launch_server --model-path meta-llama/Meta-Llama-3-8B --tp 8 --cuda-graph-max-bs 1024",
    "model": "Llama-3-8B",
    "gpu": "h200",
    "link": "nvlink",
    "batch": 1024,
    "context": "capture",
    "sglang_before": "0.5.8",
    "sglang_after": "0.5.9",
}
NCCL_US, CUSTOM_US = (200.0, 202.0, 198.0, 201.0, 199.0), (150.0, 151.0, 149.0, 150.0, 150.5)
WIGGLE = (0.0, 0.1, -0.1, 0.05, -0.05)


def runs(ms: float, unit: str = "ms") -> list[str]:
    """Five runs around a figure: no two are alike, and arms that differ are fully apart."""
    return [f"{ms + more:.2f}{unit}" for more in WIGGLE]


def by_process(us: Sequence[float]) -> dict[str, Any]:
    return {"device_us": us, "elapsed_us": us, "world_size": 8}


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both ways of the 8 MiB case, on eight NVLinked H200."""
    return write(
        tmp_path_factory.mktemp("costs") / "8x_h200.jsonl",
        cells(8 * MIB, **by_process(NCCL_US)),
        cells(8 * MIB, path="custom", kernel="two_shot", **by_process(CUSTOM_US)),
        gpus=8,
    )


def interval(us: Sequence[float]) -> tuple[float, float, float]:
    mean = sum(us) / len(us)
    half = stats.t.ppf(0.975, len(us) - 1) * stats.tstd(us) / math.sqrt(len(us))
    return mean, mean - half, mean + half


# ------------------------------------------------------------------------------------------------------------ the motivating case


@pytest.fixture(scope="module")
def example() -> Explanation:
    return explain(example=True)


def test_the_motivating_change_cannot_be_reached_and_the_states_are_counted(example: Explanation) -> None:
    assert example.word is Word.CANNOT_UNREACHABLE
    assert example.sentence == ("CANNOT (unreachable): no all-reduce of this server changes its route from bba2fc4 to 0be30d4")
    p = example.proof
    assert (p.states, p.changed, dict(p.fixed), p.states_fixed, p.changed_fixed) == (12289, 1296, {"piecewise": False}, 6145, 0)
    assert p.diff.changed == 0 and p.classes == 300
    assert [(rule.target, rule.reachable) for rule in p.rules] == [("piecewise_pynccl", False)]
    text = str(example)
    assert "0 of 6,145 states of the rules change with piecewise=False (1,296 of 12,289 in all)" in text
    assert "rule piecewise_pynccl, which only 0be30d4 has, cannot fire" in text and "prefill graph" in text


def test_the_motivating_case_says_that_one_run_an_arm_tells_neither_figure_from_the_other(example: Explanation) -> None:
    text = str(example)
    assert "one run an arm cannot tell 89 from 82 tok/s (plain decoding)" in text
    assert "one run an arm cannot tell 19 from 29 ms (verify step)" in text
    assert {what: str(verdict.word) for what, verdict in example.verdicts.items()} == {
        "verify step": "UNDECIDED",
        "plain decoding": "UNDECIDED",
    }


def test_the_motivating_case_has_the_branch_had_it_been_taken_and_eager_against_captured(example: Explanation) -> None:
    taken = [bound for bound in example.bounds if bound.kind == "not_taken" and not bound.illustration]
    assert [(b.before, b.after, b.calls) for b in taken] == [
        ("torch_distributed, eager", "pynccl_out_of_place, eager", 123),
        ("pynccl_in_place, captured", "pynccl_out_of_place, captured", 123),
    ]
    eager = example.bound("eager")
    assert eager is not None and (eager.before, eager.after) == ("pynccl_in_place, captured", "torch_distributed, eager")
    for bound in (*taken, eager):
        assert bound.ms is None and bound.why.startswith("not measured on 8x rtx-pro-6000 over PCIe")
    captured = example.bound("captured")
    assert captured is not None and captured.ms is not None and captured.origins == ("published",)
    assert "RTX PRO 6000" in captured.machine and captured.assumed
    assert "--b-target torch_distributed --a-phase captured --b-phase eager --tokens 3 --hidden 7168" in example.experiment


def test_routes_are_all_there_and_none_changes(example: Explanation) -> None:
    assert sum(route.count for route in example.routes) == example.calls == 123
    assert not any(route.changes for route in example.routes)
    assert {(r.before, r.before_bytes) for r in example.routes} == {("torch_distributed, eager", 43008)}


def test_a_difference_that_is_real_is_then_somebody_elses() -> None:
    found = explain(runs(19), runs(29), launch=R18, **SERVER)
    assert found.word is Word.CANNOT_UNREACHABLE and found.seen[0].settled
    assert "verify step: the difference is there all the same, so something else made it" in found.findings


# -------------------------------------------------------------------------------------------------- unreachable, by one flag not


def test_the_rule_is_reached_once_the_verify_step_runs_in_a_piecewise_graph() -> None:
    flags = " --enable-piecewise-cuda-graph --disable-cuda-graph"
    found = explain(runs(19), runs(29), launch=R18 + flags, **SERVER)
    assert found.word is Word.COULD
    assert {(r.before, r.after) for r in found.routes if r.changes} >= {
        ("torch_distributed, eager", "pynccl_out_of_place, captured")
    }
    assert [rule.reachable for rule in found.proof.rules] == [True]


def test_a_decode_graph_takes_the_step_out_of_the_piecewise_one_again() -> None:
    found = explain(runs(19), runs(29), launch=R18 + " --enable-piecewise-cuda-graph", **SERVER)
    assert found.word is Word.CANNOT_UNREACHABLE
    assert found.sentence.startswith("CANNOT (unreachable): no all-reduce of this step")
    assert "with piecewise=False, as in this step" in found.reason, "the server itself does set it"
    assert any("do change, but for no call of this step" in text for text in (found.reason, *found.findings))


def test_a_smaller_batch_is_a_smaller_tensor_and_its_route_is_the_same(costs: Path) -> None:
    at, below = (explain(runs(20), runs(16.7), costs=costs, **{**EIGHT, "batch": batch}) for batch in (1024, 512))
    assert at.word is Word.COULD and below.word is Word.CANNOT_UNREACHABLE
    assert {(r.before, r.after) for r in at.routes} == {
        ("pynccl_in_place, captured", "custom (v1, two_shot, new tensor), captured")
    }


def test_a_gate_whose_code_nobody_knows_is_no_proof_where_calls_ask_it() -> None:
    release = resolve("0.5.9")
    asked, idle = (replace(release, name="mine", unknown_gates=(gate,)) for gate in ("custom", "quick"))
    question = {**EIGHT, "sglang_before": "0.5.9"}
    found = explain(runs(20), runs(16.7), **{**question, "sglang_after": asked})
    assert found.word is Word.COULD and "nobody knows the code of custom in mine" in found.sentence
    assert any("custom in mine" in text for text in found.warnings)
    assert explain(runs(20), runs(16.7), **{**question, "sglang_after": idle}).word is Word.CANNOT_UNREACHABLE


def test_where_the_code_is_not_known_no_table_of_a_known_path_excludes_anything(costs: Path) -> None:
    asked = replace(resolve("0.5.9"), name="mine", unknown_gates=("custom",))
    found = explain(runs(20), runs(40), costs=costs, **{**EIGHT, "sglang_before": "0.5.9", "sglang_after": asked})
    assert found.word is Word.COULD


def test_one_rank_makes_no_all_reduce() -> None:
    launch = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 1"
    found = explain(runs(20), runs(16.7), launch=launch, gpu="h200", sglang_before="0.5.9", sglang_after="0.5.16")
    assert found.word is Word.CANNOT_UNREACHABLE and "a group of one rank makes no all-reduce" in found.reason


# ----------------------------------------------------------------------------------------------------- too small, could, the other way


def test_what_routes_explain_is_calls_times_the_difference_with_its_far_ends(costs: Path) -> None:
    bound = explain(runs(20), runs(16.7), costs=costs, **EIGHT).bound("routes")
    assert bound is not None and bound.ms is not None and bound.calls == 65
    was, now = interval(NCCL_US), interval(CUSTOM_US)
    assert bound.ms.value == pytest.approx(65 * (now[0] - was[0]) / 1e3)
    assert (bound.ms.low, bound.ms.high) == pytest.approx((65 * (now[1] - was[2]) / 1e3, 65 * (now[2] - was[1]) / 1e3))
    assert bound.quantity == "first call to end" and bound.origins == ("measured elsewhere",)
    assert bound.machine == "8x NVIDIA H200 over NVLink" and not bound.assumed


@pytest.mark.parametrize(
    ("before", "after", "word", "told"),
    [
        (20.0, 16.7, Word.COULD, "COULD: these routes explain 3.24 ms (3.06 to 3.43) of the 3.3 ms"),
        (20.0, 12.7, Word.CANNOT_TOO_SMALL, "CANNOT (too small): these routes explain at most 3.43 ms of the 7.3 ms"),
        (20.0, 22.7, Word.CANNOT_TOO_SMALL, "CANNOT (the other way): these routes make a step 3.24 ms shorter"),
    ],
)
def test_the_far_end_of_what_routes_explain_is_held_against_the_near_end_of_what_was_seen(
    costs: Path, before: float, after: float, word: Word, told: str
) -> None:
    found = explain(runs(before), runs(after), costs=costs, **EIGHT)
    assert found.word is word and found.sentence.startswith(told)
    assert "65 calls go from pynccl_in_place, captured to custom (v1, two_shot, new tensor), captured" in found.reason


def test_the_edge_between_too_small_and_could_is_where_the_two_ends_meet(costs: Path) -> None:
    bound = explain(runs(20), runs(16.7), costs=costs, **EIGHT).bound("routes")
    assert bound is not None and bound.ms is not None and bound.ms.low is not None
    for more, word in ((-0.05, Word.COULD), (0.05, Word.CANNOT_TOO_SMALL)):
        # The near end of such a difference is about 0.13 ms nearer than its middle.
        wanted = 20 + bound.ms.low - 0.13 - more
        found = explain(runs(20), runs(wanted), costs=costs, **EIGHT)
        near = found.seen[0].change_ms.high
        assert near is not None
        assert (-near > -bound.ms.low) == (word is Word.CANNOT_TOO_SMALL) and found.word is word


def test_one_run_an_arm_is_nothing_to_explain_yet_and_the_bound_is_told_all_the_same(costs: Path) -> None:
    found = explain("20ms", "12.7ms", costs=costs, **EIGHT)
    assert found.word is Word.NOTHING_TO_EXPLAIN
    assert found.sentence == "NOTHING TO EXPLAIN yet: one run an arm cannot tell 20 from 12.7 ms (decode step)"
    assert "were it real, these routes would explain at most 3.43 ms of it" in found.reason
    assert explain(runs(20), runs(12.7), costs=costs, **EIGHT).word is Word.CANNOT_TOO_SMALL, "five runs an arm"


def test_arms_that_are_the_same_within_the_margin_leave_nothing_to_explain_at_all(costs: Path) -> None:
    found = explain(runs(20) * 3, runs(20.01) * 3, costs=costs, **EIGHT)
    assert found.word is Word.NOTHING_TO_EXPLAIN and str(found.verdicts["decode step"].word) == "SAME"
    assert found.sentence.startswith("NOTHING TO EXPLAIN: ") and "yet" not in found.sentence


def test_arms_inside_the_noise_say_how_many_runs_would_tell(costs: Path) -> None:
    found = explain(["20ms", "23ms", "21ms", "25ms", "19ms"], ["18ms", "22ms", "20ms", "24ms", "21ms"], costs=costs, **EIGHT)
    assert found.word is Word.NOTHING_TO_EXPLAIN
    needed = found.verdicts["decode step"].runs_needed
    assert needed is not None and needed > 5 and f"--runs {needed}" in found.experiment


def test_what_is_not_measured_excludes_nothing(costs: Path) -> None:
    found = explain(runs(20), runs(12.7), costs="none", **EIGHT)
    assert found.word is Word.COULD and "not measured" in found.sentence
    bound = found.bound("routes")
    assert bound is not None and bound.ms is None
    assert found.experiment.startswith("sglang-probe ab --a-target pynccl_in_place --b-target two_shot --phase captured")


def test_all_all_reduces_together_bound_what_no_difference_is_measured_for(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", cells(8 * MIB, path="custom", kernel="two_shot", **by_process(CUSTOM_US)), gpus=8)
    ceiling = 65 * interval(CUSTOM_US)[2] / 1e3
    near, far = (explain(runs(20), runs(20 + ceiling + more), costs=file, **EIGHT) for more in (-0.5, 0.5))
    assert near.word is Word.COULD
    assert far.word is Word.CANNOT_TOO_SMALL and "all all-reduces of the step together take 9.82 ms at most" in far.sentence
    # Became it shorter, the step before is what could have been saved: that one is not measured.
    assert explain(runs(40), runs(40 - ceiling - 0.5), costs=file, **EIGHT).word is Word.COULD


def test_fused_calls_are_in_no_ceiling() -> None:
    launch = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"
    question: dict[str, Any] = {"launch": launch, "gpu": "h200", "sglang_before": "0.5.6", "sglang_after": "0.5.7"}
    found = explain(runs(19), runs(29), **question)
    fused = "COULD: 121 calls that went by custom (v1, one_shot, new tensor), captured are fused or not made after the change"
    assert found.word is Word.COULD and found.sentence.startswith(fused)
    # Of the step before nothing was fused, but the kernel saves the norms too: more than all-reduces ever took.
    shorter = explain(runs(29), runs(19), **question)
    assert shorter.word is Word.COULD and "all its all-reduces together took 0.6" in shorter.reason
    assert "what a fused kernel saves beside them is measured by nothing here" in shorter.reason


# ---------------------------------------------------------------------------------------------------------------------- which word first


def test_the_first_word_that_holds_is_the_answer(costs: Path) -> None:
    assert list(WORDS) == list(Word)
    both: dict[str, Any] = {"before": ["19ms", "89tok/s"], "after": ["29ms", "82tok/s"]}
    found = explain(**both, launch=R18, **SERVER)
    assert found.word is Word.INCONSISTENT and found.bound("routes") is not None
    assert explain(**both, accepted=(1.8, 2.6), launch=R18, **SERVER).word is Word.CANNOT_UNREACHABLE, "before: undecided"


def test_the_answer_is_about_the_difference_that_is_established(costs: Path) -> None:
    question = {**EIGHT, "costs": costs}
    rates = (
        [f"{1024e3 / ms:.0f}tok/s" for ms in (20, 20.1, 19.9, 20.05)],
        [f"{1024e3 / ms:.0f}tok/s" for ms in (12.7, 12.8, 12.6, 12.65)],
    )
    found = explain([*rates[0], "20ms"], [*rates[1], "12.7ms"], **question)
    assert [(s.what, s.settled) for s in found.seen] == [("decode step", False), ("plain decoding", True)]
    assert found.word is Word.CANNOT_TOO_SMALL


# -------------------------------------------------------------------------------------------------------------------------- what it gives


def test_everything_is_plain_data_and_every_number_says_where_it_is_from(example: Explanation) -> None:
    plain = json.loads(json.dumps(example.to_dict(), allow_nan=False))
    assert plain["word"] == "CANNOT_UNREACHABLE" and plain["proof"]["states_fixed"] == 6145
    assert {number["origin"] for number in plain["numbers"]} == {
        *("given", "derived", "counted", "published", "shipped", "not measured")
    }
    assert all((number["value"] is None) == (number["origin"] == "not measured") for number in plain["numbers"])
    assert {number["unit"] for number in plain["numbers"]} == {"ms", "tok/s", "ms a step", "us a call", ""}


def test_why_shows_calls_numbers_and_assumptions_that_the_answer_alone_does_not(example: Explanation) -> None:
    short, long = str(example), example.why()
    assert short.splitlines()[0] == example.sentence and short.splitlines()[1].startswith("because ")
    for title in ("Routes of this step", "Every number, with its origin", "Assumed"):
        assert title in long and title not in short
    assert "Waiting for the last rank is in none of these figures, and no change of path causes it" in short


def test_a_bound_is_printed_whatever_the_word(costs: Path, example: Explanation) -> None:
    cases = [example, *(explain(runs(20), runs(ms), costs=costs, **EIGHT) for ms in (16.7, 12.7, 20.1))]
    assert len({case.word for case in cases}) >= 3
    for case in cases:
        assert "the change of routes" in str(case) and "all all-reduces of the step" in str(case)


# ------------------------------------------------------------------------------------------------------------------ a cycle's other calls


def eagle(tokens: int) -> str:
    """The 8 MiB server with a chain of drafts: so many tokens of a request in a verify step."""
    return (
        f"{EIGHT['launch']} --speculative-algorithm EAGLE --speculative-num-steps {tokens - 1} --speculative-eagle-topk 1 "
        f"--speculative-num-draft-tokens {tokens} --speculative-draft-model-path somewhere/eagle"
    )


def test_the_answer_is_about_the_step_of_the_difference_and_names_the_other_one() -> None:
    # Two draft tokens of 512 requests are 8 MiB, whose route changes; one token of each is half of that.
    question = {**EIGHT, "launch": eagle(2), "batch": 512, "costs": "none"}
    verify = explain(runs(20), runs(16.7), plain_before="9000tok/s", plain_after="9500tok/s", **question)
    assert verify.word is Word.COULD
    plain = explain("20ms", "16.7ms", plain_before=runs(9000, "tok/s"), plain_after=runs(9500, "tok/s"), **question)
    assert plain.word is Word.CANNOT_UNREACHABLE
    assert any(text.startswith("routes of the other step that was seen do change: 65 calls go") for text in plain.findings)


def test_a_whole_cycle_is_not_let_off_while_the_drafts_own_calls_change() -> None:
    # The draft's one pass is 8 MiB here, and the verify step is three times that.
    question = {**EIGHT, "launch": eagle(3), "costs": "none"}
    rates = explain(runs(9000, "tok/s"), runs(9500, "tok/s"), accepted=1.5, **question)
    assert rates.word is Word.COULD and "the draft's own all-reduces change (draft" in rates.sentence
    assert explain(runs(20), runs(16.7), **question).word is Word.CANNOT_UNREACHABLE, "a verify step has none of them"


def test_calls_that_raise_are_no_slower_step() -> None:
    launch = (
        "python -m sglang.launch_server --model-path meta-llama/Meta-Llama-3-8B --tp 4 --disable-custom-all-reduce "
        "--enable-torch-symm-mem"
    )
    question: dict[str, Any] = {"launch": launch, "model": "Llama-3-8B", "gpu": "h200", "context": "eager", "costs": "none"}
    found = explain(runs(20), runs(29), sglang_before="0.5.2", sglang_after="0.5.4", **question)
    raised = [route for route in found.routes if route.after.startswith("raises")]
    assert raised and found.word is Word.COULD and "what that costs is not measured" in found.sentence
    assert any("calls raise an exception in 0.5.4: a server fails there" in text for text in found.findings)
