"""notebooks/04_inside_a_worker.ipynb runs from top to bottom with what ships, and finds the odd call site.

``python tests/test_live_notebook.py`` commits what a run shows.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import notebook_outputs
import pytest

import sglang_probe as probe

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "04_inside_a_worker.ipynb"
_STALE = "python tests/test_live_notebook.py writes the committed outputs anew"


def run(folder: Path) -> Any:
    return notebook_outputs.run(folder, NOTEBOOK)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it runs: elsewhere than in the checkout."""
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def executed(folder: Path) -> list[Any]:
    """Code cells of a fresh run."""
    return notebook_outputs.code_cells(run(folder))


def one(executed: list[Any], text: str) -> str:
    """What the cell of this source shows."""
    (found,) = [cell for cell in executed if text in cell["source"]]
    return notebook_outputs.shown(found)


def test_what_is_committed_is_what_a_run_gives(executed: list[Any]) -> None:
    import nbformat

    held = notebook_outputs.code_cells(nbformat.read(NOTEBOOK, as_version=4))
    assert [(cell["source"], notebook_outputs.shown(cell)) for cell in executed] == [
        (cell["source"], notebook_outputs.shown(cell)) for cell in held
    ], _STALE
    assert all(notebook_outputs.shown(cell) for cell in executed[1:]) and not re.search(
        r"/(home|root|tmp)/", NOTEBOOK.read_text()
    )


def test_it_finds_the_odd_call_site_and_says_why(executed: list[Any]) -> None:
    assert "100% past custom, {'torch_distributed': 40}: sglang/srt/models/toy_moe.py:7 count_dropped_tokens" in one(
        executed, "past custom"
    )
    assert "Counter({(6, 1, 'bf16', 'in_place'): 40})" in one(executed, "(odd,)")
    why = one(executed, "decision = probe.route(probe.Call(6)")
    assert "torch_distributed | 6 bytes is not a multiple of 16" in why and "16 bytes: custom" in why


def test_every_call_is_held_against_the_router_in_the_worker_and_from_outside(executed: list[Any]) -> None:
    lines = one(executed, "seen[call").splitlines()
    assert sum(int(line.split(" x ")[0]) for line in lines) == 261 and all("as expected" in line for line in lines)
    assert (
        "  57 x eager     as expected: ran torch_distributed, expected torch_distributed in the worker, torch_distributed here"
        in lines
    )


def test_the_picture_is_there_small_and_has_words(executed: list[Any]) -> None:
    (cell,) = [cell for cell in executed if cell["source"] == "recording.picture()"]
    (output,) = cell["outputs"]
    assert 10_000 < len(output["data"]["image/png"]) < 60_000
    assert "57 x torch_distributed, eager" in notebook_outputs.shown(
        cell
    ) and "522 records of 2 processes" in notebook_outputs.shown(cell)
    assert NOTEBOOK.stat().st_size < 150_000


def test_the_link_leads_to_a_trace_that_was_written(folder: Path, executed: list[Any]) -> None:
    link = re.search(r"href='([^']+)'", one(executed, "FileLink"))
    assert link and link[1] == "inside_a_worker.trace.json"
    trace = json.loads((folder / link[1]).read_text())
    assert sum(event["ph"] in "Xi" for event in trace["traceEvents"]) >= 522


def test_executed_is_what_was_captured_times_its_replays(executed: list[Any]) -> None:
    assert one(executed, "graph.captured * ").splitlines()[::3] == [
        "graph 1: 17 calls captured, 120 replays, 2,040 executed",
        "graph 4: 17 calls captured, 0 replays, 0 executed",
    ]


def test_the_recording_that_ships_is_one_of_the_hook_and_names_no_machine() -> None:
    recording = probe.read_recording(example=True)
    assert [(worker.rank, worker.release, worker.state, worker.calls) for worker in recording.workers] == [
        (0, "0.5.9", "ended", 261),
        (1, "0.5.9", "ended", 261),
    ]
    assert all(worker.header["failures"] == 0 and not worker.torn and not worker.overwritten for worker in recording.workers)
    sites = {call["site"] for worker in recording.workers for call in recording.named(worker)}
    assert len(sites) == 4 and all(site.startswith("sglang/srt/models/toy_moe.py:") for site in sites)
    assert recording.agreement.agrees and recording.top.alarms == 0


if __name__ == "__main__":
    notebook_outputs.commit(NOTEBOOK)
