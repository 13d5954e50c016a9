"""Cells, provenance and files for the tests of measurement files: small, and the same each time.

Invariant: the times are invented; nothing here was measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sglang_probe._measure.cell import Cell
from sglang_probe._measure.measurement import Provenance
from sglang_probe._measure.writer import Writer

PLAN = {"sizes": [1024, 4096], "paths": ["custom"], "processes": 1}
PROVENANCE = Provenance(version="0.0", revision="abc", env={"NCCL_ALGO": "Ring"}, missing={"gpus": "none"})


def cell(i: int = 0, samples: int = 3, **changes: Any) -> Cell:
    """The cell of number i: no two are alike."""
    values: dict[str, Any] = {
        "path": "custom",
        "kernel": "one_shot",
        "backend": "",
        "release": "0.5.9",
        "phase": "captured",
        "pattern": "back_to_back",
        "compute_us": 0.0,
        "driver": "native",
        "device": "host",
        "dtype": "bf16",
        "nbytes": 1024 * (i + 1),
        "world_size": 2,
        "device_us": [[], []],
        "host_us": [[i + 0.1 * k for k in range(1, samples + 1)], [i + 0.3 * k for k in range(1, samples + 1)]],
        "checked": 4,
        "wrong": 0,
    }
    return Cell(**(values | changes))


def write(path: Path, cells: int = 2, finish: bool = True, **cell_changes: Any) -> Path:
    """A file of so many cells; the .partial one where it is not finished."""
    with Writer(path, plan=PLAN, provenance=PROVENANCE) as writer:
        for i in range(cells):
            writer.append(cell(i, **cell_changes))
        if finish:
            return Path(writer.finish())
    return Path(writer.partial_path)


def truth(count: int, **cell_changes: Any) -> list[dict[str, Any]]:
    """What the first cells hold."""
    return [cell(i, **cell_changes).to_dict() for i in range(count)]
