"""notebooks/02_measure.ipynb runs from top to bottom with and without GPUs, and shows what it says that it shows.

What was shipped is compared word by word; of what a run measures itself, only what must be the same each time: times are not.
``python tests/test_measure_notebook.py`` commits what a run shows.
"""

from __future__ import annotations

import ast
import base64
import html
import re
from io import BytesIO
from pathlib import Path
from typing import Any

import notebook_outputs
import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "02_measure.ipynb"
_STALE = "python tests/test_measure_notebook.py writes the committed outputs anew"


# Without the state of widgets nbclient loses the place of a progress bar (KeyError); what is printed is one output.
_SETTINGS = {"store_widget_state": True, "coalesce_streams": True}


def run(folder: Path) -> Any:
    return notebook_outputs.run(folder, NOTEBOOK, **_SETTINGS)


def text_of(cell: Any) -> str:
    """What a reader sees of a cell but pictures: what it printed, its page or value, and the words that go with a picture."""
    found = []
    for output in cell["outputs"]:
        data = output.get("data", {})
        alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
        plain = "" if alt else data.get("text/plain", "")
        found.append("".join(output.get("text", "") or data.get("text/html", "") or plain) + alt)
    return "\n".join(found)


def png_of(cell: Any) -> bytes:
    (found,) = [output["data"]["image/png"] for output in cell["outputs"] if "image/png" in output.get("data", {})]
    return base64.b64decode(found)


def rows_of(page: str) -> list[list[str]]:
    """Cells of the tables of a page in HTML."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.S)
    return [
        [html.unescape(re.sub("<.*?>", "", cell)) for cell in re.findall(r"<t[dh].*?>(.*?)</t[dh]>", row, re.S)] for row in rows
    ]


def committed() -> list[Any]:
    import nbformat

    return notebook_outputs.code_cells(nbformat.read(NOTEBOOK, as_version=4))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def executed(folder: Path) -> list[Any]:
    """Code cells of a fresh run, elsewhere than in the checkout."""
    return notebook_outputs.code_cells(run(folder))


def one(cells: list[Any], text: str) -> Any:
    """The cell of this source."""
    (found,) = [cell for cell in cells if text in cell["source"]]
    return found


def shipped_part(cells: list[Any]) -> list[Any]:
    return cells[cells.index(one(cells, "Measurement.shipped")) :]


def test_the_notebook_runs_from_top_to_bottom(executed: list[Any]) -> None:
    assert [cell["execution_count"] for cell in executed] == list(range(1, len(executed) + 1))
    assert [cell["source"] for cell in executed] == [cell["source"] for cell in committed()]


def test_what_was_measured_is_kept_in_a_file_beside_the_notebook(executed: list[Any], folder: Path) -> None:
    from sglang_probe import Measurement

    (written,) = folder.glob("bench-*.jsonl")
    found = Measurement.read(written)
    assert executed and found.cells and not any(cell.wrong for cell in found.cells)


def test_the_table_has_a_row_for_every_call_and_the_committed_one_has_the_same(executed: list[Any]) -> None:
    ran, held = (rows_of(text_of(next(cell for cell in cells if cell["source"] == "here"))) for cells in (executed, committed()))
    assert ran[0] == held[0] == ["path", "phase", "compute", "size", "device us", "busbw GB/s", "host us", "elapsed us"]
    paths = {row[0] for row in ran[1:]}
    assert {"pynccl_in_place", "pynccl_out_of_place", "custom (one_shot)"} <= paths
    if "CPU ranks" in text_of(one(executed, "here.picture()")):
        assert [row[:4] for row in ran] == [row[:4] for row in held], _STALE


def test_what_is_measured_here_is_labelled_so_and_as_cpu_ranks_where_it_is(executed: list[Any]) -> None:
    for cells in (executed, committed()):
        for source in ("here.picture()", 'against(here, "buffers")', 'against(here, "patterns")'):
            told = text_of(one(cells, source))
            assert "measured" in told and "shipped" not in told
            assert ("CPU ranks: a CPU's times, which say nothing of a GPU" in told) == ("CPU ranks," in told)
            assert re.search(r"20\d\d-\d\d-\d\dT", told), "the day"
    assert "CPU ranks," in text_of(one(committed(), "here.picture()"))


def test_what_is_shipped_is_the_same_at_each_run_and_labelled_with_its_machine(executed: list[Any]) -> None:
    ran, held = shipped_part(executed), shipped_part(committed())
    assert [text_of(cell) for cell in ran] == [text_of(cell) for cell in held], _STALE
    pictures = [cell for cell in held if "image/png" in str(cell["outputs"])]
    assert len(pictures) == 4
    for cell in pictures:
        assert re.search(r"shipped: 2x NVIDIA H200, driver [\d.]+, NCCL [\d.]+; .*, 20\d\d-\d\d-\d\dT", text_of(cell))


def test_the_sizes_at_which_out_of_place_costs_are_computed_and_few(executed: list[Any]) -> None:
    found = ast.literal_eval(text_of(one(executed, "row.ratio.side")))
    assert {(phase, nbytes) for phase, nbytes, _ in found} >= {("eager", 16 << 20), ("captured", 16 << 20)}
    assert all(times > 1 for _, nbytes, times in found if nbytes == 16 << 20) and len(found) < 6


def test_the_python_of_the_engine_is_told_for_eager_and_for_captured_calls(executed: list[Any]) -> None:
    told = text_of(one(executed, 'against(shipped, "drivers"'))
    assert "pynccl_in_place, host, eager: SGLang's Python takes" in told and "of 10 sizes, 10 longer and 0 shorter" in told
    assert "pynccl_in_place, host, captured: SGLang's Python takes" in told


def test_a_machine_without_sglang_is_told_what_the_comparison_needs(executed: list[Any]) -> None:
    told = text_of(one(executed, 'against(here, "drivers")'))
    assert "it needs native and engine" in told or "SGLang's Python takes" in told


def test_the_pictures_are_whole_and_the_file_stays_small(executed: list[Any]) -> None:
    from PIL import Image

    for cells in (executed, committed()):
        for cell in (cell for cell in cells if "image/png" in str(cell["outputs"])):
            image = Image.open(BytesIO(png_of(cell)))
            assert image.width > 600 and image.height > 400 and len(image.convert("RGB").getcolors(1 << 20)) > 20
    text = NOTEBOOK.read_text()
    assert NOTEBOOK.stat().st_size < 400_000 and not re.search(r"/(home|root|tmp|work)/", text)


def test_no_number_is_typed_by_hand_into_the_text() -> None:
    """Every time and share is computed in a cell; sizes and counts are what the bench is asked for."""
    import nbformat

    prose = " ".join(cell.source for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "markdown")
    assert not re.search(r"\d[\d.,]*\s*(?:us|ms|%|times|GB/s)", prose)
    assert re.search(r"\d[\d.,]*\s*(?:us|ms|%|times|GB/s)", "7.1 us"), "the pattern finds one"


if __name__ == "__main__":
    notebook_outputs.commit(NOTEBOOK, **_SETTINGS)
