"""Tests that need GPUs: where `gpu.available()` says no, each is skipped with the reason that it gives.

Invariant: an extension that is there and does not load is no reason to skip; its error fails the run.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang_probe import gpu

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    available = gpu.available()
    if available:
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU: {available}"))


@pytest.fixture(scope="module", autouse=True)
def _alone() -> Iterator[None]:
    """With several workers (pytest -n) one file at a time has the GPUs."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield
        return
    with open(Path(tempfile.gettempdir()) / f"sglang_probe-gpu-tests-{os.getuid()}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
