"""What people read of a verdict: ends of intervals that differ, work that differs, and files that are no figures."""

from __future__ import annotations

import math
from pathlib import Path

import measured
import numpy as np
import pytest

from sglang_probe import InputError
from sglang_probe._measure.measurement import Measurement
from sglang_probe._verdict.arm import arm
from sglang_probe._verdict.nouns import Finding
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
