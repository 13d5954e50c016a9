"""Tests that need GPUs: where `gpu.available()` says no, each is skipped with the reason that it gives.

Invariant: an extension that is there and does not load is no reason to skip; its error fails the run.
"""

from __future__ import annotations

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
