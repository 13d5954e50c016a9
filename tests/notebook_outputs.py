"""Runs a notebook, and writes what a run shows. Called by each notebook's tests; ``python tests/notebook_outputs.py`` is the first one's.

Invariant: committed outputs come from a run; a cell tagged ``live`` (toggles) keeps none, and a long repr gives way to its HTML or picture.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "01_which_path.ipynb"


def run(folder: str | os.PathLike[str], path: Path = NOTEBOOK, **settings: Any) -> Any:
    """The notebook after a run in ``folder``, with a kernel that imports the package that is tested. ``settings``: nbclient's."""
    import nbformat
    from nbclient import NotebookClient

    import sglang_probe

    parent = str(Path(sglang_probe.__file__).parents[1])
    python_path = os.pathsep.join(filter(None, [parent, os.environ.get("PYTHONPATH")]))
    env = {"PYTHONPATH": python_path, "JUPYTER_PLATFORM_DIRS": "1", "IPYTHONDIR": str(Path(folder) / "ipython")}
    notebook = nbformat.read(path, as_version=4)
    settings = {"timeout": 300, "kernel_name": "python3", "store_widget_state": False, **settings}
    with mock.patch.dict(os.environ, env):
        NotebookClient(notebook, resources={"metadata": {"path": str(folder)}}, **settings).execute()
    return notebook


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tidy(notebook: Any) -> None:
    """Leave what a reader sees, and nothing of the machine that it ran on."""
    notebook.metadata.pop("widgets", None)
    notebook.metadata["language_info"] = {"name": "python"}
    for cell in code_cells(notebook):
        cell.metadata.pop("execution", None)
        if "live" in cell.metadata.get("tags", []):
            cell.outputs = []
        for output in cell.outputs:
            data = output.get("data", {})
            if data.keys() & {"text/html", "image/png"}:
                data.pop("text/plain", None)


def shown(cell: Any) -> str:
    """What a reader sees of a cell: what it printed, or its page, or the words of its picture."""
    found = []
    for output in cell["outputs"]:
        data = output.get("data", {})
        words = output.get("metadata", {}).get("image/png", {}).get("alt", "")
        found.append("".join(output.get("text", "") or words or data.get("text/html", "") or data.get("text/plain", "")))
    return "\n".join(found)


def commit(path: Path, **settings: Any) -> None:
    """Write into the notebook what a run of it shows."""
    import nbformat

    with tempfile.TemporaryDirectory() as folder:
        ran = run(folder, path, **settings)
    tidy(ran)
    nbformat.validate(ran)
    nbformat.write(ran, path)


if __name__ == "__main__":
    commit(NOTEBOOK)
