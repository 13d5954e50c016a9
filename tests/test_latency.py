"""Pictures over size: what is drawn is what was measured, with its interval, its units and its origin; nothing is told by colour alone.

The times are invented, and chosen so that each answer can be worked out by hand; shipped ones come from the package.
"""

from __future__ import annotations

import math
from dataclasses import replace
from io import BytesIO
from typing import Any

import measured
import numpy as np
import pytest

import sglang_probe as probe
from sglang_probe import InputError, Measurement, Provenance
from sglang_probe.notebook import against, latency_figure

GPUS = Provenance(
    version="0.1.0",
    started="2026-11-30T05:34:28+00:00",
    host="gpus:elsewhere",
    gpus=({"name": "NVIDIA H200"},) * 2,
    nccl={"version": "2.28.9"},
)
PATHS = (("pynccl_in_place", "", 10.0), ("pynccl_out_of_place", "", 12.0), ("custom", "one_shot", 4.0))


def cells(**changes: Any) -> list[probe.Cell]:
    """Three paths, eager and captured, three process sets: the time of PATHS, times 1, 2, 4 by size and 0.5, 1, 2 by process set."""
    found = []
    for path, kernel, us in PATHS:
        for phase in ("eager", "captured"):
            for size in range(3):
                for process, times in enumerate((0.5, 1.0, 2.0)):
                    device = us * 2**size * times
                    values = {"path": path, "kernel": kernel, "phase": phase, "nbytes": 1024 * 4**size, "process": process}
                    values |= {"device": "gpu", "device_us": [[device], [device / 2]], "host_us": [[device * 3], [1.0]]}
                    found.append(measured.cell(**values | changes))
    return found


@pytest.fixture(scope="module")
def shipped() -> Measurement:
    return Measurement.shipped()


def measurement(*found: probe.Cell, provenance: Provenance = GPUS, **how: Any) -> Measurement:
    return Measurement(tuple(found or cells()), provenance, **how)


def lines(axes: Any) -> dict[tuple[float, ...], tuple[float, ...]]:
    return {tuple(line.get_xdata()): tuple(line.get_ydata()) for line in axes.lines}


def caption(figure: Any) -> str:
    return str(figure.legends[0].get_title().get_text())


def looks(axes: Any) -> list[tuple[Any, ...]]:
    return [(line.get_marker(), line.get_linestyle(), line._dash_pattern, line.get_markerfacecolor()) for line in axes.lines]


# ------------------------------------------------------------------------------------------------------------------- latency


def test_a_panel_for_each_clock_and_phase_with_units_and_sizes_on_the_axes() -> None:
    figure = measurement().picture()
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["eager, device", "eager, host", "captured, device", "captured, host (launching the graph)"]
    for axes, clock in zip(figure.axes, ("device", "host") * 2, strict=True):
        assert axes.get_ylabel() == f"{clock}, us a call" and axes.get_xscale() == axes.get_yscale() == "log"
    for axes in figure.axes[2:]:
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1 KiB", "4 KiB", "16 KiB"]
    assert [axes.get_xlabel() for axes in figure.axes[2:]] == ["bytes of one all-reduce, on each rank"] * 2


def test_marks_are_medians_over_process_sets_of_the_slowest_rank_and_whiskers_their_range() -> None:
    axes = measurement().picture(targets="pynccl_in_place").figure.axes[0]
    (line,) = axes.lines
    assert list(line.get_xdata()) == [1024, 4096, 16384] and list(line.get_ydata()) == [10.0, 20.0, 40.0]
    ends = [tuple(segment[:, 1]) for found in axes.collections for segment in getattr(found, "get_segments", list)()]
    assert ends == [(5.0, 20.0), (10.0, 40.0), (20.0, 80.0)]
    assert "marks: the median over process sets; whiskers: the least and the most" in caption(axes.figure)


def test_the_t_interval_is_the_one_of_the_mean_over_process_sets_and_is_said_to_be() -> None:
    from scipy import stats

    axes = measurement().picture(targets="pynccl_in_place", interval="t").axes[0]
    values = np.array([5.0, 10.0, 20.0])
    mean, half = values.mean(), stats.t.ppf(0.975, 2) * values.std(ddof=1) / math.sqrt(3)
    assert axes.lines[0].get_ydata()[0] == pytest.approx(mean)
    segments = [segment[:, 1] for found in axes.collections for segment in getattr(found, "get_segments", list)()]
    assert segments[0][1] == pytest.approx(min(mean + half, axes.get_ylim()[1]))
    assert mean - half < 0 and segments[0][0] == axes.get_ylim()[0], "its lower end is below every axis: an arrow stands there"
    assert "95 % t interval" in caption(axes.figure)


def test_no_two_lines_look_alike_without_their_colours(shipped: Measurement) -> None:
    figure = shipped.picture()
    assert len(figure.axes[0].lines) == 11
    for axes in figure.axes:
        seen = [(marker, str(dashes), face == "#ffffff") for marker, _, dashes, face in looks(axes)]
        assert len({*seen}) == len(seen)


@pytest.mark.parametrize("dark", [False, True])
def test_every_ink_can_be_read_on_its_ground(dark: bool, shipped: Measurement) -> None:
    from matplotlib.colors import to_rgb

    def light(colour: Any) -> float:
        parts = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    def contrast(one: Any, other: Any) -> float:
        high, low = sorted((light(one), light(other)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for what in ("latency", "buffers"):
        figure = shipped.picture(what, dark=dark)
        ground = figure.get_facecolor()[:3]
        assert (light(ground) < 0.1) == dark
        for axes in figure.axes:
            assert min(contrast(line.get_color(), axes.get_facecolor()) for line in axes.lines) >= 3
            texts = [*axes.get_xticklabels(), *axes.get_yticklabels(), axes.xaxis.label, axes.title]
            assert min(contrast(text.get_color(), ground) for text in texts) >= 7


def test_where_the_numbers_are_from_stands_in_the_picture_and_is_heard(shipped: Measurement) -> None:
    for what in ("latency", "buffers"):
        figure, elsewhere = shipped.picture(what), measurement().picture(what)
        assert "shipped: 2x NVIDIA H200, driver 580.159.04, NCCL 2.28.9" in caption(figure) and "2026-11-30" in caption(figure)
        assert "measured elsewhere: 2x NVIDIA H200, NCCL 2.28.9" in caption(elsewhere)
        data, beside = figure._repr_png_()
        assert data.startswith(b"\x89PNG") and "shipped: 2x NVIDIA H200" in beside["alt"] and len(data) < 60_000


def test_a_notebook_s_small_picture_keeps_each_line_s_colour(shipped: Measurement) -> None:
    from PIL import Image

    for dark in (False, True):
        figure = shipped.picture(dark=dark)
        image = Image.open(BytesIO(figure._repr_png_()[0])).convert("RGB")
        found = {colour for _, colour in image.getcolors(1 << 20)}
        for line in figure.axes[0].lines:
            assert tuple(bytes.fromhex(line.get_color()[1:])) in found, line.get_label()


def test_numbers_of_this_machine_are_called_so_and_those_of_no_machine_are_not() -> None:
    from sglang_probe._costs.machine import this_host

    here = this_host()
    assert measurement(provenance=replace(GPUS, host=here)).origin == ("measured on this machine" if here else "measured")
    assert measurement(provenance=replace(GPUS, host="")).origin == "measured"
    assert Measurement.shipped("2x_h200_verify_step").origin == "shipped"
    with pytest.raises(InputError, match="2x_h200, 2x_h200_verify_step"):
        Measurement.shipped("8x_b200")


def test_cpu_ranks_a_partial_file_and_wrong_results_are_told_in_the_picture() -> None:
    bad = [replace(cell, wrong=1) if cell.path == "custom" and cell.phase == "eager" else cell for cell in cells(device="host")]
    figure = measurement(*bad, partial=True).picture()
    told = caption(figure).replace("\n", " ")
    assert "2 CPU ranks" in told and "CPU ranks: a CPU's times, which say nothing of a GPU" in told
    assert "PARTIAL: not all of the plan is there" in told
    assert "WRONG results, and therefore no time: custom (one_shot), eager, 1 KiB; custom (one_shot), eager, 4 KiB" in told
    assert [len([line for line in axes.lines if len(line.get_xdata())]) for axes in figure.axes] == [2, 2, 3, 3]


def test_a_time_that_a_logarithmic_axis_does_not_have_is_told_and_not_drawn() -> None:
    hidden = [replace(cell, device_us=((-0.5,), (-0.5,))) if cell.nbytes == 1024 else cell for cell in cells()]
    figure = measurement(*hidden).picture(targets="one_shot")
    assert list(figure.axes[0].lines[0].get_xdata()) == [4096, 16384]
    assert "not drawn, not above 0 us: custom (one_shot), eager, device, 1 KiB" in caption(figure)


def test_lines_of_one_path_are_told_apart_by_what_differs_between_them() -> None:
    several = [*cells(), *cells(dtype="fp32"), *cells(release="0.5.16", backend="V2")]
    figure = measurement(*several).picture(targets="one_shot")
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(names) == 3 and any("fp32" in name for name in names) and any("0.5.16" in name for name in names)
    assert len({line.get_marker() for line in figure.axes[0].lines}) == 3


def test_what_was_not_measured_is_refused_with_what_there_is() -> None:
    with pytest.raises(InputError, match="give paths or kernels of pynccl_in_place, .*one_shot"):
        measurement().picture(targets="quick")
    with pytest.raises(InputError, match="there is only: native back_to_back"):
        measurement().picture(pattern="interleaved")
    with pytest.raises(InputError, match="'range' or 't'"):
        latency_figure(measurement(), interval="sd")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="device_us, host_us, elapsed_us"):
        latency_figure(measurement(), clocks=("wait_us",))  # type: ignore[arg-type]


def test_drawing_leaves_the_caller_s_matplotlib_as_it_was() -> None:
    import matplotlib
    from matplotlib import pyplot

    before, open_before = dict(matplotlib.rcParams), pyplot.get_fignums()
    measurement().picture("buffers", dark=True).savefig(BytesIO(), format="svg")
    measurement().picture()
    assert dict(matplotlib.rcParams) == before and pyplot.get_fignums() == open_before


def test_a_summary_shows_itself_in_a_notebook() -> None:
    page = measurement().summary()[0]._repr_html_()
    assert "pynccl_in_place" in page and "rank 1" in page and "1 KiB" in page
    assert "shipped" not in page and against(measurement(), "buffers")._repr_html_().startswith("<div")
