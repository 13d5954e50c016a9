"""Faults among GPU ranks: the rows of faults.py on two GPUs of this machine. The same table runs among CPU ranks in test_faults.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import Fault, faults_of, suffer

from sglang_probe import gpu

REASON = "" if gpu.available() and len(gpu.devices()) > 1 else str(gpu.available()) if not gpu.available() else "one GPU alone"
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


@pytest.mark.parametrize("fault", faults_of("gpu"), ids=str)
def test_a_fault_ends_in_time_with_rank_and_phase_and_leaves_nothing(fault: Fault, tmp_path: Path) -> None:
    suffer(fault, "gpu", tmp_path)
