"""The pictures of reports: what is drawn is what was measured, with units, origins and words, in both themes, and small at any size.

Invariant: a figure is asked for what it holds (points, labels, colours), never compared with a stored picture.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sglang_probe import _report
from sglang_probe._explain.explain import explain
from sglang_probe._explain.types import Bound, Explanation, Range, Waiting
from sglang_probe._report.theme import DARK, LIGHT, Theme
from sglang_probe._report.thin import jitter, kept
from sglang_probe._verdict.arm import Arm
from sglang_probe._verdict.verdict import Verdict, verdict

pytest.importorskip("matplotlib", reason="the pictures' tests need what draws them: the extra notebook")


def outlier() -> Verdict:
    return verdict([4023.5, 4019.9, 3380.1, 4002, 4090], [4384.6, 4466.1, 4471.0], unit="tok/s")


def two_modes() -> Verdict:
    r = random.Random(1)

    def process(center: float) -> tuple[float, ...]:
        return tuple(r.gauss(center + r.gauss(0, 0.1), 0.2) for _ in range(31))

    a = Arm("before", tuple(process(19.8) for _ in range(8)), "us", "measured, a.jsonl")
    slow = (False, True, False, False, True, True, False, False, False)
    return verdict(a, Arm("after", tuple(process(24.9 if one else 19.7) for one in slow), "us", "measured, b.jsonl"))


def undecided() -> Verdict:
    return verdict([89], [82], unit="tok/s")


def warm_up() -> Verdict:
    r = random.Random(2)
    arms = ([[r.gauss(20, 0.1) * (1.4 if i < 3 else 1) for i in range(40)] for _ in range(6)] for _ in "ab")
    return verdict(*arms, unit="us")


@pytest.fixture(scope="module")
def explained() -> Explanation:
    """The motivating case, with every kind of bar."""
    found = explain(example=True)
    bounds = (
        Bound(
            "routes", "the change of routes", 123, "torch_distributed", "pynccl", Range(-1.2, -1.4, -1.0), origins=("measured",)
        ),
        Bound(
            "routes", "elsewhere", 123, "x", "y", Range(2.0, 1.5, 2.5), origins=("shipped",), machine="2x H200", illustration=True
        ),
    )
    waiting = (Waiting("before", Range(10.0, 8.0, 12.0), Range(5.0), "measured, w.jsonl"),)
    return replace(found, bounds=(*found.bounds, *bounds), waiting=waiting)


def legend_of(figure: Any) -> str:
    legend = figure.legends[0]
    return "\n".join([legend.get_title().get_text(), *(text.get_text() for text in legend.get_texts())])


def ticks_of(axes: Any) -> list[str]:
    return [tick.get_text() for tick in axes.get_xticklabels()]


def points_of(axes: Any) -> np.ndarray[Any, Any]:
    from matplotlib.collections import PathCollection  # dots; lines are collections too

    return np.concatenate([found.get_offsets().data for found in axes.collections if isinstance(found, PathCollection)])


# ------------------------------------------------------------------------------------------------------------------------ what is drawn


@pytest.mark.parametrize("make", [outlier, two_modes, undecided, warm_up])
@pytest.mark.parametrize("dark", [False, True])
def test_every_axis_has_its_unit_and_says_which_way_is_better(make: Any, dark: bool) -> None:
    found = make()
    figure = _report.figure(found, dark=dark)
    samples, effect = figure.axes
    assert samples.get_ylabel() == f"{found.a.unit} ({found.better} is better)"
    assert f"in the order {'given' if found.a.origin == 'given' else 'measured'}" in samples.get_xlabel()
    assert effect.get_ylabel() == f"b / a - 1, % ({found.better} is better)"
    assert ticks_of(effect)[0].startswith(f"{found.word}\n{100 * found.effect:+.1f}"[:12])
    assert all(found.a.unit in tick for tick in ticks_of(samples))


def test_every_process_is_a_dot_and_the_outlier_has_a_ring() -> None:
    figure = _report.figure(outlier())
    points = points_of(figure.axes[0])
    drawn = sorted(points[:, 1])
    assert np.allclose(drawn, [3380.1, 3380.1, 4002, 4019.9, 4023.5, 4090, 4384.6, 4466.1, 4471.0])
    assert "far from the others; kept" in legend_of(figure) and "a, 5 processes, given" in legend_of(figure)


def test_modes_stand_with_the_number_of_their_processes() -> None:
    figure = _report.figure(two_modes())
    words = [text.get_text() for text in figure.axes[0].texts]
    assert words == ["6 of 9", "3 of 9"]
    heights = [text.get_position()[1] for text in figure.axes[0].texts]
    assert np.allclose(heights, [19.7, 24.9], atol=0.3)
    assert "measured, a.jsonl" in legend_of(figure) and "iterations inside a process" in legend_of(figure)


def test_the_effect_stands_with_its_interval_the_margin_and_zero() -> None:
    found = outlier()
    effect = _report.figure(found).axes[1]
    points = points_of(effect)
    for value in (found.effect, found.low, found.high):
        assert np.isclose(points[:, 1], 100 * value).any()
    low, high = effect.get_ylim()
    assert low < -2 and high > 100 * found.high
    band = next(patch for patch in effect.patches)
    assert np.isclose(band.get_y(), -2 / 1.02) and np.isclose(band.get_y() + band.get_height(), 2)
    assert any(np.allclose(line.get_ydata(), 0) for line in effect.lines)
    assert "margin: within 2 % counts as the same" in legend_of(_report.figure(found))


def test_an_interval_without_ends_has_arrows_and_says_why() -> None:
    figure = _report.figure(undecided())
    assert "no ends: too few runs" in ticks_of(figure.axes[1])[0]
    low, high = figure.axes[1].get_ylim()
    ends = points_of(figure.axes[1])[:, 1]
    assert np.isclose(ends.min(), low, atol=0.1 * (high - low)) and np.isclose(ends.max(), high, atol=0.1 * (high - low))


def test_a_warm_up_is_drawn_and_told_apart() -> None:
    figure = _report.figure(warm_up())
    assert "iterations of a warm-up, which count no more" in legend_of(figure)
    assert len(points_of(figure.axes[0])) == 2 * 6 * 40 + 2 * 6


def test_an_explanation_shows_what_was_seen_what_can_be_and_waiting_apart(explained: Explanation) -> None:
    figure = _report.figure(explained)
    axes = figure.axes[0]
    assert axes.get_xlabel().startswith("ms a step, after less before")
    names = [tick.get_text().replace("\n", " ") for tick in axes.get_yticklabels()]
    widths = dict(zip(names, (patch.get_width() for patch in axes.patches), strict=True))
    assert widths["verify step: 19 to 29 ms (UNDECIDED)"] == 10
    assert widths["the change of routes, 123 calls"] == -1.2 and widths["the change of routes, no call changes"] == 0
    assert np.isclose(widths[f"before: waiting, {explained.calls} calls"], explained.calls * 10 / 1000)
    words = " ".join(text.get_text() for text in axes.texts).replace("\n", " ")
    for origin in ("10 (no interval) given", "-1.2 (-1.4 to -1) measured", "0 counted", "shipped; 2x H200", "measured, w.jsonl"):
        assert origin in words
    legend = legend_of(figure)
    for text in ("the difference seen", "at most", "another machine, an illustration", "no path change causes"):
        assert text in legend
    assert "not measured: had piecewise_pynccl fired" in legend


def test_the_words_beside_each_bar_stand_within_the_picture(explained: Explanation) -> None:
    machine, assumed = "8x NVIDIA RTX PRO 6000 Blackwell Server Edition over PCIe", "no interval: a factor of 2 is assumed"
    for bound in explained.bounds:
        one = replace(bound, ms=Range(60.0, 50.0, 70.0), origins=("published",), machine=machine, assumed=assumed)
        far = replace(explained, bounds=(one,))
        figure = _report.figure(far)
        figure.draw_without_rendering()
        axes = figure.axes[0]
        assert axes.texts and max(text.get_window_extent().x1 for text in axes.texts) <= axes.get_window_extent().x1
        assert not any(" ... " in text.get_text() for text in axes.texts)


def test_a_notebook_stays_small_with_every_kind_of_bar(explained: Explanation) -> None:
    assert len(re.findall(r"<svg.*</svg>", _report.html(explained), re.S)[0]) < 60_000


def test_outliers_of_many_times_the_rest_get_a_logarithmic_axis_that_says_so() -> None:
    axes = _report.figure(verdict([1, 1.1, 1.2, 90], [1, 1.1, 1.2, 1.3], unit="ms")).axes[0]
    assert axes.get_yscale() == "log" and "logarithmic" in axes.get_ylabel()


@pytest.mark.parametrize("label", ["$x_1$", r"$\frac{1}{0$", "_hidden", "<b>", "\x1b[31m", "x" * 500, "\u4f60\u597d", ""])
def test_any_label_can_be_drawn_and_none_is_a_formula(label: str) -> None:
    found = verdict(Arm(label, ((1.0,), (2.0,)), "$", label), Arm("b", ((3.0,),), "$"), better="lower")
    _report.figure(found).canvas.draw()
    texts = [element.text or "" for element in ET.fromstring(svg_of(found)).iter() if element.tag == "text"]
    if 0 < len(label) < 20:
        assert any(_report.text.shown(label) in text for text in texts), texts


def svg_of(result: Any) -> str:
    found = re.search(r"<svg.*</svg>", _report.html(result), re.S)
    assert found is not None
    return found[0].replace("&nbsp;", " ")


# ---------------------------------------------------------------------------------------------------------------------------- colours


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_every_colour_stands_out_from_its_ground(theme: Theme) -> None:
    assert contrast(theme.ink, theme.ground) >= 7
    for colour in (theme.a, theme.b, theme.margin, theme.waiting, theme.faint):
        assert contrast(colour, theme.ground) >= 3, colour


def test_what_a_notebook_shows_reads_on_a_dark_ground_too() -> None:
    for colour in (LIGHT.a, LIGHT.b, LIGHT.margin, LIGHT.waiting, LIGHT.faint):
        assert contrast(colour, "#111111") >= 3, colour


def test_dark_is_dark_and_both_say_the_same() -> None:
    light, dark = (_report.figure(two_modes(), dark=dark) for dark in (False, True))
    assert luminance("#" + "".join(f"{round(255 * part):02x}" for part in dark.get_facecolor()[:3])) < 0.02
    assert light.get_facecolor()[:3] == (1, 1, 1)
    assert legend_of(light) == legend_of(dark)
    assert [axes.get_ylim() for axes in light.axes] == [axes.get_ylim() for axes in dark.axes]


def test_the_picture_of_a_page_takes_every_colour_from_the_page(explained: Explanation) -> None:
    for result in (outlier(), two_modes(), explained):
        svg = svg_of(result)
        assert not re.search(r"(?<!,)#[0-9a-f]{6}\b", svg), "a colour that no theme can change"
        assert "currentColor" in svg and "var(--sp-a,#0072b2)" in svg


def test_two_pictures_in_one_page_do_not_share_an_identity() -> None:
    one, other = (set(re.findall(r' id="([^"]+)"', svg_of(make()))) for make in (outlier, undecided))
    assert one and other and not one & other
    for make in (outlier, two_modes):
        svg = svg_of(make())
        used = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)
        assert {a or b for a, b in used} <= set(re.findall(r' id="([^"]+)"', svg))


# ------------------------------------------------------------------------------------------------------------------------------- size


def many(processes: int, iterations: int) -> Verdict:
    r = random.Random(3)
    arms = (
        Arm(label, tuple(tuple(r.lognormvariate(3, 0.1) for _ in range(iterations)) for _ in range(processes)), "us")
        for label in ("before", "after")
    )
    return verdict(*arms)


@pytest.mark.parametrize(("processes", "iterations"), [(3000, 1), (40, 250)])
def test_thousands_of_samples_stay_small_and_none_is_dropped_from_the_data(processes: int, iterations: int) -> None:
    found = many(processes, iterations)
    page = _report.page(found)
    assert len(page) < 2_000_000 and len(_report.html(found)) < 1_000_000
    data = _report.document(found)["result"]
    assert [tuple(process) for process in data["a"]["processes"]] == list(found.a.processes)
    figure = _report.figure(found)
    noun = "processes" if iterations == 1 else "iterations"
    assert f"before: {240 if iterations == 1 else 900} of {processes * iterations:,} {noun} drawn" in legend_of(figure)
    heights = points_of(figure.axes[0])[:, 1]
    every = [value for arm in (found.a, found.b) for process in arm.processes for value in process]
    assert np.isclose(heights.min(), min(every)) and np.isclose(heights.max(), max(every))


def test_what_is_drawn_of_many_has_both_ends_and_the_shape_of_all() -> None:
    r = random.Random(4)
    values = [r.gauss(0, 1) for _ in range(5000)]
    places = kept(values, 200)
    drawn = [values[i] for i in places]
    assert len(places) == 200 and places == sorted(places)
    assert min(drawn) == min(values) and max(drawn) == max(values)
    assert np.allclose(np.quantile(drawn, [0.1, 0.5, 0.9]), np.quantile(values, [0.1, 0.5, 0.9]), atol=0.05)
    assert kept(values[:7], 7) == list(range(7))


def test_the_jitter_is_the_same_each_time_and_stays_with_its_process() -> None:
    assert jitter(50) == jitter(50) and all(-0.5 <= offset < 0.5 for offset in jitter(1000))
    points = [points_of(_report.figure(two_modes()).axes[0]) for _ in range(2)]
    assert (points[0] == points[1]).all()


# -------------------------------------------------------------------------------------------------------------------- nothing is left


def test_a_picture_leaves_matplotlib_as_it_was() -> None:
    code = """
import sys
import matplotlib
matplotlib.rcParams["text.usetex"] = True
matplotlib.rcParams["axes.facecolor"] = "red"
def settings():  # to ask for the backend is to load pyplot
    return {name: matplotlib.rcParams[name] for name in matplotlib.rcParams if name != "backend"}
before = settings()
from sglang_probe import _report
from sglang_probe._verdict.verdict import verdict
found = verdict([1, 2, 3, 4], [5, 6, 7, 8], unit="ms")
figure = _report.figure(found)
assert "<svg" in _report.html(found)
assert figure.axes[0].get_facecolor()[:3] == (1, 1, 1)
assert settings() == before
assert "matplotlib.pyplot" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
