"""The notebook runs from top to bottom; its toggles answer; its picture shows what bands say. More of toggles: test_toggles.py."""

from __future__ import annotations

import html
import re
from typing import Any

import notebook_outputs
import pytest
from notebook_outputs import NOTEBOOK
from toggled import controls_of

import sglang_probe as probe
from sglang_probe import InputError, Path
from sglang_probe.notebook import (
    CAPTION,
    STYLES,
    band_columns,
    bands_figure,
    can_be_reached,
    history_figure,
    machine,
    which_path,
)

LAUNCH = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8"


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


def _words(cell: Any) -> list[str]:
    """Of its pictures."""
    return [output["metadata"]["image/png"]["alt"] for output in cell["outputs"] if "image/png" in output.get("data", {})]


def test_the_notebook_runs_from_top_to_bottom(executed: list[Any]) -> None:
    assert len(executed) >= 8
    assert [cell["execution_count"] for cell in executed] == list(range(1, len(executed) + 1))


def test_what_the_committed_notebook_shows_is_what_a_run_gives(executed: list[Any]) -> None:
    for ran, held in zip(executed, _committed(), strict=True):
        assert ran["source"] == held["source"]
        assert _words(ran) == _words(held), _STALE
        if _data(held, "text/html"):
            assert _data(ran, "text/html") == _data(held, "text/html"), _STALE
        elif _data(held, "text/plain"):
            assert _data(ran, "text/plain") == _data(held, "text/plain"), _STALE


def test_the_proof_is_in_the_notebook_with_its_reason_and_its_count(executed: list[Any]) -> None:
    pages = [_data(cell, "text/html") for cell in executed]
    assert any("1,296 of 12,289 states change, all with piecewise=True: 648 go to" in page for page in pages)
    assert any("6,145 states walked" in page and "piecewise=False already forbids it" in page for page in pages)
    assert any("size classes over all sizes walked" in page and "because it needs piecewise=True" in page for page in pages)


def test_the_branch_that_is_proved_unreachable_is_found_once_a_flag_allows_it(executed: list[Any]) -> None:
    allowed = next(cell for cell in executed if "--enable-piecewise-cuda-graph" in cell["source"])
    page = html.unescape(_data(allowed, "text/html"))
    assert "reachable: rule piecewise_pynccl in SGLang 0be30d4" in page
    witness = re.search(r"for instance (probe\.route\(.*?\))<", page)
    assert witness, page
    found = eval(witness[1])  # noqa: S307 # code of ours, as a reader would paste it
    assert (found.rule, found.path) == ("piecewise_pynccl", Path.PYNCCL_OUT_OF_PLACE)


def test_the_pictures_are_in_the_notebook_and_the_file_stays_small(executed: list[Any]) -> None:
    assert sum(len(_data(cell, "image/png")) > 10_000 for cell in executed) == 2
    assert NOTEBOOK.stat().st_size < 300_000
    assert not re.search(r"/(home|root|tmp)/", NOTEBOOK.read_text()), "a path of somebody's machine"


def test_turning_a_toggle_changes_the_answer() -> None:
    box = which_path(sglang="0be30d4", gpu="rtx-pro-6000", context="eager")
    controls, shown = controls_of(box), box.children[-1]
    assert "torch_distributed:" in shown.value
    controls["context"].value = "capture"
    assert "pynccl_in_place:" in shown.value
    controls["link"].value = "nvlink"
    assert shown.value.count("custom: ") >= 1 and "pynccl_in_place:" not in shown.value
    controls["custom"].value = False
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
    axes = picture.axes[0]
    assert "bytes" in axes.get_ylabel() and "release" in axes.get_xlabel()
    assert axes.get_yscale() == "log" and "256 KiB" in [tick.get_text() for tick in axes.get_yticklabels()]
    legend = picture.legends[0]
    assert legend.get_title().get_text() == CAPTION
    assert [text.get_text() for text in legend.get_texts()] == ["custom", "torch_distributed"]
    data, beside = picture._repr_png_()
    assert data.startswith(b"\x89PNG") and "A column a release" in beside["alt"] and CAPTION in beside["alt"]
    heights = {round(patch.get_y() + patch.get_height()) for patch in axes.patches}
    assert {8 << 20, 16 << 20} <= heights, "the limits of 0.5.9 and of 0.5.16"


def test_every_path_has_a_colour_of_its_own() -> None:
    assert set(STYLES) == set(Path)
    assert len(set(STYLES.values())) == len(STYLES)


@pytest.mark.parametrize("named", [{"gpu": "abacus"}, {"link": "string"}, {"colour": 1}])
def test_a_machine_that_nobody_knows_is_refused(named: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        machine(**named)


def test_a_picture_of_no_release_is_refused() -> None:
    with pytest.raises(InputError, match="at least one release"):
        bands_figure(machine("h200"), sglang=[])


# -------------------------------------------------------------------------------------------------------------- proof and history


def test_turning_a_condition_changes_the_proof() -> None:
    box = can_be_reached("piecewise_pynccl", sglang="0be30d4", piecewise=False)
    controls, shown = controls_of(box), box.children[-1]
    assert "unreachable: rule piecewise_pynccl" in shown.value and "piecewise=False already forbids it" in shown.value
    controls["piecewise"].value = "any"
    assert "reachable: rule piecewise_pynccl in SGLang 0be30d4 (E10); 12,289 states walked" in shown.value
    controls["custom"].value = "accepts"
    assert "custom=accepts already forbids it" in shown.value
    controls["rule or path"].value = "raises"
    controls["SGLang"].value = "0.5.9"
    assert "path raises in SGLang 0.5.9" in shown.value


def test_a_proof_of_what_does_not_exist_is_refused_before_there_are_toggles() -> None:
    with pytest.raises(InputError, match="give a rule"):
        can_be_reached("nothing", sglang="0.5.9")


@pytest.fixture(scope="module")
def past() -> probe.History:
    return probe.history(LAUNCH, gpu="h200", releases="0.5.6..0.5.23")


def test_the_history_picture_has_a_panel_for_the_step_and_one_for_the_chunk(past: probe.History) -> None:
    figure = past.picture()
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "Path by size, as a decode step asks (capture)",
        "Path by size, as a prefill chunk asks (eager)",
    ]
    assert all("bytes" in axes.get_ylabel() and axes.get_yscale() == "log" for axes in figure.axes)
    assert figure.legends[0].get_title().get_text() == CAPTION
    assert "release" in figure.axes[-1].get_xlabel()


def test_a_column_of_the_history_picture_ends_where_the_paths_or_the_calls_change(past: probe.History) -> None:
    axes = past.picture("verify").axes[0]
    labels = [tick.get_text().split("\n")[0] for tick in axes.get_xticklabels()]
    changed = [row.release for row in past.rows if any(change.what == "verify" for change in row.change)]
    assert set(changed) <= set(labels) and labels[0] == "0.5.6" and "0.5.7" in changed, "121 calls are fused from 0.5.7 on"
    boxes = [text.get_text() for text in axes.texts if "calls" in text.get_text()]
    assert boxes[0] == "123 calls" and boxes[labels.index("0.5.7")] == "2 calls\n121 fused"
    for x, release in enumerate(labels):
        server = probe.read_launch(LAUNCH, sglang=release, gpu="h200")
        found = probe.bands(server.groups["tp"], context="capture", hidden=7168, sglang=release).bands
        limits = {band.last_bytes for a, band in enumerate(found[:-1]) if found[a + 1].path is not band.path}
        tops = {round(p.get_y() + p.get_height()) for p in axes.patches if abs(p.get_x() + p.get_width() / 2 - x) < 0.01}
        assert limits <= tops, release


def test_the_sizes_that_the_launch_asks_for_are_marked(past: probe.History) -> None:
    for axes, size in zip(past.picture().axes, ("14 KiB", "112 MiB"), strict=True):
        assert any(size in text.get_text() for text in axes.texts)


def test_a_context_that_changes_on_the_way_stands_at_its_columns() -> None:
    launch = "python -m sglang.launch_server --model-path meta-llama/Meta-Llama-3-70B-Instruct --tp 8"
    past = probe.history(launch, gpu="h200", model="Llama-3-70B", releases="0.5.9..0.5.16")
    axes = past.picture("prefill").axes[0]
    heads = [text.get_text() for text in axes.texts if text.get_position()[1] > 1 << 30]
    assert heads[0] == "eager" and "piecewise\ncapture" in heads and axes.get_title(loc="left").endswith("asks")


def test_a_group_has_a_history_picture_without_marks() -> None:
    figure = history_figure(probe.history(group=machine("h200"), releases="0.5.8..0.5.16"))
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Path by size, captured", "Path by size, eager"]
    assert not any("calls" in text.get_text() for axes in figure.axes for text in axes.texts)


def test_a_picture_of_something_else_is_refused(past: probe.History) -> None:
    with pytest.raises(InputError, match="'verify', 'prefill'"):
        past.picture("decode")


def test_a_picture_keeps_its_colours_in_a_small_file(past: probe.History) -> None:
    from io import BytesIO

    from PIL import Image

    data, _ = past.picture()._repr_png_()
    assert len(data) < 60_000
    found = {colour for _, colour in Image.open(BytesIO(data)).convert("RGB").getcolors(1 << 20)}
    for path in (Path.CUSTOM, Path.TORCH_DISTRIBUTED, Path.PYNCCL_IN_PLACE):
        wanted = tuple(bytes.fromhex(STYLES[path][0][1:]))
        assert min(sum(abs(a - b) for a, b in zip(colour, wanted, strict=True)) for colour in found) <= 12, path
