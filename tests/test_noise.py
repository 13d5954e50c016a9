"""noise: what so many runs can resolve, how many runs an effect takes, and that equal arms are not told apart.

Invariant: figures are invented with a known spread, so that what is said of it can be computed; one run is of a real command.
"""

from __future__ import annotations

import json
import math
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ab_sides import Side, gave, noisy

from sglang_probe._ab import ab as ab_module
from sglang_probe._ab.noise import NoiseResult, found_again, noise, smallest_effect, told_apart
from sglang_probe._verdict.runs import runs_for


@pytest.fixture(autouse=True)
def _without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who edits this checkout while tests run has another revision from one call to the next, and the file is not continued."""
    monkeypatch.setenv("PATH", "")


def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, runs: int = 20, **more: Any) -> NoiseResult:
    """`noise` of sides that give what they are told."""
    sides = {arm: Side(arm, make) for arm in "ab"}
    for side in sides.values():
        side.to_dict = lambda: {"kind": "command", "label": "x", "figure": {"kind": "last", "text": "", "every": False}}  # type: ignore[method-assign]
    monkeypatch.setattr(ab_module, "sides_of", lambda a, b: sides)
    asked: dict[str, Any] = {"unit": "us", "out": tmp_path / "n.jsonl", "progress": False} | more
    return noise("true", runs=runs, **asked)


def test_the_spread_is_found_and_the_answer_follows_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = simulated(tmp_path, monkeypatch, noisy(100, 0.03, 1), runs=40)
    assert result.runs == 40 and result.experiment.stopped_by == "runs"
    assert 0.022 < result.cv < 0.04 and 0.02 < result.spread < result.spread_most < 0.05
    assert result.smallest == result.effects[40] == smallest_effect(40, result.spread_most, 1 - result.confidence)
    assert set(result.needed) == {0.01, 0.02, 0.05, 0.10}
    for effect, runs in result.needed.items():
        least = runs_for(effect, result.spread_most, paired=True)
        assert runs is not None and least <= runs <= 1.5 * least
    assert re.fullmatch(
        r"NOISE: 40 runs of each arm tell \d\.\d+ % and more from nothing \(4 times in 5\); "
        r"fresh processes of this differ by \d\.\d+ % \(CV\)",
        result.sentence,
    )
    assert re.match(r"runs of each arm that it takes to tell 1 %: \d+, 2 %: \d+, 5 %: \d+, 10 %: \d+$", result.reason)


def test_more_runs_resolve_less_and_smaller_effects_take_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = simulated(tmp_path, monkeypatch, noisy(100, 0.05, 2))
    effects = list(result.effects.values())
    assert effects == sorted(effects, reverse=True) and result.effects[6] > 0.1 and result.effects[50] < 0.1
    needed = [runs for runs in result.needed.values() if runs is not None]
    assert needed == sorted(needed, reverse=True)


@pytest.mark.parametrize("spread", [0.01, 0.03, 0.09])
def test_the_number_of_runs_that_it_asks_for_finds_the_effect(spread: float) -> None:
    """In fresh noise of that spread, in 4 of 5 experiments."""
    differences = np.random.default_rng(round(1000 * spread)).normal(0, spread * math.sqrt(2), 4000)
    asked = {effect: runs for effect in (0.02, 0.05, 0.10) if (runs := runs_for(effect, spread, paired=True)) <= 100}
    assert asked
    for effect, runs in asked.items():
        assert found_again(differences, effect, runs, 0.05) > 0.77, (effect, runs)


def test_planted_effects_are_found_in_the_runs_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = simulated(tmp_path, monkeypatch, noisy(100, 0.02, 4), runs=40)
    assert set(result.found) >= {0.05, 0.10} and all(share >= 0.8 for share in result.found.values())


@pytest.mark.parametrize("seed", range(5))
def test_equal_arms_relabelled_at_random_are_told_apart_no_more_often_than_allowed(seed: int) -> None:
    draw = random.Random(seed)
    differences = [draw.gauss(0, 0.1) for _ in range(12)]
    differences[3] = 5.0  # an outlier
    assert told_apart(np.array(differences), 0.05) <= 0.065  # 2,000 trials: three standard errors above


@pytest.mark.parametrize(
    ("runs", "spread", "said"),
    [
        (2, 0.03, r"2 runs of each arm are too few to tell anything: 6 would tell \d+(\.\d)? % and more \(4 times in 5\)"),
        (5, 0.03, r"5 runs of each arm tell only arms that lie fully apart: 6 would tell \d+(\.\d)? % and more \(4 times in 5\)"),
        (10, 0.03, r"10 runs of each arm tell \d(\.\d)? % and more from nothing \(4 times in 5\)"),
        (10, 0.9, r"10 runs of each arm tell a factor of \d(\.\d)? and more from nothing \(4 times in 5\)"),
        (4, 20.0, r"4 runs of each arm are too few to tell anything, and not even 50 tell a factor of 11"),
    ],
)
def test_the_first_words_are_what_can_be_told_or_how_many_runs_would_tell_something(
    runs: int, spread: float, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(4)
    result = simulated(tmp_path, monkeypatch, lambda number: gave(100 * math.exp(draw.gauss(0, spread))), runs=runs)
    assert re.match(f"NOISE: {said}; fresh processes of this differ by ", result.sentence), result.sentence
    assert ("hardly show the spread itself" in result.reason) == (runs < 10)


def test_figures_that_are_all_one_are_told_as_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = simulated(tmp_path, monkeypatch, lambda number: gave(5.0), runs=6)
    assert result.sentence.startswith("NOISE: all 6 runs of each arm gave one figure: what differs in its last digit")


def test_three_runs_of_one_figure_tell_nothing_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = simulated(tmp_path, monkeypatch, lambda number: gave(5.0), runs=3)
    assert result.sentence.startswith(
        "NOISE: all 3 runs of each arm gave one figure; 3 runs of each arm are too few to tell anything;"
    )


def test_arms_that_are_equal_block_by_block_are_not_told_as_one_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = simulated(tmp_path, monkeypatch, lambda number: gave(5.0 + number // 2 % 3), runs=6)
    assert result.spread == 0 < result.cv
    assert result.sentence.startswith("NOISE: of 6 runs of each arm those of a block gave one figure: what differs"), (
        result.sentence
    )


def test_it_makes_all_runs_whatever_they_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(1000))
    result = simulated(tmp_path, monkeypatch, lambda number: gave(100.0 + 1e-6 * next(calls)), runs=30)
    assert result.runs == 30 and result.needed[0.01] == 6 and result.experiment.whole


def test_one_run_of_each_arm_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = simulated(tmp_path, monkeypatch, noisy(100, 0.05, 2), time_s=1e-9, warm_up=0)
    assert result.runs == 0 and "nothing is known" in result.sentence and math.isnan(result.cv)
    assert json.loads(json.dumps(result.to_dict()))["cv"] is None


def test_modes_and_drift_of_the_runs_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = noisy(100, 0.005, 1)
    result = simulated(
        tmp_path, monkeypatch, lambda number: gave(good(number).figures[0] * (1.5 if number % 5 == 0 else 1)), runs=20
    )
    assert "mode" in result.why()
    assert result.spread > 0.1


# ----------------------------------------------------------------------------------------------------------------------- for real


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NoiseResult]:
    code = "import os; print(100 + int.from_bytes(os.urandom(2), 'big') % 97 / 50)"
    command = (sys.executable, "-I", "-S", "-c", code)
    from sglang_probe._ab.commands import Command

    yield noise(Command(command, figure="last"), out=tmp_path_factory.mktemp("n") / "n.jsonl", runs=6, progress=False)


def test_a_command_needs_no_unit_where_its_arms_are_equal(real: NoiseResult) -> None:
    assert real.runs == 6 and len(real.experiment.runs) == 14 and 0 < real.cv < 0.02


def test_the_page_has_the_answer_the_runs_and_the_order(real: NoiseResult) -> None:
    text = real.why()
    assert text.startswith(real.sentence) and "Runs of each arm that show an effect" in text and "seed 0" in text
    assert "relabelled at random, these equal arms were told apart in " in text


def test_the_result_is_plain_data(real: NoiseResult) -> None:
    plain = json.loads(json.dumps(real.to_dict()))
    assert (
        plain["runs"] == 6 and len(plain["experiment"]["runs"]) == 14 and set(plain["needed"]) == {"0.01", "0.02", "0.05", "0.1"}
    )
