"""Runs the C tests of this folder from pytest, plainly built: the sanitized runs are .ci/run's."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="no C compiler here (an installed wheel needs none)")
def test_the_core_alone_keeps_its_promises(root: Path) -> None:
    done = subprocess.run([root / "tests/c/run.sh", "plain"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    programs = sorted(p.name for p in (root / "tests/c").glob("test_*.c"))
    assert programs, "no C test program"
    for name in programs:
        assert any(name in line and line.endswith(" 0 failed") for line in done.stdout.splitlines()), name
