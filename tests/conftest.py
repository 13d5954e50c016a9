"""What all tests share: the repository's root, one hypothesis profile, a header that names what was tested.

Invariant: in CI nothing depends on a random seed or on how busy the machine is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["pytester"]  # test_plugin.py runs pytest inside of pytest
ROOT = Path(__file__).resolve().parents[1]

settings.register_profile("default", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_report_header() -> str:
    import sglang_probe
    from sglang_probe import _core

    return f"sglang_probe: {Path(sglang_probe.__file__).parent}, core {Path(_core.__file__).name}, {sys.implementation.cache_tag}"


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout that these tests belong to."""
    return ROOT
