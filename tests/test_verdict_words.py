"""What people read of a verdict: ends of intervals that differ, work that differs, and files that are no figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import measured
import numpy as np
import pytest

from sglang_probe import InputError
from sglang_probe._measure.measurement import Measurement
from sglang_probe._verdict.arm import Arm, arm
from sglang_probe._verdict.judge import Error, judge
from sglang_probe._verdict.nouns import Finding, Verdict
from sglang_probe._verdict.verdict import verdict


def test_the_ends_of_a_narrow_interval_differ_and_a_p_is_never_nothing() -> None:
    draw = np.random.default_rng(1)
    found = verdict(100 + draw.standard_normal(20_000), 101 + draw.standard_normal(20_000), unit="us")
    assert "1.00 % higher, 90 % interval 0.99 to 1.02 %" in found.sentence
    assert found.p == 0.0 and "(p < 1e-300)" in found.reason and "p = 0" not in found.reason
    wide = verdict([10.0, 11.0, 12.0, 13.0], [20.0, 21.0, 22.0, 23.0], unit="us")
    assert "interval 53.8 to 130.0 %" in wide.sentence


@pytest.mark.parametrize(
    ("one", "line"),
    [
        (Finding("warm_up", "a", "3 of 5 runs warmed up"), "a: 3 of 5 runs warmed up"),
        (Finding("modes", "a", "a has a slow mode"), "a has a slow mode"),
        (Finding("drift", "", "figures went up"), "figures went up"),
    ],
)
def test_a_finding_of_one_arm_says_of_which(one: Finding, line: str) -> None:
    assert one.line == line


def file_of(file: Path, **changes: object) -> Path:
    draw = np.random.default_rng(len(file.name))
    cells = [
        measured.cell(0, **({"process": i, "device_us": (10 + draw.random((2, 5))).tolist()} | changes))  # type: ignore[arg-type]
        for i in range(6)
    ]
    return Path(Measurement(tuple(cells), measured.PROVENANCE, measured.PLAN).write(file))


def test_two_files_of_unlike_work_are_told_and_two_ways_to_do_one_thing_are_not(tmp_path: Path) -> None:
    small, large = file_of(tmp_path / "a.jsonl", nbytes=16384), file_of(tmp_path / "bb.jsonl", nbytes=65536)
    told = [one.text for one in verdict(small, large).findings]
    assert told[0] == "they did not do the same: a is of 16 KiB of bf16 on 2 CPU ranks, b of 64 KiB of bf16 on 2 CPU ranks"
    before, after = arm(small, label="before"), arm(large, label="after")
    assert "before is of 16 KiB" in verdict(before, after).findings[0].text
    other = file_of(tmp_path / "ccc.jsonl", nbytes=16384, path="pynccl_in_place", kernel="", phase="eager")
    assert not any("did not do the same" in one.text for one in verdict(small, other).findings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2, 3]\n", "this is JSON: give its figures, as 89.2,94.1, or a CSV file"),
        ('{"us": [1]}\n', "this is JSON"),
        ('{"format":"sglang_probe experiment","version":1}\n', "has an answer of its own: probe.AbResult.read"),
    ],
)
def test_a_file_of_another_kind_is_named_for_what_it_is(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        arm(path, label="a", unit="us")
    assert said in caught.value.remedy


def test_the_order_that_nobody_told_is_said_once_and_only_of_a_word() -> None:
    said = "their order in time is not known"
    apart = verdict([1.0, 1.1, 1.2, 1.3], [2.0, 2.1, 2.2, 2.3], unit="us")
    assert str(apart).count(said) == 1 and apart.reason.count(said) == 1
    assert said not in str(verdict([1.0, 1.5], [1.2, 1.3], unit="us"))
    assert math.isclose(apart.effect, 0.87, abs_tol=0.02)


def timed(a: Sequence[float], b: Sequence[float], order_a: Sequence[int], order_b: Sequence[int]) -> Verdict:
    one, other = (
        Arm(label, tuple((value,) for value in values), "us", order=tuple(order))
        for label, values, order in (("a", a, order_a), ("b", b, order_b))
    )
    return judge(one, other, "lower", 0.02, Error(0.95, 0.05))


def test_arms_one_after_the_other_are_asked_for_interleaved_runs_since_more_of_the_same_would_not_settle_it() -> None:
    figures = ([10.0, 10.3, 9.9, 10.2, 10.1], [10.2, 9.8, 10.3, 10.0, 10.4])
    after, known = timed(*figures, range(5), range(5, 10)), timed(*figures, range(0, 10, 2), range(1, 10, 2))
    assert "interleaved runs an arm would settle it" in after.sentence and after.runs_needed
    assert "runs an arm in all would settle it" in known.sentence
    few = timed([10.0, 10.1], [11.0, 11.1], range(2), range(2, 4))
    assert few.runs_needed is not None and few.runs_needed >= 6  # of fewer blocks no order decides


def test_an_order_that_each_arm_counts_by_itself_is_none() -> None:
    figures = ([10.0, 10.1, 10.2, 10.3, 10.4], [12.0, 12.1, 12.2, 12.3, 12.4])
    alone = timed(*figures, range(5), range(5))
    assert alone.reason.endswith("their order in time is not known, and a drift would look the same") and not alone.findings
    assert "random walk" not in alone.method and "random walk" in timed(*figures, range(5), range(4, 9)).method


def test_arms_that_overlap_in_time_are_mostly_before_each_other() -> None:
    found = timed([10.0, 10.1, 10.2, 10.1], [12.0, 12.1, 12.2, 12.1], [0, 1, 3, 5], [2, 4, 6, 7])
    assert "; a was measured mostly before b, and the interval" in found.reason


def test_arms_that_alternate_are_not_called_uneven() -> None:
    draw = np.random.default_rng(0)
    told = 0
    for _ in range(300):
        a, b = np.exp(0.03 * draw.standard_normal((2, 20)) + [[0], [0.02]]).tolist()
        found = timed(a, b, range(0, 40, 2), range(1, 40, 2))
        if found.sentence.startswith("UNDECIDED: not settled"):
            told += 1
            assert found.reason.startswith("there are no blocks, and a drift") and found.reason.endswith(
                "interleave them in blocks"
            )
    assert told
