"""preflight on a machine with GPUs that is believed to be healthy: it says so, with evidence, and a planted sickness is found.

Invariant: what a machine may lack without being sick (nvidia-ml-py, peer access, SGLang) is not asserted.
"""

from __future__ import annotations

import importlib.util
import json
import os

import pytest

import sglang_probe as probe
from sglang_probe import gpu
from sglang_probe._bench.targets import TARGETS
from sglang_probe._preflight.phases import PHASES
from sglang_probe._preflight.result import Preflight

NEEDED = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or len(gpu.devices() if gpu.available() else ()) < 2,
    reason="needs two GPUs and torch, as ranks on GPUs do",
)


@pytest.fixture(scope="module")
def found() -> Preflight:
    result = probe.preflight(show=False)
    print(result.to_dict())
    return result


@NEEDED
def test_a_healthy_machine_is_healthy_in_thirty_seconds(found: Preflight) -> None:
    assert not [(one.name, one.text) for one in found.phases if one.state in ("hung", "died", "failed")], str(found)
    assert found.healthy, str(found)
    assert found.seconds < 30, [(one.name, one.seconds) for one in found.phases]  # what is promised of a healthy machine
    assert [one.name for one in found.phases] == [one.name for one in PHASES]
    json.dumps(found.to_dict(), allow_nan=False)


@NEEDED
def test_each_path_ran_its_own_kernel_on_gpus_or_says_why_not(found: Preflight) -> None:
    paths = found["paths"].facts
    assert paths["device"] == "gpu" and found["paths"].text.endswith(paths["where"])
    rows = {row["target"]: row for row in paths["all_reduces"]}
    assert set(rows) >= set(TARGETS)
    for name, target in TARGETS.items():
        result = rows[name]["result"]
        assert result == "correct" or result.startswith(("not here: ", "not taken here: ")), (name, result)
        assert result != "correct" or rows[name]["kernel"] == target.kernel
    assert rows["torch_distributed"]["result"] == "correct" == rows["pynccl_in_place"]["result"]


@NEEDED
def test_every_pair_with_peer_access_moved_data(found: Preflight) -> None:
    count = found["devices"].facts["count"]
    told = found["peer"].facts
    copies, denied = told.get("copies", ()), told.get("denied", ())
    assert len(copies) + len(denied) == count * (count - 1)
    assert all(copy["wrong_words"] == 0 for copy in copies)
    for copy in copies:
        assert gpu.link(copy["target"], copy["source"]).peer_access
    if copies:
        assert found["ipc"].state == "ok" and found["ipc"].text.startswith("works: ")


@NEEDED
def test_torch_pynccl_and_we_load_one_nccl(found: Preflight) -> None:
    users = {row["user"]: row for row in found["nccl"].facts["users"]}
    assert set(users) == {"torch", "SGLang's pynccl", "our communicators"}
    assert len({row["version"] for row in users.values()}) == 1 and users["torch"]["version"]
    files = {row["path"] for row in found["nccl"].facts["libraries"]}
    assert {row["path"] for row in users.values() if not row["path"].startswith("inside ")} <= files


@NEEDED
def test_the_driver_tells_of_every_gpu(found: Preflight) -> None:
    if importlib.util.find_spec("pynvml") is None:
        assert {"links", "health"} <= {one.name for one in found.phases if one.state == "skipped"}
        return
    links = found["links"].facts["links"]
    assert len(links) >= found["devices"].facts["count"] and all(len(row) == len(links) for row in links)
    states = found["health"].facts["gpus"]
    assert len(states) == len(links)
    assert all(state["sm_mhz"] and state["temperature_c"] and state["power_w"] for state in states)
    assert found["driver"].facts["driver"] and found["driver"].facts["cuda"]


@NEEDED
def test_a_launch_that_blocks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    result = probe.preflight(only="environment", show=False)
    assert not result.healthy and "CUDA_LAUNCH_BLOCKING=1" in result.answer


def test_hidden_gpus_leave_a_machine_that_reduces_on_its_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    result = probe.preflight(only=["paths", "devices", "peer"], show=False)
    assert result["paths"].facts["device"] == "host" and result["paths"].state == "ok"
    assert result["devices"].facts["count"] == 0 and result["peer"].state == "skipped"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
