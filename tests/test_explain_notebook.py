"""notebooks/03_the_smoking_gun.ipynb runs from top to bottom without a GPU, and shows what it says that it shows.

``python tests/test_explain_notebook.py`` commits what a run shows.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import notebook_outputs
import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "03_the_smoking_gun.ipynb"
_STALE = "python tests/test_explain_notebook.py writes the committed outputs anew"


def run(folder: Path) -> Any:
    return notebook_outputs.run(folder, NOTEBOOK)


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Code cells of a fresh run, elsewhere than in the checkout."""
    return notebook_outputs.code_cells(run(tmp_path_factory.mktemp("notebook")))


def one(executed: list[Any], text: str) -> str:
    """What the cell of this source shows."""
    (found,) = [cell for cell in executed if text in cell["source"]]
    return notebook_outputs.shown(found)


def test_the_hunt_runs_from_top_to_bottom(executed: list[Any]) -> None:
    assert [cell["execution_count"] for cell in executed] == list(range(1, len(executed) + 1))
    assert all(notebook_outputs.shown(cell) for cell in executed[1:])


def test_what_is_committed_is_what_a_run_gives(executed: list[Any]) -> None:
    import nbformat

    held = notebook_outputs.code_cells(nbformat.read(NOTEBOOK, as_version=4))
    assert [(cell["source"], notebook_outputs.shown(cell)) for cell in executed] == [
        (cell["source"], notebook_outputs.shown(cell)) for cell in held
    ], _STALE
    assert NOTEBOOK.stat().st_size < 300_000 and not re.search(r"/(home|root|tmp)/", NOTEBOOK.read_text())


def test_a_single_run_shows_nothing_and_no_split_of_five_repeats_is_a_difference(executed: list[Any]) -> None:
    assert one(executed, '"89tok/s", "82tok/s"))').startswith("UNDECIDED")
    assert one(executed, "combinations(repeats, 2)") == "{'UNDECIDED'}"


def test_the_hunt_counts_the_states_and_ends_in_the_answer(executed: list[Any]) -> None:
    assert "1,296 of 12,289 states change, all with piecewise=True" in one(executed, 'probe.diff("bba2fc4", "0be30d4")')
    answer = one(executed, "print(found)")
    assert answer.startswith("CANNOT (unreachable): no all-reduce of this server changes its route from bba2fc4 to 0be30d4")
    for told in (
        "0 of 6,145 states of the rules change with piecewise=False",
        "one run an arm cannot tell 89 from 82 tok/s (plain decoding)",
        "not measured on 8x rtx-pro-6000 over PCIe",
        "had piecewise_pynccl fired in piecewise_replay (this server never sets it)",
        "eager instead of captured",
        "no change of path causes it",
    ):
        assert told in answer


def test_figures_of_two_streams_are_named_and_the_reached_rule_is_not_let_off(executed: list[Any]) -> None:
    assert one(executed, "mixed = ").startswith("INCONSISTENT: 89 tok/s with a step of 19 ms before")
    reached = one(executed, "reached = ")
    assert reached.startswith("COULD: ") and "sglang-probe ab --a-target torch_distributed" in reached


if __name__ == "__main__":
    notebook_outputs.commit(NOTEBOOK)
