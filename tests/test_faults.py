"""Faults among CPU ranks: the rows of faults.py on the host device. The same table runs on GPUs in gpu/test_faults_gpu.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import FAULTS, Fault, faults_of, suffer


@pytest.mark.parametrize("fault", faults_of("host"), ids=str)
def test_a_fault_ends_in_time_with_rank_and_phase_and_leaves_nothing(fault: Fault, tmp_path: Path) -> None:
    suffer(fault, "host", tmp_path)


def test_every_fault_is_shown_on_gpus_too_or_has_no_meaning_there() -> None:
    names = {device: {fault.name for fault in faults_of(device)} for device in ("host", "gpu")}
    assert names["host"] - names["gpu"] == {"rank_of_four_killed"}  # four GPUs
    assert names["gpu"] - names["host"] == {"missing_nccl"}  # CPU ranks refuse any path to it
    assert len({(fault.name, device) for fault in FAULTS for device in fault.devices}) == sum(len(f.devices) for f in FAULTS)
