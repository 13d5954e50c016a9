"""The notebook runs from top to bottom; its toggles answer; its picture shows what bands say."""

from __future__ import annotations

import re
from typing import Any

import notebook_outputs
import pytest
from notebook_outputs import NOTEBOOK

from sglang_probe import InputError, Path
from sglang_probe.notebook import CAPTION, STYLES, band_columns, bands_figure, machine, which_path


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Code cells of a fresh run, elsewhere than in the checkout."""
    return notebook_outputs.code_cells(notebook_outputs.run(tmp_path_factory.mktemp("notebook")))


_STALE = "python tests/notebook_outputs.py writes the committed outputs anew"


def _committed() -> list[Any]:
    import nbformat

    return notebook_outputs.code_cells(nbformat.read(NOTEBOOK, as_version=4))


def _data(cell: Any, kind: str) -> str:
    return "".join(str(output.get("data", {}).get(kind, "")) for output in cell["outputs"])


def test_the_notebook_runs_from_top_to_bottom(executed: list[Any]) -> None:
    assert len(executed) >= 8
    assert [cell["execution_count"] for cell in executed] == list(range(1, len(executed) + 1))


def test_what_the_committed_notebook_shows_is_what_a_run_gives(executed: list[Any]) -> None:
    for ran, held in zip(executed, _committed(), strict=True):
        assert ran["source"] == held["source"]
        if _data(held, "text/html"):
            assert _data(ran, "text/html") == _data(held, "text/html"), _STALE
        elif _data(held, "text/plain"):
            assert _data(ran, "text/plain") == _data(held, "text/plain"), _STALE


def test_the_commit_is_shown_to_change_nothing_while_the_piecewise_flag_is_off(executed: list[Any]) -> None:
    texts = [_data(cell, "text/plain") for cell in executed]
    assert "'1,296 of 12,289 states change; with the piecewise flag off: 0'" in texts


def test_a_picture_is_in_the_notebook_and_the_file_stays_small(executed: list[Any]) -> None:
    assert any(len(_data(cell, "image/png")) > 10_000 for cell in executed)
    assert NOTEBOOK.stat().st_size < 300_000
    assert not re.search(r"/(home|root|tmp)/", NOTEBOOK.read_text()), "a path of somebody's machine"


def test_turning_a_toggle_changes_the_answer() -> None:
    box = which_path(sglang="0be30d4", gpu="rtx-pro-6000", context="eager")
    controls = {control.description: control for row in box.children[:3] for control in row.children}
    shown = box.children[-1]
    assert "torch_distributed:" in shown.value
    controls["context"].value = "capture"
    assert "pynccl_in_place:" in shown.value
    controls["link"].value = "nvlink"
    assert shown.value.count("custom: ") >= 1 and "pynccl_in_place:" not in shown.value
    controls["custom all-reduce"].value = False
    assert "pynccl_in_place:" in shown.value
    controls["ranks"].value = 1
    assert "none: nothing to do" in shown.value
    controls["SGLang"].value = "0.5.23"
    assert "0.5.23" in shown.value


def test_columns_are_runs_of_releases_that_route_alike() -> None:
    columns = band_columns(machine("h200"), context="capture", sglang=["0.5.7", "0.5.8", "0.5.9", "0.5.10", "0.5.16"])
    assert [label for label, _ in columns] == ["0.5.7\nto 0.5.8", "0.5.9\nto 0.5.10", "0.5.16"]
    assert [found[-2].last_bytes // 16 * 16 for _, found in columns] == [(8 << 20) - 16, 8 << 20, 16 << 20]


def test_the_picture_has_units_a_legend_and_says_that_nothing_is_measured() -> None:
    picture = bands_figure(machine("h200"), context="eager", sglang=["0.5.9", "0.5.16"])
    axes = picture.figure.axes[0]
    assert "bytes" in axes.get_ylabel() and "release" in axes.get_xlabel()
    assert axes.get_yscale() == "log" and "256 KiB" in [tick.get_text() for tick in axes.get_yticklabels()]
    legend = picture.figure.legends[0]
    assert legend.get_title().get_text() == CAPTION
    assert [text.get_text() for text in legend.get_texts()] == ["custom", "torch_distributed"]
    assert picture._repr_png_().startswith(b"\x89PNG")
    heights = {round(patch.get_y() + patch.get_height()) for patch in axes.patches}
    assert {8 << 20, 16 << 20} <= heights, "the limits of 0.5.9 and of 0.5.16"


def test_every_path_has_a_colour_of_its_own() -> None:
    assert set(STYLES) == set(Path)
    assert len(set(STYLES.values())) == len(STYLES)


def test_a_picture_of_no_release_is_refused() -> None:
    with pytest.raises(InputError, match="at least one release"):
        bands_figure(machine("h200"), sglang=[])
